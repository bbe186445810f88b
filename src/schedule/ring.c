/*
 * Ring algorithms: each rank sends to the next one only. Every link carries
 * the least possible number of bytes, at the price of size - 1 hops.
 *
 * AllReduce, AllGather and ReduceScatter are the bucket algorithms of Barnett,
 * Gupta, Payne, Shuler, van de Geijn and Watts (SHPCC 1994), whose optimality
 * in bytes Patarasuk and Yuan show (JPDC 69, 2009). Broadcast and Reduce are
 * the same ring cut open at the root, one block behind the other, so that all
 * links work at once.
 *
 * Rounding: a partial result is rounded to the element type at every hop, and
 * block b is folded in the order b+1, b+2, ..., b (mod size). Not in rank
 * order.
 */
#include "schedule/builders.h"

static int next_rank(const struct build *build)
{
    return rank_shift(build->rank, 1, build->size);
}

static int previous_rank(const struct build *build)
{
    return rank_shift(build->rank, -1, build->size);
}

/* Receives the partial result of `block`, folds the own contribution behind it into dst. Returns the fold. */
static uint32_t fold_hop(struct schedule_builder *b, const struct build *build, int block, struct slice dst, bool final)
{
    struct slice partial = schedule_scratch(b, block);
    uint32_t recv = schedule_recv(b, previous_rank(build), partial);
    uint32_t fold = schedule_reduce(b, dst, (struct slice[]){partial, slice_input(block)}, 2, final);
    schedule_after(b, recv, fold);
    return fold;
}

/*
 * Block b starts at rank b + 1 and ends, complete, at rank b in its OUTPUT.
 * `in_output`: partial results may stay in OUTPUT blocks (AllReduce). In place
 * that is safe, as the fold is the only local reader of INPUT b. Returns the
 * fold of the own block.
 */
static uint32_t reduce_around(struct schedule_builder *b, const struct build *build, bool in_output)
{
    int size = build->size, rank = build->rank;
    if (size == 1)
        return schedule_reduce(b, slice_output(0), (struct slice[]){slice_input(0)}, 1, true);
    schedule_send(b, next_rank(build), slice_input(previous_rank(build)));
    for (int k = 2; k < size; k++) {
        int block = rank_shift(rank, -k, size);
        struct slice partial = in_output ? slice_output(block) : schedule_scratch(b, block);
        uint32_t fold = fold_hop(b, build, block, partial, false);
        schedule_after(b, fold, schedule_send(b, next_rank(build), partial));
    }
    return fold_hop(b, build, rank, slice_output(rank), true);
}

/* The own block, ready in `own` after step `ready` (if `waits`), goes round; the others arrive in OUTPUT. */
static void gather_around(struct schedule_builder *b, const struct build *build, struct slice own, bool waits,
                          uint32_t ready)
{
    if (build->size == 1)
        return;
    uint32_t send = schedule_send(b, next_rank(build), own);
    if (waits)
        schedule_after(b, ready, send);
    for (int k = 1; k < build->size; k++) {
        struct slice block = slice_output(rank_shift(build->rank, -k, build->size));
        uint32_t recv = schedule_recv(b, previous_rank(build), block);
        if (k < build->size - 1)
            schedule_after(b, recv, schedule_send(b, next_rank(build), block));
    }
}

/* No tokens: a block's result reaches the rank that sent its partial only after the next rank has folded it. */
void ring_all_reduce(struct schedule_builder *b, const struct build *build)
{
    uint32_t fold = reduce_around(b, build, true);
    gather_around(b, build, slice_output(build->rank), true, fold);
}

void ring_reduce_scatter(struct schedule_builder *b, const struct build *build)
{
    reduce_around(b, build, false);
    if (build->size == 1)
        return;
    schedule_release(b, previous_rank(build));
    schedule_recv_token(b, next_rank(build));
}

void ring_all_gather(struct schedule_builder *b, const struct build *build)
{
    gather_around(b, build, slice_input(build->rank), false, 0);
    schedule_copy(b, slice_output(build->rank), slice_input(build->rank));
}

void ring_broadcast(struct schedule_builder *b, const struct build *build)
{
    bool last = next_rank(build) == build->root; /* true for the only rank, too */
    for (int block = 0; block < build->nblocks; block++) {
        if (build->rank == build->root) {
            if (!last)
                schedule_send(b, next_rank(build), slice_input(block));
            schedule_copy(b, slice_output(block), slice_input(block));
            continue;
        }
        uint32_t recv = schedule_recv(b, previous_rank(build), slice_output(block));
        if (!last)
            schedule_after(b, recv, schedule_send(b, next_rank(build), slice_output(block)));
    }
}

/* Here every block is folded in the order root+1, root+2, ..., root. */
void ring_reduce(struct schedule_builder *b, const struct build *build)
{
    bool last = build->rank == build->root, first = previous_rank(build) == build->root;
    for (int block = 0; block < build->nblocks; block++) {
        if (build->size == 1)
            schedule_reduce(b, slice_output(block), (struct slice[]){slice_input(block)}, 1, true);
        else if (first)
            schedule_send(b, next_rank(build), slice_input(block));
        else if (last)
            fold_hop(b, build, block, slice_output(block), true);
        else {
            struct slice partial = schedule_scratch(b, block);
            uint32_t fold = fold_hop(b, build, block, partial, false);
            schedule_after(b, fold, schedule_send(b, next_rank(build), partial));
        }
    }
    if (build->size == 1)
        return;
    if (!first)
        schedule_release(b, previous_rank(build));
    if (!last)
        schedule_recv_token(b, next_rank(build));
}
