/* Starts one rank as a process: everything between fork and exec. */
#ifndef CLI_SPAWN_H
#define CLI_SPAWN_H

#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "polypath/polypath.h"

/* All of it made before the fork, as a child of a process with threads may not allocate. */
struct spawn {
    const char *path; /* the program's file */
    char *const *argv, *const *envp;
    int standard[3]; /* become descriptors 0, 1, 2 */
    int namespace;   /* network namespace to enter; -1: none */
    int guard;       /* see guard_watch */
    const cpu_set_t *cpus;
    const sigset_t *mask;
    const struct rlimit *files; /* limit on descriptors to go back to */
};

/*
 * Starts it in a process group of its own; it dies with this process. Returns
 * when the program runs, or when the new process has said why it cannot: an
 * error with errno's value in *reason.
 */
polypath_result_t spawn_rank(const struct spawn *spawn, pid_t *pid, int *reason);

#endif
