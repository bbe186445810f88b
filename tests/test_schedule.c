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
    int checked = 0;
    for (int c = 0; c < POLYPATH_COLLECTIVE_COUNT; c++)
        for (int size = 1; size <= LARGEST; size++)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_direct_is_correct),           cmocka_unit_test(test_ring_is_correct),
        cmocka_unit_test(test_halving_doubling_is_correct), cmocka_unit_test(test_tree_is_correct),
        cmocka_unit_test(test_hierarchical_is_correct),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
