/*
 * What the files of the balancer share: the model of a path, the estimate of
 * how slow a path really is, an arm (one set of paths that a key may use), and
 * an entry of the table. Not for other layers.
 *
 *   model.c   latencies and rates in, shares out
 *   adapt.c   one arm: samples in, estimates and shares out
 *   choose.c  one entry: which arm is used, trials of other arms, probes
 *   balance.c the table
 */
#ifndef BALANCE_INTERNAL_H
#define BALANCE_INTERNAL_H

#include "balance/balance.h"

/* Products of a rate and a time do not fit in 64 bits. */
__extension__ typedef unsigned __int128 wide;

#define BALANCE_ARMS 8
#define BALANCE_SCORES 12
#define BALANCE_NEVER UINT64_MAX

/* A path as the model sees it. */
struct model_path {
    uint64_t latency_ns;
    uint64_t rate; /* bytes per second, at least 1 */
};

/* ------------------------------------------------------------- model.c */

/* What is known of a path, bounded; `nominal` bytes per microsecond stand for an unknown rate. */
struct model_path model_from(const struct balance_path *path, uint64_t nominal);

/* latency + bytes / rate, in nanoseconds; at most INT64_MAX. */
uint64_t model_time(struct model_path path, uint64_t bytes);

/* When the last path is done under `shares`. */
uint64_t model_split_time(const struct model_path *paths, const uint32_t *shares, uint64_t bytes);

/* The path of `mask` that is fastest by itself; equal ones: the one of least latency, then the first. */
int model_best(const struct model_path *paths, uint16_t mask, uint64_t bytes);

/*
 * Shares over `mask` that let all paths finish together, without those that do
 * not pay. `held` are the paths in use now: to leave takes more than to stay.
 * `split` false: one path only. Returns the paths that have a share.
 */
uint16_t model_solve(const struct model_path *paths, uint16_t mask, uint16_t held, bool split, uint64_t bytes,
                     const struct balance_settings *settings, uint32_t shares[BALANCE_PATHS]);

/* Scales `weights` to integers that sum to BALANCE_ONE; false if all are 0. */
bool model_normalise(const wide weights[BALANCE_PATHS], uint32_t shares[BALANCE_PATHS]);

/* The size that stands for a bucket that no message was seen of: its smallest, as most sizes are powers of two. */
uint64_t model_bucket_bytes(unsigned bucket);

uint16_t model_active(const uint32_t shares[BALANCE_PATHS]);

static inline uint64_t scale(uint64_t value, uint64_t by, uint64_t over)
{
    wide v = (wide)value * by / (over ? over : 1);
    return v > INT64_MAX ? INT64_MAX : (uint64_t)v;
}

/* ------------------------------------------------------------- adapt.c */

/*
 * What samples say of a path. A measurement is compared as a whole, as time
 * over predicted time: that ratio has the link's own noise, whereas the rate,
 * time less latency, of a latency-bound call would have many times it.
 */
struct estimate {
    struct model_path path;
    uint64_t pending;   /* the last ratio (1/BALANCE_ONE), while it is one that nothing has confirmed */
    uint32_t deviation; /* mean distance of the ratio from 1, 1/BALANCE_ONE */
    uint16_t count;     /* measurements behind `path`, up to ESTIMATE_MEMORY; 0: it is the model's word only */
    int8_t run;         /* side of the pending measurement: +1 slower, -1 faster, 0 none */
    int8_t lean;        /* successive measurements clearly on one side, signed */
};

/* One set of paths, with what was seen while it was in use. */
struct arm {
    uint16_t mask;
    uint16_t scored;  /* scores seen since they were last forgotten */
    uint16_t changed; /* paths whose estimate jumped at the last observation after it had been settled */
    bool jumped;      /* any estimate of a path in use jumped at the last observation */
    bool waiting;     /* a path in use shows a change that nothing has confirmed */
    bool tried;
    uint32_t shares[BALANCE_PATHS];
    struct estimate estimate[BALANCE_PATHS];
    uint64_t score[BALANCE_SCORES]; /* ring: call time over the reference time, 1/BALANCE_ONE */
    uint64_t due;                   /* observation from which it may be tried (again) */
    uint32_t losses;
    /* the step rule, when the rate model does not settle */
    uint32_t window, window_large, window_sum, window_before;
    uint32_t step; /* 0: the rate model is in charge */
    uint32_t step_age, step_periods;
    int8_t slowest, slowest_moved;
    uint8_t same_moves;
};

struct arm_context {
    const struct model_path *base;
    const struct balance_settings *settings;
    int npaths;
    bool split;      /* may the bucket be split at all */
    uint64_t bytes;  /* of the messages of this key, on the whole */
    uint64_t actual; /* of the message observed */
    int probed;      /* the path that had a probe share, or -1 */
    const uint32_t *used;
};

void estimate_reset(struct estimate *e, struct model_path path);

/* Takes one measurement: the path, known as `model`, took `time` ns for `bytes`. True if the estimate jumped. */
bool estimate_feed(struct estimate *e, struct model_path model, uint64_t bytes, uint64_t time);

/* Takes a sample that was made with this arm in use, and moves its estimates and shares. */
void arm_observe(struct arm *arm, const struct arm_context *c, const struct balance_sample *sample);

/* Shares from the estimates; unless `force`, only if the present ones are out of balance. */
void arm_balance(struct arm *arm, const struct arm_context *c, bool force);

void arm_models(const struct arm *arm, const struct arm_context *c, struct model_path models[BALANCE_PATHS]);

void arm_score(struct arm *arm, uint64_t score);
void arm_forget_scores(struct arm *arm);

/* Mean of the last scores without the smallest and the largest; 0 if there are none. */
uint64_t arm_mean(const struct arm *arm);

static inline int arm_scores(const struct arm *arm)
{
    return arm->scored < BALANCE_SCORES ? arm->scored : BALANCE_SCORES;
}

/* ------------------------------------------------------------ choose.c */

struct entry {
    bool used;
    uint16_t next;  /* in the chain of the hash table: index + 1, 0 ends it */
    uint64_t stamp; /* when it was last observed or set, for eviction */
    struct balance_key key;
    struct model_path base[BALANCE_PATHS];  /* as known when the entry was made */
    struct model_path alone[BALANCE_PATHS]; /* a path by itself: as known, times what changes were seen since */
    uint64_t bytes;                         /* mean size of the messages observed */
    int reference;                          /* scores are relative to this path's time by the model */
    struct arm arms[BALANCE_ARMS];
    int narms;
    int incumbent, challenger, running; /* challenger -1: no trial */
    uint64_t now;                       /* observations so far */
    uint64_t quiet_until;               /* no trial before */
    uint64_t trial_start, trial_excess;
    uint32_t predicted_loss; /* of the challenger against the incumbent, by the model, 1/BALANCE_ONE */
    uint64_t reset_at;       /* when all trials were last made due by a change */
    /* probes */
    uint64_t probe_due;
    uint64_t probe_excess;
    uint32_t probe_wait;
    int probed; /* path with a probe share now, or -1 */
    int probe_repeats, probe_last;
    uint32_t shares[BALANCE_PATHS]; /* in force */
};

/* Makes an entry; `shares` (may be NULL) are what it starts with instead of the model's. */
void entry_start(struct entry *e, int npaths, const struct model_path *base, const struct balance_settings *settings,
                 const uint32_t *shares);
void entry_observe(struct entry *e, int npaths, const struct balance_settings *settings, uint64_t bytes,
                   const struct balance_sample *sample);

/* May a message of this bucket be split at all? */
bool bucket_splits(unsigned bucket, const struct balance_settings *settings);

#endif
