/*
 * Operations on streams done at once, on host memory, whatever the stream: so
 * that the tests of NCCL's interface need no GPU. The linker puts these in the
 * place of the library's own (--wrap), which the test's copy of it has as well.
 */
#include "polypath/cuda.h"

#define STREAM polypath_cuda_stream_t stream
#define AT_ONCE(name, parameters, arguments)                                                                           \
    polypath_result_t __wrap_polypath_cuda_##name parameters;                                                          \
    polypath_result_t __wrap_polypath_cuda_##name parameters                                                           \
    {                                                                                                                  \
        (void)stream;                                                                                                  \
        return polypath_##name arguments;                                                                              \
    }

AT_ONCE(all_reduce,
        (const void *send, void *recv, size_t count, polypath_type_t type, polypath_op_t op, polypath_comm_t comm,
         STREAM),
        (send, recv, count, type, op, comm))
AT_ONCE(reduce,
        (const void *send, void *recv, size_t count, polypath_type_t type, polypath_op_t op, int root,
         polypath_comm_t comm, STREAM),
        (send, recv, count, type, op, root, comm))
AT_ONCE(broadcast,
        (const void *send, void *recv, size_t count, polypath_type_t type, int root, polypath_comm_t comm, STREAM),
        (send, recv, count, type, root, comm))
AT_ONCE(all_gather, (const void *send, void *recv, size_t count, polypath_type_t type, polypath_comm_t comm, STREAM),
        (send, recv, count, type, comm))
AT_ONCE(reduce_scatter,
        (const void *send, void *recv, size_t count, polypath_type_t type, polypath_op_t op, polypath_comm_t comm,
         STREAM),
        (send, recv, count, type, op, comm))
AT_ONCE(all_to_all, (const void *send, void *recv, size_t count, polypath_type_t type, polypath_comm_t comm, STREAM),
        (send, recv, count, type, comm))
AT_ONCE(gather,
        (const void *send, void *recv, size_t count, polypath_type_t type, int root, polypath_comm_t comm, STREAM),
        (send, recv, count, type, root, comm))
AT_ONCE(scatter,
        (const void *send, void *recv, size_t count, polypath_type_t type, int root, polypath_comm_t comm, STREAM),
        (send, recv, count, type, root, comm))
AT_ONCE(send, (const void *buffer, size_t count, polypath_type_t type, int peer, polypath_comm_t comm, STREAM),
        (buffer, count, type, peer, comm))
AT_ONCE(recv, (void *buffer, size_t count, polypath_type_t type, int peer, polypath_comm_t comm, STREAM),
        (buffer, count, type, peer, comm))

polypath_result_t __wrap_polypath_cuda_op_create_scaled_sum(polypath_op_t *op, const void *scalar, polypath_type_t type,
                                                            polypath_comm_t comm);
polypath_result_t __wrap_polypath_cuda_op_create_scaled_sum(polypath_op_t *op, const void *scalar, polypath_type_t type,
                                                            polypath_comm_t comm)
{
    return polypath_op_create_scaled_sum(op, scalar, type, comm);
}
