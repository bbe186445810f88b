/*
 * Recursive halving and doubling: log2(size) exchanges between ranks whose
 * numbers differ in one bit, with as few bytes as a ring.
 *
 * ReduceScatter by recursive halving, AllGather by recursive doubling,
 * AllReduce as both: Rabenseifner (ICCS 2004); Thakur, Rabenseifner and Gropp
 * (IJHPCA 19(1), 2005), from whom also comes the rule for other sizes than
 * powers of two: of the first 2 * (size - 2^k) ranks every odd one hands its
 * contributions to its left neighbour and sits the exchanges out.
 *
 * Exchanges start with neighbours (distance 1, 2, 4, ...), so that most bytes
 * travel between ranks that are likely to share a host, and partial results
 * cover consecutive ranks. The gathering half goes back the same way.
 *
 * Rounding: contributions are held back until they must be sent or finished
 * and then folded in one step, in rank order. So a partial result is rounded
 * to the element type only when it is sent. Nested, so not one fold.
 */
#include <stdlib.h>

#include "schedule/builders.h"

enum { MOST_PARTS = 20 }; /* own, neighbour's, one per exchange: 2 + log2 of the most ranks */

/* What this rank holds of one block but has not folded yet, in rank order. */
struct held {
    int nparts;
    struct slice part[MOST_PARTS];
    uint32_t recv[MOST_PARTS]; /* the step that brings the part; unused for the own INPUT */
};

struct halving {
    struct schedule_builder *b;
    const struct build *build;
    int active, spare; /* ranks in the exchanges: a power of two; ranks that sit them out */
    int self;          /* number among the active ones */
    bool in_output;    /* partial results may be kept in OUTPUT blocks */
    struct held *held; /* per block */
};

/* The active number that stands for `rank`. */
static int active_number(const struct halving *h, int rank)
{
    return rank < 2 * h->spare ? rank / 2 : rank - h->spare;
}

static int active_rank(const struct halving *h, int number)
{
    return number < h->spare ? 2 * number : number + h->spare;
}

static struct halving halving_begin(struct schedule_builder *b, const struct build *build, bool in_output)
{
    struct halving h = {.b = b, .build = build, .active = 1, .in_output = in_output};
    while (h.active * 2 <= build->size)
        h.active *= 2;
    h.spare = build->size - h.active;
    h.self = active_number(&h, build->rank);
    return h;
}

static bool sits_out(const struct halving *h, int rank)
{
    return rank < 2 * h->spare && rank % 2 == 1;
}

/* The rank that sits out for `rank`; -1 if there is none. */
static int spare_neighbour(const struct halving *h, int rank)
{
    return rank < 2 * h->spare && rank % 2 == 0 ? rank + 1 : -1;
}

/* Receives a part of `block` that belongs before (lower ranks) or behind what is held. */
static void hold(struct halving *h, int peer, int block, bool in_front)
{
    struct held *held = &h->held[block];
    int at = in_front ? 0 : held->nparts;
    for (int i = held->nparts; i > at; i--) {
        held->part[i] = held->part[i - 1];
        held->recv[i] = held->recv[i - 1];
    }
    held->part[at] = schedule_scratch(h->b, block);
    held->recv[at] = schedule_recv(h->b, peer, held->part[at]);
    held->nparts++;
}

static uint32_t fold_held(struct halving *h, int block, struct slice dst, bool final)
{
    struct held *held = &h->held[block];
    uint32_t fold = schedule_reduce(h->b, dst, held->part, held->nparts, final);
    for (int i = 0; i < held->nparts; i++)
        if (held->part[i].buffer == SLICE_SCRATCH)
            schedule_after(h->b, held->recv[i], fold);
    return fold;
}

/* Sends what is held of `block`. In place OUTPUT is safe: this fold is the only local reader of INPUT `block`. */
static void send_held(struct halving *h, int peer, int block)
{
    if (h->held[block].nparts == 1) {
        schedule_send(h->b, peer, slice_input(block));
        return;
    }
    struct slice partial = h->in_output ? slice_output(block) : schedule_scratch(h->b, block);
    uint32_t fold = fold_held(h, block, partial, false);
    schedule_after(h->b, fold, schedule_send(h->b, peer, partial));
}

/* Recursive halving: afterwards an active rank holds all parts of the blocks that it stands for. */
static void halve(struct halving *h)
{
    int nblocks = h->build->nblocks, rank = h->build->rank;
    for (int block = 0; block < nblocks; block++) {
        h->held[block].nparts = 1;
        h->held[block].part[0] = slice_input(block);
        if (sits_out(h, rank))
            send_held(h, rank - 1, block);
        else if (spare_neighbour(h, rank) >= 0)
            hold(h, rank + 1, block, false);
    }
    for (int bit = 1; bit < h->active && !sits_out(h, rank); bit *= 2) {
        int peer = active_rank(h, h->self ^ bit);
        for (int block = 0; block < nblocks; block++)
            if (((active_number(h, block) ^ h->self) & (2 * bit - 1)) == bit)
                send_held(h, peer, block);
        for (int block = 0; block < nblocks; block++)
            if (((active_number(h, block) ^ h->self) & (2 * bit - 1)) == 0)
                hold(h, peer, block, (h->self & bit) != 0);
    }
}

/* Tokens along the ways that halve() used. */
static void release_all(struct halving *h)
{
    int rank = h->build->rank;
    if (sits_out(h, rank)) {
        schedule_recv_token(h->b, rank - 1);
        return;
    }
    if (spare_neighbour(h, rank) >= 0)
        schedule_release(h->b, rank + 1);
    for (int bit = 1; bit < h->active; bit *= 2) {
        schedule_release(h->b, active_rank(h, h->self ^ bit));
        schedule_recv_token(h->b, active_rank(h, h->self ^ bit));
    }
}

/* A block that is ready to be passed on: where it is, and after which step. */
struct ready {
    struct slice slice;
    bool waits;
    uint32_t step;
};

static void send_ready(struct halving *h, int peer, const struct ready *ready)
{
    uint32_t send = schedule_send(h->b, peer, ready->slice);
    if (ready->waits)
        schedule_after(h->b, ready->step, send);
}

static void receive_ready(struct halving *h, int peer, int block, struct ready *ready)
{
    *ready = (struct ready){slice_output(block), true, 0};
    ready->step = schedule_recv(h->b, peer, ready->slice);
}

/*
 * Recursive doubling: ready[] has the blocks that this rank stands for.
 * `keep_own`: a rank that sits out has its own block already (AllGather).
 */
static void gather_doubling(struct halving *h, struct ready *ready, bool keep_own)
{
    int nblocks = h->build->nblocks, rank = h->build->rank;
    for (int bit = h->active / 2; bit >= 1 && !sits_out(h, rank); bit /= 2) {
        int peer = active_rank(h, h->self ^ bit);
        for (int block = 0; block < nblocks; block++)
            if (((active_number(h, block) ^ h->self) & (2 * bit - 1)) == 0)
                send_ready(h, peer, &ready[block]);
        for (int block = 0; block < nblocks; block++)
            if (((active_number(h, block) ^ h->self) & (2 * bit - 1)) == bit)
                receive_ready(h, peer, block, &ready[block]);
    }
    int spare = spare_neighbour(h, rank);
    for (int block = 0; block < nblocks; block++)
        if (spare >= 0 && !(keep_own && block == spare))
            send_ready(h, spare, &ready[block]);
        else if (sits_out(h, rank) && !(keep_own && block == rank))
            schedule_recv(h->b, rank - 1, slice_output(block));
}

/* No tokens: a block's result depends on every fold of that block and reaches every rank. */
void halving_doubling_all_reduce(struct schedule_builder *b, const struct build *build)
{
    struct halving h = halving_begin(b, build, true);
    struct ready *ready = calloc((size_t)build->nblocks, sizeof *ready);
    h.held = calloc((size_t)build->nblocks, sizeof *h.held);
    if (!ready || !h.held) {
        schedule_fail(b, POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        goto out;
    }
    halve(&h);
    for (int block = 0; block < build->nblocks; block++)
        if (!sits_out(&h, build->rank) && active_number(&h, block) == h.self)
            ready[block] = (struct ready){slice_output(block), true, fold_held(&h, block, slice_output(block), true)};
    gather_doubling(&h, ready, false);
out:
    free(ready);
    free(h.held);
}

void halving_doubling_all_gather(struct schedule_builder *b, const struct build *build)
{
    struct halving h = halving_begin(b, build, false);
    struct ready *ready = calloc((size_t)build->nblocks, sizeof *ready);
    if (!ready) {
        schedule_fail(b, POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        return;
    }
    ready[build->rank] = (struct ready){.slice = slice_input(build->rank)};
    if (sits_out(&h, build->rank))
        send_ready(&h, build->rank - 1, &ready[build->rank]);
    else if (spare_neighbour(&h, build->rank) >= 0)
        receive_ready(&h, build->rank + 1, build->rank + 1, &ready[build->rank + 1]);
    gather_doubling(&h, ready, true);
    schedule_copy(b, slice_output(build->rank), slice_input(build->rank));
    free(ready);
}

/* Finishes `block`, which this rank stands for, and sends it to `target` if that is another rank. */
static void deliver(struct halving *h, int block, int target)
{
    if (target == h->build->rank) {
        fold_held(h, block, slice_output(block), true);
        return;
    }
    struct slice result = schedule_scratch(h->b, block);
    uint32_t fold = fold_held(h, block, result, true);
    schedule_after(h->b, fold, schedule_send(h->b, target, result));
}

/* Halving, then block b to rank `root`, or to rank b if root is -1. */
static void halve_and_deliver(struct schedule_builder *b, const struct build *build, int root)
{
    struct halving h = halving_begin(b, build, false);
    h.held = calloc((size_t)build->nblocks, sizeof *h.held);
    if (!h.held) {
        schedule_fail(b, POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        return;
    }
    halve(&h);
    for (int block = 0; block < build->nblocks; block++) {
        int holder = active_rank(&h, active_number(&h, block)), target = root < 0 ? block : root;
        if (holder == build->rank)
            deliver(&h, block, target);
        else if (target == build->rank)
            schedule_recv(b, holder, slice_output(block));
    }
    release_all(&h);
    free(h.held);
}

void halving_doubling_reduce_scatter(struct schedule_builder *b, const struct build *build)
{
    halve_and_deliver(b, build, -1);
}

/* Rabenseifner's Reduce; the pieces go to the root directly, not by a tree, so that they need no scratch on the way. */
void halving_doubling_reduce(struct schedule_builder *b, const struct build *build)
{
    halve_and_deliver(b, build, build->root);
}
