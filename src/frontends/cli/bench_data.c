/*
 * The arithmetic of the benchmark: sizes, bandwidths, and data that every rank
 * can predict for every other. Pure; runs no collective.
 */
#include <stdlib.h>
#include <string.h>

#include "compute/compute.h"
#include "frontends/cli/bench.h"

/* clang-format off */
const struct bench_traits bench_traits[BENCH_KIND_COUNT] = {
    /*                       name              whose shares                        reduces rooted in place  blocks s, r  busbw */
    [BENCH_ALL_REDUCE]     = {"all_reduce",     POLYPATH_COLLECTIVE_ALL_REDUCE,     true,  false, true,  false, false, BENCH_FACTOR_TWICE},
    [BENCH_ALL_GATHER]     = {"all_gather",     POLYPATH_COLLECTIVE_ALL_GATHER,     false, false, true,  false, true,  BENCH_FACTOR_ONCE},
    [BENCH_REDUCE_SCATTER] = {"reduce_scatter", POLYPATH_COLLECTIVE_REDUCE_SCATTER, true,  false, true,  true,  false, BENCH_FACTOR_ONCE},
    [BENCH_BROADCAST]      = {"broadcast",      POLYPATH_COLLECTIVE_BROADCAST,      false, true,  true,  false, false, BENCH_FACTOR_UNIT},
    [BENCH_REDUCE]         = {"reduce",         POLYPATH_COLLECTIVE_REDUCE,         true,  true,  true,  false, false, BENCH_FACTOR_UNIT},
    [BENCH_ALL_TO_ALL]     = {"all_to_all",     POLYPATH_COLLECTIVE_ALL_TO_ALL,     false, false, false, true,  true,  BENCH_FACTOR_ONCE},
    [BENCH_GATHER]         = {"gather",         POLYPATH_COLLECTIVE_GATHER,         false, true,  true,  false, true,  BENCH_FACTOR_ONCE},
    [BENCH_SCATTER]        = {"scatter",        POLYPATH_COLLECTIVE_SCATTER,        false, true,  true,  true,  false, BENCH_FACTOR_ONCE},
    [BENCH_SENDRECV]       = {"sendrecv",       POLYPATH_COLLECTIVE_SEND_RECV,      false, false, false, false, false, BENCH_FACTOR_UNIT},
    [BENCH_PINGPONG]       = {"pingpong",       POLYPATH_COLLECTIVE_SEND_RECV,      false, false, false, false, false, BENCH_FACTOR_UNIT},
    [BENCH_BARRIER]        = {"barrier",        POLYPATH_COLLECTIVE_BARRIER,        false, false, false, false, false, BENCH_FACTOR_UNIT},
};
/* clang-format on */

/* -------------------------------------------------------- sizes, bandwidths */

void bench_size_point(struct bench_point *point, size_t bytes, int ranks)
{
    const struct bench_traits *traits = &bench_traits[point->kind];
    size_t blocks = traits->send_blocks || traits->recv_blocks ? (size_t)ranks : 1;
    size_t element = polypath_type_bytes(point->type);
    if (point->kind == BENCH_BARRIER)
        bytes = 0;
    point->count = bytes / element / blocks;
    if (bytes && !point->count)
        point->count = 1;
    point->bytes = point->count * element * blocks;
}

double bench_algbw(const struct bench_point *point, double time_us)
{
    return time_us > 0 ? (double)point->bytes / time_us / 1e3 : 0;
}

double bench_busbw(const struct bench_point *point, double time_us, int ranks)
{
    double n = ranks, factor = 1;
    switch (bench_traits[point->kind].factor) {
    case BENCH_FACTOR_TWICE: factor = 2 * (n - 1) / n; break;
    case BENCH_FACTOR_ONCE: factor = (n - 1) / n; break;
    case BENCH_FACTOR_UNIT: break;
    }
    return bench_algbw(point, time_us) * factor;
}

int bench_block_operations(size_t bytes)
{
    if (bytes <= 8 << 10)
        return 20;
    if (bytes <= 128 << 10)
        return 8;
    return bytes <= 512 << 10 ? 4 : 1;
}

/* ------------------------------------------------------------------- values */

static uint64_t mix(uint64_t x)
{
    /* splitmix64 */
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t hash(const struct bench_pattern *pattern, int rank, size_t index)
{
    return mix(index ^ mix((uint64_t)(rank + 2) ^ (pattern->salt << 32)));
}

static bool is_signed(polypath_type_t type)
{
    return type != POLYPATH_UINT8 && type != POLYPATH_UINT32 && type != POLYPATH_UINT64;
}

/* Up to here every integer is exact in the type, so sums may reach it in any order. */
static int exact_limit(polypath_type_t type)
{
    switch (type) {
    case POLYPATH_INT8: return 127;
    case POLYPATH_UINT8: return 255;
    case POLYPATH_FLOAT16: return 2048;
    case POLYPATH_BFLOAT16: return 256;
    case POLYPATH_FLOAT8_E4M3: return 16;
    case POLYPATH_FLOAT8_E5M2: return 8;
    default: return 1 << 20;
    }
}

/*
 * Whether this rank gives element `index` anything but the neutral value: with
 * more ranks than the type's range has room for, `active` of them take part,
 * others at each element.
 */
static bool takes_part(const struct bench_pattern *pattern, int rank, size_t index, int active)
{
    if (active >= pattern->ranks)
        return true;
    int first = (int)(hash(pattern, -2, index) % (uint64_t)pattern->ranks);
    return (rank - first + pattern->ranks) % pattern->ranks < active;
}

static int64_t value_of(const struct bench_pattern *pattern, int rank, size_t index)
{
    uint64_t bits = hash(pattern, rank, index);
    int limit = exact_limit(pattern->type);
    bool has_sign = is_signed(pattern->type);
    if (pattern->op == POLYPATH_PROD) {
        /* Six factors of at most 3 stay exact in fp16 and wider; of at most 2 in the others. */
        bool narrow = limit < 2048;
        int64_t factor = takes_part(pattern, rank, index, 6) ? 1 + (int64_t)((bits >> 1) % (narrow ? 2 : 3)) : 1;
        return has_sign && (bits & 1) ? -factor : factor;
    }
    int largest = limit;
    if (pattern->op == POLYPATH_SUM || pattern->op == POLYPATH_AVG) {
        int active = pattern->ranks < limit ? pattern->ranks : limit;
        if (!takes_part(pattern, rank, index, active))
            return 0;
        largest = limit / active;
    }
    return has_sign ? (int64_t)(bits % (2 * (uint64_t)largest + 1)) - largest
                    : (int64_t)(bits % ((uint64_t)largest + 1));
}

static void write_value(polypath_type_t type, void *at, int64_t value, int divisor)
{
    int64_t whole = value / divisor; /* towards zero, as the average of integers */
    float single = divisor > 1 ? (float)value / (float)divisor : (float)value;
    double twice = divisor > 1 ? (double)value / divisor : (double)value;
    switch (type) {
    case POLYPATH_INT8:
    case POLYPATH_UINT8: *(uint8_t *)at = (uint8_t)whole; break;
    case POLYPATH_INT32:
    case POLYPATH_UINT32: memcpy(at, &(uint32_t){(uint32_t)whole}, 4); break;
    case POLYPATH_INT64:
    case POLYPATH_UINT64: memcpy(at, &whole, 8); break;
    case POLYPATH_FLOAT32: memcpy(at, &single, 4); break;
    case POLYPATH_FLOAT64: memcpy(at, &twice, 8); break;
    default: compute_from_float(type, at, single); break;
    }
}

static int64_t reduced_value(const struct bench_pattern *pattern, size_t index)
{
    int64_t result = value_of(pattern, 0, index);
    for (int rank = 1; rank < pattern->ranks; rank++) {
        int64_t value = value_of(pattern, rank, index);
        switch (pattern->op) {
        case POLYPATH_PROD: result = (int64_t)((uint64_t)result * (uint64_t)value); break;
        case POLYPATH_MAX: result = value > result ? value : result; break;
        case POLYPATH_MIN: result = value < result ? value : result; break;
        default: result += value; break;
        }
    }
    return result;
}

/* Elements index .. index + count of one source, without wrapping round the period. */
static void render(const struct bench_pattern *pattern, int source, size_t index, size_t count, char *to)
{
    size_t element = polypath_type_bytes(pattern->type);
    int divisor = source == BENCH_REDUCED && pattern->op == POLYPATH_AVG ? pattern->ranks : 1;
    for (size_t i = 0; i < count; i++, to += element) {
        if (!pattern->reduces) {
            uint64_t bits = hash(pattern, source, index + i);
            memcpy(to, &bits, element);
        } else if (source == BENCH_REDUCED) {
            write_value(pattern->type, to, reduced_value(pattern, index + i), divisor);
        } else {
            write_value(pattern->type, to, value_of(pattern, source, index + i), 1);
        }
    }
}

/* ---------------------------------------------------------- fill and verify */

/* What visit() does with each stretch of the expected data. */
typedef void visitor(void *context, size_t offset_bytes, const char *expected, size_t bytes);

/* Shows elements [start, start + count) of a source in stretches, making each element of the period once. */
static void visit(const struct bench_pattern *pattern, int source, size_t start, size_t count, visitor *visitor,
                  void *context)
{
    size_t element = polypath_type_bytes(pattern->type), period = BENCH_PATTERN_PERIOD;
    size_t made = count < period ? count : period;
    char *table = cli_allocate(made * element);
    /* The table begins at `start`, so that a short stretch costs no more than its length. */
    size_t phase = start % period, before_wrap = period - phase < made ? period - phase : made;
    render(pattern, source, phase, before_wrap, table);
    render(pattern, source, 0, made - before_wrap, table + before_wrap * element);
    for (size_t done = 0; done < count;) {
        size_t now = count - done < made ? count - done : made;
        visitor(context, done * element, table, now * element);
        done += now;
    }
    free(table);
}

static void copy_stretch(void *context, size_t offset, const char *expected, size_t bytes)
{
    memcpy((char *)context + offset, expected, bytes);
}

void bench_fill(const struct bench_pattern *pattern, void *data, size_t count, int rank, size_t start)
{
    visit(pattern, rank, start, count, copy_stretch, data);
}

struct comparison {
    const char *data;
    size_t element, wrong;
};

static void compare_stretch(void *context, size_t offset, const char *expected, size_t bytes)
{
    struct comparison *comparison = context;
    const char *data = comparison->data + offset;
    if (!memcmp(data, expected, bytes))
        return;
    for (size_t at = 0; at < bytes; at += comparison->element)
        comparison->wrong += memcmp(data + at, expected + at, comparison->element) != 0;
}

size_t bench_count_wrong(const struct bench_pattern *pattern, const void *data, size_t count, int source, size_t start)
{
    struct comparison comparison = {data, polypath_type_bytes(pattern->type), 0};
    visit(pattern, source, start, count, compare_stretch, &comparison);
    return comparison.wrong;
}
