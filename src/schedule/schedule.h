/*
 * Schedules: what one rank does for one collective, as pure data. No clock, no
 * I/O, no addresses.
 *
 * A collective's buffers are divided into *blocks* (for example one per rank
 * in AllReduce), and every block is cut alike into pieces; a *row* is the
 * same-numbered piece of every block. Rows are independent of each other, so a
 * schedule only says what happens to ONE row; the executor runs it for every
 * row, several at a time. Where the cuts lie, how large the message is and
 * which path carries which row is not the schedule's business: the order in
 * which an element's contributions are combined depends on its block and on
 * nothing else, so results do not depend on shares.
 *
 * Steps form a graph: a step runs when all its predecessors have. SEND and
 * RECV of a pair of ranks are matched by `message`, their ordinal within the
 * pair (filled in by schedule_finish()).
 *
 * Contracts, proven for every builder by schedule_check() (check.h):
 *  - every output element gets every contribution exactly once, in the
 *    documented order;
 *  - no deadlock;
 *  - ready receives: when a message can have been sent, its receiver's
 *    predecessors of the RECV are already complete (so an executor may always
 *    accept what arrives);
 *  - scratch safety: when a rank has finished a row, every scratch slot that
 *    its messages of that row filled at other ranks has been consumed. So the
 *    executor may start row r + W as soon as row r is finished and needs
 *    scratch for W rows only, without any further flow control. Builders use
 *    token messages where the data flow does not already give this.
 */
#ifndef SCHEDULE_SCHEDULE_H
#define SCHEDULE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "polypath/polypath.h"

enum step_kind {
    STEP_SEND,   /* src[0] to peer */
    STEP_RECV,   /* from peer into dst */
    STEP_REDUCE, /* dst = fold of src[0..nsrc) in this order; STEP_FINAL: the last fold of these elements */
    STEP_COPY,   /* dst = src[0] */
    STEP_SCALE,  /* dst = src[0] * the rank's scalar (scaled sums) */
    STEP_ERROR   /* never in a finished schedule */
};

enum step_flag {
    STEP_FINAL = 1, /* REDUCE: divide here if the op is an average */
    STEP_TOKEN = 2, /* SEND/RECV: no payload */
    STEP_ROOTED = 4 /* reserved for delegated paths */
};

enum slice_buffer {
    SLICE_NONE,   /* tokens */
    SLICE_INPUT,  /* block `index` of the caller's send buffer */
    SLICE_OUTPUT, /* block `index` of the caller's receive buffer */
    SLICE_SCRATCH /* slot `index` of the row's scratch; as long as block `block` */
};

struct slice {
    uint8_t buffer;
    uint16_t index;
    uint16_t block; /* which block's piece this is: gives the length. = index for INPUT and OUTPUT */
};

struct step {
    uint8_t kind;
    uint8_t flags;
    uint16_t message; /* SEND/RECV: ordinal within the (sender, receiver) pair */
    int32_t peer;     /* SEND/RECV */
    struct slice dst;
    uint32_t source; /* first of nsrc entries of schedule.sources */
    uint16_t nsrc;
    uint16_t waits; /* number of predecessors */
    uint32_t next;  /* first of nnext entries of schedule.successors */
    uint32_t nnext;
};

struct schedule {
    polypath_collective_t collective;
    const char *algorithm;
    int rank, size, root;
    int nblocks;
    int nsteps;
    int nscratch; /* scratch slots of a row */
    struct step *steps;
    struct slice *sources;
    uint32_t nsources;
    uint32_t *successors; /* step indices */
    uint32_t nsuccessors;
    int *first_recv; /* per peer: RECV steps from peer p in message order are recvs[first_recv[p] .. first_recv[p+1]) */
    uint32_t *recvs;
    /* per scratch slot: how many steps read it (an executor may drop it after the last) */
    uint16_t *scratch_reads;
};

/*
 * Where ranks sit, for hierarchical schedules: host[r] in [0, nhosts). NULL
 * host means all on one. Owned by the caller, read during building only.
 */
struct schedule_shape {
    int size;
    int nhosts;
    const int *host;
};

enum schedule_algorithm {
    ALGORITHM_DIRECT,
    ALGORITHM_RING,
    ALGORITHM_HALVING_DOUBLING,
    ALGORITHM_TREE,
    ALGORITHM_HIERARCHICAL,
    ALGORITHM_COUNT
};

const char *schedule_algorithm_name(enum schedule_algorithm algorithm);

/* ALGORITHM_COUNT if there is none of that name. */
enum schedule_algorithm schedule_algorithm_by_name(const char *name);

/* Whether (collective, algorithm) exists for this shape. */
bool schedule_supported(polypath_collective_t collective, enum schedule_algorithm algorithm,
                        const struct schedule_shape *shape);

/*
 * Whether the algorithm folds every element in rank order (0, 1, ... size-1),
 * each in one step with float32 accumulation: what `reproducible` asks for.
 */
bool schedule_rank_order(polypath_collective_t collective, enum schedule_algorithm algorithm);

/*
 * Builds the schedule of one rank. `scaled`: contributions pass through a
 * STEP_SCALE first (where something is reduced; without meaning elsewhere). An
 * executor may leave out the messages of empty blocks at both ends, but never
 * tokens. The block structure is the collective's:
 *   AllReduce, Reduce       : `size` blocks, the same in input and output
 *   Broadcast               : `size` blocks (so that scatter + allgather forms exist)
 *   AllGather(V)            : input block 0..size-1 (only `rank` is read), output block r = rank r's
 *   ReduceScatter(V)        : input block r goes to rank r; output: only block `rank`
 *   AllToAll(V)             : input block j to rank j, output block i from rank i
 *   Gather                  : input: block `rank`; output blocks at the root
 *   Scatter                 : input blocks at the root; output: block `rank`
 *   Barrier                 : no blocks, tokens only
 * (SEND_RECV has no builder: see schedule_begin.)
 * Returns NULL with the error text set if unsupported or out of memory. The
 * caller frees it by schedule_free().
 */
struct schedule *schedule_build(polypath_collective_t collective, enum schedule_algorithm algorithm,
                                const struct schedule_shape *shape, int rank, int root, bool scaled);

void schedule_free(struct schedule *schedule);

/* ---- for builders (one file per algorithm) and for point-to-point groups */

struct schedule_builder; /* grows arrays; remembers out-of-memory */

struct schedule_builder *schedule_begin(polypath_collective_t collective, const char *algorithm, int size, int rank,
                                        int root, int nblocks);

/* Each returns the new step's index. */
uint32_t schedule_send(struct schedule_builder *b, int peer, struct slice src);
uint32_t schedule_recv(struct schedule_builder *b, int peer, struct slice dst);
uint32_t schedule_send_token(struct schedule_builder *b, int peer);
uint32_t schedule_recv_token(struct schedule_builder *b, int peer);
uint32_t schedule_reduce(struct schedule_builder *b, struct slice dst, const struct slice *src, int nsrc, bool final);
uint32_t schedule_copy(struct schedule_builder *b, struct slice dst, struct slice src);
uint32_t schedule_scale(struct schedule_builder *b, struct slice dst, struct slice src);

/*
 * From now on every SEND, REDUCE and COPY that reads an INPUT block reads a
 * scratch slot instead, which one STEP_SCALE per block fills beforehand.
 */
void schedule_scale_inputs(struct schedule_builder *b);

/*
 * A token to `peer` that says: all scratch which your messages filled here has
 * been read. It waits for every reader added so far. For builders whose data
 * flow does not tell the sender this; the sender adds schedule_recv_token().
 */
uint32_t schedule_release(struct schedule_builder *b, int peer);

/* `after` may run only when `before` has. Duplicate pairs are allowed (and kept once). */
void schedule_after(struct schedule_builder *b, uint32_t before, uint32_t after);

/* A fresh scratch slot as long as block `block`. */
struct slice schedule_scratch(struct schedule_builder *b, int block);

static inline struct slice slice_input(int block)
{
    return (struct slice){SLICE_INPUT, (uint16_t)block, (uint16_t)block};
}
static inline struct slice slice_output(int block)
{
    return (struct slice){SLICE_OUTPUT, (uint16_t)block, (uint16_t)block};
}

/* Ends building: numbers the messages, fills the derived arrays, frees the builder. NULL on out of memory. */
struct schedule *schedule_finish(struct schedule_builder *b);

#endif
