/*
 * NCCL's interface: the operations, ops, groups, memory, and what can be asked
 * without a communicator.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nccl/load.h"

#define N 1000
#define RANKS 3

/* Small enough for every type, and for products of few ranks. */
static int value(int rank, size_t i)
{
    return 1 + (int)((i + (size_t)rank) % 3);
}

/* ------------------------------------------------------- every operation */

static void reductions(const struct rank *me, const struct nccl *n, ncclComm_t comm)
{
    static float in[RANKS * N], out[RANKS * N];
    for (size_t i = 0; i < RANKS * N; i++)
        in[i] = (float)value(me->rank, i);
    const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
    const float results[] = {6, 6, 3, 1, 2}; /* three ranks have 1, 2 and 3 in some order */
    for (int k = 0; k < 5; k++) {
        memset(out, 0, sizeof out);
        GOES(me, n, ncclAllReduce(in, out, N, ncclFloat, ops[k], comm, NULL));
        for (size_t i = 0; i < N; i++)
            CHECK(me, out[i] == results[k], "op %d element %zu: %g", k, i, (double)out[i]);
    }
    GOES(me, n, pncclReduce(in, me->rank == 1 ? out : NULL, N, ncclFloat, ncclSum, 1, comm, NULL));
    GOES(me, n, ncclReduceScatter(in, out, N, ncclFloat, ncclSum, comm, NULL));
    for (size_t i = 0; i < N; i++)
        CHECK(me, out[i] == 6, "element %zu: %g", i, (double)out[i]);
    memcpy(out, in, sizeof out);
    GOES(me, n, ncclReduceScatter(out, out + me->rank * N, N, ncclFloat, ncclSum, comm, NULL));
    GOES(me, n, ncclAllReduce(in, in, N, ncclFloat, ncclMax, comm, NULL));
    for (size_t i = 0; i < N; i++)
        CHECK(me, out[me->rank * N + i] == 6 && in[i] == 3, "in place, element %zu", i);
}

static void movements(const struct rank *me, const struct nccl *n, ncclComm_t comm)
{
    static int32_t in[RANKS * N], out[RANKS * N];
    const int rank = me->rank;
    for (int i = 0; i < RANKS * N; i++)
        in[i] = rank * 100000 + i;
    GOES(me, n, ncclBroadcast(rank == 2 ? in : NULL, out, N, ncclInt, 2, comm, NULL));
    CHECK(me, out[7] == 200007, "%d", out[7]);
    GOES(me, n, ncclBcast(rank == 1 ? in : out, N, ncclInt32, 1, comm, NULL));
    CHECK(me, rank == 1 || out[8] == 100008, "%d", out[8]);
    GOES(me, n, ncclAllGather(in, out, N, ncclUint32, comm, NULL));
    for (int r = 0; r < RANKS; r++)
        CHECK(me, out[r * N + 5] == r * 100000 + 5, "from %d: %d", r, out[r * N + 5]);
    memset(out, 0, sizeof out);
    memcpy(out + rank * N, in, N * sizeof *in);
    GOES(me, n, ncclAllGather(out + rank * N, out, N, ncclInt, comm, NULL));
    GOES(me, n, ncclAlltoAll(in, out, N, ncclInt, comm, NULL));
    for (int r = 0; r < RANKS; r++)
        CHECK(me, out[r * N + 5] == r * 100000 + rank * N + 5, "from %d: %d", r, out[r * N + 5]);
    GOES(me, n, ncclGather(in, rank == 0 ? out : NULL, N, ncclInt, 0, comm, NULL));
    for (int r = 0; r < RANKS && rank == 0; r++)
        CHECK(me, out[r * N + 5] == r * 100000 + 5, "from %d: %d", r, out[r * N + 5]);
    GOES(me, n, ncclScatter(rank == 0 ? in : NULL, out, N, ncclInt, 0, comm, NULL));
    CHECK(me, out[5] == rank * N + 5, "%d", out[5]);
    const int to = (rank + 1) % RANKS, from = (rank + RANKS - 1) % RANKS;
    GOES(me, n, ncclGroupStart());
    GOES(me, n, ncclSend(in, N, ncclInt, to, comm, NULL));
    GOES(me, n, ncclRecv(out, N, ncclInt, from, comm, NULL));
    GOES(me, n, ncclSend(in + N, N, ncclInt, rank, comm, NULL));
    GOES(me, n, ncclRecv(out + N, N, ncclInt, rank, comm, NULL));
    GOES(me, n, ncclGroupEnd());
    CHECK(me, out[5] == from * 100000 + 5 && out[N + 5] == in[N + 5], "%d and %d", out[5], out[N + 5]);
}

/* Bytes of a one and a two of each type. */
static void every_type(const struct rank *me, const struct nccl *n, ncclComm_t comm)
{
    static const uint8_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    const uint64_t ones[ncclNumTypes] = {1, 1, 1, 1, 1, 1, 0x3c00, 0x3f800000, 0x3ff0000000000000, 0x3f80, 0x38, 0x3c};
    const uint64_t threes[ncclNumTypes] = {3,      3,    3,   3, 3, 3, 0x4200, 0x40400000, 0x4008000000000000,
                                           0x4040, 0x44, 0x42};
    for (int type = 0; type < ncclNumTypes; type++) {
        uint64_t out = 0;
        GOES(me, n, ncclAllReduce(&ones[type], &out, 1, (ncclDataType_t)type, ncclSum, comm, NULL));
        CHECK(me, !memcmp(&out, &threes[type], bytes[type]), "type %d: %llx", type, (unsigned long long)out);
    }
}

static void body_operations(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comm = nccl_comm(me, &n);
    reductions(me, &n, comm);
    movements(me, &n, comm);
    every_type(me, &n, comm);
    GOES(me, &n, ncclCommDestroy(comm));
}

static void test_operations_between_processes(void **state)
{
    (void)state;
    RANKS_RUN(.size = RANKS, .body = body_operations, .no_comm = true);
}

static void body_arguments(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comm = nccl_comm(me, &n);
    int32_t buffer[8] = {0}, out[8];
    GIVES(me, &n, ncclInvalidArgument, ncclAllReduce(buffer, out, 4, ncclInt, ncclSum, NULL, NULL));
    CHECK(me, strstr(n.ncclGetLastError(NULL), "comm is NULL"), "%s", n.ncclGetLastError(NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclAllReduce(NULL, out, 4, ncclInt, ncclSum, comm, NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclAllReduce(buffer, out, 4, ncclNumTypes, ncclSum, comm, NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclAllReduce(buffer, out, 4, ncclInt, ncclMaxRedOp, comm, NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclBroadcast(buffer, out, 4, ncclInt, 2, comm, NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclSend(buffer, 4, ncclInt, -1, comm, NULL));
    nccl_check_works(me, &n, comm);
    GOES(me, &n, ncclCommDestroy(comm));
}

static void test_bad_arguments_are_refused_and_do_no_harm(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = body_arguments, .no_comm = true);
}

/* --------------------------------------------------------------------- ops */

static void body_user_ops(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comm = nccl_comm(me, &n);
    float factor = (float)(me->rank + 1), in[4] = {1, 2, 3, 4}, out[4];
    ncclRedOp_t now, later;
    GOES(me, &n, ncclRedOpCreatePreMulSum(&now, &factor, ncclFloat, ncclScalarHostImmediate, comm));
    GOES(me, &n, ncclRedOpCreatePreMulSum(&later, &factor, ncclFloat, ncclScalarDevice, comm));
    CHECK(me, now >= ncclNumOps && later >= ncclNumOps && now != later, "ops %d and %d", (int)now, (int)later);
    GOES(me, &n, ncclAllReduce(in, out, 4, ncclFloat, now, comm, NULL));
    CHECK(me, out[3] == 12, "%g", (double)out[3]);
    GOES(me, &n, ncclAllReduce(in, out, 4, ncclFloat, later, comm, NULL));
    CHECK(me, out[0] == 3, "%g", (double)out[0]);
    GIVES(me, &n, ncclInvalidArgument, ncclAllReduce(in, out, 2, ncclDouble, now, comm, NULL));
    GOES(me, &n, ncclRedOpDestroy(now, comm));
    GOES(me, &n, ncclRedOpDestroy(later, comm));
    GIVES(me, &n, ncclInvalidArgument, ncclRedOpDestroy(now, comm));
    GIVES(me, &n, ncclInvalidArgument, ncclRedOpDestroy(ncclSum, comm));
    GIVES(me, &n, ncclInvalidArgument,
          ncclRedOpCreatePreMulSum(&now, &factor, ncclFloat, (ncclScalarResidence_t)7, comm));
    GIVES(me, &n, ncclInvalidArgument, ncclRedOpCreatePreMulSum(&now, NULL, ncclFloat, ncclScalarDevice, comm));
    GOES(me, &n, ncclCommDestroy(comm));
}

static void test_user_ops(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = body_user_ops, .no_comm = true);
}

/* ------------------------------------------------------------------ groups */

#define COMMS 4

static void body_groups(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comms[COMMS];
    static int32_t in[COMMS][N], out[COMMS][N], gathered[COMMS][COMMS * N];
    GOES(me, &n, ncclCommInitAll(comms, COMMS, NULL));
    for (int c = 0; c < COMMS; c++)
        for (int i = 0; i < N; i++)
            in[c][i] = c * 1000 + i;
    GOES(me, &n, ncclGroupStart());
    for (int c = 0; c < COMMS; c++) {
        GOES(me, &n, ncclAllReduce(in[c], out[c], N, ncclInt, ncclSum, comms[c], NULL));
        GOES(me, &n, ncclAllGather(in[c], gathered[c], N, ncclInt, comms[c], NULL));
    }
    GOES(me, &n, ncclGroupEnd());
    for (int c = 0; c < COMMS; c++)
        CHECK(me, out[c][9] == 6036 && gathered[c][2 * N + 1] == 2001, "%d: %d", c, out[c][9]);

    /* nested, and a ring shift */
    GOES(me, &n, ncclGroupStart());
    for (int c = 0; c < COMMS; c++) {
        GOES(me, &n, ncclGroupStart());
        GOES(me, &n, ncclSend(in[c], N, ncclInt, (c + 1) % COMMS, comms[c], NULL));
        GOES(me, &n, ncclRecv(out[c], N, ncclInt, (c + COMMS - 1) % COMMS, comms[c], NULL));
        GOES(me, &n, ncclGroupEnd());
    }
    GOES(me, &n, pncclGroupEnd());
    for (int c = 0; c < COMMS; c++)
        CHECK(me, out[c][9] == (c + COMMS - 1) % COMMS * 1000 + 9, "%d: %d", c, out[c][9]);

    /* one bad call: nothing runs */
    memset(out, 0, sizeof out);
    GOES(me, &n, ncclGroupStart());
    for (int c = 0; c < COMMS; c++)
        GOES(me, &n, ncclAllReduce(in[c], out[c], N, ncclInt, ncclSum, comms[c], NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclAllReduce(in[0], out[0], N, ncclInt, ncclSum, NULL, NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclGroupEnd());
    CHECK(me, strstr(n.ncclGetLastError(NULL), "comm is NULL"), "%s", n.ncclGetLastError(NULL));
    CHECK(me, !out[0][9] && !out[1][9], "something ran");

    /* simulated: likewise, and no error */
    ncclSimInfo_t info = {.size = sizeof info, .magic = NCCL_SIM_INFO_MAGIC, .version = NCCL_VERSION_CODE};
    GOES(me, &n, ncclGroupStart());
    for (int c = 0; c < COMMS; c++)
        GOES(me, &n, ncclAllReduce(in[c], out[c], N, ncclInt, ncclSum, comms[c], NULL));
    GOES(me, &n, ncclGroupSimulateEnd(&info));
    CHECK(me, !out[0][9] && info.estimatedTime == NCCL_UNDEF_FLOAT, "something ran");
    info.magic = 0;
    GIVES(me, &n, ncclInvalidArgument, ncclGroupSimulateEnd(&info));
    GIVES(me, &n, ncclInvalidUsage, ncclGroupEnd());

    GOES(me, &n, ncclGroupStart());
    for (int c = 0; c < COMMS; c++)
        GOES(me, &n, ncclAllReduce(in[c], out[c], N, ncclInt, ncclSum, comms[c], NULL));
    GOES(me, &n, ncclGroupEnd());
    CHECK(me, out[3][9] == 6036, "%d", out[3][9]);
    for (int c = 0; c < COMMS; c++)
        GOES(me, &n, ncclCommDestroy(comms[c]));
}

static void test_groups_of_several_communicators_in_one_process(void **state)
{
    (void)state;
    RANKS_RUN(.size = 1, .body = body_groups, .no_comm = true);
}

/* ------------------------------------------------------------------ memory */

static void body_memory(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comm = nccl_comm(me, &n);
    void *memory, *handle;
    ncclWindow_t window;
    GOES(me, &n, ncclMemAlloc(&memory, 1 << 20));
    memset(memory, 1, 1 << 20);
    GOES(me, &n, ncclCommRegister(comm, memory, 1 << 20, &handle));
    GOES(me, &n, ncclCommWindowRegister(comm, memory, 1 << 20, &window, NCCL_WIN_COLL_SYMMETRIC));
    GOES(me, &n, ncclAllReduce(memory, memory, 1 << 18, ncclUint32, ncclMax, comm, NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclCommWindowRegister(comm, memory, 4096, &window, 8));
    GIVES(me, &n, ncclInvalidArgument, ncclCommWindowRegister(comm, (char *)memory + 1, 64, &window, 0));
    GOES(me, &n, ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_DEFAULT));
    GIVES(me, &n, ncclInvalidArgument, ncclCommDeregister(comm, window));
    GOES(me, &n, ncclCommWindowDeregister(comm, window));
    GIVES(me, &n, ncclInvalidArgument, ncclCommRegister(comm, NULL, 1, &handle));
    GOES(me, &n, ncclCommRegister(comm, memory, 1, &handle)); /* left for the communicator's end */
    GOES(me, &n, ncclCommRegister(comm, memory, 2, &handle));
    GOES(me, &n, ncclCommDeregister(comm, handle));
    GIVES(me, &n, ncclInvalidArgument, ncclCommDeregister(comm, handle));
    GOES(me, &n, ncclCommDestroy(comm));
    GOES(me, &n, ncclMemFree(memory));
    GIVES(me, &n, ncclInvalidArgument, ncclMemFree(memory));
    GOES(me, &n, ncclMemFree(NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclMemAlloc(NULL, 1));
}

static void test_memory_and_registration(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = body_memory, .no_comm = true);
}

/* ------------------------------------------------------------------ asking */

static void body_asking(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    int version = 0;
    GOES(me, &n, ncclGetVersion(&version));
    CHECK(me, version == NCCL_VERSION_CODE, "%d", version);
    GIVES(me, &n, ncclInvalidArgument, ncclGetVersion(NULL));
    for (int i = 0; i <= ncclNumResults; i++)
        CHECK(me, *n.ncclGetErrorString((ncclResult_t)i), "%d has no text", i);
    n.ncclResetDebugInit();
    GIVES(me, &n, ncclInvalidUsage, ncclDevCommCreate(NULL, NULL, NULL));
    CHECK(me, strstr(n.ncclGetLastError(NULL), "ncclAllReduce"), "%s", n.ncclGetLastError(NULL));
    GIVES(me, &n, ncclInvalidUsage, ncclDevCommDestroy(NULL, NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclGetUniqueId(NULL));
    ncclUniqueId id;
    ncclComm_t comm;
    int value = -1;
    GOES(me, &n, ncclGetUniqueId(&id));
    GOES(me, &n, ncclCommInitRank(&comm, 1, id, 0));
    GOES(me, &n, ncclCommCount(comm, &value));
    CHECK(me, value == 1, "%d", value);
    GOES(me, &n, ncclCommUserRank(comm, &value));
    CHECK(me, value == 0, "%d", value);
    GOES(me, &n, ncclCommCuDevice(comm, &value));
    CHECK(me, value == 0, "%d", value);
    GIVES(me, &n, ncclInvalidArgument, ncclCommCount(comm, NULL));
    GIVES(me, &n, ncclInvalidArgument, ncclCommCount(NULL, &value));
    GOES(me, &n, ncclCommDestroy(comm));
}

static void test_what_can_be_asked(void **state)
{
    (void)state;
    RANKS_RUN(.size = 1, .body = body_asking, .no_comm = true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations_between_processes),
        cmocka_unit_test(test_bad_arguments_are_refused_and_do_no_harm),
        cmocka_unit_test(test_user_ops),
        cmocka_unit_test(test_groups_of_several_communicators_in_one_process),
        cmocka_unit_test(test_memory_and_registration),
        cmocka_unit_test(test_what_can_be_asked),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
