/*
 * The orders, the data and the clock of the programs that bench/peers.sh
 * compares; see serve.h. Knows no library.
 */
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PERIOD 8191 /* elements until the data repeats; prime, so that a misplaced block does not look right */
#define LARGEST_VALUE 61
#define REDUCED (-1)
#define WARM_UP 5
#define BLOCKS_LEAST 3
#define BLOCKS_MOST 20000
#define PAGE 4096

static const char *const op_names[PEER_OP_COUNT] = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv", "pingpong", "barrier",
};

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---------------------------------------------------------------------- data */

/*
 * Element i of a rank's data is (rank + 1) * (1 + something below 61 that
 * depends on i and the salt): integers whose sum over the ranks is exact in
 * float32 whatever the order. Writes one period of `source`'s data, or of the
 * sum over all ranks.
 */
static void make_period(float *period, const struct peer *peer, int source, unsigned salt)
{
    int factor = source == REDUCED ? peer->size * (peer->size + 1) / 2 : source + 1;
    uint32_t state = 2654435761u * (salt + 1);
    for (int i = 0; i < PERIOD; i++) {
        state = state * 1664525u + 1013904223u;
        period[i] = (float)(factor * (int)(1 + (state >> 16) % LARGEST_VALUE));
    }
}

/* The elements that fit before the period ends. */
static size_t stretch(size_t at, size_t count)
{
    size_t left = PERIOD - at % PERIOD;
    return left < count ? left : count;
}

static void fill(const struct peer *peer, float *data, size_t count, unsigned salt)
{
    static float period[PERIOD];
    make_period(period, peer, peer->rank, salt);
    for (size_t i = 0, part; i < count; i += part) {
        part = stretch(i, count - i);
        memcpy(data + i, period, part * sizeof *data);
    }
}

/* Elements of data that are not [start, start + count) of what `source` sends. */
static size_t count_unlike(const struct peer *peer, const float *data, size_t count, int source, size_t start,
                           unsigned salt)
{
    static float period[PERIOD];
    size_t wrong = 0;
    make_period(period, peer, source, salt);
    for (size_t i = 0, part; i < count; i += part) {
        const float *expected = period + (start + i) % PERIOD;
        part = stretch(start + i, count - i);
        if (memcmp(data + i, expected, part * sizeof *data) == 0)
            continue;
        for (size_t k = 0; k < part; k++)
            wrong += data[i + k] != expected[k];
    }
    return wrong;
}

/* Elements of the receive buffer that are wrong after the operation. */
static size_t count_wrong(const struct peer *peer, const struct peer_point *point, unsigned salt)
{
    int rank = peer->rank, size = peer->size;
    size_t count = point->count, mine = (size_t)rank * count, wrong = 0;
    const float *recv = point->recv;
    switch (point->op) {
    case PEER_ALL_REDUCE: return count_unlike(peer, recv, count, REDUCED, 0, salt);
    case PEER_REDUCE_SCATTER: return count_unlike(peer, recv, count, REDUCED, mine, salt);
    case PEER_BROADCAST: return rank == 0 ? 0 : count_unlike(peer, recv, count, 0, 0, salt);
    case PEER_SENDRECV: return count_unlike(peer, recv, count, (rank + size - 1) % size, 0, salt);
    case PEER_PINGPONG: return rank > 1 ? 0 : count_unlike(peer, recv, count, 1 - rank, 0, salt);
    case PEER_ALL_GATHER:
    case PEER_ALL_TO_ALL:
        for (int r = 0; r < size; r++)
            wrong +=
                count_unlike(peer, recv + (size_t)r * count, count, r, point->op == PEER_ALL_TO_ALL ? mine : 0, salt);
        return wrong;
    default: return 0;
    }
}

static void operate(const struct peer *peer, const struct peer_point *point, int operations)
{
    for (int i = 0; i < operations; i++)
        peer->operate(point);
}

/* Fresh data, one operation; what came out wrong. The poison keeps old results from passing for new ones. */
static size_t check_once(const struct peer *peer, const struct peer_point *point, unsigned salt)
{
    memset(point->recv, 0x5A, point->bytes);
    fill(peer, point->send, point->bytes / sizeof(float), salt);
    operate(peer, point, 1);
    return count_wrong(peer, point, salt);
}

/* -------------------------------------------------------------------- timing */

/* Operations between two looks at the clock. */
static int block_operations(size_t bytes)
{
    return bytes <= 8 << 10 ? 20 : bytes <= 128 << 10 ? 8 : bytes <= 512 << 10 ? 4 : 1;
}

/* Microseconds per operation by this rank's clock; one way for a ping-pong. */
static double time_block(const struct peer *peer, const struct peer_point *point, int operations)
{
    peer->barrier();
    double start = now_s();
    operate(peer, point, operations);
    double each = (now_s() - start) * 1e6 / operations;
    return point->op == PEER_PINGPONG ? each / 2 : each;
}

static void warm_up(const struct peer *peer, const struct peer_point *point, double seconds)
{
    double start = now_s(), elapsed = 0;
    if (block_operations(point->bytes) > 1) {
        operate(peer, point, WARM_UP);
        return;
    }
    for (int i = 0; i < WARM_UP && elapsed < seconds / 2; i++) {
        operate(peer, point, 1);
        elapsed = now_s() - start;
        peer->agree_max(&elapsed, 1);
    }
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Times blocks until the time is over; each entry of `times` is the slowest rank's. Returns how many. */
static int run_blocks(const struct peer *peer, const struct peer_point *point, double seconds, double *times)
{
    int operations = block_operations(point->bytes), blocks = 0;
    double start = now_s(), elapsed = 0;
    while (blocks < BLOCKS_LEAST || (elapsed < seconds && blocks < BLOCKS_MOST)) {
        double agreed[2] = {time_block(peer, point, operations), now_s() - start};
        peer->agree_max(agreed, 2);
        times[blocks++] = agreed[0];
        elapsed = agreed[1];
    }
    return blocks;
}

static bool make_buffers(const struct peer *peer, struct peer_point *point)
{
    size_t bytes = (point->bytes / PAGE + 1) * PAGE;
    point->send = peer->allocate ? peer->allocate(bytes) : aligned_alloc(PAGE, bytes);
    point->recv = peer->allocate ? peer->allocate(bytes) : aligned_alloc(PAGE, bytes);
    return point->send && point->recv;
}

static void free_buffers(const struct peer *peer, struct peer_point *point)
{
    void (*release)(void *) = peer->release ? peer->release : free;
    release(point->send);
    release(point->recv);
}

/* Measures one point and writes rank 0's answer into `answer`. */
static bool measure(const struct peer *peer, enum peer_op op, size_t asked, double seconds, char *answer, size_t room)
{
    static double times[BLOCKS_MOST];
    static unsigned salt;
    if (peer->supports && !peer->supports(op)) {
        snprintf(answer, room, "{\"rank\": 0, \"unsupported\": \"%s\"}\n", op_names[op]);
        return true;
    }
    bool has_blocks = op == PEER_ALL_GATHER || op == PEER_REDUCE_SCATTER || op == PEER_ALL_TO_ALL;
    size_t pieces = has_blocks ? (size_t)peer->size : 1;
    struct peer_point point = {.op = op, .count = asked / sizeof(float) / pieces};
    if (op == PEER_BARRIER)
        asked = point.count = 0;
    else if (point.count == 0)
        point.count = 1;
    point.bytes = point.count * sizeof(float) * pieces;
    if (!make_buffers(peer, &point)) {
        fprintf(stderr, "rank %d: no memory for %zu bytes\n", peer->rank, point.bytes);
        return false;
    }
    double wrong = (double)check_once(peer, &point, ++salt);
    memset(point.recv, 0xA5, point.bytes);
    warm_up(peer, &point, seconds);
    int blocks = run_blocks(peer, &point, seconds, times);
    wrong += (double)count_wrong(peer, &point, salt);
    wrong += (double)check_once(peer, &point, ++salt);
    peer->agree_max(&wrong, 1);
    free_buffers(peer, &point);
    qsort(times, (size_t)blocks, sizeof *times, compare);
    snprintf(answer, room,
             "{\"rank\": 0, \"op\": \"%s\", \"bytes\": %zu, \"actual\": %zu, \"ranks\": %d, \"blocks\": %d, "
             "\"operations\": %d, \"wrong\": %.0f, "
             "\"time_us\": {\"min\": %.4f, \"median\": %.4f, \"p90\": %.4f, \"max\": %.4f}}\n",
             op_names[op], asked, point.bytes, peer->size, blocks, block_operations(point.bytes), wrong, times[0],
             times[blocks / 2], times[(blocks - 1) * 9 / 10], times[blocks - 1]);
    return true;
}

/* -------------------------------------------------------------------- orders */

static bool read_order(const char *line, enum peer_op *op, size_t *bytes, double *seconds)
{
    char name[32];
    if (sscanf(line, "%31s %zu %lf", name, bytes, seconds) != 3)
        return false;
    for (int i = 0; i < PEER_OP_COUNT; i++) {
        if (!strcmp(name, op_names[i])) {
            *op = (enum peer_op)i;
            return true;
        }
    }
    return false;
}

/* Lines this short arrive whole, whoever else writes to the pipe. */
static bool send_answer(int answers, const char *text)
{
    ssize_t length = (ssize_t)strlen(text);
    return write(answers, text, (size_t)length) == length;
}

int peer_serve(const struct peer *peer, const char *directory)
{
    char path[4096], line[256], answer[512], done[64];
    snprintf(done, sizeof done, "{\"rank\": %d}\n", peer->rank);
    snprintf(path, sizeof path, "%s/answers", directory);
    int answers = open(path, O_WRONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "%s/orders.%d", directory, peer->rank);
    FILE *orders = fopen(path, "re");
    int status = 0;
    if (answers < 0 || !orders) {
        fprintf(stderr, "rank %d: %s: %s\n", peer->rank, path, strerror(errno));
        status = 1;
    } else if (!send_answer(answers, done)) {
        status = 1;
    }
    while (status == 0 && fgets(line, sizeof line, orders)) {
        enum peer_op op;
        size_t bytes;
        double seconds;
        if (!read_order(line, &op, &bytes, &seconds)) {
            fprintf(stderr, "rank %d: no such order: %s", peer->rank, line);
            status = 2;
        } else if (!measure(peer, op, bytes, seconds, answer, sizeof answer) ||
                   !send_answer(answers, peer->rank ? done : answer)) {
            status = 1;
        }
    }
    if (orders)
        fclose(orders);
    if (answers >= 0)
        close(answers);
    return status;
}
