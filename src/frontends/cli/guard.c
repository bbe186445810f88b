/*
 * The guardian process. See guard.h. It lives in its own session, so that
 * neither a terminal's signals nor a kill of the launcher's group reach it.
 */
#include "frontends/cli/guard.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "system/error.h"

/*
 * Messages are one number each: a process group, 0 for "all is well", or minus
 * the length of a mark that follows in the same write.
 */
#define DISMISSED ((pid_t)0)
#define MARK_MAX 1024

#define GUARDIAN_NAME "polypath-guard" /* 15 characters at most */

/* What the launcher has told. */
struct watched {
    pid_t *groups;
    size_t count, room;
    char mark[MARK_MAX];
    size_t mark_bytes;
};

static void add_group(struct watched *watched, pid_t group)
{
    if (watched->count == watched->room) {
        size_t room = watched->room ? 2 * watched->room : 64;
        pid_t *grown = realloc(watched->groups, room * sizeof *grown);
        if (!grown)
            return; /* the mark still finds its processes */
        watched->groups = grown;
        watched->room = room;
    }
    watched->groups[watched->count++] = group;
}

static ssize_t read_again(int fd, void *bytes, size_t count)
{
    ssize_t got;
    while ((got = read(fd, bytes, count)) < 0 && errno == EINTR)
        ;
    return got;
}

/* Listens until the launcher is dead (false) or has dismissed us (true). */
static bool listen_to_launcher(int fd, struct watched *watched)
{
    pid_t message;
    while (read_again(fd, &message, sizeof message) == sizeof message) { /* written in one piece, so read in one */
        if (message == DISMISSED)
            return true;
        if (message > 0) {
            add_group(watched, message);
            continue;
        }
        size_t bytes = (size_t)-message;
        if (bytes > MARK_MAX || read_again(fd, watched->mark, bytes) != (ssize_t)bytes)
            return false;
        watched->mark_bytes = bytes;
    }
    return false;
}

/* Whether the process was started with the marked variable in its environment (mark_bytes counts the closing 0). */
static bool is_marked(const struct watched *watched, const char *pid)
{
    static char environment[1 << 20];
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/environ", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t used = 1; /* environment[0] stays 0: every variable has one in front and one behind */
    ssize_t got;
    while (fd >= 0 && (got = read_again(fd, environment + used, sizeof environment - used)) > 0)
        used += (size_t)got;
    if (fd >= 0)
        close(fd);
    char *found = environment;
    while ((found = memmem(found, used - (size_t)(found - environment), watched->mark, watched->mark_bytes))) {
        if (found > environment && found[-1] == '\0')
            return true;
        found++;
    }
    return false;
}

bool guard_is_guardian(pid_t pid)
{
    char path[48], name[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read_again(fd, name, sizeof name - 1);
    close(fd);
    return got > 0 && !strcmp(name, GUARDIAN_NAME "\n");
}

static void kill_marked(const struct watched *watched)
{
    /* More than once: what is found may just be starting another. */
    for (int round = 0, found = 1; watched->mark_bytes && found && round < 100; round++) {
        DIR *processes = opendir("/proc");
        found = 0;
        for (struct dirent *entry; processes && (entry = readdir(processes));) {
            pid_t pid = (pid_t)atoi(entry->d_name);
            /* A launcher that a rank ran has a guardian of its own, which must do its work. */
            if (!isdigit((unsigned char)entry->d_name[0]) || !is_marked(watched, entry->d_name) ||
                guard_is_guardian(pid))
                continue;
            found = 1;
            kill(pid, SIGKILL);
        }
        if (processes)
            closedir(processes);
        if (found)
            usleep(1000);
    }
}

static _Noreturn void guardian(int fd, void (*undo)(const char *context), const char *context)
{
    setsid();
    prctl(PR_SET_NAME, GUARDIAN_NAME);
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
    struct watched watched = {0};
    bool dismissed = listen_to_launcher(3, &watched);
    if (!dismissed) {
        for (size_t i = 0; i < watched.count; i++)
            kill(-watched.groups[i], SIGKILL);
        kill_marked(&watched);
        if (undo)
            undo(context);
    }
    free(watched.groups);
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

void guard_mark(const struct guard *guard, const char *variable)
{
    char message[sizeof(pid_t) + MARK_MAX];
    size_t bytes = strlen(variable) + 1;
    pid_t head = -(pid_t)bytes;
    if (bytes > MARK_MAX)
        return;
    memcpy(message, &head, sizeof head);
    memcpy(message + sizeof head, variable, bytes);
    while (write(guard->fd, message, sizeof head + bytes) < 0 && errno == EINTR)
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
