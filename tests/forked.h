/*
 * For tests whose ranks are forked processes: runs a function in n children and
 * collects what each of them says. The parent of such a test never reads the
 * settings, so that every child can set its own variables first. A child that
 * hangs is ended by an alarm; no test depends on how long anything takes.
 */
#ifndef TESTS_FORKED_H
#define TESTS_FORKED_H

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "polypath/polypath.h"
#include "system/error.h"

#define FORKED_MAX 16
#define FORKED_HANG_S 120

struct forked {
    polypath_unique_id_t id; /* of the service, where there is one */
    atomic_int ready;        /* 1: id is there; 2: no service could be started, text of outcome[FORKED_MAX] says why */
    pid_t server;
    struct {
        int result;
        char text[ERROR_TEXT_BYTES];
    } outcome[FORKED_MAX + 1];
};

/* The function of a child: its result, with the error text set, is recorded. */
typedef polypath_result_t forked_child(struct forked *forked, int index);

static inline void forked_pause_ms(long ms)
{
    struct timespec rest = {ms / 1000, (ms % 1000) * 1000000};
    nanosleep(&rest, NULL);
}

static inline struct forked *forked_new(void)
{
    void *p = mmap(NULL, sizeof(struct forked), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        abort();
    return p;
}

static inline void forked_record(struct forked *f, int index, polypath_result_t result)
{
    f->outcome[index].result = (int)result;
    snprintf(f->outcome[index].text, sizeof f->outcome[index].text, "%s",
             result == POLYPATH_SUCCESS ? "" : error_text());
}

static inline pid_t forked_start(struct forked *f, int index, forked_child *child)
{
    f->outcome[index].result = -1; /* stays if it dies before it has a result */
    fflush(NULL);
    pid_t pid = fork();
    if (pid)
        return pid;
    alarm(FORKED_HANG_S);
    forked_record(f, index, child(f, index));
    _exit(0);
}

/* Runs n children to their end. */
static inline void forked_run(struct forked *f, int n, forked_child *child)
{
    pid_t pids[FORKED_MAX];
    for (int i = 0; i < n; i++)
        pids[i] = forked_start(f, i, child);
    for (int i = 0; i < n; i++)
        waitpid(pids[i], NULL, 0);
}

/* A process that serves: `serve` fills f->id; it lives until forked_end(). */
static inline void forked_serve(struct forked *f, polypath_result_t (*serve)(struct forked *))
{
    fflush(NULL);
    pid_t pid = fork(); /* not straight into *f, which the child shares */
    if (!pid) {
        alarm(FORKED_HANG_S);
        polypath_result_t result = serve(f);
        forked_record(f, FORKED_MAX, result);
        atomic_store(&f->ready, result == POLYPATH_SUCCESS ? 1 : 2);
        for (;;)
            pause();
    }
    f->server = pid;
    while (!atomic_load(&f->ready))
        forked_pause_ms(1);
}

static inline void forked_end(struct forked *f)
{
    if (f->server > 0) {
        kill(f->server, SIGKILL);
        waitpid(f->server, NULL, 0);
    }
    munmap(f, sizeof *f);
}

#endif
