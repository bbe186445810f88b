/*
 * polypath/cuda.h - collectives on buffers of GPUs, in the order of a stream.
 *
 * Each function is its namesake of polypath.h, with the same arguments and a
 * CUDA stream behind them. It returns when the operation has been queued: the
 * operation begins when all that was queued on `stream` before has ended, and
 * what is queued on `stream` afterwards begins when it has ended. Buffers may
 * be memory of the GPU or of the host, on each rank as it likes: ranks with
 * and without GPUs share one communicator. The stream belongs to the context
 * that is current in the calling thread.
 *
 * AllToAll has an in-place form here: sendbuf == recvbuf.
 *
 * Between polypath_group_start() and polypath_group_end() the functions are
 * only noted, and the end queues them all; operations of several communicators
 * and streams may stand in one group, but none of the host. While `stream` is being captured the
 * operation becomes part of the graph, and every launch of it runs the
 * operation; all ranks must launch in the same order.
 *
 * Bad arguments are errors at once. What goes wrong later makes the
 * communicator fail (polypath_comm_status() says how) and lets the stream go
 * on, with undefined contents in the outputs: nothing waits for ever.
 *
 * Off unless the setting `cuda_streams` is 1: a copy between the GPU and pageable
 * memory that is queued behind an operation can stop the program for good.
 *
 * Without a usable CUDA driver, or with a NULL communicator, they return an
 * error that says so. A communicator's operations of polypath.h and of this
 * header run in the order in which they were issued.
 */
#ifndef POLYPATH_CUDA_H
#define POLYPATH_CUDA_H

#include "polypath/polypath.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *polypath_cuda_stream_t; /* what CUstream and cudaStream_t are; NULL: the default stream */

polypath_result_t polypath_cuda_all_reduce(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                           polypath_op_t op, polypath_comm_t comm, polypath_cuda_stream_t stream);
polypath_result_t polypath_cuda_reduce(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                       polypath_op_t op, int root, polypath_comm_t comm, polypath_cuda_stream_t stream);
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

/*
 * As polypath_op_create_scaled_sum(), with the scalar in GPU or host memory; it
 * is read when the operation runs, in the order of the stream of that operation.
 */
polypath_result_t polypath_cuda_op_create_scaled_sum(polypath_op_t *op, const void *scalar, polypath_type_t type,
                                                     polypath_comm_t comm);

#ifdef __cplusplus
}
#endif

#endif
