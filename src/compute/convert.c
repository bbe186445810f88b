/*
 * One element to float32 and back, in integer arithmetic only, so that neither
 * the CPU's conversion instructions nor its rounding mode matter: the
 * reference that the vector conversions must equal bit by bit.
 */
#include "compute/compute.h"

#include <string.h>

/* A binary format of at most 16 bits: sign, exponent, mantissa, from the top. */
struct small_format {
    int exponent_bits;
    int mantissa_bits;
    bool has_infinity; /* no: the top exponent holds numbers, and only the all-ones pattern is NaN */
};

static const struct small_format float16_format = {5, 10, true};
static const struct small_format bfloat16_format = {8, 7, true};
static const struct small_format e4m3_format = {4, 3, false};
static const struct small_format e5m2_format = {5, 2, true};

static int format_bias(const struct small_format *format)
{
    return (1 << (format->exponent_bits - 1)) - 1;
}

/* The canonical NaN: positive, quiet. */
static uint32_t format_nan(const struct small_format *format)
{
    uint32_t all_ones = (1U << (format->exponent_bits + format->mantissa_bits)) - 1;
    uint32_t payload_below_quiet = (1U << (format->mantissa_bits - 1)) - 1;
    return format->has_infinity ? all_ones - payload_below_quiet : all_ones;
}

static float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t bits_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float small_decode(const struct small_format *format, uint32_t code)
{
    uint32_t sign = code >> (format->exponent_bits + format->mantissa_bits) << 31;
    uint32_t exponent_mask = (1U << format->exponent_bits) - 1;
    uint32_t exponent = (code >> format->mantissa_bits) & exponent_mask;
    uint32_t mantissa = code & ((1U << format->mantissa_bits) - 1);
    uint32_t shift = 23U - (uint32_t)format->mantissa_bits;
    uint32_t rebias = 127U - (uint32_t)format_bias(format);

    bool all_ones = exponent == exponent_mask && mantissa == (1U << format->mantissa_bits) - 1;
    if (format->has_infinity ? exponent == exponent_mask && mantissa != 0 : all_ones)
        return float_from_bits(0x7fc00000U);
    if (format->has_infinity && exponent == exponent_mask)
        return float_from_bits(sign | 0x7f800000U);
    if (exponent != 0)
        return float_from_bits(sign | (exponent + rebias) << 23 | mantissa << shift);
    if (mantissa == 0)
        return float_from_bits(sign);
    if (rebias == 0) /* bfloat16: its subnormals are float32's */
        return float_from_bits(sign | mantissa << shift);
    /* A subnormal that is a normal float32: move the leading bit to the implicit place. */
    exponent = rebias + 1;
    while ((mantissa & (1U << format->mantissa_bits)) == 0) {
        mantissa <<= 1;
        exponent--;
    }
    mantissa &= (1U << format->mantissa_bits) - 1;
    return float_from_bits(sign | exponent << 23 | mantissa << shift);
}

/* value >> shift, rounded to nearest, ties to even. 1 <= shift <= 31. */
static uint32_t shift_round(uint32_t value, uint32_t shift)
{
    uint32_t result = value >> shift;
    uint32_t rest = value & ((1U << shift) - 1);
    uint32_t half = 1U << (shift - 1);
    if (rest > half || (rest == half && (result & 1) != 0))
        result++;
    return result;
}

static uint32_t small_encode(const struct small_format *format, float value)
{
    uint32_t bits = bits_from_float(value);
    uint32_t sign = bits >> 31 << (format->exponent_bits + format->mantissa_bits);
    uint32_t magnitude = bits & 0x7fffffffU;
    uint32_t shift = 23U - (uint32_t)format->mantissa_bits;
    uint32_t rebias = 127U - (uint32_t)format_bias(format);
    uint32_t infinity = ((1U << format->exponent_bits) - 1) << format->mantissa_bits;
    uint32_t code;

    if (magnitude > 0x7f800000U)
        return format_nan(format);
    if (rebias == 0 || magnitude >= (rebias + 1) << 23) { /* normal; a carry out of the mantissa is right as it is */
        code = shift_round(magnitude - (rebias << 23), shift);
    } else {
        uint32_t exponent = magnitude >> 23;
        uint32_t mantissa = exponent == 0 ? magnitude : (magnitude & 0x7fffffU) | 0x800000U;
        uint32_t extra = rebias + 1 - (exponent == 0 ? 1 : exponent);
        code = shift + extra > 31 ? 0 : shift_round(mantissa, shift + extra);
    }
    if (format->has_infinity)
        return sign | (code > infinity ? infinity : code);
    return code >= format_nan(format) ? format_nan(format) : sign | code;
}

static const struct small_format *format_of(polypath_type_t type)
{
    switch (type) {
    case POLYPATH_FLOAT16: return &float16_format;
    case POLYPATH_BFLOAT16: return &bfloat16_format;
    case POLYPATH_FLOAT8_E4M3: return &e4m3_format;
    default: return &e5m2_format;
    }
}

float compute_to_float(polypath_type_t type, const void *element)
{
    uint16_t two_bytes;
    switch (type) {
    case POLYPATH_FLOAT32: {
        float value;
        memcpy(&value, element, sizeof(value));
        return value;
    }
    case POLYPATH_FLOAT16:
    case POLYPATH_BFLOAT16:
        memcpy(&two_bytes, element, sizeof(two_bytes));
        return small_decode(format_of(type), two_bytes);
    case POLYPATH_FLOAT8_E4M3:
    case POLYPATH_FLOAT8_E5M2: return small_decode(format_of(type), *(const uint8_t *)element);
    default: return 0.0F;
    }
}

void compute_from_float(polypath_type_t type, void *element, float value)
{
    switch (type) {
    case POLYPATH_FLOAT32: {
        if (value != value)
            value = float_from_bits(0x7fc00000U);
        memcpy(element, &value, sizeof(value));
        break;
    }
    case POLYPATH_FLOAT16:
    case POLYPATH_BFLOAT16: {
        uint16_t code = (uint16_t)small_encode(format_of(type), value);
        memcpy(element, &code, sizeof(code));
        break;
    }
    case POLYPATH_FLOAT8_E4M3:
    case POLYPATH_FLOAT8_E5M2: *(uint8_t *)element = (uint8_t)small_encode(format_of(type), value); break;
    default: break;
    }
}
