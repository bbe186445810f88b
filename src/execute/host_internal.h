/*
 * What the files of the host executor share: host.c (calls and steps),
 * host_queue.c (sending), host_sink.c (receiving), host_wait.c (waiting).
 */
#ifndef EXECUTE_HOST_INTERNAL_H
#define EXECUTE_HOST_INTERNAL_H

#include "execute/host.h"
#include "system/clock.h"
#include "system/error.h"

#define NOBODY UINT32_MAX
#define STEP_DONE UINT16_MAX

/* A list of (row, step) ids, linked through host->next. */
struct list {
    uint32_t head, tail; /* NOBODY when empty */
};

/*
 * What is ready to be sent to one peer over one path. Results go before fresh
 * input: they are still in the cache, and they let rows end.
 */
struct send_queue {
    struct list results, input;
    uint64_t bytes;
};

struct host_peer {
    struct link *links[HOST_LINKS_PER_PEER];
    int nlinks;
    struct send_queue queues[HOST_PATHS];
    int queue_of_path[HOST_PATHS];
    uint32_t queued;                 /* frames in all queues */
    uint64_t sends_left, recvs_left; /* messages of this call */
    uint64_t sends_all, recvs_all;
    uint32_t points_sent, points_received; /* messages of all ended calls */
    uint32_t call_points_sent, call_points_received;
    int control_fd;
    struct segment *segment;
    bool lost;  /* its process has gone */
    bool gone;  /* every way to it was found closed once already, when idle */
    bool early; /* `early_frame` belongs to a call that has not begun here */
    struct frame early_frame;
};

/*
 * Where the data of one scratch slot of one row lies: in a piece of the scratch
 * memory, taken from a stack so that the piece used last, which is still in the
 * cache, is used next; or with the link that has lent it.
 */
struct place {
    char *data;        /* NULL: nothing there */
    struct link *link; /* that has lent it; NULL: own memory */
    uint32_t token, bytes;
    uint16_t reads; /* steps that will still read it */
    bool pinned;    /* being sent from: must stay where it is */
};

struct host {
    struct link_sink sink; /* first: the links' view */
    struct host_config config;
    struct host_peer *peers;
    struct link **links;
    int nlinks, links_room;
    int ntcp; /* links with a descriptor */
    int epoll_fd;
    int wake_fd;      /* own eventfd where there is no segment; -1 otherwise */
    uint32_t backlog; /* frames queued for all peers */

    /* the call */
    bool active;
    struct host_call call;
    uint64_t begin_ns;
    uint32_t next_row[HOST_PATHS];    /* first row of the path that has not started */
    uint32_t window[HOST_PATHS];      /* rows of the path in flight at most */
    uint32_t scratch_row[HOST_PATHS]; /* index of the path's first scratch row */
    uint32_t rows_left;
    polypath_result_t failure; /* set by the sink */
    char abort_text[ERROR_TEXT_BYTES];

    /* arrays over rows and steps; grown, never shrunk */
    uint16_t *need;       /* [row * nsteps + step]: predecessors left; STEP_DONE when done */
    uint32_t *next;       /* [row * nsteps + step]: send queues and the ready list */
    uint32_t *left;       /* [row]: steps left */
    struct place *places; /* [scratch row * nscratch + slot] */
    size_t nplaces, nlent;
    uint32_t *free_pieces; /* stack */
    size_t nfree, nfresh;  /* pieces on the stack; pieces ever used in this call */
    const void **pointers; /* sources of one reduction */
    char *scratch;
    size_t states_room, rows_room, places_room, pieces_room, pointers_room, scratch_room;
    struct list ready; /* steps to run now */

    /* waiting */
    uint64_t idle;
    bool (*peek)(void *context);
    void *peek_context;
    atomic_bool interrupted; /* set by any thread, relaxed: only a request to look */
    uint64_t handed_over;
};

static inline uint32_t state_of(const struct host *h, uint32_t row, uint32_t step)
{
    return row * (uint32_t)h->call.schedule->nsteps + step;
}

static inline void list_clear(struct list *l)
{
    *l = (struct list){NOBODY, NOBODY};
}

static inline void list_push(struct host *h, struct list *q, uint32_t id)
{
    h->next[id] = NOBODY;
    if (q->head == NOBODY)
        q->head = id;
    else
        h->next[q->tail] = id;
    q->tail = id;
}

static inline uint32_t list_pop(struct host *h, struct list *q)
{
    uint32_t id = q->head;
    q->head = h->next[id];
    if (q->head == NOBODY)
        q->tail = NOBODY;
    return id;
}

static inline bool list_empty(const struct list *q)
{
    return q->head == NOBODY;
}

/* The path whose range the row is in. */
static inline int host_path_of(const struct host *h, uint32_t row)
{
    int p = 0;
    while (row >= h->call.first_row[p + 1])
        p++;
    return p;
}

/* host.c */
size_t host_slice_bytes(const struct host *h, struct slice slice, uint32_t row);
char *host_slice_address(struct host *h, struct slice slice, uint32_t row); /* for writing */
const char *host_source_address(struct host *h, struct slice slice, uint32_t row);
struct place *host_place(const struct host *h, struct slice slice, uint32_t row);
void host_complete(struct host *h, uint32_t row, uint32_t step);

void host_free_piece(struct host *h, const char *data);

/* Copies what links have lent into scratch and gives it back, so that no link stands still while this rank waits. */
void host_take_back(struct host *h);

/* host_queue.c */
void host_enqueue(struct host *h, uint32_t row, uint32_t step);
polypath_result_t host_dispatch(struct host *h, uint64_t *moved);
void host_sent(struct link_sink *sink, struct link *link, uint64_t cookie, uint32_t bytes);

/* host_sink.c */
enum sink_answer host_sink_begin(struct link_sink *sink, struct link *link, const struct frame *frame,
                                 void **destination, bool *borrow);
void host_sink_end(struct link_sink *sink, struct link *link, const struct frame *frame, const void *borrowed,
                   uint32_t token);
void host_describe(const struct host *h, char *text, size_t bytes);

/* host_wait.c */
polypath_result_t host_wait_open(struct host *h);
polypath_result_t host_watch_link(struct host *h, struct link *link);
polypath_result_t host_watch_control(struct host *h, int peer);
void host_poll_events(struct host *h, int timeout_ms);
polypath_result_t host_check_peers(struct host *h);
polypath_result_t host_peer_failed(struct host *h, int peer, const char *why);
polypath_result_t host_timeout(struct host *h);

#endif
