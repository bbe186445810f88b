/*
 * The table of algorithms: which exist for which collective, and how a request
 * gets to its builder. Knows no algorithm's steps.
 */
#include "schedule/schedule.h"

#include <string.h>

#include "schedule/builders.h"
#include "system/error.h"

/* One line per (algorithm, collective). */
static const struct entry {
    enum schedule_algorithm algorithm;
    polypath_collective_t collective;
    build_function *build;
    bool rank_order; /* every element is one fold over ranks 0..size-1 (trivially so where nothing is reduced) */
    int most_ranks;  /* 0: SCHEDULE_LARGEST_SIZE. Less where a root needs about size^2 scratch slots */
} table[] = {
    {ALGORITHM_DIRECT, POLYPATH_COLLECTIVE_ALL_REDUCE, direct_all_reduce, true, 0},
    {ALGORITHM_DIRECT, POLYPATH_COLLECTIVE_ALL_GATHER, direct_all_gather, true, 0},
    {ALGORITHM_DIRECT, POLYPATH_COLLECTIVE_REDUCE_SCATTER, direct_reduce_scatter, true, 0},
    {ALGORITHM_DIRECT, POLYPATH_COLLECTIVE_BROADCAST, direct_broadcast, true, 0},
    {ALGORITHM_DIRECT, POLYPATH_COLLECTIVE_REDUCE, direct_reduce, true, 255},
    {ALGORITHM_DIRECT, POLYPATH_COLLECTIVE_ALL_TO_ALL, direct_all_to_all, true, 0},
    {ALGORITHM_DIRECT, POLYPATH_COLLECTIVE_GATHER, direct_gather, true, 0},
    {ALGORITHM_DIRECT, POLYPATH_COLLECTIVE_SCATTER, direct_scatter, true, 0},
    {ALGORITHM_DIRECT, POLYPATH_COLLECTIVE_BARRIER, direct_barrier, true, 0},
    {ALGORITHM_RING, POLYPATH_COLLECTIVE_ALL_REDUCE, ring_all_reduce, false, 0},
    {ALGORITHM_RING, POLYPATH_COLLECTIVE_ALL_GATHER, ring_all_gather, true, 0},
    {ALGORITHM_RING, POLYPATH_COLLECTIVE_REDUCE_SCATTER, ring_reduce_scatter, false, 0},
    {ALGORITHM_RING, POLYPATH_COLLECTIVE_BROADCAST, ring_broadcast, true, 0},
    {ALGORITHM_RING, POLYPATH_COLLECTIVE_REDUCE, ring_reduce, false, 0},
    {ALGORITHM_HALVING_DOUBLING, POLYPATH_COLLECTIVE_ALL_REDUCE, halving_doubling_all_reduce, false, 0},
    {ALGORITHM_HALVING_DOUBLING, POLYPATH_COLLECTIVE_ALL_GATHER, halving_doubling_all_gather, true, 0},
    {ALGORITHM_HALVING_DOUBLING, POLYPATH_COLLECTIVE_REDUCE_SCATTER, halving_doubling_reduce_scatter, false, 0},
    {ALGORITHM_HALVING_DOUBLING, POLYPATH_COLLECTIVE_REDUCE, halving_doubling_reduce, false, 0},
    {ALGORITHM_TREE, POLYPATH_COLLECTIVE_ALL_REDUCE, tree_all_reduce, false, 0},
    {ALGORITHM_TREE, POLYPATH_COLLECTIVE_BROADCAST, tree_broadcast, true, 0},
    {ALGORITHM_TREE, POLYPATH_COLLECTIVE_REDUCE, tree_reduce, false, 0},
    {ALGORITHM_TREE, POLYPATH_COLLECTIVE_GATHER, tree_gather, true, 0},
    {ALGORITHM_TREE, POLYPATH_COLLECTIVE_SCATTER, tree_scatter, true, 0},
    {ALGORITHM_TREE, POLYPATH_COLLECTIVE_BARRIER, tree_barrier, true, 0},
    {ALGORITHM_HIERARCHICAL, POLYPATH_COLLECTIVE_ALL_REDUCE, hierarchical_all_reduce, false, 0},
    {ALGORITHM_HIERARCHICAL, POLYPATH_COLLECTIVE_ALL_GATHER, hierarchical_all_gather, true, 0},
    {ALGORITHM_HIERARCHICAL, POLYPATH_COLLECTIVE_REDUCE_SCATTER, hierarchical_reduce_scatter, false, 0},
    {ALGORITHM_HIERARCHICAL, POLYPATH_COLLECTIVE_BROADCAST, hierarchical_broadcast, true, 0},
    {ALGORITHM_HIERARCHICAL, POLYPATH_COLLECTIVE_REDUCE, hierarchical_reduce, false, 255},
    {ALGORITHM_HIERARCHICAL, POLYPATH_COLLECTIVE_BARRIER, hierarchical_barrier, true, 0},
};

static const char *const algorithm_names[ALGORITHM_COUNT] = {
    [ALGORITHM_DIRECT] = "direct",
    [ALGORITHM_RING] = "ring",
    [ALGORITHM_HALVING_DOUBLING] = "halving_doubling",
    [ALGORITHM_TREE] = "tree",
    [ALGORITHM_HIERARCHICAL] = "hierarchical",
};

const char *polypath_collective_name(polypath_collective_t collective)
{
    static const char *const names[POLYPATH_COLLECTIVE_COUNT] = {
        [POLYPATH_COLLECTIVE_ALL_REDUCE] = "all_reduce",
        [POLYPATH_COLLECTIVE_ALL_GATHER] = "all_gather",
        [POLYPATH_COLLECTIVE_REDUCE_SCATTER] = "reduce_scatter",
        [POLYPATH_COLLECTIVE_BROADCAST] = "broadcast",
        [POLYPATH_COLLECTIVE_REDUCE] = "reduce",
        [POLYPATH_COLLECTIVE_ALL_TO_ALL] = "all_to_all",
        [POLYPATH_COLLECTIVE_GATHER] = "gather",
        [POLYPATH_COLLECTIVE_SCATTER] = "scatter",
        [POLYPATH_COLLECTIVE_SEND_RECV] = "send_recv",
        [POLYPATH_COLLECTIVE_BARRIER] = "barrier",
    };
    if ((int)collective < 0 || collective >= POLYPATH_COLLECTIVE_COUNT)
        return "unknown";
    return names[collective];
}

const char *schedule_algorithm_name(enum schedule_algorithm algorithm)
{
    if ((int)algorithm < 0 || algorithm >= ALGORITHM_COUNT)
        return "unknown";
    return algorithm_names[algorithm];
}

enum schedule_algorithm schedule_algorithm_by_name(const char *name)
{
    for (int a = 0; a < ALGORITHM_COUNT; a++)
        if (strcmp(algorithm_names[a], name) == 0)
            return (enum schedule_algorithm)a;
    return ALGORITHM_COUNT;
}

static const struct entry *find(polypath_collective_t collective, enum schedule_algorithm algorithm)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].collective == collective && table[i].algorithm == algorithm)
            return &table[i];
    return NULL;
}

static bool shape_valid(const struct schedule_shape *shape)
{
    if (shape->size < 1 || (shape->host && (shape->nhosts < 1 || shape->nhosts > SCHEDULE_LARGEST_SIZE)))
        return false;
    for (int r = 0; shape->host && r < shape->size; r++)
        if (shape->host[r] < 0 || shape->host[r] >= shape->nhosts)
            return false;
    return true;
}

bool schedule_supported(polypath_collective_t collective, enum schedule_algorithm algorithm,
                        const struct schedule_shape *shape)
{
    const struct entry *entry = find(collective, algorithm);
    if (!entry || !shape_valid(shape))
        return false;
    return shape->size <= (entry->most_ranks ? entry->most_ranks : SCHEDULE_LARGEST_SIZE);
}

bool schedule_rank_order(polypath_collective_t collective, enum schedule_algorithm algorithm)
{
    const struct entry *entry = find(collective, algorithm);
    return entry && entry->rank_order;
}

struct schedule *schedule_build(polypath_collective_t collective, enum schedule_algorithm algorithm,
                                const struct schedule_shape *shape, int rank, int root, bool scaled)
{
    if (!schedule_supported(collective, algorithm, shape)) {
        error_set(POLYPATH_ERROR_UNSUPPORTED, "no %s schedule for %s of %d ranks", schedule_algorithm_name(algorithm),
                  polypath_collective_name(collective), shape->size);
        return NULL;
    }
    if (rank < 0 || rank >= shape->size || root < 0 || root >= shape->size) {
        error_set(POLYPATH_ERROR_INTERNAL, "schedule for rank %d and root %d of %d ranks", rank, root, shape->size);
        return NULL;
    }
    struct build build = {.collective = collective,
                          .size = shape->size,
                          .rank = rank,
                          .root = root,
                          .nblocks = collective == POLYPATH_COLLECTIVE_BARRIER ? 0 : shape->size,
                          .shape = shape};
    struct schedule_builder *b =
        schedule_begin(collective, schedule_algorithm_name(algorithm), shape->size, rank, root, build.nblocks);
    if (scaled && collective_reduces(collective))
        schedule_scale_inputs(b);
    find(collective, algorithm)->build(b, &build);
    return schedule_finish(b);
}
