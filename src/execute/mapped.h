/*
 * Mapped calls: collectives of one host whose buffers the ranks have mapped
 * (link/exports.h). Nothing is copied on the way: a rank reads the others'
 * inputs where they lie and writes its part of the result into everybody's
 * output. So each byte is read and written as often as the collective itself
 * demands, and no more.
 *
 * A call is announced on the board like any other of its size. With the
 * announcement (struct mapped_notice) each rank says where its buffers lie and
 * what it can reach; all ranks read the same announcements, so all come to the
 * same verdict whether the call goes this way. At the end everybody waits until
 * everybody has finished, since others work on one's buffers until then.
 *
 * Where the call allows it (board_call.fetch), buffers that cannot be reached are
 * copied from the other processes by process_vm_readv instead (fetch.c).
 *
 * Contributions are folded in rank order.
 */
#ifndef EXECUTE_MAPPED_H
#define EXECUTE_MAPPED_H

#include "execute/board.h"
#include "link/exports.h"

struct mapped_notice {
    uint64_t send_address, recv_address; /* in the rank's own process */
    struct export_place send, recv;      /* of the buffers that others need; number 0: cannot be reached */
    uint32_t posted;                     /* messages about exports that this rank has sent */
    uint32_t failed;                     /* it cannot announce or map any more */
    uint32_t seen[];                     /* per rank: messages of it that this rank had taken in before the call */
};

struct mapped;

/*
 * `size` ranks with the exports of their communicator and their process numbers
 * (NULL: nothing can be fetched), which must outlive it. NULL on out of memory,
 * or too many.
 */
struct mapped *mapped_create(int rank, int size, struct segment *const *segments, struct exports *exports,
                             const int *pids);
void mapped_free(struct mapped *mapped);

/* Whether the ranks can carry out this collective by fetching from each other. */
bool mapped_fetches(const struct mapped *mapped, polypath_collective_t collective);

/* Notes a call that is about to be announced, and writes this rank's notice into its board slot. */
void mapped_announce(struct mapped *mapped, const struct board_call *call, struct mapped_notice *notice);

/* What the notices seen so far say of the call. */
enum mapped_verdict {
    MAPPED_OPEN, /* it depends on notices not seen yet */
    MAPPED_NO,   /* it goes another way */
    MAPPED_YES,
    MAPPED_FETCH, /* the buffers cannot be reached, but copied from */
};

/* The verdict by this rank's own notice; then by those of the others, each given once, in any order. */
enum mapped_verdict mapped_own(struct mapped *mapped);
enum mapped_verdict mapped_hear(struct mapped *mapped, int rank, const struct mapped_notice *notice);

/* Begins call `number` of the board after that verdict, MAPPED_YES or MAPPED_FETCH. */
polypath_result_t mapped_begin(struct mapped *mapped, enum mapped_verdict verdict, uint32_t number);

/* Moves a piece, without waiting; true when the call has ended, or failed. *moved is set if anything moved. */
bool mapped_advance(struct mapped *mapped, bool *moved, polypath_result_t *result);

/* Whether mapped_advance would get further. */
bool mapped_peek(const struct mapped *mapped);

/* Whom an unfinished call waits for: the lowest such rank, or -1. */
int mapped_waits_for(const struct mapped *mapped);

#endif
