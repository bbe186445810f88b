/*
 * The arithmetic of src/compute against a naive reference written here
 * independently of it: rounding by searching the list of all numbers of a
 * format, integers through 64 bits. Every SIMD level of this CPU must equal
 * the reference bit by bit, so the levels equal each other.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/compute.h"

#define MAX_SOURCES 33
#define MAX_COUNT 4099
#define GUARD 128
#define BUFFER_BYTES (GUARD + 64 + MAX_COUNT * 8 + GUARD)

/* ------------------------------------------------------------ the reference */

static bool is_float(polypath_type_t type)
{
    return type >= POLYPATH_FLOAT16;
}

static bool is_signed(polypath_type_t type)
{
    return type == POLYPATH_INT8 || type == POLYPATH_INT32 || type == POLYPATH_INT64;
}

/* The numbers of a small format from 0 up, by code; the entry after the largest is what would come next. */
struct number_line {
    int exponent_bits;
    int mantissa_bits;
    uint32_t largest; /* code of the largest finite number */
    uint32_t nan;
    uint32_t codes; /* all, both signs */
    double value[0x8000];
};

static struct number_line number_lines[POLYPATH_TYPE_COUNT];

static void make_number_line(polypath_type_t type, int exponent_bits, int mantissa_bits, uint32_t largest, uint32_t nan)
{
    struct number_line *line = &number_lines[type];
    line->exponent_bits = exponent_bits;
    line->mantissa_bits = mantissa_bits;
    line->largest = largest;
    line->nan = nan;
    line->codes = 2U << (exponent_bits + mantissa_bits);
    int bias = (1 << (exponent_bits - 1)) - 1;
    for (uint32_t code = 0; code <= largest + 1; code++) {
        int exponent = (int)(code >> mantissa_bits);
        double mantissa = (double)(code & ((1U << mantissa_bits) - 1));
        double one = (double)(1U << mantissa_bits);
        if (exponent == 0)
            line->value[code] = ldexp(mantissa / one, 1 - bias);
        else
            line->value[code] = ldexp(1 + mantissa / one, exponent - bias);
    }
}

static int make_number_lines(void **state)
{
    (void)state;
    make_number_line(POLYPATH_FLOAT16, 5, 10, 0x7bff, 0x7e00);
    make_number_line(POLYPATH_BFLOAT16, 8, 7, 0x7f7f, 0x7fc0);
    make_number_line(POLYPATH_FLOAT8_E4M3, 4, 3, 0x7e, 0x7f);
    make_number_line(POLYPATH_FLOAT8_E5M2, 5, 2, 0x7b, 0x7e);
    return 0;
}

static float reference_decode(polypath_type_t type, uint32_t code)
{
    const struct number_line *line = &number_lines[type];
    uint32_t magnitude = code & (line->codes / 2 - 1);
    float value = NAN;
    if (magnitude <= line->largest)
        value = (float)line->value[magnitude];
    else if (magnitude == line->largest + 1 && type != POLYPATH_FLOAT8_E4M3)
        value = INFINITY;
    return code >= line->codes / 2 ? -value : value;
}

static uint32_t reference_encode(polypath_type_t type, float value)
{
    const struct number_line *line = &number_lines[type];
    if (isnan(value))
        return line->nan;
    double magnitude = fabs((double)value);
    uint32_t low = 0;
    uint32_t high = line->largest + 1;
    while (high - low > 1) { /* value[low] <= magnitude < value[high], if it is not beyond the end */
        uint32_t middle = (low + high) / 2;
        if (line->value[middle] <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double half_way = (line->value[low] + line->value[high]) / 2;
    uint32_t code = magnitude < half_way || (magnitude == half_way && low % 2 == 0) ? low : high;
    if (code > line->largest && type == POLYPATH_FLOAT8_E4M3)
        return line->nan;
    return code + (signbit(value) ? line->codes / 2 : 0);
}

static double reference_min_max(int op, double a, double b)
{
    if (isnan(a) || isnan(b))
        return NAN;
    if (a == 0 && b == 0) {
        bool negative = op == POLYPATH_MIN ? signbit(a) || signbit(b) : signbit(a) && signbit(b);
        return negative ? -0.0 : 0.0;
    }
    return op == POLYPATH_MIN ? fmin(a, b) : fmax(a, b);
}

static double reference_fold64(int op, double a, double b)
{
    if (op == POLYPATH_SUM)
        return a + b;
    return op == POLYPATH_PROD ? a * b : reference_min_max(op, a, b);
}

static float reference_fold32(int op, float a, float b)
{
    if (op == POLYPATH_SUM)
        return a + b;
    return op == POLYPATH_PROD ? a * b : (float)reference_min_max(op, (double)a, (double)b);
}

/* The element's bits, as a 64-bit number; sign-extended if the type is signed. */
static uint64_t element_bits(polypath_type_t type, const void *element)
{
    uint64_t bits = 0;
    size_t bytes = polypath_type_bytes(type);
    memcpy(&bits, element, bytes); /* little-endian, as all supported CPUs are */
    if (is_signed(type) && bytes < 8 && (bits >> (bytes * 8 - 1)) != 0)
        bits |= ~(uint64_t)0 << (bytes * 8);
    return bits;
}

static uint64_t reference_fold_integer(polypath_type_t type, int op, uint64_t a, uint64_t b)
{
    switch (op) {
    case POLYPATH_SUM: return a + b;
    case POLYPATH_PROD: return a * b;
    default: break;
    }
    bool a_less = is_signed(type) ? (int64_t)a < (int64_t)b : a < b;
    return a_less == (op == POLYPATH_MIN) ? a : b;
}

static float float32_of(polypath_type_t type, const void *element)
{
    if (type != POLYPATH_FLOAT32)
        return reference_decode(type, (uint32_t)element_bits(type, element));
    float value;
    memcpy(&value, element, sizeof(value));
    return value;
}

static void put_float32(polypath_type_t type, void *to, float value)
{
    uint32_t bits = 0x7fc00000U;
    if (type != POLYPATH_FLOAT32)
        bits = reference_encode(type, value);
    else if (!isnan(value))
        memcpy(&bits, &value, sizeof(bits));
    memcpy(to, &bits, polypath_type_bytes(type));
}

static void put_float64(void *to, double value)
{
    uint64_t bits = 0x7ff8000000000000U;
    if (!isnan(value))
        memcpy(&bits, &value, sizeof(bits));
    memcpy(to, &bits, sizeof(bits));
}

static void reference_element(const struct compute_op *op, void *to, const unsigned char *const *element, int nsrc)
{
    size_t bytes = polypath_type_bytes(op->type);
    bool divides = op->divisor > 1;
    if (nsrc == 1 && !divides) {
        memcpy(to, element[0], bytes);
    } else if (op->type == POLYPATH_FLOAT64) {
        double result;
        memcpy(&result, element[0], sizeof(result));
        for (int k = 1; k < nsrc; k++) {
            double next;
            memcpy(&next, element[k], sizeof(next));
            result = reference_fold64(op->op, result, next);
        }
        put_float64(to, divides ? result / op->divisor : result);
    } else if (is_float(op->type)) {
        float result = float32_of(op->type, element[0]);
        for (int k = 1; k < nsrc; k++)
            result = reference_fold32(op->op, result, float32_of(op->type, element[k]));
        put_float32(op->type, to, divides ? result / (float)op->divisor : result);
    } else {
        uint64_t result = element_bits(op->type, element[0]);
        for (int k = 1; k < nsrc; k++) {
            uint64_t folded = reference_fold_integer(op->type, op->op, result, element_bits(op->type, element[k]));
            memcpy(to, &folded, bytes);
            result = element_bits(op->type, to); /* wraps to the type */
        }
        if (divides)
            result = is_signed(op->type) ? (uint64_t)((int64_t)result / op->divisor) : result / (uint64_t)op->divisor;
        memcpy(to, &result, bytes);
    }
}

/* --------------------------------------------------------------- test data */

static uint64_t random_state = 88172645463325252U;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Zeros, ones, infinities, NaN of several kinds, smallest, largest and subnormal numbers, of either sign. */
static uint64_t special_element(polypath_type_t type, uint64_t choice)
{
    static const uint64_t integers[] = {0,
                                        1,
                                        2,
                                        3,
                                        127,
                                        128,
                                        0x7fffffff,
                                        0x80000000,
                                        0x7fffffffffffffff,
                                        0x8000000000000000,
                                        ~(uint64_t)0,
                                        ~(uint64_t)1,
                                        255,
                                        0xff80,
                                        46341,
                                        0xffffffff};
    static const uint32_t float32s[] = {0,          0x3f800000, 0x7f800000, 0x7fc00000, 0x7f800001, 0x7fffffff,
                                        0x00000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0x40400000, 0x3f000000,
                                        0x00000003, 0x4b000001, 0x7fa12345, 0x34000000};
    uint64_t sign = (choice >> 8) & 1;
    uint64_t which = choice & 15;
    uint64_t mantissas[] = {0, 1, 2, ~(uint64_t)0};
    int exponent_bits = 11;
    int mantissa_bits = 52;

    if (!is_float(type))
        return integers[which];
    if (type == POLYPATH_FLOAT32)
        return float32s[which] | sign << 31;
    if (type != POLYPATH_FLOAT64) {
        exponent_bits = number_lines[type].exponent_bits;
        mantissa_bits = number_lines[type].mantissa_bits;
    }
    uint64_t top = ((uint64_t)1 << exponent_bits) - 1;
    uint64_t exponents[] = {0, top, top - 1, top / 2};
    uint64_t mantissa = mantissas[which & 3] & (((uint64_t)1 << mantissa_bits) - 1);
    return sign << (exponent_bits + mantissa_bits) | exponents[which >> 2] << mantissa_bits | mantissa;
}

/* A number near 1, so that sums round and averages are not trivial. */
static void put_moderate(polypath_type_t type, void *to, uint64_t random)
{
    double value = (double)(int64_t)(random % 4001) / 500.0 - 4.0;
    uint64_t small = random % 11 - 5;
    if (type == POLYPATH_FLOAT64)
        put_float64(to, value);
    else if (is_float(type))
        put_float32(type, to, (float)value);
    else
        memcpy(to, &small, polypath_type_bytes(type));
}

static void fill(polypath_type_t type, unsigned char *to, size_t count)
{
    size_t bytes = polypath_type_bytes(type);
    for (size_t i = 0; i < count; i++) {
        uint64_t random = random_bits();
        uint64_t bits = random >> 20 ^ random << 44;
        switch (random % 8) {
        case 0: bits = special_element(type, random >> 8); /* fall through */
        case 1: memcpy(to + i * bytes, &bits, bytes); break;
        default: put_moderate(type, to + i * bytes, random >> 8); break;
        }
    }
}

static unsigned char master[MAX_SOURCES][MAX_COUNT * 8];
static unsigned char source_buffer[MAX_SOURCES][BUFFER_BYTES];
static unsigned char dst_buffer[BUFFER_BYTES];
static unsigned char dst2_buffer[BUFFER_BYTES];
static unsigned char expected[MAX_COUNT * 8];

static const enum compute_level all_levels[] = {COMPUTE_SCALAR, COMPUTE_AVX2, COMPUTE_AVX512, COMPUTE_NEON};

/* ------------------------------------------------------------- reductions */

enum alias { ALIAS_NONE, DST_IS_SOURCE, DST2_IS_SOURCE };

struct mode {
    size_t dst_offset;
    size_t source_step; /* source k starts k * this further on */
    bool stream;
    bool dst2;
    enum alias alias;
    int divisor;
};

static const struct mode modes[] = {
    {0, 0, false, false, ALIAS_NONE, 1},      {0, 0, true, true, ALIAS_NONE, 1},
    {1, 3, false, true, ALIAS_NONE, 1},       {8, 8, true, false, ALIAS_NONE, 1},
    {56, 1, true, true, DST_IS_SOURCE, 2},    {5, 7, true, false, DST_IS_SOURCE, 1},
    {4, 16, false, true, DST2_IS_SOURCE, 7},  {0, 0, false, false, DST_IS_SOURCE, 1},
    {24, 32, true, true, DST2_IS_SOURCE, 1},  {0, 4, false, false, ALIAS_NONE, 3},
    {16, 0, true, true, ALIAS_NONE, 1000003}, {7, 5, false, true, ALIAS_NONE, 0},
};
#define MODE_COUNT (sizeof(modes) / sizeof(modes[0]))

/* Everything around the result must still hold the pattern 0xa5. */
static void assert_guards(const unsigned char *buffer, const unsigned char *from, size_t bytes)
{
    for (const unsigned char *at = buffer; at < from; at++)
        if (*at != 0xa5)
            fail_msg("wrote %td bytes before the result", from - at);
    for (size_t i = 0; i < GUARD; i++)
        if (from[bytes + i] != 0xa5)
            fail_msg("wrote %zu bytes after the result", i + 1);
}

static void assert_result(const struct compute_op *op, const struct mode *mode, enum compute_level level, int nsrc,
                          size_t count, const unsigned char *result)
{
    size_t bytes = polypath_type_bytes(op->type);
    if (memcmp(result, expected, count * bytes) == 0)
        return;
    size_t i = 0;
    while (memcmp(result + i * bytes, expected + i * bytes, bytes) == 0)
        i++;
    fail_msg("%s op %d divisor %d nsrc %d count %zu level %s mode %td element %zu: %#llx instead of %#llx",
             polypath_type_name(op->type), op->op, op->divisor, nsrc, count, compute_level_name(level), mode - modes, i,
             (unsigned long long)element_bits(op->type, result + i * bytes),
             (unsigned long long)element_bits(op->type, expected + i * bytes));
}

static void check_mode(const struct compute_op *op, const struct mode *mode, enum compute_level level, int nsrc,
                       size_t count)
{
    size_t bytes = count * polypath_type_bytes(op->type);
    const void *src[MAX_SOURCES];
    unsigned char *dst = dst_buffer + GUARD + mode->dst_offset;
    unsigned char *dst2 = mode->dst2 ? dst2_buffer + GUARD + mode->dst_offset / 2 : NULL;

    for (int k = 0; k < nsrc; k++) {
        unsigned char *at = source_buffer[k] + GUARD + (size_t)k * mode->source_step % 64;
        memset(source_buffer[k], 0xa5, GUARD + 64 + bytes + GUARD);
        memcpy(at, master[k], bytes);
        src[k] = at;
        if (mode->alias == DST_IS_SOURCE && k == nsrc / 2)
            dst = at;
        if (mode->alias == DST2_IS_SOURCE && k == nsrc - 1)
            dst2 = at;
    }
    memset(dst_buffer, 0xa5, GUARD + 64 + bytes + GUARD);
    memset(dst2_buffer, 0xa5, GUARD + 64 + bytes + GUARD);
    compute_reduce(op, dst, dst2, src, nsrc, count, mode->stream);
    assert_result(op, mode, level, nsrc, count, dst);
    assert_guards(mode->alias == DST_IS_SOURCE ? source_buffer[nsrc / 2] : dst_buffer, dst, bytes);
    if (dst2 != NULL) {
        assert_result(op, mode, level, nsrc, count, dst2);
        assert_guards(mode->alias == DST2_IS_SOURCE ? source_buffer[nsrc - 1] : dst2_buffer, dst2, bytes);
    }
    for (int k = 0; k < nsrc; k++)
        if (src[k] != dst && src[k] != dst2)
            assert_memory_equal(src[k], master[k], bytes);
}

static void make_expected(const struct compute_op *op, int nsrc, size_t count)
{
    size_t bytes = polypath_type_bytes(op->type);
    const unsigned char *element[MAX_SOURCES];
    for (size_t i = 0; i < count; i++) {
        for (int k = 0; k < nsrc; k++)
            element[k] = master[k] + i * bytes;
        reference_element(op, expected + i * bytes, element, nsrc);
    }
}

/* Small counts in every mode, large ones in one or two modes that differ from case to case. */
static void check_reduce(polypath_type_t type, int op_value, int nsrc, size_t count, size_t turn)
{
    for (int k = 0; k < nsrc; k++)
        fill(type, master[k], count);
    for (size_t m = 0; m < MODE_COUNT; m++) {
        bool first = m == turn % MODE_COUNT;
        bool second = m == (turn + 5) % MODE_COUNT && count < MAX_COUNT;
        if (count >= 1000 && !first && !second)
            continue;
        struct compute_op op = {type, op_value, modes[m].divisor};
        make_expected(&op, nsrc, count);
        for (size_t l = 0; l < COMPUTE_LEVELS; l++)
            if (compute_set_level(all_levels[l]))
                check_mode(&op, &modes[m], all_levels[l], nsrc, count);
    }
}

static void reductions_equal_the_reference_on_every_level(void **state)
{
    static const size_t counts[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, MAX_COUNT};
    (void)state;
    size_t turn = 0;
    for (int type = 0; type < POLYPATH_TYPE_COUNT; type++)
        for (int op = POLYPATH_SUM; op <= POLYPATH_MIN; op++)
            for (int nsrc = 1; nsrc <= 9; nsrc++)
                for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
                    check_reduce((polypath_type_t)type, op, nsrc, counts[c], turn++);
}

static void reductions_of_many_sources_keep_the_order(void **state)
{
    (void)state;
    for (int type = 0; type < POLYPATH_TYPE_COUNT; type++)
        check_reduce((polypath_type_t)type, POLYPATH_SUM, MAX_SOURCES, 129, 0);
}

/* ------------------------------------------------------------- conversions */

static const polypath_type_t small_types[] = {POLYPATH_FLOAT16, POLYPATH_BFLOAT16, POLYPATH_FLOAT8_E4M3,
                                              POLYPATH_FLOAT8_E5M2};
#define SMALL_TYPES (sizeof(small_types) / sizeof(small_types[0]))

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return isnan(value) ? 0x7fc00000U : bits;
}

static void every_code_converts_to_its_number(void **state)
{
    (void)state;
    for (size_t t = 0; t < SMALL_TYPES; t++)
        for (uint32_t code = 0; code < number_lines[small_types[t]].codes; code++)
            if (float_bits(compute_to_float(small_types[t], &code)) !=
                float_bits(reference_decode(small_types[t], code)))
                fail_msg("%s code %#x", polypath_type_name(small_types[t]), code);
}

static void check_from_float(polypath_type_t type, float value)
{
    uint32_t code = 0;
    compute_from_float(type, &code, value);
    if (code != reference_encode(type, value))
        fail_msg("%s of %a: %#x instead of %#x", polypath_type_name(type), (double)value, code,
                 reference_encode(type, value));
}

/* Each number, the middle to the next, and the neighbours of both. */
static void every_boundary_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (size_t t = 0; t < SMALL_TYPES; t++) {
        const struct number_line *line = &number_lines[small_types[t]];
        for (uint32_t code = 0; code <= line->largest; code++) {
            float points[2] = {(float)line->value[code], (float)((line->value[code] + line->value[code + 1]) / 2)};
            for (int p = 0; p < 2; p++)
                for (int sign = -1; sign <= 1; sign += 2) {
                    check_from_float(small_types[t], (float)sign * points[p]);
                    check_from_float(small_types[t], (float)sign * nextafterf(points[p], INFINITY));
                    check_from_float(small_types[t], (float)sign * nextafterf(points[p], 0.0F));
                }
        }
        for (int i = 0; i < 200000; i++) {
            uint32_t bits = (uint32_t)random_bits();
            float value;
            memcpy(&value, &bits, sizeof(value));
            check_from_float(small_types[t], value);
        }
        check_from_float(small_types[t], INFINITY);
        check_from_float(small_types[t], -INFINITY);
    }
}

static void overflow_and_nan_have_the_documented_codes(void **state)
{
    static const struct {
        polypath_type_t type;
        float value;
        uint32_t code;
    } cases[] = {
        {POLYPATH_FLOAT16, 65519.0F, 0x7bff},    {POLYPATH_FLOAT16, 65520.0F, 0x7c00},
        {POLYPATH_FLOAT16, -NAN, 0x7e00},        {POLYPATH_BFLOAT16, 3.4e38F, 0x7f80},
        {POLYPATH_BFLOAT16, -NAN, 0x7fc0},       {POLYPATH_FLOAT8_E4M3, 464.0F, 0x7e},
        {POLYPATH_FLOAT8_E4M3, 465.0F, 0x7f},    {POLYPATH_FLOAT8_E4M3, -465.0F, 0x7f},
        {POLYPATH_FLOAT8_E4M3, -448.0F, 0xfe},   {POLYPATH_FLOAT8_E4M3, INFINITY, 0x7f},
        {POLYPATH_FLOAT8_E4M3, -NAN, 0x7f},      {POLYPATH_FLOAT8_E5M2, 61439.0F, 0x7b},
        {POLYPATH_FLOAT8_E5M2, 61440.0F, 0x7c},  {POLYPATH_FLOAT8_E5M2, -1e9F, 0xfc},
        {POLYPATH_FLOAT8_E5M2, -NAN, 0x7e},      {POLYPATH_FLOAT8_E5M2, INFINITY, 0x7c},
        {POLYPATH_FLOAT8_E4M3, 0x1p-10F, 0x00},  {POLYPATH_FLOAT8_E4M3, 0x1.8p-10F, 0x01},
        {POLYPATH_FLOAT8_E5M2, -0x1p-17F, 0x80}, {POLYPATH_FLOAT16, -0x1.8p-25F, 0x8001},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t code = 0;
        compute_from_float(cases[i].type, &code, cases[i].value);
        assert_int_equal(code, cases[i].code);
        assert_int_equal(reference_encode(cases[i].type, cases[i].value), cases[i].code);
    }
}

/*
 * The vector conversions, which only reductions show: every code of a type
 * against `partner` codes, folded by an op.
 */
static void check_pairs(polypath_type_t type, int op_value, int divisor, const uint16_t *partner)
{
    enum { PIECE = 4096 };
    struct compute_op op = {type, op_value, divisor};
    size_t bytes = polypath_type_bytes(type);
    for (uint32_t first = 0; first < 65536; first += PIECE) {
        for (uint32_t i = 0; i < PIECE; i++) {
            uint16_t code = (uint16_t)(first + i); /* 8-bit types: pairs of all codes, the partner's are below */
            memcpy(master[0] + i * bytes, &code, bytes);
            memcpy(master[1] + i * bytes, &partner[first + i], bytes);
        }
        make_expected(&op, 2, PIECE);
        for (size_t l = 0; l < COMPUTE_LEVELS; l++)
            if (compute_set_level(all_levels[l]))
                check_mode(&op, &modes[0], all_levels[l], 2, PIECE);
    }
}

/* For 16 bits: a number a few places below each code, whose sum with it lies at or next to a middle. */
static uint16_t partner_code(const struct number_line *line, uint32_t code, uint64_t random)
{
    if (line->codes == 256)
        return (uint16_t)(code >> 8);
    uint32_t exponent = (code >> line->mantissa_bits) & ((1U << line->exponent_bits) - 1);
    uint32_t below = (uint32_t)line->mantissa_bits + 1;
    uint32_t mantissa = random % 4 == 0 ? 0 : (uint32_t)(random >> 8) & ((1U << line->mantissa_bits) - 1);
    uint32_t sign = (random >> 4 & 1) * line->codes / 2;
    return (uint16_t)(sign | (exponent > below ? exponent - below : 0) << line->mantissa_bits | mantissa);
}

static void every_code_is_reduced_right_on_every_level(void **state)
{
    static uint16_t partner[65536];
    (void)state;
    for (size_t t = 0; t < SMALL_TYPES; t++) {
        polypath_type_t type = small_types[t];
        for (uint32_t code = 0; code < 65536; code++)
            partner[code] = partner_code(&number_lines[type], code, random_bits());
        check_pairs(type, POLYPATH_SUM, 1, partner);
        check_pairs(type, POLYPATH_SUM, 3, partner);
        for (uint32_t code = 0; code < 65536 && number_lines[type].codes != 256; code++)
            partner[code] = (uint16_t)random_bits();
        check_pairs(type, POLYPATH_PROD, 1, partner);
        check_pairs(type, POLYPATH_MIN, 1, partner);
        check_pairs(type, POLYPATH_MAX, 1, partner);
    }
}

/* ---------------------------------------------------------- scale and copy */

static void scaling_equals_the_reference_on_every_level(void **state)
{
    static const size_t counts[] = {0, 1, 3, 16, 31, 65, 129, 1003};
    (void)state;
    for (int type = 0; type < POLYPATH_TYPE_COUNT; type++) {
        size_t bytes = polypath_type_bytes((polypath_type_t)type);
        struct compute_op op = {(polypath_type_t)type, POLYPATH_PROD, 1};
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            fill(op.type, master[0], counts[c]);
            fill(op.type, master[1], 1);
            for (size_t i = 1; i < counts[c]; i++)
                memcpy(master[1] + i * bytes, master[1], bytes);
            make_expected(&op, 2, counts[c]);
            for (size_t l = 0; l < COMPUTE_LEVELS; l++) {
                if (!compute_set_level(all_levels[l]))
                    continue;
                size_t offset = GUARD + l + c; /* aligned and not */
                memset(dst_buffer, 0xa5, sizeof(dst_buffer));
                compute_scale(op.type, dst_buffer + offset, master[0], master[1], counts[c]);
                assert_result(&op, &modes[0], all_levels[l], 2, counts[c], dst_buffer + offset);
                assert_guards(dst_buffer, dst_buffer + offset, counts[c] * bytes);
                memcpy(dst_buffer + offset, master[0], counts[c] * bytes);
                compute_scale(op.type, dst_buffer + offset, dst_buffer + offset, master[1], counts[c]);
                assert_result(&op, &modes[0], all_levels[l], 2, counts[c], dst_buffer + offset);
            }
        }
    }
}

static void copies_move_every_byte_and_no_other(void **state)
{
    static const size_t sizes[] = {0, 1, 63, 64, 100, 4095, 4096, 4097, 5000, 8192, 16384 + 127, 32000};
    (void)state;
    for (size_t i = 0; i < sizeof(master[0]); i++)
        master[0][i] = (unsigned char)random_bits();
    for (size_t l = 0; l < COMPUTE_LEVELS; l++) {
        if (!compute_set_level(all_levels[l]))
            continue;
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
            for (size_t offset = 0; offset < 64; offset += 7)
                for (int stream = 0; stream <= 1; stream++) {
                    unsigned char *dst = dst_buffer + GUARD + offset;
                    memset(dst_buffer, 0xa5, sizeof(dst_buffer));
                    compute_copy(dst, master[0] + offset / 2, sizes[s], stream != 0);
                    assert_memory_equal(dst, master[0] + offset / 2, sizes[s]);
                    assert_guards(dst_buffer, dst, sizes[s]);
                }
    }
    compute_copy(NULL, NULL, 0, true);
    memcpy(dst_buffer, master[0], 8192);
    compute_copy(dst_buffer, dst_buffer, 8192, true);
    assert_memory_equal(dst_buffer, master[0], 8192);
}

/* ------------------------------------------------------------------- levels */

static void levels_are_selected_and_named(void **state)
{
    (void)state;
    assert_true(compute_set_level(compute_best_level()));
    assert_int_equal(compute_level(), compute_best_level());
    assert_true(compute_set_level(COMPUTE_SCALAR));
    assert_int_equal(compute_level(), COMPUTE_SCALAR);
    for (size_t l = 0; l < COMPUTE_LEVELS; l++) {
        enum compute_level before = compute_level();
        bool had = compute_set_level(all_levels[l]);
        assert_int_equal(compute_level(), had ? all_levels[l] : before);
        assert_string_not_equal(compute_level_name(all_levels[l]), "unknown");
    }
    assert_false(compute_set_level(COMPUTE_LEVELS));
    assert_string_equal(compute_level_name(COMPUTE_LEVELS), "unknown");
#if defined(__x86_64__)
    assert_false(compute_set_level(COMPUTE_NEON));
#else
    assert_false(compute_set_level(COMPUTE_AVX2));
#endif
}

static void *reduce_while_levels_change(void *argument)
{
    atomic_bool *stop = argument;
    const struct compute_op op = {POLYPATH_INT32, POLYPATH_SUM, 1};
    int32_t a[100];
    int32_t b[100];
    int32_t sum[100];
    const void *src[2] = {a, b};
    for (int i = 0; i < 100; i++) {
        a[i] = i;
        b[i] = 1000 * i;
    }
    bool right = true;
    while (!atomic_load(stop)) {
        compute_reduce(&op, sum, NULL, src, 2, 100, false);
        for (int i = 0; i < 100; i++)
            right = right && sum[i] == 1001 * i;
    }
    return right ? argument : NULL;
}

static void the_level_may_change_while_others_reduce(void **state)
{
    (void)state;
    atomic_bool stop = false;
    pthread_t thread;
    void *right = NULL;
    assert_int_equal(pthread_create(&thread, NULL, reduce_while_levels_change, &stop), 0);
    for (int i = 0; i < 20000; i++)
        compute_set_level(i % 2 != 0 ? COMPUTE_SCALAR : compute_best_level());
    atomic_store(&stop, true);
    assert_int_equal(pthread_join(thread, &right), 0);
    assert_non_null(right);
}

static void types_have_sizes_and_names(void **state)
{
    static const size_t sizes[POLYPATH_TYPE_COUNT] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    (void)state;
    for (int type = 0; type < POLYPATH_TYPE_COUNT; type++) {
        assert_int_equal(polypath_type_bytes((polypath_type_t)type), sizes[type]);
        assert_string_not_equal(polypath_type_name((polypath_type_t)type), "unknown");
    }
    assert_string_equal(polypath_type_name(POLYPATH_FLOAT32), "float32");
    assert_int_equal(polypath_type_bytes((polypath_type_t)-1), 0);
    assert_int_equal(polypath_type_bytes(POLYPATH_TYPE_COUNT), 0);
    assert_string_equal(polypath_type_name((polypath_type_t)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_have_sizes_and_names),
        cmocka_unit_test(levels_are_selected_and_named),
        cmocka_unit_test(every_code_converts_to_its_number),
        cmocka_unit_test(every_boundary_rounds_to_nearest_even),
        cmocka_unit_test(overflow_and_nan_have_the_documented_codes),
        cmocka_unit_test(every_code_is_reduced_right_on_every_level),
        cmocka_unit_test(reductions_equal_the_reference_on_every_level),
        cmocka_unit_test(reductions_of_many_sources_keep_the_order),
        cmocka_unit_test(scaling_equals_the_reference_on_every_level),
        cmocka_unit_test(copies_move_every_byte_and_no_other),
        cmocka_unit_test(the_level_may_change_while_others_reduce),
    };
    return cmocka_run_group_tests_name("compute", tests, make_number_lines, NULL);
}
