/*
 * One operation with everything around it: buffers with guard bytes, inputs,
 * the call, and a look at every byte afterwards. The same on all ranks, from
 * the same description. Knows nothing of processes.
 */
#ifndef SUPPORT_EXERCISE_H
#define SUPPORT_EXERCISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "polypath/polypath.h"

enum exercise_kind {
    EXERCISE_ALL_REDUCE,
    EXERCISE_REDUCE,
    EXERCISE_REDUCE_SCATTER,
    EXERCISE_REDUCE_SCATTER_V, /* the last that reduces */
    EXERCISE_BROADCAST,
    EXERCISE_ALL_GATHER,
    EXERCISE_ALL_GATHER_V,
    EXERCISE_ALL_TO_ALL,
    EXERCISE_ALL_TO_ALL_V,
    EXERCISE_GATHER,
    EXERCISE_SCATTER,
    EXERCISE_SEND_RECV, /* a ring shift in a group; has no non-blocking form */
    EXERCISE_BARRIER,
    EXERCISE_KINDS
};

struct exercise {
    /* the description */
    enum exercise_kind kind;
    polypath_type_t type;
    int op;       /* polypath_op_t or REFERENCE_SCALED */
    size_t count; /* the V forms: the most that one rank has */
    int root;
    bool in_place; /* where there is such a form */
    size_t offset; /* bytes by which buffers are off alignment */
    uint64_t seed; /* equal on all ranks */
    char *pool;    /* where this rank's buffers are taken from; NULL: malloc */
    size_t pool_bytes;

    /* kept while it runs */
    polypath_comm_t comm;
    int rank, size;
    char *send, *recv;
    size_t *numbers; /* counts and displacements of the V forms */
    polypath_op_t handle;
    polypath_request_t request;
    struct exercise_buffer {
        char *base, *image; /* what is in memory, and what must be afterwards */
        size_t bytes;
    } buffers[2];
};

/* Whether the kind reduces, has a root, has a non-blocking form. */
bool exercise_reduces(enum exercise_kind kind);
bool exercise_rooted(enum exercise_kind kind);
bool exercise_can_start(enum exercise_kind kind);

/* Blocking, from beginning to end. NULL, or what was wrong (static). */
const char *exercise_run(struct exercise *e, polypath_comm_t comm);

/* In two halves; with `start` non-blocking (e->request), else only prepared: exercise_call() makes the call. */
const char *exercise_begin(struct exercise *e, polypath_comm_t comm, bool start);
const char *exercise_call(struct exercise *e);

/* After the request is complete: looks at every byte, frees everything. */
const char *exercise_end(struct exercise *e);

/* "all_reduce float32 sum count 7 root 0 in place offset 1 seed 5"; static. */
const char *exercise_text(const struct exercise *e);

#endif
