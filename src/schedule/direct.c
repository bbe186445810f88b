/*
 * Direct algorithms: every contribution goes straight from the rank that has
 * it to the rank that needs it, and an element is folded in one n-ary step, in
 * rank order, with a single rounding. They take the fewest hops and are what
 * bit-reproducible results rest on. Knows nothing of where ranks sit.
 *
 * The pairwise exchange is the "spread-out" order of Bruck, Ho, Kipnis, Upfal
 * and Weathersby, "Efficient algorithms for all-to-all communications in
 * multiport message-passing systems" (IEEE TPDS 8(11), 1997): rank r sends to
 * r+1, r+2, ... and so receives from r-1, r-2, ..., so that no rank is
 * everybody's target at once. AllReduce as reduce-scatter and all-gather is
 * Rabenseifner's composition (ICCS 2004).
 */
#include <stdlib.h>

#include "schedule/builders.h"

/*
 * Receives the other ranks' contributions to block `block` into scratch, then
 * folds all in rank order into OUTPUT. Returns the fold. In place this is
 * safe because the fold itself is the only local reader of INPUT `block`.
 */
static uint32_t fold_in_rank_order(struct schedule_builder *b, const struct build *build, int block)
{
    int size = build->size, rank = build->rank;
    struct slice *sources = calloc((size_t)size, sizeof *sources);
    uint32_t *recvs = calloc((size_t)size, sizeof *recvs);
    uint32_t fold = 0;
    if (!sources || !recvs) {
        schedule_fail(b, POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        goto out;
    }
    sources[rank] = slice_input(block);
    for (int k = 1; k < size; k++) {
        int peer = rank_shift(rank, -k, size);
        sources[peer] = schedule_scratch(b, block);
        recvs[peer] = schedule_recv(b, peer, sources[peer]);
    }
    fold = schedule_reduce(b, slice_output(block), sources, size, true);
    for (int k = 1; k < size; k++)
        schedule_after(b, recvs[rank_shift(rank, k, size)], fold);
out:
    free(sources);
    free(recvs);
    return fold;
}

/* The first half of AllReduce, all of ReduceScatter but its tokens: block j to rank j. Returns the fold. */
static uint32_t scatter_and_fold(struct schedule_builder *b, const struct build *build)
{
    for (int k = 1; k < build->size; k++) {
        int peer = rank_shift(build->rank, k, build->size);
        schedule_send(b, peer, slice_input(peer));
    }
    return fold_in_rank_order(b, build, build->rank);
}

/*
 * No tokens: rank j's result comes back to every rank that filled scratch at
 * j, after j has folded it. In place: the result of block j overwrites INPUT
 * j, which was read by the send that the result depends on.
 */
void direct_all_reduce(struct schedule_builder *b, const struct build *build)
{
    uint32_t fold = scatter_and_fold(b, build);
    for (int k = 1; k < build->size; k++) {
        uint32_t send = schedule_send(b, rank_shift(build->rank, k, build->size), slice_output(build->rank));
        schedule_after(b, fold, send);
    }
    for (int k = 1; k < build->size; k++) {
        int peer = rank_shift(build->rank, -k, build->size);
        schedule_recv(b, peer, slice_output(peer));
    }
}

void direct_reduce_scatter(struct schedule_builder *b, const struct build *build)
{
    scatter_and_fold(b, build);
    for (int k = 1; k < build->size; k++)
        schedule_release(b, rank_shift(build->rank, k, build->size));
    for (int k = 1; k < build->size; k++)
        schedule_recv_token(b, rank_shift(build->rank, -k, build->size));
}

void direct_all_gather(struct schedule_builder *b, const struct build *build)
{
    for (int k = 1; k < build->size; k++)
        schedule_send(b, rank_shift(build->rank, k, build->size), slice_input(build->rank));
    schedule_copy(b, slice_output(build->rank), slice_input(build->rank));
    for (int k = 1; k < build->size; k++) {
        int peer = rank_shift(build->rank, -k, build->size);
        schedule_recv(b, peer, slice_output(peer));
    }
}

void direct_broadcast(struct schedule_builder *b, const struct build *build)
{
    for (int block = 0; block < build->nblocks; block++) {
        if (build->rank != build->root) {
            schedule_recv(b, build->root, slice_output(block));
            continue;
        }
        /* the first target moves with the block, so that all ranks get their first bytes early */
        for (int k = 0; k < build->size - 1; k++)
            schedule_send(b, rank_shift(build->root, 1 + (block + k) % (build->size - 1), build->size),
                          slice_input(block));
        schedule_copy(b, slice_output(block), slice_input(block));
    }
}

/* One token per contributor, after the last block: the root's folds are what tells it that its scratch is free. */
void direct_reduce(struct schedule_builder *b, const struct build *build)
{
    if (build->rank != build->root) {
        for (int k = 0; k < build->nblocks; k++)
            schedule_send(b, build->root, slice_input(k));
        schedule_recv_token(b, build->root);
        return;
    }
    for (int block = 0; block < build->nblocks; block++)
        fold_in_rank_order(b, build, block);
    for (int k = 1; k < build->size; k++)
        schedule_release(b, rank_shift(build->rank, k, build->size));
}

void direct_all_to_all(struct schedule_builder *b, const struct build *build)
{
    for (int k = 1; k < build->size; k++) {
        int peer = rank_shift(build->rank, k, build->size);
        schedule_send(b, peer, slice_input(peer));
    }
    schedule_copy(b, slice_output(build->rank), slice_input(build->rank));
    for (int k = 1; k < build->size; k++) {
        int peer = rank_shift(build->rank, -k, build->size);
        schedule_recv(b, peer, slice_output(peer));
    }
}

void direct_gather(struct schedule_builder *b, const struct build *build)
{
    if (build->rank != build->root) {
        schedule_send(b, build->root, slice_input(build->rank));
        return;
    }
    schedule_copy(b, slice_output(build->rank), slice_input(build->rank));
    for (int k = 1; k < build->size; k++) {
        int peer = rank_shift(build->rank, k, build->size);
        schedule_recv(b, peer, slice_output(peer));
    }
}

void direct_scatter(struct schedule_builder *b, const struct build *build)
{
    if (build->rank != build->root) {
        schedule_recv(b, build->root, slice_output(build->rank));
        return;
    }
    for (int k = 1; k < build->size; k++) {
        int peer = rank_shift(build->rank, k, build->size);
        schedule_send(b, peer, slice_input(peer));
    }
    schedule_copy(b, slice_output(build->rank), slice_input(build->rank));
}

void direct_barrier(struct schedule_builder *b, const struct build *build)
{
    for (int k = 1; k < build->size; k++)
        schedule_send_token(b, rank_shift(build->rank, k, build->size));
    for (int k = 1; k < build->size; k++)
        schedule_recv_token(b, rank_shift(build->rank, -k, build->size));
}
