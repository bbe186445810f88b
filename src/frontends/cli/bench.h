/*
 * What the parts of `polypath bench` share: the collectives it knows, one
 * point of measurement, its result, and the options. bench.c plans the run,
 * bench_options.c reads the command line, bench_data.c makes and checks data,
 * bench_run.c measures, bench_follow.c watches one size over time,
 * bench_print.c and bench_plot.c show, bench_flag.c measures the host.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "frontends/cli/cli_util.h"
#include "polypath/polypath.h"

#define BENCH_PATHS_MAX 32
#define BENCH_NAME_BYTES 64

/* ------------------------------------------------------------- collectives */

enum bench_kind {
    BENCH_ALL_REDUCE,
    BENCH_ALL_GATHER,
    BENCH_REDUCE_SCATTER,
    BENCH_BROADCAST,
    BENCH_REDUCE,
    BENCH_ALL_TO_ALL,
    BENCH_GATHER,
    BENCH_SCATTER,
    BENCH_SENDRECV,
    BENCH_PINGPONG,
    BENCH_BARRIER,
    BENCH_KIND_COUNT
};

/* busbw = algbw times this: 2(n-1)/n, (n-1)/n or 1. */
enum bench_factor { BENCH_FACTOR_TWICE, BENCH_FACTOR_ONCE, BENCH_FACTOR_UNIT };

struct bench_traits {
    const char *name;
    polypath_collective_t collective; /* whose shares and algorithm belong to it */
    bool reduces, rooted, has_in_place;
    bool send_blocks, recv_blocks; /* a block per rank in that buffer */
    enum bench_factor factor;
};
extern const struct bench_traits bench_traits[BENCH_KIND_COUNT];

/* One measurement: a collective at one size, type, op, root and placement. */
struct bench_point {
    enum bench_kind kind;
    polypath_type_t type;
    polypath_op_t op;
    int root;
    bool in_place;
    size_t count; /* the collective's count argument */
    size_t bytes; /* as nccl-tests counts it: the larger of the two buffers */
};

/*
 * Sets count and bytes of a point from the wanted size: at least one element
 * (per rank, where there are blocks) unless the size is 0.
 */
void bench_size_point(struct bench_point *point, size_t bytes, int ranks);

/* GB/s as nccl-tests defines them. 0 for time 0. */
double bench_algbw(const struct bench_point *point, double time_us);
double bench_busbw(const struct bench_point *point, double time_us, int ranks);

/* Operations between two looks at the clock. */
int bench_block_operations(size_t bytes);

/* -------------------------------------------------------------------- data */

#define BENCH_PATTERN_PERIOD 262139 /* elements; prime, so that a block in the wrong place does not look right */

/*
 * The deterministic data of a point. Where the collective reduces, the values
 * are small integers whose reduction is exact in the type over any number of
 * ranks and in any order; elsewhere they are arbitrary bits.
 */
struct bench_pattern {
    polypath_type_t type;
    polypath_op_t op;
    bool reduces;
    int ranks;
    uint64_t salt;
};

/* Writes elements [start, start + count) of `rank`'s send buffer to data. */
void bench_fill(const struct bench_pattern *pattern, void *data, size_t count, int rank, size_t start);

/*
 * How many elements of data differ from elements [start, start + count) of
 * `source`'s send buffer, or of the reduction over all ranks if source is
 * BENCH_REDUCED.
 */
#define BENCH_REDUCED (-1)
size_t bench_count_wrong(const struct bench_pattern *pattern, const void *data, size_t count, int source, size_t start);

/* ----------------------------------------------------------------- options */

enum bench_format { BENCH_TABLE, BENCH_JSON, BENCH_CSV };

struct bench_options {
    bool kinds[BENCH_KIND_COUNT];
    size_t *sizes;
    size_t size_count;
    polypath_type_t types[POLYPATH_TYPE_COUNT];
    int type_count;
    polypath_op_t ops[POLYPATH_OP_COUNT];
    int op_count;
    int blocks;     /* timed blocks; 0: until `seconds` have passed */
    double seconds; /* of one row; 0: no limit */
    int warmup;
    int root; /* -1: every rank in turn */
    bool out_of_place, in_place;
    const char *paths; /* NULL: all */
    bool compare_paths;
    bool check;
    enum bench_format format;
    const char *plot;
    bool flag;
    bool follow;
    double interval;
};

/* Fills options from the command line; ends the program with a message if it is wrong. */
void bench_read_options(int argc, char **argv, struct bench_options *options);

/* ------------------------------------------------------------------ results */

struct bench_result {
    struct bench_point point;
    char paths[BENCH_NAME_BYTES * 4]; /* the path set, comma separated */
    char label[BENCH_NAME_BYTES];     /* how the table names it: one path's name, or "all" */
    char algorithm[BENCH_NAME_BYTES];
    struct cli_spread time_us;
    double algbw_gbps, busbw_gbps; /* of the median */
    int blocks, operations;        /* timed blocks; operations in each */
    bool checked;
    uint64_t wrong;
    double shares[BENCH_PATHS_MAX];
    double flag_before_us, flag_after_us; /* < 0: not measured */
    double ratio_to_sum, ratio_to_best;   /* of all paths together; 0: not that row */
};

/* A list of results that grows. */
struct bench_results {
    struct bench_result *list;
    size_t count, capacity;
};
void bench_keep(struct bench_results *results, const struct bench_result *result);

/* One set of paths that is measured. */
struct bench_path_set {
    const char *names; /* for polypath_comm_use_paths; NULL: all */
    char list[BENCH_NAME_BYTES * 4];
    char label[BENCH_NAME_BYTES];
};

struct bench_flag;

/* Everything one rank needs while it runs. */
struct bench_session {
    const struct bench_options *options;
    polypath_comm_t comm;
    int rank, size;
    int path_count; /* 0 for one rank */
    polypath_path_info_t paths[BENCH_PATHS_MAX];
    struct bench_path_set sets[BENCH_PATHS_MAX + 1];
    int set_count;
    void *send, *recv; /* buffer_bytes each */
    size_t buffer_bytes;
    struct bench_flag *flag; /* NULL: not asked for, not rank 0, or more than one machine */
    uint64_t salt;           /* of the data last written */
    uint64_t started_ns;
    size_t rows_done, rows_planned;
    uint64_t wrong; /* over the whole run and all ranks */
};

/* --------------------------------------------------------------- measuring */

/*
 * Collective. Measures a point over each of the session's path sets in turn,
 * round robin; results has set_count entries. Ends the program if the library
 * reports an error.
 */
void bench_measure(struct bench_session *session, const struct bench_point *point, struct bench_result *results);

/* Repeats one point and prints a line per interval. Returns when the time is over or at SIGINT, on all ranks. */
void bench_follow(struct bench_session *session, const struct bench_point *point);

/* Runs `operations` of the point back to back on the session's buffers. */
void bench_operate(struct bench_session *session, const struct bench_point *point, int operations);

/* Writes fresh data, runs one operation and returns the wrong elements of this rank. */
uint64_t bench_check_once(struct bench_session *session, const struct bench_point *point);

/* The largest of each value over all ranks, on all ranks; or the sum. */
void bench_agree_max(struct bench_session *session, double *values, size_t count);
uint64_t bench_agree_sum(struct bench_session *session, uint64_t value);

/* Ends the program with the library's message if result is an error. */
void bench_must(struct bench_session *session, polypath_result_t result, const struct bench_point *point);

/* ---------------------------------------------------------------- flag, output */

/* Starts the helper process; call before anything starts threads. NULL if the process has only one core. */
struct bench_flag *bench_flag_start(void);
/* Half a round trip of a flag in shared memory between two pinned processes, in microseconds; < 0 if it failed. */
double bench_flag_measure(struct bench_flag *flag);
void bench_flag_stop(struct bench_flag *flag);

/* Heading, one row per point (either of the two may be NULL), what is said at the end. Rank 0 only. */
void bench_print_intro(const struct bench_session *session);
void bench_print_heading(const struct bench_session *session, enum bench_kind kind);
void bench_print_row(const struct bench_session *session, const struct bench_result *out_of_place,
                     const struct bench_result *in_place);
void bench_print_ratio(const struct bench_session *session, const struct bench_result *out_of_place,
                       const struct bench_result *in_place);
void bench_print_end(const struct bench_session *session, double busbw_sum, size_t busbw_count);

/* The progress bar on standard error: drawn if that is a terminal and the run is long; taken away before a row. */
void bench_progress(const struct bench_session *session, const struct bench_point *point, double fraction);
void bench_progress_clear(void);

/* Whether gnuplot is there and the file can be written; prints why not. */
bool bench_plot_possible(const char *file);
/* Draws all results; prints why not and returns false if it fails. */
bool bench_plot(const char *file, const struct bench_results *results, int ranks);

#endif
