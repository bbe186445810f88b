/*
 * One operation and everything around it. What the reductions must give comes
 * from reference.c; which bytes go where is said here.
 */
#include "support/exercise.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/reference.h"

#define GUARD 128
#define BLANK 0x5a /* what is in receive buffers before */

static const char *const names[EXERCISE_KINDS] = {
    "all_reduce", "reduce",       "reduce_scatter", "reduce_scatter_v", "broadcast", "all_gather", "all_gather_v",
    "all_to_all", "all_to_all_v", "gather",         "scatter",          "send_recv", "barrier"};

bool exercise_reduces(enum exercise_kind kind)
{
    return kind <= EXERCISE_REDUCE_SCATTER_V;
}

bool exercise_rooted(enum exercise_kind kind)
{
    return kind == EXERCISE_REDUCE || kind == EXERCISE_BROADCAST || kind == EXERCISE_GATHER || kind == EXERCISE_SCATTER;
}

bool exercise_can_start(enum exercise_kind kind)
{
    return kind != EXERCISE_SEND_RECV;
}

static const char *text_of(const char *format, ...)
{
    static char text[1600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return text;
}

const char *exercise_text(const struct exercise *e)
{
    static const char *const ops[] = {"sum", "prod", "max", "min", "avg", "scaled sum"};
    static char text[256];
    snprintf(text, sizeof text, "%s %s %s count %zu root %d%s offset %zu seed %llu", names[e->kind],
             polypath_type_name(e->type), exercise_reduces(e->kind) ? ops[e->op] : "-", e->count, e->root,
             e->in_place ? " in place" : "", e->offset, (unsigned long long)e->seed);
    return text;
}

/* ------------------------------------------------------------------- sizes */

/* The V forms: how many elements i has for everybody (j = 0), or sends to j. Some have none. */
static size_t count_of(const struct exercise *e, int i, int j)
{
    const uint64_t h = reference_hash(e->seed ^ 0xc0, (uint64_t)i, (uint64_t)j);
    return h % 4 == 0 ? 0 : h / 4 % (e->count + 1);
}

/* Displacements with gaps, or one after another (also passed as NULL). Returns where the last one ends. */
static size_t place(const struct exercise *e, const size_t *counts, size_t *displs, uint64_t salt)
{
    size_t at = 0;
    const bool gaps = e->seed & 1;
    for (int i = 0; i < e->size; i++) {
        at += gaps ? reference_hash(e->seed ^ salt, 1, (uint64_t)i) % 4 : 0;
        displs[i] = at;
        at += counts[i];
    }
    return at;
}

#define SEND_COUNTS(e) ((e)->numbers)
#define SEND_DISPLS(e) ((e)->numbers + (e)->size)
#define RECV_COUNTS(e) ((e)->numbers + 2 * (e)->size)
#define RECV_DISPLS(e) ((e)->numbers + 3 * (e)->size)

/* Fills the V numbers and says how long the buffers are, in elements. */
static void measure(struct exercise *e, size_t *send, size_t *recv)
{
    const size_t n = (size_t)e->size;
    const bool root = e->rank == e->root;
    switch (e->kind) {
    case EXERCISE_ALL_REDUCE:
    case EXERCISE_SEND_RECV: *send = *recv = e->count; return;
    case EXERCISE_REDUCE: *send = e->count, *recv = root ? e->count : 0; return;
    case EXERCISE_BROADCAST: *send = root ? e->count : 0, *recv = e->count; return;
    case EXERCISE_REDUCE_SCATTER: *send = n * e->count, *recv = e->count; return;
    case EXERCISE_ALL_GATHER: *send = e->count, *recv = n * e->count; return;
    case EXERCISE_ALL_TO_ALL: *send = *recv = n * e->count; return;
    case EXERCISE_GATHER: *send = e->count, *recv = root ? n * e->count : 0; return;
    case EXERCISE_SCATTER: *send = root ? n * e->count : 0, *recv = e->count; return;
    case EXERCISE_REDUCE_SCATTER_V:
        for (int i = 0; i < e->size; i++)
            SEND_COUNTS(e)
        [i] = count_of(e, i, 0), SEND_DISPLS(e)[i] = i ? SEND_DISPLS(e)[i - 1] + SEND_COUNTS(e)[i - 1] : 0;
        *send = SEND_DISPLS(e)[n - 1] + SEND_COUNTS(e)[n - 1];
        *recv = SEND_COUNTS(e)[e->rank];
        return;
    case EXERCISE_ALL_GATHER_V:
        for (int i = 0; i < e->size; i++)
            RECV_COUNTS(e)[i] = count_of(e, i, 0);
        *send = RECV_COUNTS(e)[e->rank];
        *recv = place(e, RECV_COUNTS(e), RECV_DISPLS(e), 1);
        return;
    case EXERCISE_ALL_TO_ALL_V:
        for (int i = 0; i < e->size; i++)
            SEND_COUNTS(e)[i] = count_of(e, e->rank, i), RECV_COUNTS(e)[i] = count_of(e, i, e->rank);
        *send = place(e, SEND_COUNTS(e), SEND_DISPLS(e), (uint64_t)e->rank + 2);
        *recv = place(e, RECV_COUNTS(e), RECV_DISPLS(e), 3);
        return;
    default: *send = *recv = 0; return;
    }
}

/* Where in the larger buffer the smaller one lies when in place, in elements; SIZE_MAX: has no such form here. */
static size_t in_place_at(const struct exercise *e)
{
    const bool root = e->rank == e->root;
    switch (e->kind) {
    case EXERCISE_ALL_REDUCE: return 0;
    case EXERCISE_REDUCE:
    case EXERCISE_BROADCAST: return root ? 0 : SIZE_MAX;
    case EXERCISE_ALL_GATHER:
    case EXERCISE_REDUCE_SCATTER: return (size_t)e->rank * e->count;
    case EXERCISE_GATHER:
    case EXERCISE_SCATTER: return root ? (size_t)e->root * e->count : SIZE_MAX;
    case EXERCISE_REDUCE_SCATTER_V: return SEND_DISPLS(e)[e->rank];
    case EXERCISE_ALL_GATHER_V: return RECV_DISPLS(e)[e->rank];
    default: return SIZE_MAX;
    }
}

/* ---------------------------------------------------------------- contents */

/* Overlays what must have arrived on the image of the receive buffer. */
static void expect(const struct exercise *e, char *image)
{
    const size_t element = polypath_type_bytes(e->type), count = e->count;
    const int n = e->size, me = e->rank;
    const uint64_t seed = e->seed;
    switch (e->kind) {
    case EXERCISE_REDUCE:
        if (me != e->root)
            return;
        /* fall through */
    case EXERCISE_ALL_REDUCE: reference_reduce(e->type, e->op, n, seed, 0, count, image); return;
    case EXERCISE_REDUCE_SCATTER: reference_reduce(e->type, e->op, n, seed, (size_t)me * count, count, image); return;
    case EXERCISE_REDUCE_SCATTER_V:
        reference_reduce(e->type, e->op, n, seed, SEND_DISPLS(e)[me], SEND_COUNTS(e)[me], image);
        return;
    case EXERCISE_BROADCAST: reference_input(e->type, REFERENCE_MOVE, e->root, seed, 0, count, image); return;
    case EXERCISE_GATHER:
        if (me != e->root)
            return;
        /* fall through */
    case EXERCISE_ALL_GATHER:
        for (int r = 0; r < n; r++)
            reference_input(e->type, REFERENCE_MOVE, r, seed, 0, count, image + (size_t)r * count * element);
        return;
    case EXERCISE_ALL_GATHER_V:
        for (int r = 0; r < n; r++)
            reference_input(e->type, REFERENCE_MOVE, r, seed, 0, RECV_COUNTS(e)[r],
                            image + RECV_DISPLS(e)[r] * element);
        return;
    case EXERCISE_ALL_TO_ALL:
        for (int r = 0; r < n; r++)
            reference_input(e->type, REFERENCE_MOVE, r, seed, (size_t)me * count, count,
                            image + (size_t)r * count * element);
        return;
    case EXERCISE_ALL_TO_ALL_V:
        for (int r = 0; r < n; r++) {
            /* where r keeps what it sends here: its own displacements */
            struct exercise other = *e;
            size_t counts[64], displs[64];
            for (int i = 0; i < n; i++)
                counts[i] = count_of(e, r, i);
            place(&other, counts, displs, (uint64_t)r + 2);
            reference_input(e->type, REFERENCE_MOVE, r, seed, displs[me], counts[me],
                            image + RECV_DISPLS(e)[r] * element);
        }
        return;
    case EXERCISE_SCATTER:
        reference_input(e->type, REFERENCE_MOVE, e->root, seed, (size_t)me * count, count, image);
        return;
    case EXERCISE_SEND_RECV: reference_input(e->type, REFERENCE_MOVE, (me + n - 1) % n, seed, 0, count, image); return;
    default: return;
    }
}

static bool buffer_new(struct exercise *e, int index, size_t bytes)
{
    struct exercise_buffer *b = &e->buffers[index];
    b->bytes = bytes + 2 * GUARD + e->offset;
    const size_t used = index ? (e->buffers[0].bytes + 63) / 64 * 64 : 0;
    if (!e->pool)
        b->base = malloc(b->bytes);
    else if (used + b->bytes <= e->pool_bytes)
        b->base = e->pool + used;
    b->image = malloc(b->bytes);
    if (!b->base || !b->image)
        return false;
    memset(b->base, BLANK, b->bytes);
    return true;
}

static void release(struct exercise *e)
{
    for (int i = 0; i < 2; i++) {
        if (!e->pool)
            free(e->buffers[i].base);
        free(e->buffers[i].image);
    }
    free(e->numbers);
    memset(e->buffers, 0, sizeof e->buffers);
    e->numbers = NULL;
}

static const char *prepare(struct exercise *e, polypath_comm_t comm)
{
    const size_t element = polypath_type_bytes(e->type);
    size_t send = 0, recv = 0;
    e->comm = comm;
    e->request = NULL;
    e->handle = e->op;
    memset(e->buffers, 0, sizeof e->buffers);
    if (polypath_comm_rank(comm, &e->rank) || polypath_comm_size(comm, &e->size))
        return polypath_last_error();
    e->numbers = calloc(4 * (size_t)e->size, sizeof *e->numbers);
    if (!e->numbers || e->size > 64)
        return "no memory, or too many ranks for an exercise";
    measure(e, &send, &recv);
    const size_t at = e->in_place ? in_place_at(e) : SIZE_MAX;
    struct exercise_buffer *b = e->buffers;
    if (!buffer_new(e, 0, (at != SIZE_MAX && recv > send ? recv : send) * element) ||
        (at == SIZE_MAX && !buffer_new(e, 1, recv * element)))
        return "no memory";
    char *first = b[0].base + GUARD + e->offset;
    e->send = at != SIZE_MAX && recv > send ? first + at * element : first;
    e->recv = at == SIZE_MAX ? b[1].base + GUARD + e->offset : recv > send ? first : first + at * element;
    reference_input(e->type, exercise_reduces(e->kind) ? e->op : REFERENCE_MOVE, e->rank, e->seed, 0, send, e->send);
    for (int i = 0; i < 2 && b[i].base; i++)
        memcpy(b[i].image, b[i].base, b[i].bytes);
    struct exercise_buffer *to = at == SIZE_MAX ? &b[1] : &b[0];
    expect(e, to->image + (e->recv - to->base));
    /* buffers that a rank does not have */
    if (e->kind == EXERCISE_BARRIER)
        return NULL;
    if (exercise_rooted(e->kind) && e->rank != e->root) {
        if (!recv && (e->kind == EXERCISE_REDUCE || e->kind == EXERCISE_GATHER))
            e->recv = NULL;
        if (!send && (e->kind == EXERCISE_BROADCAST || e->kind == EXERCISE_SCATTER))
            e->send = NULL;
    }
    if (exercise_reduces(e->kind) && e->op == REFERENCE_SCALED) {
        unsigned char scalar[8];
        reference_scalar(e->type, e->rank, scalar);
        if (polypath_op_create_scaled_sum(&e->handle, scalar, e->type, comm))
            return polypath_last_error();
    }
    return NULL;
}

/* ------------------------------------------------------------------- calls */

static polypath_result_t shift(struct exercise *e)
{
    polypath_result_t result = polypath_group_start();
    if (!result)
        result = polypath_send(e->send, e->count, e->type, (e->rank + 1) % e->size, e->comm);
    if (!result)
        result = polypath_recv(e->recv, e->count, e->type, (e->rank + e->size - 1) % e->size, e->comm);
    polypath_result_t end = polypath_group_end();
    return result ? result : end;
}

static polypath_result_t call(struct exercise *e)
{
    const size_t *displs = e->seed & 1 ? RECV_DISPLS(e) : NULL;
    switch (e->kind) {
    case EXERCISE_ALL_REDUCE: return polypath_all_reduce(e->send, e->recv, e->count, e->type, e->handle, e->comm);
    case EXERCISE_REDUCE: return polypath_reduce(e->send, e->recv, e->count, e->type, e->handle, e->root, e->comm);
    case EXERCISE_REDUCE_SCATTER:
        return polypath_reduce_scatter(e->send, e->recv, e->count, e->type, e->handle, e->comm);
    case EXERCISE_REDUCE_SCATTER_V:
        return polypath_reduce_scatter_v(e->send, e->recv, SEND_COUNTS(e), e->type, e->handle, e->comm);
    case EXERCISE_BROADCAST: return polypath_broadcast(e->send, e->recv, e->count, e->type, e->root, e->comm);
    case EXERCISE_ALL_GATHER: return polypath_all_gather(e->send, e->recv, e->count, e->type, e->comm);
    case EXERCISE_ALL_GATHER_V:
        return polypath_all_gather_v(e->send, RECV_COUNTS(e)[e->rank], e->recv, RECV_COUNTS(e), displs, e->type,
                                     e->comm);
    case EXERCISE_ALL_TO_ALL: return polypath_all_to_all(e->send, e->recv, e->count, e->type, e->comm);
    case EXERCISE_ALL_TO_ALL_V:
        return polypath_all_to_all_v(e->send, SEND_COUNTS(e), displs ? SEND_DISPLS(e) : NULL, e->recv, RECV_COUNTS(e),
                                     displs, e->type, e->comm);
    case EXERCISE_GATHER: return polypath_gather(e->send, e->recv, e->count, e->type, e->root, e->comm);
    case EXERCISE_SCATTER: return polypath_scatter(e->send, e->recv, e->count, e->type, e->root, e->comm);
    case EXERCISE_SEND_RECV: return shift(e);
    default: return polypath_barrier(e->comm);
    }
}

static polypath_result_t start(struct exercise *e)
{
    const size_t *displs = e->seed & 1 ? RECV_DISPLS(e) : NULL;
    polypath_request_t *r = &e->request;
    switch (e->kind) {
    case EXERCISE_ALL_REDUCE:
        return polypath_all_reduce_start(e->send, e->recv, e->count, e->type, e->handle, e->comm, r);
    case EXERCISE_REDUCE:
        return polypath_reduce_start(e->send, e->recv, e->count, e->type, e->handle, e->root, e->comm, r);
    case EXERCISE_REDUCE_SCATTER:
        return polypath_reduce_scatter_start(e->send, e->recv, e->count, e->type, e->handle, e->comm, r);
    case EXERCISE_REDUCE_SCATTER_V:
        return polypath_reduce_scatter_v_start(e->send, e->recv, SEND_COUNTS(e), e->type, e->handle, e->comm, r);
    case EXERCISE_BROADCAST: return polypath_broadcast_start(e->send, e->recv, e->count, e->type, e->root, e->comm, r);
    case EXERCISE_ALL_GATHER: return polypath_all_gather_start(e->send, e->recv, e->count, e->type, e->comm, r);
    case EXERCISE_ALL_GATHER_V:
        return polypath_all_gather_v_start(e->send, RECV_COUNTS(e)[e->rank], e->recv, RECV_COUNTS(e), displs, e->type,
                                           e->comm, r);
    case EXERCISE_ALL_TO_ALL: return polypath_all_to_all_start(e->send, e->recv, e->count, e->type, e->comm, r);
    case EXERCISE_ALL_TO_ALL_V:
        return polypath_all_to_all_v_start(e->send, SEND_COUNTS(e), displs ? SEND_DISPLS(e) : NULL, e->recv,
                                           RECV_COUNTS(e), displs, e->type, e->comm, r);
    case EXERCISE_GATHER: return polypath_gather_start(e->send, e->recv, e->count, e->type, e->root, e->comm, r);
    case EXERCISE_SCATTER: return polypath_scatter_start(e->send, e->recv, e->count, e->type, e->root, e->comm, r);
    default: return polypath_barrier_start(e->comm, r);
    }
}

/* ------------------------------------------------------------------- halves */

const char *exercise_begin(struct exercise *e, polypath_comm_t comm, bool to_start)
{
    const char *wrong = prepare(e, comm);
    if (wrong || !to_start)
        return wrong ? text_of("%s: %s", exercise_text(e), wrong) : NULL;
    if (start(e))
        return text_of("starting %s: %s", exercise_text(e), polypath_last_error());
    return NULL;
}

const char *exercise_call(struct exercise *e)
{
    polypath_result_t result = call(e);
    return result ? text_of("%s: %s: %s", exercise_text(e), polypath_result_name(result), polypath_last_error()) : NULL;
}

static const char *compare(const struct exercise *e, int which)
{
    const struct exercise_buffer *b = &e->buffers[which];
    const size_t element = polypath_type_bytes(e->type);
    size_t i = 0;
    if (!b->base || !memcmp(b->base, b->image, b->bytes))
        return NULL;
    while (b->base[i] == b->image[i])
        i++;
    const size_t begin = GUARD + e->offset;
    const char *what = which || !e->buffers[1].base ? "recvbuf" : "sendbuf";
    if (i < begin || i >= b->bytes - GUARD)
        return text_of("%s: %s: byte %zd beyond the buffer of %zu bytes was changed", exercise_text(e), what,
                       (ssize_t)i - (ssize_t)begin, b->bytes - GUARD - begin);
    const size_t index = (i - begin) / element, at = begin + index * element;
    size_t wrong = 0;
    for (size_t k = begin; k + element <= b->bytes - GUARD; k += element)
        wrong += memcmp(b->base + k, b->image + k, element) != 0;
    return text_of("%s: %s[%zu] is %g, expected %g (byte %02x, expected %02x); %zu elements are wrong",
                   exercise_text(e), what, index, reference_decode(e->type, b->base + at),
                   reference_decode(e->type, b->image + at), (unsigned char)b->base[i], (unsigned char)b->image[i],
                   wrong);
}

const char *exercise_end(struct exercise *e)
{
    const char *wrong = compare(e, 0);
    if (!wrong)
        wrong = compare(e, 1);
    if (e->handle != e->op && polypath_op_destroy(e->handle, e->comm) && !wrong)
        wrong = text_of("%s: %s", exercise_text(e), polypath_last_error());
    release(e);
    return wrong;
}

const char *exercise_run(struct exercise *e, polypath_comm_t comm)
{
    const char *wrong = exercise_begin(e, comm, false);
    if (!wrong)
        wrong = exercise_call(e);
    return wrong ? wrong : exercise_end(e);
}
