/*
 * Inputs and expected results, element by element. Slow and plain on purpose.
 */
#include "support/reference.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

uint64_t reference_hash(uint64_t seed, uint64_t a, uint64_t b)
{
    /* the finaliser of splitmix64 over a mixture of the three */
    uint64_t x = seed * 0x9e3779b97f4a7c15u + a * 0xd1342543de82ef95u + b * 0xbf58476d1ce4e5b9u + 1;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* ------------------------------------------------------------ small floats */

static const struct format {
    int exponent_bits, mantissa_bits;
} formats[POLYPATH_TYPE_COUNT] = {
    [POLYPATH_FLOAT16] = {5, 10},
    [POLYPATH_BFLOAT16] = {8, 7},
    [POLYPATH_FLOAT8_E4M3] = {4, 3},
    [POLYPATH_FLOAT8_E5M2] = {5, 2},
};

static bool is_float(polypath_type_t type)
{
    return type == POLYPATH_FLOAT32 || type == POLYPATH_FLOAT64 || formats[type].exponent_bits;
}

static bool is_signed(polypath_type_t type)
{
    return type == POLYPATH_INT8 || type == POLYPATH_INT32 || type == POLYPATH_INT64;
}

static uint64_t round_to(struct format f, double value)
{
    const int bias = (1 << (f.exponent_bits - 1)) - 1;
    const uint64_t sign = signbit(value) ? 1 : 0;
    double magnitude = fabs(value);
    uint64_t bits = 0;
    if (magnitude > 0) {
        int exponent;
        frexp(magnitude, &exponent);
        exponent--; /* magnitude = 1.x * 2^exponent */
        if (exponent < 1 - bias)
            exponent = 1 - bias; /* subnormal */
        /* units of the last place; nearbyint rounds to nearest even */
        double units = nearbyint(ldexp(magnitude, f.mantissa_bits - exponent));
        /* a carry into the exponent, and the step from subnormal to normal, come out right by themselves */
        bits = (uint64_t)units + ((uint64_t)(exponent + bias - 1) << f.mantissa_bits);
    }
    return sign << (f.exponent_bits + f.mantissa_bits) | bits;
}

static double value_of(struct format f, uint64_t bits)
{
    const int bias = (1 << (f.exponent_bits - 1)) - 1;
    const uint64_t mantissa = bits & ((1u << f.mantissa_bits) - 1);
    const int exponent = (int)(bits >> f.mantissa_bits & ((1u << f.exponent_bits) - 1));
    double magnitude = exponent ? ldexp((double)(mantissa + (1u << f.mantissa_bits)), exponent - bias - f.mantissa_bits)
                                : ldexp((double)mantissa, 1 - bias - f.mantissa_bits);
    return bits >> (f.exponent_bits + f.mantissa_bits) & 1 ? -magnitude : magnitude;
}

void reference_encode(polypath_type_t type, double value, void *out)
{
    if (type == POLYPATH_FLOAT64) {
        memcpy(out, &value, sizeof value);
    } else if (type == POLYPATH_FLOAT32) {
        float small = (float)value;
        memcpy(out, &small, sizeof small);
    } else if (is_float(type)) {
        uint64_t bits = round_to(formats[type], value);
        memcpy(out, &bits, polypath_type_bytes(type)); /* little endian, as everything here */
    } else {
        uint64_t bits = value < 0 ? (uint64_t)(int64_t)value : (uint64_t)value;
        memcpy(out, &bits, polypath_type_bytes(type));
    }
}

static uint64_t integer_of(polypath_type_t type, const void *element)
{
    const size_t bytes = polypath_type_bytes(type);
    uint64_t bits = 0;
    memcpy(&bits, element, bytes);
    if (is_signed(type) && bytes < 8 && bits >> (8 * bytes - 1))
        bits |= ~0ull << (8 * bytes);
    return bits;
}

double reference_decode(polypath_type_t type, const void *element)
{
    uint64_t bits = 0;
    if (type == POLYPATH_FLOAT64) {
        double value;
        memcpy(&value, element, sizeof value);
        return value;
    }
    if (type == POLYPATH_FLOAT32) {
        float value;
        memcpy(&value, element, sizeof value);
        return (double)value;
    }
    if (!is_float(type))
        return is_signed(type) ? (double)(int64_t)integer_of(type, element) : (double)integer_of(type, element);
    memcpy(&bits, element, polypath_type_bytes(type));
    return value_of(formats[type], bits);
}

/* ------------------------------------------------------------------ inputs */

static double scalar_of(polypath_type_t type, int rank)
{
    return is_float(type) ? (rank % 2 ? 2 : 4) : rank + 1;
}

void reference_scalar(polypath_type_t type, int rank, void *out)
{
    reference_encode(type, scalar_of(type, rank), out);
}

/* Small numbers of which sums, products and so on of any ranks are exact in every float type. */
static double float_input(int op, int rank, uint64_t h)
{
    static const double various[15] = {-6, -4, -3, -2, -1.5, -1, -0.5, 0.25, 0.5, 1, 1.5, 2, 3, 4, 256};
    switch (op) {
    case POLYPATH_PROD: return (h & 1 ? -1.0 : 1.0) * (rank % 4 == 0 && h & 2 ? 2.0 : 1.0);
    case POLYPATH_MAX:
    case POLYPATH_MIN: return various[h % 15];
    case REFERENCE_SCALED: return rank < 4 ? (double)(h % 3) - 1 : 0; /* |sum| <= 12, and even */
    default: return rank < 8 ? (double)(h % 3) - 1 : 0;
    }
}

static void input_element(polypath_type_t type, int op, int rank, uint64_t seed, size_t index, void *out)
{
    const uint64_t h = reference_hash(seed, (uint64_t)rank + 1, index);
    if (op == REFERENCE_MOVE || (!is_float(type) && op != POLYPATH_AVG)) {
        memcpy(out, &h, polypath_type_bytes(type));
    } else if (is_float(type)) {
        reference_encode(type, float_input(op, rank, h >> 8), out);
    } else { /* an average of integers: sums of up to 16 ranks stay in int8 */
        reference_encode(type, is_signed(type) ? (double)(h % 15) - 7 : (double)(h % 15), out);
    }
}

void reference_input(polypath_type_t type, int op, int rank, uint64_t seed, size_t first, size_t count, void *out)
{
    const size_t element = polypath_type_bytes(type);
    for (size_t i = 0; i < count; i++)
        input_element(type, op, rank, seed, first + i, (char *)out + i * element);
}

/* ----------------------------------------------------------------- results */

static void reduce_integers(polypath_type_t type, int op, int size, uint64_t seed, size_t index, void *out)
{
    uint64_t all = 0;
    for (int r = 0; r < size; r++) {
        uint64_t raw = 0;
        input_element(type, op, r, seed, index, &raw);
        const uint64_t v = integer_of(type, &raw);
        const bool less = is_signed(type) ? (int64_t)v < (int64_t)all : v < all;
        if (op == REFERENCE_SCALED)
            all += v * (uint64_t)(r + 1);
        else if (r == 0)
            all = v;
        else if (op == POLYPATH_PROD)
            all *= v;
        else if (op == POLYPATH_MAX)
            all = less ? all : v;
        else if (op == POLYPATH_MIN)
            all = less ? v : all;
        else
            all += v;
    }
    if (op == POLYPATH_AVG)
        all = is_signed(type) ? (uint64_t)((int64_t)all / size) : all / (uint64_t)size;
    memcpy(out, &all, polypath_type_bytes(type));
}

static void reduce_floats(polypath_type_t type, int op, int size, uint64_t seed, size_t index, void *out)
{
    double all = 0;
    for (int r = 0; r < size; r++) {
        const double v = float_input(op, r, reference_hash(seed, (uint64_t)r + 1, index) >> 8);
        if (op == REFERENCE_SCALED)
            all += v * scalar_of(type, r);
        else if (r == 0)
            all = v;
        else if (op == POLYPATH_PROD)
            all *= v;
        else if (op == POLYPATH_MAX)
            all = v > all ? v : all;
        else if (op == POLYPATH_MIN)
            all = v < all ? v : all;
        else
            all += v;
    }
    if (op == POLYPATH_AVG) /* small floats divide in float32 */
        all = type == POLYPATH_FLOAT64 ? all / size : (double)((float)all / (float)size);
    reference_encode(type, all, out);
}

void reference_reduce(polypath_type_t type, int op, int size, uint64_t seed, size_t first, size_t count, void *out)
{
    const size_t element = polypath_type_bytes(type);
    for (size_t i = 0; i < count; i++) {
        char *to = (char *)out + i * element;
        if (is_float(type))
            reduce_floats(type, op, size, seed, first + i, to);
        else
            reduce_integers(type, op, size, seed, first + i, to);
    }
}
