/*
 * Which calls of the CUDA driver wait for all work of the context, and which
 * do not. A stream that waits for a signal is at work, so a waiting call by
 * the thread that should give the signal is a deadlock: the rules that keep
 * the library clear of that are those that are tested here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <unistd.h>

#include "support/cuda.h"

#define MIB ((size_t)1 << 20)
#define GRANULE (2 * MIB)
#define D cuda_test.d

enum answer { RETURNS, WAITS, FAKE_WAITS }; /* the last: not relied on, so the fake does the worse of both */

/* What the calls below work on; made before a stream is blocked. */
struct things {
    CUdeviceptr memory, mapped, reserved;
    CUdeviceptr new_memory;
    void *pinned, *pageable, *registered, *new_pinned;
    bool pageable_registered, unregistered;
    CUstream other, fresh;
    CUevent event;
    CUmodule module;
    CUfunction add;
    CUgraph graph;
    CUgraphExec executable;
    CUmemGenericAllocationHandle handle;
};

static const struct cuda_allocation properties = {
    .type = CUDA_ALLOCATION_PINNED,
    .handle_types = CUDA_HANDLE_POSIX_FILE_DESCRIPTOR,
    .location = {CUDA_LOCATION_DEVICE, 0},
};
static const struct cuda_access both_ways = {{CUDA_LOCATION_DEVICE, 0}, CUDA_ACCESS_READ_WRITE};

static void prepare(struct things *t)
{
    memset(t, 0, sizeof *t);
    t->other = cuda_test_stream();
    CU(mem_alloc(&t->memory, 4 * MIB));
    CU(mem_host_alloc(&t->pinned, 4 * MIB, 0));
    t->pageable = aligned_alloc(4096, 4 * MIB);
    t->registered = aligned_alloc(4096, MIB);
    assert_true(t->pageable && t->registered);
    memset(t->pageable, 1, 4 * MIB);
    memset(t->registered, 1, MIB);
    CU(mem_host_register(t->registered, MIB, 0));
    CU(event_create(&t->event, CUDA_EVENT_DISABLE_TIMING));
    t->module = cuda_test_module();
    CU(module_get_function(&t->add, t->module, "add"));
    CU(mem_address_reserve(&t->mapped, GRANULE, 0, 0, 0));
    CU(mem_address_reserve(&t->reserved, GRANULE, 0, 0, 0));
    CU(mem_create(&t->handle, GRANULE, &properties, 0));
    CU(mem_map(t->mapped, GRANULE, 0, t->handle, 0));
    CU(mem_set_access(t->mapped, GRANULE, &both_ways, 1));
    CU(stream_begin_capture(t->other, CUDA_CAPTURE_THREAD_LOCAL));
    CU(memset_d8_async(t->memory, 1, MIB, t->other));
    CU(stream_end_capture(t->other, &t->graph));
    CU(graph_instantiate(&t->executable, t->graph, 0));
    cuda_test_launch_add(t->add, t->memory, 1, t->other); /* what is loaded at the first use is loaded */
    CU(graph_launch(t->executable, t->other));
    CU(ctx_synchronize());
}

static void clean_up(struct things *t)
{
    if (t->memory)
        CU(mem_free(t->memory));
    if (t->pinned)
        CU(mem_free_host(t->pinned));
    if (!t->unregistered)
        CU(mem_host_unregister(t->registered));
    if (t->pageable_registered)
        CU(mem_host_unregister(t->pageable));
    CU(mem_free(t->new_memory));
    CU(mem_free_host(t->new_pinned));
    free(t->registered);
    free(t->pageable);
    if (t->event)
        CU(event_destroy(t->event));
    if (t->module)
        CU(module_unload(t->module));
    if (t->mapped) {
        CU(mem_unmap(t->mapped, GRANULE));
        CU(mem_address_free(t->mapped, GRANULE));
    }
    CU(mem_address_free(t->reserved, GRANULE));
    CU(mem_release(t->handle));
    CU(graph_destroy(t->graph));
    if (t->executable)
        CU(graph_exec_destroy(t->executable));
    CU(stream_destroy(t->other));
    if (t->fresh)
        CU(stream_destroy(t->fresh));
}

/* ------------------------------------------------------------------------- the calls */

static cuda_result_t forget(cuda_result_t result, CUdeviceptr *address)
{
    *address = 0;
    return result;
}

static cuda_result_t call_mem_free(struct things *t)
{
    return forget(D.mem_free(t->memory), &t->memory);
}

static cuda_result_t call_mem_free_host(struct things *t)
{
    cuda_result_t result = D.mem_free_host(t->pinned);
    t->pinned = NULL;
    return result;
}

static cuda_result_t call_host_unregister(struct things *t)
{
    t->unregistered = true;
    return D.mem_host_unregister(t->registered);
}

static cuda_result_t call_module_load(struct things *t)
{
    (void)t;
    D.module_unload(cuda_test_module());
    return CUDA_IS_OK;
}

static cuda_result_t call_module_unload(struct things *t)
{
    cuda_result_t result = D.module_unload(t->module);
    t->module = NULL;
    return result;
}

static cuda_result_t call_module_get_function(struct things *t)
{
    CUfunction add;
    return D.module_get_function(&add, t->module, "add");
}

static cuda_result_t call_ctx_synchronize(struct things *t)
{
    (void)t;
    return D.ctx_synchronize();
}

static cuda_result_t call_copy_to_pageable(struct things *t)
{
    return D.memcpy_dtoh_async(t->pageable, t->memory, 4 * MIB, t->other);
}

static cuda_result_t call_copy_from_pageable(struct things *t)
{
    return D.memcpy_htod_async(t->memory, t->pageable, 4 * MIB, t->other);
}

static cuda_result_t call_small_copy_to_pageable(struct things *t)
{
    return D.memcpy_dtoh_async(t->pageable, t->memory, 64, t->other);
}

static cuda_result_t call_small_copy_from_pageable(struct things *t)
{
    return D.memcpy_htod_async(t->memory, t->pageable, 64, t->other);
}

static cuda_result_t call_copy_pinned(struct things *t)
{
    const cuda_result_t result = D.memcpy_dtoh_async(t->pinned, t->memory, MIB, t->other);
    return result ? result : D.stream_synchronize(t->other);
}

static cuda_result_t call_mem_alloc(struct things *t)
{
    return D.mem_alloc(&t->new_memory, 8 * MIB);
}

static cuda_result_t call_host_alloc(struct things *t)
{
    return D.mem_host_alloc(&t->new_pinned, MIB, 0);
}

static cuda_result_t call_host_register(struct things *t)
{
    t->pageable_registered = true;
    return D.mem_host_register(t->pageable, MIB, 0);
}

static cuda_result_t call_stream_create(struct things *t)
{
    return D.stream_create(&t->fresh, CUDA_STREAM_NON_BLOCKING);
}

static cuda_result_t call_stream_destroy(struct things *t)
{
    CUstream old = t->other;
    const cuda_result_t result = D.stream_create(&t->other, CUDA_STREAM_NON_BLOCKING);
    return result ? result : D.stream_destroy(old);
}

static cuda_result_t call_event_destroy(struct things *t)
{
    cuda_result_t result = D.event_record(t->event, t->other);
    result = result ? result : D.event_destroy(t->event);
    t->event = NULL;
    return result;
}

static cuda_result_t call_mem_unmap(struct things *t)
{
    cuda_result_t result = D.mem_unmap(t->mapped, GRANULE);
    result = result ? result : D.mem_address_free(t->mapped, GRANULE);
    return forget(result, &t->mapped);
}

static cuda_result_t call_mem_map(struct things *t)
{
    CUmemGenericAllocationHandle handle;
    cuda_result_t result = D.mem_create(&handle, GRANULE, &properties, 0);
    result = result ? result : D.mem_map(t->reserved, GRANULE, 0, handle, 0);
    result = result ? result : D.mem_set_access(t->reserved, GRANULE, &both_ways, 1);
    result = result ? result : D.mem_unmap(t->reserved, GRANULE);
    return result ? result : D.mem_release(handle);
}

static cuda_result_t call_launch_kernel(struct things *t)
{
    cuda_test_launch_add(t->add, t->memory, 1, t->other);
    return D.stream_synchronize(t->other);
}

static cuda_result_t call_graph(struct things *t)
{
    CUgraphExec again;
    cuda_result_t result = D.graph_instantiate(&again, t->graph, 0);
    result = result ? result : D.graph_launch(again, t->other);
    result = result ? result : D.stream_synchronize(t->other);
    return result ? result : D.graph_exec_destroy(again);
}

static cuda_result_t call_pointer_attributes(struct things *t)
{
    unsigned type;
    CUdeviceptr base;
    cuda_result_t result = D.pointer_get_attribute(&type, CUDA_POINTER_MEMORY_TYPE, t->memory);
    return result ? result : D.mem_get_address_range(&base, NULL, t->memory);
}

static const struct rule {
    const char *name;
    cuda_result_t (*call)(struct things *);
    enum answer answer;
} rules[] = {
    {"cuMemFree", call_mem_free, WAITS},
    {"cuMemFreeHost", call_mem_free_host, WAITS},
    {"cuMemHostUnregister", call_host_unregister, WAITS},
    {"cuModuleLoadData", call_module_load, WAITS},
    {"cuModuleUnload", call_module_unload, WAITS},
    {"cuCtxSynchronize", call_ctx_synchronize, WAITS},
    {"copy to pageable memory, 4 MiB", call_copy_to_pageable, FAKE_WAITS},
    {"copy from pageable memory, 4 MiB", call_copy_from_pageable, FAKE_WAITS},
    {"copy to pageable memory, 64 bytes", call_small_copy_to_pageable, FAKE_WAITS},
    {"copy from pageable memory, 64 bytes", call_small_copy_from_pageable, FAKE_WAITS},
    {"copy to pinned memory", call_copy_pinned, RETURNS},
    {"cuMemAlloc", call_mem_alloc, RETURNS},
    {"cuMemHostAlloc", call_host_alloc, RETURNS},
    {"cuMemHostRegister", call_host_register, RETURNS},
    {"cuStreamCreate", call_stream_create, RETURNS},
    {"cuStreamDestroy", call_stream_destroy, RETURNS},
    {"cuEventRecord, cuEventDestroy", call_event_destroy, RETURNS},
    {"cuModuleGetFunction", call_module_get_function, RETURNS},
    {"cuMemUnmap, cuMemAddressFree", call_mem_unmap, RETURNS},
    {"cuMemCreate, cuMemMap, cuMemSetAccess, cuMemRelease", call_mem_map, RETURNS},
    {"cuLaunchKernel", call_launch_kernel, RETURNS},
    {"cuGraphInstantiate, cuGraphLaunch", call_graph, RETURNS},
    {"cuPointerGetAttribute", call_pointer_attributes, RETURNS},
};

/* --------------------------------------------------------------------- the experiment */

struct attempt {
    const struct rule *rule;
    struct things *things;
    cuda_result_t result;
    int done;
};

static void *attempt(void *argument)
{
    struct attempt *a = argument;
    cuda_result_t result = D.ctx_set_current(cuda_test.context);
    a->result = result ? result : a->rule->call(a->things);
    __atomic_store_n(&a->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static bool done_within(const struct attempt *a, unsigned ms)
{
    for (unsigned waited = 0; waited < ms; waited++) {
        if (__atomic_load_n(&a->done, __ATOMIC_ACQUIRE))
            return true;
        cuda_test_pause_ms(1);
    }
    return __atomic_load_n(&a->done, __ATOMIC_ACQUIRE);
}

/*
 * A slow machine cannot make this fail: a call that returns has a long time
 * for it, and one that waits cannot be through before the signal is given.
 */
static bool returns_beside_a_waiting_stream(const struct rule *rule, unsigned ms)
{
    struct things things;
    prepare(&things);
    struct cuda_test_word go = cuda_test_word();
    CUstream blocked = cuda_test_stream();
    CU(stream_wait_value_32(blocked, go.device, 1, CUDA_WAIT_GEQ));
    struct attempt a = {.rule = rule, .things = &things};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, attempt, &a), 0);
    const bool returned = done_within(&a, ms);
    cuda_test_word_set(go, 1);
    pthread_join(thread, NULL);
    if (a.result)
        fail_msg("%s failed with %u", rule->name, a.result);
    CU(ctx_synchronize());
    CU(stream_destroy(blocked));
    cuda_test_word_free(go);
    clean_up(&things);
    return returned;
}

static void check_all(enum answer answer, unsigned ms)
{
    unsigned wrong = 0;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].answer != answer)
            continue;
        const bool returned = returns_beside_a_waiting_stream(&rules[i], ms);
        if (returned == (answer == RETURNS))
            continue;
        print_error("%s %s\n", rules[i].name, returned ? "does not wait for other streams" : "waits for other streams");
        wrong++;
    }
    assert_int_equal(wrong, 0);
}

static void test_these_calls_wait_for_all_streams(void **state)
{
    (void)state;
    check_all(WAITS, 100);
    if (cuda_test.fake)
        check_all(FAKE_WAITS, 100);
}

static void test_these_calls_wait_for_none(void **state)
{
    (void)state;
    check_all(RETURNS, 10000);
}

static int open_driver(void **state)
{
    (void)state;
    cuda_test_open(300);
    return 0;
}

static int close_driver(void **state)
{
    (void)state;
    cuda_test_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_these_calls_wait_for_all_streams),
        cmocka_unit_test(test_these_calls_wait_for_none),
    };
    return cmocka_run_group_tests(tests, open_driver, close_driver);
}
