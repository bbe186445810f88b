/*
 * Calls and their steps: rows start in the order of their path's range, a
 * window of them at a time; a step runs when its predecessors have. What is
 * sent and received is in host_queue.c and host_sink.c.
 */
#include "execute/host.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "execute/host_internal.h"

polypath_result_t host_create(const struct host_config *config, struct host **host)
{
    struct host *h = calloc(1, sizeof *h);
    if (h)
        h->peers = calloc((size_t)config->size, sizeof *h->peers);
    if (!h || !h->peers) {
        free(h);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    }
    h->sink = (struct link_sink){host_sink_begin, host_sink_end, host_sent};
    h->config = *config;
    h->epoll_fd = h->wake_fd = -1;
    for (int p = 0; p < config->size; p++) {
        h->peers[p].control_fd = -1;
        for (int q = 0; q < HOST_PATHS; q++) {
            list_clear(&h->peers[p].queues[q].results);
            list_clear(&h->peers[p].queues[q].input);
        }
    }
    list_clear(&h->ready);
    polypath_result_t result = host_wait_open(h);
    if (result) {
        host_free(h);
        return result;
    }
    *host = h;
    return POLYPATH_SUCCESS;
}

void host_free(struct host *h)
{
    if (!h)
        return;
    for (int i = 0; i < h->nlinks; i++)
        link_close(h->links[i]);
    if (h->epoll_fd >= 0)
        close(h->epoll_fd);
    if (h->wake_fd >= 0)
        close(h->wake_fd);
    free(h->links);
    free(h->peers);
    free(h->need);
    free(h->next);
    free(h->left);
    free(h->places);
    free(h->free_pieces);
    free(h->pointers);
    free(h->scratch);
    free(h);
}

polypath_result_t host_add_link(struct host *h, struct link *link)
{
    struct host_peer *peer = &h->peers[link->peer];
    if (peer->nlinks == HOST_LINKS_PER_PEER) {
        link_close(link);
        return error_set(POLYPATH_ERROR_UNSUPPORTED, "more than %d links to one rank", HOST_LINKS_PER_PEER);
    }
    if (h->nlinks == h->links_room) {
        int room = h->links_room ? 2 * h->links_room : 16;
        struct link **grown = realloc(h->links, (size_t)room * sizeof *grown);
        if (!grown) {
            link_close(link);
            return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        }
        h->links = grown;
        h->links_room = room;
    }
    h->links[h->nlinks++] = link;
    peer->links[peer->nlinks++] = link;
    return link->fd >= 0 ? host_watch_link(h, link) : POLYPATH_SUCCESS;
}

polypath_result_t host_add_peer(struct host *h, int peer, int control_fd, struct segment *segment)
{
    h->peers[peer].control_fd = control_fd;
    h->peers[peer].segment = segment;
    return control_fd >= 0 ? host_watch_control(h, peer) : POLYPATH_SUCCESS;
}

void host_map_paths(struct host *h, int peer, const int *queue_of_path)
{
    memcpy(h->peers[peer].queue_of_path, queue_of_path, (size_t)h->config.npaths * sizeof *queue_of_path);
}

/* ------------------------------------------------------------ addresses */

static size_t piece(size_t block_bytes, uint32_t row, size_t row_bytes)
{
    size_t offset = (size_t)row * row_bytes;
    if (offset >= block_bytes)
        return 0;
    return block_bytes - offset < row_bytes ? block_bytes - offset : row_bytes;
}

size_t host_slice_bytes(const struct host *h, struct slice slice, uint32_t row)
{
    const struct host_call *c = &h->call;
    size_t in, out;
    switch (slice.buffer) {
    case SLICE_INPUT: return piece(c->input_bytes[slice.index], row, c->row_bytes);
    case SLICE_OUTPUT: return piece(c->output_bytes[slice.index], row, c->row_bytes);
    case SLICE_SCRATCH:
        in = c->input_bytes[slice.block];
        out = c->output_bytes[slice.block];
        return piece(in > out ? in : out, row, c->row_bytes);
    default: return 0;
    }
}

static size_t scratch_row(const struct host *h, uint32_t row)
{
    int p = host_path_of(h, row);
    return h->scratch_row[p] + (row - h->call.first_row[p]) % h->window[p];
}

struct place *host_place(const struct host *h, struct slice slice, uint32_t row)
{
    return &h->places[scratch_row(h, row) * (size_t)h->call.schedule->nscratch + slice.index];
}

static char *take_piece(struct host *h)
{
    size_t piece = h->nfree ? h->free_pieces[--h->nfree] : h->nfresh++;
    return h->scratch + piece * h->call.row_bytes;
}

void host_free_piece(struct host *h, const char *data)
{
    h->free_pieces[h->nfree++] = (uint32_t)((size_t)(data - h->scratch) / h->call.row_bytes);
}

char *host_slice_address(struct host *h, struct slice slice, uint32_t row)
{
    const struct host_call *c = &h->call;
    switch (slice.buffer) {
    case SLICE_INPUT: return (char *)c->input[slice.index] + (size_t)row * c->row_bytes;
    case SLICE_OUTPUT: return (char *)c->output[slice.index] + (size_t)row * c->row_bytes;
    case SLICE_SCRATCH: {
        struct place *place = host_place(h, slice, row);
        if (!place->data)
            *place = (struct place){.data = take_piece(h), .reads = c->schedule->scratch_reads[slice.index]};
        return place->data;
    }
    default: return NULL;
    }
}

const char *host_source_address(struct host *h, struct slice slice, uint32_t row)
{
    return slice.buffer == SLICE_SCRATCH ? host_place(h, slice, row)->data : host_slice_address(h, slice, row);
}

/* -------------------------------------------------------------- beginning */

static bool grow(void **array, size_t *room, size_t want, size_t element)
{
    if (want <= *room)
        return true;
    void *grown = realloc(*array, want * element);
    if (!grown)
        return false;
    *array = grown;
    *room = want;
    return true;
}

static bool reserve(struct host *h)
{
    const struct host_call *c = &h->call;
    size_t states = (size_t)c->rows * (size_t)c->schedule->nsteps;
    if (states > h->states_room) {
        size_t room = h->states_room;
        if (!grow((void **)&h->need, &room, states, sizeof *h->need))
            return false;
        if (!grow((void **)&h->next, &h->states_room, states, sizeof *h->next))
            return false;
    }
    if (!grow((void **)&h->left, &h->rows_room, c->rows, sizeof *h->left))
        return false;
    uint32_t scratch_rows = 0;
    for (int p = 0; p < c->npaths; p++) {
        uint32_t rows = c->first_row[p + 1] - c->first_row[p];
        h->window[p] = rows < c->window ? rows : c->window;
        h->scratch_row[p] = scratch_rows;
        h->next_row[p] = c->first_row[p];
        scratch_rows += h->window[p];
    }
    size_t most = 1;
    for (int i = 0; i < c->schedule->nsteps; i++)
        if (c->schedule->steps[i].nsrc > most)
            most = c->schedule->steps[i].nsrc;
    if (!grow((void **)&h->pointers, &h->pointers_room, most, sizeof *h->pointers))
        return false;
    size_t slots = (size_t)scratch_rows * (size_t)c->schedule->nscratch;
    if (!grow((void **)&h->places, &h->places_room, slots, sizeof *h->places) ||
        !grow((void **)&h->free_pieces, &h->pieces_room, slots, sizeof *h->free_pieces))
        return false;
    if (slots)
        memset(h->places, 0, slots * sizeof *h->places);
    h->nplaces = slots;
    h->nlent = h->nfree = h->nfresh = 0;
    size_t bytes = slots * c->row_bytes;
    if (bytes > h->scratch_room) {
        free(h->scratch);
        h->scratch_room = 0;
        h->scratch = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
        if (!h->scratch)
            return false;
        h->scratch_room = bytes;
    }
    return true;
}

/* How many messages each peer owes and is owed; zero-length pieces are not messages. */
static void count_messages(struct host *h)
{
    const struct schedule *s = h->call.schedule;
    for (int p = 0; p < h->config.size; p++) {
        struct host_peer *peer = &h->peers[p];
        peer->sends_left = peer->recvs_left = 0;
        peer->call_points_sent = peer->call_points_received = 0;
    }
    for (int i = 0; i < s->nsteps; i++) {
        const struct step *step = &s->steps[i];
        if (step->kind != STEP_SEND && step->kind != STEP_RECV)
            continue;
        uint64_t messages = h->call.rows;
        if (!(step->flags & STEP_TOKEN)) {
            struct slice slice = step->kind == STEP_SEND ? s->sources[step->source] : step->dst;
            const size_t *sizes = slice.buffer == SLICE_OUTPUT ? h->call.output_bytes : h->call.input_bytes;
            size_t bytes = sizes[slice.block];
            if (slice.buffer == SLICE_SCRATCH && h->call.output_bytes[slice.block] > bytes)
                bytes = h->call.output_bytes[slice.block];
            messages = (bytes + h->call.row_bytes - 1) / h->call.row_bytes;
        }
        struct host_peer *peer = &h->peers[step->peer];
        if (step->kind == STEP_SEND) {
            peer->sends_left += messages;
            peer->call_points_sent++;
        } else {
            peer->recvs_left += messages;
            peer->call_points_received++;
        }
    }
    for (int p = 0; p < h->config.size; p++) {
        h->peers[p].sends_all = h->peers[p].sends_left;
        h->peers[p].recvs_all = h->peers[p].recvs_left;
    }
}

static void start_rows(struct host *h);

polypath_result_t host_begin(struct host *h, const struct host_call *call)
{
    h->call = *call;
    if (!reserve(h))
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for the %u rows of a call", call->rows);
    const struct schedule *s = call->schedule;
    const uint32_t nsteps = (uint32_t)s->nsteps;
    for (uint32_t i = 0; i < nsteps && call->rows; i++)
        h->need[i] = s->steps[i].waits;
    for (uint32_t r = 1; r < call->rows; r++)
        memcpy(h->need + (size_t)r * nsteps, h->need, nsteps * sizeof *h->need);
    for (uint32_t r = 0; r < call->rows; r++)
        h->left[r] = nsteps;
    h->rows_left = nsteps ? call->rows : 0;
    count_messages(h);
    for (int i = 0; i < h->nlinks; i++) {
        struct link *link = h->links[i];
        link->call_bytes_sent = link->call_bytes_received = 0;
        link->last_ns = link->first_send_ns = 0;
    }
    list_clear(&h->ready);
    h->failure = POLYPATH_SUCCESS;
    h->active = true;
    h->idle = 0;
    h->begin_ns = clock_now_ns();
    start_rows(h);
    return POLYPATH_SUCCESS;
}

/* ------------------------------------------------------------------ steps */

/* Ends a step's hold on the scratch slots it read. */
static void give_back(struct host *h, const struct step *step, uint32_t row)
{
    const struct schedule *s = h->call.schedule;
    for (uint32_t i = 0; i < step->nsrc; i++) {
        struct slice slice = s->sources[step->source + i];
        if (slice.buffer != SLICE_SCRATCH)
            continue;
        struct place *place = host_place(h, slice, row);
        if (--place->reads)
            continue;
        if (place->link) {
            place->link->class->release(place->link, place->token);
            h->nlent--;
        } else {
            host_free_piece(h, place->data);
        }
        place->data = NULL;
        place->link = NULL;
    }
}

void host_take_back(struct host *h)
{
    for (size_t i = 0; h->nlent && i < h->nplaces; i++) {
        struct place *place = &h->places[i];
        if (!place->link || place->pinned)
            continue;
        char *data = take_piece(h);
        compute_copy(data, place->data, place->bytes, false);
        place->link->class->release(place->link, place->token);
        place->link = NULL;
        place->data = data;
        h->nlent--;
    }
}

/* Rows of a path that have started are those before next_row and, of these, only the ones in the path's range. */
static bool row_started(const struct host *h, uint32_t row)
{
    return row < h->next_row[host_path_of(h, row)];
}

void host_complete(struct host *h, uint32_t row, uint32_t step)
{
    const struct schedule *s = h->call.schedule;
    const uint32_t base = state_of(h, row, 0);
    h->need[base + step] = STEP_DONE;
    give_back(h, &s->steps[step], row);
    const bool started = row_started(h, row);
    for (uint32_t i = 0; i < s->steps[step].nnext; i++) {
        uint32_t after = s->successors[s->steps[step].next + i];
        if (--h->need[base + after] == 0 && started)
            list_push(h, &h->ready, base + after);
    }
    if (--h->left[row] == 0) {
        h->rows_left--;
        start_rows(h);
    }
}

static void run_reduce(struct host *h, const struct step *step, uint32_t row, size_t bytes)
{
    const struct schedule *s = h->call.schedule;
    const void **sources = h->pointers;
    struct compute_op op = h->call.op;
    if (!(step->flags & STEP_FINAL))
        op.divisor = 0;
    const size_t count = bytes / polypath_type_bytes(op.type);
    for (uint32_t i = 0; i < step->nsrc; i++)
        sources[i] = host_source_address(h, s->sources[step->source + i], row);
    compute_reduce(&op, host_slice_address(h, step->dst, row), NULL, sources, step->nsrc, count, false);
}

static void run_step(struct host *h, uint32_t row, uint32_t index)
{
    const struct schedule *s = h->call.schedule;
    const struct step *step = &s->steps[index];
    const struct slice source = step->nsrc ? s->sources[step->source] : (struct slice){0};
    const bool message = step->kind == STEP_SEND || step->kind == STEP_RECV;
    size_t bytes = host_slice_bytes(h, step->kind == STEP_SEND ? source : step->dst, row);
    if (message && (step->flags & STEP_TOKEN)) {
        if (step->kind == STEP_SEND)
            host_enqueue(h, row, index);
        return;
    }
    if (bytes == 0) {
        host_complete(h, row, index);
        return;
    }
    switch (step->kind) {
    case STEP_SEND: host_enqueue(h, row, index); return;
    case STEP_RECV: return; /* completes when it arrives */
    case STEP_REDUCE: run_reduce(h, step, row, bytes); break;
    case STEP_COPY: {
        char *to = host_slice_address(h, step->dst, row);
        const char *from = host_source_address(h, source, row);
        if (to != from)
            compute_copy(to, from, bytes, h->call.stream);
        break;
    }
    case STEP_SCALE:
        compute_scale(h->call.op.type, host_slice_address(h, step->dst, row), host_source_address(h, source, row),
                      h->call.scalar, bytes / polypath_type_bytes(h->call.op.type));
        break;
    default: break;
    }
    host_complete(h, row, index);
}

/* Starts rows while the windows allow; their steps without predecessors become ready. */
static void start_rows(struct host *h)
{
    const uint32_t nsteps = (uint32_t)h->call.schedule->nsteps;
    for (int p = 0; p < h->call.npaths; p++) {
        while (h->next_row[p] < h->call.first_row[p + 1]) {
            uint32_t row = h->next_row[p];
            /* row r starts only when row r - window has ended (schedule.h, scratch safety) */
            if (row - h->call.first_row[p] >= h->window[p] && h->left[row - h->window[p]])
                break;
            h->next_row[p]++;
            for (uint32_t i = 0; i < nsteps; i++)
                if (h->need[row * nsteps + i] == 0)
                    list_push(h, &h->ready, row * nsteps + i);
        }
    }
}

static void run_ready(struct host *h)
{
    const uint32_t nsteps = (uint32_t)h->call.schedule->nsteps;
    while (!list_empty(&h->ready) && !h->failure) {
        uint32_t id = list_pop(h, &h->ready);
        run_step(h, id / nsteps, id % nsteps);
    }
}

/* -------------------------------------------------------------- advancing */

static void end_call(struct host *h)
{
    if (h->call.frame.kind == FRAME_POINT) {
        for (int p = 0; p < h->config.size; p++) {
            h->peers[p].points_sent += h->peers[p].call_points_sent;
            h->peers[p].points_received += h->peers[p].call_points_received;
        }
    }
    for (int i = 0; i < h->nlinks; i++) {
        struct link *link = h->links[i];
        if (link->call_bytes_sent < (256u << 10) || link->last_ns <= link->first_send_ns)
            continue;
        uint64_t rate = link->call_bytes_sent * 1000 / ((link->last_ns - link->first_send_ns) / 1000 + 1);
        link->bytes_per_ms = link->bytes_per_ms ? (link->bytes_per_ms + rate) / 2 : rate;
    }
    h->active = false;
}

polypath_result_t host_advance(struct host *h, bool *done, bool *moved)
{
    uint64_t bytes = 0;
    *done = false;
    run_ready(h);
    polypath_result_t result = h->failure ? h->failure : host_dispatch(h, &bytes);
    for (int i = 0; i < h->nlinks && !result; i++) {
        result = link_progress(h->links[i], &h->sink, &bytes);
        if (h->failure)
            result = h->failure;
        if (!result && !list_empty(&h->ready)) {
            run_ready(h);
            result = h->failure;
        }
    }
    if (!result && h->backlog)
        result = host_dispatch(h, &bytes);
    *moved = bytes != 0;
    if (bytes)
        h->idle = 0;
    if (result) {
        h->active = false;
        return result;
    }
    if (h->rows_left == 0) {
        end_call(h);
        *done = true;
    }
    return POLYPATH_SUCCESS;
}

/* -------------------------------------------------------------- reporting */

uint64_t host_chunks_handed_over(const struct host *h)
{
    return h->handed_over;
}

uint64_t host_elapsed_ns(const struct host *h)
{
    return clock_now_ns() - h->begin_ns;
}

void host_report(const struct host *h, int path, struct host_path_report *report)
{
    *report = (struct host_path_report){0};
    uint64_t last = 0;
    for (int i = 0; i < h->nlinks; i++) {
        const struct link *link = h->links[i];
        if (link->path != path)
            continue;
        report->bytes_sent += link->call_bytes_sent;
        report->bytes_received += link->call_bytes_received;
        if (link->last_ns > last)
            last = link->last_ns;
    }
    report->busy_ns = last > h->begin_ns ? last - h->begin_ns : 0;
}

void host_totals(const struct host *h, int path, uint64_t *bytes_sent, uint64_t *frames_sent)
{
    *bytes_sent = *frames_sent = 0;
    for (int i = 0; i < h->nlinks; i++) {
        if (h->links[i]->path != path)
            continue;
        *bytes_sent += h->links[i]->bytes_sent;
        *frames_sent += h->links[i]->frames_sent;
    }
}

size_t host_memory(const struct host *h)
{
    return h->states_room * (sizeof *h->need + sizeof *h->next) + h->rows_room * sizeof *h->left +
           h->places_room * (sizeof *h->places + sizeof *h->free_pieces) + h->scratch_room +
           (h->config.segment ? h->config.segment->bytes : 0);
}
