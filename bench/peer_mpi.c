/*
 * One MPI library as bench/peers.sh measures it: serves points (see
 * peer/serve.h). Compiled by that script, once with each MPI's own compiler.
 * Errors end the job, as MPI does by default.
 */
#include <mpi.h>
#include <stdio.h>

#include "peer/serve.h"

static struct peer peer;

static void ping(const struct peer_point *point, int count)
{
    if (peer.rank == 0) {
        MPI_Send(point->send, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(point->recv, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (peer.rank == 1) {
        MPI_Recv(point->recv, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(point->send, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
    }
}

static void operate(const struct peer_point *point)
{
    int count = (int)point->count, rank = peer.rank, size = peer.size;
    float *send = point->send, *recv = point->recv;
    MPI_Comm all = MPI_COMM_WORLD;
    switch (point->op) {
    case PEER_ALL_REDUCE: MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, all); break;
    case PEER_ALL_GATHER: MPI_Allgather(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, all); break;
    case PEER_REDUCE_SCATTER: MPI_Reduce_scatter_block(send, recv, count, MPI_FLOAT, MPI_SUM, all); break;
    case PEER_BROADCAST: MPI_Bcast(rank == 0 ? send : recv, count, MPI_FLOAT, 0, all); break;
    case PEER_ALL_TO_ALL: MPI_Alltoall(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, all); break;
    case PEER_SENDRECV:
        MPI_Sendrecv(send, count, MPI_FLOAT, (rank + 1) % size, 0, recv, count, MPI_FLOAT, (rank + size - 1) % size, 0,
                     all, MPI_STATUS_IGNORE);
        break;
    case PEER_PINGPONG: ping(point, count); break;
    default: MPI_Barrier(all); break;
    }
}

static void barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static void agree_max(double *values, int count)
{
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: mpirun -n N peer_mpi DIR   (started by bench/peers.sh)\n");
        return 2;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
    peer.operate = operate;
    peer.barrier = barrier;
    peer.agree_max = agree_max;
    int status = peer_serve(&peer, argv[1]);
    if (status)
        MPI_Abort(MPI_COMM_WORLD, status);
    MPI_Finalize();
    return status;
}
