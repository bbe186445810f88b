/*
 * Which paths there are, from what the ranks have said. Pure: the same answer
 * on every rank. Nothing is opened here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

/* The groups: NUMA nodes, numbered by their first rank, if there are several on one host; else the hosts. */
static void find_groups(const struct rank_info *infos, enum numa_mode numa, struct comm_layout *layout)
{
    bool known = numa != NUMA_OFF && layout->nhosts == 1;
    for (int r = 0; r < layout->size; r++)
        known &= infos[r].numa_node != NUMA_UNBOUND;
    layout->ngroups = layout->nhosts;
    for (int r = 0; r < layout->size; r++)
        layout->group_of[r] = layout->host_of[r];
    if (!known)
        return;
    int count = 0;
    for (int r = 0; r < layout->size; r++) {
        int first = 0;
        while (infos[first].numa_node != infos[r].numa_node)
            first++;
        layout->group_of[r] = first == r ? count++ : layout->group_of[first];
    }
    layout->ngroups = count;
    layout->by_node = count > 1;
}

polypath_result_t layout_build(const struct rank_info *infos, int size, enum numa_mode numa, struct comm_layout *layout)
{
    *layout = (struct comm_layout){.size = size};
    layout->host_of = calloc((size_t)size, sizeof *layout->host_of);
    layout->first_rank = calloc((size_t)size, sizeof *layout->first_rank);
    layout->local_size = calloc((size_t)size, sizeof *layout->local_size);
    layout->group_of = calloc((size_t)size, sizeof *layout->group_of);
    if (!layout->host_of || !layout->first_rank || !layout->local_size || !layout->group_of) {
        layout_free(layout);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    }
    for (int r = 0; r < size; r++) {
        int h = 0;
        while (h < layout->nhosts && strcmp(infos[layout->first_rank[h]].host, infos[r].host))
            h++;
        if (h == layout->nhosts)
            layout->first_rank[layout->nhosts++] = r;
        layout->host_of[r] = h;
        layout->local_size[h]++;
    }
    find_groups(infos, numa, layout);
    return POLYPATH_SUCCESS;
}

void layout_free(struct comm_layout *layout)
{
    free(layout->host_of);
    free(layout->first_rank);
    free(layout->local_size);
    free(layout->group_of);
    *layout = (struct comm_layout){0};
}

/* Whether `name` is in the comma list; an empty list allows everything. */
static bool listed(const char *list, const char *name, bool empty)
{
    if (!*list)
        return empty;
    size_t length = strlen(name);
    for (const char *p = list; *p;) {
        size_t word = strcspn(p, ",");
        if (word == length && !strncmp(p, name, word))
            return true;
        p += word;
        p += *p == ',';
    }
    return false;
}

static struct comm_path *add(struct path_choice *choice, const char *name, const char *kind, bool between)
{
    struct comm_path *path = &choice->paths[choice->npaths++];
    *path = (struct comm_path){.between_hosts = between};
    snprintf(path->name, sizeof path->name, "%s", name);
    snprintf(path->kind, sizeof path->kind, "%s", kind);
    return path;
}

static void choose_within(const struct rank_info *infos, const struct settings *settings, struct path_choice *choice)
{
    bool loopback = listed(settings->paths, "lo", false);
    for (int i = 0; i < infos[0].ninterfaces; i++)
        loopback |= infos[0].interfaces[i].loopback && *settings->interfaces;
    /* a list of networks says nothing about the ranks of one host */
    const bool named = loopback || listed(settings->paths, "shm", false) || listed(settings->paths, "cma", false);
    const char *list = named ? settings->paths : "";
    if (settings->shm && listed(list, "shm", true))
        add(choice, "shm", "shm", false);
    if (settings->cma && listed(list, "cma", true))
        add(choice, "cma", "cma", false);
    if (loopback || !choice->npaths)
        add(choice, "lo", "tcp", false);
}

/* The interface of `host` that is on a's network and not taken yet; -1 if none. */
static int partner(const struct interface *a, const struct rank_info *host, const bool *taken, bool same_subnet)
{
    for (int i = 0; i < host->ninterfaces; i++) {
        const struct interface *b = &host->interfaces[i];
        if (taken[i] || b->address.any.sa_family != a->address.any.sa_family || b->loopback != a->loopback)
            continue;
        if (!same_subnet || interfaces_same_subnet(a, b))
            return i;
    }
    return -1;
}

/*
 * First networks (equal subnets), then, for what is left, interfaces in their
 * order: NICs on different subnets that a router joins.
 */
static polypath_result_t choose_between(const struct rank_info *infos, const struct comm_layout *layout,
                                        const struct settings *settings, struct path_choice *choice)
{
    const int nhosts = layout->nhosts;
    bool(*taken)[INTERFACES_MAX] = calloc((size_t)nhosts, sizeof *taken);
    if (!taken)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    const struct rank_info *first = &infos[layout->first_rank[0]];
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < first->ninterfaces && choice->npaths < HOST_PATHS; i++) {
            if (taken[0][i])
                continue;
            int *row = choice->interface_of + (size_t)choice->npaths * (size_t)nhosts;
            bool complete = true;
            row[0] = i;
            for (int h = 1; h < nhosts && complete; h++) {
                row[h] = partner(&first->interfaces[i], &infos[layout->first_rank[h]], taken[h], pass == 0);
                complete = row[h] >= 0;
            }
            if (!complete || !listed(settings->paths, first->interfaces[i].name, true))
                continue;
            for (int h = 0; h < nhosts; h++)
                taken[h][row[h]] = true;
            add(choice, first->interfaces[i].name, "tcp", true);
        }
        if (choice->npaths)
            break; /* networks were found: do not guess about the rest */
    }
    free(taken);
    if (!choice->npaths) {
        char have[400] = "";
        size_t used = 0;
        for (int h = 0; h < nhosts && used < sizeof have - 1; h++) {
            const struct rank_info *info = &infos[layout->first_rank[h]];
            used += (size_t)snprintf(have + used, sizeof have - used, "%s%s:", h ? "; " : "", info->host_name);
            for (int i = 0; i < info->ninterfaces && used < sizeof have - 1; i++)
                used += (size_t)snprintf(have + used, sizeof have - used, " %s", info->interfaces[i].name);
        }
        return error_set(POLYPATH_ERROR_SYSTEM,
                         "no network path connects all %d hosts (settings `paths` and `interfaces`); they have %s",
                         nhosts, have);
    }
    return POLYPATH_SUCCESS;
}

polypath_result_t paths_choose(const struct rank_info *infos, const struct comm_layout *layout,
                               const struct settings *settings, struct path_choice *choice)
{
    *choice = (struct path_choice){0};
    choice->interface_of = malloc((size_t)HOST_PATHS * (size_t)layout->nhosts * sizeof *choice->interface_of);
    if (!choice->interface_of)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    for (int i = 0; i < HOST_PATHS * layout->nhosts; i++)
        choice->interface_of[i] = -1;
    if (layout->nhosts == 1) {
        choose_within(infos, settings, choice);
        return POLYPATH_SUCCESS;
    }
    polypath_result_t result = choose_between(infos, layout, settings, choice);
    if (result) {
        free(choice->interface_of);
        choice->interface_of = NULL;
    }
    return result;
}
