/*
 * Measuring: binds a point to the session's buffers, verifies, warms up, and
 * times blocks of operations by the slowest rank's clock. All ranks run the
 * same steps; whatever decides the next step is agreed on first.
 */
#include <stdlib.h>
#include <string.h>

#include "frontends/cli/bench.h"

#define CHECKED_BLOCKS_LEAST 3 /* timed blocks, even when the time is over */
#define BLOCKS_MOST 1000000

void bench_must(struct bench_session *session, polypath_result_t result, const struct bench_point *point)
{
    if (result == POLYPATH_SUCCESS)
        return;
    bench_progress_clear();
    fprintf(stderr, "polypath bench: rank %d: ", session->rank);
    if (point)
        fprintf(stderr, "%s of %zu bytes (%s): ", bench_traits[point->kind].name, point->bytes,
                polypath_type_name(point->type));
    fprintf(stderr, "%s: %s\n", polypath_result_name(result), polypath_last_error());
    exit(1);
}

void bench_agree_max(struct bench_session *session, double *values, size_t count)
{
    bench_must(session, polypath_all_reduce(values, values, count, POLYPATH_FLOAT64, POLYPATH_MAX, session->comm),
               NULL);
}

uint64_t bench_agree_sum(struct bench_session *session, uint64_t value)
{
    bench_must(session, polypath_all_reduce(&value, &value, 1, POLYPATH_UINT64, POLYPATH_SUM, session->comm), NULL);
    return value;
}

/* --------------------------------------------------------------- operations */

/* The buffers of one operation on this rank, in place or not. */
struct binding {
    char *send, *recv;
    size_t send_count; /* elements this rank gives; 0: none */
};

static struct binding bind(const struct bench_session *session, const struct bench_point *point)
{
    const struct bench_traits *traits = &bench_traits[point->kind];
    bool is_root = session->rank == point->root;
    size_t ranks = (size_t)session->size, block = point->count * polypath_type_bytes(point->type);
    struct binding b = {session->send, session->recv, point->count * (traits->send_blocks ? ranks : 1)};
    if ((point->kind == BENCH_BROADCAST || point->kind == BENCH_SCATTER) && !is_root)
        b.send_count = 0;
    if (point->kind == BENCH_PINGPONG && session->rank > 1)
        b.send_count = 0;
    if (!point->in_place)
        return b;
    /* In place as NCCL defines it (see polypath.h); everything lies in the receive buffer. */
    switch (point->kind) {
    case BENCH_ALL_GATHER: b.send = b.recv + (size_t)session->rank * block; break;
    case BENCH_GATHER: b.send = is_root ? b.recv + (size_t)point->root * block : b.send; break;
    case BENCH_REDUCE_SCATTER:
        b.send = b.recv;
        b.recv += (size_t)session->rank * block;
        break;
    case BENCH_SCATTER:
        b.send = b.recv;
        b.recv += is_root ? (size_t)point->root * block : 0;
        break;
    default: b.send = b.recv; break;
    }
    return b;
}

static polypath_result_t exchange(const struct binding *b, const struct bench_point *point, int to, int from,
                                  polypath_comm_t comm)
{
    polypath_result_t result = polypath_group_start();
    polypath_result_t sent = polypath_send(b->send, point->count, point->type, to, comm);
    polypath_result_t received = polypath_recv(b->recv, point->count, point->type, from, comm);
    polypath_result_t ended = polypath_group_end();
    return result ? result : sent ? sent : received ? received : ended;
}

static polypath_result_t ping(const struct binding *b, const struct bench_point *point, int rank, polypath_comm_t comm)
{
    if (rank > 1)
        return POLYPATH_SUCCESS;
    polypath_result_t result = POLYPATH_SUCCESS;
    if (rank == 0)
        result = polypath_send(b->send, point->count, point->type, 1, comm);
    if (!result)
        result = polypath_recv(b->recv, point->count, point->type, 1 - rank, comm);
    if (!result && rank == 1)
        result = polypath_send(b->send, point->count, point->type, 0, comm);
    return result;
}

static polypath_result_t operate_once(const struct bench_session *session, const struct bench_point *point,
                                      const struct binding *b)
{
    polypath_comm_t comm = session->comm;
    size_t count = point->count;
    int rank = session->rank, size = session->size, root = point->root;
    switch (point->kind) {
    case BENCH_ALL_REDUCE: return polypath_all_reduce(b->send, b->recv, count, point->type, point->op, comm);
    case BENCH_ALL_GATHER: return polypath_all_gather(b->send, b->recv, count, point->type, comm);
    case BENCH_REDUCE_SCATTER: return polypath_reduce_scatter(b->send, b->recv, count, point->type, point->op, comm);
    case BENCH_BROADCAST: return polypath_broadcast(b->send, b->recv, count, point->type, root, comm);
    case BENCH_REDUCE: return polypath_reduce(b->send, b->recv, count, point->type, point->op, root, comm);
    case BENCH_ALL_TO_ALL: return polypath_all_to_all(b->send, b->recv, count, point->type, comm);
    case BENCH_GATHER: return polypath_gather(b->send, b->recv, count, point->type, root, comm);
    case BENCH_SCATTER: return polypath_scatter(b->send, b->recv, count, point->type, root, comm);
    case BENCH_SENDRECV: return exchange(b, point, (rank + 1) % size, (rank + size - 1) % size, comm);
    case BENCH_PINGPONG: return ping(b, point, rank, comm);
    default: return polypath_barrier(comm);
    }
}

void bench_operate(struct bench_session *session, const struct bench_point *point, int operations)
{
    struct binding b = bind(session, point);
    for (int i = 0; i < operations; i++)
        bench_must(session, operate_once(session, point, &b), point);
}

/* ------------------------------------------------------------- verification */

static struct bench_pattern pattern_of(const struct bench_session *session, const struct bench_point *point)
{
    return (struct bench_pattern){point->type, point->op, bench_traits[point->kind].reduces, session->size,
                                  session->salt};
}

/* Compares what the last operation left with what it should be. */
static uint64_t count_wrong(const struct bench_session *session, const struct bench_point *point)
{
    struct bench_pattern pattern = pattern_of(session, point);
    struct binding b = bind(session, point);
    size_t count = point->count, block = count * polypath_type_bytes(point->type);
    size_t mine = (size_t)session->rank * count;
    bool is_root = session->rank == point->root;
    int size = session->size;
    uint64_t wrong = 0;
    switch (point->kind) {
    case BENCH_REDUCE: return is_root ? bench_count_wrong(&pattern, b.recv, count, BENCH_REDUCED, 0) : 0;
    case BENCH_ALL_REDUCE: return bench_count_wrong(&pattern, b.recv, count, BENCH_REDUCED, 0);
    case BENCH_REDUCE_SCATTER: return bench_count_wrong(&pattern, b.recv, count, BENCH_REDUCED, mine);
    case BENCH_BROADCAST: return bench_count_wrong(&pattern, b.recv, count, point->root, 0);
    case BENCH_SCATTER: return bench_count_wrong(&pattern, b.recv, count, point->root, mine);
    case BENCH_SENDRECV: return bench_count_wrong(&pattern, b.recv, count, (session->rank + size - 1) % size, 0);
    case BENCH_PINGPONG:
        return session->rank > 1 ? 0 : bench_count_wrong(&pattern, b.recv, count, 1 - session->rank, 0);
    case BENCH_GATHER:
        if (!is_root)
            return 0;
        /* fall through */
    case BENCH_ALL_GATHER:
        for (int r = 0; r < size; r++)
            wrong += bench_count_wrong(&pattern, b.recv + (size_t)r * block, count, r, 0);
        return wrong;
    case BENCH_ALL_TO_ALL:
        for (int r = 0; r < size; r++)
            wrong += bench_count_wrong(&pattern, b.recv + (size_t)r * block, count, r, mine);
        return wrong;
    default: return 0;
    }
}

uint64_t bench_check_once(struct bench_session *session, const struct bench_point *point)
{
    session->salt++;
    struct binding b = bind(session, point);
    struct bench_pattern pattern = pattern_of(session, point);
    /* Poison first: old results must not pass for new ones. In place the input goes on top. */
    memset(session->recv, 0x5A, point->bytes);
    if (b.send_count)
        bench_fill(&pattern, b.send, b.send_count, session->rank, 0);
    bench_operate(session, point, 1);
    return count_wrong(session, point);
}

/* ------------------------------------------------------------------- timing */

/* Microseconds per operation of one block on this rank. */
static double time_block(struct bench_session *session, const struct bench_point *point, int operations)
{
    bench_must(session, polypath_barrier(session->comm), point);
    uint64_t start = cli_now_ns();
    bench_operate(session, point, operations);
    double each = (double)(cli_now_ns() - start) / 1e3 / operations;
    return point->kind == BENCH_PINGPONG ? each / 2 : each; /* one way */
}

static double seconds_since(uint64_t start)
{
    return (double)(cli_now_ns() - start) / 1e9;
}

/* Operations that nobody times; they stop early once they have taken half of the row's time. */
static void warm_up(struct bench_session *session, const struct bench_point *point)
{
    int wanted = session->options->warmup;
    double limit = session->options->seconds;
    if (bench_block_operations(point->bytes) > 1 || limit == 0) {
        bench_operate(session, point, wanted);
        return;
    }
    uint64_t start = cli_now_ns();
    double elapsed = 0;
    for (int i = 0; i < wanted && elapsed < limit / 2; i++) {
        bench_operate(session, point, 1);
        elapsed = seconds_since(start);
        bench_agree_max(session, &elapsed, 1);
    }
}

/* What is collected about one path set while the blocks run. */
struct collection {
    double *times;
    size_t count, capacity;
    double share_sums[BENCH_PATHS_MAX];
    uint64_t wrong;
};

static void choose_paths(struct bench_session *session, const struct bench_path_set *set)
{
    bench_must(session, polypath_comm_use_paths(session->comm, set->names), NULL);
}

static void note_time(struct collection *collection, double time_us)
{
    if (collection->count == collection->capacity) {
        collection->capacity = collection->capacity ? 2 * collection->capacity : 64;
        collection->times = cli_resize(collection->times, collection->capacity * sizeof(double));
    }
    collection->times[collection->count++] = time_us;
}

/*
 * One timed block of one set. The shares are read before the ranks agree on
 * the time, because that is an AllReduce itself. Returns the agreed time since
 * `start`.
 */
static double run_block(struct bench_session *session, const struct bench_point *point, struct collection *collection,
                        int operations, uint64_t start)
{
    double agreed[2] = {time_block(session, point, operations), 0};
    double shares[BENCH_PATHS_MAX] = {0};
    if (session->path_count)
        bench_must(
            session,
            polypath_comm_shares(session->comm, bench_traits[point->kind].collective, shares, session->path_count),
            point);
    for (int p = 0; p < session->path_count; p++)
        collection->share_sums[p] += shares[p];
    agreed[1] = seconds_since(start);
    bench_agree_max(session, agreed, 2);
    note_time(collection, agreed[0]);
    return agreed[1];
}

static void run_rounds(struct bench_session *session, const struct bench_point *point, struct collection *collections,
                       int operations)
{
    const struct bench_options *options = session->options;
    int sets = session->set_count, most = options->blocks ? options->blocks : BLOCKS_MOST;
    double limit = options->seconds * sets, elapsed = 0;
    uint64_t start = cli_now_ns();
    for (int round = 0; round < most; round++) {
        if (limit > 0 && elapsed >= limit && round >= CHECKED_BLOCKS_LEAST)
            break;
        for (int s = 0; s < sets; s++) {
            if (sets > 1) {
                /* The first operation after a change finds cold connections; it is nobody's. */
                choose_paths(session, &session->sets[s]);
                bench_operate(session, point, 1);
            }
            elapsed = run_block(session, point, &collections[s], operations, start);
        }
        double of_blocks = options->blocks ? (double)(round + 1) / options->blocks : 0;
        double of_time = limit > 0 ? elapsed / limit : 0;
        bench_progress(session, point, of_blocks > of_time ? of_blocks : of_time);
    }
}

/* The shares as the ranks have them on average: the root of a gather, say, sends nothing itself. */
static void agree_shares(struct bench_session *session, struct collection *collection)
{
    if (!session->path_count)
        return;
    bench_must(session,
               polypath_all_reduce(collection->share_sums, collection->share_sums, (size_t)session->path_count,
                                   POLYPATH_FLOAT64, POLYPATH_SUM, session->comm),
               NULL);
    double sum = 0;
    for (int p = 0; p < session->path_count; p++)
        sum += collection->share_sums[p];
    for (int p = 0; p < session->path_count && sum > 0; p++)
        collection->share_sums[p] /= sum;
}

static void conclude(struct bench_session *session, const struct bench_point *point, const struct bench_path_set *set,
                     struct collection *collection, int operations, struct bench_result *result)
{
    *result = (struct bench_result){.point = *point,
                                    .blocks = (int)collection->count,
                                    .operations = operations,
                                    .checked = session->options->check,
                                    .flag_before_us = -1,
                                    .flag_after_us = -1};
    snprintf(result->paths, sizeof result->paths, "%s", set->list);
    snprintf(result->label, sizeof result->label, "%s", set->label);
    result->time_us = cli_spread_of(collection->times, collection->count);
    result->algbw_gbps = bench_algbw(point, result->time_us.median);
    result->busbw_gbps = bench_busbw(point, result->time_us.median, session->size);
    memcpy(result->shares, collection->share_sums, sizeof result->shares);
    if (result->checked) {
        result->wrong = bench_agree_sum(session, collection->wrong);
        session->wrong += result->wrong;
    }
}

/* All together against the singles, from the medians. The last set is all of them. */
static void compare_sets(struct bench_result *results, int sets)
{
    double sum = 0, best = 0;
    for (int s = 0; s + 1 < sets; s++) {
        double rate = results[s].time_us.median > 0 ? 1 / results[s].time_us.median : 0;
        sum += rate;
        best = rate > best ? rate : best;
    }
    struct bench_result *all = &results[sets - 1];
    if (sum > 0 && all->time_us.median > 0) {
        all->ratio_to_sum = 1 / all->time_us.median / sum;
        all->ratio_to_best = 1 / all->time_us.median / best;
    }
}

void bench_measure(struct bench_session *session, const struct bench_point *point, struct bench_result *results)
{
    struct collection collections[BENCH_PATHS_MAX + 1] = {0};
    int sets = session->set_count, operations = bench_block_operations(point->bytes);
    bool check = session->options->check;
    double flag_before = session->flag ? bench_flag_measure(session->flag) : -1;
    char algorithms[BENCH_PATHS_MAX + 1][BENCH_NAME_BYTES];

    bench_progress(session, point, 0);
    for (int s = 0; s < sets; s++) {
        if (sets > 1)
            choose_paths(session, &session->sets[s]);
        /* Also without checking: it writes the data, and pages that were never written read fast. */
        uint64_t wrong = bench_check_once(session, point);
        collections[s].wrong = check ? wrong : 0;
        snprintf(algorithms[s], BENCH_NAME_BYTES, "%s",
                 polypath_comm_algorithm(session->comm, bench_traits[point->kind].collective));
        if (!point->in_place)
            memset(session->recv, 0xA5, point->bytes);
        warm_up(session, point);
    }
    run_rounds(session, point, collections, operations);
    if (check && !point->in_place)
        collections[sets - 1].wrong += count_wrong(session, point);
    for (int s = 0; s < sets; s++) {
        if (sets > 1)
            choose_paths(session, &session->sets[s]);
        if (check)
            collections[s].wrong += bench_check_once(session, point);
        agree_shares(session, &collections[s]);
        conclude(session, point, &session->sets[s], &collections[s], operations, &results[s]);
        memcpy(results[s].algorithm, algorithms[s], BENCH_NAME_BYTES);
        free(collections[s].times);
    }
    if (sets > 1)
        compare_sets(results, sets);
    double flag_after = session->flag ? bench_flag_measure(session->flag) : -1;
    for (int s = 0; s < sets; s++) {
        results[s].flag_before_us = flag_before;
        results[s].flag_after_us = flag_after;
    }
    session->rows_done++;
}
