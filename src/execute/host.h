/*
 * The host executor: runs the schedule of one call over all links of a
 * communicator at once, on the thread that drives it. It owns the send queues, the
 * scratch memory and the waiting; it knows nothing of communicators' creation,
 * of shares (it is told which rows prefer which path) or of the API.
 *
 * One call at a time: a communicator's calls run in the order issued.
 */
#ifndef EXECUTE_HOST_H
#define EXECUTE_HOST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/compute.h"
#include "link/link.h"
#include "link/segment.h"
#include "schedule/schedule.h"

#define HOST_PATHS 16
#define HOST_LINKS_PER_PEER 64

struct host;

/* One call, as the executor sees it. The caller owns everything it points to, until the call has ended. */
struct host_call {
    const struct schedule *schedule;
    struct frame frame; /* prototype of every frame: all but bytes, row and message are filled in */
    struct compute_op op;
    const void *scalar; /* of a scaled sum; NULL otherwise */
    void *const *input; /* per block: its address; NULL where this rank has none */
    void *const *output;
    const size_t *input_bytes;
    const size_t *output_bytes;
    size_t row_bytes; /* a multiple of 64: how blocks are cut */
    uint32_t rows;
    uint32_t window; /* rows of one path in flight; equal on all ranks */
    int npaths;
    uint32_t first_row[HOST_PATHS + 1]; /* path p prefers rows first_row[p] .. first_row[p + 1) */
    uint32_t active;                    /* bit p: path p may carry rows of others */
    bool hand_over;
    const uint8_t *types; /* point to point: per block, its element type; NULL otherwise */
    bool stream;          /* outputs are larger than the caches */
};

/* What a path did in the last call on this rank. */
struct host_path_report {
    uint64_t bytes_sent, bytes_received;
    uint64_t busy_ns; /* from the start of the call to the path's last payload; 0 = unused */
};

struct host_config {
    int rank, size, npaths;
    uint64_t spin;
    bool oversubscribed; /* more ranks than cores on this host: give the core away at once */
    uint64_t timeout_ms;
    size_t scratch_bytes;
    struct segment *segment;            /* this rank's own, or NULL; not owned */
    const char *path_names[HOST_PATHS]; /* for messages; not owned */
};

polypath_result_t host_create(const struct host_config *config, struct host **host);

/* Closes the links, frees everything. */
void host_free(struct host *host);

/* Takes over the link (peer, path and queue are set). */
polypath_result_t host_add_link(struct host *host, struct link *link);

/* A connected local socket that tells when `peer` dies, and its segment (for its bell and abort note). Not owned. */
polypath_result_t host_add_peer(struct host *host, int peer, int control_fd, struct segment *segment);

/*
 * All rows of path p go to send queue queue_of_path[p] of this peer (paths
 * that share one link inside a host map to the same queue).
 */
void host_map_paths(struct host *host, int peer, const int *queue_of_path);

/* Begins a call; the previous one must have ended. Allocates only if the call is larger than any before. */
polypath_result_t host_begin(struct host *host, const struct host_call *call);

/* A message to or from a peer. */
struct host_point {
    bool send;
    uint8_t type;
    int peer; /* not this rank */
    const void *from;
    void *to;
    size_t bytes;
    bool done;
};

/*
 * Between calls: does what can be done at once of these messages, polling up to
 * `spins` times. Sets `done` of those that are; returns how many are left, to
 * be done by a call.
 */
int host_points_now(struct host *host, struct host_point *points, int npoints, uint64_t spins);

/* Moves what can be moved; *done when the call is complete. Does not block. Errors end the call. */
polypath_result_t host_advance(struct host *host, bool *done, bool *moved);

/*
 * Waits a little (spin, yield or sleep) after an advance that moved nothing.
 * Who has come to sleeping (host_patient) also calls host_check.
 */
polypath_result_t host_idle(struct host *host);

/* Tells every peer, as far as possible without blocking, that this communicator has failed, and stops sending. */
void host_fail(struct host *host, const char *why);

/* May be called from another thread: wakes the driver, which looks at host_interrupted. */
void host_interrupt(struct host *host);
bool host_interrupted(const struct host *host);

/* Called before sleeping, to look for work that does not come over links: true if there is some. */
void host_set_peek(struct host *host, bool (*peek)(void *context), void *context);

/* For work outside of calls: starts a wait anew, after the polling; whether the wait has come to sleeping. */
void host_rest(struct host *host);
void host_stirred(struct host *host); /* something moved: waits from the beginning again, polling first */
bool host_patient(const struct host *host);

/* The first frame of `peer` that belongs to a call that has not begun here. */
bool host_early_frame(const struct host *host, int peer, struct frame *frame);

/* Whether the process of a local peer has gone. */
bool host_peer_gone(const struct host *host, int peer);

/* Describes a call, from a frame of it; and the error of two ranks that are in unlike calls. */
void host_describe_frame(const struct frame *frame, char *text, size_t bytes);
polypath_result_t host_mismatch(int rank, const struct frame *ours, int peer, const struct frame *theirs);

/* A short pause in a polling loop. */
static inline void host_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Polls without a pause between them, which takes as long as half a hop from core to core. */
#define HOST_EAGER_POLLS 64

/* Between polls of somebody who expects to wait for a hop or two; `polls`: how many there have been. */
static inline void host_pause(uint64_t polls)
{
    if (polls >= HOST_EAGER_POLLS)
        host_relax();
}

/* Fetches the cache line of `address`, to be written soon. */
static inline void host_prefetch_write(const void *address)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)address));
#else
    __builtin_prefetch(address, 1);
#endif
}

/* Wakes the thread that waits in host_idle, from any thread. */
void host_wake(struct host *host);

/* Looks at the sockets without waiting (after an advance that moved nothing, by callers that do not idle). */
void host_poll_now(struct host *host);

/* Lost peers, failed peers, and, if `late`, the time-out. Does not wait. */
polypath_result_t host_check(struct host *host, bool late);

/* Nanoseconds since the current or last call began. */
uint64_t host_elapsed_ns(const struct host *host);

void host_report(const struct host *host, int path, struct host_path_report *report);
uint64_t host_chunks_handed_over(const struct host *host);
size_t host_memory(const struct host *host);

/* Totals of a path since creation. */
void host_totals(const struct host *host, int path, uint64_t *bytes_sent, uint64_t *frames_sent);

#endif
