/*
 * `bench --follow`: one collective at one size, over and over, and a line per
 * interval with the rate and the shares, so that the balancer can be watched
 * while a link changes. All ranks stop at the same call, whoever wants to.
 */
#include <jansson.h>
#include <signal.h>
#include <string.h>

#include "frontends/cli/bench.h"

static volatile sig_atomic_t stop_wanted;

static void want_stop(int signal_number)
{
    (void)signal_number;
    stop_wanted = 1;
}

/* What has happened since the last line. */
struct interval {
    double seconds; /* spent inside operations, slowest rank */
    size_t calls;
    double share_sums[BENCH_PATHS_MAX];
    size_t share_calls;
};

static void put_heading(const struct bench_session *session, const struct bench_point *point)
{
    if (session->options->format == BENCH_JSON)
        return;
    bool csv = session->options->format == BENCH_CSV;
    if (csv) {
        printf("time_s,calls,time_us,algbw_gbps,busbw_gbps");
    } else {
        char size[32];
        cli_format_bytes(point->bytes, size, sizeof size);
        printf("# following %s of %s on %d ranks\n", bench_traits[point->kind].name, size, session->size);
        printf("# %8s %7s %10s %8s %8s", "time (s)", "calls", "call (us)", "algbw", "busbw");
    }
    for (int p = 0; p < session->path_count; p++)
        printf(csv ? ",share_%s" : " %8s", session->paths[p].name);
    printf(csv ? "\n" : "  (GB/s, shares in %%)\n");
    fflush(stdout);
}

static void put_json(const struct bench_session *session, const struct bench_point *point, double now_s, size_t calls,
                     double time_us, const double *shares)
{
    json_t *row =
        json_pack("{s:f, s:s, s:I, s:I, s:f, s:f, s:f}", "time_s", now_s, "collective", bench_traits[point->kind].name,
                  "bytes", (json_int_t)point->bytes, "calls", (json_int_t)calls, "time_us", time_us, "algbw_gbps",
                  bench_algbw(point, time_us), "busbw_gbps", bench_busbw(point, time_us, session->size));
    json_t *object = json_object();
    for (int p = 0; p < session->path_count; p++)
        json_object_set_new(object, session->paths[p].name, json_real(shares[p]));
    json_object_set_new(row, "shares", object);
    polypath_statistics_t statistics;
    if (polypath_comm_statistics(session->comm, &statistics) == POLYPATH_SUCCESS)
        json_object_set_new(row, "share_changes", json_integer((json_int_t)statistics.share_changes));
    json_dumpf(row, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(row);
}

static void put_line(const struct bench_session *session, const struct bench_point *point,
                     const struct interval *interval, double now_s)
{
    double time_us = interval->seconds * 1e6 / (double)interval->calls, shares[BENCH_PATHS_MAX] = {0};
    double algbw = bench_algbw(point, time_us), busbw = bench_busbw(point, time_us, session->size);
    for (int p = 0; p < session->path_count; p++)
        shares[p] = interval->share_sums[p] / (double)interval->share_calls;
    switch (session->options->format) {
    case BENCH_JSON: put_json(session, point, now_s, interval->calls, time_us, shares); break;
    case BENCH_CSV:
        printf("%.3f,%zu,%.6g,%.6g,%.6g", now_s, interval->calls, time_us, algbw, busbw);
        for (int p = 0; p < session->path_count; p++)
            printf(",%.4f", shares[p]);
        printf("\n");
        break;
    case BENCH_TABLE:
        printf("  %8.2f %7zu %10.1f %8.4f %8.4f", now_s, interval->calls, time_us, algbw, busbw);
        for (int p = 0; p < session->path_count; p++)
            printf(" %8.1f", 100 * shares[p]);
        if (cli_is_terminal(stdout) && session->path_count) {
            printf("  ");
            cli_bar(stdout, shares[0], 20);
        }
        printf("\n");
        break;
    }
    fflush(stdout);
}

void bench_follow(struct bench_session *session, const struct bench_point *point)
{
    const struct bench_options *options = session->options;
    struct sigaction action = {.sa_handler = want_stop}, old_int, old_term;
    sigaction(SIGINT, &action, &old_int);
    sigaction(SIGTERM, &action, &old_term);

    uint64_t wrong = bench_check_once(session, point);
    if (session->rank == 0)
        put_heading(session, point);
    int operations = bench_block_operations(point->bytes);
    struct interval interval = {0};
    uint64_t start = cli_now_ns(), line_ns = start;
    size_t blocks = 0;
    for (bool over = false; !over; blocks++) {
        uint64_t block_start = cli_now_ns();
        bench_operate(session, point, operations);
        uint64_t block_end = cli_now_ns();
        double shares[BENCH_PATHS_MAX] = {0};
        if (session->path_count)
            bench_must(
                session,
                polypath_comm_shares(session->comm, bench_traits[point->kind].collective, shares, session->path_count),
                point);
        double now_s = (double)(block_end - start) / 1e9;
        bool enough = (options->seconds > 0 && now_s >= options->seconds) ||
                      (options->blocks > 0 && blocks + 1 >= (size_t)options->blocks && options->seconds == 0);
        /* One small AllReduce: the slowest rank's time, and whether anybody wants to stop. */
        double agreed[2] = {(double)(block_end - block_start) / 1e9, stop_wanted || enough};
        bench_agree_max(session, agreed, 2);
        over = agreed[1] > 0;
        interval.seconds += agreed[0];
        interval.calls += (size_t)operations;
        interval.share_calls++;
        for (int p = 0; p < session->path_count; p++)
            interval.share_sums[p] += shares[p];
        if (session->rank == 0 && (over || (double)(block_end - line_ns) / 1e9 >= options->interval)) {
            put_line(session, point, &interval, now_s);
            interval = (struct interval){0};
            line_ns = block_end;
        }
    }
    wrong += bench_check_once(session, point);
    if (options->check)
        session->wrong += bench_agree_sum(session, wrong);
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
}
