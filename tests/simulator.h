/*
 * Simulated paths for the balancer's tests: latency, rate, noise, a bottleneck
 * that some paths share, one-off slow calls; with or without hand-over of
 * chunks to free paths. Deterministic: everything comes from one seed.
 */
#ifndef TESTS_SIMULATOR_H
#define TESTS_SIMULATOR_H

#include <stdint.h>
#include <string.h>

#include "balance/balance.h"

struct simulator {
    uint64_t random;
    int npaths;
    double latency[BALANCE_PATHS]; /* ns */
    double rate[BALANCE_PATHS];    /* bytes per ns */
    double power[BALANCE_PATHS];   /* 0 = 1: time grows with bytes^power (a path that thrashes) */
    double noise;                  /* 0.1: every call of every path takes 0.9 to 1.1 times as long */
    uint16_t shared;               /* paths behind one bottleneck */
    double shared_rate;            /* bytes per ns */
    bool hand_over;
};

static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline double random_between(uint64_t *state, double low, double high)
{
    return low + (high - low) * (double)(random_next(state) >> 11) / 9007199254740992.0;
}

/* Evenly over orders of magnitude. */
static inline double random_scale(uint64_t *state, double low, double high)
{
    double x = low, root = high / low;
    for (int i = 0; i < 16; i++) { /* low * (high/low)^u, u of 16 binary digits, without libm */
        double guess = root;
        for (int n = 0; n < 12; n++)
            guess = (guess + root / guess) / 2;
        root = guess;
        if (random_next(state) & 1)
            x *= root;
    }
    return x;
}

/* One call without hand-over: fluid flow, the bottleneck divided evenly between the paths that are moving. */
static inline void simulate_fluid(const struct simulator *s, const double *slow, const double *bytes, double *done)
{
    double left[BALANCE_PATHS], now = 0;
    bool moving[BALANCE_PATHS];
    for (int p = 0; p < s->npaths; p++) {
        left[p] = bytes[p];
        done[p] = 0;
    }
    for (;;) {
        double rate[BALANCE_PATHS] = {0}, wanted = 0, next = 1e300;
        for (int p = 0; p < s->npaths; p++) {
            moving[p] = left[p] > 1e-6 && now >= s->latency[p] * slow[p];
            if (moving[p])
                rate[p] = s->rate[p] / slow[p];
            if (moving[p] && s->shared & 1u << p)
                wanted += rate[p];
        }
        for (int p = 0; p < s->npaths; p++)
            if (moving[p] && s->shared & 1u << p && wanted > s->shared_rate)
                rate[p] *= s->shared_rate / wanted;
        for (int p = 0; p < s->npaths; p++) {
            double t = moving[p] ? now + left[p] / rate[p] : left[p] > 1e-6 ? s->latency[p] * slow[p] : 1e300;
            next = t < next ? t : next;
        }
        if (next >= 1e300)
            return;
        for (int p = 0; p < s->npaths; p++) {
            if (!moving[p])
                continue;
            left[p] -= (next - now) * rate[p];
            if (left[p] <= 1e-6 + bytes[p] * 1e-12) {
                left[p] = 0;
                done[p] = next;
            }
        }
        now = next;
    }
}

/* One call with hand-over: whichever path is free first takes the next chunk. */
static inline void simulate_hand_over(const struct simulator *s, const double *slow, double *bytes, double *done)
{
    double total = 0, wanted = 0, rate[BALANCE_PATHS], free_at[BALANCE_PATHS];
    for (int p = 0; p < s->npaths; p++) {
        total += bytes[p];
        if (bytes[p] > 0 && s->shared & 1u << p)
            wanted += s->rate[p];
    }
    for (int p = 0; p < s->npaths; p++) {
        rate[p] = s->rate[p] / slow[p];
        if (s->shared & 1u << p && wanted > s->shared_rate)
            rate[p] *= s->shared_rate / wanted;
        free_at[p] = bytes[p] > 0 ? s->latency[p] * slow[p] : 1e300;
        bytes[p] = done[p] = 0;
    }
    double chunk = total / 128 > 4096 ? total / 128 : 4096;
    while (total > 0) {
        int first = 0;
        for (int p = 1; p < s->npaths; p++)
            if (free_at[p] < free_at[first])
                first = p;
        double part = chunk < total ? chunk : total;
        total -= part;
        bytes[first] += part;
        free_at[first] += part / rate[first];
        done[first] = free_at[first];
    }
}

/* One call of `bytes` under `shares`; `slow_path` (or -1) is `slow_by` times as slow in this call. */
static inline struct balance_sample simulate(struct simulator *s, const uint32_t *shares, uint64_t bytes, int slow_path,
                                             double slow_by)
{
    double slow[BALANCE_PATHS] = {0}, part[BALANCE_PATHS] = {0}, done[BALANCE_PATHS] = {0};
    for (int p = 0; p < s->npaths; p++) {
        slow[p] = s->noise > 0 ? random_between(&s->random, 1 - s->noise, 1 + s->noise) : 1;
        if (p == slow_path)
            slow[p] *= slow_by;
        part[p] = (double)bytes * shares[p] / BALANCE_ONE;
        if (s->power[p] > 1 && shares[p]) {
            double share = (double)shares[p] / BALANCE_ONE;
            for (int i = 1; i < (int)s->power[p]; i++)
                slow[p] *= 2 * share;
        }
    }
    if (s->hand_over)
        simulate_hand_over(s, slow, part, done);
    else
        simulate_fluid(s, slow, part, done);
    struct balance_sample sample = {.calls = 1};
    for (int p = 0; p < s->npaths; p++) {
        sample.bytes[p] = (uint64_t)(part[p] + 0.5);
        sample.busy_ns[p] = sample.bytes[p] ? (uint64_t)(done[p] + 0.5) : 0;
        if (sample.busy_ns[p] > sample.call_ns)
            sample.call_ns = sample.busy_ns[p];
    }
    return sample;
}

/* The time of a call without noise and without hand-over: what the shares are worth by themselves. */
static inline double worth(const struct simulator *s, const uint32_t *shares, uint64_t bytes)
{
    struct simulator quiet = *s;
    quiet.noise = 0;
    quiet.hand_over = false;
    return (double)simulate(&quiet, shares, bytes, -1, 1).call_ns;
}

/* The least time over one path alone. */
static inline double best_single(const struct simulator *s, uint16_t allowed, uint64_t bytes)
{
    double best = 1e300;
    for (int p = 0; p < s->npaths; p++) {
        uint32_t one[BALANCE_PATHS] = {0};
        one[p] = BALANCE_ONE;
        double t = allowed & 1u << p ? worth(s, one, bytes) : 1e300;
        best = t < best ? t : best;
    }
    return best;
}

/* The least time over all sets of paths, for paths that share nothing. */
static inline double optimum(const struct simulator *s, uint64_t bytes)
{
    double best = 1e300;
    for (unsigned mask = 1; mask < 1u << s->npaths; mask++) {
        double work = (double)bytes, rates = 0, longest = 0;
        for (int p = 0; p < s->npaths; p++) {
            if (!(mask & 1u << p))
                continue;
            work += s->rate[p] * s->latency[p];
            rates += s->rate[p];
            longest = s->latency[p] > longest ? s->latency[p] : longest;
        }
        double t = work / rates;
        if (t > longest && t < best)
            best = t;
    }
    return best;
}

#endif
