/*
 * The launcher's event loop: starts the ranks, carries their output, passes
 * signals on, and ends them when it must. See launch.h. Knows nothing of labs
 * but the namespace that a place names.
 */
#include "frontends/cli/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frontends/cli/cli.h"
#include "frontends/cli/output.h"
#include "frontends/cli/spawn.h"
#include "system/clock.h"
#include "system/error.h"

#define SECOND_NS 1000000000ull
#define KILL_AFTER_NS (2 * SECOND_NS) /* between SIGTERM and SIGKILL */
#define DRAIN_NS (SECOND_NS)          /* for what a rank's helpers (tee) still write after it has ended */
#define NEVER UINT64_MAX

enum event_tag { TAG_OUTPUT = 0, TAG_SIGNAL = 1, TAG_STDIN = 2 }; /* upper half of epoll's data */

/* How far the ending of the ranks has gone; each step has its deadline. */
enum stage { STAGE_RUNNING, STAGE_GRACE, STAGE_TERMINATED, STAGE_KILLED };

struct rank {
    pid_t pid; /* 0: not started; kept as a zombie to the end so that its group's number stays ours */
    bool ended;
};

struct loop {
    struct launch *launch;
    const struct launch_options *options;
    struct rank *ranks;
    int running;
    int epoll, signals;
    struct output *output; /* NULL: output does not come through us */
    enum stage stage;
    uint64_t stage_deadline, timeout_deadline;
    bool interrupted; /* a signal that ends programs was passed on */
    int status;       /* first non-zero exit status */
    int stdin_pipe;   /* to rank 0, when standard input is a terminal; -1 */
};

/* Passed on to the ranks; SIGTSTP and SIGCONT stop and continue the launcher as well. */
static const int passed_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
#define PASSED_COUNT (sizeof passed_signals / sizeof passed_signals[0])

static void say(const struct launch_options *options, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct launch_options *options, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "%s: %s\n", options->command, text); /* one write: stderr is unbuffered per call */
}

/* --------------------------------------------------------------- preparing */

static bool runnable(const char *path)
{
    struct stat stat_buffer;
    return !stat(path, &stat_buffer) && S_ISREG(stat_buffer.st_mode) && !access(path, X_OK);
}

/* Where execvp would find the program; NULL with errno set. The caller frees. */
static char *find_program(const char *name)
{
    if (strchr(name, '/')) {
        if (runnable(name))
            return strdup(name);
        struct stat stat_buffer;
        if (!stat(name, &stat_buffer))
            errno = S_ISDIR(stat_buffer.st_mode) ? EISDIR : EACCES;
        return NULL;
    }
    const char *path = getenv("PATH");
    if (!path)
        path = "/usr/local/bin:/usr/bin:/bin";
    while (*name) {
        size_t length = strcspn(path, ":");
        char *full = NULL;
        if (asprintf(&full, "%.*s%s%s", (int)length, path, length ? "/" : "", name) < 0)
            return NULL;
        if (runnable(full))
            return full;
        free(full);
        if (!path[length])
            break;
        path += length + 1;
    }
    errno = ENOENT;
    return NULL;
}

int launch_prepare(struct launch *launch, const struct launch_options *options)
{
    *launch = (struct launch){.options = options};
    launch->path = find_program(options->program[0]);
    if (!launch->path) {
        bool missing = errno == ENOENT || errno == ENOTDIR;
        say(options, "cannot run '%s': %s", options->program[0],
            missing ? strchr(options->program[0], '/') ? "there is no such file" : "no such program in PATH"
                    : strerror(errno));
        return missing ? CLI_MISSING : CLI_NOT_RUN;
    }
    sigset_t block;
    sigemptyset(&block);
    sigaddset(&block, SIGCHLD);
    for (size_t i = 0; i < PASSED_COUNT; i++) {
        struct sigaction old;
        sigaction(passed_signals[i], NULL, &old);
        if (old.sa_handler != SIG_IGN) /* as under nohup: stays ignored, here and in the ranks */
            sigaddset(&block, passed_signals[i]);
    }
    sigprocmask(SIG_BLOCK, &block, &launch->mask);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTTIN, SIG_IGN);
    return 0;
}

void launch_free(struct launch *launch)
{
    guard_dismiss(&launch->guard);
    free(launch->path);
    launch->path = NULL;
}

/* ------------------------------------------------------------ environment */

static bool is_set_in(const char *variable, const char **list, size_t count)
{
    size_t name = strcspn(variable, "=");
    for (size_t i = 0; i < count; i++)
        if (!strncmp(variable, list[i], name) && list[i][name] == '=')
            return true;
    return false;
}

#define OWN_VARIABLES 6
#define VARIABLE_BYTES 320 /* the longest, the unique id, has 2 * 128 digits */

/* The environment of one rank: ours, what -x sets, and the launcher's variables, each name once. */
static char **rank_environment(const struct launch_options *options, int rank, const struct launch_place *place,
                               const char *id, char own[OWN_VARIABLES][VARIABLE_BYTES])
{
    size_t inherited = 0, used = 0, own_count = 5;
    while (environ[inherited])
        inherited++;
    char **list = malloc((inherited + options->environment_count + OWN_VARIABLES + 1) * sizeof *list);
    if (!list)
        return NULL;
    snprintf(own[0], VARIABLE_BYTES, "POLYPATH_RANK=%d", rank);
    snprintf(own[1], VARIABLE_BYTES, "POLYPATH_SIZE=%d", options->size);
    snprintf(own[2], VARIABLE_BYTES, "POLYPATH_LOCAL_RANK=%d", place->local_rank);
    snprintf(own[3], VARIABLE_BYTES, "POLYPATH_LOCAL_SIZE=%d", place->local_size);
    snprintf(own[4], VARIABLE_BYTES, "POLYPATH_UNIQUE_ID=%s", id);
    if (place->host >= 0)
        snprintf(own[own_count++], VARIABLE_BYTES, "POLYPATH_LAB_HOST=%d", place->host);
    const char *names[OWN_VARIABLES];
    for (size_t i = 0; i < own_count; i++)
        names[i] = list[used++] = own[i];
    for (size_t i = 0; i < options->environment_count; i++)
        if (!is_set_in(options->environment[i], names, own_count) &&
            !is_set_in(options->environment[i], options->environment + i + 1, options->environment_count - i - 1))
            list[used++] = (char *)(uintptr_t)options->environment[i]; /* execve does not write to it */
    for (size_t i = 0; i < inherited; i++)
        if (!is_set_in(environ[i], names, own_count) &&
            !is_set_in(environ[i], options->environment, options->environment_count))
            list[used++] = environ[i];
    list[used] = NULL;
    return list;
}

/* The CPU of the allowed ones that falls to this rank. */
static bool pick_cpu(int rank, cpu_set_t *cpus)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) || !CPU_COUNT(&allowed))
        return false;
    int skip = rank % CPU_COUNT(&allowed);
    CPU_ZERO(cpus);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && skip-- == 0)
            CPU_SET(cpu, cpus);
    return true;
}

/* ---------------------------------------------------------------- starting */

static int open_output_file(const struct launch_options *options, int rank, const char *ending)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/rank.%d.%s", options->output, rank, ending);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        say(options, "cannot write %s: %s", path, strerror(errno));
    return fd;
}

/* What becomes standard input, output and error of a rank. ours[] is what stays here of the pipes, -1 if none. */
static bool open_streams(struct loop *loop, int rank, int standard[3], int ours[3])
{
    const struct launch_options *options = loop->options;
    for (int i = 0; i < 3; i++)
        standard[i] = ours[i] = -1;
    int ends[2];
    if (rank != 0) {
        standard[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    } else if (!isatty(0)) {
        standard[0] = fcntl(0, F_DUPFD_CLOEXEC, 3);
        if (standard[0] < 0) /* closed */
            standard[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    } else if (!pipe2(ends, O_CLOEXEC)) {
        /* Its group is not the terminal's foreground one, so it could not read the terminal itself. */
        standard[0] = ends[0];
        ours[0] = ends[1];
    }
    for (int i = 1; i < 3; i++) {
        if (options->output) {
            standard[i] = open_output_file(options, rank, i == 1 ? "out" : "err");
        } else if (options->no_prefix) {
            standard[i] = fcntl(i, F_DUPFD_CLOEXEC, 3);
            if (standard[i] < 0)
                standard[i] = open("/dev/null", O_WRONLY | O_CLOEXEC);
        } else if (!pipe2(ends, O_CLOEXEC)) {
            standard[i] = ends[1];
            ours[i] = ends[0];
        }
        if (standard[i] < 0)
            return false;
    }
    return standard[0] >= 0;
}

static void close_all(int fds[3])
{
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static void watch_stdin(struct loop *loop, int to_rank)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)TAG_STDIN << 32};
    loop->stdin_pipe = to_rank;
    fcntl(to_rank, F_SETFL, O_NONBLOCK);
    epoll_ctl(loop->epoll, EPOLL_CTL_ADD, 0, &event);
}

/* 0, or the exit status when the rank cannot be started. */
static int start_rank(struct loop *loop, int rank, const struct launch_place *place, const char *id,
                      const struct rlimit *files)
{
    const struct launch_options *options = loop->options;
    char own[OWN_VARIABLES][VARIABLE_BYTES];
    cpu_set_t cpus;
    int standard[3], ours[3], reason = 0;
    char **environment = rank_environment(options, rank, place, id, own);
    bool ready = open_streams(loop, rank, standard, ours) && environment;
    if (!ready)
        say(options, "rank %d cannot be started: %s", rank, strerror(errno));
    struct spawn spawn = {.path = loop->launch->path,
                          .argv = options->program,
                          .envp = environment,
                          .standard = {standard[0], standard[1], standard[2]},
                          .namespace = place->namespace,
                          .guard = loop->launch->guard.fd,
                          .cpus = options->bind == LAUNCH_BIND_CORE && pick_cpu(rank, &cpus) ? &cpus : NULL,
                          .mask = &loop->launch->mask,
                          .files = files};
    polypath_result_t result = ready ? spawn_rank(&spawn, &loop->ranks[rank].pid, &reason) : POLYPATH_ERROR_SYSTEM;
    free(environment);
    close_all(standard);
    if (result) {
        if (ready)
            say(options, "rank %d: %s%s", rank, error_text(),
                reason == ENOEXEC ? " (a script needs #! and an interpreter in its first line)" : "");
        loop->ranks[rank].pid = 0;
        close_all(ours);
        return reason == ENOENT ? CLI_MISSING : reason == EACCES || reason == ENOEXEC ? CLI_NOT_RUN : CLI_FAILURE;
    }
    loop->running++;
    if (ours[0] >= 0)
        watch_stdin(loop, ours[0]);
    for (int i = 1; i < 3; i++)
        if (ours[i] >= 0)
            output_add(loop->output, rank, i, ours[i]);
    return 0;
}

/* ----------------------------------------------------------------- ending */

static void signal_ranks(struct loop *loop, int number)
{
    for (int r = 0; r < loop->options->size; r++)
        if (loop->ranks[r].pid && !loop->ranks[r].ended)
            kill(-loop->ranks[r].pid, number);
}

static void enter_stage(struct loop *loop, enum stage stage)
{
    uint64_t now = clock_now_ns();
    loop->stage = stage;
    switch (stage) {
    case STAGE_RUNNING: loop->stage_deadline = NEVER; return;
    case STAGE_GRACE: loop->stage_deadline = now + (uint64_t)(loop->options->grace_s * 1e9); return;
    case STAGE_TERMINATED:
        signal_ranks(loop, SIGTERM);
        signal_ranks(loop, SIGCONT); /* a stopped one would not see it */
        loop->stage_deadline = now + KILL_AFTER_NS;
        return;
    case STAGE_KILLED:
        signal_ranks(loop, SIGKILL);
        loop->stage_deadline = NEVER;
        return;
    }
}

/* "0, 2, 5" of the ranks that still run, cut where it gets long. */
static const char *running_ranks(const struct loop *loop, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int r = 0; r < loop->options->size && used + 24 < bytes; r++)
        if (loop->ranks[r].pid && !loop->ranks[r].ended)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", used ? ", " : "", r);
    if (used + 24 >= bytes)
        snprintf(text + used, bytes - used, ", ...");
    return text;
}

static void check_deadlines(struct loop *loop)
{
    uint64_t now = clock_now_ns();
    char who[200];
    if (now >= loop->timeout_deadline) {
        loop->timeout_deadline = NEVER;
        if (loop->stage < STAGE_TERMINATED) {
            say(loop->options, "not done after %g s (ranks %s); ending them", loop->options->timeout_s,
                running_ranks(loop, who, sizeof who));
            if (!loop->status)
                loop->status = CLI_TIMED_OUT;
            enter_stage(loop, STAGE_TERMINATED);
        }
    }
    if (now < loop->stage_deadline)
        return;
    if (loop->stage == STAGE_GRACE) {
        if (!loop->interrupted)
            say(loop->options, "ending the other ranks (%s), which go on %g s after the failure",
                running_ranks(loop, who, sizeof who), loop->options->grace_s);
        enter_stage(loop, STAGE_TERMINATED);
    } else {
        enter_stage(loop, STAGE_KILLED);
    }
}

/* A rank has ended by itself or by us; the first failure starts the others' grace. */
static void rank_ended(struct loop *loop, int rank, const siginfo_t *info)
{
    bool killed = info->si_code != CLD_EXITED;
    int status = killed ? 128 + info->si_status : info->si_status;
    loop->ranks[rank].ended = true;
    loop->running--;
    if (!status)
        return;
    if (loop->stage < STAGE_TERMINATED && !loop->interrupted) { /* later ones are of our own making */
        if (killed)
            say(loop->options, "rank %d (process %d) was killed by signal %d (%s)%s", rank, (int)info->si_pid,
                info->si_status, strsignal(info->si_status), info->si_code == CLD_DUMPED ? ", core dumped" : "");
        else
            say(loop->options, "rank %d (process %d) ended with exit code %d", rank, (int)info->si_pid, status);
    }
    if (!loop->status)
        loop->status = status;
    if (loop->stage == STAGE_RUNNING)
        enter_stage(loop, STAGE_GRACE);
}

/* Children of this process that are neither ranks nor the guardian: what ranks left behind. Returns how many. */
static int end_orphans(struct loop *loop, bool kill_them)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *list = fopen(path, "re");
    int pid, count = 0;
    while (list && fscanf(list, "%d", &pid) == 1) {
        bool known = pid == loop->launch->guard.pid;
        for (int r = 0; r < loop->options->size && !known; r++)
            known = loop->ranks[r].pid == pid;
        if (known)
            continue;
        count++;
        if (kill_them && !guard_is_guardian(pid)) /* that of a launcher which a rank ran is waited for */
            kill(pid, SIGKILL);
        waitpid(pid, NULL, WNOHANG);
    }
    if (list)
        fclose(list);
    return count;
}

static void reap(struct loop *loop)
{
    for (int r = 0; r < loop->options->size; r++) {
        siginfo_t info = {0};
        if (!loop->ranks[r].pid || loop->ranks[r].ended)
            continue;
        if (!waitid(P_PID, (id_t)loop->ranks[r].pid, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid)
            rank_ended(loop, r, &info);
    }
    end_orphans(loop, false);
}

/* ----------------------------------------------------------------- events */

static void on_ending_signal(struct loop *loop, int number)
{
    if (loop->interrupted && number == SIGINT) { /* pressed twice: now */
        enter_stage(loop, STAGE_KILLED);
        return;
    }
    loop->interrupted = true;
    signal_ranks(loop, number);
    if (loop->stage == STAGE_RUNNING)
        enter_stage(loop, STAGE_GRACE);
}

static void on_signal(struct loop *loop, int number)
{
    switch (number) {
    case SIGCHLD: reap(loop); return;
    case SIGINT:
    case SIGTERM:
    case SIGHUP:
    case SIGQUIT: on_ending_signal(loop, number); return;
    case SIGTSTP:
        signal_ranks(loop, SIGTSTP);
        raise(SIGSTOP);
        return;
    case SIGCONT: {
        signal_ranks(loop, SIGCONT);
        /* In the foreground again: the terminal may be read. */
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)TAG_STDIN << 32};
        if (loop->stdin_pipe >= 0)
            epoll_ctl(loop->epoll, EPOLL_CTL_MOD, 0, &event);
        return;
    }
    default: signal_ranks(loop, number);
    }
}

static void on_signals(struct loop *loop)
{
    struct signalfd_siginfo info;
    while (read(loop->signals, &info, sizeof info) == sizeof info)
        on_signal(loop, (int)info.ssi_signo);
}

/* A line typed at the terminal, for rank 0. */
static void on_stdin(struct loop *loop)
{
    char bytes[4096];
    ssize_t got = read(0, bytes, sizeof bytes);
    if (got < 0 && errno == EIO) { /* in the background: until the next SIGCONT */
        struct epoll_event event = {.events = 0, .data.u64 = (uint64_t)TAG_STDIN << 32};
        epoll_ctl(loop->epoll, EPOLL_CTL_MOD, 0, &event);
        return;
    }
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (got > 0 && write(loop->stdin_pipe, bytes, (size_t)got) >= 0)
        return; /* a full pipe (64 KiB typed and not read) loses the rest, as a terminal does */
    if (got > 0 && errno == EAGAIN)
        return;
    epoll_ctl(loop->epoll, EPOLL_CTL_DEL, 0, NULL);
    close(loop->stdin_pipe);
    loop->stdin_pipe = -1;
}

/* One round of events, at most until `deadline`. */
static void turn(struct loop *loop, uint64_t deadline)
{
    struct epoll_event events[32];
    if (loop->stage_deadline < deadline)
        deadline = loop->stage_deadline;
    if (loop->timeout_deadline < deadline)
        deadline = loop->timeout_deadline;
    int count = epoll_wait(loop->epoll, events, 32, deadline == NEVER ? -1 : clock_ms_until(deadline));
    for (int i = 0; i < count; i++) {
        switch ((enum event_tag)(events[i].data.u64 >> 32)) {
        case TAG_OUTPUT: output_event(loop->output, events[i].data.u64 & UINT32_MAX); break;
        case TAG_SIGNAL: on_signals(loop); break;
        case TAG_STDIN:
            if (loop->stdin_pipe >= 0)
                on_stdin(loop);
            break;
        }
    }
    check_deadlines(loop);
}

/* After the last rank: nothing of theirs may go on, and nothing they have written may be lost. */
static void finish(struct loop *loop)
{
    uint64_t drained = clock_now_ns() + DRAIN_NS;
    while (loop->output && !output_done(loop->output) && !loop->interrupted && clock_now_ns() < drained)
        turn(loop, drained);
    for (int r = 0; r < loop->options->size; r++)
        if (loop->ranks[r].pid)
            kill(-loop->ranks[r].pid, SIGKILL);
    for (int round = 0; round < 1000 && end_orphans(loop, true); round++)
        usleep(1000);
    for (int r = 0; r < loop->options->size; r++)
        while (loop->ranks[r].pid && waitpid(loop->ranks[r].pid, NULL, 0) < 0 && errno == EINTR)
            ;
    if (!loop->output)
        return;
    output_finish(loop->output);
    while (!output_done(loop->output) && loop->stage != STAGE_KILLED) /* a reader that stopped: until it reads or ^C */
        turn(loop, NEVER);
}

static bool loop_open(struct loop *loop)
{
    sigset_t read_here;
    sigprocmask(SIG_BLOCK, NULL, &read_here);
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->signals = signalfd(-1, &read_here, SFD_CLOEXEC | SFD_NONBLOCK);
    loop->ranks = calloc((size_t)loop->options->size, sizeof *loop->ranks);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)TAG_SIGNAL << 32};
    if (loop->epoll < 0 || loop->signals < 0 || !loop->ranks ||
        epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->signals, &event))
        return false;
    if (loop->options->output || loop->options->no_prefix)
        return true;
    loop->output = output_open(loop->options->size, loop->epoll, (uint64_t)TAG_OUTPUT << 32);
    return loop->output != NULL;
}

static void loop_close(struct loop *loop)
{
    output_close(loop->output);
    free(loop->ranks);
    if (loop->stdin_pipe >= 0)
        close(loop->stdin_pipe);
    if (loop->epoll >= 0)
        close(loop->epoll);
    if (loop->signals >= 0)
        close(loop->signals);
}

/* Two pipes a rank need descriptors; the ranks get the old limit back. */
static struct rlimit raise_file_limit(void)
{
    struct rlimit old = {0};
    getrlimit(RLIMIT_NOFILE, &old);
    struct rlimit most = {.rlim_cur = old.rlim_max, .rlim_max = old.rlim_max};
    setrlimit(RLIMIT_NOFILE, &most);
    return old;
}

int launch_run(struct launch *launch, const struct launch_place *places, const char *id)
{
    const struct launch_options *options = launch->options;
    struct loop loop = {
        .launch = launch, .options = options, .stage_deadline = NEVER, .timeout_deadline = NEVER, .stdin_pipe = -1};
    struct rlimit files = raise_file_limit();
    if (options->output && mkdir(options->output, 0777) && errno != EEXIST) {
        say(options, "cannot make the folder %s: %s", options->output, strerror(errno));
        return CLI_FAILURE;
    }
    if (!loop_open(&loop)) {
        say(options, "cannot start: %s", strerror(errno));
        loop_close(&loop);
        return CLI_FAILURE;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    char mark[VARIABLE_BYTES];
    snprintf(mark, sizeof mark, "POLYPATH_UNIQUE_ID=%s", id);
    guard_mark(&launch->guard, mark);
    if (options->timeout_s > 0)
        loop.timeout_deadline = clock_now_ns() + (uint64_t)(options->timeout_s * 1e9);
    for (int r = 0; r < options->size && !loop.status; r++)
        loop.status = start_rank(&loop, r, &places[r], id, &files);
    if (loop.status) /* nobody can do without the missing one */
        enter_stage(&loop, STAGE_KILLED);
    while (loop.running > 0)
        turn(&loop, NEVER);
    finish(&loop);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    loop_close(&loop);
    return loop.status;
}
