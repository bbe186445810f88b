/*
 * cma: the sender puts a descriptor (address, length) into the reader's
 * shared memory; the reader copies straight from the sender's buffer with
 * process_vm_readv(2) and counts it done. One copy, no slots. Whether the
 * kernel allows it is found out by doing it (cma_probe), never guessed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "link/segment.h"
#include "system/error.h"

struct cma_link {
    struct link link;
    struct segment *own, *theirs;
    int channel_in, channel_out, pid;
    uint32_t put;   /* descriptors sent */
    uint32_t ended; /* of these, reported as sent */
    uint32_t take;  /* descriptors read */
    uint64_t cookies[SEGMENT_CMA_DEPTH];
    uint32_t bytes[SEGMENT_CMA_DEPTH];
};

bool cma_probe(int pid, uint64_t address, uint64_t expected)
{
    uint64_t value = 0;
    struct iovec to = {&value, sizeof value};
    struct iovec from = {(void *)(uintptr_t)address, sizeof value};
    return process_vm_readv(pid, &to, 1, &from, 1, 0) == sizeof value && value == expected;
}

static bool cma_ready(struct link *link)
{
    struct cma_link *l = (struct cma_link *)link;
    return l->put - l->ended < SEGMENT_CMA_DEPTH;
}

static polypath_result_t cma_send(struct link *link, const struct frame *frame, const void *payload, uint64_t cookie,
                                  struct link_sink *sink)
{
    (void)sink;
    struct cma_link *l = (struct cma_link *)link;
    struct cma_slot *slot = &segment_channel(l->theirs, l->channel_out)->cma[l->put % SEGMENT_CMA_DEPTH];
    /* the slot is free: its last descriptor has been counted done */
    slot->frame = *frame;
    slot->address = (uint64_t)(uintptr_t)payload;
    l->cookies[l->put % SEGMENT_CMA_DEPTH] = cookie;
    l->bytes[l->put % SEGMENT_CMA_DEPTH] = frame->bytes;
    /* release: the descriptor (and the payload behind it) before the flag */
    atomic_store_explicit(&slot->turn, l->put + 1, memory_order_release);
    l->put++;
    segment_ring(l->theirs);
    return POLYPATH_SUCCESS;
}

static polypath_result_t copy_from(struct cma_link *l, void *destination, uint64_t address, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        struct iovec to = {(char *)destination + done, bytes - done};
        struct iovec from = {(void *)(uintptr_t)(address + done), bytes - done};
        ssize_t n = process_vm_readv(l->pid, &to, 1, &from, 1, 0);
        if (n <= 0) {
            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0 && errno == ESRCH) {
                l->link.lost = true;
                memcpy(l->link.lost_reason, "its process has ended", sizeof "its process has ended");
                return POLYPATH_SUCCESS;
            }
            return error_set(POLYPATH_ERROR_SYSTEM, "reading %zu bytes from the memory of rank %d (process %d): %s",
                             bytes - done, l->link.peer, l->pid, n ? strerror(errno) : "nothing there");
        }
        done += (size_t)n;
    }
    return POLYPATH_SUCCESS;
}

static polypath_result_t receive(struct cma_link *l, struct link_sink *sink, uint64_t *moved)
{
    struct channel *channel = segment_channel(l->own, l->channel_in);
    struct cma_slot *slot = &channel->cma[l->take % SEGMENT_CMA_DEPTH];
    while (atomic_load_explicit(&slot->turn, memory_order_acquire) == l->take + 1) {
        const struct frame frame = slot->frame;
        void *destination = NULL;
        bool borrow = false;
        enum sink_answer answer = sink->begin(sink, &l->link, &frame, &destination, &borrow);
        if (answer == SINK_LATER)
            break;
        if (answer == SINK_FAIL)
            return POLYPATH_ERROR_INTERNAL;
        polypath_result_t result = copy_from(l, destination, slot->address, frame.bytes);
        /*
         * A rank that has failed may use its buffer for other things: what was
         * copied is good only if it had not failed by now. It leaves its note
         * before its call returns; the fence keeps our look behind the copy.
         */
        atomic_thread_fence(memory_order_seq_cst);
        const struct abort_note *note = segment_abort_note(l->theirs);
        if (atomic_load_explicit(&note->set, memory_order_acquire))
            return error_set(POLYPATH_ERROR_ABORTED, "rank %d failed: %.900s", l->link.peer, note->text);
        if (result || l->link.lost)
            return result;
        l->take++;
        /* release: our copy is complete before the sender may change its buffer */
        atomic_store_explicit(&channel->cma_done, l->take, memory_order_release);
        segment_ring(l->theirs);
        *moved += frame.bytes + 1;
        sink->end(sink, &l->link, &frame, NULL, 0);
        slot = &channel->cma[l->take % SEGMENT_CMA_DEPTH];
    }
    return POLYPATH_SUCCESS;
}

static polypath_result_t cma_progress(struct link *link, struct link_sink *sink, uint64_t *moved)
{
    struct cma_link *l = (struct cma_link *)link;
    if (l->put != l->ended) {
        /* acquire: pairs with the reader's release above */
        uint32_t done =
            atomic_load_explicit(&segment_channel(l->theirs, l->channel_out)->cma_done, memory_order_acquire);
        while (l->ended != done) {
            uint32_t i = l->ended++ % SEGMENT_CMA_DEPTH;
            *moved += 1;
            sink->sent(sink, link, l->cookies[i], l->bytes[i]);
        }
    }
    return receive(l, sink, moved);
}

static void cma_close(struct link *link)
{
    free(link);
}

static const struct link_class cma_class = {
    .name = "cma",
    .ready = cma_ready,
    .send = cma_send,
    .progress = cma_progress,
    .close = cma_close,
};

polypath_result_t cma_link_create(struct segment *own, struct segment *theirs, int channel_in, int channel_out, int pid,
                                  struct link **link)
{
    struct cma_link *l = calloc(1, sizeof *l);
    if (!l)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    *l = (struct cma_link){
        .own = own, .theirs = theirs, .channel_in = channel_in, .channel_out = channel_out, .pid = pid};
    l->link = (struct link){.class = &cma_class, .fd = -1};
    *link = &l->link;
    return POLYPATH_SUCCESS;
}
