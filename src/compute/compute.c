/*
 * The way in: chooses the SIMD level and takes apart the cases that no kernel
 * needs to know (one source, integer averages). No arithmetic of its own.
 */
#include "compute/compute.h"
#include "compute/kernels.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>

/* Integer averages are reduced and divided in pieces of this size, which stay in the first-level cache. */
#define DIVIDE_PIECE_BYTES 4096

/* Below this a copy stays in cache whatever the caller intended, and fences cost more than they save. */
#define STREAM_COPY_MIN_BYTES 4096
#define COPY_PLAIN_MIN_BYTES 1024 /* below, the C library is as good */

static const struct compute_kernels *level_kernels(enum compute_level level)
{
    switch (level) {
    case COMPUTE_SCALAR: return compute_kernels_scalar();
    case COMPUTE_AVX2: return compute_kernels_avx2();
    case COMPUTE_AVX512: return compute_kernels_avx512();
    case COMPUTE_NEON: return compute_kernels_neon();
    default: return NULL;
    }
}

/*
 * The table in use; NULL until first needed. Written by compute_set_level()
 * and by the first use. Relaxed is enough: the tables are constant data, so
 * there is nothing that a reader of the pointer must see with it.
 */
static _Atomic(const struct compute_kernels *) current;

static const struct compute_kernels *kernels(void)
{
    const struct compute_kernels *table = atomic_load_explicit(&current, memory_order_relaxed);
    if (table != NULL)
        return table;
    const struct compute_kernels *best = level_kernels(compute_best_level());
    /* Only from NULL: a level that another thread has just set must stay. */
    if (atomic_compare_exchange_strong_explicit(&current, &table, best, memory_order_relaxed, memory_order_relaxed))
        return best;
    return table;
}

enum compute_level compute_best_level(void)
{
    for (int level = COMPUTE_LEVELS - 1; level > COMPUTE_SCALAR; level--)
        if (level_kernels((enum compute_level)level) != NULL)
            return (enum compute_level)level;
    return COMPUTE_SCALAR;
}

bool compute_set_level(enum compute_level level)
{
    const struct compute_kernels *table = level_kernels(level);
    if (table == NULL)
        return false;
    atomic_store_explicit(&current, table, memory_order_relaxed);
    return true;
}

enum compute_level compute_level(void)
{
    const struct compute_kernels *table = kernels();
    for (int level = 0; level < COMPUTE_LEVELS; level++)
        if (level_kernels((enum compute_level)level) == table)
            return (enum compute_level)level;
    return COMPUTE_SCALAR;
}

const char *compute_level_name(enum compute_level level)
{
    switch (level) {
    case COMPUTE_SCALAR: return "scalar";
    case COMPUTE_AVX2: return "avx2";
    case COMPUTE_AVX512: return "avx512";
    case COMPUTE_NEON: return "neon";
    default: return "unknown";
    }
}

static void copy_bytes(const struct compute_kernels *table, void *dst, const void *src, size_t bytes, bool stream)
{
    if (bytes == 0 || dst == src)
        return;
    if (stream && bytes >= STREAM_COPY_MIN_BYTES)
        table->copy_stream(dst, src, bytes);
    else if (bytes >= COPY_PLAIN_MIN_BYTES)
        table->copy_plain(dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}

void compute_copy(void *dst, const void *src, size_t bytes, bool stream)
{
    copy_bytes(kernels(), dst, src, bytes, stream);
}

/* One source, no division: the same bytes to one or two places, reading them once. */
static void copy_out(const struct compute_kernels *table, void *dst, void *dst2, const void *src, size_t bytes,
                     unsigned stream)
{
    if (dst2 == NULL || dst2 == src)
        copy_bytes(table, dst, src, bytes, stream & COMPUTE_STREAM_FIRST);
    else if (dst == src)
        copy_bytes(table, dst2, src, bytes, stream & COMPUTE_STREAM_SECOND);
    else
        table->reduce[POLYPATH_UINT8](POLYPATH_SUM, dst, dst2, &src, 1, bytes, 1, stream);
}

/* Integer averages: fold one source after the other into a piece in cache, divide it there, write it out. */
static void reduce_and_divide(const struct compute_kernels *table, const struct compute_op *op, unsigned char *dst,
                              unsigned char *dst2, const void *const *src, int nsrc, size_t count, unsigned stream)
{
    size_t element = polypath_type_bytes(op->type);
    size_t piece_count = DIVIDE_PIECE_BYTES / element;
    alignas(64) unsigned char piece[DIVIDE_PIECE_BYTES];

    for (size_t first = 0; first < count; first += piece_count) {
        size_t n = count - first < piece_count ? count - first : piece_count;
        size_t at = first * element;
        memcpy(piece, (const unsigned char *)src[0] + at, n * element);
        for (int k = 1; k < nsrc; k++) {
            const void *pair[2] = {piece, (const unsigned char *)src[k] + at};
            table->reduce[op->type](op->op, piece, NULL, pair, 2, n, 1, 0);
        }
        table->divide[op->type](piece, n, op->divisor);
        copy_out(table, dst + at, dst2 == NULL ? NULL : dst2 + at, piece, n * element, stream);
    }
}

void compute_reduce(const struct compute_op *op, void *dst, void *dst2, const void *const *src, int nsrc, size_t count,
                    unsigned stream)
{
    const struct compute_kernels *table = kernels();
    if (count == 0)
        return;
    if (dst2 != NULL && (stream & (COMPUTE_STREAM_FIRST | COMPUTE_STREAM_SECOND)) == COMPUTE_STREAM_SECOND) {
        void *second = dst2; /* the kernels stream the first, or both */
        dst2 = dst;
        dst = second;
        stream = COMPUTE_STREAM_FIRST;
    }
    bool divides = op->divisor > 1;
    if (divides && table->divide[op->type] != NULL)
        reduce_and_divide(table, op, dst, dst2, src, nsrc, count, stream);
    else if (nsrc == 1 && !divides)
        copy_out(table, dst, dst2, src[0], count * polypath_type_bytes(op->type), stream);
    else
        table->reduce[op->type](op->op, dst, dst2, src, nsrc, count, op->divisor, stream);
}

void compute_scale(polypath_type_t type, void *dst, const void *src, const void *scalar, size_t count)
{
    if (count > 0)
        kernels()->scale[type](dst, src, scalar, count);
}
