/*
 * The host's flag latency: how long a store by one core takes to be seen by
 * another. Small messages through shared memory cannot be faster, and it
 * changes with where the hypervisor puts the cores, so it belongs beside every
 * figure measured on one machine. A helper process is forked before anything
 * starts threads; it sleeps until asked.
 */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frontends/cli/bench.h"

#define BATCHES 40
#define ROUNDS 100 /* round trips in a batch */
#define PATIENCE_NS 2000000000u

/* Shared by the two processes; each flag has one writer and a cache line of its own. */
struct shared {
    _Alignas(128) atomic_uint there; /* written by this process, counts up */
    _Alignas(128) atomic_uint back;  /* written by the helper: what it saw */
};

struct bench_flag {
    struct shared *shared;
    pid_t helper;
    int wake; /* a byte here starts one measurement; closed: the helper ends */
    int cpus[2];
};

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/*
 * Waits until *flag is `value`. Acquire pairs with the other's release; the
 * flag carries no other data. Gives the core away at times, as ranks may be
 * spinning on it too.
 */
static bool wait_for(atomic_uint *flag, unsigned value, uint64_t deadline_ns)
{
    for (unsigned polls = 1; atomic_load_explicit(flag, memory_order_acquire) != value; polls++) {
        if (polls % 4096 == 0) {
            sched_yield();
            if (cli_now_ns() > deadline_ns)
                return false;
        }
    }
    return true;
}

static _Noreturn void help(struct shared *shared, int wake, int cpu)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(cpu);
    unsigned seen = 0;
    char byte;
    while (read(wake, &byte, 1) == 1) {
        uint64_t deadline = cli_now_ns() + PATIENCE_NS;
        for (int i = 0; i < BATCHES * ROUNDS; i++) {
            if (!wait_for(&shared->there, ++seen, deadline))
                _exit(1);
            atomic_store_explicit(&shared->back, seen, memory_order_release);
        }
    }
    _exit(0);
}

static int pick_cpus(int cpus[2])
{
    cpu_set_t allowed;
    int found = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            cpus[found++] = cpu;
    return found;
}

struct bench_flag *bench_flag_start(void)
{
    struct bench_flag flag = {.helper = -1};
    int wake[2];
    if (pick_cpus(flag.cpus) < 2 || pipe(wake))
        return NULL;
    flag.shared = mmap(NULL, sizeof *flag.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (flag.shared != MAP_FAILED) {
        flag.helper = fork();
        if (flag.helper == 0) {
            close(wake[1]);
            help(flag.shared, wake[0], flag.cpus[1]);
        }
    }
    close(wake[0]);
    if (flag.helper < 0) {
        close(wake[1]);
        if (flag.shared != MAP_FAILED)
            munmap(flag.shared, sizeof *flag.shared);
        return NULL;
    }
    flag.wake = wake[1];
    struct bench_flag *result = cli_allocate(sizeof *result);
    *result = flag;
    return result;
}

double bench_flag_measure(struct bench_flag *flag)
{
    cpu_set_t before;
    if (flag->helper < 0 || sched_getaffinity(0, sizeof before, &before))
        return -1;
    pin(flag->cpus[0]);
    double best = -1;
    /* This process is the flag's only writer, so it may read it back without ordering. */
    unsigned next = atomic_load_explicit(&flag->shared->there, memory_order_relaxed);
    uint64_t deadline = cli_now_ns() + PATIENCE_NS;
    bool fine = write(flag->wake, "", 1) == 1;
    for (int batch = 0; fine && batch < BATCHES; batch++) {
        uint64_t start = cli_now_ns();
        for (int i = 0; fine && i < ROUNDS; i++) {
            atomic_store_explicit(&flag->shared->there, ++next, memory_order_release);
            fine = wait_for(&flag->shared->back, next, deadline);
        }
        double half = (double)(cli_now_ns() - start) / 1e3 / ROUNDS / 2;
        if (fine && (best < 0 || half < best))
            best = half;
    }
    if (!fine) { /* it has given up; so do the later rows */
        kill(flag->helper, SIGKILL);
        waitpid(flag->helper, NULL, 0);
        flag->helper = -1;
        best = -1;
    }
    sched_setaffinity(0, sizeof before, &before);
    return best;
}

void bench_flag_stop(struct bench_flag *flag)
{
    if (!flag)
        return;
    close(flag->wake);
    if (flag->helper > 0)
        waitpid(flag->helper, NULL, 0);
    munmap(flag->shared, sizeof *flag->shared);
    free(flag);
}
