/*
 * What the sub-commands share: sizes as text, statistics, aligned tables,
 * bars. Pure but for the printing; knows nothing of communicators.
 */
#ifndef CLI_UTIL_H
#define CLI_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* "8", "64K", "4M", "1G", also with iB or B behind; the units are powers of 1024. False if it is anything else. */
bool cli_parse_bytes(const char *text, size_t *bytes);

/* A comma separated list of such sizes. *sizes is the caller's to free. False if an entry is wrong or none is there. */
bool cli_parse_size_list(const char *text, size_t **sizes, size_t *count);

/* A whole number in [minimum, maximum]; a number of seconds that is finite and not negative. */
bool cli_parse_int(const char *text, int minimum, int maximum, int *value);
bool cli_parse_seconds(const char *text, double *seconds);

/* "8 B", "64 KiB", "1.5 MiB": whole where it is whole, else one decimal. */
void cli_format_bytes(size_t bytes, char *text, size_t room);

/* Smallest, middle and 90th percentile (nearest rank). Sorts `values`; all zero for count 0. */
struct cli_spread {
    double min, median, p90;
};
struct cli_spread cli_spread_of(double *values, size_t count);

/* Monotonic time. */
uint64_t cli_now_ns(void);

/* A bar of `width` characters, `fraction` of them filled; UTF-8 blocks in eighths, or '#' where the locale has none. */
void cli_bar(FILE *out, double fraction, int width);

/* Whether text of `out` may be coloured or rewritten: a terminal that is not dumb, and NO_COLOR is not set. */
bool cli_is_terminal(FILE *out);

/* Whether the environment says that text is UTF-8. */
bool cli_is_utf8(void);

/* The escape sequence if `on`, else "". */
const char *cli_style(bool on, const char *sequence);
#define CLI_BOLD "\033[1m"
#define CLI_DIM "\033[2m"
#define CLI_GREEN "\033[32m"
#define CLI_YELLOW "\033[33m"
#define CLI_RED "\033[31m"
#define CLI_CYAN "\033[36m"
#define CLI_RESET "\033[0m"

/*
 * A table that is printed when it is complete, its columns as wide as their
 * longest cell. The first row is the heading. A cell may be any text without a
 * line break; columns whose heading was added with `right` are set right.
 */
struct cli_table {
    char **cells;
    size_t cell_count, capacity;
    size_t columns;
    bool right[16];
};
void cli_table_heading(struct cli_table *table, const char *text, bool right);
void cli_table_cell(struct cli_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_table_print(const struct cli_table *table, FILE *out, const char *indent, bool styled);
void cli_table_free(struct cli_table *table);

/* As malloc and realloc, but end the program with a message when there is no memory. */
void *cli_allocate(size_t bytes);
void *cli_resize(void *old, size_t bytes);

#endif
