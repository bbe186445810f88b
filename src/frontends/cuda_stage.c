/* See cuda_stage.h. All ranks cut alike, whatever their memory is: by CUDA_BOUNCE_BYTES, type and ranks alone. */
#include "frontends/cuda_stage.h"

#include <stdlib.h>
#include <string.h>

#include "execute/blocks.h"
#include "frontends/group.h"

/* Pinned memory that became too small; given back at the end only. */
struct pinned {
    struct pinned *older;
    char *memory;
    size_t bytes;
};

struct stage_memory_cuda {
    struct polypath_comm *comm;
    const struct cuda_driver *driver;
    CUcontext context;
    CUstream stream;
    char *in, *out;        /* CUDA_BOUNCE_BYTES each */
    struct pinned *pinned; /* for messages of groups; the newest is the largest */
    bool copying;          /* copies are under way on the stream */
};

static polypath_result_t allocate(const struct stage_memory_cuda *m, size_t bytes, char **memory)
{
    void *address = NULL;
    polypath_result_t result =
        cuda_check(m->driver, m->driver->mem_host_alloc(&address, bytes, CUDA_HOST_ALLOC_PORTABLE), -1,
                   "cuMemHostAlloc of %zu bytes", bytes);
    *memory = address;
    return result;
}

/* Pinned memory of so many bytes; what there was stays until the end. */
static polypath_result_t reserve(struct stage_memory_cuda *m, size_t bytes, char **memory)
{
    if (!m->pinned || m->pinned->bytes < bytes) {
        struct pinned *p = calloc(1, sizeof *p);
        if (!p)
            return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        p->bytes = bytes < 2 * CUDA_BOUNCE_BYTES ? 2 * CUDA_BOUNCE_BYTES : bytes + bytes / 2;
        polypath_result_t result = allocate(m, p->bytes, &p->memory);
        if (result) {
            free(p);
            return result;
        }
        p->older = m->pinned;
        m->pinned = p;
    }
    *memory = m->pinned->memory;
    return POLYPATH_SUCCESS;
}

polypath_result_t cuda_stage_open(struct polypath_comm *comm, const struct cuda_driver *driver, CUcontext context,
                                  struct stage_memory_cuda **memory)
{
    struct stage_memory_cuda *m = calloc(1, sizeof *m);
    if (!m)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    *m = (struct stage_memory_cuda){.comm = comm, .driver = driver, .context = context};
    polypath_result_t result =
        cuda_check(driver, driver->stream_create(&m->stream, CUDA_STREAM_NON_BLOCKING), -1, "cuStreamCreate");
    if (!result)
        result = allocate(m, CUDA_BOUNCE_BYTES, &m->in);
    if (!result)
        result = allocate(m, CUDA_BOUNCE_BYTES, &m->out);
    char *messages = NULL;
    if (!result)
        result = reserve(m, 1, &messages);
    if (result) {
        cuda_stage_close(m);
        return result;
    }
    *memory = m;
    return POLYPATH_SUCCESS;
}

void cuda_stage_close(struct stage_memory_cuda *m)
{
    if (!m)
        return;
    while (m->pinned) {
        struct pinned *p = m->pinned;
        m->pinned = p->older;
        m->driver->mem_free_host(p->memory);
        free(p);
    }
    if (m->in)
        m->driver->mem_free_host(m->in);
    if (m->out)
        m->driver->mem_free_host(m->out);
    if (m->stream)
        m->driver->stream_destroy(m->stream);
    free(m);
}

/* ------------------------------------------------------------------ copying */

static bool on_device(const struct stage_memory_cuda *m, const void *address)
{
    unsigned type = 0;
    return m->driver->pointer_get_attribute(&type, CUDA_POINTER_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)address) ==
               CUDA_IS_OK &&
           type == CUDA_MEMORY_DEVICE;
}

static polypath_result_t bring(struct stage_memory_cuda *m, char *to, const void *from, size_t bytes)
{
    if (!bytes)
        return POLYPATH_SUCCESS;
    if (!on_device(m, from)) {
        memcpy(to, from, bytes);
        return POLYPATH_SUCCESS;
    }
    m->copying = true;
    return cuda_check(m->driver, m->driver->memcpy_dtoh_async(to, (CUdeviceptr)(uintptr_t)from, bytes, m->stream), -1,
                      "copying %zu bytes from the GPU", bytes);
}

static polypath_result_t take_back(struct stage_memory_cuda *m, void *to, const char *from, size_t bytes)
{
    if (!bytes)
        return POLYPATH_SUCCESS;
    if (!on_device(m, to)) {
        memcpy(to, from, bytes);
        return POLYPATH_SUCCESS;
    }
    m->copying = true;
    return cuda_check(m->driver, m->driver->memcpy_htod_async((CUdeviceptr)(uintptr_t)to, from, bytes, m->stream), -1,
                      "copying %zu bytes to the GPU", bytes);
}

static polypath_result_t finish_copies(struct stage_memory_cuda *m)
{
    if (!m->copying)
        return POLYPATH_SUCCESS;
    m->copying = false;
    return cuda_check(m->driver, m->driver->stream_synchronize(m->stream), -1, "copying between host and GPU");
}

/* -------------------------------------------------------------- collectives */

/* The host collective on one piece. */
static polypath_result_t run_piece(struct stage_memory_cuda *m, const struct polypath_request *whole, size_t count)
{
    struct polypath_request *call = call_new(m->comm, m->comm->size);
    if (!call)
        return POLYPATH_ERROR_OUT_OF_MEMORY;
    call->collective = whole->collective;
    call->type = whole->type;
    call->op = whole->op;
    call->root = whole->root;
    call->scaled = whole->scaled;
    memcpy(call->scalar, whole->scalar, sizeof call->scalar);
    call_fill(call, whole->send ? m->in : NULL, whole->recv ? m->out : NULL, count);
    call_submit(call);
    polypath_result_t result = drive_until_done(call);
    call_release(call);
    return result;
}

/* Elements [first, first + count) of every block: in, through, out. */
static polypath_result_t move_piece(struct stage_memory_cuda *m, const struct polypath_request *whole, size_t first,
                                    size_t count)
{
    const size_t element = polypath_type_bytes(whole->type), bytes = count * element;
    const size_t stride = whole->count * element, offset = first * element, n = (size_t)m->comm->size;
    const size_t ins = !whole->send ? 0 : input_per_rank(whole->collective) ? n : 1;
    const size_t outs = !whole->recv ? 0 : output_per_rank(whole->collective) ? n : 1;
    polypath_result_t result = POLYPATH_SUCCESS;
    for (size_t b = 0; b < ins && !result; b++)
        result = bring(m, m->in + b * bytes, (const char *)whole->send + b * stride + offset, bytes);
    if (!result)
        result = finish_copies(m);
    if (!result)
        result = run_piece(m, whole, count);
    for (size_t b = 0; b < outs && !result; b++)
        result = take_back(m, (char *)whole->recv + b * stride + offset, m->out + b * bytes, bytes);
    return result ? result : finish_copies(m);
}

static polypath_result_t run_collective(struct stage_memory_cuda *m, struct polypath_request *whole)
{
    const polypath_collective_t kind = whole->collective;
    const size_t element = polypath_type_bytes(whole->type);
    const size_t blocks = input_per_rank(kind) || output_per_rank(kind) ? (size_t)m->comm->size : 1;
    const size_t most = CUDA_BOUNCE_BYTES / (element * blocks) & ~(size_t)63;
    polypath_result_t result = POLYPATH_SUCCESS;
    if (whole->scalar_on_device) {
        result = bring(m, m->in, whole->scalar_on_device, element);
        if (!result)
            result = finish_copies(m);
        memcpy(whole->scalar, m->in, element);
    }
    size_t first = 0;
    do { /* once also for nothing: the order of calls is the same everywhere */
        const size_t left = whole->count - first, count = left < most ? left : most;
        if (!result)
            result = move_piece(m, whole, first, count);
        first += count;
    } while (first < whole->count && !result);
    return result;
}

/* ----------------------------------------------------------- point to point */

static size_t padded(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* All messages of a group at once, as they may depend on each other in any way: so whole ones are in pinned memory. */
static polypath_result_t run_points(struct stage_memory_cuda *m, const struct cuda_operation *operation)
{
    const int n = operation->npoints;
    size_t total = 0;
    for (int i = 0; i < n; i++)
        total += padded(operation->points[i].bytes);
    char *memory = NULL;
    struct point *points = calloc((size_t)n, sizeof *points);
    struct polypath_request *call = points ? call_new(m->comm, n) : NULL;
    polypath_result_t result = call ? reserve(m, total + 64, &memory) : POLYPATH_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < n && !result; i++) {
        points[i] = operation->points[i];
        if (points[i].send)
            result = bring(m, memory, points[i].send_buffer, points[i].bytes);
        points[i].send_buffer = points[i].send ? memory : NULL;
        points[i].recv_buffer = points[i].send ? NULL : memory;
        memory += padded(points[i].bytes);
    }
    if (!result)
        result = finish_copies(m);
    if (!result)
        result = group_fill_points(call, points, n);
    if (!result) {
        call_submit(call);
        result = drive_until_done(call);
    }
    for (int i = 0; i < n && !result; i++)
        if (!points[i].send)
            result = take_back(m, operation->points[i].recv_buffer, points[i].recv_buffer, points[i].bytes);
    if (!result)
        result = finish_copies(m);
    if (call)
        call_release(call);
    free(points);
    return result;
}

polypath_result_t cuda_stage_run(struct stage_memory_cuda *m, const struct cuda_operation *operation)
{
    if (!operation->call && !operation->npoints)
        return POLYPATH_SUCCESS; /* withdrawn */
    if (operation->context != m->context) {
        polypath_result_t result =
            cuda_check(m->driver, m->driver->ctx_set_current(operation->context), -1, "cuCtxSetCurrent");
        if (result)
            return result;
    }
    return operation->call ? run_collective(m, operation->call) : run_points(m, operation);
}
