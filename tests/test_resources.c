/*
 * What communicators take and give back: file descriptors, memory, threads;
 * what happens when there are too few; and what is said of wrong settings.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/exercise.h"
#include "support/ranks.h"
#include "support/reference.h"

static int entries(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* ------------------------------------------------------------ giving back */

static void again_body(struct rank *me)
{
    int fds = 0, threads = 0;
    for (int i = 0; i < 50; i++) {
        polypath_comm_t part;
        ranks_where(me, "split %d", i);
        OK(me, polypath_comm_split(me->comm, i % 3 == 2 ? me->rank : 0, 0, &part));
        EXERCISE(me, part, .kind = EXERCISE_ALL_REDUCE, .type = POLYPATH_FLOAT32, .count = 30000, .seed = 1);
        EXERCISE(me, part, .kind = EXERCISE_SEND_RECV, .type = POLYPATH_FLOAT32, .count = 3000, .seed = 1);
        polypath_request_t request; /* starts a helper thread */
        OK(me, polypath_barrier_start(part, &request));
        OK(me, polypath_wait(&request));
        OK(me, polypath_comm_destroy(part));
        if (i == 5) {
            fds = entries("/proc/self/fd");
            threads = entries("/proc/self/task");
        }
    }
    CHECK(me, entries("/proc/self/fd") == fds, "%d descriptors became %d", fds, entries("/proc/self/fd"));
    CHECK(me, entries("/proc/self/task") == threads, "%d threads became %d", threads, entries("/proc/self/task"));
}

static void two_hosts(struct rank *me)
{
    ranks_setenv(me->rank % 2 ? "POLYPATH_HOST_ID=b" : "POLYPATH_HOST_ID=a");
}

static void test_50_communicators_leave_nothing_in_the_process(void **state)
{
    (void)state;
    static const char *const all[] = {"POLYPATH_PATHS=shm,cma,lo", "POLYPATH_TUNE=0", "POLYPATH_PROGRESS_THREAD=always",
                                      NULL};
    static const char *const hosts[] = {"POLYPATH_INTERFACES=lo", "POLYPATH_TUNE=0", NULL};
    RANKS_RUN(.size = 2, .body = again_body, .environment = all);
    RANKS_RUN(.size = 3, .body = again_body, .environment = hosts, .prepare = two_hosts);
}

static void many_ids_body(struct rank *me)
{
    /* a service whose ranks have come and gone ends; one whose ranks never come must not keep the process from ending
     */
    polypath_unique_id_t id;
    polypath_comm_t comm;
    const int before = entries("/proc/self/task");
    for (int i = 0; i < 20; i++) {
        OK(me, polypath_get_unique_id(&id));
        OK(me, polypath_comm_create(&comm, 1, id, 0));
        OK(me, polypath_barrier(comm));
        OK(me, polypath_comm_destroy(comm));
    }
    OK(me, polypath_get_unique_id(&id));
    ranks_where(me, "waiting for the services to end");
    while (entries("/proc/self/task") > before + 1) /* the last service */
        ranks_pause_ms(5);
}

static void test_services_of_unique_ids_end(void **state)
{
    (void)state;
    RANKS_RUN(.size = 1, .body = many_ids_body, .no_comm = true);
}

/* --------------------------------------------------------------- too few */

/* Lets the process have so many more descriptors than it has now; negative: as many as it may (sanitizers need some).
 */
static void allow_descriptors(int more)
{
    struct rlimit limit;
    const int highest = dup(0);
    close(highest);
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = more < 0 ? limit.rlim_max : (rlim_t)(highest + more);
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void few_descriptors_body(struct rank *me)
{
    const int more = *(const int *)me->context;
    polypath_comm_t comm = NULL;
    if (me->rank == 1)
        allow_descriptors(more);
    const polypath_result_t result = polypath_comm_create(&comm, me->size, me->shared->ids[0], me->rank);
    allow_descriptors(-1);
    if (!result) {
        CHECK(me, more > 4, "a communicator with %d descriptors", more);
        const polypath_result_t after = polypath_barrier(comm);
        if (after) /* another rank may have failed at the very end */
            CHECK(me, after != POLYPATH_ERROR_TIMEOUT && *polypath_last_error(), "%s", polypath_last_error());
        OK(me, polypath_comm_destroy(comm));
        return;
    }
    CHECK(me, !comm, "a communicator and an error");
    if (me->rank == 1)
        CHECK(me, strstr(polypath_last_error(), "ulimit -n"), "with %d descriptors: %s: %s", more,
              polypath_result_name(result), polypath_last_error());
    else
        CHECK(me, strstr(polypath_last_error(), "rank"), "with %d descriptors for rank 1: %s", more,
              polypath_last_error());
}

static void test_too_few_descriptors(void **state)
{
    (void)state;
    static const char *const all[] = {"POLYPATH_PATHS=shm,cma,lo", "POLYPATH_TUNE=0", "POLYPATH_LOG=none",
                                      "POLYPATH_TIMEOUT_MS=8000", NULL};
    for (int more = 0; more < 14; more++)
        RANKS_RUN(.size = 2, .body = few_descriptors_body, .context = &more, .environment = all, .no_comm = true);
}

static void little_shared_memory_body(struct rank *me)
{
    polypath_comm_t comm = NULL;
    const polypath_result_t result = polypath_comm_create(&comm, me->size, me->shared->ids[0], me->rank);
    CHECK(me, result && strstr(polypath_last_error(), "shm_bytes"), "%s", polypath_last_error());
}

static void test_too_little_shared_memory(void **state)
{
    (void)state;
    static const char *const little[] = {"POLYPATH_SHM_BYTES=64K", "POLYPATH_LOG=none", NULL};
    RANKS_RUN(.size = 6, .body = little_shared_memory_body, .environment = little, .no_comm = true);
}

static void memory_body(struct rank *me)
{
    polypath_statistics_t s;
    for (int kind = 0; kind < EXERCISE_KINDS; kind++)
        EXERCISE(me, me->comm, .kind = (enum exercise_kind)kind, .type = POLYPATH_FLOAT32, .count = 1000000, .seed = 1);
    OK(me, polypath_comm_statistics(me->comm, &s));
    CHECK(me, s.memory_bytes > 0 && s.memory_bytes < (16u << 20), "%zu bytes", s.memory_bytes);
}

static void test_memory_stays_within_its_caps(void **state)
{
    (void)state;
    static const char *const caps[] = {"POLYPATH_SCRATCH_BYTES=1M", "POLYPATH_SHM_BYTES=2M", NULL};
    RANKS_RUN(.size = 3, .body = memory_body, .environment = caps);
}

/* ---------------------------------------------------------------- settings */

static const char log_file[] = "test_resources.log";

static void said(struct rank *me, const char *text, const char *word)
{
    CHECK(me, strstr(text, word), "'%s' is not in the log: %s", word, text);
}

static void settings_body(struct rank *me)
{
    static char text[8192];
    polypath_comm_t comm;
    OK(me, polypath_comm_create_from_env(&comm));
    OK(me, polypath_comm_destroy(comm));
    FILE *f = fopen(log_file, "r");
    CHECK(me, f, "no log");
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    said(me, text, "chunk_bytes=99G");
    said(me, text, "tcp_streams=0");
    said(me, text, "progress_thread=perhaps");
    said(me, text, "expected one of: never always auto");
    said(me, text, "unknown setting POLYPATH_TIMEOUT; the nearest is POLYPATH_TIMEOUT_MS");
    said(me, text, "zigzag"); /* an algorithm that does not exist */
}

static void test_wrong_settings_are_warned_of(void **state)
{
    (void)state;
    static const char *const wrong[] = {"POLYPATH_CHUNK_BYTES=99G",
                                        "POLYPATH_TCP_STREAMS=0",
                                        "POLYPATH_PROGRESS_THREAD=perhaps",
                                        "POLYPATH_TIMEOUT=5",
                                        "POLYPATH_ALGORITHM=zigzag",
                                        "POLYPATH_LOG_FILE=test_resources.log",
                                        NULL};
    unlink(log_file);
    RANKS_RUN(.size = 1, .body = settings_body, .environment = wrong, .no_comm = true);
    unlink(log_file);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_50_communicators_leave_nothing_in_the_process),
        cmocka_unit_test(test_services_of_unique_ids_end),
        cmocka_unit_test(test_too_few_descriptors),
        cmocka_unit_test(test_too_little_shared_memory),
        cmocka_unit_test(test_memory_stays_within_its_caps),
        cmocka_unit_test(test_wrong_settings_are_warned_of),
    };
    if (argc > 1) /* the names of the tests to run, with * and ? */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
