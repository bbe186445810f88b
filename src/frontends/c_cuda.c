/*
 * The C interface of operations on streams (polypath/cuda.h): checks, and what
 * is noted between the start and the end of a group.
 */
#include "polypath/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "frontends/c_api.h"
#include "frontends/cuda_worker.h"
#include "frontends/group.h"
#include "system/settings.h"

struct noted {
    struct cuda_operation operation; /* a collective; or a point, which is `point` */
    struct point point;
};

static _Thread_local struct {
    struct noted *noted;
    int count, room;
} group;

static polypath_result_t find_driver(const struct cuda_driver **driver, CUcontext *context)
{
    const char *why = NULL;
    *driver = cuda_driver_get(&why);
    if (!*driver)
        return error_set(POLYPATH_ERROR_UNSUPPORTED, "operations on streams need a GPU: %s", why);
    if (!settings_get()->cuda_streams)
        return error_set(POLYPATH_ERROR_UNSUPPORTED,
                         "operations on streams are off: a copy between GPU and pageable memory that is queued behind "
                         "one can stop the program for good; POLYPATH_CUDA_STREAMS=1 turns them on");
    polypath_result_t result = cuda_check(*driver, (*driver)->ctx_get_current(context), -1, "cuCtxGetCurrent");
    if (!result && !*context)
        result = error_set(POLYPATH_ERROR_USAGE, "no CUDA context is current in the calling thread");
    return result;
}

static polypath_result_t note(const struct noted *what)
{
    if (group.count == group.room) {
        const int room = group.room ? 2 * group.room : 16;
        struct noted *grown = realloc(group.noted, (size_t)room * sizeof *grown);
        if (!grown)
            return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        group.noted = grown;
        group.room = room;
    }
    group.noted[group.count++] = *what;
    return POLYPATH_SUCCESS;
}

static void drop_noted(void)
{
    for (int i = 0; i < group.count; i++)
        if (group.noted[i].operation.call)
            call_release(group.noted[i].operation.call);
    free(group.noted);
    memset(&group, 0, sizeof group);
}

/* The sends and receives of one communicator, from noted operation `first` on, as one operation. */
static polypath_result_t gather_points(int first, struct cuda_operation *operation)
{
    *operation = group.noted[first].operation;
    operation->points = calloc((size_t)(group.count - first), sizeof *operation->points);
    if (!operation->points)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    for (int i = first; i < group.count; i++) {
        struct noted *n = &group.noted[i];
        if (n->operation.call || n->operation.comm != operation->comm)
            continue;
        if (n->operation.stream != operation->stream)
            return error_set(POLYPATH_ERROR_UNSUPPORTED,
                             "the sends and receives of one communicator in a group must be on one stream");
        operation->points[operation->npoints++] = n->point;
    }
    return point_match_self(operation->points, operation->npoints, operation->comm->rank);
}

bool group_has_streams(void)
{
    return group.count > 0;
}

polypath_result_t group_end_streams(bool refused)
{
    const struct cuda_driver *driver = group.count && !refused ? cuda_driver_get(NULL) : NULL;
    polypath_result_t result = POLYPATH_SUCCESS;
    for (int i = 0; i < group.count && driver && !result; i++) {
        struct noted *n = &group.noted[i];
        if (n->operation.call) {
            struct cuda_operation operation = n->operation;
            n->operation.call = NULL; /* it is taken over */
            n->operation.comm = NULL;
            result = cuda_worker_submit(driver, &operation);
        } else if (n->operation.comm) {
            struct cuda_operation operation;
            struct polypath_comm *comm = n->operation.comm;
            result = gather_points(i, &operation);
            if (result)
                free(operation.points);
            else
                result = cuda_worker_submit(driver, &operation);
            for (int j = i; j < group.count; j++)
                if (!group.noted[j].operation.call && group.noted[j].operation.comm == comm)
                    group.noted[j].operation.comm = NULL; /* done with */
        }
    }
    drop_noted();
    return result;
}

static polypath_result_t checked_collective(polypath_collective_t kind, const void *send, void *recv, size_t count,
                                            polypath_type_t type, polypath_op_t op, int root, polypath_comm_t comm,
                                            CUstream stream)
{
    const struct cuda_driver *driver;
    struct noted what = {.operation = {.comm = comm, .stream = stream}};
    polypath_result_t result = find_driver(&driver, &what.operation.context);
    if (!result)
        result = api_collective(kind, send, recv, count, type, op, root, comm, true, &what.operation.call);
    if (result)
        return result;
    if (!group_active())
        return cuda_worker_submit(driver, &what.operation);
    result = note(&what);
    if (result)
        call_release(what.operation.call);
    return result;
}

static polypath_result_t collective(polypath_collective_t kind, const void *send, void *recv, size_t count,
                                    polypath_type_t type, polypath_op_t op, int root, polypath_comm_t comm,
                                    CUstream stream)
{
    return group_refuse(checked_collective(kind, send, recv, count, type, op, root, comm, stream));
}

static polypath_result_t checked_point(bool send, const void *send_buffer, void *recv_buffer, size_t count,
                                       polypath_type_t type, int peer, polypath_comm_t comm, CUstream stream)
{
    const struct cuda_driver *driver;
    struct noted what = {.operation = {.comm = comm, .stream = stream}};
    polypath_result_t result = find_driver(&driver, &what.operation.context);
    if (!result)
        result = api_point(send, send_buffer, recv_buffer, count, type, peer, comm, &what.point);
    if (result)
        return result;
    if (group_active())
        return note(&what);
    if (peer == comm->rank)
        return error_set(POLYPATH_ERROR_USAGE, "%s: to itself only inside a group that holds both sides",
                         send ? "send" : "recv");
    what.operation.points = malloc(sizeof what.point);
    if (!what.operation.points)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    what.operation.points[0] = what.point;
    what.operation.npoints = 1;
    return cuda_worker_submit(driver, &what.operation);
}

polypath_result_t polypath_cuda_all_reduce(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                           polypath_op_t op, polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    return collective(POLYPATH_COLLECTIVE_ALL_REDUCE, sendbuf, recvbuf, count, type, op, -1, comm, stream);
}

polypath_result_t polypath_cuda_reduce(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                       polypath_op_t op, int root, polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    return collective(POLYPATH_COLLECTIVE_REDUCE, sendbuf, recvbuf, count, type, op, api_root(root), comm, stream);
}

polypath_result_t polypath_cuda_broadcast(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                          int root, polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    return collective(POLYPATH_COLLECTIVE_BROADCAST, sendbuf, recvbuf, count, type, POLYPATH_SUM, api_root(root), comm,
                      stream);
}

polypath_result_t polypath_cuda_all_gather(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                           polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    return collective(POLYPATH_COLLECTIVE_ALL_GATHER, sendbuf, recvbuf, count, type, POLYPATH_SUM, -1, comm, stream);
}

polypath_result_t polypath_cuda_reduce_scatter(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                               polypath_op_t op, polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    return collective(POLYPATH_COLLECTIVE_REDUCE_SCATTER, sendbuf, recvbuf, count, type, op, -1, comm, stream);
}

polypath_result_t polypath_cuda_all_to_all(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                           polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    return collective(POLYPATH_COLLECTIVE_ALL_TO_ALL, sendbuf, recvbuf, count, type, POLYPATH_SUM, -1, comm, stream);
}

polypath_result_t polypath_cuda_gather(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type, int root,
                                       polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    return collective(POLYPATH_COLLECTIVE_GATHER, sendbuf, recvbuf, count, type, POLYPATH_SUM, api_root(root), comm,
                      stream);
}

polypath_result_t polypath_cuda_scatter(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                        int root, polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    return collective(POLYPATH_COLLECTIVE_SCATTER, sendbuf, recvbuf, count, type, POLYPATH_SUM, api_root(root), comm,
                      stream);
}

polypath_result_t polypath_cuda_send(const void *sendbuf, size_t count, polypath_type_t type, int peer,
                                     polypath_comm_t comm, polypath_cuda_stream_t stream)
{
    return group_refuse(checked_point(true, sendbuf, NULL, count, type, peer, comm, stream));
}

polypath_result_t polypath_cuda_recv(void *recvbuf, size_t count, polypath_type_t type, int peer, polypath_comm_t comm,
                                     polypath_cuda_stream_t stream)
{
    return group_refuse(checked_point(false, NULL, recvbuf, count, type, peer, comm, stream));
}

polypath_result_t polypath_cuda_op_create_scaled_sum(polypath_op_t *op, const void *scalar, polypath_type_t type,
                                                     polypath_comm_t comm)
{
    static const unsigned char nothing[8];
    const struct cuda_driver *driver;
    CUcontext context;
    unsigned kind = 0;
    polypath_result_t result = find_driver(&driver, &context);
    if (result)
        return result;
    const bool on_device =
        scalar &&
        driver->pointer_get_attribute(&kind, CUDA_POINTER_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)scalar) == CUDA_IS_OK &&
        kind == CUDA_MEMORY_DEVICE;
    result = polypath_op_create_scaled_sum(op, on_device ? nothing : scalar, type, comm);
    if (!result && on_device)
        comm->scaled_ops[*op - POLYPATH_OP_COUNT].on_device = scalar;
    return result;
}
