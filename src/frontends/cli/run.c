/*
 * `polypath run`: the launcher for one machine.
 */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/bootstrap.h"
#include "frontends/cli/cli.h"
#include "frontends/cli/launch.h"
#include "system/error.h"

static error_t parse(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = state->input;
    return 0;
}

static const struct argp_child children[] = {{.argp = &launch_argp}, {0}};
static const struct argp argp = {
    .parser = parse,
    .args_doc = "-n N [--] PROGRAM [ARGUMENT...]",
    .doc = "Starts N ranks of PROGRAM on this machine, prefixes each line of their output with the rank, and ends "
           "with the first non-zero exit code of a rank (128 + number for a signal). Standard input goes to rank 0."
           "\vWhen a rank fails the others have a grace time to see it and say so; then they get SIGTERM, and SIGKILL "
           "two seconds later.",
    .children = children,
};

/* Serves the bootstrap and runs the ranks; the guardian is up. */
static int serve_and_run(struct launch *launch)
{
    const struct launch_options *options = launch->options;
    polypath_unique_id_t id;
    char text[2 * POLYPATH_UNIQUE_ID_BYTES + 1];
    struct launch_place *places = calloc((size_t)options->size, sizeof *places);
    if (!places || bootstrap_serve(&id, "127.0.0.1")) {
        fprintf(stderr, "%s: %s\n", options->command, places ? error_text() : "out of memory");
        free(places);
        return CLI_FAILURE;
    }
    bootstrap_format(&id, text);
    for (int r = 0; r < options->size; r++)
        places[r] = (struct launch_place){.host = -1, .namespace = -1, .local_rank = r, .local_size = options->size};
    int status = launch_run(launch, places, text);
    free(places);
    return status;
}

int cli_run(int argc, char **argv)
{
    struct launch_options options = {.command = argv[0]};
    struct launch launch;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &options))
        return CLI_FAILURE;
    int status = launch_prepare(&launch, &options);
    if (!status && guard_start(&launch.guard, NULL, NULL)) {
        fprintf(stderr, "%s: %s\n", options.command, error_text());
        status = CLI_FAILURE;
    } else if (!status) {
        status = serve_and_run(&launch);
    }
    launch_free(&launch);
    launch_options_free(&options);
    return status;
}
