/*
 * The AVX-512 level (F, BW, DQ, VL, as every CPU since 2017 that has AVX-512
 * for general use): what AVX-512 has its own instructions for. The kernels
 * themselves are in the templates included at the end.
 */
#include "compute/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif

#define VECTOR_BYTES 64
#include "compute/vector.h"

/* --------------------------------------------------------- load and store */

ALWAYS_INLINE u8v vector_load(const void *from)
{
    return (u8v)_mm512_loadu_si512(from);
}

ALWAYS_INLINE void vector_store(void *to, u8v v)
{
    _mm512_storeu_si512(to, (__m512i)v);
}

/* `to` must be aligned to the vector. */
ALWAYS_INLINE void vector_stream(void *to, u8v v)
{
    _mm512_stream_si512(to, (__m512i)v);
}

/* Makes streamed stores visible before whatever the caller stores next, such as a signal. */
ALWAYS_INLINE void stream_end(void)
{
    _mm_sfence();
}

/* ------------------------------------------------------------ min and max */

ALWAYS_INLINE u8v int8_min(u8v a, u8v b)
{
    return (u8v)_mm512_min_epi8((__m512i)a, (__m512i)b);
}

ALWAYS_INLINE u8v int8_max(u8v a, u8v b)
{
    return (u8v)_mm512_max_epi8((__m512i)a, (__m512i)b);
}

ALWAYS_INLINE u8v uint8_min(u8v a, u8v b)
{
    return (u8v)_mm512_min_epu8((__m512i)a, (__m512i)b);
}

ALWAYS_INLINE u8v uint8_max(u8v a, u8v b)
{
    return (u8v)_mm512_max_epu8((__m512i)a, (__m512i)b);
}

ALWAYS_INLINE u32v int32_min(u32v a, u32v b)
{
    return (u32v)_mm512_min_epi32((__m512i)a, (__m512i)b);
}

ALWAYS_INLINE u32v int32_max(u32v a, u32v b)
{
    return (u32v)_mm512_max_epi32((__m512i)a, (__m512i)b);
}

ALWAYS_INLINE u32v uint32_min(u32v a, u32v b)
{
    return (u32v)_mm512_min_epu32((__m512i)a, (__m512i)b);
}

ALWAYS_INLINE u32v uint32_max(u32v a, u32v b)
{
    return (u32v)_mm512_max_epu32((__m512i)a, (__m512i)b);
}

ALWAYS_INLINE u64v int64_min(u64v a, u64v b)
{
    return (u64v)_mm512_min_epi64((__m512i)a, (__m512i)b);
}

ALWAYS_INLINE u64v int64_max(u64v a, u64v b)
{
    return (u64v)_mm512_max_epi64((__m512i)a, (__m512i)b);
}

ALWAYS_INLINE u64v uint64_min(u64v a, u64v b)
{
    return (u64v)_mm512_min_epu64((__m512i)a, (__m512i)b);
}

ALWAYS_INLINE u64v uint64_max(u64v a, u64v b)
{
    return (u64v)_mm512_max_epu64((__m512i)a, (__m512i)b);
}

/*
 * The instruction returns its second operand for zeros of unlike sign and for
 * NaN. Both orders OR-ed give -0 if either is, and a NaN if either is one.
 */
ALWAYS_INLINE f32v float32_min(f32v a, f32v b)
{
    return (f32v)_mm512_or_ps(_mm512_min_ps((__m512)a, (__m512)b), _mm512_min_ps((__m512)b, (__m512)a));
}

/* Both orders AND-ed give +0 if either is; a NaN AND-ed with a number is not one, so it is put in afterwards. */
ALWAYS_INLINE f32v float32_max(f32v a, f32v b)
{
    __m512 larger = _mm512_and_ps(_mm512_max_ps((__m512)a, (__m512)b), _mm512_max_ps((__m512)b, (__m512)a));
    __mmask16 unordered = _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q);
    return (f32v)_mm512_mask_mov_ps(larger, unordered, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
}

ALWAYS_INLINE f64v float64_min(f64v a, f64v b)
{
    return (f64v)_mm512_or_pd(_mm512_min_pd((__m512d)a, (__m512d)b), _mm512_min_pd((__m512d)b, (__m512d)a));
}

ALWAYS_INLINE f64v float64_max(f64v a, f64v b)
{
    __m512d larger = _mm512_and_pd(_mm512_max_pd((__m512d)a, (__m512d)b), _mm512_max_pd((__m512d)b, (__m512d)a));
    __mmask8 unordered = _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_UNORD_Q);
    return (f64v)_mm512_mask_mov_pd(larger, unordered, _mm512_castsi512_pd(_mm512_set1_epi64(0x7ff8000000000000)));
}

/* Every NaN becomes the positive quiet one: which operand's NaN survives an addition is the compiler's choice. */
ALWAYS_INLINE f32v float32_canonical(f32v v)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    return (f32v)_mm512_mask_mov_ps((__m512)v, is_nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
}

ALWAYS_INLINE f64v float64_canonical(f64v v)
{
    __mmask8 is_nan = _mm512_cmp_pd_mask((__m512d)v, (__m512d)v, _CMP_UNORD_Q);
    return (f64v)_mm512_mask_mov_pd((__m512d)v, is_nan, _mm512_castsi512_pd(_mm512_set1_epi64(0x7ff8000000000000)));
}

/* ----------------------------------------------------- widening, narrowing */

ALWAYS_INLINE u32v select32(i32v mask, u32v yes, u32v no)
{
    return (u32v)_mm512_ternarylogic_epi32((__m512i)mask, (__m512i)yes, (__m512i)no, 0xca); /* mask ? yes : no */
}

ALWAYS_INLINE u16half half_load(const void *from)
{
    return (u16half)_mm256_loadu_si256(from);
}

ALWAYS_INLINE u16half low_half(u16v v)
{
    return (u16half)_mm512_castsi512_si256((__m512i)v);
}

ALWAYS_INLINE u16half high_half(u16v v)
{
    return (u16half)_mm512_extracti64x4_epi64((__m512i)v, 1);
}

ALWAYS_INLINE f32v float16_decode(u16half v)
{
    return (f32v)_mm512_cvtph_ps((__m256i)v);
}

/* To nearest even, whatever the rounding mode. */
ALWAYS_INLINE u8v float16_encode(f32v a, f32v b)
{
    __m256i low = _mm512_cvtps_ph((__m512)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i high = _mm512_cvtps_ph((__m512)b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (u8v)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* The low 16 bits of each lane. */
ALWAYS_INLINE u16v pack16(u32v a, u32v b)
{
    __m512i low = _mm512_castsi256_si512(_mm512_cvtepi32_epi16((__m512i)a));
    return (u16v)_mm512_inserti64x4(low, _mm512_cvtepi32_epi16((__m512i)b), 1);
}

#include "compute/vector_kernels.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const struct compute_kernels *compute_kernels_avx512(void)
{
    /* __builtin_cpu_supports() also asks whether the system saves the wide registers. */
    bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return has ? &vector_kernels : NULL;
}

#else

const struct compute_kernels *compute_kernels_avx512(void)
{
    return NULL;
}

#endif
