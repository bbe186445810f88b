/*
 * The scalar level: plain C, one element at a time, in the order the header
 * promises. It defines what every other level must equal bit by bit, and runs
 * on CPUs for which there is no vector level.
 *
 * Where IEEE 754 or C leave a choice: any NaN result is the positive quiet NaN
 * without payload, and min and max order -0 below +0 (IEEE 754-2019 minimum
 * and maximum).
 */
#include "compute/kernels.h"
#include "compute/paste.h"

#include <string.h>

/* ---------------------------------------------------- floating-point folds */

static uint32_t float32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static uint64_t float64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float32_canonical(float value)
{
    const uint32_t nan = 0x7fc00000U;
    if (value != value)
        memcpy(&value, &nan, sizeof(value));
    return value;
}

static double float64_canonical(double value)
{
    const uint64_t nan = 0x7ff8000000000000U;
    if (value != value)
        memcpy(&value, &nan, sizeof(value));
    return value;
}

static inline float float32_fold(int op, float a, float b)
{
    switch (op) {
    case POLYPATH_SUM: return a + b;
    case POLYPATH_PROD: return a * b;
    default: break;
    }
    if (a != a || b != b)
        return a + b;
    if (a == b) /* equal, or zeros of either sign */
        return (float32_bits(a) >> 31 != 0) == (op == POLYPATH_MIN) ? a : b;
    return (a < b) == (op == POLYPATH_MIN) ? a : b;
}

static inline double float64_fold(int op, double a, double b)
{
    switch (op) {
    case POLYPATH_SUM: return a + b;
    case POLYPATH_PROD: return a * b;
    default: break;
    }
    if (a != a || b != b)
        return a + b;
    if (a == b)
        return (float64_bits(a) >> 63 != 0) == (op == POLYPATH_MIN) ? a : b;
    return (a < b) == (op == POLYPATH_MIN) ? a : b;
}

/* ------------------------------------------------- the kernels, by inclusion */

#define KERNEL int8
#define ELEMENT int8_t
#define WRAP uint32_t
#define WIDE int64_t
#include "compute/scalar_integer.inc"

#define KERNEL uint8
#define ELEMENT uint8_t
#define WRAP uint32_t
#define WIDE uint64_t
#include "compute/scalar_integer.inc"

#define KERNEL int32
#define ELEMENT int32_t
#define WRAP uint32_t
#define WIDE int64_t
#include "compute/scalar_integer.inc"

#define KERNEL uint32
#define ELEMENT uint32_t
#define WRAP uint32_t
#define WIDE uint64_t
#include "compute/scalar_integer.inc"

#define KERNEL int64
#define ELEMENT int64_t
#define WRAP uint64_t
#define WIDE int64_t
#include "compute/scalar_integer.inc"

#define KERNEL uint64
#define ELEMENT uint64_t
#define WRAP uint64_t
#define WIDE uint64_t
#include "compute/scalar_integer.inc"

#define KERNEL float16
#define ELEMENT uint16_t
#define FOLDED float32
#define ACCUMULATOR float
#define SMALL POLYPATH_FLOAT16
#include "compute/scalar_float.inc"

#define KERNEL bfloat16
#define ELEMENT uint16_t
#define FOLDED float32
#define ACCUMULATOR float
#define SMALL POLYPATH_BFLOAT16
#include "compute/scalar_float.inc"

#define KERNEL e4m3
#define ELEMENT uint8_t
#define FOLDED float32
#define ACCUMULATOR float
#define SMALL POLYPATH_FLOAT8_E4M3
#include "compute/scalar_float.inc"

#define KERNEL e5m2
#define ELEMENT uint8_t
#define FOLDED float32
#define ACCUMULATOR float
#define SMALL POLYPATH_FLOAT8_E5M2
#include "compute/scalar_float.inc"

#define KERNEL float32
#define ELEMENT float
#define FOLDED float32
#define ACCUMULATOR float
#include "compute/scalar_float.inc"

#define KERNEL float64
#define ELEMENT double
#define FOLDED float64
#define ACCUMULATOR double
#include "compute/scalar_float.inc"

static void scalar_copy(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

const struct compute_kernels *compute_kernels_scalar(void)
{
    static const struct compute_kernels table = {
        .reduce =
            {
                [POLYPATH_INT8] = int8_reduce,
                [POLYPATH_UINT8] = uint8_reduce,
                [POLYPATH_INT32] = int32_reduce,
                [POLYPATH_UINT32] = uint32_reduce,
                [POLYPATH_INT64] = int64_reduce,
                [POLYPATH_UINT64] = uint64_reduce,
                [POLYPATH_FLOAT16] = float16_reduce,
                [POLYPATH_FLOAT32] = float32_reduce,
                [POLYPATH_FLOAT64] = float64_reduce,
                [POLYPATH_BFLOAT16] = bfloat16_reduce,
                [POLYPATH_FLOAT8_E4M3] = e4m3_reduce,
                [POLYPATH_FLOAT8_E5M2] = e5m2_reduce,
            },
        .scale =
            {
                [POLYPATH_INT8] = int8_scale,
                [POLYPATH_UINT8] = uint8_scale,
                [POLYPATH_INT32] = int32_scale,
                [POLYPATH_UINT32] = uint32_scale,
                [POLYPATH_INT64] = int64_scale,
                [POLYPATH_UINT64] = uint64_scale,
                [POLYPATH_FLOAT16] = float16_scale,
                [POLYPATH_FLOAT32] = float32_scale,
                [POLYPATH_FLOAT64] = float64_scale,
                [POLYPATH_BFLOAT16] = bfloat16_scale,
                [POLYPATH_FLOAT8_E4M3] = e4m3_scale,
                [POLYPATH_FLOAT8_E5M2] = e5m2_scale,
            },
        .divide =
            {
                [POLYPATH_INT8] = int8_divide,
                [POLYPATH_UINT8] = uint8_divide,
                [POLYPATH_INT32] = int32_divide,
                [POLYPATH_UINT32] = uint32_divide,
                [POLYPATH_INT64] = int64_divide,
                [POLYPATH_UINT64] = uint64_divide,
            },
        .copy_stream = scalar_copy,
        .copy_plain = scalar_copy,
    };
    return &table;
}
