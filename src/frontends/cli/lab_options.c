/*
 * The options that describe a lab. See lab_options.h.
 */
#include "frontends/cli/lab_options.h"

#include <stdlib.h>
#include <string.h>

#include "frontends/cli/lab_net.h"
#include "frontends/cli/lab_spec.h"
#include "frontends/cli/lab_state.h"
#include "system/error.h"

static const struct argp_option option_table[] = {
    {"name", LAB_KEY_NAME, "NAME", 0, "the lab's name (default: " LAB_NAME_DEFAULT ")", 4},
    {"hosts", LAB_KEY_HOSTS, "H", 0, "number of hosts (default 2)", 4},
    {"link", LAB_KEY_LINK, "SPEC", 0, "a link between all hosts; may be given several times", 4},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct lab *lab = state->input;
    polypath_result_t result = POLYPATH_SUCCESS;
    char *end;
    switch (key) {
    case LAB_KEY_NAME:
        result = lab_check_name(arg);
        if (!result)
            snprintf(lab->name, sizeof lab->name, "%s", arg);
        break;
    case LAB_KEY_HOSTS: {
        long hosts = strtol(arg, &end, 10);
        if (end == arg || *end || hosts < 2 || hosts > LAB_HOSTS_MAX)
            argp_error(state, "--hosts takes a number from 2 to %d, not '%s'", LAB_HOSTS_MAX, arg);
        lab->hosts = (int)hosts;
        break;
    }
    case LAB_KEY_LINK: result = lab_parse_link(arg, lab); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    if (result)
        argp_error(state, "%s", error_text());
    return 0;
}

const struct argp lab_argp = {.options = option_table, .parser = parse};

void lab_undo(const char *name)
{
    int lock;
    if (lab_lock(&lock))
        return;
    lab_destroy(name, false);
    lab_unlock(lock);
}
