/*
 * What only the fake CUDA driver does, and tests of the library rely on: calls
 * that fail when they are told to, copies at a given rate, several devices,
 * and misuse that is found where a real device would show it much later.
 * Each test is a process, as a driver reads its environment when it is loaded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/cuda.h"

#define D cuda_test.d
#define MIB ((size_t)1 << 20)

static const struct cuda_allocation properties = {
    .type = CUDA_ALLOCATION_PINNED,
    .handle_types = CUDA_HANDLE_POSIX_FILE_DESCRIPTOR,
    .location = {CUDA_LOCATION_DEVICE, 0},
};

static void in_child(void (*body)(void), const char *name, const char *value)
{
    fflush(NULL);
    const pid_t pid = fork();
    if (!pid) {
        unsetenv("POLYPATH_TEST_CUDA_DRIVER");
        if (name)
            setenv(name, value, 1);
        cuda_test_open(120);
        cuda_test.forked = true;
        body();
        cuda_test_close();
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_msg("the process with the driver ended with status %#x", status);
}

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define REQUIRE_IS(expected, call) REQUIRE((call) == (expected))

/* ------------------------------------------------------------------------- faults */

static void faults_by_entry(void)
{
    CUdeviceptr address;
    cuda_test.fail_call("cuMemAlloc", 2, CUDA_IS_OUT_OF_MEMORY);
    for (int i = 1; i <= 3; i++) {
        const cuda_result_t result = D.mem_alloc(&address, 64);
        REQUIRE(result == (i == 2 ? CUDA_IS_OUT_OF_MEMORY : CUDA_IS_OK));
        REQUIRE(result || !D.mem_free(address));
    }
    REQUIRE(cuda_test.count("memory") == 0);
}

static void test_nth_call_fails_when_told_to(void **state)
{
    (void)state;
    in_child(faults_by_entry, NULL, NULL);
}

static void faults_by_environment(void)
{
    CUstream stream;
    REQUIRE_IS(CUDA_IS_ILLEGAL_STATE, D.stream_create(&stream, 0));
    REQUIRE_IS(CUDA_IS_OK, D.stream_create(&stream, 0));
    REQUIRE_IS(999, D.stream_synchronize(stream));
    REQUIRE_IS(CUDA_IS_OK, D.stream_synchronize(stream));
    REQUIRE_IS(CUDA_IS_OK, D.stream_destroy(stream));
}

static void test_faults_come_from_the_environment(void **state)
{
    (void)state;
    in_child(faults_by_environment, "FAKE_CUDA_FAIL", "cuStreamCreate:1:401,cuStreamSynchronize:1:999");
}

static void out_of_memory(void)
{
    CUdeviceptr first, second;
    size_t total;
    REQUIRE_IS(CUDA_IS_OK, D.device_total_mem(&total, 0));
    REQUIRE(total == MIB);
    REQUIRE_IS(CUDA_IS_OK, D.mem_alloc(&first, MIB));
    REQUIRE_IS(CUDA_IS_OUT_OF_MEMORY, D.mem_alloc(&second, 1));
    REQUIRE_IS(CUDA_IS_OK, D.mem_free(first));
    REQUIRE_IS(CUDA_IS_OK, D.mem_alloc(&second, 1));
    REQUIRE_IS(CUDA_IS_OK, D.mem_free(second));
}

static void test_device_memory_ends(void **state)
{
    (void)state;
    in_child(out_of_memory, "FAKE_CUDA_MEMORY", "1048576");
}

/* -------------------------------------------------------------------------- rates */

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* 8 MiB in both directions at 0.1 GB/s: copies of one direction share an engine, so they take twice as long. */
static void copies_at_a_rate(void)
{
    CUstream streams[2] = {cuda_test_stream(), cuda_test_stream()};
    CUdeviceptr device;
    unsigned char *host;
    REQUIRE_IS(CUDA_IS_OK, D.mem_alloc(&device, 8 * MIB));
    REQUIRE_IS(CUDA_IS_OK, D.mem_host_alloc((void **)&host, 8 * MIB, 0));
    memset(host, 1, 8 * MIB);
    const double start = now_ms();
    for (int i = 0; i < 2; i++)
        REQUIRE_IS(CUDA_IS_OK, D.memcpy_htod_async(device + (size_t)i * 4 * MIB, host, 4 * MIB, streams[i]));
    REQUIRE_IS(CUDA_IS_OK, D.stream_synchronize(streams[0]));
    REQUIRE_IS(CUDA_IS_OK, D.stream_synchronize(streams[1]));
    REQUIRE(now_ms() - start >= 80);
    REQUIRE_IS(CUDA_IS_OK, D.mem_free(device));
    REQUIRE_IS(CUDA_IS_OK, D.mem_free_host(host));
}

static void test_copies_take_the_time_of_their_rate(void **state)
{
    (void)state;
    in_child(copies_at_a_rate, "FAKE_CUDA_COPY_GBPS", "0.1");
}

/* ------------------------------------------------------------------------ devices */

static void two_devices(void)
{
    CUcontext other;
    CUdeviceptr here, there;
    CUstream stream = cuda_test_stream(), far_stream;
    CUevent event;
    uint32_t *host;
    int can = 0;
    REQUIRE(D.devices == 2);
    REQUIRE_IS(CUDA_IS_OK, D.device_can_access_peer(&can, 0, 1));
    REQUIRE(can == 1);
    REQUIRE_IS(CUDA_IS_INVALID_DEVICE, D.device_primary_ctx_retain(&other, 2));
    REQUIRE_IS(CUDA_IS_OK, D.device_primary_ctx_retain(&other, 1));
    REQUIRE_IS(CUDA_IS_OK, D.ctx_enable_peer_access(other, 0));
    REQUIRE_IS(CUDA_IS_PEER_ACCESS_ALREADY_ENABLED, D.ctx_enable_peer_access(other, 0));
    REQUIRE_IS(CUDA_IS_OK, D.mem_alloc(&here, 64));
    REQUIRE_IS(CUDA_IS_OK, D.mem_host_alloc((void **)&host, 64, 0));
    REQUIRE_IS(CUDA_IS_OK, D.event_create(&event, 0));
    REQUIRE_IS(CUDA_IS_OK, D.ctx_push_current(other));
    REQUIRE_IS(CUDA_IS_OK, D.mem_alloc(&there, 64));
    REQUIRE_IS(CUDA_IS_OK, D.stream_create(&far_stream, CUDA_STREAM_NON_BLOCKING));
    REQUIRE_IS(CUDA_IS_INVALID_HANDLE, D.event_record(event, far_stream)); /* an event of another context */
    REQUIRE_IS(CUDA_IS_OK, D.memset_d32_async(there, 42, 16, far_stream));
    REQUIRE_IS(CUDA_IS_OK, D.stream_synchronize(far_stream));
    REQUIRE_IS(CUDA_IS_OK, D.ctx_pop_current(NULL));
    REQUIRE_IS(CUDA_IS_OK, D.memcpy_dtod_async(here, there, 64, stream));
    REQUIRE_IS(CUDA_IS_OK, D.memcpy_dtoh_async(host, here, 64, stream));
    REQUIRE_IS(CUDA_IS_OK, D.stream_synchronize(stream));
    REQUIRE(host[15] == 42);
    /* The end of a context takes all that it has, also a stream that waits for ever. */
    REQUIRE_IS(CUDA_IS_OK, D.stream_wait_value_32(far_stream, there, 7, CUDA_WAIT_EQ));
    REQUIRE_IS(CUDA_IS_OK, D.device_primary_ctx_release(1));
    REQUIRE_IS(CUDA_IS_INVALID_HANDLE, D.stream_query(far_stream));
    REQUIRE_IS(CUDA_IS_INVALID_CONTEXT, D.ctx_set_current(other));
    REQUIRE(cuda_test.count("memory") == 2);
}

static void test_devices_have_contexts_of_their_own(void **state)
{
    (void)state;
    in_child(two_devices, "FAKE_CUDA_DEVICES", "2");
}

/* -------------------------------------------------------------------------- misuse */

static void unmapped_in_use(void)
{
    static const struct cuda_access both_ways = {{CUDA_LOCATION_DEVICE, 0}, CUDA_ACCESS_READ_WRITE};
    const size_t bytes = 2 * MIB;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address, other;
    CUstream stream = cuda_test_stream();
    struct cuda_test_word go = cuda_test_word();
    REQUIRE_IS(CUDA_IS_INVALID_VALUE, D.mem_create(&handle, 4096, &properties, 0)); /* less than a granule */
    REQUIRE_IS(CUDA_IS_OK, D.mem_create(&handle, bytes, &properties, 0));
    REQUIRE_IS(CUDA_IS_OK, D.mem_address_reserve(&address, bytes, 0, 0, 0));
    REQUIRE_IS(CUDA_IS_OK, D.mem_map(address, bytes, 0, handle, 0));
    REQUIRE_IS(CUDA_IS_INVALID_VALUE, D.mem_map(address, bytes, 0, handle, 0));
    REQUIRE_IS(CUDA_IS_INVALID_VALUE, D.memset_d8_async(address, 1, 64, stream)); /* no access yet */
    REQUIRE_IS(CUDA_IS_OK, D.mem_set_access(address, bytes, &both_ways, 1));
    REQUIRE_IS(CUDA_IS_INVALID_VALUE, D.mem_address_free(address, bytes)); /* still mapped */
    REQUIRE_IS(CUDA_IS_OK, D.stream_wait_value_32(stream, go.device, 1, CUDA_WAIT_GEQ));
    REQUIRE_IS(CUDA_IS_OK, D.memset_d8_async(address, 1, 64, stream));
    REQUIRE_IS(CUDA_IS_OK, D.mem_unmap(address, bytes));
    cuda_test_word_set(go, 1);
    REQUIRE_IS(CUDA_IS_ILLEGAL_ADDRESS, D.stream_synchronize(stream));
    REQUIRE_IS(CUDA_IS_ILLEGAL_ADDRESS, D.mem_alloc(&other, 64)); /* the context is of no more use */
}

static void test_memory_unmapped_in_use_breaks_the_context(void **state)
{
    (void)state;
    in_child(unmapped_in_use, NULL, NULL);
}

static void stale_handles(void)
{
    CUstream stream = cuda_test_stream();
    CUevent event;
    CUmodule module = cuda_test_module();
    CUfunction add;
    struct cuda_ipc_handle nonsense;
    CUdeviceptr address;
    memset(&nonsense, 7, sizeof nonsense);
    REQUIRE_IS(CUDA_IS_OK, D.event_create(&event, 0));
    REQUIRE_IS(CUDA_IS_OK, D.event_destroy(event));
    REQUIRE_IS(CUDA_IS_INVALID_HANDLE, D.event_record(event, stream));
    REQUIRE_IS(CUDA_IS_OK, D.module_get_function(&add, module, "add"));
    REQUIRE_IS(CUDA_IS_OK, D.module_unload(module));
    REQUIRE_IS(CUDA_IS_INVALID_HANDLE, D.launch_kernel(add, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    REQUIRE_IS(CUDA_IS_OK, D.stream_destroy(stream));
    REQUIRE_IS(CUDA_IS_INVALID_HANDLE, D.stream_synchronize(stream));
    REQUIRE_IS(CUDA_IS_INVALID_VALUE, D.ipc_open_mem_handle(&address, nonsense, 0));
    REQUIRE_IS(CUDA_IS_INVALID_VALUE, D.ipc_open_event_handle(&event, nonsense));
}

static void test_handles_of_what_is_gone_are_refused(void **state)
{
    (void)state;
    in_child(stale_handles, NULL, NULL);
}

static void use_after_fork(void)
{
    const pid_t pid = fork();
    if (!pid) {
        CUdeviceptr address;
        _exit(D.mem_alloc(&address, 64) == CUDA_IS_NOT_INITIALIZED ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(pid, &status, 0) == pid && status == 0);
}

static void test_driver_does_not_survive_fork(void **state)
{
    (void)state;
    in_child(use_after_fork, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nth_call_fails_when_told_to),
        cmocka_unit_test(test_faults_come_from_the_environment),
        cmocka_unit_test(test_device_memory_ends),
        cmocka_unit_test(test_copies_take_the_time_of_their_rate),
        cmocka_unit_test(test_devices_have_contexts_of_their_own),
        cmocka_unit_test(test_memory_unmapped_in_use_breaks_the_context),
        cmocka_unit_test(test_handles_of_what_is_gone_are_refused),
        cmocka_unit_test(test_driver_does_not_survive_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
