#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
static void a(void**s){(void)s;}
static void b(void**s){(void)s;assert_int_equal(1,2);}
static void c(void**s){(void)s;skip();}
int main(void){const struct CMUnitTest t[]={cmocka_unit_test(a),cmocka_unit_test(b),cmocka_unit_test(c)};return cmocka_run_group_tests(t,0,0);}
