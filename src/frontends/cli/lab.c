/*
 * `polypath lab`: finds its sub-command; up, set and down are here. Changes
 * the machine only through lab_net.
 */
#include <argp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontends/cli/cli.h"
#include "frontends/cli/guard.h"
#include "frontends/cli/lab_net.h"
#include "frontends/cli/lab_options.h"
#include "frontends/cli/lab_spec.h"
#include "frontends/cli/lab_state.h"
#include "system/error.h"

bool lab_is_root(const char *command)
{
    if (geteuid() == 0)
        return true;
    fprintf(stderr, "%s: this makes network namespaces and needs root: run it with sudo\n", command);
    return false;
}

static int complain(const char *command)
{
    fprintf(stderr, "%s: %s\n", command, error_text());
    return CLI_FAILURE;
}

/* ---------------------------------------------------------------------- up */

static error_t parse_up(int key, char *arg, struct argp_state *state)
{
    struct lab *lab = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = lab; return 0;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is one word too many", arg); return 0;
    case ARGP_KEY_END:
        if (!lab->link_count)
            argp_error(state, "which links? Give --link SPEC for each, for example --link 4gbit --link 1gbit");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int up_main(int argc, char **argv)
{
    static const struct argp_child children[] = {{.argp = &lab_argp}, {0}};
    static const struct argp argp = {
        .parser = parse_up,
        .args_doc = "",
        .doc = "Makes a lab: hosts joined by shaped links." LAB_SPEC_HELP,
        .children = children,
    };
    struct lab lab = {0};
    int lock;
    if (argp_parse(&argp, argc, argv, 0, NULL, &lab))
        return CLI_FAILURE;
    if (!lab_is_root(argv[0]))
        return CLI_FAILURE;
    if (!lab.hosts)
        lab.hosts = 2;
    if (!lab.name[0])
        snprintf(lab.name, sizeof lab.name, LAB_NAME_DEFAULT);
    if (lab_lock(&lock))
        return complain(argv[0]);
    lab_sweep();
    struct guard guard = {0};
    int status = CLI_SUCCESS;
    if (lab_exists(lab.name))
        error_set(POLYPATH_ERROR_USAGE, "lab '%s' is up already; `polypath lab down --name %s' removes it", lab.name,
                  lab.name);
    /* Should this process be killed half-way, the guardian removes what there is. */
    if (lab_exists(lab.name) || guard_start(&guard, lab_undo, lab.name) || lab_create(&lab))
        status = complain(argv[0]);
    guard_dismiss(&guard);
    lab_unlock(lock);
    return status;
}

/* --------------------------------------------------------------------- set */

enum { KEY_RATE = 0x200, KEY_DOWN, KEY_UP, KEY_LOSS, KEY_DELAY, KEY_REORDER, KEY_CORRUPT };

/* The changes asked for; applied to the link once it is known. */
struct change {
    const char *name, *link;
    struct lab_link values;
    bool rate, down, loss, delay, reorder, corrupt;
};

static const struct argp_option set_options[] = {
    {"name", LAB_KEY_NAME, "NAME", 0, "the lab (default: " LAB_NAME_DEFAULT ")", 0},
    {"link", LAB_KEY_LINK, "NAME", 0, "the link, by its interface's name", 0},
    {"rate", KEY_RATE, "RATE", 0, "2gbit, 100mbit, none", 0},
    {"down", KEY_DOWN, NULL, 0, "cut it: the interfaces go down in all hosts", 0},
    {"up", KEY_UP, NULL, 0, "bring it back", 0},
    {"loss", KEY_LOSS, "SHARE", 0, "lose packets at random: 0.1%, 100% to cut it without a trace, 0", 0},
    {"delay", KEY_DELAY, "TIME", 0, "delay each packet, one way: 1ms, 250us, 0", 0},
    {"reorder", KEY_REORDER, "SHARE", 0, "packets that are not delayed and overtake the others", 0},
    {"corrupt", KEY_CORRUPT, "SHARE", 0, "packets in which a bit is turned over", 0},
    {0},
};

static error_t parse_set(int key, char *arg, struct argp_state *state)
{
    struct change *change = state->input;
    polypath_result_t result = POLYPATH_SUCCESS;
    switch (key) {
    case LAB_KEY_NAME: change->name = arg; break;
    case LAB_KEY_LINK: change->link = arg; break;
    case KEY_RATE: change->rate = true, result = lab_parse_rate(arg, &change->values.rate_bits); break;
    case KEY_LOSS: change->loss = true, result = lab_parse_percent(arg, &change->values.loss_ppm); break;
    case KEY_DELAY: change->delay = true, result = lab_parse_delay(arg, &change->values.delay_ns); break;
    case KEY_REORDER: change->reorder = true, result = lab_parse_percent(arg, &change->values.reorder_ppm); break;
    case KEY_CORRUPT: change->corrupt = true, result = lab_parse_percent(arg, &change->values.corrupt_ppm); break;
    case KEY_DOWN:
    case KEY_UP:
        change->down = true;
        change->values.down = key == KEY_DOWN;
        break;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is one word too many", arg); break;
    case ARGP_KEY_END:
        if (!change->link)
            argp_error(state, "which link? Give --link NAME");
        if (!change->rate && !change->down && !change->loss && !change->delay && !change->reorder && !change->corrupt)
            argp_error(state, "what is to change? Give --rate, --down, --up, --loss, --delay, --reorder or --corrupt");
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    if (result)
        argp_error(state, "%s", error_text());
    return 0;
}

static int find_link(const struct lab *lab, const char *name)
{
    char names[LAB_LINKS_MAX * (IF_NAMESIZE + 2) + 1] = "";
    size_t used = 0;
    for (int i = 0; i < lab->link_count; i++) {
        if (!strcmp(lab->links[i].name, name))
            return i;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%.15s", i ? ", " : "", lab->links[i].name);
    }
    error_set(POLYPATH_ERROR_USAGE, "lab '%s' has no link '%s', but %s", lab->name, name, names);
    return -1;
}

static polypath_result_t apply(const struct change *change)
{
    struct lab lab;
    polypath_result_t result = lab_load(change->name, &lab);
    int index = result ? -1 : find_link(&lab, change->link);
    if (index < 0)
        return result ? result : POLYPATH_ERROR_USAGE;
    struct lab_link link = lab.links[index];
    if (change->rate)
        link.rate_bits = change->values.rate_bits;
    if (change->loss)
        link.loss_ppm = change->values.loss_ppm;
    if (change->delay)
        link.delay_ns = change->values.delay_ns;
    if (change->reorder)
        link.reorder_ppm = change->values.reorder_ppm;
    if (change->corrupt)
        link.corrupt_ppm = change->values.corrupt_ppm;
    if (change->down)
        link.down = change->values.down;
    return lab_change(&lab, index, &link);
}

static int set_main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = set_options,
        .parser = parse_set,
        .doc = "Changes or cuts a link while it runs, in both directions and at all hosts. Connections stay.",
    };
    struct change change = {.name = LAB_NAME_DEFAULT};
    int lock;
    if (argp_parse(&argp, argc, argv, 0, NULL, &change))
        return CLI_FAILURE;
    if (!lab_is_root(argv[0]))
        return CLI_FAILURE;
    if (lab_lock(&lock))
        return complain(argv[0]);
    lab_sweep();
    int status = apply(&change) ? complain(argv[0]) : CLI_SUCCESS;
    lab_unlock(lock);
    return status;
}

/* -------------------------------------------------------------------- down */

struct down {
    const char *name;
    bool all;
};

static const struct argp_option down_options[] = {
    {"name", LAB_KEY_NAME, "NAME", 0, "the lab (default: " LAB_NAME_DEFAULT ")", 0},
    {"all", 'a', NULL, 0, "all labs of this machine, temporary ones too", 0},
    {0},
};

static error_t parse_down(int key, char *arg, struct argp_state *state)
{
    struct down *down = state->input;
    switch (key) {
    case LAB_KEY_NAME:
        down->name = arg;
        if (lab_check_name(arg))
            argp_error(state, "%s", error_text());
        return 0;
    case 'a': down->all = true; return 0;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is one word too many; a lab is named by --name", arg); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int down_main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = down_options,
        .parser = parse_down,
        .doc = "Kills what runs in the lab's hosts and removes the lab. Does nothing if there is none.",
    };
    struct down down = {.name = LAB_NAME_DEFAULT};
    int lock;
    if (argp_parse(&argp, argc, argv, 0, NULL, &down))
        return CLI_FAILURE;
    if (!lab_is_root(argv[0]))
        return CLI_FAILURE;
    if (lab_lock(&lock))
        return complain(argv[0]);
    lab_sweep();
    bool gone = true;
    struct lab_names names = down.all ? lab_list() : (struct lab_names){0};
    for (int i = 0; i < names.count; i++)
        gone &= lab_destroy(names.names[i], true);
    lab_names_free(&names);
    if (!down.all)
        gone = lab_destroy(down.name, true);
    lab_unlock(lock);
    if (!gone)
        fprintf(stderr, "%s: a process or a namespace of the lab would not go\n", argv[0]);
    return gone ? CLI_SUCCESS : CLI_FAILURE;
}

/* ------------------------------------------------------------ sub-commands */

static const struct subcommand {
    const char *name;
    int (*function)(int argc, char **argv);
    const char *help; /* NULL: internal */
} subcommands[] = {
    {"up", up_main, "make a lab"},
    {"run", lab_run_main, "start a program as N ranks spread over a lab's hosts"},
    {"status", lab_status_main, "show the labs, their links and what runs in them"},
    {"set", set_main, "change or cut a link while it runs"},
    {"down", down_main, "remove a lab"},
    {"relay", lab_relay_main, NULL},
};
#define SUBCOMMAND_COUNT (sizeof subcommands / sizeof subcommands[0])

static char *help_filter(int key, const char *text, void *input)
{
    (void)input;
    char *list = NULL;
    size_t bytes = 0;
    FILE *out = key == ARGP_KEY_HELP_PRE_DOC ? open_memstream(&list, &bytes) : NULL;
    if (!out)
        return (char *)text;
    fprintf(out, "%s\n\nCommands:\n", text);
    for (size_t i = 0; i < SUBCOMMAND_COUNT; i++)
        if (subcommands[i].help)
            fprintf(out, "  %-10s %s\n", subcommands[i].name, subcommands[i].help);
    fclose(out);
    return list;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    int *first = state->input;
    (void)arg;
    switch (key) {
    case ARGP_KEY_ARG:
        *first = state->next - 1;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "which command? One of up, run, status, set, down"); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cli_lab(int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .args_doc = "COMMAND [OPTION...]",
        .doc =
            "Labs: hosts on this machine, out of network namespaces, joined by links with a rate, a delay and faults.",
        .help_filter = help_filter,
    };
    int first = 0;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &first))
        return CLI_FAILURE;
    signal(SIGPIPE, SIG_IGN); /* a guardian or a tool that died is an error, not our end */
    for (size_t i = 0; i < SUBCOMMAND_COUNT; i++) {
        char title[80];
        if (strcmp(subcommands[i].name, argv[first]))
            continue;
        snprintf(title, sizeof title, "polypath lab %s", argv[first]);
        argv[first] = title;
        return subcommands[i].function(argc - first, argv + first);
    }
    fprintf(stderr, "polypath lab: unknown command '%s'; there are up, run, status, set, down\n", argv[first]);
    return CLI_USAGE;
}
