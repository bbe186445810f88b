/*
 * Forked ranks: starting them, watching them, and telling what they said.
 * Knows nothing of what the ranks do.
 */
#include "support/ranks.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* How long a run may take; one that is well takes seconds. */
#define HANG_S (SANITIZED ? 400 : 150)

/* How long the others may go on after one rank has failed: long enough to say what they saw. */
#define GRACE_S 10

static char report[16384];

static void say(const char *format, ...)
{
    size_t used = strlen(report);
    va_list args;
    va_start(args, format);
    vsnprintf(report + used, sizeof report - used, format, args);
    va_end(args);
}

void ranks_pause_ms(long ms)
{
    struct timespec rest = {ms / 1000, (ms % 1000) * 1000000};
    nanosleep(&rest, NULL);
}

void ranks_setenv(const char *assignment)
{
    char name[128];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(assignment, "="), assignment);
    setenv(name, assignment + strlen(name) + 1, 1);
}

void ranks_await(const struct rank *me, int index, int value)
{
    while (atomic_load(&me->shared->flags[index]) < value)
        ranks_pause_ms(1);
}

void ranks_raise(const struct rank *me, int index)
{
    atomic_fetch_add(&me->shared->flags[index], 1);
}

void ranks_where(const struct rank *me, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(me->shared->ranks[me->rank].where, sizeof me->shared->ranks[0].where, format, args);
    va_end(args);
}

void ranks_fail(const struct rank *me, const char *file, int line, const char *what, const char *format, ...)
{
    char *text = me->shared->ranks[me->rank].text;
    const size_t room = sizeof me->shared->ranks[0].text;
    int used = snprintf(text, room, "rank %d of %d: %s:%d: %s: ", me->rank, me->size, file, line, what);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, room - (size_t)used, format, args);
    va_end(args);
    atomic_store(&me->shared->ranks[me->rank].failed, true);
    _exit(1);
}

/* --------------------------------------------------------------- children */

/* Ends with the parent, whatever ends that. */
static void tie_to_parent(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
}

static void print_stack(int number)
{
    (void)number;
    void *frames[64];
    int n = backtrace(frames, 64);
    backtrace_symbols_fd(frames, n, STDERR_FILENO);
}

static void set_environment(const struct ranks_run *run)
{
    setenv("POLYPATH_CACHE", "none", 1);
    setenv("POLYPATH_BOOTSTRAP_INTERFACE", "lo", 1);
    for (const char *const *e = run->environment; e && *e; e++)
        ranks_setenv(*e);
}

_Noreturn static void serve(const struct ranks_run *run, struct ranks_shared *shared)
{
    set_environment(run);
    for (int i = 0; i < RANKS_IDS; i++) {
        if (polypath_get_unique_id(&shared->ids[i])) {
            snprintf(shared->ranks[0].text, sizeof shared->ranks[0].text, "no unique id: %s", polypath_last_error());
            atomic_store(&shared->ranks[0].failed, true);
            atomic_store(&shared->ready, 2);
            _exit(1);
        }
    }
    atomic_store(&shared->ready, 1);
    for (;;)
        pause();
}

_Noreturn static void be_rank(const struct ranks_run *run, struct ranks_shared *shared, int index)
{
    struct rank me = {.rank = index, .size = run->size, .context = run->context, .shared = shared};
    void *warm[2];
    backtrace(warm, 2); /* loads what a signal handler must not */
    signal(SIGUSR2, print_stack);
    set_environment(run);
    if (run->prepare)
        run->prepare(&me);
    if (!run->no_comm) {
        ranks_where(&me, "creating the communicator");
        OK(&me, polypath_comm_create(&me.comm, me.size, shared->ids[0], me.rank));
    }
    ranks_where(&me, "running");
    run->body(&me);
    ranks_where(&me, "destroying the communicator");
    OK(&me, polypath_comm_destroy(me.comm));
    ranks_where(&me, "exiting");
    exit(0);
}

/* --------------------------------------------------------------- watching */

static time_t now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

static void kernel_place(pid_t pid, char *text, size_t bytes)
{
    char file[64];
    snprintf(file, sizeof file, "/proc/%d/wchan", (int)pid);
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, bytes - 1);
    text[n > 0 ? n : 0] = 0;
    if (fd >= 0)
        close(fd);
}

/* Says where the ranks that are left are, and ends them. */
static void end_all(const struct ranks_run *run, struct ranks_shared *shared, const char *why)
{
    say("%s\n", why);
    for (int r = 0; r < run->size; r++) {
        if (shared->pids[r] <= 0)
            continue;
        char place[128];
        kernel_place(shared->pids[r], place, sizeof place);
        say("  rank %d (process %d) is still there: %s; in the kernel: %s\n", r, (int)shared->pids[r],
            shared->ranks[r].where, place);
        fprintf(stderr, "rank %d (process %d) is at:\n", r, (int)shared->pids[r]);
        kill(shared->pids[r], SIGCONT);
        kill(shared->pids[r], SIGUSR2);
        ranks_pause_ms(300);
    }
    for (int r = 0; r < run->size; r++)
        if (shared->pids[r] > 0)
            kill(shared->pids[r], SIGKILL);
}

/* Takes note of how a rank ended; true if that is a failure. */
static bool ended_badly(const struct ranks_run *run, const struct ranks_shared *shared, int r, int status, bool forced)
{
    if (atomic_load(&shared->ranks[r].failed)) {
        say("%s\n", shared->ranks[r].text);
        return true;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !(run->killed >> r & 1))
        return false;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && (run->killed >> r & 1 || forced))
        return false;
    if (WIFSIGNALED(status))
        say("rank %d of %d died of signal %d (%s) while: %s\n", r, run->size, WTERMSIG(status),
            strsignal(WTERMSIG(status)), shared->ranks[r].where);
    else
        say("rank %d of %d ended with code %d while: %s\n", r, run->size, WEXITSTATUS(status), shared->ranks[r].where);
    return true;
}

static void watch(const struct ranks_run *run, struct ranks_shared *shared)
{
    time_t deadline = now_s() + HANG_S;
    bool failed = false, forced = false;
    long pause_ms = 1;
    for (int left = run->size; left;) {
        bool some = false;
        for (int r = 0; r < run->size; r++) {
            int status;
            if (shared->pids[r] <= 0 || waitpid(shared->pids[r], &status, WNOHANG) != shared->pids[r])
                continue;
            shared->pids[r] = 0;
            left--;
            some = true;
            if (ended_badly(run, shared, r, status, forced) && !failed) {
                failed = true;
                if (now_s() + GRACE_S < deadline)
                    deadline = now_s() + GRACE_S;
            }
        }
        if (left && !forced && now_s() > deadline) {
            forced = true;
            end_all(run, shared, failed ? "after that the others did not end" : "the test hangs");
        }
        if (!some && left)
            ranks_pause_ms(pause_ms < 10 ? pause_ms++ : 10);
    }
}

const char *ranks_run(const struct ranks_run *run)
{
    report[0] = 0;
    struct ranks_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || run->size > RANKS_MAX)
        return "ranks_run: no memory, or too many ranks";
    fflush(NULL);
    const pid_t parent = getpid();
    const pid_t server = fork();
    if (server == 0) {
        tie_to_parent(parent);
        serve(run, shared);
    }
    while (server > 0 && !atomic_load(&shared->ready))
        ranks_pause_ms(1);
    int started = 0;
    for (; started < run->size && server > 0 && atomic_load(&shared->ready) == 1; started++) {
        pid_t pid = fork();
        if (pid < 0)
            break;
        if (pid == 0) {
            tie_to_parent(parent);
            be_rank(run, shared, started);
        }
        shared->pids[started] = pid;
    }
    if (started == run->size) {
        watch(run, shared);
    } else {
        say("only %d of %d ranks could be started: %s\n", started, run->size,
            *shared->ranks[0].text ? shared->ranks[0].text : strerror(errno));
        for (int r = 0; r < started; r++) {
            kill(shared->pids[r], SIGKILL);
            waitpid(shared->pids[r], NULL, 0);
        }
    }
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
    }
    munmap(shared, sizeof *shared);
    return *report ? report : NULL;
}
