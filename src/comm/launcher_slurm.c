/*
 * srun without PMI: rank and size from Slurm's variables, the meeting place is
 * the first host of the step's node list, at a port derived from the job's and
 * the step's number. Both numbers are public, so on more than one node the
 * setting `secret` is required.
 *
 * Inside a batch script, but not started by srun, the same variables describe
 * the script's allocation; only a step's number says that srun is at work.
 */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/launcher_parts.h"
#include "system/error.h"
#include "system/settings.h"

#define FIRST_PORT 15000 /* below the kernel's usual range of ephemeral ports */
#define PORTS 16000
#define SPAN 16

static const char *either(const char *first, const char *second)
{
    return launcher_has(first) ? first : second;
}

static bool present(void)
{
    return launcher_has("SLURM_PROCID") && (launcher_has("SLURM_STEP_ID") || launcher_has("SLURM_STEPID"));
}

/* Appends the first item of a bracket: "[03-05,9]" -> "03". Moves *list behind the bracket. */
static bool first_of_bracket(const char **list, char *host, size_t bytes, size_t *used)
{
    const char *p = *list + 1;
    if (!isdigit((unsigned char)*p))
        return false;
    for (; isdigit((unsigned char)*p); p++) {
        if (*used + 1 >= bytes)
            return false;
        host[(*used)++] = *p;
    }
    p += strspn(p, "0123456789,-");
    if (*p != ']')
        return false;
    *list = p + 1;
    return true;
}

bool launcher_slurm_first_host(const char *list, char *host, size_t bytes)
{
    size_t used = 0;
    while (*list && *list != ',') {
        if (*list == '[') {
            if (!first_of_bracket(&list, host, bytes, &used))
                return false;
        } else if (isalnum((unsigned char)*list) || strchr("-._:", *list)) {
            if (used + 1 >= bytes)
                return false;
            host[used++] = *list++;
        } else {
            return false;
        }
    }
    host[used] = 0;
    return used > 0;
}

static polypath_result_t join(struct launch *launch)
{
    const char *size_name = either("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
    polypath_result_t result = launcher_rank_size("slurm", "SLURM_PROCID", size_name, launch);
    long job, step, nodes;
    if (result == POLYPATH_SUCCESS)
        result = launcher_number("slurm", either("SLURM_JOB_ID", "SLURM_JOBID"), 0, LONG_MAX, &job);
    if (result == POLYPATH_SUCCESS)
        result = launcher_number("slurm", either("SLURM_STEP_ID", "SLURM_STEPID"), 0, LONG_MAX, &step);
    const char *nodes_name = either("SLURM_STEP_NUM_NODES", either("SLURM_NNODES", "SLURM_JOB_NUM_NODES"));
    if (result == POLYPATH_SUCCESS)
        result = launcher_number("slurm", nodes_name, 1, LONG_MAX, &nodes);
    if (result != POLYPATH_SUCCESS)
        return result;
    if (nodes > 1 && launch->size > 1 && !*settings_get()->secret)
        return error_set(
            POLYPATH_ERROR_ARGUMENT,
            "launcher slurm: %ld nodes without PMI: the job's number is no secret, so set POLYPATH_SECRET, "
            "the same on all ranks (or start with srun --mpi=pmix or --mpi=pmi2)",
            nodes);
    char host[256] = "";
    const char *list_name = either("SLURM_STEP_NODELIST", either("SLURM_NODELIST", "SLURM_JOB_NODELIST"));
    const char *list = getenv(list_name);
    if (nodes > 1 && (!list || !launcher_slurm_first_host(list, host, sizeof host)))
        return error_set(POLYPATH_ERROR_ARGUMENT, "launcher slurm: %s=%.128s is not a list of hosts", list_name,
                         list ? list : "");
    char numbers[64];
    snprintf(numbers, sizeof numbers, "%ld.%ld", job, step);
    struct derived_place place = {
        .launcher = "slurm",
        .host = host,
        .one_host = nodes == 1,
        .first_port = FIRST_PORT + (int)(((unsigned long)job * 131 + (unsigned long)step * SPAN) % PORTS),
        .span = SPAN,
        .material = {numbers, list, getenv("SLURM_RESTART_COUNT"), getenv(size_name)},
    };
    return launcher_meet_derived(&place, launch);
}

const struct launcher launcher_slurm = {"slurm", present, join};
