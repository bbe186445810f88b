/*
 * Runs a function as the ranks of a communicator, each in a process of its
 * own, and collects what they say. A helper process makes the unique ids, so
 * that the parent never reads the settings and never has a thread: every rank
 * can set its own variables before the library looks at them.
 *
 * Nothing in the tests depends on how long something takes; only the watchdog
 * does, which ends a run that hangs and says where every rank was.
 */
#ifndef SUPPORT_RANKS_H
#define SUPPORT_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "polypath/polypath.h"

#define RANKS_MAX 32
#define RANKS_IDS 4
#define RANKS_FLAGS 64

/* What all ranks of a run share. */
struct ranks_shared {
    polypath_unique_id_t ids[RANKS_IDS]; /* [0] made the rank's `comm`; the others are for the test's own use */
    atomic_int ready;
    atomic_int flags[RANKS_FLAGS]; /* for the test's own use; 0 at the start */
    pid_t pids[RANKS_MAX];
    struct {
        atomic_bool failed;
        char text[2048]; /* what went wrong */
        char where[256]; /* what it was doing last */
    } ranks[RANKS_MAX];
};

struct rank {
    int rank, size;
    polypath_comm_t comm; /* NULL with `no_comm`; destroyed by the runner unless the body has set it to NULL */
    const void *context;
    struct ranks_shared *shared;
};

typedef void ranks_body(struct rank *me);

struct ranks_run {
    int size;
    ranks_body *body;
    const void *context;
    const char *const *environment; /* "NAME=VALUE" for every rank, ends with NULL; may be NULL */
    ranks_body *prepare;            /* in the rank, before the library is used: variables of its own; may be NULL */
    bool no_comm;                   /* the body makes communicators itself */
    unsigned killed;                /* bit r: rank r is expected to die by SIGKILL */
};

/* Runs to the end. NULL if all went well, else what went wrong; static, until the next call. */
const char *ranks_run(const struct ranks_run *run);

/* Ends the calling rank with a message, which fails the test. */
_Noreturn void ranks_fail(const struct rank *me, const char *file, int line, const char *what, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Notes what the rank does now, for the watchdog. */
void ranks_where(const struct rank *me, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Makes a variable of this process: "NAME=VALUE". */
void ranks_setenv(const char *assignment);

void ranks_pause_ms(long ms);

/* Waits until flag `index` is at least `value`; for order between ranks that the library knows nothing of. */
void ranks_await(const struct rank *me, int index, int value);
void ranks_raise(const struct rank *me, int index);

#define CHECK(me, condition, ...)                                                                                      \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ranks_fail(me, __FILE__, __LINE__, #condition, __VA_ARGS__);                                               \
    } while (0)

/* The call must succeed. */
#define OK(me, call)                                                                                                   \
    do {                                                                                                               \
        polypath_result_t result_ = (call);                                                                            \
        if (result_)                                                                                                   \
            ranks_fail(me, __FILE__, __LINE__, #call, "%s: %s", polypath_result_name(result_), polypath_last_error()); \
    } while (0)

/* In a cmocka test: RANKS_RUN(.size = 2, .body = f) must go well. */
#define RANKS_RUN(...)                                                                                                 \
    do {                                                                                                               \
        const char *wrong_ = ranks_run(&(struct ranks_run){__VA_ARGS__});                                              \
        if (wrong_)                                                                                                    \
            fail_msg("%s", wrong_);                                                                                    \
    } while (0)

/* In a rank: EXERCISE(me, comm, .kind = ..., .count = ...) must go well. */
#define EXERCISE(me, on, ...)                                                                                          \
    do {                                                                                                               \
        struct exercise exercise_ = {__VA_ARGS__};                                                                     \
        ranks_where(me, "%s", exercise_text(&exercise_));                                                              \
        const char *wrong_ = exercise_run(&exercise_, on);                                                             \
        CHECK(me, !wrong_, "%s", wrong_);                                                                              \
    } while (0)

#endif
