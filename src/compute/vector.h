/*
 * Arithmetic on vectors of VECTOR_BYTES bytes that the compilers' vector
 * extension expresses for every instruction set alike: sums, products,
 * rounding to small floats, the storing side of all types. Included once by
 * each level's file, after it has set VECTOR_BYTES and its compile target;
 * knows nothing of particular instructions.
 */
#ifndef COMPUTE_VECTOR_H
#define COMPUTE_VECTOR_H

#ifndef VECTOR_BYTES
#error "vector.h is for the files of the SIMD levels, which say how wide a vector is"
#endif

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The kernels rely on their parts being merged into one loop. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* A kernel works on this many vectors at once: enough independent work to hide latencies, few enough for registers. */
#define TILE_VECTORS 4

typedef uint8_t u8v __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t u32v __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t i32v __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t u64v __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t i64v __attribute__((vector_size(VECTOR_BYTES)));
typedef float f32v __attribute__((vector_size(VECTOR_BYTES)));
typedef double f64v __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t u16v __attribute__((vector_size(VECTOR_BYTES)));
typedef int16_t i16v __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t u16half __attribute__((vector_size(VECTOR_BYTES / 2))); /* as many elements as u32v */

/* ------------------------------------------------------------ sum and prod */

/* Integers are added and multiplied as unsigned ones, which wrap; the bits are the same for signed ones. */
ALWAYS_INLINE u8v uint8_sum(u8v a, u8v b)
{
    return a + b;
}

ALWAYS_INLINE u8v uint8_prod(u8v a, u8v b)
{
    return a * b;
}

ALWAYS_INLINE u32v uint32_sum(u32v a, u32v b)
{
    return a + b;
}

ALWAYS_INLINE u32v uint32_prod(u32v a, u32v b)
{
    return a * b;
}

ALWAYS_INLINE u64v uint64_sum(u64v a, u64v b)
{
    return a + b;
}

ALWAYS_INLINE u64v uint64_prod(u64v a, u64v b)
{
    return a * b;
}

ALWAYS_INLINE u8v int8_sum(u8v a, u8v b)
{
    return a + b;
}

ALWAYS_INLINE u8v int8_prod(u8v a, u8v b)
{
    return a * b;
}

ALWAYS_INLINE u32v int32_sum(u32v a, u32v b)
{
    return a + b;
}

ALWAYS_INLINE u32v int32_prod(u32v a, u32v b)
{
    return a * b;
}

ALWAYS_INLINE u64v int64_sum(u64v a, u64v b)
{
    return a + b;
}

ALWAYS_INLINE u64v int64_prod(u64v a, u64v b)
{
    return a * b;
}

ALWAYS_INLINE f32v float32_sum(f32v a, f32v b)
{
    return a + b;
}

ALWAYS_INLINE f32v float32_prod(f32v a, f32v b)
{
    return a * b;
}

ALWAYS_INLINE f64v float64_sum(f64v a, f64v b)
{
    return a + b;
}

ALWAYS_INLINE f64v float64_prod(f64v a, f64v b)
{
    return a * b;
}

/* ------------------------------------------------- rounding to small floats */

/* What this needs of the level. select32: lane by lane `yes` where the mask is all ones, `no` where it is 0. */
ALWAYS_INLINE u32v select32(i32v mask, u32v yes, u32v no);
ALWAYS_INLINE u32v uint32_min(u32v a, u32v b);

/* The upper 16 bits rounded to nearest even; those below are left over. NaN must be canonical: nothing to carry. */
ALWAYS_INLINE u32v bfloat16_round(f32v v)
{
    u32v bits = (u32v)v;
    return bits + 0x7fffU + ((bits >> 16) & 1U);
}

/*
 * float32 to a format of eight bits, one per 32-bit lane, to nearest even.
 * Codes above `limit`, which those of NaN are too, become it.
 */
ALWAYS_INLINE u32v float8_encode(f32v v, int mantissa_bits, int bias, uint32_t limit)
{
    const int shift = 23 - mantissa_bits;
    const uint32_t rebias = (uint32_t)(127 - bias) << 23;
    u32v magnitude = (u32v)v & 0x7fffffffU;
    u32v even = (magnitude >> shift) & 1U;
    u32v normal = (magnitude + even + ((1U << (shift - 1)) - 1U - rebias)) >> shift;

    /* Adding the power of two whose last place is the format's smallest number makes the FPU round there. */
    const uint32_t aligner_bits = (uint32_t)(128 - bias + shift) << 23;
    u32v aligner = (u32v){0} + aligner_bits;
    u32v subnormal = (u32v)((f32v)magnitude + (f32v)aligner) - aligner;

    i32v is_subnormal = (i32v)magnitude < (i32v)((u32v){0} + (rebias + (1U << 23)));
    u32v code = select32(is_subnormal, subnormal, normal);
    return uint32_min(code, (u32v){0} + limit) | (((u32v)v >> 24) & 0x80U);
}

#endif
