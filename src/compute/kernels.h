/*
 * What a SIMD level provides: one table of functions. Private to this folder;
 * compute.c chooses the table, the files named after the levels fill one each.
 */
#ifndef COMPUTE_KERNELS_H
#define COMPUTE_KERNELS_H

#include "compute/compute.h"

/*
 * The arguments mean what they mean in compute_reduce(). Floating-point types
 * divide if divisor > 1; integer types ignore the divisor: their division is a
 * pass of its own. nsrc == 1 must copy the bits of integer types (compute.c
 * uses uint8 for copies), and canonicalises NaN for floating-point types.
 */
typedef void compute_reduce_kernel(int op, void *dst, void *dst2, const void *const *src, int nsrc, size_t count,
                                   int divisor, unsigned stream);
typedef void compute_scale_kernel(void *dst, const void *src, const void *scalar, size_t count);

/* In place; divisor > 1; truncates toward zero. Elements must be aligned to their size. */
typedef void compute_divide_kernel(void *elements, size_t count, int divisor);

typedef void compute_copy_kernel(void *dst, const void *src, size_t bytes);

struct compute_kernels {
    compute_reduce_kernel *reduce[POLYPATH_TYPE_COUNT];
    compute_scale_kernel *scale[POLYPATH_TYPE_COUNT];
    compute_divide_kernel *divide[POLYPATH_TYPE_COUNT]; /* NULL for floating-point types */
    compute_copy_kernel *copy_stream;
    compute_copy_kernel *copy_plain; /* bytes >= COPY_PLAIN_MIN_BYTES */
};

/* Each returns its table, or NULL if the library is built for another architecture or this CPU lacks the level. */
const struct compute_kernels *compute_kernels_scalar(void);
const struct compute_kernels *compute_kernels_avx2(void);
const struct compute_kernels *compute_kernels_avx512(void);
const struct compute_kernels *compute_kernels_neon(void);

#endif
