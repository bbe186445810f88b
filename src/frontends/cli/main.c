/*
 * The `polypath` program: finds the sub-command and hands over. A new
 * sub-command is one line in the table. Knows nothing of what they do.
 */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/cli/cli.h"
#include "polypath/polypath.h"

static const struct command {
    const char *name;
    int (*function)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"run", cli_run, "start a program as N ranks on this machine"},
    {"bench", cli_bench, "measure a collective, path by path and over all paths"},
    {"topo", cli_topo, "show hosts, interfaces and paths, and what each reaches"},
    {"lab", cli_lab, "hosts and shaped links on this machine, out of network namespaces"},
    {"config", cli_config, "show every setting, its value and where that came from"},
    {"demo", cli_demo, "the main job in under two minutes"},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

/* The number of single-character edits between two words, at most 31 characters of each. */
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned row[32];
    size_t la = strnlen(a, 31), lb = strnlen(b, 31);
    for (size_t j = 0; j <= lb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= la; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= lb; j++) {
            unsigned change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            unsigned insert = row[j - 1] + 1, erase = row[j] + 1;
            row[j] = change < insert ? change : insert;
            if (erase < row[j])
                row[j] = erase;
        }
    }
    return row[lb];
}

static const char *nearest_command(const char *name)
{
    const char *best = commands[0].name;
    unsigned least = ~0u;
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        unsigned distance = edit_distance(name, commands[i].name);
        if (distance < least) {
            least = distance;
            best = commands[i].name;
        }
    }
    return best;
}

/* The list of commands in front of the options in --help, from the table. */
static char *help_filter(int key, const char *text, void *input)
{
    (void)input;
    if (key != ARGP_KEY_HELP_PRE_DOC)
        return (char *)text; /* argp's convention: the same pointer back means "as it is" */
    char *list = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&list, &bytes);
    if (!out)
        return (char *)text;
    fprintf(out, "%s\n\nCommands:\n", text);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\n`polypath COMMAND --help' tells more; so do the manual pages polypath-COMMAND(1).");
    fclose(out);
    return list;
}

struct choice {
    int first; /* index of the command in argv; 0: none */
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct choice *choice = state->input;
    (void)arg;
    switch (key) {
    case ARGP_KEY_ARG:
        choice->first = state->next - 1;
        state->next = state->argc; /* the rest is the command's */
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "which command? One of run, bench, topo, lab, config, demo"); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void print_version(FILE *out, struct argp_state *state)
{
    (void)state;
    fprintf(out, "polypath %d.%d.%d\n", POLYPATH_VERSION_MAJOR, POLYPATH_VERSION_MINOR, POLYPATH_VERSION_PATCH);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {.parser = parse,
                                     .args_doc = "COMMAND [ARGUMENT...]",
                                     .doc = "Collective communication over every path between ranks at once.",
                                     .help_filter = help_filter};
    argp_program_version_hook = print_version;
    argp_err_exit_status = CLI_USAGE;
    struct choice choice = {0};
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &choice))
        return CLI_FAILURE;
    const char *name = argv[choice.first];
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name))
            continue;
        char title[64]; /* argp begins its messages with argv[0] */
        snprintf(title, sizeof title, "polypath %s", name);
        argv[choice.first] = title;
        return commands[i].function(argc - choice.first, argv + choice.first);
    }
    fprintf(stderr, "polypath: unknown command '%s'; the nearest is '%s'. `polypath --help' lists them\n", name,
            nearest_command(name));
    return CLI_USAGE;
}
