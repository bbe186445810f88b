/* The interface list against this machine's own loopback, and the pure parts against tables. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "system/error.h"
#include "topology/interfaces.h"

static struct interface v4(const char *text, uint8_t bits)
{
    struct interface i = {.name = "eth0", .prefix_bits = bits};
    i.address.v4.sin_family = AF_INET;
    assert_int_equal(inet_pton(AF_INET, text, &i.address.v4.sin_addr), 1);
    return i;
}

static struct interface v6(const char *text, uint8_t bits)
{
    struct interface i = {.name = "eth0", .prefix_bits = bits};
    i.address.v6.sin6_family = AF_INET6;
    assert_int_equal(inet_pton(AF_INET6, text, &i.address.v6.sin6_addr), 1);
    return i;
}

static void loopback_is_found_and_formatted(void **state)
{
    (void)state;
    struct interface lo;
    char text[64];
    assert_int_equal(interfaces_loopback(4, &lo), POLYPATH_SUCCESS);
    assert_true(lo.loopback);
    assert_int_equal(lo.prefix_bits, 8);
    assert_int_equal(lo.address.v4.sin_port, 0);
    interfaces_format(&lo, text);
    assert_string_equal(text, "127.0.0.1");
    if (interfaces_loopback(6, &lo) == POLYPATH_SUCCESS) {
        interfaces_format(&lo, text);
        assert_string_equal(text, "::1");
        assert_int_equal(lo.prefix_bits, 128);
    }
}

static void loopback_comes_only_when_named(void **state)
{
    (void)state;
    struct interface found[INTERFACES_MAX];
    int count;
    assert_int_equal(interfaces_find("", 0, found, &count), POLYPATH_SUCCESS);
    for (int i = 0; i < count; i++)
        assert_false(found[i].loopback);
    const char *const naming[] = {"lo", " lo ", "lo*", "lo,lo"};
    for (size_t i = 0; i < sizeof naming / sizeof naming[0]; i++) {
        assert_int_equal(interfaces_find(naming[i], 4, found, &count), POLYPATH_SUCCESS);
        assert_int_equal(count, 1);
        assert_string_equal(found[0].name, "lo");
        assert_int_equal(found[0].speed_mbps, 0);
    }
}

static void leaving_out_leaves_out(void **state)
{
    (void)state;
    struct interface all[INTERFACES_MAX], rest[INTERFACES_MAX];
    int count, fewer;
    assert_int_equal(interfaces_find("", 0, all, &count), POLYPATH_SUCCESS);
    assert_int_equal(interfaces_find("^lo", 0, rest, &fewer), POLYPATH_SUCCESS);
    assert_int_equal(fewer, count);
    assert_int_equal(interfaces_find("^*", 0, rest, &fewer), POLYPATH_SUCCESS);
    assert_int_equal(fewer, 0);
    for (int i = 0; i < count; i++) {
        char filter[IF_NAMESIZE + 2];
        snprintf(filter, sizeof filter, "^%.15s", all[i].name);
        assert_int_equal(interfaces_find(filter, 0, rest, &fewer), POLYPATH_SUCCESS);
        assert_int_equal(fewer, count - 1);
        for (int j = 0; j < fewer; j++)
            assert_string_not_equal(rest[j].name, all[i].name);
        if (i)
            assert_true(strcmp(all[i - 1].name, all[i].name) < 0);
    }
}

static void unknown_names_are_an_error_that_lists_what_there_is(void **state)
{
    (void)state;
    struct interface found[INTERFACES_MAX];
    int count;
    const char *const wrong[] = {"lo,nosuch0", "^nosuch0", "nosuch0"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(interfaces_find(wrong[i], 0, found, &count), POLYPATH_ERROR_ARGUMENT);
        assert_int_equal(count, 0);
        assert_non_null(strstr(error_text(), "nosuch0"));
        assert_non_null(strstr(error_text(), "there are: "));
        assert_non_null(strstr(strstr(error_text(), "there are: "), "lo"));
    }
    assert_int_equal(interfaces_find("nosuch*", 0, found, &count), POLYPATH_SUCCESS);
    assert_int_equal(count, 0);
    assert_int_equal(interfaces_find("lo", 5, found, &count), POLYPATH_ERROR_ARGUMENT);
}

static void family_is_respected(void **state)
{
    (void)state;
    struct interface found[INTERFACES_MAX];
    int count;
    assert_int_equal(interfaces_find("^", 6, found, &count), POLYPATH_SUCCESS);
    for (int i = 0; i < count; i++)
        assert_int_equal(found[i].address.any.sa_family, AF_INET6);
    assert_int_equal(interfaces_find("^", 4, found, &count), POLYPATH_SUCCESS);
    for (int i = 0; i < count; i++)
        assert_int_equal(found[i].address.any.sa_family, AF_INET);
}

static void subnets_are_compared_by_prefix(void **state)
{
    (void)state;
    struct interface a = v4("10.1.2.3", 24), b = v4("10.1.2.250", 24), c = v4("10.1.3.3", 24), d = v4("10.1.2.3", 23);
    struct interface e = v4("10.1.2.3", 25), f = v4("10.1.2.3", 0), g = v4("10.1.2.3", 32);
    assert_true(interfaces_same_subnet(&a, &b));
    assert_false(interfaces_same_subnet(&a, &c));
    assert_true(interfaces_same_subnet(&d, &c));
    assert_false(interfaces_same_subnet(&e, &b));
    assert_true(interfaces_same_subnet(&f, &c));
    assert_true(interfaces_same_subnet(&g, &a));
    assert_false(interfaces_same_subnet(&g, &b));
    struct interface x = v6("fd00::1", 64), y = v6("fd00::ffff:1", 64), z = v6("fd00:0:0:1::1", 64);
    assert_true(interfaces_same_subnet(&x, &y));
    assert_false(interfaces_same_subnet(&x, &z));
    z.prefix_bits = 63;
    assert_true(interfaces_same_subnet(&z, &x));
    assert_false(interfaces_same_subnet(&a, &x));
}

static void link_local_addresses_carry_their_interface(void **state)
{
    (void)state;
    char text[64];
    struct interface i = v6("fe80::1", 64);
    interfaces_format(&i, text);
    assert_string_equal(text, "fe80::1%eth0");
    i = v6("fd00::2", 64);
    interfaces_format(&i, text);
    assert_string_equal(text, "fd00::2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback_is_found_and_formatted),
        cmocka_unit_test(loopback_comes_only_when_named),
        cmocka_unit_test(leaving_out_leaves_out),
        cmocka_unit_test(unknown_names_are_an_error_that_lists_what_there_is),
        cmocka_unit_test(family_is_respected),
        cmocka_unit_test(subnets_are_compared_by_prefix),
        cmocka_unit_test(link_local_addresses_carry_their_interface),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
