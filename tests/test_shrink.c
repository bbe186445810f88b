/*
 * A communicator of the ranks that are left: nothing goes over the parent, so
 * that it does not matter which rank is dead, nor whether the parent works.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/ranks.h"

static void check_sum(const struct rank *me, polypath_comm_t comm, int rank, int size)
{
    int is_rank, is_size;
    OK(me, polypath_comm_rank(comm, &is_rank));
    OK(me, polypath_comm_size(comm, &is_size));
    CHECK(me, is_rank == rank && is_size == size, "%d of %d", is_rank, is_size);
    int64_t mine = rank + 1, sum = 0;
    OK(me, polypath_all_reduce(&mine, &sum, 1, POLYPATH_INT64, POLYPATH_SUM, comm));
    CHECK(me, sum == (int64_t)size * (size + 1) / 2, "%lld", (long long)sum);
}

static void body_death(struct rank *me)
{
    const int dead = *(const int *)me->context;
    if (me->rank == dead)
        kill(getpid(), SIGKILL);
    int64_t in = 1, out;
    CHECK(me, polypath_all_reduce(&in, &out, 1, POLYPATH_INT64, POLYPATH_SUM, me->comm), "nobody is missed");
    polypath_comm_t rest, fewer;
    CHECK(me, polypath_comm_shrink(me->comm, &dead, 1, &rest, 0), "a failed parent is taken without a flag");
    OK(me, polypath_comm_shrink(me->comm, &dead, 1, &rest, POLYPATH_SHRINK_ABORT));
    const int rank = me->rank - (me->rank > dead);
    check_sum(me, rest, rank, me->size - 1);
    if (rank) { /* from the new one again, which works on */
        OK(me, polypath_comm_shrink(rest, (int[]){0}, 1, &fewer, 0));
        check_sum(me, fewer, rank - 1, me->size - 2);
        OK(me, polypath_comm_destroy(fewer));
    }
    check_sum(me, rest, rank, me->size - 1);
    OK(me, polypath_comm_destroy(rest));
}

static void test_any_rank_may_be_dead(void **state)
{
    (void)state;
    for (int dead = 0; dead < 4; dead += 3)
        RANKS_RUN(.size = 4, .body = body_death, .context = &dead, .killed = 1u << dead);
}

/* Two ranks on each of two hosts. */
static void on_two_hosts(struct rank *me)
{
    setenv("POLYPATH_HOST_ID", me->rank < 2 ? "one" : "two", 1);
}

static void test_between_hosts(void **state)
{
    (void)state;
    const int dead = 0;
    static const char *const loopback[] = {"POLYPATH_INTERFACES=lo", NULL};
    RANKS_RUN(.size = 4, .body = body_death, .context = &dead, .killed = 1, .prepare = on_two_hosts,
              .environment = loopback);
}

static void body_all(struct rank *me)
{
    polypath_comm_t again;
    OK(me, polypath_comm_shrink(me->comm, NULL, 0, &again, 0));
    check_sum(me, again, me->rank, me->size);
    OK(me, polypath_comm_destroy(again));
    if (me->rank == 1) {
        OK(me, polypath_comm_shrink(me->comm, (int[]){0, 2}, 2, &again, 0));
        check_sum(me, again, 0, 1);
        OK(me, polypath_comm_destroy(again));
    }
    static const struct {
        int ranks[2], count, flags;
    } bad[] = {{{3}, 1, 0}, {{-1}, 1, 0}, {{0, 0}, 2, 0}, {{0, 1}, 3, 0}, {{0}, -1, 0}, {{0}, 1, 2}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(me,
              polypath_comm_shrink(me->comm, bad[i].ranks, bad[i].count, &again, bad[i].flags) ==
                  POLYPATH_ERROR_ARGUMENT,
              "case %zu", i);
        CHECK(me, !again, "case %zu: a communicator of nothing", i);
    }
    CHECK(me, polypath_comm_shrink(me->comm, &me->rank, 1, &again, 0) == POLYPATH_ERROR_ARGUMENT, "without itself");
    CHECK(me, polypath_comm_shrink(me->comm, NULL, 1, &again, 0) == POLYPATH_ERROR_ARGUMENT, "no list");
    check_sum(me, me->comm, me->rank, me->size);
}

static void test_nobody_left_out_one_left_and_bad_lists(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = body_all);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_rank_may_be_dead),
        cmocka_unit_test(test_between_hosts),
        cmocka_unit_test(test_nobody_left_out_one_left_and_bad_lists),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
