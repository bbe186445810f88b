/*
 * NCCL's interface: how communicators are made and how they end, blocking and
 * not, of processes and within one process, and what happens when a rank dies.
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

#include "nccl/load.h"

#define COMMS 4

/* Waits until a communicator is no longer in progress; returns what it has become. */
static ncclResult_t settled(const struct rank *me, const struct nccl *n, ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        GOES(me, n, ncclCommGetAsyncError(comm, &state));
        ranks_pause_ms(1);
    }
    return state;
}

/* A sum over communicators of this process. */
static void check_together(const struct rank *me, const struct nccl *n, const ncclComm_t *comms, int ncomms)
{
    int32_t one = 1, sums[COMMS] = {0};
    GOES(me, n, ncclGroupStart());
    for (int c = 0; c < ncomms; c++)
        GOES(me, n, ncclAllReduce(&one, &sums[c], 1, ncclInt, ncclSum, comms[c], NULL));
    GOES(me, n, ncclGroupEnd());
    for (int c = 0; c < ncomms; c++)
        CHECK(me, sums[c] == ncomms, "communicator %d: %d of %d", c, sums[c], ncomms);
}

/* --------------------------------------------------- within one process */

static void body_one_process(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comms[COMMS], parts[COMMS], again[COMMS];
    GOES(me, &n, ncclGroupStart());
    for (int c = 0; c < COMMS; c++)
        GOES(me, &n, ncclCommInitRank(&comms[c], COMMS, nccl_id(me, 0), c));
    GIVES(me, &n, ncclInvalidUsage, ncclBcast(comms, 1, ncclInt, 0, comms[0], NULL)); /* not yet */
    GIVES(me, &n, ncclInvalidUsage, ncclGroupEnd());
    CHECK(me, !comms[0] && !comms[3], "handles of a refused group stay");

    GOES(me, &n, ncclGroupStart());
    for (int c = 0; c < COMMS; c++)
        GOES(me, &n, ncclCommInitRank(&comms[c], COMMS, nccl_id(me, 0), c));
    GOES(me, &n, ncclGroupEnd());
    check_together(me, &n, comms, COMMS);

    GOES(me, &n, ncclGroupStart());
    for (int c = 0; c < COMMS; c++)
        GOES(me, &n, ncclCommSplit(comms[c], c < 3 ? 0 : NCCL_SPLIT_NOCOLOR, -c, &parts[c], NULL));
    GOES(me, &n, ncclGroupEnd());
    int rank;
    CHECK(me, !parts[3], "a rank without a color has a part");
    GOES(me, &n, ncclCommUserRank(parts[0], &rank));
    CHECK(me, rank == 2, "ordered by key, 0 is %d", rank);
    check_together(me, &n, parts, 3);

    int out[] = {1};
    GOES(me, &n, ncclGroupStart());
    for (int c = 0; c < COMMS; c++)
        if (c != 1)
            GOES(me, &n, ncclCommShrink(comms[c], out, 1, &again[c], NULL, NCCL_SHRINK_DEFAULT));
    GOES(me, &n, ncclGroupEnd());
    again[1] = again[3];
    check_together(me, &n, again, 3);
    for (int c = 0; c < 3; c++) {
        GOES(me, &n, ncclCommDestroy(again[c]));
        GOES(me, &n, ncclCommDestroy(parts[c]));
    }
    for (int c = 0; c < COMMS; c++) {
        GOES(me, &n, ncclCommFinalize(comms[c]));
        GIVES(me, &n, ncclInvalidUsage, ncclBcast(&rank, 1, ncclInt, 0, comms[c], NULL));
        GIVES(me, &n, ncclInvalidUsage, ncclCommFinalize(comms[c]));
        GOES(me, &n, ncclCommDestroy(comms[c]));
    }
}

static void test_ranks_of_one_process_are_made_in_a_group(void **state)
{
    (void)state;
    RANKS_RUN(.size = 1, .body = body_one_process, .no_comm = true);
}

static void body_init_all(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comms[COMMS];
    const int devices[COMMS] = {0, 0, 1, 1};
    int device = -1;
    GOES(me, &n, ncclCommInitAll(comms, COMMS, devices));
    GOES(me, &n, ncclCommCuDevice(comms[2], &device));
    CHECK(me, device == 1, "%d", device);
    check_together(me, &n, comms, COMMS);
    for (int c = 0; c < COMMS; c++)
        GOES(me, &n, ncclCommDestroy(comms[c]));
    GOES(me, &n, ncclCommInitAll(comms, 1, NULL));
    check_together(me, &n, comms, 1);
    GOES(me, &n, ncclCommDestroy(comms[0]));
    GIVES(me, &n, ncclInvalidArgument, ncclCommInitAll(comms, 0, NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclCommInitAll(NULL, 1, NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclCommInitAll(comms, 2, (int[]){0, -1}));
    CHECK(me, !comms[0] && !comms[1], "handles stay");
}

static void test_init_all(void **state)
{
    (void)state;
    RANKS_RUN(.size = 1, .body = body_init_all, .no_comm = true);
}

/* ------------------------------------------------- configurations and ids */

static void body_not_blocking(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comm, part, rest;
    ncclConfig_t config = nccl_config(0);
    GIVES(me, &n, ncclInProgress, ncclCommInitRankConfig(&comm, me->size, nccl_id(me, 0), me->rank, &config));
    CHECK(me, comm, "no handle");
    CHECK(me, settled(me, &n, comm) == ncclSuccess, "%s", n.ncclGetLastError(comm));
    nccl_check_works(me, &n, comm);
    GIVES(me, &n, ncclInProgress, ncclCommSplit(comm, me->rank / 2, 0, &part, NULL)); /* as its parent */
    CHECK(me, settled(me, &n, part) == ncclSuccess, "%s", n.ncclGetLastError(part));
    CHECK(me, settled(me, &n, comm) == ncclSuccess, "%s", n.ncclGetLastError(comm));
    nccl_check_works(me, &n, part);
    if (me->rank) {
        int out[] = {0};
        GIVES(me, &n, ncclInProgress, ncclCommShrink(comm, out, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
        CHECK(me, settled(me, &n, rest) == ncclSuccess, "%s", n.ncclGetLastError(rest));
        nccl_check_works(me, &n, rest);
        GOES(me, &n, ncclCommDestroy(rest));
    }
    GIVES(me, &n, ncclInProgress, ncclCommFinalize(part));
    CHECK(me, settled(me, &n, part) == ncclSuccess, "%s", n.ncclGetLastError(part));
    GOES(me, &n, ncclCommDestroy(part));
    GOES(me, &n, ncclCommDestroy(comm));

    /* destroyed at once: waits for the creation */
    GOES(me, &n, ncclGroupStart());
    GOES(me, &n, ncclCommInitRankConfig(&comm, me->size, nccl_id(me, 1), me->rank, &config));
    GIVES(me, &n, ncclInProgress, ncclGroupEnd());
    GOES(me, &n, ncclCommDestroy(comm));
    /* aborted at once: the creation frees it */
    GIVES(me, &n, ncclInProgress, ncclCommInitRankConfig(&comm, me->size, nccl_id(me, 2), me->rank, &config));
    GOES(me, &n, ncclCommAbort(comm));
}

static void test_communicators_that_do_not_block(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = body_not_blocking, .no_comm = true);
}

static void body_failed_creation(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comm;
    ncclConfig_t config = nccl_config(0);
    GIVES(me, &n, ncclInProgress, ncclCommInitRankConfig(&comm, 2, nccl_id(me, 0), 0, &config));
    const ncclResult_t state = settled(me, &n, comm);
    CHECK(me, state == ncclRemoteError, "%d: %s", (int)state, n.ncclGetLastError(comm));
    CHECK(me, *n.ncclGetLastError(comm), "no text");
    GIVES(me, &n, ncclRemoteError, ncclBcast(&comm, 1, ncclInt8, 0, comm, NULL));
    GOES(me, &n, ncclCommAbort(comm));
    GIVES(me, &n, ncclRemoteError, ncclCommInitRank(&comm, 2, nccl_id(me, 1), 0));
    CHECK(me, !comm, "a handle of nothing");
}

static void test_a_rank_that_does_not_come(void **state)
{
    (void)state;
    static const char *const environment[] = {"POLYPATH_TIMEOUT_MS=500", NULL};
    RANKS_RUN(.size = 1, .body = body_failed_creation, .no_comm = true, .environment = environment);
}

static void body_ids(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comm;
    ncclConfig_t config = nccl_config(1);
    ncclUniqueId ids[3] = {nccl_id(me, 0), nccl_id(me, 1), nccl_id(me, 2)};
    GOES(me, &n, ncclCommInitRankScalable(&comm, me->size, me->rank, 3, ids, &config));
    nccl_check_works(me, &n, comm);
    GOES(me, &n, ncclCommDestroy(comm));
    memset(&ids[1], 0, sizeof ids[1]);
    GIVES(me, &n, ncclInvalidArgument, ncclCommInitRankScalable(&comm, me->size, me->rank, 3, ids, &config));
    GIVES(me, &n, ncclInvalidArgument, ncclCommInitRankScalable(&comm, me->size, me->rank, 0, ids, &config));
    GIVES(me, &n, ncclInvalidArgument, ncclCommInitRank(&comm, me->size, ids[1], me->rank));
    GIVES(me, &n, ncclInvalidArgument, ncclCommInitRank(&comm, me->size, ids[0], me->size));
    GIVES(me, &n, ncclInvalidArgument, ncclCommInitRank(&comm, 0, ids[0], 0));
    GIVES(me, &n, ncclInvalidArgument, ncclCommInitRank(NULL, 1, ids[0], 0));
    config.blocking = 2;
    GIVES(me, &n, ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, ids[2], 0, &config));
    config.blocking = 1;
    config.magic = 0;
    GIVES(me, &n, ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, ids[2], 0, &config));
}

static void test_several_ids_and_bad_ones(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = body_ids, .no_comm = true);
}

/* ----------------------------------------------------- split and shrink */

static void body_split(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comm = nccl_comm(me, &n), part, smaller;
    int rank, size;
    GOES(me, &n, ncclCommSplit(comm, me->rank ? 7 : NCCL_SPLIT_NOCOLOR, -me->rank, &part, NULL));
    CHECK(me, !part == !me->rank, "rank %d has %p", me->rank, (void *)part);
    if (part) {
        GOES(me, &n, ncclCommUserRank(part, &rank));
        GOES(me, &n, ncclCommCount(part, &size));
        CHECK(me, rank == me->size - 1 - me->rank && size == me->size - 1, "%d of %d", rank, size);
        nccl_check_works(me, &n, part);
        GOES(me, &n, ncclCommDestroy(part));
    }
    GIVES(me, &n, ncclInvalidArgument, ncclCommSplit(comm, -5, 0, &part, NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclCommSplit(comm, 0, 0, NULL, NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclCommSplit(NULL, 0, 0, &part, NULL));
    int out[] = {2, 0};
    if (me->rank != 2 && me->rank != 0) {
        GOES(me, &n, ncclCommShrink(comm, out, 2, &smaller, NULL, NCCL_SHRINK_DEFAULT));
        GOES(me, &n, ncclCommUserRank(smaller, &rank));
        CHECK(me, rank == (me->rank == 1 ? 0 : 1), "%d", rank);
        nccl_check_works(me, &n, smaller);
        GOES(me, &n, ncclCommDestroy(smaller));
    }
    nccl_check_works(me, &n, comm);
    GIVES(me, &n, ncclInvalidArgument, ncclCommShrink(comm, NULL, 1, &smaller, NULL, 0));
    GIVES(me, &n, ncclInvalidArgument, ncclCommShrink(comm, out, 0, &smaller, NULL, 0));
    GIVES(me, &n, ncclInvalidArgument, ncclCommShrink(comm, out, 1, &smaller, NULL, 2));
    GIVES(me, &n, ncclInvalidArgument, ncclCommShrink(comm, &me->rank, 1, &smaller, NULL, 0));
    GIVES(me, &n, ncclInvalidArgument, ncclCommShrink(comm, (int[]){9}, 1, &smaller, NULL, 0));
    CHECK(me, !smaller, "a handle of nothing");
    nccl_check_works(me, &n, comm);
    GOES(me, &n, ncclCommDestroy(comm));
}

static void test_split_and_shrink(void **state)
{
    (void)state;
    RANKS_RUN(.size = 4, .body = body_split, .no_comm = true);
}

static void body_death(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comm = nccl_comm(me, &n), rest;
    ncclResult_t state;
    nccl_check_works(me, &n, comm);
    if (me->rank == 1)
        kill(getpid(), SIGKILL);
    int32_t in = 1, sum = 0;
    GIVES(me, &n, ncclRemoteError, ncclAllReduce(&in, &sum, 1, ncclInt, ncclSum, comm, NULL));
    GOES(me, &n, ncclCommGetAsyncError(comm, &state));
    CHECK(me, state == ncclRemoteError, "%d", (int)state);
    GIVES(me, &n, ncclRemoteError, ncclCommShrink(comm, (int[]){1}, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
    GOES(me, &n, ncclCommShrink(comm, (int[]){1}, 1, &rest, NULL, NCCL_SHRINK_ABORT));
    nccl_check_works(me, &n, rest);
    GOES(me, &n, ncclCommAbort(comm));
    GOES(me, &n, ncclCommDestroy(rest));
}

static void test_the_others_go_on_without_a_dead_rank(void **state)
{
    (void)state;
    RANKS_RUN(.size = 4, .body = body_death, .no_comm = true, .killed = 1 << 1);
}

/* -------------------------------------------------------- abort and revoke */

static void body_abort(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comm = nccl_comm(me, &n);
    ncclResult_t state;
    GOES(me, &n, ncclCommGetAsyncError(comm, &state));
    CHECK(me, state == ncclSuccess, "%d", (int)state);
    nccl_check_works(me, &n, comm);
    if (me->rank) {
        int32_t in = 1, sum = 0;
        GIVES(me, &n, ncclRemoteError, ncclAllReduce(&in, &sum, 1, ncclInt, ncclSum, comm, NULL));
        GOES(me, &n, ncclCommGetAsyncError(comm, &state));
        CHECK(me, state == ncclRemoteError, "%d", (int)state);
    }
    GOES(me, &n, ncclCommAbort(comm));
    GOES(me, &n, ncclCommAbort(NULL));
    GOES(me, &n, ncclCommDestroy(NULL));
}

static void test_abort_ends_what_others_wait_for(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = body_abort, .no_comm = true);
}

static void body_revoke(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comm = nccl_comm(me, &n), part, rest;
    ncclResult_t state;
    int32_t in = 1;
    nccl_check_works(me, &n, comm);
    GIVES(me, &n, ncclInvalidArgument, ncclCommRevoke(comm, 1));
    GOES(me, &n, ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    GIVES(me, &n, ncclInvalidUsage, ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    GIVES(me, &n, ncclInvalidUsage, ncclBcast(&in, 1, ncclInt, 0, comm, NULL));
    GIVES(me, &n, ncclInvalidUsage, ncclCommFinalize(comm));
    GOES(me, &n, ncclCommGetAsyncError(comm, &state));
    CHECK(me, state == ncclSuccess, "%d", (int)state);
    GOES(me, &n, ncclCommSplit(comm, me->rank % 2, 0, &part, NULL));
    nccl_check_works(me, &n, part);
    if (me->rank != 2) {
        GOES(me, &n, ncclCommShrink(comm, (int[]){2}, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
        nccl_check_works(me, &n, rest);
        GOES(me, &n, ncclCommDestroy(rest));
    }
    GOES(me, &n, ncclCommDestroy(part));
    GOES(me, &n, ncclCommDestroy(comm));
}

static void test_a_revoked_communicator_can_be_split_and_shrunk(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = body_revoke, .no_comm = true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_of_one_process_are_made_in_a_group),
        cmocka_unit_test(test_init_all),
        cmocka_unit_test(test_communicators_that_do_not_block),
        cmocka_unit_test(test_a_rank_that_does_not_come),
        cmocka_unit_test(test_several_ids_and_bad_ones),
        cmocka_unit_test(test_split_and_shrink),
        cmocka_unit_test(test_the_others_go_on_without_a_dead_rank),
        cmocka_unit_test(test_abort_ends_what_others_wait_for),
        cmocka_unit_test(test_a_revoked_communicator_can_be_split_and_shrunk),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
