/*
 * Starts N copies of a program as ranks, looks after them until all have
 * ended, and leaves no process behind. Shared by `polypath run` (all ranks
 * here) and `polypath lab run` (ranks in network namespaces).
 */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include <argp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "frontends/cli/guard.h"
#include "polypath/polypath.h"

#define LAUNCH_SIZE_MAX 4096

enum launch_bind { LAUNCH_BIND_NONE, LAUNCH_BIND_CORE };

/* What the user asked for. Strings belong to the argument vector. */
struct launch_options {
    const char *command; /* what messages begin with: "polypath run" */
    int size;
    bool no_prefix;
    const char *output; /* folder for one file per rank and stream; NULL: none */
    double grace_s, timeout_s;
    enum launch_bind bind;
    const char **environment; /* NAME=VALUE; launch_options_free() */
    size_t environment_count;
    char **program; /* NULL-terminated; NULL if none was given */
};

/* The options that both launchers have, and PROGRAM ARGUMENT...; its input is a struct launch_options. */
extern const struct argp launch_argp;
void launch_options_free(struct launch_options *options);

/* Where one rank runs. */
struct launch_place {
    int host;      /* number in the lab; -1: not in a lab */
    int namespace; /* descriptor of the network namespace; -1: the launcher's */
    int local_rank, local_size;
};

/* A launcher between its preparation and its end. */
struct launch {
    const struct launch_options *options;
    char *path;    /* the program's file */
    sigset_t mask; /* signals as they were, for the ranks */
    struct guard guard;
};

/*
 * Finds the program and blocks the signals that launch_run() reads (so before
 * any thread is started). Returns 0, or the exit status after a message.
 */
int launch_prepare(struct launch *launch, const struct launch_options *options);

/*
 * Starts the ranks (options->size places) and returns the exit status when
 * all have ended. launch->guard must have been started. `id` is the text form
 * of the unique id.
 */
int launch_run(struct launch *launch, const struct launch_place *places, const char *id);

void launch_free(struct launch *launch);

#endif
