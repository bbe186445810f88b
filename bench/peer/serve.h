/*
 * What the programs of bench/peers.sh share: they are started once, then
 * measure one point after another as they are told. A program supplies the
 * operations of its library; serve.c reads the orders, makes and checks the
 * data, and keeps the time by the rules of `polypath bench`.
 *
 * Each rank reads its own pipe DIR/orders.RANK and blocks there between two
 * points, so that a job that waits takes no time from the one that runs. An
 * order is a line "OPERATION BYTES SECONDS". Each rank answers with a line in
 * the pipe DIR/answers; rank 0's holds the result as JSON. The end of the
 * orders ends the program.
 */
#ifndef BENCH_PEER_SERVE_H
#define BENCH_PEER_SERVE_H

#include <stdbool.h>
#include <stddef.h>

enum peer_op {
    PEER_ALL_REDUCE,
    PEER_ALL_GATHER,
    PEER_REDUCE_SCATTER,
    PEER_BROADCAST, /* the root sends from, and keeps, its `send`; MPI has no other form */
    PEER_ALL_TO_ALL,
    PEER_SENDRECV, /* to the next rank, from the one before, both at once */
    PEER_PINGPONG, /* ranks 0 and 1: there and back */
    PEER_BARRIER,
    PEER_OP_COUNT
};

/* One operation on float32, sums where it reduces, root 0, out of place. */
struct peer_point {
    enum peer_op op;
    size_t count; /* elements: the whole message, or a block where there is one per rank */
    size_t bytes; /* as nccl-tests counts them: the larger of the two buffers */
    float *send, *recv;
};

/* A library. The first three are called by all ranks alike and end the program on errors. */
struct peer {
    int rank, size;
    void (*operate)(const struct peer_point *point);
    void (*barrier)(void);
    void (*agree_max)(double *values, int count); /* the largest of each over all ranks, on all ranks */
    bool (*supports)(enum peer_op op);            /* NULL: everything */
    void *(*allocate)(size_t bytes);              /* NULL: malloc's memory, from a page boundary on */
    void (*release)(void *memory);
};

/* Serves orders until they end. Returns the program's exit status. */
int peer_serve(const struct peer *peer, const char *directory);

#endif
