/*
 * Small messages between ranks of a host, at once: straight into a slot of the
 * peer's shared memory, and straight out of one, without a schedule. On the
 * wire they are what the executor's own messages of one row are, so either side
 * may go the long way.
 */
#include "execute/host_internal.h"

/* Receives one expected message; everything else stays where it is, for the executor. */
struct awaiting {
    struct link_sink sink; /* first: the links' view */
    struct host *host;
    const struct host_point *point;
    bool arrived;
};

static enum sink_answer await_begin(struct link_sink *sink, struct link *link, const struct frame *frame,
                                    void **destination, bool *borrow)
{
    struct awaiting *a = (struct awaiting *)sink;
    *borrow = false;
    if (a->arrived || frame->magic != FRAME_MAGIC || frame->kind != FRAME_POINT ||
        frame->call != a->host->peers[link->peer].points_received || frame->row || frame->bytes != frame->count ||
        frame->count != a->point->bytes || frame->type != a->point->type)
        return SINK_LATER;
    *destination = a->point->to;
    return SINK_TAKE;
}

static void await_end(struct link_sink *sink, struct link *link, const struct frame *frame, const void *borrowed,
                      uint32_t token)
{
    struct awaiting *a = (struct awaiting *)sink;
    (void)borrowed;
    (void)token;
    link->bytes_received += frame->bytes;
    a->host->peers[link->peer].points_received++;
    a->arrived = true;
}

static void nobody_waits(struct link_sink *sink, struct link *link, uint64_t cookie, uint32_t bytes)
{
    (void)sink;
    (void)cookie;
    link->bytes_sent += bytes;
    link->frames_sent++;
}

static struct link *shared_memory(const struct host_peer *peer)
{
    for (int i = 0; i < peer->nlinks; i++)
        if (peer->links[i]->class->room)
            return peer->links[i];
    return NULL;
}

static bool move(struct host *h, struct host_point *point)
{
    struct host_peer *peer = &h->peers[point->peer];
    struct link *link = shared_memory(peer);
    struct awaiting a = {{await_begin, await_end, nobody_waits}, h, point, false};
    if (!link || link->lost)
        return false;
    if (!point->send) {
        uint64_t moved = 0;
        /* what is wrong with the link will be found again by the executor */
        return !link_progress(link, &a.sink, &moved) && a.arrived;
    }
    if (!link->class->room(link, point->bytes))
        return false;
    const struct frame frame = {.magic = FRAME_MAGIC,
                                .kind = FRAME_POINT,
                                .collective = POLYPATH_COLLECTIVE_SEND_RECV,
                                .bytes = (uint32_t)point->bytes,
                                .call = peer->points_sent++,
                                .type = point->type,
                                .root = -1,
                                .count = point->bytes};
    return !link_send(link, &frame, point->from, 0, &a.sink);
}

/* Messages between two ranks go in order: one that is not done holds up those after it. */
static bool held_up(const struct host_point *points, int index)
{
    for (int i = 0; i < index; i++)
        if (!points[i].done && points[i].peer == points[index].peer && points[i].send == points[index].send)
            return true;
    return false;
}

int host_points_now(struct host *h, struct host_point *points, int npoints, uint64_t spins)
{
    int left = npoints;
    if (h->active)
        return left;
    for (uint64_t i = 0; left && i <= spins; i++) {
        for (int p = 0; p < npoints; p++)
            if (!points[p].done && !held_up(points, p) && move(h, &points[p])) {
                points[p].done = true;
                left--;
            }
        host_pause(i);
    }
    return left;
}
