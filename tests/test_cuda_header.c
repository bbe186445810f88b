/*
 * The library declares the part of the CUDA driver's ABI that it uses by
 * itself, so that it builds without CUDA. Where cuda.h is installed, every
 * signature, structure and value is compared with it; elsewhere there is
 * nothing to compare.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#if defined(__has_include)
#if __has_include(<cuda.h>)
#define __CUDA_API_VERSION_INTERNAL /* declares the symbols by their versioned names */
#include <cuda.h>
#define HAVE_CUDA_HEADER 1
#endif
#endif

#include "system/cuda_driver.h"

#ifdef HAVE_CUDA_HEADER

/* These take structures, which have other tags here; the structures are compared below. */
static const char *const with_structures =
    " cuDeviceGetUuid_v2 cuIpcGetMemHandle cuIpcOpenMemHandle_v2 cuIpcGetEventHandle cuIpcOpenEventHandle cuMemCreate "
    "cuMemSetAccess cuMemGetAllocationGranularity cuStreamBatchMemOp_v2 ";

static void test_every_signature_is_that_of_cuda_h(void **state)
{
    (void)state;
#define ENTRY(field, symbol, parameters)                                                                               \
    {#symbol, __builtin_types_compatible_p(__typeof__(((struct cuda_driver *)0)->field), __typeof__(&symbol))},
    static const struct {
        const char *symbol;
        int same;
    } entries[] = {CUDA_DRIVER_ENTRIES(ENTRY)};
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        char word[128];
        snprintf(word, sizeof word, " %s ", entries[i].symbol);
        if (!entries[i].same && !strstr(with_structures, word))
            fail_msg("%s has other parameters in cuda.h", entries[i].symbol);
    }
}

#define SAME_PLACE(ours, our_field, theirs, their_field)                                                               \
    _Static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field), #theirs "." #their_field)
_Static_assert(sizeof(struct cuda_uuid) == sizeof(CUuuid), "CUuuid");
_Static_assert(sizeof(struct cuda_ipc_handle) == sizeof(CUipcMemHandle), "CUipcMemHandle");
_Static_assert(sizeof(struct cuda_ipc_handle) == sizeof(CUipcEventHandle), "CUipcEventHandle");
_Static_assert(sizeof(struct cuda_location) == sizeof(CUmemLocation), "CUmemLocation");
SAME_PLACE(struct cuda_location, id, CUmemLocation, id);
_Static_assert(sizeof(struct cuda_access) == sizeof(CUmemAccessDesc), "CUmemAccessDesc");
SAME_PLACE(struct cuda_access, flags, CUmemAccessDesc, flags);
_Static_assert(sizeof(struct cuda_allocation) == sizeof(CUmemAllocationProp), "CUmemAllocationProp");
SAME_PLACE(struct cuda_allocation, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(struct cuda_allocation, location, CUmemAllocationProp, location);
SAME_PLACE(struct cuda_allocation, flags.gpu_direct_rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_PLACE(struct cuda_allocation, flags.usage, CUmemAllocationProp, allocFlags.usage);
_Static_assert(sizeof(union cuda_mem_op) == sizeof(CUstreamBatchMemOpParams), "CUstreamBatchMemOpParams");
SAME_PLACE(union cuda_mem_op, value.address, CUstreamBatchMemOpParams, waitValue.address);
SAME_PLACE(union cuda_mem_op, value.value, CUstreamBatchMemOpParams, waitValue.value);
SAME_PLACE(union cuda_mem_op, value.value64, CUstreamBatchMemOpParams, waitValue.value64);
SAME_PLACE(union cuda_mem_op, value.flags, CUstreamBatchMemOpParams, waitValue.flags);
SAME_PLACE(union cuda_mem_op, value.address, CUstreamBatchMemOpParams, writeValue.address);
SAME_PLACE(union cuda_mem_op, value.value, CUstreamBatchMemOpParams, writeValue.value);
SAME_PLACE(union cuda_mem_op, value.flags, CUstreamBatchMemOpParams, writeValue.flags);
_Static_assert(sizeof(cuda_result_t) == sizeof(CUresult), "CUresult");

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
#define RESULT(name) SAME(CUDA_IS_##name, CUDA_ERROR_##name)
SAME(CUDA_IS_OK, CUDA_SUCCESS);
RESULT(INVALID_VALUE);
RESULT(OUT_OF_MEMORY);
RESULT(NOT_INITIALIZED);
RESULT(NO_DEVICE);
RESULT(INVALID_DEVICE);
RESULT(INVALID_CONTEXT);
RESULT(MAP_FAILED);
RESULT(PEER_ACCESS_UNSUPPORTED);
RESULT(OPERATING_SYSTEM);
RESULT(INVALID_HANDLE);
RESULT(ILLEGAL_STATE);
RESULT(NOT_FOUND);
RESULT(NOT_READY);
RESULT(ILLEGAL_ADDRESS);
RESULT(PEER_ACCESS_ALREADY_ENABLED);
RESULT(CONTEXT_IS_DESTROYED);
RESULT(HOST_MEMORY_ALREADY_REGISTERED);
RESULT(HOST_MEMORY_NOT_REGISTERED);
RESULT(NOT_PERMITTED);
RESULT(NOT_SUPPORTED);
RESULT(STREAM_CAPTURE_UNSUPPORTED);
RESULT(STREAM_CAPTURE_INVALIDATED);
RESULT(STREAM_CAPTURE_MERGE);
RESULT(STREAM_CAPTURE_UNMATCHED);
RESULT(STREAM_CAPTURE_UNJOINED);
RESULT(STREAM_CAPTURE_ISOLATION);
RESULT(STREAM_CAPTURE_IMPLICIT);
RESULT(CAPTURED_EVENT);
RESULT(STREAM_CAPTURE_WRONG_THREAD);

#define DEVICE(name) SAME(CUDA_DEVICE_##name, CU_DEVICE_ATTRIBUTE_##name)
DEVICE(MAX_THREADS_PER_BLOCK);
DEVICE(MULTIPROCESSOR_COUNT);
DEVICE(INTEGRATED);
DEVICE(L2_CACHE_SIZE);
DEVICE(ASYNC_ENGINE_COUNT);
DEVICE(UNIFIED_ADDRESSING);
DEVICE(COMPUTE_CAPABILITY_MAJOR);
DEVICE(COMPUTE_CAPABILITY_MINOR);
DEVICE(PAGEABLE_MEMORY_ACCESS);
DEVICE(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
DEVICE(CAN_FLUSH_REMOTE_WRITES);
DEVICE(HOST_REGISTER_SUPPORTED);
DEVICE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
DEVICE(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
DEVICE(CAN_USE_64_BIT_STREAM_MEM_OPS);
DEVICE(DMA_BUF_SUPPORTED);
DEVICE(MULTICAST_SUPPORTED);

#define POINTER(name) SAME(CUDA_POINTER_##name, CU_POINTER_ATTRIBUTE_##name)
POINTER(CONTEXT);
POINTER(MEMORY_TYPE);
POINTER(DEVICE_POINTER);
POINTER(HOST_POINTER);
POINTER(BUFFER_ID);
POINTER(IS_MANAGED);
POINTER(DEVICE_ORDINAL);
SAME(CUDA_POINTER_IS_LEGACY_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
POINTER(RANGE_START_ADDR);
POINTER(RANGE_SIZE);
POINTER(MAPPED);
POINTER(ALLOWED_HANDLE_TYPES);
SAME(CUDA_MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME(CUDA_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);

SAME(CUDA_HOST_ALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(CUDA_HOST_ALLOC_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP);
SAME(CUDA_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(CUDA_HOST_REGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CUDA_EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC);
SAME(CUDA_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(CUDA_EVENT_INTERPROCESS, CU_EVENT_INTERPROCESS);
SAME(CUDA_IPC_LAZY_ENABLE_PEER_ACCESS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(CUDA_WAIT_GEQ, CU_STREAM_WAIT_VALUE_GEQ);
SAME(CUDA_WAIT_EQ, CU_STREAM_WAIT_VALUE_EQ);
SAME(CUDA_WAIT_AND, CU_STREAM_WAIT_VALUE_AND);
SAME(CUDA_WRITE_DEFAULT, CU_STREAM_WRITE_VALUE_DEFAULT);
SAME(CUDA_MEM_OP_WAIT_VALUE_32, CU_STREAM_MEM_OP_WAIT_VALUE_32);
SAME(CUDA_MEM_OP_WRITE_VALUE_32, CU_STREAM_MEM_OP_WRITE_VALUE_32);
SAME(CUDA_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(CUDA_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(CUDA_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(CUDA_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(CUDA_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(CUDA_CAPTURE_STATUS_INVALIDATED, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME(CUDA_FUNC_MAX_THREADS_PER_BLOCK, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME(CUDA_FUNC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME(CUDA_FUNC_NUM_REGS, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME(CUDA_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(CUDA_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(CUDA_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(CUDA_HANDLE_POSIX_FILE_DESCRIPTOR, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(CUDA_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME(CUDA_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(CUDA_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(CUDA_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_signature_is_that_of_cuda_h)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("skipped: no cuda.h here to compare with");
    return 77;
}

#endif
