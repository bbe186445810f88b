/*
 * The same calls over each path alone and over all of them in every mixture:
 * with the direct algorithms a float32 sum of random values is the fold in
 * rank order to the bit, whatever the shares, the cuts and the links; with any
 * other algorithm all ranks have the same bits. Also which paths there are and
 * how they are chosen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/exercise.h"
#include "support/ranks.h"
#include "support/reference.h"
#include "topology/interfaces.h"

/* ------------------------------------------------------- bits of float32 sums */

/* Anything between 2^-20 and 2^20, so that every order of adding rounds differently. */
static float random_float(uint64_t seed, int rank, size_t index)
{
    const uint64_t h = reference_hash(seed, (uint64_t)rank, index);
    const float scale[] = {1e-6f, 1e-3f, 1.0f, 1e3f, 1e6f};
    return ((float)(h >> 40) / (float)(1 << 23) - 1.0f) * scale[h % 5];
}

static void sum_in_rank_order(struct rank *me, size_t count, uint64_t seed)
{
    float *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *out), *want = malloc(count * sizeof *want);
    CHECK(me, in && out && want, "no memory");
    for (size_t i = 0; i < count; i++) {
        in[i] = random_float(seed, me->rank, i);
        want[i] = random_float(seed, 0, i);
        for (int r = 1; r < me->size; r++)
            want[i] += random_float(seed, r, i);
    }
    ranks_where(me, "all_reduce of %zu floats", count);
    OK(me, polypath_all_reduce(in, out, count, POLYPATH_FLOAT32, POLYPATH_SUM, me->comm));
    for (size_t i = 0; i < count; i++)
        CHECK(me, !memcmp(&out[i], &want[i], sizeof *out), "all_reduce: element %zu of %zu is %a, not %a", i, count,
              (double)out[i], (double)want[i]);
    const size_t each = count / (size_t)me->size, at = each * (size_t)me->rank;
    ranks_where(me, "reduce_scatter of %zu floats each", each);
    OK(me, polypath_reduce_scatter(in, out, each, POLYPATH_FLOAT32, POLYPATH_SUM, me->comm));
    for (size_t i = 0; i < each; i++)
        CHECK(me, !memcmp(&out[i], &want[at + i], sizeof *out), "reduce_scatter: element %zu of %zu is %a, not %a", i,
              each, (double)out[i], (double)want[at + i]);
    ranks_where(me, "reduce of %zu floats", count);
    OK(me, polypath_reduce(in, out, count, POLYPATH_FLOAT32, POLYPATH_SUM, 1, me->comm));
    for (size_t i = 0; i < count && me->rank == 1; i++)
        CHECK(me, !memcmp(&out[i], &want[i], sizeof *out), "reduce: element %zu of %zu is %a, not %a", i, count,
              (double)out[i], (double)want[i]);
    free(in);
    free(out);
    free(want);
}

static void rank_order_body(struct rank *me)
{
    static const size_t counts[] = {3, 1009, 30011, 250007};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        sum_in_rank_order(me, counts[i], i);
    for (int kind = 0; kind < EXERCISE_KINDS; kind++)
        EXERCISE(me, me->comm, .kind = (enum exercise_kind)kind, .type = POLYPATH_BFLOAT16, .count = 70001,
                 .op = kind % REFERENCE_OPS, .offset = 1, .seed = (uint64_t)kind + 1);
}

static void run_direct(int size, ranks_body *prepare, ranks_body *body, ...)
{
    const char *environment[12] = {"POLYPATH_ALGORITHM=direct", "POLYPATH_TUNE=0"};
    int n = 2;
    va_list more;
    va_start(more, body);
    while (n < 11 && (environment[n] = va_arg(more, const char *)))
        n++;
    va_end(more);
    RANKS_RUN(.size = size, .body = body, .environment = environment, .prepare = prepare);
}

#define SHM "POLYPATH_PATHS=shm"
#define CMA "POLYPATH_PATHS=cma"
#define LO "POLYPATH_PATHS=lo"
#define ALL "POLYPATH_PATHS=shm,cma,lo"

static void test_shm_alone(void **state)
{
    (void)state;
    run_direct(3, NULL, rank_order_body, SHM, NULL);
    run_direct(3, NULL, rank_order_body, "POLYPATH_CMA=0", "POLYPATH_SHM_BYTES=256K", NULL);
}

static void test_cma_alone(void **state)
{
    (void)state;
    run_direct(3, NULL, rank_order_body, CMA, NULL);
    run_direct(3, NULL, rank_order_body, "POLYPATH_SHM=0", NULL);
}

static void test_lo_alone(void **state)
{
    (void)state;
    run_direct(3, NULL, rank_order_body, LO, NULL);
    run_direct(3, NULL, rank_order_body, "POLYPATH_SHM=0", "POLYPATH_CMA=0", NULL);
}

static void test_shares_do_not_change_a_bit(void **state)
{
    (void)state;
    static const char *const shares[] = {"1,0,0",          "0,1,0",          "0,0,1",
                                         "1,1,1",          "0.5,0.5,0",      "0.7,0,0.3",
                                         "0.01,0.01,0.98", "0.98,0.01,0.01", "0.333,0.334,0.333"};
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "POLYPATH_SHARES=%s", shares[i]);
        run_direct(3, NULL, rank_order_body, ALL, text, i % 2 ? "POLYPATH_HAND_OVER=0" : "POLYPATH_HAND_OVER=1", NULL);
    }
}

static void test_balanced_shares_do_not_change_a_bit(void **state)
{
    (void)state;
    run_direct(3, NULL, rank_order_body, ALL, "POLYPATH_TUNE=1", "POLYPATH_BALANCE_WINDOW=1", NULL);
    run_direct(2, NULL, rank_order_body, ALL, "POLYPATH_CHUNK_BYTES=4096", "POLYPATH_BALANCE_WINDOW=2", NULL);
}

static void test_several_streams(void **state)
{
    (void)state;
    run_direct(3, NULL, rank_order_body, LO, "POLYPATH_TCP_STREAMS=4", NULL);
    run_direct(3, NULL, rank_order_body, ALL, "POLYPATH_TCP_STREAMS=4", "POLYPATH_SHARES=0.2,0.2,0.6",
               "POLYPATH_TCP_NOTSENT_BYTES=16K", NULL);
}

static void test_ipv6(void **state)
{
    (void)state;
    struct interface lo;
    if (interfaces_loopback(6, &lo)) /* reads the kernel, not the settings */
        skip();
    run_direct(3, NULL, rank_order_body, LO, "POLYPATH_IP_FAMILY=6", NULL);
}

/* ------------------------------------------------------------ between hosts */

static void two_hosts(struct rank *me)
{
    ranks_setenv(me->rank % 2 ? "POLYPATH_HOST_ID=b" : "POLYPATH_HOST_ID=a");
}

static void test_between_hosts(void **state)
{
    (void)state;
    run_direct(4, two_hosts, rank_order_body, "POLYPATH_INTERFACES=lo", NULL);
    run_direct(4, two_hosts, rank_order_body, "POLYPATH_INTERFACES=lo", "POLYPATH_TCP_STREAMS=4", NULL);
    run_direct(3, two_hosts, rank_order_body, "POLYPATH_INTERFACES=lo", "POLYPATH_SHM=0", NULL);
    run_direct(3, two_hosts, rank_order_body, "POLYPATH_INTERFACES=lo", "POLYPATH_SHM=0", "POLYPATH_CMA=0", NULL);
}

static void test_between_hosts_over_ipv6(void **state)
{
    (void)state;
    struct interface lo;
    if (interfaces_loopback(6, &lo))
        skip();
    run_direct(3, two_hosts, rank_order_body, "POLYPATH_INTERFACES=lo", "POLYPATH_IP_FAMILY=6", NULL);
}

/* --------------------------------------------- other orders, same on all ranks */

static void same_bits_body(struct rank *me)
{
    const size_t count = 100003, n = (size_t)me->size;
    float *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *out);
    CHECK(me, in && out, "no memory");
    for (size_t i = 0; i < count; i++)
        in[i] = random_float(1, me->rank, i);
    for (int again = 0; again < 2; again++) {
        uint64_t mine = 0, all[RANKS_MAX];
        OK(me, polypath_all_reduce(in, out, count, POLYPATH_FLOAT32, POLYPATH_SUM, me->comm));
        for (size_t i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, &out[i], sizeof bits);
            mine = reference_hash(mine, bits, i);
        }
        OK(me, polypath_all_gather(&mine, all, 1, POLYPATH_UINT64, me->comm));
        for (size_t r = 0; r < n; r++)
            CHECK(me, all[r] == mine, "rank %zu has other bits", r);
    }
    free(in);
    free(out);
}

static void test_all_ranks_have_the_same_bits(void **state)
{
    (void)state;
    static const char *const algorithms[] = {"direct", "ring", "halving_doubling", "tree", "hierarchical"};
    for (size_t i = 0; i < sizeof algorithms / sizeof algorithms[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "POLYPATH_ALGORITHM=%s", algorithms[i]);
        run_direct(5, NULL, same_bits_body, ALL, text, "POLYPATH_SHARES=0.4,0.3,0.3", NULL);
        run_direct(5, two_hosts, same_bits_body, "POLYPATH_INTERFACES=lo", text, NULL);
    }
}

/* ------------------------------------------------------------ choosing paths */

static void expect_path(struct rank *me, int index, const char *name, const char *kind, bool enabled)
{
    polypath_path_info_t info;
    OK(me, polypath_comm_path_info(me->comm, index, &info));
    CHECK(me, !strcmp(info.name, name) && !strcmp(info.kind, kind) && info.enabled == enabled, "path %d is %s (%s), %s",
          index, info.name, info.kind, info.enabled ? "enabled" : "left out");
}

static uint64_t bytes_on(struct rank *me, int index)
{
    polypath_path_info_t info;
    OK(me, polypath_comm_path_info(me->comm, index, &info));
    return info.bytes_sent;
}

static void use_paths_body(struct rank *me)
{
    static const char *const names[] = {"shm", "cma", "lo"};
    int count;
    OK(me, polypath_comm_path_count(me->comm, &count));
    CHECK(me, count == 3, "%d paths", count);
    for (int only = 0; only < 3; only++) {
        OK(me, polypath_comm_use_paths(me->comm, names[only]));
        for (int p = 0; p < 3; p++)
            expect_path(me, p, names[p], p == 2 ? "tcp" : names[p], p == only);
        uint64_t before[3];
        for (int p = 0; p < 3; p++)
            before[p] = bytes_on(me, p);
        sum_in_rank_order(me, 100003, 3);
        for (int p = 0; p < 3; p++)
            CHECK(me, (bytes_on(me, p) > before[p]) == (p == only), "with %s alone, %s carried %llu bytes", names[only],
                  names[p], (unsigned long long)(bytes_on(me, p) - before[p]));
        double shares[3];
        OK(me, polypath_comm_shares(me->comm, POLYPATH_COLLECTIVE_ALL_REDUCE, shares, 3));
        CHECK(me, shares[only] > 0.999, "with %s alone its share was %g", names[only], shares[only]);
    }
    OK(me, polypath_comm_use_paths(me->comm, "lo,shm"));
    expect_path(me, 1, "cma", "cma", false);
    sum_in_rank_order(me, 100003, 4);
    OK(me, polypath_comm_use_paths(me->comm, NULL));
    for (int p = 0; p < 3; p++)
        expect_path(me, p, names[p], p == 2 ? "tcp" : names[p], true);
    polypath_result_t result = polypath_comm_use_paths(me->comm, "shm,eth7");
    CHECK(me, result == POLYPATH_ERROR_ARGUMENT && strstr(polypath_last_error(), "eth7"), "%s", polypath_last_error());
    result = polypath_comm_use_paths(me->comm, me->rank ? "shm" : "cma");
    CHECK(me, result == POLYPATH_ERROR_MISMATCH, "%s", polypath_last_error());
    OK(me, polypath_comm_status(me->comm));
    sum_in_rank_order(me, 100003, 5);
}

static void test_paths_can_be_restricted_and_freed(void **state)
{
    (void)state;
    run_direct(3, NULL, use_paths_body, ALL, "POLYPATH_TUNE=1", NULL);
}

static void fixed_shares_body(struct rank *me)
{
    double shares[3];
    sum_in_rank_order(me, 500009, 1);
    OK(me, polypath_comm_shares(me->comm, POLYPATH_COLLECTIVE_ALL_REDUCE, shares, 3));
    CHECK(me,
          shares[0] > 0.45 && shares[0] < 0.55 && shares[1] > 0.2 && shares[1] < 0.3 && shares[2] > 0.2 &&
              shares[2] < 0.3,
          "shares are %g, %g, %g", shares[0], shares[1], shares[2]);
    polypath_statistics_t statistics;
    OK(me, polypath_comm_statistics(me->comm, &statistics));
    CHECK(me, statistics.chunks_handed_over == 0, "chunks were handed over");
}

static void test_fixed_shares_are_kept(void **state)
{
    (void)state;
    run_direct(2, NULL, fixed_shares_body, ALL, "POLYPATH_SHARES=2,1,1", "POLYPATH_HAND_OVER=0", NULL);
}

static void tune_body(struct rank *me)
{
    polypath_path_info_t info;
    OK(me, polypath_comm_path_info(me->comm, 0, &info));
    CHECK(me, info.latency_us > 0 && info.bandwidth_gbps > 0, "path %s was not measured", info.name);
    polypath_statistics_t statistics;
    OK(me, polypath_comm_statistics(me->comm, &statistics));
    CHECK(me, statistics.tuning_calls > 0, "no tuning calls");
    sum_in_rank_order(me, 100003, 1);
}

static void test_tuning_measures_every_path(void **state)
{
    (void)state;
    run_direct(2, NULL, tune_body, ALL, "POLYPATH_TUNE=1", NULL);
    run_direct(4, two_hosts, rank_order_body, "POLYPATH_TUNE=1", "POLYPATH_INTERFACES=lo", NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shm_alone),
        cmocka_unit_test(test_cma_alone),
        cmocka_unit_test(test_lo_alone),
        cmocka_unit_test(test_shares_do_not_change_a_bit),
        cmocka_unit_test(test_balanced_shares_do_not_change_a_bit),
        cmocka_unit_test(test_several_streams),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_between_hosts),
        cmocka_unit_test(test_between_hosts_over_ipv6),
        cmocka_unit_test(test_all_ranks_have_the_same_bits),
        cmocka_unit_test(test_paths_can_be_restricted_and_freed),
        cmocka_unit_test(test_fixed_shares_are_kept),
        cmocka_unit_test(test_tuning_measures_every_path),
    };
    if (argc > 1) /* the names of the tests to run, with * and ? */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
