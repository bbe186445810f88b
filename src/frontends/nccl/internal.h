/*
 * What the files of NCCL's interface share: what a communicator is here, the
 * jobs that make communicators, groups, and the way of errors. Everything
 * inside is a polypath_result_t with a text; it becomes an ncclResult_t in
 * nccl_answer(), at the end of a public function, and nowhere else.
 */
#ifndef FRONTENDS_NCCL_INTERNAL_H
#define FRONTENDS_NCCL_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "frontends/nccl/functions.h"
#include "frontends/nccl/types.h"
#include "polypath/polypath.h"
#include "system/cuda_driver.h"
#include "system/error.h"

#define NCCL_DECLARE(result, name, parameters)                                                                         \
    result name parameters;                                                                                            \
    result p##name parameters;
NCCL_FUNCTIONS(NCCL_DECLARE)
#define NCCL_DECLARE_DEVICE(result, name, parameters) result name parameters;
NCCL_DEVICE_FUNCTIONS(NCCL_DECLARE_DEVICE)
#undef NCCL_DECLARE
#undef NCCL_DECLARE_DEVICE

/* Behind a function: its second name, under which profilers that have taken the first one reach it. */
#define NCCL_PROFILED(name) extern __typeof__(name) p##name __attribute__((alias(#name)))

#define NCCL_BAD(...) error_set(POLYPATH_ERROR_ARGUMENT, __VA_ARGS__)
#define NCCL_MISUSE(...) error_set(POLYPATH_ERROR_USAGE, __VA_ARGS__)

/* ----------------------------------------------------------- communicators */

/* A buffer that the program has announced. */
struct nccl_registration {
    struct nccl_registration *next;
    void *buffer;
    size_t bytes;
    bool window;
};

struct ncclComm {
    uint64_t magic; /* NCCL_COMM_MAGIC while it lives: garbage is refused */
    int rank, size; /* size 0: the creation has yet to say (split, shrink) */
    int device;     /* that was current when it was made */
    bool blocking;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    int holders;           /* the program, jobs, and calls under way; the last one frees it */
    int pending;           /* jobs that make it or use it */
    polypath_comm_t inner; /* set once by its creation; NULL before, and if that failed */
    bool finalized, revoked, aborted;
    polypath_result_t failed; /* why a job failed, with its text */
    char failed_text[ERROR_TEXT_BYTES];
    struct nccl_registration *registrations;
};
#define NCCL_COMM_MAGIC 0x706f6c796e63636cull

/* A communicator without an inner one yet, held once, by the program. NULL with the error set. */
struct ncclComm *nccl_comm_new(int rank, int size, int device, bool blocking);

void nccl_comm_hold(struct ncclComm *comm);

/* Lets go; whoever is the last frees it. The result is that of destroying the inner communicator, if it came to that.
 */
polypath_result_t nccl_comm_let_go(struct ncclComm *comm);

/* Whether this is a communicator at all. Sets the error. */
polypath_result_t nccl_comm_check(const char *name, const struct ncclComm *comm);

/*
 * For a call that uses the inner communicator: checks that it may be used now,
 * and holds it. Inside a group it stays held until the group's end, so that
 * nccl_comm_leave does nothing then.
 */
polypath_result_t nccl_comm_enter(const char *name, struct ncclComm *comm);
void nccl_comm_leave(struct ncclComm *comm);

/* -------------------------------------------------------------------- jobs */

/*
 * Something that waits for other ranks: making a communicator, or finalizing
 * one. Runs in the calling thread, in a thread of its own (in a group, so that
 * one thread can make several ranks), or in one that nobody waits for
 * (communicators that do not block).
 */
struct nccl_job {
    struct nccl_job *next; /* of the group */
    polypath_result_t (*work)(struct nccl_job *job);
    struct ncclComm *comm;   /* that it makes or finalizes; NULL: a rank that will not be part of the new one */
    struct ncclComm *parent; /* or NULL */
    ncclComm_t *place;       /* where the program has the handle; taken back if the creation fails. NULL: nowhere */
    bool blocking;
    bool finalizes;

    polypath_unique_id_t id;
    int color, key;
    int *excluded; /* freed with the job */
    int nexcluded;
    bool abort_first;

    CUcontext context; /* current in the thread that asked; NULL: none */
    pthread_t thread;
    bool started;
    polypath_result_t result;
    char text[ERROR_TEXT_BYTES];
};

/* Zeroed, with the caller's context. NULL with the error set. */
struct nccl_job *nccl_job_new(polypath_result_t (*work)(struct nccl_job *job));

/*
 * Takes the job over and runs it now, or leaves it to the group's end. Holds
 * comm and parent while it is there. *later: it goes on behind the caller's back.
 */
polypath_result_t nccl_job_submit(struct nccl_job *job, bool *later);

/* All jobs of a list, at the same time. Takes them over. */
polypath_result_t nccl_jobs_run(struct nccl_job *jobs, bool *later);

/* Frees the jobs of a list as if each had failed with `result` and the current text. */
void nccl_jobs_drop(struct nccl_job *jobs, polypath_result_t result);

/* ------------------------------------------------------------------ groups */

/* Whether the calling thread is inside a group. */
bool nccl_group_active(void);

/* Keeps a job for the group's end. */
void nccl_group_add(struct nccl_job *job);

/* Holds the communicator until the group's end. */
polypath_result_t nccl_group_hold(struct ncclComm *comm);

/* ------------------------------------------------------------------ answers */

/* The ncclResult_t of a result; inside a group a failure makes the whole group fail. */
ncclResult_t nccl_answer(polypath_result_t result);

/* Only the translation. */
ncclResult_t nccl_translate(polypath_result_t result);

/* The same, or ncclInProgress if it went well but goes on. */
ncclResult_t nccl_answer_later(polypath_result_t result, bool later);

/* -------------------------------------------------------------------- GPUs */

/* The calling thread's device; 0 without a driver or a context, as the CUDA runtime has it. */
int nccl_device_current(void);

/* The primary context of a device; NULL without a driver. */
polypath_result_t nccl_device_context(int device, CUcontext *context);

/* Tells once per communicator if ranks share a GPU, which is allowed. All ranks of a new communicator call it. */
polypath_result_t nccl_device_compare(polypath_comm_t inner, int device);

#endif
