/*
 * Bad arguments are refused before anything moves, with the operation and the
 * argument named, and leave the communicator as good as before.
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

/* The call must be refused with `code`, and the text must have both words. */
#define REFUSED(me, code, word, other, call)                                                                           \
    do {                                                                                                               \
        const polypath_result_t r_ = (call);                                                                           \
        CHECK(me, r_ == (code) && strstr(polypath_last_error(), word) && strstr(polypath_last_error(), other),         \
              "%s: %s (expected '%s' and '%s')", polypath_result_name(r_), polypath_last_error(), word, other);        \
    } while (0)

#define ARGUMENT POLYPATH_ERROR_ARGUMENT
#define USAGE POLYPATH_ERROR_USAGE
#define F32 POLYPATH_FLOAT32

static float a[4096], b[4096];

static void still_good(struct rank *me)
{
    OK(me, polypath_comm_status(me->comm));
    EXERCISE(me, me->comm, .kind = EXERCISE_ALL_REDUCE, .type = F32, .count = 100, .seed = 1);
    EXERCISE(me, me->comm, .kind = EXERCISE_ALL_TO_ALL_V, .type = F32, .count = 10000, .seed = 2);
    EXERCISE(me, me->comm, .kind = EXERCISE_SEND_RECV, .type = F32, .count = 100, .seed = 3);
}

static void nulls_body(struct rank *me)
{
    polypath_comm_t c = me->comm, none = NULL;
    const int n = me->size;
    size_t counts[RANKS_MAX];
    for (int i = 0; i < n; i++)
        counts[i] = 1;
    REFUSED(me, ARGUMENT, "all_reduce", "sendbuf", polypath_all_reduce(NULL, b, 5, F32, POLYPATH_SUM, c));
    REFUSED(me, ARGUMENT, "all_reduce", "recvbuf", polypath_all_reduce(a, NULL, 5, F32, POLYPATH_SUM, c));
    REFUSED(me, ARGUMENT, "all_reduce", "recvbuf", polypath_all_reduce(a, NULL, 4000, F32, POLYPATH_SUM, c));
    REFUSED(me, ARGUMENT, "reduce", "sendbuf", polypath_reduce(NULL, b, 5, F32, POLYPATH_SUM, 0, c));
    REFUSED(me, ARGUMENT, "reduce", "recvbuf", polypath_reduce(a, NULL, 5, F32, POLYPATH_SUM, me->rank, c));
    REFUSED(me, ARGUMENT, "broadcast", "sendbuf", polypath_broadcast(NULL, b, 5, F32, me->rank, c));
    REFUSED(me, ARGUMENT, "broadcast", "recvbuf", polypath_broadcast(a, NULL, 5, F32, 0, c));
    REFUSED(me, ARGUMENT, "all_gather", "sendbuf", polypath_all_gather(NULL, b, 5, F32, c));
    REFUSED(me, ARGUMENT, "all_gather", "recvbuf", polypath_all_gather(a, NULL, 5, F32, c));
    REFUSED(me, ARGUMENT, "reduce_scatter", "sendbuf", polypath_reduce_scatter(NULL, b, 5, F32, POLYPATH_SUM, c));
    REFUSED(me, ARGUMENT, "reduce_scatter", "recvbuf", polypath_reduce_scatter(a, NULL, 5, F32, POLYPATH_SUM, c));
    REFUSED(me, ARGUMENT, "all_to_all", "sendbuf", polypath_all_to_all(NULL, b, 5, F32, c));
    REFUSED(me, ARGUMENT, "all_to_all", "recvbuf", polypath_all_to_all(a, NULL, 5, F32, c));
    REFUSED(me, ARGUMENT, "gather", "sendbuf", polypath_gather(NULL, b, 5, F32, 0, c));
    REFUSED(me, ARGUMENT, "gather", "recvbuf", polypath_gather(a, NULL, 5, F32, me->rank, c));
    REFUSED(me, ARGUMENT, "scatter", "sendbuf", polypath_scatter(NULL, b, 5, F32, me->rank, c));
    REFUSED(me, ARGUMENT, "scatter", "recvbuf", polypath_scatter(a, NULL, 5, F32, 0, c));
    REFUSED(me, ARGUMENT, "send", "sendbuf", polypath_send(NULL, 5, F32, (me->rank + 1) % n, c));
    REFUSED(me, ARGUMENT, "recv", "recvbuf", polypath_recv(NULL, 5, F32, (me->rank + 1) % n, c));
    REFUSED(me, ARGUMENT, "all_gather_v", "recvcounts", polypath_all_gather_v(a, 1, b, NULL, NULL, F32, c));
    REFUSED(me, ARGUMENT, "all_gather_v", "sendbuf", polypath_all_gather_v(NULL, 1, b, counts, NULL, F32, c));
    REFUSED(me, ARGUMENT, "all_gather_v", "recvbuf", polypath_all_gather_v(a, 1, NULL, counts, NULL, F32, c));
    REFUSED(me, ARGUMENT, "reduce_scatter_v", "counts", polypath_reduce_scatter_v(a, b, NULL, F32, POLYPATH_SUM, c));
    REFUSED(me, ARGUMENT, "all_to_all_v", "sendcounts", polypath_all_to_all_v(a, NULL, NULL, b, counts, NULL, F32, c));
    REFUSED(me, ARGUMENT, "all_to_all_v", "recvcounts", polypath_all_to_all_v(a, counts, NULL, b, NULL, NULL, F32, c));
    REFUSED(me, ARGUMENT, "all_reduce", "comm", polypath_all_reduce(a, b, 5, F32, POLYPATH_SUM, none));
    REFUSED(me, ARGUMENT, "barrier", "comm", polypath_barrier(none));
    REFUSED(me, ARGUMENT, "send", "comm", polypath_send(a, 5, F32, 0, none));
    REFUSED(me, ARGUMENT, "all_reduce", "request", polypath_all_reduce_start(a, b, 5, F32, POLYPATH_SUM, c, NULL));
    REFUSED(me, ARGUMENT, "barrier", "request", polypath_barrier_start(c, NULL));
    REFUSED(me, ARGUMENT, "recv", "request", polypath_recv_start(b, 5, F32, 0, c, NULL));
    REFUSED(me, ARGUMENT, "split", "new_comm", polypath_comm_split(c, 0, 0, NULL));
    REFUSED(me, ARGUMENT, "rank", "NULL", polypath_comm_rank(c, NULL));
    REFUSED(me, ARGUMENT, "size", "NULL", polypath_comm_size(none, NULL));
    REFUSED(me, ARGUMENT, "wait", "request", polypath_wait(NULL));
    bool done;
    REFUSED(me, ARGUMENT, "test", "request", polypath_test(NULL, &done));
    OK(me, polypath_comm_destroy(NULL));
    polypath_request_t nothing = NULL;
    OK(me, polypath_wait(&nothing));
    OK(me, polypath_test(&nothing, &done));
    CHECK(me, done, "a NULL request is complete");
    still_good(me);
}

static void numbers_body(struct rank *me)
{
    polypath_comm_t c = me->comm;
    const int n = me->size;
    const polypath_type_t no_type = (polypath_type_t)POLYPATH_TYPE_COUNT;
    polypath_op_t op;
    float two = 2;
    REFUSED(me, ARGUMENT, "all_reduce", "count", polypath_all_reduce(a, b, SIZE_MAX, F32, POLYPATH_SUM, c));
    REFUSED(me, ARGUMENT, "all_gather", "count", polypath_all_gather(a, b, SIZE_MAX / 4, F32, c));
    REFUSED(me, ARGUMENT, "send", "count", polypath_send(a, SIZE_MAX / 2, F32, 0, c));
    REFUSED(me, ARGUMENT, "all_reduce", "type", polypath_all_reduce(a, b, 5, no_type, POLYPATH_SUM, c));
    REFUSED(me, ARGUMENT, "broadcast", "type", polypath_broadcast(a, b, 5, (polypath_type_t)-1, 0, c));
    REFUSED(me, ARGUMENT, "recv", "type", polypath_recv(b, 5, no_type, 0, c));
    REFUSED(me, ARGUMENT, "all_gather_v", "type", polypath_all_gather_v(a, 5, b, NULL, NULL, no_type, c));
    REFUSED(me, ARGUMENT, "all_reduce", "op", polypath_all_reduce(a, b, 5, F32, POLYPATH_OP_COUNT, c));
    REFUSED(me, ARGUMENT, "all_reduce", "op", polypath_all_reduce(a, b, 5, F32, -1, c));
    REFUSED(me, ARGUMENT, "reduce", "op", polypath_reduce(a, b, 5, F32, 1000000, 0, c));
    REFUSED(me, ARGUMENT, "reduce", "root", polypath_reduce(a, b, 5, F32, POLYPATH_SUM, n, c));
    REFUSED(me, ARGUMENT, "broadcast", "root", polypath_broadcast(a, b, 5, F32, -1, c));
    REFUSED(me, ARGUMENT, "broadcast", "root", polypath_broadcast(a, b, 5, F32, -2, c));
    REFUSED(me, ARGUMENT, "gather", "root", polypath_gather(a, b, 5, F32, n + 5, c));
    REFUSED(me, ARGUMENT, "scatter", "root", polypath_scatter(a, b, 5, F32, -1, c));
    REFUSED(me, ARGUMENT, "send", "peer", polypath_send(a, 5, F32, n, c));
    REFUSED(me, ARGUMENT, "recv", "peer", polypath_recv(b, 5, F32, -1, c));
    REFUSED(me, ARGUMENT, "split", "color", polypath_comm_split(c, -7, 0, &(polypath_comm_t){NULL}));
    OK(me, polypath_op_create_scaled_sum(&op, &two, F32, c));
    REFUSED(me, ARGUMENT, "all_reduce", "float32", polypath_all_reduce(a, b, 5, POLYPATH_INT32, op, c));
    OK(me, polypath_op_destroy(op, c));
    REFUSED(me, ARGUMENT, "all_reduce", "op", polypath_all_reduce(a, b, 5, F32, op, c));
    REFUSED(me, ARGUMENT, "op_destroy", "op", polypath_op_destroy(op, c));
    REFUSED(me, ARGUMENT, "op_destroy", "op", polypath_op_destroy(POLYPATH_SUM, c));
    REFUSED(me, ARGUMENT, "scaled_sum", "type", polypath_op_create_scaled_sum(&op, &two, no_type, c));
    REFUSED(me, ARGUMENT, "scaled_sum", "scalar", polypath_op_create_scaled_sum(&op, NULL, F32, c));
    polypath_path_info_t info;
    double shares[1];
    REFUSED(me, ARGUMENT, "path_info", "99", polypath_comm_path_info(c, 99, &info));
    REFUSED(me, ARGUMENT, "shares", "collective", polypath_comm_shares(c, (polypath_collective_t)77, shares, 1));
    REFUSED(me, ARGUMENT, "use_paths", "nowhere", polypath_comm_use_paths(c, "nowhere"));
    CHECK(me, !*polypath_comm_algorithm(c, (polypath_collective_t)77), "an algorithm of nothing");
    still_good(me);
}

static void overlaps_body(struct rank *me)
{
    polypath_comm_t c = me->comm;
    const int n = me->size;
    size_t counts[RANKS_MAX], displs[RANKS_MAX];
    for (int i = 0; i < n; i++)
        counts[i] = 10, displs[i] = (size_t)i * 9; /* each overlaps the next by one */
    REFUSED(me, ARGUMENT, "all_reduce", "overlap", polypath_all_reduce(a, a + 1, 5, F32, POLYPATH_SUM, c));
    REFUSED(me, ARGUMENT, "all_reduce", "overlap", polypath_all_reduce(a + 4, a, 5, F32, POLYPATH_SUM, c));
    OK(me, polypath_all_reduce(a, a + 5, 5, F32, POLYPATH_SUM, c)); /* side by side is not an overlap */
    REFUSED(me, ARGUMENT, "all_gather", "overlap",
            polypath_all_gather(a + (size_t)((me->rank + 1) % n) * 5, a, 5, F32, c));
    REFUSED(me, ARGUMENT, "reduce_scatter", "overlap",
            polypath_reduce_scatter(a, a + (size_t)((me->rank + 1) % n) * 5, 5, F32, POLYPATH_SUM, c));
    REFUSED(me, ARGUMENT, "all_to_all", "overlap", polypath_all_to_all(a, a, 5, F32, c));
    REFUSED(me, ARGUMENT, "broadcast", "overlap", polypath_broadcast(a, a + 2, 5, F32, me->rank, c));
    REFUSED(me, ARGUMENT, "reduce", "overlap", polypath_reduce(a, a + 2, 5, F32, POLYPATH_SUM, me->rank, c));
    REFUSED(me, ARGUMENT, "all_gather_v", "overlap", polypath_all_gather_v(a, 10, b, counts, displs, F32, c));
    REFUSED(me, ARGUMENT, "all_gather_v", "sendcount", polypath_all_gather_v(a, 9, b, counts, NULL, F32, c));
    REFUSED(me, ARGUMENT, "all_to_all_v", "overlap", polypath_all_to_all_v(a, counts, NULL, b, counts, displs, F32, c));
    REFUSED(me, ARGUMENT, "all_to_all_v", "overlap", polypath_all_to_all_v(a, counts, NULL, a, counts, NULL, F32, c));
    displs[1] = SIZE_MAX / 2;
    REFUSED(me, ARGUMENT, "all_gather_v", "overflow", polypath_all_gather_v(a, 10, b, counts, displs, F32, c));
    counts[1] = SIZE_MAX / 2;
    REFUSED(me, ARGUMENT, "reduce_scatter_v", "overflow",
            polypath_reduce_scatter_v(a, b, counts, F32, POLYPATH_SUM, c));
    still_good(me);
}

static void groups_body(struct rank *me)
{
    polypath_comm_t c = me->comm;
    const int next = (me->rank + 1) % me->size;
    polypath_request_t request = NULL;
    REFUSED(me, USAGE, "group_end", "group_start", polypath_group_end());
    REFUSED(me, USAGE, "send", "group", polypath_send(a, 5, F32, me->rank, c));
    REFUSED(me, USAGE, "recv", "group", polypath_recv(b, 5, F32, me->rank, c));
    OK(me, polypath_group_start());
    REFUSED(me, USAGE, "group", "non-blocking", polypath_all_reduce_start(a, b, 5, F32, POLYPATH_SUM, c, &request));
    CHECK(me, !request, "a request in a group");
    polypath_group_end(); /* may repeat that error */
    still_good(me);
    OK(me, polypath_group_start());
    OK(me, polypath_send(a, 5, F32, me->rank, c)); /* without the other side */
    REFUSED(me, USAGE, "send", "itself", polypath_group_end());
    still_good(me);
    OK(me, polypath_group_start());
    OK(me, polypath_send(a, 5, F32, me->rank, c));
    OK(me, polypath_recv(b, 6, F32, me->rank, c));
    const polypath_result_t result = polypath_group_end();
    CHECK(me, result == POLYPATH_ERROR_MISMATCH || result == ARGUMENT, "%s", polypath_last_error());
    still_good(me);
    /* one bad operation, and nothing of the group runs: on all ranks alike */
    OK(me, polypath_group_start());
    OK(me, polypath_send(a, 5, F32, next, c));
    REFUSED(me, ARGUMENT, "recv", "peer", polypath_recv(b, 5, F32, me->size, c));
    CHECK(me, polypath_group_end() != POLYPATH_SUCCESS, "the group ran without its receive");
    still_good(me);
}

static void creation_body(struct rank *me)
{
    polypath_comm_t c = NULL;
    polypath_unique_id_t damaged = me->shared->ids[0], blank = {{0}};
    damaged.bytes[50] ^= 1;
    REFUSED(me, ARGUMENT, "comm_create", "rank", polypath_comm_create(&c, 2, me->shared->ids[0], 2));
    REFUSED(me, ARGUMENT, "comm_create", "rank", polypath_comm_create(&c, 2, me->shared->ids[0], -1));
    REFUSED(me, ARGUMENT, "comm_create", "0 ranks", polypath_comm_create(&c, 0, me->shared->ids[0], 0));
    REFUSED(me, ARGUMENT, "comm_create", "NULL", polypath_comm_create(NULL, 1, me->shared->ids[0], 0));
    REFUSED(me, ARGUMENT, "comm_create", "checksum", polypath_comm_create(&c, 1, damaged, 0));
    REFUSED(me, ARGUMENT, "comm_create", "unique id", polypath_comm_create(&c, 1, blank, 0));
    REFUSED(me, ARGUMENT, "unique_id", "NULL", polypath_get_unique_id(NULL));
    CHECK(me, !c, "a communicator after an error");
    OK(me, polypath_comm_create(&c, 1, me->shared->ids[0], 0));
    OK(me, polypath_comm_destroy(c));
}

static void names_body(struct rank *me)
{
    CHECK(me, !strcmp(polypath_type_name((polypath_type_t)-3), "unknown"), "a name");
    CHECK(me, polypath_type_bytes((polypath_type_t)99) == 0, "bytes");
    CHECK(me, *polypath_result_name((polypath_result_t)99), "no name");
    CHECK(me, *polypath_collective_name((polypath_collective_t)99), "no name");
    CHECK(me,
          polypath_version() == POLYPATH_VERSION_MAJOR * 10000 + POLYPATH_VERSION_MINOR * 100 + POLYPATH_VERSION_PATCH,
          "the version is %d", polypath_version());
}

static void test_null(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = nulls_body);
}

static void test_numbers_out_of_range(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = numbers_body);
}

static void test_overlaps(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = overlaps_body);
    RANKS_RUN(.size = 3, .body = overlaps_body);
}

static void test_groups(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = groups_body);
}

static void test_creation(void **state)
{
    (void)state;
    RANKS_RUN(.size = 1, .body = creation_body, .no_comm = true);
}

static void test_names_of_nothing(void **state)
{
    (void)state;
    RANKS_RUN(.size = 1, .body = names_body);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null),     cmocka_unit_test(test_numbers_out_of_range),
        cmocka_unit_test(test_overlaps), cmocka_unit_test(test_groups),
        cmocka_unit_test(test_creation), cmocka_unit_test(test_names_of_nothing),
    };
    if (argc > 1) /* the names of the tests to run, with * and ? */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
