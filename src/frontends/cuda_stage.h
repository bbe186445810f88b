/*
 * What an operation on a stream does, once its turn has come: pieces are
 * copied into pinned memory, go through the host collective, and are copied
 * back. Host memory is copied likewise. The worker's thread only.
 */
#ifndef FRONTENDS_CUDA_STAGE_H
#define FRONTENDS_CUDA_STAGE_H

#include "frontends/cuda_worker.h"

struct stage_memory_cuda;

/* Takes the pinned memory and a stream of its own; in the caller's current context. */
polypath_result_t cuda_stage_open(struct polypath_comm *comm, const struct cuda_driver *driver, CUcontext context,
                                  struct stage_memory_cuda **memory);

/* Gives back; waits for every stream of the context. NULL is allowed. */
void cuda_stage_close(struct stage_memory_cuda *memory);

/* Runs to the end. */
polypath_result_t cuda_stage_run(struct stage_memory_cuda *memory, const struct cuda_operation *operation);

#endif
