/*
 * The thread that carries out a communicator's operations on streams. An
 * operation has three parts on the stream: a host function that says that
 * everything before it has ended, a wait for a word in pinned memory, and (in a
 * graph) a write that makes the word ready for the next launch. The thread
 * copies through pinned memory, runs the host collective, and sets the word.
 *
 * All memory is taken by the thread's start, or added to, and given back at
 * the end only: giving back waits for every stream of the context, also for
 * those that wait for this thread.
 */
#ifndef FRONTENDS_CUDA_WORKER_H
#define FRONTENDS_CUDA_WORKER_H

#include "comm/comm.h"
#include "system/cuda_driver.h"

/* Of the pinned memory for what goes in, and for what comes out, of a communicator; a longer message goes in pieces. */
#define CUDA_BOUNCE_BYTES ((size_t)4 << 20)

/* One operation: a collective (`call`, checked and filled), or sends and receives that run together. */
struct cuda_operation {
    struct polypath_comm *comm;
    struct polypath_request *call; /* NULL: points */
    struct point *points;          /* allocated */
    int npoints;
    CUcontext context; /* of the stream */
    CUstream stream;
};

/* Queues an operation on its stream. Takes over the call and the points, also on failure. Does not wait. */
polypath_result_t cuda_worker_submit(const struct cuda_driver *driver, const struct cuda_operation *operation);

#endif
