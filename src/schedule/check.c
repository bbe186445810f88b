/*
 * The schedule checker, first half: joins the ranks' schedules into one graph
 * (local edges, and an edge from every SEND to its RECV) and proves about it
 * what needs no values: well-formed, matched, free of deadlock, ready receives,
 * free of races with and without in-place buffers, scratch safety. The second
 * half (check_values.c) follows the data.
 *
 * "a happens before b" is reachability in the joint graph: the happened-before
 * relation of Lamport (CACM 21(7), 1978), kept as one bitset per step.
 * Because two accesses to the same memory of which one writes must be ordered,
 * every order of execution gives the same values, so that the second half may
 * run any one of them.
 */
#include "schedule/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "schedule/check_graph.h"

bool graph_fail(const struct graph *g, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (g->why_bytes)
        vsnprintf(g->why, g->why_bytes, format, args);
    va_end(args);
    return false;
}

const char *graph_step_text(const struct graph *g, uint32_t step, char *text)
{
    static const char *const names[] = {"send", "recv", "reduce", "copy", "scale", "?"};
    const struct step *s = graph_step(g, step);
    uint32_t rank = g->rank_of[step];
    int used = snprintf(text, STEP_TEXT_BYTES, "rank %u step %u (%s%s", rank, step - g->base[rank],
                        names[s->kind <= STEP_ERROR ? s->kind : STEP_ERROR], s->flags & STEP_TOKEN ? " token" : "");
    if (s->kind == STEP_SEND || s->kind == STEP_RECV)
        snprintf(text + used, STEP_TEXT_BYTES - (size_t)used, " %s %d #%d)", s->kind == STEP_SEND ? "to" : "from",
                 s->peer, s->message);
    else
        snprintf(text + used, STEP_TEXT_BYTES - (size_t)used, ")");
    return text;
}

bool graph_aliased(const struct graph *g, int rank, int block)
{
    switch (g->collective) {
    case POLYPATH_COLLECTIVE_ALL_REDUCE:
    case POLYPATH_COLLECTIVE_REDUCE:
    case POLYPATH_COLLECTIVE_BROADCAST: return true;
    case POLYPATH_COLLECTIVE_ALL_GATHER:
    case POLYPATH_COLLECTIVE_REDUCE_SCATTER: return block == rank;
    case POLYPATH_COLLECTIVE_GATHER:
    case POLYPATH_COLLECTIVE_SCATTER: return rank == g->root && block == rank;
    default: return false;
    }
}

/* Whether the caller's INPUT block exists on this rank: polypath.h lets other ranks pass NULL. */
static bool may_read_input(const struct graph *g, int rank, int block)
{
    switch (g->collective) {
    case POLYPATH_COLLECTIVE_BROADCAST:
    case POLYPATH_COLLECTIVE_SCATTER: return rank == g->root;
    case POLYPATH_COLLECTIVE_ALL_GATHER:
    case POLYPATH_COLLECTIVE_GATHER: return block == rank;
    default: return true;
    }
}

static bool may_use_output(const struct graph *g, int rank, int block)
{
    switch (g->collective) {
    case POLYPATH_COLLECTIVE_REDUCE:
    case POLYPATH_COLLECTIVE_GATHER: return rank == g->root;
    case POLYPATH_COLLECTIVE_REDUCE_SCATTER:
    case POLYPATH_COLLECTIVE_SCATTER: return block == rank;
    default: return true;
    }
}

static bool check_slice(const struct graph *g, uint32_t step, struct slice slice, bool write)
{
    char text[STEP_TEXT_BYTES];
    int rank = (int)g->rank_of[step];
    bool good = false;
    switch (slice.buffer) {
    case SLICE_INPUT: good = !write && slice.block < g->nblocks && may_read_input(g, rank, slice.index); break;
    case SLICE_OUTPUT: good = slice.block < g->nblocks && may_use_output(g, rank, slice.index); break;
    case SLICE_SCRATCH: good = slice.block < g->nblocks && slice.index < g->schedules[rank]->nscratch; break;
    default: break;
    }
    if (good && slice.buffer != SLICE_SCRATCH && slice.index != slice.block)
        good = false;
    if (!good)
        return graph_fail(g, "%s %s buffer %d index %d (block %d), which it may not", graph_step_text(g, step, text),
                          write ? "writes" : "reads", slice.buffer, slice.index, slice.block);
    return true;
}

/* A step by itself: its kind's number of sources, slices that exist, one block throughout. */
static bool check_step(const struct graph *g, uint32_t index)
{
    char text[STEP_TEXT_BYTES];
    const struct step *step = graph_step(g, index);
    int rank = (int)g->rank_of[index];
    bool token = step->flags & STEP_TOKEN, message = step->kind == STEP_SEND || step->kind == STEP_RECV;
    bool wrong = step->kind >= STEP_ERROR || (token && !message);
    if (message)
        wrong = wrong || step->peer < 0 || step->peer >= g->size || step->peer == rank;
    switch (step->kind) {
    case STEP_SEND: wrong = wrong || step->nsrc != (token ? 0 : 1); break;
    case STEP_RECV: wrong = wrong || step->nsrc != 0; break;
    case STEP_REDUCE: wrong = wrong || step->nsrc == 0; break;
    default: wrong = wrong || step->nsrc != 1; break;
    }
    if (wrong)
        return graph_fail(g, "%s is malformed", graph_step_text(g, index, text));
    bool writes = step->kind != STEP_SEND && !token;
    if (writes && !check_slice(g, index, step->dst, true))
        return false;
    for (uint32_t k = 0; k < step->nsrc; k++) {
        struct slice source = graph_source(g, index, k);
        if (!check_slice(g, index, source, false))
            return false;
        if (writes && source.block != step->dst.block)
            return graph_fail(g, "%s combines blocks %d and %d", graph_step_text(g, index, text), source.block,
                              step->dst.block);
    }
    return true;
}

/* The arrays that schedule_finish() derives. */
static bool check_derived(const struct graph *g, int rank)
{
    const struct schedule *s = g->schedules[rank];
    uint32_t nsteps = (uint32_t)s->nsteps;
    uint32_t *count = calloc((size_t)nsteps + (size_t)s->nscratch + 1, sizeof *count);
    if (!count)
        return graph_fail(g, "out of memory");
    uint32_t *reads = count + nsteps;
    bool good = true;
    for (uint32_t i = 0; i < nsteps && good; i++) {
        const struct step *step = &s->steps[i];
        good = step->nnext <= s->nsuccessors && step->next <= s->nsuccessors - step->nnext;
        for (uint32_t k = 0; good && k < step->nnext; k++) {
            uint32_t after = s->successors[step->next + k];
            good = after < nsteps && after != i;
            if (good)
                count[after]++;
        }
        for (uint32_t k = 0; good && k < step->nsrc; k++) {
            struct slice source = s->sources[step->source + k];
            bool repeated = false;
            for (uint32_t j = 0; j < k; j++)
                repeated |= s->sources[step->source + j].buffer == SLICE_SCRATCH &&
                            s->sources[step->source + j].index == source.index;
            if (source.buffer == SLICE_SCRATCH && !repeated)
                reads[source.index]++;
        }
    }
    for (uint32_t i = 0; i < nsteps && good; i++)
        good = count[i] == s->steps[i].waits;
    for (int i = 0; i < s->nscratch && good; i++)
        good = reads[i] == s->scratch_reads[i];
    free(count);
    return good || graph_fail(g, "rank %d: edges, wait counts or scratch_reads are inconsistent", rank);
}

static bool check_structure(struct graph *g)
{
    for (int r = 0; r < g->size; r++) {
        const struct schedule *s = g->schedules[r];
        if (s->rank != r || s->size != g->size || s->collective != g->collective || s->root != g->root ||
            s->nblocks != g->nblocks)
            return graph_fail(g, "rank %d: another collective, size, root or number of blocks than rank 0's", r);
    }
    for (uint32_t i = 0; i < g->nsteps; i++)
        if (!check_step(g, i))
            return false;
    for (int r = 0; r < g->size; r++)
        if (!check_derived(g, r))
            return false;
    return true;
}

/* AllToAll's blocks are named after the other side: what i sends as block j arrives as j's block i. */
static bool same_block(const struct graph *g, uint32_t send, uint32_t recv)
{
    uint32_t from = graph_source(g, send, 0).block, to = graph_step(g, recv)->dst.block;
    if (g->collective == POLYPATH_COLLECTIVE_ALL_TO_ALL)
        return from == g->rank_of[recv] && to == g->rank_of[send];
    return from == to;
}

/* Pairs every SEND with its RECV. */
static bool match_messages(struct graph *g)
{
    char text[STEP_TEXT_BYTES], other[STEP_TEXT_BYTES];
    for (uint32_t i = 0; i < g->nsteps; i++) {
        const struct step *step = graph_step(g, i);
        if (step->kind != STEP_SEND)
            continue;
        const struct schedule *peer = g->schedules[step->peer];
        const int *first = &peer->first_recv[g->rank_of[i]];
        if (first[0] < 0 || first[1] > peer->nsteps || step->message >= first[1] - first[0])
            return graph_fail(g, "%s is never received", graph_step_text(g, i, text));
        uint32_t local = peer->recvs[first[0] + step->message];
        uint32_t recv = g->base[step->peer] + local;
        if (local >= (uint32_t)peer->nsteps || peer->steps[local].kind != STEP_RECV ||
            peer->steps[local].peer != (int32_t)g->rank_of[i] || peer->steps[local].message != step->message)
            return graph_fail(g, "rank %d: recvs of rank %u are inconsistent", step->peer, g->rank_of[i]);
        if (g->partner[recv] != NO_STEP)
            return graph_fail(g, "%s has the ordinal of another message", graph_step_text(g, i, text));
        if ((step->flags ^ peer->steps[local].flags) & STEP_TOKEN)
            return graph_fail(g, "%s meets %s: only one is a token", graph_step_text(g, i, text),
                              graph_step_text(g, recv, other));
        if (!(step->flags & STEP_TOKEN) && !same_block(g, i, recv))
            return graph_fail(g, "%s meets %s: different blocks", graph_step_text(g, i, text),
                              graph_step_text(g, recv, other));
        g->partner[i] = recv;
        g->partner[recv] = i;
    }
    for (uint32_t i = 0; i < g->nsteps; i++)
        if (graph_step(g, i)->kind == STEP_RECV && g->partner[i] == NO_STEP)
            return graph_fail(g, "%s: nobody sends it", graph_step_text(g, i, text));
    return true;
}

/* One topological order of the joint graph (Kahn, CACM 5(11), 1962); none means deadlock. */
static bool order_steps(struct graph *g)
{
    uint32_t *waits = malloc(((size_t)g->nsteps + 1) * sizeof *waits);
    if (!waits)
        return graph_fail(g, "out of memory");
    uint32_t done = 0, ready = 0;
    for (uint32_t i = 0; i < g->nsteps; i++) {
        const struct step *step = graph_step(g, i);
        waits[i] = step->waits + (step->kind == STEP_RECV && graph_live(g, i) ? 1u : 0u);
        if (waits[i] == 0)
            g->order[ready++] = i;
    }
    while (done < ready) {
        uint32_t i = g->order[done];
        g->position[i] = done++;
        const struct step *step = graph_step(g, i);
        const struct schedule *s = g->schedules[g->rank_of[i]];
        for (uint32_t k = 0; k < step->nnext; k++) {
            uint32_t after = g->base[g->rank_of[i]] + s->successors[step->next + k];
            if (--waits[after] == 0)
                g->order[ready++] = after;
        }
        if (step->kind == STEP_SEND && graph_live(g, i) && --waits[g->partner[i]] == 0)
            g->order[ready++] = g->partner[i];
    }
    bool good = done == g->nsteps;
    for (uint32_t i = 0; !good && i < g->nsteps; i++)
        if (waits[i]) {
            char text[STEP_TEXT_BYTES];
            graph_fail(g, "deadlock: %s waits in a circle or for one", graph_step_text(g, i, text));
            break;
        }
    free(waits);
    return good;
}

static bool before(const struct graph *g, uint32_t a, uint32_t b)
{
    uint32_t bit = g->position[a];
    return bit < g->position[b] && (g->ancestors[(size_t)g->position[b] * g->words + bit / 64] >> (bit % 64) & 1);
}

/* set |= the ancestors of `step` and itself. */
static void include(const struct graph *g, uint64_t *set, uint32_t step)
{
    uint32_t bit = g->position[step];
    const uint64_t *from = &g->ancestors[(size_t)bit * g->words];
    for (size_t w = 0; w <= bit / 64; w++)
        set[w] |= from[w];
    set[bit / 64] |= UINT64_C(1) << (bit % 64);
}

static void find_ancestors(struct graph *g)
{
    for (uint32_t p = 0; p < g->nsteps; p++) {
        uint32_t i = g->order[p];
        const struct step *step = graph_step(g, i);
        const struct schedule *s = g->schedules[g->rank_of[i]];
        for (uint32_t k = 0; k < step->nnext; k++) {
            uint32_t after = g->base[g->rank_of[i]] + s->successors[step->next + k];
            include(g, &g->ancestors[(size_t)g->position[after] * g->words], i);
        }
        if (step->kind == STEP_SEND && graph_live(g, i))
            include(g, &g->ancestors[(size_t)g->position[g->partner[i]] * g->words], i);
    }
}

/* Ready receives: whatever a RECV waits for locally must lie before its SEND. */
static bool check_ready(const struct graph *g)
{
    char text[STEP_TEXT_BYTES], other[STEP_TEXT_BYTES];
    for (uint32_t i = 0; i < g->nsteps; i++) {
        const struct schedule *s = g->schedules[g->rank_of[i]];
        const struct step *step = graph_step(g, i);
        for (uint32_t k = 0; k < step->nnext; k++) {
            uint32_t after = g->base[g->rank_of[i]] + s->successors[step->next + k];
            if (graph_step(g, after)->kind == STEP_RECV && graph_live(g, after) && !before(g, i, g->partner[after]))
                return graph_fail(g, "%s may arrive before %s has run", graph_step_text(g, after, text),
                                  graph_step_text(g, i, other));
        }
    }
    return true;
}

struct access {
    uint32_t step;
    bool write;
};

/* Orders every write against every other access of one location. */
static bool check_location(const struct graph *g, const struct access *access, uint32_t count, bool scratch,
                           bool in_place)
{
    char text[STEP_TEXT_BYTES], other[STEP_TEXT_BYTES];
    uint32_t writes = 0;
    for (uint32_t a = 0; a < count; a++) {
        if (!access[a].write)
            continue;
        if (scratch && ++writes > 1)
            return graph_fail(g, "%s writes a scratch slot again", graph_step_text(g, access[a].step, text));
        for (uint32_t c = 0; c < count; c++) {
            uint32_t x = access[a].step, y = access[c].step;
            if (x == y || before(g, x, y) || before(g, y, x))
                continue;
            return graph_fail(g, "%s and %s race for the same memory%s", graph_step_text(g, x, text),
                              graph_step_text(g, y, other), in_place ? " in place" : "");
        }
    }
    return true;
}

/* Where a step reads and, last, writes; a copy onto itself does neither. Returns how many. */
static uint32_t step_accesses(const struct graph *g, uint32_t i, bool in_place, uint32_t *locations)
{
    const struct step *step = graph_step(g, i);
    uint32_t count = 0;
    if (!graph_live(g, i))
        return 0;
    for (uint32_t k = 0; k < step->nsrc; k++)
        locations[count++] = graph_location(g, g->rank_of[i], graph_source(g, i, k), in_place);
    if (step->kind == STEP_SEND || step->flags & STEP_TOKEN)
        return count;
    locations[count] = graph_location(g, g->rank_of[i], step->dst, in_place);
    return step->kind == STEP_COPY && locations[0] == locations[1] ? 0 : count + 1;
}

static bool check_races(const struct graph *g, bool in_place)
{
    size_t nlocations = g->location_base[g->size], total = 0, widest = 0;
    for (uint32_t i = 0; i < g->nsteps; i++) {
        total += (size_t)graph_step(g, i)->nsrc + 1;
        widest = widest < graph_step(g, i)->nsrc ? graph_step(g, i)->nsrc : widest;
    }
    uint32_t *first = calloc(nlocations + 2, sizeof *first);
    uint32_t *locations = malloc((widest + 1) * sizeof *locations);
    struct access *accesses = malloc((total + 1) * sizeof *accesses);
    bool good = first && locations && accesses;
    if (!good)
        graph_fail(g, "out of memory");
    for (uint32_t i = 0; good && i < g->nsteps; i++) {
        uint32_t count = step_accesses(g, i, in_place, locations);
        for (uint32_t k = 0; k < count; k++)
            first[locations[k] + 2]++;
    }
    for (size_t l = 0; good && l < nlocations; l++)
        first[l + 2] += first[l + 1];
    for (uint32_t i = 0; good && i < g->nsteps; i++) {
        uint32_t count = step_accesses(g, i, in_place, locations);
        for (uint32_t k = 0; k < count; k++)
            accesses[first[locations[k] + 1]++] = (struct access){i, k == graph_step(g, i)->nsrc};
    }
    for (int r = 0; good && r < g->size; r++)
        for (uint32_t l = g->location_base[r]; good && l < g->location_base[r + 1]; l++)
            good = check_location(g, &accesses[first[l]], first[l + 1] - first[l],
                                  l >= g->location_base[r] + 2u * (uint32_t)g->nblocks, in_place);
    free(first);
    free(locations);
    free(accesses);
    return good;
}

/*
 * Scratch safety and, for a barrier, its meaning: both ask what must have
 * happened elsewhere when a rank has finished. done[r] = all steps that lie
 * before the end of rank r.
 */
static bool check_scratch(const struct graph *g, const uint64_t *done)
{
    char text[STEP_TEXT_BYTES], other[STEP_TEXT_BYTES];
    bool good = true;
    for (int r = 0; r < g->size && good; r++) {
        const struct schedule *s = g->schedules[r];
        uint32_t *filler = calloc((size_t)s->nscratch + 1, sizeof *filler); /* 1 + RECV that fills the slot */
        bool *read = calloc((size_t)s->nscratch + 1, sizeof *read);
        good = filler && read;
        if (!good)
            graph_fail(g, "out of memory");
        for (uint32_t i = 0; good && i < (uint32_t)s->nsteps; i++)
            if (s->steps[i].kind == STEP_RECV && s->steps[i].dst.buffer == SLICE_SCRATCH &&
                graph_live(g, g->base[r] + i))
                filler[s->steps[i].dst.index] = g->base[r] + i + 1;
        for (uint32_t i = g->base[r]; good && i < g->base[r + 1]; i++)
            for (uint32_t k = 0; good && k < graph_step(g, i)->nsrc; k++) {
                struct slice source = graph_source(g, i, k);
                if (source.buffer != SLICE_SCRATCH || !filler[source.index])
                    continue;
                read[source.index] = true;
                uint32_t recv = filler[source.index] - 1, bit = g->position[i];
                const uint64_t *set = &done[(size_t)graph_step(g, recv)->peer * g->words];
                good = set[bit / 64] >> (bit % 64) & 1;
                if (!good)
                    graph_fail(g, "rank %d may finish before %s has read what %s left in scratch",
                               graph_step(g, recv)->peer, graph_step_text(g, i, text), graph_step_text(g, recv, other));
            }
        for (int i = 0; good && i < s->nscratch; i++)
            if (filler[i] && !read[i])
                good = graph_fail(g, "%s is never read", graph_step_text(g, filler[i] - 1, text));
        free(filler);
        free(read);
    }
    return good;
}

static bool check_barrier(const struct graph *g, const uint64_t *done)
{
    for (int r = 0; r < g->size; r++)
        for (int other = 0; other < g->size; other++) {
            bool seen = r == other;
            for (uint32_t i = g->base[other]; !seen && i < g->base[other + 1]; i++)
                seen = done[(size_t)r * g->words + g->position[i] / 64] >> (g->position[i] % 64) & 1;
            if (!seen)
                return graph_fail(g, "rank %d may leave the barrier before rank %d has entered", r, other);
        }
    return true;
}

static bool check_ends(const struct graph *g)
{
    uint64_t *done = calloc((size_t)g->size * g->words + 1, sizeof *done);
    if (!done)
        return graph_fail(g, "out of memory");
    for (uint32_t i = 0; i < g->nsteps; i++)
        if (graph_step(g, i)->nnext == 0) /* the others lie before one of these */
            include(g, &done[(size_t)g->rank_of[i] * g->words], i);
    bool good = check_scratch(g, done);
    if (good && g->collective == POLYPATH_COLLECTIVE_BARRIER)
        good = check_barrier(g, done);
    free(done);
    return good;
}

static bool allocate(struct graph *g)
{
    size_t size = (size_t)g->size;
    g->base = calloc(size + 1, sizeof *g->base);
    g->location_base = calloc(size + 1, sizeof *g->location_base);
    if (!g->base || !g->location_base)
        return false;
    for (size_t r = 0; r < size; r++) {
        g->base[r + 1] = g->base[r] + (uint32_t)g->schedules[r]->nsteps;
        g->location_base[r + 1] = g->location_base[r] + 2 * (uint32_t)g->nblocks + (uint32_t)g->schedules[r]->nscratch;
    }
    g->nsteps = g->base[size];
    g->words = ((size_t)g->nsteps + 63) / 64;
    g->rank_of = calloc((size_t)g->nsteps + 1, sizeof *g->rank_of);
    g->partner = calloc((size_t)g->nsteps + 1, sizeof *g->partner);
    g->order = calloc((size_t)g->nsteps + 1, sizeof *g->order);
    g->position = calloc((size_t)g->nsteps + 1, sizeof *g->position);
    g->ancestors = calloc((size_t)g->nsteps * g->words + 1, sizeof *g->ancestors);
    if (!g->rank_of || !g->partner || !g->order || !g->position || !g->ancestors)
        return false;
    for (size_t r = 0; r < size; r++)
        for (uint32_t i = g->base[r]; i < g->base[r + 1]; i++) {
            g->rank_of[i] = (uint32_t)r;
            g->partner[i] = NO_STEP;
        }
    return true;
}

static bool check(const struct schedule *const *schedules, int size, int only, bool rank_order, char *why,
                  size_t why_bytes)
{
    struct graph g = {.schedules = schedules,
                      .size = size,
                      .root = schedules[0]->root,
                      .nblocks = schedules[0]->nblocks,
                      .only = only,
                      .collective = schedules[0]->collective,
                      .why = why,
                      .why_bytes = why_bytes};
    bool good = false;
    if (g.collective == POLYPATH_COLLECTIVE_SEND_RECV)
        return graph_fail(&g, "point-to-point groups have no expected outputs to check");
    if (!allocate(&g)) {
        graph_fail(&g, "out of memory");
        goto out;
    }
    if (!check_structure(&g) || !match_messages(&g) || !order_steps(&g))
        goto out;
    find_ancestors(&g);
    good = check_ready(&g) && check_races(&g, false) && check_values(&g, false, rank_order) && check_races(&g, true) &&
           check_values(&g, true, rank_order) && check_ends(&g);
out:
    free(g.base);
    free(g.location_base);
    free(g.rank_of);
    free(g.partner);
    free(g.order);
    free(g.position);
    free(g.ancestors);
    return good;
}

bool schedule_check(const struct schedule *const *schedules, int size, bool rank_order, char *why, size_t why_bytes)
{
    return check(schedules, size, -1, rank_order, why, why_bytes);
}

bool schedule_check_block(const struct schedule *const *schedules, int size, int block, char *why, size_t why_bytes)
{
    return check(schedules, size, block, false, why, why_bytes);
}
