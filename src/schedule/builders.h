/*
 * What the builders (one file per algorithm) share with schedule.c's table:
 * the request they serve, and their entry points. Not for other layers.
 */
#ifndef SCHEDULE_BUILDERS_H
#define SCHEDULE_BUILDERS_H

#include "schedule/schedule.h"

/* The most ranks (and hosts) of a schedule: beyond it 16-bit fields of struct step and slice may overflow. */
#define SCHEDULE_LARGEST_SIZE 4096

/* One rank's request, already checked. Ranks, root and shape are in range. */
struct build {
    polypath_collective_t collective;
    int size, rank, root;
    int nblocks;
    const struct schedule_shape *shape;
};

/* Adds the steps of one rank. Failures stick to the builder, so there is nothing to return. */
typedef void build_function(struct schedule_builder *b, const struct build *build);

build_function direct_all_reduce, direct_all_gather, direct_reduce_scatter, direct_broadcast, direct_reduce,
    direct_all_to_all, direct_gather, direct_scatter, direct_barrier;
build_function ring_all_reduce, ring_all_gather, ring_reduce_scatter, ring_broadcast, ring_reduce;
build_function halving_doubling_all_reduce, halving_doubling_all_gather, halving_doubling_reduce_scatter,
    halving_doubling_reduce;
build_function tree_all_reduce, tree_broadcast, tree_reduce, tree_gather, tree_scatter, tree_barrier;
build_function hierarchical_all_reduce, hierarchical_all_gather, hierarchical_reduce_scatter, hierarchical_broadcast,
    hierarchical_reduce, hierarchical_barrier;

/* Marks the builder as failed with a text of its own: for requests that do not fit the format's fields. */
void schedule_fail(struct schedule_builder *b, polypath_result_t code, const char *text);

static inline bool collective_reduces(polypath_collective_t collective)
{
    return collective == POLYPATH_COLLECTIVE_ALL_REDUCE || collective == POLYPATH_COLLECTIVE_REDUCE_SCATTER ||
           collective == POLYPATH_COLLECTIVE_REDUCE;
}

/* (rank + distance) mod size, for any distance in (-size, size]. */
static inline int rank_shift(int rank, int distance, int size)
{
    return (rank + distance + size) % size;
}

#endif
