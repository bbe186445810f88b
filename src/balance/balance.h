/*
 * The balancer: timings in, shares out. Pure: no clock, no I/O, no threads,
 * integer arithmetic only, so that every rank that is fed the same (agreed)
 * numbers comes to the same shares, and tests run it by the thousand.
 *
 * A share table is keyed by (collective, size bucket, set of allowed paths).
 * Shares are integers in units of 1/BALANCE_ONE and sum to BALANCE_ONE.
 */
#ifndef BALANCE_BALANCE_H
#define BALANCE_BALANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "polypath/polypath.h"

#define BALANCE_PATHS 16
#define BALANCE_ONE 65536u

/* Size buckets: one per power of two; bucket of 0 bytes is 0, of n bytes 1 + floor(log2 n). */
#define BALANCE_BUCKETS 65
int balance_bucket(uint64_t bytes);

/*
 * What is known of a path by itself: measured alone. 0 bytes_per_us = unknown.
 * The rate is in bytes of the message, not of what a collective moves for it.
 */
struct balance_path {
    uint64_t latency_ns;
    uint64_t bytes_per_us;
};

struct balance_key {
    uint8_t collective;
    uint8_t bucket;
    uint16_t allowed; /* bit p: path p may be used */
};

/*
 * One observation: what each path did in one call (or summed over a window of
 * calls), combined over the ranks. Only the proportions of `bytes` count.
 * It must come from calls under the shares that balance_shares() gives since
 * the last observation, all of them, and from no others. A path without a
 * share must carry nothing, also where paths hand over chunks.
 */
struct balance_sample {
    uint32_t calls;                  /* how many calls the numbers are summed over; 0 counts as 1 */
    uint64_t call_ns;                /* the whole call */
    uint64_t bytes[BALANCE_PATHS];   /* carried by the path */
    uint64_t busy_ns[BALANCE_PATHS]; /* from the call's start to the path's last byte; 0 = unused */
};

struct balance;

/*
 * `npaths` paths with what is known of them (copied). NULL on out of memory.
 * All memory is taken here: a table of 256 keys, about 1.7 MB of address space
 * of which only the keys in use are ever touched. When it is full, the key
 * that was observed or set the longest ago makes room, and starts again from
 * the model when it comes back.
 */
struct balance *balance_create(int npaths, const struct balance_path *paths);
void balance_free(struct balance *b);

/* Replaces what is known of the paths by themselves; entries of the table that no sample has shaped follow. */
void balance_set_paths(struct balance *b, const struct balance_path *paths);

/*
 * The shares for a call. Never fails: an unknown key starts from the model
 * (equal finishing time under latency + bytes / bandwidth; a path that would
 * not pay gets nothing; small messages get the one path that is fastest). A
 * probe of an abandoned path may be mixed in (see balance_settings).
 * Constant for a key between two calls of balance_observe(): `bytes` only
 * says which bucket it is, which the key says too. Asking changes nothing, so
 * a rank may ask for itself.
 */
void balance_shares(struct balance *b, struct balance_key key, uint64_t bytes, uint32_t shares[BALANCE_PATHS]);

/*
 * Stage 2. The caller agrees the sample over the ranks first and calls this
 * at the same call on every rank. `bytes` is the size of one message; where
 * sizes within the bucket differ, their mean. Returns true if the shares of the
 * key changed: because a path's speed did, or because another set of paths is
 * tried for an observation, or a path at zero probed.
 */
bool balance_observe(struct balance *b, struct balance_key key, uint64_t bytes, const struct balance_sample *sample);

/*
 * Sets an entry (from a cache, or a test); the entry counts as shaped. Shares
 * of paths that are not allowed are dropped and the rest is scaled to the
 * whole; without any it does nothing. Call it alike on all ranks.
 */
void balance_set_shares(struct balance *b, struct balance_key key, const uint32_t shares[BALANCE_PATHS]);

/* Calls `visit` for every shaped entry (for the cache), with its shares as they are without trials and probes. */
void balance_visit(const struct balance *b,
                   void (*visit)(void *context, struct balance_key key, const uint32_t shares[BALANCE_PATHS]),
                   void *context);

struct balance_settings {
    uint32_t threshold;      /* imbalance (1/BALANCE_ONE of the fastest path's time) below which nothing moves */
    uint32_t probe_interval; /* observations of a key after which a path at zero is given a probe share; a probe that
                                delayed its call waits longer, so that probing costs less than a hundredth */
    uint32_t probe_share;    /* 1/BALANCE_ONE; up to four times that for paths of long latency; 0: no probes */
    uint32_t minimum_share;  /* below it a path gets nothing */
    uint32_t minimum_gain;   /* predicted gain (1/BALANCE_ONE) over the best single path that splitting must have */
    uint64_t minimum_bytes;  /* smaller messages are never split */
    /* what is tried of messages smaller than patient_bytes: paths that differ by more, and for longer */
    uint64_t patient_bytes;
    uint32_t patient_contested; /* a path that alone is slower than this (1/BALANCE_ONE) times what is used, by the
                                   model, is not tried; of larger messages: one and a half times */
    uint32_t patient_looks;     /* observations of what is tried before it can have lost; of larger messages: one */
};

/* The defaults, and a way to change them (tests). */
struct balance_settings balance_default_settings(void);
void balance_set_settings(struct balance *b, const struct balance_settings *settings);

#endif
