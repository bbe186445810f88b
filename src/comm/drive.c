/*
 * Who moves a communicator's calls. At any moment at most one thread drives:
 * a caller that waits, a caller that tests, or the helper thread, which gives
 * way to callers. Only the driver touches the executor, and only the driver
 * makes the communicator fail.
 */
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "comm/comm.h"
#include "system/clock.h"
#include "system/log.h"

static bool is_done(const struct polypath_request *call)
{
    /* acquire: the result and the data after the state */
    return atomic_load_explicit(&call->state, memory_order_acquire) == CALL_DONE;
}

bool drive_try(struct polypath_comm *comm)
{
    /* acquire: what the last driver did before it let go */
    return !atomic_exchange_explicit(&comm->driven, true, memory_order_acquire);
}

void drive_let_go(struct polypath_comm *comm)
{
    /* an abort that found somebody driving relies on the driver to see it through */
    if (host_interrupted(comm->host))
        comm_check_abort(comm);
    pthread_mutex_lock(&comm->lock);
    atomic_store_explicit(&comm->driven, false, memory_order_release);
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

bool drive_try_alone(struct polypath_comm *comm)
{
    if (!drive_try(comm))
        return false;
    if (!comm->head && !comm->helper_running && !host_interrupted(comm->host))
        return true;
    drive_let_go(comm);
    return false;
}

void drive_let_go_alone(struct polypath_comm *comm)
{
    if (host_interrupted(comm->host))
        drive_let_go(comm);
    else /* release; nobody waits for it: no helper thread, and one thread at a time uses a communicator */
        atomic_store_explicit(&comm->driven, false, memory_order_release);
}

/* Becomes the driver, or returns false because `call` (if any) was finished meanwhile. */
static bool take_over(struct polypath_comm *comm, const struct polypath_request *call)
{
    pthread_mutex_lock(&comm->lock);
    bool mine = false;
    while (!(call && is_done(call)) && !(mine = drive_try(comm))) {
        comm->wanted = true;
        host_wake(comm->host);
        pthread_cond_wait(&comm->changed, &comm->lock);
    }
    comm->wanted = false;
    if (!mine)
        pthread_cond_broadcast(&comm->changed); /* the helper thread made way for nothing */
    pthread_mutex_unlock(&comm->lock);
    return mine;
}

void drive_hold(struct polypath_comm *comm)
{
    take_over(comm, NULL);
}

/* What can be said of a call that does not move, without waiting. *moved_ns: since when; 0: not known yet. */
static polypath_result_t look_around(struct polypath_comm *comm, uint64_t *moved_ns)
{
    const struct polypath_request *call = comm->current;
    if (call && call->on_board)
        return small_check(comm, &call->host.frame, moved_ns);
    const uint64_t now = clock_now_ns();
    if (!*moved_ns)
        *moved_ns = now;
    polypath_result_t result = host_check(comm->host, now - *moved_ns > comm->settings.timeout_ms * 1000000);
    if (!result && call && !call->npoints)
        result = small_compare(comm, &call->host.frame, false);
    return result;
}

/* Moves the queue until `call` is done, or (give_way) until a caller wants to. */
static void drive(struct polypath_comm *comm, const struct polypath_request *call, bool give_way)
{
    for (uint64_t moved_ns = 0;;) {
        bool idle;
        if (call_advance(comm, &idle))
            return; /* comm_fail has ended every call */
        if (call && is_done(call))
            return;
        if (give_way) {
            pthread_mutex_lock(&comm->lock);
            bool stop = comm->wanted || comm->helper_stop || !comm->head;
            pthread_mutex_unlock(&comm->lock);
            if (stop)
                return;
        }
        if (!idle) {
            moved_ns = 0;
            continue;
        }
        polypath_result_t result = host_idle(comm->host);
        if (!result && host_patient(comm->host))
            result = look_around(comm, &moved_ns);
        if (result) {
            comm_fail(comm, result, NULL);
            return;
        }
    }
}

/* A finished call's result, with the error text of a failed communicator. */
static polypath_result_t result_of(struct polypath_request *call)
{
    if (call->result) {
        polypath_result_t failed = comm_check(call->comm);
        return failed ? failed : call->result;
    }
    return POLYPATH_SUCCESS;
}

polypath_result_t drive_until_done(struct polypath_request *call)
{
    struct polypath_comm *comm = call->comm;
    while (!is_done(call) && take_over(comm, call)) {
        drive(comm, call, false);
        drive_let_go(comm);
    }
    return result_of(call);
}

bool drive_test(struct polypath_request *call)
{
    struct polypath_comm *comm = call->comm;
    if (is_done(call))
        return true;
    if (!drive_try(comm))
        return is_done(call);
    bool idle = false;
    polypath_result_t result = POLYPATH_SUCCESS;
    while (!idle && !is_done(call) && !result) {
        result = call_advance(comm, &idle);
        if (!idle)
            comm->test_moved_ns = 0;
    }
    if (!result && !is_done(call)) {
        host_poll_now(comm->host);
        result = look_around(comm, &comm->test_moved_ns);
        if (result)
            comm_fail(comm, result, NULL);
    }
    drive_let_go(comm);
    return is_done(call);
}

polypath_result_t drive_all(struct polypath_request **calls, int ncalls)
{
    bool one = true;
    for (int i = 1; i < ncalls; i++)
        one &= calls[i]->comm == calls[0]->comm;
    /* several communicators: move each in turn; every test looks after its own deadline */
    for (int left = one ? 0 : ncalls, quiet = 0; left;) {
        const int before = left;
        left = 0;
        for (int i = 0; i < ncalls; i++)
            left += !drive_test(calls[i]);
        quiet = left == before ? quiet + 1 : 0;
        if (quiet > 256) {
            struct timespec pause = {0, 20000};
            nanosleep(&pause, NULL);
        } else if (left) {
            sched_yield();
        }
    }
    polypath_result_t result = POLYPATH_SUCCESS;
    for (int i = 0; i < ncalls; i++) {
        polypath_result_t r = drive_until_done(calls[i]);
        result = result ? result : r;
    }
    return result;
}

/* ----------------------------------------------------------------- helper */

static void *help(void *context)
{
    struct polypath_comm *comm = context;
    pthread_mutex_lock(&comm->lock);
    while (!comm->helper_stop) {
        if (!comm->head || comm->wanted || !drive_try(comm)) {
            pthread_cond_wait(&comm->changed, &comm->lock);
            continue;
        }
        pthread_mutex_unlock(&comm->lock);
        drive(comm, NULL, true);
        drive_let_go(comm);
        pthread_mutex_lock(&comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

void drive_want_helper(struct polypath_comm *comm)
{
    const uint64_t wish = comm->settings.progress_thread;
    if (comm->helper_running || wish == 0 || comm->size == 1)
        return;
    if (wish == 2 && comm->cores <= comm->layout.local_size[comm->layout.host_of[comm->rank]])
        return;
    /* signals are for the program's own threads */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&comm->lock);
    const int error = pthread_create(&comm->helper, NULL, help, comm);
    comm->helper_running = !error;
    pthread_mutex_unlock(&comm->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        comm->statistics.fallbacks++;
        log_line(LOG_LEVEL_WARN, "no helper thread could be started; non-blocking operations move in test and wait");
        comm->settings.progress_thread = 0;
    }
}

void drive_stop(struct polypath_comm *comm)
{
    if (!comm->helper_running)
        return;
    pthread_mutex_lock(&comm->lock);
    comm->helper_stop = true;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    host_wake(comm->host);
    pthread_join(comm->helper, NULL);
    comm->helper_running = false;
}
