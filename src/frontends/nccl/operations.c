/*
 * NCCL's interface: the operations on streams. Types and ops have NCCL's
 * numbers in Polypath, so they are handed through; unknown ones are refused
 * there.
 */
#include "frontends/nccl/internal.h"
#include "polypath/cuda.h"

/* Enters, calls, leaves. What `call` says about its arguments becomes the answer. */
#define ISSUE(name, comm, call)                                                                                        \
    do {                                                                                                               \
        polypath_result_t result = nccl_comm_enter(name, comm);                                                        \
        if (!result) {                                                                                                 \
            result = call;                                                                                             \
            nccl_comm_leave(comm);                                                                                     \
        }                                                                                                              \
        return nccl_answer(result);                                                                                    \
    } while (0)

#define TYPE ((polypath_type_t)datatype)
#define OP ((polypath_op_t)op)

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    ISSUE("ncclAllReduce", comm, polypath_cuda_all_reduce(sendbuff, recvbuff, count, TYPE, OP, comm->inner, stream));
}
NCCL_PROFILED(ncclAllReduce);

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
    ISSUE("ncclReduce", comm, polypath_cuda_reduce(sendbuff, recvbuff, count, TYPE, OP, root, comm->inner, stream));
}
NCCL_PROFILED(ncclReduce);

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    ISSUE("ncclBroadcast", comm, polypath_cuda_broadcast(sendbuff, recvbuff, count, TYPE, root, comm->inner, stream));
}
NCCL_PROFILED(ncclBroadcast);

ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream)
{
    ISSUE("ncclBcast", comm, polypath_cuda_broadcast(buff, buff, count, TYPE, root, comm->inner, stream));
}
NCCL_PROFILED(ncclBcast);

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream)
{
    ISSUE("ncclAllGather", comm, polypath_cuda_all_gather(sendbuff, recvbuff, sendcount, TYPE, comm->inner, stream));
}
NCCL_PROFILED(ncclAllGather);

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    ISSUE("ncclReduceScatter", comm,
          polypath_cuda_reduce_scatter(sendbuff, recvbuff, recvcount, TYPE, OP, comm->inner, stream));
}
NCCL_PROFILED(ncclReduceScatter);

ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                          cudaStream_t stream)
{
    ISSUE("ncclAlltoAll", comm, polypath_cuda_all_to_all(sendbuff, recvbuff, count, TYPE, comm->inner, stream));
}
NCCL_PROFILED(ncclAlltoAll);

ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    ISSUE("ncclGather", comm, polypath_cuda_gather(sendbuff, recvbuff, count, TYPE, root, comm->inner, stream));
}
NCCL_PROFILED(ncclGather);

ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream)
{
    ISSUE("ncclScatter", comm, polypath_cuda_scatter(sendbuff, recvbuff, count, TYPE, root, comm->inner, stream));
}
NCCL_PROFILED(ncclScatter);

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    ISSUE("ncclSend", comm, polypath_cuda_send(sendbuff, count, TYPE, peer, comm->inner, stream));
}
NCCL_PROFILED(ncclSend);

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    ISSUE("ncclRecv", comm, polypath_cuda_recv(recvbuff, count, TYPE, peer, comm->inner, stream));
}
NCCL_PROFILED(ncclRecv);

/* --------------------------------------------------------------------- ops */

static polypath_result_t make_op(ncclRedOp_t *op, const void *scalar, ncclDataType_t datatype,
                                 ncclScalarResidence_t residence, polypath_comm_t inner)
{
    polypath_op_t made = 0;
    polypath_result_t result = residence == ncclScalarHostImmediate
                                   ? polypath_op_create_scaled_sum(&made, scalar, TYPE, inner)
                                   : polypath_cuda_op_create_scaled_sum(&made, scalar, TYPE, inner);
    if (!result)
        *op = (ncclRedOp_t)made;
    return result;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    static const char name[] = "ncclRedOpCreatePreMulSum";
    if (!op || !scalar)
        return nccl_answer(NCCL_BAD("%s: %s is NULL", name, op ? "scalar" : "op"));
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
        return nccl_answer(NCCL_BAD("%s: unknown residence %d", name, (int)residence));
    ISSUE(name, comm, make_op(op, scalar, datatype, residence, comm->inner));
}
NCCL_PROFILED(ncclRedOpCreatePreMulSum);

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    if (op >= 0 && op < ncclNumOps)
        return nccl_answer(NCCL_BAD("ncclRedOpDestroy: op %d is built in", (int)op));
    ISSUE("ncclRedOpDestroy", comm, polypath_op_destroy(OP, comm->inner));
}
NCCL_PROFILED(ncclRedOpDestroy);
