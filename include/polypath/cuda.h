/*
 * polypath/cuda.h - the collectives of polypath.h on a CUDA stream.
 *
 * Rules, beside those of polypath.h:
 *  - An operation is queued on `stream` and runs in its order; the function
 *    does not wait for the GPU nor for other ranks. Errors that come later are
 *    found by polypath_comm_status(): it stays POLYPATH_SUCCESS while all is
 *    well and never blocks.
 *  - `stream` is a CUstream or cudaStream_t (one and the same), NULL the legacy
 *    default stream. It must belong to the device of this rank: the one that
 *    was current when the communicator was created.
 *  - Buffers may be device memory, pinned host memory or ordinary host memory.
 *    They belong to the caller and must stay until the stream has passed the
 *    operation. Send and Recv in a group run together, as in polypath.h.
 *  - Ranks of one communicator may have GPUs or not: a rank without one calls
 *    the functions of polypath.h with host buffers, and the others these, or
 *    those of polypath.h with device buffers, which block.
 *  - A stream that is being captured takes operations only where every rank has
 *    a GPU of the same host (POLYPATH_ERROR_UNSUPPORTED otherwise); the graph
 *    may be launched any number of times, between ordinary calls too, and the
 *    communicator must outlive it.
 *  - Without a CUDA driver every function returns POLYPATH_ERROR_UNSUPPORTED.
 *
 * This header does not include CUDA's.
 */
#ifndef POLYPATH_CUDA_H
#define POLYPATH_CUDA_H

#include "polypath/polypath.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *polypath_cuda_stream_t;

/* Whether this process can use a GPU: a driver, a device, and the kernels built in; *why (if not NULL) says what lacks. */
bool polypath_cuda_available(const char **why);

/* Arguments and buffers as those of the functions of polypath.h. */
polypath_result_t polypath_cuda_all_reduce(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                           polypath_op_t op, polypath_comm_t comm, polypath_cuda_stream_t stream);
polypath_result_t polypath_cuda_reduce(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                       polypath_op_t op, int root, polypath_comm_t comm,
                                       polypath_cuda_stream_t stream);
polypath_result_t polypath_cuda_broadcast(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                          int root, polypath_comm_t comm, polypath_cuda_stream_t stream);
polypath_result_t polypath_cuda_all_gather(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                           polypath_comm_t comm, polypath_cuda_stream_t stream);
polypath_result_t polypath_cuda_reduce_scatter(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                               polypath_op_t op, polypath_comm_t comm, polypath_cuda_stream_t stream);
polypath_result_t polypath_cuda_all_to_all(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                           polypath_comm_t comm, polypath_cuda_stream_t stream);
polypath_result_t polypath_cuda_gather(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type, int root,
                                       polypath_comm_t comm, polypath_cuda_stream_t stream);
polypath_result_t polypath_cuda_scatter(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                        int root, polypath_comm_t comm, polypath_cuda_stream_t stream);
polypath_result_t polypath_cuda_send(const void *sendbuf, size_t count, polypath_type_t type, int peer,
                                     polypath_comm_t comm, polypath_cuda_stream_t stream);
polypath_result_t polypath_cuda_recv(void *recvbuf, size_t count, polypath_type_t type, int peer, polypath_comm_t comm,
                                     polypath_cuda_stream_t stream);
polypath_result_t polypath_cuda_barrier(polypath_comm_t comm, polypath_cuda_stream_t stream);

/*
 * As polypath_op_create_scaled_sum() with a scalar in device memory that is
 * read when the operation runs, not now.
 */
polypath_result_t polypath_cuda_op_create_scaled_sum(polypath_op_t *op, const void *device_scalar, polypath_type_t type,
                                                     polypath_comm_t comm);

/* Device memory that peers on the same host can map: collectives on it need no staging. Free with the other. */
polypath_result_t polypath_cuda_mem_alloc(void **pointer, size_t bytes);
polypath_result_t polypath_cuda_mem_free(void *pointer);

#ifdef __cplusplus
}
#endif

#endif
