/*
 * The service at which the ranks of one communicator meet: a detached thread
 * around one poll(2) loop. It waits for all ranks to join, then runs
 * all-gathers one after another until all have left. The first thing that goes
 * wrong ends it: every rank, also one that comes late, is told what it was.
 *
 * Clients here have passed the handshake, so they are of this job; their
 * frames are still checked, because ranks may run different versions.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/bootstrap_wire.h"
#include "system/clock.h"
#include "system/error.h"
#include "system/log.h"
#include "system/settings.h"

#define LINGER_NS 5000000000ull /* after a failure: for ranks that come late, and for text on its way */

enum phase { PHASE_JOIN, PHASE_GATHER, PHASE_SEND, PHASE_FAILED };

struct client {
    int fd, rank;
    bool joined, left;
    bool told;    /* has been sent FAIL: what it says is not read any more */
    bool gathers; /* is sending, or has sent, its record of this round */
    bool given;   /* its record of this round is complete */
    uint64_t timeout_ms;
    char name[96];
    uint8_t in_header[BOOTSTRAP_FRAME_BYTES];
    size_t in_done; /* of the header, then of the record behind it */
    struct bootstrap_frame in;
    uint8_t out_header[BOOTSTRAP_FRAME_BYTES];
    const uint8_t *out_body;    /* in service.all or service.failure */
    size_t out_bytes, out_done; /* both with the header; nothing to send when equal */
};

struct service {
    int listeners[BOOTSTRAP_ADDRESSES_MAX], nlisteners;
    struct handshake_acceptor *acceptor;
    struct pollfd *fds;
    size_t fds_room;
    struct client **clients; /* in order of arrival */
    int nclients, clients_room;
    enum phase phase;
    int size; /* 0 until the first rank has joined */
    int joined, left, given, told;
    struct client **ranks; /* by rank; NULL: not joined */
    uint32_t round;
    uint8_t *all;
    size_t bytes; /* of one record in this round */
    bool held;    /* rank 0 gets its copy last, see send_to_all() */
    struct bootstrap_frame held_frame;
    uint64_t deadline_ns, deadline_ms;
    polypath_result_t result;
    char failure[ERROR_TEXT_BYTES];
};

static void queue(struct client *c, const struct bootstrap_frame *frame, const void *body)
{
    bootstrap_put_frame(frame, c->out_header);
    c->out_body = body;
    c->out_bytes = sizeof c->out_header + frame->length;
    c->out_done = 0;
}

/* Sends what can be sent without waiting; false if the connection is broken. */
static bool flush(struct client *c)
{
    while (c->out_done < c->out_bytes) {
        bool header = c->out_done < sizeof c->out_header;
        const uint8_t *from = header ? c->out_header + c->out_done : c->out_body + (c->out_done - sizeof c->out_header);
        size_t length = header ? sizeof c->out_header - c->out_done : c->out_bytes - c->out_done;
        ssize_t n = send(c->fd, from, length, MSG_NOSIGNAL);
        if (n > 0)
            c->out_done += (size_t)n;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        else if (n >= 0 || errno != EINTR)
            return false;
    }
    return true;
}

static void tell_failure(struct service *s, struct client *c)
{
    if (c->told || c->fd < 0)
        return;
    /* What it was being sent is cut off; it only looks for FAIL at the start of a frame. */
    if (c->out_done < c->out_bytes && c->out_done > 0) {
        shutdown(c->fd, SHUT_RDWR);
    } else {
        struct bootstrap_frame frame = {FRAME_FAIL, (uint32_t)s->result, 0, strlen(s->failure)};
        queue(c, &frame, s->failure);
        flush(c);
    }
    c->told = true;
    s->told++;
}

/* The first failure counts; everybody is told, rank 0 last because its exit may end this process. */
static void fail(struct service *s, polypath_result_t result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void fail(struct service *s, polypath_result_t result, const char *format, ...)
{
    if (s->phase == PHASE_FAILED)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(s->failure, sizeof s->failure, format, args);
    va_end(args);
    log_line(LOG_LEVEL_INFO, "start-up failed: %s", s->failure);
    s->result = result;
    s->phase = PHASE_FAILED;
    s->deadline_ns = clock_now_ns() + LINGER_NS;
    for (int i = 0; i < s->nclients; i++)
        if (s->clients[i]->rank != 0)
            tell_failure(s, s->clients[i]);
    for (int i = 0; i < s->nclients; i++)
        tell_failure(s, s->clients[i]);
}

/* "rank 2", "ranks 2, 5 and 7": those for which `missing` says so. */
static void name_ranks(const struct service *s, bool (*missing)(const struct client *), char *text, size_t bytes)
{
    int count = 0, shown = 0;
    for (int r = 0; r < s->size; r++)
        count += missing(s->ranks[r]);
    size_t used = (size_t)snprintf(text, bytes, count == 1 ? "rank" : "ranks");
    for (int r = 0; r < s->size && shown < 16; r++) {
        if (!missing(s->ranks[r]))
            continue;
        const char *glue = shown == 0 ? " " : shown + 1 == count ? " and " : ", ";
        used += (size_t)snprintf(text + used, bytes - used, "%s%d", glue, r);
        shown++;
    }
    if (count > shown)
        snprintf(text + used, bytes - used, " and %d more", count - shown);
}

static bool not_joined(const struct client *c)
{
    return !c;
}
static bool not_given(const struct client *c)
{
    return !c->given;
}
static bool not_sent(const struct client *c)
{
    return c->out_done < c->out_bytes;
}

static void time_out(struct service *s)
{
    char names[256];
    switch (s->phase) {
    case PHASE_JOIN:
        name_ranks(s, not_joined, names, sizeof names);
        fail(s, POLYPATH_ERROR_TIMEOUT, "timed out after %" PRIu64 " ms: %s of %d did not come to the start-up",
             s->deadline_ms, names, s->size);
        return;
    case PHASE_GATHER:
        name_ranks(s, not_given, names, sizeof names);
        fail(s, POLYPATH_ERROR_TIMEOUT,
             "timed out after %" PRIu64 " ms: %s of %d did not come to exchange %u of the "
             "start-up",
             s->deadline_ms, names, s->size, (unsigned)s->round);
        return;
    case PHASE_SEND:
        name_ranks(s, not_sent, names, sizeof names);
        fail(s, POLYPATH_ERROR_TIMEOUT,
             "timed out after %" PRIu64 " ms: %s of %d did not read the result of exchange "
             "%u of the start-up",
             s->deadline_ms, names, s->size, (unsigned)s->round);
        return;
    case PHASE_FAILED: return;
    }
}

/* The deadline of what is awaited: the earliest of those that wait for it. */
static void wait_at_most(struct service *s, uint64_t timeout_ms)
{
    if (timeout_ms > 86400000)
        timeout_ms = 86400000;
    uint64_t deadline = clock_now_ns() + timeout_ms * 1000000;
    if (deadline < s->deadline_ns) {
        s->deadline_ns = deadline;
        s->deadline_ms = timeout_ms;
    }
}

/*
 * Rank 0 is most often in this very process: it gets its copy when all others
 * have theirs, so that its exit cannot take the service away from them.
 */
static void send_to_all(struct service *s, const struct bootstrap_frame *frame)
{
    s->phase = PHASE_SEND;
    for (int r = 1; r < s->size; r++)
        queue(s->ranks[r], frame, s->all);
    s->held = true;
    s->held_frame = *frame;
}

static void go_on_sending(struct service *s)
{
    if (s->phase != PHASE_SEND)
        return;
    for (int r = 0; r < s->size; r++)
        if (s->ranks[r]->out_done < s->ranks[r]->out_bytes)
            return;
    if (s->held) {
        s->held = false;
        queue(s->ranks[0], &s->held_frame, s->all);
        return;
    }
    free(s->all);
    s->all = NULL;
    s->phase = PHASE_GATHER;
    s->round++;
    s->given = 0;
    s->deadline_ns = UINT64_MAX;
    for (int r = 0; r < s->size; r++)
        s->ranks[r]->gathers = s->ranks[r]->given = false;
}

static void join(struct service *s, struct client *c)
{
    if (c->joined) {
        fail(s, POLYPATH_ERROR_INTERNAL, "rank %d joined the start-up twice over one connection", c->rank);
        return;
    }
    if (s->phase != PHASE_JOIN) {
        /* The communicator is complete: only the stray one is told. */
        const char *text = "all ranks of this communicator have already come: two processes have the same rank, or a "
                           "unique id is used twice";
        struct bootstrap_frame frame = {FRAME_FAIL, POLYPATH_ERROR_MISMATCH, 0, strlen(text)};
        log_line(LOG_LEVEL_WARN, "refused a second rank %d (%s): all ranks have already come", c->rank, c->name);
        queue(c, &frame, text);
        c->told = true;
        return;
    }
    uint32_t size = c->in.value;
    if (size < 1 || size > BOOTSTRAP_SIZE_MAX) {
        fail(s, POLYPATH_ERROR_MISMATCH, "rank %d (%s) says that there are %u ranks: at most %d are possible", c->rank,
             c->name, (unsigned)size, BOOTSTRAP_SIZE_MAX);
        return;
    }
    if (!s->size) {
        if (!(s->ranks = calloc(size, sizeof *s->ranks))) {
            fail(s, POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for the start-up of %u ranks", (unsigned)size);
            return;
        }
        s->size = (int)size;
        s->deadline_ns = UINT64_MAX;
    }
    if ((int)size != s->size) {
        int other = 0;
        while (other < s->size && !s->ranks[other])
            other++;
        fail(s, POLYPATH_ERROR_MISMATCH,
             "the ranks disagree on how many they are: rank %d (%s) says %u, rank %d says %d", c->rank, c->name,
             (unsigned)size, other, s->size);
    } else if (c->rank >= s->size) {
        fail(s, POLYPATH_ERROR_MISMATCH, "rank %d (%s) is outside 0 to %d", c->rank, c->name, s->size - 1);
    } else if (s->ranks[c->rank]) {
        fail(s, POLYPATH_ERROR_MISMATCH, "rank %d came twice: from %s and from %s", c->rank, s->ranks[c->rank]->name,
             c->name);
    } else {
        c->joined = true;
        c->timeout_ms = c->in.timeout_ms;
        s->ranks[c->rank] = c;
        s->joined++;
        wait_at_most(s, c->timeout_ms);
        if (s->joined == s->size) {
            struct bootstrap_frame welcome = {FRAME_WELCOME, (uint32_t)s->size, 0, 0};
            send_to_all(s, &welcome);
        }
    }
}

/* The header of a record has come. */
static void begin_gather(struct service *s, struct client *c)
{
    if (!c->joined || s->phase != PHASE_GATHER || c->in.value != s->round || c->gathers || c->left) {
        fail(s, POLYPATH_ERROR_INTERNAL, "rank %d (%s) is at exchange %u of the start-up, the others are at %u",
             c->rank, c->name, (unsigned)c->in.value, (unsigned)s->round);
        return;
    }
    if (c->in.length > BOOTSTRAP_RECORD_MAX) {
        fail(s, POLYPATH_ERROR_ARGUMENT, "rank %d gives %" PRIu64 " bytes in exchange %u of the start-up: at most %u",
             c->rank, c->in.length, (unsigned)s->round, BOOTSTRAP_RECORD_MAX);
        return;
    }
    if (!s->all) {
        s->bytes = (size_t)c->in.length;
        if (!(s->all = malloc(s->bytes * (size_t)s->size + 1))) {
            fail(s, POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for %d records of %zu bytes in the start-up", s->size,
                 s->bytes);
            return;
        }
    } else if (c->in.length != s->bytes) {
        int other = 0;
        while (other < s->size - 1 && !s->ranks[other]->gathers)
            other++;
        fail(s, POLYPATH_ERROR_MISMATCH,
             "the ranks disagree in exchange %u of the start-up: rank %d gives %" PRIu64 " bytes, rank %d gives %zu",
             (unsigned)s->round, c->rank, c->in.length, other, s->bytes);
        return;
    }
    c->gathers = true;
    wait_at_most(s, c->in.timeout_ms);
}

/* A rank that has left can give nothing more, so a round that somebody has begun cannot end. */
static void check_left(struct service *s)
{
    if (s->phase != PHASE_GATHER || !s->left || !s->all)
        return;
    for (int r = 0; r < s->size; r++)
        if (s->ranks[r]->left && !s->ranks[r]->given) {
            fail(s, POLYPATH_ERROR_PEER_LOST, "rank %d left the start-up before exchange %u, which others have begun",
                 r, (unsigned)s->round);
            return;
        }
}

static void handle_header(struct service *s, struct client *c)
{
    bootstrap_get_frame(c->in_header, &c->in);
    bool bare = c->in.length == 0;
    if (c->in.type == FRAME_JOIN && bare) {
        join(s, c);
    } else if (c->in.type == FRAME_GATHER) {
        begin_gather(s, c);
    } else if (c->in.type == FRAME_LEAVE && bare && c->joined && !c->left) {
        c->left = true;
        s->left++;
    } else {
        fail(s, POLYPATH_ERROR_INTERNAL,
             "rank %d (%s) sent something that is not understood: does it run another version?", c->rank, c->name);
    }
}

/* Reads on until nothing is there or the phase changes. False: the connection is at its end, or broken. */
static bool receive(struct service *s, struct client *c)
{
    while (!c->told && s->phase != PHASE_SEND && s->phase != PHASE_FAILED) {
        bool record = c->gathers && !c->given;
        uint8_t *to = record ? s->all + (size_t)c->rank * s->bytes : c->in_header;
        size_t length = record ? s->bytes : sizeof c->in_header;
        if (c->in_done < length) {
            ssize_t n = recv(c->fd, to + c->in_done, length - c->in_done, 0);
            if (n > 0)
                c->in_done += (size_t)n;
            else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
                return true;
            else if (n == 0 || errno != EINTR)
                return false;
            if (c->in_done < length)
                continue;
        }
        c->in_done = 0;
        if (record) {
            c->given = true;
            if (++s->given == s->size) {
                struct bootstrap_frame all = {FRAME_ALL, s->round, 0, s->bytes * (size_t)s->size};
                send_to_all(s, &all);
            }
        } else {
            handle_header(s, c);
        }
        check_left(s);
    }
    return true;
}

/* For those that have been told the failure: their input is thrown away until they close. */
static bool drain(struct client *c)
{
    uint8_t sink[4096];
    for (;;) {
        ssize_t n = recv(c->fd, sink, sizeof sink, 0);
        if (n == 0 || (n < 0 && errno != EINTR))
            return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }
}

static void lost(struct service *s, struct client *c)
{
    close(c->fd);
    c->fd = -1;
    if (c->left || c->told)
        return;
    if (c->joined)
        fail(s, POLYPATH_ERROR_PEER_LOST, "rank %d (%s) was lost in the start-up: its connection ended", c->rank,
             c->name);
    else
        log_line(LOG_LEVEL_INFO, "rank %d (%s) went away before it had joined", c->rank, c->name);
}

static void serve_client(struct service *s, struct client *c)
{
    bool alive = flush(c);
    if (alive)
        alive = c->told ? drain(c) : receive(s, c);
    if (!alive)
        lost(s, c);
}

static polypath_result_t admit(void *context, int fd, const struct hello *hello)
{
    struct service *s = context;
    if (hello->purpose != HELLO_BOOTSTRAP) {
        log_line(LOG_LEVEL_WARN, "refused a connection of rank %d: it is not for the start-up", (int)hello->rank);
        close(fd);
        return POLYPATH_SUCCESS;
    }
    if (s->nclients == s->clients_room) {
        int room = s->clients_room ? 2 * s->clients_room : 16;
        struct client **more = realloc(s->clients, (size_t)room * sizeof *more);
        if (more) {
            s->clients = more;
            s->clients_room = room;
        }
    }
    struct client *c = s->nclients < s->clients_room ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        close(fd);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for the connection of rank %d", (int)hello->rank);
    }
    c->fd = fd;
    c->rank = hello->rank;
    handshake_peer_name(fd, c->name);
    bootstrap_tune_socket(fd);
    s->clients[s->nclients++] = c;
    if (s->phase == PHASE_FAILED)
        tell_failure(s, c);
    return POLYPATH_SUCCESS;
}

/* Clients that are not in the table of ranks are forgotten when they are gone. */
static void sweep(struct service *s)
{
    int kept = 0;
    for (int i = 0; i < s->nclients; i++) {
        struct client *c = s->clients[i];
        if (c->fd < 0 && !c->joined)
            free(c);
        else
            s->clients[kept++] = c;
    }
    s->nclients = kept;
}

static bool finished(const struct service *s)
{
    if (s->phase == PHASE_FAILED) {
        /* As many as there are ranks have been told, and have gone; or it took too long. */
        bool here = false;
        for (int i = 0; i < s->nclients && !here; i++)
            here = s->clients[i]->fd >= 0;
        return (!here && s->size && s->told >= s->size) || clock_now_ns() >= s->deadline_ns;
    }
    return (s->size && s->left == s->size) || (!s->size && clock_now_ns() >= s->deadline_ns);
}

static short wanted(const struct service *s, const struct client *c)
{
    short events = 0;
    if (c->out_done < c->out_bytes)
        events |= POLLOUT;
    if (c->told || s->phase != PHASE_SEND)
        events |= POLLIN;
    return events;
}

/* One turn of the loop: wait, take connections, serve clients. */
static polypath_result_t turn(struct service *s)
{
    size_t need = HANDSHAKE_POLL_MAX + BOOTSTRAP_ADDRESSES_MAX + (size_t)s->nclients;
    if (need > s->fds_room) {
        struct pollfd *more = realloc(s->fds, 2 * need * sizeof *more);
        if (!more)
            return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for the start-up's connections");
        s->fds = more;
        s->fds_room = 2 * need;
    }
    uint64_t wake_ns = s->deadline_ns;
    int theirs = handshake_acceptor_poll(s->acceptor, s->fds, &wake_ns), n = theirs, clients = s->nclients;
    for (int i = 0; i < clients; i++) {
        short events = wanted(s, s->clients[i]);
        /* poll(2) reports POLLHUP unasked: an entry that waits for nothing must not be in the way. */
        s->fds[n++] = (struct pollfd){.fd = events ? s->clients[i]->fd : -1, .events = events};
    }
    if (poll(s->fds, (nfds_t)n, wake_ns == UINT64_MAX ? -1 : clock_ms_until(wake_ns)) < 0)
        return errno == EINTR ? POLYPATH_SUCCESS : error_set(POLYPATH_ERROR_SYSTEM, "poll: %s", strerror(errno));
    for (int i = 0; i < clients; i++)
        if (s->fds[theirs + i].revents)
            serve_client(s, s->clients[i]);
    polypath_result_t result = handshake_acceptor_step(s->acceptor, s->fds, theirs);
    go_on_sending(s);
    check_left(s);
    sweep(s);
    if (s->phase != PHASE_FAILED && s->size && clock_now_ns() >= s->deadline_ns)
        time_out(s);
    return result;
}

static void release(struct service *s)
{
    handshake_acceptor_close(s->acceptor);
    for (int i = 0; i < s->nlisteners; i++)
        close(s->listeners[i]);
    for (int i = 0; i < s->nclients; i++) {
        if (s->clients[i]->fd >= 0)
            close(s->clients[i]->fd);
        free(s->clients[i]);
    }
    free(s->clients);
    free(s->ranks);
    free(s->fds);
    free(s->all);
    sodium_memzero(s, sizeof *s);
    free(s);
}

static void *run_service(void *argument)
{
    struct service *s = argument;
    pthread_setname_np(pthread_self(), "polypath-start");
    while (!finished(s)) {
        polypath_result_t result = turn(s);
        if (result == POLYPATH_SUCCESS)
            continue;
        log_line(LOG_LEVEL_ERROR, "the start-up's service: %s", error_text());
        if (s->phase == PHASE_FAILED)
            break;
        fail(s, result, "the start-up's service: %s", error_text());
    }
    if (!s->nclients && !s->size)
        log_line(LOG_LEVEL_INFO, "no rank came to the start-up within %" PRIu64 " ms; its service has ended",
                 s->deadline_ms);
    release(s);
    return NULL;
}

polypath_result_t bootstrap_service_start(const struct bootstrap_id *id, const int *listeners, int nlisteners)
{
    struct service *s = calloc(1, sizeof *s);
    if (!s) {
        for (int i = 0; i < nlisteners; i++)
            close(listeners[i]);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for the start-up's service");
    }
    s->nlisteners = nlisteners;
    memcpy(s->listeners, listeners, (size_t)nlisteners * sizeof *listeners);
    s->deadline_ms = settings_get()->timeout_ms;
    s->deadline_ns = clock_now_ns() + s->deadline_ms * 1000000;
    polypath_result_t result =
        handshake_acceptor_open(listeners, nlisteners, id->secret, id->comm, admit, s, &s->acceptor);
    if (result != POLYPATH_SUCCESS) {
        release(s);
        return result;
    }
    /* The application's signals are for its own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    int error = pthread_create(&thread, &attributes, run_service, s);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        release(s);
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot start a thread for the start-up's service: %s",
                         strerror(error));
    }
    return POLYPATH_SUCCESS;
}
