/*
 * Which set of paths a key uses. The model proposes, observed call times
 * decide: near the point where splitting begins to pay, or when two paths share
 * a bottleneck, no model is to be trusted. One set (an "arm") is the incumbent;
 * another one that might be better is tried against it, call window by call
 * window in turn, and takes over only if it was faster. Also here: probes of
 * paths that carry nothing. All of it follows from the samples alone, so equal
 * samples give equal choices on all ranks.
 *
 *   SETTLED --(an arm is due, contested, and it is not quiet time)--> TRIAL
 *   TRIAL   --(challenger clearly or on the whole faster)--> SETTLED, incumbent = challenger
 *   TRIAL   --(slower, undecided for too long, or a link changed)--> SETTLED, the challenger waits longer
 *   SETTLED --(a path is at zero and its probe is due)--> PROBE --(one to three observations)--> SETTLED
 */
#include <string.h>

#include "balance/internal.h"

#define TRIAL_FIRST 3 /* scores of either before anything is decided */
#define TRIAL_SOME 6
#define TRIAL_LONGEST 40            /* observations */
#define CLEAR (BALANCE_ONE / 8)     /* slower by this after three scores of either: lost; by half of it after six */
#define WIN_EARLY (BALANCE_ONE / 5) /* faster by this after three scores of either: won; by half of it after six */
#define AT_ONCE (BALANCE_ONE / 10)  /* slower by this by the model and at the first look: lost */
#define HOPELESS (BALANCE_ONE / 4)  /* a difference that two scores of the challenger decide */
#define CONTESTED (BALANCE_ONE + BALANCE_ONE / 2) /* slower than this times the incumbent by the model: not tried */
#define RETRY 64                                  /* observations until a loser is tried again, doubled by each loss */
#define RETRY_DOUBLINGS 4
#define QUIET 12       /* observations between two trials */
#define COST_SHARE 128 /* exploring costs at most about 1/COST_SHARE of the time */
#define RESET_EVERY 32
#define LEARNING 64                     /* observations in which trials follow each other without a pause */
#define MARGIN (BALANCE_ONE / 66)       /* the least by which a challenger must be faster on the whole */
#define MARGIN (BALANCE_ONE / 66)       /* the least by which a challenger must be faster on the whole */
#define SPLIT_MARGIN (BALANCE_ONE / 33) /* the same for one of more paths */
#define UNEXPLAINED (BALANCE_ONE / 6)   /* a call longer than the estimates say, by this, has another cause */
#define PROBE_FIRST 4                   /* observations until a path that was just dropped is looked at again */

static int bits(uint16_t mask)
{
    return __builtin_popcount(mask);
}

bool bucket_splits(unsigned bucket, const struct balance_settings *settings)
{
    if (bucket == 0)
        return false;
    return (bucket > 64 ? UINT64_MAX : 1ull << (bucket - 1)) >= settings->minimum_bytes;
}

static struct arm_context context_of(const struct entry *e, int npaths, const struct balance_settings *settings)
{
    struct arm_context c = {.base = e->base,
                            .settings = settings,
                            .npaths = npaths,
                            .split = bucket_splits(e->key.bucket, settings),
                            .bytes = e->bytes,
                            .probed = e->probed,
                            .used = e->shares};
    c.actual = c.bytes;
    return c;
}

static struct arm *incumbent(struct entry *e)
{
    return &e->arms[e->incumbent];
}

/* ---------------------------------------------------------------- arms */

static int arm_find(const struct entry *e, uint16_t mask)
{
    for (int i = 0; i < e->narms; i++)
        if (e->arms[i].mask == mask)
            return i;
    return -1;
}

/* The arm of `mask`, made if need be: where the incumbent has seen a path beside others, it starts from that. */
static int arm_make(struct entry *e, const struct arm_context *c, uint16_t mask)
{
    int at = arm_find(e, mask);
    if (at >= 0)
        return at;
    if (e->narms < BALANCE_ARMS) {
        at = e->narms++;
    } else { /* the one that will not be wanted for the longest */
        for (int i = 0; i < e->narms; i++)
            if (i != e->incumbent && (at < 0 || e->arms[i].due > e->arms[at].due))
                at = i;
    }
    struct arm *arm = &e->arms[at];
    const struct arm *now = &e->arms[e->incumbent];
    memset(arm, 0, sizeof *arm);
    arm->mask = mask;
    arm->slowest = arm->slowest_moved = -1;
    bool together = now != arm && (mask & (mask - 1));
    for (int p = 0; p < BALANCE_PATHS; p++)
        estimate_reset(&arm->estimate[p], together && now->estimate[p].count ? now->estimate[p].path : e->alone[p]);
    arm_balance(arm, c, true);
    return at;
}

/* Path p by itself, by the best evidence there is. */
static struct model_path path_alone(const struct entry *e, int p)
{
    int own = arm_find(e, (uint16_t)(1u << p));
    if (own >= 0 && e->arms[own].estimate[p].count)
        return e->arms[own].estimate[p].path;
    const struct estimate *in_use = &e->arms[e->incumbent].estimate[p];
    return in_use->count && in_use->path.rate > e->alone[p].rate ? in_use->path : e->alone[p];
}

/* ---------------------------------------------------------- candidates */

struct candidates {
    uint64_t present; /* the incumbent's time, measured */
    uint16_t best_mask;
    uint64_t best_time; /* predicted */
};

/* Keeps the candidate if it may be tried now and is the most promising so far. */
static void consider(const struct entry *e, struct candidates *found, uint16_t mask, uint64_t predicted)
{
    const struct arm *now = &e->arms[e->incumbent];
    if (mask == now->mask || mask == model_active(now->shares))
        return;
    int at = arm_find(e, mask);
    bool tried = at >= 0 && e->arms[at].tried;
    if (at >= 0 && e->arms[at].due > e->now)
        return;
    /* After a trial the quiet time is kept, unless much is promised by something never tried. */
    if (e->now < e->quiet_until && (tried || scale(predicted, CONTESTED, BALANCE_ONE) >= found->present))
        return;
    if (found->best_mask && predicted >= found->best_time)
        return;
    found->best_mask = mask;
    found->best_time = predicted;
}

/*
 * Paths that are slower together than alone share a bottleneck, and leaving one
 * of them out may give more: candidates are the set in use without each of them.
 */
static void consider_without(const struct entry *e, const struct arm_context *c, struct candidates *found,
                             const struct model_path alone[BALANCE_PATHS])
{
    const struct arm *now = &e->arms[e->incumbent];
    uint16_t active = model_active(now->shares), slowed = 0;
    if (bits(active) < 3)
        return;
    for (int p = 0; p < c->npaths; p++)
        if ((active & 1u << p) &&
            alone[p].rate > scale(now->estimate[p].path.rate, BALANCE_ONE + BALANCE_ONE / 4, BALANCE_ONE))
            slowed |= (uint16_t)(1u << p);
    if (bits(slowed) < 2)
        return;
    for (int p = 0; p < c->npaths; p++) {
        if (!(slowed & 1u << p))
            continue;
        uint32_t shares[BALANCE_PATHS];
        uint16_t mask = (uint16_t)(active & ~(1u << p));
        model_solve(alone, mask, mask, true, c->bytes, c->settings, shares);
        uint64_t t = model_split_time(alone, shares, c->bytes);
        if (scale(t, BALANCE_ONE + SPLIT_MARGIN, BALANCE_ONE) < found->present)
            consider(e, found, mask, t);
    }
}

/*
 * A path may cost more than its model knows: with hand-over, the last chunk of
 * a slow path is what the whole call waits for. So when the call takes clearly
 * longer than the estimates explain, the set without its smallest or second
 * smallest share is a candidate too.
 */
static void consider_without_smallest(const struct entry *e, const struct arm_context *c, struct candidates *found,
                                      const struct model_path together[BALANCE_PATHS])
{
    uint32_t shares[BALANCE_PATHS];
    memcpy(shares, e->arms[e->incumbent].shares, sizeof shares);
    uint16_t mask = model_active(shares);
    uint64_t explained = model_split_time(together, shares, c->bytes);
    if (found->present < scale(explained, BALANCE_ONE + UNEXPLAINED, BALANCE_ONE))
        return;
    for (int i = 0; i < 2 && bits(mask) > 2; i++) {
        int smallest = -1;
        for (int p = 0; p < c->npaths; p++)
            if (shares[p] && (smallest < 0 || shares[p] < shares[smallest]))
                smallest = p;
        if (smallest < 0)
            return;
        shares[smallest] = 0;
        uint16_t rest = (uint16_t)(mask & ~(1u << smallest));
        uint32_t those[BALANCE_PATHS];
        model_solve(together, rest, rest, true, c->bytes, c->settings, those);
        uint64_t t = model_split_time(together, those, c->bytes);
        if (scale(t, BALANCE_ONE + SPLIT_MARGIN, BALANCE_ONE) < found->present)
            consider(e, found, rest, t);
    }
}

/*
 * The time of path p by itself. What is known of one never seen under this key
 * comes from another collective and size. Where the path in use turned out to
 * be faster than was known of it, that holds for this one alike.
 */
static uint64_t expected_alone(const struct entry *e, const struct arm_context *c, uint64_t present, int p,
                               const struct model_path *alone)
{
    const uint64_t known = model_time(*alone, c->bytes);
    const uint16_t used = model_active(e->arms[e->incumbent].shares);
    const int own = arm_find(e, (uint16_t)(1u << p));
    if (bits(used) != 1 || (own >= 0 && e->arms[own].estimate[p].count))
        return known;
    const uint64_t was = model_time(e->alone[__builtin_ctz(used)], c->bytes);
    return present < was ? scale(known, present, was) : known;
}

static struct candidates find_candidate(const struct entry *e, const struct arm_context *c)
{
    struct candidates found = {0};
    struct model_path alone[BALANCE_PATHS] = {{0, 0}};
    for (int p = 0; p < c->npaths; p++)
        alone[p] = path_alone(e, p);
    const struct arm *now = &e->arms[e->incumbent];
    found.present = scale(model_time(e->base[e->reference], c->bytes), arm_mean(now), BALANCE_ONE);
    const bool patient = c->bytes < c->settings->patient_bytes;
    uint64_t limit = scale(found.present, patient ? c->settings->patient_contested : CONTESTED, BALANCE_ONE);
    uint16_t rest = e->key.allowed;
    for (int i = 0; i < 2 && rest; i++) { /* the two that are best by themselves */
        int p = model_best(alone, rest, c->bytes);
        rest &= (uint16_t) ~(1u << p);
        uint64_t t = expected_alone(e, c, found.present, p, &alone[p]);
        if (t < limit)
            consider(e, &found, (uint16_t)(1u << p), t);
    }
    if (!c->split)
        return found;
    struct model_path together[BALANCE_PATHS];
    memcpy(together, alone, sizeof together);
    for (int p = 0; p < c->npaths; p++)
        if (now->estimate[p].count)
            together[p] = now->estimate[p].path;
    uint32_t shares[BALANCE_PATHS];
    uint16_t mask = model_solve(together, e->key.allowed, 0, true, c->bytes, c->settings, shares);
    uint64_t t = model_split_time(together, shares, c->bytes);
    if (bits(mask) > 1 && (mask & ~now->mask) && scale(t, BALANCE_ONE + SPLIT_MARGIN, BALANCE_ONE) < found.present)
        consider(e, &found, mask, t);
    consider_without(e, c, &found, alone);
    consider_without_smallest(e, c, &found, together);
    return found;
}

/* -------------------------------------------------------------- trials */

static void trial_start(struct entry *e, const struct arm_context *c)
{
    if (e->challenger >= 0 || arm_scores(incumbent(e)) < TRIAL_FIRST)
        return;
    struct candidates found = find_candidate(e, c);
    if (!found.best_mask)
        return;
    int at = arm_make(e, c, found.best_mask);
    e->arms[at].tried = true;
    if (model_active(e->arms[at].shares) == model_active(incumbent(e)->shares)) { /* nothing to compare */
        e->arms[at].due = e->now + RETRY;
        return;
    }
    e->challenger = at;
    arm_forget_scores(&e->arms[at]);
    e->running = at;
    e->trial_start = e->now;
    e->trial_excess = 0;
    const uint64_t ratio = scale(found.best_time, BALANCE_ONE, found.present ? found.present : 1);
    e->predicted_loss = ratio <= BALANCE_ONE                ? 0
                        : ratio > 2 * (uint64_t)BALANCE_ONE ? BALANCE_ONE
                                                            : (uint32_t)(ratio - BALANCE_ONE);
}

static void trial_end(struct entry *e, const struct arm_context *c, bool won, bool hopeless)
{
    int loser = won ? e->incumbent : e->challenger;
    if (won)
        e->incumbent = e->challenger;
    struct arm *lost = &e->arms[loser];
    lost->due = hopeless ? BALANCE_NEVER : e->now + ((uint64_t)RETRY << lost->losses);
    lost->losses += lost->losses < RETRY_DOUBLINGS;
    e->challenger = -1;
    e->running = e->incumbent;
    uint64_t cost = scale(e->trial_excess, COST_SHARE, BALANCE_ONE);
    bool learning = e->now < LEARNING; /* the first trials may cost what they cost */
    e->quiet_until = e->now + (learning ? TRIAL_FIRST : won || cost < QUIET ? QUIET : cost);
    if (e->probe_due < e->now + PROBE_FIRST)
        e->probe_due = e->now + PROBE_FIRST;
    arm_balance(incumbent(e), c, false);
}

/* After an observation during a trial: decide, or say whose turn is next. */
static void trial_continue(struct entry *e, const struct arm_context *c)
{
    struct arm *old = incumbent(e), *new = &e->arms[e->challenger];
    int n_old = arm_scores(old), n_new = arm_scores(new);
    if (e->running == e->incumbent && old->waiting)
        return; /* does its link change? Look again at once */
    uint64_t mean_old = arm_mean(old), mean_new = arm_mean(new);
    if (e->running == e->challenger && n_new && mean_old) {
        uint64_t last = new->score[(new->scored - 1) % BALANCE_SCORES];
        if (last > mean_old)
            e->trial_excess += scale(last - mean_old, BALANCE_ONE, mean_old);
    }
    /* one look is enough where the model had said so too: the usual case of unlike links that do not disturb each other
     */
    const int looks = c->bytes < c->settings->patient_bytes ? (int)c->settings->patient_looks : 1;
    if (n_new == 1 && looks <= 1 && n_old >= TRIAL_FIRST &&
        mean_new > scale(mean_old, BALANCE_ONE + AT_ONCE, BALANCE_ONE) && e->predicted_loss > AT_ONCE) {
        trial_end(e, c, false, false);
        return;
    }
    if (n_new >= 2 && looks <= 2 && n_old >= 2 && mean_new > scale(mean_old, BALANCE_ONE + HOPELESS, BALANCE_ONE)) {
        trial_end(e, c, false, true);
        return;
    }
    if (n_new >= TRIAL_FIRST && n_old >= TRIAL_FIRST) {
        bool complete = n_new >= BALANCE_SCORES && n_old >= BALANCE_SCORES, some = n_new >= TRIAL_SOME;
        uint32_t clear = some ? CLEAR / 2 : CLEAR;
        uint32_t to_win = bits(new->mask) > bits(old->mask) ? SPLIT_MARGIN : MARGIN;
        if (!complete)
            to_win = some ? WIN_EARLY / 2 : WIN_EARLY;
        bool won = scale(mean_new, BALANCE_ONE + to_win, BALANCE_ONE) < mean_old;
        if (won || complete || mean_new > scale(mean_old, BALANCE_ONE + clear, BALANCE_ONE)) {
            trial_end(e, c, won, false);
            return;
        }
    }
    if (e->now - e->trial_start >= TRIAL_LONGEST) {
        trial_end(e, c, false, false);
        return;
    }
    e->running = e->running == e->challenger ? e->incumbent : e->challenger;
}

static uint64_t rescaled(uint64_t rate, uint64_t is, uint64_t was)
{
    uint64_t r = scale(rate, is, was);
    return r < 1 ? 1 : r > 1000000000000000u ? 1000000000000000u : r;
}

/* Links of `changed` are not what they were: what other arms know of them is scaled, and old verdicts are void. */
static void links_changed(struct entry *e, const struct arm_context *c, struct arm *seen, uint16_t changed,
                          const struct model_path before[BALANCE_PATHS])
{
    bool in_use = changed & model_active(seen->shares); /* or only a probe said so */
    for (int p = 0; p < c->npaths; p++) {
        if (!(changed & 1u << p))
            continue;
        uint64_t was = before[p].rate, is = seen->estimate[p].path.rate;
        e->alone[p].rate = rescaled(e->alone[p].rate, is, was);
        for (int i = 0; i < e->narms; i++) {
            struct model_path path = e->arms[i].estimate[p].path;
            path.rate = rescaled(path.rate, is, was);
            if (&e->arms[i] != seen)
                estimate_reset(&e->arms[i].estimate[p], path);
        }
    }
    bool again = e->now >= e->reset_at + RESET_EVERY || e->reset_at == 0;
    if (again)
        e->reset_at = e->now;
    for (int i = 0; i < e->narms; i++) {
        struct arm *arm = &e->arms[i];
        if (arm == seen || (!in_use && !(arm->mask & changed)))
            continue;
        arm_forget_scores(arm);
        arm_balance(arm, c, true);
        if (again) {
            arm->losses = 0;
            arm->due = e->now + TRIAL_FIRST;
        } else if (arm->due == BALANCE_NEVER) {
            arm->due = e->now + RETRY;
        }
    }
    if (e->challenger >= 0) { /* a trial across a change decides nothing */
        e->challenger = -1;
        e->running = e->incumbent;
    }
    if (again && in_use && e->quiet_until > e->now + QUIET)
        e->quiet_until = e->now + QUIET;
}

/* -------------------------------------------------------------- probes */

/*
 * The share at which path p should be done in half the time of the others: it
 * costs nothing if the path is what it was, and shows if it is faster. A path
 * of long latency needs more than the setting says to show anything.
 */
static uint32_t probe_share(const struct entry *e, const struct arm_context *c, int p, uint64_t present)
{
    struct model_path m = e->arms[e->incumbent].estimate[p].path;
    uint64_t half = present / 2, room = half > m.latency_ns ? half - m.latency_ns : 0;
    uint64_t bytes = scale(m.rate, room, 1000000000u);
    if (bytes < 4096)
        bytes = 4096;
    uint64_t share = scale(bytes, BALANCE_ONE, c->bytes), most = c->settings->probe_share;
    if (m.latency_ns > present / 8)
        most = most * 4 < BALANCE_ONE / 2 ? most * 4 : BALANCE_ONE / 2;
    return (uint32_t)(share < 1 ? 1 : share > most ? most : share);
}

static void probe_start(struct entry *e, const struct arm_context *c)
{
    const struct arm *now = &e->arms[e->incumbent];
    if (e->challenger >= 0 || !c->split || !c->settings->probe_share || e->probe_due > e->now ||
        arm_scores(now) < TRIAL_FIRST)
        return;
    uint64_t present = scale(model_time(e->base[e->reference], c->bytes), arm_mean(now), BALANCE_ONE);
    for (int i = 1; i <= c->npaths; i++) {
        int p = (e->probe_last + i) % c->npaths;
        if (!(e->key.allowed & 1u << p) || now->shares[p])
            continue;
        if (e->base[p].latency_ns >= present) /* cannot pay at any rate */
            continue;
        e->probed = e->probe_last = p;
        e->probe_repeats = 0;
        e->probe_excess = 0;
        return;
    }
}

/* After an observation with a probe: once more if it told something new, else wait; the dearer, the longer. */
static void probe_continue(struct entry *e, const struct arm_context *c, uint64_t score, bool told, bool faster)
{
    const struct arm *now = &e->arms[e->incumbent];
    int p = e->probed;
    uint64_t mean = arm_mean(now);
    if (mean && score > mean + mean / 8)
        e->probe_excess += scale(score - mean, BALANCE_ONE, mean);
    bool better = now->estimate[p].run < 0;
    if (!told && better && ++e->probe_repeats < 3 && !now->shares[p])
        return;
    e->probed = -1;
    uint32_t interval = c->settings->probe_interval ? c->settings->probe_interval : 1;
    e->probe_wait = faster || (told && now->shares[p]) ? PROBE_FIRST : e->probe_wait * 2;
    if (e->probe_wait > interval)
        e->probe_wait = interval;
    uint64_t cost = scale(e->probe_excess, COST_SHARE, BALANCE_ONE);
    e->probe_due = e->now + (cost > e->probe_wait ? cost : e->probe_wait);
}

/* --------------------------------------------------------------- entry */

static void put_shares(struct entry *e, const struct arm_context *c)
{
    const struct arm *arm = &e->arms[e->running];
    memcpy(e->shares, arm->shares, sizeof e->shares);
    if (e->probed < 0)
        return;
    uint64_t present = scale(model_time(e->base[e->reference], c->bytes), arm_mean(arm), BALANCE_ONE);
    uint32_t share = probe_share(e, c, e->probed, present);
    wide weights[BALANCE_PATHS];
    for (int p = 0; p < BALANCE_PATHS; p++)
        weights[p] = (wide)arm->shares[p] * (BALANCE_ONE - share);
    weights[e->probed] = (wide)BALANCE_ONE * share;
    model_normalise(weights, e->shares);
}

/* Rates that make given shares the ones at which the paths finish together, in about the model's own time. */
static void estimates_from_shares(struct arm *arm, const struct arm_context *c, const uint32_t *shares)
{
    uint64_t time = model_split_time(c->base, shares, c->bytes);
    for (int p = 0; p < c->npaths; p++) {
        uint64_t bytes = scale(c->bytes, shares[p], BALANCE_ONE);
        if (!bytes || time <= c->base[p].latency_ns)
            continue;
        struct model_path path = {c->base[p].latency_ns, scale(bytes, 1000000000u, time - c->base[p].latency_ns)};
        path.rate = path.rate ? path.rate : 1;
        estimate_reset(&arm->estimate[p], path);
    }
}

void entry_start(struct entry *e, int npaths, const struct model_path *base, const struct balance_settings *settings,
                 const uint32_t *shares)
{
    memcpy(e->base, base, sizeof e->base);
    for (int p = 0; p < BALANCE_PATHS; p++)
        e->alone[p] = base[p];
    e->narms = 0;
    e->challenger = e->probed = -1;
    e->now = e->trial_start = e->trial_excess = e->reset_at = e->probe_excess = 0;
    e->probe_last = npaths - 1;
    e->probe_repeats = 0;
    e->probe_wait = PROBE_FIRST;
    e->probe_due = shares ? settings->probe_interval : PROBE_FIRST;
    e->quiet_until = shares ? settings->probe_interval : 0;
    e->incumbent = e->running = 0;
    e->bytes = model_bucket_bytes(e->key.bucket);
    struct arm_context c = context_of(e, npaths, settings);
    e->reference = model_best(base, e->key.allowed, c.bytes);
    uint32_t model[BALANCE_PATHS];
    uint16_t mask =
        shares ? model_active(shares) : model_solve(base, e->key.allowed, 0, c.split, c.bytes, settings, model);
    arm_make(e, &c, mask);
    e->arms[0].tried = true;
    if (shares) {
        estimates_from_shares(&e->arms[0], &c, shares);
        memcpy(e->arms[0].shares, shares, sizeof e->arms[0].shares);
    }
    put_shares(e, &c);
}

/* The call's time over the reference time for its size. */
static uint64_t score_of(const struct entry *e, const struct balance_sample *sample, uint64_t bytes)
{
    uint64_t calls = sample->calls ? sample->calls : 1, time = sample->call_ns;
    for (int p = 0; p < BALANCE_PATHS && !sample->call_ns; p++)
        time = sample->busy_ns[p] > time ? sample->busy_ns[p] : time;
    return scale(time / calls, BALANCE_ONE, model_time(e->base[e->reference], bytes));
}

void entry_observe(struct entry *e, int npaths, const struct balance_settings *settings, uint64_t bytes,
                   const struct balance_sample *sample)
{
    if (balance_bucket(bytes) != e->key.bucket) /* a caller's error, but no reason to spoil the entry */
        bytes = e->bytes;
    if (e->now++ == 0)
        e->bytes = bytes;
    else if (bytes > e->bytes)
        e->bytes += (bytes - e->bytes + 3) / 4;
    else
        e->bytes -= (e->bytes - bytes + 3) / 4;
    struct arm_context c = context_of(e, npaths, settings);
    c.actual = bytes;
    struct arm *arm = &e->arms[e->running];
    struct model_path before[BALANCE_PATHS];
    for (int p = 0; p < BALANCE_PATHS; p++)
        before[p] = arm->estimate[p].path;
    uint16_t had = model_active(arm->shares);
    int probed = e->probed;
    bool calibrates = probed >= 0 && arm->estimate[probed].count == 0;
    arm_observe(arm, &c, sample);
    uint64_t score = score_of(e, sample, bytes);
    uint16_t lost = (uint16_t)(had & ~model_active(arm->shares));
    if (lost) { /* look at it again soon: it may have been a burst */
        e->probe_wait = PROBE_FIRST;
        e->probe_due = e->now + PROBE_FIRST;
    }
    if (arm->jumped || lost)
        arm_forget_scores(arm); /* of other shares than now */
    else if (e->probed < 0)
        arm_score(arm, score);
    if (e->probed >= 0) {
        bool told = arm->changed & 1u << probed;
        bool faster = told && arm->estimate[probed].path.rate > before[probed].rate;
        probe_continue(e, &c, score, told || arm->shares[probed], faster);
    }
    if (calibrates && arm->estimate[probed].path.rate <= e->alone[probed].rate)
        arm->changed &= (uint16_t) ~(1u << probed); /* slower beside others than alone: that may well be */
    if (arm->changed)
        links_changed(e, &c, arm, arm->changed, before);
    if (e->challenger >= 0)
        trial_continue(e, &c);
    if (e->challenger < 0 && e->probed < 0) {
        trial_start(e, &c);
        probe_start(e, &c);
    }
    c.probed = e->probed;
    put_shares(e, &c);
}
