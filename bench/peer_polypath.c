/*
 * Polypath as bench/peers.sh measures it: serves points (see peer/serve.h)
 * through the public interface, as any program would use it. With the word
 * "registered" the buffers are registered memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer/serve.h"
#include "polypath/polypath.h"

static struct peer peer;
static polypath_comm_t comm;

static void must(polypath_result_t result)
{
    if (result == POLYPATH_SUCCESS)
        return;
    fprintf(stderr, "rank %d: %s: %s\n", peer.rank, polypath_result_name(result), polypath_last_error());
    exit(1);
}

static void exchange(const struct peer_point *point)
{
    int next = (peer.rank + 1) % peer.size, previous = (peer.rank + peer.size - 1) % peer.size;
    must(polypath_group_start());
    must(polypath_send(point->send, point->count, POLYPATH_FLOAT32, next, comm));
    must(polypath_recv(point->recv, point->count, POLYPATH_FLOAT32, previous, comm));
    must(polypath_group_end());
}

static void ping(const struct peer_point *point)
{
    if (peer.rank > 1)
        return;
    if (peer.rank == 0)
        must(polypath_send(point->send, point->count, POLYPATH_FLOAT32, 1, comm));
    must(polypath_recv(point->recv, point->count, POLYPATH_FLOAT32, 1 - peer.rank, comm));
    if (peer.rank == 1)
        must(polypath_send(point->send, point->count, POLYPATH_FLOAT32, 0, comm));
}

static void operate(const struct peer_point *point)
{
    const polypath_type_t type = POLYPATH_FLOAT32;
    size_t count = point->count;
    float *send = point->send, *recv = point->recv;
    switch (point->op) {
    case PEER_ALL_REDUCE: must(polypath_all_reduce(send, recv, count, type, POLYPATH_SUM, comm)); break;
    case PEER_ALL_GATHER: must(polypath_all_gather(send, recv, count, type, comm)); break;
    case PEER_REDUCE_SCATTER: must(polypath_reduce_scatter(send, recv, count, type, POLYPATH_SUM, comm)); break;
    case PEER_BROADCAST: must(polypath_broadcast(send, peer.rank ? recv : send, count, type, 0, comm)); break;
    case PEER_ALL_TO_ALL: must(polypath_all_to_all(send, recv, count, type, comm)); break;
    case PEER_SENDRECV: exchange(point); break;
    case PEER_PINGPONG: ping(point); break;
    default: must(polypath_barrier(comm)); break;
    }
}

static void barrier(void)
{
    must(polypath_barrier(comm));
}

static void agree_max(double *values, int count)
{
    must(polypath_all_reduce(values, values, (size_t)count, POLYPATH_FLOAT64, POLYPATH_MAX, comm));
}

/* Every rank takes and gives back the same buffers in the same order, so that each is registered by all at once. */
static struct buffer {
    void *memory;
    polypath_window_t window;
} registered[8];

static struct buffer *find(const void *memory)
{
    for (size_t i = 0; i < sizeof registered / sizeof registered[0]; i++)
        if (registered[i].memory == memory)
            return &registered[i];
    fprintf(stderr, "rank %d: more buffers than expected\n", peer.rank);
    exit(1);
}

static void *allocate(size_t bytes)
{
    struct buffer *buffer = find(NULL);
    must(polypath_mem_alloc(&buffer->memory, bytes));
    must(polypath_comm_window_register(comm, buffer->memory, bytes, &buffer->window, 0));
    return buffer->memory;
}

static void release(void *memory)
{
    struct buffer *buffer = find(memory);
    must(polypath_comm_window_deregister(comm, buffer->window));
    must(polypath_mem_free(memory));
    buffer->memory = NULL;
}

int main(int argc, char **argv)
{
    const bool in_registered = argc == 3 && !strcmp(argv[2], "registered");
    if (argc != 2 && !in_registered) {
        fprintf(stderr, "usage: polypath run -n N -- peer_polypath DIR [registered]   (started by bench/peers.sh)\n");
        return 2;
    }
    must(polypath_comm_create_from_env(&comm));
    must(polypath_comm_rank(comm, &peer.rank));
    must(polypath_comm_size(comm, &peer.size));
    peer.operate = operate;
    peer.barrier = barrier;
    peer.agree_max = agree_max;
    if (in_registered) {
        peer.allocate = allocate;
        peer.release = release;
    }
    int status = peer_serve(&peer, argv[1]);
    must(polypath_comm_destroy(comm));
    return status;
}
