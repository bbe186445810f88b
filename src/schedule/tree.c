/*
 * Tree algorithms: about log2(size) hops instead of one message per peer at
 * one rank. For small messages among many ranks.
 *
 * Ranks are numbered relative to the root. The tree is the binomial one, in
 * the form of Thakur, Rabenseifner and Gropp (IJHPCA 19(1), 2005): node v's
 * children are v + 2^k for 2^k below v's lowest set bit (any for the root),
 * and the subtree of v + 2^k is the 2^k nodes from there on. AllReduce is
 * Reduce to rank 0 followed by Broadcast. The barrier is the dissemination
 * barrier of Hensel, Finkel and Manber (IJPP 17(1), 1988).
 *
 * Rounding: an inner node folds its own contribution and its children's in
 * one step, so partial results are rounded to the element type once per level.
 * The order is that of the relative ranks, but nested: not one fold.
 */
#include "schedule/builders.h"

enum { MOST_CHILDREN = 16 }; /* log2 of the most ranks that a slice can number */

struct place {
    int parent;               /* rank; -1 at the root */
    int nchildren;            /* nearest first: subtrees of 1, 2, 4, ... nodes */
    int child[MOST_CHILDREN]; /* ranks */
    int extent;               /* nodes of the subtree of this rank: extent consecutive ranks from it (mod size) */
    int child_extent[MOST_CHILDREN];
};

static struct place find_place(const struct build *build, int root)
{
    int size = build->size, v = rank_shift(build->rank, -root, size);
    int bit = 1;
    struct place place = {.parent = -1};
    for (; bit < size && !(v & bit); bit <<= 1)
        if (v + bit < size) {
            place.child[place.nchildren] = (v + bit + root) % size;
            place.child_extent[place.nchildren++] = size - (v + bit) < bit ? size - (v + bit) : bit;
        }
    if (v)
        place.parent = ((v & ~bit) + root) % size;
    place.extent = 1;
    for (int k = 0; k < place.nchildren; k++)
        place.extent += place.child_extent[k];
    return place;
}

/*
 * Folds the children's partial results of `block` behind the own contribution
 * into dst. Returns the fold. In place this is safe with dst = OUTPUT, as the
 * fold is the only local reader of INPUT `block`.
 */
static uint32_t fold_children(struct schedule_builder *b, const struct place *place, int block, struct slice dst,
                              bool final)
{
    struct slice sources[MOST_CHILDREN + 1] = {slice_input(block)};
    uint32_t recvs[MOST_CHILDREN];
    for (int k = 0; k < place->nchildren; k++) {
        sources[k + 1] = schedule_scratch(b, block);
        recvs[k] = schedule_recv(b, place->child[k], sources[k + 1]);
    }
    uint32_t fold = schedule_reduce(b, dst, sources, place->nchildren + 1, final);
    for (int k = 0; k < place->nchildren; k++)
        schedule_after(b, recvs[k], fold);
    return fold;
}

/* Returns the step after which the root's OUTPUT `block` is complete; elsewhere it means nothing. */
static uint32_t reduce_block(struct schedule_builder *b, const struct place *place, int block, bool in_output)
{
    if (place->parent < 0)
        return fold_children(b, place, block, slice_output(block), true);
    if (place->nchildren == 0)
        return schedule_send(b, place->parent, slice_input(block));
    struct slice partial = in_output ? slice_output(block) : schedule_scratch(b, block);
    uint32_t fold = fold_children(b, place, block, partial, false);
    uint32_t send = schedule_send(b, place->parent, partial);
    schedule_after(b, fold, send);
    return send;
}

/* Largest subtree first, as it has the longest way to go. */
static void send_down(struct schedule_builder *b, const struct place *place, struct slice block, bool waits,
                      uint32_t ready)
{
    for (int k = place->nchildren - 1; k >= 0; k--) {
        uint32_t send = schedule_send(b, place->child[k], block);
        if (waits)
            schedule_after(b, ready, send);
    }
}

/* No tokens: the result of a block comes down only after every fold of that block on the way up. */
void tree_all_reduce(struct schedule_builder *b, const struct build *build)
{
    struct place place = find_place(build, 0);
    for (int block = 0; block < build->nblocks; block++) {
        uint32_t ready = reduce_block(b, &place, block, true);
        if (place.parent < 0)
            send_down(b, &place, slice_output(block), true, ready);
    }
    for (int block = 0; block < build->nblocks && place.parent >= 0; block++) {
        uint32_t recv = schedule_recv(b, place.parent, slice_output(block));
        send_down(b, &place, slice_output(block), true, recv);
    }
}

void tree_reduce(struct schedule_builder *b, const struct build *build)
{
    struct place place = find_place(build, build->root);
    for (int block = 0; block < build->nblocks; block++)
        reduce_block(b, &place, block, false);
    for (int k = 0; k < place.nchildren; k++)
        schedule_release(b, place.child[k]);
    if (place.parent >= 0)
        schedule_recv_token(b, place.parent);
}

void tree_broadcast(struct schedule_builder *b, const struct build *build)
{
    struct place place = find_place(build, build->root);
    for (int block = 0; block < build->nblocks; block++) {
        if (place.parent < 0) {
            send_down(b, &place, slice_input(block), false, 0);
            schedule_copy(b, slice_output(block), slice_input(block));
        } else {
            uint32_t recv = schedule_recv(b, place.parent, slice_output(block));
            send_down(b, &place, slice_output(block), true, recv);
        }
    }
}

/* Inner nodes pass their subtree's blocks through scratch, as only the root has an OUTPUT for them. */
void tree_gather(struct schedule_builder *b, const struct build *build)
{
    struct place place = find_place(build, build->root);
    if (place.parent < 0)
        schedule_copy(b, slice_output(build->rank), slice_input(build->rank));
    else
        schedule_send(b, place.parent, slice_input(build->rank));
    for (int k = 0; k < place.nchildren; k++)
        for (int i = 0; i < place.child_extent[k]; i++) {
            int block = rank_shift(place.child[k], i, build->size);
            if (place.parent < 0) {
                schedule_recv(b, place.child[k], slice_output(block));
                continue;
            }
            struct slice passing = schedule_scratch(b, block);
            uint32_t recv = schedule_recv(b, place.child[k], passing);
            schedule_after(b, recv, schedule_send(b, place.parent, passing));
        }
    if (place.parent < 0)
        return;
    for (int k = 0; k < place.nchildren; k++)
        schedule_release(b, place.child[k]);
    if (place.parent != build->root)
        schedule_recv_token(b, place.parent);
}

/* The same tree downwards: block by block in the order of the relative ranks, as the parent sends them. */
void tree_scatter(struct schedule_builder *b, const struct build *build)
{
    struct place place = find_place(build, build->root);
    if (place.parent < 0)
        schedule_copy(b, slice_output(build->rank), slice_input(build->rank));
    else
        schedule_recv(b, place.parent, slice_output(build->rank));
    for (int k = 0; k < place.nchildren; k++)
        for (int i = 0; i < place.child_extent[k]; i++) {
            int block = rank_shift(place.child[k], i, build->size);
            if (place.parent < 0) {
                schedule_send(b, place.child[k], slice_input(block));
                continue;
            }
            struct slice passing = schedule_scratch(b, block);
            uint32_t recv = schedule_recv(b, place.parent, passing);
            schedule_after(b, recv, schedule_send(b, place.child[k], passing));
        }
    if (place.parent >= 0 && place.nchildren > 0)
        schedule_release(b, place.parent);
    for (int k = 0; k < place.nchildren; k++)
        if (place.child_extent[k] > 1)
            schedule_recv_token(b, place.child[k]);
}

/* Round k tells rank + 2^k of everyone heard of so far. */
void tree_barrier(struct schedule_builder *b, const struct build *build)
{
    uint32_t heard[MOST_CHILDREN + 1];
    int rounds = 0;
    for (int distance = 1; distance < build->size; distance *= 2) {
        uint32_t send = schedule_send_token(b, rank_shift(build->rank, distance, build->size));
        for (int k = 0; k < rounds; k++)
            schedule_after(b, heard[k], send);
        heard[rounds++] = schedule_recv_token(b, rank_shift(build->rank, -distance, build->size));
    }
}
