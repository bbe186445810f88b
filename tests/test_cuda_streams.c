/*
 * Operations on streams (polypath/cuda.h) with the fake driver: every
 * collective on device and host memory against its namesake on the host,
 * order, groups, graphs, failures and aborts. Nothing may be given back to the
 * driver while operations are under way: the fake, like a real one, would then
 * wait for the stream that waits for us, and the watchdog would see it.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "polypath/cuda.h"
#include "support/ranks.h"
#include "support/reference.h"
#include "system/cuda_driver.h"

#define DRIVER "POLYPATH_CUDA_DRIVER=" FAKE_CUDA_LIBRARY
#define STREAMS "POLYPATH_CUDA_STREAMS=1"
static const char *const fake[] = {DRIVER, STREAMS, NULL};
static const char *const turned_off[] = {DRIVER, NULL};
static const char *const failing[] = {DRIVER, STREAMS, "POLYPATH_LOG=none", "POLYPATH_TIMEOUT_MS=1500", NULL};
static const char *const no_driver[] = {"POLYPATH_CUDA_DRIVER=", NULL};

#define MOST 1500007u /* elements of four bytes: more than goes through at once */

static const struct cuda_driver *d;
static CUstream stream;

#define GPU(me, call) CHECK(me, (call) == CUDA_IS_OK, "the driver refused")

static void open_gpu(struct rank *me)
{
    const char *why;
    CUcontext context;
    d = cuda_driver_get(&why);
    CHECK(me, d, "%s", why);
    GPU(me, d->device_primary_ctx_retain(&context, 0));
    GPU(me, d->ctx_set_current(context));
    GPU(me, d->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
}

static void wait_stream(struct rank *me)
{
    GPU(me, d->stream_synchronize(stream));
}

/* ---------------------------------------------------------------- collectives */

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, KINDS };

static polypath_result_t on_host(enum kind kind, const void *in, void *out, size_t count, polypath_type_t type,
                                 polypath_op_t op, int root, polypath_comm_t comm)
{
    switch (kind) {
    case ALL_REDUCE: return polypath_all_reduce(in, out, count, type, op, comm);
    case REDUCE: return polypath_reduce(in, out, count, type, op, root, comm);
    case BROADCAST: return polypath_broadcast(in, out, count, type, root, comm);
    case ALL_GATHER: return polypath_all_gather(in, out, count, type, comm);
    case REDUCE_SCATTER: return polypath_reduce_scatter(in, out, count, type, op, comm);
    case ALL_TO_ALL: return polypath_all_to_all(in, out, count, type, comm);
    case GATHER: return polypath_gather(in, out, count, type, root, comm);
    default: return polypath_scatter(in, out, count, type, root, comm);
    }
}

static polypath_result_t on_stream(enum kind kind, const void *in, void *out, size_t count, polypath_type_t type,
                                   polypath_op_t op, int root, polypath_comm_t comm)
{
    switch (kind) {
    case ALL_REDUCE: return polypath_cuda_all_reduce(in, out, count, type, op, comm, stream);
    case REDUCE: return polypath_cuda_reduce(in, out, count, type, op, root, comm, stream);
    case BROADCAST: return polypath_cuda_broadcast(in, out, count, type, root, comm, stream);
    case ALL_GATHER: return polypath_cuda_all_gather(in, out, count, type, comm, stream);
    case REDUCE_SCATTER: return polypath_cuda_reduce_scatter(in, out, count, type, op, comm, stream);
    case ALL_TO_ALL: return polypath_cuda_all_to_all(in, out, count, type, comm, stream);
    case GATHER: return polypath_cuda_gather(in, out, count, type, root, comm, stream);
    default: return polypath_cuda_scatter(in, out, count, type, root, comm, stream);
    }
}

/* A rank's buffers: on the GPU, or (odd ranks when `mixed`) ordinary memory. */
struct buffers {
    unsigned char *in, *out, *want; /* of the host */
    CUdeviceptr device_in, device_out;
};

static void compare(struct rank *me, struct buffers *b, enum kind kind, size_t count, polypath_type_t type,
                    polypath_op_t op, bool mixed)
{
    const size_t n = (size_t)me->size, element = polypath_type_bytes(type), bytes = n * count * element;
    const int root = (int)(count % n);
    const bool here = mixed && me->rank % 2;
    ranks_where(me, "kind %d count %zu type %d op %d mixed %d", kind, count, type, op, mixed);
    for (size_t i = 0; i < bytes; i++)
        b->in[i] = type == POLYPATH_INT32 ? (unsigned char)reference_hash(i, (uint64_t)me->rank, count) : 0;
    for (size_t i = 0; i < n * count && type == POLYPATH_FLOAT32; i++)
        ((float *)(void *)b->in)[i] = (float)((i * 7 + (size_t)me->rank * 3) % 1000);
    memset(b->out, 0xee, bytes);
    memset(b->want, 0xee, bytes);
    OK(me, on_host(kind, b->in, b->want, count, type, op, root, me->comm));
    if (bytes && !here) {
        GPU(me, d->memcpy_htod_async(b->device_in, b->in, bytes, stream));
        GPU(me, d->memcpy_htod_async(b->device_out, b->out, bytes, stream));
    }
    const void *in = here ? b->in : (void *)(uintptr_t)b->device_in;
    void *out = here ? b->out : (void *)(uintptr_t)b->device_out;
    OK(me, on_stream(kind, in, out, count, type, op, root, me->comm));
    if (bytes && !here)
        GPU(me, d->memcpy_dtoh_async(b->out, b->device_out, bytes, stream));
    wait_stream(me);
    CHECK(me, !memcmp(b->out, b->want, bytes), "another result than on the host");
}

static void collectives_body(struct rank *me)
{
    open_gpu(me);
    const size_t n = (size_t)me->size, most = n * MOST * 4;
    struct buffers b = {malloc(most), malloc(most), malloc(most), 0, 0};
    CHECK(me, b.in && b.out && b.want, "no memory");
    GPU(me, d->mem_alloc(&b.device_in, most));
    GPU(me, d->mem_alloc(&b.device_out, most));
    static const size_t counts[] = {0, 1, 77, 5000, 400001};
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            compare(me, &b, (enum kind)kind, counts[i], POLYPATH_INT32, POLYPATH_SUM, i % 2);
            compare(me, &b, (enum kind)kind, counts[i], POLYPATH_FLOAT32, POLYPATH_AVG, !(i % 2));
        }
    compare(me, &b, ALL_REDUCE, MOST, POLYPATH_INT32, POLYPATH_MAX, false); /* several pieces */
    compare(me, &b, ALL_GATHER, MOST / 2, POLYPATH_INT32, POLYPATH_SUM, true);
    /* AllToAll in place, which there is on streams only: sending back what came gives what was sent */
    GPU(me, d->memcpy_htod_async(b.device_in, b.in, most, stream));
    for (int i = 0; i < 2; i++)
        OK(me, polypath_cuda_all_to_all((void *)(uintptr_t)b.device_in, (void *)(uintptr_t)b.device_in, MOST / n,
                                        POLYPATH_INT32, me->comm, stream));
    GPU(me, d->memcpy_dtoh_async(b.out, b.device_in, most, stream));
    wait_stream(me);
    CHECK(me, !memcmp(b.in, b.out, most), "two exchanges are none");
    wait_stream(me);
    OK(me, polypath_barrier(me->comm));
    GPU(me, d->mem_free(b.device_in));
    GPU(me, d->mem_free(b.device_out));
    free(b.in), free(b.out), free(b.want);
}

static void test_collectives(void **state)
{
    RANKS_RUN(.size = *(const int *)*state, .body = collectives_body, .environment = fake);
}

/* --------------------------------------------------- order, groups, messages */

/* Many operations under way at once, and host operations between them, keep their order. */
static void order_body(struct rank *me)
{
    open_gpu(me);
    CUdeviceptr x, all;
    int32_t value = me->rank + 1, host[8];
    GPU(me, d->mem_alloc(&x, sizeof value));
    GPU(me, d->mem_alloc(&all, sizeof host));
    GPU(me, d->memset_d32_async(x, 1, 1, stream));
    for (int i = 0; i < 20; i++) /* x = size ^ i: each needs the one before */
        OK(me, polypath_cuda_all_reduce((void *)(uintptr_t)x, (void *)(uintptr_t)x, 1, POLYPATH_UINT32,
                                        i % 4 ? POLYPATH_MAX : POLYPATH_SUM, me->comm, stream));
    int32_t sum = 0;
    OK(me, polypath_all_reduce(&value, &sum, 1, POLYPATH_INT32, POLYPATH_SUM, me->comm));
    CHECK(me, sum == me->size * (me->size + 1) / 2, "%d", sum);
    GPU(me, d->memcpy_dtoh_async(host, x, sizeof value, stream));
    wait_stream(me);
    int32_t want = 1;
    for (int i = 0; i < 5; i++)
        want *= me->size;
    CHECK(me, host[0] == want, "%d instead of %d", host[0], want);

    /* a ring in a group with a collective, twice the size of what goes through at once */
    const size_t count = 4u << 20;
    CUdeviceptr from, to;
    GPU(me, d->mem_alloc(&from, count * 4));
    GPU(me, d->mem_alloc(&to, count * 4));
    GPU(me, d->memset_d32_async(from, 1000u + (unsigned)me->rank, count, stream));
    OK(me, polypath_group_start());
    OK(me,
       polypath_cuda_send((void *)(uintptr_t)from, count, POLYPATH_INT32, (me->rank + 1) % me->size, me->comm, stream));
    OK(me, polypath_cuda_recv((void *)(uintptr_t)to, count, POLYPATH_INT32, (me->rank + me->size - 1) % me->size,
                              me->comm, stream));
    OK(me, polypath_cuda_all_gather((void *)(uintptr_t)x, (void *)(uintptr_t)all, 1, POLYPATH_INT32, me->comm, stream));
    OK(me, polypath_group_end());
    int32_t *got = malloc(count * 4);
    CHECK(me, got, "no memory");
    GPU(me, d->memcpy_dtoh_async(got, to, count * 4, stream));
    GPU(me, d->memcpy_dtoh_async(host, all, (size_t)me->size * 4, stream));
    wait_stream(me);
    for (size_t i = 0; i < count; i += 999)
        CHECK(me, got[i] == 1000 + (me->rank + me->size - 1) % me->size, "element %zu is %d", i, got[i]);
    CHECK(me, host[me->size - 1] == want, "%d", host[me->size - 1]);
    free(got);

    /* an exchange made of messages, also to oneself, as programs write AllToAll */
    OK(me, polypath_group_start());
    for (int r = 0; r < me->size; r++) {
        OK(me, polypath_cuda_send((void *)(uintptr_t)(from + (size_t)r * 8), 2, POLYPATH_INT32, r, me->comm, stream));
        OK(me, polypath_cuda_recv((void *)(uintptr_t)(to + (size_t)r * 8), 2, POLYPATH_INT32, r, me->comm, stream));
    }
    OK(me, polypath_group_end());
    GPU(me, d->memcpy_dtoh_async(host, to, (size_t)me->size * 8, stream));
    wait_stream(me);
    for (int r = 0; r < me->size; r++)
        CHECK(me, host[2 * r] == 1000 + r && host[2 * r + 1] == 1000 + r, "from %d: %d", r, host[2 * r]);

    /* operations of the host and on streams in one group would not keep their order */
    OK(me, polypath_group_start());
    OK(me, polypath_cuda_all_reduce((void *)(uintptr_t)x, (void *)(uintptr_t)x, 1, POLYPATH_UINT32, POLYPATH_SUM,
                                    me->comm, stream));
    OK(me, polypath_all_reduce(&value, &sum, 1, POLYPATH_INT32, POLYPATH_SUM, me->comm));
    CHECK(me, polypath_group_end() == POLYPATH_ERROR_UNSUPPORTED, "a mixed group ran");

    /* a refused operation: nothing of the group runs */
    OK(me, polypath_group_start());
    OK(me, polypath_cuda_all_reduce((void *)(uintptr_t)x, (void *)(uintptr_t)x, 1, POLYPATH_UINT32, POLYPATH_SUM,
                                    me->comm, stream));
    CHECK(me,
          polypath_cuda_broadcast((void *)(uintptr_t)x, (void *)(uintptr_t)x, 1, POLYPATH_UINT32, 99, me->comm,
                                  stream) == POLYPATH_ERROR_ARGUMENT,
          "root 99");
    CHECK(me, polypath_group_end() == POLYPATH_ERROR_ARGUMENT, "the group ran");
    GPU(me, d->memcpy_dtoh_async(host, x, sizeof value, stream));
    wait_stream(me);
    CHECK(me, host[0] == want, "%d", host[0]);
    OK(me, polypath_barrier(me->comm));
}

static void test_order_and_groups(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = order_body, .environment = fake);
}

/* A scalar in the GPU's memory counts as it is when the operation runs. */
static void scalar_body(struct rank *me)
{
    open_gpu(me);
    CUdeviceptr scalar, x;
    polypath_op_t op;
    int32_t got = 0;
    GPU(me, d->mem_alloc(&scalar, 4));
    GPU(me, d->mem_alloc(&x, 4));
    OK(me, polypath_cuda_op_create_scaled_sum(&op, (void *)(uintptr_t)scalar, POLYPATH_INT32, me->comm));
    GPU(me, d->memset_d32_async(scalar, (unsigned)(me->rank + 2), 1, stream));
    GPU(me, d->memset_d32_async(x, 10, 1, stream));
    CHECK(me,
          polypath_all_reduce(&got, &got, 1, POLYPATH_INT32, op, me->comm) == POLYPATH_ERROR_UNSUPPORTED &&
              strstr(polypath_last_error(), "GPU"),
          "on the host: %s", polypath_last_error());
    OK(me,
       polypath_cuda_all_reduce((void *)(uintptr_t)x, (void *)(uintptr_t)x, 1, POLYPATH_INT32, op, me->comm, stream));
    GPU(me, d->memcpy_dtoh_async(&got, x, 4, stream));
    wait_stream(me);
    CHECK(me, got == 50, "%d", got); /* 10 * 2 + 10 * 3 */
    OK(me, polypath_op_destroy(op, me->comm));
}

static void test_scalar_on_the_gpu(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = scalar_body, .environment = fake);
}

/* --------------------------------------------------------------------- graphs */

static void graph_body(struct rank *me)
{
    open_gpu(me);
    CUdeviceptr x;
    CUgraph graph;
    CUgraphExec executable;
    uint32_t got = 0;
    GPU(me, d->mem_alloc(&x, 4));
    GPU(me, d->memset_d32_async(x, 1, 1, stream));
    wait_stream(me);
    GPU(me, d->stream_begin_capture(stream, CUDA_CAPTURE_GLOBAL));
    for (int i = 0; i < 2; i++)
        OK(me, polypath_cuda_all_reduce((void *)(uintptr_t)x, (void *)(uintptr_t)x, 1, POLYPATH_UINT32, POLYPATH_SUM,
                                        me->comm, stream));
    GPU(me, d->stream_end_capture(stream, &graph));
    GPU(me, d->graph_instantiate(&executable, graph, 0));
    for (int i = 0; i < 100; i++) {
        GPU(me, d->graph_launch(executable, stream));
        if (i % 7 == 0) /* eager ones in between, which read what the graph has made */
            OK(me, polypath_cuda_all_reduce((void *)(uintptr_t)x, (void *)(uintptr_t)x, 1, POLYPATH_UINT32,
                                            POLYPATH_MAX, me->comm, stream));
        if (i % 30 == 0)
            wait_stream(me);
    }
    GPU(me, d->memcpy_dtoh_async(&got, x, 4, stream));
    wait_stream(me);
    uint32_t want = 1;
    for (int i = 0; i < 200; i++)
        want *= (uint32_t)me->size; /* wraps */
    CHECK(me, got == want, "%u instead of %u", got, want);
    GPU(me, d->graph_exec_destroy(executable));
    GPU(me, d->graph_destroy(graph));
}

static void test_graphs(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = graph_body, .environment = fake);
}

/* ------------------------------------------------------------------ what fails */

static void death_body(struct rank *me)
{
    open_gpu(me);
    CUdeviceptr x;
    GPU(me, d->mem_alloc(&x, 4));
    for (int i = 0; i < 3; i++)
        OK(me, polypath_cuda_all_reduce((void *)(uintptr_t)x, (void *)(uintptr_t)x, 1, POLYPATH_UINT32, POLYPATH_SUM,
                                        me->comm, stream));
    wait_stream(me);
    if (me->rank == 1)
        raise(SIGKILL);
    polypath_result_t result = POLYPATH_SUCCESS;
    for (int i = 0; i < 3 && !result; i++) /* the first is queued before anybody can know */
        result = polypath_cuda_all_reduce((void *)(uintptr_t)x, (void *)(uintptr_t)x, 1, POLYPATH_UINT32, POLYPATH_SUM,
                                          me->comm, stream);
    wait_stream(me); /* it goes on */
    result = polypath_comm_status(me->comm);
    CHECK(me, result == POLYPATH_ERROR_PEER_LOST || result == POLYPATH_ERROR_ABORTED, "%s: %s",
          polypath_result_name(result), polypath_last_error());
    CHECK(me,
          polypath_cuda_all_reduce((void *)(uintptr_t)x, (void *)(uintptr_t)x, 1, POLYPATH_UINT32, POLYPATH_SUM,
                                   me->comm, stream) == result,
          "then %s", polypath_last_error());
}

static void test_a_rank_dies(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = death_body, .environment = failing, .killed = 1u << 1);
}

static void *abort_later(void *comm)
{
    ranks_pause_ms(50);
    polypath_comm_abort(comm);
    return NULL;
}

/* Rank 1 never comes; an abort from another thread lets the stream of rank 0 go on. Also with a graph. */
static void abort_body(struct rank *me)
{
    open_gpu(me);
    CUdeviceptr x;
    GPU(me, d->mem_alloc(&x, 4));
    if (me->rank == 0) {
        pthread_t thread;
        OK(me, polypath_cuda_all_reduce((void *)(uintptr_t)x, (void *)(uintptr_t)x, 1, POLYPATH_UINT32, POLYPATH_SUM,
                                        me->comm, stream));
        CHECK(me, !pthread_create(&thread, NULL, abort_later, me->comm), "no thread");
        wait_stream(me);
        pthread_join(thread, NULL);
        CHECK(me, polypath_comm_status(me->comm) == POLYPATH_ERROR_ABORTED, "%s", polypath_last_error());
        ranks_raise(me, 0);
    } else {
        ranks_await(me, 0, 1);
    }
}

static void test_abort_lets_the_stream_go_on(void **state)
{
    (void)state;
    static const char *const patient[] = {DRIVER, STREAMS, "POLYPATH_LOG=none", NULL};
    RANKS_RUN(.size = 2, .body = abort_body, .environment = patient);
}

static void missing_body(struct rank *me)
{
    int32_t x = 1;
    CHECK(me,
          polypath_cuda_all_reduce(&x, &x, 1, POLYPATH_INT32, POLYPATH_SUM, me->comm, NULL) ==
                  POLYPATH_ERROR_UNSUPPORTED &&
              strstr(polypath_last_error(), "GPU"),
          "%s", polypath_last_error());
    OK(me, polypath_barrier(me->comm));
}

static void off_body(struct rank *me)
{
    open_gpu(me);
    int32_t x = 1;
    CHECK(me,
          polypath_cuda_all_reduce(&x, &x, 1, POLYPATH_INT32, POLYPATH_SUM, me->comm, stream) ==
                  POLYPATH_ERROR_UNSUPPORTED &&
              strstr(polypath_last_error(), "POLYPATH_CUDA_STREAMS"),
          "%s", polypath_last_error());
}

static void test_without_a_driver(void **state)
{
    (void)state;
    RANKS_RUN(.size = 1, .body = off_body, .environment = turned_off);
    RANKS_RUN(.size = 2, .body = missing_body, .environment = no_driver);
}

/* Two ranks in one process, on one thread and one GPU: neither may wait for the other while it is being fed. */
static void *make_comm(void *argument)
{
    struct {
        polypath_unique_id_t id;
        polypath_comm_t comm;
        int rank;
    } *made = argument;
    if (polypath_comm_create(&made->comm, 2, made->id, made->rank))
        made->comm = NULL;
    return NULL;
}

static void one_process_body(struct rank *me)
{
    struct {
        polypath_unique_id_t id;
        polypath_comm_t comm;
        int rank;
    } made[2] = {{.rank = 0}, {.rank = 1}};
    pthread_t thread;
    open_gpu(me);
    OK(me, polypath_get_unique_id(&made[0].id));
    made[1].id = made[0].id;
    CHECK(me, !pthread_create(&thread, NULL, make_comm, &made[1]), "no thread");
    make_comm(&made[0]);
    pthread_join(thread, NULL);
    CHECK(me, made[0].comm && made[1].comm, "%s", polypath_last_error());
    CUdeviceptr x[2];
    CUstream streams[2];
    for (int r = 0; r < 2; r++) {
        GPU(me, d->mem_alloc(&x[r], 4));
        GPU(me, d->stream_create(&streams[r], CUDA_STREAM_NON_BLOCKING));
        GPU(me, d->memset_d32_async(x[r], (unsigned)r + 1, 1, streams[r]));
    }
    for (int i = 0; i < 10; i++) {
        OK(me, polypath_group_start());
        for (int r = 0; r < 2; r++)
            OK(me, polypath_cuda_all_reduce((void *)(uintptr_t)x[r], (void *)(uintptr_t)x[r], 1, POLYPATH_UINT32,
                                            POLYPATH_SUM, made[r].comm, streams[r]));
        OK(me, polypath_group_end());
    }
    for (int r = 0; r < 2; r++) {
        uint32_t got = 0;
        GPU(me, d->memcpy_dtoh_async(&got, x[r], 4, streams[r]));
        GPU(me, d->stream_synchronize(streams[r]));
        CHECK(me, got == 3u << 9, "%u", got);
    }
    for (int r = 0; r < 2; r++)
        OK(me, polypath_comm_destroy(made[r].comm));
}

static void test_two_ranks_in_one_process(void **state)
{
    (void)state;
    RANKS_RUN(.size = 1, .body = one_process_body, .environment = fake);
}

int main(void)
{
    static int sizes[] = {1, 2, 4};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_collectives, &sizes[0]),
        cmocka_unit_test_prestate(test_collectives, &sizes[1]),
        cmocka_unit_test_prestate(test_collectives, &sizes[2]),
        cmocka_unit_test(test_order_and_groups),
        cmocka_unit_test(test_scalar_on_the_gpu),
        cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_a_rank_dies),
        cmocka_unit_test(test_abort_lets_the_stream_go_on),
        cmocka_unit_test(test_without_a_driver),
        cmocka_unit_test(test_two_ranks_in_one_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
