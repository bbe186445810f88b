/*
 * How the buffers of a collective divide: into a block per rank or not, and a
 * block into a part per rank. For all that moves collectives past a schedule.
 */
#ifndef EXECUTE_BLOCKS_H
#define EXECUTE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

#include "polypath/polypath.h"

#define LINE 64u /* of a cache */

/* Whether what a rank puts in is a block for every rank. */
static inline bool input_per_rank(polypath_collective_t collective)
{
    return collective == POLYPATH_COLLECTIVE_REDUCE_SCATTER || collective == POLYPATH_COLLECTIVE_ALL_TO_ALL ||
           collective == POLYPATH_COLLECTIVE_SCATTER;
}

/* Whether what a rank gets is a block of every rank. */
static inline bool output_per_rank(polypath_collective_t collective)
{
    return collective == POLYPATH_COLLECTIVE_ALL_GATHER || collective == POLYPATH_COLLECTIVE_ALL_TO_ALL ||
           collective == POLYPATH_COLLECTIVE_GATHER;
}

struct part {
    size_t offset, bytes;
};

/* Cuts `bytes` into parts of whole lines, one per rank, as even as can be: the part of rank r. */
static inline struct part part_of_rank(size_t bytes, int size, int r)
{
    const size_t stride = (size_t)size * LINE, each = (bytes + stride - 1) / stride * LINE;
    const size_t first = (size_t)r * each, offset = first < bytes ? first : bytes;
    return (struct part){offset, each < bytes - offset ? each : bytes - offset};
}

#endif
