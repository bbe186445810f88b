/*
 * The table of launchers, and what they share. Each launcher is one file; the
 * first one in the table whose variables are there is taken. A launcher that
 * may have been started by another one (torchrun under srun) stands before it.
 */
#include "comm/launcher.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/bootstrap.h"
#include "comm/launcher_parts.h"
#include "system/error.h"
#include "system/log.h"

static const struct launcher *const table[] = {&launcher_polypath, &launcher_torchrun, &launcher_pmix,
                                               &launcher_pmi,      &launcher_slurm,    &launcher_none};

bool launcher_has(const char *name)
{
    const char *text = getenv(name);
    return text && *text;
}

polypath_result_t launcher_number(const char *launcher, const char *name, long least, long most, long *value)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return error_set(POLYPATH_ERROR_ARGUMENT, "launcher %s: variable %s is not set", launcher, name);
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno || end == text || *end || text[0] == ' ' || text[0] == '+')
        return error_set(POLYPATH_ERROR_ARGUMENT, "launcher %s: %s=%.64s is not a number", launcher, name, text);
    if (v < least || v > most)
        return error_set(POLYPATH_ERROR_ARGUMENT, "launcher %s: %s=%ld is outside %ld to %ld", launcher, name, v, least,
                         most);
    *value = v;
    return POLYPATH_SUCCESS;
}

polypath_result_t launcher_rank_size(const char *launcher, const char *rank_name, const char *size_name,
                                     struct launch *launch)
{
    long rank = 0, size = 0;
    polypath_result_t result = launcher_number(launcher, size_name, 1, BOOTSTRAP_SIZE_MAX, &size);
    if (result == POLYPATH_SUCCESS)
        result = launcher_number(launcher, rank_name, 0, BOOTSTRAP_SIZE_MAX - 1, &rank);
    if (result != POLYPATH_SUCCESS)
        return result;
    if (rank >= size)
        return error_set(POLYPATH_ERROR_ARGUMENT, "launcher %s: %s=%ld must be less than %s=%ld", launcher, rank_name,
                         rank, size_name, size);
    launch->rank = (int)rank;
    launch->size = (int)size;
    return POLYPATH_SUCCESS;
}

polypath_result_t launcher_join(struct launch *launch)
{
    memset(launch, 0, sizeof *launch);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (!table[i]->present())
            continue;
        launch->launcher = table[i]->name;
        polypath_result_t result = table[i]->join(launch);
        if (result == POLYPATH_SUCCESS)
            log_line(LOG_LEVEL_INFO, "rank %d of %d, started by launcher %s", launch->rank, launch->size,
                     launch->launcher);
        return result;
    }
    return error_set(POLYPATH_ERROR_INTERNAL, "no launcher took this process");
}
