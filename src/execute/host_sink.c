/*
 * Receiving: what frames mean. A frame of the current call is always taken (the
 * schedules guarantee that there is room, see schedule.h); one of a later call
 * waits on its link; one that does not fit the current call is a mismatch
 * between ranks, told with both sides' view.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "execute/host_internal.h"

void host_describe_frame(const struct frame *f, char *text, size_t bytes)
{
    static const char *const ops[] = {"sum", "prod", "max", "min", "avg", "scaled sum"};
    const char *name = polypath_collective_name((polypath_collective_t)f->collective);
    if (f->kind == FRAME_POINT) {
        snprintf(text, bytes, "send/recv number %" PRIu32 " (%" PRIu64 " bytes, %s)", f->call, f->count,
                 polypath_type_name((polypath_type_t)f->type));
        return;
    }
    int used = snprintf(text, bytes, "%s (call %" PRIu32, name, f->call);
    size_t at = used < 0 ? 0 : (size_t)used;
    const bool reduces = f->collective == POLYPATH_COLLECTIVE_ALL_REDUCE ||
                         f->collective == POLYPATH_COLLECTIVE_REDUCE_SCATTER ||
                         f->collective == POLYPATH_COLLECTIVE_REDUCE;
    if (at < bytes && f->collective != POLYPATH_COLLECTIVE_BARRIER)
        at += (size_t)snprintf(text + at, bytes - at, ", %" PRIu64 " x %s", f->count,
                               polypath_type_name((polypath_type_t)f->type));
    if (at < bytes && reduces)
        at += (size_t)snprintf(text + at, bytes - at, ", %s", f->op < 6 ? ops[f->op] : "unknown op");
    if (at < bytes && f->root >= 0)
        at += (size_t)snprintf(text + at, bytes - at, ", root %" PRId32, f->root);
    if (at < bytes)
        snprintf(text + at, bytes - at, ")");
}

void host_describe(const struct host *h, char *text, size_t bytes)
{
    struct frame f = h->call.frame;
    if (f.kind == FRAME_POINT)
        snprintf(text, bytes, "send/recv");
    else
        host_describe_frame(&f, text, bytes);
}

static enum sink_answer fail(struct host *h, polypath_result_t code)
{
    h->failure = code;
    return SINK_FAIL;
}

polypath_result_t host_mismatch(int rank, const struct frame *ours, int peer, const struct frame *theirs)
{
    char mine[200], other[200];
    host_describe_frame(ours, mine, sizeof mine);
    host_describe_frame(theirs, other, sizeof other);
    const char *detail = "";
    if (!strcmp(mine, other))
        detail = theirs->row_bytes != ours->row_bytes ? "; they cut it differently (unlike settings?)"
                                                      : "; the per-rank counts or the algorithm differ";
    return error_set(POLYPATH_ERROR_MISMATCH, "rank %d called %s, but rank %d called %s%s", rank, mine, peer, other,
                     detail);
}

static enum sink_answer mismatch(struct host *h, const struct link *link, const struct frame *theirs)
{
    return fail(h, host_mismatch(h->config.rank, &h->call.frame, link->peer, theirs));
}

/* Remembers what an early peer is in, for the time-out message. */
static enum sink_answer later(struct host *h, int peer, const struct frame *frame)
{
    h->peers[peer].early = true;
    h->peers[peer].early_frame = *frame;
    return SINK_LATER;
}

static enum sink_answer begin_abort(struct host *h, const struct frame *frame, void **destination)
{
    if (frame->bytes >= sizeof h->abort_text)
        return fail(h, error_set(POLYPATH_ERROR_INTERNAL, "an abort note of %u bytes", frame->bytes));
    memset(h->abort_text, 0, sizeof h->abort_text);
    *destination = h->abort_text;
    return SINK_TAKE;
}

/* The RECV step that a frame is for, or -1. */
static int64_t find_recv(const struct host *h, int peer, uint32_t message)
{
    const struct schedule *s = h->call.schedule;
    uint32_t n = (uint32_t)(s->first_recv[peer + 1] - s->first_recv[peer]);
    return message < n ? (int64_t)s->recvs[s->first_recv[peer] + (int)message] : -1;
}

static bool same_operation(const struct frame *a, const struct frame *b)
{
    return a->collective == b->collective && a->type == b->type && a->op == b->op && a->root == b->root &&
           a->count == b->count && a->row_bytes == b->row_bytes && a->variant == b->variant;
}

/* Where in the schedule a frame of the current call belongs; sets *answer otherwise. */
static int64_t locate(struct host *h, const struct link *link, const struct frame *frame, enum sink_answer *answer)
{
    const struct host_peer *peer = &h->peers[link->peer];
    const struct frame *mine = &h->call.frame;
    uint32_t message = frame->message;
    if (!h->active || frame->kind != mine->kind) {
        *answer = later(h, link->peer, frame);
        return -1;
    }
    if (frame->kind == FRAME_COLLECTIVE) {
        int32_t ahead = (int32_t)(frame->call - mine->call);
        if (ahead > 0) {
            *answer = later(h, link->peer, frame);
            return -1;
        }
        if (ahead < 0 || !same_operation(frame, mine)) {
            *answer = mismatch(h, link, frame);
            return -1;
        }
    } else {
        message = frame->call - peer->points_received;
        if (message >= peer->call_points_received && message < UINT32_MAX / 2) {
            *answer = later(h, link->peer, frame);
            return -1;
        }
    }
    int64_t step = find_recv(h, link->peer, message);
    if (step < 0 || frame->row >= h->call.rows)
        *answer = mismatch(h, link, frame);
    return frame->row < h->call.rows ? step : -1;
}

enum sink_answer host_sink_begin(struct link_sink *sink, struct link *link, const struct frame *frame,
                                 void **destination, bool *borrow)
{
    struct host *h = (struct host *)sink;
    if (frame->magic != FRAME_MAGIC)
        return fail(h, error_set(POLYPATH_ERROR_INTERNAL, "rank %d sent something that is not a frame", link->peer));
    if (frame->kind == FRAME_ABORT)
        return begin_abort(h, frame, destination);
    if (frame->kind != FRAME_COLLECTIVE && frame->kind != FRAME_POINT)
        return fail(
            h, error_set(POLYPATH_ERROR_INTERNAL, "rank %d sent a frame of unknown kind %u", link->peer, frame->kind));
    enum sink_answer answer = SINK_FAIL;
    int64_t index = locate(h, link, frame, &answer);
    if (index < 0)
        return answer;
    const struct step *step = &h->call.schedule->steps[index];
    if (frame->kind == FRAME_POINT &&
        (frame->count != h->call.output_bytes[step->dst.index] || frame->type != h->call.types[step->dst.index])) {
        return fail(h, error_set(POLYPATH_ERROR_MISMATCH,
                                 "rank %d receives %zu bytes of %s from rank %d, which sends %" PRIu64 " bytes of %s",
                                 h->config.rank, h->call.output_bytes[step->dst.index],
                                 polypath_type_name((polypath_type_t)h->call.types[step->dst.index]), link->peer,
                                 frame->count, polypath_type_name((polypath_type_t)frame->type)));
    }
    size_t bytes = step->flags & STEP_TOKEN ? 0 : host_slice_bytes(h, step->dst, frame->row);
    if (bytes != frame->bytes)
        return mismatch(h, link, frame);
    if (h->need[state_of(h, frame->row, (uint32_t)index)] == STEP_DONE)
        return fail(h, error_set(POLYPATH_ERROR_INTERNAL, "rank %d sent row %u of message %u twice", link->peer,
                                 frame->row, frame->message));
    *destination = bytes ? host_slice_address(h, step->dst, frame->row) : NULL;
    *borrow = link->class->borrows && step->dst.buffer == SLICE_SCRATCH &&
              h->call.schedule->scratch_reads[step->dst.index] == 1;
    return SINK_TAKE;
}

void host_sink_end(struct link_sink *sink, struct link *link, const struct frame *frame, const void *borrowed,
                   uint32_t token)
{
    struct host *h = (struct host *)sink;
    if (frame->kind == FRAME_ABORT) {
        h->failure = host_peer_failed(h, link->peer, h->abort_text);
        return;
    }
    struct host_peer *peer = &h->peers[link->peer];
    uint32_t message = frame->kind == FRAME_POINT ? frame->call - peer->points_received : frame->message;
    uint32_t index = (uint32_t)find_recv(h, link->peer, message);
    if (borrowed) {
        const struct slice to = h->call.schedule->steps[index].dst;
        struct place *place = host_place(h, to, frame->row);
        if (place->data) /* was taken for it in case it would be copied */
            host_free_piece(h, place->data);
        *place = (struct place){.data = (char *)(uintptr_t)borrowed,
                                .link = link,
                                .token = token,
                                .bytes = frame->bytes,
                                .reads = h->call.schedule->scratch_reads[to.index]};
        h->nlent++;
    }
    link->bytes_received += frame->bytes;
    link->call_bytes_received += frame->bytes;
    link->last_ns = clock_now_ns();
    peer->recvs_left--;
    peer->early = false;
    host_complete(h, frame->row, index);
}
