/*
 * Finding the CUDA driver: whatever is wrong with it becomes a text that says
 * what, and a process without GPUs; nothing crashes. Errors of its calls say
 * which call, on which device, and what the driver calls them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>

#include "system/cuda_driver.h"
#include "system/error.h"

#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), 1)

/* A driver reads its environment when it is loaded, so each case is a process: `body` returns 0 if all is well. */
static void in_child(int (*body)(void), const char *const *environment)
{
    fflush(NULL);
    const pid_t pid = fork();
    if (!pid) {
        alarm(60);
        for (; environment && *environment; environment += 2)
            setenv(environment[0], environment[1], 1);
        _exit(body());
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_msg("the process with the driver ended with status %#x", status);
}
#define IN_CHILD(body, ...) in_child(body, (const char *const[]){__VA_ARGS__, NULL})

static int refused(const char *library, const char *expected)
{
    struct cuda_driver driver;
    const polypath_result_t code = cuda_driver_load(library, &driver);
    if (code != POLYPATH_ERROR_UNSUPPORTED)
        return FAIL("%s: %d instead of unsupported", library, code);
    return strstr(error_text(), expected) ? 0 : FAIL("\"%s\" does not say \"%s\"", error_text(), expected);
}

/* ------------------------------------------------------------------------ loading */

static int missing(void)
{
    return refused("libno_such_driver.so.1", "no CUDA driver: libno_such_driver.so.1");
}

static int another_library(void)
{
    return refused("libm.so.6", "libm.so.6 is not a CUDA driver");
}

static int incomplete(void)
{
    return refused(FAKE_CUDA_INCOMPLETE, "(12.2) has no cuInit");
}

static int too_old(void)
{
    return refused(FAKE_CUDA_LIBRARY, "is too old: it is for CUDA 11.8, and 12.0 is needed");
}

static int no_device(void)
{
    return refused(FAKE_CUDA_LIBRARY, "sees no GPU");
}

static int does_not_start(void)
{
    return refused(FAKE_CUDA_LIBRARY, "cuInit: unknown error, 999");
}

static void test_missing_library_is_named(void **state)
{
    (void)state;
    in_child(missing, NULL);
}

static void test_library_that_is_no_driver_is_refused(void **state)
{
    (void)state;
    in_child(another_library, NULL);
}

static void test_missing_entry_is_named(void **state)
{
    (void)state;
    in_child(incomplete, NULL);
}

static void test_old_driver_is_called_old(void **state)
{
    (void)state;
    IN_CHILD(too_old, "FAKE_CUDA_VERSION", "11080");
}

static void test_driver_without_a_device_is_no_gpu(void **state)
{
    (void)state;
    IN_CHILD(no_device, "FAKE_CUDA_DEVICES", "0");
}

static void test_driver_that_does_not_start_is_no_gpu(void **state)
{
    (void)state;
    IN_CHILD(does_not_start, "FAKE_CUDA_FAIL", "cuInit:1:999");
}

/* ------------------------------------------------------------------ of the process */

static int switched_off(void)
{
    const char *why = NULL;
    if (cuda_driver_get(&why))
        return FAIL("a driver, although the setting is empty");
    return strstr(why, "switched off") ? 0 : FAIL("why: %s", why);
}

static int not_there(void)
{
    const char *why = NULL;
    if (cuda_driver_get(&why) || cuda_driver_get(NULL))
        return FAIL("a driver from nowhere");
    return strstr(why, "libno_such_driver.so.1") ? 0 : FAIL("why: %s", why);
}

static void *get(void *argument)
{
    (void)argument;
    return (void *)cuda_driver_get(NULL);
}

static int found_by_all_threads(void)
{
    pthread_t threads[8];
    void *first = NULL, *other;
    for (int i = 0; i < 8; i++)
        if (pthread_create(&threads[i], NULL, get, NULL))
            return FAIL("no thread");
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], i ? &other : &first);
        if (!first || (i && other != first))
            return FAIL("thread %d has another driver", i);
    }
    const struct cuda_driver *driver = first;
    return driver->devices == 3 && driver->version == 12040 ? 0 : FAIL("%d devices", driver->devices);
}

static void test_empty_setting_switches_gpus_off(void **state)
{
    (void)state;
    IN_CHILD(switched_off, "POLYPATH_CUDA_DRIVER", "");
}

static void test_process_without_driver_knows_why(void **state)
{
    (void)state;
    IN_CHILD(not_there, "POLYPATH_CUDA_DRIVER", "libno_such_driver.so.1");
}

static void test_threads_share_one_driver(void **state)
{
    (void)state;
    IN_CHILD(found_by_all_threads, "POLYPATH_CUDA_DRIVER", FAKE_CUDA_LIBRARY, "FAKE_CUDA_DEVICES", "3",
             "FAKE_CUDA_VERSION", "12040");
}

/* -------------------------------------------------------------------------- errors */

static int says(polypath_result_t code, polypath_result_t expected_code, const char *expected)
{
    if (code != expected_code)
        return FAIL("code %d instead of %d", code, expected_code);
    return !expected || !strcmp(error_text(), expected) ? 0 : FAIL("\"%s\" instead of \"%s\"", error_text(), expected);
}

static int errors_with_context(void)
{
    struct cuda_driver d;
    if (cuda_driver_load(FAKE_CUDA_LIBRARY, &d))
        return FAIL("%s", error_text());
    CUdeviceptr address;
    return says(cuda_check(&d, d.mem_alloc(&address, 8), 0, "cuMemAlloc of %d bytes", 8), POLYPATH_ERROR_SYSTEM,
                "cuMemAlloc of 8 bytes on GPU 0: CUDA_ERROR_INVALID_CONTEXT, 201 (invalid device context)") ||
           says(cuda_check(&d, CUDA_IS_OUT_OF_MEMORY, 3, "cuMemAlloc"), POLYPATH_ERROR_OUT_OF_MEMORY,
                "cuMemAlloc on GPU 3: CUDA_ERROR_OUT_OF_MEMORY, 2 (out of memory)") ||
           says(cuda_check(&d, 12345, -1, "cuThing"), POLYPATH_ERROR_SYSTEM,
                "cuThing: unknown error, 12345 (no text)") ||
           says(cuda_check(&d, CUDA_IS_OK, 0, "cuThing"), POLYPATH_SUCCESS, NULL);
}

static void test_errors_name_call_device_and_reason(void **state)
{
    (void)state;
    in_child(errors_with_context, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_library_is_named),
        cmocka_unit_test(test_library_that_is_no_driver_is_refused),
        cmocka_unit_test(test_missing_entry_is_named),
        cmocka_unit_test(test_old_driver_is_called_old),
        cmocka_unit_test(test_driver_without_a_device_is_no_gpu),
        cmocka_unit_test(test_driver_that_does_not_start_is_no_gpu),
        cmocka_unit_test(test_empty_setting_switches_gpus_off),
        cmocka_unit_test(test_process_without_driver_knows_why),
        cmocka_unit_test(test_threads_share_one_driver),
        cmocka_unit_test(test_errors_name_call_device_and_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
