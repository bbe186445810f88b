/*
 * Groups: operations are noted per thread; the outermost end queues, for each
 * communicator in the order first used, its collectives and then all its
 * point-to-point operations as one call, and moves all communicators until
 * everything is done.
 */
#include "frontends/group.h"

#include <stdlib.h>
#include <string.h>

struct noted_point {
    struct polypath_comm *comm;
    struct point point;
};

_Thread_local int group_depth;

static _Thread_local struct {
    polypath_result_t failed; /* an operation inside was refused: nothing runs */
    char failed_text[ERROR_TEXT_BYTES];
    struct polypath_request **calls;
    int ncalls, calls_room;
    struct noted_point *points;
    int npoints, points_room;
} group;

static bool grow(void **array, int *room, size_t element)
{
    int want = *room ? 2 * *room : 16;
    void *grown = realloc(*array, (size_t)want * element);
    if (!grown) {
        error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        return false;
    }
    *array = grown;
    *room = want;
    return true;
}

polypath_result_t group_add(struct polypath_request *call)
{
    if (group.ncalls == group.calls_room &&
        !grow((void **)&group.calls, &group.calls_room, sizeof(struct polypath_request *))) {
        call_release(call);
        return POLYPATH_ERROR_OUT_OF_MEMORY;
    }
    group.calls[group.ncalls++] = call;
    return POLYPATH_SUCCESS;
}

polypath_result_t group_add_point(struct polypath_comm *comm, const struct point *point)
{
    if (group.npoints == group.points_room && !grow((void **)&group.points, &group.points_room, sizeof *group.points))
        return POLYPATH_ERROR_OUT_OF_MEMORY;
    group.points[group.npoints++] = (struct noted_point){comm, *point};
    return POLYPATH_SUCCESS;
}

polypath_result_t group_fill_points(struct polypath_request *call, const struct point *points, int npoints)
{
    if (npoints > call->points_room) {
        struct point *grown = realloc(call->points, (size_t)npoints * sizeof *grown);
        if (!grown)
            return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        call->points = grown;
        uint8_t *types = realloc(call->point_types, (size_t)npoints);
        if (!types)
            return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        call->point_types = types;
        call->points_room = npoints;
    }
    memcpy(call->points, points, (size_t)npoints * sizeof *points);
    call->npoints = npoints;
    call->collective = POLYPATH_COLLECTIVE_SEND_RECV;
    call->type = points[0].type;
    call->count = 0;
    call->bytes = 0;
    for (int i = 0; i < npoints; i++) {
        call->point_types[i] = (uint8_t)points[i].type;
        call->input[i] = (void *)(uintptr_t)points[i].send_buffer;
        call->output[i] = points[i].recv_buffer;
        call->input_bytes[i] = points[i].send ? points[i].bytes : 0;
        call->output_bytes[i] = points[i].send ? 0 : points[i].bytes;
        if (points[i].bytes > call->bytes)
            call->bytes = points[i].bytes;
    }
    return point_match_self(points, npoints, call->comm->rank);
}

polypath_result_t group_refuse(polypath_result_t result)
{
    if (result && group_depth && !group.failed) {
        group.failed = result;
        memcpy(group.failed_text, error_text(), sizeof group.failed_text);
    }
    return result;
}

polypath_result_t polypath_group_start(void)
{
    group_depth++;
    return POLYPATH_SUCCESS;
}

/* One call for all noted operations of `comm`; NULL with the error set on failure. */
static polypath_result_t gather_points(struct polypath_comm *comm)
{
    int n = 0;
    for (int i = 0; i < group.npoints; i++)
        n += group.points[i].comm == comm;
    struct point *points = calloc((size_t)n, sizeof *points);
    struct polypath_request *call = points ? call_new(comm, n) : NULL;
    polypath_result_t result = call ? POLYPATH_SUCCESS : POLYPATH_ERROR_OUT_OF_MEMORY;
    if (!points)
        error_set(result, "out of memory");
    for (int i = 0, k = 0; i < group.npoints && call; i++)
        if (group.points[i].comm == comm)
            points[k++] = group.points[i].point;
    if (!result)
        result = group_fill_points(call, points, n);
    free(points);
    if (result) {
        if (call)
            call_release(call);
        return result;
    }
    return group_add(call);
}

/* A group of nothing but a few small messages of one communicator; what cannot be done at once stays noted. */
static void points_at_once(void)
{
    struct point points[POINTS_AT_ONCE];
    if (!group.npoints || group.npoints > POINTS_AT_ONCE || group.ncalls)
        return;
    struct polypath_comm *comm = group.points[0].comm;
    if (comm->attached)
        return;
    for (int i = 0; i < group.npoints; i++) {
        if (group.points[i].comm != comm)
            return;
        points[i] = group.points[i].point;
    }
    group.npoints = point_at_once(comm, points, group.npoints);
    for (int i = 0; i < group.npoints; i++)
        group.points[i].point = points[i];
}

static void drop_calls(void)
{
    for (int i = 0; i < group.ncalls; i++)
        call_release(group.calls[i]);
    group.ncalls = group.npoints = 0;
}

polypath_result_t polypath_group_end(void)
{
    if (group_depth == 0)
        return error_set(POLYPATH_ERROR_USAGE, "polypath_group_end without polypath_group_start");
    if (--group_depth)
        return POLYPATH_SUCCESS;
    polypath_result_t result = group.failed;
    group.failed = POLYPATH_SUCCESS;
    if (result)
        error_set(result, "nothing of the group was run: %s", group.failed_text);
    if (!result && group_has_streams() && (group.ncalls || group.npoints)) /* they would not run in the order issued */
        result = error_set(POLYPATH_ERROR_UNSUPPORTED,
                           "nothing of the group was run: it holds operations of the host and on streams");
    if (!result)
        points_at_once();
    for (int i = 0; i < group.npoints && !result; i++) {
        bool first = true;
        for (int j = 0; j < i; j++)
            first &= group.points[j].comm != group.points[i].comm;
        if (first)
            result = gather_points(group.points[i].comm);
    }
    for (int i = 0; i < group.ncalls && !result; i++)
        result = comm_check(group.calls[i]->comm);
    if (result) {
        drop_calls();
        group_end_streams(true);
        return result;
    }
    for (int i = 0; i < group.ncalls; i++) {
        comm_settle(group.calls[i]->comm);
        call_submit(group.calls[i]);
    }
    result = drive_all(group.calls, group.ncalls);
    char text[ERROR_TEXT_BYTES];
    memcpy(text, error_text(), sizeof text);
    drop_calls();
    if (!result)
        return group_end_streams(false);
    group_end_streams(true);
    return error_set(result, "%s", text);
}
