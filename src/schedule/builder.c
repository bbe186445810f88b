/*
 * The schedule builder: arrays that grow while an algorithm adds steps and
 * edges, and the finishing pass that derives what an executor needs (message
 * ordinals, receive lists, successors, wait counts). Knows no algorithm.
 *
 * A failure (out of memory, a number that does not fit its field) sticks to
 * the builder: later calls do nothing and schedule_finish() returns NULL. So
 * algorithms need no error paths. A NULL builder counts as failed.
 */
#include <stdlib.h>
#include <string.h>

#include "schedule/builders.h"
#include "schedule/schedule.h"
#include "system/error.h"

struct edge {
    uint32_t before, after;
};

struct schedule_builder {
    struct schedule *schedule; /* under construction; its arrays are the builder's until finished */
    size_t step_capacity, source_capacity;
    struct edge *edges;
    size_t nedges, edge_capacity;
    bool scale_inputs;
    uint32_t *scaled; /* per block: 1 + the SCALE step that reads INPUT block b, or 0 */
    bool failed;
};

void schedule_fail(struct schedule_builder *b, polypath_result_t code, const char *text)
{
    if (!b || b->failed)
        return;
    b->failed = true;
    error_set(code, "schedule %s: %s", b->schedule->algorithm, text);
}

static void fail_memory(struct schedule_builder *b)
{
    schedule_fail(b, POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory while building");
}

/* Makes room for `need` elements; false if there is no memory. */
static bool grow(void **array, size_t *capacity, size_t need, size_t element)
{
    if (need <= *capacity)
        return true;
    size_t fresh = *capacity ? *capacity : 32;
    while (fresh < need) {
        if (fresh > SIZE_MAX / 2 / element)
            return false;
        fresh *= 2;
    }
    void *larger = realloc(*array, fresh * element);
    if (!larger)
        return false;
    *array = larger;
    *capacity = fresh;
    return true;
}

struct schedule_builder *schedule_begin(polypath_collective_t collective, const char *algorithm, int size, int rank,
                                        int root, int nblocks)
{
    struct schedule_builder *b = calloc(1, sizeof *b);
    struct schedule *s = calloc(1, sizeof *s);
    if (!b || !s) {
        free(b);
        free(s);
        error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "schedule %s: out of memory", algorithm);
        return NULL;
    }
    *s = (struct schedule){
        .collective = collective, .algorithm = algorithm, .rank = rank, .size = size, .root = root, .nblocks = nblocks};
    b->schedule = s;
    if (nblocks < 0 || nblocks > UINT16_MAX)
        schedule_fail(b, POLYPATH_ERROR_UNSUPPORTED, "more blocks than a slice can name (65535)");
    return b;
}

void schedule_scale_inputs(struct schedule_builder *b)
{
    if (!b || b->failed || b->scale_inputs)
        return;
    b->scaled = calloc((size_t)b->schedule->nblocks + 1, sizeof *b->scaled);
    if (!b->scaled)
        fail_memory(b);
    b->scale_inputs = true;
}

void schedule_after(struct schedule_builder *b, uint32_t before, uint32_t after)
{
    if (!b || b->failed)
        return;
    if (before == after || before >= (uint32_t)b->schedule->nsteps || after >= (uint32_t)b->schedule->nsteps) {
        schedule_fail(b, POLYPATH_ERROR_INTERNAL, "an edge joins steps that do not exist");
        return;
    }
    if (!grow((void **)&b->edges, &b->edge_capacity, b->nedges + 1, sizeof *b->edges)) {
        fail_memory(b);
        return;
    }
    b->edges[b->nedges++] = (struct edge){before, after};
}

/* Appends a step as it is. Returns its index, 0 on failure. */
static uint32_t append(struct schedule_builder *b, struct step step, const struct slice *src, int nsrc)
{
    struct schedule *s = b->schedule;
    if (nsrc < 0 || nsrc > UINT16_MAX || s->nsteps == INT32_MAX || s->nsources > UINT32_MAX - UINT16_MAX) {
        schedule_fail(b, POLYPATH_ERROR_UNSUPPORTED, "too many steps or sources");
        return 0;
    }
    if (!grow((void **)&s->steps, &b->step_capacity, (size_t)s->nsteps + 1, sizeof *s->steps) ||
        !grow((void **)&s->sources, &b->source_capacity, (size_t)s->nsources + (size_t)nsrc, sizeof *s->sources)) {
        fail_memory(b);
        return 0;
    }
    step.source = s->nsources;
    step.nsrc = (uint16_t)nsrc;
    for (int i = 0; i < nsrc; i++)
        s->sources[s->nsources++] = src[i];
    s->steps[s->nsteps] = step;
    return (uint32_t)s->nsteps++;
}

/* The SCALE step that reads INPUT block `block`, added on first use, so that scaling follows the order of use. */
static uint32_t scale_step(struct schedule_builder *b, struct slice input)
{
    if (!b->scaled[input.block]) {
        struct step step = {.kind = STEP_SCALE, .peer = -1, .dst = schedule_scratch(b, input.block)};
        uint32_t index = append(b, step, &input, 1);
        if (!b->failed)
            b->scaled[input.block] = index + 1;
    }
    return b->failed ? 0 : b->scaled[input.block] - 1;
}

/* Appends a step, its INPUT sources replaced by scaled ones if so asked. */
static uint32_t add(struct schedule_builder *b, struct step step, const struct slice *src, int nsrc)
{
    if (!b || b->failed)
        return 0;
    bool replaced = false;
    if (b->scale_inputs && step.kind != STEP_SCALE)
        for (int i = 0; i < nsrc && !b->failed; i++)
            if (src[i].buffer == SLICE_INPUT) {
                scale_step(b, src[i]);
                replaced = true;
            }
    if (b->failed)
        return 0;
    uint32_t index = append(b, step, src, nsrc);
    for (int i = 0; replaced && i < nsrc && !b->failed; i++)
        if (src[i].buffer == SLICE_INPUT) {
            uint32_t scale = b->scaled[src[i].block] - 1;
            struct schedule *s = b->schedule;
            s->sources[s->steps[index].source + (uint32_t)i] = s->steps[scale].dst;
            schedule_after(b, scale, index);
        }
    return index;
}

static uint32_t add_message(struct schedule_builder *b, struct step step, const struct slice *src)
{
    if (b && (step.peer < 0 || step.peer >= b->schedule->size))
        schedule_fail(b, POLYPATH_ERROR_INTERNAL, "a message to a rank that does not exist");
    return add(b, step, src, src ? 1 : 0);
}

uint32_t schedule_send(struct schedule_builder *b, int peer, struct slice src)
{
    return add_message(b, (struct step){.kind = STEP_SEND, .peer = peer}, &src);
}

uint32_t schedule_recv(struct schedule_builder *b, int peer, struct slice dst)
{
    return add_message(b, (struct step){.kind = STEP_RECV, .peer = peer, .dst = dst}, NULL);
}

uint32_t schedule_send_token(struct schedule_builder *b, int peer)
{
    return add_message(b, (struct step){.kind = STEP_SEND, .flags = STEP_TOKEN, .peer = peer}, NULL);
}

uint32_t schedule_recv_token(struct schedule_builder *b, int peer)
{
    return add_message(b, (struct step){.kind = STEP_RECV, .flags = STEP_TOKEN, .peer = peer}, NULL);
}

uint32_t schedule_reduce(struct schedule_builder *b, struct slice dst, const struct slice *src, int nsrc, bool final)
{
    return add(b, (struct step){.kind = STEP_REDUCE, .flags = final ? STEP_FINAL : 0, .peer = -1, .dst = dst}, src,
               nsrc);
}

uint32_t schedule_copy(struct schedule_builder *b, struct slice dst, struct slice src)
{
    return add(b, (struct step){.kind = STEP_COPY, .peer = -1, .dst = dst}, &src, 1);
}

uint32_t schedule_scale(struct schedule_builder *b, struct slice dst, struct slice src)
{
    return add(b, (struct step){.kind = STEP_SCALE, .peer = -1, .dst = dst}, &src, 1);
}

struct slice schedule_scratch(struct schedule_builder *b, int block)
{
    if (!b || b->failed)
        return (struct slice){0};
    if (b->schedule->nscratch == UINT16_MAX) {
        schedule_fail(b, POLYPATH_ERROR_UNSUPPORTED, "more scratch slots than a slice can name (65535)");
        return (struct slice){0};
    }
    return (struct slice){SLICE_SCRATCH, (uint16_t)b->schedule->nscratch++, (uint16_t)block};
}

uint32_t schedule_release(struct schedule_builder *b, int peer)
{
    uint32_t token = schedule_send_token(b, peer);
    if (!b || b->failed)
        return 0;
    const struct schedule *s = b->schedule;
    bool *filled = calloc((size_t)s->nscratch + 1, sizeof *filled);
    if (!filled) {
        fail_memory(b);
        return 0;
    }
    for (int i = 0; i < s->nsteps; i++)
        if (s->steps[i].kind == STEP_RECV && s->steps[i].peer == peer && s->steps[i].dst.buffer == SLICE_SCRATCH)
            filled[s->steps[i].dst.index] = true;
    for (uint32_t i = 0; i < token; i++)
        for (uint32_t k = 0; k < s->steps[i].nsrc; k++) {
            struct slice source = s->sources[s->steps[i].source + k];
            if (source.buffer == SLICE_SCRATCH && filled[source.index]) {
                schedule_after(b, i, token);
                break;
            }
        }
    free(filled);
    return token;
}

void schedule_free(struct schedule *schedule)
{
    if (!schedule)
        return;
    free(schedule->steps);
    free(schedule->sources);
    free(schedule->successors);
    free(schedule->first_recv);
    free(schedule->recvs);
    free(schedule->scratch_reads);
    free(schedule);
}

/* Ordinals of the messages of each pair, and the list of receives of each peer. */
static void number_messages(struct schedule_builder *b)
{
    struct schedule *s = b->schedule;
    size_t size = (size_t)s->size;
    uint32_t *sent = calloc(size, sizeof *sent);
    uint32_t *received = calloc(size, sizeof *received);
    s->first_recv = calloc(size + 1, sizeof *s->first_recv);
    s->recvs = calloc((size_t)s->nsteps + 1, sizeof *s->recvs);
    if (!sent || !received || !s->first_recv || !s->recvs) {
        fail_memory(b);
        goto out;
    }
    for (int i = 0; i < s->nsteps; i++) {
        struct step *step = &s->steps[i];
        if (step->kind != STEP_SEND && step->kind != STEP_RECV)
            continue;
        uint32_t *count = step->kind == STEP_SEND ? &sent[step->peer] : &received[step->peer];
        if (*count > UINT16_MAX) {
            schedule_fail(b, POLYPATH_ERROR_UNSUPPORTED, "more than 65536 messages between two ranks");
            goto out;
        }
        step->message = (uint16_t)(*count)++;
    }
    for (size_t p = 0; p < size; p++)
        s->first_recv[p + 1] = s->first_recv[p] + (int)received[p];
    for (int i = 0; i < s->nsteps; i++)
        if (s->steps[i].kind == STEP_RECV)
            s->recvs[s->first_recv[s->steps[i].peer] + s->steps[i].message] = (uint32_t)i;
out:
    free(sent);
    free(received);
}

/* Edges to one list of successors per step, each pair kept once; and the wait counts. */
static void link_steps(struct schedule_builder *b)
{
    struct schedule *s = b->schedule;
    size_t nsteps = (size_t)s->nsteps;
    size_t *first = calloc(nsteps + 2, sizeof *first);
    uint32_t *after = calloc(b->nedges + 1, sizeof *after);
    uint32_t *seen = calloc(nsteps + 1, sizeof *seen); /* 1 + the last step that already lists this one */
    s->successors = calloc(b->nedges + 1, sizeof *s->successors);
    if (!first || !after || !seen || !s->successors || b->nedges > UINT32_MAX) {
        fail_memory(b);
        goto out;
    }
    for (size_t e = 0; e < b->nedges; e++)
        first[b->edges[e].before + 2]++;
    for (size_t i = 0; i < nsteps; i++)
        first[i + 2] += first[i + 1];
    for (size_t e = 0; e < b->nedges; e++) /* counting sort: first[i + 1] moves from start to end of i's edges */
        after[first[b->edges[e].before + 1]++] = b->edges[e].after;
    for (size_t i = 0; i < nsteps; i++) {
        s->steps[i].next = s->nsuccessors;
        for (size_t e = first[i]; e < first[i + 1]; e++) {
            struct step *next = &s->steps[after[e]];
            if (seen[after[e]] == i + 1)
                continue;
            seen[after[e]] = (uint32_t)i + 1;
            if (next->waits == UINT16_MAX) {
                schedule_fail(b, POLYPATH_ERROR_UNSUPPORTED, "a step waits for more than 65535 others");
                goto out;
            }
            next->waits++;
            s->successors[s->nsuccessors++] = after[e];
        }
        s->steps[i].nnext = s->nsuccessors - s->steps[i].next;
    }
out:
    free(first);
    free(after);
    free(seen);
}

/* How many steps read each scratch slot; a step that reads a slot twice counts once. */
static void count_scratch_reads(struct schedule_builder *b)
{
    struct schedule *s = b->schedule;
    uint32_t *last = calloc((size_t)s->nscratch + 1, sizeof *last);
    s->scratch_reads = calloc((size_t)s->nscratch + 1, sizeof *s->scratch_reads);
    if (!last || !s->scratch_reads)
        fail_memory(b);
    for (int i = 0; i < s->nsteps && !b->failed; i++)
        for (uint32_t k = 0; k < s->steps[i].nsrc; k++) {
            struct slice source = s->sources[s->steps[i].source + k];
            if (source.buffer != SLICE_SCRATCH || last[source.index] == (uint32_t)i + 1)
                continue;
            last[source.index] = (uint32_t)i + 1;
            if (s->scratch_reads[source.index]++ == UINT16_MAX)
                schedule_fail(b, POLYPATH_ERROR_UNSUPPORTED, "a scratch slot is read by more than 65535 steps");
        }
    free(last);
}

struct schedule *schedule_finish(struct schedule_builder *b)
{
    if (!b)
        return NULL;
    struct schedule *s = b->schedule;
    if (!b->failed)
        number_messages(b);
    if (!b->failed)
        link_steps(b);
    if (!b->failed)
        count_scratch_reads(b);
    if (b->failed) {
        schedule_free(s);
        s = NULL;
    }
    free(b->edges);
    free(b->scaled);
    free(b);
    return s;
}
