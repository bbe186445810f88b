/*
 * UCC as bench/peers.sh measures it: serves points (see peer/serve.h). MPI
 * starts the job and introduces the ranks to each other; UCC does the rest. It
 * has no send and receive, so those points are answered as not supported.
 * Compiled by that script where pkg-config finds ucc.
 */
#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucc/api/ucc.h>

#include "peer/serve.h"

static struct peer peer;
static ucc_context_h context;
static ucc_team_h team;
static bool crowded; /* more ranks than cores: give the core away while waiting */

static void must(ucc_status_t status, const char *what)
{
    if (status == UCC_OK)
        return;
    fprintf(stderr, "rank %d: %s: %s\n", peer.rank, what, ucc_status_string(status));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* ------------------------------------------------------------- introductions */

static ucc_status_t exchange(void *send, void *recv, size_t bytes, void *unused, void **request)
{
    (void)unused;
    MPI_Allgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
    *request = &peer;
    return UCC_OK;
}

static ucc_status_t exchange_done(void *request)
{
    (void)request;
    return UCC_OK;
}

static ucc_oob_coll_t introductions(void)
{
    return (ucc_oob_coll_t){.allgather = exchange,
                            .req_test = exchange_done,
                            .req_free = exchange_done,
                            .n_oob_eps = (uint32_t)peer.size,
                            .oob_ep = (uint32_t)peer.rank};
}

static void start(ucc_lib_h *library)
{
    ucc_lib_config_h library_settings;
    ucc_context_config_h context_settings;
    ucc_lib_params_t library_wishes = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE, .thread_mode = UCC_THREAD_SINGLE};
    ucc_context_params_t context_wishes = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB, .oob = introductions()};
    ucc_team_params_t team_wishes = {.mask = UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE |
                                             UCC_TEAM_PARAM_FIELD_OOB,
                                     .ep = (uint64_t)peer.rank,
                                     .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
                                     .oob = introductions()};
    ucc_status_t status;
    must(ucc_lib_config_read(NULL, NULL, &library_settings), "ucc_lib_config_read");
    must(ucc_init(&library_wishes, library_settings, library), "ucc_init");
    ucc_lib_config_release(library_settings);
    must(ucc_context_config_read(*library, NULL, &context_settings), "ucc_context_config_read");
    must(ucc_context_create(*library, &context_wishes, context_settings, &context), "ucc_context_create");
    ucc_context_config_release(context_settings);
    must(ucc_team_create_post(&context, 1, &team_wishes, &team), "ucc_team_create_post");
    while ((status = ucc_team_create_test(team)) == UCC_INPROGRESS)
        ucc_context_progress(context);
    must(status, "ucc_team_create_test");
}

static void stop(ucc_lib_h library)
{
    while (ucc_team_destroy(team) == UCC_INPROGRESS)
        ucc_context_progress(context);
    ucc_context_destroy(context);
    ucc_finalize(library);
}

/* ---------------------------------------------------------------- operations */

static void run(ucc_coll_args_t *call)
{
    ucc_coll_req_h request;
    ucc_status_t status;
    must(ucc_collective_init(call, &request, team), "ucc_collective_init");
    must(ucc_collective_post(request), "ucc_collective_post");
    while ((status = ucc_collective_test(request)) == UCC_INPROGRESS) {
        ucc_context_progress(context);
        if (crowded)
            sched_yield();
    }
    must(status, "ucc_collective_test");
    ucc_collective_finalize(request);
}

static ucc_coll_buffer_info_t buffer(void *memory, size_t count, ucc_datatype_t type)
{
    return (ucc_coll_buffer_info_t){memory, count, type, UCC_MEMORY_TYPE_HOST};
}

static void operate(const struct peer_point *point)
{
    size_t count = point->count, all = count * (size_t)peer.size;
    const ucc_datatype_t type = UCC_DT_FLOAT32;
    ucc_coll_args_t call = {
        .op = UCC_OP_SUM, .src.info = buffer(point->send, count, type), .dst.info = buffer(point->recv, count, type)};
    switch (point->op) {
    case PEER_ALL_REDUCE: call.coll_type = UCC_COLL_TYPE_ALLREDUCE; break;
    case PEER_ALL_GATHER:
        call.coll_type = UCC_COLL_TYPE_ALLGATHER;
        call.dst.info.count = all;
        break;
    case PEER_REDUCE_SCATTER:
        call.coll_type = UCC_COLL_TYPE_REDUCE_SCATTER;
        call.src.info.count = all;
        break;
    case PEER_BROADCAST:
        call.coll_type = UCC_COLL_TYPE_BCAST;
        call.src.info.buffer = peer.rank ? point->recv : point->send;
        break;
    case PEER_ALL_TO_ALL:
        call.coll_type = UCC_COLL_TYPE_ALLTOALL;
        call.src.info.count = call.dst.info.count = all;
        break;
    default: call.coll_type = UCC_COLL_TYPE_BARRIER; break;
    }
    run(&call);
}

static void barrier(void)
{
    ucc_coll_args_t call = {.coll_type = UCC_COLL_TYPE_BARRIER};
    run(&call);
}

static void agree_max(double *values, int count)
{
    ucc_coll_args_t call = {.mask = UCC_COLL_ARGS_FIELD_FLAGS,
                            .flags = UCC_COLL_ARGS_FLAG_IN_PLACE,
                            .coll_type = UCC_COLL_TYPE_ALLREDUCE,
                            .op = UCC_OP_MAX,
                            .dst.info = buffer(values, (size_t)count, UCC_DT_FLOAT64)};
    run(&call);
}

static bool supports(enum peer_op op)
{
    return op != PEER_SENDRECV && op != PEER_PINGPONG;
}

static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

int main(int argc, char **argv)
{
    ucc_lib_h library;
    if (argc != 2) {
        fprintf(stderr, "usage: mpirun -n N peer_ucc DIR   (started by bench/peers.sh)\n");
        return 2;
    }
    int available = cores();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
    crowded = available > 1 && peer.size > available; /* one core: this rank is bound to it, alone */
    peer.operate = operate;
    peer.barrier = barrier;
    peer.agree_max = agree_max;
    peer.supports = supports;
    start(&library);
    int status = peer_serve(&peer, argv[1]);
    if (status)
        MPI_Abort(MPI_COMM_WORLD, status);
    stop(library);
    MPI_Finalize();
    return status;
}
