/*
 * How fast the reductions and copies of src/compute are, per SIMD level, type
 * and size, on one core. GB/s counts the bytes that the operation must read
 * and write (1e9 bytes); the cache traffic of a plain store is not counted.
 *
 * Usage: compute_bench [milliseconds per figure [type, such as float32]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "compute/compute.h"

#define SOURCES 8
#define MAX_BYTES ((size_t)64 << 20)

static unsigned char *sources[SOURCES];
static unsigned char *results[2];
static uint64_t budget_ns = 40000000;

struct shape {
    const char *name;
    int op;
    int nsrc;
    int divisor;
    bool two_results;
    bool stream;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static void reduce_once(polypath_type_t type, const struct shape *shape, size_t bytes)
{
    const struct compute_op op = {type, shape->op, shape->divisor};
    const void *src[SOURCES];
    for (int k = 0; k < shape->nsrc; k++)
        src[k] = sources[k];
    compute_reduce(&op, results[0], shape->two_results ? results[1] : NULL, src, shape->nsrc,
                   bytes / polypath_type_bytes(type), shape->stream);
}

static void copy_once(polypath_type_t type, const struct shape *shape, size_t bytes)
{
    (void)type;
    compute_copy(results[0], sources[0], bytes, shape->stream);
}

/* Nanoseconds of one call: the best of several rounds, since the machine may be shared. */
static double best_ns(void (*once)(polypath_type_t, const struct shape *, size_t), polypath_type_t type,
                      const struct shape *shape, size_t bytes)
{
    uint64_t calls = 1;
    uint64_t end = now_ns() + budget_ns;
    double best = 1e30;
    once(type, shape, bytes);
    do {
        uint64_t start = now_ns();
        for (uint64_t i = 0; i < calls; i++)
            once(type, shape, bytes);
        double elapsed = (double)(now_ns() - start);
        if (elapsed / (double)calls < best)
            best = elapsed / (double)calls;
        if (elapsed < 100000)
            calls *= 2;
    } while (now_ns() < end);
    return best;
}

static void print_row(const char *level, const char *what, const char *shape_name, size_t bytes, double moved,
                      double ns)
{
    printf("%-7s %-12s %-18s %9zu B %10.1f ns %8.2f GB/s\n", level, what, shape_name, bytes, ns, moved / ns);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {64, 1000, 16384, 262144, MAX_BYTES};
    static const polypath_type_t types[] = {POLYPATH_FLOAT32,  POLYPATH_FLOAT64,     POLYPATH_FLOAT16,
                                            POLYPATH_BFLOAT16, POLYPATH_FLOAT8_E4M3, POLYPATH_FLOAT8_E5M2,
                                            POLYPATH_INT8,     POLYPATH_INT32,       POLYPATH_INT64};
    static const struct shape shapes[] = {
        {"sum of 2", POLYPATH_SUM, 2, 1, false, false},      {"sum of 2, stream", POLYPATH_SUM, 2, 1, false, true},
        {"sum of 2, dst2", POLYPATH_SUM, 2, 1, true, false}, {"sum of 2, both", POLYPATH_SUM, 2, 1, true, true},
        {"sum of 4", POLYPATH_SUM, 4, 1, false, false},      {"sum of 8", POLYPATH_SUM, 8, 1, false, false},
        {"average of 2", POLYPATH_SUM, 2, 2, false, false},  {"product of 2", POLYPATH_PROD, 2, 1, false, false},
        {"maximum of 2", POLYPATH_MAX, 2, 1, false, false},
    };
    static const struct shape copies[] = {{"copy", 0, 1, 1, false, false}, {"copy, stream", 0, 1, 1, false, true}};

    if (argc > 1)
        budget_ns = strtoull(argv[1], NULL, 10) * 1000000U;
    for (int k = 0; k < SOURCES; k++) {
        sources[k] = aligned_alloc(4096, MAX_BYTES);
        if (sources[k] == NULL)
            return 1;
        memset(sources[k], 0x31 + k, MAX_BYTES); /* moderate numbers in every type */
    }
    for (int k = 0; k < 2; k++) {
        results[k] = aligned_alloc(4096, MAX_BYTES);
        if (results[k] == NULL)
            return 1;
        memset(results[k], 0, MAX_BYTES);
    }

    for (int level = 0; level < COMPUTE_LEVELS; level++) {
        if (!compute_set_level((enum compute_level)level))
            continue;
        const char *level_name = compute_level_name((enum compute_level)level);
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
            for (size_t c = 0; c < sizeof(copies) / sizeof(copies[0]); c++)
                print_row(level_name, "bytes", copies[c].name, sizes[s], 2.0 * (double)sizes[s],
                          best_ns(copy_once, POLYPATH_UINT8, &copies[c], sizes[s]));
        for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
            if (argc > 2 && strcmp(argv[2], polypath_type_name(types[t])) != 0)
                continue;
            for (size_t h = 0; h < sizeof(shapes) / sizeof(shapes[0]); h++)
                for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
                    double streams = shapes[h].nsrc + (shapes[h].two_results ? 2 : 1);
                    print_row(level_name, polypath_type_name(types[t]), shapes[h].name, sizes[s],
                              streams * (double)sizes[s], best_ns(reduce_once, types[t], &shapes[h], sizes[s]));
                }
        }
    }
    for (int k = 0; k < SOURCES; k++)
        free(sources[k]);
    free(results[0]);
    free(results[1]);
    return 0;
}
