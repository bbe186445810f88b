/*
 * Groups and point to point: everything in a group is in flight together, so
 * no order of sends and receives in it can deadlock; what a group holds is
 * checked as a whole before anything moves.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/exercise.h"
#include "support/ranks.h"
#include "support/reference.h"

#define MOST 200000

/* What rank `from` sends to rank `to` as element i of message `number`. */
static int32_t value(int from, int to, int number, size_t i)
{
    return (int32_t)reference_hash((uint64_t)number, (uint64_t)(from * 64 + to), i);
}

static int32_t *message(struct rank *me, int from, int to, int number, size_t count)
{
    int32_t *data = malloc((count + 1) * sizeof *data);
    CHECK(me, data, "no memory");
    for (size_t i = 0; i < count; i++)
        data[i] = value(from, to, number, i);
    return data;
}

static int32_t *blank(struct rank *me, size_t count)
{
    int32_t *data = malloc((count + 1) * sizeof *data);
    CHECK(me, data, "no memory");
    memset(data, 0x5a, (count + 1) * sizeof *data);
    return data;
}

static void check_message(struct rank *me, int32_t *data, int from, int number, size_t count)
{
    for (size_t i = 0; i < count; i++)
        CHECK(me, data[i] == value(from, me->rank, number, i), "message %d of rank %d: element %zu of %zu is %d",
              number, from, i, count, (int)data[i]);
    CHECK(me, data[count] == 0x5a5a5a5a, "message %d of rank %d: the element behind it was changed", number, from);
    free(data);
}

static void send_int(struct rank *me, polypath_comm_t comm, const int32_t *data, size_t count, int peer)
{
    OK(me, polypath_send(data, count, POLYPATH_INT32, peer, comm));
}

static void recv_int(struct rank *me, polypath_comm_t comm, int32_t *data, size_t count, int peer)
{
    OK(me, polypath_recv(data, count, POLYPATH_INT32, peer, comm));
}

/* ----------------------------------------------------------- point to point */

static void pairs_body(struct rank *me)
{
    static const size_t counts[] = {1, 0, 7, 1009, 40000, 3, MOST, 0, 5};
    const int n = (int)(sizeof counts / sizeof counts[0]);
    for (int round = 0; round < 3; round++)
        for (int k = 0; k < n; k++) { /* rank 0 to 1, 1 to 2, ...: a chain */
            ranks_where(me, "message %d of %zu elements", k, counts[k]);
            if (me->rank > 0) {
                int32_t *in = blank(me, counts[k]);
                recv_int(me, me->comm, in, counts[k], me->rank - 1);
                check_message(me, in, me->rank - 1, k, counts[k]);
            }
            if (me->rank + 1 < me->size) {
                int32_t *out = message(me, me->rank, me->rank + 1, k, counts[k]);
                send_int(me, me->comm, out, counts[k], me->rank + 1);
                free(out);
            }
        }
}

/* Non-blocking: the receiver's order is the sender's. */
static void started_body(struct rank *me)
{
    enum { N = 20 };
    int32_t *data[N];
    polypath_request_t requests[N];
    const int peer = me->rank ^ 1;
    for (int k = 0; k < N; k++) {
        const size_t count = (size_t)k * 977;
        data[k] = me->rank & 1 ? blank(me, count) : message(me, me->rank, peer, k, count);
        if (me->rank & 1)
            OK(me, polypath_recv_start(data[k], count, POLYPATH_INT32, peer, me->comm, &requests[k]));
        else
            OK(me, polypath_send_start(data[k], count, POLYPATH_INT32, peer, me->comm, &requests[k]));
    }
    for (int k = N - 1; k >= 0; k--)
        OK(me, polypath_wait(&requests[k]));
    for (int k = 0; k < N; k++) {
        if (me->rank & 1)
            check_message(me, data[k], peer, k, (size_t)k * 977);
        else
            free(data[k]);
    }
}

static void ring_body(struct rank *me)
{
    for (size_t count = 1; count < MOST; count = count * 3 + 1)
        EXERCISE(me, me->comm, .kind = EXERCISE_SEND_RECV, .type = POLYPATH_INT32, .count = count, .seed = count);
}

/* Everybody to everybody, several messages a pair, receives and sends issued in orders of each rank's own. */
static void all_to_all_in_group(struct rank *me, polypath_comm_t comm, int each, size_t most)
{
    const int n = me->size;
    int32_t **in = calloc((size_t)(n * each), sizeof *in), **out = calloc((size_t)(n * each), sizeof *out);
    OK(me, polypath_group_start());
    for (int k = 0; k < each; k++)
        for (int i = 0; i < n; i++) {
            const int to = (me->rank + i) % n, from = (i * (me->rank % 2 ? 1 : n - 1) + me->rank) % n;
            const size_t send = reference_hash((uint64_t)(me->rank * 64 + to), (uint64_t)k, 1) % most;
            const size_t recv = reference_hash((uint64_t)(from * 64 + me->rank), (uint64_t)k, 1) % most;
            out[k * n + to] = message(me, me->rank, to, k, send);
            in[k * n + from] = blank(me, recv);
            send_int(me, comm, out[k * n + to], send, to);
            recv_int(me, comm, in[k * n + from], recv, from);
        }
    OK(me, polypath_group_end());
    for (int k = 0; k < each; k++)
        for (int r = 0; r < n; r++) {
            check_message(me, in[k * n + r], r, k,
                          reference_hash((uint64_t)(r * 64 + me->rank), (uint64_t)k, 1) % most);
            free(out[k * n + r]);
        }
    free(in);
    free(out);
}

static void all_to_all_body(struct rank *me)
{
    all_to_all_in_group(me, me->comm, 1, 100);
    all_to_all_in_group(me, me->comm, 5, 3000);
    all_to_all_in_group(me, me->comm, 2, MOST);
    all_to_all_in_group(me, me->comm, 40, 50);
}

static void self_body(struct rank *me)
{
    int32_t *out[3], *in[3];
    OK(me, polypath_group_start());
    for (int k = 0; k < 3; k++) {
        out[k] = message(me, me->rank, me->rank, k, 1000);
        send_int(me, me->comm, out[k], 1000, me->rank);
    }
    for (int k = 0; k < 3; k++) {
        in[k] = blank(me, 1000);
        recv_int(me, me->comm, in[k], 1000, me->rank);
    }
    OK(me, polypath_group_end());
    for (int k = 0; k < 3; k++) {
        check_message(me, in[k], me->rank, k, 1000);
        free(out[k]);
    }
}

/* Messages of unlike types in one group; each pair of ranks agrees, and no more is asked for. */
static void types_body(struct rank *me)
{
    const int next = (me->rank + 1) % me->size, previous = (me->rank + me->size - 1) % me->size;
    double d[2] = {me->rank + 0.5, 0};
    int8_t c[2][300];
    memset(c[0], me->rank + 1, sizeof c[0]);
    OK(me, polypath_group_start());
    if (me->rank % 2) { /* the order between peers is each rank's own */
        OK(me, polypath_send(&d[0], 1, POLYPATH_FLOAT64, next, me->comm));
        OK(me, polypath_send(c[0], 300, POLYPATH_INT8, previous, me->comm));
        OK(me, polypath_recv(&d[1], 1, POLYPATH_FLOAT64, previous, me->comm));
        OK(me, polypath_recv(c[1], 300, POLYPATH_INT8, next, me->comm));
    } else {
        OK(me, polypath_recv(c[1], 300, POLYPATH_INT8, next, me->comm));
        OK(me, polypath_send(c[0], 300, POLYPATH_INT8, previous, me->comm));
        OK(me, polypath_recv(&d[1], 1, POLYPATH_FLOAT64, previous, me->comm));
        OK(me, polypath_send(&d[0], 1, POLYPATH_FLOAT64, next, me->comm));
    }
    OK(me, polypath_group_end());
    CHECK(me, d[1] == previous + 0.5, "the double is %g", d[1]);
    CHECK(me, c[1][0] == next + 1 && c[1][299] == next + 1, "the bytes are %d", c[1][0]);
}

/* ------------------------------------------------------------------- groups */

static void nested_body(struct rank *me)
{
    const int next = (me->rank + 1) % me->size, previous = (me->rank + me->size - 1) % me->size;
    int32_t *out = message(me, me->rank, next, 0, 1000), *in = blank(me, 1000);
    OK(me, polypath_group_start());
    OK(me, polypath_group_start());
    send_int(me, me->comm, out, 1000, next);
    OK(me, polypath_group_end()); /* only notes */
    CHECK(me, in[0] == 0x5a5a5a5a, "an inner group has moved something");
    OK(me, polypath_group_start());
    recv_int(me, me->comm, in, 1000, previous);
    OK(me, polypath_group_end());
    OK(me, polypath_group_end());
    check_message(me, in, previous, 0, 1000);
    free(out);
    OK(me, polypath_group_start()); /* nothing in it */
    OK(me, polypath_group_end());
}

static void mixed_in(struct rank *me, polypath_comm_t comms[2], int ncomms)
{
    const int next = (me->rank + 1) % me->size, previous = (me->rank + me->size - 1) % me->size;
    int32_t *out[2], *in[2], sums[2][2], gathered[2][RANKS_MAX];
    for (int c = 0; c < ncomms; c++) {
        out[c] = message(me, me->rank, next, c, 5000);
        in[c] = blank(me, 5000);
        sums[c][0] = me->rank + c;
    }
    OK(me, polypath_group_start());
    for (int c = 0; c < ncomms; c++) {
        send_int(me, comms[c], out[c], 5000, next);
        OK(me, polypath_all_reduce(&sums[c][0], &sums[c][1], 1, POLYPATH_INT32, POLYPATH_SUM, comms[c]));
        recv_int(me, comms[c], in[c], 5000, previous);
    }
    for (int c = 0; c < ncomms; c++) {
        OK(me, polypath_all_gather(&sums[c][0], gathered[c], 1, POLYPATH_INT32, comms[c]));
        OK(me, polypath_barrier(comms[c]));
    }
    OK(me, polypath_group_end());
    for (int c = 0; c < ncomms; c++) {
        const int want = me->size * (me->size - 1) / 2 + c * me->size;
        CHECK(me, sums[c][1] == want, "the sum is %d, not %d", (int)sums[c][1], want);
        for (int r = 0; r < me->size; r++)
            CHECK(me, gathered[c][r] == r + c, "rank %d's is %d", r, (int)gathered[c][r]);
        check_message(me, in[c], previous, c, 5000);
        free(out[c]);
    }
}

static void mixed_body(struct rank *me)
{
    polypath_comm_t comms[2] = {me->comm};
    OK(me, polypath_comm_create(&comms[1], me->size, me->shared->ids[1], me->rank));
    for (int i = 0; i < 20; i++) {
        mixed_in(me, comms, 1);
        mixed_in(me, comms, 2);
        polypath_comm_t swapped[2] = {comms[1], comms[0]};
        mixed_in(me, swapped, 2);
        all_to_all_in_group(me, comms[i % 2], 1, 500);
    }
    OK(me, polypath_comm_destroy(comms[1]));
}

/* Groups that differ between ranks in everything but the messages. */
static void uneven_body(struct rank *me)
{
    if (me->rank == 0) { /* all receives in one group, in reverse */
        int32_t *in[RANKS_MAX];
        OK(me, polypath_group_start());
        for (int r = me->size - 1; r > 0; r--) {
            in[r] = blank(me, 3000);
            recv_int(me, me->comm, in[r], 3000, r);
        }
        OK(me, polypath_group_end());
        for (int r = 1; r < me->size; r++)
            check_message(me, in[r], r, 0, 3000);
    } else { /* without a group */
        int32_t *out = message(me, me->rank, 0, 0, 3000);
        send_int(me, me->comm, out, 3000, 0);
        free(out);
    }
}

static void all_bodies(struct rank *me)
{
    pairs_body(me);
    ring_body(me);
    all_to_all_body(me);
    self_body(me);
    types_body(me);
    nested_body(me);
    uneven_body(me);
}

/* ---------------------------------------------------------------------- runs */

static void on_sizes(ranks_body *body, int from, int to)
{
    for (int n = from; n <= to; n++)
        RANKS_RUN(.size = n, .body = body);
}

static void test_messages_along_a_chain(void **state)
{
    (void)state;
    on_sizes(pairs_body, 1, 3);
}

static void test_messages_started_and_waited_for(void **state)
{
    (void)state;
    RANKS_RUN(.size = 4, .body = started_body);
}

static void test_ring_shift(void **state)
{
    (void)state;
    on_sizes(ring_body, 1, 5);
}

static void test_everybody_to_everybody(void **state)
{
    (void)state;
    on_sizes(all_to_all_body, 1, 5);
}

static void test_to_oneself(void **state)
{
    (void)state;
    on_sizes(self_body, 1, 2);
}

static void test_unlike_types_in_one_group(void **state)
{
    (void)state;
    on_sizes(types_body, 3, 5);
}

static void test_nested(void **state)
{
    (void)state;
    on_sizes(nested_body, 1, 3);
}

static void test_collectives_and_two_communicators(void **state)
{
    (void)state;
    on_sizes(mixed_body, 2, 4);
}

static void test_groups_need_not_be_alike(void **state)
{
    (void)state;
    on_sizes(uneven_body, 2, 5);
}

static void two_hosts(struct rank *me)
{
    ranks_setenv(me->rank % 2 ? "POLYPATH_HOST_ID=b" : "POLYPATH_HOST_ID=a");
}

static void test_over_other_paths(void **state)
{
    (void)state;
    static const char *const lo[] = {"POLYPATH_PATHS=lo", NULL};
    static const char *const cma[] = {"POLYPATH_PATHS=cma", NULL};
    static const char *const all[] = {"POLYPATH_PATHS=shm,cma,lo", "POLYPATH_SHARES=0.3,0.3,0.4", NULL};
    static const char *const hosts[] = {"POLYPATH_INTERFACES=lo", "POLYPATH_TCP_STREAMS=3", NULL};
    RANKS_RUN(.size = 3, .body = all_bodies, .environment = lo);
    RANKS_RUN(.size = 3, .body = all_bodies, .environment = cma);
    RANKS_RUN(.size = 3, .body = all_bodies, .environment = all);
    RANKS_RUN(.size = 4, .body = all_bodies, .environment = hosts, .prepare = two_hosts);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_along_a_chain),
        cmocka_unit_test(test_messages_started_and_waited_for),
        cmocka_unit_test(test_ring_shift),
        cmocka_unit_test(test_everybody_to_everybody),
        cmocka_unit_test(test_to_oneself),
        cmocka_unit_test(test_unlike_types_in_one_group),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_collectives_and_two_communicators),
        cmocka_unit_test(test_groups_need_not_be_alike),
        cmocka_unit_test(test_over_other_paths),
    };
    if (argc > 1) /* the names of the tests to run, with * and ? */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
