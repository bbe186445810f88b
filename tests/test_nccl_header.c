/*
 * The library declares NCCL's interface by itself, so that it builds without
 * NCCL. Where nccl.h is installed, of the version that is stood in for, every
 * prototype, number, size and offset is compared with it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#if defined(__has_include)
#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>
#if NCCL_MAJOR == 2 && NCCL_MINOR == 28
#define HAVE_NCCL_HEADER 1
#endif
#endif
#endif

#ifdef HAVE_NCCL_HEADER

#include "frontends/nccl/functions.h"
#include "nccl/values.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define SAME(result, name, parameters)                                                                                 \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), result(*) parameters), #name);                      \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&p##name), result(*) parameters), "p" #name);
NCCL_FUNCTIONS(SAME)

static void test_every_number_is_that_of_nccl_h(void **state)
{
    (void)state;
    static const struct nccl_value theirs[] = {NCCL_VALUES(VALUE)};
    assert_int_equal(sizeof theirs / sizeof theirs[0], nccl_our_value_count);
    for (int i = 0; i < nccl_our_value_count; i++)
        if (theirs[i].value != nccl_our_values[i].value)
            fail_msg("%s is %g in nccl.h, here %g", theirs[i].name, theirs[i].value, nccl_our_values[i].value);
}

static void test_what_initializers_set_is_accepted(void **state)
{
    (void)state;
    const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    const ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    assert_int_equal(config.magic, 0xcafebeef);
    assert_int_equal(info.magic, 0x74685283);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_number_is_that_of_nccl_h),
        cmocka_unit_test(test_what_initializers_set_is_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("NCCL 2.28's header is not installed: there is nothing to compare");
    return 77;
}

#endif
