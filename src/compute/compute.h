/*
 * Arithmetic on host memory: n-ary reductions and scaling for every type and
 * op. Pure functions. Knows nothing of ranks, schedules or links.
 *
 * Numerics: integers wrap; their average truncates toward zero. float16,
 * bfloat16, float8 are converted to float32, folded there over all sources in
 * order, divided if asked, and rounded once (to nearest even) at the end.
 * Beyond the largest number float8_e4m3 becomes NaN, which is what it has in
 * place of infinity; the others become infinity. min and max return NaN if any
 * source element is NaN, and order -0 below +0. A computed NaN is always the
 * positive quiet one without payload; a mere copy (one source, no division)
 * keeps its bits. Every SIMD level gives bit-identical results
 * (tests/test_compute.c holds each against a reference of its own). All this
 * presumes the FPU's usual state: nearest even, subnormals not flushed.
 */
#ifndef COMPUTE_COMPUTE_H
#define COMPUTE_COMPUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "polypath/polypath.h"

/* How a reduction is carried out. */
struct compute_op {
    polypath_type_t type;
    int op;      /* POLYPATH_SUM, PROD, MAX or MIN; AVG and scaled sums are SUM plus the fields below */
    int divisor; /* > 1: divide by it at the end (average): before the rounding of small floats */
};

/*
 * dst[i] = src[0][i] op src[1][i] op ... in this order, for i < count; then
 * divided if op->divisor > 1. nsrc >= 1 (1: convert nothing, copy or divide).
 * dst2, if not NULL, gets the same bytes. dst and dst2 may each be equal to
 * one of the sources, but not overlap one partly. No alignment is needed. The
 * caller has checked that type and op exist.
 * `stream`, flags: which of the two to write by non-temporal stores, where those
 * exist (for outputs that will not be read again soon); both only where they
 * lie alike in their cache lines, else the second is written normally.
 */
#define COMPUTE_STREAM_FIRST 1u
#define COMPUTE_STREAM_SECOND 2u
void compute_reduce(const struct compute_op *op, void *dst, void *dst2, const void *const *src, int nsrc, size_t count,
                    unsigned stream);

/* dst[i] = src[i] * *scalar, rounded to the type; dst may equal src. Small floats multiply in float32. */
void compute_scale(polypath_type_t type, void *dst, const void *src, const void *scalar, size_t count);

/* memcpy, with non-temporal stores if `stream` and where that exists. */
void compute_copy(void *dst, const void *src, size_t bytes, bool stream);

/*
 * Conversions of one element of float32 or a smaller float, in integer
 * arithmetic; the vector ones equal them bit by bit.
 */
float compute_to_float(polypath_type_t type, const void *element);
void compute_from_float(polypath_type_t type, void *element, float value);

/*
 * SIMD levels. compute_best_level() asks the CPU; compute_set_level() selects
 * (process-wide, for tests and for agreement between unlike CPUs) and returns
 * false if this CPU does not have it.
 */
enum compute_level { COMPUTE_SCALAR = 0, COMPUTE_AVX2 = 1, COMPUTE_AVX512 = 2, COMPUTE_NEON = 3, COMPUTE_LEVELS = 4 };
enum compute_level compute_best_level(void);
bool compute_set_level(enum compute_level level);
enum compute_level compute_level(void);
const char *compute_level_name(enum compute_level level);

#endif
