/*
 * How `polypath bench` shows rows: the columns of nccl-tests and one more per
 * path, or one JSON object a line, or comma separated values; and the progress
 * bar. Only rank 0 comes here.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/cli/bench.h"

#define PROGRESS_AFTER_S 2.0

static const char *op_name(const struct bench_point *point)
{
    static const char *const names[POLYPATH_OP_COUNT] = {"sum", "prod", "max", "min", "avg"};
    return bench_traits[point->kind].reduces ? names[point->op] : "none";
}

/* Four significant digits in the width of a column. */
static void put_number(double value, int width)
{
    int decimals = value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0;
    printf(" %*.*f", width, decimals, value);
}

static int path_width(const struct bench_session *session, int path)
{
    int length = (int)strlen(session->paths[path].name);
    return length > 6 ? length : 6;
}

/* ------------------------------------------------------------------ heading */

void bench_print_intro(const struct bench_session *session)
{
    const struct bench_options *options = session->options;
    if (options->format == BENCH_CSV) {
        printf("collective,bytes,count,type,op,root,ranks,in_place,paths,algorithm,blocks,operations,time_min_us,"
               "time_median_us,time_p90_us,algbw_gbps,busbw_gbps,wrong,flag_us");
        for (int p = 0; p < session->path_count; p++)
            printf(",share_%s", session->paths[p].name);
        printf("\n");
    }
    if (options->format != BENCH_TABLE)
        return;
    int version = polypath_version();
    printf("# polypath %d.%d.%d bench: %d rank%s", version / 10000, version / 100 % 100, version % 100, session->size,
           session->size == 1 ? "" : "s");
    for (int p = 0; p < session->path_count; p++) {
        const polypath_path_info_t *path = &session->paths[p];
        printf("%s%s (%s", p ? ", " : "; paths ", path->name, path->kind);
        if (path->bandwidth_gbps > 0)
            printf(", %.3g GB/s", path->bandwidth_gbps);
        printf(")");
    }
    printf("\n# time: median over the timed blocks, of the slowest rank; %d warm-up operation%s; results %s\n",
           options->warmup, options->warmup == 1 ? "" : "s", options->check ? "verified" : "not verified");
}

static void put_placement_titles(void)
{
    printf(" %10s %9s %9s %8s", "time", "algbw", "busbw", "#wrong");
}

static void put_placement_units(void)
{
    printf(" %10s %9s %9s %8s", "(us)", "(GB/s)", "(GB/s)", "");
}

void bench_print_heading(const struct bench_session *session, enum bench_kind kind)
{
    const struct bench_options *options = session->options;
    if (options->format != BENCH_TABLE)
        return;
    bool sets = session->set_count > 1;
    printf("#\n# %-*s", sets ? 63 : 50, bench_traits[kind].name);
    if (options->out_of_place)
        printf("   %-36s", "out-of-place");
    if (options->in_place)
        printf("   %-36s", "in-place");
    if (session->flag)
        printf(" %8s", "");
    if (session->path_count)
        printf(" share of each path");
    printf("\n# %12s %12s %12s %6s %5s", "size", "count", "type", "redop", "root");
    if (sets)
        printf(" %-12s", "paths");
    if (options->out_of_place)
        put_placement_titles();
    if (options->in_place)
        put_placement_titles();
    if (session->flag)
        printf(" %8s", "flag");
    for (int p = 0; p < session->path_count; p++)
        printf(" %*s", path_width(session, p), session->paths[p].name);
    printf("\n# %12s %12s %12s %6s %5s", "(B)", "(elements)", "", "", "");
    if (sets)
        printf(" %-12s", "");
    if (options->out_of_place)
        put_placement_units();
    if (options->in_place)
        put_placement_units();
    if (session->flag)
        printf(" %8s", "(us)");
    for (int p = 0; p < session->path_count; p++)
        printf(" %*s", path_width(session, p), "(%)");
    printf("\n");
    fflush(stdout);
}

/* --------------------------------------------------------------------- rows */

static void put_placement(const struct bench_result *result)
{
    if (!result) {
        printf(" %10s %9s %9s %8s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    put_number(result->time_us.median, 10);
    put_number(result->algbw_gbps, 9);
    put_number(result->busbw_gbps, 9);
    if (result->checked)
        printf(" %8" PRIu64, result->wrong);
    else
        printf(" %8s", "N/A");
}

static double flag_of(const struct bench_result *result)
{
    if (result->flag_before_us < 0 || result->flag_after_us < 0)
        return -1;
    return (result->flag_before_us + result->flag_after_us) / 2;
}

static void put_table_row(const struct bench_session *session, const struct bench_result *out_of_place,
                          const struct bench_result *in_place)
{
    const struct bench_options *options = session->options;
    const struct bench_result *any = out_of_place ? out_of_place : in_place;
    const struct bench_point *point = &any->point;
    char root[16] = "-1";
    if (bench_traits[point->kind].rooted)
        snprintf(root, sizeof root, "%d", point->root);
    printf("  %12zu %12zu %12s %6s %5s", point->bytes, point->count, polypath_type_name(point->type), op_name(point),
           root);
    if (session->set_count > 1)
        printf(" %-12s", any->label);
    if (options->out_of_place)
        put_placement(out_of_place);
    if (options->in_place)
        put_placement(in_place);
    if (session->flag) {
        if (flag_of(any) >= 0)
            printf(" %8.3f", flag_of(any));
        else
            printf(" %8s", "N/A");
    }
    for (int p = 0; p < session->path_count; p++)
        printf(" %*.1f", path_width(session, p), 100 * any->shares[p]);
    printf("\n");
}

/* Six significant digits, so that JSON shows 0.1 and not 0.10000000000000001. */
static json_t *number(double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", value);
    return json_real(atof(text));
}

static void put_json(const struct bench_session *session, const struct bench_result *result)
{
    const struct bench_point *point = &result->point;
    json_t *row = json_pack(
        "{s:s, s:I, s:I, s:s, s:s, s:i, s:b, s:{s:o, s:o, s:o}, s:o, s:o, s:o}", "collective",
        bench_traits[point->kind].name, "bytes", (json_int_t)point->bytes, "count", (json_int_t)point->count, "type",
        polypath_type_name(point->type), "op", op_name(point), "ranks", session->size, "in_place", point->in_place,
        "time_us", "min", number(result->time_us.min), "median", number(result->time_us.median), "p90",
        number(result->time_us.p90), "algbw_gbps", number(result->algbw_gbps), "busbw_gbps", number(result->busbw_gbps),
        "wrong", result->checked ? json_integer((json_int_t)result->wrong) : json_null());
    json_t *shares = json_object();
    for (int p = 0; p < session->path_count; p++)
        json_object_set_new(shares, session->paths[p].name, number(result->shares[p]));
    json_object_set_new(row, "shares", shares);
    json_object_set_new(row, "algorithm", json_string(result->algorithm));
    json_object_set_new(row, "paths", json_string(result->paths));
    json_object_set_new(row, "root", bench_traits[point->kind].rooted ? json_integer(point->root) : json_null());
    json_object_set_new(row, "blocks", json_integer(result->blocks));
    json_object_set_new(row, "operations_per_block", json_integer(result->operations));
    if (flag_of(result) >= 0) {
        json_object_set_new(row, "flag_us", number(flag_of(result)));
        json_object_set_new(row, "flag_before_us", number(result->flag_before_us));
        json_object_set_new(row, "flag_after_us", number(result->flag_after_us));
    }
    if (result->ratio_to_sum > 0) {
        json_object_set_new(row, "ratio_to_sum", number(result->ratio_to_sum));
        json_object_set_new(row, "ratio_to_best", number(result->ratio_to_best));
    }
    json_dumpf(row, stdout, JSON_COMPACT | JSON_REAL_PRECISION(10));
    printf("\n");
    json_decref(row);
}

static void put_csv(const struct bench_session *session, const struct bench_result *result)
{
    const struct bench_point *point = &result->point;
    char root[16] = "", wrong[24] = "", flag[24] = "";
    if (bench_traits[point->kind].rooted)
        snprintf(root, sizeof root, "%d", point->root);
    if (result->checked)
        snprintf(wrong, sizeof wrong, "%" PRIu64, result->wrong);
    if (flag_of(result) >= 0)
        snprintf(flag, sizeof flag, "%.4f", flag_of(result));
    printf("%s,%zu,%zu,%s,%s,%s,%d,%d,\"%s\",%s,%d,%d,%.6g,%.6g,%.6g,%.6g,%.6g,%s,%s", bench_traits[point->kind].name,
           point->bytes, point->count, polypath_type_name(point->type), op_name(point), root, session->size,
           point->in_place, result->paths, result->algorithm, result->blocks, result->operations, result->time_us.min,
           result->time_us.median, result->time_us.p90, result->algbw_gbps, result->busbw_gbps, wrong, flag);
    for (int p = 0; p < session->path_count; p++)
        printf(",%.4f", result->shares[p]);
    printf("\n");
}

void bench_print_row(const struct bench_session *session, const struct bench_result *out_of_place,
                     const struct bench_result *in_place)
{
    const struct bench_result *each[2] = {out_of_place, in_place};
    bench_progress_clear();
    if (session->options->format == BENCH_TABLE)
        put_table_row(session, out_of_place, in_place);
    for (int i = 0; i < 2 && session->options->format != BENCH_TABLE; i++) {
        if (each[i] && session->options->format == BENCH_JSON)
            put_json(session, each[i]);
        else if (each[i])
            put_csv(session, each[i]);
    }
    fflush(stdout);
}

static void put_ratio(const struct bench_result *all, const char *placement)
{
    if (all && all->ratio_to_sum > 0)
        printf("#   %s: all paths together reach %.3f of the sum of the single paths, %.3f of the best of them\n",
               placement, all->ratio_to_sum, all->ratio_to_best);
}

void bench_print_ratio(const struct bench_session *session, const struct bench_result *out_of_place,
                       const struct bench_result *in_place)
{
    if (session->options->format != BENCH_TABLE)
        return;
    put_ratio(out_of_place, "out-of-place");
    put_ratio(in_place, "in-place");
    fflush(stdout);
}

void bench_print_end(const struct bench_session *session, double busbw_sum, size_t busbw_count)
{
    if (session->options->format != BENCH_TABLE)
        return;
    printf("#\n");
    if (session->options->check)
        printf("# Wrong elements    : %" PRIu64 " %s\n", session->wrong, session->wrong ? "FAILED" : "OK");
    if (busbw_count)
        printf("# Avg bus bandwidth : %.4g GB/s\n", busbw_sum / (double)busbw_count);
    fflush(stdout);
}

/* ----------------------------------------------------------------- progress */

static bool progress_drawn;

void bench_progress(const struct bench_session *session, const struct bench_point *point, double fraction)
{
    double elapsed = (double)(cli_now_ns() - session->started_ns) / 1e9;
    if (session->rank || !session->rows_planned || elapsed < PROGRESS_AFTER_S || !cli_is_terminal(stderr))
        return;
    char size[32];
    cli_format_bytes(point->bytes, size, sizeof size);
    double done = ((double)session->rows_done + fmin(fraction, 1)) / (double)session->rows_planned;
    fprintf(stderr, "\r\033[K");
    cli_bar(stderr, done, 30);
    fprintf(stderr, " %3.0f%%  %s %s, %.0f s", 100 * done, bench_traits[point->kind].name, size, elapsed);
    fflush(stderr);
    progress_drawn = true;
}

void bench_progress_clear(void)
{
    if (progress_drawn)
        fprintf(stderr, "\r\033[K");
    progress_drawn = false;
}
