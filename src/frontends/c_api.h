/*
 * The checks of the C interface, for frontends beside it. Each says what is
 * wrong and moves nothing.
 */
#ifndef FRONTENDS_C_API_H
#define FRONTENDS_C_API_H

#include "comm/comm.h"

/*
 * A checked and filled call of a collective; root -1: it has none. The caller submits or releases it. `copied`: the
 * buffers are copied before and after, so an AllToAll may be in place, too (sendbuf == recvbuf).
 */
polypath_result_t api_collective(polypath_collective_t kind, const void *send, void *recv, size_t count,
                                 polypath_type_t type, polypath_op_t op, int root, polypath_comm_t comm, bool copied,
                                 struct polypath_request **call);

/* A checked send or receive. */
polypath_result_t api_point(bool send, const void *send_buffer, void *recv_buffer, size_t count, polypath_type_t type,
                            int peer, polypath_comm_t comm, struct point *point);

/* A root from the user: -1 must not pass for "no root". */
static inline int api_root(int root)
{
    return root == -1 ? -2 : root;
}

#endif
