/*
 * The AVX2 level (with F16C): what AVX2 has its own instructions for. The
 * kernels themselves are in the templates included at the end.
 */
#include "compute/kernels.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#define VECTOR_BYTES 32
#include "compute/vector.h"

/* --------------------------------------------------------- load and store */

ALWAYS_INLINE u8v vector_load(const void *from)
{
    return (u8v)_mm256_loadu_si256(from);
}

ALWAYS_INLINE void vector_store(void *to, u8v v)
{
    _mm256_storeu_si256(to, (__m256i)v);
}

/* `to` must be aligned to the vector. */
ALWAYS_INLINE void vector_stream(void *to, u8v v)
{
    _mm256_stream_si256(to, (__m256i)v);
}

/* Makes streamed stores visible before whatever the caller stores next, such as a signal. */
ALWAYS_INLINE void stream_end(void)
{
    _mm_sfence();
}

/* ------------------------------------------------------------ min and max */

ALWAYS_INLINE u8v int8_min(u8v a, u8v b)
{
    return (u8v)_mm256_min_epi8((__m256i)a, (__m256i)b);
}

ALWAYS_INLINE u8v int8_max(u8v a, u8v b)
{
    return (u8v)_mm256_max_epi8((__m256i)a, (__m256i)b);
}

ALWAYS_INLINE u8v uint8_min(u8v a, u8v b)
{
    return (u8v)_mm256_min_epu8((__m256i)a, (__m256i)b);
}

ALWAYS_INLINE u8v uint8_max(u8v a, u8v b)
{
    return (u8v)_mm256_max_epu8((__m256i)a, (__m256i)b);
}

ALWAYS_INLINE u32v int32_min(u32v a, u32v b)
{
    return (u32v)_mm256_min_epi32((__m256i)a, (__m256i)b);
}

ALWAYS_INLINE u32v int32_max(u32v a, u32v b)
{
    return (u32v)_mm256_max_epi32((__m256i)a, (__m256i)b);
}

ALWAYS_INLINE u32v uint32_min(u32v a, u32v b)
{
    return (u32v)_mm256_min_epu32((__m256i)a, (__m256i)b);
}

ALWAYS_INLINE u32v uint32_max(u32v a, u32v b)
{
    return (u32v)_mm256_max_epu32((__m256i)a, (__m256i)b);
}

/* AVX2 compares 64-bit integers only as signed ones, and only for "greater". */
ALWAYS_INLINE u64v pick64(i64v second, u64v a, u64v b)
{
    return (u64v)_mm256_blendv_epi8((__m256i)a, (__m256i)b, (__m256i)second);
}

ALWAYS_INLINE i64v sign_flipped(u64v v)
{
    return (i64v)(v ^ 0x8000000000000000U);
}

ALWAYS_INLINE u64v int64_min(u64v a, u64v b)
{
    return pick64((i64v)a > (i64v)b, a, b);
}

ALWAYS_INLINE u64v int64_max(u64v a, u64v b)
{
    return pick64((i64v)b > (i64v)a, a, b);
}

ALWAYS_INLINE u64v uint64_min(u64v a, u64v b)
{
    return pick64(sign_flipped(a) > sign_flipped(b), a, b);
}

ALWAYS_INLINE u64v uint64_max(u64v a, u64v b)
{
    return pick64(sign_flipped(b) > sign_flipped(a), a, b);
}

/*
 * The instruction returns its second operand for zeros of unlike sign and for
 * NaN. Both orders OR-ed give -0 if either is, and a NaN if either is one.
 */
ALWAYS_INLINE f32v float32_min(f32v a, f32v b)
{
    return (f32v)_mm256_or_ps(_mm256_min_ps((__m256)a, (__m256)b), _mm256_min_ps((__m256)b, (__m256)a));
}

/* Both orders AND-ed give +0 if either is; a NaN AND-ed with a number is not one, so it is put in afterwards. */
ALWAYS_INLINE f32v float32_max(f32v a, f32v b)
{
    __m256 larger = _mm256_and_ps(_mm256_max_ps((__m256)a, (__m256)b), _mm256_max_ps((__m256)b, (__m256)a));
    return (f32v)_mm256_or_ps(larger, _mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q));
}

ALWAYS_INLINE f64v float64_min(f64v a, f64v b)
{
    return (f64v)_mm256_or_pd(_mm256_min_pd((__m256d)a, (__m256d)b), _mm256_min_pd((__m256d)b, (__m256d)a));
}

ALWAYS_INLINE f64v float64_max(f64v a, f64v b)
{
    __m256d larger = _mm256_and_pd(_mm256_max_pd((__m256d)a, (__m256d)b), _mm256_max_pd((__m256d)b, (__m256d)a));
    return (f64v)_mm256_or_pd(larger, _mm256_cmp_pd((__m256d)a, (__m256d)b, _CMP_UNORD_Q));
}

/* Every NaN becomes the positive quiet one: which operand's NaN survives an addition is the compiler's choice. */
ALWAYS_INLINE f32v float32_canonical(f32v v)
{
    __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return (f32v)_mm256_blendv_ps((__m256)v, nan, _mm256_cmp_ps((__m256)v, (__m256)v, _CMP_UNORD_Q));
}

ALWAYS_INLINE f64v float64_canonical(f64v v)
{
    __m256d nan = _mm256_castsi256_pd(_mm256_set1_epi64x(0x7ff8000000000000));
    return (f64v)_mm256_blendv_pd((__m256d)v, nan, _mm256_cmp_pd((__m256d)v, (__m256d)v, _CMP_UNORD_Q));
}

/* ----------------------------------------------------- widening, narrowing */

ALWAYS_INLINE u32v select32(i32v mask, u32v yes, u32v no)
{
    return (u32v)_mm256_blendv_epi8((__m256i)no, (__m256i)yes, (__m256i)mask);
}

ALWAYS_INLINE u16half half_load(const void *from)
{
    return (u16half)_mm_loadu_si128(from);
}

ALWAYS_INLINE u16half low_half(u16v v)
{
    return (u16half)_mm256_castsi256_si128((__m256i)v);
}

ALWAYS_INLINE u16half high_half(u16v v)
{
    return (u16half)_mm256_extracti128_si256((__m256i)v, 1);
}

ALWAYS_INLINE f32v float16_decode(u16half v)
{
    return (f32v)_mm256_cvtph_ps((__m128i)v);
}

/* To nearest even, whatever the rounding mode. */
ALWAYS_INLINE u8v float16_encode(f32v a, f32v b)
{
    __m128i low = _mm256_cvtps_ph((__m256)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m128i high = _mm256_cvtps_ph((__m256)b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (u8v)_mm256_set_m128i(high, low);
}

/* The low 16 bits of each lane, which must be all there is in it. */
ALWAYS_INLINE u16v pack16(u32v a, u32v b)
{
    __m256i packed = _mm256_packus_epi32((__m256i)a, (__m256i)b);
    return (u16v)_mm256_permute4x64_epi64(packed, 0xd8); /* packing works within 128 bits */
}

#include "compute/vector_kernels.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const struct compute_kernels *compute_kernels_avx2(void)
{
    unsigned int eax;
    unsigned int ebx;
    unsigned int ecx;
    unsigned int edx;
    /* __builtin_cpu_supports() also asks whether the system saves the wide registers; not all compilers know "f16c". */
    bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
    return f16c && __builtin_cpu_supports("avx2") ? &vector_kernels : NULL;
}

#else

const struct compute_kernels *compute_kernels_avx2(void)
{
    return NULL;
}

#endif
