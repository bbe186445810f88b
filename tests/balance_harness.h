/*
 * What the balancer's tests do over and over: make a table for simulated
 * paths, feed it calls, and look at what the shares are worth. Include after
 * cmocka.h.
 */
#ifndef TESTS_BALANCE_HARNESS_H
#define TESTS_BALANCE_HARNESS_H

#include "balance/balance.h"
#include "simulator.h"

#define MIB (1ull << 20)

static struct balance_key key_of(uint64_t bytes, uint16_t allowed)
{
    struct balance_key key = {.collective = 1, .bucket = (uint8_t)balance_bucket(bytes), .allowed = allowed};
    return key;
}

static void assert_sum(const uint32_t *shares, uint16_t allowed)
{
    uint64_t sum = 0;
    for (int p = 0; p < BALANCE_PATHS; p++) {
        sum += shares[p];
        if (!(allowed & 1u << p))
            assert_int_equal(shares[p], 0);
    }
    assert_int_equal(sum, BALANCE_ONE);
}

/* What the start-up measurement would say of the simulator's paths, `wrong` times off at most. */
static void measured(struct simulator *s, double wrong, struct balance_path paths[BALANCE_PATHS])
{
    memset(paths, 0, BALANCE_PATHS * sizeof *paths);
    for (int p = 0; p < s->npaths; p++) {
        double by = wrong > 1 ? random_between(&s->random, 1 / wrong, wrong) : 1;
        paths[p].latency_ns = (uint64_t)s->latency[p];
        paths[p].bytes_per_us = (uint64_t)(s->rate[p] * 1000 * by + 1);
    }
}

static struct simulator simulator_random(uint64_t seed, int most, bool hand_over)
{
    struct simulator s = {.random = seed * 7919 + 17, .noise = 0.1, .hand_over = hand_over};
    s.npaths = 2 + (int)(random_next(&s.random) % (unsigned)(most - 1));
    for (int p = 0; p < s.npaths; p++) {
        s.latency[p] = random_scale(&s.random, 2000, 100000);
        s.rate[p] = random_scale(&s.random, 0.5, 8);
    }
    return s;
}

/* One observation: a call, and its sample to the table. Returns the call's time. */
static double step(struct balance *b, struct simulator *s, uint64_t bytes, int slow_path, double slow_by)
{
    uint32_t shares[BALANCE_PATHS];
    uint16_t allowed = (uint16_t)((1u << s->npaths) - 1);
    struct balance_key key = key_of(bytes, allowed);
    balance_shares(b, key, bytes, shares);
    assert_sum(shares, allowed);
    struct balance_sample sample = simulate(s, shares, bytes, slow_path, slow_by);
    balance_observe(b, key, bytes, &sample);
    return (double)sample.call_ns;
}

static void shares_now(struct balance *b, const struct simulator *s, uint64_t bytes, uint32_t *shares)
{
    balance_shares(b, key_of(bytes, (uint16_t)((1u << s->npaths) - 1)), bytes, shares);
}

struct visited {
    int count;
    uint32_t shares[BALANCE_PATHS];
    struct balance_key key;
};

static void visit_one(void *context, struct balance_key key, const uint32_t shares[BALANCE_PATHS])
{
    struct visited *v = context;
    v->count++;
    v->key = key;
    memcpy(v->shares, shares, sizeof v->shares);
}

/* The shares of the only entry without probes and trials. */
static void settled_shares(struct balance *b, const struct simulator *s, uint64_t bytes, uint32_t *shares)
{
    struct visited v = {0};
    balance_visit(b, visit_one, &v);
    if (v.count)
        memcpy(shares, v.shares, sizeof v.shares);
    else
        shares_now(b, s, bytes, shares);
}

static double worth_now(struct balance *b, const struct simulator *s, uint64_t bytes)
{
    uint32_t shares[BALANCE_PATHS];
    settled_shares(b, s, bytes, shares);
    return worth(s, shares, bytes);
}

enum start { START_MODEL, START_WRONG_MODEL, START_UNKNOWN_RATES, START_ANY, START_ONE_PATH };
static const char *const start_names[] = {"from the model", "from a model up to 4 times off", "from unknown rates",
                                          "from any split", "from any one path"};

static struct balance *start_at(struct simulator *s, enum start start, uint64_t bytes)
{
    struct balance_path paths[BALANCE_PATHS];
    measured(s, start == START_WRONG_MODEL ? 4 : 1, paths);
    for (int p = 0; start == START_UNKNOWN_RATES && p < s->npaths; p++)
        paths[p].bytes_per_us = 0;
    struct balance *b = balance_create(s->npaths, paths);
    assert_non_null(b);
    uint32_t shares[BALANCE_PATHS] = {0};
    for (int p = 0; p < s->npaths; p++)
        shares[p] = (uint32_t)(random_next(&s->random) % 10000) + 500;
    if (start == START_ONE_PATH) {
        memset(shares, 0, sizeof shares);
        shares[random_next(&s->random) % (unsigned)s->npaths] = 1;
    }
    if (start >= START_ANY)
        balance_set_shares(b, key_of(bytes, (uint16_t)((1u << s->npaths) - 1)), shares);
    return b;
}

#endif
