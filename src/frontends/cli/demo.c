/*
 * `polypath demo`: the main job, shown in about a minute. As root two hosts of
 * a lab joined by links of 4, 2 and 1 Gbit/s; else the paths of this host. It
 * runs this very program (`lab run`, `run`, `bench`, `lab set`), as a user
 * would, and draws what comes back as JSON.
 */
#include "frontends/cli/demo.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frontends/cli/cli.h"
#include "frontends/cli/cli_util.h"

#define PHASE_S 8.0  /* of each part while a link changes */
#define STEADY_S 6.0 /* of following where there is no link to change */
#define INTERVAL_S 0.5
#define WORDS_MAX 64

/* This program, and the lab if there is one. */
struct demo {
    char program[PATH_MAX];
    char lab[48]; /* "": no lab */
    struct demo_names names;
};

/* ---------------------------------------------------------------- processes */

/* The words of a command line, not copied. */
struct words {
    char *list[WORDS_MAX + 1];
    int count;
};

static void say(struct words *words, const char *text)
{
    if (words->count < WORDS_MAX)
        words->list[words->count++] = (char *)text; /* execv() does not write to them */
    words->list[words->count] = NULL;
}

static void say_all(struct words *words, const char *const *texts)
{
    for (; *texts; texts++)
        say(words, *texts);
}

/* Starts this program; with `out` its standard output can be read there. -1 if that fails. */
static pid_t start(const struct demo *demo, const struct words *words, FILE **out)
{
    int ends[2] = {-1, -1};
    if (out && pipe2(ends, O_CLOEXEC))
        return -1;
    fflush(stdout);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* the lab takes itself down then */
        if (out)
            dup2(ends[1], STDOUT_FILENO);
        if (getppid() == parent)
            execv(demo->program, words->list);
        _exit(CLI_NOT_RUN);
    }
    if (out) {
        close(ends[1]);
        *out = pid > 0 ? fdopen(ends[0], "r") : NULL;
        if (!*out)
            close(ends[0]);
    }
    return pid;
}

static int finish(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return CLI_FAILURE;
    return WIFEXITED(status) ? WEXITSTATUS(status) : CLI_FAILURE;
}

/* The next line that is a JSON object; NULL at the end. What else is written is passed on. */
static json_t *next_object(FILE *in)
{
    char *line = NULL;
    size_t room = 0;
    json_t *object = NULL;
    while (!object && getline(&line, &room, in) > 0) {
        if (line[0] == '{')
            object = json_loads(line, 0, NULL);
        if (!object)
            fputs(line, stderr);
    }
    free(line);
    return object;
}

/* The launcher in front of `bench`: two ranks on two hosts, or two here. */
static void say_launcher(const struct demo *demo, struct words *words)
{
    static const char *const lab[] = {"polypath",
                                      "lab",
                                      "run",
                                      "--hosts",
                                      "2",
                                      "--link",
                                      "4gbit,name=eth0",
                                      "--link",
                                      "2gbit,name=eth1",
                                      "--link",
                                      "1gbit,name=eth2",
                                      "--name",
                                      NULL};
    static const char *const host[] = {"polypath", "run", "-x", "POLYPATH_INTERFACES=lo", NULL};
    say_all(words, *demo->lab ? lab : host);
    if (*demo->lab)
        say(words, demo->lab);
    static const char *const both[] = {"-n", "2", "--no-prefix", "--timeout", "100", "--", NULL};
    say_all(words, both);
    say(words, demo->program);
}

/* --------------------------------------------------------------- comparison */

static void note_names(struct demo *demo, const struct demo_comparison *comparison)
{
    static const double gbits[] = {4, 2, 1};
    demo->names.count = comparison->single_count;
    for (int p = 0; p < comparison->single_count; p++) {
        snprintf(demo->names.names[p], sizeof demo->names.names[p], "%.31s", comparison->singles[p].label);
        demo->names.gbits[p] = *demo->lab && p < 3 ? gbits[p] : 0;
    }
}

/*
 * AllReduce and AllGather over each path and over all. *full_gbps becomes the
 * sum of the single paths in AllReduce. *shown is how many were drawn.
 */
static int compare(struct demo *demo, struct demo_comparison *all_reduce, int *shown)
{
    struct words words = {0};
    say_launcher(demo, &words);
    static const char *const bench[] = {"bench",
                                        "all_reduce,all_gather",
                                        "-l",
                                        "64M",
                                        "--compare-paths",
                                        "--in-place",
                                        "no",
                                        "-n",
                                        "7",
                                        "--seconds",
                                        "3",
                                        "--json",
                                        NULL};
    say_all(&words, bench);
    FILE *rows;
    pid_t pid = start(demo, &words, &rows);
    if (pid < 0 || !rows) {
        fprintf(stderr, "polypath demo: cannot start %s: %s\n", demo->program, strerror(errno));
        return CLI_FAILURE;
    }
    struct demo_comparison comparison = {0};
    long long wrong = 0;
    for (json_t *row; (row = next_object(rows)); json_decref(row)) {
        if (!demo_take_row(&comparison, row))
            continue;
        note_names(demo, &comparison);
        demo_show_comparison(&comparison, &demo->names);
        wrong += comparison.wrong;
        if (!strcmp(comparison.collective, "all_reduce"))
            *all_reduce = comparison;
        comparison = (struct demo_comparison){0};
        (*shown)++;
    }
    fclose(rows);
    for (int p = 0; !*shown && p < comparison.single_count; p++)
        printf("  there is only one path here, %s: %.3f GB/s\n", comparison.singles[p].label,
               comparison.singles[p].gbps);
    int status = finish(pid);
    return status ? status : wrong ? CLI_FAILURE : CLI_SUCCESS;
}

/* ---------------------------------------------------------------- following */

/* One link of the lab gets another rate, while it is in use. */
static bool set_rate(const struct demo *demo, const char *rate)
{
    struct words words = {0};
    const char *const set[] = {"polypath", "lab", "set", "--name", demo->lab, "--link", "eth0", "--rate", rate, NULL};
    say_all(&words, set);
    pid_t pid = start(demo, &words, NULL);
    return pid > 0 && finish(pid) == 0;
}

/* What a part of the run looked like, for the last lines. */
struct part {
    double wanted_gbps;  /* sum of what the links can now carry, each measured alone */
    int calls, calls_to; /* so many calls until 0.9 of that; -1: never */
    double rates[4096];
    double share; /* of the first path, in its last interval */
};

static void note_call(struct part *part, double gbps)
{
    if (part->calls < (int)(sizeof part->rates / sizeof part->rates[0]))
        part->rates[part->calls] = gbps;
    part->calls++;
    if (part->calls_to < 0 && gbps >= 0.9 * part->wanted_gbps)
        part->calls_to = part->calls;
}

static void add_call(struct demo_interval *interval, const json_t *call, double gbps, double seconds)
{
    const char *name;
    const json_t *share;
    int p = 0;
    json_object_foreach(json_object_get(call, "shares"), name, share)
    {
        if (p < DEMO_PATHS)
            interval->share_sums[p++] += json_number_value(share);
    }
    interval->calls++;
    interval->seconds += seconds;
    interval->gbps_sum += gbps * seconds;
}

/* Half way the first link is halved, later restored. */
static bool change_link(const struct demo *demo, int part)
{
    const char *rate = part == 1 ? "2gbit" : "4gbit";
    if (!set_rate(demo, rate)) {
        fprintf(stderr, "polypath demo: polypath lab set --link eth0 --rate %s failed\n", rate);
        return false;
    }
    demo_show_event(part == 1 ? "eth0 is halved: it carries 2 Gbit/s from here on"
                              : "eth0 is back: it carries 4 Gbit/s again");
    return true;
}

static double median_after(struct part *part, int skipped)
{
    int count = part->calls < 4096 ? part->calls : 4096;
    return count > skipped ? cli_spread_of(part->rates + skipped, (size_t)(count - skipped)).median : 0;
}

/* Reads calls until the end, drawing each half second, and changes the link between the parts. */
static bool watch(struct demo *demo, FILE *calls, struct part parts[3], int part_count, double full_gbps)
{
    struct demo_interval interval = {0};
    int part = 0;
    bool fine = true;
    for (json_t *call; (call = next_object(calls)); json_decref(call)) {
        double now = json_number_value(json_object_get(call, "time_s"));
        double gbps = json_number_value(json_object_get(call, "algbw_gbps"));
        note_call(&parts[part], gbps);
        add_call(&interval, call, gbps, json_number_value(json_object_get(call, "time_us")) / 1e6);
        interval.end_s = now;
        if (now - interval.start_s >= INTERVAL_S) {
            parts[part].share = interval.share_sums[0] / interval.calls;
            demo_show_interval(&interval, &demo->names, full_gbps);
            interval = (struct demo_interval){.start_s = now};
        }
        if (fine && part + 1 < part_count && now >= PHASE_S * (part + 1))
            fine = change_link(demo, ++part);
    }
    return fine;
}

static void sum_up(struct part parts[3], int part_count)
{
    static const char *const titles[] = {"before", "halved", "restored"};
    printf("\n");
    for (int p = 0; p < part_count; p++) {
        int skipped = parts[p].calls_to > 0 ? parts[p].calls_to : 0;
        double reached = median_after(&parts[p], skipped);
        if (part_count == 1)
            continue;
        printf("  %-9s %.3f GB/s, %.2f of the sum of the links; eth0 carries %.0f%%", titles[p], reached,
               parts[p].wanted_gbps > 0 ? reached / parts[p].wanted_gbps : 0, 100 * parts[p].share);
        if (p && parts[p].calls_to > 0)
            printf("; at 0.9 of the sum after %d call%s", parts[p].calls_to, parts[p].calls_to == 1 ? "" : "s");
        else if (p)
            printf("; did not reach 0.9 of the sum");
        printf("\n");
    }
}

static int follow(struct demo *demo, const struct demo_comparison *all_reduce)
{
    static struct part parts[3];
    bool lab = *demo->lab;
    int part_count = lab ? 3 : 1;
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%.0f", lab ? 3 * PHASE_S : STEADY_S);
    double full = 0;
    for (int p = 0; p < all_reduce->single_count; p++)
        full += all_reduce->singles[p].gbps;
    for (int p = 0; p < 3; p++)
        parts[p] = (struct part){.calls_to = -1, .wanted_gbps = full - (p == 1 ? all_reduce->singles[0].gbps / 2 : 0)};
    printf("\nAllReduce of 64 MiB over all paths, again and again%s\n",
           lab ? "; then the 4 Gbit/s link is halved, and later restored" : "");

    struct words words = {0};
    say_launcher(demo, &words);
    const char *const bench[] = {"bench",     "all_reduce", "-l",         "64M", "--follow", "--interval", "0",
                                 "--seconds", seconds,      "--in-place", "no",  "--json",   NULL};
    say_all(&words, bench);
    FILE *calls;
    pid_t pid = start(demo, &words, &calls);
    if (pid < 0 || !calls) {
        fprintf(stderr, "polypath demo: cannot start %s: %s\n", demo->program, strerror(errno));
        return CLI_FAILURE;
    }
    bool fine = watch(demo, calls, parts, part_count, full);
    fclose(calls);
    int status = finish(pid);
    if (!status)
        sum_up(parts, part_count);
    return status ? status : fine ? CLI_SUCCESS : CLI_FAILURE;
}

/* ------------------------------------------------------------- command line */

static void introduce(bool lab)
{
    if (lab)
        printf("Polypath demo: two hosts on this machine joined by links of 4, 2 and 1 Gbit/s. It shows what AllReduce "
               "and AllGather\nof 64 MiB reach over each link alone and over all of them at once, and how the shares "
               "follow when a link is halved.\nAbout a minute.\n");
    else
        printf("Polypath demo: two ranks on this machine. It shows what AllReduce and AllGather of 64 MiB reach over "
               "each path alone\nand over all of them at once. Half a minute.\n");
    if (!lab && geteuid() != 0)
        printf("As root it would show two hosts joined by links of 4, 2 and 1 Gbit/s, one of which is halved while it "
               "runs.\n");
    fflush(stdout);
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    bool *one_host = state->input;
    (void)argument;
    switch (key) {
    case 'o': *one_host = true; return 0;
    case ARGP_KEY_ARG: argp_error(state, "it takes no arguments"); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cli_demo(int argc, char **argv)
{
    static const struct argp_option option_table[] = {{"one-host", 'o', 0, 0, "do not make a lab, also when root", 0},
                                                      {0}};
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .doc = "Shows the main job in about a minute: collectives over every path at once, against each path alone, "
               "and shares that follow when a link changes. As root on a lab of two hosts, else on the paths of this "
               "one."};
    bool one_host = false;
    if (argp_parse(&argp, argc, argv, 0, NULL, &one_host))
        return CLI_FAILURE;
    struct demo demo = {0};
    ssize_t length = readlink("/proc/self/exe", demo.program, sizeof demo.program - 1);
    if (length <= 0) {
        fprintf(stderr, "polypath demo: cannot find this program: %s\n", strerror(errno));
        return CLI_FAILURE;
    }
    if (geteuid() == 0 && !one_host)
        snprintf(demo.lab, sizeof demo.lab, "demo-%d", (int)getpid());
    struct demo_comparison all_reduce = {0};
    int shown = 0;
    introduce(*demo.lab);
    int status = compare(&demo, &all_reduce, &shown);
    if (status && !shown && *demo.lab) {
        printf("\nThe lab could not be made (see above), so this is the same on one host.\n");
        demo.lab[0] = 0;
        introduce(false);
        status = compare(&demo, &all_reduce, &shown);
    }
    return status ? status : follow(&demo, &all_reduce);
}
