/*
 * The CUDA driver, found while the program runs: a table of its entry points,
 * filled once from the library that setting `cuda_driver` names. No CUDA header
 * is needed to build; types and values are those of the driver's ABI, and a
 * test compares them with cuda.h where there is one. Knows nothing of ranks.
 */
#ifndef SYSTEM_CUDA_DRIVER_H
#define SYSTEM_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "polypath/polypath.h"

/* Opaque handles and addresses, by the names that everybody knows. */
typedef int CUdevice;
typedef unsigned long long CUdeviceptr; /* also valid as a host address if the memory is the host's */
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

/* Enumerations of the driver are passed as unsigned. */
typedef unsigned cuda_result_t;

/* What calls return (CUDA_ERROR_NAME is CUDA_IS_NAME here, so that cuda.h may be included beside). */
enum {
    CUDA_IS_OK = 0,
    CUDA_IS_INVALID_VALUE = 1,
    CUDA_IS_OUT_OF_MEMORY = 2,
    CUDA_IS_NOT_INITIALIZED = 3,
    CUDA_IS_NO_DEVICE = 100,
    CUDA_IS_INVALID_DEVICE = 101,
    CUDA_IS_INVALID_CONTEXT = 201,
    CUDA_IS_MAP_FAILED = 205,
    CUDA_IS_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_IS_OPERATING_SYSTEM = 304,
    CUDA_IS_INVALID_HANDLE = 400,
    CUDA_IS_ILLEGAL_STATE = 401,
    CUDA_IS_NOT_FOUND = 500,
    CUDA_IS_NOT_READY = 600,
    CUDA_IS_ILLEGAL_ADDRESS = 700,
    CUDA_IS_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_IS_CONTEXT_IS_DESTROYED = 709,
    CUDA_IS_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_IS_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_IS_NOT_PERMITTED = 800,
    CUDA_IS_NOT_SUPPORTED = 801,
    CUDA_IS_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_IS_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_IS_STREAM_CAPTURE_MERGE = 902,
    CUDA_IS_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_IS_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_IS_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_IS_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_IS_CAPTURED_EVENT = 907,
    CUDA_IS_STREAM_CAPTURE_WRONG_THREAD = 908,
};

/* CUdevice_attribute */
enum {
    CUDA_DEVICE_MAX_THREADS_PER_BLOCK = 1,
    CUDA_DEVICE_MULTIPROCESSOR_COUNT = 16,
    CUDA_DEVICE_INTEGRATED = 18,
    CUDA_DEVICE_L2_CACHE_SIZE = 38,
    CUDA_DEVICE_ASYNC_ENGINE_COUNT = 40,
    CUDA_DEVICE_UNIFIED_ADDRESSING = 41,
    CUDA_DEVICE_COMPUTE_CAPABILITY_MAJOR = 75,
    CUDA_DEVICE_COMPUTE_CAPABILITY_MINOR = 76,
    CUDA_DEVICE_PAGEABLE_MEMORY_ACCESS = 88,
    CUDA_DEVICE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
    CUDA_DEVICE_CAN_FLUSH_REMOTE_WRITES = 98,
    CUDA_DEVICE_HOST_REGISTER_SUPPORTED = 99,
    CUDA_DEVICE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    CUDA_DEVICE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    CUDA_DEVICE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122,
    CUDA_DEVICE_DMA_BUF_SUPPORTED = 124,
    CUDA_DEVICE_MULTICAST_SUPPORTED = 132,
};

/* CUpointer_attribute, and the kinds of memory that CUDA_POINTER_MEMORY_TYPE gives */
enum {
    CUDA_POINTER_CONTEXT = 1,
    CUDA_POINTER_MEMORY_TYPE = 2,
    CUDA_POINTER_DEVICE_POINTER = 3,
    CUDA_POINTER_HOST_POINTER = 4,
    CUDA_POINTER_BUFFER_ID = 7,
    CUDA_POINTER_IS_MANAGED = 8,
    CUDA_POINTER_DEVICE_ORDINAL = 9,
    CUDA_POINTER_IS_LEGACY_IPC_CAPABLE = 10,
    CUDA_POINTER_RANGE_START_ADDR = 11,
    CUDA_POINTER_RANGE_SIZE = 12,
    CUDA_POINTER_MAPPED = 13,
    CUDA_POINTER_ALLOWED_HANDLE_TYPES = 14,
};
enum { CUDA_MEMORY_HOST = 1, CUDA_MEMORY_DEVICE = 2 };

/* Flags and options */
enum {
    CUDA_HOST_ALLOC_PORTABLE = 1,
    CUDA_HOST_ALLOC_DEVICEMAP = 2,
    CUDA_HOST_REGISTER_PORTABLE = 1,
    CUDA_HOST_REGISTER_DEVICEMAP = 2,
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_BLOCKING_SYNC = 1,
    CUDA_EVENT_DISABLE_TIMING = 2,
    CUDA_EVENT_INTERPROCESS = 4,
    CUDA_IPC_LAZY_ENABLE_PEER_ACCESS = 1,
    CUDA_WAIT_GEQ = 0, /* (int32_t)(*address - value) >= 0: counters may wrap */
    CUDA_WAIT_EQ = 1,
    CUDA_WAIT_AND = 2, /* *address & value is not 0 */
    CUDA_WRITE_DEFAULT = 0,
    CUDA_MEM_OP_WAIT_VALUE_32 = 1,
    CUDA_MEM_OP_WRITE_VALUE_32 = 2,
    CUDA_CAPTURE_GLOBAL = 0,
    CUDA_CAPTURE_THREAD_LOCAL = 1,
    CUDA_CAPTURE_RELAXED = 2,
    CUDA_CAPTURE_STATUS_NONE = 0,
    CUDA_CAPTURE_STATUS_ACTIVE = 1,
    CUDA_CAPTURE_STATUS_INVALIDATED = 2,
    CUDA_FUNC_MAX_THREADS_PER_BLOCK = 0,
    CUDA_FUNC_SHARED_SIZE_BYTES = 1,
    CUDA_FUNC_NUM_REGS = 4,
    CUDA_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CUDA_ALLOCATION_PINNED = 1,
    CUDA_LOCATION_DEVICE = 1,
    CUDA_HANDLE_POSIX_FILE_DESCRIPTOR = 1,
    CUDA_ACCESS_READ = 1,
    CUDA_ACCESS_READ_WRITE = 3,
    CUDA_GRANULARITY_MINIMUM = 0,
    CUDA_GRANULARITY_RECOMMENDED = 1,
};

struct cuda_uuid {
    char bytes[16];
};

struct cuda_ipc_handle { /* of memory or of an event; plain bytes, may be sent to another process */
    char reserved[64];
};

struct cuda_location {
    unsigned type; /* CUDA_LOCATION_DEVICE */
    int id;
};

struct cuda_allocation { /* CUmemAllocationProp */
    unsigned type;       /* CUDA_ALLOCATION_PINNED */
    unsigned handle_types;
    struct cuda_location location;
    void *win32;
    struct {
        unsigned char compression;
        unsigned char gpu_direct_rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct cuda_access { /* CUmemAccessDesc */
    struct cuda_location location;
    unsigned flags;
};

union cuda_mem_op { /* CUstreamBatchMemOpParams; a wait and a write have the same shape */
    unsigned operation;
    struct {
        unsigned operation; /* CUDA_MEM_OP_... */
        CUdeviceptr address;
        union {
            uint32_t value;
            uint64_t value64;
        };
        unsigned flags; /* CUDA_WAIT_... or CUDA_WRITE_... */
        CUdeviceptr alias;
    } value;
    uint64_t pad[6];
};

typedef void cuda_host_function(void *argument);

/*
 * ENTRY(field, symbol, parameters) for every entry point. Symbols are the
 * versioned ones that drivers from 12.0 on export, so that neither the headers
 * of a newer CUDA nor a newer driver change what a call means.
 */
#define CUDA_DRIVER_ENTRIES(ENTRY)                                                                                     \
    /* devices and contexts */                                                                                         \
    ENTRY(init, cuInit, (unsigned flags))                                                                              \
    ENTRY(driver_get_version, cuDriverGetVersion, (int *version))                                                      \
    ENTRY(get_error_name, cuGetErrorName, (cuda_result_t result, const char **name))                                   \
    ENTRY(get_error_string, cuGetErrorString, (cuda_result_t result, const char **text))                               \
    ENTRY(device_get, cuDeviceGet, (CUdevice * device, int ordinal))                                                   \
    ENTRY(device_get_count, cuDeviceGetCount, (int *count))                                                            \
    ENTRY(device_get_attribute, cuDeviceGetAttribute, (int *value, unsigned attribute, CUdevice device))               \
    ENTRY(device_get_name, cuDeviceGetName, (char *name, int bytes, CUdevice device))                                  \
    ENTRY(device_get_pci_bus_id, cuDeviceGetPCIBusId, (char *id, int bytes, CUdevice device))                          \
    ENTRY(device_get_uuid, cuDeviceGetUuid_v2, (struct cuda_uuid * uuid, CUdevice device))                             \
    ENTRY(device_total_mem, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                                    \
    ENTRY(device_can_access_peer, cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))                   \
    ENTRY(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                 \
    ENTRY(device_primary_ctx_release, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                 \
    ENTRY(ctx_set_current, cuCtxSetCurrent, (CUcontext context))                                                       \
    ENTRY(ctx_get_current, cuCtxGetCurrent, (CUcontext * context))                                                     \
    ENTRY(ctx_push_current, cuCtxPushCurrent_v2, (CUcontext context))                                                  \
    ENTRY(ctx_pop_current, cuCtxPopCurrent_v2, (CUcontext * context))                                                  \
    ENTRY(ctx_get_device, cuCtxGetDevice, (CUdevice * device))                                                         \
    ENTRY(ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange, (int *least, int *greatest))                     \
    ENTRY(ctx_synchronize, cuCtxSynchronize, (void))                                                                   \
    ENTRY(ctx_enable_peer_access, cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags))                             \
    /* memory */                                                                                                       \
    ENTRY(mem_alloc, cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                                             \
    ENTRY(mem_free, cuMemFree_v2, (CUdeviceptr address))                                                               \
    ENTRY(mem_host_alloc, cuMemHostAlloc, (void **address, size_t bytes, unsigned flags))                              \
    ENTRY(mem_free_host, cuMemFreeHost, (void *address))                                                               \
    ENTRY(mem_host_register, cuMemHostRegister_v2, (void *address, size_t bytes, unsigned flags))                      \
    ENTRY(mem_host_unregister, cuMemHostUnregister, (void *address))                                                   \
    ENTRY(mem_host_get_device_pointer, cuMemHostGetDevicePointer_v2,                                                   \
          (CUdeviceptr * on_device, void *address, unsigned flags))                                                    \
    ENTRY(mem_get_address_range, cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t * bytes, CUdeviceptr address))   \
    ENTRY(pointer_get_attribute, cuPointerGetAttribute, (void *value, unsigned attribute, CUdeviceptr address))        \
    ENTRY(pointer_get_attributes, cuPointerGetAttributes,                                                              \
          (unsigned count, unsigned *attributes, void **values, CUdeviceptr address))                                  \
    ENTRY(memcpy_async, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))              \
    ENTRY(memcpy_htod_async, cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))  \
    ENTRY(memcpy_dtoh_async, cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))        \
    ENTRY(memcpy_dtod_async, cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))  \
    ENTRY(memset_d8_async, cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream))      \
    ENTRY(memset_d32_async, cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream stream))         \
    /* memory of other processes */                                                                                    \
    ENTRY(ipc_get_mem_handle, cuIpcGetMemHandle, (struct cuda_ipc_handle * handle, CUdeviceptr address))               \
    ENTRY(ipc_open_mem_handle, cuIpcOpenMemHandle_v2,                                                                  \
          (CUdeviceptr * address, struct cuda_ipc_handle handle, unsigned flags))                                      \
    ENTRY(ipc_close_mem_handle, cuIpcCloseMemHandle, (CUdeviceptr address))                                            \
    ENTRY(ipc_get_event_handle, cuIpcGetEventHandle, (struct cuda_ipc_handle * handle, CUevent event))                 \
    ENTRY(ipc_open_event_handle, cuIpcOpenEventHandle, (CUevent * event, struct cuda_ipc_handle handle))               \
    /* virtual memory management */                                                                                    \
    ENTRY(mem_address_reserve, cuMemAddressReserve,                                                                    \
          (CUdeviceptr * address, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags))       \
    ENTRY(mem_address_free, cuMemAddressFree, (CUdeviceptr address, size_t bytes))                                     \
    ENTRY(mem_create, cuMemCreate,                                                                                     \
          (CUmemGenericAllocationHandle * handle, size_t bytes, const struct cuda_allocation *properties,              \
           unsigned long long flags))                                                                                  \
    ENTRY(mem_release, cuMemRelease, (CUmemGenericAllocationHandle handle))                                            \
    ENTRY(mem_map, cuMemMap,                                                                                           \
          (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,                      \
           unsigned long long flags))                                                                                  \
    ENTRY(mem_unmap, cuMemUnmap, (CUdeviceptr address, size_t bytes))                                                  \
    ENTRY(mem_set_access, cuMemSetAccess,                                                                              \
          (CUdeviceptr address, size_t bytes, const struct cuda_access *access, size_t count))                         \
    ENTRY(mem_export_to_shareable_handle, cuMemExportToShareableHandle,                                                \
          (void *shareable, CUmemGenericAllocationHandle handle, unsigned type, unsigned long long flags))             \
    ENTRY(mem_import_from_shareable_handle, cuMemImportFromShareableHandle,                                            \
          (CUmemGenericAllocationHandle * handle, void *shareable, unsigned type))                                     \
    ENTRY(mem_get_allocation_granularity, cuMemGetAllocationGranularity,                                               \
          (size_t * bytes, const struct cuda_allocation *properties, unsigned option))                                 \
    ENTRY(mem_retain_allocation_handle, cuMemRetainAllocationHandle,                                                   \
          (CUmemGenericAllocationHandle * handle, void *address))                                                      \
    /* streams and events */                                                                                           \
    ENTRY(stream_create, cuStreamCreate, (CUstream * stream, unsigned flags))                                          \
    ENTRY(stream_create_with_priority, cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority))  \
    ENTRY(stream_destroy, cuStreamDestroy_v2, (CUstream stream))                                                       \
    ENTRY(stream_query, cuStreamQuery, (CUstream stream))                                                              \
    ENTRY(stream_synchronize, cuStreamSynchronize, (CUstream stream))                                                  \
    ENTRY(stream_get_ctx, cuStreamGetCtx, (CUstream stream, CUcontext * context))                                      \
    ENTRY(stream_wait_event, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                      \
    ENTRY(stream_wait_value_32, cuStreamWaitValue32_v2,                                                                \
          (CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags))                                      \
    ENTRY(stream_write_value_32, cuStreamWriteValue32_v2,                                                              \
          (CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags))                                      \
    ENTRY(stream_batch_mem_op, cuStreamBatchMemOp_v2,                                                                  \
          (CUstream stream, unsigned count, union cuda_mem_op *ops, unsigned flags))                                   \
    ENTRY(launch_host_func, cuLaunchHostFunc, (CUstream stream, cuda_host_function * function, void *argument))        \
    ENTRY(event_create, cuEventCreate, (CUevent * event, unsigned flags))                                              \
    ENTRY(event_destroy, cuEventDestroy_v2, (CUevent event))                                                           \
    ENTRY(event_record, cuEventRecord, (CUevent event, CUstream stream))                                               \
    ENTRY(event_query, cuEventQuery, (CUevent event))                                                                  \
    ENTRY(event_synchronize, cuEventSynchronize, (CUevent event))                                                      \
    ENTRY(event_elapsed_time, cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end))                   \
    /* graphs */                                                                                                       \
    ENTRY(stream_begin_capture, cuStreamBeginCapture_v2, (CUstream stream, unsigned mode))                             \
    ENTRY(stream_end_capture, cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                  \
    ENTRY(stream_is_capturing, cuStreamIsCapturing, (CUstream stream, unsigned *status))                               \
    ENTRY(stream_get_capture_info, cuStreamGetCaptureInfo_v2,                                                          \
          (CUstream stream, unsigned *status, uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies,          \
           size_t *count))                                                                                             \
    ENTRY(thread_exchange_stream_capture_mode, cuThreadExchangeStreamCaptureMode, (unsigned *mode))                    \
    ENTRY(graph_instantiate, cuGraphInstantiateWithFlags,                                                              \
          (CUgraphExec * executable, CUgraph graph, unsigned long long flags))                                         \
    ENTRY(graph_launch, cuGraphLaunch, (CUgraphExec executable, CUstream stream))                                      \
    ENTRY(graph_destroy, cuGraphDestroy, (CUgraph graph))                                                              \
    ENTRY(graph_exec_destroy, cuGraphExecDestroy, (CUgraphExec executable))                                            \
    /* kernels */                                                                                                      \
    ENTRY(module_load_data, cuModuleLoadData, (CUmodule * module, const void *image))                                  \
    ENTRY(module_unload, cuModuleUnload, (CUmodule module))                                                            \
    ENTRY(module_get_function, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))        \
    ENTRY(func_get_attribute, cuFuncGetAttribute, (int *value, unsigned attribute, CUfunction function))               \
    ENTRY(func_set_attribute, cuFuncSetAttribute, (CUfunction function, unsigned attribute, int value))                \
    ENTRY(launch_kernel, cuLaunchKernel,                                                                               \
          (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
           unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra))                 \
    ENTRY(occupancy_max_active_blocks, cuOccupancyMaxActiveBlocksPerMultiprocessor,                                    \
          (int *blocks, CUfunction function, int block_threads, size_t shared_bytes))

/* NOLINTNEXTLINE(bugprone-macro-parentheses): they are parts of a declaration */
#define CUDA_DRIVER_FIELD(field, symbol, parameters) cuda_result_t(*field) parameters;
struct cuda_driver {
    CUDA_DRIVER_ENTRIES(CUDA_DRIVER_FIELD)
    int version; /* 12040 is 12.4 */
    int devices; /* at least 1 */
};
#undef CUDA_DRIVER_FIELD

#define CUDA_DRIVER_OLDEST 12000 /* the second version of stream memory operations, and of most of the above */

/*
 * The process's driver, loaded and initialised at the first call by any
 * thread, or NULL if this process has no GPU; *why then says why not (never
 * NULL, valid for the life of the process). A driver that was found but cannot
 * be used, although there may be a GPU, is also logged, once. `why` may be NULL.
 */
const struct cuda_driver *cuda_driver_get(const char **why);

/*
 * Fills *driver from `library` and initialises it. Returns
 * POLYPATH_ERROR_UNSUPPORTED with the error text set if there is no such
 * library, it is too old or lacks an entry, or there is no GPU. The library
 * stays loaded: drivers do not survive dlclose().
 */
polypath_result_t cuda_driver_load(const char *library, struct cuda_driver *driver);

/*
 * POLYPATH_SUCCESS if `result` is CUDA_IS_OK, otherwise an error with the text
 * "CALL on GPU device: NAME, number (the driver's text)", where CALL is the
 * format with what follows. A `device` below 0 is left out.
 */
polypath_result_t cuda_check(const struct cuda_driver *driver, cuda_result_t result, int device, const char *format,
                             ...) __attribute__((format(printf, 4, 5)));

#endif
