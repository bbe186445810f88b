/*
 * Small calls on one host: over the boards (execute/board.h), past the queue
 * when nothing else is under way. The same choice on every rank: it depends on
 * agreed numbers only. Also here: what a rank that waits at its board for long
 * finds out about the others.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "system/clock.h"

const char small_board[] = "board", small_stage[] = "stage", small_mapped[] = "mapped", small_fetch[] = "fetch",
           small_direct[] = "direct";

polypath_result_t small_start(struct polypath_comm *comm)
{
    comm->shm_path = comm->cma_path = -1;
    for (int p = 0; p < comm->npaths; p++) {
        if (!strcmp(comm->paths[p].kind, "shm"))
            comm->shm_path = p;
        if (!strcmp(comm->paths[p].kind, "cma") && comm->working >> p & 1)
            comm->cma_path = p;
    }
    /* a board knows one way only; who names an algorithm wants that one */
    if (!comm->one_host || comm->size == 1 || comm->shm_path < 0 || *comm->settings.algorithm)
        return POLYPATH_SUCCESS;
    comm->board_segments = calloc((size_t)comm->size, sizeof *comm->board_segments);
    comm->pids = calloc((size_t)comm->size, sizeof *comm->pids);
    if (comm->board_segments && comm->pids) {
        for (int r = 0; r < comm->size; r++)
            comm->pids[r] = comm->infos[r].pid;
        for (int r = 0; r < comm->size; r++)
            comm->board_segments[r] = r == comm->rank ? comm->segment : comm->peer_segments[r];
        if (comm->settings.mapped)
            comm->exports = exports_open(comm->size, comm->control_fds);
        if (comm->exports || !comm->settings.mapped)
            comm->board = board_create(comm->rank, comm->size, comm->board_segments, comm->exports,
                                       comm->cma_path >= 0 ? comm->pids : NULL);
    }
    if (!comm->board)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    host_set_peek(comm->host, board_peek, comm->board);
    segment_promise_barrier(comm->segment);
    return POLYPATH_SUCCESS;
}

void small_stop(struct polypath_comm *comm)
{
    board_free(comm->board);
    exports_close(comm->exports);
    free(comm->pids);
    free(comm->board_segments);
}

bool small_takes(const struct polypath_comm *comm, polypath_collective_t collective, size_t bytes, uint32_t variant)
{
    return comm->board && comm->allowed >> comm->shm_path & 1 && !variant &&
           board_takes(comm->board, collective, bytes);
}

static bool same_call(const struct frame *a, const struct frame *b)
{
    return a->kind == FRAME_COLLECTIVE && a->call == b->call;
}

polypath_result_t small_compare(struct polypath_comm *comm, const struct frame *mine, bool on_board)
{
    for (int r = 0; r < comm->size && comm->board; r++) {
        struct frame theirs;
        if (r == comm->rank)
            continue;
        /* a rank whose call of this number goes the other way has another size or another collective */
        const bool known =
            on_board ? host_early_frame(comm->host, r, &theirs) : board_last_frame(comm->board, r, &theirs);
        if (known && same_call(&theirs, mine))
            return host_mismatch(comm->rank, mine, r, &theirs);
    }
    return POLYPATH_SUCCESS;
}

static polypath_result_t too_late(struct polypath_comm *comm, const struct frame *mine)
{
    char what[200], other[200] = "nothing that has reached this rank";
    struct frame theirs;
    host_describe_frame(mine, what, sizeof what);
    int r = board_waits_for(comm->board);
    if (r >= 0 && (host_early_frame(comm->host, r, &theirs) || board_last_frame(comm->board, r, &theirs)))
        host_describe_frame(&theirs, other, sizeof other);
    return error_set(POLYPATH_ERROR_TIMEOUT,
                     "%s: rank %d saw nothing move for %" PRIu64
                     " ms; it waits for rank %d over path %s, which was last "
                     "seen in %s",
                     what, comm->rank, comm->settings.timeout_ms, r, comm->paths[comm->shm_path].name, other);
}

polypath_result_t small_check(struct polypath_comm *comm, const struct frame *mine, uint64_t *begin_ns)
{
    if (!*begin_ns)
        *begin_ns = clock_now_ns();
    polypath_result_t result = host_check(comm->host, false);
    if (!result)
        result = small_compare(comm, mine, true);
    const int r = board_waits_for(comm->board);
    if (!result && r >= 0 && host_peer_gone(comm->host, r) && !board_peek(comm->board)) {
        char what[200];
        host_describe_frame(mine, what, sizeof what);
        return error_set(POLYPATH_ERROR_PEER_LOST, "%s: rank %d lost rank %d over path %s (its process has ended)",
                         what, comm->rank, r, comm->paths[comm->shm_path].name);
    }
    if (!result && clock_now_ns() - *begin_ns > comm->settings.timeout_ms * 1000000)
        return too_late(comm, mine);
    return result;
}

void small_remember(struct polypath_comm *comm, polypath_collective_t collective, const char *algorithm, int path)
{
    comm->last_algorithm[collective] = algorithm;
    memset(comm->last_shares[collective], 0, sizeof comm->last_shares[0]);
    comm->last_shares[collective][path] = 1;
}

/* The long wait of a blocking small call; ends it. */
static void wait_long(struct polypath_comm *comm, const struct frame *mine, polypath_result_t *result)
{
    host_rest(comm->host);
    for (uint64_t begin_ns = 0; !*result;) {
        *result = host_idle(comm->host);
        if (!*result && board_advance(comm->board, result) && !*result)
            return;
        if (!*result && (*result = comm_check_abort(comm)))
            return;
        if (!*result && host_patient(comm->host))
            *result = small_check(comm, mine, &begin_ns);
    }
    comm_fail(comm, *result, NULL);
}

bool small_call(struct polypath_comm *comm, struct board_call *call, polypath_result_t *result)
{
    if (!drive_try_alone(comm))
        return false;
    if (comm->exchange_due) { /* the ranks agree on shares first */
        drive_let_go(comm);
        return false;
    }
    call->frame.call = comm->next_call++;
    comm->statistics.calls++;
    if (comm->last_algorithm[call->frame.collective] != small_board)
        small_remember(comm, call->frame.collective, small_board, comm->shm_path);
    if (!board_try(comm->board, call, comm->oversubscribed ? 0 : comm->settings.spin, result))
        wait_long(comm, &call->frame, result);
    else if (*result)
        comm_fail(comm, *result, NULL);
    if (*result)
        drive_let_go(comm);
    else
        drive_let_go_alone(comm);
    return true;
}
