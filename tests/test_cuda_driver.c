/*
 * Finding the CUDA driver: whatever is wrong with it becomes a text that says
 * what, and a process without GPUs; nothing crashes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "system/cuda_driver.h"
#include "system/error.h"

static void refused(const char *library, const char *expected)
{
    struct cuda_driver driver;
    assert_int_equal(cuda_driver_load(library, &driver), POLYPATH_ERROR_UNSUPPORTED);
    if (!strstr(error_text(), expected))
        fail_msg("\"%s\" does not say \"%s\"", error_text(), expected);
}

static void test_missing_library_is_named(void **state)
{
    (void)state;
    refused("libno_such_driver.so.1", "no CUDA driver: libno_such_driver.so.1");
}

static void test_library_that_is_no_driver_is_refused(void **state)
{
    (void)state;
    refused("libm.so.6", "libm.so.6 is not a CUDA driver");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_library_is_named),
        cmocka_unit_test(test_library_that_is_no_driver_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
