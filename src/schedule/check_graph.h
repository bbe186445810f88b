/*
 * What the two halves of the checker share: the joint graph of all ranks'
 * steps (check.c), and the values that flow through it (check_values.c).
 */
#ifndef SCHEDULE_CHECK_GRAPH_H
#define SCHEDULE_CHECK_GRAPH_H

#include "schedule/schedule.h"

#define NO_STEP UINT32_MAX

/*
 * Steps of all ranks have one numbering: rank r's step i is base[r] + i.
 * Ancestor sets are bitsets over positions in one topological order, so a set
 * never reaches beyond its own step's word.
 */
struct graph {
    const struct schedule *const *schedules;
    int size, root, nblocks;
    int only; /* the one block that is not empty; -1: all are not */
    polypath_collective_t collective;
    uint32_t nsteps;
    uint32_t *base;     /* size + 1 entries */
    uint32_t *rank_of;  /* per step */
    uint32_t *partner;  /* SEND: its RECV and the other way round; else NO_STEP */
    uint32_t *order;    /* steps in topological order */
    uint32_t *position; /* the inverse of order */
    size_t words;       /* of one set */
    uint64_t *ancestors;
    uint32_t *location_base; /* per rank, size + 1 entries: INPUT blocks, OUTPUT blocks, scratch slots */
    char *why;
    size_t why_bytes;
};

/* Writes the reason (printf format) and returns false. */
bool graph_fail(const struct graph *g, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "rank 2 step 7 (recv from 1)": for reasons. `text` has room for STEP_TEXT_BYTES. */
#define STEP_TEXT_BYTES 96
const char *graph_step_text(const struct graph *g, uint32_t step, char *text);

static inline const struct step *graph_step(const struct graph *g, uint32_t step)
{
    uint32_t rank = g->rank_of[step];
    return &g->schedules[rank]->steps[step - g->base[rank]];
}

static inline struct slice graph_source(const struct graph *g, uint32_t step, uint32_t k)
{
    return g->schedules[g->rank_of[step]]->sources[graph_step(g, step)->source + k];
}

/* Whether the step moves any bytes; tokens count. */
static inline bool graph_live(const struct graph *g, uint32_t step)
{
    const struct step *s = graph_step(g, step);
    if (g->only < 0 || s->flags & STEP_TOKEN)
        return true;
    return (s->kind == STEP_SEND ? graph_source(g, step, 0) : s->dst).block == g->only;
}

/* Whether the memory of INPUT block `block` of `rank` is that of OUTPUT block `block` when the call is in place. */
bool graph_aliased(const struct graph *g, int rank, int block);

/* A number for the memory that a slice of `rank` names. */
static inline uint32_t graph_location(const struct graph *g, uint32_t rank, struct slice slice, bool in_place)
{
    uint32_t nblocks = (uint32_t)g->nblocks;
    uint32_t base = g->location_base[rank] + slice.index;
    switch (slice.buffer) {
    case SLICE_INPUT: return in_place && graph_aliased(g, (int)rank, slice.index) ? base + nblocks : base;
    case SLICE_OUTPUT: return base + nblocks;
    default: return base + 2 * nblocks;
    }
}

/*
 * Runs the schedules symbolically, in the graph's order, and checks what ends
 * up in the outputs. The graph must be free of races in the given mode.
 */
bool check_values(const struct graph *g, bool in_place, bool rank_order);

#endif
