/*
 * Communicators inside the library: their data, and the order in which their
 * calls run. Files: create.c (creation, split, destruction), paths.c (which
 * paths there are; pure), connect.c (links), call.c (one call from submission
 * to completion), drive.c (who moves it: caller or helper thread), tune.c
 * (measuring, the balancer, the cache), point.c (point to point), small.c
 * (small calls of one host), window.c (registered memory), shrink.c.
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <pthread.h>
#include <stdatomic.h>

#include "balance/balance.h"
#include "comm/handshake.h"
#include "execute/board.h"
#include "execute/host.h"
#include "schedule/model.h"
#include "schedule/schedule.h"
#include "system/error.h"
#include "system/settings.h"
#include "topology/interfaces.h"
#include "topology/numa.h"

/* ------------------------------------------------------------------- paths */

#define RANK_SETTINGS_BYTES 4096

/* What every rank tells the others first. Plain bytes: ranks of unlike byte order are refused. */
struct rank_info {
    uint32_t byte_order; /* 0x01020304 */
    uint32_t version;    /* polypath_version() */
    char host[72];       /* equal on ranks that share memory */
    char host_name[64];
    char machine[64];  /* equal on ranks that share cores (several hosts of a lab may be one machine) */
    uint64_t cpus[16]; /* mask of the cores that this rank may run on */
    int32_t pid;
    int32_t failed; /* the rank cannot take part; `settings` says why */
    int32_t ninterfaces;
    int32_t numa_node; /* that the rank runs on; NUMA_UNBOUND */
    struct interface interfaces[INTERFACES_MAX];
    char cpu[64];
    char settings[RANK_SETTINGS_BYTES]; /* "name=value\n" for every agreed setting */
};

struct comm_path {
    char name[32];
    char kind[16];
    bool between_hosts;
    uint64_t latency_ns, bytes_per_us; /* measured alone; 0 = not measured */
};

/* Where the ranks are. */
struct comm_layout {
    int size, nhosts;
    int *host_of;    /* per rank */
    int *first_rank; /* per host */
    int *local_size; /* per host */
    /*
     * What two-level algorithms take together. One level only: the hosts where
     * there are several; on one host the NUMA nodes, if every rank is on one and
     * there are several; else one group.
     */
    int ngroups;
    int *group_of; /* per rank */
    bool by_node;  /* groups are NUMA nodes */
};

/* Finds the hosts, and the groups. Arrays are allocated; layout_free. Pure. */
polypath_result_t layout_build(const struct rank_info *infos, int size, enum numa_mode numa,
                               struct comm_layout *layout);
void layout_free(struct comm_layout *layout);

/*
 * The paths that connect all ranks: on one host shm, cma and (where named or
 * nothing else is left) the loopback interface; between hosts one per network
 * that every host is on. interface_of[path * nhosts + host] = index into that
 * host's interfaces, -1 for paths without. Pure: every rank computes the same.
 */
struct path_choice {
    int npaths;
    struct comm_path paths[HOST_PATHS];
    int *interface_of; /* allocated */
};
polypath_result_t paths_choose(const struct rank_info *infos, const struct comm_layout *layout,
                               const struct settings *settings, struct path_choice *choice);

/* ------------------------------------------------------------------- calls */

enum call_state { CALL_FREE, CALL_QUEUED, CALL_RUNNING, CALL_DONE };

/* One point-to-point operation of a group. */
struct point {
    bool send;
    int peer;
    const void *send_buffer;
    void *recv_buffer;
    size_t bytes;
    polypath_type_t type;
};

/* One operation. Requests of the API are pointers to these. */
struct polypath_request {
    struct polypath_comm *comm;
    struct polypath_request *next;  /* in the queue, or in the free list */
    struct polypath_request *older; /* of all that the communicator has made, whoever holds them */
    atomic_int state;               /* enum call_state; DONE is stored with release, after result */
    polypath_result_t result;
    bool internal; /* not counted as the user's */

    polypath_collective_t collective;
    polypath_type_t type;
    polypath_op_t op;
    int root;
    uint64_t count; /* for the frame */
    uint64_t bytes; /* what nccl-tests calls size: key of the shares */
    uint32_t variant;
    const void *send;
    void *recv;
    unsigned char scalar[8];
    bool scaled;
    const void *scalar_on_device; /* read when the operation runs (frontends/cuda_stage.c); NULL: it is in `scalar` */

    /* blocks; arrays of `blocks_room` */
    int nblocks;
    int blocks_room;
    void **input, **output;
    size_t *input_bytes, *output_bytes;

    struct point *points;
    uint8_t *point_types;
    int npoints, points_room;

    /* while running */
    struct schedule *schedule;
    bool schedule_owned;
    struct host_call host;
    struct balance_key key;
    uint32_t shares[BALANCE_PATHS];
    bool observe;
    bool on_board;      /* small, or staged: see small.c */
    bool staged;        /* too large for the board itself: over the stages, or past them */
    int staged_path;    /* which path that counts for: shm, or cma where ranks fetch from each other */
    uint64_t begin_ns;  /* when it began, if staged */
    size_t block_bytes; /* of one block, or of the whole for AllReduce, Reduce, Broadcast */
};

struct schedule_entry {
    polypath_collective_t collective;
    enum schedule_algorithm algorithm;
    int root;
    bool scaled;
    struct schedule *schedule;
};

struct choice_entry {
    uint64_t bytes;
    bool known;
    polypath_collective_t collective;
    enum schedule_algorithm algorithm;
    bool past_stages; /* even where the call could go over stages */
};

#define POINT_CACHE 8
struct point_entry {
    int npoints;
    int *shape; /* peer << 1 | send, per point */
    struct schedule *schedule;
};

/* Sums over the window of calls of one key since it was last agreed. */
struct window {
    struct balance_key key;
    uint64_t bytes;
    uint32_t calls;
    struct balance_sample sum;
};
#define WINDOWS 64

struct scaled_op {
    bool used;
    polypath_type_t type;
    unsigned char scalar[8];
    const void *on_device; /* where a GPU has the scalar; NULL: above */
};
#define SCALED_OPS 64

/*
 * The small call that was made last, checked and prepared: programs repeat
 * themselves. What a call needs beyond this is its two buffers.
 */
struct small_memo {
    bool known;
    polypath_collective_t collective;
    polypath_type_t type;
    polypath_op_t op;
    int root;
    size_t count;
    struct board_call call;        /* all but the buffers and the number */
    size_t send_bytes, recv_bytes; /* that this rank reads and writes; 0: it passes no such buffer */
    bool in_place_form;
    ptrdiff_t in_place; /* sendbuf - recvbuf in the in-place form */
};

/* Registered memory; windows of a communicator are in its list (frontends/c_memory.c). */
struct polypath_window {
    struct polypath_window *next;
    void *buffer;
    bool held;   /* by exports_hold */
    bool counts; /* usable on all ranks: one of comm->registered */
};

/*
 * What is attached to a communicator by a frontend and queues operations of
 * its own (frontends/cuda_worker.c). Any thread but the attachment's own.
 */
struct attachment {
    /* Waits until its operations queued so far have ended. */
    void (*settle)(struct attachment *attachment);
    /* The communicator has been aborted: lets go of whoever waits for its operations. */
    void (*abort)(struct attachment *attachment);
    /* The communicator goes: ends and frees the attachment. */
    void (*stop)(struct attachment *attachment);
};

struct polypath_comm {
    int rank, size;
    uint64_t id;
    uint8_t secret[HANDSHAKE_SECRET_BYTES];
    struct settings settings; /* agreed: rank 0's where it matters */
    char *settings_text;      /* what the strings in it point to */
    struct comm_layout layout;
    bool one_host, oversubscribed;
    int cores; /* that the ranks of this machine may use together */
    char cpu[64];
    int npaths;
    struct comm_path paths[HOST_PATHS];
    uint32_t allowed; /* bit p: may be used */
    uint32_t working; /* bit p: works between all ranks */
    struct segment *segment, **peer_segments, **board_segments;
    struct board *board;     /* NULL: several hosts, or no shared memory */
    struct exports *exports; /* NULL: likewise, or not wanted */
    uint32_t registered;     /* windows that are usable; the same on all ranks */
    struct polypath_window *first_window;
    struct small_memo small;
    int shm_path; /* index of path shm, or -1 */
    int cma_path; /* likewise */
    int *pids;    /* per rank */
    int *control_fds;
    struct host *host;
    struct balance *balance;
    struct balance *point_balance; /* of point to point: each rank's own, never agreed */
    struct model model;
    struct rank_info *infos;

    struct schedule_entry *schedules;
    int nschedules, schedules_room;
    struct point_entry point_cache[POINT_CACHE];
    int point_next;

    _Atomic(struct attachment *) attached; /* NULL: nothing */

    atomic_bool driven; /* somebody moves the queue just now (drive.c) */

    /* guarded by lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool wanted; /* a caller waits to become that somebody */
    bool helper_running, helper_stop;
    pthread_t helper;
    struct polypath_request *head, *tail, *free_calls;
    struct polypath_request *all_calls; /* freed with the communicator, also those that nobody waits for */

    /* only the driver touches these */
    struct polypath_request *current;  /* the call under way; NULL between calls */
    uint64_t test_moved_ns;            /* since when polypath_test has seen nothing move; 0: it moves */
    bool measuring;                    /* measuring calls do not go over boards */
    uint32_t fixed_shares[HOST_PATHS]; /* setting `shares`; all 0: balanced */
    struct choice_entry choices[16];   /* algorithms chosen lately */
    uint32_t next_call;
    struct window windows[WINDOWS], point_windows[WINDOWS];
    int nwindows, npoint_windows;
    bool exchange_due;
    struct window exchange_window;
    struct polypath_request *exchange_call;
    uint64_t *exchange_send, *exchange_recv;

    /* failure: text is written before code (release), and never changes afterwards */
    atomic_int failure;
    char failure_text[ERROR_TEXT_BYTES];

    struct scaled_op scaled_ops[SCALED_OPS];
    uint32_t splits, shrinks;
    uint64_t staged_bytes[HOST_PATHS], staged_calls[HOST_PATHS]; /* past the paths' links */
    bool cache_changed;
    polypath_statistics_t statistics;
    double last_shares[POLYPATH_COLLECTIVE_COUNT][HOST_PATHS];
    const char *last_algorithm[POLYPATH_COLLECTIVE_COUNT];
};

/* A free call object, or NULL with the error set. `nblocks` arrays are ready. */
struct polypath_request *call_new(struct polypath_comm *comm, int nblocks);
void call_release(struct polypath_request *call);

/* Queues a filled call. The communicator must not have failed. */
void call_submit(struct polypath_request *call);

/* Begins and ends the calls of the queue (driver only). *idle: nothing moved. */
polypath_result_t call_advance(struct polypath_comm *comm, bool *idle);

/* The failure, as an error of the calling thread; POLYPATH_SUCCESS if there is none. */
polypath_result_t comm_check(struct polypath_comm *comm);

/* If polypath_comm_abort was called: makes the communicator fail. Driver only. Returns the failure, if any. */
polypath_result_t comm_check_abort(struct polypath_comm *comm);

/*
 * Makes the communicator fail, unless it has already: every queued call ends
 * with this. `text` NULL: the thread's error text. Driver only.
 */
void comm_fail(struct polypath_comm *comm, polypath_result_t code, const char *text);

/* drive.c: moves the queue until the call is done; returns its result. Does not release it. */
polypath_result_t drive_until_done(struct polypath_request *call);

/*
 * drive.c: becomes the driver if nobody is; and lets go. drive_hold waits for
 * it (to look at what only the driver may touch).
 */
bool drive_try(struct polypath_comm *comm);
void drive_hold(struct polypath_comm *comm);
void drive_let_go(struct polypath_comm *comm);

/*
 * drive.c: for calls past the queue: becomes the driver if nothing is queued
 * and nobody else would have to be told, neither a helper thread nor whoever
 * asked for an interruption; and lets go, without a lock.
 */
bool drive_try_alone(struct polypath_comm *comm);
void drive_let_go_alone(struct polypath_comm *comm);

/* drive.c: moves the queue a little if nobody else does; true if the call is done. */
bool drive_test(struct polypath_request *call);

/* drive.c: starts the helper thread if settings and cores allow. */
void drive_want_helper(struct polypath_comm *comm);
void drive_stop(struct polypath_comm *comm);

/* drive.c: several calls of several communicators at once (groups). */
polypath_result_t drive_all(struct polypath_request **calls, int ncalls);

/* call.c helpers */
/* Whether there is an algorithm for this collective on this communicator, as it is set. */
bool call_possible(const struct polypath_comm *comm, polypath_collective_t collective);
void call_describe(const struct polypath_request *call, struct frame *frame, struct compute_op *op);
struct schedule *call_schedule(struct polypath_comm *comm, polypath_collective_t collective,
                               enum schedule_algorithm algorithm, int root, bool scaled);

/* point.c */
#define POINTS_AT_ONCE 8
/*
 * Does at once what can be done so of a few small messages on one host; what is
 * left is moved to the front. Returns how many are left.
 */
int point_at_once(struct polypath_comm *comm, struct point *points, int npoints);
struct schedule *point_schedule(struct polypath_comm *comm, const struct point *points, int npoints, bool *owned);
polypath_result_t point_match_self(const struct point *points, int npoints, int rank);

/* Runs a collective of the library's own, to its end. */
polypath_result_t comm_internal(struct polypath_comm *comm, polypath_collective_t collective, const void *send,
                                void *recv, size_t count, polypath_type_t type, polypath_op_t op, int root);

/* Fills blocks, count, bytes and variant of a call whose arguments are set. counts/displs for the V forms. */
void call_fill(struct polypath_request *call, const void *send, void *recv, size_t count);

/* tune.c */
polypath_result_t tune_start(struct polypath_comm *comm);
void tune_finish(struct polypath_comm *comm);
struct model_link tune_between_nodes(const struct model_link *within); /* what the model takes two NUMA nodes for */
void tune_shares(struct polypath_request *call);                       /* fills key, shares, observe */
void tune_observe(struct polypath_request *call);                      /* after the call */
void tune_remember(struct polypath_request *call);    /* what the user may ask for: shares of the last call */
void tune_exchange_begin(struct polypath_comm *comm); /* fills exchange_call */
void tune_exchange_end(struct polypath_comm *comm);

/* small.c */
/* How calls past the executor go, for polypath_comm_algorithm(). One address each. */
extern const char small_board[], small_stage[], small_mapped[], small_fetch[], small_direct[];

/* What the user may ask for: a call went this way, all of it over this path. */
void small_remember(struct polypath_comm *comm, polypath_collective_t collective, const char *algorithm, int path);
polypath_result_t small_start(struct polypath_comm *comm);
void small_stop(struct polypath_comm *comm);
bool small_takes(const struct polypath_comm *comm, polypath_collective_t collective, size_t bytes, uint32_t variant);

/*
 * Runs a call that small_takes, blocking; false if it has to go through the
 * queue. Fills in frame.call. Fails the communicator on errors.
 */
bool small_call(struct polypath_comm *comm, struct board_call *call, polypath_result_t *result);

/* What can be said of a board call that does not move; and the check that no rank is in the other kind of call. */
polypath_result_t small_check(struct polypath_comm *comm, const struct frame *mine, uint64_t *begin_ns);
polypath_result_t small_compare(struct polypath_comm *comm, const struct frame *mine, bool on_board);

/* window.c */
/* Collective; `bytes` may differ. A buffer that cannot be used is a fallback, no error. */
polypath_result_t window_register(struct polypath_comm *comm, void *buffer, size_t bytes,
                                  struct polypath_window **window);
polypath_result_t window_deregister(struct polypath_comm *comm, struct polypath_window *window);
void window_forget_all(struct polypath_comm *comm);

/* connect.c */
typedef polypath_result_t exchange_function(void *context, const void *mine, size_t bytes, void *all);
polypath_result_t connect_all(struct polypath_comm *comm, const struct path_choice *choice, exchange_function *exchange,
                              void *context);

/* create.c */
/* Waits for what an attachment has queued, so that operations keep their order. */
void comm_settle(struct polypath_comm *comm);

/* Waits for everything that has been submitted; the result of what was last. */
polypath_result_t comm_drain(struct polypath_comm *comm);
polypath_result_t comm_create(struct polypath_comm **out, int rank, int size, uint64_t id,
                              const uint8_t secret[HANDSHAKE_SECRET_BYTES], exchange_function *exchange, void *context);
void comm_free(struct polypath_comm *comm);

#endif
