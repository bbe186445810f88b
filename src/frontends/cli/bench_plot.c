/*
 * `bench --plot`: bandwidth over size, one curve per collective, type, op,
 * placement and path set, drawn by gnuplot. gnuplot is started without a shell
 * and writes the picture to a descriptor that is opened here, so no name that
 * comes from outside is ever part of its program.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frontends/cli/bench.h"

static bool program_exists(const char *name)
{
    const char *path = getenv("PATH");
    char *copy = strdup(path ? path : "/usr/bin:/bin"), *rest = copy, *folder;
    bool found = false;
    while (copy && !found && (folder = strsep(&rest, ":"))) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", *folder ? folder : ".", name);
        found = access(file, X_OK) == 0;
    }
    free(copy);
    return found;
}

bool bench_plot_possible(const char *file)
{
    if (!program_exists("gnuplot")) {
        fprintf(stderr, "polypath bench: --plot needs gnuplot: apt-get install gnuplot-nox\n");
        return false;
    }
    int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
        fprintf(stderr, "polypath bench: --plot %s: %s\n", file, strerror(errno));
        return false;
    }
    close(fd);
    return true;
}

/* ------------------------------------------------------------------- curves */

static bool same_curve(const struct bench_result *a, const struct bench_result *b)
{
    return a->point.kind == b->point.kind && a->point.type == b->point.type && a->point.op == b->point.op &&
           a->point.root == b->point.root && a->point.in_place == b->point.in_place && !strcmp(a->label, b->label);
}

/* Drawn: a size that has a place on a logarithmic axis. */
static bool has_place(const struct bench_result *result)
{
    return result->point.bytes > 0;
}

/* What distinguishes the curves of this plot, and only that. */
struct variety {
    bool kind, type, op, root, in_place, label;
};

static struct variety variety_of(const struct bench_results *results)
{
    struct variety v = {0};
    const struct bench_result *first = results->list;
    for (size_t i = 1; i < results->count; i++) {
        const struct bench_result *r = &results->list[i];
        v.kind |= r->point.kind != first->point.kind;
        v.type |= r->point.type != first->point.type;
        v.op |= r->point.op != first->point.op;
        v.root |= r->point.root != first->point.root;
        v.in_place |= r->point.in_place != first->point.in_place;
        v.label |= strcmp(r->label, first->label) != 0;
    }
    return v;
}

/* gnuplot's double quotes know escapes; names here need none, and what would is left out. */
static void put_quoted(FILE *out, const char *text)
{
    for (; *text; text++)
        if (*text != '"' && *text != '\\' && *text != '`' && (unsigned char)*text >= ' ')
            fputc(*text, out);
}

static void put_title(FILE *out, const struct bench_result *r, struct variety v)
{
    static const char *const ops[POLYPATH_OP_COUNT] = {"sum", "prod", "max", "min", "avg"};
    fputc('"', out);
    if (v.kind || !(v.type || v.op || v.root || v.in_place || v.label))
        fprintf(out, "%s ", bench_traits[r->point.kind].name);
    if (v.type)
        fprintf(out, "%s ", polypath_type_name(r->point.type));
    if (v.op)
        fprintf(out, "%s ", ops[r->point.op]);
    if (v.root)
        fprintf(out, "root %d ", r->point.root);
    if (v.label)
        put_quoted(out, !strcmp(r->label, "all") ? "all paths" : r->label);
    if (v.in_place)
        fprintf(out, "%s%s", v.label ? ", " : "", r->point.in_place ? "in place" : "out of place");
    fputc('"', out);
}

/* Marks at powers of two, at most about ten of them, as "64 KiB". */
static void put_size_axis(FILE *out, const struct bench_results *results)
{
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < results->count; i++) {
        if (has_place(&results->list[i])) {
            least = fmin(least, (double)results->list[i].point.bytes);
            most = fmax(most, (double)results->list[i].point.bytes);
        }
    }
    int low = (int)floor(log2(least)), high = (int)ceil(log2(most));
    int step = (high - low + 9) / 10;
    step = step < 1 ? 1 : step;
    fprintf(out, "set logscale x 2\nset xrange [%.0f:%.0f]\nset xtics (", exp2(low), exp2(high > low ? high : low + 1));
    for (int e = low; e <= high; e += step) {
        char text[32];
        cli_format_bytes((size_t)1 << e, text, sizeof text);
        fprintf(out, "%s\"%s\" %.0f", e > low ? ", " : "", text, exp2(e));
    }
    fprintf(out, ")\n");
}

static size_t put_data(FILE *out, const struct bench_results *results, size_t *firsts)
{
    size_t curves = 0;
    for (size_t i = 0; i < results->count; i++) {
        bool seen = !has_place(&results->list[i]);
        for (size_t c = 0; c < curves && !seen; c++)
            seen = same_curve(&results->list[i], &results->list[firsts[c]]);
        if (!seen)
            firsts[curves++] = i;
    }
    for (size_t c = 0; c < curves; c++) {
        fprintf(out, "$curve%zu << END\n", c);
        for (size_t i = firsts[c]; i < results->count; i++)
            if (has_place(&results->list[i]) && same_curve(&results->list[i], &results->list[firsts[c]]))
                fprintf(out, "%zu %.6g\n", results->list[i].point.bytes, results->list[i].busbw_gbps);
        fprintf(out, "END\n");
    }
    return curves;
}

static void put_program(FILE *out, bool png, const struct bench_results *results, int ranks)
{
    size_t *firsts = cli_allocate(results->count * sizeof *firsts);
    size_t curves = put_data(out, results, firsts);
    struct variety v = variety_of(results);
    const struct bench_point *first = &results->list[0].point;
    if (curves) {
        fprintf(out, "set terminal %s size 960,560 noenhanced\n", png ? "pngcairo" : "svg background rgb \"white\"");
        fprintf(out, "set title \"%s on %d ranks%s%s\"\n", v.kind ? "Collectives" : bench_traits[first->kind].name,
                ranks, v.type ? "" : ", ", v.type ? "" : polypath_type_name(first->type));
        fprintf(out,
                "set xlabel \"size\"\nset ylabel \"bus bandwidth (GB/s)\"\nset yrange [0:*]\nset grid\n"
                "set key %s\nset lmargin 10\nset rmargin 4\n",
                curves > 8 ? "outside right" : "top left reverse Left");
        put_size_axis(out, results);
        for (size_t c = 0; c < curves; c++) {
            fprintf(out, "%s $curve%zu using 1:2 with linespoints lw 2 pt 7 ps 0.5 title ", c ? "," : "plot", c);
            put_title(out, &results->list[firsts[c]], v);
        }
        fprintf(out, "\n");
    }
    free(firsts);
}

/* ------------------------------------------------------------------ gnuplot */

/* Starts gnuplot reading from *input and writing the picture to `picture`. */
static int start_gnuplot(int picture, pid_t *pid, FILE **input)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return errno;
    char name[] = "gnuplot", *arguments[] = {name, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
    posix_spawn_file_actions_adddup2(&actions, picture, 1);
    int failure = posix_spawnp(pid, "gnuplot", &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);
    *input = failure ? NULL : fdopen(ends[1], "w");
    if (!*input)
        close(ends[1]);
    return failure;
}

bool bench_plot(const char *file, const struct bench_results *results, int ranks)
{
    if (!results->count)
        return true;
    int picture = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (picture < 0) {
        fprintf(stderr, "polypath bench: --plot %s: %s\n", file, strerror(errno));
        return false;
    }
    pid_t pid = -1;
    FILE *input = NULL;
    int failure = start_gnuplot(picture, &pid, &input), status = 1;
    close(picture);
    if (input) {
        const char *dot = strrchr(file, '.');
        void (*old)(int) = signal(SIGPIPE, SIG_IGN); /* a gnuplot that ends early is reported below */
        put_program(input, dot && !strcmp(dot, ".png"), results, ranks);
        fclose(input);
        signal(SIGPIPE, old);
    }
    if (!failure)
        waitpid(pid, &status, 0);
    if (failure || status) {
        fprintf(stderr, "polypath bench: --plot %s: gnuplot %s%s\n", file, failure ? "did not start: " : "failed",
                failure ? strerror(failure) : "");
        return false;
    }
    return true;
}
