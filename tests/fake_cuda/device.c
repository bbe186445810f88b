/*
 * The fake's devices, contexts, errors and faults.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_cuda/internal.h"

#define STACK_MAX 16
#define FAULTS_MAX 16

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;
struct fake_settings fake_settings;
_Thread_local bool fake_in_host_function;

static bool initialised, forked;
static struct CUctx_st contexts[DEVICES_MAX];
static _Thread_local struct CUctx_st *stack[STACK_MAX];
static _Thread_local int depth;

static struct fault {
    char entry[64];
    unsigned nth, code;
} faults[FAULTS_MAX];

uint64_t fake_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void fake_sleep_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (nanosleep(&t, &t) && errno == EINTR)
        ;
}

/* ------------------------------------------------------------------ settings */

static double number_of(const char *name, double fallback)
{
    const char *text = getenv(name);
    return text && *text ? strtod(text, NULL) : fallback;
}

static void after_fork(void)
{
    forked = true; /* a driver does not survive fork(): its threads are gone, its locks may be held */
}

__attribute__((constructor)) static void read_environment(void)
{
    fake_settings.devices = (int)number_of("FAKE_CUDA_DEVICES", 1);
    if (fake_settings.devices > DEVICES_MAX)
        fake_settings.devices = DEVICES_MAX;
    fake_settings.version = (int)number_of("FAKE_CUDA_VERSION", 13000);
    fake_settings.peer = (int)number_of("FAKE_CUDA_PEER", 1);
    fake_settings.memory_bytes = (size_t)number_of("FAKE_CUDA_MEMORY", 4.0 * (1u << 30));
    fake_settings.copy_gbps = number_of("FAKE_CUDA_COPY_GBPS", 0);
    char entry[64];
    unsigned nth, code;
    int used;
    for (const char *p = getenv("FAKE_CUDA_FAIL"); p && sscanf(p, "%63[^:]:%u:%u%n", entry, &nth, &code, &used) == 3;) {
        fake_cuda_fail(entry, nth, code);
        p += used;
        p += *p == ',';
    }
    for (int i = 0; i < DEVICES_MAX; i++)
        contexts[i].device = i;
    pthread_atfork(NULL, NULL, after_fork);
}

/* -------------------------------------------------------------------- faults */

static size_t name_length(const char *entry) /* without _v2 */
{
    const char *version = strstr(entry, "_v");
    return version ? (size_t)(version - entry) : strlen(entry);
}

EXPORT void fake_cuda_fail(const char *entry, unsigned nth, unsigned code)
{
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAULTS_MAX; i++) {
        if (faults[i].nth)
            continue;
        snprintf(faults[i].entry, sizeof faults[i].entry, "%.*s", (int)name_length(entry), entry);
        faults[i].nth = nth;
        faults[i].code = code;
        break;
    }
    pthread_mutex_unlock(&fake_lock);
}

static cuda_result_t fault_of(const char *entry)
{
    cuda_result_t result = CUDA_IS_OK;
    for (int i = 0; i < FAULTS_MAX; i++) {
        const size_t length = name_length(entry);
        if (faults[i].nth && strlen(faults[i].entry) == length && !strncmp(faults[i].entry, entry, length) &&
            !--faults[i].nth)
            result = faults[i].code;
    }
    return result;
}

static cuda_result_t may_enter(const char *entry, unsigned needs)
{
    const cuda_result_t fault = fault_of(entry);
    if (fault)
        return fault;
    if ((needs & NEEDS_INIT) && !initialised)
        return CUDA_IS_NOT_INITIALIZED;
    if ((needs & NEEDS_CONTEXT) == NEEDS_CONTEXT) {
        struct CUctx_st *context = fake_context();
        if (!context)
            return CUDA_IS_INVALID_CONTEXT;
        if (!fake_context_alive(context))
            return CUDA_IS_CONTEXT_IS_DESTROYED;
        const cuda_result_t broken = atomic_load(&context->broken);
        if (broken)
            return broken;
    }
    return (needs & NOT_IN_CAPTURE) && fake_capture_forbids() ? CUDA_IS_STREAM_CAPTURE_UNSUPPORTED : CUDA_IS_OK;
}

cuda_result_t fake_enter(const char *entry, unsigned needs)
{
    if (forked)
        return CUDA_IS_NOT_INITIALIZED;
    if (fake_in_host_function)
        return CUDA_IS_NOT_PERMITTED;
    pthread_mutex_lock(&fake_lock);
    const cuda_result_t result = may_enter(entry, needs);
    if (result)
        pthread_mutex_unlock(&fake_lock);
    return result;
}

cuda_result_t fake_leave(cuda_result_t result)
{
    pthread_mutex_unlock(&fake_lock);
    return result;
}

EXPORT size_t fake_cuda_count(const char *kind)
{
    static const struct {
        const char *kind;
        size_t (*count)(void);
    } kinds[] = {{"memory", fake_memory_count},  {"streams", fake_stream_count}, {"events", fake_event_count},
                 {"modules", fake_module_count}, {"graphs", fake_graph_count},   {"handles", fake_physical_count}};
    size_t count = 0;
    pthread_mutex_lock(&fake_lock);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(kind, kinds[i].kind))
            count = kinds[i].count();
    pthread_mutex_unlock(&fake_lock);
    return count;
}

/* -------------------------------------------------------------------- errors */

static const struct {
    cuda_result_t code;
    const char *name, *text;
} errors[] = {
    {CUDA_IS_OK, "CUDA_SUCCESS", "no error"},
    {CUDA_IS_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_IS_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_IS_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_IS_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_IS_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_IS_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_IS_MAP_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {CUDA_IS_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {CUDA_IS_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {CUDA_IS_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_IS_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {CUDA_IS_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_IS_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_IS_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_IS_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {CUDA_IS_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_IS_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_IS_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer is not registered"},
    {CUDA_IS_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_IS_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_IS_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_IS_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_IS_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "merge of separate capture sequences"},
    {CUDA_IS_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not begun in this stream"},
    {CUDA_IS_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {CUDA_IS_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CUDA_IS_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing stream"},
    {CUDA_IS_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capture"},
    {CUDA_IS_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

EXPORT cuda_result_t cuGetErrorName(cuda_result_t result, const char **name)
{
    *name = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == result)
            *name = errors[i].name;
    return *name ? CUDA_IS_OK : CUDA_IS_INVALID_VALUE;
}

EXPORT cuda_result_t cuGetErrorString(cuda_result_t result, const char **text)
{
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == result)
            *text = errors[i].text;
    return *text ? CUDA_IS_OK : CUDA_IS_INVALID_VALUE;
}

/* ------------------------------------------------------------------- devices */

EXPORT cuda_result_t cuInit(unsigned flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_NOTHING);
    if (result)
        return result;
    if (flags)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    if (fake_settings.devices < 1)
        return fake_leave(CUDA_IS_NO_DEVICE);
    initialised = true;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuDriverGetVersion(int *version)
{
    *version = fake_settings.version;
    return CUDA_IS_OK;
}

EXPORT cuda_result_t cuDeviceGetCount(int *count)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    *count = fake_settings.devices;
    return fake_leave(CUDA_IS_OK);
}

static cuda_result_t enter_device(const char *entry, CUdevice device)
{
    cuda_result_t result = fake_enter(entry, NEEDS_INIT);
    if (!result && (device < 0 || device >= fake_settings.devices))
        return fake_leave(CUDA_IS_INVALID_DEVICE);
    return result;
}

EXPORT cuda_result_t cuDeviceGet(CUdevice *device, int ordinal)
{
    cuda_result_t result = enter_device(__func__, ordinal);
    if (result)
        return result;
    *device = ordinal;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuDeviceGetAttribute(int *value, unsigned attribute, CUdevice device)
{
    cuda_result_t result = enter_device(__func__, device);
    if (result)
        return result;
    switch (attribute) { /* an H200's, as far as the fake can keep its word */
    case CUDA_DEVICE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CUDA_DEVICE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CUDA_DEVICE_L2_CACHE_SIZE: *value = 60 << 20; break;
    case CUDA_DEVICE_ASYNC_ENGINE_COUNT: *value = 3; break;
    case CUDA_DEVICE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CUDA_DEVICE_UNIFIED_ADDRESSING:
    case CUDA_DEVICE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CUDA_DEVICE_HOST_REGISTER_SUPPORTED:
    case CUDA_DEVICE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CUDA_DEVICE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = 1; break;
    default: *value = 0; break;
    }
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    cuda_result_t result = enter_device(__func__, device);
    if (result)
        return result;
    snprintf(name, (size_t)bytes, "Fake GPU");
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuDeviceGetPCIBusId(char *id, int bytes, CUdevice device)
{
    cuda_result_t result = enter_device(__func__, device);
    if (result)
        return result;
    snprintf(id, (size_t)bytes, "FFFF:%02X:00.0", 0x10 + device); /* a domain that no machine has */
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuDeviceGetUuid_v2(struct cuda_uuid *uuid, CUdevice device)
{
    cuda_result_t result = enter_device(__func__, device);
    if (result)
        return result;
    memset(uuid, 0xFA, sizeof *uuid);
    uuid->bytes[15] = (char)device;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    cuda_result_t result = enter_device(__func__, device);
    if (result)
        return result;
    *bytes = fake_settings.memory_bytes;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    cuda_result_t result = enter_device(__func__, device);
    if (result)
        return result;
    if (peer < 0 || peer >= fake_settings.devices)
        return fake_leave(CUDA_IS_INVALID_DEVICE);
    *can = device != peer && fake_settings.peer;
    return fake_leave(CUDA_IS_OK);
}

/* ------------------------------------------------------------------ contexts */

struct CUctx_st *fake_context(void)
{
    return depth ? stack[depth - 1] : NULL;
}

struct CUctx_st *fake_context_of(int device)
{
    return &contexts[device];
}

bool fake_context_alive(struct CUctx_st *context)
{
    for (int i = 0; i < fake_settings.devices; i++)
        if (context == &contexts[i])
            return context->references > 0;
    return false;
}

EXPORT cuda_result_t cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    cuda_result_t result = enter_device(__func__, device);
    if (result)
        return result;
    struct CUctx_st *c = &contexts[device];
    while (c->dying)
        pthread_cond_wait(&fake_changed, &fake_lock);
    if (!c->references) {
        result = fake_stream_new(c, 0, &c->null_stream);
        if (result)
            return fake_leave(result);
    }
    c->references++;
    *context = c;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    cuda_result_t result = enter_device(__func__, device);
    if (result)
        return result;
    struct CUctx_st *c = &contexts[device];
    if (!c->references)
        return fake_leave(CUDA_IS_INVALID_CONTEXT);
    if (--c->references == 0) {
        c->dying = true;
        fake_streams_of_context_end(c);
        fake_events_of_context_free(c);
        fake_modules_of_context_free(c);
        fake_memory_of_context_free(c);
        c->null_stream = NULL;
        c->peers = 0;
        atomic_store(&c->broken, CUDA_IS_OK);
        c->dying = false;
        pthread_cond_broadcast(&fake_changed);
    }
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuCtxSetCurrent(CUcontext context)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    if (context && !fake_context_alive(context))
        return fake_leave(CUDA_IS_INVALID_CONTEXT);
    if (!context)
        depth -= depth > 0;
    else
        stack[depth ? depth - 1 : depth++] = context;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuCtxGetCurrent(CUcontext *context)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    *context = fake_context();
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuCtxPushCurrent_v2(CUcontext context)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    if (!fake_context_alive(context) || depth == STACK_MAX)
        return fake_leave(CUDA_IS_INVALID_CONTEXT);
    stack[depth++] = context;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuCtxPopCurrent_v2(CUcontext *context)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    if (!depth)
        return fake_leave(CUDA_IS_INVALID_CONTEXT);
    depth--;
    if (context)
        *context = stack[depth];
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuCtxGetDevice(CUdevice *device)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    *device = fake_context()->device;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuCtxSynchronize(void)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    return result ? result : fake_leave(fake_wait_context(fake_context()));
}

EXPORT cuda_result_t cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    struct CUctx_st *mine = fake_context();
    if (flags)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    if (!fake_context_alive(peer) || peer == mine)
        return fake_leave(CUDA_IS_INVALID_CONTEXT);
    if (!fake_settings.peer)
        return fake_leave(CUDA_IS_PEER_ACCESS_UNSUPPORTED);
    const unsigned bit = 1u << peer->device;
    if (mine->peers & bit)
        return fake_leave(CUDA_IS_PEER_ACCESS_ALREADY_ENABLED);
    mine->peers |= bit;
    return fake_leave(CUDA_IS_OK);
}
