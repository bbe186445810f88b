/*
 * The board executor: small collectives between the ranks of one host, in the
 * time of a few flag hops. Every rank has a board in its shared memory; a call
 * is: write your contribution next to its flag, wait for the flags of those
 * whose contribution you need, fold or copy straight from their boards. No
 * queue, no schedule, no lock, no system call while nobody sleeps.
 *
 * Contributions are folded in rank order, as the direct algorithms do, so the
 * result is the same to the bit. Knows nothing of communicators.
 */
#ifndef EXECUTE_BOARD_H
#define EXECUTE_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/compute.h"
#include "execute/host.h"
#include "link/exports.h"
#include "link/segment.h"

struct board;

/* One small call. `bytes` is that of one block: of the whole message for AllReduce, Reduce and Broadcast. */
struct board_call {
    bool fetch;         /* a larger one: ranks may copy from each other's processes; agreed */
    struct frame frame; /* describes the call; compared between ranks */
    struct compute_op op;
    const void *scalar; /* of a scaled sum; NULL otherwise */
    const void *send;
    void *recv;
    size_t bytes;
};

/*
 * Boards of ranks 0..size-1 in `segments` (segments[rank] is the own one). The
 * segments, the exports (NULL: nothing is reached in place) and the process
 * numbers (NULL: nothing is fetched) must outlive the board. NULL on out of memory.
 */
struct board *board_create(int rank, int size, struct segment *const *segments, struct exports *exports,
                           const int *pids);
void board_free(struct board *board);

/* Whether a call of this collective may be larger than that: it is announced on the board and moves over stages. */
bool board_stages(const struct board *board, polypath_collective_t collective);

/* Whether ranks can fetch what such a larger call needs from each other. */
bool board_fetches(const struct board *board, polypath_collective_t collective);

/* Whether the last call worked on the ranks' buffers in place, or fetched from them (mapped.h). */
bool board_was_mapped(const struct board *board);
bool board_was_fetched(const struct board *board);

/* Whether a call of this many bytes a block goes over the board; depends on agreed numbers only. */
bool board_takes(const struct board *board, polypath_collective_t collective, size_t bytes);

/* Begins a call; the previous one must have ended. */
void board_begin(struct board *board, const struct board_call *call);

/*
 * Moves on; true when the call has ended, with its result. Never waits. A
 * mismatch between ranks is found here.
 */
bool board_advance(struct board *board, polypath_result_t *result);

/* Whether board_advance has got further since this was asked last. */
bool board_moved(struct board *board);

/* begin and advance, spinning up to `spins` polls; false if it has not ended by then (go on with board_advance). */
bool board_try(struct board *board, const struct board_call *call, uint64_t spins, polypath_result_t *result);

/* Whether board_advance would get further than last time (a struct board; for the sleeper's last look). */
bool board_peek(void *board);

/* Whom an unfinished call waits for: the lowest such rank, or -1. */
int board_waits_for(const struct board *board);

/* What `rank` has last put on its board; false if nothing yet. For finding out that it is in another kind of call. */
bool board_last_frame(const struct board *board, int rank, struct frame *frame);

#endif
