/*
 * Who moves a communicator's calls. At any moment at most one thread drives:
 * a caller that waits, a caller that tests, or the helper thread, which gives
 * way to callers.
 */
#include <sched.h>
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

/* Becomes the driver, or returns false because the call was finished meanwhile. */
static bool take_over(struct polypath_comm *comm, const struct polypath_request *call)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->driven && !is_done(call)) {
        comm->wanted = true;
        host_wake(comm->host);
        pthread_cond_wait(&comm->changed, &comm->lock);
    }
    bool mine = !is_done(call);
    if (mine)
        comm->driven = true;
    comm->wanted = false;
    pthread_mutex_unlock(&comm->lock);
    return mine;
}

static void hand_back(struct polypath_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->driven = false;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

/* After an advance that moved nothing. *moved_ns: when something moved last; 0: not known yet. */
static polypath_result_t wait_a_little(struct polypath_comm *comm, uint64_t *moved_ns)
{
    const struct polypath_request *call = comm->current;
    if (call && call->on_board)
        return small_idle(comm, &call->host.frame, moved_ns);
    if (!*moved_ns)
        *moved_ns = clock_now_ns();
    polypath_result_t result = host_idle(comm->host, *moved_ns + comm->settings.timeout_ms * 1000000);
    if (!result && host_patient(comm->host) && call && !call->npoints)
        result = small_compare(comm, &call->host.frame, false);
    return result;
}

/* Moves the queue until `stop` says so; waits as the executor does. */
static void drive(struct polypath_comm *comm, const struct polypath_request *call, bool give_way)
{
    uint64_t moved_ns = 0;
    for (;;) {
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
        polypath_result_t result = wait_a_little(comm, &moved_ns);
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
    while (!is_done(call)) {
        if (!take_over(comm, call))
            break;
        drive(comm, call, false);
        hand_back(comm);
    }
    return result_of(call);
}

bool drive_test(struct polypath_request *call)
{
    struct polypath_comm *comm = call->comm;
    if (is_done(call))
        return true;
    pthread_mutex_lock(&comm->lock);
    bool mine = !comm->driven;
    if (mine)
        comm->driven = true;
    pthread_mutex_unlock(&comm->lock);
    if (!mine)
        return is_done(call);
    for (bool idle = false; !idle && !is_done(call);)
        if (call_advance(comm, &idle))
            break;
    if (!is_done(call) && comm->host)
        host_poll_now(comm->host);
    hand_back(comm);
    return is_done(call);
}

polypath_result_t drive_all(struct polypath_request **calls, int ncalls)
{
    polypath_result_t result = POLYPATH_SUCCESS;
    if (ncalls && calls[0]->comm == calls[ncalls - 1]->comm) {
        bool one = true;
        for (int i = 1; i < ncalls; i++)
            one &= calls[i]->comm == calls[0]->comm;
        if (one) {
            for (int i = 0; i < ncalls; i++) {
                polypath_result_t r = drive_until_done(calls[i]);
                result = result ? result : r;
            }
            return result;
        }
    }
    /* several communicators: move each in turn; deadlines are kept by a clock of our own */
    uint64_t moved_ns = clock_now_ns();
    for (int left = ncalls, quiet = 0; left;) {
        uint64_t before = (uint64_t)left;
        left = 0;
        for (int i = 0; i < ncalls; i++)
            left += !drive_test(calls[i]);
        uint64_t now = clock_now_ns();
        if ((uint64_t)left != before) {
            quiet = 0;
            moved_ns = now;
        }
        if (left && ++quiet > 64) {
            struct timespec pause = {0, 20000};
            nanosleep(&pause, NULL);
        } else if (left) {
            sched_yield();
        }
        for (int i = 0; i < ncalls && left; i++) {
            struct polypath_comm *comm = calls[i]->comm;
            if (is_done(calls[i]))
                continue;
            if (host_moved(comm->host))
                moved_ns = now;
            polypath_result_t r = host_check(comm->host, now - moved_ns > comm->settings.timeout_ms * 1000000);
            if (r)
                comm_fail(comm, r, NULL);
        }
    }
    for (int i = 0; i < ncalls; i++) {
        polypath_result_t r = result_of(calls[i]);
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
        if (!comm->head || comm->driven || comm->wanted) {
            pthread_cond_wait(&comm->changed, &comm->lock);
            continue;
        }
        comm->driven = true;
        pthread_mutex_unlock(&comm->lock);
        drive(comm, NULL, true);
        pthread_mutex_lock(&comm->lock);
        comm->driven = false;
        pthread_cond_broadcast(&comm->changed);
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
    if (pthread_create(&comm->helper, NULL, help, comm)) {
        comm->statistics.fallbacks++;
        log_line(LOG_LEVEL_WARN, "no helper thread could be started; non-blocking operations move in test and wait");
        comm->settings.progress_thread = 0;
        return;
    }
    comm->helper_running = true;
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
