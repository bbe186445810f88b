/*
 * The guardian process. See guard.h. It lives in its own session, so that
 * neither a terminal's signals nor a kill of the launcher's group reach it.
 */
#include "frontends/cli/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "system/error.h"

#define DISMISSED ((pid_t)0) /* the message "all is well"; any other is a process group */

/* Reads groups until the launcher is dead (false) or has dismissed us (true). */
static bool listen_to_launcher(int fd, pid_t **groups, size_t *count)
{
    size_t room = 0;
    for (;;) {
        pid_t message;
        ssize_t got = read(fd, &message, sizeof message); /* written in one piece, so read in one piece */
        if (got < 0 && errno == EINTR)
            continue;
        if (got != sizeof message)
            return false;
        if (message == DISMISSED)
            return true;
        if (*count == room) {
            size_t more = room ? 2 * room : 64;
            pid_t *grown = realloc(*groups, more * sizeof **groups);
            if (!grown) { /* ranks themselves die with the launcher; only what they started would be missed */
                continue;
            }
            *groups = grown;
            room = more;
        }
        (*groups)[(*count)++] = message;
    }
}

static _Noreturn void guardian(int fd, void (*undo)(const char *context), const char *context)
{
    setsid();
    prctl(PR_SET_NAME, "polypath-guard");
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    /* Holding on to somebody's pipe or lock would keep them waiting for us. */
    int keep = fcntl(fd, F_DUPFD_CLOEXEC, 3), null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int standard = 0; standard < 3; standard++)
        dup2(null, standard);
    if (dup2(keep, 3) != 3)
        _exit(1);
    fcntl(3, F_SETFD, FD_CLOEXEC);
    close_range(4, ~0u, 0);
    if (chdir("/"))
        _exit(1);
    pid_t *groups = NULL;
    size_t count = 0;
    bool dismissed = listen_to_launcher(3, &groups, &count);
    if (!dismissed) {
        for (size_t i = 0; i < count; i++)
            kill(-groups[i], SIGKILL);
        if (undo)
            undo(context);
    }
    free(groups);
    _exit(0);
}

polypath_result_t guard_start(struct guard *guard, void (*undo)(const char *context), const char *context)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return error_set(POLYPATH_ERROR_SYSTEM, "no pipe to the guardian: %s", strerror(errno));
    pid_t pid = fork();
    if (pid < 0) {
        int reason = errno;
        close(ends[0]);
        close(ends[1]);
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot start the guardian: %s", strerror(reason));
    }
    if (pid == 0) {
        close(ends[1]);
        guardian(ends[0], undo, context);
    }
    close(ends[0]);
    /* Tools that we run keep it open too: a tool that outlives us must be done before anything is undone. */
    fcntl(ends[1], F_SETFD, 0);
    guard->pid = pid;
    guard->fd = ends[1];
    return POLYPATH_SUCCESS;
}

void guard_watch(int fd, pid_t group)
{
    while (write(fd, &group, sizeof group) < 0 && errno == EINTR)
        ;
}

void guard_dismiss(struct guard *guard)
{
    if (guard->pid <= 0)
        return;
    guard_watch(guard->fd, DISMISSED);
    close(guard->fd);
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    guard->pid = 0;
}
