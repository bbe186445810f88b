/*
 * No launcher: a process started by hand is rank 0 of 1. It is not taken for
 * that when something else in the environment says that it is one of several
 * ranks: n communicators of one rank each would compute wrong results without a word.
 */
#include <stdlib.h>

#include "comm/bootstrap.h"
#include "comm/launcher_parts.h"
#include "system/error.h"

/* A variable that says "one of several". */
struct trace {
    const char *name; /* a number of ranks: 1 is harmless */
    const char *what;
};

static const struct trace traces[] = {
    {"OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun started this process, but libpmix.so.2 was not found here: "
                             "install it (Debian: libpmix2)"},
    {"PMI_SIZE", "a PMI launcher started this process, but PMI_FD is not set"},
    {"WORLD_SIZE", "torchrun-like variables are incomplete: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are "
                   "all needed"},
};

static bool present(void)
{
    return true;
}

static polypath_result_t join(struct launch *launch)
{
    for (size_t i = 0; i < sizeof traces / sizeof traces[0]; i++) {
        const char *text = getenv(traces[i].name);
        if (text && *text && atol(text) != 1)
            return error_set(POLYPATH_ERROR_ARGUMENT, "%s=%.32s: %s", traces[i].name, text, traces[i].what);
    }
    if (launcher_has("RANK") && !launcher_has("WORLD_SIZE"))
        return error_set(POLYPATH_ERROR_ARGUMENT,
                         "RANK=%.32s is set but WORLD_SIZE is not (nor MASTER_ADDR): one of a "
                         "job's ranks needs both; unset RANK to run as a single rank",
                         getenv("RANK"));
    launch->rank = 0;
    launch->size = 1;
    return bootstrap_alone(&launch->id);
}

const struct launcher launcher_none = {"none", present, join};
