/*
 * A second start from the cache of the first: it measures nothing, and all
 * ranks still agree on the shares of every later call. (Once rank 0 read the
 * cache into its table by other steps than the others, and the tables drifted
 * apart after a few observations.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/ranks.h"

struct expectation {
    bool warm;
};

#define COUNT 65536 /* elements: large enough to be split and observed */
#define CALLS 40    /* several windows of the balancer */

static void run_calls(struct rank *me)
{
    const struct expectation *expected = me->context;
    polypath_statistics_t statistics;
    CHECK(me, !polypath_comm_statistics(me->comm, &statistics), "%s", polypath_last_error());
    CHECK(me, (statistics.tuning_calls == 0) == expected->warm, "%llu tuning calls",
          (unsigned long long)statistics.tuning_calls);
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
    CHECK(me, in && out, "no memory");
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < COUNT; i++)
            in[i] = (float)(i % 100 + me->rank + call);
        CHECK(me, !polypath_all_reduce(in, out, COUNT, POLYPATH_FLOAT32, POLYPATH_SUM, me->comm), "%s",
              polypath_last_error());
        for (int i = 0; i < COUNT; i++) {
            const int want = me->size * (i % 100 + call) + me->size * (me->size - 1) / 2;
            CHECK(me, out[i] == (float)want, "call %d, element %d", call, i);
        }
    }
    free(in);
    free(out);
}

static void start_twice(const char *const *more)
{
    char folder[] = "/tmp/polypath-start-XXXXXX", file[64], lock[80], variable[96];
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/shares.json", folder);
    snprintf(lock, sizeof lock, "%s.lock", file);
    snprintf(variable, sizeof variable, "POLYPATH_CACHE=%s", file);
    const char *environment[4] = {variable};
    for (int i = 0; more[i]; i++)
        environment[i + 1] = more[i];
    const char *wrong = NULL;
    for (int start = 0; start < 3 && !wrong; start++) {
        const struct expectation expected = {.warm = start > 0};
        const struct ranks_run run = {.size = 3, .body = run_calls, .context = &expected, .environment = environment};
        wrong = ranks_run(&run);
    }
    unlink(file);
    unlink(lock);
    rmdir(folder);
    if (wrong)
        fail_msg("%s", wrong);
}

static void a_warm_start_on_one_host(void **state)
{
    (void)state;
    const char *const all_paths[] = {"POLYPATH_PATHS=shm,cma,lo", NULL};
    start_twice(all_paths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_warm_start_on_one_host)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
