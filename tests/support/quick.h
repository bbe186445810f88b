/*
 * Whether a test is to look at fewer cases of the same kind: sanitizers make
 * everything several times slower, and look at code rather than at numbers.
 * Set for their builds by tests/CMakeLists.txt; every case runs without them.
 */
#ifndef SUPPORT_QUICK_H
#define SUPPORT_QUICK_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool test_quick(void)
{
    const char *value = getenv("POLYPATH_TEST_QUICK");
    return value && *value == '1';
}

#endif
