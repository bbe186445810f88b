/*
 * Stage 2 for one set of paths: each sample says how slow every path was
 * against its model; the estimates follow smoothly while that is noise and
 * jump when two samples in a row agree that it is not; shares follow the
 * estimates. Where that does not settle, FlexLink's step rule (arXiv
 * 2510.15882, its load balancer) takes over. Knows nothing of other sets.
 */
#include <string.h>

#include "balance/internal.h"

#define ESTIMATE_MEMORY 16
#define DEVIATION_START (BALANCE_ONE / 20)
#define LIMIT_LEAST (BALANCE_ONE / 5)    /* noise of +-10% never gets here */
#define LIMIT_MOST (2 * BALANCE_ONE / 5) /* a link that lost half its speed always does */
#define LEAN_LIMIT (BALANCE_ONE / 9)
#define LEAN_RUN 4
#define RATE_MOST 1000000000000000u /* bytes per second */
#define SETTLED 4                   /* measurements after which a jump means that the link changed */

#define WINDOW 8 /* observations per look at whether the rate model settles */
#define UNSETTLED (BALANCE_ONE / 4)
#define STEP_FIRST (BALANCE_ONE / 16)
#define STEP_LEAST (BALANCE_ONE / 256)
#define STEP_PERIOD 128u /* observations under the step rule before the rate model gets another chance */

void estimate_reset(struct estimate *e, struct model_path path)
{
    *e = (struct estimate){.path = path, .deviation = DEVIATION_START};
}

/*
 * The path's estimate when `bytes` take `time`: latency as known, the rest is
 * the rate. At least an eighth of the time counts as transfer, so that a
 * latency that was measured too high does not make the rate infinite.
 */
static struct model_path path_from(struct model_path model, uint64_t bytes, uint64_t time)
{
    uint64_t latency = time - time / 8;
    latency = model.latency_ns < latency ? model.latency_ns : latency;
    uint64_t rate = scale(bytes, 1000000000u, time - latency);
    struct model_path path = {latency, rate < 1 ? 1 : rate > RATE_MOST ? RATE_MOST : rate};
    return path;
}

/* A measurement far from the estimate: nothing happens until the next one says the same. */
static bool feed_outlier(struct estimate *e, struct model_path model, uint64_t bytes, uint64_t ratio, int side)
{
    if (e->run != side) {
        e->run = (int8_t)side;
        e->pending = ratio;
        return false;
    }
    uint64_t low = ratio < e->pending ? ratio : e->pending, high = ratio < e->pending ? e->pending : ratio;
    if (high / 2 <= low)
        low += (high - low) / 2;
    else if (side < 0) /* they agree on the direction only: believe the smaller change */
        low = high;
    uint64_t most = scale(e->path.rate, 4, 1), time = scale(model_time(e->path, bytes), low, BALANCE_ONE);
    e->path = path_from(model, bytes, time);
    if (e->path.rate > most && model.latency_ns > time / 2) /* mostly latency: noise could make the rate anything */
        e->path.rate = most;
    e->count = 2;
    e->run = 0;
    e->lean = 0;
    return true;
}

bool estimate_feed(struct estimate *e, struct model_path model, uint64_t bytes, uint64_t time)
{
    uint64_t ratio = scale(time, BALANCE_ONE, model_time(e->path, bytes));
    uint64_t limit = 4 * (uint64_t)e->deviation;
    limit = limit < LIMIT_LEAST ? LIMIT_LEAST : limit > LIMIT_MOST ? LIMIT_MOST : limit;
    if (ratio > BALANCE_ONE + limit || ratio < scale(BALANCE_ONE, BALANCE_ONE, BALANCE_ONE + limit))
        return feed_outlier(e, model, bytes, ratio, ratio > BALANCE_ONE ? 1 : -1);
    e->run = 0;
    uint64_t off = ratio > BALANCE_ONE ? ratio - BALANCE_ONE : BALANCE_ONE - ratio;
    int side = off <= LEAN_LIMIT ? 0 : ratio > BALANCE_ONE ? 1 : -1;
    e->lean = (int8_t)(side == 0 ? 0 : (e->lean > 0) == (side > 0) && e->lean ? e->lean + side : side);
    if (e->lean >= LEAN_RUN || e->lean <= -LEAN_RUN) { /* a change too small to be an outlier: forget faster */
        e->lean = 0;
        e->count = e->count < 2 ? e->count : 2;
    }
    if (e->count < ESTIMATE_MEMORY)
        e->count++;
    /* The rate takes the whole ratio, though part of the time is latency: slower to settle there, but calm. */
    uint64_t part = off / e->count;
    uint64_t rate = scale(e->path.rate, BALANCE_ONE, ratio > BALANCE_ONE ? BALANCE_ONE + part : BALANCE_ONE - part);
    e->path.rate = rate < 1 ? 1 : rate > RATE_MOST ? RATE_MOST : rate;
    e->deviation = (uint32_t)((15 * (uint64_t)e->deviation + off) / 16);
    return false;
}

void arm_models(const struct arm *arm, const struct arm_context *c, struct model_path models[BALANCE_PATHS])
{
    memset(models, 0, BALANCE_PATHS * sizeof *models);
    for (int p = 0; p < c->npaths; p++)
        models[p] = arm->estimate[p].path;
}

/* ------------------------------------------------------------- scores */

void arm_score(struct arm *arm, uint64_t score)
{
    arm->score[arm->scored % BALANCE_SCORES] = score;
    arm->scored = arm->scored < 2 * BALANCE_SCORES - 1 ? (uint16_t)(arm->scored + 1) : BALANCE_SCORES;
}

void arm_forget_scores(struct arm *arm)
{
    arm->scored = 0;
}

uint64_t arm_mean(const struct arm *arm)
{
    int n = arm_scores(arm);
    if (n == 0)
        return 0;
    uint64_t sorted[BALANCE_SCORES];
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > arm->score[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = arm->score[i];
    }
    int first = n >= 3, last = n - (n >= 3);
    if (n == 2) /* of two, the one that no slow call has touched */
        last = 1;
    wide sum = 0;
    for (int i = first; i < last; i++)
        sum += sorted[i];
    return (uint64_t)(sum / (unsigned)(last - first));
}

/* ----------------------------------------------------------- step rule */

/* Slowest and fastest of the paths that carried something; returns their imbalance, at most BALANCE_ONE. */
static uint32_t imbalance(const struct arm *arm, const struct balance_sample *sample, int *slowest, int *fastest)
{
    *slowest = *fastest = -1;
    for (int p = 0; p < BALANCE_PATHS; p++) {
        if (!arm->shares[p] || !sample->bytes[p] || !sample->busy_ns[p])
            continue;
        if (*slowest < 0 || sample->busy_ns[p] > sample->busy_ns[*slowest])
            *slowest = p;
        if (*fastest < 0 || sample->busy_ns[p] < sample->busy_ns[*fastest])
            *fastest = p;
    }
    if (*slowest < 0)
        return 0;
    uint64_t least = sample->busy_ns[*fastest];
    uint64_t i = scale(sample->busy_ns[*slowest] - least, BALANCE_ONE, least);
    return i > BALANCE_ONE ? BALANCE_ONE : (uint32_t)i;
}

/*
 * Does the imbalance stay large over two windows, in nearly every observation,
 * without shrinking by a quarter? Then steps take over. A link that changes is
 * out of balance for two or three observations only.
 */
static void watch_window(struct arm *arm, uint32_t now)
{
    arm->window_sum += now;
    arm->window_large += now > UNSETTLED;
    if (++arm->window < WINDOW)
        return;
    uint32_t mean = arm->window_large >= WINDOW - 2 ? arm->window_sum / WINDOW : 0;
    if (mean && arm->window_before && mean > arm->window_before / 4 * 3) {
        arm->step = STEP_FIRST;
        arm->step_age = 0;
        arm->slowest = arm->slowest_moved = -1;
        arm->same_moves = 0;
        mean = 0;
    }
    arm->window_before = mean;
    arm->window = arm->window_sum = arm->window_large = 0;
}

static int primary_of(const struct arm *arm)
{
    int primary = 0;
    for (int p = 1; p < BALANCE_PATHS; p++)
        if (arm->shares[p] > arm->shares[primary])
            primary = p;
    return primary;
}

/*
 * FlexLink's rule: from the slowest helper to the primary path, or from the
 * primary to the fastest helper; half the step when the slowest path changes.
 * Added: the same path must be slowest twice, so that one slow call moves
 * nothing, and the step grows again while moves keep going the same way.
 */
static void step_move(struct arm *arm, const struct arm_context *c, uint32_t now, int slowest, int fastest)
{
    if (++arm->step_age >= STEP_PERIOD << arm->step_periods) {
        arm->step_periods += arm->step_periods < 5;
        arm->step = 0;
        return;
    }
    if (now <= c->settings->threshold || slowest == fastest) {
        arm->slowest = -1;
        return;
    }
    bool confirmed = arm->slowest == slowest;
    arm->slowest = confirmed ? -1 : (int8_t)slowest;
    if (!confirmed)
        return;
    if (arm->slowest_moved != slowest) {
        arm->step = arm->step / 2 > STEP_LEAST ? arm->step / 2 : STEP_LEAST;
        arm->same_moves = 0;
    } else if (++arm->same_moves >= 3) {
        arm->step = arm->step * 2 < STEP_FIRST ? arm->step * 2 : STEP_FIRST;
        arm->same_moves = 0;
    }
    arm->slowest_moved = (int8_t)slowest;
    int primary = primary_of(arm);
    int from = slowest, to = slowest == primary ? fastest : primary;
    uint32_t moved = arm->step < arm->shares[from] ? arm->step : arm->shares[from];
    if (from != primary && arm->shares[from] - moved < c->settings->minimum_share)
        moved = arm->shares[from];
    if (from == primary && moved > arm->shares[from] / 2)
        moved = arm->shares[from] / 2;
    arm->shares[from] -= moved;
    arm->shares[to] += moved;
}

/* ---------------------------------------------------------- rate model */

void arm_balance(struct arm *arm, const struct arm_context *c, bool force)
{
    struct model_path models[BALANCE_PATHS];
    uint32_t shares[BALANCE_PATHS];
    arm_models(arm, c, models);
    uint16_t held = model_active(arm->shares);
    uint16_t active = model_solve(models, arm->mask, held, c->split, c->bytes, c->settings, shares);
    if (!force && active == held) {
        uint64_t first = UINT64_MAX, last = 0;
        for (int p = 0; p < c->npaths; p++) {
            if (!arm->shares[p])
                continue;
            uint64_t t = model_time(models[p], scale(c->bytes, arm->shares[p], BALANCE_ONE));
            first = t < first ? t : first;
            last = t > last ? t : last;
        }
        if (scale(last - first, BALANCE_ONE, first) <= c->settings->threshold)
            return;
    }
    memcpy(arm->shares, shares, sizeof shares);
}

/* What path p did in one call, on the average; false: the sample does not say. */
static bool measure(const struct arm *arm, const struct arm_context *c, const struct balance_sample *sample, int p,
                    wide carried, uint64_t *bytes, uint64_t *time)
{
    uint64_t calls = sample->calls ? sample->calls : 1;
    if (sample->bytes[p] && sample->busy_ns[p]) {
        /* Only the proportions of sample->bytes count: what a collective moves per byte of message is its affair. */
        *bytes = (uint64_t)((wide)c->actual * sample->bytes[p] / carried);
        *time = sample->busy_ns[p] / calls;
        return true;
    }
    *bytes = scale(c->actual, c->used[p], BALANCE_ONE);
    *time = scale(model_time(arm->estimate[p].path, *bytes), 4, 1); /* others had to carry all of it */
    return *bytes >= 4096; /* less may have been rounded away, to whole elements or chunks */
}

void arm_observe(struct arm *arm, const struct arm_context *c, const struct balance_sample *sample)
{
    wide carried = 0;
    arm->changed = 0;
    arm->jumped = arm->waiting = false;
    for (int p = 0; p < c->npaths; p++)
        carried += sample->bytes[p];
    if (carried == 0)
        return;
    for (int p = 0; p < c->npaths; p++) {
        struct estimate *e = &arm->estimate[p];
        uint64_t bytes, time;
        if (!measure(arm, c, sample, p, carried, &bytes, &time))
            continue;
        bool settled = e->count >= SETTLED || p == c->probed;
        bool jumped = estimate_feed(e, c->base[p], bytes, time);
        if (jumped && settled)
            arm->changed |= (uint16_t)(1u << p);
        if (arm->shares[p] && p != c->probed) {
            arm->jumped |= jumped;
            arm->waiting |= e->run != 0;
        }
    }
    int slowest, fastest;
    uint32_t now = imbalance(arm, sample, &slowest, &fastest);
    if (arm->step && c->probed < 0) {
        step_move(arm, c, now, slowest, fastest);
    } else if (!arm->step) {
        if (c->probed < 0)
            watch_window(arm, now);
        arm_balance(arm, c, arm->jumped);
    }
}
