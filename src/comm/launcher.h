/*
 * What the launcher that started this process left in the environment. One
 * file per launcher (launcher_*.c) and one line in the table of launcher.c.
 */
#ifndef COMM_LAUNCHER_H
#define COMM_LAUNCHER_H

#include "polypath/polypath.h"

struct launch {
    const char *launcher; /* "polypath", "pmix", "pmi", "torchrun", "none" */
    int rank, size;
    polypath_unique_id_t id; /* already agreed between the ranks */
};

/*
 * Finds the launcher and agrees on a unique id by its means (rank 0 makes it).
 * Blocks until that is done or the deadline. Without any launcher: rank 0 of 1.
 */
polypath_result_t launcher_join(struct launch *launch);

/* For one launcher: whether its variables are there, and how to join. */
struct launcher {
    const char *name;
    bool (*present)(void);
    polypath_result_t (*join)(struct launch *launch);
};

#endif
