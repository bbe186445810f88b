/*
 * Calls that fetch: the announcements say where the ranks' buffers lie in
 * their own processes, and each rank copies what it needs by
 * process_vm_readv(2), straight to where it belongs. One copy, no slots, no
 * frames; memory need not be registered. An AllReduce is two halves with a
 * meeting between them: each rank fetches everybody's contribution to its part
 * and reduces it, then fetches the other parts.
 */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "execute/mapped_internal.h"
#include "system/error.h"

#define TILE_BYTES MAPPED_FETCH_TILE

/* Copies `bytes` at `there` of rank r's process. */
static polypath_result_t fetch(const struct mapped *m, int r, char *to, const char *there, size_t bytes)
{
    while (bytes) {
        struct iovec mine = {to, bytes}, theirs = {(void *)(uintptr_t)there, bytes};
        const ssize_t n = process_vm_readv(m->pids[r], &mine, 1, &theirs, 1, 0);
        if (n > 0) {
            to += n;
            there += n;
            bytes -= (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            return n && errno == ESRCH
                       ? error_set(POLYPATH_ERROR_PEER_LOST, "rank %d lost rank %d (its process has ended)", m->rank, r)
                       : error_set(POLYPATH_ERROR_SYSTEM,
                                   "rank %d cannot read %zu bytes from the memory of rank %d (process %d): %s", m->rank,
                                   bytes, r, m->pids[r], n ? strerror(errno) : "nothing there");
        }
    }
    return POLYPATH_SUCCESS;
}

/* The own block where it lies, those of others from their processes. */
static polypath_result_t bring(const struct mapped *m, int r, char *to, const char *there, size_t bytes)
{
    if (r != m->rank)
        return fetch(m, r, to, there, bytes);
    mapped_copy(m, to, there, bytes);
    return POLYPATH_SUCCESS;
}

/* Reduces `bytes` at `offset` of everybody's input, at most a tile. */
static polypath_result_t reduce(struct mapped *m, char *to, size_t offset, size_t bytes)
{
    polypath_result_t result = POLYPATH_SUCCESS;
    for (int r = 0; r < m->size && !result; r++) {
        char *tile = m->fetched + (size_t)r * TILE_BYTES;
        m->sources[r] = r == m->rank ? m->in[r] + offset : tile;
        if (r != m->rank)
            result = fetch(m, r, tile, m->in[r] + offset, bytes);
    }
    if (!result)
        compute_reduce(&m->call.op, to, NULL, m->sources, m->size, bytes / polypath_type_bytes(m->call.op.type),
                       m->stream && to != m->sources[m->rank] ? COMPUTE_STREAM_FIRST : 0);
    return result;
}

/* The results that another rank has made: which rank's part `at` is in, and how much of it is left there. */
static int owner_of(const struct mapped *m, size_t at, size_t *left)
{
    for (int r = 0; r < m->size; r++) {
        const struct part part = part_of_rank(m->call.bytes, m->size, r);
        if (at >= part.offset && at - part.offset < part.bytes) {
            *left = part.offset + part.bytes - at;
            return r;
        }
    }
    *left = 0;
    return m->rank;
}

polypath_result_t fetch_piece(struct mapped *m)
{
    const struct board_call *c = &m->call;
    const size_t me = (size_t)m->rank, n = (size_t)m->size;
    size_t bytes = m->end - m->at < PIECE_BYTES ? m->end - m->at : PIECE_BYTES, left = 0;
    const size_t tile = bytes < TILE_BYTES ? bytes : TILE_BYTES;
    const int root = c->frame.root;
    char *own = m->out[me];
    polypath_result_t result = POLYPATH_SUCCESS;
    switch (c->frame.collective) {
    case POLYPATH_COLLECTIVE_ALL_REDUCE:
        if (!m->results) {
            bytes = tile;
            result = reduce(m, own + m->at, m->at, bytes);
            break;
        }
        const int r = owner_of(m, m->at, &left);
        bytes = bytes < left ? bytes : left;
        if (r != m->rank)
            result = fetch(m, r, own + m->at, m->out[r] + m->at, bytes);
        else
            bytes = left; /* it is there */
        break;
    case POLYPATH_COLLECTIVE_REDUCE_SCATTER:
        bytes = tile;
        result = reduce(m, own + m->at, me * c->bytes + m->at, bytes);
        break;
    case POLYPATH_COLLECTIVE_BROADCAST: result = bring(m, root, own + m->at, m->in[root] + m->at, bytes); break;
    case POLYPATH_COLLECTIVE_SCATTER:
        result = bring(m, root, own + m->at, m->in[root] + me * c->bytes + m->at, bytes);
        break;
    default: { /* AllGather, AllToAll, Gather: the own block first, then those of the next ranks */
        const size_t from = (me + m->at / c->bytes) % n, offset = m->at % c->bytes;
        left = c->bytes - offset;
        bytes = bytes < left ? bytes : left;
        const char *there = m->in[from] + (c->frame.collective == POLYPATH_COLLECTIVE_ALL_TO_ALL ? me * c->bytes : 0);
        result = bring(m, (int)from, own + from * c->bytes + offset, there + offset, bytes);
    }
    }
    m->at += bytes;
    return result;
}
