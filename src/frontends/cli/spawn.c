/*
 * From fork to exec. See spawn.h. The child makes only plain system calls.
 */
#include "frontends/cli/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frontends/cli/guard.h"
#include "system/error.h"

/* What the child says when it cannot become the program. */
struct complaint {
    int reason; /* errno */
    char step[60];
};

static _Noreturn void complain(int fd, const char *step)
{
    struct complaint complaint = {.reason = errno};
    strncpy(complaint.step, step, sizeof complaint.step - 1);
    ssize_t wrote = write(fd, &complaint, sizeof complaint);
    _exit(wrote == sizeof complaint ? 127 : 126);
}

/*
 * As `ip netns exec` does: with the network namespace comes a /sys that shows
 * its devices, in a mount namespace of this process alone.
 */
static const char *enter_namespace(int namespace)
{
    if (setns(namespace, CLONE_NEWNET))
        return "enter the host's network namespace";
    if (unshare(CLONE_NEWNS))
        return "make a mount namespace";
    if (mount("", "/", "none", MS_SLAVE | MS_REC, NULL))
        return "keep mounts private";
    umount2("/sys", MNT_DETACH); /* there may be none */
    if (mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
        return "mount the host's /sys";
    return NULL;
}

static _Noreturn void become(const struct spawn *spawn, pid_t launcher, int complaints)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) /* it died before that took effect */
        _exit(126);
    guard_watch(spawn->guard, getpid());
    fcntl(spawn->guard, F_SETFD, FD_CLOEXEC);
    /* Dispositions that the launcher changed for itself; ignored ones (nohup) were left alone. */
    signal(SIGPIPE, SIG_DFL);
    signal(SIGTTIN, SIG_DFL);
    sigprocmask(SIG_SETMASK, spawn->mask, NULL);
    setrlimit(RLIMIT_NOFILE, spawn->files);
    for (int i = 0; i < 3; i++)
        if (spawn->standard[i] == i ? fcntl(i, F_SETFD, 0) < 0 : dup2(spawn->standard[i], i) < 0)
            complain(complaints, "connect its standard streams");
    if (spawn->cpus && sched_setaffinity(0, sizeof *spawn->cpus, spawn->cpus))
        complain(complaints, "bind it to a core");
    const char *step = spawn->namespace >= 0 ? enter_namespace(spawn->namespace) : NULL;
    if (step)
        complain(complaints, step);
    execve(spawn->path, spawn->argv, spawn->envp);
    complain(complaints, "run the program");
}

polypath_result_t spawn_rank(const struct spawn *spawn, pid_t *pid, int *reason)
{
    int ends[2];
    *reason = 0;
    if (pipe2(ends, O_CLOEXEC)) {
        *reason = errno;
        return error_set(POLYPATH_ERROR_SYSTEM, "no pipe for a new process: %s", strerror(errno));
    }
    pid_t launcher = getpid();
    *pid = fork();
    if (*pid == 0)
        become(spawn, launcher, ends[1]);
    close(ends[1]);
    if (*pid < 0) {
        *reason = errno;
        close(ends[0]);
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot start a process: %s", strerror(*reason));
    }
    setpgid(*pid, *pid); /* whichever of the two is first */
    struct complaint complaint;
    ssize_t got;
    while ((got = read(ends[0], &complaint, sizeof complaint)) < 0 && errno == EINTR)
        ;
    close(ends[0]);
    if (got != sizeof complaint)
        return POLYPATH_SUCCESS;
    while (waitpid(*pid, NULL, 0) < 0 && errno == EINTR)
        ;
    *reason = complaint.reason;
    return error_set(POLYPATH_ERROR_SYSTEM, "cannot %s: %s", complaint.step, strerror(complaint.reason));
}
