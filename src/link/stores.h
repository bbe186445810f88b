/*
 * How to write what another core will read soon: into the caches, or past
 * them. Where both cores share a cache the first is up to twice as fast; where
 * they do not, lines that move from one cache to the other, both to be read
 * and to be written again, are slower than memory, and writing past the caches
 * is up to three times as fast. Which of the two holds can change while a
 * program runs: a hypervisor or the scheduler moves cores about.
 *
 * So writer and readers measure what their part costs, by the way of writing,
 * and the writer takes the way that costs all of them less; it goes the other
 * way once in a while, to be able to compare. Pure: times in, a choice out. It
 * never changes what is read.
 */
#ifndef LINK_STORES_H
#define LINK_STORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STORES_PROBE 256        /* every so many writes go the other way */
#define STORES_FIRST_PROBE 8    /* the first of them comes early */
#define STORES_LEAST_BYTES 8192 /* less says nothing: looking at the clock takes as long */
#define STORES_TIMED 16         /* one in so many of the usual operations is timed; of the others all */

/* What writing or reading costs: ns per 64 KiB, smoothed; into the caches, past them; 0: not known. */
struct stores_cost {
    uint32_t ns[2];
    uint32_t seen;
    bool last; /* the way of the last operation */
};

/* Whether an operation on `bytes` that were (are to be) written `past` the caches or not is worth timing. */
bool stores_curious(struct stores_cost *cost, bool past, size_t bytes);

/* It took `ns`. */
void stores_note(struct stores_cost *cost, bool past, size_t bytes, uint64_t ns);

struct stores_writer {
    struct stores_cost cost;
    uint32_t writes;
    bool past; /* the way that is found better so far */
};

/* The way of the next write; `readers`: what reading costs the readers, added up, as stores_cost.ns. */
bool stores_choose(struct stores_writer *writer, const uint64_t readers[2]);

#endif
