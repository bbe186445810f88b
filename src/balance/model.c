/*
 * Stage 1 of the balancer: the time of a path is latency + bytes / rate; cut a
 * message such that all paths that pay finish at the same time. Pure integer
 * arithmetic; knows nothing of samples.
 */
#include <string.h>

#include "balance/internal.h"

#define LATENCY_LIMIT 10000000000u /* 10 s */
#define RATE_LIMIT 1000000000u     /* bytes per microsecond: 1 PB/s */
#define BYTES_LIMIT (1ull << 56)
#define NANOSECONDS 1000000000u
#define TIME_LIMIT ((uint64_t)INT64_MAX)

static uint64_t clamp_time(wide t)
{
    return t > TIME_LIMIT ? TIME_LIMIT : (uint64_t)t;
}

struct model_path model_from(const struct balance_path *path, uint64_t nominal)
{
    uint64_t rate = path->bytes_per_us ? path->bytes_per_us : nominal;
    if (rate > RATE_LIMIT)
        rate = RATE_LIMIT;
    struct model_path m = {path->latency_ns < LATENCY_LIMIT ? path->latency_ns : LATENCY_LIMIT, rate * 1000000u};
    return m;
}

uint64_t model_time(struct model_path path, uint64_t bytes)
{
    return clamp_time(path.latency_ns + (wide)bytes * NANOSECONDS / path.rate);
}

uint64_t model_split_time(const struct model_path *paths, const uint32_t *shares, uint64_t bytes)
{
    uint64_t last = 0;
    for (int p = 0; p < BALANCE_PATHS; p++) {
        if (!shares[p])
            continue;
        uint64_t t = model_time(paths[p], scale(bytes, shares[p], BALANCE_ONE));
        last = t > last ? t : last;
    }
    return last;
}

int model_best(const struct model_path *paths, uint16_t mask, uint64_t bytes)
{
    int best = -1;
    uint64_t best_time = 0;
    for (int p = 0; p < BALANCE_PATHS; p++) {
        if (!(mask & 1u << p))
            continue;
        uint64_t t = model_time(paths[p], bytes);
        if (best < 0 || t < best_time || (t == best_time && paths[p].latency_ns < paths[best].latency_ns)) {
            best = p;
            best_time = t;
        }
    }
    return best;
}

uint64_t model_bucket_bytes(unsigned bucket)
{
    if (bucket == 0)
        return 0;
    if (bucket > 56)
        return BYTES_LIMIT;
    return 1ull << (bucket - 1);
}

uint16_t model_active(const uint32_t shares[BALANCE_PATHS])
{
    uint16_t mask = 0;
    for (int p = 0; p < BALANCE_PATHS; p++)
        if (shares[p])
            mask |= (uint16_t)(1u << p);
    return mask;
}

bool model_normalise(const wide weights[BALANCE_PATHS], uint32_t shares[BALANCE_PATHS])
{
    wide sum = 0;
    unsigned shift = 0;
    for (int p = 0; p < BALANCE_PATHS; p++)
        sum += weights[p] >> 4; /* 16 of them cannot overflow */
    while (sum >> shift >> 96)
        shift++;
    sum = 0;
    for (int p = 0; p < BALANCE_PATHS; p++)
        sum += weights[p] >> shift;
    if (sum == 0)
        return false;
    uint32_t given = 0;
    int largest = 0;
    for (int p = 0; p < BALANCE_PATHS; p++) {
        shares[p] = (uint32_t)((weights[p] >> shift) * BALANCE_ONE / sum);
        given += shares[p];
        if (shares[p] > shares[largest])
            largest = p;
    }
    shares[largest] += BALANCE_ONE - given; /* what rounding left over */
    return true;
}

static void single(uint32_t shares[BALANCE_PATHS], int path)
{
    memset(shares, 0, BALANCE_PATHS * sizeof *shares);
    shares[path] = BALANCE_ONE;
}

/* When all paths of `mask` finish together, if each can start after its latency: (bytes + sum of rate * latency) / sum
 * of rates. */
static uint64_t common_time(const struct model_path *paths, uint16_t mask, uint64_t bytes)
{
    wide work = (wide)bytes * NANOSECONDS, rates = 0;
    for (int p = 0; p < BALANCE_PATHS; p++) {
        if (!(mask & 1u << p))
            continue;
        work += (wide)paths[p].rate * paths[p].latency_ns;
        rates += paths[p].rate;
    }
    return clamp_time(work / rates);
}

/* The path of `mask` that is of no use, or -1: its latency alone exceeds the common time, or its share is too small. */
static int useless(const struct model_path *paths, uint16_t mask, uint16_t held, uint64_t time,
                   const struct balance_settings *settings, uint32_t shares[BALANCE_PATHS])
{
    int worst = -1;
    for (int p = 0; p < BALANCE_PATHS; p++)
        if ((mask & 1u << p) && paths[p].latency_ns >= time &&
            (worst < 0 || paths[p].latency_ns > paths[worst].latency_ns))
            worst = p;
    if (worst >= 0)
        return worst;
    wide weights[BALANCE_PATHS] = {0};
    for (int p = 0; p < BALANCE_PATHS; p++)
        if (mask & 1u << p)
            weights[p] = (wide)paths[p].rate * (time - paths[p].latency_ns);
    if (!model_normalise(weights, shares))
        return -1;
    for (int p = 0; p < BALANCE_PATHS; p++) {
        uint32_t minimum = settings->minimum_share;
        if (!(held & 1u << p))
            minimum += minimum / 2;
        if ((mask & 1u << p) && shares[p] < (minimum ? minimum : 1) && (worst < 0 || shares[p] < shares[worst]))
            worst = p;
    }
    return worst;
}

uint16_t model_solve(const struct model_path *paths, uint16_t mask, uint16_t held, bool split, uint64_t bytes,
                     const struct balance_settings *settings, uint32_t shares[BALANCE_PATHS])
{
    int best = model_best(paths, mask, bytes);
    uint16_t alone = (uint16_t)(1u << best);
    uint16_t active = mask;
    uint64_t time = 0;
    if (!split || bytes == 0)
        active = alone;
    while (active & (active - 1)) {
        time = common_time(paths, active, bytes);
        int drop = useless(paths, active, held, time, settings, shares);
        if (drop < 0)
            break;
        active &= (uint16_t) ~(1u << drop);
    }
    if (active & (active - 1)) {
        uint32_t gain = settings->minimum_gain;
        if ((held & active) == active)
            gain /= 2;
        if (scale(time, BALANCE_ONE + gain, BALANCE_ONE) <= model_time(paths[best], bytes))
            return active;
    }
    single(shares, best);
    return alone;
}
