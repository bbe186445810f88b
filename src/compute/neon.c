/*
 * The NEON level, for 64-bit ARM, where every CPU has it: what NEON has its
 * own instructions for. The kernels themselves are in the templates included
 * at the end. There is no non-temporal store that C can reach in all
 * compilers, so streaming is plain storing here.
 */
#include "compute/kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#define VECTOR_BYTES 16
#include "compute/vector.h"

/* --------------------------------------------------------- load and store */

ALWAYS_INLINE u8v vector_load(const void *from)
{
    return (u8v)vld1q_u8(from);
}

ALWAYS_INLINE void vector_store(void *to, u8v v)
{
    vst1q_u8(to, (uint8x16_t)v);
}

ALWAYS_INLINE void vector_stream(void *to, u8v v)
{
    vector_store(to, v);
}

ALWAYS_INLINE void stream_end(void) {}

/* ------------------------------------------------------------ min and max */

ALWAYS_INLINE u8v int8_min(u8v a, u8v b)
{
    return (u8v)vminq_s8((int8x16_t)a, (int8x16_t)b);
}

ALWAYS_INLINE u8v int8_max(u8v a, u8v b)
{
    return (u8v)vmaxq_s8((int8x16_t)a, (int8x16_t)b);
}

ALWAYS_INLINE u8v uint8_min(u8v a, u8v b)
{
    return (u8v)vminq_u8((uint8x16_t)a, (uint8x16_t)b);
}

ALWAYS_INLINE u8v uint8_max(u8v a, u8v b)
{
    return (u8v)vmaxq_u8((uint8x16_t)a, (uint8x16_t)b);
}

ALWAYS_INLINE u32v int32_min(u32v a, u32v b)
{
    return (u32v)vminq_s32((int32x4_t)a, (int32x4_t)b);
}

ALWAYS_INLINE u32v int32_max(u32v a, u32v b)
{
    return (u32v)vmaxq_s32((int32x4_t)a, (int32x4_t)b);
}

ALWAYS_INLINE u32v uint32_min(u32v a, u32v b)
{
    return (u32v)vminq_u32((uint32x4_t)a, (uint32x4_t)b);
}

ALWAYS_INLINE u32v uint32_max(u32v a, u32v b)
{
    return (u32v)vmaxq_u32((uint32x4_t)a, (uint32x4_t)b);
}

ALWAYS_INLINE u64v int64_min(u64v a, u64v b)
{
    return (u64v)vbslq_s64(vcltq_s64((int64x2_t)a, (int64x2_t)b), (int64x2_t)a, (int64x2_t)b);
}

ALWAYS_INLINE u64v int64_max(u64v a, u64v b)
{
    return (u64v)vbslq_s64(vcgtq_s64((int64x2_t)a, (int64x2_t)b), (int64x2_t)a, (int64x2_t)b);
}

ALWAYS_INLINE u64v uint64_min(u64v a, u64v b)
{
    return (u64v)vbslq_u64(vcltq_u64((uint64x2_t)a, (uint64x2_t)b), (uint64x2_t)a, (uint64x2_t)b);
}

ALWAYS_INLINE u64v uint64_max(u64v a, u64v b)
{
    return (u64v)vbslq_u64(vcgtq_u64((uint64x2_t)a, (uint64x2_t)b), (uint64x2_t)a, (uint64x2_t)b);
}

/* The instructions are IEEE 754-2019 minimum and maximum: NaN if either is, and -0 below +0. */
ALWAYS_INLINE f32v float32_min(f32v a, f32v b)
{
    return (f32v)vminq_f32((float32x4_t)a, (float32x4_t)b);
}

ALWAYS_INLINE f32v float32_max(f32v a, f32v b)
{
    return (f32v)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
}

ALWAYS_INLINE f64v float64_min(f64v a, f64v b)
{
    return (f64v)vminq_f64((float64x2_t)a, (float64x2_t)b);
}

ALWAYS_INLINE f64v float64_max(f64v a, f64v b)
{
    return (f64v)vmaxq_f64((float64x2_t)a, (float64x2_t)b);
}

/* Every NaN becomes the positive quiet one: which operand's NaN survives an addition is the compiler's choice. */
ALWAYS_INLINE f32v float32_canonical(f32v v)
{
    uint32x4_t number = vceqq_f32((float32x4_t)v, (float32x4_t)v);
    return (f32v)vbslq_u32(number, (uint32x4_t)v, vdupq_n_u32(0x7fc00000U));
}

ALWAYS_INLINE f64v float64_canonical(f64v v)
{
    uint64x2_t number = vceqq_f64((float64x2_t)v, (float64x2_t)v);
    return (f64v)vbslq_u64(number, (uint64x2_t)v, vdupq_n_u64(0x7ff8000000000000U));
}

/* ----------------------------------------------------- widening, narrowing */

ALWAYS_INLINE u32v select32(i32v mask, u32v yes, u32v no)
{
    return (u32v)vbslq_u32((uint32x4_t)mask, (uint32x4_t)yes, (uint32x4_t)no);
}

ALWAYS_INLINE u16half half_load(const void *from)
{
    return (u16half)vreinterpret_u16_u8(vld1_u8(from));
}

ALWAYS_INLINE u16half low_half(u16v v)
{
    return (u16half)vget_low_u16((uint16x8_t)v);
}

ALWAYS_INLINE u16half high_half(u16v v)
{
    return (u16half)vget_high_u16((uint16x8_t)v);
}

ALWAYS_INLINE f32v float16_decode(u16half v)
{
    return (f32v)vcvt_f32_f16((float16x4_t)v);
}

ALWAYS_INLINE u8v float16_encode(f32v a, f32v b)
{
    return (u8v)vcombine_f16(vcvt_f16_f32((float32x4_t)a), vcvt_f16_f32((float32x4_t)b));
}

/* The low 16 bits of each lane. */
ALWAYS_INLINE u16v pack16(u32v a, u32v b)
{
    return (u16v)vcombine_u16(vmovn_u32((uint32x4_t)a), vmovn_u32((uint32x4_t)b));
}

#include "compute/vector_kernels.inc"

const struct compute_kernels *compute_kernels_neon(void)
{
    return &vector_kernels;
}

#else

const struct compute_kernels *compute_kernels_neon(void)
{
    return NULL;
}

#endif
