/*
 * The tools that configure the network are run by posix_spawn with a vector of
 * words: no shell, so nothing in a name can be taken for syntax. Knows which
 * Debian package has which tool, and nothing of what they are asked to do.
 */
#include "frontends/cli/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "system/error.h"

#define WORDS_MAX 64

static const char *package_of(const char *tool)
{
    return !strcmp(tool, "nft") ? "nftables" : "iproute2";
}

/* Starts argv with its output and errors in two pipes. */
static int start(const char *const argv[], int out, int err, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out, 1);
    posix_spawn_file_actions_adddup2(&actions, err, 2);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    char *const *words = (char *const *)(const void *)argv; /* posix_spawn does not change them */
    int error = posix_spawnp(pid, argv[0], &actions, &attributes, words, environ);
    /* Root's PATH under cron and the like has no sbin. */
    static const char *const folders[] = {"/usr/sbin", "/sbin"};
    for (size_t i = 0; error == ENOENT && i < sizeof folders / sizeof folders[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folders[i], argv[0]);
        error = posix_spawn(pid, path, &actions, &attributes, words, environ);
    }
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* One of the two pipes: keeps what fits, drops the rest, so that the tool never blocks. */
struct capture {
    int fd;
    char *text;
    size_t bytes, used;
};

static bool capture_some(struct capture *capture)
{
    char chunk[4096];
    ssize_t got = read(capture->fd, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR)
        return true;
    if (got <= 0)
        return false;
    size_t room = capture->bytes - 1 - capture->used, keep = (size_t)got < room ? (size_t)got : room;
    memcpy(capture->text + capture->used, chunk, keep);
    capture->used += keep;
    capture->text[capture->used] = '\0';
    return true;
}

static void capture_both(struct capture *out, struct capture *err)
{
    struct pollfd polls[2] = {{.fd = out->fd, .events = POLLIN}, {.fd = err->fd, .events = POLLIN}};
    while (polls[0].fd >= 0 || polls[1].fd >= 0) {
        if (poll(polls, 2, -1) < 0 && errno != EINTR)
            return;
        if (polls[0].revents && !capture_some(out))
            polls[0].fd = -1;
        if (polls[1].revents && !capture_some(err))
            polls[1].fd = -1;
        polls[0].revents = polls[1].revents = 0;
    }
}

static polypath_result_t failed(const char *const argv[], int status, char *errors)
{
    char line[512] = "";
    for (size_t i = 0, used = 0; argv[i] && used < sizeof line; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s", i ? " " : "", argv[i]);
    errors[strcspn(errors, "\n")] = '\0'; /* nft goes on with a drawing of the place */
    if (WIFSIGNALED(status))
        return error_set(POLYPATH_ERROR_SYSTEM, "`%s' was killed by signal %d", line, WTERMSIG(status));
    return error_set(POLYPATH_ERROR_SYSTEM, "`%s' failed: %s", line, *errors ? errors : "it gave no reason");
}

static polypath_result_t run(const char *const argv[], char *out, size_t bytes)
{
    char errors[600] = "", ignored[1];
    int out_pipe[2], err_pipe[2];
    if (pipe2(out_pipe, O_CLOEXEC))
        return error_set(POLYPATH_ERROR_SYSTEM, "no pipe for `%s': %s", argv[0], strerror(errno));
    if (pipe2(err_pipe, O_CLOEXEC)) {
        close(out_pipe[0]);
        close(out_pipe[1]);
        return error_set(POLYPATH_ERROR_SYSTEM, "no pipe for `%s': %s", argv[0], strerror(errno));
    }
    pid_t pid = 0;
    int error = start(argv, out_pipe[1], err_pipe[1], &pid);
    close(out_pipe[1]);
    close(err_pipe[1]);
    struct capture captures[2] = {{out_pipe[0], out ? out : ignored, out ? bytes : 1, 0},
                                  {err_pipe[0], errors, sizeof errors, 0}};
    captures[0].text[0] = '\0';
    if (!error)
        capture_both(&captures[0], &captures[1]);
    close(out_pipe[0]);
    close(err_pipe[0]);
    if (error == ENOENT)
        return error_set(POLYPATH_ERROR_SYSTEM, "the tool `%s' is missing; install it with: apt-get install %s",
                         argv[0], package_of(argv[0]));
    if (error)
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot run `%s': %s", argv[0], strerror(error));
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return error_set(POLYPATH_ERROR_SYSTEM, "cannot wait for `%s': %s", argv[0], strerror(errno));
    return status ? failed(argv, status, errors) : POLYPATH_SUCCESS;
}

static bool collect(const char *argv[WORDS_MAX], const char *tool, va_list words)
{
    size_t count = 0;
    argv[count++] = tool;
    while (count < WORDS_MAX && (argv[count] = va_arg(words, const char *)))
        count++;
    return count < WORDS_MAX;
}

polypath_result_t command_run(const char *tool, ...)
{
    const char *argv[WORDS_MAX];
    va_list words;
    va_start(words, tool);
    bool fits = collect(argv, tool, words);
    va_end(words);
    return fits ? run(argv, NULL, 0) : error_set(POLYPATH_ERROR_INTERNAL, "too many words for `%s'", tool);
}

polypath_result_t command_read(char *out, size_t bytes, const char *tool, ...)
{
    const char *argv[WORDS_MAX];
    va_list words;
    va_start(words, tool);
    bool fits = collect(argv, tool, words);
    va_end(words);
    return fits ? run(argv, out, bytes) : error_set(POLYPATH_ERROR_INTERNAL, "too many words for `%s'", tool);
}
