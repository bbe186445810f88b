/*
 * How `polypath demo` draws what the benchmarks report. Starts nothing.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "frontends/cli/cli_util.h"
#include "frontends/cli/demo.h"

#define BAR_WIDTH 36

bool demo_take_row(struct demo_comparison *comparison, const json_t *row)
{
    const char *collective = json_string_value(json_object_get(row, "collective"));
    const char *paths = json_string_value(json_object_get(row, "paths"));
    const json_t *shares = json_object_get(row, "shares"), *ratio = json_object_get(row, "ratio_to_sum"), *share;
    if (!collective || !paths)
        return false;
    bool is_all = ratio != NULL;
    if (!is_all && comparison->single_count == DEMO_PATHS)
        return false;
    struct demo_bar *bar = is_all ? &comparison->all : &comparison->singles[comparison->single_count++];
    snprintf(comparison->collective, sizeof comparison->collective, "%s", collective);
    snprintf(bar->label, sizeof bar->label, "%s", is_all ? "all together" : paths);
    bar->gbps = json_number_value(json_object_get(row, "algbw_gbps"));
    comparison->wrong += json_integer_value(json_object_get(row, "wrong"));
    const char *name;
    int p = 0;
    json_object_foreach((json_t *)shares, name, share)
    {
        if (p < DEMO_PATHS)
            bar->shares[p++] = json_number_value(share);
    }
    if (is_all) {
        comparison->ratio_to_sum = json_number_value(ratio);
        comparison->ratio_to_best = json_number_value(json_object_get(row, "ratio_to_best"));
    }
    return is_all;
}

static const char *title_of(const char *collective)
{
    return !strcmp(collective, "all_reduce")   ? "AllReduce"
           : !strcmp(collective, "all_gather") ? "AllGather"
                                               : collective;
}

static void put_bar(const char *label, double gbps, double full, const char *colour, bool styled)
{
    printf("  %-22s %s", label, cli_style(styled, colour));
    cli_bar(stdout, full > 0 ? gbps / full : 0, BAR_WIDTH);
    printf("%s %7.3f GB/s", cli_style(styled, CLI_RESET), gbps);
}

void demo_show_comparison(const struct demo_comparison *c, const struct demo_names *names)
{
    bool styled = cli_is_terminal(stdout);
    double sum = 0;
    for (int i = 0; i < c->single_count; i++)
        sum += c->singles[i].gbps;
    printf("\n%s%s of 64 MiB%s\n", cli_style(styled, CLI_BOLD), title_of(c->collective), cli_style(styled, CLI_RESET));
    for (int i = 0; i < c->single_count; i++) {
        char label[160];
        if (i < names->count && names->gbits[i] > 0)
            snprintf(label, sizeof label, "%s, %g Gbit/s", c->singles[i].label, names->gbits[i]);
        else
            snprintf(label, sizeof label, "%s alone", c->singles[i].label);
        put_bar(label, c->singles[i].gbps, sum, CLI_CYAN, styled);
        printf("\n");
    }
    put_bar("all together", c->all.gbps, sum, CLI_GREEN, styled);
    printf("   shares:");
    for (int i = 0; i < c->single_count; i++)
        printf(" %s %.0f%%", c->singles[i].label, 100 * c->all.shares[i]);
    printf("\n  %s%.2f of the sum of the single paths, %.2f of the best of them%s%s\n", cli_style(styled, CLI_BOLD),
           c->ratio_to_sum, c->ratio_to_best, cli_style(styled, CLI_RESET),
           c->wrong ? "; ELEMENTS WERE WRONG" : "; every element verified");
    fflush(stdout);
}

void demo_show_interval(const struct demo_interval *interval, const struct demo_names *names, double full_gbps)
{
    bool styled = cli_is_terminal(stdout);
    double gbps = interval->seconds > 0 ? interval->gbps_sum / interval->seconds : 0;
    printf("  %5.1f s  %s", interval->end_s, cli_style(styled, CLI_GREEN));
    cli_bar(stdout, full_gbps > 0 ? gbps / full_gbps : 0, BAR_WIDTH);
    printf("%s %6.3f GB/s  ", cli_style(styled, CLI_RESET), gbps);
    for (int p = 0; p < names->count; p++)
        printf(" %s %4.1f%%", names->names[p], 100 * interval->share_sums[p] / (interval->calls ? interval->calls : 1));
    printf("\n");
    fflush(stdout);
}

void demo_show_event(const char *format, ...)
{
    bool styled = cli_is_terminal(stdout);
    va_list arguments;
    va_start(arguments, format);
    printf("%s  -- ", cli_style(styled, CLI_YELLOW));
    vprintf(format, arguments);
    printf("%s\n", cli_style(styled, CLI_RESET));
    va_end(arguments);
    fflush(stdout);
}
