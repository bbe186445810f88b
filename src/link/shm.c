/*
 * shm: frames through slots in the reader's shared memory. A frame larger than
 * a slot goes in fragments. A frame that fits in one slot can be lent to the
 * sink in place, so that a reduction reads it where the sender put it; at most
 * half of the slots are lent at a time, so the channel never stands still.
 */
#include <stdlib.h>
#include <string.h>

#include "compute/compute.h"
#include "link/segment.h"
#include "link/stores.h"
#include "system/clock.h"
#include "system/error.h"

struct shm_link {
    struct link link;
    struct segment *own, *theirs;
    int channel_in, channel_out;
    /* sending */
    uint32_t put; /* position of the next slot to fill */
    bool sending;
    struct frame frame;
    const char *payload;
    uint64_t cookie;
    uint32_t done; /* bytes of the frame already in slots */
    struct stores_writer writes;
    /* receiving */
    uint32_t take;     /* position of the next slot to read */
    char *destination; /* of the fragmented frame being received */
    bool receiving;
    unsigned lent; /* slots the sink holds */
    struct stores_cost reads;
};

static bool shm_ready(struct link *link)
{
    return !((struct shm_link *)link)->sending;
}

static bool shm_room(struct link *link, size_t bytes)
{
    struct shm_link *l = (struct shm_link *)link;
    const struct shm_slot *slot = &segment_channel(l->theirs, l->channel_out)->slots[l->put % SEGMENT_DEPTH];
    /* acquire: as in push */
    return !l->sending && bytes <= l->theirs->slot_bytes &&
           atomic_load_explicit(&slot->turn, memory_order_acquire) == l->put;
}

/* Fills a slot, in the way that is better for both. Returns whether past the caches. */
static bool fill(struct shm_link *l, struct channel *channel, const char *from, uint32_t bytes)
{
    char *to = segment_slot_data(l->theirs, l->channel_out, (int)(l->put % SEGMENT_DEPTH));
    if (bytes < STORES_LEAST_BYTES) {
        compute_copy(to, from, bytes, false);
        return false;
    }
    const uint64_t readers[2] = {atomic_load_explicit(&channel->costs[0], memory_order_relaxed),
                                 atomic_load_explicit(&channel->costs[1], memory_order_relaxed)};
    const bool past = stores_choose(&l->writes, readers);
    const uint64_t begin_ns = stores_curious(&l->writes.cost, past, bytes) ? clock_now_ns() : 0;
    compute_copy(to, from, bytes, past);
    if (begin_ns)
        stores_note(&l->writes.cost, past, bytes, clock_now_ns() - begin_ns);
    return past;
}

/* Copies a fragment out of a slot. */
static void drain(struct shm_link *l, struct channel *channel, char *to, const char *from, uint32_t bytes, bool past)
{
    const uint64_t begin_ns = stores_curious(&l->reads, past, bytes) ? clock_now_ns() : 0;
    compute_copy(to, from, bytes, false);
    if (!begin_ns)
        return;
    stores_note(&l->reads, past, bytes, clock_now_ns() - begin_ns);
    atomic_store_explicit(&channel->costs[past], l->reads.ns[past], memory_order_relaxed);
}

/* Puts fragments of the current frame into free slots. */
static void push(struct shm_link *l, struct link_sink *sink, uint64_t *moved)
{
    struct channel *channel = segment_channel(l->theirs, l->channel_out);
    bool filled = false;
    while (l->sending) {
        struct shm_slot *slot = &channel->slots[l->put % SEGMENT_DEPTH];
        /* acquire: the reader's last look at the slot comes before our overwriting it */
        if (atomic_load_explicit(&slot->turn, memory_order_acquire) != l->put)
            break;
        uint32_t left = l->frame.bytes - l->done;
        uint32_t n = left < l->theirs->slot_bytes ? left : (uint32_t)l->theirs->slot_bytes;
        slot->past = n && fill(l, channel, l->payload + l->done, n);
        slot->frame = l->frame;
        slot->offset = l->done;
        slot->fragment = n;
        /* release: header and payload before the flag */
        atomic_store_explicit(&slot->turn, l->put + 1, memory_order_release);
        l->put++;
        l->done += n;
        filled = true;
        *moved += n + 1;
        if (l->done == l->frame.bytes) {
            l->sending = false;
            sink->sent(sink, &l->link, l->cookie, l->frame.bytes);
        }
    }
    if (filled)
        segment_ring(l->theirs);
}

static polypath_result_t shm_send(struct link *link, const struct frame *frame, const void *payload, uint64_t cookie,
                                  struct link_sink *sink)
{
    struct shm_link *l = (struct shm_link *)link;
    l->frame = *frame;
    l->payload = payload;
    l->cookie = cookie;
    l->done = 0;
    l->sending = true;
    uint64_t moved = 0;
    push(l, sink, &moved);
    return POLYPATH_SUCCESS;
}

static void free_slot(struct shm_link *l, uint32_t position)
{
    struct shm_slot *slot = &segment_channel(l->own, l->channel_in)->slots[position % SEGMENT_DEPTH];
    /* release: our reads of the payload before the writer may overwrite it */
    atomic_store_explicit(&slot->turn, position + SEGMENT_DEPTH, memory_order_release);
}

static void shm_release(struct link *link, uint32_t token)
{
    struct shm_link *l = (struct shm_link *)link;
    free_slot(l, token);
    l->lent--;
    segment_ring(l->theirs);
}

/* Takes one full slot. Returns false when there is none, or the sink wants to wait. */
static bool take_one(struct shm_link *l, struct link_sink *sink, uint64_t *moved, polypath_result_t *result)
{
    struct channel *channel = segment_channel(l->own, l->channel_in);
    struct shm_slot *slot = &channel->slots[l->take % SEGMENT_DEPTH];
    /* acquire: flag before header and payload */
    if (atomic_load_explicit(&slot->turn, memory_order_acquire) != l->take + 1)
        return false;
    const struct frame frame = slot->frame;
    const uint32_t offset = slot->offset, n = slot->fragment;
    const char *data = segment_slot_data(l->own, l->channel_in, (int)(l->take % SEGMENT_DEPTH));
    if (n > l->own->slot_bytes || (uint64_t)offset + n > frame.bytes || (!l->receiving && offset)) {
        *result = error_set(POLYPATH_ERROR_INTERNAL, "shared memory from rank %d is damaged", l->link.peer);
        return false;
    }
    bool borrow = false;
    if (!l->receiving) {
        void *destination = NULL;
        switch (sink->begin(sink, &l->link, &frame, &destination, &borrow)) {
        case SINK_LATER: return false;
        case SINK_FAIL: *result = POLYPATH_ERROR_INTERNAL; return false;
        case SINK_TAKE: break;
        }
        l->destination = destination;
        l->receiving = true;
    }
    *moved += n + 1;
    const uint32_t position = l->take++;
    if (borrow && n == frame.bytes && n && l->lent < SEGMENT_DEPTH / 2) {
        l->receiving = false;
        l->lent++;
        sink->end(sink, &l->link, &frame, data, position);
        return true;
    }
    if (n)
        drain(l, channel, l->destination + offset, data, n, slot->past);
    free_slot(l, position);
    if (offset + n == frame.bytes) {
        l->receiving = false;
        sink->end(sink, &l->link, &frame, NULL, 0);
    }
    return true;
}

static polypath_result_t shm_progress(struct link *link, struct link_sink *sink, uint64_t *moved)
{
    struct shm_link *l = (struct shm_link *)link;
    polypath_result_t result = POLYPATH_SUCCESS;
    uint64_t taken = 0;
    for (int i = 0; i < SEGMENT_DEPTH && take_one(l, sink, &taken, &result); i++)
        ;
    if (taken) {
        segment_ring(l->theirs);
        *moved += taken;
    }
    if (l->sending)
        push(l, sink, moved);
    return result;
}

static void shm_close(struct link *link)
{
    free(link);
}

static const struct link_class shm_class = {
    .name = "shm",
    .borrows = true,
    .ready = shm_ready,
    .room = shm_room,
    .send = shm_send,
    .progress = shm_progress,
    .release = shm_release,
    .close = shm_close,
};

polypath_result_t shm_link_create(struct segment *own, struct segment *theirs, int channel_in, int channel_out,
                                  struct link **link)
{
    struct shm_link *l = calloc(1, sizeof *l);
    if (!l)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    *l = (struct shm_link){.own = own, .theirs = theirs, .channel_in = channel_in, .channel_out = channel_out};
    l->link = (struct link){.class = &shm_class, .fd = -1};
    *link = &l->link;
    return POLYPATH_SUCCESS;
}
