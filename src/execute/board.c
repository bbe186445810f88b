/*
 * Boards. A board has BOARD_DEPTH slots used in turn; slot s of call number q
 * (q % BOARD_DEPTH == s) holds a line with the flag and up to BOARD_INLINE
 * bytes, and a description of the call. What is longer lies in one of
 * BOARD_DATA_DEPTH larger places, used in turn likewise.
 *
 * When may a slot be used again? Its readers must have finished with the call
 * that used it last. Each rank publishes the last call it has finished (`done`).
 * A call in which everybody waits for everybody proves that all have finished
 * the one before it, so in the common case nobody looks at `done` at all.
 */
#include "execute/board.h"

#include <stdlib.h>
#include <string.h>

#include "execute/blocks.h"
#include "execute/host_internal.h"
#include "execute/mapped.h"
#include "execute/stage.h"

#define CALLS_APART(a, b) ((int32_t)((a) - (b))) /* numbers wrap around */

/* How a call moves. */
enum way {
    WAY_BOARD,
    WAY_OPEN, /* larger; which of the following, the announcements will tell */
    WAY_STAGE,
    WAY_MAPPED,
    WAY_FETCH,
};

struct board {
    int rank, size;
    struct board_memory **memory; /* per rank */
    struct segment *const *segments;
    struct stage *stage;   /* NULL: not all ranks have one */
    struct mapped *mapped; /* NULL: not wanted */
    const void **sources;
    uint32_t number;   /* of the current or last call */
    uint32_t all_done; /* every rank is known to have finished this call */
    bool published;
    enum way way;
    bool moved;
    bool busy;   /* between begin and the end of a call */
    int waiting; /* first rank not yet seen; ranks before it have been */
    int heard;   /* first rank whose announcement the way still depends on */
    struct board_call call;
    uint32_t signature;             /* of this call and all before it */
    uint32_t history;               /* of all calls begun so far */
    struct frame past[BOARD_DEPTH]; /* the last calls, as this rank sees them */
    char scaled[BOARD_BYTES];       /* own contribution after scaling */
};

struct board *board_create(int rank, int size, struct segment *const *segments, struct exports *exports,
                           const int *pids)
{
    struct board *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->rank = rank;
    b->size = size;
    b->segments = segments;
    b->memory = calloc((size_t)size, sizeof(struct board_memory *));
    b->sources = calloc((size_t)size, sizeof *b->sources);
    if (!b->memory || !b->sources) {
        board_free(b);
        return NULL;
    }
    bool stages = true;
    for (int r = 0; r < size; r++) {
        b->memory[r] = segment_board(segments[r]);
        stages &= segments[r]->stage_bytes != 0;
    }
    if ((stages && !(b->stage = stage_create(rank, size, segments))) ||
        (stages && exports && !(b->mapped = mapped_create(rank, size, segments, exports, pids)))) {
        board_free(b);
        return NULL;
    }
    return b;
}

void board_free(struct board *b)
{
    if (!b)
        return;
    stage_free(b->stage);
    mapped_free(b->mapped);
    free(b->memory);
    free(b->sources);
    free(b);
}

/* How many blocks a rank puts on its board, for each collective. */
static size_t blocks_of(const struct board *b, polypath_collective_t collective)
{
    return input_per_rank(collective) ? (size_t)b->size : 1;
}

bool board_stages(const struct board *b, polypath_collective_t collective)
{
    return b->stage && stage_takes(b->stage, collective);
}

bool board_takes(const struct board *b, polypath_collective_t collective, size_t bytes)
{
    if (collective == POLYPATH_COLLECTIVE_SEND_RECV)
        return false;
    /* what a rank writes must fit; what it reads from all others must stay small against dividing the work */
    return bytes * blocks_of(b, collective) <= BOARD_BYTES && bytes * (size_t)b->size <= BOARD_READ_BYTES;
}

static uint32_t sign(const struct frame *f)
{
    uint64_t x = (uint64_t)f->collective << 56 ^ (uint64_t)f->type << 48 ^ (uint64_t)f->op << 40 ^
                 (uint64_t)(uint32_t)f->root << 8 ^ f->variant;
    x = (x ^ f->count) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(x >> 32) ^ f->call;
}

/* The ranks work on each other's buffers. */
static bool in_place(const struct board *b)
{
    return b->way == WAY_MAPPED || b->way == WAY_FETCH;
}

/* Larger than the board holds: announced on it only. */
static bool announced(const struct board *b)
{
    return b->way != WAY_BOARD;
}

static bool writes(const struct board *b)
{
    if (announced(b))
        return true; /* which way the call goes depends on everybody's buffers */
    switch (b->call.frame.collective) {
    case POLYPATH_COLLECTIVE_BROADCAST:
    case POLYPATH_COLLECTIVE_SCATTER: return b->rank == b->call.frame.root;
    default: return true;
    }
}

/* Whether this rank needs what `rank` writes. */
static bool needs(const struct board *b, int rank)
{
    switch (b->call.frame.collective) {
    case POLYPATH_COLLECTIVE_BROADCAST:
    case POLYPATH_COLLECTIVE_SCATTER: return rank == b->call.frame.root;
    case POLYPATH_COLLECTIVE_GATHER: return b->rank == b->call.frame.root;
    case POLYPATH_COLLECTIVE_REDUCE: return announced(b) || b->rank == b->call.frame.root; /* each reduces a part */
    default: return true;
    }
}

static bool everybody_meets(const struct board *b)
{
    if (in_place(b))
        return true;
    switch (b->call.frame.collective) {
    case POLYPATH_COLLECTIVE_BROADCAST:
    case POLYPATH_COLLECTIVE_SCATTER:
    case POLYPATH_COLLECTIVE_REDUCE:
    case POLYPATH_COLLECTIVE_GATHER: return false;
    default: return true;
    }
}

/* The last call that may have used the place of this one. */
static uint32_t used_last(const struct board *b)
{
    const bool fits = !announced(b) && b->call.bytes * blocks_of(b, b->call.frame.collective) <= BOARD_INLINE;
    return b->number - (fits ? BOARD_DEPTH : BOARD_DATA_DEPTH);
}

static char *data_of(const struct board *b, int r)
{
    return b->memory[r]->data[b->number % BOARD_DATA_DEPTH];
}

/* Whether the place of this call is free: everybody has finished the call that used it last. */
static bool slot_free(struct board *b)
{
    const uint32_t last = used_last(b);
    if (CALLS_APART(b->all_done, last) >= 0)
        return true;
    uint32_t least = b->number;
    for (int r = 0; r < b->size; r++) {
        if (r == b->rank)
            continue;
        /* acquire: their reads of our slot before our writing it again */
        uint32_t done = atomic_load_explicit(&b->memory[r]->done, memory_order_acquire);
        if (CALLS_APART(done, last) < 0)
            return false;
        if (CALLS_APART(done, least) < 0)
            least = done;
    }
    b->all_done = least;
    return true;
}

static const void *contribution(struct board *b)
{
    const struct board_call *c = &b->call;
    if (!c->scalar)
        return c->send;
    const size_t bytes = c->bytes * blocks_of(b, c->frame.collective);
    compute_scale(c->op.type, b->scaled, c->send, c->scalar, bytes / polypath_type_bytes(c->op.type));
    return b->scaled;
}

/* The way of a larger call, once the verdict is there. */
static void go(struct board *b, enum mapped_verdict verdict)
{
    if (verdict == MAPPED_OPEN)
        return;
    b->way = verdict == MAPPED_YES ? WAY_MAPPED : verdict == MAPPED_FETCH ? WAY_FETCH : WAY_STAGE;
    if (b->way == WAY_STAGE)
        stage_begin(b->stage, &b->call);
}

static void publish(struct board *b)
{
    struct board_slot *slot = &b->memory[b->rank]->slots[b->number % BOARD_DEPTH];
    const size_t bytes = announced(b) ? 0 : b->call.bytes * blocks_of(b, b->call.frame.collective);
    const void *own = announced(b) ? NULL : contribution(b);
    b->sources[b->rank] = own;
    if (announced(b) && b->mapped) {
        mapped_announce(b->mapped, &b->call, (struct mapped_notice *)(void *)data_of(b, b->rank));
        go(b, mapped_own(b->mapped));
    }
    if (writes(b)) {
        if (bytes)
            compute_copy(bytes <= BOARD_INLINE ? slot->line.data : data_of(b, b->rank), own, bytes, false);
        slot->line.signature = b->signature;
        slot->frame = b->call.frame;
        /* release: contribution, signature and description before the flag */
        atomic_store_explicit(&slot->line.number, b->number, memory_order_release);
        segment_ring_others(b->segments, b->size, b->rank);
    }
    /* The next call's flag lies in the caches of those who read it last: fetch it back while waiting for theirs. */
    host_prefetch_write(&b->memory[b->rank]->slots[(b->number + 1) % BOARD_DEPTH].line);
    b->published = b->moved = true;
}

/*
 * Rank `r` announces something else than what this rank is in: this call, or,
 * where ranks do not wait for each other (as in a Broadcast with unlike roots),
 * one of the last few.
 */
static polypath_result_t unlike(const struct board *b, int r)
{
    const struct frame *theirs = &b->memory[r]->slots[b->number % BOARD_DEPTH].frame;
    if (sign(theirs) != sign(&b->call.frame))
        return host_mismatch(b->rank, &b->call.frame, r, theirs);
    for (uint32_t back = 1; back < BOARD_DEPTH; back++) {
        const uint32_t number = b->number - back;
        const struct board_slot *slot = &b->memory[r]->slots[number % BOARD_DEPTH];
        if (atomic_load_explicit(&slot->line.number, memory_order_acquire) != number)
            continue; /* it had nothing to write */
        const struct frame then = slot->frame;
        if (sign(&then) != sign(&b->past[number % BOARD_DEPTH]))
            return host_mismatch(b->rank, &b->past[number % BOARD_DEPTH], r, &then);
    }
    char what[200];
    host_describe_frame(&b->call.frame, what, sizeof what);
    return error_set(POLYPATH_ERROR_MISMATCH, "%s: ranks %d and %d called different things before it", what, b->rank,
                     r);
}

/* Sees whether everyone needed is there. */
static bool gathered(struct board *b, polypath_result_t *result)
{
    const size_t bytes = b->call.bytes * blocks_of(b, b->call.frame.collective);
    for (; b->waiting < b->size; b->waiting++) {
        const int r = b->waiting;
        if (r == b->rank || !needs(b, r))
            continue;
        struct board_slot *slot = &b->memory[r]->slots[b->number % BOARD_DEPTH];
        /* acquire: the flag before what it announces */
        if (atomic_load_explicit(&slot->line.number, memory_order_acquire) != b->number)
            return false;
        if (slot->line.signature != b->signature) {
            *result = unlike(b, r);
            return true;
        }
        if (announced(b) && b->mapped && r >= b->heard) /* not heard yet: what it tells about its memory */
            mapped_hear(b->mapped, r, (const struct mapped_notice *)(const void *)data_of(b, r));
        b->sources[r] = bytes <= BOARD_INLINE ? slot->line.data : data_of(b, r);
    }
    return true;
}

/* Whether the announcements of all ranks that the way depends on are there; finds the way. */
static bool way_found(struct board *b, polypath_result_t *result)
{
    for (; b->way == WAY_OPEN && b->heard < b->size; b->heard++) {
        const int r = b->heard;
        if (r == b->rank)
            continue;
        const struct board_slot *slot = &b->memory[r]->slots[b->number % BOARD_DEPTH];
        /* acquire: the flag before what it announces */
        if (atomic_load_explicit(&slot->line.number, memory_order_acquire) != b->number)
            return false;
        if (slot->line.signature != b->signature) {
            *result = unlike(b, r);
            return true;
        }
        b->moved = true;
        const enum mapped_verdict verdict =
            mapped_hear(b->mapped, r, (const struct mapped_notice *)(const void *)data_of(b, r));
        go(b, verdict);
        if (in_place(b))
            *result = mapped_begin(b->mapped, verdict, b->number);
    }
    return true;
}

static const char *block_at(const void *base, size_t index, size_t bytes)
{
    return (const char *)base + index * bytes;
}

static void deliver(struct board *b)
{
    const struct board_call *c = &b->call;
    const size_t bytes = c->bytes, me = (size_t)b->rank;
    const bool root = b->rank == c->frame.root;
    switch (c->frame.collective) {
    case POLYPATH_COLLECTIVE_REDUCE_SCATTER:
        for (int r = 0; r < b->size; r++)
            b->sources[r] = block_at(b->sources[r], me, bytes);
        break;
    case POLYPATH_COLLECTIVE_REDUCE:
        if (!root)
            return;
        break;
    case POLYPATH_COLLECTIVE_ALL_REDUCE: break;
    case POLYPATH_COLLECTIVE_BROADCAST:
        if (bytes && c->recv != b->sources[c->frame.root])
            compute_copy(c->recv, b->sources[c->frame.root], bytes, false);
        return;
    case POLYPATH_COLLECTIVE_SCATTER: {
        const char *from = block_at(b->sources[c->frame.root], me, bytes);
        if (bytes && from != c->recv)
            memcpy(c->recv, from, bytes);
        return;
    }
    case POLYPATH_COLLECTIVE_GATHER:
        if (!root)
            return;
        /* fall through */
    case POLYPATH_COLLECTIVE_ALL_GATHER:
    case POLYPATH_COLLECTIVE_ALL_TO_ALL:
        for (size_t r = 0; r < (size_t)b->size && bytes; r++) {
            const char *from = c->frame.collective == POLYPATH_COLLECTIVE_ALL_TO_ALL
                                   ? block_at(b->sources[r], me, bytes)
                                   : b->sources[r];
            char *to = (char *)c->recv + r * bytes;
            if (to != from)
                compute_copy(to, from, bytes, false);
        }
        return;
    default: return;
    }
    if (bytes)
        compute_reduce(&c->op, c->recv, NULL, b->sources, b->size, bytes / polypath_type_bytes(c->op.type), false);
}

void board_begin(struct board *b, const struct board_call *call)
{
    b->call = *call;
    b->number++;
    b->published = false;
    b->busy = true;
    b->waiting = b->heard = 0;
    const uint32_t own = sign(&call->frame);
    b->signature = own ^ b->history;
    b->history = (b->history ^ own) * 16777619u;
    b->past[b->number % BOARD_DEPTH] = call->frame;
    b->way = board_takes(b, call->frame.collective, call->bytes) ? WAY_BOARD : WAY_OPEN;
    if (b->way == WAY_OPEN && !b->mapped)
        go(b, MAPPED_NO);
}

bool board_fetches(const struct board *b, polypath_collective_t collective)
{
    return b->mapped && mapped_fetches(b->mapped, collective);
}

bool board_was_mapped(const struct board *b)
{
    return b->way == WAY_MAPPED;
}

bool board_was_fetched(const struct board *b)
{
    return b->way == WAY_FETCH;
}

bool board_moved(struct board *b)
{
    const bool moved = b->moved;
    b->moved = false;
    return moved;
}

/* Moves what can be moved of a call whose way is known; true when that is all. */
static bool further(struct board *b, bool met, polypath_result_t *result)
{
    switch (b->way) {
    case WAY_BOARD: return met;
    case WAY_MAPPED:
    case WAY_FETCH: return met && mapped_advance(b->mapped, &b->moved, result);
    default: return stage_advance(b->stage, met, &b->moved);
    }
}

bool board_advance(struct board *b, polypath_result_t *result)
{
    *result = POLYPATH_SUCCESS;
    if (!b->published) {
        if (writes(b) && !slot_free(b))
            return false;
        publish(b);
    }
    const bool found = way_found(b, result);
    const bool met = found && !*result && gathered(b, result);
    if (*result) {
        b->busy = false;
        return true;
    }
    if (!found || !further(b, met, result))
        return false;
    b->busy = false;
    if (*result)
        return true;
    if (b->way == WAY_BOARD)
        deliver(b);
    if (everybody_meets(b))
        b->all_done = b->number - 1;
    /* release: our reads of the others' slots before they may write them again */
    atomic_store_explicit(&b->memory[b->rank]->done, b->number, memory_order_release);
    /*
     * Somebody may sleep until its slot is free. After a call in which everybody
     * meets, that is a rank several calls ahead which no longer needs us; the
     * fence is saved, and such a sleeper looks again by itself (host_wait.c).
     */
    if (!everybody_meets(b))
        segment_ring_others(b->segments, b->size, b->rank);
    return true;
}

bool board_try(struct board *b, const struct board_call *call, uint64_t spins, polypath_result_t *result)
{
    board_begin(b, call);
    for (uint64_t i = 0; i <= spins; i++) {
        if (board_advance(b, result))
            return true;
        host_pause(i);
    }
    return false;
}

bool board_peek(void *board)
{
    struct board *b = board;
    if (!b->busy)
        return false;
    if (!b->published)
        return slot_free(b);
    if (b->way == WAY_STAGE && stage_peek(b->stage, b->waiting >= b->size))
        return true;
    if (in_place(b) && b->waiting >= b->size)
        return mapped_peek(b->mapped);
    const int awaited = b->way == WAY_OPEN ? b->heard : b->waiting;
    if (awaited >= b->size)
        return false;
    const struct board_slot *slot = &b->memory[awaited]->slots[b->number % BOARD_DEPTH];
    return atomic_load_explicit(&slot->line.number, memory_order_acquire) == b->number;
}

int board_waits_for(const struct board *b)
{
    if (b->published) {
        const int awaited = b->way == WAY_OPEN ? b->heard : b->waiting;
        if (awaited < b->size)
            return awaited;
        return b->way == WAY_STAGE ? stage_waits_for(b->stage) : in_place(b) ? mapped_waits_for(b->mapped) : -1;
    }
    for (int r = 0; r < b->size; r++)
        if (r != b->rank &&
            CALLS_APART(atomic_load_explicit(&b->memory[r]->done, memory_order_relaxed), used_last(b)) < 0)
            return r;
    return -1;
}

bool board_last_frame(const struct board *b, int rank, struct frame *frame)
{
    uint32_t newest = 0;
    bool any = false;
    for (int s = 0; s < BOARD_DEPTH; s++) {
        const struct board_slot *slot = &b->memory[rank]->slots[s];
        uint32_t number = atomic_load_explicit(&slot->line.number, memory_order_acquire);
        if (number && (!any || CALLS_APART(number, newest) > 0)) {
            newest = number;
            *frame = slot->frame;
            any = true;
        }
    }
    return any;
}
