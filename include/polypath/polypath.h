/*
 * polypath.h - collective communication over every path between ranks at once.
 *
 * How to read this header: communicators first, then the collectives in their
 * blocking form, then point-to-point and groups, then the non-blocking form
 * (one `_start` function per operation, and test/wait), then what is for
 * looking inside: paths, shares, settings.
 *
 * Rules that hold everywhere:
 *  - Every function returns POLYPATH_SUCCESS or an error; the text of the last
 *    error of the calling thread is polypath_last_error().
 *  - `count` is a number of elements, `bytes` a number of bytes.
 *  - Bad arguments are refused before anything moves.
 *  - Operations on one communicator run in the order in which they were
 *    issued, and all ranks must issue the collectives of a communicator in the
 *    same order. To have several point-to-point transfers in flight at once,
 *    put them in a group, or use several communicators.
 *  - "In place" is as NCCL defines it: for AllReduce, Reduce and Broadcast
 *    sendbuf == recvbuf; for AllGather sendbuf == recvbuf + rank * count
 *    elements; for ReduceScatter recvbuf == sendbuf + rank * count elements;
 *    for Gather the root's sendbuf == recvbuf + root * count elements; for
 *    Scatter the root's recvbuf == sendbuf + root * count elements. Any other
 *    overlap of send and receive buffers is an error. AllToAll has no in-place
 *    form.
 *  - Buffers are host memory and belong to the caller; they must stay valid
 *    and, for the send side, unchanged until the operation is complete.
 *  - A communicator may be used by one thread at a time; different
 *    communicators may be used by different threads at the same time.
 *  - Every wait has a deadline (setting `timeout_ms`): if nothing at all moves
 *    for that long the call returns POLYPATH_ERROR_TIMEOUT. After an error in
 *    an operation (not in its arguments) the communicator refuses every
 *    further operation with the same message.
 */
#ifndef POLYPATH_H
#define POLYPATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define POLYPATH_VERSION_MAJOR 0
#define POLYPATH_VERSION_MINOR 1
#define POLYPATH_VERSION_PATCH 0

/* ------------------------------------------------------------------ results */

typedef enum {
    POLYPATH_SUCCESS = 0,
    POLYPATH_ERROR_ARGUMENT = 1,      /* an argument is wrong; nothing was moved */
    POLYPATH_ERROR_USAGE = 2,         /* a call that is not allowed in this state */
    POLYPATH_ERROR_SYSTEM = 3,        /* the operating system refused something */
    POLYPATH_ERROR_OUT_OF_MEMORY = 4, /* memory, shared memory or descriptors ran out */
    POLYPATH_ERROR_TIMEOUT = 5,       /* nothing moved until the deadline */
    POLYPATH_ERROR_PEER_LOST = 6,     /* another rank died or closed its connection */
    POLYPATH_ERROR_MISMATCH = 7,      /* ranks called different things */
    POLYPATH_ERROR_ABORTED = 8,       /* the communicator was aborted */
    POLYPATH_ERROR_UNSUPPORTED = 9,   /* not possible here; the text says why */
    POLYPATH_ERROR_INTERNAL = 10      /* a fault of the library */
} polypath_result_t;

/* A short, constant name of a result, for example "timeout". Never NULL. */
const char *polypath_result_name(polypath_result_t result);

/*
 * The text of the last error that a polypath function reported to the calling
 * thread; "" if there was none. Valid until the thread's next failing call.
 */
const char *polypath_last_error(void);

/* The version of the library in use: major * 10000 + minor * 100 + patch. */
int polypath_version(void);

/* ---------------------------------------------------------- types and ops */

/* Element types. The values are NCCL's. */
typedef enum {
    POLYPATH_INT8 = 0,
    POLYPATH_UINT8 = 1,
    POLYPATH_INT32 = 2,
    POLYPATH_UINT32 = 3,
    POLYPATH_INT64 = 4,
    POLYPATH_UINT64 = 5,
    POLYPATH_FLOAT16 = 6,
    POLYPATH_FLOAT32 = 7,
    POLYPATH_FLOAT64 = 8,
    POLYPATH_BFLOAT16 = 9,
    POLYPATH_FLOAT8_E4M3 = 10, /* OCP OFP8 E4M3: no infinities, saturating never; NaN = S.1111.111 */
    POLYPATH_FLOAT8_E5M2 = 11, /* OCP OFP8 E5M2: IEEE-like */
    POLYPATH_TYPE_COUNT = 12
} polypath_type_t;

/* Bytes of one element; 0 for an unknown type. */
size_t polypath_type_bytes(polypath_type_t type);

/* A short name such as "float32"; "unknown" for an unknown type. */
const char *polypath_type_name(polypath_type_t type);

/*
 * Reductions. The values of the built-in ones are NCCL's; values at or above
 * POLYPATH_OP_COUNT are handles from polypath_op_create_scaled_sum().
 * float16, bfloat16 and float8 are accumulated in float32. The average divides
 * once, at the end; for integer types it truncates towards zero.
 * Integer sums and products wrap around.
 */
typedef int polypath_op_t;
enum {
    POLYPATH_SUM = 0,
    POLYPATH_PROD = 1,
    POLYPATH_MAX = 2,
    POLYPATH_MIN = 3,
    POLYPATH_AVG = 4,
    POLYPATH_OP_COUNT = 5
};

/* ---------------------------------------------------------- communicators */

typedef struct polypath_comm *polypath_comm_t;

#define POLYPATH_UNIQUE_ID_BYTES 128

/*
 * Names one communicator to be created, and carries the secret by which its
 * ranks recognise each other: hand it over by a channel you trust (an MPI
 * broadcast, a file of mode 0600), never on a command line.
 */
typedef struct {
    char bytes[POLYPATH_UNIQUE_ID_BYTES];
} polypath_unique_id_t;

/*
 * Makes a new unique id and starts, in this process, the small service at
 * which the ranks meet. The service ends by itself when the communicator has
 * been created. Does not block.
 */
polypath_result_t polypath_get_unique_id(polypath_unique_id_t *id);

/*
 * Creates a communicator of `size` ranks. Every rank calls it with the same id
 * and its own rank in [0, size). Blocks until all have, or until the deadline.
 * Argument order as ncclCommInitRank.
 */
polypath_result_t polypath_comm_create(polypath_comm_t *comm, int size, polypath_unique_id_t id, int rank);

/*
 * Creates the communicator of all processes of this job, from what the
 * launcher left in the environment: polypath run, mpirun (Open MPI, MPICH),
 * srun, or torchrun. A process started without a launcher becomes the single
 * rank of a communicator of size 1. Blocks like polypath_comm_create().
 */
polypath_result_t polypath_comm_create_from_env(polypath_comm_t *comm);

/*
 * Collective over `parent`: ranks that pass the same non-negative `color` form a
 * new communicator, ordered by `key`, then by rank. A rank that passes
 * POLYPATH_NO_COLOR gets NULL. Blocks.
 */
#define POLYPATH_NO_COLOR (-1)
polypath_result_t polypath_comm_split(polypath_comm_t parent, int color, int key, polypath_comm_t *new_comm);

/*
 * A communicator of the ranks of `parent` that are not among the
 * `excluded_count` (0 allowed) of `excluded_ranks`, in the same order. Called
 * by these only, all with the same list and flags; the others may be dead.
 * With POLYPATH_SHRINK_ABORT the parent is aborted first, and may have failed;
 * without, nothing may be under way on it. The parent must still be destroyed.
 * The new communicator's secret is derived from the parent's. Blocks like
 * polypath_comm_create().
 */
#define POLYPATH_SHRINK_ABORT 1
polypath_result_t polypath_comm_shrink(polypath_comm_t parent, const int *excluded_ranks, int excluded_count,
                                       polypath_comm_t *new_comm, int flags);

/*
 * Waits for the operations in flight and frees the communicator. NULL is
 * allowed. Does not wait for other ranks longer than the deadline.
 */
polypath_result_t polypath_comm_destroy(polypath_comm_t comm);

/*
 * Ends the communicator at once on this rank and tells the others: their
 * operations return POLYPATH_ERROR_ABORTED. May be called from another thread
 * than the one that is inside an operation. The communicator must still be
 * destroyed.
 */
polypath_result_t polypath_comm_abort(polypath_comm_t comm);

polypath_result_t polypath_comm_rank(polypath_comm_t comm, int *rank);
polypath_result_t polypath_comm_size(polypath_comm_t comm, int *size);

/* POLYPATH_SUCCESS, or the error after which the communicator refuses work. */
polypath_result_t polypath_comm_status(polypath_comm_t comm);

/*
 * An op that multiplies each rank's input by that rank's own *scalar (one
 * element of `type`, read now) and sums the products. For use on this
 * communicator with this type only; free it with polypath_op_destroy().
 */
polypath_result_t polypath_op_create_scaled_sum(polypath_op_t *op, const void *scalar, polypath_type_t type,
                                                polypath_comm_t comm);
polypath_result_t polypath_op_destroy(polypath_op_t op, polypath_comm_t comm);

/* ------------------------------------------------- collectives (blocking) */

/* recvbuf[i] = op over all ranks of sendbuf[i]; both of `count` elements. */
polypath_result_t polypath_all_reduce(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                      polypath_op_t op, polypath_comm_t comm);

/* As AllReduce, but only the root's recvbuf is written (others may pass NULL). */
polypath_result_t polypath_reduce(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                  polypath_op_t op, int root, polypath_comm_t comm);

/* Root's sendbuf goes to every rank's recvbuf. sendbuf is read at the root only. */
polypath_result_t polypath_broadcast(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type, int root,
                                     polypath_comm_t comm);

/* recvbuf has size * count elements: rank r's sendbuf (count elements) at r * count. */
polypath_result_t polypath_all_gather(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                      polypath_comm_t comm);

/*
 * Rank r contributes recvcounts[r] elements, which arrive at element
 * displs[r] of every recvbuf. recvcounts and displs (size entries each) must
 * be equal on all ranks; sendcount == recvcounts[rank]. The ranges must not
 * overlap. displs == NULL means one after another.
 */
polypath_result_t polypath_all_gather_v(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                                        const size_t *displs, polypath_type_t type, polypath_comm_t comm);

/* sendbuf has size * count elements; recvbuf = the reduction of elements rank * count onwards. */
polypath_result_t polypath_reduce_scatter(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                          polypath_op_t op, polypath_comm_t comm);

/* As ReduceScatter with recvcounts[r] elements for rank r; recvcounts equal on all ranks. */
polypath_result_t polypath_reduce_scatter_v(const void *sendbuf, void *recvbuf, const size_t *recvcounts,
                                            polypath_type_t type, polypath_op_t op, polypath_comm_t comm);

/* Both buffers have size * count elements: block j of rank i's sendbuf becomes block i of rank j's recvbuf. */
polypath_result_t polypath_all_to_all(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                      polypath_comm_t comm);

/*
 * sendcounts[j] elements at sdispls[j] go to rank j; recvcounts[i] elements
 * from rank i arrive at rdispls[i]. What i sends to j must equal what j
 * expects from i. NULL displacements mean one after another.
 */
polypath_result_t polypath_all_to_all_v(const void *sendbuf, const size_t *sendcounts, const size_t *sdispls,
                                        void *recvbuf, const size_t *recvcounts, const size_t *rdispls,
                                        polypath_type_t type, polypath_comm_t comm);

/* Root's recvbuf (size * count elements) gets rank r's sendbuf at r * count. Others may pass recvbuf NULL. */
polypath_result_t polypath_gather(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type, int root,
                                  polypath_comm_t comm);

/* Block r of the root's sendbuf (size * count elements) goes to rank r. Others may pass sendbuf NULL. */
polypath_result_t polypath_scatter(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type, int root,
                                   polypath_comm_t comm);

/* Returns when every rank has called it. */
polypath_result_t polypath_barrier(polypath_comm_t comm);

/* ------------------------------------------------------ registered memory */

/*
 * Memory that the other ranks of the host can map. Collectives of ranks on one
 * host that are larger than small and whose buffers lie in such memory on every
 * rank work on them in place: nothing is copied on the way. Nothing else
 * changes; polypath_comm_algorithm() says "mapped". Put into it: everybody's
 * input and output for AllReduce, everybody's input for AllGather,
 * ReduceScatter and AllToAll, the root's input for Broadcast (better with
 * everybody's output) and Scatter, the root's output for Gather, all inputs and
 * the root's output for Reduce. Scaled sums and the V forms take the usual way.
 *
 * A buffer that the peers have not seen before is announced with the first call
 * that uses it, which still goes the usual way; polypath_comm_window_register()
 * does it beforehand. Between hosts such memory is used as any other.
 *
 * After an operation has failed, ranks that do not know of it yet may go on
 * writing into its output, one that was stopped whenever it goes on: do not use
 * the memory for anything else before every rank has destroyed the communicator
 * or its process has ended. Freeing it after destroying the communicator is safe.
 */

/*
 * Allocates at least `bytes` of zeroed memory, page aligned, on huge pages
 * where the system has them. For the whole process, not one communicator.
 * Blocks for as long as the kernel takes. POLYPATH_ERROR_OUT_OF_MEMORY when
 * shared memory does not suffice. Argument order as ncclMemAlloc.
 */
polypath_result_t polypath_mem_alloc(void **memory, size_t bytes);

/*
 * Frees it. NULL is allowed. No operation may be using it. POLYPATH_ERROR_USAGE
 * while it is registered. Peers that have mapped it keep its pages until
 * their next larger collective, or until they destroy the communicator.
 */
polypath_result_t polypath_mem_free(void *memory);

typedef struct polypath_window *polypath_window_t;

/*
 * Collective: registers each rank's own buffer (they may differ in size; 0
 * bytes: nothing to register) so that collectives work on any part of it in
 * place from now on. A buffer that is not from polypath_mem_alloc() must be
 * whole pages (4096 bytes) of ordinary memory that nobody touches during the
 * call: its pages are exchanged for shared ones, which a fork does not copy,
 * and exchanged back on deregistration. A buffer that cannot be used on some
 * rank, or ranks on several hosts, is no error: the window has no effect then,
 * which counts as a fallback and is logged. `flags` must be 0. Blocks. Not
 * inside a group. Argument order as ncclCommWindowRegister.
 */
polypath_result_t polypath_comm_window_register(polypath_comm_t comm, void *buffer, size_t bytes,
                                                polypath_window_t *window, int flags);

/*
 * Every rank calls it, at the same place in its order of operations. Waits for
 * this rank's operations in flight. The buffer is free to be used, freed or
 * registered again afterwards. Destroying the communicator does it, too.
 */
polypath_result_t polypath_comm_window_deregister(polypath_comm_t comm, polypath_window_t window);

/* --------------------------------------------------------- point to point */

/*
 * Sends between two ranks are matched in the order issued; count and type must
 * agree. A send may return before the receiver has called; it must not be
 * relied on. Sending to oneself needs a group that holds both sides.
 */
polypath_result_t polypath_send(const void *sendbuf, size_t count, polypath_type_t type, int peer,
                                polypath_comm_t comm);
polypath_result_t polypath_recv(void *recvbuf, size_t count, polypath_type_t type, int peer, polypath_comm_t comm);

/*
 * Between start and end the calling thread's operations are only checked and
 * noted; polypath_group_end() runs them and blocks until they are complete.
 * All sends and receives of one communicator in a group are in flight
 * together (so a ring shift or an all-to-all cannot deadlock); they run after
 * the collectives of that communicator that were issued before them in the
 * group. Groups nest; the outermost end does the work.
 */
polypath_result_t polypath_group_start(void);
polypath_result_t polypath_group_end(void);

/* ------------------------------------------------------------ non-blocking */

typedef struct polypath_request *polypath_request_t;

/*
 * Each `_start` function checks its arguments, queues the operation and
 * returns without waiting. The request must be completed by polypath_wait()
 * or by a polypath_test() that says done; both set it to NULL. Operations move
 * while the caller is inside test or wait, and on a helper thread where the
 * machine has cores to spare (setting `progress_thread`). Not allowed inside a
 * group.
 */
polypath_result_t polypath_all_reduce_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                            polypath_op_t op, polypath_comm_t comm, polypath_request_t *request);
polypath_result_t polypath_reduce_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                        polypath_op_t op, int root, polypath_comm_t comm, polypath_request_t *request);
polypath_result_t polypath_broadcast_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                           int root, polypath_comm_t comm, polypath_request_t *request);
polypath_result_t polypath_all_gather_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                            polypath_comm_t comm, polypath_request_t *request);
polypath_result_t polypath_all_gather_v_start(const void *sendbuf, size_t sendcount, void *recvbuf,
                                              const size_t *recvcounts, const size_t *displs, polypath_type_t type,
                                              polypath_comm_t comm, polypath_request_t *request);
polypath_result_t polypath_reduce_scatter_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                                polypath_op_t op, polypath_comm_t comm, polypath_request_t *request);
polypath_result_t polypath_reduce_scatter_v_start(const void *sendbuf, void *recvbuf, const size_t *recvcounts,
                                                  polypath_type_t type, polypath_op_t op, polypath_comm_t comm,
                                                  polypath_request_t *request);
polypath_result_t polypath_all_to_all_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                            polypath_comm_t comm, polypath_request_t *request);
polypath_result_t polypath_all_to_all_v_start(const void *sendbuf, const size_t *sendcounts, const size_t *sdispls,
                                              void *recvbuf, const size_t *recvcounts, const size_t *rdispls,
                                              polypath_type_t type, polypath_comm_t comm, polypath_request_t *request);
polypath_result_t polypath_gather_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                        int root, polypath_comm_t comm, polypath_request_t *request);
polypath_result_t polypath_scatter_start(const void *sendbuf, void *recvbuf, size_t count, polypath_type_t type,
                                         int root, polypath_comm_t comm, polypath_request_t *request);
polypath_result_t polypath_barrier_start(polypath_comm_t comm, polypath_request_t *request);
polypath_result_t polypath_send_start(const void *sendbuf, size_t count, polypath_type_t type, int peer,
                                      polypath_comm_t comm, polypath_request_t *request);
polypath_result_t polypath_recv_start(void *recvbuf, size_t count, polypath_type_t type, int peer, polypath_comm_t comm,
                                      polypath_request_t *request);

/* Sets *done; when done, *request becomes NULL and the result is the operation's. Never blocks. */
polypath_result_t polypath_test(polypath_request_t *request, bool *done);

/* Blocks until the operation is complete; returns its result. A NULL request is complete. */
polypath_result_t polypath_wait(polypath_request_t *request);

/* ------------------------------------------------------- looking inside */

/*
 * Collectives as shares are keyed by them. Send and receive share one entry.
 */
typedef enum {
    POLYPATH_COLLECTIVE_ALL_REDUCE = 0,
    POLYPATH_COLLECTIVE_ALL_GATHER = 1,
    POLYPATH_COLLECTIVE_REDUCE_SCATTER = 2,
    POLYPATH_COLLECTIVE_BROADCAST = 3,
    POLYPATH_COLLECTIVE_REDUCE = 4,
    POLYPATH_COLLECTIVE_ALL_TO_ALL = 5,
    POLYPATH_COLLECTIVE_GATHER = 6,
    POLYPATH_COLLECTIVE_SCATTER = 7,
    POLYPATH_COLLECTIVE_SEND_RECV = 8,
    POLYPATH_COLLECTIVE_BARRIER = 9,
    POLYPATH_COLLECTIVE_COUNT = 10
} polypath_collective_t;

const char *polypath_collective_name(polypath_collective_t collective);

typedef struct {
    char name[32];         /* "eth0", "shm", ... */
    char kind[16];         /* the link between hosts, or within the one host: "tcp", "shm", "cma" */
    bool enabled;          /* false: left out by polypath_comm_use_paths() */
    double latency_us;     /* measured at creation, or from the cache; 0 = not measured */
    double bandwidth_gbps; /* likewise, GB/s (1e9 bytes) one way */
    uint64_t bytes_sent;   /* payload bytes this rank has put on it */
    uint64_t messages_sent;
} polypath_path_info_t;

/* How many paths the communicator has (0 for a communicator of one rank). */
polypath_result_t polypath_comm_path_count(polypath_comm_t comm, int *count);

/* Describes path `index`; the struct belongs to the caller. */
polypath_result_t polypath_comm_path_info(polypath_comm_t comm, int index, polypath_path_info_t *info);

/*
 * Collective: restricts the communicator to the named paths (comma separated,
 * as in polypath_path_info_t.name); NULL or "" allows all again. Shares are
 * kept per set of allowed paths.
 */
polypath_result_t polypath_comm_use_paths(polypath_comm_t comm, const char *names);

/*
 * The shares (one per path, summing to 1) that this rank's last operation of
 * `collective` really had: the fraction of the bytes that each path carried.
 * `shares` has room for `capacity` entries.
 */
polypath_result_t polypath_comm_shares(polypath_comm_t comm, polypath_collective_t collective, double *shares,
                                       int capacity);

/* The algorithm of the last operation of `collective`, for example "direct"; "" if there was none. */
const char *polypath_comm_algorithm(polypath_comm_t comm, polypath_collective_t collective);

typedef struct {
    uint64_t calls;              /* operations completed */
    uint64_t share_changes;      /* times the balancer moved shares */
    uint64_t tuning_calls;       /* internal calls spent measuring; 0 after a start with a warm cache */
    uint64_t chunks_handed_over; /* chunks carried by another path than the one whose share they were in */
    uint64_t fallbacks;          /* things done another way than asked, each with a line in the log */
    uint64_t mapped_calls;       /* operations that worked on registered memory in place */
    size_t memory_bytes;         /* buffers and shared memory held by this communicator on this rank */
} polypath_statistics_t;

polypath_result_t polypath_comm_statistics(polypath_comm_t comm, polypath_statistics_t *statistics);

#ifdef __cplusplus
}
#endif

#endif
