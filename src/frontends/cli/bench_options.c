/*
 * The command line of `polypath bench`. Every rank reads the same one, so
 * nothing here needs to be agreed on.
 */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/cli/bench.h"

enum {
    KEY_IN_PLACE = 0x100,
    KEY_PATHS,
    KEY_COMPARE,
    KEY_SECONDS,
    KEY_CHECK,
    KEY_JSON,
    KEY_CSV,
    KEY_PLOT,
    KEY_FLAG,
    KEY_FOLLOW,
    KEY_INTERVAL
};

static const struct argp_option option_table[] = {
    {0, 0, 0, 0, "What is measured", 1},
    {"min-bytes", 'b', "SIZE", 0, "smallest size (8)", 0},
    {"max-bytes", 'e', "SIZE", 0, "largest size (64M, or the smallest if that is larger)", 0},
    {"factor", 'f', "N", 0, "each size is N times the one before (2)", 0},
    {"sizes", 'l', "LIST", 0, "these sizes, for example 0,8,64K,16M", 0},
    {"type", 'd', "TYPE", 0,
     "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 float8_e4m3 "
     "float8_e5m2, several with commas, or all (float32)",
     0},
    {"op", 'o', "OP", 0, "sum prod max min avg, several with commas, or all (sum)", 0},
    {"root", 'r', "RANK", 0, "root, or all for every rank in turn (0)", 0},
    {"in-place", KEY_IN_PLACE, "yes|no|both", 0, "where the result goes (both)", 0},
    {"paths", KEY_PATHS, "LIST", 0, "use these paths only, for example eth0,eth1", 0},
    {"compare-paths", KEY_COMPARE, 0, 0, "measure each path alone and all together, taking turns", 0},
    {0, 0, 0, 0, "How long, how carefully", 2},
    {"iterations", 'n', "N", 0, "timed blocks of each size (20, or fewer within the default time of 3 s)", 0},
    {"warmup", 'w', "N", 0, "operations before the clock starts (5)", 0},
    {"seconds", KEY_SECONDS, "S", 0, "time for each row; without -n as many blocks as fit in it", 0},
    {"check", KEY_CHECK, "yes|no", 0, "verify every element before and after the timing (yes)", 0},
    {"flag", KEY_FLAG, 0, 0, "measure the host's flag latency before and after each row", 0},
    {0, 0, 0, 0, "What comes out", 3},
    {"json", KEY_JSON, 0, 0, "one JSON object a line", 0},
    {"csv", KEY_CSV, 0, 0, "comma separated values", 0},
    {"plot", KEY_PLOT, "FILE", 0, "draw bandwidth over size into an SVG (or .png) file; needs gnuplot", 0},
    {"follow", KEY_FOLLOW, 0, 0, "repeat one size and print rate and shares as they change", 0},
    {"interval", KEY_INTERVAL, "S", 0, "with --follow: seconds between lines; 0: a line per call (0.5)", 0},
    {0},
};

/* What is noted while the options come in and becomes final at the end. */
struct reading {
    struct bench_options *options;
    size_t minimum, maximum;
    bool maximum_given, sizes_given, blocks_given, seconds_given, kind_given;
    int factor;
};

static const char *const op_names[POLYPATH_OP_COUNT] = {"sum", "prod", "max", "min", "avg"};

/* Calls take(context, word) for each entry of a comma separated list; false as soon as one is refused. */
static bool each_word(const char *list, bool (*take)(void *, const char *), void *context)
{
    char *copy = strdup(list), *rest = copy, *word;
    bool fine = copy && *copy;
    while (fine && (word = strsep(&rest, ",")))
        fine = take(context, word);
    free(copy);
    return fine;
}

static bool take_type(void *context, const char *word)
{
    struct bench_options *options = context;
    bool all = !strcmp(word, "all"), found = false;
    for (int type = 0; type < POLYPATH_TYPE_COUNT; type++) {
        if ((all || !strcmp(word, polypath_type_name(type))) && options->type_count < POLYPATH_TYPE_COUNT) {
            options->types[options->type_count++] = type;
            found = true;
        }
    }
    return found;
}

static bool take_op(void *context, const char *word)
{
    struct bench_options *options = context;
    bool all = !strcmp(word, "all"), found = false;
    for (int op = 0; op < POLYPATH_OP_COUNT; op++) {
        if ((all || !strcmp(word, op_names[op])) && options->op_count < POLYPATH_OP_COUNT) {
            options->ops[options->op_count++] = op;
            found = true;
        }
    }
    return found;
}

static bool take_kind(void *context, const char *word)
{
    struct bench_options *options = context;
    bool all = !strcmp(word, "all"), found = false;
    for (int kind = 0; kind < BENCH_KIND_COUNT; kind++) {
        if (all || !strcmp(word, bench_traits[kind].name))
            options->kinds[kind] = found = true;
    }
    return found;
}

static bool take_yes_no(const char *text, bool *value)
{
    *value = !strcmp(text, "yes");
    return *value || !strcmp(text, "no");
}

static void take_placement(struct argp_state *state, struct bench_options *options, const char *text)
{
    bool both = !strcmp(text, "both");
    options->in_place = both || !strcmp(text, "yes");
    options->out_of_place = both || !strcmp(text, "no");
    if (!options->in_place && !options->out_of_place)
        argp_error(state, "--in-place=%s: expected yes, no or both", text);
}

/* Sizes from -b to -e, each `factor` times the one before. */
static void make_sizes(struct argp_state *state, struct reading *reading)
{
    struct bench_options *options = reading->options;
    size_t largest = reading->maximum;
    if (!reading->maximum_given && largest < reading->minimum)
        largest = reading->minimum;
    if (largest < reading->minimum)
        argp_error(state, "the largest size (-e) is below the smallest (-b)");
    for (size_t size = reading->minimum; size <= largest;) {
        options->sizes = cli_resize(options->sizes, (options->size_count + 1) * sizeof *options->sizes);
        options->sizes[options->size_count++] = size;
        size_t next = size ? size * (size_t)reading->factor : 1;
        if (next / (size_t)reading->factor != size && size)
            break;
        size = next;
    }
}

static void finish(struct argp_state *state, struct reading *reading)
{
    struct bench_options *options = reading->options;
    if (!reading->kind_given)
        argp_error(state, "which collective? One of all_reduce, all_gather, reduce_scatter, broadcast, reduce, "
                          "all_to_all, gather, scatter, sendrecv, pingpong, barrier, or all");
    if (!options->type_count)
        options->types[options->type_count++] = POLYPATH_FLOAT32;
    if (!options->op_count)
        options->ops[options->op_count++] = POLYPATH_SUM;
    if (options->follow && options->compare_paths)
        argp_error(state, "--follow and --compare-paths exclude each other");
    if (options->follow && options->plot)
        argp_error(state, "--follow and --plot exclude each other");
    if (options->follow && !reading->sizes_given) {
        reading->minimum = reading->minimum == 8 ? (size_t)64 << 20 : reading->minimum;
        reading->maximum_given = false;
        reading->maximum = 0;
    }
    if (!reading->sizes_given)
        make_sizes(state, reading);
    /* Without a word on time: 20 blocks, but not for long; with a time alone, as many as fit. To follow: until
     * interrupted. */
    if (!reading->blocks_given && !reading->seconds_given) {
        options->blocks = options->follow ? 0 : 20;
        options->seconds = options->follow ? 0 : 3;
    }
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct reading *reading = state->input;
    struct bench_options *options = reading->options;
    switch (key) {
    case 'b':
        if (!cli_parse_bytes(argument, &reading->minimum))
            argp_error(state, "-b %s: expected a size such as 8, 64K or 16M", argument);
        break;
    case 'e':
        if (!cli_parse_bytes(argument, &reading->maximum))
            argp_error(state, "-e %s: expected a size such as 8, 64K or 16M", argument);
        reading->maximum_given = true;
        break;
    case 'f':
        if (!cli_parse_int(argument, 2, 1 << 20, &reading->factor))
            argp_error(state, "-f %s: expected a whole number from 2", argument);
        break;
    case 'l':
        free(options->sizes);
        options->sizes = NULL;
        options->size_count = 0;
        if (!cli_parse_size_list(argument, &options->sizes, &options->size_count))
            argp_error(state, "-l %s: expected sizes such as 8,64K,16M", argument);
        reading->sizes_given = true;
        break;
    case 'd':
        options->type_count = 0;
        if (!each_word(argument, take_type, options))
            argp_error(state, "-d %s: not a type (see --help)", argument);
        break;
    case 'o':
        options->op_count = 0;
        if (!each_word(argument, take_op, options))
            argp_error(state, "-o %s: expected sum, prod, max, min, avg or all", argument);
        break;
    case 'r':
        if (!strcmp(argument, "all"))
            options->root = -1;
        else if (!cli_parse_int(argument, -1, 1 << 20, &options->root))
            argp_error(state, "-r %s: expected a rank or all", argument);
        break;
    case 'n':
        if (!cli_parse_int(argument, 1, 100000000, &options->blocks))
            argp_error(state, "-n %s: expected a whole number from 1", argument);
        reading->blocks_given = true;
        break;
    case 'w':
        if (!cli_parse_int(argument, 0, 100000000, &options->warmup))
            argp_error(state, "-w %s: expected a whole number", argument);
        break;
    case KEY_SECONDS:
        if (!cli_parse_seconds(argument, &options->seconds) || options->seconds == 0)
            argp_error(state, "--seconds=%s: expected a number above 0", argument);
        reading->seconds_given = true;
        break;
    case KEY_INTERVAL:
        if (!cli_parse_seconds(argument, &options->interval))
            argp_error(state, "--interval=%s: expected a number of seconds", argument);
        break;
    case KEY_CHECK:
        if (!take_yes_no(argument, &options->check))
            argp_error(state, "--check=%s: expected yes or no", argument);
        break;
    case KEY_IN_PLACE: take_placement(state, options, argument); break;
    case KEY_PATHS: options->paths = *argument ? argument : NULL; break;
    case KEY_COMPARE: options->compare_paths = true; break;
    case KEY_JSON: options->format = BENCH_JSON; break;
    case KEY_CSV: options->format = BENCH_CSV; break;
    case KEY_PLOT: options->plot = argument; break;
    case KEY_FLAG: options->flag = true; break;
    case KEY_FOLLOW: options->follow = true; break;
    case ARGP_KEY_ARG:
        if (!each_word(argument, take_kind, options))
            argp_error(state, "%s: not a collective (see --help)", argument);
        reading->kind_given = true;
        break;
    case ARGP_KEY_END: finish(state, reading); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

void bench_read_options(int argc, char **argv, struct bench_options *options)
{
    static const struct argp argp = {
        option_table,
        parse,
        "COLLECTIVE...",
        "Measures collectives and verifies every result. Every rank of the job runs it, rank 0 prints; start it with "
        "polypath run, polypath lab run, mpirun, srun or torchrun.\n\n"
        "COLLECTIVE is one or more of all_reduce all_gather reduce_scatter broadcast reduce all_to_all gather scatter "
        "sendrecv pingpong barrier, or all.\v"
        "Sizes and bandwidths are those of nccl-tests: the size is that of the larger buffer; algbw is size / time; "
        "busbw multiplies it by 2(n-1)/n for all_reduce, by (n-1)/n where there is a block per rank, and by 1 "
        "elsewhere. The time is the median over blocks of operations, of the slowest rank.\n\n"
        "Example: polypath run -n 2 -- polypath bench all_reduce -b 8 -e 64M",
        NULL,
        NULL,
        NULL};
    *options =
        (struct bench_options){.warmup = 5, .out_of_place = true, .in_place = true, .check = true, .interval = 0.5};
    struct reading reading = {.options = options, .minimum = 8, .maximum = (size_t)64 << 20, .factor = 2};
    argp_parse(&argp, argc, argv, 0, NULL, &reading);
}
