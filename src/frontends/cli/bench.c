/*
 * `polypath bench`: plans the run (which collectives, types, ops, sizes,
 * placements and path sets, in which order) and gives each point to be
 * measured. Every rank runs the same plan; rank 0 prints.
 */
#include "frontends/cli/bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "frontends/cli/cli.h"

void bench_keep(struct bench_results *results, const struct bench_result *result)
{
    if (results->count == results->capacity) {
        results->capacity = results->capacity ? 2 * results->capacity : 64;
        results->list = cli_resize(results->list, results->capacity * sizeof *results->list);
    }
    results->list[results->count++] = *result;
}

/* -------------------------------------------------------------- preparation */

static void find_paths(struct bench_session *session)
{
    int count = 0;
    bench_must(session, polypath_comm_path_count(session->comm, &count), NULL);
    session->path_count = count < BENCH_PATHS_MAX ? count : BENCH_PATHS_MAX;
    for (int p = 0; p < session->path_count; p++)
        bench_must(session, polypath_comm_path_info(session->comm, p, &session->paths[p]), NULL);
}

static void append_name(char *list, size_t room, const char *name)
{
    size_t length = strlen(list);
    snprintf(list + length, room - length, "%s%s", length ? "," : "", name);
}

/* The sets to be measured: all allowed paths, and before it, to compare, each of them alone. */
static void choose_sets(struct bench_session *session)
{
    const struct bench_options *options = session->options;
    if (options->paths)
        bench_must(session, polypath_comm_use_paths(session->comm, options->paths), NULL);
    find_paths(session);
    struct bench_path_set all = {.names = options->paths};
    int enabled = 0;
    for (int p = 0; p < session->path_count; p++) {
        const char *name = session->paths[p].name;
        if (!session->paths[p].enabled)
            continue;
        enabled++;
        append_name(all.list, sizeof all.list, name);
        if (options->compare_paths) {
            struct bench_path_set *single = &session->sets[session->set_count++];
            single->names = name;
            snprintf(single->list, sizeof single->list, "%s", name);
            snprintf(single->label, sizeof single->label, "%s", name);
        }
    }
    snprintf(all.label, sizeof all.label, "%s", "all");
    if (options->compare_paths && enabled < 2) {
        if (session->rank == 0)
            fprintf(stderr, "polypath bench: --compare-paths: there is only %s; nothing to compare\n",
                    enabled ? all.list : "one rank and no path");
        session->set_count = 0;
    }
    session->sets[session->set_count++] = all;
}

/* Buffers for the largest point, touched by nobody yet. */
static void *map_buffer(struct bench_session *session)
{
    void *buffer = mmap(NULL, session->buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED) {
        fprintf(stderr, "polypath bench: rank %d: no memory for a buffer of %zu bytes\n", session->rank,
                session->buffer_bytes);
        return NULL;
    }
    /* Huge pages where the system gives them; it is no error if not. */
    (void)madvise(buffer, session->buffer_bytes, MADV_HUGEPAGE);
    return buffer;
}

static bool make_buffers(struct bench_session *session)
{
    size_t largest = 0;
    for (size_t s = 0; s < session->options->size_count; s++)
        largest = session->options->sizes[s] > largest ? session->options->sizes[s] : largest;
    /* A size is rounded up to one element per rank at most. */
    session->buffer_bytes = largest + 8 * (size_t)session->size;
    session->send = map_buffer(session);
    session->recv = map_buffer(session);
    return session->send && session->recv;
}

/* FNV-1a of the kernel's boot id: equal on one machine, also between its containers. */
static uint64_t machine_number(void)
{
    uint64_t number = 0xcbf29ce484222325u;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    for (int c; file && (c = fgetc(file)) != EOF;)
        number = (number ^ (uint64_t)c) * 0x100000001b3u;
    if (file)
        fclose(file);
    return number;
}

/* Only rank 0 measures the flag, and only where all ranks share the machine. */
static void settle_flag(struct bench_session *session, struct bench_flag *flag)
{
    uint64_t bounds[2] = {machine_number(), ~machine_number()};
    bench_must(session, polypath_all_reduce(bounds, bounds, 2, POLYPATH_UINT64, POLYPATH_MAX, session->comm), NULL);
    bool one_machine = bounds[0] == ~bounds[1];
    if (session->rank == 0 && (!flag || !one_machine))
        fprintf(stderr, "polypath bench: --flag: not measured: %s\n",
                flag ? "the ranks are on several machines" : "it needs two cores");
    if (session->rank == 0 && one_machine)
        session->flag = flag;
    else
        bench_flag_stop(flag);
}

/* All ranks learn whether all are ready; who is not has said why. */
static bool all_ready(struct bench_session *session, bool ready)
{
    double unready = !ready;
    bench_agree_max(session, &unready, 1);
    return unready == 0;
}

static bool check_options(const struct bench_session *session)
{
    const struct bench_options *options = session->options;
    if (options->root >= session->size) {
        if (session->rank == 0)
            fprintf(stderr, "polypath bench: root %d: there are only %d ranks\n", options->root, session->size);
        return false;
    }
    int kinds = 0;
    for (int kind = 0; kind < BENCH_KIND_COUNT; kind++)
        kinds += options->kinds[kind];
    if (options->kinds[BENCH_PINGPONG] && kinds == 1 && session->size < 2) {
        if (session->rank == 0)
            fprintf(stderr, "polypath bench: pingpong needs two ranks: polypath run -n 2 -- polypath bench pingpong\n");
        return false;
    }
    return session->rank != 0 || !options->plot || bench_plot_possible(options->plot);
}

/* --------------------------------------------------------------------- plan */

/* What the walk over the plan does at each point. */
typedef void visit_point(struct bench_session *session, const struct bench_point *point, void *context);

static void visit_sizes(struct bench_session *session, struct bench_point point, visit_point *visit, void *context)
{
    const struct bench_options *options = session->options;
    size_t last = SIZE_MAX;
    for (size_t s = 0; s < options->size_count; s++) {
        bench_size_point(&point, options->sizes[s], session->size);
        if (point.bytes == last)
            continue; /* smaller than an element per rank: the same as before */
        last = point.bytes;
        visit(session, &point, context);
    }
}

static void visit_kind(struct bench_session *session, enum bench_kind kind, visit_point *visit, void *context)
{
    const struct bench_options *options = session->options;
    const struct bench_traits *traits = &bench_traits[kind];
    int types = kind == BENCH_BARRIER ? 1 : options->type_count;
    int ops = traits->reduces ? options->op_count : 1;
    bool every_root = traits->rooted && options->root < 0;
    int first_root = every_root || !traits->rooted ? 0 : options->root;
    int last_root = every_root ? session->size - 1 : first_root;
    for (int t = 0; t < types; t++)
        for (int o = 0; o < ops; o++)
            for (int root = first_root; root <= last_root; root++)
                visit_sizes(session,
                            (struct bench_point){.kind = kind,
                                                 .type = options->types[t],
                                                 .op = traits->reduces ? options->ops[o] : POLYPATH_SUM,
                                                 .root = root},
                            visit, context);
}

static bool is_planned(const struct bench_session *session, enum bench_kind kind)
{
    return session->options->kinds[kind] && (kind != BENCH_PINGPONG || session->size > 1);
}

/* Out of place unless only in place is wanted and there is such a thing. */
static bool wants_out_of_place(const struct bench_options *options, enum bench_kind kind)
{
    return options->out_of_place || !bench_traits[kind].has_in_place;
}

static bool wants_in_place(const struct bench_options *options, enum bench_kind kind)
{
    return options->in_place && bench_traits[kind].has_in_place;
}

static void count_rows(struct bench_session *session, const struct bench_point *point, void *context)
{
    (void)context;
    session->rows_planned +=
        (size_t)wants_out_of_place(session->options, point->kind) + wants_in_place(session->options, point->kind);
}

/* What rank 0 keeps for the end. */
struct outcome {
    struct bench_results results; /* only for a plot */
    double busbw_sum;
    size_t busbw_count;
};

static void note(struct bench_session *session, struct outcome *outcome, const struct bench_result *result)
{
    outcome->busbw_sum += result->busbw_gbps;
    outcome->busbw_count++;
    if (session->options->plot)
        bench_keep(&outcome->results, result);
}

static void measure_rows(struct bench_session *session, const struct bench_point *point, void *context)
{
    struct outcome *outcome = context;
    static struct bench_result out_of_place[BENCH_PATHS_MAX + 1], in_place[BENCH_PATHS_MAX + 1];
    bool out = wants_out_of_place(session->options, point->kind), in = wants_in_place(session->options, point->kind);
    struct bench_point placed = *point;
    if (out)
        bench_measure(session, &placed, out_of_place);
    placed.in_place = true;
    if (in)
        bench_measure(session, &placed, in_place);
    if (session->rank)
        return;
    for (int s = 0; s < session->set_count; s++) {
        bench_print_row(session, out ? &out_of_place[s] : NULL, in ? &in_place[s] : NULL);
        if (out)
            note(session, outcome, &out_of_place[s]);
        if (in)
            note(session, outcome, &in_place[s]);
    }
    if (session->set_count > 1)
        bench_print_ratio(session, out ? &out_of_place[session->set_count - 1] : NULL,
                          in ? &in_place[session->set_count - 1] : NULL);
}

static bool run_plan(struct bench_session *session)
{
    struct outcome outcome = {0};
    bool fine = true;
    for (int kind = 0; kind < BENCH_KIND_COUNT; kind++)
        if (is_planned(session, kind))
            visit_kind(session, kind, count_rows, NULL);
    if (session->rank == 0)
        bench_print_intro(session);
    for (int kind = 0; kind < BENCH_KIND_COUNT; kind++) {
        if (!is_planned(session, kind))
            continue;
        if (session->rank == 0)
            bench_print_heading(session, kind);
        visit_kind(session, kind, measure_rows, &outcome);
    }
    bench_progress_clear();
    if (session->rank == 0) {
        bench_print_end(session, outcome.busbw_sum, outcome.busbw_count);
        fine = !session->options->plot || bench_plot(session->options->plot, &outcome.results, session->size);
    }
    free(outcome.results.list);
    return fine;
}

/* The first collective asked for, at its first size, over and over. */
static void follow(struct bench_session *session)
{
    for (int kind = 0; kind < BENCH_KIND_COUNT; kind++) {
        if (!is_planned(session, kind))
            continue;
        const struct bench_options *options = session->options;
        struct bench_point point = {.kind = kind,
                                    .type = options->types[0],
                                    .op = bench_traits[kind].reduces ? options->ops[0] : POLYPATH_SUM,
                                    .root = options->root < 0 ? 0 : options->root,
                                    .in_place = !options->out_of_place && bench_traits[kind].has_in_place};
        bench_size_point(&point, options->sizes[0], session->size);
        bench_follow(session, &point);
        return;
    }
}

int cli_bench(int argc, char **argv)
{
    struct bench_options options;
    bench_read_options(argc, argv, &options);
    struct bench_flag *flag = options.flag ? bench_flag_start() : NULL;
    struct bench_session session = {.options = &options, .rank = -1};
    bool fine = false;

    polypath_result_t created = polypath_comm_create_from_env(&session.comm);
    if (created) {
        fprintf(stderr, "polypath bench: %s: %s\n", polypath_result_name(created), polypath_last_error());
        bench_flag_stop(flag);
        return 1;
    }
    bench_must(&session, polypath_comm_rank(session.comm, &session.rank), NULL);
    bench_must(&session, polypath_comm_size(session.comm, &session.size), NULL);
    if (options.flag)
        settle_flag(&session, flag);
    if (all_ready(&session, check_options(&session) && make_buffers(&session))) {
        choose_sets(&session);
        session.started_ns = cli_now_ns();
        if (options.follow)
            follow(&session);
        fine = options.follow || run_plan(&session);
    }
    bench_flag_stop(session.flag);
    polypath_result_t destroyed = polypath_comm_destroy(session.comm);
    if (destroyed)
        fprintf(stderr, "polypath bench: rank %d: %s\n", session.rank, polypath_last_error());
    if (session.wrong && session.rank == 0)
        fprintf(stderr, "polypath bench: %llu elements were wrong\n", (unsigned long long)session.wrong);
    if (session.send)
        munmap(session.send, session.buffer_bytes);
    if (session.recv)
        munmap(session.recv, session.buffer_bytes);
    free(options.sizes);
    return fine && !session.wrong && !destroyed ? 0 : 1;
}
