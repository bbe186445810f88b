/*
 * NCCL's interface: memory. What ncclMemAlloc gives is memory of the calling
 * thread's GPU, or of the host where there is no driver. Registrations are
 * kept and given back; operations need none of them.
 */
#include <stdlib.h>

#include "frontends/nccl/internal.h"

/* Which of the two an allocation is. */
struct allocation {
    struct allocation *next;
    void *address;
    CUcontext context; /* NULL: of the host */
};
static struct allocation *allocations; /* guarded by lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ------------------------------------------------------------- allocation */

/* The calling thread's context, or that of device 0, where the CUDA runtime would allocate as well. */
static polypath_result_t find_context(const struct cuda_driver *driver, CUcontext *context)
{
    polypath_result_t result = cuda_check(driver, driver->ctx_get_current(context), -1, "cuCtxGetCurrent");
    return result || *context ? result : nccl_device_context(0, context);
}

static polypath_result_t allocate(const struct cuda_driver *driver, size_t bytes, struct allocation *a)
{
    if (!driver)
        return polypath_mem_alloc(&a->address, bytes);
    polypath_result_t result = find_context(driver, &a->context);
    if (!result)
        result = cuda_check(driver, driver->ctx_push_current(a->context), -1, "cuCtxPushCurrent");
    if (result)
        return result;
    CUdeviceptr address = 0;
    CUcontext popped;
    result =
        cuda_check(driver, driver->mem_alloc(&address, bytes), nccl_device_current(), "cuMemAlloc of %zu bytes", bytes);
    driver->ctx_pop_current(&popped);
    a->address = (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr): an address of the GPU */
    return result;
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    if (!ptr || !size)
        return nccl_answer(NCCL_BAD("ncclMemAlloc: %s", ptr ? "0 bytes" : "ptr is NULL"));
    *ptr = NULL;
    struct allocation *a = calloc(1, sizeof *a);
    if (!a)
        return nccl_answer(error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory"));
    const struct cuda_driver *driver = cuda_driver_get(NULL);
    polypath_result_t result = allocate(driver, size, a);
    if (result) {
        free(a);
        const ncclResult_t answer = nccl_answer(error_prefix(result, "ncclMemAlloc"));
        return driver ? ncclUnhandledCudaError : answer;
    }
    *ptr = a->address;
    pthread_mutex_lock(&lock);
    a->next = allocations;
    allocations = a;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}
NCCL_PROFILED(ncclMemAlloc);

ncclResult_t ncclMemFree(void *ptr)
{
    if (!ptr)
        return ncclSuccess;
    pthread_mutex_lock(&lock);
    struct allocation **place = &allocations;
    while (*place && (*place)->address != ptr)
        place = &(*place)->next;
    struct allocation *a = *place;
    if (a)
        *place = a->next;
    pthread_mutex_unlock(&lock);
    if (!a)
        return nccl_answer(NCCL_BAD("ncclMemFree: %p is not from ncclMemAlloc", ptr));
    polypath_result_t result;
    const struct cuda_driver *driver = a->context ? cuda_driver_get(NULL) : NULL;
    if (driver) {
        CUcontext popped;
        result = cuda_check(driver, driver->ctx_push_current(a->context), -1, "cuCtxPushCurrent");
        if (!result) {
            result = cuda_check(driver, driver->mem_free((CUdeviceptr)(uintptr_t)ptr), -1, "cuMemFree");
            driver->ctx_pop_current(&popped);
        }
    } else {
        result = polypath_mem_free(ptr);
    }
    free(a);
    if (result && driver) {
        nccl_answer(error_prefix(result, "ncclMemFree"));
        return ncclUnhandledCudaError;
    }
    return nccl_answer(result);
}
NCCL_PROFILED(ncclMemFree);

/* ------------------------------------------------------------ registration */

static polypath_result_t keep(struct ncclComm *comm, void *buffer, size_t bytes, bool window, void **handle)
{
    struct nccl_registration *r = calloc(1, sizeof *r);
    if (!r)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    r->buffer = buffer;
    r->bytes = bytes;
    r->window = window;
    pthread_mutex_lock(&comm->lock);
    r->next = comm->registrations;
    comm->registrations = r;
    pthread_mutex_unlock(&comm->lock);
    *handle = r;
    return POLYPATH_SUCCESS;
}

/* A NULL handle is one that a registration without effect has given: nothing to do. */
static ncclResult_t forget(const char *name, struct ncclComm *comm, const void *handle, bool window)
{
    polypath_result_t result = nccl_comm_check(name, comm);
    if (result || !handle)
        return nccl_answer(result);
    pthread_mutex_lock(&comm->lock);
    struct nccl_registration **place = &comm->registrations;
    while (*place && (*place != handle || (*place)->window != window))
        place = &(*place)->next;
    struct nccl_registration *r = *place;
    if (r)
        *place = r->next;
    pthread_mutex_unlock(&comm->lock);
    free(r);
    return nccl_answer(r ? POLYPATH_SUCCESS : NCCL_BAD("%s: the handle is not of this communicator", name));
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void *buff, size_t size, void **handle)
{
    static const char name[] = "ncclCommRegister";
    if (!buff || !size || !handle)
        return nccl_answer(NCCL_BAD("%s: %s", name, !buff ? "buff is NULL" : size ? "handle is NULL" : "0 bytes"));
    *handle = NULL;
    polypath_result_t result = nccl_comm_enter(name, comm);
    if (!result) {
        result = keep(comm, buff, size, false, handle);
        nccl_comm_leave(comm);
    }
    return nccl_answer(result);
}
NCCL_PROFILED(ncclCommRegister);

ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle)
{
    return forget("ncclCommDeregister", comm, handle, false);
}
NCCL_PROFILED(ncclCommDeregister);

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)
{
    static const char name[] = "ncclCommWindowRegister";
    if (!buff || !size || !win)
        return nccl_answer(NCCL_BAD("%s: %s", name, !buff ? "buff is NULL" : size ? "win is NULL" : "0 bytes"));
    *win = NULL;
    if (winFlags & ~NCCL_WIN_COLL_SYMMETRIC)
        return nccl_answer(NCCL_BAD("%s: unknown flags %d", name, winFlags));
    if ((uintptr_t)buff % NCCL_WIN_REQUIRED_ALIGNMENT)
        return nccl_answer(
            NCCL_BAD("%s: buff %p does not lie on a multiple of %d", name, buff, NCCL_WIN_REQUIRED_ALIGNMENT));
    void *handle = NULL;
    polypath_result_t result = nccl_comm_enter(name, comm);
    if (!result) {
        result = keep(comm, buff, size, true, &handle);
        nccl_comm_leave(comm);
    }
    *win = handle;
    return nccl_answer(result);
}
NCCL_PROFILED(ncclCommWindowRegister);

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
    return forget("ncclCommWindowDeregister", comm, win, true);
}
NCCL_PROFILED(ncclCommWindowDeregister);
