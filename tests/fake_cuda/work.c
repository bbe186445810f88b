/*
 * What the fake's streams do: copies at the rate of a virtual copy engine,
 * memory operations on signals, host functions on the one thread that the
 * process has for them, and kernels.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda/internal.h"

#define CHUNK_BYTES ((size_t)256 << 10) /* of a copy, between looks at the clock and at the context */

/* ------------------------------------------------------------------ operations */

static void *duplicate(const void *bytes, size_t count)
{
    void *copy = bytes ? malloc(count ? count : 1) : NULL;
    if (copy)
        memcpy(copy, bytes, count);
    return copy;
}

/* Of an operation that a graph may hold, so without marks. */
struct op *fake_op_copy(const struct op *op)
{
    struct op *copy = duplicate(op, sizeof *op);
    if (!copy)
        return NULL;
    copy->ops = duplicate(op->ops, op->op_count * sizeof *op->ops);
    copy->parameters = duplicate(op->parameters, op->kernel ? op->kernel->parameter_bytes : 0);
    return copy;
}

void fake_op_free(struct op *op)
{
    if (!op)
        return;
    fake_mark_drop(op->mark);
    if (op->graph)
        fake_graph_exec_drop(op->graph);
    free(op->ops);
    free(op->parameters);
    free(op);
}

/* ----------------------------------------------------------------------- copies */

enum engine { ENGINE_HOST, ENGINE_TO_DEVICE, ENGINE_FROM_DEVICE, ENGINE_ON_DEVICE, ENGINES };

static pthread_mutex_t engine_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t busy_until_ns[DEVICES_MAX][ENGINES];

/* Copies in one direction of a device share an engine; each takes its turn of every chunk. */
static void take_time(struct CUctx_st *context, enum engine engine, size_t bytes)
{
    if (!(fake_settings.copy_gbps > 0))
        return;
    const uint64_t now = fake_clock_ns(), needed = (uint64_t)((double)bytes / fake_settings.copy_gbps);
    pthread_mutex_lock(&engine_lock);
    uint64_t *busy = &busy_until_ns[context->device][engine];
    *busy = (*busy > now ? *busy : now) + needed;
    const uint64_t until = *busy;
    pthread_mutex_unlock(&engine_lock);
    fake_sleep_ns(until - now);
}

/* Signals that are copied must not be torn: 4 aligned bytes move as one. */
static void move(uintptr_t to, uintptr_t from, size_t bytes)
{
    if (bytes == 4 && !(to % 4) && !(from % 4))
        __atomic_store_n((uint32_t *)to, __atomic_load_n((uint32_t *)from, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    else
        memmove((void *)to, (void *)from, bytes);
}

static cuda_result_t copy(const struct op *op, struct CUctx_st *context)
{
    const enum engine engine = op->to_device     ? (op->from_device ? ENGINE_ON_DEVICE : ENGINE_TO_DEVICE)
                               : op->from_device ? ENGINE_FROM_DEVICE
                                                 : ENGINE_HOST;
    for (size_t at = 0; at < op->bytes; at += CHUNK_BYTES) {
        const size_t bytes = op->bytes - at < CHUNK_BYTES ? op->bytes - at : CHUNK_BYTES;
        take_time(context, engine, bytes);
        pthread_rwlock_rdlock(&fake_memory);
        const bool reachable = (!op->to_device || fake_device_can_reach(op->to + at, bytes)) &&
                               (!op->from_device || fake_device_can_reach(op->from + at, bytes));
        if (reachable)
            move(op->to + at, op->from + at, bytes);
        pthread_rwlock_unlock(&fake_memory);
        if (!reachable)
            return CUDA_IS_ILLEGAL_ADDRESS;
    }
    return CUDA_IS_OK;
}

static cuda_result_t set(const struct op *op)
{
    pthread_rwlock_rdlock(&fake_memory);
    const bool reachable = fake_device_can_reach(op->to, op->bytes);
    for (size_t at = 0; reachable && at < op->bytes; at += op->width) {
        if (op->width == 1)
            *(unsigned char *)(op->to + at) = (unsigned char)op->value;
        else /* relaxed: a stream may look at it as a signal; its order comes from what follows */
            __atomic_store_n((uint32_t *)(op->to + at), op->value, __ATOMIC_RELAXED);
    }
    pthread_rwlock_unlock(&fake_memory);
    return reachable ? CUDA_IS_OK : CUDA_IS_ILLEGAL_ADDRESS;
}

/* ------------------------------------------------------------ memory operations */

static bool holds(uint32_t seen, uint32_t value, unsigned flags)
{
    switch (flags) {
    case CUDA_WAIT_GEQ: return (int32_t)(seen - value) >= 0;
    case CUDA_WAIT_EQ: return seen == value;
    default: return (seen & value) != 0;
    }
}

static void pause_poll(unsigned *polls)
{
    if (++*polls < 100)
        sched_yield();
    else
        fake_sleep_ns(50000);
}

static cuda_result_t mem_op(const union cuda_mem_op *op, struct CUctx_st *context)
{
    for (unsigned polls = 0;;) {
        pthread_rwlock_rdlock(&fake_memory);
        const bool reachable = fake_device_can_reach((uintptr_t)op->value.address, 4);
        uint32_t *word = (uint32_t *)(uintptr_t)op->value.address;
        bool done = true;
        if (reachable && op->operation == CUDA_MEM_OP_WRITE_VALUE_32)
            /* Release: a stream's earlier work is visible to whoever sees the value. */
            __atomic_store_n(word, op->value.value, __ATOMIC_RELEASE);
        else if (reachable) /* acquire: pairs with the above, or with the host's store */
            done = holds(__atomic_load_n(word, __ATOMIC_ACQUIRE), op->value.value, op->value.flags);
        pthread_rwlock_unlock(&fake_memory);
        if (!reachable)
            return CUDA_IS_ILLEGAL_ADDRESS;
        if (done || atomic_load(&context->broken) || atomic_load(&context->dying))
            return CUDA_IS_OK;
        pause_poll(&polls);
    }
}

static cuda_result_t mem_ops(const struct op *op, struct CUctx_st *context)
{
    cuda_result_t result = CUDA_IS_OK;
    for (unsigned i = 0; i < op->op_count && !result; i++)
        result = mem_op(&op->ops[i], context);
    return result;
}

static cuda_result_t await_shared(const struct op *op, struct CUctx_st *context)
{
    /* Acquire: what the other process's stream did before is visible. */
    for (unsigned polls = 0; atomic_load_explicit(&op->shared->finished, memory_order_acquire) < op->sequence;) {
        if (atomic_load(&context->dying))
            break;
        pause_poll(&polls);
    }
    return CUDA_IS_OK;
}

/* ----------------------------------------------------------------- host functions */

struct host_job {
    struct host_job *next;
    cuda_host_function *function;
    void *argument;
    bool done;
};

static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t host_wake = PTHREAD_COND_INITIALIZER;
static struct host_job *host_jobs;
static bool host_started;

/* One after another, as the real driver may: a host function that waits for another one waits for ever. */
static void *run_host_functions(void *argument)
{
    (void)argument;
    fake_in_host_function = true;
    pthread_mutex_lock(&host_lock);
    for (;;) {
        struct host_job *job = host_jobs;
        if (!job) {
            pthread_cond_wait(&host_wake, &host_lock);
            continue;
        }
        host_jobs = job->next;
        pthread_mutex_unlock(&host_lock);
        job->function(job->argument);
        pthread_mutex_lock(&host_lock);
        job->done = true;
        pthread_cond_broadcast(&host_wake);
    }
    return NULL;
}

static cuda_result_t call_host(const struct op *op)
{
    struct host_job job = {.function = op->function, .argument = op->argument};
    pthread_mutex_lock(&host_lock);
    if (!host_started) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_host_functions, NULL)) {
            pthread_mutex_unlock(&host_lock);
            return CUDA_IS_OUT_OF_MEMORY;
        }
        pthread_detach(thread);
        host_started = true;
    }
    struct host_job **last = &host_jobs;
    while (*last)
        last = &(*last)->next;
    *last = &job;
    pthread_cond_broadcast(&host_wake);
    while (!job.done)
        pthread_cond_wait(&host_wake, &host_lock);
    pthread_mutex_unlock(&host_lock);
    return CUDA_IS_OK;
}

static cuda_result_t launch(const struct op *op)
{
    void *parameters[16];
    for (unsigned i = 0, at = 0; i < op->kernel->count; i++) {
        parameters[i] = op->parameters + at;
        at += (unsigned)(op->kernel->sizes[i] + 15) / 16 * 16;
    }
    op->kernel->code(&op->launch, parameters);
    return CUDA_IS_OK;
}

cuda_result_t fake_execute(const struct op *op, struct CUctx_st *context)
{
    switch (op->kind) {
    case OP_COPY: return copy(op, context);
    case OP_SET: return set(op);
    case OP_MEM_OPS: return mem_ops(op, context);
    case OP_HOST: return call_host(op);
    case OP_KERNEL: return launch(op);
    case OP_SHARE: /* release: the stream's work before is visible to who sees the count */
        atomic_store_explicit(&op->shared->finished, op->sequence, memory_order_release);
        return CUDA_IS_OK;
    case OP_AWAIT_SHARED: return await_shared(op, context);
    case OP_GRAPH: return fake_graph_run(op->graph, context);
    case OP_MARK:
    case OP_AWAIT: break; /* the stream's own */
    }
    return CUDA_IS_OK;
}

/* ------------------------------------------------------------- calls: copies, sets */

enum side { SIDE_ANY, SIDE_DEVICE, SIDE_HOST };

/* Whether `address` may be used as `side`; says whether the device will reach it. */
static bool side_fits(enum side side, uintptr_t address, size_t bytes, bool *device)
{
    *device = fake_device_can_reach(address, bytes);
    return *device || (side != SIDE_DEVICE && !fake_was_freed(address) && !fake_is_reserved(address));
}

static cuda_result_t submit_copy(CUstream handle, uintptr_t to, enum side to_side, uintptr_t from, enum side from_side,
                                 size_t bytes)
{
    struct CUstream_st *s = fake_stream(handle);
    bool to_device, from_device;
    if (!s)
        return CUDA_IS_INVALID_HANDLE;
    if (!bytes)
        return CUDA_IS_OK;
    if (!side_fits(to_side, to, bytes, &to_device) || !side_fits(from_side, from, bytes, &from_device))
        return CUDA_IS_INVALID_VALUE;
    struct op *op = calloc(1, sizeof *op);
    if (!op)
        return CUDA_IS_OUT_OF_MEMORY;
    *op = (struct op){.kind = OP_COPY, .to = to, .from = from, .bytes = bytes};
    op->to_device = to_device;
    op->from_device = from_device;
    if (s->capture || (to_device && from_device))
        return fake_submit(s, op);
    /* Pageable memory goes through the driver's own staging buffers: not asynchronous, and not beside other work. */
    cuda_result_t result = fake_wait_context(s->context);
    if (result) {
        fake_op_free(op);
        return result;
    }
    result = fake_submit(s, op);
    return result ? result : fake_wait_stream(s);
}

EXPORT cuda_result_t cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    return fake_leave(submit_copy(stream, (uintptr_t)to, SIDE_ANY, (uintptr_t)from, SIDE_ANY, bytes));
}

EXPORT cuda_result_t cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    return fake_leave(submit_copy(stream, (uintptr_t)to, SIDE_DEVICE, (uintptr_t)from, SIDE_HOST, bytes));
}

EXPORT cuda_result_t cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    return fake_leave(submit_copy(stream, (uintptr_t)to, SIDE_HOST, (uintptr_t)from, SIDE_DEVICE, bytes));
}

EXPORT cuda_result_t cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    return fake_leave(submit_copy(stream, (uintptr_t)to, SIDE_DEVICE, (uintptr_t)from, SIDE_DEVICE, bytes));
}

static cuda_result_t submit_set(CUstream handle, uintptr_t to, unsigned width, unsigned value, size_t count)
{
    struct CUstream_st *s = fake_stream(handle);
    if (!s)
        return CUDA_IS_INVALID_HANDLE;
    if (!count)
        return CUDA_IS_OK;
    if (to % width || !fake_device_can_reach(to, count * width))
        return CUDA_IS_INVALID_VALUE;
    struct op *op = calloc(1, sizeof *op);
    if (op)
        *op = (struct op){.kind = OP_SET, .to = to, .bytes = count * width, .value = value, .width = width};
    return fake_submit(s, op);
}

EXPORT cuda_result_t cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    return result ? result : fake_leave(submit_set(stream, (uintptr_t)to, 1, value, count));
}

EXPORT cuda_result_t cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    return result ? result : fake_leave(submit_set(stream, (uintptr_t)to, 4, value, count));
}

/* ------------------------------------------------------- calls: memory operations */

static bool valid_mem_op(const union cuda_mem_op *op)
{
    const bool wait = op->operation == CUDA_MEM_OP_WAIT_VALUE_32;
    if (!wait && op->operation != CUDA_MEM_OP_WRITE_VALUE_32)
        return false;
    if (op->value.flags > (wait ? CUDA_WAIT_AND : CUDA_WRITE_DEFAULT))
        return false;
    return op->value.address % 4 == 0 && fake_device_can_reach((uintptr_t)op->value.address, 4);
}

static cuda_result_t submit_mem_ops(CUstream handle, unsigned count, const union cuda_mem_op *ops)
{
    struct CUstream_st *s = fake_stream(handle);
    if (!s)
        return CUDA_IS_INVALID_HANDLE;
    if (!count || count > 256 || !ops)
        return CUDA_IS_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if (!valid_mem_op(&ops[i]))
            return CUDA_IS_INVALID_VALUE;
    struct op *op = calloc(1, sizeof *op);
    if (op) {
        *op = (struct op){.kind = OP_MEM_OPS, .op_count = count, .ops = duplicate(ops, count * sizeof *ops)};
        if (!op->ops) {
            free(op);
            op = NULL;
        }
    }
    return fake_submit(s, op);
}

static union cuda_mem_op make_mem_op(unsigned operation, CUdeviceptr address, uint32_t value, unsigned flags)
{
    union cuda_mem_op op;
    memset(&op, 0, sizeof op);
    op.value.operation = operation;
    op.value.address = address;
    op.value.value = value;
    op.value.flags = flags;
    return op;
}

EXPORT cuda_result_t cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    const union cuda_mem_op op = make_mem_op(CUDA_MEM_OP_WAIT_VALUE_32, address, value, flags);
    return fake_leave(submit_mem_ops(stream, 1, &op));
}

EXPORT cuda_result_t cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    const union cuda_mem_op op = make_mem_op(CUDA_MEM_OP_WRITE_VALUE_32, address, value, flags);
    return fake_leave(submit_mem_ops(stream, 1, &op));
}

EXPORT cuda_result_t cuStreamBatchMemOp_v2(CUstream stream, unsigned count, union cuda_mem_op *ops, unsigned flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    return fake_leave(flags ? CUDA_IS_INVALID_VALUE : submit_mem_ops(stream, count, ops));
}

EXPORT cuda_result_t cuLaunchHostFunc(CUstream stream, cuda_host_function *function, void *argument)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    struct CUstream_st *s = fake_stream(stream);
    if (!s || !function)
        return fake_leave(s ? CUDA_IS_INVALID_VALUE : CUDA_IS_INVALID_HANDLE);
    struct op *op = calloc(1, sizeof *op);
    if (op)
        *op = (struct op){.kind = OP_HOST, .function = function, .argument = argument};
    return fake_leave(fake_submit(s, op));
}
