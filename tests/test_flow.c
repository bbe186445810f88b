/*
 * Several things at once: communicators side by side, in threads and split
 * from each other, groups, requests in flight, long runs of mixed calls, more
 * ranks than cores, and ranks that are late.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/exercise.h"
#include "support/ranks.h"
#include "support/reference.h"

static uint64_t draw(uint64_t *state)
{
    return reference_hash((*state)++, 7, 7) >> 8;
}

/* The next of a long walk of calls, the same on all ranks. */
static struct exercise any_call(uint64_t *state, int size, size_t most)
{
    return (struct exercise){.kind = (enum exercise_kind)(draw(state) % EXERCISE_KINDS),
                             .type = (polypath_type_t)(draw(state) % POLYPATH_TYPE_COUNT),
                             .op = (int)(draw(state) % REFERENCE_OPS),
                             .count = draw(state) % (draw(state) % 16 ? 64 : most),
                             .root = (int)(draw(state) % (uint64_t)size),
                             .in_place = draw(state) & 1,
                             .offset = draw(state) % 4 ? 0 : draw(state) % 8,
                             .seed = draw(state)};
}

/* -------------------------------------------------------- mixed, back to back */

struct walk {
    int calls;
    bool late; /* ranks pause now and then, each at its own times */
};

static void walk_body(struct rank *me)
{
    const struct walk *walk = me->context;
    uint64_t state = 1, own = 1000003u * (uint64_t)(me->rank + 1);
    for (int i = 0; i < walk->calls; i++) {
        struct exercise e = any_call(&state, me->size, 20000);
        ranks_where(me, "call %d: %s", i, exercise_text(&e));
        if (walk->late && draw(&own) % 16 == 0)
            usleep((useconds_t)(draw(&own) % 3000));
        const char *wrong = exercise_run(&e, me->comm);
        CHECK(me, !wrong, "call %d: %s", i, wrong);
    }
}

static void test_10000_mixed_calls(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = walk_body, .context = &(struct walk){10000, false});
}

static void two_hosts(struct rank *me)
{
    ranks_setenv(me->rank % 2 ? "POLYPATH_HOST_ID=b" : "POLYPATH_HOST_ID=a");
}

static void test_mixed_calls_between_hosts(void **state)
{
    (void)state;
    static const char *const environment[] = {"POLYPATH_INTERFACES=lo", "POLYPATH_BALANCE_WINDOW=1", NULL};
    RANKS_RUN(.size = 3, .body = walk_body, .context = &(struct walk){2000, false}, .environment = environment,
              .prepare = two_hosts);
}

static void test_mixed_calls_over_all_local_paths(void **state)
{
    (void)state;
    static const char *const environment[] = {"POLYPATH_PATHS=shm,cma,lo", "POLYPATH_BALANCE_WINDOW=1", NULL};
    RANKS_RUN(.size = 3, .body = walk_body, .context = &(struct walk){2000, false}, .environment = environment);
}

static void test_more_ranks_than_cores(void **state)
{
    (void)state;
    RANKS_RUN(.size = 16, .body = walk_body, .context = &(struct walk){150, false});
}

static void test_late_ranks(void **state)
{
    (void)state;
    static const char *const lo[] = {"POLYPATH_PATHS=lo", NULL};
    RANKS_RUN(.size = 4, .body = walk_body, .context = &(struct walk){400, true});
    RANKS_RUN(.size = 4, .body = walk_body, .context = &(struct walk){200, true}, .environment = lo);
}

/* ------------------------------------------------------------- non-blocking */

#define IN_FLIGHT 24

static void start_many(struct rank *me, struct exercise e[IN_FLIGHT], uint64_t *state)
{
    for (int i = 0; i < IN_FLIGHT; i++) {
        do {
            e[i] = any_call(state, me->size, 30000);
        } while (!exercise_can_start(e[i].kind));
        ranks_where(me, "starting %s", exercise_text(&e[i]));
        const char *wrong = exercise_begin(&e[i], me->comm, true);
        CHECK(me, !wrong, "%s", wrong);
        CHECK(me, e[i].request, "no request");
    }
}

static void end_many(struct rank *me, struct exercise e[IN_FLIGHT])
{
    for (int i = 0; i < IN_FLIGHT; i++) {
        CHECK(me, !e[i].request, "a request is left");
        const char *wrong = exercise_end(&e[i]);
        CHECK(me, !wrong, "%s", wrong);
    }
}

static void in_flight_body(struct rank *me)
{
    struct exercise e[IN_FLIGHT];
    uint64_t state = 1;
    for (int round = 0; round < 30; round++) {
        start_many(me, e, &state);
        if (round % 3 == 0) { /* test until all are done, out of order */
            for (int left = IN_FLIGHT; left;) {
                left = 0;
                for (int i = IN_FLIGHT - 1; i >= 0; i--) {
                    bool done = false;
                    ranks_where(me, "testing %s", exercise_text(&e[i]));
                    OK(me, polypath_test(&e[i].request, &done));
                    CHECK(me, done == !e[i].request, "done and the request disagree");
                    left += !done;
                }
                if (left)
                    sched_yield();
            }
        }
        for (int i = 0; i < IN_FLIGHT; i++) { /* wait in reverse order, or in order; done ones are NULL */
            const int k = round % 3 == 1 ? IN_FLIGHT - 1 - i : i;
            ranks_where(me, "waiting for %s", exercise_text(&e[k]));
            OK(me, polypath_wait(&e[k].request));
        }
        end_many(me, e);
        struct exercise between = any_call(&state, me->size, 1000); /* a blocking one in between */
        const char *wrong = exercise_run(&between, me->comm);
        CHECK(me, !wrong, "%s", wrong);
    }
}

static void test_requests_in_flight(void **state)
{
    (void)state;
    static const char *const never[] = {"POLYPATH_PROGRESS_THREAD=never", NULL};
    RANKS_RUN(.size = 3, .body = in_flight_body, .environment = never);
}

static void test_requests_with_a_helper_thread(void **state)
{
    (void)state;
    static const char *const always[] = {"POLYPATH_PROGRESS_THREAD=always", NULL};
    static const char *const all[] = {"POLYPATH_PROGRESS_THREAD=always", "POLYPATH_PATHS=shm,cma,lo", NULL};
    RANKS_RUN(.size = 3, .body = in_flight_body, .environment = always);
    RANKS_RUN(.size = 2, .body = in_flight_body, .environment = all);
}

/* The helper moves operations while the caller does something else altogether. */
static void overlap_body(struct rank *me)
{
    struct exercise e = {.kind = EXERCISE_ALL_REDUCE, .type = POLYPATH_FLOAT32, .count = 300000, .seed = 5};
    const char *wrong = exercise_begin(&e, me->comm, true);
    CHECK(me, !wrong, "%s", wrong);
    ranks_where(me, "waiting without a call for the helper thread to finish");
    for (polypath_statistics_t s = {0}; !s.calls;) {
        ranks_pause_ms(5);
        OK(me, polypath_comm_statistics(me->comm, &s));
    }
    bool done = false;
    while (!done)
        OK(me, polypath_test(&e.request, &done));
    wrong = exercise_end(&e);
    CHECK(me, !wrong, "%s", wrong);
}

static void test_a_helper_thread_moves_alone(void **state)
{
    (void)state;
    static const char *const always[] = {"POLYPATH_PROGRESS_THREAD=always", NULL};
    RANKS_RUN(.size = 2, .body = overlap_body, .environment = always);
}

static void unfinished_body(struct rank *me)
{
    float data[1000] = {0};
    polypath_request_t request;
    OK(me, polypath_all_reduce_start(data, data, 1000, POLYPATH_FLOAT32, POLYPATH_SUM, me->comm, &request));
    OK(me, polypath_comm_destroy(me->comm)); /* waits for it, and frees the request */
    me->comm = NULL;
}

static void test_destroy_waits_for_requests(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = unfinished_body);
}

/* ------------------------------------------------------- several communicators */

static void several_body(struct rank *me)
{
    polypath_comm_t comms[3] = {me->comm};
    uint64_t state = 1;
    for (int c = 1; c < 3; c++) /* the same ranks in another order */
        OK(me, polypath_comm_create(&comms[c], me->size, me->shared->ids[c], (me->rank + c) % me->size));
    for (int i = 0; i < 300; i++) {
        struct exercise e = any_call(&state, me->size, 5000);
        const char *wrong = exercise_run(&e, comms[draw(&state) % 3]);
        CHECK(me, !wrong, "call %d: %s", i, wrong);
    }
    struct exercise e[3];
    for (int round = 0; round < 20; round++) {
        for (int c = 0; c < 3; c++) {
            e[c] = (struct exercise){
                .kind = EXERCISE_ALL_REDUCE, .type = POLYPATH_INT32, .count = 20000, .seed = (uint64_t)(round * 3 + c)};
            const char *wrong = exercise_begin(&e[c], comms[c], true);
            CHECK(me, !wrong, "%s", wrong);
        }
        /* every rank waits in an order of its own, testing the others meanwhile, as no rank may need the others' order
         */
        for (int left = 3; left;) {
            left = 0;
            for (int k = 0; k < 3; k++) {
                bool done;
                OK(me, polypath_test(&e[(k + me->rank) % 3].request, &done));
                left += !done;
            }
        }
        for (int c = 0; c < 3; c++) {
            const char *wrong = exercise_end(&e[c]);
            CHECK(me, !wrong, "%s", wrong);
        }
    }
    for (int c = 1; c < 3; c++)
        OK(me, polypath_comm_destroy(comms[c]));
}

static void test_several_communicators(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = several_body);
}

struct worker {
    struct rank *me;
    polypath_comm_t comm;
    char text[1600];
};

/* exercise.c keeps its texts in static memory, so threads make their calls by hand. */
static void *work(void *context)
{
    struct worker *w = context;
    enum { MOST = 5000 };
    int *in = malloc(MOST * sizeof *in), *out = malloc(MOST * sizeof *out);
    for (int i = 0; i < 300 && !*w->text; i++) {
        const size_t count = (size_t)(i * 37) % MOST + 1;
        for (size_t k = 0; k < count; k++)
            in[k] = (int)k + i + w->me->rank;
        polypath_result_t result = polypath_all_reduce(in, out, count, POLYPATH_INT32, POLYPATH_SUM, w->comm);
        const int n = w->me->size, ranks = n * (n - 1) / 2;
        if (result)
            snprintf(w->text, sizeof w->text, "%s", polypath_last_error());
        for (size_t k = 0; k < count && !*w->text; k++)
            if (out[k] != n * ((int)k + i) + ranks)
                snprintf(w->text, sizeof w->text, "call %d: element %zu is %d", i, k, out[k]);
    }
    free(in);
    free(out);
    return NULL;
}

static void threads_body(struct rank *me)
{
    struct worker workers[2] = {{.me = me, .comm = me->comm}, {.me = me}};
    pthread_t thread;
    OK(me, polypath_comm_create(&workers[1].comm, me->size, me->shared->ids[1], me->rank));
    CHECK(me, !pthread_create(&thread, NULL, work, &workers[1]), "no thread");
    work(&workers[0]);
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++)
        CHECK(me, !*workers[i].text, "%s", workers[i].text);
    OK(me, polypath_comm_destroy(workers[1].comm));
}

static void test_two_threads_with_a_communicator_each(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = threads_body);
}

/* ------------------------------------------------------------------- split */

static void expect_comm(struct rank *me, polypath_comm_t comm, int size, int rank)
{
    int s = -1, r = -1;
    CHECK(me, comm, "no communicator");
    OK(me, polypath_comm_size(comm, &s));
    OK(me, polypath_comm_rank(comm, &r));
    CHECK(me, s == size && r == rank, "rank %d of %d, expected %d of %d", r, s, rank, size);
}

static void use(struct rank *me, polypath_comm_t comm, uint64_t seed, int calls)
{
    int size;
    OK(me, polypath_comm_size(comm, &size));
    for (int i = 0; i < calls; i++) {
        struct exercise e = any_call(&seed, size, 3000);
        ranks_where(me, "in a part of %d: %s", size, exercise_text(&e));
        const char *wrong = exercise_run(&e, comm);
        CHECK(me, !wrong, "%s", wrong);
    }
}

static void split_body(struct rank *me)
{
    polypath_comm_t half, reversed, none, quarter, single;
    const int n = me->size, color = me->rank % 2;
    OK(me, polypath_comm_split(me->comm, color, me->rank, &half));
    expect_comm(me, half, (n + 1 - color) / 2, me->rank / 2);
    OK(me, polypath_comm_split(me->comm, 7, -me->rank, &reversed));
    expect_comm(me, reversed, n, n - 1 - me->rank);
    OK(me, polypath_comm_split(me->comm, me->rank == 1 ? POLYPATH_NO_COLOR : 0, 0, &none));
    if (me->rank == 1)
        CHECK(me, !none, "a communicator without a color");
    else
        expect_comm(me, none, n - 1, me->rank ? me->rank - 1 : 0);
    OK(me, polypath_comm_split(half, me->rank / 2 % 2, 0, &quarter)); /* of a split */
    OK(me, polypath_comm_split(me->comm, me->rank, 0, &single));
    expect_comm(me, single, 1, 0);
    for (uint64_t i = 0; i < 15; i++) { /* parent and children by turns */
        use(me, me->comm, i, 2);
        use(me, half, 100 * i, 3);
        use(me, reversed, 7 * i, 1);
        if (none)
            use(me, none, 13 * i, 2);
        use(me, quarter, 17 * i, 2);
        use(me, single, 19 * i, 1);
    }
    /* children outlive their parent */
    OK(me, polypath_comm_destroy(half));
    use(me, quarter, 5, 10);
    OK(me, polypath_comm_destroy(me->comm));
    me->comm = NULL;
    use(me, reversed, 5, 10);
    OK(me, polypath_comm_destroy(none));
    OK(me, polypath_comm_destroy(single));
    OK(me, polypath_comm_destroy(quarter));
    OK(me, polypath_comm_destroy(reversed));
}

static void test_split(void **state)
{
    (void)state;
    RANKS_RUN(.size = 5, .body = split_body);
}

static void test_split_between_hosts(void **state)
{
    (void)state;
    static const char *const environment[] = {"POLYPATH_INTERFACES=lo", NULL};
    RANKS_RUN(.size = 5, .body = split_body, .environment = environment, .prepare = two_hosts);
}

static void many_splits_body(struct rank *me)
{
    for (int i = 0; i < 12; i++) {
        polypath_comm_t part;
        OK(me, polypath_comm_split(me->comm, me->rank & (1 << i % 2) ? 1 : 0, 0, &part));
        use(me, part, (uint64_t)i, 3);
        OK(me, polypath_comm_destroy(part));
        use(me, me->comm, (uint64_t)i, 2);
    }
}

static void test_split_and_destroy_again_and_again(void **state)
{
    (void)state;
    RANKS_RUN(.size = 4, .body = many_splits_body);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_10000_mixed_calls),
        cmocka_unit_test(test_mixed_calls_between_hosts),
        cmocka_unit_test(test_mixed_calls_over_all_local_paths),
        cmocka_unit_test(test_more_ranks_than_cores),
        cmocka_unit_test(test_late_ranks),
        cmocka_unit_test(test_requests_in_flight),
        cmocka_unit_test(test_requests_with_a_helper_thread),
        cmocka_unit_test(test_a_helper_thread_moves_alone),
        cmocka_unit_test(test_destroy_waits_for_requests),
        cmocka_unit_test(test_several_communicators),
        cmocka_unit_test(test_two_threads_with_a_communicator_each),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_between_hosts),
        cmocka_unit_test(test_split_and_destroy_again_and_again),
    };
    if (argc > 1) /* the names of the tests to run, with * and ? */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
