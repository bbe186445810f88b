/*
 * Stages. See stage.h. Each rank has two rings: INPUT, of what it contributes,
 * and RESULT, of what it has reduced. A position is the number of a slot since
 * the communicator began; both rings of all ranks advance alike in every call.
 *
 * Slot p of a ring may be written when every rank has finished with position
 * p - STAGE_DEPTH of that ring (`done`); it is full when its flag says p + 1.
 */
#include "execute/stage.h"
#include "execute/blocks.h"
#include "link/stores.h"
#include "system/clock.h"

#include <stdlib.h>
#include <string.h>

#define PAST(a, b) ((int32_t)((a) - (b)) >= 0) /* numbers wrap around */

/* Outputs from here on do not stay in the caches anyhow, and are written past them. */
#define STREAM_BYTES (8u << 20)

enum ring { INPUT, RESULT };

struct stage {
    int rank, size;
    struct segment *const *segments;
    struct stage_memory **memory; /* per rank */
    const void **sources;
    size_t slot_bytes;
    uint32_t first[2];      /* position of the call's first slot in each ring */
    uint32_t known_done[2]; /* every rank has finished with all positions before this */
    struct stores_cost reads[STAGE_KINDS];
    struct stores_writer writes[STAGE_KINDS];

    struct board_call call;
    bool contributes, takes, delivers, stream;
    bool divided; /* each rank reduces a part of a chunk, and spreads it over the second ring */
    uint32_t chunks, published, taken, delivered;
    size_t unit; /* bytes of a block that a chunk covers */
};

struct stage *stage_create(int rank, int size, struct segment *const *segments)
{
    struct stage *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (struct stage){.rank = rank, .size = size, .segments = segments};
    s->memory = calloc((size_t)size, sizeof(struct stage_memory *));
    s->sources = calloc((size_t)size, sizeof *s->sources);
    if (!s->memory || !s->sources) {
        stage_free(s);
        return NULL;
    }
    s->slot_bytes = SIZE_MAX;
    for (int r = 0; r < size; r++) {
        s->memory[r] = segment_stage(segments[r]);
        if (segments[r]->stage_bytes < s->slot_bytes)
            s->slot_bytes = segments[r]->stage_bytes;
    }
    return s;
}

void stage_free(struct stage *s)
{
    if (!s)
        return;
    free(s->memory);
    free(s->sources);
    free(s);
}

bool stage_takes(const struct stage *s, polypath_collective_t collective)
{
    return collective != POLYPATH_COLLECTIVE_SEND_RECV && collective != POLYPATH_COLLECTIVE_BARRIER &&
           s->slot_bytes / (size_t)s->size >= LINE;
}

/* ---------------------------------------------------------------- geometry */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* How many bytes of the message (of each block, where slots hold a block per rank) a chunk covers. */
static size_t chunk_bytes(const struct stage *s)
{
    const size_t n = (size_t)s->size;
    size_t most = s->slot_bytes;
    if (input_per_rank(s->call.frame.collective) || s->divided)
        most = most / n / LINE * LINE;
    if (s->divided)
        most *= n;
    return least(most, lines(s->call.bytes));
}

/* The part of a block that a chunk covers. */
static struct part part_of(const struct stage *s, uint32_t chunk)
{
    const size_t offset = chunk * s->unit;
    return (struct part){offset, least(s->unit, s->call.bytes - offset)};
}

/* The part of rank r within a chunk that the ranks divide among them. */
static struct part share_of(const struct stage *s, uint32_t chunk, int r)
{
    const struct part all = part_of(s, chunk), share = part_of_rank(all.bytes, s->size, r);
    return (struct part){all.offset + share.offset, share.bytes};
}

static char *slot(const struct stage *s, int r, enum ring ring, uint32_t position)
{
    return (char *)(s->memory[r] + 1) +
           ((size_t)ring * STAGE_DEPTH + position % STAGE_DEPTH) * s->segments[r]->stage_bytes;
}

static char *own_slot(const struct stage *s, enum ring ring, uint32_t chunk)
{
    return slot(s, s->rank, ring, s->first[ring] + chunk);
}

/* ------------------------------------------------------------------- flags */

static bool is_full(const struct stage *s, int r, enum ring ring, uint32_t chunk)
{
    const uint32_t position = s->first[ring] + chunk;
    /* acquire: the flag before what it announces */
    return atomic_load_explicit(&s->memory[r]->full[ring][position % STAGE_DEPTH].number, memory_order_acquire) ==
           position + 1;
}

/* Whether the own slot of a chunk may be written. */
static bool is_free(struct stage *s, enum ring ring, uint32_t chunk)
{
    const uint32_t needed = s->first[ring] + chunk + 1 - STAGE_DEPTH;
    if (PAST(s->known_done[ring], needed))
        return true;
    uint32_t all = needed + 2 * STAGE_DEPTH;
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank)
            continue;
        /* acquire: their reads of the slot before our writing it again */
        const uint32_t done = atomic_load_explicit(&s->memory[r]->done[ring].number, memory_order_acquire);
        if (!PAST(done, needed))
            return false;
        if (!PAST(done, all))
            all = done;
    }
    s->known_done[ring] = all;
    return true;
}

/* `past`: the slot was written past the caches. */
static void fill(struct stage *s, enum ring ring, uint32_t chunk, bool past)
{
    const uint32_t position = s->first[ring] + chunk;
    struct stage_flag *flag = &s->memory[s->rank]->full[ring][position % STAGE_DEPTH];
    flag->past = past;
    /* release: the contents before the flag */
    atomic_store_explicit(&flag->number, position + 1, memory_order_release);
}

static void finish(struct stage *s, enum ring ring, uint32_t chunks)
{
    /* release: our reads before they may write the slots again */
    atomic_store_explicit(&s->memory[s->rank]->done[ring].number, s->first[ring] + chunks, memory_order_release);
}

/* ------------------------------------------------------------------ stores */

static bool reduces(const struct stage *s)
{
    return s->divided || s->call.frame.collective == POLYPATH_COLLECTIVE_REDUCE_SCATTER;
}

/* Slots of a kind cost alike: which ring, whether they are reduced or copied, from memory or from caches. */
static unsigned kind_of(const struct stage *s, enum ring ring)
{
    return 4u * s->stream + 2u * reduces(s) + ring;
}

/* Whether the next slot is to be written past the caches. */
static bool choose_stores(struct stage *s, enum ring ring)
{
    const unsigned kind = kind_of(s, ring);
    uint64_t readers[2] = {0, 0};
    for (int r = 0; r < s->size; r++)
        for (int past = 0; past < 2 && r != s->rank; past++)
            readers[past] += atomic_load_explicit(&s->memory[r]->costs[kind][past], memory_order_relaxed);
    return stores_choose(&s->writes[kind], readers);
}

/* When an operation on slots begins: the time, or 0 if this one is not timed. */
static uint64_t watch(struct stores_cost *cost, bool past, size_t bytes)
{
    return stores_curious(cost, past, bytes) ? clock_now_ns() : 0;
}

static void learn_write(struct stage *s, enum ring ring, bool past, size_t bytes, uint64_t begin_ns)
{
    if (begin_ns)
        stores_note(&s->writes[kind_of(s, ring)].cost, past, bytes, clock_now_ns() - begin_ns);
}

static void learn_read(struct stage *s, enum ring ring, bool past, size_t bytes, uint64_t begin_ns)
{
    const unsigned kind = kind_of(s, ring);
    struct stores_cost *cost = &s->reads[kind];
    if (!begin_ns)
        return;
    stores_note(cost, past, bytes, clock_now_ns() - begin_ns);
    atomic_store_explicit(&s->memory[s->rank]->costs[kind][past], cost->ns[past], memory_order_relaxed);
}

static bool written_past(const struct stage *s, int r, enum ring ring, uint32_t chunk)
{
    return s->memory[r]->full[ring][(s->first[ring] + chunk) % STAGE_DEPTH].past;
}

/* ----------------------------------------------------------- who does what */

/* Whether this rank reads what `r` contributes. */
static bool reads_input(const struct stage *s, int r)
{
    if (r == s->rank)
        return false;
    switch (s->call.frame.collective) {
    case POLYPATH_COLLECTIVE_BROADCAST:
    case POLYPATH_COLLECTIVE_SCATTER: return r == s->call.frame.root;
    case POLYPATH_COLLECTIVE_GATHER: return s->rank == s->call.frame.root;
    default: return true;
    }
}

void stage_begin(struct stage *s, const struct board_call *call)
{
    const polypath_collective_t collective = call->frame.collective;
    const bool root = s->rank == call->frame.root;
    s->call = *call;
    s->divided = collective == POLYPATH_COLLECTIVE_REDUCE || collective == POLYPATH_COLLECTIVE_ALL_REDUCE;
    switch (collective) {
    case POLYPATH_COLLECTIVE_BROADCAST:
    case POLYPATH_COLLECTIVE_SCATTER: s->contributes = root, s->takes = !root; break;
    case POLYPATH_COLLECTIVE_GATHER: s->contributes = !root, s->takes = root; break;
    default: s->contributes = s->takes = true;
    }
    s->delivers = s->divided && (root || collective != POLYPATH_COLLECTIVE_REDUCE);
    s->stream = call->bytes * (collective == POLYPATH_COLLECTIVE_ALL_GATHER ? (size_t)s->size : 1) >= STREAM_BYTES;
    s->unit = chunk_bytes(s);
    s->chunks = (uint32_t)((call->bytes + s->unit - 1) / s->unit);
    s->published = s->contributes ? 0 : s->chunks;
    s->taken = s->takes ? 0 : s->chunks;
    s->delivered = s->delivers ? 0 : s->chunks;
    if (!s->takes)
        finish(s, INPUT, s->chunks);
    if (s->divided && !s->delivers)
        finish(s, RESULT, s->chunks);
}

static void end(struct stage *s)
{
    s->first[INPUT] += s->chunks;
    if (s->divided)
        s->first[RESULT] += s->chunks;
}

/* ------------------------------------------------------------------ moving */

static const char *at(const void *base, size_t offset)
{
    return base ? (const char *)base + offset : NULL; /* a rank need not have a buffer that it does not use */
}

static char *into(void *base, size_t offset)
{
    return base ? (char *)base + offset : NULL;
}

/* From the user's buffer, scaled if asked for. */
static void contribute(const struct stage *s, char *to, const char *from, size_t bytes, bool past)
{
    if (s->call.scalar)
        compute_scale(s->call.op.type, to, from, s->call.scalar, bytes / polypath_type_bytes(s->call.op.type));
    else
        compute_copy(to, from, bytes, past);
}

/* From the user's buffer into a slot and, where it is not there already, into the user's result: read once. */
static void contribute_and_keep(const struct stage *s, char *to, const char *from, char *result, size_t bytes,
                                bool past)
{
    static const struct compute_op copy = {.type = POLYPATH_UINT8, .op = POLYPATH_SUM};
    const void *source = from;
    if (!past && result != from) {
        compute_reduce(&copy, result, to, &source, 1, bytes, s->stream);
        return;
    }
    compute_copy(to, from, bytes, past);
    if (result != from)
        compute_copy(result, from, bytes, s->stream);
}

static void publish(struct stage *s, uint32_t chunk, bool past)
{
    const struct board_call *c = &s->call;
    const struct part part = part_of(s, chunk);
    char *to = own_slot(s, INPUT, chunk);
    switch (c->frame.collective) {
    case POLYPATH_COLLECTIVE_ALL_GATHER:
        contribute_and_keep(s, to, at(c->send, part.offset), into(c->recv, (size_t)s->rank * c->bytes + part.offset),
                            part.bytes, past);
        return;
    case POLYPATH_COLLECTIVE_BROADCAST:
        contribute_and_keep(s, to, at(c->send, part.offset), into(c->recv, part.offset), part.bytes, past);
        return;
    case POLYPATH_COLLECTIVE_REDUCE_SCATTER:
    case POLYPATH_COLLECTIVE_ALL_TO_ALL:
    case POLYPATH_COLLECTIVE_SCATTER:
        for (int r = 0; r < s->size; r++) {
            const char *from = at(c->send, (size_t)r * c->bytes + part.offset);
            if (r != s->rank || c->scalar)
                contribute(s, to + (size_t)r * s->unit, from, part.bytes, past);
            else if (c->frame.collective != POLYPATH_COLLECTIVE_REDUCE_SCATTER) {
                char *result = into(c->recv, part.offset);
                if (c->frame.collective == POLYPATH_COLLECTIVE_ALL_TO_ALL)
                    result += (size_t)r * c->bytes;
                if (result != from)
                    compute_copy(result, from, part.bytes, s->stream);
            }
        }
        return;
    case POLYPATH_COLLECTIVE_GATHER: contribute(s, to, at(c->send, part.offset), part.bytes, past); return;
    default: /* AllReduce, Reduce */
        for (int r = 0; r < s->size; r++) {
            const struct part share = share_of(s, chunk, r);
            if (r != s->rank || c->scalar)
                contribute(s, to + (share.offset - part.offset), at(c->send, share.offset), share.bytes, past);
        }
    }
}

/*
 * Reduces `bytes` at `offset` of every rank's slot into `result` and, if not
 * NULL, `second`. The own contribution is taken from the user's buffer.
 */
static void reduce(struct stage *s, uint32_t chunk, size_t offset, const char *own, char *result, char *second,
                   size_t bytes, bool stream)
{
    if (!bytes)
        return;
    int past = 0;
    for (int r = 0; r < s->size; r++) {
        s->sources[r] = slot(s, r, INPUT, s->first[INPUT] + chunk) + offset;
        past += r != s->rank && written_past(s, r, INPUT, chunk);
    }
    if (!s->call.scalar)
        s->sources[s->rank] = own;
    const size_t read = bytes * (size_t)(s->size - 1);
    const bool alike = past == 0 || past == s->size - 1; /* all were written in the same way */
    const uint64_t begin_ns = alike ? watch(&s->reads[kind_of(s, INPUT)], past, read) : 0;
    compute_reduce(&s->call.op, result, second, s->sources, s->size, bytes / polypath_type_bytes(s->call.op.type),
                   stream && result != s->sources[s->rank]);
    learn_read(s, INPUT, past, read, begin_ns);
}

/* The part of a chunk that this rank reduces: into its own result, and where others can copy it from. */
static bool reduce_share(struct stage *s, uint32_t chunk)
{
    const struct board_call *c = &s->call;
    const struct part part = part_of(s, chunk), share = share_of(s, chunk, s->rank);
    const size_t offset = share.offset - part.offset;
    const char *own = at(c->send, share.offset);
    char *const spread = own_slot(s, RESULT, chunk);
    const bool past = choose_stores(s, RESULT);
    const uint64_t begin_ns = watch(&s->writes[kind_of(s, RESULT)].cost, past, share.bytes);
    char *const result = s->delivers ? into(c->recv, share.offset) : spread;
    const bool everybody = c->frame.collective == POLYPATH_COLLECTIVE_ALL_REDUCE;
    reduce(s, chunk, offset, own, result, everybody && !past ? spread : NULL, share.bytes,
           s->delivers ? s->stream && !past : past);
    if (everybody && past) /* from the cache */
        compute_copy(spread, result, share.bytes, true);
    learn_write(s, RESULT, past, share.bytes, begin_ns);
    return past;
}

/* A copy from another rank's slot. */
static void copy_slot(struct stage *s, int r, enum ring ring, uint32_t chunk, size_t offset, char *to, size_t bytes)
{
    const bool past = written_past(s, r, ring, chunk);
    const uint64_t begin_ns = watch(&s->reads[kind_of(s, ring)], past, bytes);
    compute_copy(to, slot(s, r, ring, s->first[ring] + chunk) + offset, bytes, s->stream);
    learn_read(s, ring, past, bytes, begin_ns);
}

static void take_copies(struct stage *s, uint32_t chunk)
{
    const struct board_call *c = &s->call;
    const struct part part = part_of(s, chunk);
    const size_t mine = input_per_rank(c->frame.collective) ? (size_t)s->rank * s->unit : 0;
    const bool from_all =
        c->frame.collective != POLYPATH_COLLECTIVE_BROADCAST && c->frame.collective != POLYPATH_COLLECTIVE_SCATTER;
    for (int r = 0; r < s->size; r++) {
        char *to = into(c->recv, (from_all ? (size_t)r * c->bytes : 0) + part.offset);
        const char *own = at(c->send, part.offset);
        if (reads_input(s, r))
            copy_slot(s, r, INPUT, chunk, mine, to, part.bytes);
        else if (r == s->rank && c->frame.collective == POLYPATH_COLLECTIVE_GATHER && to != own)
            compute_copy(to, own, part.bytes, s->stream); /* the root's own block never was in a slot */
    }
}

/* Returns whether the slot of the second ring was written past the caches. */
static bool take(struct stage *s, uint32_t chunk)
{
    const struct board_call *c = &s->call;
    const struct part part = part_of(s, chunk);
    if (s->divided)
        return reduce_share(s, chunk);
    if (c->frame.collective == POLYPATH_COLLECTIVE_REDUCE_SCATTER)
        reduce(s, chunk, (size_t)s->rank * s->unit, at(c->send, (size_t)s->rank * c->bytes + part.offset),
               into(c->recv, part.offset), NULL, part.bytes, s->stream);
    else
        take_copies(s, chunk);
    return false;
}

static void deliver(struct stage *s, uint32_t chunk)
{
    for (int r = 0; r < s->size; r++) {
        const struct part share = share_of(s, chunk, r);
        if (r != s->rank && share.bytes)
            copy_slot(s, r, RESULT, chunk, 0, into(s->call.recv, share.offset), share.bytes);
    }
}

static bool all_full(const struct stage *s, enum ring ring, uint32_t chunk)
{
    for (int r = 0; r < s->size; r++)
        if ((ring == INPUT ? reads_input(s, r) : r != s->rank) && !is_full(s, r, ring, chunk))
            return false;
    return true;
}

/* Results before inputs: they are in the caches, and others wait for the slots. */
static bool can_deliver(const struct stage *s)
{
    return s->delivered < s->chunks && s->delivered < s->taken && all_full(s, RESULT, s->delivered);
}

static bool can_take(struct stage *s)
{
    return s->taken < s->chunks && s->taken < s->published && all_full(s, INPUT, s->taken) &&
           (!s->divided || is_free(s, RESULT, s->taken));
}

/* A rank reads its own slots too where its contribution is scaled, so it must not be a whole ring ahead of itself. */
static bool can_publish(struct stage *s)
{
    return s->published < s->chunks && (!s->takes || s->published < s->taken + STAGE_DEPTH) &&
           is_free(s, INPUT, s->published);
}

bool stage_peek(struct stage *s, bool met)
{
    return can_publish(s) || (met && (can_take(s) || can_deliver(s)));
}

bool stage_advance(struct stage *s, bool met, bool *moved)
{
    for (;;) {
        if (met && can_deliver(s)) {
            deliver(s, s->delivered++);
            finish(s, RESULT, s->delivered);
        } else if (met && can_take(s)) {
            const bool past = take(s, s->taken);
            if (s->divided)
                fill(s, RESULT, s->taken, past);
            finish(s, INPUT, ++s->taken);
        } else if (can_publish(s)) {
            const bool past = !s->call.scalar && choose_stores(s, INPUT);
            const size_t bytes = part_of(s, s->published).bytes;
            const uint64_t begin_ns = watch(&s->writes[kind_of(s, INPUT)].cost, past, bytes);
            publish(s, s->published, past);
            learn_write(s, INPUT, past, bytes, begin_ns);
            fill(s, INPUT, s->published++, past);
        } else {
            break;
        }
        segment_ring_others(s->segments, s->size, s->rank);
        *moved = true;
    }
    if (s->published < s->chunks || s->taken < s->chunks || s->delivered < s->chunks)
        return false;
    end(s);
    return true;
}

int stage_waits_for(const struct stage *s)
{
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank)
            continue;
        const uint32_t needed = s->first[INPUT] + s->published + 1 - STAGE_DEPTH;
        if ((s->taken < s->chunks && reads_input(s, r) && !is_full(s, r, INPUT, s->taken)) ||
            (s->delivered < s->taken && !is_full(s, r, RESULT, s->delivered)) ||
            (s->published < s->chunks &&
             !PAST(atomic_load_explicit(&s->memory[r]->done[INPUT].number, memory_order_relaxed), needed)))
            return r;
    }
    return -1;
}
