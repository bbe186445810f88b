/*
 * NCCL's interface: making communicators, from a unique id or from others.
 * Each is a job (job.c), because it waits for other ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/bootstrap.h"
#include "frontends/nccl/internal.h"

_Static_assert(sizeof(ncclUniqueId) == sizeof(polypath_unique_id_t), "ids are handed through");

static polypath_unique_id_t id_of(const ncclUniqueId *id)
{
    polypath_unique_id_t out;
    memcpy(&out, id, sizeof out);
    return out;
}

/* What a configuration says of blocking. Everything else in it is about how NCCL does things, and is accepted. */
static polypath_result_t read_config(const char *name, const ncclConfig_t *config, bool *blocking)
{
    if (!config)
        return POLYPATH_SUCCESS;
    if (config->magic != NCCL_CONFIG_MAGIC || config->size < offsetof(ncclConfig_t, cgaClusterSize))
        return NCCL_BAD("%s: config was not set to NCCL_CONFIG_INITIALIZER", name);
    if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 && config->blocking != 1)
        return NCCL_BAD("%s: config.blocking is %d, must be 0 or 1", name, config->blocking);
    if (config->blocking != NCCL_CONFIG_UNDEF_INT)
        *blocking = config->blocking;
    return POLYPATH_SUCCESS;
}

/* The new inner communicator, or nothing if this one was aborted meanwhile. */
static polypath_result_t adopt(struct nccl_job *job, polypath_comm_t inner)
{
    struct ncclComm *comm = job->comm;
    int rank = 0, size = 0;
    polypath_comm_rank(inner, &rank);
    polypath_comm_size(inner, &size);
    pthread_mutex_lock(&comm->lock);
    comm->rank = rank;
    comm->size = size;
    comm->inner = inner;
    const bool aborted = comm->aborted;
    pthread_mutex_unlock(&comm->lock);
    return aborted ? polypath_comm_abort(inner) : POLYPATH_SUCCESS;
}

/* ----------------------------------------------------------- from an id */

static polypath_result_t create(struct nccl_job *job)
{
    polypath_comm_t inner;
    polypath_result_t result = polypath_comm_create(&inner, job->comm->size, job->id, job->comm->rank);
    if (result)
        return result;
    result = nccl_device_compare(inner, job->comm->device);
    if (result) {
        polypath_comm_destroy(inner);
        return result;
    }
    return adopt(job, inner);
}

/* Checks, and a job with its communicator. */
static polypath_result_t prepare(const char *name, ncclComm_t *place, int nranks, const ncclUniqueId *id, int rank,
                                 bool blocking, struct nccl_job **out)
{
    uint8_t secret[HANDSHAKE_SECRET_BYTES];
    uint64_t number;
    const polypath_unique_id_t own = id_of(id);
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return NCCL_BAD("%s: rank %d of %d ranks", name, rank, nranks);
    polypath_result_t result = bootstrap_parse(&own, secret, &number);
    memset(secret, 0, sizeof secret);
    if (result)
        return error_prefix(result, "%s", name);
    struct nccl_job *job = nccl_job_new(create);
    struct ncclComm *comm = job ? nccl_comm_new(rank, nranks, nccl_device_current(), blocking) : NULL;
    if (!comm) {
        free(job);
        return POLYPATH_ERROR_OUT_OF_MEMORY;
    }
    job->comm = comm;
    job->place = place;
    job->blocking = blocking;
    job->id = own;
    *place = comm;
    *out = job;
    return POLYPATH_SUCCESS;
}

static ncclResult_t init_rank(const char *name, ncclComm_t *comm, int nranks, const ncclUniqueId *id, int rank,
                              const ncclConfig_t *config)
{
    bool blocking = true, later = false;
    struct nccl_job *job;
    if (!comm)
        return nccl_answer(NCCL_BAD("%s: comm is NULL", name));
    *comm = NULL;
    polypath_result_t result = read_config(name, config, &blocking);
    if (!result)
        result = prepare(name, comm, nranks, id, rank, blocking, &job);
    if (!result)
        result = nccl_job_submit(job, &later);
    return nccl_answer_later(result, later);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    if (!uniqueId)
        return nccl_answer(NCCL_BAD("ncclGetUniqueId: uniqueId is NULL"));
    polypath_unique_id_t id;
    polypath_result_t result = polypath_get_unique_id(&id);
    if (!result)
        memcpy(uniqueId, &id, sizeof id);
    return nccl_answer(result);
}
NCCL_PROFILED(ncclGetUniqueId);

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
    return init_rank("ncclCommInitRank", comm, nranks, &commId, rank, NULL);
}
NCCL_PROFILED(ncclCommInitRank);

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config)
{
    return init_rank("ncclCommInitRankConfig", comm, nranks, &commId, rank, config);
}
NCCL_PROFILED(ncclCommInitRankConfig);

/* One meeting place is enough here: the others are looked at and let be. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
                                      ncclConfig_t *config)
{
    static const char name[] = "ncclCommInitRankScalable";
    if (!commIds || nId < 1 || nId > nranks)
        return nccl_answer(NCCL_BAD("%s: %d ids for %d ranks", name, commIds ? nId : 0, nranks));
    for (int i = 1; i < nId; i++) {
        uint8_t secret[HANDSHAKE_SECRET_BYTES];
        uint64_t number;
        const polypath_unique_id_t id = id_of(&commIds[i]);
        polypath_result_t result = bootstrap_parse(&id, secret, &number);
        if (result)
            return nccl_answer(error_prefix(result, "%s: id %d", name, i));
    }
    return init_rank(name, newcomm, nranks, &commIds[0], myrank, config);
}
NCCL_PROFILED(ncclCommInitRankScalable);

ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
    static const char name[] = "ncclCommInitAll";
    if (!comm || ndev < 1)
        return nccl_answer(NCCL_BAD("%s: %d devices, comm %p", name, ndev, (void *)comm));
    for (int i = 0; i < ndev; i++)
        comm[i] = NULL;
    ncclUniqueId id;
    ncclResult_t answer = ncclGetUniqueId(&id);
    struct nccl_job *jobs = NULL;
    polypath_result_t result = POLYPATH_SUCCESS;
    ncclGroupStart();
    for (int i = 0; i < ndev && !result && !answer; i++) {
        bool later;
        CUcontext context;
        const int device = devlist ? devlist[i] : i;
        result = nccl_device_context(device, &context);
        if (!result)
            result = prepare(name, &comm[i], ndev, &id, i, true, &jobs);
        if (result)
            break;
        jobs->context = context;
        jobs->comm->device = device;
        result = nccl_job_submit(jobs, &later);
    }
    if (result)
        answer = nccl_answer(result);
    const ncclResult_t ended = ncclGroupEnd();
    return answer ? answer : ended;
}
NCCL_PROFILED(ncclCommInitAll);

/* ------------------------------------------------------- from another one */

/* All ranks of a revoked communicator again, under a new one. */
static polypath_result_t split_revoked(struct nccl_job *job, polypath_comm_t *inner)
{
    polypath_comm_t whole;
    polypath_result_t result = polypath_comm_shrink(job->parent->inner, NULL, 0, &whole, POLYPATH_SHRINK_ABORT);
    if (result)
        return result;
    result = polypath_comm_split(whole, job->color, job->key, inner);
    char text[ERROR_TEXT_BYTES];
    memcpy(text, error_text(), sizeof text);
    polypath_comm_destroy(whole);
    return result ? error_set(result, "%s", text) : POLYPATH_SUCCESS;
}

static bool is_revoked(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const bool revoked = comm->revoked;
    pthread_mutex_unlock(&comm->lock);
    return revoked;
}

static polypath_result_t split(struct nccl_job *job)
{
    polypath_comm_t inner = NULL;
    polypath_result_t result = is_revoked(job->parent)
                                   ? split_revoked(job, &inner)
                                   : polypath_comm_split(job->parent->inner, job->color, job->key, &inner);
    return result || !inner ? result : adopt(job, inner);
}

static polypath_result_t shrink(struct nccl_job *job)
{
    polypath_comm_t inner;
    const bool abort = job->abort_first || is_revoked(job->parent);
    polypath_result_t result = polypath_comm_shrink(job->parent->inner, job->excluded, job->nexcluded, &inner,
                                                    abort ? POLYPATH_SHRINK_ABORT : 0);
    return result ? result : adopt(job, inner);
}

/* Whether something can be made from `parent`. Revoked ones may be used for that, and failed ones. */
static polypath_result_t check_parent(const char *name, struct ncclComm *parent)
{
    polypath_result_t result = nccl_comm_check(name, parent);
    if (result)
        return result;
    pthread_mutex_lock(&parent->lock);
    if (parent->finalized)
        result = NCCL_MISUSE("%s: the communicator has been finalized", name);
    else if (parent->pending && !nccl_group_active())
        result =
            NCCL_MISUSE("%s: the communicator is not ready: wait until ncclCommGetAsyncError gives ncclSuccess", name);
    else if (!parent->inner)
        result = NCCL_MISUSE("%s: the communicator is not ready", name);
    pthread_mutex_unlock(&parent->lock);
    return result;
}

/* A job that makes a communicator from `parent`; `member`: this rank will be in it. Takes `job` over. */
static ncclResult_t derive(struct nccl_job *job, struct ncclComm *parent, bool member, bool blocking, ncclComm_t *place)
{
    bool later = false;
    struct ncclComm *comm = member ? nccl_comm_new(0, 0, parent->device, blocking) : NULL;
    if (member && !comm) {
        free(job->excluded);
        free(job);
        return nccl_answer(POLYPATH_ERROR_OUT_OF_MEMORY);
    }
    *place = comm;
    job->comm = comm;
    job->parent = parent;
    job->place = place;
    job->blocking = blocking;
    polypath_result_t result = nccl_job_submit(job, &later);
    return nccl_answer_later(result, later);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
    static const char name[] = "ncclCommSplit";
    polypath_result_t result = check_parent(name, comm);
    if (!result && !newcomm)
        result = NCCL_BAD("%s: newcomm is NULL", name);
    if (!result && color < 0 && color != NCCL_SPLIT_NOCOLOR)
        result = NCCL_BAD("%s: color %d", name, color);
    bool blocking = !result && comm->blocking;
    if (!result)
        result = read_config(name, config, &blocking);
    struct nccl_job *job = result ? NULL : nccl_job_new(split);
    if (!job)
        return nccl_answer(result ? result : POLYPATH_ERROR_OUT_OF_MEMORY);
    const bool member = color != NCCL_SPLIT_NOCOLOR;
    job->color = member ? color : POLYPATH_NO_COLOR;
    job->key = key;
    return derive(job, comm, member, blocking, newcomm);
}
NCCL_PROFILED(ncclCommSplit);

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
                            ncclConfig_t *config, int shrinkFlags)
{
    static const char name[] = "ncclCommShrink";
    polypath_result_t result = check_parent(name, comm);
    if (!result && !newcomm)
        result = NCCL_BAD("%s: newcomm is NULL", name);
    if (!result && (!excludeRanksList || excludeRanksCount < 1 || excludeRanksCount >= comm->size))
        result =
            NCCL_BAD("%s: %d of %d ranks to leave out", name, excludeRanksList ? excludeRanksCount : 0, comm->size);
    if (!result && shrinkFlags & ~NCCL_SHRINK_ABORT)
        result = NCCL_BAD("%s: unknown flags %d", name, shrinkFlags);
    bool blocking = !result && comm->blocking;
    if (!result)
        result = read_config(name, config, &blocking);
    struct nccl_job *job = result ? NULL : nccl_job_new(shrink);
    if (!job)
        return nccl_answer(result ? result : POLYPATH_ERROR_OUT_OF_MEMORY);
    job->nexcluded = excludeRanksCount;
    job->abort_first = shrinkFlags & NCCL_SHRINK_ABORT;
    job->excluded = malloc((size_t)excludeRanksCount * sizeof *job->excluded);
    if (!job->excluded) {
        free(job);
        return nccl_answer(error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory"));
    }
    memcpy(job->excluded, excludeRanksList, (size_t)excludeRanksCount * sizeof *job->excluded);
    return derive(job, comm, true, blocking, newcomm);
}
NCCL_PROFILED(ncclCommShrink);
