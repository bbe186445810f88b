/*
 * The guardian: a small process that outlives a launcher which was killed, to
 * end what the launcher started and undo what it made. It holds one end of a
 * pipe; when the launcher's end closes without a word, the launcher is dead.
 */
#ifndef CLI_GUARD_H
#define CLI_GUARD_H

#include <stdbool.h>
#include <sys/types.h>

#include "polypath/polypath.h"

struct guard {
    pid_t pid; /* of the guardian */
    int fd;    /* the launcher's end of the pipe; what is to outlive the launcher must close it */
};

/*
 * Starts the guardian. If the launcher dies, it kills the process groups it
 * has been told of and then calls undo(context), if not NULL. To be called
 * while the process has one thread.
 */
polypath_result_t guard_start(struct guard *guard, void (*undo)(const char *context), const char *context);

/* Tells it of a process group. Async-signal-safe: the new process itself calls it between fork and exec. */
void guard_watch(int fd, pid_t group);

/*
 * Tells it of a variable (NAME=VALUE) that only the launcher's descendants
 * have: by it those are found that made a group or a session of their own.
 */
void guard_mark(const struct guard *guard, const char *variable);

/* Whether a process is a guardian (of any launcher): not to be killed, as it goes when it has done its work. */
bool guard_is_guardian(pid_t pid);

/* All is well: the guardian goes, doing nothing. Returns when it is gone. */
void guard_dismiss(struct guard *guard);

#endif
