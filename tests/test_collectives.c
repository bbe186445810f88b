/*
 * Every collective, type and op, on 1 to 9 ranks of this machine: awkward
 * counts, every root, in place and not, off alignment, every byte looked at.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/exercise.h"
#include "support/quick.h"
#include "support/ranks.h"
#include "support/reference.h"

/* A small pseudo-random walk through what is not swept: the same on all ranks. */
static uint64_t draw(uint64_t *state)
{
    return reference_hash((*state)++, 7, 7) >> 8;
}

/* Counts: nothing, one, two, primes, one that no number of ranks divides, several rows. */
static const size_t counts[] = {0, 1, 2, 7, 1009, 8191};
#define COUNTS (sizeof counts / sizeof counts[0])

static void every_reduction(struct rank *me)
{
    uint64_t state = 1;
    for (int kind = 0; kind <= EXERCISE_REDUCE_SCATTER_V; kind++)
        for (int type = 0; type < POLYPATH_TYPE_COUNT; type++)
            for (int op = 0; op < REFERENCE_OPS; op++)
                for (int twice = 0; twice < 2; twice++)
                    EXERCISE(me, me->comm, .kind = (enum exercise_kind)kind, .type = (polypath_type_t)type, .op = op,
                             .count = counts[draw(&state) % COUNTS], .root = (int)(draw(&state) % (uint64_t)me->size),
                             .in_place = twice, .offset = draw(&state) % 3 ? 0 : draw(&state) % 8, .seed = state);
}

static void every_movement(struct rank *me)
{
    uint64_t state = 1000;
    for (int kind = EXERCISE_BROADCAST; kind < EXERCISE_KINDS; kind++)
        for (int type = 0; type < POLYPATH_TYPE_COUNT; type++)
            for (int twice = 0; twice < 2; twice++)
                EXERCISE(me, me->comm, .kind = (enum exercise_kind)kind, .type = (polypath_type_t)type,
                         .count = counts[draw(&state) % COUNTS], .root = (int)(draw(&state) % (uint64_t)me->size),
                         .in_place = twice, .offset = draw(&state) % 3 ? 0 : draw(&state) % 8, .seed = state);
}

static void every_root_and_count(struct rank *me)
{
    uint64_t state = 2000;
    for (int kind = 0; kind < EXERCISE_KINDS; kind++)
        for (size_t c = 0; c < COUNTS; c++)
            for (int root = 0; root < (exercise_rooted((enum exercise_kind)kind) ? me->size : 1); root++)
                EXERCISE(me, me->comm, .kind = (enum exercise_kind)kind,
                         .type = c % 2 ? POLYPATH_FLOAT32 : POLYPATH_INT8,
                         .count = counts[c] + (size_t)root * (counts[c] > 7), .root = root,
                         .in_place = draw(&state) & 1, .offset = draw(&state) % 5, .seed = state);
}

static void sweep(struct rank *me)
{
    every_root_and_count(me);
    if (test_quick() && me->size > 4)
        return;
    every_reduction(me);
    every_movement(me);
}

static void test_all_on(void **state)
{
    RANKS_RUN(.size = *(const int *)*state, .body = sweep);
}

/* ------------------------------------------------------------------- large */

#define MIB ((size_t)1 << 20)

static void large_body(struct rank *me)
{
    const size_t n = (size_t)me->size, mib = test_quick() ? MIB / 4 : MIB;
    EXERCISE(me, me->comm, .kind = EXERCISE_ALL_REDUCE, .type = POLYPATH_FLOAT32, .count = 16 * mib, .seed = 1);
    EXERCISE(me, me->comm, .kind = EXERCISE_ALL_GATHER, .type = POLYPATH_INT64, .count = 8 * mib / n + 1,
             .in_place = true, .offset = 3, .seed = 2);
    EXERCISE(me, me->comm, .kind = EXERCISE_REDUCE_SCATTER, .type = POLYPATH_BFLOAT16, .count = 8 * mib / n - 1,
             .seed = 3);
    EXERCISE(me, me->comm, .kind = EXERCISE_ALL_TO_ALL, .type = POLYPATH_INT64, .count = mib / n, .seed = 4);
    EXERCISE(me, me->comm, .kind = EXERCISE_ALL_TO_ALL_V, .type = POLYPATH_INT64, .count = mib, .seed = 5);
    EXERCISE(me, me->comm, .kind = EXERCISE_BROADCAST, .type = POLYPATH_INT64, .count = 4 * mib + 1, .root = 1,
             .seed = 6);
    EXERCISE(me, me->comm, .kind = EXERCISE_SEND_RECV, .type = POLYPATH_INT64, .count = 4 * mib, .seed = 7);
}

static void test_64_mib(void **state)
{
    RANKS_RUN(.size = *(const int *)*state, .body = large_body);
}

/* ---------------------------------------------------------- small matters */

static void alone_body(struct rank *me)
{
    polypath_comm_t comm;
    int rank = -1, size = -1, paths = -1;
    OK(me, polypath_comm_create_from_env(&comm));
    OK(me, polypath_comm_rank(comm, &rank));
    OK(me, polypath_comm_size(comm, &size));
    OK(me, polypath_comm_path_count(comm, &paths));
    CHECK(me, rank == 0 && size == 1 && paths == 0, "rank %d, size %d, %d paths", rank, size, paths);
    float in[3] = {1, 2, 3}, out[3] = {0};
    OK(me, polypath_all_reduce(in, out, 3, POLYPATH_FLOAT32, POLYPATH_AVG, comm));
    CHECK(me, !memcmp(in, out, sizeof in), "an average over one rank is not what it was");
    OK(me, polypath_comm_destroy(comm));
}

static void test_a_process_without_launcher_is_alone(void **state)
{
    (void)state;
    RANKS_RUN(.size = 1, .body = alone_body, .no_comm = true);
}

static void statistics_body(struct rank *me)
{
    polypath_statistics_t before, after;
    OK(me, polypath_comm_statistics(me->comm, &before));
    for (int i = 0; i < 5; i++)
        OK(me, polypath_barrier(me->comm));
    OK(me, polypath_comm_statistics(me->comm, &after));
    CHECK(me, after.calls == before.calls + 5, "%llu calls", (unsigned long long)(after.calls - before.calls));
    CHECK(me, after.memory_bytes > 0, "no memory");
    CHECK(me, *polypath_comm_algorithm(me->comm, POLYPATH_COLLECTIVE_BARRIER), "no algorithm");
    CHECK(me, !*polypath_comm_algorithm(me->comm, POLYPATH_COLLECTIVE_SCATTER), "an algorithm of what was not called");
    double shares[16], sum = 0;
    EXERCISE(me, me->comm, .kind = EXERCISE_ALL_REDUCE, .type = POLYPATH_FLOAT32, .count = 100000, .seed = 1);
    OK(me, polypath_comm_shares(me->comm, POLYPATH_COLLECTIVE_ALL_REDUCE, shares, 16));
    for (int i = 0; i < 16; i++)
        sum += shares[i];
    CHECK(me, sum > 0.999 && sum < 1.001, "shares sum to %g", sum);
}

static void test_what_a_communicator_tells_of_itself(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = statistics_body);
}

int main(int argc, char **argv)
{
    static int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const struct CMUnitTest tests[] = {
        {"every collective, type and op on 1 rank", test_all_on, NULL, NULL, &sizes[0]},
        {"every collective, type and op on 2 ranks", test_all_on, NULL, NULL, &sizes[1]},
        {"every collective, type and op on 3 ranks", test_all_on, NULL, NULL, &sizes[2]},
        {"every collective, type and op on 4 ranks", test_all_on, NULL, NULL, &sizes[3]},
        {"every collective, type and op on 5 ranks", test_all_on, NULL, NULL, &sizes[4]},
        {"every collective, type and op on 6 ranks", test_all_on, NULL, NULL, &sizes[5]},
        {"every collective, type and op on 7 ranks", test_all_on, NULL, NULL, &sizes[6]},
        {"every collective, type and op on 8 ranks", test_all_on, NULL, NULL, &sizes[7]},
        {"every collective, type and op on 9 ranks", test_all_on, NULL, NULL, &sizes[8]},
        {"64 MiB on 2 ranks", test_64_mib, NULL, NULL, &sizes[1]},
        {"64 MiB on 3 ranks", test_64_mib, NULL, NULL, &sizes[2]},
        cmocka_unit_test(test_a_process_without_launcher_is_alone),
        cmocka_unit_test(test_what_a_communicator_tells_of_itself),
    };
    if (argc > 1) /* the names of the tests to run, with * and ? */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
