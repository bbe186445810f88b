/*
 * Stages carry the middle-sized and large collectives of one host: what a
 * board (board.h) does with a cache line, a stage does with rings of slots in
 * each rank's shared memory. A message goes through in chunks that stay in the
 * caches: a rank copies what others need of its input into its next slot,
 * reduces or copies straight from the slots of the others, and where the
 * result has to be spread puts it into a slot of a second ring in the same
 * pass. So each buffer is read once and written once, and nobody is asked for
 * anything: the order of the slots follows from the call alone.
 *
 * Contributions are folded in rank order. All ranks run the same calls in the
 * same order with the same geometry; the board has made sure of that before
 * the first byte of another rank is used.
 */
#ifndef EXECUTE_STAGE_H
#define EXECUTE_STAGE_H

#include "execute/board.h"

struct stage;

/* Stages of ranks 0..size-1 in `segments`, all of which have one; they must outlive it. NULL on out of memory. */
struct stage *stage_create(int rank, int size, struct segment *const *segments);
void stage_free(struct stage *stage);

/* Whether a call of this collective can go over stages. */
bool stage_takes(const struct stage *stage, polypath_collective_t collective);

/* Begins a call of at least one byte; the previous one must have ended. */
void stage_begin(struct stage *stage, const struct board_call *call);

/*
 * Moves what can be moved, without waiting; true when the call has ended.
 * `met`: all ranks whose slots this rank reads are known to be in the same
 * call. *moved is set if anything moved.
 */
bool stage_advance(struct stage *stage, bool met, bool *moved);

/* Whether stage_advance would move something. */
bool stage_peek(struct stage *stage, bool met);

/* Whom an unfinished call waits for: the lowest such rank, or -1. */
int stage_waits_for(const struct stage *stage);

#endif
