/*
 * The options that `run` and `lab run` have in common, parsed strictly. Starts nothing.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/cli/launch.h"

enum { KEY_NO_PREFIX = 0x100, KEY_OUTPUT, KEY_GRACE, KEY_TIMEOUT, KEY_BIND };

static const struct argp_option option_table[] = {
    {"ranks", 'n', "N", 0, "start N ranks", 1},
    {NULL, 'x', "NAME=VALUE", 0, "set a variable for the ranks; NAME alone takes the launcher's value", 1},
    {"bind", KEY_BIND, "HOW", 0, "none (default), or core: one core for each rank, round-robin", 1},
    {"no-prefix", KEY_NO_PREFIX, NULL, 0, "leave output as it is, without [rank] in front of each line", 2},
    {"output", KEY_OUTPUT, "DIR", 0, "write to DIR/rank.N.out and DIR/rank.N.err instead", 2},
    {"grace", KEY_GRACE, "SECONDS", 0, "how long the others may go on after a rank has failed (default 10)", 3},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "end the ranks after this time; the exit status is then 124", 3},
    {0},
};

static double seconds(struct argp_state *state, const char *option, const char *text)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end || errno || !isfinite(value) || value < 0 || value > 1e8)
        argp_error(state, "--%s takes a number of seconds, not '%s'", option, text);
    return value;
}

static error_t add_variable(struct launch_options *options, struct argp_state *state, const char *text)
{
    const char *equals = strchr(text, '=');
    if (equals == text || !*text)
        argp_error(state, "-x takes NAME=VALUE, not '%s'", text);
    if (!equals) {
        if (!getenv(text))
            argp_error(state, "-x %s: that variable is not set here; give NAME=VALUE", text);
        return 0; /* the ranks inherit it */
    }
    const char **grown = realloc(options->environment, (options->environment_count + 1) * sizeof *options->environment);
    if (!grown) {
        argp_failure(state, 1, ENOMEM, "-x %s", text);
        return ENOMEM;
    }
    options->environment = grown;
    options->environment[options->environment_count++] = text;
    return 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct launch_options *options = state->input;
    char *end;
    switch (key) {
    case 'n': {
        long size = strtol(arg, &end, 10);
        if (end == arg || *end || size < 1 || size > LAUNCH_SIZE_MAX)
            argp_error(state, "-n takes a number of ranks from 1 to %d, not '%s'", LAUNCH_SIZE_MAX, arg);
        options->size = (int)size;
        return 0;
    }
    case 'x': return add_variable(options, state, arg);
    case KEY_NO_PREFIX: options->no_prefix = true; return 0;
    case KEY_OUTPUT: options->output = arg; return 0;
    case KEY_GRACE: options->grace_s = seconds(state, "grace", arg); return 0;
    case KEY_TIMEOUT:
        options->timeout_s = seconds(state, "timeout", arg);
        if (options->timeout_s <= 0)
            argp_error(state, "--timeout takes a time above 0");
        return 0;
    case KEY_BIND:
        if (strcmp(arg, "none") && strcmp(arg, "core"))
            argp_error(state, "--bind is none or core, not '%s'", arg);
        options->bind = strcmp(arg, "core") ? LAUNCH_BIND_NONE : LAUNCH_BIND_CORE;
        return 0;
    case ARGP_KEY_ARG:
        options->program = state->argv + state->next - 1;
        state->next = state->argc; /* the rest is the program's */
        return 0;
    case ARGP_KEY_INIT: options->grace_s = 10; return 0;
    case ARGP_KEY_END:
        if (!options->size)
            argp_error(state, "how many ranks? Give -n N");
        if (!options->program)
            argp_error(state, "which program? Give it behind the options: %s -n %d -- PROGRAM ARGUMENT...",
                       options->command, options->size);
        if (options->output && options->no_prefix)
            argp_error(state, "--output and --no-prefix exclude each other");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp launch_argp = {.options = option_table, .parser = parse};

void launch_options_free(struct launch_options *options)
{
    free(options->environment);
    options->environment = NULL;
    options->environment_count = 0;
}
