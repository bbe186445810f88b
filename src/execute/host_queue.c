/*
 * Sending: each peer has a queue per path; the links of that path drain it,
 * and a link that is free and whose own queue is empty takes over from the
 * path that is furthest behind ("hand over").
 */
#include "execute/host_internal.h"

#define TAIL_MS 50 /* only so close to the end of a call can what a link has under way decide */

void host_enqueue(struct host *h, uint32_t row, uint32_t step)
{
    const struct step *s = &h->call.schedule->steps[step];
    struct host_peer *peer = &h->peers[s->peer];
    struct send_queue *q = &peer->queues[peer->queue_of_path[host_path_of(h, row)]];
    if (!(s->flags & STEP_TOKEN))
        q->bytes += host_slice_bytes(h, h->call.schedule->sources[s->source], row);
    const bool input = s->nsrc && h->call.schedule->sources[s->source].buffer == SLICE_INPUT;
    list_push(h, input ? &q->input : &q->results, state_of(h, row, step));
    peer->queued++;
    h->backlog++;
}

static bool queue_empty(const struct send_queue *q)
{
    return list_empty(&q->results) && list_empty(&q->input);
}

static polypath_result_t send_next(struct host *h, struct link *link, struct send_queue *q, uint64_t *moved)
{
    const struct schedule *s = h->call.schedule;
    const uint32_t id = list_pop(h, list_empty(&q->results) ? &q->input : &q->results);
    const uint32_t row = id / (uint32_t)s->nsteps, index = id % (uint32_t)s->nsteps;
    const struct step *step = &s->steps[index];
    const struct slice slice = step->nsrc ? s->sources[step->source] : (struct slice){0};
    struct host_peer *peer = &h->peers[link->peer];
    struct frame frame = h->call.frame;
    frame.magic = FRAME_MAGIC;
    frame.bytes = step->flags & STEP_TOKEN ? 0 : (uint32_t)host_slice_bytes(h, slice, row);
    frame.row = row;
    frame.message = step->message;
    if (frame.kind == FRAME_POINT) {
        frame.call = peer->points_sent + step->message;
        frame.message = 0;
        frame.count = h->call.input_bytes[slice.index];
        frame.type = h->call.types[slice.index];
    }
    q->bytes -= frame.bytes;
    peer->queued--;
    h->backlog--;
    const char *payload = NULL;
    if (frame.bytes) {
        payload = host_source_address(h, slice, row);
        if (slice.buffer == SLICE_SCRATCH)
            host_place(h, slice, row)->pinned = true;
    }
    if (!link->first_send_ns)
        link->first_send_ns = clock_now_ns();
    *moved += 1;
    return link_send(link, &frame, payload, (uint64_t)row << 32 | index, &h->sink);
}

/*
 * Whether a frame given to `link` now would arrive only after everything else
 * of this call has: then a faster link to the same peer takes it in its turn.
 * Towards the end of a call a slow link would otherwise hold up all others by
 * what it has under way. The fastest link never declines.
 */
static bool too_late(const struct host *h, const struct host_peer *peer, const struct link *link)
{
    if (!h->call.hand_over || !link->class->under_way || !link->bytes_per_ms)
        return false;
    uint64_t all = 0, fastest = 0;
    for (int i = 0; i < peer->nlinks; i++) {
        const struct link *other = peer->links[i];
        if (other->path < 0 || !(h->call.active >> other->path & 1) || other->lost)
            continue;
        if (!other->bytes_per_ms)
            return false;
        all += other->bytes_per_ms;
        fastest = other->bytes_per_ms > fastest ? other->bytes_per_ms : fastest;
    }
    if (link->bytes_per_ms >= fastest)
        return false;
    /* bytes / rate > left / all, as products; asking the kernel only where it can matter */
    const uint64_t row = h->call.row_bytes, left = peer->sends_left * row;
    if (row * all > left * link->bytes_per_ms)
        return true;
    if (left / all > TAIL_MS)
        return false;
    return (row + link->class->under_way((struct link *)(uintptr_t)link)) * all > left * link->bytes_per_ms;
}

/*
 * Whether `link` should take from queue q, which belongs to other links: only
 * if those are busy, and if it would have the frame across before they got to
 * the end of what they have queued. Unknown rates count as equal.
 */
static bool worth_taking(const struct host *h, const struct host_peer *peer, const struct link *link,
                         const struct send_queue *q, int queue)
{
    uint64_t owners = 0;
    bool declined = false;
    for (int i = 0; i < peer->nlinks; i++) {
        struct link *other = peer->links[i];
        if (other->queue != queue || other->lost)
            continue;
        if (!link_ready(other))
            ; /* busy */
        else if (too_late(h, peer, other))
            declined = true;
        else
            return false;
        owners += other->bytes_per_ms;
    }
    /* what its own links decline nobody else would carry */
    if (declined || !owners || !link->bytes_per_ms)
        return true;
    /* row / own rate < backlog / owners' rate */
    return h->call.row_bytes * owners < q->bytes * link->bytes_per_ms;
}

/* The other queue of this peer that would take longest to drain, or NULL. */
static struct send_queue *furthest_behind(struct host *h, struct host_peer *peer, const struct link *link)
{
    if (!h->call.hand_over || link->path < 0 || !(h->call.active >> link->path & 1))
        return NULL;
    struct send_queue *best = NULL;
    for (int queue = 0; queue < h->config.npaths; queue++) {
        struct send_queue *q = &peer->queues[queue];
        if (queue == link->queue || queue_empty(q) || (best && q->bytes <= best->bytes))
            continue;
        if (worth_taking(h, peer, link, q, queue))
            best = q;
    }
    return best;
}

polypath_result_t host_dispatch(struct host *h, uint64_t *moved)
{
    for (int p = 0; p < h->config.size && h->backlog; p++) {
        struct host_peer *peer = &h->peers[p];
        for (int i = 0; i < peer->nlinks && peer->queued; i++) {
            struct link *link = peer->links[i];
            while (peer->queued && link_ready(link) && !too_late(h, peer, link)) {
                struct send_queue *q = &peer->queues[link->queue];
                if (queue_empty(q)) {
                    q = furthest_behind(h, peer, link);
                    if (!q)
                        break;
                    h->handed_over++;
                }
                polypath_result_t result = send_next(h, link, q, moved);
                if (result)
                    return result;
            }
        }
    }
    return POLYPATH_SUCCESS;
}

void host_sent(struct link_sink *sink, struct link *link, uint64_t cookie, uint32_t bytes)
{
    struct host *h = (struct host *)sink;
    if (cookie == UINT64_MAX) /* an abort note, not a step */
        return;
    link->bytes_sent += bytes;
    link->call_bytes_sent += bytes;
    link->frames_sent++;
    link->last_ns = clock_now_ns();
    h->peers[link->peer].sends_left--;
    host_complete(h, (uint32_t)(cookie >> 32), (uint32_t)cookie);
}
