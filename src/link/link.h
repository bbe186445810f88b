/*
 * A link moves frames between this rank and one other, in order. One vtable
 * per kind, one file each. Links know nothing of collectives: what a frame
 * means, and where its payload goes, the sink (the executor) says.
 */
#ifndef LINK_LINK_H
#define LINK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "polypath/polypath.h"

#define FRAME_MAGIC 0x5059u

enum frame_kind {
    FRAME_COLLECTIVE = 1, /* `call` = the communicator's call number */
    FRAME_POINT = 2,      /* `call` = the message's number within the ordered pair of ranks */
    FRAME_ABORT = 3       /* the payload says why; the receiver's communicator fails */
};

/*
 * In front of every payload. It describes the whole operation, so that ranks
 * that call different things find out from the first frame that arrives.
 * Native byte order: ranks of unlike byte order are refused at creation.
 */
struct frame {
    uint16_t magic;
    uint8_t kind;
    uint8_t collective; /* polypath_collective_t */
    uint32_t bytes;     /* payload that follows */
    uint32_t call;
    uint32_t row;
    uint16_t message; /* ordinal within (sender, receiver) of the row's schedule */
    uint8_t type;
    uint8_t op;
    int32_t root;
    uint32_t row_bytes; /* how the sender cuts blocks into rows */
    uint32_t variant;   /* hash of what else must agree: counts of the V forms, algorithm, ... */
    uint64_t count;
};
_Static_assert(sizeof(struct frame) == 40, "the frame is a wire format");

enum sink_answer {
    SINK_TAKE,  /* payload goes to *destination (or may be borrowed, if *borrow) */
    SINK_LATER, /* not now: this link delivers nothing more until polled again */
    SINK_FAIL   /* the sink has failed; its error is set */
};

struct link;

/* What the links of a communicator deliver to. */
struct link_sink {
    /*
     * A frame is there. *destination gets the address for `bytes` bytes of
     * payload; *borrow says whether the sink would rather be given the payload
     * where it lies (only asked of links that can).
     */
    enum sink_answer (*begin)(struct link_sink *sink, struct link *link, const struct frame *frame, void **destination,
                              bool *borrow);
    /*
     * The payload is complete: at the destination, or, if `borrowed` is not
     * NULL, there until link_release(link, token).
     */
    void (*end)(struct link_sink *sink, struct link *link, const struct frame *frame, const void *borrowed,
                uint32_t token);
    /* The frame sent with this cookie no longer needs its payload. */
    void (*sent)(struct link_sink *sink, struct link *link, uint64_t cookie, uint32_t bytes);
};

struct link_class {
    const char *name;
    bool borrows; /* can lend a payload in place */
    /* Room for another frame right now? Cheap; may change from false to true only after progress. */
    bool (*ready)(struct link *link);
    /* Whether a frame with so much payload could be sent and done with at once; NULL if that is never certain. */
    bool (*room)(struct link *link, size_t bytes);
    /*
     * Takes one frame; only when ready. The payload must stay until `sent` is
     * called for the cookie, which may be during this call.
     */
    polypath_result_t (*send)(struct link *link, const struct frame *frame, const void *payload, uint64_t cookie,
                              struct link_sink *sink);
    /*
     * Moves what can be moved without blocking, both ways; adds the payload bytes
     * moved to *moved (any progress counts at least 1). A lost peer sets
     * link->lost and is not an error by itself: what it sent before is delivered.
     */
    polypath_result_t (*progress)(struct link *link, struct link_sink *sink, uint64_t *moved);
    void (*release)(struct link *link, uint32_t token); /* NULL if it never lends */
    /* Bytes handed over to the kernel that the other end has not acknowledged; NULL if that is always nothing. */
    uint64_t (*under_way)(struct link *link);
    void (*close)(struct link *link); /* frees the link */
};

struct link {
    const struct link_class *class;
    int peer;                /* rank at the other end */
    int path;                /* index of the path it belongs to; -1: serves all, inside a host */
    int queue;               /* executor's send queue it drains first */
    int fd;                  /* for epoll; -1 if none */
    bool readable, writable; /* set by the waiter from epoll events; cleared by the link at EAGAIN */
    bool lost;               /* the other end has gone */
    bool broken;             /* ... and not by closing: what was under way is lost */
    char lost_reason[96];
    /* kept by the executor */
    uint64_t bytes_sent, frames_sent, bytes_received;
    uint64_t call_bytes_sent, call_bytes_received;
    uint64_t last_ns;       /* when it last moved a payload in this call */
    uint64_t bytes_per_ms;  /* smoothed sending rate; 0 = unknown */
    uint64_t first_send_ns; /* first send of this call */
};

static inline bool link_ready(struct link *link)
{
    return link->class->ready(link);
}

static inline polypath_result_t link_send(struct link *link, const struct frame *frame, const void *payload,
                                          uint64_t cookie, struct link_sink *sink)
{
    return link->class->send(link, frame, payload, cookie, sink);
}

static inline polypath_result_t link_progress(struct link *link, struct link_sink *sink, uint64_t *moved)
{
    return link->class->progress(link, sink, moved);
}

static inline void link_close(struct link *link)
{
    if (link)
        link->class->close(link);
}

/* ---- the kinds; each constructor takes over what it is given, also on failure */

struct segment; /* segment.h */

/* Both ends have exchanged segments; `slot` is this rank's channel number in the peer's, `peer_slot` the peer's in
 * ours. */
polypath_result_t shm_link_create(struct segment *own, struct segment *theirs, int channel_in, int channel_out,
                                  struct link **link);

/* process_vm_readv from `pid`. The probe must have succeeded both ways (cma_probe). */
polypath_result_t cma_link_create(struct segment *own, struct segment *theirs, int channel_in, int channel_out, int pid,
                                  struct link **link);

/* Whether this process can read `bytes` at `address` of process `pid`, and finds `expected` there. */
bool cma_probe(int pid, uint64_t address, uint64_t expected);

/* A connected stream socket on which both sides have proved themselves. */
polypath_result_t tcp_link_create(int fd, uint64_t notsent_bytes, struct link **link);

#endif
