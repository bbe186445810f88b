/*
 * The C interface: checks arguments, fills a call, and waits for it or not.
 * Nothing moves before every argument has been found good.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "frontends/c_api.h"
#include "frontends/group.h"

#define BAD(...) error_set(POLYPATH_ERROR_ARGUMENT, __VA_ARGS__)

#define ALL_REDUCE POLYPATH_COLLECTIVE_ALL_REDUCE
#define NO_OP POLYPATH_SUM
#define NO_ROOT (-1)

/* ---------------------------------------------------------------- checks */

struct range {
    const char *begin;
    size_t bytes;
};

static bool overlap(struct range a, struct range b)
{
    return a.bytes && b.bytes && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

static polypath_result_t check_comm(const char *name, polypath_comm_t comm)
{
    if (!comm)
        return BAD("%s: comm is NULL", name);
    return comm_check(comm);
}

/* Bytes of `count` elements of `type` times `ranks`; refuses unknown types and overflow. */
static polypath_result_t check_size(const char *name, size_t count, polypath_type_t type, int ranks, size_t *bytes)
{
    const size_t element = polypath_type_bytes(type);
    if (!element)
        return BAD("%s: unknown type %d", name, (int)type);
    if (count > SIZE_MAX / 4 / element / (size_t)ranks)
        return BAD("%s: count %zu overflows", name, count);
    *bytes = count * element;
    return POLYPATH_SUCCESS;
}

static polypath_result_t check_root(const char *name, int root, polypath_comm_t comm)
{
    if (root < 0 || root >= comm->size)
        return BAD("%s: root %d is not in 0..%d", name, root, comm->size - 1);
    return POLYPATH_SUCCESS;
}

static polypath_result_t check_buffers(const char *name, const void *send, size_t send_bytes, const void *recv,
                                       size_t recv_bytes, const void *in_place)
{
    if (!send && send_bytes)
        return BAD("%s: sendbuf is NULL", name);
    if (!recv && recv_bytes)
        return BAD("%s: recvbuf is NULL", name);
    if (send == in_place && in_place)
        return POLYPATH_SUCCESS;
    if (overlap((struct range){send, send_bytes}, (struct range){recv, recv_bytes}))
        return BAD("%s: sendbuf and recvbuf overlap, and not in the way that is in place", name);
    return POLYPATH_SUCCESS;
}

/* Resolves an op: sets op and, for a scaled sum, the scalar. */
static polypath_result_t set_op(const char *name, struct polypath_request *call, polypath_op_t op)
{
    if (op >= 0 && op < POLYPATH_OP_COUNT) {
        call->op = op;
        return POLYPATH_SUCCESS;
    }
    const struct polypath_comm *comm = call->comm;
    const int index = op - POLYPATH_OP_COUNT;
    if (index < 0 || index >= SCALED_OPS || !comm->scaled_ops[index].used)
        return BAD("%s: unknown op %d", name, op);
    if (comm->scaled_ops[index].type != call->type)
        return BAD("%s: the op was created for %s, not %s", name, polypath_type_name(comm->scaled_ops[index].type),
                   polypath_type_name(call->type));
    call->op = POLYPATH_SUM;
    call->scaled = true;
    call->scalar_on_device = comm->scaled_ops[index].on_device;
    memcpy(call->scalar, comm->scaled_ops[index].scalar, sizeof call->scalar);
    return POLYPATH_SUCCESS;
}

/* ------------------------------------------------------------- submitting */

/* Queues the call (or leaves it to the group); waits unless `request` takes it. */
static polypath_result_t submit(struct polypath_request *call, polypath_request_t *request)
{
    if (call->scalar_on_device) {
        call_release(call);
        return error_set(POLYPATH_ERROR_UNSUPPORTED, "the op's scalar is on a GPU: it is for operations on streams");
    }
    if (group_active()) {
        if (!request)
            return group_add(call);
        call_release(call);
        return error_set(POLYPATH_ERROR_USAGE, "non-blocking operations are not allowed inside a group");
    }
    comm_settle(call->comm);
    call_submit(call);
    if (request) {
        drive_want_helper(call->comm);
        *request = call;
        return POLYPATH_SUCCESS;
    }
    polypath_result_t result = drive_until_done(call);
    call_release(call);
    return result;
}

/* A call object for a collective; the checks that all have in common. */
static polypath_result_t prepare(polypath_collective_t collective, polypath_type_t type, int root, polypath_comm_t comm,
                                 polypath_request_t *request, bool wants_request, struct polypath_request **call)
{
    const char *name = polypath_collective_name(collective);
    if (wants_request && !request)
        return BAD("%s: request is NULL", name);
    polypath_result_t result = check_comm(name, comm);
    if (!result && root != -1)
        result = check_root(name, root, comm);
    if (result)
        return result;
    *call = call_new(comm, comm->size);
    if (!*call)
        return POLYPATH_ERROR_OUT_OF_MEMORY;
    (*call)->collective = collective;
    (*call)->type = type;
    (*call)->root = root;
    return POLYPATH_SUCCESS;
}

static const char *at(const void *buffer, size_t bytes)
{
    return buffer ? (const char *)buffer + bytes : NULL;
}

struct sides {
    size_t send_bytes, recv_bytes;
    const void *in_place;    /* what sendbuf is when in place; NULL: no such form */
    bool has_send, has_recv; /* buffers that this rank passes at all */
};

/* Which buffers of which size each collective takes at this rank. */
static struct sides sides_of(const struct polypath_comm *comm, polypath_collective_t collective, int root_rank,
                             void *recv, size_t bytes)
{
    const size_t n = (size_t)comm->size, rank = (size_t)comm->rank;
    const bool root = comm->rank == root_rank;
    switch (collective) {
    case POLYPATH_COLLECTIVE_ALL_REDUCE: return (struct sides){bytes, bytes, recv, true, true};
    case POLYPATH_COLLECTIVE_REDUCE: return (struct sides){bytes, root ? bytes : 0, recv, true, root};
    case POLYPATH_COLLECTIVE_BROADCAST: return (struct sides){root ? bytes : 0, bytes, recv, root, true};
    case POLYPATH_COLLECTIVE_ALL_GATHER: return (struct sides){bytes, n * bytes, at(recv, rank * bytes), true, true};
    case POLYPATH_COLLECTIVE_REDUCE_SCATTER:
    case POLYPATH_COLLECTIVE_SCATTER: {
        const bool reads = collective == POLYPATH_COLLECTIVE_REDUCE_SCATTER || root;
        const char *in_place = recv && (uintptr_t)recv >= rank * bytes ? (const char *)recv - rank * bytes : NULL;
        return (struct sides){reads ? n * bytes : 0, bytes, in_place, reads, true};
    }
    case POLYPATH_COLLECTIVE_GATHER:
        return (struct sides){bytes, root ? n * bytes : 0, root ? at(recv, rank * bytes) : NULL, true, root};
    default: return (struct sides){n * bytes, n * bytes, NULL, true, true};
    }
}

/* Prepares the short way for calls like this one; false: not small. */
static bool learn_small(polypath_comm_t comm, polypath_collective_t kind, size_t count, polypath_type_t type,
                        polypath_op_t op, int root)
{
    const size_t element = polypath_type_bytes(type);
    if (!comm->board || count > BOARD_BYTES || !element || op < 0 || op >= POLYPATH_OP_COUNT || root < -1 ||
        root >= comm->size || !small_takes(comm, kind, count * element, 0))
        return false;
    const size_t bytes = count * element;
    char *const anywhere = (char *)(uintptr_t)(1u << 30); /* never touched: only the distance counts */
    const struct sides s = sides_of(comm, kind, root, anywhere, bytes);
    comm->small = (struct small_memo){
        .known = true,
        .collective = kind,
        .type = type,
        .op = op,
        .root = root,
        .count = count,
        /* describes the call as call_describe does */
        .call = {.frame = {.kind = FRAME_COLLECTIVE,
                           .collective = (uint8_t)kind,
                           .type = (uint8_t)type,
                           .op = (uint8_t)op,
                           .root = root,
                           .count = count},
                 .op = {type, op == POLYPATH_AVG ? POLYPATH_SUM : op, op == POLYPATH_AVG ? comm->size : 0},
                 .bytes = bytes},
        .send_bytes = s.has_send ? s.send_bytes : 0,
        .recv_bytes = s.has_recv ? s.recv_bytes : 0,
        .in_place_form = s.in_place,
        .in_place = s.in_place ? (const char *)s.in_place - anywhere : 0,
    };
    return true;
}

/* Whether these buffers are good for the call that is remembered. The long way says what is wrong. */
static bool buffers_fit(const struct small_memo *memo, const void *send, const void *recv)
{
    if ((!send && memo->send_bytes) || (!recv && memo->recv_bytes))
        return false;
    const uintptr_t from = (uintptr_t)send, to = (uintptr_t)recv;
    if (!memo->send_bytes || !memo->recv_bytes || (memo->in_place_form && from - to == (uintptr_t)memo->in_place))
        return true;
    return from + memo->send_bytes <= to || to + memo->recv_bytes <= from;
}

/* The short way of blocking calls that are small; false: not small, or not to be had now. */
static bool at_once(polypath_collective_t kind, const void *send, void *recv, size_t count, polypath_type_t type,
                    polypath_op_t op, int root, polypath_comm_t comm, polypath_result_t *result)
{
    if (!comm || comm->attached || group_active())
        return false;
    struct small_memo *memo = &comm->small;
    if ((!memo->known || memo->count != count || memo->collective != kind || memo->type != type || memo->op != op ||
         memo->root != root) &&
        !learn_small(comm, kind, count, type, op, root))
        return false;
    if (!buffers_fit(memo, send, recv) || atomic_load_explicit(&comm->failure, memory_order_relaxed))
        return false;
    memo->call.send = send;
    memo->call.recv = recv;
    return small_call(comm, &memo->call, result);
}

/* Checks and fills a call that prepare() has made; releases it on errors. */
static polypath_result_t fill(struct polypath_request *call, const void *send, void *recv, size_t count,
                              polypath_op_t op, bool copied)
{
    const polypath_comm_t comm = call->comm;
    const polypath_collective_t kind = call->collective;
    const polypath_type_t type = call->type;
    const int root = call->root;
    const char *name = polypath_collective_name(kind);
    size_t bytes = 0;
    polypath_result_t result = check_size(name, count, type, comm->size, &bytes);
    if (!result && !call_possible(comm, kind))
        result = error_set(POLYPATH_ERROR_UNSUPPORTED, "%s: no algorithm for %d ranks%s", name, comm->size,
                           comm->settings.reproducible ? " reduces in rank order (setting reproducible)" : "");
    if (!result)
        result = set_op(name, call, op);
    if (!result) {
        const struct sides s = sides_of(comm, kind, root, recv, bytes);
        result = check_buffers(name, s.has_send ? send : NULL, s.send_bytes, s.has_recv ? recv : NULL, s.recv_bytes,
                               copied && kind == POLYPATH_COLLECTIVE_ALL_TO_ALL ? recv : s.in_place);
        if (!result)
            call_fill(call, s.has_send ? send : NULL, s.has_recv ? recv : NULL, count);
    }
    if (result)
        call_release(call);
    return result;
}

polypath_result_t api_collective(polypath_collective_t kind, const void *send, void *recv, size_t count,
                                 polypath_type_t type, polypath_op_t op, int root, polypath_comm_t comm, bool copied,
                                 struct polypath_request **call)
{
    polypath_result_t result = prepare(kind, type, root, comm, NULL, false, call);
    return result ? result : fill(*call, send, recv, count, op, copied);
}

static polypath_result_t checked_collective(polypath_collective_t kind, const void *send, void *recv, size_t count,
                                            polypath_type_t type, polypath_op_t op, int root, polypath_comm_t comm,
                                            polypath_request_t *request, bool wants_request)
{
    struct polypath_request *call = NULL;
    polypath_result_t result = prepare(kind, type, root, comm, request, wants_request, &call);
    if (!result)
        result = fill(call, send, recv, count, op, false);
    return result ? result : submit(call, request);
}

static polypath_result_t collective(polypath_collective_t kind, const void *send, void *recv, size_t count,
                                    polypath_type_t type, polypath_op_t op, int root, polypath_comm_t comm,
                                    polypath_request_t *request, bool wants_request)
{
    polypath_result_t result;
    if (!wants_request && at_once(kind, send, recv, count, type, op, root, comm, &result))
        return result; /* at once is outside of groups only */
    return group_refuse(checked_collective(kind, send, recv, count, type, op, root, comm, request, wants_request));
}

polypath_result_t polypath_all_reduce(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                      polypath_op_t op, polypath_comm_t comm)
{
    return collective(ALL_REDUCE, sendbuf, recvbuf, count, type, op, NO_ROOT, comm, NULL, false);
}

polypath_result_t polypath_all_reduce_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                            polypath_op_t op, polypath_comm_t comm, polypath_request_t *request)
{
    return collective(ALL_REDUCE, sendbuf, recvbuf, count, type, op, NO_ROOT, comm, request, true);
}

polypath_result_t polypath_reduce(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                  polypath_op_t op, int root, polypath_comm_t comm)
{
    return collective(POLYPATH_COLLECTIVE_REDUCE, sendbuf, recvbuf, count, type, op, api_root(root), comm, NULL, false);
}

polypath_result_t polypath_reduce_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                        polypath_op_t op, int root, polypath_comm_t comm, polypath_request_t *request)
{
    return collective(POLYPATH_COLLECTIVE_REDUCE, sendbuf, recvbuf, count, type, op, api_root(root), comm, request,
                      true);
}

polypath_result_t polypath_broadcast(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type, int root,
                                     polypath_comm_t comm)
{
    return collective(POLYPATH_COLLECTIVE_BROADCAST, sendbuf, recvbuf, count, type, NO_OP, api_root(root), comm, NULL,
                      false);
}

polypath_result_t polypath_broadcast_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                           int root, polypath_comm_t comm, polypath_request_t *request)
{
    return collective(POLYPATH_COLLECTIVE_BROADCAST, sendbuf, recvbuf, count, type, NO_OP, api_root(root), comm,
                      request, true);
}

polypath_result_t polypath_all_gather(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                      polypath_comm_t comm)
{
    return collective(POLYPATH_COLLECTIVE_ALL_GATHER, sendbuf, recvbuf, count, type, NO_OP, NO_ROOT, comm, NULL, false);
}

polypath_result_t polypath_all_gather_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                            polypath_comm_t comm, polypath_request_t *request)
{
    return collective(POLYPATH_COLLECTIVE_ALL_GATHER, sendbuf, recvbuf, count, type, NO_OP, NO_ROOT, comm, request,
                      true);
}

polypath_result_t polypath_reduce_scatter(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                          polypath_op_t op, polypath_comm_t comm)
{
    return collective(POLYPATH_COLLECTIVE_REDUCE_SCATTER, sendbuf, recvbuf, count, type, op, NO_ROOT, comm, NULL,
                      false);
}

polypath_result_t polypath_reduce_scatter_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                                polypath_op_t op, polypath_comm_t comm, polypath_request_t *request)
{
    return collective(POLYPATH_COLLECTIVE_REDUCE_SCATTER, sendbuf, recvbuf, count, type, op, NO_ROOT, comm, request,
                      true);
}

polypath_result_t polypath_all_to_all(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                      polypath_comm_t comm)
{
    return collective(POLYPATH_COLLECTIVE_ALL_TO_ALL, sendbuf, recvbuf, count, type, NO_OP, NO_ROOT, comm, NULL, false);
}

polypath_result_t polypath_all_to_all_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                            polypath_comm_t comm, polypath_request_t *request)
{
    return collective(POLYPATH_COLLECTIVE_ALL_TO_ALL, sendbuf, recvbuf, count, type, NO_OP, NO_ROOT, comm, request,
                      true);
}

polypath_result_t polypath_gather(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type, int root,
                                  polypath_comm_t comm)
{
    return collective(POLYPATH_COLLECTIVE_GATHER, sendbuf, recvbuf, count, type, NO_OP, api_root(root), comm, NULL,
                      false);
}

polypath_result_t polypath_gather_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                        int root, polypath_comm_t comm, polypath_request_t *request)
{
    return collective(POLYPATH_COLLECTIVE_GATHER, sendbuf, recvbuf, count, type, NO_OP, api_root(root), comm, request,
                      true);
}

polypath_result_t polypath_scatter(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type, int root,
                                   polypath_comm_t comm)
{
    return collective(POLYPATH_COLLECTIVE_SCATTER, sendbuf, recvbuf, count, type, NO_OP, api_root(root), comm, NULL,
                      false);
}

polypath_result_t polypath_scatter_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                         int root, polypath_comm_t comm, polypath_request_t *request)
{
    return collective(POLYPATH_COLLECTIVE_SCATTER, sendbuf, recvbuf, count, type, NO_OP, api_root(root), comm, request,
                      true);
}

static polypath_result_t checked_barrier(polypath_comm_t comm, polypath_request_t *request, bool wants_request)
{
    struct polypath_request *call = NULL;
    polypath_result_t result;
    if (!wants_request &&
        at_once(POLYPATH_COLLECTIVE_BARRIER, NULL, NULL, 0, POLYPATH_UINT8, POLYPATH_SUM, NO_ROOT, comm, &result))
        return result;
    result = prepare(POLYPATH_COLLECTIVE_BARRIER, POLYPATH_UINT8, NO_ROOT, comm, request, wants_request, &call);
    if (result)
        return result;
    call->nblocks = 0;
    call->count = call->bytes = call->block_bytes = 0;
    call->send = NULL;
    call->recv = NULL;
    return submit(call, request);
}

static polypath_result_t barrier(polypath_comm_t comm, polypath_request_t *request, bool wants_request)
{
    return group_refuse(checked_barrier(comm, request, wants_request));
}

polypath_result_t polypath_barrier(polypath_comm_t comm)
{
    return barrier(comm, NULL, false);
}

polypath_result_t polypath_barrier_start(polypath_comm_t comm, polypath_request_t *request)
{
    return barrier(comm, request, true);
}

/* ----------------------------------------------------------- the V forms */

static uint32_t hash_counts(const size_t *counts, int n)
{
    uint32_t hash = 2166136261u;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 64; k += 8)
            hash = (hash ^ (counts[i] >> k & 0xff)) * 16777619u;
    return hash ? hash : 1;
}

/*
 * Addresses and sizes of one side of a V form. `arrays` are call->output or
 * call->input and the like. Ranges must not overflow nor overlap.
 */
static polypath_result_t set_side(const char *name, const char *side, struct polypath_request *call, const void *buffer,
                                  const size_t *counts, const size_t *displs, void **addresses, size_t *bytes,
                                  size_t *end)
{
    const size_t element = polypath_type_bytes(call->type);
    const int n = call->comm->size;
    size_t next = 0;
    *end = 0;
    if (!counts)
        return BAD("%s: %scounts is NULL", name, side);
    for (int i = 0; i < n; i++) {
        const size_t from = displs ? displs[i] : next;
        if (counts[i] > SIZE_MAX / 4 / element || from > SIZE_MAX / 4 / element)
            return BAD("%s: %scounts[%d] or its displacement overflows", name, side, i);
        bytes[i] = counts[i] * element;
        addresses[i] = buffer ? (char *)(uintptr_t)buffer + from * element : NULL;
        if (!buffer && counts[i])
            return BAD("%s: %sbuf is NULL", name, side);
        next = from + counts[i];
        if (counts[i] && next * element > *end)
            *end = next * element;
    }
    return POLYPATH_SUCCESS;
}

static polypath_result_t check_disjoint(const char *name, const struct polypath_request *call)
{
    const int n = call->comm->size;
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            if (overlap((struct range){call->output[i], call->output_bytes[i]},
                        (struct range){call->output[j], call->output_bytes[j]}))
                return BAD("%s: what ranks %d and %d contribute overlaps in recvbuf", name, i, j);
    return POLYPATH_SUCCESS;
}

static polypath_result_t checked_all_gather_v(const void *send, size_t sendcount, void *recv, const size_t *recvcounts,
                                              const size_t *displs, polypath_type_t type, polypath_comm_t comm,
                                              polypath_request_t *request, bool wants_request)
{
    static const char name[] = "all_gather_v";
    struct polypath_request *call = NULL;
    size_t bytes = 0, end = 0;
    polypath_result_t result =
        prepare(POLYPATH_COLLECTIVE_ALL_GATHER, type, NO_ROOT, comm, request, wants_request, &call);
    if (result)
        return result;
    result = check_size(name, sendcount, type, 1, &bytes);
    if (!result)
        result = set_side(name, "recv", call, recv, recvcounts, displs, call->output, call->output_bytes, &end);
    if (!result && recvcounts[comm->rank] != sendcount)
        result =
            BAD("%s: sendcount is %zu, but recvcounts[%d] is %zu", name, sendcount, comm->rank, recvcounts[comm->rank]);
    if (!result)
        result = check_disjoint(name, call);
    if (!result)
        result = check_buffers(name, send, bytes, recv, end, call->output[comm->rank]);
    if (result) {
        call_release(call);
        return result;
    }
    call->count = call->bytes = 0;
    for (int r = 0; r < comm->size; r++) {
        call->input[r] = (void *)(uintptr_t)send;
        call->input_bytes[r] = call->output_bytes[r];
        call->count += recvcounts[r];
        call->bytes += call->output_bytes[r];
    }
    call->variant = hash_counts(recvcounts, comm->size);
    return submit(call, request);
}

static polypath_result_t all_gather_v(const void *send, size_t sendcount, void *recv, const size_t *recvcounts,
                                      const size_t *displs, polypath_type_t type, polypath_comm_t comm,
                                      polypath_request_t *request, bool wants_request)
{
    return group_refuse(
        checked_all_gather_v(send, sendcount, recv, recvcounts, displs, type, comm, request, wants_request));
}

polypath_result_t polypath_all_gather_v(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                                        const size_t *displs, polypath_type_t type, polypath_comm_t comm)
{
    return all_gather_v(sendbuf, sendcount, recvbuf, recvcounts, displs, type, comm, NULL, false);
}

polypath_result_t polypath_all_gather_v_start(const void *sendbuf, size_t sendcount, void *recvbuf,
                                              const size_t *recvcounts, const size_t *displs, polypath_type_t type,
                                              polypath_comm_t comm, polypath_request_t *request)
{
    return all_gather_v(sendbuf, sendcount, recvbuf, recvcounts, displs, type, comm, request, true);
}

static polypath_result_t checked_reduce_scatter_v(const void *send, void *recv, const size_t *recvcounts,
                                                  polypath_type_t type, polypath_op_t op, polypath_comm_t comm,
                                                  polypath_request_t *request, bool wants_request)
{
    static const char name[] = "reduce_scatter_v";
    struct polypath_request *call = NULL;
    size_t bytes = 0, end = 0;
    polypath_result_t result =
        prepare(POLYPATH_COLLECTIVE_REDUCE_SCATTER, type, NO_ROOT, comm, request, wants_request, &call);
    if (result)
        return result;
    result = check_size(name, 0, type, 1, &bytes);
    if (!result)
        result = set_op(name, call, op);
    if (!result)
        result = set_side(name, "send", call, send, recvcounts, NULL, call->input, call->input_bytes, &end);
    if (!result)
        result = check_buffers(name, send, end, recv, call->input_bytes[comm->rank],
                               recv == call->input[comm->rank] ? send : NULL);
    if (result) {
        call_release(call);
        return result;
    }
    call->count = 0;
    call->bytes = end;
    for (int r = 0; r < comm->size; r++) {
        call->output[r] = recv;
        call->output_bytes[r] = call->input_bytes[r];
        call->count += recvcounts[r];
    }
    call->variant = hash_counts(recvcounts, comm->size);
    return submit(call, request);
}

static polypath_result_t reduce_scatter_v(const void *send, void *recv, const size_t *recvcounts, polypath_type_t type,
                                          polypath_op_t op, polypath_comm_t comm, polypath_request_t *request,
                                          bool wants_request)
{
    return group_refuse(checked_reduce_scatter_v(send, recv, recvcounts, type, op, comm, request, wants_request));
}

polypath_result_t polypath_reduce_scatter_v(const void *sendbuf, void *recvbuf, const size_t *recvcounts,
                                            polypath_type_t type, polypath_op_t op, polypath_comm_t comm)
{
    return reduce_scatter_v(sendbuf, recvbuf, recvcounts, type, op, comm, NULL, false);
}

polypath_result_t polypath_reduce_scatter_v_start(const void *sendbuf, void *recvbuf, const size_t *recvcounts,
                                                  polypath_type_t type, polypath_op_t op, polypath_comm_t comm,
                                                  polypath_request_t *request)
{
    return reduce_scatter_v(sendbuf, recvbuf, recvcounts, type, op, comm, request, true);
}

static polypath_result_t checked_all_to_all_v(const void *send, const size_t *sendcounts, const size_t *sdispls,
                                              void *recv, const size_t *recvcounts, const size_t *rdispls,
                                              polypath_type_t type, polypath_comm_t comm, polypath_request_t *request,
                                              bool wants_request)
{
    static const char name[] = "all_to_all_v";
    struct polypath_request *call = NULL;
    size_t bytes = 0, send_end = 0, recv_end = 0;
    polypath_result_t result =
        prepare(POLYPATH_COLLECTIVE_ALL_TO_ALL, type, NO_ROOT, comm, request, wants_request, &call);
    if (result)
        return result;
    result = check_size(name, 0, type, 1, &bytes);
    if (!result)
        result = set_side(name, "send", call, send, sendcounts, sdispls, call->input, call->input_bytes, &send_end);
    if (!result)
        result = set_side(name, "recv", call, recv, recvcounts, rdispls, call->output, call->output_bytes, &recv_end);
    if (!result)
        result = check_disjoint(name, call);
    if (!result)
        result = check_buffers(name, send, send_end, recv, recv_end, NULL);
    if (!result && sendcounts[comm->rank] != recvcounts[comm->rank])
        result = error_set(POLYPATH_ERROR_MISMATCH, "%s: rank %d sends itself %zu elements but receives %zu", name,
                           comm->rank, sendcounts[comm->rank], recvcounts[comm->rank]);
    if (result) {
        call_release(call);
        return result;
    }
    call->count = 0; /* ranks know only their own sizes; sizes are compared message by message */
    call->bytes = send_end;
    call->variant = 1;
    return submit(call, request);
}

static polypath_result_t all_to_all_v(const void *send, const size_t *sendcounts, const size_t *sdispls, void *recv,
                                      const size_t *recvcounts, const size_t *rdispls, polypath_type_t type,
                                      polypath_comm_t comm, polypath_request_t *request, bool wants_request)
{
    return group_refuse(
        checked_all_to_all_v(send, sendcounts, sdispls, recv, recvcounts, rdispls, type, comm, request, wants_request));
}

polypath_result_t polypath_all_to_all_v(const void *sendbuf, const size_t *sendcounts, const size_t *sdispls,
                                        void *recvbuf, const size_t *recvcounts, const size_t *rdispls,
                                        polypath_type_t type, polypath_comm_t comm)
{
    return all_to_all_v(sendbuf, sendcounts, sdispls, recvbuf, recvcounts, rdispls, type, comm, NULL, false);
}

polypath_result_t polypath_all_to_all_v_start(const void *sendbuf, const size_t *sendcounts, const size_t *sdispls,
                                              void *recvbuf, const size_t *recvcounts, const size_t *rdispls,
                                              polypath_type_t type, polypath_comm_t comm, polypath_request_t *request)
{
    return all_to_all_v(sendbuf, sendcounts, sdispls, recvbuf, recvcounts, rdispls, type, comm, request, true);
}

/* ---------------------------------------------------------- point to point */

polypath_result_t api_point(bool send, const void *send_buffer, void *recv_buffer, size_t count, polypath_type_t type,
                            int peer, polypath_comm_t comm, struct point *point)
{
    const char *name = send ? "send" : "recv";
    size_t bytes = 0;
    polypath_result_t result = check_comm(name, comm);
    if (!result)
        result = check_size(name, count, type, 1, &bytes);
    if (!result && (peer < 0 || peer >= comm->size))
        result = BAD("%s: peer %d is not in 0..%d", name, peer, comm->size - 1);
    if (!result && bytes && !(send ? send_buffer : recv_buffer))
        result = BAD("%s: %sbuf is NULL", name, name);
    *point = (struct point){send, peer, send_buffer, recv_buffer, bytes, type};
    return result;
}

static polypath_result_t checked_point(bool send, const void *send_buffer, void *recv_buffer, size_t count,
                                       polypath_type_t type, int peer, polypath_comm_t comm,
                                       polypath_request_t *request, bool wants_request)
{
    const char *name = send ? "send" : "recv";
    if (wants_request && !request)
        return BAD("%s: request is NULL", name);
    struct point p;
    polypath_result_t result = api_point(send, send_buffer, recv_buffer, count, type, peer, comm, &p);
    if (result)
        return result;
    if (group_active()) {
        if (!request)
            return group_add_point(comm, &p);
        return error_set(POLYPATH_ERROR_USAGE, "non-blocking operations are not allowed inside a group");
    }
    if (peer == comm->rank)
        return error_set(POLYPATH_ERROR_USAGE, "%s: to itself only inside a group that holds both sides", name);
    if (!wants_request && !comm->attached && !point_at_once(comm, &p, 1))
        return POLYPATH_SUCCESS;
    struct polypath_request *call = call_new(comm, 1);
    if (!call)
        return POLYPATH_ERROR_OUT_OF_MEMORY;
    result = group_fill_points(call, &p, 1);
    if (result) {
        call_release(call);
        return result;
    }
    return submit(call, request);
}

static polypath_result_t point(bool send, const void *send_buffer, void *recv_buffer, size_t count,
                               polypath_type_t type, int peer, polypath_comm_t comm, polypath_request_t *request,
                               bool wants_request)
{
    return group_refuse(checked_point(send, send_buffer, recv_buffer, count, type, peer, comm, request, wants_request));
}

polypath_result_t polypath_send(const void *sendbuf, size_t count, polypath_type_t type, int peer, polypath_comm_t comm)
{
    return point(true, sendbuf, NULL, count, type, peer, comm, NULL, false);
}

polypath_result_t polypath_recv(void *recvbuf, size_t count, polypath_type_t type, int peer, polypath_comm_t comm)
{
    return point(false, NULL, recvbuf, count, type, peer, comm, NULL, false);
}

polypath_result_t polypath_send_start(const void *sendbuf, size_t count, polypath_type_t type, int peer,
                                      polypath_comm_t comm, polypath_request_t *request)
{
    return point(true, sendbuf, NULL, count, type, peer, comm, request, true);
}

polypath_result_t polypath_recv_start(void *recvbuf, size_t count, polypath_type_t type, int peer, polypath_comm_t comm,
                                      polypath_request_t *request)
{
    return point(false, NULL, recvbuf, count, type, peer, comm, request, true);
}

/* --------------------------------------------------------------- requests */

polypath_result_t polypath_test(polypath_request_t *request, bool *done)
{
    if (!request || !done)
        return BAD("polypath_test: %s is NULL", request ? "done" : "request");
    *done = true;
    if (!*request)
        return POLYPATH_SUCCESS;
    if (!drive_test(*request)) {
        *done = false;
        return POLYPATH_SUCCESS;
    }
    return polypath_wait(request);
}

polypath_result_t polypath_wait(polypath_request_t *request)
{
    if (!request)
        return BAD("polypath_wait: request is NULL");
    if (!*request)
        return POLYPATH_SUCCESS;
    polypath_result_t result = drive_until_done(*request);
    call_release(*request);
    *request = NULL;
    return result;
}
