/*
 * The cost model: each algorithm as a few phases, each phase by Hockney's rule
 * (Parallel Computing 20(3), 1994) with the two links that a cluster has. Only
 * integers, so that every rank and every CPU comes to the same number. Knows
 * the algorithms' traffic, not their steps.
 *
 * What a phase costs:
 *  - one latency, of the slowest link in it;
 *  - for each further message of a rank, the time until it can start the next:
 *    the "gap" of LogP (Culler et al., PPoPP 1993), taken as a quarter of the
 *    latency;
 *  - the bytes, of the busiest rank within hosts or of the busiest host
 *    between them, whichever takes longer, as both go on at once;
 *  - what the busiest rank reads and writes to fold or copy.
 * Phases are added up. Where ranks outnumber cores, whatever needs a core takes
 * as many turns. Rooted collectives are judged for root 0. The builders' blocks
 * are counted as messages of their own, empty ones as none.
 */
#include "schedule/model.h"

#include "schedule/builders.h"

enum {
    GAP_DIVISOR = 4,           /* latency / gap */
    TOUCHED_BYTES_PER_NS = 10, /* of one core, reading or writing memory */
    LEAST_BLOCK_BYTES = 64     /* smaller messages have fewer blocks that are not empty */
};

/* Additions and products that stay at the top instead of wrapping. */
static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t largest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t transfer_ns(uint64_t bytes, const struct model_link *link)
{
    uint64_t rate = link->bytes_per_us ? link->bytes_per_us : 1;
    return plus(times(bytes / rate, 1000), times(bytes % rate, 1000) / rate);
}

/* The machine and the message, as the phases need them. */
struct scene {
    const struct model *model;
    uint64_t ranks, hosts;                 /* hosts that have ranks */
    uint64_t widest, narrowest;            /* most and fewest ranks on one of them */
    uint64_t at_root;                      /* ranks on rank 0's host */
    uint64_t crossings;                    /* full exchange: most pairs of one host's ranks with others */
    uint64_t partials;                     /* two-level exchange: most blocks in or out of one host */
    uint64_t turns;                        /* ranks per core, rounded up */
    uint64_t bytes, block, blocks;         /* the message, one of its blocks, blocks that are not empty */
    uint64_t time;                         /* the sum so far */
    uint16_t count[SCHEDULE_LARGEST_SIZE]; /* per host */
};

/* What the busiest rank (or, for between_bytes, host) does in one phase. */
struct phase {
    uint64_t within_messages, within_bytes;
    uint64_t between_messages, between_bytes;
    uint64_t touched; /* bytes read and written by folds and copies */
};

static int host_of(const struct scene *s, int rank)
{
    return s->model->shape.host ? s->model->shape.host[rank] : 0;
}

static void scene_begin(struct scene *s, const struct model *model, uint64_t bytes)
{
    *s = (struct scene){.model = model, .ranks = (uint64_t)model->shape.size, .narrowest = UINT64_MAX, .bytes = bytes};
    for (int r = 0; r < model->shape.size; r++)
        s->count[host_of(s, r)]++;
    for (int r = 0; r < model->shape.size; r++) {
        uint64_t count = s->count[host_of(s, r)];
        s->widest = largest(s->widest, count);
        s->narrowest = count < s->narrowest ? count : s->narrowest;
        s->crossings = largest(s->crossings, count * (s->ranks - count));
    }
    for (int h = 0; h < SCHEDULE_LARGEST_SIZE; h++)
        s->hosts += s->count[h] > 0;
    s->partials = largest(s->ranks - s->narrowest, (s->hosts - 1) * s->widest);
    s->at_root = s->count[host_of(s, 0)];
    uint64_t cores = model->cores_per_host > 0 ? (uint64_t)model->cores_per_host : s->widest;
    s->turns = (s->widest + cores - 1) / cores;
    s->block = bytes / s->ranks + (bytes % s->ranks != 0);
    s->blocks = bytes / LEAST_BLOCK_BYTES + (bytes % LEAST_BLOCK_BYTES != 0);
    s->blocks = s->blocks < 1 ? 1 : s->blocks > s->ranks ? s->ranks : s->blocks;
}

/* Adds `count` equal phases, one after another. */
static void add_phases(struct scene *s, uint64_t count, struct phase p)
{
    const struct model_link *within = &s->model->within, *between = &s->model->between;
    uint64_t latency = 0, gaps = 0;
    if (p.within_messages) {
        latency = times(within->latency_ns, s->turns);
        gaps =
            times(times(p.within_messages - (p.between_messages ? 0 : 1), within->latency_ns) / GAP_DIVISOR, s->turns);
    }
    if (p.between_messages) {
        latency = largest(latency, between->latency_ns);
        gaps = plus(gaps, times(p.between_messages - 1, between->latency_ns) / GAP_DIVISOR);
    }
    uint64_t moved =
        largest(times(transfer_ns(p.within_bytes, within), s->turns), transfer_ns(p.between_bytes, between));
    uint64_t touched = times(p.touched / TOUCHED_BYTES_PER_NS, s->turns);
    s->time = plus(s->time, times(count, plus(plus(latency, gaps), plus(moved, touched))));
}

/* A token back to those who filled scratch. */
static void add_tokens(struct scene *s, bool between)
{
    if (s->ranks > 1)
        add_phases(s, 1, (struct phase){.within_messages = !between, .between_messages = between});
}

/*
 * The most senders on one host whose peer, `distance` further on, is on
 * another. All ranks send, to the rank mod size; or with step > 1 every
 * step-th, if there is such a peer.
 */
static uint64_t count_crossings(const struct scene *s, int distance, int step, bool *any_within)
{
    uint16_t count[SCHEDULE_LARGEST_SIZE] = {0};
    int size = s->model->shape.size;
    uint64_t most = 0;
    for (int r = 0; r < size; r += step) {
        if (step > 1 && r + distance >= size)
            break;
        int peer = (r + distance) % size, host = host_of(s, r);
        if (host_of(s, peer) == host)
            *any_within = true;
        else
            most = largest(most, ++count[host]);
    }
    return most;
}

/* Every rank (or every step-th) sends `bytes` in `messages` to the rank `distance` further on. */
static struct phase shift(const struct scene *s, int distance, int step, uint64_t messages, uint64_t bytes)
{
    bool any_within = false;
    uint64_t crossings = count_crossings(s, distance, step, &any_within);
    return (struct phase){.within_messages = any_within ? messages : 0,
                          .within_bytes = any_within ? bytes : 0,
                          .between_messages = crossings ? messages : 0,
                          .between_bytes = times(crossings, bytes)};
}

/* ------------------------------------------------------------ algorithms */

/* Every rank sends a block to every other rank. */
static struct phase exchange(const struct scene *s, uint64_t block, uint64_t touched)
{
    return (struct phase){.within_messages = s->widest - 1,
                          .within_bytes = times(s->widest - 1, block),
                          .between_messages = s->ranks - s->narrowest,
                          .between_bytes = times(s->crossings, block),
                          .touched = touched};
}

/* Rank 0 sends to, or receives from, every other rank. */
static struct phase star(const struct scene *s, uint64_t messages, uint64_t bytes, uint64_t touched)
{
    return (struct phase){.within_messages = times(messages, s->at_root - 1),
                          .within_bytes = times(bytes, s->at_root - 1),
                          .between_messages = times(messages, s->ranks - s->at_root),
                          .between_bytes = times(bytes, s->ranks - s->at_root),
                          .touched = touched};
}

static void add_direct(struct scene *s, polypath_collective_t collective)
{
    uint64_t folded = times(s->ranks + 1, s->block);
    switch (collective) {
    case POLYPATH_COLLECTIVE_ALL_REDUCE:
        add_phases(s, 1, exchange(s, s->block, folded));
        add_phases(s, 1, exchange(s, s->block, 0));
        break;
    case POLYPATH_COLLECTIVE_REDUCE_SCATTER:
        add_phases(s, 1, exchange(s, s->block, folded));
        add_tokens(s, s->hosts > 1);
        break;
    case POLYPATH_COLLECTIVE_BROADCAST: add_phases(s, 1, star(s, s->blocks, s->bytes, 0)); break;
    case POLYPATH_COLLECTIVE_REDUCE:
        add_phases(s, 1, star(s, s->blocks, s->bytes, times(s->ranks + 1, s->bytes)));
        add_tokens(s, s->hosts > 1);
        break;
    case POLYPATH_COLLECTIVE_GATHER:
    case POLYPATH_COLLECTIVE_SCATTER: add_phases(s, 1, star(s, 1, s->block, 0)); break;
    case POLYPATH_COLLECTIVE_BARRIER: add_phases(s, 1, exchange(s, 0, 0)); break;
    default: add_phases(s, 1, exchange(s, s->block, 0)); break; /* AllGather, AllToAll */
    }
}

static void add_ring(struct scene *s, polypath_collective_t collective)
{
    uint64_t steps = s->ranks - 1;
    struct phase pass = shift(s, 1, 1, 1, s->block), fold = pass;
    fold.touched = 3 * s->block;
    switch (collective) {
    case POLYPATH_COLLECTIVE_ALL_REDUCE:
        add_phases(s, steps, fold);
        add_phases(s, steps, pass);
        break;
    case POLYPATH_COLLECTIVE_REDUCE_SCATTER:
        add_phases(s, steps, fold);
        add_tokens(s, s->hosts > 1);
        break;
    case POLYPATH_COLLECTIVE_ALL_GATHER: add_phases(s, steps, pass); break;
    default: /* Broadcast, Reduce: a chain; the blocks follow each other, so the last one adds its own time only */
        add_phases(s, steps, collective == POLYPATH_COLLECTIVE_REDUCE ? fold : pass);
        pass.within_messages = pass.between_messages = 0;
        fold.within_messages = fold.between_messages = 0;
        add_phases(s, s->blocks - 1, collective == POLYPATH_COLLECTIVE_REDUCE ? fold : pass);
        if (collective == POLYPATH_COLLECTIVE_REDUCE)
            add_tokens(s, s->hosts > 1);
        break;
    }
}

static uint64_t at_least_one(uint64_t value)
{
    return value ? value : 1;
}

/* One exchange per bit; bytes / 2, / 4, ... with peers 1, 2, ... away. */
static void add_halving_doubling(struct scene *s, polypath_collective_t collective)
{
    uint64_t active = 1, part = s->bytes, messages = s->blocks;
    bool halves = collective != POLYPATH_COLLECTIVE_ALL_GATHER;
    bool doubles = collective == POLYPATH_COLLECTIVE_ALL_REDUCE || collective == POLYPATH_COLLECTIVE_ALL_GATHER;
    while (active * 2 <= s->ranks)
        active *= 2;
    if (active < s->ranks) { /* the spare ranks' contributions, and results for them */
        add_phases(s, 1, shift(s, 1, 2, halves ? messages : 1, halves ? s->bytes : s->block));
        add_phases(s, 1, shift(s, 1, 2, doubles ? messages : 1, doubles ? s->bytes : s->block));
    }
    for (uint64_t bit = 1; bit < active; bit *= 2) {
        part = part / 2 + part % 2;
        messages = at_least_one(messages / 2);
        struct phase pass = shift(s, (int)bit, 1, messages, part), fold = pass;
        fold.touched = times(3, part);
        if (halves)
            add_phases(s, 1, fold);
        if (doubles)
            add_phases(s, 1, pass);
    }
    if (collective == POLYPATH_COLLECTIVE_REDUCE)
        add_phases(s, 1, star(s, 1, s->block, 0));
    if (!doubles)
        add_tokens(s, s->hosts > 1);
}

/* One level of the binomial tree after another, `bytes` each; with `grows`, level k has a subtree's 2^k blocks. */
static void add_levels(struct scene *s, bool grows, bool folds)
{
    int size = s->model->shape.size;
    for (int distance = 1; distance < size; distance *= 2) {
        uint64_t bytes = grows ? times((uint64_t)distance, s->block) : s->bytes;
        struct phase level = shift(s, distance, 2 * distance, grows ? (uint64_t)distance : s->blocks, bytes);
        level.touched = folds ? times(3, bytes) : 0;
        add_phases(s, 1, level);
    }
}

static void add_tree(struct scene *s, polypath_collective_t collective)
{
    switch (collective) {
    case POLYPATH_COLLECTIVE_ALL_REDUCE:
        add_levels(s, false, true);
        add_levels(s, false, false);
        break;
    case POLYPATH_COLLECTIVE_BROADCAST: add_levels(s, false, false); break;
    case POLYPATH_COLLECTIVE_REDUCE:
        add_levels(s, false, true);
        add_tokens(s, s->hosts > 1);
        break;
    case POLYPATH_COLLECTIVE_BARRIER:
        for (int distance = 1; distance < s->model->shape.size; distance *= 2)
            add_phases(s, 1, shift(s, distance, 1, 1, 0));
        break;
    default: /* Gather, Scatter; inner nodes wait for a token at the end */
        add_levels(s, true, false);
        if (s->ranks > 2)
            add_tokens(s, s->hosts > 1);
        break;
    }
}

/* What crosses between hosts in the two-level algorithms: each block once per other host. */
static struct phase cross(const struct scene *s, uint64_t touched)
{
    uint64_t outgoing = (s->ranks - 1) / s->narrowest; /* (ranks - narrowest) / narrowest, rounded up */
    return (struct phase){.between_messages = largest(outgoing, s->hosts - 1),
                          .between_bytes = times(s->partials, s->block),
                          .touched = touched};
}

/* Contributions to the collectors and partial results to the owners. */
static void add_collecting(struct scene *s)
{
    uint64_t collected = at_least_one(s->ranks / s->widest); /* blocks of one collector */
    uint64_t sent = s->widest > 1 ? s->ranks - collected : 0;
    uint64_t own_fold = times(s->widest + s->hosts, s->block);
    struct phase gather = {.within_messages = largest(sent < s->blocks ? sent : s->blocks, s->widest - 1),
                           .within_bytes = times(sent, s->block),
                           .touched = times(times(collected - 1, s->widest + 1), s->block)};
    if (s->hosts == 1)
        gather.touched = own_fold;
    if (s->widest > 1)
        add_phases(s, 1, gather);
    if (s->hosts > 1)
        add_phases(s, 1, cross(s, own_fold));
}

/* Results to one collector of each other host, and on to its ranks. */
static void add_spreading(struct scene *s)
{
    uint64_t collected = at_least_one(s->ranks / s->widest);
    if (s->hosts > 1)
        add_phases(s, 1, cross(s, 0));
    if (s->widest > 1)
        add_phases(s, 1,
                   (struct phase){.within_messages = times(collected, s->widest - 1),
                                  .within_bytes = times(times(collected, s->widest - 1), s->block)});
}

/* Between rank 0 and one rank of each other host per block, and its own host's ranks; and inside the other hosts. */
static void add_rooted_levels(struct scene *s, bool folds)
{
    uint64_t share = s->bytes / s->widest + (s->bytes % s->widest != 0), others = s->widest - 1;
    uint64_t sources = s->hosts - 1 + s->at_root;
    struct phase root = {.within_messages = times(s->blocks, s->at_root - 1),
                         .within_bytes = times(s->bytes, s->at_root - 1),
                         .between_messages = times(s->blocks, s->hosts - 1),
                         .between_bytes = times(s->bytes, s->hosts - 1),
                         .touched = folds ? times(sources + 1, s->bytes) : 0};
    struct phase inside = {.within_messages = times(at_least_one(s->blocks / s->widest), others),
                           .within_bytes = times(share, others),
                           .touched = folds ? times(s->widest + 1, share) : 0};
    add_phases(s, 1, root);
    if (s->hosts > 1 && s->widest > 1)
        add_phases(s, 1, inside);
}

static void add_hierarchical(struct scene *s, polypath_collective_t collective)
{
    switch (collective) {
    case POLYPATH_COLLECTIVE_ALL_REDUCE:
        add_collecting(s);
        add_spreading(s);
        break;
    case POLYPATH_COLLECTIVE_REDUCE_SCATTER:
        add_collecting(s);
        add_tokens(s, s->hosts > 1);
        break;
    case POLYPATH_COLLECTIVE_ALL_GATHER: add_spreading(s); break;
    case POLYPATH_COLLECTIVE_BROADCAST: add_rooted_levels(s, false); break;
    case POLYPATH_COLLECTIVE_REDUCE:
        add_rooted_levels(s, true);
        add_tokens(s, s->hosts > 1);
        break;
    default: /* barrier */
        if (s->widest > 1)
            add_phases(s, 2, (struct phase){.within_messages = s->widest - 1});
        if (s->hosts > 1)
            add_phases(s, 1, (struct phase){.between_messages = s->hosts - 1});
        break;
    }
}

uint64_t model_time_ns(const struct model *model, polypath_collective_t collective, enum schedule_algorithm algorithm,
                       uint64_t bytes)
{
    if (!schedule_supported(collective, algorithm, &model->shape))
        return UINT64_MAX;
    struct scene s;
    scene_begin(&s, model, bytes);
    if (!collective_reduces(collective) && collective != POLYPATH_COLLECTIVE_BARRIER)
        add_phases(&s, 1, (struct phase){.touched = times(2, s.block)}); /* the own block from input to output */
    switch (algorithm) {
    case ALGORITHM_DIRECT: add_direct(&s, collective); break;
    case ALGORITHM_RING: add_ring(&s, collective); break;
    case ALGORITHM_HALVING_DOUBLING: add_halving_doubling(&s, collective); break;
    case ALGORITHM_TREE: add_tree(&s, collective); break;
    case ALGORITHM_HIERARCHICAL: add_hierarchical(&s, collective); break;
    default: return UINT64_MAX;
    }
    return s.time == UINT64_MAX ? UINT64_MAX - 1 : s.time; /* supported, however slow */
}

enum schedule_algorithm model_choose(const struct model *model, polypath_collective_t collective, uint64_t bytes)
{
    enum schedule_algorithm best = ALGORITHM_DIRECT;
    uint64_t least = UINT64_MAX;
    for (int a = 0; a < ALGORITHM_COUNT; a++) {
        enum schedule_algorithm algorithm = (enum schedule_algorithm)a;
        if (model->reproducible && !schedule_rank_order(collective, algorithm))
            continue;
        uint64_t time = model_time_ns(model, collective, algorithm, bytes);
        if (time < least) {
            least = time;
            best = algorithm;
        }
    }
    return best;
}

bool model_prefers_levels(const struct model *model, polypath_collective_t collective, uint64_t bytes)
{
    if (model_choose(model, collective, bytes) != ALGORITHM_HIERARCHICAL)
        return false;
    return times(2, model_time_ns(model, collective, ALGORITHM_HIERARCHICAL, bytes)) <
           model_time_ns(model, collective, ALGORITHM_DIRECT, bytes);
}
