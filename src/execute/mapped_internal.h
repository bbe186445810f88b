/*
 * What mapped.c and fetch.c share: a call that works on the buffers of other
 * ranks, either where they are mapped or by copying from the other processes.
 */
#ifndef EXECUTE_MAPPED_INTERNAL_H
#define EXECUTE_MAPPED_INTERNAL_H

#include "execute/blocks.h"
#include "execute/mapped.h"

#define PIECE_BYTES (256u << 10) /* moved between two looks at the rest of the world */
#define MAPPED_FETCH_TILE (32u << 10)

struct mapped {
    int rank, size;
    struct segment *const *segments;
    struct exports *exports;
    struct board_call call;
    struct mapped_notice *own;
    struct mapped_notice **notices; /* per rank, copies; [rank] is the own one */
    char *room;                     /* for them */
    int heard;
    bool no;
    bool spread; /* Broadcast into outputs that all can reach */

    bool fetch; /* verdict MAPPED_FETCH: what others have is copied by process_vm_readv */

    uint32_t number;
    const char **in; /* per rank, addresses here, or there if fetched */
    char **out;
    const void **sources;
    size_t at, end; /* of the bytes this rank moves: those that are left */
    bool stream, moving;
    char *tile;
    const int *pids; /* per rank; NULL: nothing can be fetched */
    char *fetched;   /* a tile per rank */
    bool results;    /* AllReduce by fetching: the second half, in which the results are fetched */
};

static inline void mapped_copy(const struct mapped *m, char *to, const char *from, size_t bytes)
{
    if (to != from)
        compute_copy(to, from, bytes, m->stream);
}

/* fetch.c: the next piece of a call that fetches; adds what it moved to m->at. */
polypath_result_t fetch_piece(struct mapped *mapped);

#endif
