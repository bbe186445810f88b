/*
 * Point to point: a group's sends and receives become one ad-hoc schedule, in
 * which operation i is block i. Shapes that come again (one send, one receive,
 * a ring shift) are kept.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

#define POINT_AT_ONCE_BYTES 16384

/* The receive that a send to oneself goes to: the k-th of each are a pair. -1 if there is none. */
static int self_partner(const struct point *points, int npoints, int rank, int index)
{
    int ordinal = 0;
    for (int i = 0; i < index; i++)
        ordinal += points[i].peer == rank && points[i].send == points[index].send;
    for (int i = 0; i < npoints; i++)
        if (points[i].peer == rank && points[i].send != points[index].send && ordinal-- == 0)
            return i;
    return -1;
}

polypath_result_t point_match_self(const struct point *points, int npoints, int rank)
{
    for (int i = 0; i < npoints; i++) {
        if (points[i].peer != rank)
            continue;
        int other = self_partner(points, npoints, rank, i);
        if (other < 0)
            return error_set(POLYPATH_ERROR_USAGE, "a %s to itself of rank %d has no other side in the same group",
                             points[i].send ? "send" : "receive", rank);
        if (points[i].bytes != points[other].bytes || points[i].type != points[other].type)
            return error_set(POLYPATH_ERROR_MISMATCH, "rank %d sends itself %zu bytes but receives %zu", rank,
                             points[points[i].send ? i : other].bytes, points[points[i].send ? other : i].bytes);
    }
    return POLYPATH_SUCCESS;
}

static struct schedule *build(const struct polypath_comm *comm, const struct point *points, int npoints)
{
    struct schedule_builder *b =
        schedule_begin(POLYPATH_COLLECTIVE_SEND_RECV, "direct", comm->size, comm->rank, -1, npoints);
    if (!b)
        return NULL;
    for (int i = 0; i < npoints; i++) {
        if (points[i].peer == comm->rank) {
            if (points[i].send)
                schedule_copy(b, slice_output(self_partner(points, npoints, comm->rank, i)), slice_input(i));
        } else if (points[i].send) {
            schedule_send(b, points[i].peer, slice_input(i));
        } else {
            schedule_recv(b, points[i].peer, slice_output(i));
        }
    }
    return schedule_finish(b);
}

static bool same_shape(const struct point_entry *e, const struct point *points, int npoints)
{
    if (e->npoints != npoints || !e->schedule)
        return false;
    for (int i = 0; i < npoints; i++)
        if (e->shape[i] != (points[i].peer << 1 | points[i].send))
            return false;
    return true;
}

struct schedule *point_schedule(struct polypath_comm *comm, const struct point *points, int npoints, bool *owned)
{
    *owned = false;
    for (int i = 0; i < POINT_CACHE; i++)
        if (same_shape(&comm->point_cache[i], points, npoints))
            return comm->point_cache[i].schedule;
    struct schedule *s = build(comm, points, npoints);
    int *shape = malloc((size_t)npoints * sizeof *shape);
    if (!s || !shape) {
        free(shape);
        *owned = s != NULL;
        if (!s)
            error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        return s;
    }
    for (int i = 0; i < npoints; i++)
        shape[i] = points[i].peer << 1 | points[i].send;
    struct point_entry *e = &comm->point_cache[comm->point_next++ % POINT_CACHE];
    schedule_free(e->schedule);
    free(e->shape);
    *e = (struct point_entry){npoints, shape, s};
    return s;
}

int point_at_once(struct polypath_comm *comm, struct point *points, int npoints)
{
    struct host_point now[POINTS_AT_ONCE];
    if (npoints > POINTS_AT_ONCE || comm->shm_path < 0 || !(comm->allowed >> comm->shm_path & 1) ||
        atomic_load_explicit(&comm->failure, memory_order_relaxed))
        return npoints;
    for (int i = 0; i < npoints; i++) {
        const struct point *p = &points[i];
        if (p->peer == comm->rank || !p->bytes || p->bytes > POINT_AT_ONCE_BYTES)
            return npoints;
        now[i] =
            (struct host_point){p->send, (uint8_t)p->type, p->peer, p->send_buffer, p->recv_buffer, p->bytes, false};
    }
    if (!drive_try_alone(comm))
        return npoints;
    const int left = host_points_now(comm->host, now, npoints, comm->oversubscribed ? 0 : comm->settings.spin);
    drive_let_go_alone(comm);
    if (left == npoints)
        return left;
    for (int i = 0, kept = 0; i < npoints; i++)
        if (!now[i].done)
            points[kept++] = points[i];
    if (!left) {
        comm->statistics.calls++;
        if (comm->last_algorithm[POLYPATH_COLLECTIVE_SEND_RECV] != small_direct)
            small_remember(comm, POLYPATH_COLLECTIVE_SEND_RECV, small_direct, comm->shm_path);
    }
    return left;
}
