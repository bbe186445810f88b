/*
 * The shared memory of one rank: an anonymous memfd that its local peers map.
 * It holds the rank's bell, its board for small collectives and, for every
 * local peer, one inbound channel for shm and one for cma.
 *
 * Where the memory lies: all pages of a segment come from the NUMA node of its
 * owner, who has touched every one of them before a peer can know of them.
 *  - Channels have one reader, their owner: a message crosses between nodes
 *    once, when it is written, and stores do not wait for the other side as
 *    loads do. The bell, too, is polled by its owner only.
 *  - Boards and stages are written by their owner and read by everybody else,
 *    by all alike: a slot of the ring INPUT of a stage is read once (each rank
 *    reads its part), one of the ring RESULT and a board by all. No place is
 *    nearer to the readers together than the owner's, and there its writes,
 *    also those past the caches, stay within the node.
 */
#ifndef LINK_SEGMENT_H
#define LINK_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "link/link.h"

#define SEGMENT_DEPTH 8      /* slots of a shm channel */
#define SEGMENT_CMA_DEPTH 64 /* descriptors of a cma channel */

enum bell_state { BELL_AWAKE = 0, BELL_FUTEX = 1, BELL_EVENTFD = 2 };

/*
 * How a rank is woken. The owner writes `sleeping`, then looks once more for
 * work, then sleeps; a peer writes its work, then reads `sleeping`. Both put a
 * seq_cst fence between the two, so at least one of them sees the other
 * (Dekker's argument).
 *
 * A peer rings often and an owner sleeps seldom, so where the kernel offers it
 * the owner carries both fences: it promises (`barrier`) to use membarrier(2)
 * before it looks again, which acts as a fence in every running thread of the
 * processes that have registered, and a peer that has registered needs none.
 */
struct bell {
    _Alignas(64) atomic_uint word; /* counts rings; what the futex sleeps on */
    _Alignas(64) atomic_uint sleeping;
    atomic_uint barrier; /* 1: the owner's fence counts for its peers too; set before its first sleep */
};

/*
 * A slot is free for position p when turn == p, and full when turn == p + 1
 * (D. Vyukov's bounded queue): release store by the one who hands it over,
 * acquire load by the one who takes it. Slots may be released out of order.
 */
struct shm_slot {
    _Alignas(64) atomic_uint turn;
    uint32_t offset;   /* of this fragment in the frame's payload */
    uint32_t fragment; /* bytes in this slot */
    uint32_t past;     /* it was written past the caches (stores.h) */
    struct frame frame;
};
_Static_assert(sizeof(struct shm_slot) == 64, "flag and frame share one cache line");

struct cma_slot {
    _Alignas(64) atomic_uint turn; /* as shm_slot.turn */
    uint64_t address;              /* in the sender */
    struct frame frame;
};

struct channel {
    /* the reader counts descriptors it has copied; release, so that the sender may reuse its buffer */
    _Alignas(64) atomic_uint cma_done;
    _Alignas(64) atomic_uint costs[2]; /* what reading slots costs the reader (stores.h) */
    struct cma_slot cma[SEGMENT_CMA_DEPTH];
    struct shm_slot slots[SEGMENT_DEPTH];
    /* slot payloads follow, SEGMENT_DEPTH * slot_bytes */
};

/* What small collectives use (execute/board.h); here because it lies in the segment. */
#define BOARD_DEPTH 32         /* calls that a rank may be ahead of others */
#define BOARD_DATA_DEPTH 8     /* the same, of calls that do not fit into the flag's line */
#define BOARD_BYTES 16384      /* largest contribution */
#define BOARD_READ_BYTES 65536 /* most that one rank reads from all boards */
#define BOARD_INLINE 56        /* bytes that fit into the flag's cache line */

struct board_slot {
    struct {
        _Alignas(64) atomic_uint number; /* of the call; written last, release */
        uint32_t signature;
        char data[BOARD_INLINE];
    } line;
    _Alignas(64) struct frame frame;
};

struct board_memory {
    _Alignas(64) atomic_uint done;        /* last call that the owner has finished; release */
    _Alignas(64) atomic_uint mapped_half; /* last such call of which it has done the first half; release (fetch.c) */
    _Alignas(64) atomic_uint mapped_done; /* last mapped call that it has moved its part of; release (mapped.h) */
    struct board_slot slots[BOARD_DEPTH];
    _Alignas(64) char data[BOARD_DATA_DEPTH][BOARD_BYTES];
};

/* What middle-sized and large collectives of one host use (execute/stage.c); two rings of slots. */
#define STAGE_DEPTH 4
#define STAGE_KINDS 8 /* of slots, for finding out how they are best written */

struct stage_flag {
    _Alignas(64) atomic_uint number;
    uint32_t past; /* full: the slot was written past the caches (stores.h) */
};

struct stage_memory {
    struct stage_flag full[2][STAGE_DEPTH]; /* position + 1 of what the slot holds; release */
    struct stage_flag done[2];              /* the owner has finished with all positions before this; release */
    /* what reading costs the owner, by kind of slot and way of writing (stores.h) */
    _Alignas(64) atomic_uint costs[STAGE_KINDS][2];
    /* slots follow, 2 * STAGE_DEPTH * stage_bytes */
};

struct segment {
    int fd;       /* memfd; -1 after mapping a peer's */
    int event_fd; /* the owner's doorbell */
    size_t bytes;
    size_t slot_bytes;
    size_t stage_bytes; /* of a slot of the stage; 0: there is none */
    int nchannels;
    char *base;
    bool own;
    bool placed; /* own: its pages lie on the node that was asked for */
};

/* What is said about a segment when its descriptors are passed. */
struct segment_info {
    uint64_t slot_bytes;
    uint64_t stage_bytes;
    uint64_t bytes;
    uint32_t nchannels;
    uint32_t reserved;
};

/*
 * Makes this rank's segment with room for `nchannels` peers and a stage with
 * slots of `stage_bytes` (0: none), bounded by `cap` bytes: where they do not
 * fit, first the stage and then the slots are made smaller. Its pages come
 * from NUMA node `node` (numa.h; NUMA_UNBOUND: from where the caller runs now);
 * where that cannot be had, `placed` is false and they come from elsewhere.
 */
polypath_result_t segment_create(int nchannels, size_t slot_bytes, size_t stage_bytes, size_t cap, int node,
                                 struct segment **segment);

/* Maps a peer's; takes over both descriptors, also on failure. The info is checked against the file's size. */
polypath_result_t segment_map(const struct segment_info *info, int fd, int event_fd, struct segment **segment);

void segment_info(const struct segment *segment, struct segment_info *info);
void segment_free(struct segment *segment);

struct bell *segment_bell(struct segment *segment);

/* The note that a failing rank leaves in its segment for local peers. */
struct abort_note {
    atomic_uint set; /* release after text, acquire before reading it */
    char text[1000];
};
struct abort_note *segment_abort_note(struct segment *segment);
struct board_memory *segment_board(struct segment *segment);
struct stage_memory *segment_stage(struct segment *segment); /* NULL: it has none */
struct channel *segment_channel(struct segment *segment, int index);
char *segment_slot_data(struct segment *segment, int channel, int slot);

/* Wakes the owner of the segment if it sleeps. Call after publishing work for it. */
void segment_ring(struct segment *segment);

/* The same for the owners of all `count` segments but that of `self`, with one fence at most. */
void segment_ring_others(struct segment *const *segments, int count, int self);

/*
 * Promises that whoever sleeps on this segment's bell (own) carries the fences
 * of all. Registers the process. Does nothing where the kernel cannot. Before
 * the first sleep.
 */
void segment_promise_barrier(struct segment *segment);

/* The fence of the owner, after saying that it sleeps and before looking for work once more. */
void bell_fence_sleeper(const struct bell *bell);

#endif
