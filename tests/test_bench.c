/*
 * What `polypath bench` must not get wrong: sizes and bandwidths, statistics,
 * and data whose verification is exact for every type and notices any wrong
 * element. At the end the command itself, run on two ranks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The command line's files are not part of the library; these two are pure. */
#include "frontends/cli/bench_data.c"
#include "frontends/cli/cli_util.c"

#define COUNT 4000

/* ------------------------------------------------------------ numbers, text */

static void sizes_are_read_with_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
    } right[] = {{"0", 0},           {"8", 8},       {"64K", 65536},   {"64k", 65536}, {"4M", 4194304},
                 {"1G", 1073741824}, {"2KiB", 2048}, {"2MB", 2097152}, {"17B", 17}};
    static const char *const wrong[] = {
        "", "K", "-1", "+1", " 8", "8 ", "8X", "1.5M", "8K8", "0x10", "99999999999999999999", "18446744073709551615K"};
    size_t bytes;
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        assert_true(cli_parse_bytes(right[i].text, &bytes));
        assert_int_equal(bytes, right[i].bytes);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(cli_parse_bytes(wrong[i], &bytes));
}

static void size_lists_are_read_whole_or_not_at_all(void **state)
{
    (void)state;
    size_t *sizes, count;
    assert_true(cli_parse_size_list("0,8,64K,1M", &sizes, &count));
    assert_int_equal(count, 4);
    assert_int_equal(sizes[0], 0);
    assert_int_equal(sizes[2], 65536);
    assert_int_equal(sizes[3], 1048576);
    free(sizes);
    static const char *const wrong[] = {"", ",", "8,", ",8", "8,,8", "8;9", "8,x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(cli_parse_size_list(wrong[i], &sizes, &count));
}

static void sizes_are_written_with_units(void **state)
{
    (void)state;
    static const struct {
        size_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},        {8, "8 B"},           {1023, "1023 B"},
                 {65536, "64 KiB"}, {1572864, "1.5 MiB"}, {(size_t)1 << 30, "1 GiB"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[32];
        cli_format_bytes(cases[i].bytes, text, sizeof text);
        assert_string_equal(text, cases[i].text);
    }
}

static void spreads_are_those_of_the_sorted_values(void **state)
{
    (void)state;
    double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2}, ten[] = {10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, one[] = {7};
    struct cli_spread spread = cli_spread_of(odd, 3);
    assert_true(spread.min == 1 && spread.median == 3 && spread.p90 == 5);
    spread = cli_spread_of(even, 4);
    assert_true(spread.min == 1 && spread.median == 2.5 && spread.p90 == 4);
    spread = cli_spread_of(ten, 10);
    assert_true(spread.min == 1 && spread.median == 5.5 && spread.p90 == 9);
    spread = cli_spread_of(one, 1);
    assert_true(spread.min == 7 && spread.median == 7 && spread.p90 == 7);
    spread = cli_spread_of(NULL, 0);
    assert_true(spread.min == 0 && spread.median == 0 && spread.p90 == 0);
}

/* ---------------------------------------------------------------- bandwidth */

static void bandwidths_are_those_of_nccl_tests(void **state)
{
    (void)state;
    static const struct {
        enum bench_kind kind;
        double factor; /* on 4 ranks */
    } cases[] = {{BENCH_ALL_REDUCE, 1.5},  {BENCH_ALL_GATHER, 0.75}, {BENCH_REDUCE_SCATTER, 0.75},
                 {BENCH_ALL_TO_ALL, 0.75}, {BENCH_GATHER, 0.75},     {BENCH_SCATTER, 0.75},
                 {BENCH_BROADCAST, 1},     {BENCH_REDUCE, 1},        {BENCH_SENDRECV, 1},
                 {BENCH_PINGPONG, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bench_point point = {.kind = cases[i].kind, .type = POLYPATH_FLOAT32};
        bench_size_point(&point, 4000000, 4);
        assert_int_equal(point.bytes, 4000000);
        assert_float_equal(bench_algbw(&point, 1000), 4.0, 1e-9);
        assert_float_equal(bench_busbw(&point, 1000, 4), 4.0 * cases[i].factor, 1e-9);
        assert_float_equal(bench_busbw(&point, 0, 4), 0, 0);
    }
}

static void counts_follow_from_sizes(void **state)
{
    (void)state;
    struct bench_point point = {.kind = BENCH_ALL_GATHER, .type = POLYPATH_FLOAT64};
    bench_size_point(&point, 100, 3); /* 12 elements, 4 a rank */
    assert_int_equal(point.count, 4);
    assert_int_equal(point.bytes, 96);
    bench_size_point(&point, 1, 3); /* an element per rank is the least */
    assert_int_equal(point.count, 1);
    assert_int_equal(point.bytes, 24);
    bench_size_point(&point, 0, 3);
    assert_int_equal(point.count, 0);
    assert_int_equal(point.bytes, 0);
    point.kind = BENCH_BARRIER;
    bench_size_point(&point, 64, 3);
    assert_int_equal(point.bytes, 0);
    assert_int_equal(bench_block_operations(8192), 20);
    assert_int_equal(bench_block_operations(8193), 8);
    assert_int_equal(bench_block_operations((size_t)1 << 30), 1);
}

/* --------------------------------------------------------------------- data */

static double read_element(polypath_type_t type, const void *at)
{
    int32_t i32;
    uint32_t u32;
    int64_t i64;
    uint64_t u64;
    float f32;
    double f64;
    switch (type) {
    case POLYPATH_INT8: return *(const int8_t *)at;
    case POLYPATH_UINT8: return *(const uint8_t *)at;
    case POLYPATH_INT32: return memcpy(&i32, at, 4), i32;
    case POLYPATH_UINT32: return memcpy(&u32, at, 4), u32;
    case POLYPATH_INT64: return memcpy(&i64, at, 8), (double)i64;
    case POLYPATH_UINT64: return memcpy(&u64, at, 8), (double)u64;
    case POLYPATH_FLOAT32: return memcpy(&f32, at, 4), f32;
    case POLYPATH_FLOAT64: return memcpy(&f64, at, 8), f64;
    default: return compute_to_float(type, at);
    }
}

static void write_element(polypath_type_t type, void *at, double value)
{
    switch (type) {
    case POLYPATH_INT8:
    case POLYPATH_UINT8: *(uint8_t *)at = (uint8_t)(int64_t)value; break; /* wraps, as integers do */
    case POLYPATH_INT32:
    case POLYPATH_UINT32: memcpy(at, &(uint32_t){(uint32_t)(int64_t)value}, 4); break;
    case POLYPATH_INT64:
    case POLYPATH_UINT64: memcpy(at, &(int64_t){(int64_t)value}, 8); break;
    case POLYPATH_FLOAT32: memcpy(at, &(float){(float)value}, 4); break;
    case POLYPATH_FLOAT64: memcpy(at, &value, 8); break;
    default: compute_from_float(type, at, (float)value); break;
    }
}

static double combine(polypath_op_t op, double a, double b)
{
    switch (op) {
    case POLYPATH_PROD: return a * b;
    case POLYPATH_MAX: return a > b ? a : b;
    case POLYPATH_MIN: return a < b ? a : b;
    default: return a + b;
    }
}

/*
 * Reduces the ranks' data into the first, rounding to the type after every
 * step, in the order of a binary tree (`tree`) or of a chain that starts at
 * the last rank: an algorithm may use either, and the result must be exact.
 */
static void reduce_in_type(const struct bench_pattern *pattern, char *data, size_t element, bool tree)
{
    int n = pattern->ranks;
    for (size_t i = 0; i < COUNT; i++) {
        char *first = data + i * element;
        size_t stride = COUNT * element;
        for (int step = tree ? 1 : n - 1; tree ? step < n : step > 0; step = tree ? 2 * step : step - 1) {
            for (int r = tree ? 0 : step - 1; r + (tree ? step : 1) < n; r += tree ? 2 * step : n) {
                char *to = first + (size_t)r * stride;
                double sum = combine(pattern->op, read_element(pattern->type, to),
                                     read_element(pattern->type, to + (size_t)(tree ? step : 1) * stride));
                write_element(pattern->type, to, sum);
            }
        }
        if (pattern->op == POLYPATH_AVG) {
            double sum = read_element(pattern->type, first);
            bool is_double = pattern->type == POLYPATH_FLOAT64;
            write_element(pattern->type, first, is_double ? sum / n : (double)((float)sum / (float)n));
        }
    }
}

static void reductions_are_exact_in_any_order(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 33};
    char *data = malloc(33 * COUNT * 8);
    assert_non_null(data);
    for (int type = 0; type < POLYPATH_TYPE_COUNT; type++) {
        size_t element = polypath_type_bytes(type);
        for (int op = 0; op < POLYPATH_OP_COUNT; op++) {
            for (size_t s = 0; s < 2 * sizeof sizes / sizeof sizes[0]; s++) {
                int ranks = sizes[s / 2];
                struct bench_pattern pattern = {type, op, true, ranks, 1 + s};
                for (int r = 0; r < ranks; r++)
                    bench_fill(&pattern, data + (size_t)r * COUNT * element, COUNT, r, 777);
                reduce_in_type(&pattern, data, element, s % 2);
                assert_int_equal(bench_count_wrong(&pattern, data, COUNT, BENCH_REDUCED, 777), 0);
            }
        }
    }
    free(data);
}

/* Fills data with what the source should give: a rank's elements, or the reduction (of one rank: itself). */
static void any_wrong_element_is_counted(void **state)
{
    (void)state;
    unsigned char *data = malloc((COUNT + 1) * 8);
    assert_non_null(data);
    for (int type = 0; type < POLYPATH_TYPE_COUNT; type++) {
        size_t element = polypath_type_bytes(type);
        for (int reduces = 0; reduces < 2; reduces++) {
            struct bench_pattern pattern = {type, POLYPATH_SUM, reduces, 4, 9};
            static const size_t places[] = {0, 1, COUNT / 2, COUNT - 1};
            bench_fill(&pattern, data, COUNT, 2, 5);
            assert_int_equal(bench_count_wrong(&pattern, data, COUNT, 2, 5), 0);
            for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
                for (size_t byte = 0; byte < element; byte++) {
                    data[places[p] * element + byte] ^= 1;
                    assert_int_equal(bench_count_wrong(&pattern, data, COUNT, 2, 5), 1);
                    data[places[p] * element + byte] ^= 1;
                }
            }
            /* Another rank's data, data of another place, and old data do not pass. */
            assert_true(bench_count_wrong(&pattern, data, COUNT, 1, 5) > COUNT / 2);
            assert_true(bench_count_wrong(&pattern, data, COUNT, 2, 6) > COUNT / 2);
            pattern.salt++;
            assert_true(bench_count_wrong(&pattern, data, COUNT, 2, 5) > COUNT / 2);
        }
    }
    free(data);
}

static void a_missing_contribution_is_noticed(void **state)
{
    (void)state;
    /* The reduction of three ranks is not that of four. */
    char *data = malloc(4 * COUNT * 8);
    assert_non_null(data);
    for (int type = 0; type < POLYPATH_TYPE_COUNT; type++) {
        size_t element = polypath_type_bytes(type);
        struct bench_pattern pattern = {type, POLYPATH_SUM, true, 4, 3};
        for (int r = 0; r < 4; r++)
            bench_fill(&pattern, data + (size_t)r * COUNT * element, COUNT, r, 0);
        pattern.ranks = 3;
        reduce_in_type(&pattern, data, element, false);
        pattern.ranks = 4;
        assert_true(bench_count_wrong(&pattern, data, COUNT, BENCH_REDUCED, 0) > COUNT / 2);
    }
    free(data);
}

static void long_data_is_checked_to_the_end(void **state)
{
    (void)state;
    size_t count = 2 * BENCH_PATTERN_PERIOD + 5;
    unsigned char *data = malloc(count);
    assert_non_null(data);
    struct bench_pattern pattern = {POLYPATH_UINT8, POLYPATH_SUM, false, 2, 1};
    bench_fill(&pattern, data, count, 1, BENCH_PATTERN_PERIOD - 3);
    assert_int_equal(bench_count_wrong(&pattern, data, count, 1, BENCH_PATTERN_PERIOD - 3), 0);
    /* Parts of it are the same data under their own index. */
    assert_int_equal(bench_count_wrong(&pattern, data + 10, 1000, 1, BENCH_PATTERN_PERIOD + 7), 0);
    data[count - 1] ^= 0x80;
    data[0] ^= 0x80;
    data[BENCH_PATTERN_PERIOD] ^= 0x80;
    assert_int_equal(bench_count_wrong(&pattern, data, count, 1, BENCH_PATTERN_PERIOD - 3), 3);
    free(data);
}

/* -------------------------------------------------------------- the command */

/* Runs `polypath run -n 2 -- polypath bench ARGUMENTS --json`; the rows, and the exit status. */
static json_t *run_bench(const char *const *arguments, int *status)
{
    const char *binary = getenv("POLYPATH_BINARY");
    if (!binary || access(binary, X_OK))
        skip();
    const char *words[48] = {binary, "run", "-n", "2", "--no-prefix", "--timeout", "120", "--", binary, "bench"};
    int count = 10, ends[2];
    for (; *arguments; arguments++)
        words[count++] = *arguments;
    words[count] = "--json";
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        unsetenv("POLYPATH_BINARY"); /* not a setting */
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execv(binary, (char *const *)words);
        _exit(127);
    }
    close(ends[1]);
    FILE *in = fdopen(ends[0], "r");
    json_t *rows = json_array(), *row;
    while ((row = json_loadf(in, JSON_DISABLE_EOF_CHECK, NULL)))
        json_array_append_new(rows, row);
    fclose(in);
    assert_int_equal(waitpid(pid, status, 0), pid);
    return rows;
}

static void check_row(const json_t *row)
{
    static const char *const numbers[] = {"algbw_gbps", "busbw_gbps"};
    const json_t *time = json_object_get(row, "time_us");
    double min = json_number_value(json_object_get(time, "min"));
    double median = json_number_value(json_object_get(time, "median"));
    double p90 = json_number_value(json_object_get(time, "p90"));
    assert_true(min > 0 && min <= median && median <= p90);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        assert_true(json_is_number(json_object_get(row, numbers[i])));
    assert_int_equal(json_integer_value(json_object_get(row, "ranks")), 2);
    assert_true(json_is_integer(json_object_get(row, "wrong")));
    assert_int_equal(json_integer_value(json_object_get(row, "wrong")), 0);
    assert_true(json_is_boolean(json_object_get(row, "in_place")));
    assert_true(json_is_string(json_object_get(row, "type")) && json_is_string(json_object_get(row, "op")));
    assert_true(json_is_object(json_object_get(row, "shares")) && json_object_size(json_object_get(row, "shares")) > 0);
}

static void every_collective_gives_right_rows(void **state)
{
    (void)state;
    const char *const arguments[] = {"all", "-l", "8,4000,300K", "-n", "3", "-w", "1", NULL};
    int status;
    json_t *rows = run_bench(arguments, &status), *row;
    assert_int_equal(status, 0);
    /* Seven collectives have an in-place form, three have not; the barrier has one row. */
    assert_int_equal(json_array_size(rows), 7 * 3 * 2 + 3 * 3 + 1);
    size_t i;
    json_array_foreach(rows, i, row)
    {
        check_row(row);
    }
    json_decref(rows);
}

static void every_type_and_op_gives_right_rows(void **state)
{
    (void)state;
    const char *const arguments[] = {"all_reduce", "-l", "24,40000", "-d", "all", "-o",
                                     "all",        "-n", "1",        "-w", "0",   NULL};
    int status;
    json_t *rows = run_bench(arguments, &status), *row;
    assert_int_equal(status, 0);
    assert_int_equal(json_array_size(rows), POLYPATH_TYPE_COUNT * POLYPATH_OP_COUNT * 2 * 2);
    size_t i;
    json_array_foreach(rows, i, row)
    {
        check_row(row);
    }
    json_decref(rows);
}

static void paths_are_compared_in_one_run(void **state)
{
    (void)state;
    const char *const arguments[] = {"all_gather", "-l", "1M", "-n", "3", "--in-place", "no", "--compare-paths", NULL};
    int status;
    json_t *rows = run_bench(arguments, &status);
    assert_int_equal(status, 0);
    size_t count = json_array_size(rows);
    assert_true(count >= 1);
    if (count > 1) {
        const json_t *all = json_array_get(rows, count - 1), *first = json_array_get(rows, 0);
        assert_true(json_number_value(json_object_get(all, "ratio_to_sum")) > 0);
        assert_true(json_number_value(json_object_get(all, "ratio_to_best")) > 0);
        assert_int_equal(json_object_size(json_object_get(all, "shares")), count - 1);
        /* Alone means alone. */
        const char *path = json_string_value(json_object_get(first, "paths"));
        assert_true(json_number_value(json_object_get(json_object_get(first, "shares"), path)) > 0.999);
    }
    json_decref(rows);
}

static void following_ends_on_all_ranks(void **state)
{
    (void)state;
    const char *const arguments[] = {"all_reduce", "-l", "1M", "--follow", "--seconds", "1", "--interval", "0.2", NULL};
    int status;
    json_t *rows = run_bench(arguments, &status), *row;
    assert_int_equal(status, 0);
    assert_true(json_array_size(rows) >= 1);
    size_t i;
    json_array_foreach(rows, i, row)
    {
        assert_true(json_integer_value(json_object_get(row, "calls")) > 0);
        assert_true(json_number_value(json_object_get(row, "algbw_gbps")) > 0);
    }
    json_decref(rows);
}

static void a_wrong_command_line_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[][4] = {{"nothing", NULL},
                                           {"all_reduce", "-l", "8,x", NULL},
                                           {"all_reduce", "-d", "float31", NULL},
                                           {"all_reduce", "-r", "9", NULL}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int status;
        json_t *rows = run_bench(wrong[i], &status);
        assert_int_equal(json_array_size(rows), 0);
        assert_int_not_equal(status, 0);
        json_decref(rows);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_read_with_units),          cmocka_unit_test(size_lists_are_read_whole_or_not_at_all),
        cmocka_unit_test(sizes_are_written_with_units),       cmocka_unit_test(spreads_are_those_of_the_sorted_values),
        cmocka_unit_test(bandwidths_are_those_of_nccl_tests), cmocka_unit_test(counts_follow_from_sizes),
        cmocka_unit_test(reductions_are_exact_in_any_order),  cmocka_unit_test(any_wrong_element_is_counted),
        cmocka_unit_test(a_missing_contribution_is_noticed),  cmocka_unit_test(long_data_is_checked_to_the_end),
        cmocka_unit_test(every_collective_gives_right_rows),  cmocka_unit_test(every_type_and_op_gives_right_rows),
        cmocka_unit_test(paths_are_compared_in_one_run),      cmocka_unit_test(following_ends_on_all_ranks),
        cmocka_unit_test(a_wrong_command_line_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
