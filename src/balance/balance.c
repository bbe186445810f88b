/*
 * The share table: entries by key, and the functions of balance.h. What an
 * entry does with its samples is in choose.c and adapt.c.
 *
 * Memory is bounded and taken once, at creation: an allocation that failed
 * later on one rank would make ranks disagree. When the table is full, the
 * entry that was observed or set the longest ago makes room and starts again
 * from the model if its key comes back. Entries are made only by
 * balance_observe and balance_set_shares, which all ranks call alike; asking
 * for shares changes nothing, so one rank alone may ask.
 */
#include "balance/balance.h"

#include <stdlib.h>
#include <string.h>

#include "balance/internal.h"

#define ENTRIES 256 /* for example 8 collectives, 16 sizes in use, 2 sets of paths */
#define CHAINS 256
#define NOMINAL_RATE 1000 /* bytes per microsecond, when no path's rate is known */

struct balance {
    int npaths;
    struct model_path paths[BALANCE_PATHS];
    struct balance_settings settings;
    uint64_t stamp;
    int count;
    uint16_t chain[CHAINS]; /* index of the first entry + 1; 0 = none */
    struct entry entries[ENTRIES];
};

int balance_bucket(uint64_t bytes)
{
    return bytes ? 64 - __builtin_clzll(bytes) : 0;
}

struct balance_settings balance_default_settings(void)
{
    struct balance_settings s = {
        .threshold = BALANCE_ONE / 20,
        .probe_interval = 32,
        .probe_share = BALANCE_ONE / 50,
        .minimum_share = BALANCE_ONE / 100,
        .minimum_gain = BALANCE_ONE * 3 / 100,
        .minimum_bytes = 65536,
    };
    return s;
}

void balance_set_settings(struct balance *b, const struct balance_settings *settings)
{
    b->settings = *settings;
    struct balance_settings *s = &b->settings;
    if (s->probe_share > BALANCE_ONE / 2)
        s->probe_share = BALANCE_ONE / 2;
    if (s->minimum_share > BALANCE_ONE / 2)
        s->minimum_share = BALANCE_ONE / 2;
    if (s->minimum_gain > BALANCE_ONE)
        s->minimum_gain = BALANCE_ONE;
    if (s->probe_interval > 1u << 20)
        s->probe_interval = 1u << 20;
}

void balance_set_paths(struct balance *b, const struct balance_path *paths)
{
    uint64_t nominal = UINT64_MAX;
    for (int p = 0; p < b->npaths; p++)
        if (paths[p].bytes_per_us && paths[p].bytes_per_us < nominal)
            nominal = paths[p].bytes_per_us;
    if (nominal == UINT64_MAX)
        nominal = NOMINAL_RATE;
    for (int p = 0; p < b->npaths; p++)
        b->paths[p] = model_from(&paths[p], nominal);
    for (int p = b->npaths; p < BALANCE_PATHS; p++)
        b->paths[p] = (struct model_path){0, 1};
}

struct balance *balance_create(int npaths, const struct balance_path *paths)
{
    struct balance *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->npaths = npaths < 1 ? 1 : npaths > BALANCE_PATHS ? BALANCE_PATHS : npaths;
    b->settings = balance_default_settings();
    balance_set_paths(b, paths);
    return b;
}

void balance_free(struct balance *b)
{
    free(b);
}

/* ---------------------------------------------------------------- table */

/* Within bounds, and never without a path. */
static struct balance_key sane(const struct balance *b, struct balance_key key)
{
    uint16_t all = (uint16_t)((1u << b->npaths) - 1);
    if (key.bucket >= BALANCE_BUCKETS)
        key.bucket = BALANCE_BUCKETS - 1;
    key.allowed &= all;
    if (!key.allowed)
        key.allowed = all;
    return key;
}

static uint16_t *chain_of(struct balance *b, struct balance_key key)
{
    uint32_t h = (uint32_t)key.collective << 24 ^ (uint32_t)key.bucket << 16 ^ key.allowed;
    return &b->chain[(h * 2654435761u) >> 24];
}

static struct entry *find(struct balance *b, struct balance_key key)
{
    for (uint16_t i = *chain_of(b, key); i; i = b->entries[i - 1].next) {
        struct entry *e = &b->entries[i - 1];
        if (e->key.collective == key.collective && e->key.bucket == key.bucket && e->key.allowed == key.allowed)
            return e;
    }
    return NULL;
}

static void unlink_entry(struct balance *b, struct entry *e)
{
    uint16_t index = (uint16_t)(e - b->entries + 1), *at = chain_of(b, e->key);
    while (*at != index)
        at = &b->entries[*at - 1].next;
    *at = e->next;
    e->used = false;
}

/* An empty entry for the key, linked; evicts if need be. */
static struct entry *add(struct balance *b, struct balance_key key)
{
    struct entry *e = NULL;
    if (b->count < ENTRIES) {
        e = &b->entries[b->count++];
    } else {
        e = &b->entries[0];
        for (int i = 1; i < ENTRIES; i++)
            if (b->entries[i].stamp < e->stamp)
                e = &b->entries[i];
        unlink_entry(b, e);
    }
    uint16_t *chain = chain_of(b, key);
    e->key = key;
    e->used = true;
    e->next = *chain;
    *chain = (uint16_t)(e - b->entries + 1);
    return e;
}

/* ------------------------------------------------------------ interface */

void balance_shares(struct balance *b, struct balance_key key, uint64_t bytes, uint32_t shares[BALANCE_PATHS])
{
    (void)bytes; /* the bucket says it: shares of a key must not depend on the size within it */
    key = sane(b, key);
    const struct entry *e = find(b, key);
    if (e)
        memcpy(shares, e->shares, BALANCE_PATHS * sizeof *shares);
    else
        model_solve(b->paths, key.allowed, 0, bucket_splits(key.bucket, &b->settings), model_bucket_bytes(key.bucket),
                    &b->settings, shares);
}

bool balance_observe(struct balance *b, struct balance_key key, uint64_t bytes, const struct balance_sample *sample)
{
    key = sane(b, key);
    struct entry *e = find(b, key);
    if (!e) {
        e = add(b, key);
        entry_start(e, b->npaths, b->paths, &b->settings, NULL);
    }
    e->stamp = ++b->stamp;
    uint32_t before[BALANCE_PATHS];
    memcpy(before, e->shares, sizeof before);
    entry_observe(e, b->npaths, &b->settings, bytes, sample);
    return memcmp(before, e->shares, sizeof before) != 0;
}

void balance_set_shares(struct balance *b, struct balance_key key, const uint32_t shares[BALANCE_PATHS])
{
    key = sane(b, key);
    wide weights[BALANCE_PATHS] = {0};
    uint32_t exact[BALANCE_PATHS];
    for (int p = 0; p < b->npaths; p++)
        if (key.allowed & 1u << p)
            weights[p] = shares[p];
    if (!model_normalise(weights, exact))
        return; /* nothing that may be used: the model knows better */
    struct entry *e = find(b, key);
    if (!e)
        e = add(b, key);
    e->stamp = ++b->stamp;
    entry_start(e, b->npaths, b->paths, &b->settings, exact);
}

void balance_visit(const struct balance *b,
                   void (*visit)(void *context, struct balance_key key, const uint32_t shares[BALANCE_PATHS]),
                   void *context)
{
    for (int i = 0; i < b->count; i++) {
        const struct entry *e = &b->entries[i];
        if (e->used)
            visit(context, e->key, e->arms[e->incumbent].shares);
    }
}
