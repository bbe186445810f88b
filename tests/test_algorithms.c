/*
 * Every algorithm, chosen by the setting, on 2 to 9 ranks of one host and on
 * several shapes of hosts; and calls cut so finely that many rows, windows and
 * little scratch memory are in play. Hosts are ranks with different host ids
 * on this machine, so that they talk TCP over loopback.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "schedule/schedule.h"
#include "support/exercise.h"
#include "support/quick.h"
#include "support/ranks.h"
#include "support/reference.h"

/* What a run is: the hosts of the ranks as letters, and how deep to look. */
struct plan {
    const char *hosts;     /* one letter a rank; all equal: one host */
    const char *algorithm; /* must be the one used for AllReduce, where it exists */
    bool brief;
};

static void set_host(struct rank *me)
{
    const struct plan *plan = me->context;
    char text[] = "POLYPATH_HOST_ID=test-x";
    text[sizeof text - 2] = plan->hosts[me->rank];
    ranks_setenv(text);
}

static bool several_hosts(const struct plan *plan)
{
    return strspn(plan->hosts, "a") < strlen(plan->hosts);
}

static bool exists(const struct plan *plan, polypath_collective_t collective)
{
    int host[RANKS_MAX], nhosts = 0;
    const int size = (int)strlen(plan->hosts);
    for (int r = 0; r < size; r++) {
        host[r] = plan->hosts[r] - 'a';
        nhosts = host[r] >= nhosts ? host[r] + 1 : nhosts;
    }
    const struct schedule_shape shape = {size, nhosts, host};
    return schedule_supported(collective, schedule_algorithm_by_name(plan->algorithm), &shape);
}

static void check_algorithm(struct rank *me, polypath_collective_t collective)
{
    const struct plan *plan = me->context;
    const char *used = polypath_comm_algorithm(me->comm, collective);
    if (exists(plan, collective))
        CHECK(me, !strcmp(used, plan->algorithm), "%s used %s", polypath_collective_name(collective), used);
}

static void all_kinds(struct rank *me)
{
    static const size_t counts[] = {1, 1009, 20011};
    static const polypath_type_t types[] = {POLYPATH_FLOAT32, POLYPATH_INT8, POLYPATH_FLOAT64, POLYPATH_FLOAT8_E5M2};
    const struct plan *plan = me->context;
    uint64_t seed = 1;
    for (int kind = 0; kind < EXERCISE_KINDS; kind++)
        for (int c = plan->brief; c < 3; c++)
            for (int i = 0; i < (plan->brief ? 1 : 3); i++, seed++)
                EXERCISE(me, me->comm, .kind = (enum exercise_kind)kind, .type = types[seed % 4],
                         .op = (int)(seed % REFERENCE_OPS), .count = counts[c], .root = (int)seed % me->size,
                         .in_place = seed % 2, .offset = seed % 3 ? 0 : 5, .seed = seed);
    check_algorithm(me, POLYPATH_COLLECTIVE_ALL_REDUCE);
    check_algorithm(me, POLYPATH_COLLECTIVE_ALL_GATHER);
    check_algorithm(me, POLYPATH_COLLECTIVE_REDUCE_SCATTER);
    check_algorithm(me, POLYPATH_COLLECTIVE_BROADCAST);
    check_algorithm(me, POLYPATH_COLLECTIVE_BARRIER);
}

static void run_plan(struct plan plan, ranks_body *body, const char *more, const char *still_more)
{
    char algorithm[64];
    snprintf(algorithm, sizeof algorithm, "POLYPATH_ALGORITHM=%s", plan.algorithm);
    const char *environment[6] = {algorithm, "POLYPATH_TUNE=0"};
    int n = 2;
    if (several_hosts(&plan))
        environment[n++] = "POLYPATH_INTERFACES=lo";
    if (more)
        environment[n++] = more;
    if (still_more)
        environment[n++] = still_more;
    RANKS_RUN(.size = (int)strlen(plan.hosts), .body = body, .context = &plan, .environment = environment,
              .prepare = set_host);
}

static void test_one_host(void **state)
{
    for (int n = 2; n <= 9; n += test_quick() ? 3 : 1)
        run_plan((struct plan){.hosts = &"aaaaaaaaa"[9 - n], .algorithm = *state, .brief = n > 5}, all_kinds, NULL,
                 NULL);
}

static void test_several_hosts(void **state)
{
    static const char *const shapes[] = {"ab",    "aab",   "aba",    "abc",     "aabb",    "abab",     "aaabb",
                                         "abbbb", "abcab", "aabbcc", "aabbbbc", "abcdefg", "aaaabbbb", "abcabcabc"};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i += test_quick() ? 4 : 1)
        run_plan((struct plan){.hosts = shapes[i], .algorithm = *state, .brief = true}, all_kinds, NULL, NULL);
}

/* -------------------------------------------------------------- fine cuts */

/* Rows of 64 bytes: just below and just above the number of rows at which they are made longer. */
static void many_rows(struct rank *me)
{
    const size_t n = (size_t)me->size;
    for (int i = 0; i < (test_quick() ? 1 : 2); i++) {
        const size_t count = (i ? 9000 : 8100) * 16; /* elements of a block: rows * 64 bytes */
        for (int kind = 0; kind < EXERCISE_KINDS; kind++) {
            const bool blocks = kind == EXERCISE_ALL_REDUCE || kind == EXERCISE_REDUCE || kind == EXERCISE_BROADCAST;
            EXERCISE(me, me->comm, .kind = (enum exercise_kind)kind, .type = POLYPATH_FLOAT32, .op = POLYPATH_SUM,
                     .count = blocks ? count * n - 5 : count - 1, .root = 1, .in_place = i, .seed = (uint64_t)kind);
        }
    }
    EXERCISE(me, me->comm, .kind = EXERCISE_ALL_REDUCE, .type = POLYPATH_BFLOAT16, .op = REFERENCE_SCALED,
             .count = 123457, .seed = 99);
    check_algorithm(me, POLYPATH_COLLECTIVE_ALL_REDUCE);
}

static void test_many_rows(void **state)
{
    run_plan((struct plan){.hosts = "aaa", .algorithm = *state}, many_rows, "POLYPATH_CHUNK_BYTES=64", NULL);
}

static void test_many_rows_in_little_scratch(void **state)
{
    run_plan((struct plan){.hosts = "aaaa", .algorithm = *state}, many_rows, "POLYPATH_CHUNK_BYTES=64",
             "POLYPATH_SCRATCH_BYTES=64K");
    run_plan((struct plan){.hosts = "abab", .algorithm = *state}, many_rows, "POLYPATH_CHUNK_BYTES=100",
             "POLYPATH_SCRATCH_BYTES=64K");
}

/* Long rows and the smallest windows: every row waits for another one. */
static void few_rows(struct rank *me)
{
    for (int kind = 0; kind < EXERCISE_KINDS; kind++)
        EXERCISE(me, me->comm, .kind = (enum exercise_kind)kind, .type = POLYPATH_FLOAT32, .op = kind % REFERENCE_OPS,
                 .count = 300007, .root = me->size - 1, .in_place = kind % 2, .offset = 3, .seed = (uint64_t)kind);
}

static void test_small_windows(void **state)
{
    run_plan((struct plan){.hosts = "aaaaa", .algorithm = *state}, few_rows, "POLYPATH_CHUNK_BYTES=4K",
             "POLYPATH_SCRATCH_BYTES=64K");
    run_plan((struct plan){.hosts = "aabb", .algorithm = *state}, few_rows, "POLYPATH_CHUNK_BYTES=1M",
             "POLYPATH_SCRATCH_BYTES=64K");
}

/* ---------------------------------------------------------------- settings */

static void rank_order(struct rank *me)
{
    EXERCISE(me, me->comm, .kind = EXERCISE_ALL_REDUCE, .type = POLYPATH_FLOAT32, .count = 5000, .seed = 1);
    const char *used = polypath_comm_algorithm(me->comm, POLYPATH_COLLECTIVE_ALL_REDUCE);
    CHECK(me, schedule_rank_order(POLYPATH_COLLECTIVE_ALL_REDUCE, schedule_algorithm_by_name(used)),
          "%s is not in rank order", used);
}

static void test_reproducible_overrules_the_algorithm(void **state)
{
    (void)state;
    run_plan((struct plan){.hosts = "aaa", .algorithm = "ring"}, rank_order, "POLYPATH_REPRODUCIBLE=1", NULL);
}

static void unlike_settings(struct rank *me)
{
    static const char *const wishes[] = {"POLYPATH_ALGORITHM=ring", "POLYPATH_ALGORITHM=tree",
                                         "POLYPATH_CHUNK_BYTES=4K"};
    ranks_setenv("POLYPATH_LOG=none");
    ranks_setenv(wishes[me->rank % 3]);
}

static void as_rank_0(struct rank *me)
{
    for (int kind = 0; kind < EXERCISE_KINDS; kind++)
        EXERCISE(me, me->comm, .kind = (enum exercise_kind)kind, .type = POLYPATH_FLOAT32, .count = 50000, .seed = 1);
    const char *used = polypath_comm_algorithm(me->comm, POLYPATH_COLLECTIVE_ALL_REDUCE);
    CHECK(me, !strcmp(used, "ring"), "all_reduce used %s", used);
}

static void test_ranks_with_unlike_settings_use_those_of_rank_0(void **state)
{
    (void)state;
    RANKS_RUN(.size = 4, .body = as_rank_0, .prepare = unlike_settings);
}

static void by_model(struct rank *me)
{
    const struct plan *plan = me->context;
    for (size_t count = 1; count < 3000000; count *= 13)
        for (int kind = 0; kind < EXERCISE_KINDS; kind++)
            if (count * (size_t)strlen(plan->hosts) < 4000000)
                EXERCISE(me, me->comm, .kind = (enum exercise_kind)kind, .type = POLYPATH_FLOAT32, .count = count,
                         .in_place = count & 2, .seed = count);
}

static void test_the_model_chooses(void **state)
{
    (void)state;
    run_plan((struct plan){.hosts = "aaaa", .algorithm = ""}, by_model, NULL, NULL);
    run_plan((struct plan){.hosts = "aabbc", .algorithm = ""}, by_model, NULL, NULL);
}

#define ALL_OF(test)                                                                                                   \
    {#test " direct", test, NULL, NULL, "direct"}, {#test " ring", test, NULL, NULL, "ring"},                          \
        {#test " halving_doubling", test, NULL, NULL, "halving_doubling"}, {#test " tree", test, NULL, NULL, "tree"},  \
    {                                                                                                                  \
#test " hierarchical", test, NULL, NULL, "hierarchical"                                                        \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ALL_OF(test_one_host),
        ALL_OF(test_several_hosts),
        ALL_OF(test_many_rows),
        ALL_OF(test_many_rows_in_little_scratch),
        ALL_OF(test_small_windows),
        cmocka_unit_test(test_reproducible_overrules_the_algorithm),
        cmocka_unit_test(test_ranks_with_unlike_settings_use_those_of_rank_0),
        cmocka_unit_test(test_the_model_chooses),
    };
    if (argc > 1) /* the names of the tests to run, with * and ? */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
