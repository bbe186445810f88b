/*
 * Exports: memory of a process that the other ranks of its host map, so that
 * they can read and write it in place. Two halves: what the process has
 * (allocated here, or made shareable where it is), and what each communicator
 * has told its local peers about it. Descriptors travel over the peers'
 * control sockets; nothing has a name in any file system.
 *
 * Messages between two ranks are counted, so "rank a has taken in k messages
 * of rank b" says which of b's memory a can reach. Knows nothing of calls.
 */
#ifndef LINK_EXPORTS_H
#define LINK_EXPORTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "polypath/polypath.h"

/* ---- of the process; any thread */

/*
 * Fresh, zeroed memory of at least `bytes` (rounded up to whole pages), on huge
 * pages where the system has them. Reserved at once: using it cannot fail later.
 */
polypath_result_t exports_allocate(size_t bytes, void **memory);

/* Frees what exports_allocate gave; an error if it did not, or if it is held. NULL is allowed. */
polypath_result_t exports_free(void *memory);

/*
 * Makes [begin, begin + bytes) reachable for as long as it is held: memory of
 * exports_allocate as it is; other memory by putting shared pages with the same
 * contents into its place, for which it must be whole pages of private
 * anonymous memory that nobody touches meanwhile. Holds are counted.
 */
polypath_result_t exports_hold(void *begin, size_t bytes);

/* Ends a hold. After the last one, pages that were put into place are private again, with their contents. */
void exports_let_go(void *begin);

/* ---- of a communicator; its driver only */

/* Where something lies: in the memory that message `number` of its rank announced; 0: nowhere that peers can reach. */
struct export_place {
    uint32_t number;
    uint32_t reserved;
    uint64_t offset;
};

struct exports;

/* control_fds[r]: a connected local socket to rank r, -1 for none; must outlive the exports. NULL on out of memory. */
struct exports *exports_open(int size, const int *control_fds);
void exports_close(struct exports *exports);

/*
 * Where [begin, begin + bytes) lies. Memory that the peers have not been told
 * of is announced to them now; memory that is gone is called back. Never waits.
 */
struct export_place exports_place(struct exports *exports, const void *begin, size_t bytes);

/* How many messages this rank has sent to each peer. */
uint32_t exports_posted(const struct exports *exports);

/* How many messages of `peer` this rank has taken in. */
uint32_t exports_seen(const struct exports *exports, int peer);

/*
 * Takes in the messages of `peer` up to number `posted`, which it has sent, as far as that has not been done. What
 * cannot be mapped is never looked for again: false from then on.
 */
bool exports_take(struct exports *exports, int peer, uint32_t posted);

/* Whether this rank has failed to announce or to map something; then it must not be counted on. */
bool exports_failed(const struct exports *exports);

/* The address here of `bytes` bytes at a place of `peer`; NULL if it does not lie in what has been taken in. */
void *exports_address(const struct exports *exports, int peer, struct export_place place, size_t bytes);

#endif
