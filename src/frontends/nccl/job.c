/*
 * NCCL's interface: jobs and groups. A group keeps the creations of
 * communicators and lets them run side by side at its end, each in a thread of
 * its own; operations are kept by Polypath's own groups (frontends/group.c).
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/group.h"
#include "frontends/nccl/internal.h"

static _Thread_local struct {
    int depth;
    polypath_result_t failed; /* something inside was refused: nothing of the group runs */
    char failed_text[ERROR_TEXT_BYTES];
    struct nccl_job *first, **last;
    struct ncclComm **held;
    int nheld, held_room;
} group;

/* -------------------------------------------------------------------- jobs */

struct nccl_job *nccl_job_new(polypath_result_t (*work)(struct nccl_job *job))
{
    struct nccl_job *job = calloc(1, sizeof *job);
    if (!job) {
        error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        return NULL;
    }
    job->work = work;
    const struct cuda_driver *driver = cuda_driver_get(NULL);
    if (driver && driver->ctx_get_current(&job->context))
        job->context = NULL;
    return job;
}

static void begin(struct ncclComm *comm)
{
    if (!comm)
        return;
    pthread_mutex_lock(&comm->lock);
    comm->holders++;
    comm->pending++;
    pthread_mutex_unlock(&comm->lock);
}

/* The job is over for this communicator. */
static void end(struct ncclComm *comm, const struct nccl_job *job, bool fails)
{
    if (!comm)
        return;
    pthread_mutex_lock(&comm->lock);
    if (fails && job->result && !comm->failed) {
        comm->failed = job->result;
        memcpy(comm->failed_text, job->text, sizeof comm->failed_text);
    }
    comm->pending--;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    nccl_comm_let_go(comm);
}

/* Ends a job whose result is known: tells its communicators, takes back a handle that came to nothing, frees it. */
static void finish(struct nccl_job *job)
{
    const bool taken_back = job->result && job->comm && job->blocking && !job->finalizes;
    struct ncclComm *comm = job->comm;
    if (taken_back && job->place)
        *job->place = NULL;
    end(job->parent, job, false);
    end(comm, job, true);
    if (taken_back)
        nccl_comm_let_go(comm); /* the program's */
    free(job->excluded);
    free(job);
}

static void run(struct nccl_job *job)
{
    const struct cuda_driver *driver = job->context ? cuda_driver_get(NULL) : NULL;
    const bool pushed = driver && !driver->ctx_push_current(job->context);
    job->result = job->work(job);
    snprintf(job->text, sizeof job->text, "%s", job->result ? error_text() : "");
    if (pushed)
        driver->ctx_pop_current(&job->context);
}

static void *run_thread(void *argument)
{
    run(argument);
    return NULL;
}

static void *run_detached(void *argument)
{
    struct nccl_job *job = argument;
    run(job);
    finish(job);
    return NULL;
}

/* Runs `function` in a thread; with the text set if there is none to be had. */
static polypath_result_t start(struct nccl_job *job, void *(*function)(void *), int detached)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, detached);
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, &attributes, function, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error)
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot start a thread for a communicator: %s", strerror(error));
    if (detached == PTHREAD_CREATE_JOINABLE) /* else the job may be gone already */
        job->thread = thread;
    return POLYPATH_SUCCESS;
}

/* Whether a job may run in this thread: not while Polypath's group is open, which would take what it does for its own.
 */
static bool runs_here(const struct nccl_job *job)
{
    return !job->next && !group_active();
}

polypath_result_t nccl_jobs_run(struct nccl_job *jobs, bool *later)
{
    struct nccl_job *waited = NULL;
    while (jobs) {
        struct nccl_job *job = jobs;
        jobs = job->next;
        if (job->blocking) {
            job->next = waited;
            waited = job;
        } else {
            *later = true;
            if (start(job, run_detached, PTHREAD_CREATE_DETACHED))
                run_detached(job);
        }
    }
    for (struct nccl_job *job = waited; job; job = job->next) {
        if (runs_here(job)) {
            run(job);
            continue;
        }
        polypath_result_t failed = start(job, run_thread, PTHREAD_CREATE_JOINABLE);
        if (failed) {
            job->result = failed;
            snprintf(job->text, sizeof job->text, "%s", error_text());
        }
        job->started = !failed; /* only this thread looks at it; the job's own fields are the other's now */
    }
    polypath_result_t result = POLYPATH_SUCCESS;
    char text[ERROR_TEXT_BYTES] = "";
    while (waited) {
        struct nccl_job *job = waited;
        waited = job->next;
        if (job->started)
            pthread_join(job->thread, NULL);
        if (job->result && !result) {
            result = job->result;
            memcpy(text, job->text, sizeof text);
        }
        finish(job);
    }
    return result ? error_set(result, "%s", text) : POLYPATH_SUCCESS;
}

void nccl_jobs_drop(struct nccl_job *jobs, polypath_result_t result)
{
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", error_text());
    while (jobs) {
        struct nccl_job *job = jobs;
        jobs = job->next;
        job->result = result;
        memcpy(job->text, text, sizeof text);
        finish(job);
    }
    error_set(result, "%s", text);
}

polypath_result_t nccl_job_submit(struct nccl_job *job, bool *later)
{
    begin(job->comm);
    begin(job->parent);
    if (nccl_group_active()) {
        nccl_group_add(job);
        return POLYPATH_SUCCESS;
    }
    return nccl_jobs_run(job, later);
}

/* ------------------------------------------------------------------ groups */

bool nccl_group_active(void)
{
    return group.depth > 0;
}

void nccl_group_add(struct nccl_job *job)
{
    if (!group.first)
        group.last = &group.first;
    *group.last = job;
    group.last = &job->next;
}

polypath_result_t nccl_group_hold(struct ncclComm *comm)
{
    for (int i = group.nheld - 1; i >= 0; i--)
        if (group.held[i] == comm)
            return POLYPATH_SUCCESS;
    if (group.nheld == group.held_room) {
        const int room = group.held_room ? 2 * group.held_room : 8;
        struct ncclComm **grown = realloc(group.held, (size_t)room * sizeof(struct ncclComm *));
        if (!grown)
            return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        group.held = grown;
        group.held_room = room;
    }
    nccl_comm_hold(comm);
    group.held[group.nheld++] = comm;
    return POLYPATH_SUCCESS;
}

ncclResult_t nccl_answer(polypath_result_t result)
{
    if (result && group.depth && !group.failed) {
        group.failed = result;
        memcpy(group.failed_text, error_text(), sizeof group.failed_text);
        group_refuse(result);
    }
    return nccl_translate(result);
}

ncclResult_t nccl_answer_later(polypath_result_t result, bool later)
{
    return !result && later ? ncclInProgress : nccl_answer(result);
}

ncclResult_t ncclGroupStart(void)
{
    if (!group.depth++)
        polypath_group_start();
    return ncclSuccess;
}
NCCL_PROFILED(ncclGroupStart);

/* Lets Polypath forget what it has noted, and keeps the error text. */
static void forget_operations(polypath_result_t result)
{
    char text[ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", error_text());
    group_refuse(result);
    polypath_group_end();
    error_set(result, "%s", text);
}

/* An end. `simulated`: the outermost one forgets everything instead of running it. */
static polypath_result_t end_group(const char *name, bool simulated, bool *later)
{
    if (!group.depth)
        return NCCL_MISUSE("%s without ncclGroupStart", name);
    if (--group.depth)
        return POLYPATH_SUCCESS;
    polypath_result_t result = group.failed;
    if (result)
        error_set(result, "nothing of the group was run: %s", group.failed_text);
    struct nccl_job *jobs = group.first;
    struct ncclComm **held = group.held;
    const int nheld = group.nheld;
    memset(&group, 0, sizeof group);
    if (result || simulated) {
        const polypath_result_t why = result ? result : NCCL_MISUSE("the group was only simulated");
        nccl_jobs_drop(jobs, why);
        forget_operations(why);
    } else if ((result = nccl_jobs_run(jobs, later))) {
        forget_operations(result);
    } else {
        result = polypath_group_end();
    }
    for (int i = 0; i < nheld; i++)
        nccl_comm_let_go(held[i]);
    free(held);
    return result;
}

ncclResult_t ncclGroupEnd(void)
{
    bool later = false;
    polypath_result_t result = end_group("ncclGroupEnd", false, &later);
    return nccl_answer_later(result, later);
}
NCCL_PROFILED(ncclGroupEnd);

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo)
{
    bool later = false;
    if (simInfo && simInfo->magic != NCCL_SIM_INFO_MAGIC)
        return nccl_answer(NCCL_BAD("ncclGroupSimulateEnd: simInfo was not set to NCCL_SIM_INFO_INITIALIZER"));
    polypath_result_t result = end_group("ncclGroupSimulateEnd", true, &later);
    if (!result && simInfo && simInfo->size >= sizeof *simInfo)
        simInfo->estimatedTime = NCCL_UNDEF_FLOAT; /* no estimate is better than a wrong one */
    return nccl_answer(result);
}
NCCL_PROFILED(ncclGroupSimulateEnd);
