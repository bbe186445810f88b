/*
 * Mapped calls. See mapped.h. Which buffers have to be reachable:
 *
 *   AllReduce                  everybody's input and output
 *   Reduce                     everybody's input and the root's output
 *   ReduceScatter, AllGather,
 *   AllToAll                   everybody's input (each rank fetches)
 *   Scatter                    the root's input (each rank fetches)
 *   Broadcast                  the root's input (each rank fetches); where the outputs can be reached as well
 *                              each rank copies a part of the message to all
 *   Gather                     the root's output (each rank delivers)
 */
#include "execute/mapped_internal.h"

#include <stdlib.h>
#include <string.h>

#include "system/error.h"

#define TILE_BYTES (8u << 10) /* of a result on its way into several outputs; stays in the first cache */

/* Outputs from here on do not stay in the caches anyhow, and are written past them. */
#define STREAM_BYTES (4u << 20)

struct mapped *mapped_create(int rank, int size, struct segment *const *segments, struct exports *exports,
                             const int *pids)
{
    const size_t n = (size_t)size, notice = (sizeof(struct mapped_notice) + n * sizeof(uint32_t) + 7) / 8 * 8;
    struct mapped *m = notice <= BOARD_BYTES ? calloc(1, sizeof *m) : NULL;
    if (!m)
        return NULL;
    *m = (struct mapped){.rank = rank, .size = size, .segments = segments, .exports = exports, .pids = pids};
    m->notices = calloc(n, sizeof *m->notices);
    m->in = calloc(n, sizeof *m->in);
    m->out = calloc(n, sizeof *m->out);
    m->sources = calloc(n, sizeof *m->sources);
    m->tile = aligned_alloc(LINE, TILE_BYTES);
    m->fetched = pids ? aligned_alloc(4096, n * MAPPED_FETCH_TILE) : NULL;
    m->room = calloc(n, notice);
    if (!m->notices || !m->in || !m->out || !m->sources || !m->tile || !m->room || (pids && !m->fetched)) {
        mapped_free(m);
        return NULL;
    }
    for (size_t r = 0; r < n; r++)
        m->notices[r] = (struct mapped_notice *)(void *)(m->room + r * notice);
    m->own = m->notices[rank];
    return m;
}

void mapped_free(struct mapped *m)
{
    if (!m)
        return;
    free(m->room);
    free(m->notices);
    free(m->in);
    free(m->out);
    free(m->sources);
    free(m->tile);
    free(m->fetched);
    free(m);
}

bool mapped_fetches(const struct mapped *m, polypath_collective_t collective)
{
    return m->pids && collective != POLYPATH_COLLECTIVE_REDUCE; /* there only the root has memory for results */
}

/* ----------------------------------------------------------- who needs what */

static bool input_needed(const struct mapped *m, int r)
{
    switch (m->call.frame.collective) {
    case POLYPATH_COLLECTIVE_BROADCAST:
    case POLYPATH_COLLECTIVE_SCATTER: return r == m->call.frame.root;
    case POLYPATH_COLLECTIVE_GATHER: return false;
    default: return true;
    }
}

static bool output_needed(const struct mapped *m, int r)
{
    switch (m->call.frame.collective) {
    case POLYPATH_COLLECTIVE_ALL_REDUCE: return true;
    case POLYPATH_COLLECTIVE_REDUCE:
    case POLYPATH_COLLECTIVE_GATHER: return r == m->call.frame.root;
    default: return false;
    }
}

/* Bytes of a rank's buffers that take part in the call. */
static size_t input_bytes(const struct mapped *m)
{
    return m->call.bytes * (input_per_rank(m->call.frame.collective) ? (size_t)m->size : 1);
}

static size_t output_bytes(const struct mapped *m)
{
    return m->call.bytes * (m->call.frame.collective == POLYPATH_COLLECTIVE_GATHER ? (size_t)m->size : 1);
}

/* ------------------------------------------------------------------ verdict */

void mapped_announce(struct mapped *m, const struct board_call *call, struct mapped_notice *notice)
{
    const bool broadcast = call->frame.collective == POLYPATH_COLLECTIVE_BROADCAST;
    m->call = *call;
    m->heard = 0;
    m->no = false;
    m->spread = broadcast;
    struct mapped_notice *own = m->own;
    own->send = own->recv = (struct export_place){0};
    /* what a rank scales by it alone knows, so others cannot read its input as it is */
    if (!call->scalar && input_needed(m, m->rank) && call->send)
        own->send = exports_place(m->exports, call->send, input_bytes(m));
    if (!call->scalar && (output_needed(m, m->rank) || broadcast) && call->recv)
        own->recv = exports_place(m->exports, call->recv, output_bytes(m));
    own->send_address = (uint64_t)(uintptr_t)call->send;
    own->recv_address = (uint64_t)(uintptr_t)call->recv;
    own->posted = exports_posted(m->exports);
    own->failed = exports_failed(m->exports);
    for (int r = 0; r < m->size; r++)
        own->seen[r] = r == m->rank ? own->posted : exports_seen(m->exports, r);
    memcpy(notice, own, sizeof *own + (size_t)m->size * sizeof *own->seen);
}

static bool suits(const struct mapped *m, int r, const struct mapped_notice *notice)
{
    return !notice->failed && (!input_needed(m, r) || notice->send.number) &&
           (!output_needed(m, r) || notice->recv.number);
}

/* Whether every rank had taken in what it needs for reaching the places that have been announced. */
static bool all_reach(const struct mapped *m, bool outputs)
{
    for (int owner = 0; owner < m->size; owner++) {
        const struct mapped_notice *o = m->notices[owner];
        const uint32_t needed = outputs ? o->recv.number : input_needed(m, owner) ? o->send.number : 0;
        for (int r = 0; r < m->size; r++)
            if ((int32_t)(m->notices[r]->seen[owner] - needed) < 0)
                return false;
    }
    return true;
}

static enum mapped_verdict verdict(struct mapped *m)
{
    const bool fetch = m->call.fetch;
    if (m->no && !fetch)
        return MAPPED_NO;
    if (m->heard < m->size - 1)
        return MAPPED_OPEN;
    if (m->no)
        return MAPPED_FETCH;
    for (int r = 0; r < m->size && m->spread; r++)
        m->spread = m->notices[r]->recv.number != 0;
    m->spread = m->spread && all_reach(m, true);
    const polypath_collective_t collective = m->call.frame.collective;
    const bool outputs = collective == POLYPATH_COLLECTIVE_ALL_REDUCE || collective == POLYPATH_COLLECTIVE_REDUCE ||
                         collective == POLYPATH_COLLECTIVE_GATHER;
    if (all_reach(m, false) && (!outputs || all_reach(m, true)))
        return MAPPED_YES;
    return fetch ? MAPPED_FETCH : MAPPED_NO;
}

enum mapped_verdict mapped_own(struct mapped *m)
{
    m->no = !suits(m, m->rank, m->own);
    return verdict(m);
}

enum mapped_verdict mapped_hear(struct mapped *m, int rank, const struct mapped_notice *notice)
{
    memcpy(m->notices[rank], notice, sizeof *notice + (size_t)m->size * sizeof *notice->seen);
    m->heard++;
    m->no |= !suits(m, rank, notice);
    exports_take(m->exports, rank, notice->posted); /* for the next call; a failure is announced with it */
    return verdict(m);
}

/* ------------------------------------------------------------------- moving */

/* Where the buffers are, for this rank. */
static polypath_result_t find_buffers(struct mapped *m)
{
    const struct board_call *c = &m->call;
    for (int r = 0; r < m->size; r++) {
        const struct mapped_notice *notice = m->notices[r];
        const bool self = r == m->rank, output = output_needed(m, r) || m->spread;
        if (self) {
            m->in[r] = c->send;
            m->out[r] = c->recv;
        } else if (m->fetch) {
            m->in[r] = (const char *)(uintptr_t)notice->send_address;
            m->out[r] = (char *)(uintptr_t)notice->recv_address;
        } else {
            m->in[r] = input_needed(m, r) ? exports_address(m->exports, r, notice->send, input_bytes(m)) : NULL;
            m->out[r] = output ? exports_address(m->exports, r, notice->recv, output_bytes(m)) : NULL;
            if ((input_needed(m, r) && !m->in[r]) || (output && !m->out[r]))
                return error_set(POLYPATH_ERROR_INTERNAL, "rank %d does not reach the registered memory of rank %d",
                                 m->rank, r);
        }
    }
    return POLYPATH_SUCCESS;
}

/* What this rank moves. */
static struct part work_of(const struct mapped *m)
{
    const struct board_call *c = &m->call;
    const size_t all = c->bytes * (size_t)m->size;
    switch (c->frame.collective) {
    case POLYPATH_COLLECTIVE_ALL_REDUCE:
    case POLYPATH_COLLECTIVE_REDUCE: return part_of_rank(c->bytes, m->size, m->rank);
    case POLYPATH_COLLECTIVE_BROADCAST:
        return m->spread && !m->fetch ? part_of_rank(c->bytes, m->size, m->rank) : (struct part){0, c->bytes};
    case POLYPATH_COLLECTIVE_ALL_GATHER:
    case POLYPATH_COLLECTIVE_ALL_TO_ALL: return (struct part){0, all};
    case POLYPATH_COLLECTIVE_GATHER: /* fetched by the root, delivered by each rank */
        return (struct part){0, !m->fetch ? c->bytes : m->rank == c->frame.root ? all : 0};
    default: return (struct part){0, c->bytes};
    }
}

polypath_result_t mapped_begin(struct mapped *m, enum mapped_verdict verdict, uint32_t number)
{
    const polypath_collective_t collective = m->call.frame.collective;
    m->number = number;
    m->fetch = verdict == MAPPED_FETCH;
    m->results = false;
    polypath_result_t result = find_buffers(m);
    const struct part work = work_of(m);
    m->at = work.offset;
    m->end = work.offset + work.bytes;
    m->moving = true;
    m->stream =
        m->call.bytes *
            (input_per_rank(collective) || collective == POLYPATH_COLLECTIVE_ALL_GATHER ? (size_t)m->size : 1) >=
        STREAM_BYTES;
    return result;
}

/* Whether rank r's output is written past the caches. Where the input has just been read, its lines are in them. */
static bool past(const struct mapped *m, int r)
{
    return m->stream && m->out[r] != m->in[r];
}

/* [offset, offset + bytes) of everybody's input, reduced into every output that there is. */
static void reduce(struct mapped *m, size_t offset, size_t bytes)
{
    const struct board_call *c = &m->call;
    const size_t element = polypath_type_bytes(c->op.type), stop = offset + bytes;
    int outputs = 0, to[2] = {-1, -1};
    for (int r = 0; r < m->size; r++)
        if (m->out[r] && outputs++ < 2)
            to[outputs - 1] = r;
    /* two outputs are written in the pass that reads the inputs; more from a tile that stays in the first cache */
    const size_t most = outputs > 2 ? TILE_BYTES : bytes;
    for (; offset < stop; offset += bytes) {
        bytes = stop - offset < most ? stop - offset : most;
        for (int r = 0; r < m->size; r++)
            m->sources[r] = m->in[r] + offset;
        char *second = outputs > 2 ? m->tile : outputs == 2 ? m->out[to[1]] + offset : NULL;
        compute_reduce(&c->op, m->out[to[0]] + offset, second, m->sources, m->size, bytes / element,
                       (past(m, to[0]) ? COMPUTE_STREAM_FIRST : 0) |
                           (outputs == 2 && past(m, to[1]) ? COMPUTE_STREAM_SECOND : 0));
        for (int r = to[0] + 1; r < m->size && outputs > 2; r++)
            if (m->out[r])
                compute_copy(m->out[r] + offset, m->tile, bytes, past(m, r));
    }
}

/* The next piece, at most PIECE_BYTES and within one block. Returns its size. */
static size_t move_piece(struct mapped *m)
{
    const struct board_call *c = &m->call;
    const size_t me = (size_t)m->rank, n = (size_t)m->size;
    size_t bytes = m->end - m->at < PIECE_BYTES ? m->end - m->at : PIECE_BYTES;
    char *own = m->out[m->rank];
    switch (c->frame.collective) {
    case POLYPATH_COLLECTIVE_ALL_REDUCE:
    case POLYPATH_COLLECTIVE_REDUCE: reduce(m, m->at, bytes); break;
    case POLYPATH_COLLECTIVE_REDUCE_SCATTER: {
        for (size_t r = 0; r < n; r++)
            m->sources[r] = m->in[r] + me * c->bytes + m->at;
        compute_reduce(&c->op, own + m->at, NULL, m->sources, m->size, bytes / polypath_type_bytes(c->op.type),
                       m->stream && own != m->in[me] + me * c->bytes);
        break;
    }
    case POLYPATH_COLLECTIVE_BROADCAST:
        for (size_t r = 0; r < n; r++)
            if (m->out[r])
                mapped_copy(m, m->out[r] + m->at, m->in[c->frame.root] + m->at, bytes);
        break;
    case POLYPATH_COLLECTIVE_SCATTER:
        mapped_copy(m, own + m->at, m->in[c->frame.root] + me * c->bytes + m->at, bytes);
        break;
    case POLYPATH_COLLECTIVE_GATHER:
        mapped_copy(m, m->out[c->frame.root] + me * c->bytes + m->at, m->in[me] + m->at, bytes);
        break;
    default: { /* AllGather, AllToAll: the own block first, then those of the next ranks */
        const size_t r = (me + m->at / c->bytes) % n, offset = m->at % c->bytes;
        const size_t left = c->bytes - offset;
        const char *from = m->in[r] + (c->frame.collective == POLYPATH_COLLECTIVE_ALL_TO_ALL ? me * c->bytes : 0);
        bytes = bytes < left ? bytes : left;
        mapped_copy(m, own + r * c->bytes + offset, from + offset, bytes);
    }
    }
    return bytes;
}

/* The first rank that has not got so far, or -1. */
static int behind(const struct mapped *m, bool half)
{
    for (int r = 0; r < m->size; r++) {
        struct board_memory *memory = segment_board(m->segments[r]);
        /* acquire: what it has written; and that it reads ours no more */
        const uint32_t got =
            atomic_load_explicit(half ? &memory->mapped_half : &memory->mapped_done, memory_order_acquire);
        /*
         * Exactly this call's: numbers go on with every call of the board, these only with calls of this kind, so
         * an old one may seem to lie ahead. None can: the next such call needs our announcement.
         */
        if (r != m->rank && got != m->number)
            return r;
    }
    return -1;
}

/* Whether the part before the last meeting is behind us, and what was waited for is there. */
static bool may_move(const struct mapped *m)
{
    return m->at < m->end && (!m->results || behind(m, true) < 0);
}

/* This rank has moved its part, or the first half of it: says so. */
static void report(struct mapped *m, bool half)
{
    struct board_memory *own = segment_board(m->segments[m->rank]);
    /* release: our writes into the others' buffers, and our reads of them, before they go on */
    atomic_store_explicit(half ? &own->mapped_half : &own->mapped_done, m->number, memory_order_release);
    segment_ring_others(m->segments, m->size, m->rank);
}

bool mapped_advance(struct mapped *m, bool *moved, polypath_result_t *result)
{
    if (may_move(m)) {
        if (m->fetch)
            *result = fetch_piece(m);
        else
            m->at += move_piece(m);
        *moved = true;
        if (*result)
            return true;
    }
    if (m->at < m->end)
        return false;
    if (m->fetch && !m->results && m->call.frame.collective == POLYPATH_COLLECTIVE_ALL_REDUCE) {
        m->results = true;
        m->at = 0;
        m->end = m->call.bytes;
        *moved = true;
        report(m, true);
        return false;
    }
    if (m->moving) {
        m->moving = false;
        *moved = true;
        report(m, false);
    }
    return behind(m, false) < 0;
}

bool mapped_peek(const struct mapped *m)
{
    return m->moving ? m->at >= m->end || may_move(m) : behind(m, false) < 0;
}

int mapped_waits_for(const struct mapped *m)
{
    return !m->moving ? behind(m, false) : m->results ? behind(m, true) : -1;
}
