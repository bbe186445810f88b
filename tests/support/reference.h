/*
 * What the ranks of a test contribute, and what must come of it, computed here
 * and not with the library's own arithmetic. Values are chosen so that every
 * order of summing is exact (and so gives the same), down to float8_e5m2 with
 * its two bits of mantissa; test_paths.c looks at values that are not.
 */
#ifndef SUPPORT_REFERENCE_H
#define SUPPORT_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

#include "polypath/polypath.h"

#define REFERENCE_SCALED POLYPATH_OP_COUNT /* a sum scaled by reference_scalar() */
#define REFERENCE_MOVE (-1)                /* no reduction: any bytes */
#define REFERENCE_OPS (POLYPATH_OP_COUNT + 1)

uint64_t reference_hash(uint64_t seed, uint64_t a, uint64_t b);

/* Elements first .. first + count of what `rank` sends, for the given op. */
void reference_input(polypath_type_t type, int op, int rank, uint64_t seed, size_t first, size_t count, void *out);

/* Elements first .. first + count of the reduction over ranks 0 .. size - 1. */
void reference_reduce(polypath_type_t type, int op, int size, uint64_t seed, size_t first, size_t count, void *out);

/* The scalar of `rank`, one element. */
void reference_scalar(polypath_type_t type, int rank, void *out);

/* Any number as one element, and back; rounds to nearest even. Not for NaN. */
void reference_encode(polypath_type_t type, double value, void *out);
double reference_decode(polypath_type_t type, const void *element);

#endif
