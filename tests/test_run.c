/*
 * `polypath run` and the frame of the command line, from the outside: exit
 * codes, output, standard input, signals, and that nothing is left behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/program.h"

/* A duration for sleep(1) that no other process has: how a test finds its own. */
static const char *unique_sleep(char text[32])
{
    static int number;
    snprintf(text, 32, "%d.%d", 100000 + (int)getpid(), ++number);
    return text;
}

/* ------------------------------------------------------------------- frame */

static void unknown_command_names_the_nearest(void **state)
{
    (void)state;
    const struct ending *end = program_run("rnu", NULL);
    assert_int_equal(end->status, 2);
    assert_non_null(strstr(end->err, "'rnu'"));
    assert_non_null(strstr(end->err, "'run'"));
    assert_int_equal(program_run(NULL, NULL)->status, 2);
}

static void help_and_version_succeed(void **state)
{
    (void)state;
    const struct ending *end = program_run("--help", NULL);
    assert_int_equal(end->status, 0);
    static const char *const names[] = {"run", "bench", "topo", "lab", "config"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_non_null(strstr(end->out, names[i]));
    end = program_run("--version", NULL);
    assert_int_equal(end->status, 0);
    assert_int_equal(strncmp(end->out, "polypath ", 9), 0);
    assert_int_equal(program_run("run", "--help", NULL)->status, 0);
}

static void usage_errors_say_what_to_give(void **state)
{
    (void)state;
    const struct ending *end = program_run("run", "true", NULL);
    assert_int_equal(end->status, 2);
    assert_non_null(strstr(end->err, "-n N"));
    end = program_run("run", "-n", "2", NULL);
    assert_int_equal(end->status, 2);
    assert_non_null(strstr(end->err, "PROGRAM"));
    static const char *const wrong[] = {"0", "-1", "two", "2x", "", "99999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(program_run("run", "-n", wrong[i], "true", NULL)->status, 2);
    assert_int_equal(program_run("run", "-n", "1", "--bind", "socket", "true", NULL)->status, 2);
    assert_int_equal(program_run("run", "-n", "1", "--grace", "nan", "true", NULL)->status, 2);
    assert_int_equal(program_run("run", "-n", "1", "-x", "=1", "true", NULL)->status, 2);
}

/* -------------------------------------------------------------- exit codes */

static void exit_code_is_the_first_failure(void **state)
{
    (void)state;
    assert_int_equal(program_run("run", "-n", "3", "true", NULL)->status, 0);
    const struct ending *end =
        program_run("run", "-n", "3", "--", "sh", "-c",
                    "case $POLYPATH_RANK in 0) exit 0;; 1) sleep 0.5; exit 4;; 2) exit 3;; esac", NULL);
    assert_int_equal(end->status, 3);
    assert_non_null(strstr(end->err, "rank 2"));
    end = program_run("run", "-n", "2", "--", "sh", "-c", "kill -9 $$", NULL);
    assert_int_equal(end->status, 128 + 9);
    assert_non_null(strstr(end->err, "signal 9"));
}

static void missing_program_is_127(void **state)
{
    (void)state;
    const struct ending *end = program_run("run", "-n", "2", "no-such-program-anywhere", NULL);
    assert_int_equal(end->status, 127);
    assert_non_null(strstr(end->err, "no-such-program-anywhere"));
    assert_int_equal(program_run("run", "-n", "2", "./no/such/file", NULL)->status, 127);
    assert_int_equal(program_run("run", "-n", "2", "/", NULL)->status, 126);
    assert_int_equal(program_run("run", "-n", "2", "/proc/self/status", NULL)->status, 126);
}

static void options_after_the_program_are_its_own(void **state)
{
    (void)state;
    const struct ending *end = program_run("run", "-n", "1", "echo", "-n", "7", "--help", NULL);
    assert_int_equal(end->status, 0);
    assert_string_equal(end->out, "[0] 7 --help\n");
}

static void timeout_ends_the_ranks(void **state)
{
    (void)state;
    char sleep[32];
    const struct ending *end = program_run("run", "-n", "2", "--timeout", "0.3", "sleep", unique_sleep(sleep), NULL);
    assert_int_equal(end->status, 124);
    assert_non_null(strstr(end->err, "0, 1"));
    assert_int_equal(processes_with(sleep), 0);
}

static void others_may_speak_within_the_grace(void **state)
{
    (void)state;
    const struct ending *end =
        program_run("run", "-n", "2", "--", "sh", "-c",
                    "if [ $POLYPATH_RANK = 0 ]; then exit 9; fi; sleep 0.4; echo rank 0 is lost >&2; exit 1", NULL);
    assert_int_equal(end->status, 9);
    assert_non_null(strstr(end->err, "[1] rank 0 is lost\n"));
}

static void after_the_grace_even_the_stubborn_go(void **state)
{
    (void)state;
    const struct ending *end =
        program_run("run", "-n", "3", "--grace", "0.2", "--", "sh", "-c",
                    "[ $POLYPATH_RANK = 1 ] && exit 5; trap '' TERM; while :; do sleep 1; done", NULL);
    assert_int_equal(end->status, 5);
    assert_non_null(strstr(end->err, "0, 2"));
}

/* ------------------------------------------------------------------ output */

static void every_line_has_its_rank(void **state)
{
    (void)state;
    const struct ending *end =
        program_run("run", "-n", "3", "--", "sh", "-c", "echo one; echo; printf last; echo bad >&2", NULL);
    assert_int_equal(end->status, 0);
    for (int rank = 0; rank < 3; rank++) {
        char line[32];
        static const char *const texts[] = {"one", "", "last"};
        for (int i = 0; i < 3; i++) {
            snprintf(line, sizeof line, "[%d] %s\n", rank, texts[i]);
            assert_int_equal(occurrences(end->out, line), 1);
        }
        snprintf(line, sizeof line, "[%d] bad\n", rank);
        assert_int_equal(occurrences(end->err, line), 1);
    }
    assert_int_equal(occurrences(end->out, "\n"), 9);
}

static void lines_of_many_ranks_are_not_torn(void **state)
{
    (void)state;
    /* Lines far longer than a pipe writes in one piece, from four ranks at once, through a pipe. */
    char command[8192];
    snprintf(command, sizeof command,
             "'%s' run -n 4 -- sh -c 'line=$(printf \"%%09000d\" 0 | tr 0 $POLYPATH_RANK); "
             "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo $line; done' | cat",
             program_path());
    FILE *from = popen(command, "r");
    char line[16384];
    int count = 0;
    while (from && fgets(line, sizeof line, from)) {
        assert_int_equal(strlen(line), 4 + 9000 + 1);
        for (int i = 0; i < 9000; i++)
            assert_int_equal(line[4 + i], line[1]);
        count++;
    }
    assert_int_equal(pclose(from), 0);
    assert_int_equal(count, 80);
}

static void no_prefix_leaves_output_alone(void **state)
{
    (void)state;
    const struct ending *end = program_run("run", "-n", "2", "--no-prefix", "printf", "x", NULL);
    assert_string_equal(end->out, "xx");
}

static void output_goes_to_a_file_per_rank(void **state)
{
    (void)state;
    char folder[64] = "/tmp/polypath-test-XXXXXX", path[128], text[64] = "";
    assert_non_null(mkdtemp(folder));
    const struct ending *end = program_run("run", "-n", "2", "--output", folder, "--", "sh", "-c",
                                           "echo out $POLYPATH_RANK; echo err $POLYPATH_RANK >&2", NULL);
    assert_int_equal(end->status, 0);
    assert_string_equal(end->out, "");
    for (int i = 0; i < 4; i++) {
        char want[32];
        snprintf(path, sizeof path, "%s/rank.%d.%s", folder, i / 2, i % 2 ? "err" : "out");
        snprintf(want, sizeof want, "%s %d\n", i % 2 ? "err" : "out", i / 2);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        assert_non_null(fgets(text, sizeof text, file));
        fclose(file);
        assert_string_equal(text, want);
        unlink(path);
    }
    rmdir(folder);
}

static void a_reader_that_leaves_ends_the_run(void **state)
{
    (void)state;
    char command[8192];
    snprintf(command, sizeof command, "'%s' run -n 2 yes 2>/dev/null | head -n 1", program_path());
    FILE *from = popen(command, "r");
    char line[64];
    assert_non_null(fgets(line, sizeof line, from));
    assert_string_equal(line + 3, " y\n");
    assert_int_equal(pclose(from), 0);
}

static void input_goes_to_rank_0_only(void **state)
{
    (void)state;
    const struct ending *end = program_run_with_input("hello\nworld\n", "run", "-n", "3", "cat", NULL);
    assert_int_equal(end->status, 0);
    assert_string_equal(end->out, "[0] hello\n[0] world\n");
}

/* ------------------------------------------------------------- environment */

static void ranks_find_their_variables(void **state)
{
    (void)state;
    setenv("POLYPATH_RANK", "99", 1); /* of an outer launcher, say */
    const struct ending *end = program_run(
        "run", "-n", "2", "-x", "COLOUR=red", "-x", "COLOUR=blue", "-x", "EMPTY=", "--", "sh", "-c",
        "echo $POLYPATH_RANK $POLYPATH_SIZE $POLYPATH_LOCAL_RANK $POLYPATH_LOCAL_SIZE $COLOUR ${EMPTY-unset} "
        "${#POLYPATH_UNIQUE_ID}; env | grep -c ^POLYPATH_RANK=",
        NULL);
    unsetenv("POLYPATH_RANK");
    assert_int_equal(end->status, 0);
    assert_non_null(strstr(end->out, "[0] 0 2 0 2 blue 256\n"));
    assert_non_null(strstr(end->out, "[1] 1 2 1 2 blue 256\n"));
    assert_int_equal(occurrences(end->out, "] 1\n"), 2); /* the name once per rank */
}

static void bind_core_gives_each_rank_one(void **state)
{
    (void)state;
    const struct ending *end =
        program_run("run", "-n", "2", "--bind", "core", "--", "sh", "-c",
                    "grep Cpus_allowed_list /proc/self/status | cut -f 2 | grep -E '^[0-9]+$'", NULL);
    assert_int_equal(end->status, 0);
    assert_int_equal(occurrences(end->out, "\n"), 2);
}

/* ----------------------------------------------------------------- signals */

static void signals_are_passed_on(void **state)
{
    (void)state;
    static const struct {
        int number;
        const char *name;
    } signals[] = {{SIGINT, "INT"}, {SIGTERM, "TERM"}, {SIGHUP, "HUP"}, {SIGUSR1, "USR1"}};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        char script[200];
        snprintf(script, sizeof script, "trap 'echo got it; exit 7' %s; echo ready; while :; do sleep 0.01; done",
                 signals[i].name);
        const char *const words[] = {"run", "-n", "2", "--", "sh", "-c", script, NULL};
        struct program program = program_start(NULL, words);
        assert_true(program_says(&program, "ready\n", 2));
        kill(program.pid, signals[i].number);
        const struct ending *end = program_wait(&program);
        assert_int_equal(end->status, 7);
        assert_int_equal(occurrences(end->out, "got it\n"), 2);
    }
}

static void a_second_interrupt_does_not_wait(void **state)
{
    (void)state;
    char script[200], sleep[32];
    snprintf(script, sizeof script, "trap '' INT TERM; echo ready; while :; do sleep 0.01; : %s; done",
             unique_sleep(sleep));
    const char *const words[] = {"run", "-n", "2", "--grace", "1000", "--", "sh", "-c", script, NULL};
    struct program program = program_start(NULL, words);
    assert_true(program_says(&program, "ready\n", 2));
    /* two that arrive at once are one: interrupt until it has ended */
    for (siginfo_t info = {0}; !info.si_pid; waitid(P_PID, (id_t)program.pid, &info, WEXITED | WNOHANG | WNOWAIT)) {
        kill(program.pid, SIGINT);
        usleep(20000);
    }
    assert_int_equal(program_wait(&program)->status, 128 + SIGKILL);
    assert_true(processes_become(sleep, 0));
}

/* ---------------------------------------------------------- nothing is left */

/* Ranks with a child in their group and one in a session of its own. */
static struct program start_family(const char *sleep)
{
    static char script[200];
    snprintf(script, sizeof script, "sleep %s & setsid sleep %s & sleep %s", sleep, sleep, sleep);
    const char *const words[] = {"run", "-n", "3", "--", "sh", "-c", script, NULL};
    return program_start(NULL, words);
}

static void killed_launcher_leaves_no_process(void **state)
{
    (void)state;
    char sleep[32];
    struct program program = start_family(unique_sleep(sleep));
    assert_true(processes_become(sleep, 2 + 3 + 9));
    kill(program.pid, SIGKILL);
    assert_int_equal(program_wait(&program)->status, 128 + SIGKILL);
    assert_true(processes_become(sleep, 0));
}

static void terminated_launcher_leaves_no_process(void **state)
{
    (void)state;
    char sleep[32];
    struct program program = start_family(unique_sleep(sleep));
    assert_true(processes_become(sleep, 2 + 3 + 9));
    kill(program.pid, SIGTERM);
    assert_int_not_equal(program_wait(&program)->status, 0);
    assert_true(processes_become(sleep, 0));
}

static void ended_ranks_leave_no_process(void **state)
{
    (void)state;
    char sleep[32], script[200];
    unique_sleep(sleep);
    snprintf(script, sizeof script, "sleep %s & setsid sleep %s & exit 0", sleep, sleep);
    assert_int_equal(program_run("run", "-n", "3", "--", "sh", "-c", script, NULL)->status, 0);
    assert_int_equal(processes_with(sleep), 0);
}

static void what_a_helper_writes_last_is_not_lost(void **state)
{
    (void)state;
    const struct ending *end = program_run("run", "-n", "2", "--", "sh", "-c", "(sleep 0.2; echo late) & exit 0", NULL);
    assert_int_equal(end->status, 0);
    assert_int_equal(occurrences(end->out, "late\n"), 2);
}

static void many_ranks_start_and_end(void **state)
{
    (void)state;
    const struct ending *end = program_run("run", "-n", "64", "--", "sh", "-c", "echo $POLYPATH_RANK; exit 0", NULL);
    assert_int_equal(end->status, 0);
    assert_int_equal(occurrences(end->out, "\n"), 64);
    assert_non_null(strstr(end->out, "[63] 63\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_command_names_the_nearest),
        cmocka_unit_test(help_and_version_succeed),
        cmocka_unit_test(usage_errors_say_what_to_give),
        cmocka_unit_test(exit_code_is_the_first_failure),
        cmocka_unit_test(missing_program_is_127),
        cmocka_unit_test(options_after_the_program_are_its_own),
        cmocka_unit_test(timeout_ends_the_ranks),
        cmocka_unit_test(others_may_speak_within_the_grace),
        cmocka_unit_test(after_the_grace_even_the_stubborn_go),
        cmocka_unit_test(every_line_has_its_rank),
        cmocka_unit_test(lines_of_many_ranks_are_not_torn),
        cmocka_unit_test(no_prefix_leaves_output_alone),
        cmocka_unit_test(output_goes_to_a_file_per_rank),
        cmocka_unit_test(a_reader_that_leaves_ends_the_run),
        cmocka_unit_test(input_goes_to_rank_0_only),
        cmocka_unit_test(ranks_find_their_variables),
        cmocka_unit_test(bind_core_gives_each_rank_one),
        cmocka_unit_test(signals_are_passed_on),
        cmocka_unit_test(a_second_interrupt_does_not_wait),
        cmocka_unit_test(killed_launcher_leaves_no_process),
        cmocka_unit_test(terminated_launcher_leaves_no_process),
        cmocka_unit_test(ended_ranks_leave_no_process),
        cmocka_unit_test(what_a_helper_writes_last_is_not_lost),
        cmocka_unit_test(many_ranks_start_and_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
