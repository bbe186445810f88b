/*
 * The schedule checker, second half: runs the joint graph on symbolic values.
 * A value is an expression over contributions ("block b of rank r's input"),
 * made unique by hash-consing, so that two ranks hold bit-identical results
 * exactly if they hold the same expression number. Proves: every output block
 * is written, holds every contribution exactly once, is finished by exactly one
 * FINAL fold, is scaled throughout or not at all, and is the same on all ranks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/check_graph.h"

enum { NOTHING = 0 }; /* the expression number of memory that was never written */

enum node_kind { NODE_LEAF, NODE_SCALE, NODE_FOLD };

struct node {
    uint8_t kind;
    bool final, scaled, finished; /* finished: this or something below is final */
    uint32_t block;
    uint32_t rank;  /* LEAF */
    uint32_t child; /* SCALE and FOLD: first of nchild entries of children */
    uint32_t nchild;
    uint32_t hash;
};

struct store {
    const struct graph *g;
    struct node *nodes;
    uint32_t count, capacity;
    uint32_t *children;
    size_t nchildren, child_capacity;
    uint64_t *members; /* per node, `words` each: whose contributions it holds */
    size_t words;
    uint32_t *table; /* open addressing, a power of two >= 2 * capacity */
    uint32_t mask;
};

static void store_free(struct store *s)
{
    free(s->nodes);
    free(s->children);
    free(s->members);
    free(s->table);
}

/* As many nodes as there can be: one per leaf that is read and one per step. */
static bool store_begin(struct store *s, const struct graph *g)
{
    size_t sources = 0;
    for (uint32_t i = 0; i < g->nsteps; i++)
        sources += graph_step(g, i)->nsrc;
    size_t capacity = sources + g->nsteps + 2, slots = 64;
    while (slots < 2 * capacity)
        slots *= 2;
    *s = (struct store){.g = g,
                        .count = 1,
                        .capacity = (uint32_t)capacity,
                        .child_capacity = sources + 1,
                        .words = ((size_t)g->size + 63) / 64,
                        .mask = (uint32_t)slots - 1};
    s->nodes = calloc(capacity, sizeof *s->nodes);
    s->children = calloc(sources + 1, sizeof *s->children);
    s->members = calloc(capacity * s->words, sizeof *s->members);
    s->table = calloc(slots, sizeof *s->table);
    return s->nodes && s->children && s->members && s->table;
}

static bool same_node(const struct store *s, const struct node *a, const struct node *b)
{
    return a->hash == b->hash && a->kind == b->kind && a->final == b->final && a->block == b->block &&
           a->rank == b->rank && a->nchild == b->nchild &&
           memcmp(&s->children[a->child], &s->children[b->child], a->nchild * sizeof *s->children) == 0;
}

/* The number of this expression; its children are the last ones of s->children and go if it is known already. */
static uint32_t intern(struct store *s, struct node node, const uint64_t *members)
{
    uint32_t hash = 2166136261u; /* FNV-1a over words */
    uint32_t words[] = {node.kind, node.final, node.block, node.rank};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        hash = (hash ^ words[i]) * 16777619u;
    for (uint32_t i = 0; i < node.nchild; i++)
        hash = (hash ^ s->children[node.child + i]) * 16777619u;
    node.hash = hash ^ hash >> 15;
    uint32_t slot = node.hash & s->mask;
    for (; s->table[slot]; slot = (slot + 1) & s->mask)
        if (same_node(s, &s->nodes[s->table[slot]], &node)) {
            s->nchildren = node.child;
            return s->table[slot];
        }
    s->table[slot] = s->count;
    s->nodes[s->count] = node;
    memcpy(&s->members[s->count * s->words], members, s->words * sizeof *members);
    return s->count++;
}

static uint32_t leaf(struct store *s, uint32_t rank, uint32_t block, uint64_t *members)
{
    memset(members, 0, s->words * sizeof *members);
    members[rank / 64] = UINT64_C(1) << (rank % 64);
    return intern(s, (struct node){.kind = NODE_LEAF, .rank = rank, .block = block, .child = (uint32_t)s->nchildren},
                  members);
}

/* A fold's children are on top of s->children. NOTHING, with the reason, if it may not be. */
static uint32_t fold(struct store *s, uint32_t step, uint32_t nchild, uint64_t *members)
{
    char text[STEP_TEXT_BYTES];
    uint32_t first = (uint32_t)s->nchildren - nchild;
    struct node node = {.kind = NODE_FOLD, .child = first, .nchild = nchild};
    node.final = graph_step(s->g, step)->flags & STEP_FINAL;
    memset(members, 0, s->words * sizeof *members);
    for (uint32_t k = 0; k < nchild; k++) {
        const struct node *child = &s->nodes[s->children[first + k]];
        const uint64_t *more = &s->members[s->children[first + k] * s->words];
        if (k == 0) {
            node.block = child->block;
            node.scaled = child->scaled;
        }
        const char *fault = child->finished                ? "folds what is final already"
                            : child->block != node.block   ? "folds contributions of different blocks"
                            : child->scaled != node.scaled ? "folds scaled and unscaled contributions"
                                                           : NULL;
        for (size_t w = 0; w < s->words; w++) {
            if (members[w] & more[w])
                fault = "folds a contribution a second time";
            members[w] |= more[w];
        }
        if (fault) {
            graph_fail(s->g, "%s %s", graph_step_text(s->g, step, text), fault);
            return NOTHING;
        }
    }
    node.finished = node.final;
    return intern(s, node, members);
}

static uint32_t scale(struct store *s, uint32_t step, uint32_t value, uint64_t *members)
{
    char text[STEP_TEXT_BYTES];
    const struct node *of = &s->nodes[value];
    if (of->kind != NODE_LEAF || of->rank != s->g->rank_of[step]) {
        graph_fail(s->g, "%s scales what is not its rank's own contribution", graph_step_text(s->g, step, text));
        return NOTHING;
    }
    memcpy(members, &s->members[value * s->words], s->words * sizeof *members);
    struct node node = {
        .kind = NODE_SCALE, .block = of->block, .scaled = true, .child = (uint32_t)s->nchildren, .nchild = 1};
    s->children[s->nchildren++] = value;
    return intern(s, node, members);
}

/* Runs every step once. memory: per location; sent: per step, what a SEND took along. */
static bool execute(struct store *s, bool in_place, uint32_t *memory, uint32_t *sent, uint64_t *members)
{
    const struct graph *g = s->g;
    char text[STEP_TEXT_BYTES];
    for (uint32_t p = 0; p < g->nsteps; p++) {
        uint32_t i = g->order[p], value = NOTHING, rank = g->rank_of[i];
        const struct step *step = graph_step(g, i);
        if (step->flags & STEP_TOKEN || !graph_live(g, i))
            continue;
        for (uint32_t k = 0; k < step->nsrc; k++) {
            value = memory[graph_location(g, rank, graph_source(g, i, k), in_place)];
            if (value == NOTHING)
                return graph_fail(g, "%s reads what was never written%s", graph_step_text(g, i, text),
                                  in_place ? ", in place" : "");
            if (step->kind == STEP_REDUCE)
                s->children[s->nchildren++] = value;
        }
        switch (step->kind) {
        case STEP_SEND: sent[i] = value; continue;
        case STEP_RECV: value = sent[g->partner[i]]; break;
        case STEP_REDUCE: value = fold(s, i, step->nsrc, members); break;
        case STEP_SCALE: value = scale(s, i, value, members); break;
        default: break;
        }
        if (value == NOTHING)
            return false; /* fold or scale has said why */
        memory[graph_location(g, rank, step->dst, in_place)] = value;
    }
    return true;
}

/* What the caller's buffers hold at the start: INPUT blocks that exist on this rank. */
static void fill_inputs(struct store *s, bool in_place, uint32_t *memory, uint64_t *members)
{
    const struct graph *g = s->g;
    for (uint32_t i = 0; i < g->nsteps; i++)
        for (uint32_t k = 0; k < graph_step(g, i)->nsrc; k++) {
            struct slice source = graph_source(g, i, k);
            if (source.buffer == SLICE_INPUT) /* that it may be read was checked with the structure */
                memory[graph_location(g, g->rank_of[i], source, in_place)] =
                    leaf(s, g->rank_of[i], source.block, members);
        }
}

static bool in_rank_order(const struct store *s, const struct node *node)
{
    for (uint32_t k = 0; k < node->nchild; k++) {
        const struct node *child = &s->nodes[s->children[node->child + k]];
        if (child->kind == NODE_SCALE)
            child = &s->nodes[s->children[child->child]];
        if (child->kind != NODE_LEAF || child->rank != k)
            return false;
    }
    return node->nchild == (uint32_t)s->g->size;
}

/* The finished value of a reducing collective's block. */
static bool check_reduced(const struct store *s, int rank, int block, uint32_t value, bool any_scaled, bool rank_order)
{
    const struct graph *g = s->g;
    const struct node *node = &s->nodes[value];
    for (int r = 0; r < g->size; r++)
        if (!(s->members[value * s->words + (size_t)r / 64] >> (r % 64) & 1))
            return graph_fail(g, "rank %d output block %d lacks the contribution of rank %d", rank, block, r);
    if (node->kind != NODE_FOLD || !node->final)
        return graph_fail(g, "rank %d output block %d was not folded with the final flag", rank, block);
    if (node->block != (uint32_t)block)
        return graph_fail(g, "rank %d output block %d holds block %u", rank, block, node->block);
    if (node->scaled != any_scaled)
        return graph_fail(g, "rank %d output block %d holds contributions that were not scaled", rank, block);
    if (rank_order && !in_rank_order(s, node))
        return graph_fail(g, "rank %d output block %d is not one fold in rank order", rank, block);
    return true;
}

/* The contribution that must end up, untouched, in this output block. */
static bool check_moved(const struct store *s, int rank, int block, uint32_t value)
{
    const struct graph *g = s->g;
    const struct node *node = &s->nodes[value];
    int from = block, of = block; /* AllGather, Gather */
    if (g->collective == POLYPATH_COLLECTIVE_BROADCAST || g->collective == POLYPATH_COLLECTIVE_SCATTER)
        from = g->root;
    else if (g->collective == POLYPATH_COLLECTIVE_ALL_TO_ALL)
        of = rank;
    if (node->kind != NODE_LEAF || node->rank != (uint32_t)from || node->block != (uint32_t)of)
        return graph_fail(g, "rank %d output block %d does not hold block %d of rank %d", rank, block, of, from);
    return true;
}

static bool output_expected(const struct graph *g, int rank, int block)
{
    switch (g->collective) {
    case POLYPATH_COLLECTIVE_REDUCE:
    case POLYPATH_COLLECTIVE_GATHER: return rank == g->root;
    case POLYPATH_COLLECTIVE_REDUCE_SCATTER:
    case POLYPATH_COLLECTIVE_SCATTER: return block == rank;
    default: return true;
    }
}

static bool check_outputs(const struct store *s, bool in_place, const uint32_t *memory, bool rank_order)
{
    const struct graph *g = s->g;
    bool reduces = g->collective == POLYPATH_COLLECTIVE_ALL_REDUCE || g->collective == POLYPATH_COLLECTIVE_REDUCE ||
                   g->collective == POLYPATH_COLLECTIVE_REDUCE_SCATTER;
    bool any_scaled = false;
    for (uint32_t i = 0; i < g->nsteps; i++)
        any_scaled |= graph_step(g, i)->kind == STEP_SCALE;
    for (int block = 0; block < g->nblocks; block++) {
        uint32_t common = NOTHING;
        for (int rank = 0; rank < g->size; rank++) {
            if (!output_expected(g, rank, block) || (g->only >= 0 && block != g->only))
                continue;
            struct slice output = slice_output(block);
            uint32_t value = memory[graph_location(g, (uint32_t)rank, output, in_place)];
            if (value == NOTHING)
                return graph_fail(g, "rank %d output block %d is never written", rank, block);
            if (reduces ? !check_reduced(s, rank, block, value, any_scaled, rank_order)
                        : !check_moved(s, rank, block, value))
                return false;
            if (reduces && common != NOTHING && value != common)
                return graph_fail(g, "output block %d is computed differently on rank %d than before it", block, rank);
            common = value;
        }
    }
    return true;
}

bool check_values(const struct graph *g, bool in_place, bool rank_order)
{
    struct store store;
    bool good = store_begin(&store, g);
    uint32_t *memory = calloc((size_t)g->location_base[g->size] + 1, sizeof *memory);
    uint32_t *sent = calloc((size_t)g->nsteps + 1, sizeof *sent);
    uint64_t *members = calloc(store.words, sizeof *members);
    if (!good || !memory || !sent || !members) {
        good = graph_fail(g, "out of memory");
        goto out;
    }
    fill_inputs(&store, in_place, memory, members);
    good = execute(&store, in_place, memory, sent, members) && check_outputs(&store, in_place, memory, rank_order);
out:
    store_free(&store);
    free(memory);
    free(sent);
    free(members);
    return good;
}
