/*
 * Every algorithm, collective, size, root and placement of ranks goes through
 * the schedule checker; the checker itself is held against schedules with one
 * fault each; and the model's choices are held against common sense.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "schedule/check.h"
#include "schedule/model.h"
#include "schedule/schedule.h"
#include "support/quick.h"
#include "system/error.h"

enum { LARGEST = 33 };

/* ---------------------------------------------------------------- shapes */

struct placement {
    const char *name;
    int host[LARGEST];
    struct schedule_shape shape;
};

enum { PLACEMENTS = 7 };

/* Placement number `which` of `size` ranks; false if it is the same as an earlier one. */
static bool place(struct placement *p, int which, int size)
{
    static const char *const names[PLACEMENTS] = {"one host", "two equal",     "two unequal", "interleaved",
                                                  "three",    "own host each", "scattered"};
    p->name = names[which];
    p->shape = (struct schedule_shape){.size = size, .nhosts = 1, .host = p->host};
    for (int r = 0; r < size; r++)
        switch (which) {
        case 0: p->host[r] = 0; break;
        case 1: p->host[r] = r >= (size + 1) / 2; break;
        case 2: p->host[r] = r > 0 && r >= size / 4; break;
        case 3: p->host[r] = r % 2; break;
        case 4: p->host[r] = 2 - r * 3 / size; break; /* hosts numbered against the ranks */
        case 5: p->host[r] = r; break;
        default: p->host[r] = (r * 7 + r / 3) % 4; break; /* hosts may be unequal, empty or spread */
        }
    for (int r = 0; r < size; r++)
        if (p->host[r] >= p->shape.nhosts)
            p->shape.nhosts = p->host[r] + 1;
    if (which == 0)
        p->shape.host = NULL;
    return which == 0 || size > 1;
}

/* ------------------------------------------------- building and checking */

struct set {
    struct schedule *schedules[LARGEST];
    int size;
};

static void set_build(struct set *set, polypath_collective_t collective, enum schedule_algorithm algorithm,
                      const struct schedule_shape *shape, int root, bool scaled)
{
    set->size = shape->size;
    for (int r = 0; r < shape->size; r++) {
        set->schedules[r] = schedule_build(collective, algorithm, shape, r, root, scaled);
        if (!set->schedules[r])
            fail_msg("%s %s of %d: %s", schedule_algorithm_name(algorithm), polypath_collective_name(collective),
                     shape->size, error_text());
    }
}

static bool set_check(const struct set *set, bool rank_order, char *why, size_t why_bytes)
{
    return schedule_check((const struct schedule *const *)set->schedules, set->size, rank_order, why, why_bytes);
}

static void set_free(struct set *set)
{
    for (int r = 0; r < set->size; r++)
        schedule_free(set->schedules[r]);
}

static bool rooted(polypath_collective_t c)
{
    return c == POLYPATH_COLLECTIVE_BROADCAST || c == POLYPATH_COLLECTIVE_REDUCE || c == POLYPATH_COLLECTIVE_GATHER ||
           c == POLYPATH_COLLECTIVE_SCATTER;
}

static bool reduces(polypath_collective_t c)
{
    return c == POLYPATH_COLLECTIVE_ALL_REDUCE || c == POLYPATH_COLLECTIVE_REDUCE ||
           c == POLYPATH_COLLECTIVE_REDUCE_SCATTER;
}

static void check_one(polypath_collective_t collective, enum schedule_algorithm algorithm, struct placement *place,
                      int root, bool scaled)
{
    char why[256] = "";
    struct set set;
    set_build(&set, collective, algorithm, &place->shape, root, scaled);
    if (!set_check(&set, schedule_rank_order(collective, algorithm), why, sizeof why))
        fail_msg("%s %s of %d (%s), root %d%s: %s", schedule_algorithm_name(algorithm),
                 polypath_collective_name(collective), set.size, place->name, root, scaled ? ", scaled" : "", why);
    set_free(&set);
}

/* All sizes, roots and scalings of one algorithm; all placements where it looks at them. */
static void check_algorithm(enum schedule_algorithm algorithm)
{
    const int largest = test_quick() ? 13 : LARGEST;
    int checked = 0;
    for (int c = 0; c < POLYPATH_COLLECTIVE_COUNT; c++)
        for (int size = 1; size <= largest; size++)
            for (int which = 0; which < (algorithm == ALGORITHM_HIERARCHICAL ? PLACEMENTS : 1); which++) {
                polypath_collective_t collective = (polypath_collective_t)c;
                struct placement p;
                if (!place(&p, which, size) || !schedule_supported(collective, algorithm, &p.shape))
                    continue;
                int roots[] = {0, size - 1, size / 2};
                int nroots = !rooted(collective) || size == 1 ? 1 : size == 2 ? 2 : 3;
                for (int k = 0; k < nroots; k++)
                    for (int scaled = 0; scaled <= reduces(collective); scaled++, checked++)
                        check_one(collective, algorithm, &p, roots[k], scaled);
            }
    assert_true(checked > 0);
}

static void test_direct_is_correct(void **state)
{
    (void)state;
    check_algorithm(ALGORITHM_DIRECT);
}

static void test_ring_is_correct(void **state)
{
    (void)state;
    check_algorithm(ALGORITHM_RING);
}

static void test_halving_doubling_is_correct(void **state)
{
    (void)state;
    check_algorithm(ALGORITHM_HALVING_DOUBLING);
}

static void test_tree_is_correct(void **state)
{
    (void)state;
    check_algorithm(ALGORITHM_TREE);
}

static void test_hierarchical_is_correct(void **state)
{
    (void)state;
    check_algorithm(ALGORITHM_HIERARCHICAL);
}

/* ----------------------------------------------------- beyond correctness */

/* Small messages have empty blocks; no contract may rest on the messages of another block. */
static void test_messages_of_empty_blocks_may_be_left_out(void **state)
{
    (void)state;
    for (int a = 0; a < ALGORITHM_COUNT; a++)
        for (int c = 0; c < POLYPATH_COLLECTIVE_COUNT; c++)
            for (int size = 2; size <= 13; size++)
                for (int which = 0; which < (a == ALGORITHM_HIERARCHICAL ? PLACEMENTS : 1); which++) {
                    enum schedule_algorithm algorithm = (enum schedule_algorithm)a;
                    polypath_collective_t collective = (polypath_collective_t)c;
                    struct placement p;
                    struct set set;
                    char why[256];
                    if (!place(&p, which, size) || !schedule_supported(collective, algorithm, &p.shape) ||
                        collective == POLYPATH_COLLECTIVE_ALL_TO_ALL)
                        continue;
                    set_build(&set, collective, algorithm, &p.shape, size / 3, reduces(collective));
                    for (int block = 0; block < set.schedules[0]->nblocks; block++)
                        if (!schedule_check_block((const struct schedule *const *)set.schedules, size, block, why,
                                                  sizeof why))
                            fail_msg("%s %s of %d (%s), only block %d: %s", schedule_algorithm_name(algorithm),
                                     polypath_collective_name(collective), size, p.name, block, why);
                    set_free(&set);
                }
}

/* 2N(H-1)/H bytes out of each of H equal hosts, however their ranks are numbered. */
static void test_hierarchical_all_reduce_sends_the_least_between_hosts(void **state)
{
    (void)state;
    for (int nhosts = 2; nhosts <= 4; nhosts++)
        for (int each = 1; each <= 4; each++)
            for (int interleaved = 0; interleaved < 2; interleaved++) {
                int host[16], size = nhosts * each, sent[4] = {0};
                for (int r = 0; r < size; r++)
                    host[r] = interleaved ? r % nhosts : r / each;
                const struct schedule_shape shape = {.size = size, .nhosts = nhosts, .host = host};
                struct set set;
                set_build(&set, POLYPATH_COLLECTIVE_ALL_REDUCE, ALGORITHM_HIERARCHICAL, &shape, 0, false);
                for (int r = 0; r < size; r++) {
                    int of_rank = 0;
                    for (int i = 0; i < set.schedules[r]->nsteps; i++) {
                        const struct step *step = &set.schedules[r]->steps[i];
                        of_rank += step->kind == STEP_SEND && host[step->peer] != host[r];
                    }
                    assert_int_equal(of_rank, 2 * (nhosts - 1)); /* and the ranks of a host share the work */
                    sent[host[r]] += of_rank;
                }
                for (int h = 0; h < nhosts; h++) /* in blocks of N / (H * each) */
                    assert_int_equal(sent[h], 2 * (nhosts - 1) * each);
                set_free(&set);
            }
}

static void test_names_round_trip(void **state)
{
    (void)state;
    for (int a = 0; a < ALGORITHM_COUNT; a++)
        assert_int_equal(schedule_algorithm_by_name(schedule_algorithm_name((enum schedule_algorithm)a)), a);
    assert_int_equal(schedule_algorithm_by_name("teleport"), ALGORITHM_COUNT);
    assert_string_equal(schedule_algorithm_name(ALGORITHM_COUNT), "unknown");
    assert_string_equal(polypath_collective_name(POLYPATH_COLLECTIVE_REDUCE_SCATTER), "reduce_scatter");
    assert_string_equal(polypath_collective_name(POLYPATH_COLLECTIVE_COUNT), "unknown");
}

static void test_what_does_not_exist_is_refused(void **state)
{
    (void)state;
    const struct schedule_shape four = {.size = 4, .nhosts = 1}, many = {.size = 256, .nhosts = 1};
    const int misplaced[] = {0, 2};
    const struct schedule_shape bad = {.size = 2, .nhosts = 2, .host = misplaced};
    assert_null(schedule_build(POLYPATH_COLLECTIVE_ALL_TO_ALL, ALGORITHM_TREE, &four, 0, 0, false));
    assert_non_null(strstr(error_text(), "no tree schedule for all_to_all of 4 ranks"));
    assert_null(schedule_build(POLYPATH_COLLECTIVE_SEND_RECV, ALGORITHM_DIRECT, &four, 0, 0, false));
    assert_null(schedule_build(POLYPATH_COLLECTIVE_REDUCE, ALGORITHM_DIRECT, &many, 0, 0, false));
    assert_null(schedule_build(POLYPATH_COLLECTIVE_ALL_REDUCE, ALGORITHM_DIRECT, &bad, 0, 0, false));
    assert_null(schedule_build(POLYPATH_COLLECTIVE_BROADCAST, ALGORITHM_DIRECT, &four, 0, 4, false));
    assert_null(schedule_build(POLYPATH_COLLECTIVE_BROADCAST, ALGORITHM_DIRECT, &four, 4, 0, false));
}

/* The format's 16-bit fields hold what the table promises. */
static void test_largest_sizes_can_be_built(void **state)
{
    (void)state;
    static int host[4096];
    for (int r = 0; r < 4096; r++)
        host[r] = r / 8;
    for (int a = 0; a < ALGORITHM_COUNT; a++)
        for (int c = 0; c < POLYPATH_COLLECTIVE_COUNT; c++) {
            struct schedule_shape shape = {.size = 4096, .nhosts = 512, .host = host};
            polypath_collective_t collective = (polypath_collective_t)c;
            if (!schedule_supported(collective, (enum schedule_algorithm)a, &shape))
                shape.size = 255;
            if (!schedule_supported(collective, (enum schedule_algorithm)a, &shape))
                continue;
            struct schedule *s =
                schedule_build(collective, (enum schedule_algorithm)a, &shape, 0, 0, reduces(collective));
            if (!s)
                fail_msg("%s", error_text());
            schedule_free(s);
        }
}

/* ------------------------------------------------------------------ model */

enum { KIB = 1024, MIB = 1024 * 1024 };

/* Shared memory inside, 10 Gbit/s Ethernet between. */
static struct model usual_model(const struct schedule_shape *shape)
{
    return (struct model){.within = {.latency_ns = 400, .bytes_per_us = 8000},
                          .between = {.latency_ns = 15000, .bytes_per_us = 1200},
                          .shape = *shape};
}

static void expect(const struct model *model, polypath_collective_t collective, uint64_t bytes,
                   enum schedule_algorithm algorithm)
{
    enum schedule_algorithm chosen = model_choose(model, collective, bytes);
    if (chosen != algorithm)
        fail_msg("%s of %llu bytes: %s (%llu ns), expected %s (%llu ns)", polypath_collective_name(collective),
                 (unsigned long long)bytes, schedule_algorithm_name(chosen),
                 (unsigned long long)model_time_ns(model, collective, chosen, bytes),
                 schedule_algorithm_name(algorithm),
                 (unsigned long long)model_time_ns(model, collective, algorithm, bytes));
}

static void test_one_host_goes_direct(void **state)
{
    (void)state;
    for (int size = 2; size <= 8; size++) {
        const struct schedule_shape shape = {.size = size, .nhosts = 1};
        struct model model = usual_model(&shape);
        expect(&model, POLYPATH_COLLECTIVE_ALL_REDUCE, 8, ALGORITHM_DIRECT);
        expect(&model, POLYPATH_COLLECTIVE_ALL_REDUCE, 64 * KIB, ALGORITHM_DIRECT);
        expect(&model, POLYPATH_COLLECTIVE_ALL_REDUCE, 64 * MIB, ALGORITHM_DIRECT);
        expect(&model, POLYPATH_COLLECTIVE_ALL_GATHER, MIB, ALGORITHM_DIRECT);
        expect(&model, POLYPATH_COLLECTIVE_REDUCE_SCATTER, MIB, ALGORITHM_DIRECT);
    }
}

static void test_large_messages_between_hosts_go_two_level(void **state)
{
    (void)state;
    const int host[] = {0, 0, 1, 1};
    const struct schedule_shape shape = {.size = 4, .nhosts = 2, .host = host};
    struct model model = usual_model(&shape);
    expect(&model, POLYPATH_COLLECTIVE_ALL_REDUCE, 64 * MIB, ALGORITHM_HIERARCHICAL);
    expect(&model, POLYPATH_COLLECTIVE_ALL_GATHER, 64 * MIB, ALGORITHM_HIERARCHICAL);
    expect(&model, POLYPATH_COLLECTIVE_REDUCE_SCATTER, 64 * MIB, ALGORITHM_HIERARCHICAL);
    expect(&model, POLYPATH_COLLECTIVE_ALL_TO_ALL, 64 * MIB, ALGORITHM_DIRECT);
    model.reproducible = true;
    expect(&model, POLYPATH_COLLECTIVE_ALL_REDUCE, 64 * MIB, ALGORITHM_DIRECT);
    expect(&model, POLYPATH_COLLECTIVE_ALL_GATHER, 64 * MIB, ALGORITHM_HIERARCHICAL); /* nothing is folded */
}

static void test_small_messages_among_many_go_by_tree(void **state)
{
    (void)state;
    const struct schedule_shape shape = {.size = 64, .nhosts = 1};
    struct model model = usual_model(&shape);
    expect(&model, POLYPATH_COLLECTIVE_BROADCAST, 64, ALGORITHM_TREE);
    expect(&model, POLYPATH_COLLECTIVE_REDUCE, 64, ALGORITHM_TREE);
    assert_int_not_equal(model_choose(&model, POLYPATH_COLLECTIVE_ALL_REDUCE, 64), ALGORITHM_DIRECT);
    assert_int_not_equal(model_choose(&model, POLYPATH_COLLECTIVE_ALL_REDUCE, 64), ALGORITHM_RING);
    expect(&model, POLYPATH_COLLECTIVE_BARRIER, 0, ALGORITHM_TREE);
    model.reproducible = true;
    expect(&model, POLYPATH_COLLECTIVE_ALL_REDUCE, 64, ALGORITHM_DIRECT);
}

static void test_large_rooted_messages_go_along_the_chain(void **state)
{
    (void)state;
    const struct schedule_shape shape = {.size = 8, .nhosts = 1};
    struct model model = usual_model(&shape);
    expect(&model, POLYPATH_COLLECTIVE_BROADCAST, 64 * MIB, ALGORITHM_RING);
}

static void test_equal_times_go_direct(void **state)
{
    (void)state;
    int host[6];
    const struct schedule_shape shapes[] = {{.size = 6, .nhosts = 6, .host = host}, {.size = 6, .nhosts = 1}};
    const polypath_collective_t collectives[] = {POLYPATH_COLLECTIVE_ALL_REDUCE, POLYPATH_COLLECTIVE_ALL_GATHER,
                                                 POLYPATH_COLLECTIVE_REDUCE_SCATTER};
    for (int r = 0; r < 6; r++)
        host[r] = r;
    for (int k = 0; k < 2; k++)
        for (int c = 0; c < 3; c++)
            for (uint64_t bytes = 8; bytes < 64 * MIB; bytes *= 7) { /* two levels of which one is empty: the same */
                struct model model = usual_model(&shapes[k]);
                assert_true(model_time_ns(&model, collectives[c], ALGORITHM_DIRECT, bytes) ==
                            model_time_ns(&model, collectives[c], ALGORITHM_HIERARCHICAL, bytes));
                assert_int_not_equal(model_choose(&model, collectives[c], bytes), ALGORITHM_HIERARCHICAL);
            }
}

static void test_model_is_total_and_grows_with_the_message(void **state)
{
    (void)state;
    for (int a = 0; a < ALGORITHM_COUNT; a++)
        for (int c = 0; c < POLYPATH_COLLECTIVE_COUNT; c++)
            for (int size = 1; size <= LARGEST; size += 4)
                for (int which = 0; which < PLACEMENTS; which++) {
                    enum schedule_algorithm algorithm = (enum schedule_algorithm)a;
                    polypath_collective_t collective = (polypath_collective_t)c;
                    struct placement p;
                    if (!place(&p, which, size))
                        continue;
                    struct model model = usual_model(&p.shape);
                    model.cores_per_host = 2;
                    bool supported = schedule_supported(collective, algorithm, &p.shape);
                    uint64_t last = 0;
                    for (uint64_t bytes = 1; bytes; bytes = bytes >> 63 ? 0 : bytes * 2) {
                        uint64_t time = model_time_ns(&model, collective, algorithm, bytes);
                        assert_true(supported == (time != UINT64_MAX));
                        assert_true(time >= last);
                        last = time;
                    }
                }
    const struct schedule_shape two = {.size = 2, .nhosts = 1};
    struct model dead = {.shape = two}; /* a link without bandwidth takes very long, but is no division by zero */
    assert_true(model_time_ns(&dead, POLYPATH_COLLECTIVE_ALL_REDUCE, ALGORITHM_DIRECT, MIB) > 1000);
}

static void test_too_few_cores_cost_time(void **state)
{
    (void)state;
    const struct schedule_shape shape = {.size = 8, .nhosts = 1};
    struct model model = usual_model(&shape);
    uint64_t free = model_time_ns(&model, POLYPATH_COLLECTIVE_ALL_REDUCE, ALGORITHM_DIRECT, MIB);
    model.cores_per_host = 2;
    uint64_t crowded = model_time_ns(&model, POLYPATH_COLLECTIVE_ALL_REDUCE, ALGORITHM_DIRECT, MIB);
    assert_true(crowded > 3 * free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_direct_is_correct),
        cmocka_unit_test(test_ring_is_correct),
        cmocka_unit_test(test_halving_doubling_is_correct),
        cmocka_unit_test(test_tree_is_correct),
        cmocka_unit_test(test_hierarchical_is_correct),
        cmocka_unit_test(test_messages_of_empty_blocks_may_be_left_out),
        cmocka_unit_test(test_hierarchical_all_reduce_sends_the_least_between_hosts),
        cmocka_unit_test(test_names_round_trip),
        cmocka_unit_test(test_what_does_not_exist_is_refused),
        cmocka_unit_test(test_largest_sizes_can_be_built),
        cmocka_unit_test(test_one_host_goes_direct),
        cmocka_unit_test(test_large_messages_between_hosts_go_two_level),
        cmocka_unit_test(test_small_messages_among_many_go_by_tree),
        cmocka_unit_test(test_large_rooted_messages_go_along_the_chain),
        cmocka_unit_test(test_equal_times_go_direct),
        cmocka_unit_test(test_model_is_total_and_grows_with_the_message),
        cmocka_unit_test(test_too_few_cores_cost_time),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
