/*
 * The accepting side of the handshake: a poll(2) state machine that serves
 * many connections at once and gives none of them more than a small fixed
 * buffer and a few seconds. Everything that arrives here is hostile until its
 * proof has been checked.
 *
 * A real rank sends its hello together with its connection, a stranger cannot
 * complete one without knowing the communicator's 64-bit number. So when the
 * table is full, the oldest connection without a complete hello makes room,
 * and a flood of strangers pushes out strangers.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/handshake.h"
#include "comm/handshake_wire.h"
#include "system/clock.h"
#include "system/error.h"
#include "system/log.h"

#define PENDING_NS 5000000000ull  /* how long a connection may take to prove itself */
#define STRANGER_NS 1000000000ull /* without a hello for this long: may be dropped when descriptors run out */
#define ACCEPTS_PER_STEP 64       /* then those already here get their turn */
#define LOGGED_REFUSALS 32        /* a flood must not fill the log */

enum stage { STAGE_HELLO, STAGE_CHALLENGE, STAGE_PROOF };

struct pending {
    int fd;
    enum stage stage;
    size_t done; /* bytes of the stage's message */
    uint64_t since_ns;
    struct hello hello;
    uint8_t hello_message[HANDSHAKE_HELLO_BYTES];
    uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES];
    uint8_t proof[HANDSHAKE_PROOF_BYTES];
};

struct handshake_acceptor {
    int listeners[HANDSHAKE_LISTENERS_MAX];
    int nlisteners;
    uint8_t secret[HANDSHAKE_SECRET_BYTES];
    uint64_t comm;
    handshake_accepted *accepted;
    void *context;
    struct pending *pending; /* in order of arrival */
    int npending, most;
    int remaining; /* proved connections until it stops; -1 = never */
    unsigned long refused;
};

static int pending_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur / 4 > HANDSHAKE_POLL_MAX)
        return HANDSHAKE_POLL_MAX;
    return limit.rlim_cur / 4 < 16 ? 16 : (int)(limit.rlim_cur / 4);
}

polypath_result_t handshake_acceptor_open(const int *listeners, int nlisteners,
                                          const uint8_t secret[HANDSHAKE_SECRET_BYTES], uint64_t comm,
                                          handshake_accepted *accepted, void *context, struct handshake_acceptor **out)
{
    *out = NULL;
    if (nlisteners < 0 || nlisteners > HANDSHAKE_LISTENERS_MAX)
        return error_set(POLYPATH_ERROR_ARGUMENT, "%d listening sockets: at most %d", nlisteners,
                         HANDSHAKE_LISTENERS_MAX);
    if (sodium_init() < 0)
        return error_set(POLYPATH_ERROR_SYSTEM, "the system's random source cannot be used");
    struct handshake_acceptor *a = calloc(1, sizeof *a);
    int most = pending_limit();
    struct pending *pending = calloc((size_t)most, sizeof *pending);
    if (!a || !pending) {
        free(a);
        free(pending);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for %d incoming connections", most);
    }
    a->pending = pending;
    a->most = most;
    a->nlisteners = nlisteners;
    a->remaining = -1;
    a->comm = comm;
    a->accepted = accepted;
    a->context = context;
    memcpy(a->secret, secret, sizeof a->secret);
    for (int i = 0; i < nlisteners; i++) {
        a->listeners[i] = listeners[i];
        int flags = fcntl(listeners[i], F_GETFL);
        if (flags < 0 || fcntl(listeners[i], F_SETFL, flags | O_NONBLOCK) < 0) {
            handshake_acceptor_close(a);
            return error_set(POLYPATH_ERROR_SYSTEM, "cannot make a listening socket non-blocking: %s", strerror(errno));
        }
    }
    *out = a;
    return POLYPATH_SUCCESS;
}

void handshake_acceptor_close(struct handshake_acceptor *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->npending; i++)
        close(a->pending[i].fd);
    if (a->refused > LOGGED_REFUSALS)
        log_line(LOG_LEVEL_WARN, "refused %lu incoming connections in all", a->refused);
    sodium_memzero(a->pending, (size_t)a->most * sizeof *a->pending);
    free(a->pending);
    sodium_memzero(a, sizeof *a);
    free(a);
}

static void forget(struct handshake_acceptor *a, int index)
{
    memmove(&a->pending[index], &a->pending[index + 1], (size_t)(a->npending - index - 1) * sizeof *a->pending);
    a->npending--;
}

static void refuse(struct handshake_acceptor *a, int index, const char *why)
{
    int fd = a->pending[index].fd;
    if (++a->refused <= LOGGED_REFUSALS) {
        char peer[96];
        handshake_peer_name(fd, peer);
        /* Jobs that derive their meeting place try each other's ports: no reason to worry anybody. */
        log_line(why == handshake_other_communicator ? LOG_LEVEL_INFO : LOG_LEVEL_WARN,
                 "refused a connection from %s: %s%s", peer, why,
                 a->refused == LOGGED_REFUSALS ? " (further ones are only counted)" : "");
    }
    close(fd);
    forget(a, index);
}

enum progress { BLOCKED, COMPLETE, BROKEN };

/* Moves bytes of one fixed-size message; never more than that, so that what follows stays in the socket. */
static enum progress move(struct pending *p, uint8_t *bytes, size_t length, bool sending)
{
    while (p->done < length) {
        ssize_t n = sending ? send(p->fd, bytes + p->done, length - p->done, MSG_NOSIGNAL)
                            : recv(p->fd, bytes + p->done, length - p->done, 0);
        if (n > 0)
            p->done += (size_t)n;
        else if (n < 0 && errno == EINTR)
            continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return BLOCKED;
        else
            return BROKEN;
    }
    p->done = 0;
    return COMPLETE;
}

static const char broken[] = "it closed the connection before it had proved itself";

/*
 * Runs one connection as far as it goes. *why is set when it must be refused,
 * *proved when it is through; neither while it has to wait.
 */
static void advance(const struct handshake_acceptor *a, struct pending *p, const char **why, bool *proved)
{
    enum progress progress;
    if (p->stage == STAGE_HELLO) {
        progress = move(p, p->hello_message, sizeof p->hello_message, false);
        size_t have = progress == COMPLETE ? sizeof p->hello_message : p->done;
        *why = handshake_decode_hello(p->hello_message, have, a->comm, &p->hello);
        if (!*why && progress == BROKEN)
            *why = broken;
        if (*why || progress == BLOCKED)
            return;
        randombytes_buf(p->challenge, HANDSHAKE_NONCE_BYTES);
        handshake_proof(a->secret, HANDSHAKE_ACCEPTING, p->hello_message, p->challenge,
                        p->challenge + HANDSHAKE_NONCE_BYTES);
        p->stage = STAGE_CHALLENGE;
    }
    if (p->stage == STAGE_CHALLENGE) {
        progress = move(p, p->challenge, sizeof p->challenge, true);
        if (progress == BROKEN)
            *why = broken;
        if (progress != COMPLETE)
            return;
        p->stage = STAGE_PROOF;
    }
    progress = move(p, p->proof, sizeof p->proof, false);
    if (progress == BROKEN)
        *why = broken;
    if (progress != COMPLETE)
        return;
    uint8_t expected[HANDSHAKE_PROOF_BYTES];
    handshake_proof(a->secret, HANDSHAKE_CONNECTING, p->hello_message, p->challenge, expected);
    *proved = handshake_proof_is(expected, p->proof);
    if (!*proved)
        *why = "it does not hold this communicator's secret";
    sodium_memzero(expected, sizeof expected);
}

/* Runs entry `index`; *gone when it has left the table. The error is the callee's. */
static polypath_result_t run_entry(struct handshake_acceptor *a, int index, bool *gone)
{
    const char *why = NULL;
    bool proved = false;
    advance(a, &a->pending[index], &why, &proved);
    *gone = why || proved;
    if (why)
        refuse(a, index, why);
    if (!proved)
        return POLYPATH_SUCCESS;
    int fd = a->pending[index].fd;
    struct hello hello = a->pending[index].hello;
    forget(a, index);
    if (a->remaining > 0)
        a->remaining--;
    return a->accepted(a->context, fd, &hello);
}

/* The oldest connection without a complete hello and at least `age_ns` old; -1 if there is none. */
static int oldest_stranger(const struct handshake_acceptor *a, uint64_t age_ns)
{
    for (int i = 0; i < a->npending; i++)
        if (a->pending[i].stage == STAGE_HELLO && clock_now_ns() - a->pending[i].since_ns >= age_ns)
            return i;
    return -1;
}

static polypath_result_t accept_failed(struct handshake_acceptor *a, int error, bool *again)
{
    *again = false;
    switch (error) {
    case EAGAIN: return POLYPATH_SUCCESS;
    case EMFILE:
    case ENFILE: {
        int stranger = oldest_stranger(a, STRANGER_NS);
        if (stranger >= 0) {
            refuse(a, stranger, "descriptors ran out and it had said nothing");
            *again = true;
            return POLYPATH_SUCCESS;
        }
        struct rlimit limit = {0, 0};
        getrlimit(RLIMIT_NOFILE, &limit);
        if (error == EMFILE)
            return error_set(POLYPATH_ERROR_OUT_OF_MEMORY,
                             "out of file descriptors while taking connections: this process may have %llu; raise the "
                             "limit with `ulimit -n`",
                             (unsigned long long)limit.rlim_cur);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY,
                         "out of file descriptors while taking connections: the whole system has reached its limit "
                         "(sysctl fs.file-max; for one process it is `ulimit -n`)");
    }
    case ENOMEM:
    case ENOBUFS:
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for an incoming connection: %s", strerror(error));
    case EBADF:
    case EINVAL:
    case ENOTSOCK:
    case EOPNOTSUPP:
        return error_set(POLYPATH_ERROR_INTERNAL, "cannot take connections from a socket: %s", strerror(error));
    default: /* the network's errors of one connection that is already gone, as accept(2) says */
        *again = true;
        return POLYPATH_SUCCESS;
    }
}

static polypath_result_t take_connections(struct handshake_acceptor *a, int listener)
{
    for (int taken = 0; taken < ACCEPTS_PER_STEP && a->remaining; taken++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            bool again;
            polypath_result_t result = accept_failed(a, errno, &again);
            if (result != POLYPATH_SUCCESS || !again)
                return result;
            continue;
        }
        if (a->npending == a->most) {
            int stranger = oldest_stranger(a, 0);
            refuse(a, stranger >= 0 ? stranger : 0, "too many connections wait to prove themselves");
        }
        int index = a->npending++;
        memset(&a->pending[index], 0, sizeof a->pending[index]);
        a->pending[index].fd = fd;
        a->pending[index].since_ns = clock_now_ns();
        bool gone;
        polypath_result_t result = run_entry(a, index, &gone); /* its hello is usually there already */
        if (result != POLYPATH_SUCCESS)
            return result;
    }
    return POLYPATH_SUCCESS;
}

int handshake_acceptor_poll(struct handshake_acceptor *a, struct pollfd *fds, uint64_t *wake_ns)
{
    int n = 0;
    for (int i = 0; i < a->npending; i++) {
        const struct pending *p = &a->pending[i];
        fds[n++] = (struct pollfd){.fd = p->fd, .events = p->stage == STAGE_CHALLENGE ? POLLOUT : POLLIN};
        if (p->since_ns + PENDING_NS < *wake_ns)
            *wake_ns = p->since_ns + PENDING_NS;
    }
    for (int i = 0; i < a->nlisteners; i++)
        fds[n++] = (struct pollfd){.fd = a->listeners[i], .events = POLLIN};
    return n;
}

polypath_result_t handshake_acceptor_step(struct handshake_acceptor *a, const struct pollfd *fds, int nfds)
{
    int polled = nfds - a->nlisteners, index = 0;
    uint64_t now = clock_now_ns();
    for (int i = 0; i < polled && a->remaining; i++) {
        bool gone = false;
        if (fds[i].revents) {
            polypath_result_t result = run_entry(a, index, &gone);
            if (result != POLYPATH_SUCCESS)
                return result;
        }
        if (!gone && now >= a->pending[index].since_ns + PENDING_NS) {
            refuse(a, index, "it did not prove itself within 5 seconds");
            gone = true;
        }
        index += !gone;
    }
    for (int i = 0; i < a->nlisteners; i++) {
        if (!fds[polled + i].revents)
            continue;
        polypath_result_t result = take_connections(a, a->listeners[i]);
        if (result != POLYPATH_SUCCESS)
            return result;
    }
    return POLYPATH_SUCCESS;
}

static polypath_result_t timed_out(int expected, int missing, const char *(*waiting_for)(void *context), void *context)
{
    const char *what = waiting_for ? waiting_for(context) : NULL;
    if (what && *what)
        return error_set(POLYPATH_ERROR_TIMEOUT, "timed out waiting for %s", what);
    return error_set(POLYPATH_ERROR_TIMEOUT, "timed out waiting for connections: %d of %d came", expected - missing,
                     expected);
}

polypath_result_t handshake_accept(const int *listeners, int nlisteners, const uint8_t secret[HANDSHAKE_SECRET_BYTES],
                                   uint64_t comm, int expected, handshake_accepted *accepted, void *context,
                                   const char *(*waiting_for)(void *context), uint64_t deadline_ns)
{
    if (expected <= 0)
        return POLYPATH_SUCCESS;
    struct handshake_acceptor *a;
    polypath_result_t result = handshake_acceptor_open(listeners, nlisteners, secret, comm, accepted, context, &a);
    if (result != POLYPATH_SUCCESS)
        return result;
    a->remaining = expected;
    struct pollfd *fds = calloc((size_t)a->most + (size_t)nlisteners, sizeof *fds);
    if (!fds)
        result = error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for %d incoming connections", a->most);
    while (result == POLYPATH_SUCCESS && a->remaining) {
        uint64_t wake_ns = deadline_ns;
        int n = handshake_acceptor_poll(a, fds, &wake_ns);
        int ready = poll(fds, (nfds_t)n, clock_ms_until(wake_ns));
        if (ready < 0 && errno != EINTR)
            result = error_set(POLYPATH_ERROR_SYSTEM, "poll: %s", strerror(errno));
        else if (ready >= 0)
            result = handshake_acceptor_step(a, fds, n);
        if (result == POLYPATH_SUCCESS && a->remaining && clock_now_ns() >= deadline_ns)
            result = timed_out(expected, a->remaining, waiting_for, context);
    }
    free(fds);
    handshake_acceptor_close(a);
    return result;
}
