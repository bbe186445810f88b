/*
 * Stages (execute/stage.c): the larger collectives of one host. With slots so
 * small that rings go round many times; every collective, type, op and root,
 * counts around the ends of chunks, ranks that run ahead of others, and the
 * same calls over the row executor next to them.
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

#define SLOT 4096
static const char *const small_slots[] = {"POLYPATH_PATHS=shm", "POLYPATH_STAGE_BYTES=4K", NULL};
static const char *const default_slots[] = {"POLYPATH_PATHS=shm", NULL};
static const char *const no_slots[] = {"POLYPATH_PATHS=shm", "POLYPATH_STAGE_BYTES=0", NULL};
static const char *const with_cma[] = {"POLYPATH_PATHS=shm,cma", "POLYPATH_STAGE_BYTES=4K", NULL};

static uint64_t draw(uint64_t *state)
{
    return reference_hash((*state)++, 11, 3) >> 8;
}

static bool is_staged(struct rank *me, polypath_collective_t collective)
{
    return !strcmp(polypath_comm_algorithm(me->comm, collective), "stage");
}

/* The collective that an exercise calls; those with a V form have none on stages. */
static const struct {
    enum exercise_kind kind;
    polypath_collective_t collective;
} staged[] = {
    {EXERCISE_ALL_REDUCE, POLYPATH_COLLECTIVE_ALL_REDUCE},
    {EXERCISE_REDUCE, POLYPATH_COLLECTIVE_REDUCE},
    {EXERCISE_REDUCE_SCATTER, POLYPATH_COLLECTIVE_REDUCE_SCATTER},
    {EXERCISE_BROADCAST, POLYPATH_COLLECTIVE_BROADCAST},
    {EXERCISE_ALL_GATHER, POLYPATH_COLLECTIVE_ALL_GATHER},
    {EXERCISE_ALL_TO_ALL, POLYPATH_COLLECTIVE_ALL_TO_ALL},
    {EXERCISE_GATHER, POLYPATH_COLLECTIVE_GATHER},
    {EXERCISE_SCATTER, POLYPATH_COLLECTIVE_SCATTER},
};
#define STAGED (sizeof staged / sizeof staged[0])

/* Elements of one byte: around whole chunks, for slots that hold a block per rank as well as for those that do not. */
static void around_chunks(struct rank *me)
{
    const size_t n = (size_t)me->size, per_rank = SLOT / n / 64 * 64;
    const size_t turns[] = {70000, 16 * SLOT, 16 * SLOT + 1, 20 * per_rank * n - 1, 40 * per_rank, 40 * per_rank + 65};
    uint64_t state = 5;
    for (size_t k = 0; k < STAGED; k++)
        for (size_t t = 0; t < sizeof turns / sizeof turns[0]; t++) {
            EXERCISE(me, me->comm, .kind = staged[k].kind, .type = POLYPATH_INT8, .count = turns[t],
                     .root = (int)(draw(&state) % n), .in_place = draw(&state) & 1, .offset = draw(&state) % 3,
                     .seed = state);
            CHECK(me, is_staged(me, staged[k].collective), "%s",
                  polypath_comm_algorithm(me->comm, staged[k].collective));
        }
}

static void every_type_and_op(struct rank *me)
{
    uint64_t state = 77;
    for (size_t k = 0; k < STAGED; k++)
        for (int type = 0; type < POLYPATH_TYPE_COUNT; type++)
            for (int op = 0; op < (exercise_reduces(staged[k].kind) ? REFERENCE_OPS : 1); op++)
                EXERCISE(me, me->comm, .kind = staged[k].kind, .type = (polypath_type_t)type, .op = op,
                         .count = 17000 + draw(&state) % 3000, .root = (int)(draw(&state) % (uint64_t)me->size),
                         .in_place = draw(&state) & 1, .offset = draw(&state) % 3 ? 0 : draw(&state) % 8,
                         .seed = state);
}

static void sweep(struct rank *me)
{
    around_chunks(me);
    if (!test_quick() || me->size == 3)
        every_type_and_op(me);
}

static void test_all_with_small_slots(void **state)
{
    RANKS_RUN(.size = *(const int *)*state, .body = sweep, .environment = small_slots);
}

static void test_all_with_usual_slots(void **state)
{
    RANKS_RUN(.size = *(const int *)*state, .body = every_type_and_op, .environment = default_slots);
}

/* Broadcasts and Scatters from changing roots: nobody waits for everybody, so roots run ahead as far as they may. */
static void ahead_body(struct rank *me)
{
    static int32_t data[30000];
    const size_t count = sizeof data / sizeof data[0];
    for (int i = 0; i < 60; i++) {
        const int root = i / 7 % me->size;
        for (size_t j = 0; j < count && me->rank == root; j++)
            data[j] = (int32_t)(j * 31 + (size_t)i);
        if (i % 5 == me->rank)
            ranks_pause_ms(2);
        OK(me, polypath_broadcast(data, data, count, POLYPATH_INT32, root, me->comm));
        for (size_t j = 0; j < count; j += 97)
            CHECK(me, data[j] == (int32_t)(j * 31 + (size_t)i), "call %d: element %zu is %d", i, j, data[j]);
    }
}

static void test_roots_run_ahead(void **state)
{
    (void)state;
    RANKS_RUN(.size = 4, .body = ahead_body, .environment = small_slots);
}

/* Small, large and point to point in turn, blocking and not: they share the order of the calls and the waiting. */
static void mixed_body(struct rank *me)
{
    static float in[40000], out[40000];
    uint64_t state = 9;
    for (int i = 0; i < 200; i++) {
        const size_t count = draw(&state) % 3 ? 1 + draw(&state) % 100 : 5000 + draw(&state) % 35000;
        for (size_t j = 0; j < count; j++)
            in[j] = (float)(me->rank + 1) * (float)(j % 50);
        if (draw(&state) % 4 == 0) {
            polypath_request_t request;
            OK(me, polypath_all_reduce_start(in, out, count, POLYPATH_FLOAT32, POLYPATH_SUM, me->comm, &request));
            OK(me, polypath_wait(&request));
        } else {
            OK(me, polypath_all_reduce(in, out, count, POLYPATH_FLOAT32, POLYPATH_SUM, me->comm));
        }
        const float all = (float)(me->size * (me->size + 1) / 2);
        for (size_t j = 0; j < count; j++)
            CHECK(me, out[j] == all * (float)(j % 50), "call %d: element %zu of %zu is %g", i, j, count,
                  (double)out[j]);
        if (i % 10 == 0)
            EXERCISE(me, me->comm, .kind = EXERCISE_SEND_RECV, .type = POLYPATH_INT64, .count = 9000, .seed = state);
    }
}

static void test_calls_of_all_kinds_in_turn(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = mixed_body, .environment = small_slots);
    RANKS_RUN(.size = 3, .body = mixed_body, .environment = with_cma); /* the balancer may move calls to other ways */
    RANKS_RUN(.size = 3, .body = mixed_body, .environment = no_slots);
}

static void off_body(struct rank *me)
{
    for (size_t k = 0; k < STAGED; k++) {
        EXERCISE(me, me->comm, .kind = staged[k].kind, .type = POLYPATH_INT8, .count = 100001, .seed = k);
        CHECK(me, !is_staged(me, staged[k].collective), "staged, although there are no slots");
    }
}

static void test_without_slots(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = off_body, .environment = no_slots);
}

int main(void)
{
    static int sizes[] = {2, 3, 4, 7};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_all_with_small_slots, &sizes[0]),
        cmocka_unit_test_prestate(test_all_with_small_slots, &sizes[1]),
        cmocka_unit_test_prestate(test_all_with_small_slots, &sizes[3]),
        cmocka_unit_test_prestate(test_all_with_usual_slots, &sizes[2]),
        cmocka_unit_test(test_roots_run_ahead),
        cmocka_unit_test(test_calls_of_all_kinds_in_turn),
        cmocka_unit_test(test_without_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
