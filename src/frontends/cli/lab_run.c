/*
 * `polypath lab run`: ranks spread over a lab's hosts. Finds or makes the lab
 * and the places; starting and ending ranks is launch.c's.
 */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/bootstrap.h"
#include "frontends/cli/cli.h"
#include "frontends/cli/lab_net.h"
#include "frontends/cli/lab_options.h"
#include "frontends/cli/lab_state.h"
#include "frontends/cli/launch.h"
#include "system/error.h"

struct lab_run {
    struct launch_options options;
    struct lab lab; /* as asked for, then as it is */
    bool round_robin;
    struct launch launch;
};

enum { KEY_MAP = 0x400 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct lab_run *run = state->input;
    switch (key) {
    case KEY_MAP:
        if (strcmp(arg, "block") && strcmp(arg, "round-robin"))
            argp_error(state, "--map is block or round-robin, not '%s'", arg);
        run->round_robin = !strcmp(arg, "round-robin");
        return 0;
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &run->options;
        state->child_inputs[1] = &run->lab;
        return 0;
    case ARGP_KEY_END:
        if (run->lab.hosts && !run->lab.link_count)
            argp_error(state, "--hosts makes a temporary lab, which needs --link SPEC as well");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option option_table[] = {
    {"map", KEY_MAP, "HOW", 0, "ranks to hosts: block (default; rank r to host r*H/N) or round-robin", 4},
    {0},
};
static const struct argp_child children[] = {{.argp = &launch_argp}, {.argp = &lab_argp}, {0}};
static const struct argp argp = {
    .options = option_table,
    .parser = parse,
    .args_doc = "-n N [--] PROGRAM [ARGUMENT...]",
    .doc = "Starts N ranks of PROGRAM spread over the hosts of a lab: the one that is up, or with --link a temporary "
           "one that goes when the ranks have ended, whatever ends them." LAB_SPEC_HELP,
    .children = children,
};

static int complain(const struct lab_run *run)
{
    fprintf(stderr, "%s: %s\n", run->options.command, error_text());
    return CLI_FAILURE;
}

static void place_ranks(const struct lab_run *run, const int *namespaces, struct launch_place *places)
{
    int size = run->options.size, hosts = run->lab.hosts, per_host[LAB_HOSTS_MAX] = {0};
    for (int r = 0; r < size; r++) {
        int host = run->round_robin ? r % hosts : (int)((long)r * hosts / size);
        places[r] = (struct launch_place){.host = host, .namespace = namespaces[host], .local_rank = per_host[host]++};
    }
    for (int r = 0; r < size; r++)
        places[r].local_size = per_host[places[r].host];
}

/* The service's socket and its thread belong to the network namespace in which they are made: host 0's. */
static polypath_result_t serve(const struct lab *lab, char *text)
{
    char namespace[LAB_NAMESPACE_BYTES], address[LAB_ADDRESS_BYTES];
    int back, link = 0;
    while (link < lab->link_count - 1 && lab->links[link].down)
        link++;
    polypath_unique_id_t id;
    polypath_result_t result = namespace_enter(lab_namespace(namespace, lab->name, 0), &back);
    if (result)
        return result;
    result = bootstrap_serve(&id, lab_address(address, link, 0, false));
    namespace_leave(back);
    if (!result)
        bootstrap_format(&id, text);
    return result;
}

static polypath_result_t open_namespaces(const struct lab *lab, int *namespaces)
{
    char path[LAB_NAMESPACE_BYTES + 16], name[LAB_NAMESPACE_BYTES];
    for (int h = 0; h < lab->hosts; h++) {
        snprintf(path, sizeof path, "/run/netns/%s", lab_namespace(name, lab->name, h));
        namespaces[h] = open(path, O_RDONLY | O_CLOEXEC);
        if (namespaces[h] < 0)
            return error_set(POLYPATH_ERROR_SYSTEM, "cannot open host %d's namespace: %s", h, strerror(errno));
    }
    return POLYPATH_SUCCESS;
}

static int run_in_lab(struct lab_run *run)
{
    char text[2 * POLYPATH_UNIQUE_ID_BYTES + 1];
    int namespaces[LAB_HOSTS_MAX], status = CLI_FAILURE;
    for (int h = 0; h < LAB_HOSTS_MAX; h++)
        namespaces[h] = -1;
    struct launch_place *places = calloc((size_t)run->options.size, sizeof *places);
    if (!places)
        error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    if (!places || open_namespaces(&run->lab, namespaces) || serve(&run->lab, text)) {
        complain(run);
    } else {
        place_ranks(run, namespaces, places);
        status = launch_run(&run->launch, places, text);
    }
    for (int h = 0; h < run->lab.hosts; h++)
        if (namespaces[h] >= 0)
            close(namespaces[h]);
    free(places);
    return status;
}

static int run_in_existing(struct lab_run *run)
{
    int lock;
    if (lab_lock(&lock))
        return complain(run);
    lab_sweep();
    char name[LAB_NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", run->lab.name[0] ? run->lab.name : LAB_NAME_DEFAULT);
    polypath_result_t result = lab_load(name, &run->lab);
    lab_unlock(lock);
    if (result) {
        complain(run);
        fprintf(stderr,
                "%s: make one with `polypath lab up --link SPEC ...', or give --link SPEC here for a temporary one\n",
                run->options.command);
        return CLI_FAILURE;
    }
    if (guard_start(&run->launch.guard, NULL, NULL))
        return complain(run);
    return run_in_lab(run);
}

static int run_in_temporary(struct lab_run *run)
{
    struct lab *lab = &run->lab;
    int lock;
    if (!lab->hosts)
        lab->hosts = 2;
    if (!lab->name[0])
        snprintf(lab->name, sizeof lab->name, "run%d", (int)getpid());
    lab->temporary = true;
    if (lab_lock(&lock))
        return complain(run);
    lab_sweep();
    bool taken = lab_exists(lab->name);
    polypath_result_t result =
        taken ? error_set(POLYPATH_ERROR_USAGE, "lab '%s' is up already; leave --link out to use it", lab->name)
              : guard_start(&run->launch.guard, lab_undo, lab->name);
    if (!result)
        result = lab_create(lab);
    lab_unlock(lock);
    if (result)
        return complain(run);
    int status = run_in_lab(run);
    if (lab_lock(&lock))
        return complain(run);
    if (!lab_destroy(lab->name, false)) {
        fprintf(stderr, "%s: a process or a namespace of the temporary lab would not go\n", run->options.command);
        status = status ? status : CLI_FAILURE;
    }
    lab_unlock(lock);
    return status;
}

int lab_run_main(int argc, char **argv)
{
    struct lab_run *run = calloc(1, sizeof *run);
    if (!run)
        return CLI_FAILURE;
    run->options.command = argv[0];
    int status = argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, run) || !lab_is_root(argv[0]);
    if (!status)
        status = launch_prepare(&run->launch, &run->options);
    if (!status) {
        status = run->lab.link_count ? run_in_temporary(run) : run_in_existing(run);
        launch_free(&run->launch);
    }
    launch_options_free(&run->options);
    free(run);
    return status;
}
