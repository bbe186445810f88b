/*
 * Capture of streams into graphs, and replays: what may be captured, what
 * ends a capture, and that signals come back to their start so that a graph
 * with memory operations can be launched any number of times.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "support/cuda.h"

#define BYTES ((size_t)64 << 10)
#define D cuda_test.d

static CUstream origin, branch;
static CUevent fork_event, join_event, uncaptured_event;
static CUdeviceptr memory, spare;

static int open_driver(void **state)
{
    (void)state;
    cuda_test_open(300);
    origin = cuda_test_stream();
    branch = cuda_test_stream();
    CU(event_create(&fork_event, CUDA_EVENT_DISABLE_TIMING));
    CU(event_create(&join_event, CUDA_EVENT_DISABLE_TIMING));
    CU(event_create(&uncaptured_event, CUDA_EVENT_DISABLE_TIMING));
    CU(mem_alloc(&memory, BYTES));
    return 0;
}

static int close_driver(void **state)
{
    (void)state;
    CU(event_destroy(fork_event));
    CU(event_destroy(join_event));
    CU(event_destroy(uncaptured_event));
    CU(stream_destroy(origin));
    CU(stream_destroy(branch));
    CU(mem_free(memory));
    cuda_test_close();
    return 0;
}

static void fork_branch(void)
{
    CU(event_record(fork_event, origin));
    CU(stream_wait_event(branch, fork_event, 0));
}

static void join_branch(void)
{
    CU(event_record(join_event, branch));
    CU(stream_wait_event(origin, join_event, 0));
}

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec executable;
    CU(graph_instantiate(&executable, graph, 0));
    CU(graph_destroy(graph)); /* the executable has a copy */
    return executable;
}

/* ------------------------------------------------------------------------ replays */

static void count_call(void *argument)
{
    __atomic_add_fetch((int *)argument, 1, __ATOMIC_RELEASE);
}

struct exchange {
    struct cuda_test_word ready, taken;
    CUdeviceptr staged, sum;
    unsigned char *host;
    CUfunction add;
    int calls;
};

/*
 * Two branches that hand data to each other by a signal in host memory; the
 * consumer takes the signal back, as a captured value is the same each time.
 */
static CUgraphExec capture_exchange(struct exchange *x)
{
    CUgraph graph;
    CU(stream_begin_capture(origin, CUDA_CAPTURE_THREAD_LOCAL));
    CU(memset_d8_async(x->staged, 0, BYTES, origin));
    fork_branch();
    /* The consumer is captured first: it must not be in the producer's way. */
    CU(stream_wait_value_32(branch, x->ready.device, 1, CUDA_WAIT_GEQ));
    CU(memcpy_dtoh_async(x->host, x->staged, BYTES, branch));
    CU(stream_write_value_32(branch, x->ready.device, 0, CUDA_WRITE_DEFAULT));
    CU(stream_write_value_32(branch, x->taken.device, 1, CUDA_WRITE_DEFAULT));
    CU(memcpy_dtod_async(x->staged, memory, BYTES, origin));
    CU(stream_write_value_32(origin, x->ready.device, 1, CUDA_WRITE_DEFAULT));
    CU(stream_wait_value_32(origin, x->taken.device, 1, CUDA_WAIT_GEQ));
    CU(stream_write_value_32(origin, x->taken.device, 0, CUDA_WRITE_DEFAULT));
    cuda_test_launch_add(x->add, x->sum, 3, origin);
    CU(launch_host_func(origin, count_call, &x->calls));
    join_branch();
    unsigned status = 99;
    CU(stream_is_capturing(branch, &status));
    assert_int_equal(status, CUDA_CAPTURE_STATUS_ACTIVE);
    CU(stream_end_capture(origin, &graph));
    CU(stream_is_capturing(branch, &status));
    assert_int_equal(status, CUDA_CAPTURE_STATUS_NONE);
    assert_int_equal(cuda_test_word_get(x->ready), 0); /* nothing has run */
    return instantiate(graph);
}

static void test_graph_with_signals_can_be_launched_many_times(void **state)
{
    (void)state;
    enum { LAUNCHES = 100 };
    struct exchange x = {.ready = cuda_test_word(), .taken = cuda_test_word()};
    CUmodule module = cuda_test_module();
    CU(module_get_function(&x.add, module, "add"));
    CU(mem_alloc(&x.staged, BYTES));
    CU(mem_alloc(&x.sum, 4));
    CU(mem_host_alloc((void **)&x.host, BYTES, 0));
    CU(memset_d32_async(x.sum, 0, 1, origin));
    CU(stream_synchronize(origin));
    CUgraphExec executable = capture_exchange(&x);
    for (unsigned i = 1; i <= LAUNCHES; i++) {
        CU(memset_d8_async(memory, (unsigned char)i, BYTES, origin)); /* mixed with ordinary work */
        CU(graph_launch(executable, origin));
        if (i % 10)
            continue;
        CU(stream_synchronize(origin));
        assert_int_equal(x.host[0], i);
        assert_int_equal(x.host[BYTES - 1], i);
    }
    assert_int_equal(x.calls, LAUNCHES);
    CU(memcpy_dtoh_async(x.host, x.sum, 4, origin));
    CU(stream_synchronize(origin));
    assert_int_equal(*(uint32_t *)x.host, 3 * LAUNCHES);
    CU(graph_exec_destroy(executable));
    CU(module_unload(module));
    CU(mem_free(x.staged));
    CU(mem_free(x.sum));
    CU(mem_free_host(x.host));
    cuda_test_word_free(x.ready);
    cuda_test_word_free(x.taken);
}

static void test_executable_may_be_destroyed_while_it_runs(void **state)
{
    (void)state;
    struct cuda_test_word go = cuda_test_word(), seen = cuda_test_word();
    CUgraph graph;
    CU(stream_begin_capture(origin, CUDA_CAPTURE_THREAD_LOCAL));
    CU(stream_wait_value_32(origin, go.device, 1, CUDA_WAIT_GEQ));
    CU(stream_write_value_32(origin, seen.device, 1, CUDA_WRITE_DEFAULT));
    CU(stream_end_capture(origin, &graph));
    CUgraphExec executable = instantiate(graph);
    CU(graph_launch(executable, origin));
    CU(graph_exec_destroy(executable));
    assert_int_equal(cuda_test_word_get(seen), 0);
    cuda_test_word_set(go, 1);
    CU(stream_synchronize(origin));
    assert_int_equal(cuda_test_word_get(seen), 1);
    cuda_test_word_free(go);
    cuda_test_word_free(seen);
}

static void test_launches_of_one_executable_do_not_overlap(void **state)
{
    (void)state;
    struct cuda_test_word go = cuda_test_word();
    int begun = 0;
    CUgraph graph;
    CU(stream_begin_capture(origin, CUDA_CAPTURE_THREAD_LOCAL));
    CU(launch_host_func(origin, count_call, &begun));
    CU(stream_wait_value_32(origin, go.device, 1, CUDA_WAIT_GEQ));
    CU(stream_end_capture(origin, &graph));
    CUgraphExec executable = instantiate(graph);
    CU(graph_launch(executable, origin));
    CU(graph_launch(executable, branch));
    while (!__atomic_load_n(&begun, __ATOMIC_ACQUIRE))
        cuda_test_pause_ms(1);
    cuda_test_pause_ms(50);
    assert_int_equal(__atomic_load_n(&begun, __ATOMIC_ACQUIRE), 1);
    cuda_test_word_set(go, 1);
    CU(stream_synchronize(origin));
    CU(stream_synchronize(branch));
    assert_int_equal(begun, 2);
    CU(graph_exec_destroy(executable));
    cuda_test_word_free(go);
}

static void test_capture_tells_its_state(void **state)
{
    (void)state;
    unsigned status = 99;
    uint64_t id = 0, other_id = 0;
    size_t count = 99;
    CUgraph graph;
    const CUgraphNode *nodes;
    CU(stream_get_capture_info(origin, &status, &id, NULL, NULL, NULL));
    assert_int_equal(status, CUDA_CAPTURE_STATUS_NONE);
    CU(stream_begin_capture(origin, CUDA_CAPTURE_RELAXED));
    CU(memset_d8_async(memory, 1, 64, origin));
    fork_branch();
    CU(stream_get_capture_info(origin, &status, &id, &graph, &nodes, &count));
    assert_int_equal(status, CUDA_CAPTURE_STATUS_ACTIVE);
    assert_int_equal(count, 1);
    CU(stream_get_capture_info(branch, &status, &other_id, NULL, NULL, NULL));
    assert_true(id == other_id && id);
    join_branch();
    CU(stream_end_capture(origin, &graph));
    CU(graph_destroy(graph));
}

/* ------------------------------------------------------------- what a capture forbids */

static cuda_result_t alloc(void)
{
    CUdeviceptr address = 0;
    const cuda_result_t result = D.mem_alloc(&address, 64);
    spare = result ? spare : address;
    return result;
}

static cuda_result_t free_memory(void)
{
    return D.mem_free(memory);
}

static cuda_result_t host_alloc(void)
{
    void *address;
    return D.mem_host_alloc(&address, 64, 0);
}

static cuda_result_t query_own_stream(void)
{
    return D.stream_query(origin);
}

static cuda_result_t synchronize_own_stream(void)
{
    return D.stream_synchronize(origin);
}

static cuda_result_t query_other_stream(void)
{
    return D.stream_query(branch);
}

static cuda_result_t synchronize_other_stream(void)
{
    return D.stream_synchronize(branch);
}

static cuda_result_t synchronize_context(void)
{
    return D.ctx_synchronize();
}

static cuda_result_t query_captured_event(void)
{
    return D.event_query(fork_event);
}

static cuda_result_t query_uncaptured_event(void)
{
    return D.event_query(uncaptured_event);
}

static cuda_result_t synchronize_uncaptured_event(void)
{
    return D.event_synchronize(uncaptured_event);
}

static cuda_result_t wait_for_uncaptured_event(void)
{
    return D.stream_wait_event(origin, uncaptured_event, 0);
}

static cuda_result_t create_stream(void)
{
    CUstream stream;
    const cuda_result_t result = D.stream_create(&stream, CUDA_STREAM_NON_BLOCKING);
    return result ? result : D.stream_destroy(stream);
}

static cuda_result_t load_module(void)
{
    (void)cuda_test_module(); /* unloading is another matter: the context's end does it */
    return CUDA_IS_OK;
}

enum {
    GLOBAL = CUDA_CAPTURE_GLOBAL,
    THREAD = CUDA_CAPTURE_THREAD_LOCAL,
    RELAXED = CUDA_CAPTURE_RELAXED,
    UNSUPPORTED = CUDA_IS_STREAM_CAPTURE_UNSUPPORTED,
};

static const struct {
    const char *name;
    cuda_result_t (*call)(void);
    unsigned mode;
    cuda_result_t result; /* if not OK, the capture is invalid */
} forbidden[] = {
    {"cuMemAlloc", alloc, GLOBAL, UNSUPPORTED},
    {"cuMemAlloc, by the thread that captures", alloc, THREAD, UNSUPPORTED},
    {"cuMemAlloc, relaxed", alloc, RELAXED, CUDA_IS_OK},
    {"cuMemFree", free_memory, GLOBAL, UNSUPPORTED},
    {"cuMemHostAlloc", host_alloc, GLOBAL, UNSUPPORTED},
    {"cuStreamQuery", query_own_stream, RELAXED, UNSUPPORTED},
    {"cuStreamSynchronize", synchronize_own_stream, RELAXED, UNSUPPORTED},
    {"cuStreamQuery, another stream", query_other_stream, GLOBAL, UNSUPPORTED},
    {"cuStreamQuery, another stream, relaxed", query_other_stream, RELAXED, CUDA_IS_OK},
    {"cuStreamSynchronize, another stream", synchronize_other_stream, GLOBAL, UNSUPPORTED},
    {"cuCtxSynchronize", synchronize_context, GLOBAL, UNSUPPORTED},
    {"cuEventQuery, captured", query_captured_event, RELAXED, CUDA_IS_CAPTURED_EVENT},
    {"cuEventQuery", query_uncaptured_event, GLOBAL, UNSUPPORTED},
    {"cuEventQuery, relaxed", query_uncaptured_event, RELAXED, CUDA_IS_OK},
    {"cuEventSynchronize", synchronize_uncaptured_event, GLOBAL, UNSUPPORTED},
    {"cuStreamWaitEvent", wait_for_uncaptured_event, RELAXED, CUDA_IS_STREAM_CAPTURE_ISOLATION},
    {"cuStreamCreate", create_stream, GLOBAL, CUDA_IS_OK},
    {"cuModuleLoadData", load_module, GLOBAL, CUDA_IS_OK},
};

static void test_calls_that_a_capture_forbids_end_it(void **state)
{
    (void)state;
    unsigned wrong = 0;
    CU(event_record(uncaptured_event, branch));
    CU(stream_synchronize(branch));
    for (size_t i = 0; i < sizeof forbidden / sizeof forbidden[0]; i++) {
        CUgraph graph = NULL;
        spare = 0;
        CU(stream_begin_capture(origin, forbidden[i].mode));
        CU(memset_d8_async(memory, 1, 64, origin));
        CU(event_record(fork_event, origin));
        const cuda_result_t result = forbidden[i].call(), at_end = D.stream_end_capture(origin, &graph);
        if (graph)
            CU(graph_destroy(graph));
        CU(mem_free(spare));
        if (result == forbidden[i].result && at_end == (result ? CUDA_IS_STREAM_CAPTURE_INVALIDATED : CUDA_IS_OK))
            continue;
        print_error("%s: %u, not %u; at the end %u\n", forbidden[i].name, result, forbidden[i].result, at_end);
        wrong++;
    }
    CU(event_record(fork_event, origin)); /* streams and events are as good as new */
    CU(event_synchronize(fork_event));
    assert_int_equal(wrong, 0);
}

static void *alloc_in_thread(void *argument)
{
    cuda_result_t result = D.ctx_set_current(cuda_test.context);
    *(cuda_result_t *)argument = result ? result : alloc();
    return NULL;
}

static cuda_result_t alloc_by_another_thread(unsigned mode, cuda_result_t *at_end)
{
    pthread_t thread;
    cuda_result_t result = CUDA_IS_OK;
    CUgraph graph = NULL;
    spare = 0;
    CU(stream_begin_capture(origin, mode));
    CU(memset_d8_async(memory, 1, 64, origin));
    assert_int_equal(pthread_create(&thread, NULL, alloc_in_thread, &result), 0);
    pthread_join(thread, NULL);
    *at_end = D.stream_end_capture(origin, &graph);
    if (graph)
        CU(graph_destroy(graph));
    CU(mem_free(spare));
    return result;
}

static void test_a_global_capture_binds_other_threads_too(void **state)
{
    (void)state;
    cuda_result_t at_end;
    assert_int_equal(alloc_by_another_thread(CUDA_CAPTURE_THREAD_LOCAL, &at_end), CUDA_IS_OK);
    assert_int_equal(at_end, CUDA_IS_OK);
    assert_int_equal(alloc_by_another_thread(CUDA_CAPTURE_GLOBAL, &at_end), CUDA_IS_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(at_end, CUDA_IS_STREAM_CAPTURE_INVALIDATED);
}

static void test_a_thread_may_promise_that_it_knows_what_it_does(void **state)
{
    (void)state;
    unsigned mode = CUDA_CAPTURE_RELAXED;
    CUgraph graph;
    spare = 0;
    CU(stream_begin_capture(origin, CUDA_CAPTURE_GLOBAL));
    CU(memset_d8_async(memory, 1, 64, origin));
    CU(thread_exchange_stream_capture_mode(&mode));
    assert_int_equal(mode, CUDA_CAPTURE_GLOBAL);
    assert_int_equal(alloc(), CUDA_IS_OK);
    CU(thread_exchange_stream_capture_mode(&mode));
    assert_int_equal(mode, CUDA_CAPTURE_RELAXED);
    CU(stream_end_capture(origin, &graph));
    CU(graph_destroy(graph));
    CU(mem_free(spare));
}

static void test_branches_must_come_back(void **state)
{
    (void)state;
    CUgraph graph = NULL;
    CU(stream_begin_capture(origin, CUDA_CAPTURE_THREAD_LOCAL));
    CU(memset_d8_async(memory, 1, 64, origin));
    fork_branch();
    CU(memset_d8_async(memory, 2, 64, branch));
    CU_IS(CUDA_IS_STREAM_CAPTURE_UNJOINED, stream_end_capture(origin, &graph));
    CU(stream_begin_capture(origin, CUDA_CAPTURE_THREAD_LOCAL));
    CU(memset_d8_async(memory, 1, 64, origin));
    fork_branch();
    CU_IS(CUDA_IS_STREAM_CAPTURE_UNMATCHED, stream_end_capture(branch, &graph));
    (void)D.stream_end_capture(origin, &graph);
    CU_IS(CUDA_IS_ILLEGAL_STATE, stream_end_capture(origin, &graph));
    CU(memset_d8_async(memory, 2, 64, branch)); /* neither is captured any more */
    CU(stream_synchronize(branch));
    CU(stream_synchronize(origin));
}

static void test_the_null_stream_cannot_be_captured(void **state)
{
    (void)state;
    CU_IS(CUDA_IS_STREAM_CAPTURE_UNSUPPORTED, stream_begin_capture(NULL, CUDA_CAPTURE_RELAXED));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graph_with_signals_can_be_launched_many_times),
        cmocka_unit_test(test_executable_may_be_destroyed_while_it_runs),
        cmocka_unit_test(test_launches_of_one_executable_do_not_overlap),
        cmocka_unit_test(test_capture_tells_its_state),
        cmocka_unit_test(test_calls_that_a_capture_forbids_end_it),
        cmocka_unit_test(test_a_global_capture_binds_other_threads_too),
        cmocka_unit_test(test_a_thread_may_promise_that_it_knows_what_it_does),
        cmocka_unit_test(test_branches_must_come_back),
        cmocka_unit_test(test_the_null_stream_cannot_be_captured),
    };
    return cmocka_run_group_tests(tests, open_driver, close_driver);
}
