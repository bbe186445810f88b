/*
 * A rank's side of the bootstrap: finds the service of a unique id, proves
 * itself, and takes part in its all-gathers. What arrives is checked, and the
 * service's verdict, when something goes wrong, becomes this rank's error.
 */
#include "comm/bootstrap.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "comm/bootstrap_wire.h"
#include "system/clock.h"
#include "system/error.h"
#include "system/settings.h"

#define ATTEMPT_NS 5000000000ull         /* for one address; then the next one, or the same again */
#define DERIVED_ATTEMPT_NS 2000000000ull /* where most ports of the span belong to others */
#define GRACE_NS 5000000000ull /* the service knows who is missing: its verdict is waited for this much longer */
#define REFUSALS_MAX 5         /* in a row, from a service that was there when its id was made */

struct bootstrap {
    int fd; /* -1: alone, nobody to talk to */
    int rank, size;
    uint32_t round;
    bool failed;
    char service[96]; /* its address, for messages */
};

/* Connects to one address, without the handshake. */
static polypath_result_t connect_to(const struct bootstrap_address *address, int offset, uint64_t deadline_ns, int *out)
{
    union bootstrap_sockaddr to;
    socklen_t length;
    polypath_result_t result = bootstrap_sockaddr(address, offset, &to, &length);
    if (result != POLYPATH_SUCCESS)
        return result;
    int fd = socket(to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(errno == EMFILE || errno == ENFILE ? POLYPATH_ERROR_OUT_OF_MEMORY : POLYPATH_ERROR_SYSTEM,
                         "cannot open a socket: %s%s", strerror(errno),
                         errno == EMFILE ? " (raise the limit with `ulimit -n`)" : "");
    int error = connect(fd, &to.any, length) ? errno : 0;
    while (error == EINPROGRESS || error == EINTR) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        int ready = poll(&p, 1, clock_ms_until(deadline_ns));
        socklen_t size = sizeof error;
        if (ready > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size))
            error = errno;
        else if (ready == 0 && clock_now_ns() >= deadline_ns)
            error = ETIMEDOUT;
    }
    if (error) {
        close(fd);
        return error_set(error == ECONNREFUSED || error == ECONNRESET ? POLYPATH_ERROR_PEER_LOST
                                                                      : POLYPATH_ERROR_TIMEOUT,
                         "%s", strerror(error));
    }
    *out = fd;
    return POLYPATH_SUCCESS;
}

/* One attempt at one address and port: connection and handshake. */
static polypath_result_t attempt(struct bootstrap *b, const struct bootstrap_id *id, int address, int offset,
                                 uint64_t deadline_ns)
{
    uint64_t limit = clock_now_ns() + (id->derived ? DERIVED_ATTEMPT_NS : ATTEMPT_NS);
    if (limit > deadline_ns)
        limit = deadline_ns;
    bootstrap_address_name(&id->addresses[address], offset, b->service);
    int fd = -1;
    polypath_result_t result = connect_to(&id->addresses[address], offset, limit, &fd);
    if (result == POLYPATH_SUCCESS) {
        bootstrap_tune_socket(fd);
        struct hello hello = {.comm = id->comm, .rank = b->rank, .purpose = HELLO_BOOTSTRAP};
        result = handshake_connect(fd, id->secret, &hello, limit);
        if (result == POLYPATH_SUCCESS)
            b->fd = fd;
        else
            close(fd);
    }
    return result == POLYPATH_SUCCESS
               ? result
               : error_prefix(result, "rank %d of %d cannot join the start-up at %s", b->rank, b->size, b->service);
}

static void pause_until(uint64_t until_ns)
{
    uint64_t now = clock_now_ns();
    if (now >= until_ns)
        return;
    struct timespec rest = {(time_t)((until_ns - now) / 1000000000), (long)((until_ns - now) % 1000000000)};
    nanosleep(&rest, NULL);
}

/*
 * Tries all addresses (and ports) in turn until one is the service. A derived
 * id's service may come later and strangers may sit on its ports, so there
 * nothing but the deadline is final.
 */
static polypath_result_t find_service(struct bootstrap *b, const struct bootstrap_id *id, uint64_t deadline_ns)
{
    uint64_t pause_ns = 10000000;
    polypath_result_t result = POLYPATH_ERROR_INTERNAL; /* there is at least one address */
    for (int refusals = 0;;) {
        bool refused = true;
        for (int offset = 0; offset < id->span; offset++)
            for (int i = 0; i < id->naddresses; i++) {
                result = attempt(b, id, i, offset, deadline_ns);
                if (result == POLYPATH_SUCCESS || result == POLYPATH_ERROR_OUT_OF_MEMORY)
                    return result;
                if (result == POLYPATH_ERROR_MISMATCH && !id->derived)
                    return result;
                refused = refused && (result == POLYPATH_ERROR_PEER_LOST || result == POLYPATH_ERROR_SYSTEM);
            }
        refusals = refused ? refusals + 1 : 0;
        if (refusals >= REFUSALS_MAX && !id->derived)
            return error_set(result, "%s (its process has ended, or its communicator is already complete)",
                             error_text());
        uint64_t now = clock_now_ns();
        if (now >= deadline_ns)
            return error_set(POLYPATH_ERROR_TIMEOUT, "timed out: %s", error_text());
        pause_until(now + pause_ns < deadline_ns ? now + pause_ns : deadline_ns);
        if (pause_ns < 200000000)
            pause_ns *= 2;
    }
}

static polypath_result_t broken(struct bootstrap *b, const char *how)
{
    return error_set(POLYPATH_ERROR_PEER_LOST,
                     "rank %d: the connection to the start-up's service at %s was lost: %s (has the process that made "
                     "the unique id ended?)",
                     b->rank, b->service, how);
}

/* A message being sent: header, then body. */
struct outgoing {
    uint8_t header[BOOTSTRAP_FRAME_BYTES];
    const uint8_t *body;
    size_t done, bytes;
};

static polypath_result_t send_some(struct bootstrap *b, struct outgoing *out)
{
    while (out->done < out->bytes) {
        bool header = out->done < sizeof out->header;
        const uint8_t *from = header ? out->header + out->done : out->body + (out->done - sizeof out->header);
        size_t length = header ? sizeof out->header - out->done : out->bytes - out->done;
        ssize_t n = send(b->fd, from, length, MSG_NOSIGNAL);
        if (n > 0)
            out->done += (size_t)n;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return POLYPATH_SUCCESS;
        else if (n >= 0 || errno != EINTR)
            return broken(b, strerror(errno));
    }
    return POLYPATH_SUCCESS;
}

/* Receives `length` bytes; while it waits, what is left of `out` goes on. */
static polypath_result_t receive(struct bootstrap *b, struct outgoing *out, void *into, size_t length,
                                 uint64_t deadline_ns)
{
    uint8_t *to = into;
    bool sending = out->done < out->bytes;
    while (length) {
        ssize_t n = recv(b->fd, to, length, 0);
        if (n > 0) {
            to += n;
            length -= (size_t)n;
            continue;
        }
        if (n == 0)
            return broken(b, "it closed the connection");
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return broken(b, strerror(errno));
        /* When sending fails, the reason may still be on its way in: what can be read decides. */
        if (sending && send_some(b, out) != POLYPATH_SUCCESS)
            out->done = out->bytes;
        sending = out->done < out->bytes;
        struct pollfd p = {.fd = b->fd, .events = (short)(POLLIN | (sending ? POLLOUT : 0))};
        if (poll(&p, 1, clock_ms_until(deadline_ns)) < 0 && errno != EINTR)
            return error_set(POLYPATH_ERROR_SYSTEM, "poll: %s", strerror(errno));
        if (!p.revents && clock_now_ns() >= deadline_ns)
            return error_set(POLYPATH_ERROR_TIMEOUT, "rank %d: the start-up's service at %s does not answer", b->rank,
                             b->service);
    }
    return POLYPATH_SUCCESS;
}

static polypath_result_t verdict(struct bootstrap *b, const struct bootstrap_frame *frame, uint64_t deadline_ns)
{
    char text[ERROR_TEXT_BYTES] = "";
    struct outgoing nothing = {.done = 0, .bytes = 0};
    if (frame->length >= sizeof text)
        return broken(b, "its answer is not understood");
    polypath_result_t result = receive(b, &nothing, text, (size_t)frame->length, deadline_ns);
    if (result != POLYPATH_SUCCESS)
        return result;
    result = frame->value > 0 && frame->value <= POLYPATH_ERROR_INTERNAL ? (polypath_result_t)frame->value
                                                                         : POLYPATH_ERROR_INTERNAL;
    return error_set(result, "%s", text);
}

/* Sends one frame and waits for the frame that answers it, whose body (exactly `expected` bytes) goes to `all`. */
static polypath_result_t exchange(struct bootstrap *b, const struct bootstrap_frame *question, const void *body,
                                  const struct bootstrap_frame *answer, void *all)
{
    uint64_t deadline_ns = clock_now_ns() + question->timeout_ms * 1000000 + GRACE_NS;
    struct outgoing out = {.body = body, .bytes = BOOTSTRAP_FRAME_BYTES + (size_t)question->length};
    bootstrap_put_frame(question, out.header);
    send_some(b, &out); /* its failure shows again in receive() */
    uint8_t header[BOOTSTRAP_FRAME_BYTES];
    struct bootstrap_frame got;
    polypath_result_t result = receive(b, &out, header, sizeof header, deadline_ns);
    if (result == POLYPATH_SUCCESS) {
        bootstrap_get_frame(header, &got);
        if (got.type == FRAME_FAIL)
            result = verdict(b, &got, deadline_ns);
        else if (got.type != answer->type || got.value != answer->value || got.length != answer->length)
            result = broken(b, "its answer is not understood");
        else
            result = receive(b, &out, all, (size_t)got.length, deadline_ns);
    }
    b->failed = result != POLYPATH_SUCCESS;
    return result;
}

polypath_result_t bootstrap_open(const polypath_unique_id_t *id, int rank, int size, struct bootstrap **out)
{
    *out = NULL;
    if (size < 1 || size > BOOTSTRAP_SIZE_MAX)
        return error_set(POLYPATH_ERROR_ARGUMENT, "size %d: expected 1 to %d", size, BOOTSTRAP_SIZE_MAX);
    if (rank < 0 || rank >= size)
        return error_set(POLYPATH_ERROR_ARGUMENT, "rank %d is outside 0 to %d", rank, size - 1);
    if (sodium_init() < 0)
        return error_set(POLYPATH_ERROR_SYSTEM, "the system's random source cannot be used");
    struct bootstrap_id inside;
    polypath_result_t result = bootstrap_decode(id, &inside);
    if (result != POLYPATH_SUCCESS)
        return result;
    if (!inside.naddresses && size > 1) {
        sodium_memzero(&inside, sizeof inside);
        return error_set(POLYPATH_ERROR_ARGUMENT, "this unique id is for a communicator of one rank, not of %d", size);
    }
    struct bootstrap *b = calloc(1, sizeof *b);
    if (!b) {
        sodium_memzero(&inside, sizeof inside);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for the start-up");
    }
    *b = (struct bootstrap){.fd = -1, .rank = rank, .size = size};
    if (inside.naddresses) {
        uint64_t timeout_ms = settings_get()->timeout_ms;
        result = find_service(b, &inside, clock_now_ns() + timeout_ms * 1000000);
        struct bootstrap_frame join = {FRAME_JOIN, (uint32_t)size, timeout_ms, 0};
        struct bootstrap_frame welcome = {FRAME_WELCOME, (uint32_t)size, 0, 0};
        if (result == POLYPATH_SUCCESS)
            result = exchange(b, &join, NULL, &welcome, NULL);
    }
    sodium_memzero(&inside, sizeof inside);
    if (result != POLYPATH_SUCCESS) {
        bootstrap_close(b);
        return result;
    }
    *out = b;
    return POLYPATH_SUCCESS;
}

polypath_result_t bootstrap_all_gather(struct bootstrap *b, const void *mine, size_t bytes, void *all)
{
    if (bytes > BOOTSTRAP_RECORD_MAX)
        return error_set(POLYPATH_ERROR_ARGUMENT, "a record of %zu bytes in the start-up: at most %u", bytes,
                         BOOTSTRAP_RECORD_MAX);
    if (b->failed)
        return error_set(POLYPATH_ERROR_USAGE, "rank %d: the start-up has already failed", b->rank);
    if (b->fd < 0) {
        memmove(all, mine, bytes);
        return POLYPATH_SUCCESS;
    }
    b->round++;
    struct bootstrap_frame gather = {FRAME_GATHER, b->round, settings_get()->timeout_ms, bytes};
    struct bootstrap_frame answer = {FRAME_ALL, b->round, 0, (uint64_t)bytes * (uint64_t)b->size};
    return exchange(b, &gather, mine, &answer, all);
}

void bootstrap_close(struct bootstrap *b)
{
    if (!b)
        return;
    if (b->fd >= 0) {
        if (!b->failed) {
            struct bootstrap_frame leave = {FRAME_LEAVE, 0, 0, 0};
            struct outgoing out = {.body = NULL, .bytes = BOOTSTRAP_FRAME_BYTES};
            bootstrap_put_frame(&leave, out.header);
            send_some(b, &out); /* everything before it has been answered, so there is room for it */
        }
        close(b->fd);
    }
    free(b);
}
