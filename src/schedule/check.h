/*
 * The schedule checker: given the schedules of all ranks of one collective,
 * proves the contracts of schedule.h by running them symbolically.
 */
#ifndef SCHEDULE_CHECK_H
#define SCHEDULE_CHECK_H

#include "schedule/schedule.h"

/*
 * schedules[r] is rank r's. Returns true if every contract holds; otherwise
 * false and a description of the first violation in `why`.
 * `rank_order`: also demand that each output element is one fold over ranks
 * 0..size-1 in this order.
 */
bool schedule_check(const struct schedule *const *schedules, int size, bool rank_order, char *why, size_t why_bytes);

/*
 * The same for a message of which only block `block` is not empty, under an
 * executor that sends no messages for empty blocks and completes their steps
 * as soon as their local predecessors have (tokens are sent as ever). If each
 * block passes alone then so does every set of them: more messages only add
 * order. Not for AllToAll, whose blocks are named otherwise at both ends.
 */
bool schedule_check_block(const struct schedule *const *schedules, int size, int block, char *why, size_t why_bytes);

#endif
