/*
 * What goes wrong between ranks: unlike calls, ranks that die, stop, never
 * come or abort. The others get an error that names operation, call and rank,
 * and keep saying so; nothing is left behind. (What goes wrong in one rank is
 * in test_arguments.c and test_resources.c.)
 */
#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/bootstrap.h"
#include "support/exercise.h"
#include "support/ranks.h"
#include "support/reference.h"

#define F32 POLYPATH_FLOAT32
#define LARGE 200000

static float a[LARGE * 3 + 1], b[LARGE * 3 + 1];

/* ----------------------------------------------------------------- settings */

#define COMMON "POLYPATH_LOG=none", "POLYPATH_TUNE=0"

static const char *const quick_shm[] = {COMMON, "POLYPATH_PATHS=shm", "POLYPATH_TIMEOUT_MS=1500", NULL};
static const char *const quick_cma[] = {COMMON, "POLYPATH_PATHS=cma", "POLYPATH_TIMEOUT_MS=1500", NULL};
static const char *const quick_lo[] = {COMMON, "POLYPATH_PATHS=lo", "POLYPATH_TIMEOUT_MS=1500", NULL};
static const char *const quick_all[] = {COMMON, "POLYPATH_PATHS=shm,cma,lo", "POLYPATH_TIMEOUT_MS=1500", NULL};
static const char *const patient_shm[] = {COMMON, "POLYPATH_PATHS=shm", NULL};
static const char *const patient_rows[] = {COMMON, "POLYPATH_PATHS=shm", "POLYPATH_STAGE_BYTES=0", NULL};
static const char *const patient_cma[] = {COMMON, "POLYPATH_PATHS=cma", NULL};
static const char *const patient_lo[] = {COMMON, "POLYPATH_PATHS=lo", NULL};
static const char *const patient_all[] = {COMMON, "POLYPATH_PATHS=shm,cma,lo", NULL};
static const char *const quick_hosts[] = {COMMON, "POLYPATH_INTERFACES=lo", "POLYPATH_TIMEOUT_MS=1500", NULL};
static const char *const patient_hosts[] = {COMMON, "POLYPATH_INTERFACES=lo", NULL};

static void two_hosts(struct rank *me)
{
    ranks_setenv(me->rank % 2 ? "POLYPATH_HOST_ID=b" : "POLYPATH_HOST_ID=a");
}

/* ------------------------------------------------------ what all have in common */

/* After a failure: the same again whatever is called, at once; and destroying works. */
static void refuses_everything(struct rank *me, polypath_result_t result)
{
    char text[2048];
    snprintf(text, sizeof text, "%s", polypath_last_error());
    polypath_request_t request = NULL;
    int32_t x = 1;
    CHECK(me, polypath_comm_status(me->comm) == result && !strcmp(text, polypath_last_error()), "first %s, then %s",
          text, polypath_last_error());
    CHECK(me, polypath_barrier(me->comm) == result && !strcmp(text, polypath_last_error()), "first %s, then %s", text,
          polypath_last_error());
    CHECK(me,
          polypath_all_reduce(a, b, LARGE, F32, POLYPATH_SUM, me->comm) == result &&
              !strcmp(text, polypath_last_error()),
          "first %s, then %s", text, polypath_last_error());
    CHECK(me, polypath_send(&x, 1, POLYPATH_INT32, (me->rank + 1) % me->size, me->comm) == result, "then %s",
          polypath_last_error());
    CHECK(me, polypath_barrier_start(me->comm, &request) == result && !request, "then %s", polypath_last_error());
    CHECK(me, polypath_comm_split(me->comm, 0, 0, &(polypath_comm_t){NULL}) == result, "then %s",
          polypath_last_error());
}

static bool from_others(polypath_result_t result)
{
    return result == POLYPATH_ERROR_MISMATCH || result == POLYPATH_ERROR_TIMEOUT || result == POLYPATH_ERROR_ABORTED ||
           result == POLYPATH_ERROR_PEER_LOST;
}

/* The text must say which operation and which ranks. */
static void names_the_culprit(struct rank *me, polypath_result_t result)
{
    CHECK(me, from_others(result), "%s: %s", polypath_result_name(result), polypath_last_error());
    CHECK(me, strstr(polypath_last_error(), "rank "), "no rank is named: %s", polypath_last_error());
}

/* -------------------------------------------------------------- unlike calls */

enum unlike {
    OTHER_OPERATION,
    OTHER_COUNT_SMALL,
    OTHER_COUNT_LARGE,
    SMALL_AND_LARGE,
    OTHER_TYPE,
    OTHER_TYPE_LARGE,
    OTHER_REDUCTION,
    SCALED_OR_NOT,
    OTHER_ROOT,
    OTHER_ROOT_LARGE,
    OTHER_ORDER,
    COLLECTIVE_AND_RECV,
    OTHER_COUNTS_V,
    OTHER_SIZES_ALL_TO_ALL_V,
    MESSAGE_OF_OTHER_SIZE,
    MESSAGE_OF_OTHER_TYPE,
    FIRST_CALL_MISSING,
    UNLIKE_CASES
};

static const char *const unlike_names[UNLIKE_CASES] = {
    "other operation",   "other count (small)", "other count (large)",   "small and large",
    "other type",        "other type (large)",  "other reduction",       "scaled or not",
    "other root",        "other root (large)",  "other order",           "collective and receive",
    "other counts",      "other all_to_all_v",  "message of other size", "message of other type",
    "first call missing"};

static polypath_result_t unlike_call(struct rank *me, enum unlike what)
{
    polypath_comm_t c = me->comm;
    const bool odd = me->rank == 1;
    size_t sizes[RANKS_MAX], others[RANKS_MAX];
    polypath_op_t op = POLYPATH_SUM;
    polypath_result_t result;
    for (int i = 0; i < me->size; i++)
        sizes[i] = others[i] = 5000;
    switch (what) {
    case OTHER_OPERATION:
        return odd ? polypath_all_gather(a, b, 10, F32, c) : polypath_all_reduce(a, b, 10, F32, POLYPATH_SUM, c);
    case OTHER_COUNT_SMALL: return polypath_all_reduce(a, b, odd ? 10 : 11, F32, POLYPATH_SUM, c);
    case OTHER_COUNT_LARGE: return polypath_all_reduce(a, b, odd ? LARGE : LARGE - 1, F32, POLYPATH_SUM, c);
    case SMALL_AND_LARGE: return polypath_all_reduce(a, b, odd ? 10 : LARGE, F32, POLYPATH_SUM, c);
    case OTHER_TYPE: return polypath_all_reduce(a, b, 10, odd ? POLYPATH_INT32 : F32, POLYPATH_SUM, c);
    case OTHER_TYPE_LARGE: return polypath_all_reduce(a, b, LARGE, odd ? POLYPATH_INT32 : F32, POLYPATH_SUM, c);
    case OTHER_REDUCTION: return polypath_all_reduce(a, b, LARGE, F32, odd ? POLYPATH_MAX : POLYPATH_SUM, c);
    case SCALED_OR_NOT:
        if (odd && (result = polypath_op_create_scaled_sum(&op, a, F32, c)))
            return result;
        return polypath_all_reduce(a, b, 100, F32, op, c);
    case OTHER_ROOT: return polypath_broadcast(a, b, 10, F32, odd ? 1 : 0, c);
    case OTHER_ROOT_LARGE: return polypath_reduce(a, b, LARGE, F32, POLYPATH_SUM, odd ? 1 : 0, c);
    case OTHER_ORDER:
        result =
            odd ? polypath_all_gather(a, b, LARGE / 4, F32, c) : polypath_all_reduce(a, b, LARGE, F32, POLYPATH_SUM, c);
        if (result)
            return result;
        return odd ? polypath_all_reduce(a, b, LARGE, F32, POLYPATH_SUM, c)
                   : polypath_all_gather(a, b, LARGE / 4, F32, c);
    case COLLECTIVE_AND_RECV:
        return odd ? polypath_recv(b, 10, F32, 0, c) : polypath_all_reduce(a, b, LARGE, F32, POLYPATH_SUM, c);
    case OTHER_COUNTS_V: sizes[0] += odd; return polypath_all_gather_v(a, sizes[me->rank], b, sizes, NULL, F32, c);
    case OTHER_SIZES_ALL_TO_ALL_V:
        others[0] += odd; /* rank 1 expects more of rank 0 than it sends */
        return polypath_all_to_all_v(a, sizes, NULL, b, others, NULL, F32, c);
    case MESSAGE_OF_OTHER_SIZE:
        return odd             ? polypath_recv(b, 11, F32, 0, c)
               : me->rank == 0 ? polypath_send(a, 10, F32, 1, c)
                               : POLYPATH_SUCCESS;
    case MESSAGE_OF_OTHER_TYPE:
        return odd             ? polypath_recv(b, 10, POLYPATH_INT32, 0, c)
               : me->rank == 0 ? polypath_send(a, 10, F32, 1, c)
                               : POLYPATH_SUCCESS;
    case FIRST_CALL_MISSING:
        if (odd)
            return POLYPATH_SUCCESS; /* goes on to the barrier that follows */
        return polypath_all_gather(a, b, 100, F32, c);
    default: return POLYPATH_ERROR_INTERNAL;
    }
}

static void unlike_body(struct rank *me)
{
    const enum unlike what = *(const enum unlike *)me->context;
    polypath_result_t result = POLYPATH_SUCCESS;
    for (int i = 0; i < 3 && !result; i++) /* who is slow may see the others' failure in here already */
        result = polypath_barrier(me->comm);
    if (!result)
        result = unlike_call(me, what);
    if (!result) /* some ranks may have had all they needed: then the next calls fail */
        result = polypath_barrier(me->comm);
    if (!result)
        result = polypath_barrier(me->comm);
    names_the_culprit(me, result);
    /* operation and call number, or message number */
    CHECK(me,
          strstr(polypath_last_error(), "call ") || strstr(polypath_last_error(), "send") ||
              strstr(polypath_last_error(), "receive"),
          "no operation is named: %s", polypath_last_error());
    refuses_everything(me, result);
}

static void run_unlike(const char *const *environment, ranks_body *prepare)
{
    for (enum unlike what = 0; what < UNLIKE_CASES; what++) {
        const char *wrong = ranks_run(&(struct ranks_run){
            .size = 3, .body = unlike_body, .context = &what, .environment = environment, .prepare = prepare});
        if (wrong)
            fail_msg("%s: %s", unlike_names[what], wrong);
    }
}

static void test_unlike_calls_over_shm(void **state)
{
    (void)state;
    run_unlike(quick_shm, NULL);
}

static void test_unlike_calls_over_all_paths(void **state)
{
    (void)state;
    run_unlike(quick_all, NULL);
}

static void test_unlike_calls_over_lo(void **state)
{
    (void)state;
    run_unlike(quick_lo, NULL);
}

static void test_unlike_calls_between_hosts(void **state)
{
    (void)state;
    run_unlike(quick_hosts, two_hosts);
}

/* ------------------------------------------------------------- dead, stopped */

static void kill_self(int number)
{
    (void)number;
    kill(getpid(), SIGKILL);
}

static void stop_self(int number)
{
    (void)number;
    kill(getpid(), SIGSTOP);
}

static void after_ms(int ms, void (*handler)(int))
{
    struct itimerval when = {.it_value = {0, ms * 1000}};
    signal(SIGALRM, handler);
    setitimer(ITIMER_REAL, &when, NULL);
}

struct death {
    size_t count; /* of the calls during which it happens */
    int ms;       /* after so long */
};

/* Calls until one fails. */
static polypath_result_t call_on_and_on(struct rank *me, size_t count)
{
    polypath_result_t result = POLYPATH_SUCCESS;
    for (uint64_t i = 0; !result; i++) {
        ranks_where(me, "call %llu", (unsigned long long)i);
        result = i % 3 == 2 ? polypath_all_to_all(a, b, count / 8, F32, me->comm)
                            : polypath_all_reduce(a, b, count, F32, POLYPATH_SUM, me->comm);
    }
    return result;
}

static void death_body(struct rank *me)
{
    const struct death *death = me->context;
    if (me->rank == 1)
        after_ms(death->ms, kill_self);
    const polypath_result_t result = call_on_and_on(me, death->count);
    CHECK(me, result == POLYPATH_ERROR_PEER_LOST || result == POLYPATH_ERROR_ABORTED, "%s: %s",
          polypath_result_name(result), polypath_last_error());
    CHECK(me, strstr(polypath_last_error(), "rank 1"), "not the dead rank: %s", polypath_last_error());
    CHECK(me, strstr(polypath_last_error(), "all_") && strstr(polypath_last_error(), "call "), "no operation: %s",
          polypath_last_error());
    refuses_everything(me, result);
}

/* The deadline is the default, so that only a noticed death ends the run. */
static void run_death(const char *const *environment, ranks_body *prepare)
{
    static const struct death deaths[] = {{100, 20}, {LARGE, 30}, {LARGE, 120}};
    for (size_t i = 0; i < sizeof deaths / sizeof deaths[0]; i++)
        RANKS_RUN(.size = 3, .body = death_body, .context = &deaths[i], .environment = environment, .prepare = prepare,
                  .killed = 1u << 1);
}

static void test_a_rank_dies_over_shm(void **state)
{
    (void)state;
    run_death(patient_shm, NULL);
    run_death(patient_rows, NULL);
}

static void test_a_rank_dies_over_cma(void **state)
{
    (void)state;
    run_death(patient_cma, NULL);
}

static void test_a_rank_dies_over_lo(void **state)
{
    (void)state;
    run_death(patient_lo, NULL);
}

static void test_a_rank_dies_between_hosts(void **state)
{
    (void)state;
    run_death(patient_hosts, two_hosts);
}

static void stop_body(struct rank *me)
{
    const struct death *death = me->context;
    if (me->rank == 1)
        after_ms(death->ms, stop_self);
    const polypath_result_t result = call_on_and_on(me, death->count);
    names_the_culprit(me, result);
    if (me->rank != 1) {
        CHECK(me, result == POLYPATH_ERROR_TIMEOUT || result == POLYPATH_ERROR_ABORTED, "%s: %s",
              polypath_result_name(result), polypath_last_error());
        /* a rank may have waited for another that waited for the one that stopped; who is told of that says the rest */
        CHECK(me, result == POLYPATH_ERROR_TIMEOUT || strstr(polypath_last_error(), "rank 1"),
              "not the rank that stopped: %s", polypath_last_error());
    }
    refuses_everything(me, result);
    ranks_raise(me, 0);
    if (me->rank == 0) {
        ranks_await(me, 0, 2); /* the other one too; then the stopped one may go on, and must find out */
        kill(me->shared->pids[1], SIGCONT);
    }
}

static void run_stop(const char *const *environment, ranks_body *prepare)
{
    static const struct death stops[] = {{100, 20}, {LARGE, 40}};
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++)
        RANKS_RUN(.size = 3, .body = stop_body, .context = &stops[i], .environment = environment, .prepare = prepare);
}

static void test_a_rank_stops_over_shm(void **state)
{
    (void)state;
    run_stop(quick_shm, NULL);
}

static void test_a_rank_stops_over_cma(void **state)
{
    (void)state;
    run_stop(quick_cma, NULL);
}

static void test_a_rank_stops_over_lo(void **state)
{
    (void)state;
    run_stop(quick_lo, NULL);
}

static void test_a_rank_stops_between_hosts(void **state)
{
    (void)state;
    run_stop(quick_hosts, two_hosts);
}

/* ----------------------------------------------------------- never calls */

enum wait { WAIT_SMALL, WAIT_LARGE, WAIT_RECV, WAIT_REQUEST, WAIT_TESTS, WAIT_GROUP, WAITS };

static polypath_result_t wait_in_vain(struct rank *me, enum wait how)
{
    polypath_request_t request = NULL;
    bool done = false;
    polypath_result_t result = POLYPATH_SUCCESS;
    switch (how) {
    case WAIT_SMALL: return polypath_all_reduce(a, b, 10, F32, POLYPATH_SUM, me->comm);
    case WAIT_LARGE: return polypath_all_reduce(a, b, LARGE, F32, POLYPATH_SUM, me->comm);
    case WAIT_RECV: return polypath_recv(b, 10, F32, 1, me->comm);
    case WAIT_REQUEST:
        result = polypath_all_reduce_start(a, b, LARGE, F32, POLYPATH_SUM, me->comm, &request);
        return result ? result : polypath_wait(&request);
    case WAIT_TESTS:
        result = polypath_all_reduce_start(a, b, LARGE, F32, POLYPATH_SUM, me->comm, &request);
        while (!result && !done) {
            result = polypath_test(&request, &done);
            ranks_pause_ms(1);
        }
        return result;
    default:
        OK(me, polypath_group_start());
        OK(me, polypath_all_reduce(a, b, 10, F32, POLYPATH_SUM, me->comm));
        OK(me, polypath_recv(b + 10, 10, F32, 1, me->comm));
        return polypath_group_end();
    }
}

static void in_vain_body(struct rank *me)
{
    if (me->rank == 1) { /* alive, but elsewhere */
        ranks_await(me, 0, 1);
        const polypath_result_t result = polypath_barrier(me->comm);
        names_the_culprit(me, result);
        return;
    }
    const polypath_result_t result = wait_in_vain(me, *(const enum wait *)me->context);
    CHECK(me, result == POLYPATH_ERROR_TIMEOUT, "%s: %s", polypath_result_name(result), polypath_last_error());
    CHECK(me, strstr(polypath_last_error(), "rank 1") && strstr(polypath_last_error(), "1500 ms"), "%s",
          polypath_last_error());
    refuses_everything(me, result);
    ranks_raise(me, 0);
}

static void test_a_rank_that_never_calls(void **state)
{
    (void)state;
    for (enum wait how = 0; how < WAITS; how++) {
        RANKS_RUN(.size = 2, .body = in_vain_body, .context = &how, .environment = quick_shm);
        if (how == WAIT_LARGE || how == WAIT_RECV || how == WAIT_TESTS)
            RANKS_RUN(.size = 2, .body = in_vain_body, .context = &how, .environment = quick_hosts,
                      .prepare = two_hosts);
    }
}

/* Moves slowly, but moves: the deadline is for nothing at all happening. */
static void slow_body(struct rank *me)
{
    for (int i = 0; i < 6; i++) {
        if (me->rank == 1)
            ranks_pause_ms(600);
        OK(me, polypath_all_reduce(a, b, i % 2 ? 10 : LARGE, F32, POLYPATH_SUM, me->comm));
    }
}

static void test_a_slow_rank_is_waited_for(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = slow_body, .environment = quick_all);
}

/* -------------------------------------------------------------------- abort */

static void *abort_soon(void *context)
{
    struct rank *me = context;
    ranks_await(me, 0, 1);
    ranks_pause_ms(30);
    polypath_comm_abort(me->comm);
    return NULL;
}

/* From another thread while this one is inside; small calls and large ones, none of which can end. */
static void abort_inside_body(struct rank *me)
{
    const size_t count = *(const size_t *)me->context;
    pthread_t thread;
    if (me->rank == 0)
        CHECK(me, !pthread_create(&thread, NULL, abort_soon, me), "no thread");
    if (me->rank == 2)
        ranks_await(me, 1, 2); /* does not call until the others have failed */
    else
        ranks_raise(me, 0);
    polypath_result_t result = polypath_all_reduce(a, b, count, F32, POLYPATH_SUM, me->comm);
    if (me->rank == 2 && !result) /* everything that it needed was there: that is a success, but the last */
        result = polypath_barrier(me->comm);
    CHECK(me, result == POLYPATH_ERROR_ABORTED, "%s: %s", polypath_result_name(result), polypath_last_error());
    CHECK(me, strstr(polypath_last_error(), "rank 0"), "%s", polypath_last_error());
    refuses_everything(me, result);
    ranks_raise(me, 1);
    if (me->rank == 0)
        pthread_join(thread, NULL);
}

static void test_abort_from_another_thread(void **state)
{
    (void)state;
    static const size_t counts[] = {10, LARGE};
    for (int i = 0; i < 2; i++) {
        RANKS_RUN(.size = 3, .body = abort_inside_body, .context = &counts[i], .environment = patient_shm);
        RANKS_RUN(.size = 3, .body = abort_inside_body, .context = &counts[i], .environment = patient_lo);
        RANKS_RUN(.size = 3, .body = abort_inside_body, .context = &counts[i], .environment = patient_hosts,
                  .prepare = two_hosts);
    }
}

/* While nobody is inside here; others are in calls that go on and on. */
static void abort_outside_body(struct rank *me)
{
    if (me->rank == 0) {
        ranks_await(me, 0, 2);
        OK(me, polypath_comm_abort(me->comm));
        OK(me, polypath_comm_abort(me->comm));
        CHECK(me, polypath_comm_status(me->comm) == POLYPATH_ERROR_ABORTED, "%s", polypath_last_error());
        refuses_everything(me, POLYPATH_ERROR_ABORTED);
        return;
    }
    ranks_raise(me, 0);
    const polypath_result_t result = call_on_and_on(me, LARGE);
    CHECK(me, result == POLYPATH_ERROR_ABORTED, "%s: %s", polypath_result_name(result), polypath_last_error());
    refuses_everything(me, result);
}

static void test_abort_between_calls(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = abort_outside_body, .environment = patient_shm);
    RANKS_RUN(.size = 3, .body = abort_outside_body, .environment = patient_hosts, .prepare = two_hosts);
}

/* With requests in flight, of which every one ends. */
static void abort_requests_body(struct rank *me)
{
    polypath_request_t requests[10];
    for (int i = 0; i < 10; i++)
        OK(me, polypath_all_reduce_start(a, b, i % 2 ? 10 : LARGE, F32, POLYPATH_SUM, me->comm, &requests[i]));
    if (me->rank == 0)
        OK(me, polypath_comm_abort(me->comm));
    polypath_result_t last = POLYPATH_SUCCESS;
    for (int i = 0; i < 10; i++) {
        last = polypath_wait(&requests[i]);
        CHECK(me, !last || from_others(last), "%s", polypath_last_error());
    }
    if (me->rank == 0)
        CHECK(me, last == POLYPATH_ERROR_ABORTED, "%s", polypath_last_error());
}

static void test_abort_with_requests_in_flight(void **state)
{
    (void)state;
    static const char *const always[] = {COMMON, "POLYPATH_PROGRESS_THREAD=always", NULL};
    RANKS_RUN(.size = 2, .body = abort_requests_body, .environment = patient_shm);
    RANKS_RUN(.size = 2, .body = abort_requests_body, .environment = always);
}

/* ------------------------------------------------------------------ remains */

static int entries(const char *folder, const char *word)
{
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        n += strstr(e->d_name, word) != NULL;
    if (d)
        closedir(d);
    return n;
}

/* Sockets of this communicator in the kernel's list: abstract ones, which have no file. */
static int local_sockets(uint64_t comm)
{
    FILE *f = fopen("/proc/net/unix", "re");
    char line[512], name[64];
    int n = 0;
    snprintf(name, sizeof name, "@polypath-%016" PRIx64, comm);
    while (f && fgets(line, sizeof line, f))
        n += strstr(line, name) != NULL;
    if (f)
        fclose(f);
    return n;
}

struct remains {
    uint64_t comm;
    atomic_int listening; /* how often a rank found a socket of the communicator's, to know that the search works */
};

static void remains_body(struct rank *me)
{
    struct remains *remains = *(struct remains *const *)me->context;
    uint8_t secret[HANDSHAKE_SECRET_BYTES];
    uint64_t comm;
    OK(me, bootstrap_parse(&me->shared->ids[0], secret, &comm));
    remains->comm = comm;
    atomic_fetch_add(&remains->listening, local_sockets(comm));
    if (me->rank == 1)
        after_ms(30, kill_self);
    CHECK(me, call_on_and_on(me, LARGE), "no error");
}

static void test_nothing_is_left(void **state)
{
    (void)state;
    struct remains *remains = mmap(NULL, sizeof *remains, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(remains, MAP_FAILED);
    const int fds = entries("/proc/self/fd", ""), shm = entries("/dev/shm", "polypath");
    RANKS_RUN(.size = 3, .body = remains_body, .context = &remains, .environment = patient_all, .killed = 1u << 1);
    assert_true(atomic_load(&remains->listening) > 0); /* the connections carry the listener's name */
    assert_int_equal(local_sockets(remains->comm), 0);
    assert_int_equal(entries("/dev/shm", "polypath"), shm);
    assert_int_equal(entries("/proc/self/fd", ""), fds);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child */
    munmap(remains, sizeof *remains);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unlike_calls_over_shm),         cmocka_unit_test(test_unlike_calls_over_all_paths),
        cmocka_unit_test(test_unlike_calls_over_lo),          cmocka_unit_test(test_unlike_calls_between_hosts),
        cmocka_unit_test(test_a_rank_dies_over_shm),          cmocka_unit_test(test_a_rank_dies_over_cma),
        cmocka_unit_test(test_a_rank_dies_over_lo),           cmocka_unit_test(test_a_rank_dies_between_hosts),
        cmocka_unit_test(test_a_rank_stops_over_shm),         cmocka_unit_test(test_a_rank_stops_over_cma),
        cmocka_unit_test(test_a_rank_stops_over_lo),          cmocka_unit_test(test_a_rank_stops_between_hosts),
        cmocka_unit_test(test_a_rank_that_never_calls),       cmocka_unit_test(test_a_slow_rank_is_waited_for),
        cmocka_unit_test(test_abort_from_another_thread),     cmocka_unit_test(test_abort_between_calls),
        cmocka_unit_test(test_abort_with_requests_in_flight), cmocka_unit_test(test_nothing_is_left),
    };
    if (argc > 1) /* the names of the tests to run, with * and ? */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
