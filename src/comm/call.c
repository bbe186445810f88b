/*
 * One call from submission to completion: its blocks, its schedule, how it is
 * cut, and the queue in which the calls of a communicator wait for their turn.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "system/clock.h"
#include "system/log.h"

/* Messages up to this size are not divided into blocks: fewer messages count for more than spreading the work. */
#define SINGLE_BLOCK_BYTES 2048

#define ROWS_MAX 8192u
#define POINT_ROW_BYTES ((size_t)1 << 20)
#define OP_SCALED 5u /* in frames: every scaled sum */

/* ------------------------------------------------------- objects, failure */

struct polypath_request *call_new(struct polypath_comm *comm, int nblocks)
{
    pthread_mutex_lock(&comm->lock);
    struct polypath_request *call = comm->free_calls;
    if (call)
        comm->free_calls = call->next;
    pthread_mutex_unlock(&comm->lock);
    if (!call) {
        call = calloc(1, sizeof *call);
        if (!call) {
            error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
            return NULL;
        }
        pthread_mutex_lock(&comm->lock);
        call->older = comm->all_calls;
        comm->all_calls = call;
        pthread_mutex_unlock(&comm->lock);
    }
    if (nblocks > call->blocks_room) {
        const size_t n = (size_t)nblocks;
        /* one allocation: four arrays */
        void **fresh = realloc(call->input, n * 4 * sizeof *fresh);
        if (!fresh) {
            call->comm = comm;
            call_release(call);
            error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
            return NULL;
        }
        _Static_assert(sizeof(size_t) == sizeof(void *), "sizes and addresses share one allocation");
        call->input = fresh;
        call->output = fresh + n;
        call->input_bytes = (size_t *)(void *)(fresh + 2 * n);
        call->output_bytes = (size_t *)(void *)(fresh + 3 * n);
        call->blocks_room = nblocks;
    }
    call->comm = comm;
    call->next = NULL;
    call->nblocks = nblocks;
    call->result = POLYPATH_SUCCESS;
    call->on_board = call->internal = call->scaled = call->observe = call->schedule_owned = false;
    call->schedule = NULL;
    call->npoints = 0;
    call->variant = 0;
    call->scalar_on_device = NULL;
    call->root = -1;
    call->op = POLYPATH_SUM;
    call->type = POLYPATH_UINT8;
    atomic_store_explicit(&call->state, CALL_FREE, memory_order_relaxed);
    return call;
}

void call_release(struct polypath_request *call)
{
    struct polypath_comm *comm = call->comm;
    if (call->schedule_owned)
        schedule_free(call->schedule);
    call->schedule = NULL;
    call->schedule_owned = false;
    pthread_mutex_lock(&comm->lock);
    call->next = comm->free_calls;
    comm->free_calls = call;
    pthread_mutex_unlock(&comm->lock);
}

static polypath_result_t aborted(const struct polypath_comm *comm)
{
    return error_set(POLYPATH_ERROR_ABORTED, "the communicator was aborted on rank %d", comm->rank);
}

polypath_result_t comm_check_abort(struct polypath_comm *comm)
{
    if (!atomic_load_explicit(&comm->failure, memory_order_relaxed) && host_interrupted(comm->host))
        comm_fail(comm, aborted(comm), NULL);
    return comm_check(comm);
}

polypath_result_t comm_check(struct polypath_comm *comm)
{
    /* acquire: the text before the code */
    int code = atomic_load_explicit(&comm->failure, memory_order_acquire);
    if (!code && comm->host && host_interrupted(comm->host))
        return aborted(comm);
    return code ? error_set((polypath_result_t)code, "%s", comm->failure_text) : POLYPATH_SUCCESS;
}

void comm_fail(struct polypath_comm *comm, polypath_result_t code, const char *text)
{
    char kept[ERROR_TEXT_BYTES];
    snprintf(kept, sizeof kept, "%s", text ? text : error_text());
    if (!atomic_load_explicit(&comm->failure, memory_order_acquire)) {
        memcpy(comm->failure_text, kept, sizeof kept);
        atomic_store_explicit(&comm->failure, code, memory_order_release);
        log_line(LOG_LEVEL_ERROR, "%s", kept);
        if (comm->host)
            host_fail(comm->host, kept);
    }
    comm->current = NULL;
    pthread_mutex_lock(&comm->lock);
    struct polypath_request *call = comm->head;
    comm->head = comm->tail = NULL;
    while (call) {
        struct polypath_request *next = call->next;
        call->result = code;
        atomic_store_explicit(&call->state, CALL_DONE, memory_order_release);
        call = next;
    }
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

/* ----------------------------------------------------------------- blocks */

static void set_block(struct polypath_request *call, int b, const void *in, size_t in_bytes, void *out,
                      size_t out_bytes)
{
    call->input[b] = (void *)(uintptr_t)in;
    call->output[b] = out;
    call->input_bytes[b] = in_bytes;
    call->output_bytes[b] = out_bytes;
}

/* Cuts count elements into one block per rank; small ones into one. */
static void cut_evenly(struct polypath_request *call, const char *in, char *out, size_t count, size_t element)
{
    const size_t n = (size_t)call->nblocks;
    size_t each = (count + n - 1) / n;
    if (count * element <= SINGLE_BLOCK_BYTES)
        each = count;
    else if (each * element >= 4096)
        each = (each * element + 63) / 64 * 64 / element;
    for (size_t b = 0; b < n; b++) {
        size_t from = b * each < count ? b * each : count;
        size_t to = from + each < count ? from + each : count;
        set_block(call, (int)b, in ? in + from * element : NULL, (to - from) * element,
                  out ? out + from * element : NULL, (to - from) * element);
    }
}

static void equal_blocks(struct polypath_request *call, const char *in, bool one_input, char *out, bool one_output,
                         size_t bytes)
{
    for (int b = 0; b < call->nblocks; b++)
        set_block(call, b, in ? in + (one_input ? 0 : (size_t)b * bytes) : NULL, bytes,
                  out ? out + (one_output ? 0 : (size_t)b * bytes) : NULL, bytes);
}

void call_fill(struct polypath_request *call, const void *send, void *recv, size_t count)
{
    const size_t element = polypath_type_bytes(call->type), n = (size_t)call->nblocks;
    call->send = send;
    call->recv = recv;
    call->count = count;
    call->bytes = call->block_bytes = count * element;
    switch (call->collective) {
    case POLYPATH_COLLECTIVE_ALL_REDUCE:
    case POLYPATH_COLLECTIVE_REDUCE:
    case POLYPATH_COLLECTIVE_BROADCAST: cut_evenly(call, send, recv, count, element); break;
    case POLYPATH_COLLECTIVE_ALL_GATHER:
    case POLYPATH_COLLECTIVE_GATHER:
        equal_blocks(call, send, true, recv, false, count * element);
        call->bytes *= n;
        break;
    case POLYPATH_COLLECTIVE_REDUCE_SCATTER:
    case POLYPATH_COLLECTIVE_SCATTER:
        equal_blocks(call, send, false, recv, true, count * element);
        call->bytes *= n;
        break;
    case POLYPATH_COLLECTIVE_ALL_TO_ALL:
        equal_blocks(call, send, false, recv, false, count * element);
        call->bytes *= n;
        break;
    default: break;
    }
}

/* --------------------------------------------------------------- schedule */

struct schedule *call_schedule(struct polypath_comm *comm, polypath_collective_t collective,
                               enum schedule_algorithm algorithm, int root, bool scaled)
{
    for (int i = 0; i < comm->nschedules; i++) {
        const struct schedule_entry *e = &comm->schedules[i];
        if (e->collective == collective && e->algorithm == algorithm && e->root == root && e->scaled == scaled)
            return e->schedule;
    }
    if (comm->nschedules == comm->schedules_room) {
        int room = comm->schedules_room ? 2 * comm->schedules_room : 16;
        struct schedule_entry *grown = realloc(comm->schedules, (size_t)room * sizeof *grown);
        if (!grown) {
            error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
            return NULL;
        }
        comm->schedules = grown;
        comm->schedules_room = room;
    }
    struct schedule *s = schedule_build(collective, algorithm, &comm->model.shape, comm->rank, root, scaled);
    if (s)
        comm->schedules[comm->nschedules++] = (struct schedule_entry){collective, algorithm, root, scaled, s};
    return s;
}

/* Whether the algorithm exists here, and does what the settings ask for. */
static bool can_use(const struct polypath_comm *comm, polypath_collective_t collective,
                    enum schedule_algorithm algorithm)
{
    return schedule_supported(collective, algorithm, &comm->model.shape) &&
           (!comm->settings.reproducible || schedule_rank_order(collective, algorithm));
}

bool call_possible(const struct polypath_comm *comm, polypath_collective_t collective)
{
    for (int a = 0; a < ALGORITHM_COUNT; a++)
        if (can_use(comm, collective, (enum schedule_algorithm)a))
            return true;
    return false;
}

/* By the model; with numa=on the two-level algorithm wherever there is one. From agreed numbers only. */
static const struct choice_entry *choose(struct polypath_comm *comm, const struct polypath_request *call)
{
    struct choice_entry *entry = &comm->choices[(call->bytes * 31 + (uint64_t)call->collective) % 16];
    if (entry->known && entry->bytes == call->bytes && entry->collective == call->collective)
        return entry;
    *entry = (struct choice_entry){.bytes = call->bytes, .known = true, .collective = call->collective};
    if (comm->layout.by_node && comm->settings.numa == NUMA_ON &&
        can_use(comm, call->collective, ALGORITHM_HIERARCHICAL)) {
        entry->algorithm = ALGORITHM_HIERARCHICAL;
        entry->past_stages = true;
    } else {
        entry->algorithm = model_choose(&comm->model, call->collective, call->bytes);
        entry->past_stages = comm->layout.by_node && model_prefers_levels(&comm->model, call->collective, call->bytes);
    }
    return entry;
}

static enum schedule_algorithm choose_algorithm(struct polypath_comm *comm, const struct polypath_request *call)
{
    if (*comm->settings.algorithm) {
        enum schedule_algorithm wish = schedule_algorithm_by_name(comm->settings.algorithm);
        if (wish != ALGORITHM_COUNT && can_use(comm, call->collective, wish))
            return wish;
    }
    return choose(comm, call)->algorithm;
}

/* ---------------------------------------------------------------- cutting */

static bool reduces(polypath_collective_t collective)
{
    return collective == POLYPATH_COLLECTIVE_ALL_REDUCE || collective == POLYPATH_COLLECTIVE_REDUCE_SCATTER ||
           collective == POLYPATH_COLLECTIVE_REDUCE;
}

/*
 * Rows of one path that fit into the scratch memory, from agreed numbers only
 * (schedule.h, scratch safety). A row takes about a slot per rank; at the root
 * of a direct Reduce one per rank and block.
 */
static size_t scratch_rows(const struct polypath_comm *comm, const struct polypath_request *call, size_t row_bytes)
{
    const size_t n = (size_t)comm->size, paths = (size_t)__builtin_popcount(comm->allowed | 1u);
    const size_t slots = (call->collective == POLYPATH_COLLECTIVE_REDUCE ? n * n : n) * (call->scaled ? 2 : 1);
    return comm->settings.scratch_bytes / (row_bytes * slots * paths);
}

/* Rows small enough to spread over paths and to overlap, large enough that handling them costs nothing. */
static size_t choose_row_bytes(const struct polypath_comm *comm, const struct polypath_request *call, size_t largest)
{
    const size_t limit = comm->settings.chunk_bytes ? (comm->settings.chunk_bytes + 63) & ~(size_t)63
                         : comm->one_host           ? 32768
                                                    : 131072;
    /* on one host a message of its own is copied in few long pieces: nothing is reduced, and nobody else waits for it
     */
    if (call->npoints && comm->one_host && !comm->settings.chunk_bytes)
        return POINT_ROW_BYTES;
    /* both ends must cut alike, whatever else is in the group, or (AllToAllV) whatever this rank's own sizes are */
    if (call->npoints || (call->collective == POLYPATH_COLLECTIVE_ALL_TO_ALL && call->variant))
        return limit;
    size_t bytes = limit;
    if (!comm->settings.chunk_bytes && !comm->one_host)
        while (bytes > 16384 && largest / bytes < 32)
            bytes /= 2;
    while (largest / bytes >= ROWS_MAX)
        bytes *= 2;
    /* a few rows at least must fit into the scratch memory */
    while (reduces(call->collective) && bytes > 4096 && scratch_rows(comm, call, bytes) < 4)
        bytes /= 2;
    return bytes & ~(size_t)63;
}

/* Agreed on all ranks: from agreed numbers only (schedule.h, scratch safety). */
static uint32_t choose_window(const struct polypath_comm *comm, const struct polypath_request *call,
                              enum schedule_algorithm algorithm, size_t row_bytes)
{
    if (call->npoints || (algorithm == ALGORITHM_DIRECT && !reduces(call->collective)))
        return UINT32_MAX;
    const size_t window = scratch_rows(comm, call, row_bytes);
    return window < 1 ? 1 : window > 4096 ? 4096 : (uint32_t)window;
}

static void place_rows(struct polypath_request *call)
{
    uint64_t sum = 0;
    call->host.first_row[0] = 0;
    for (int p = 0; p < call->host.npaths; p++) {
        sum += call->shares[p];
        call->host.first_row[p + 1] = (uint32_t)((sum * call->host.rows + BALANCE_ONE / 2) / BALANCE_ONE);
        if (call->shares[p])
            call->host.active |= 1u << p;
    }
    call->host.first_row[call->host.npaths] = call->host.rows;
}

static uint32_t mix(uint32_t hash, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        hash = (hash ^ (value >> (8 * i) & 0xff)) * 16777619u;
    return hash;
}

void call_describe(const struct polypath_request *call, struct frame *frame, struct compute_op *op)
{
    *frame = (struct frame){.kind = call->npoints ? FRAME_POINT : FRAME_COLLECTIVE,
                            .collective = (uint8_t)call->collective,
                            .type = (uint8_t)call->type,
                            .op = (uint8_t)(call->scaled ? OP_SCALED : (uint32_t)call->op),
                            .root = call->root,
                            .count = call->count};
    *op = (struct compute_op){call->type, call->scaled || call->op == POLYPATH_AVG ? POLYPATH_SUM : call->op,
                              call->op == POLYPATH_AVG ? call->comm->size : 0};
}

/* Larger than small, and on one host: may go over the stages. The same on every rank. */
static bool may_be_staged(const struct polypath_comm *comm, const struct polypath_request *call)
{
    return !call->npoints && !call->variant && comm->board && call->block_bytes &&
           board_stages(comm->board, call->collective) &&
           !board_takes(comm->board, call->collective, call->block_bytes);
}

/* It does, if all of its share is on path shm, or on path cma where ranks can fetch from each other, ... */
static bool goes_over_stages(struct polypath_comm *comm, struct polypath_request *call)
{
    const bool may = may_be_staged(comm, call);
    call->staged_path = comm->shm_path;
    if (may && comm->registered)
        return true; /* ... or where windows are registered: memory in them is reached from there */
    tune_shares(call);
    if (!may || (comm->layout.by_node && choose(comm, call)->past_stages))
        return false; /* on several NUMA nodes two levels may be better */
    if (call->shares[comm->shm_path] == BALANCE_ONE)
        return true;
    call->staged_path = comm->cma_path;
    return comm->cma_path >= 0 && call->shares[comm->cma_path] == BALANCE_ONE && !call->scaled &&
           board_fetches(comm->board, call->collective);
}

static void begin_on_board(struct polypath_comm *comm, struct polypath_request *call)
{
    struct board_call small = {.fetch = call->staged && call->staged_path == comm->cma_path,
                               .scalar = call->scaled ? call->scalar : NULL,
                               .send = call->send,
                               .recv = call->recv,
                               .bytes = call->block_bytes};
    call_describe(call, &small.frame, &small.op);
    small.frame.call = comm->next_call++;
    call->host.frame = small.frame;
    if (!call->internal)
        small_remember(comm, call->collective, call->staged ? small_stage : small_board,
                       call->staged ? call->staged_path : comm->shm_path);
    atomic_store_explicit(&call->state, CALL_RUNNING, memory_order_relaxed);
    board_begin(comm->board, &small);
}

static polypath_result_t begin(struct polypath_comm *comm, struct polypath_request *call)
{
    call->on_board =
        !call->npoints && !comm->measuring && small_takes(comm, call->collective, call->block_bytes, call->variant);
    call->observe = false;
    call->staged = !call->on_board && goes_over_stages(comm, call);
    if (call->staged) {
        call->on_board = true;
        call->begin_ns = clock_now_ns();
    }
    if (call->on_board) {
        begin_on_board(comm, call);
        return POLYPATH_SUCCESS;
    }
    enum schedule_algorithm algorithm = ALGORITHM_DIRECT;
    if (call->npoints) {
        call->schedule = point_schedule(comm, call->points, call->npoints, &call->schedule_owned);
    } else {
        algorithm = choose_algorithm(comm, call);
        call->schedule =
            call_schedule(comm, call->collective, algorithm, call->root < 0 ? 0 : call->root, call->scaled);
    }
    if (!call->schedule)
        return call->npoints || schedule_supported(call->collective, algorithm, &comm->model.shape)
                   ? POLYPATH_ERROR_OUT_OF_MEMORY
                   : POLYPATH_ERROR_UNSUPPORTED;
    size_t largest = 0;
    for (int b = 0; b < call->nblocks; b++) {
        largest = call->input_bytes[b] > largest ? call->input_bytes[b] : largest;
        largest = call->output_bytes[b] > largest ? call->output_bytes[b] : largest;
    }
    struct host_call *h = &call->host;
    memset(h, 0, sizeof *h);
    h->schedule = call->schedule;
    call_describe(call, &h->frame, &h->op);
    h->scalar = call->scaled ? call->scalar : NULL;
    h->input = call->input;
    h->output = call->output;
    h->input_bytes = call->input_bytes;
    h->output_bytes = call->output_bytes;
    h->row_bytes = choose_row_bytes(comm, call, largest);
    h->rows = (uint32_t)((largest + h->row_bytes - 1) / h->row_bytes);
    if (call->collective == POLYPATH_COLLECTIVE_BARRIER)
        h->rows = 1;
    h->window = choose_window(comm, call, algorithm, h->row_bytes);
    h->types = call->npoints ? call->point_types : NULL;
    h->npaths = comm->npaths ? comm->npaths : 1; /* a rank alone has none */
    h->hand_over = comm->settings.hand_over;
    h->stream = largest > (16u << 20);
    place_rows(call);
    h->frame.row_bytes = (uint32_t)h->row_bytes;
    h->frame.variant = mix(mix(call->variant, algorithm), h->window);
    /* where rows wait in scratch depends on the ranges, so they must be equal; otherwise they are the sender's choice
     */
    for (int p = 1; p <= h->npaths && h->window != UINT32_MAX; p++)
        h->frame.variant = mix(h->frame.variant, h->first_row[p]);
    if (!call->npoints) {
        h->frame.call = comm->next_call++;
        if (!call->internal)
            comm->last_algorithm[call->collective] = schedule_algorithm_name(algorithm);
    } else {
        comm->last_algorithm[call->collective] = "direct";
    }
    atomic_store_explicit(&call->state, CALL_RUNNING, memory_order_relaxed);
    return host_begin(comm->host, h);
}

/* ------------------------------------------------------------------ queue */

void call_submit(struct polypath_request *call)
{
    struct polypath_comm *comm = call->comm;
    call->next = NULL;
    pthread_mutex_lock(&comm->lock);
    atomic_store_explicit(&call->state, CALL_QUEUED, memory_order_relaxed);
    const int failed = atomic_load_explicit(&comm->failure, memory_order_relaxed);
    if (failed) { /* since the call was checked: comm_fail has emptied the queue and will not come again */
        call->result = (polypath_result_t)failed;
        atomic_store_explicit(&call->state, CALL_DONE, memory_order_release);
    } else if (comm->tail) {
        comm->tail->next = call;
        comm->tail = call;
    } else {
        comm->head = comm->tail = call;
    }
    if (comm->helper_running)
        pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static void complete(struct polypath_comm *comm, struct polypath_request *call, polypath_result_t result)
{
    pthread_mutex_lock(&comm->lock);
    comm->head = call->next;
    if (!comm->head)
        comm->tail = NULL;
    call->result = result;
    /* release: the result, and the data, before the state */
    atomic_store_explicit(&call->state, CALL_DONE, memory_order_release);
    if (comm->helper_running)
        pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

/*
 * The next call: the head of the queue, or the balancer's own exchange in
 * front of the next collective after a window (the same place in the order on
 * every rank).
 */
static struct polypath_request *next_call(struct polypath_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    struct polypath_request *call = comm->head;
    pthread_mutex_unlock(&comm->lock);
    if (call && comm->exchange_due && !call->npoints) {
        tune_exchange_begin(comm);
        return comm->exchange_call;
    }
    return call;
}

polypath_result_t call_advance(struct polypath_comm *comm, bool *idle)
{
    *idle = true;
    polypath_result_t result = comm_check_abort(comm);
    if (result)
        return result;
    struct polypath_request *call = comm->current;
    if (!call) {
        call = comm->current = next_call(comm);
        if (!call)
            return POLYPATH_SUCCESS;
        result = begin(comm, call);
    }
    bool done = false, moved = false;
    if (!result && call->on_board) {
        done = board_advance(comm->board, &result);
        moved = board_moved(comm->board);
        if (moved)
            host_stirred(comm->host);
    } else if (!result)
        result = host_advance(comm->host, &done, &moved);
    *idle = !moved && !done;
    if (result) {
        comm_fail(comm, result, NULL);
        return result;
    }
    if (!done)
        return POLYPATH_SUCCESS;
    comm->current = NULL;
    if (call == comm->exchange_call) {
        tune_exchange_end(comm);
        return POLYPATH_SUCCESS;
    }
    if (call->observe)
        tune_observe(call);
    if (call->staged) {
        comm->staged_bytes[call->staged_path] += call->bytes;
        comm->staged_calls[call->staged_path]++;
    }
    if (call->staged && !call->internal && board_was_mapped(comm->board)) {
        comm->last_algorithm[call->collective] = small_mapped;
        comm->statistics.mapped_calls++;
    } else if (call->staged && !call->internal && board_was_fetched(comm->board)) {
        comm->last_algorithm[call->collective] = small_fetch;
    }
    if (!call->internal) {
        comm->statistics.calls++;
        if (!call->on_board)
            tune_remember(call);
    }
    if (call->schedule_owned) {
        schedule_free(call->schedule);
        call->schedule_owned = false;
    }
    complete(comm, call, POLYPATH_SUCCESS);
    return POLYPATH_SUCCESS;
}

polypath_result_t comm_internal(struct polypath_comm *comm, polypath_collective_t collective, const void *send,
                                void *recv, size_t count, polypath_type_t type, polypath_op_t op, int root)
{
    struct polypath_request *call = call_new(comm, comm->size);
    if (!call)
        return POLYPATH_ERROR_OUT_OF_MEMORY;
    call->collective = collective;
    call->type = type;
    call->op = op;
    call->root = root;
    call->internal = true;
    call_fill(call, send, recv, count);
    comm_settle(comm);
    call_submit(call);
    polypath_result_t result = drive_until_done(call);
    call_release(call);
    return result;
}
