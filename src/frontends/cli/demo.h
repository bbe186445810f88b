/*
 * What the two halves of `polypath demo` share: demo.c starts the benchmarks
 * and reads their JSON, demo_show.c draws it.
 */
#ifndef CLI_DEMO_H
#define CLI_DEMO_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define DEMO_PATHS 8

/* What one path, or all of them, reached in one collective. */
struct demo_bar {
    char label[96];
    double gbps;
    double shares[DEMO_PATHS]; /* of all together; in the order of the singles */
};

/* One collective over each path and over all. */
struct demo_comparison {
    char collective[32];
    struct demo_bar singles[DEMO_PATHS], all;
    int single_count;
    double ratio_to_sum, ratio_to_best;
    long long wrong;
};

/* A stretch of the run that is followed: calls of the same half second. */
struct demo_interval {
    double start_s, end_s, seconds, gbps_sum;
    int calls;
    double share_sums[DEMO_PATHS];
};

/* The rows of one comparison as they come; true when the row of all paths together is in. */
bool demo_take_row(struct demo_comparison *comparison, const json_t *row);

/* "the 4 Gbit/s link" for a path of the lab; its own name otherwise. */
struct demo_names {
    char names[DEMO_PATHS][32]; /* of the paths, in order */
    double gbits[DEMO_PATHS];   /* rate of the link in the lab; 0: not a lab */
    int count;
};

void demo_show_comparison(const struct demo_comparison *comparison, const struct demo_names *names);
void demo_show_interval(const struct demo_interval *interval, const struct demo_names *names, double full_gbps);
void demo_show_event(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
