/*
 * Groups: what a thread has noted between polypath_group_start and _end.
 */
#ifndef FRONTENDS_GROUP_H
#define FRONTENDS_GROUP_H

#include "comm/comm.h"

/*
 * How many groups the calling thread is inside of. Not in static thread-local
 * storage, cheaper though that would be: dlopen of the library would fail.
 */
extern _Thread_local int group_depth;

/* Whether the calling thread is inside a group. */
static inline bool group_active(void)
{
    return group_depth > 0;
}

/* An operation inside a group was refused: the group's end will say so and run nothing. Returns `result`. */
polypath_result_t group_refuse(polypath_result_t result);

/* Whether operations on streams have been noted. */
bool group_has_streams(void);

/* Queues what has been noted for streams (c_cuda.c), or forgets it if the group was refused. */
polypath_result_t group_end_streams(bool refused);

/* Notes a filled collective; takes it over. */
polypath_result_t group_add(struct polypath_request *call);

/* Notes a point-to-point operation. */
polypath_result_t group_add_point(struct polypath_comm *comm, const struct point *point);

/* Makes `call` the one that carries out these operations together. */
polypath_result_t group_fill_points(struct polypath_request *call, const struct point *points, int npoints);

#endif
