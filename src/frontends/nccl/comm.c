/*
 * NCCL's interface: the life of a communicator. It is held by the program, by
 * jobs and by calls under way, and the last of them frees it, so that an abort
 * need not wait for a thread that is still inside.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "frontends/nccl/internal.h"

struct ncclComm *nccl_comm_new(int rank, int size, int device, bool blocking)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        return NULL;
    }
    comm->magic = NCCL_COMM_MAGIC;
    comm->rank = rank;
    comm->size = size;
    comm->device = device;
    comm->blocking = blocking;
    comm->holders = 1;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    return comm;
}

void nccl_comm_hold(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->holders++;
    pthread_mutex_unlock(&comm->lock);
}

polypath_result_t nccl_comm_let_go(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const bool last = --comm->holders == 0;
    const bool known = comm->aborted || comm->revoked;
    pthread_mutex_unlock(&comm->lock);
    if (!last)
        return POLYPATH_SUCCESS;
    polypath_result_t result = polypath_comm_destroy(comm->inner);
    while (comm->registrations) {
        struct nccl_registration *r = comm->registrations;
        comm->registrations = r->next;
        free(r);
    }
    comm->magic = 0;
    pthread_cond_destroy(&comm->changed);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
    return known ? POLYPATH_SUCCESS : result; /* who has aborted it need not hear that it was */
}

polypath_result_t nccl_comm_check(const char *name, const struct ncclComm *comm)
{
    if (!comm)
        return NCCL_BAD("%s: comm is NULL", name);
    if (comm->magic != NCCL_COMM_MAGIC)
        return NCCL_BAD("%s: comm is not a communicator, or no longer", name);
    return POLYPATH_SUCCESS;
}

/* Whether operations may be issued on it. Under its lock. */
static polypath_result_t check_usable(const char *name, const struct ncclComm *comm)
{
    if (comm->pending)
        return NCCL_MISUSE("%s: the communicator is not ready: wait until ncclCommGetAsyncError gives ncclSuccess, or "
                           "for the end of the group that makes it",
                           name);
    if (comm->failed)
        return error_set(comm->failed, "%s: %s", name, comm->failed_text);
    if (comm->finalized)
        return NCCL_MISUSE("%s: the communicator has been finalized", name);
    if (comm->revoked)
        return NCCL_MISUSE("%s: the communicator has been revoked: split, shrink or destroy it", name);
    return comm->inner ? POLYPATH_SUCCESS : NCCL_MISUSE("%s: the communicator was not made", name);
}

polypath_result_t nccl_comm_enter(const char *name, struct ncclComm *comm)
{
    polypath_result_t result = nccl_comm_check(name, comm);
    if (result)
        return result;
    pthread_mutex_lock(&comm->lock);
    result = check_usable(name, comm);
    if (!result)
        comm->holders++;
    pthread_mutex_unlock(&comm->lock);
    if (result || !nccl_group_active())
        return result;
    result = nccl_group_hold(comm);
    nccl_comm_let_go(comm); /* the group has it now */
    return result;
}

void nccl_comm_leave(struct ncclComm *comm)
{
    if (!nccl_group_active())
        nccl_comm_let_go(comm);
}

/* ------------------------------------------------------------------ ending */

/* Waits until no job uses the communicator. */
static void await_jobs(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->pending)
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

static polypath_result_t finalize(struct nccl_job *job)
{
    return comm_drain(job->comm->inner);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    polypath_result_t result = nccl_comm_enter("ncclCommFinalize", comm);
    if (result)
        return nccl_answer(result);
    bool later = false;
    struct nccl_job *job = nccl_job_new(finalize);
    if (job) {
        job->comm = comm;
        job->blocking = comm->blocking;
        job->finalizes = true;
        pthread_mutex_lock(&comm->lock);
        comm->finalized = true;
        pthread_mutex_unlock(&comm->lock);
        result = nccl_job_submit(job, &later);
    }
    nccl_comm_leave(comm);
    return nccl_answer_later(job ? result : POLYPATH_ERROR_OUT_OF_MEMORY, later);
}
NCCL_PROFILED(ncclCommFinalize);

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    polypath_result_t result = nccl_comm_check("ncclCommDestroy", comm);
    if (result)
        return nccl_answer(result);
    await_jobs(comm);
    return nccl_answer(nccl_comm_let_go(comm));
}
NCCL_PROFILED(ncclCommDestroy);

/* Stops what is under way, here and at the others. `revoke`: it stays, to be split or shrunk. */
static polypath_result_t stop(struct ncclComm *comm, bool revoke)
{
    pthread_mutex_lock(&comm->lock);
    comm->aborted = comm->aborted || !revoke;
    comm->revoked = comm->revoked || revoke;
    polypath_comm_t inner = comm->inner;
    pthread_mutex_unlock(&comm->lock);
    return inner ? polypath_comm_abort(inner) : POLYPATH_SUCCESS;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    polypath_result_t result = nccl_comm_check("ncclCommAbort", comm);
    if (result)
        return nccl_answer(result);
    result = stop(comm, false);
    polypath_result_t freed = nccl_comm_let_go(comm); /* a creation under way frees it when that ends */
    return nccl_answer(result ? result : freed);
}
NCCL_PROFILED(ncclCommAbort);

ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags)
{
    polypath_result_t result = nccl_comm_check("ncclCommRevoke", comm);
    if (!result && revokeFlags != NCCL_REVOKE_DEFAULT)
        result = NCCL_BAD("ncclCommRevoke: flags %d, must be NCCL_REVOKE_DEFAULT", revokeFlags);
    if (result)
        return nccl_answer(result);
    pthread_mutex_lock(&comm->lock);
    if (comm->finalized)
        result = NCCL_MISUSE("ncclCommRevoke: the communicator has been finalized");
    else if (comm->revoked)
        result = NCCL_MISUSE("ncclCommRevoke: the communicator has been revoked already");
    else if (!comm->inner)
        result = NCCL_MISUSE("ncclCommRevoke: the communicator is not ready");
    pthread_mutex_unlock(&comm->lock);
    return nccl_answer(result ? result : stop(comm, true));
}
NCCL_PROFILED(ncclCommRevoke);

/* ------------------------------------------------------------------ asking */

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    polypath_result_t result = nccl_comm_check("ncclCommGetAsyncError", comm);
    if (!result && !asyncError)
        result = NCCL_BAD("ncclCommGetAsyncError: asyncError is NULL");
    if (result)
        return nccl_answer(result);
    pthread_mutex_lock(&comm->lock);
    if (comm->pending)
        *asyncError = ncclInProgress;
    else if (comm->failed)
        *asyncError = nccl_translate(error_set(comm->failed, "%s", comm->failed_text));
    else if (comm->revoked || !comm->inner)
        *asyncError = ncclSuccess;
    else
        *asyncError = nccl_translate(polypath_comm_status(comm->inner));
    pthread_mutex_unlock(&comm->lock);
    return ncclSuccess;
}
NCCL_PROFILED(ncclCommGetAsyncError);

static ncclResult_t ask(const char *name, struct ncclComm *comm, const char *what, const int *field, int *out)
{
    polypath_result_t result = nccl_comm_check(name, comm);
    if (!result && !out)
        result = NCCL_BAD("%s: %s is NULL", name, what);
    if (result)
        return nccl_answer(result);
    pthread_mutex_lock(&comm->lock);
    if (comm->size < 1)
        result = NCCL_MISUSE("%s: the communicator is not ready", name);
    else
        *out = *field;
    pthread_mutex_unlock(&comm->lock);
    return nccl_answer(result);
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *count)
{
    return ask("ncclCommCount", comm, "count", comm ? &comm->size : NULL, count);
}
NCCL_PROFILED(ncclCommCount);

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank)
{
    return ask("ncclCommUserRank", comm, "rank", comm ? &comm->rank : NULL, rank);
}
NCCL_PROFILED(ncclCommUserRank);

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device)
{
    return ask("ncclCommCuDevice", comm, "device", comm ? &comm->device : NULL, device);
}
NCCL_PROFILED(ncclCommCuDevice);
