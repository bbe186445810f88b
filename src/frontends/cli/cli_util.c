/*
 * Text, numbers and tables for the sub-commands. Nothing here talks to the
 * library or to other processes.
 */
#include "frontends/cli/cli_util.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void *cli_allocate(size_t bytes)
{
    return cli_resize(NULL, bytes);
}

void *cli_resize(void *old, size_t bytes)
{
    void *block = realloc(old, bytes ? bytes : 1);
    if (!block) {
        fprintf(stderr, "polypath: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return block;
}

/* ------------------------------------------------------------------ numbers */

/* Reads one size from the start of `text`; *end is where it stopped. */
static bool scan_bytes(const char *text, const char **end, size_t *bytes)
{
    if (!isdigit((unsigned char)*text))
        return false;
    char *after;
    errno = 0;
    unsigned long long value = strtoull(text, &after, 10);
    if (errno || value > SIZE_MAX)
        return false;
    unsigned shift = 0;
    switch (toupper((unsigned char)*after)) {
    case 'K': shift = 10; break;
    case 'M': shift = 20; break;
    case 'G': shift = 30; break;
    case 'T': shift = 40; break;
    default: break;
    }
    after += shift != 0;
    if (shift && tolower((unsigned char)after[0]) == 'i' && toupper((unsigned char)after[1]) == 'B')
        after += 2;
    else if (toupper((unsigned char)after[0]) == 'B')
        after++;
    if (value > (SIZE_MAX >> shift))
        return false;
    *bytes = (size_t)value << shift;
    *end = after;
    return true;
}

bool cli_parse_bytes(const char *text, size_t *bytes)
{
    const char *end;
    size_t value;
    if (!scan_bytes(text, &end, &value) || *end)
        return false;
    *bytes = value;
    return true;
}

bool cli_parse_size_list(const char *text, size_t **sizes, size_t *count)
{
    size_t *list = NULL, n = 0;
    const char *end = text;
    for (;; text = end + 1) {
        list = cli_resize(list, (n + 1) * sizeof *list);
        if (!scan_bytes(text, &end, &list[n]) || (*end && *end != ',')) {
            free(list);
            return false;
        }
        n++;
        if (!*end)
            break;
    }
    *sizes = list;
    *count = n;
    return true;
}

bool cli_parse_int(const char *text, int minimum, int maximum, int *value)
{
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno || end == text || *end || number < minimum || number > maximum)
        return false;
    *value = (int)number;
    return true;
}

bool cli_parse_seconds(const char *text, double *seconds)
{
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !isfinite(number) || number < 0)
        return false;
    *seconds = number;
    return true;
}

void cli_format_bytes(size_t bytes, char *text, size_t room)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(text, room, value == floor(value) ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct cli_spread cli_spread_of(double *values, size_t count)
{
    struct cli_spread spread = {0};
    if (!count)
        return spread;
    qsort(values, count, sizeof *values, compare_doubles);
    size_t high = (count * 9 + 9) / 10; /* nearest rank: ceil(0.9 n) */
    spread.min = values[0];
    spread.median = count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
    spread.p90 = values[high - 1];
    return spread;
}

uint64_t cli_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ----------------------------------------------------------------- terminal */

bool cli_is_utf8(void)
{
    const char *name = getenv("LC_ALL");
    if (!name || !*name)
        name = getenv("LC_CTYPE");
    if (!name || !*name)
        name = getenv("LANG");
    return name && (strcasestr(name, "utf-8") || strcasestr(name, "utf8"));
}

void cli_bar(FILE *out, double fraction, int width)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    double clipped = fraction < 0 || isnan(fraction) ? 0 : fraction > 1 ? 1 : fraction;
    bool blocks = cli_is_utf8();
    int units = (int)(clipped * width * (blocks ? 8 : 1) + 0.5);
    int full = blocks ? units / 8 : units, rest = blocks ? units % 8 : 0;
    for (int i = 0; i < full; i++)
        fputs(blocks ? "█" : "#", out);
    fputs(eighths[rest], out);
    fprintf(out, "%*s", width - full - (rest != 0), "");
}

bool cli_is_terminal(FILE *out)
{
    const char *term = getenv("TERM"), *plain = getenv("NO_COLOR");
    return isatty(fileno(out)) && term && strcmp(term, "dumb") && !(plain && *plain);
}

const char *cli_style(bool on, const char *sequence)
{
    return on ? sequence : "";
}

/* ------------------------------------------------------------------- tables */

static void add_cell(struct cli_table *table, char *text)
{
    if (table->cell_count == table->capacity) {
        table->capacity = table->capacity ? 2 * table->capacity : 64;
        table->cells = cli_resize(table->cells, table->capacity * sizeof *table->cells);
    }
    table->cells[table->cell_count++] = text;
}

void cli_table_heading(struct cli_table *table, const char *text, bool right)
{
    if (table->columns < sizeof table->right / sizeof table->right[0]) {
        table->right[table->columns++] = right;
        cli_table_cell(table, "%s", text);
    }
}

void cli_table_cell(struct cli_table *table, const char *format, ...)
{
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) {
        fprintf(stderr, "polypath: no memory\n");
        exit(1);
    }
    va_end(arguments);
    add_cell(table, text);
}

/* Columns on the screen: bytes that do not continue a UTF-8 character. */
static int display_width(const char *text)
{
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xC0) != 0x80;
    return width;
}

void cli_table_print(const struct cli_table *table, FILE *out, const char *indent, bool styled)
{
    int widths[sizeof table->right / sizeof table->right[0]] = {0};
    for (size_t i = 0; i < table->cell_count; i++) {
        int width = display_width(table->cells[i]);
        if (width > widths[i % table->columns])
            widths[i % table->columns] = width;
    }
    for (size_t i = 0; i < table->cell_count; i++) {
        size_t column = i % table->columns;
        bool last = column + 1 == table->columns, heading = i < table->columns;
        int padding = widths[column] - display_width(table->cells[i]);
        if (column == 0)
            fprintf(out, "%s%s", indent, cli_style(styled && heading, CLI_BOLD));
        if (table->right[column])
            fprintf(out, "%*s%s", padding, "", table->cells[i]);
        else
            fprintf(out, "%s%*s", table->cells[i], last ? 0 : padding, "");
        if (last)
            fprintf(out, "%s\n", cli_style(styled && heading, CLI_RESET));
        else
            fputs("  ", out);
    }
}

void cli_table_free(struct cli_table *table)
{
    for (size_t i = 0; i < table->cell_count; i++)
        free(table->cells[i]);
    free(table->cells);
    memset(table, 0, sizeof *table);
}
