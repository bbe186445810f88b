/*
 * What the host side of GPU support relies on in the CUDA driver: the order of
 * work, events, memory operations on signals, graphs. Everything goes through
 * the driver's table, so with POLYPATH_TEST_CUDA_DRIVER=libcuda.so.1 the same
 * program asks a real GPU, and what it says is what the fake has to do.
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

#define MIB ((size_t)1 << 20)

static int open_driver(void **state)
{
    (void)state;
    cuda_test_open(300);
    return 0;
}

/* Whatever the tests made they have also given back. */
static int close_driver(void **state)
{
    (void)state;
    static const char *const kinds[] = {"memory", "streams", "events", "modules", "graphs", "handles"};
    for (size_t i = 0; cuda_test.fake && i < sizeof kinds / sizeof kinds[0]; i++)
        if (cuda_test.count(kinds[i])) {
            print_error("%zu %s are left\n", cuda_test.count(kinds[i]), kinds[i]);
            return -1;
        }
    cuda_test_close();
    return 0;
}

static void blocked_by(CUstream stream, struct cuda_test_word word)
{
    CU(stream_wait_value_32(stream, word.device, 1, CUDA_WAIT_GEQ));
}

/* -------------------------------------------------------------------------- order */

static void test_work_of_a_stream_runs_in_order(void **state)
{
    (void)state;
    CUstream stream = cuda_test_stream();
    CUdeviceptr a, b;
    unsigned char *host;
    CU(mem_alloc(&a, MIB));
    CU(mem_alloc(&b, MIB));
    CU(mem_host_alloc((void **)&host, MIB, 0));
    memset(host, 7, MIB);
    for (unsigned round = 1; round < 20; round++) {
        CU(memcpy_htod_async(a, host, MIB, stream));
        CU(memset_d8_async(a, (unsigned char)round, MIB / 2, stream));
        CU(memcpy_dtod_async(b, a, MIB, stream));
        CU(memset_d32_async(a, 0x55555555, MIB / 4, stream));
        CU(memcpy_dtoh_async(host, b, MIB, stream));
    }
    CU(stream_synchronize(stream));
    CU_IS(CUDA_IS_OK, stream_query(stream));
    for (size_t i = 0; i < MIB; i++)
        assert_int_equal(host[i], i < MIB / 2 ? 19 : 7);
    CU(memcpy_async((CUdeviceptr)(uintptr_t)host, a, MIB, stream)); /* which side is where the driver finds out */
    CU(stream_synchronize(stream));
    assert_int_equal(host[MIB - 1], 0x55);
    CU(mem_free(a));
    CU(mem_free(b));
    CU(mem_free_host(host));
    CU(stream_destroy(stream));
}

static void test_a_stream_that_waits_does_not_stop_another(void **state)
{
    (void)state;
    struct cuda_test_word go = cuda_test_word(), seen = cuda_test_word();
    CUstream waiting = cuda_test_stream(), other = cuda_test_stream();
    blocked_by(waiting, go);
    CU(stream_write_value_32(waiting, seen.device, 1, CUDA_WRITE_DEFAULT));
    CU(stream_write_value_32(other, seen.device, 5, CUDA_WRITE_DEFAULT));
    CU(stream_synchronize(other));
    CU_IS(CUDA_IS_NOT_READY, stream_query(waiting));
    assert_int_equal(cuda_test_word_get(seen), 5);
    cuda_test_word_set(go, 1);
    CU(stream_synchronize(waiting));
    assert_int_equal(cuda_test_word_get(seen), 1);
    CU(stream_destroy(waiting));
    CU(stream_destroy(other));
    cuda_test_word_free(go);
    cuda_test_word_free(seen);
}

static void test_destroyed_stream_finishes_its_work(void **state)
{
    (void)state;
    struct cuda_test_word go = cuda_test_word(), seen = cuda_test_word();
    CUstream stream = cuda_test_stream();
    blocked_by(stream, go);
    CU(stream_write_value_32(stream, seen.device, 9, CUDA_WRITE_DEFAULT));
    CU(stream_destroy(stream));
    assert_int_equal(cuda_test_word_get(seen), 0);
    cuda_test_word_set(go, 1);
    CU(ctx_synchronize());
    assert_int_equal(cuda_test_word_get(seen), 9);
    cuda_test_word_free(go);
    cuda_test_word_free(seen);
}

static void test_null_stream_and_blocking_streams_wait_for_each_other(void **state)
{
    (void)state;
    struct cuda_test_word go = cuda_test_word(), seen = cuda_test_word();
    CUstream blocking;
    CU(stream_create(&blocking, 0));
    blocked_by(blocking, go);
    CU(stream_write_value_32(blocking, seen.device, 1, CUDA_WRITE_DEFAULT));
    CU(memset_d32_async(seen.device, 2, 1, NULL));
    CU(stream_write_value_32(blocking, seen.device, 3, CUDA_WRITE_DEFAULT));
    cuda_test_pause_ms(20);
    CU_IS(CUDA_IS_NOT_READY, stream_query(NULL));
    assert_int_equal(cuda_test_word_get(seen), 0);
    cuda_test_word_set(go, 1);
    CU(stream_synchronize(blocking));
    assert_int_equal(cuda_test_word_get(seen), 3);
    CU(stream_destroy(blocking));
    cuda_test_word_free(go);
    cuda_test_word_free(seen);
}

/* ------------------------------------------------------------------------- events */

static void test_event_orders_streams(void **state)
{
    (void)state;
    struct cuda_test_word go = cuda_test_word(), seen = cuda_test_word();
    CUstream first = cuda_test_stream(), second = cuda_test_stream();
    CUevent event;
    CU(event_create(&event, CUDA_EVENT_DISABLE_TIMING));
    CU_IS(CUDA_IS_OK, event_query(event)); /* never recorded: nothing to wait for */
    blocked_by(first, go);
    CU(stream_write_value_32(first, seen.device, 4, CUDA_WRITE_DEFAULT));
    CU(event_record(event, first));
    CU(stream_wait_event(second, event, 0));
    CU(stream_write_value_32(second, seen.device, 6, CUDA_WRITE_DEFAULT));
    CU_IS(CUDA_IS_NOT_READY, event_query(event));
    CU_IS(CUDA_IS_NOT_READY, stream_query(second));
    cuda_test_word_set(go, 1);
    CU(event_synchronize(event));
    CU(stream_synchronize(second));
    assert_int_equal(cuda_test_word_get(seen), 6);
    CU(event_destroy(event));
    CU(stream_destroy(first));
    CU(stream_destroy(second));
    cuda_test_word_free(go);
    cuda_test_word_free(seen);
}

/* Who waited before the event was recorded again waits for what it was then. */
static void test_event_may_be_recorded_again(void **state)
{
    (void)state;
    struct cuda_test_word go = cuda_test_word();
    CUstream first = cuda_test_stream(), second = cuda_test_stream();
    CUevent event;
    CU(event_create(&event, CUDA_EVENT_DISABLE_TIMING));
    CU(event_record(event, first));
    CU(stream_wait_event(second, event, 0));
    blocked_by(first, go);
    CU(event_record(event, first));
    CU(stream_synchronize(second));
    CU_IS(CUDA_IS_NOT_READY, event_query(event));
    cuda_test_word_set(go, 1);
    CU(event_synchronize(event));
    CU(event_destroy(event)); /* with nothing left to do; also right after a record: */
    CU(event_create(&event, 0));
    CU(event_record(event, first));
    CU(event_destroy(event));
    CU(stream_destroy(first));
    CU(stream_destroy(second));
    cuda_test_word_free(go);
}

static void test_events_measure_time(void **state)
{
    (void)state;
    struct cuda_test_word go = cuda_test_word();
    CUstream stream = cuda_test_stream();
    CUevent start, end, untimed;
    float ms = -1;
    CU(event_create(&start, 0));
    CU(event_create(&end, 0));
    CU(event_create(&untimed, CUDA_EVENT_DISABLE_TIMING));
    CU(event_record(start, stream));
    CU(stream_synchronize(stream));
    blocked_by(stream, go);
    CU(event_record(end, stream));
    CU(event_record(untimed, stream));
    CU_IS(CUDA_IS_NOT_READY, event_elapsed_time(&ms, start, end));
    cuda_test_pause_ms(20);
    cuda_test_word_set(go, 1);
    CU(stream_synchronize(stream));
    CU(event_elapsed_time(&ms, start, end));
    assert_true(ms > 15);
    CU_IS(CUDA_IS_INVALID_HANDLE, event_elapsed_time(&ms, start, untimed));
    CU(event_destroy(start));
    CU(event_destroy(end));
    CU(event_destroy(untimed));
    CU(stream_destroy(stream));
    cuda_test_word_free(go);
}

/* -------------------------------------------------------------- memory operations */

static bool passes(struct cuda_test_word word, uint32_t seen, uint32_t value, unsigned flags, uint32_t later)
{
    CUstream stream = cuda_test_stream();
    cuda_test_word_set(word, seen);
    CU(stream_wait_value_32(stream, word.device, value, flags));
    cuda_test_pause_ms(5);
    const bool passed = cuda_test.d.stream_query(stream) == CUDA_IS_OK;
    cuda_test_word_set(word, later);
    CU(stream_synchronize(stream));
    CU(stream_destroy(stream));
    return passed;
}

static void test_waits_compare_as_they_say(void **state)
{
    (void)state;
    struct cuda_test_word word = cuda_test_word();
    assert_false(passes(word, 4, 5, CUDA_WAIT_GEQ, 5));
    assert_false(passes(word, 4, 5, CUDA_WAIT_GEQ, 0x70000000)); /* far beyond */
    assert_false(passes(word, 0xFFFFFFFF, 1, CUDA_WAIT_GEQ, 2)); /* counters wrap: 0xFFFFFFFF is before 1 */
    assert_false(passes(word, 0x7FFFFFFF, 0x80000000, CUDA_WAIT_GEQ, 0x80000001));
    assert_false(passes(word, 4, 5, CUDA_WAIT_EQ, 5));
    assert_false(passes(word, 6, 5, CUDA_WAIT_EQ, 5));
    assert_false(passes(word, 6, 1, CUDA_WAIT_AND, 3));
    assert_false(passes(word, 0, 0xFFFFFFFF, CUDA_WAIT_AND, 0x80000000));
    cuda_test_word_free(word);
}

static void test_satisfied_waits_pass_at_once(void **state)
{
    (void)state;
    struct cuda_test_word word = cuda_test_word();
    CUstream stream = cuda_test_stream();
    cuda_test_word_set(word, 3);
    CU(stream_wait_value_32(stream, word.device, 3, CUDA_WAIT_GEQ));
    CU(stream_wait_value_32(stream, word.device, 0x80000004, CUDA_WAIT_GEQ)); /* 3 is just past half of the circle */
    CU(stream_wait_value_32(stream, word.device, 3, CUDA_WAIT_EQ));
    CU(stream_wait_value_32(stream, word.device, 0xFE, CUDA_WAIT_AND));
    CU(stream_synchronize(stream));
    CU_IS(CUDA_IS_INVALID_VALUE, stream_wait_value_32(stream, word.device + 2, 1, CUDA_WAIT_GEQ));
    CU(stream_destroy(stream));
    cuda_test_word_free(word);
}

/* Two streams hand a counter in device memory to and fro; the data that it announces is there. */
static void test_signals_in_device_memory_order_streams(void **state)
{
    (void)state;
    CUstream ping = cuda_test_stream(), pong = cuda_test_stream();
    CUdeviceptr signals, data;
    uint32_t *host;
    enum { ROUNDS = 50 };
    CU(mem_alloc(&signals, 64));
    CU(mem_alloc(&data, 4));
    CU(mem_host_alloc((void **)&host, ROUNDS * sizeof *host, 0));
    CU(memset_d32_async(signals, 0, 16, ping));
    CU(stream_synchronize(ping));
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        CU(memset_d32_async(data, 1000 + i, 1, ping));
        CU(stream_write_value_32(ping, signals, i, CUDA_WRITE_DEFAULT));
        CU(stream_wait_value_32(ping, signals + 4, i, CUDA_WAIT_GEQ));
        CU(stream_wait_value_32(pong, signals, i, CUDA_WAIT_GEQ));
        CU(memcpy_dtoh_async(&host[i - 1], data, 4, pong));
        CU(stream_write_value_32(pong, signals + 4, i, CUDA_WRITE_DEFAULT));
    }
    CU(stream_synchronize(ping));
    CU(stream_synchronize(pong));
    for (uint32_t i = 1; i <= ROUNDS; i++)
        assert_int_equal(host[i - 1], 1000 + i);
    CU(mem_free(signals));
    CU(mem_free(data));
    CU(mem_free_host(host));
    CU(stream_destroy(ping));
    CU(stream_destroy(pong));
}

static union cuda_mem_op mem_op(unsigned operation, CUdeviceptr address, uint32_t value)
{
    union cuda_mem_op op;
    memset(&op, 0, sizeof op);
    op.value.operation = operation;
    op.value.address = address;
    op.value.value = value;
    return op;
}

static void test_batch_runs_in_order(void **state)
{
    (void)state;
    struct cuda_test_word a = cuda_test_word(), b = cuda_test_word();
    CUstream stream = cuda_test_stream();
    union cuda_mem_op ops[] = {mem_op(CUDA_MEM_OP_WRITE_VALUE_32, a.device, 7),
                               mem_op(CUDA_MEM_OP_WAIT_VALUE_32, b.device, 1),
                               mem_op(CUDA_MEM_OP_WRITE_VALUE_32, a.device, 8)};
    CU(stream_batch_mem_op(stream, 3, ops, 0));
    CU_IS(CUDA_IS_NOT_READY, stream_query(stream));
    cuda_test_word_set(b, 1);
    CU(stream_synchronize(stream));
    assert_int_equal(cuda_test_word_get(a), 8);
    CU(stream_destroy(stream));
    cuda_test_word_free(a);
    cuda_test_word_free(b);
}

/* ------------------------------------------------------- host functions, kernels */

struct host_function {
    cuda_result_t result;
    int *calls, number, active, overlapped;
};
static int active_functions;

static void host_function(void *argument)
{
    struct host_function *f = argument;
    CUdeviceptr address;
    f->overlapped = __atomic_fetch_add(&active_functions, 1, __ATOMIC_ACQ_REL) != 0;
    f->number = __atomic_add_fetch(f->calls, 1, __ATOMIC_ACQ_REL);
    f->result = cuda_test.d.mem_alloc(&address, 64);
    cuda_test_pause_ms(2);
    __atomic_fetch_sub(&active_functions, 1, __ATOMIC_ACQ_REL);
}

static void test_host_functions_run_in_order_and_may_not_call_the_driver(void **state)
{
    (void)state;
    CUstream streams[2] = {cuda_test_stream(), cuda_test_stream()};
    int calls = 0;
    struct host_function functions[8] = {{0}};
    for (int i = 0; i < 8; i++) {
        functions[i].calls = &calls;
        CU(launch_host_func(streams[i % 2], host_function, &functions[i]));
    }
    CU(stream_synchronize(streams[0]));
    CU(stream_synchronize(streams[1]));
    assert_int_equal(calls, 8);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(functions[i].result, CUDA_IS_NOT_PERMITTED);
        if (i >= 2)
            assert_true(functions[i].number > functions[i - 2].number);
        if (cuda_test.fake) /* the real driver promises nothing, so nobody may rely on two at once */
            assert_false(functions[i].overlapped);
    }
    CU(stream_destroy(streams[0]));
    CU(stream_destroy(streams[1]));
}

static void test_kernel_takes_its_parameters_at_launch(void **state)
{
    (void)state;
    struct cuda_test_word go = cuda_test_word();
    CUmodule module = cuda_test_module();
    CUfunction add;
    CUdeviceptr number;
    uint32_t *host;
    int value = 0;
    CU(module_get_function(&add, module, "add"));
    CU_IS(CUDA_IS_NOT_FOUND, module_get_function(&add, module, "subtract"));
    CU(func_get_attribute(&value, CUDA_FUNC_MAX_THREADS_PER_BLOCK, add));
    assert_true(value >= 256);
    CU(occupancy_max_active_blocks(&value, add, 128, 0));
    assert_true(value >= 1);
    CUstream stream = cuda_test_stream();
    CU(mem_alloc(&number, 4));
    CU(mem_host_alloc((void **)&host, 4, 0));
    CU(memset_d32_async(number, 10, 1, stream));
    cuda_test_launch_add(add, number, 1, stream);
    CU(stream_synchronize(stream));
    blocked_by(stream, go);
    for (uint32_t i = 0; i < 10; i++)
        cuda_test_launch_add(add, number, i, stream);
    CU(memcpy_dtoh_async(host, number, 4, stream));
    cuda_test_word_set(go, 1);
    CU(stream_synchronize(stream));
    assert_int_equal(*host, 56);
    CU(mem_free(number));
    CU(mem_free_host(host));
    CU(module_unload(module));
    CU(stream_destroy(stream));
    cuda_test_word_free(go);
}

/* ------------------------------------------------------------- addresses, misuse */

static void test_addresses_say_what_they_are(void **state)
{
    (void)state;
    CUdeviceptr device, base;
    size_t bytes;
    unsigned type = 0;
    int ordinal = -1;
    static char pageable[64];
    CU(mem_alloc(&device, MIB));
    CU(pointer_get_attribute(&type, CUDA_POINTER_MEMORY_TYPE, device + 5));
    assert_int_equal(type, CUDA_MEMORY_DEVICE);
    CU(pointer_get_attribute(&ordinal, CUDA_POINTER_DEVICE_ORDINAL, device + 5));
    assert_int_equal(ordinal, 0);
    CU(mem_get_address_range(&base, &bytes, device + 5));
    assert_true(base == device && bytes == MIB);
    CU_IS(CUDA_IS_INVALID_VALUE,
          pointer_get_attribute(&type, CUDA_POINTER_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)pageable));
    unsigned attributes[] = {CUDA_POINTER_MEMORY_TYPE};
    void *values[] = {&type};
    type = 77;
    CU(pointer_get_attributes(1, attributes, values, (CUdeviceptr)(uintptr_t)pageable));
    assert_int_equal(type, 0);
    CU(mem_free(device));
}

static void test_registered_memory_is_the_devices_too(void **state)
{
    (void)state;
    CUdeviceptr on_device;
    unsigned type = 0;
    CUstream stream = cuda_test_stream();
    uint32_t *memory = aligned_alloc(4096, 8192);
    assert_non_null(memory);
    memset(memory, 0, 8192);
    CU_IS(CUDA_IS_HOST_MEMORY_NOT_REGISTERED, mem_host_unregister(memory));
    CU(mem_host_register(memory, 8192, CUDA_HOST_REGISTER_PORTABLE | CUDA_HOST_REGISTER_DEVICEMAP));
    CU_IS(CUDA_IS_HOST_MEMORY_ALREADY_REGISTERED, mem_host_register(memory, 8192, 0));
    CU(mem_host_get_device_pointer(&on_device, memory, 0));
    CU(pointer_get_attribute(&type, CUDA_POINTER_MEMORY_TYPE, on_device));
    assert_int_equal(type, CUDA_MEMORY_HOST);
    CU(stream_write_value_32(stream, on_device + 8, 3, CUDA_WRITE_DEFAULT));
    CU(stream_synchronize(stream));
    assert_int_equal(memory[2], 3);
    CU(mem_host_unregister(memory));
    CU_IS(CUDA_IS_INVALID_VALUE, stream_write_value_32(stream, on_device + 8, 4, CUDA_WRITE_DEFAULT));
    CU(stream_destroy(stream));
    free(memory);
}

static void test_freed_memory_is_refused(void **state)
{
    (void)state;
    CUdeviceptr freed, other;
    CUstream stream = cuda_test_stream();
    CU(mem_alloc(&other, 4 * MIB));
    CU(mem_alloc(&freed, 4 * MIB));
    CU_IS(CUDA_IS_INVALID_VALUE, mem_free(freed + 256)); /* inside */
    CU(mem_free(freed));
    CU_IS(CUDA_IS_INVALID_VALUE, mem_free(freed));
    CU_IS(CUDA_IS_INVALID_VALUE, memcpy_dtod_async(other, freed, MIB, stream));
    CU_IS(CUDA_IS_INVALID_VALUE, memset_d32_async(freed, 1, 4, stream));
    CU_IS(CUDA_IS_INVALID_VALUE, memset_d8_async(other, 1, 8 * MIB, stream)); /* past its end */
    CU_IS(CUDA_IS_OK, mem_free(0));
    CU(mem_free(other));
    CU(stream_destroy(stream));
}

static void *without_context(void *argument)
{
    CUdeviceptr address;
    *(cuda_result_t *)argument = cuda_test.d.mem_alloc(&address, 64);
    return NULL;
}

static void test_a_thread_needs_a_context(void **state)
{
    (void)state;
    pthread_t thread;
    cuda_result_t result = CUDA_IS_OK;
    CUcontext current = NULL;
    assert_int_equal(pthread_create(&thread, NULL, without_context, &result), 0);
    pthread_join(thread, NULL);
    assert_int_equal(result, CUDA_IS_INVALID_CONTEXT);
    CU(ctx_push_current(cuda_test.context));
    CU(ctx_pop_current(&current));
    assert_ptr_equal(current, cuda_test.context);
    CU(ctx_get_current(&current));
    assert_ptr_equal(current, cuda_test.context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_of_a_stream_runs_in_order),
        cmocka_unit_test(test_a_stream_that_waits_does_not_stop_another),
        cmocka_unit_test(test_destroyed_stream_finishes_its_work),
        cmocka_unit_test(test_null_stream_and_blocking_streams_wait_for_each_other),
        cmocka_unit_test(test_event_orders_streams),
        cmocka_unit_test(test_event_may_be_recorded_again),
        cmocka_unit_test(test_events_measure_time),
        cmocka_unit_test(test_waits_compare_as_they_say),
        cmocka_unit_test(test_satisfied_waits_pass_at_once),
        cmocka_unit_test(test_signals_in_device_memory_order_streams),
        cmocka_unit_test(test_batch_runs_in_order),
        cmocka_unit_test(test_host_functions_run_in_order_and_may_not_call_the_driver),
        cmocka_unit_test(test_kernel_takes_its_parameters_at_launch),
        cmocka_unit_test(test_addresses_say_what_they_are),
        cmocka_unit_test(test_registered_memory_is_the_devices_too),
        cmocka_unit_test(test_freed_memory_is_refused),
        cmocka_unit_test(test_a_thread_needs_a_context),
    };
    return cmocka_run_group_tests(tests, open_driver, close_driver);
}
