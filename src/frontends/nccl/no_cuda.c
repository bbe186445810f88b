/*
 * What stands behind NCCL's operations in a library that was built without the
 * operations on streams: each says so. Weak: the real ones take their place.
 */
#include "frontends/nccl/internal.h"
#include "polypath/cuda.h"

#define NOT_HERE(name) error_set(POLYPATH_ERROR_UNSUPPORTED, "%s: this build has no operations on streams", name)
#define WEAK __attribute__((weak))

WEAK polypath_result_t polypath_cuda_all_reduce(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                                polypath_op_t op, polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    (void)sendbuf, (void)recvbuf, (void)count, (void)type, (void)op, (void)comm, (void)stream;
    return NOT_HERE("polypath_cuda_all_reduce");
}

WEAK polypath_result_t polypath_cuda_reduce(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                            polypath_op_t op, int root, polypath_comm_t comm,
                                            polypath_cuda_stream_t stream)
{
    (void)sendbuf, (void)recvbuf, (void)count, (void)type, (void)op, (void)root, (void)comm, (void)stream;
    return NOT_HERE("polypath_cuda_reduce");
}

WEAK polypath_result_t polypath_cuda_broadcast(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                               int root, polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    (void)sendbuf, (void)recvbuf, (void)count, (void)type, (void)root, (void)comm, (void)stream;
    return NOT_HERE("polypath_cuda_broadcast");
}

WEAK polypath_result_t polypath_cuda_all_gather(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                                polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    (void)sendbuf, (void)recvbuf, (void)count, (void)type, (void)comm, (void)stream;
    return NOT_HERE("polypath_cuda_all_gather");
}

WEAK polypath_result_t polypath_cuda_reduce_scatter(const void *sendbuf, void *recvbuf, size_t count,
                                                    polypath_type_t type, polypath_op_t op, polypath_comm_t comm,
                                                    polypath_cuda_stream_t stream)
{
    (void)sendbuf, (void)recvbuf, (void)count, (void)type, (void)op, (void)comm, (void)stream;
    return NOT_HERE("polypath_cuda_reduce_scatter");
}

WEAK polypath_result_t polypath_cuda_all_to_all(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                                polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    (void)sendbuf, (void)recvbuf, (void)count, (void)type, (void)comm, (void)stream;
    return NOT_HERE("polypath_cuda_all_to_all");
}

WEAK polypath_result_t polypath_cuda_gather(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                            int root, polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    (void)sendbuf, (void)recvbuf, (void)count, (void)type, (void)root, (void)comm, (void)stream;
    return NOT_HERE("polypath_cuda_gather");
}

WEAK polypath_result_t polypath_cuda_scatter(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                             int root, polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    (void)sendbuf, (void)recvbuf, (void)count, (void)type, (void)root, (void)comm, (void)stream;
    return NOT_HERE("polypath_cuda_scatter");
}

WEAK polypath_result_t polypath_cuda_send(const void *sendbuf, size_t count, polypath_type_t type, int peer,
                                          polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    (void)sendbuf, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
    return NOT_HERE("polypath_cuda_send");
}

WEAK polypath_result_t polypath_cuda_recv(void *recvbuf, size_t count, polypath_type_t type, int peer,
                                          polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    (void)recvbuf, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
    return NOT_HERE("polypath_cuda_recv");
}

WEAK polypath_result_t polypath_cuda_op_create_scaled_sum(polypath_op_t *op, const void *scalar, polypath_type_t type,
                                                          polypath_comm_t comm)
{
    (void)op, (void)scalar, (void)type, (void)comm;
    return NOT_HERE("polypath_cuda_op_create_scaled_sum");
}
