/*
 * How two processes prove to each other that they hold the communicator's
 * secret, before anything else either says is believed. Mutual challenge and
 * response with HMAC-SHA-256 (libsodium crypto_auth_hmacsha256), fixed-size
 * messages, strict parsing. Works on any stream socket (TCP, AF_UNIX).
 * Knows nothing of what the connection is for: that is in the hello.
 */
#ifndef COMM_HANDSHAKE_H
#define COMM_HANDSHAKE_H

#include <stddef.h>
#include <stdint.h>

#include "polypath/polypath.h"

#define HANDSHAKE_SECRET_BYTES 32

/* What the connecting side says of itself; covered by the proof. */
struct hello {
    uint64_t comm;    /* which communicator: from the unique id, or drawn for a split */
    int32_t rank;     /* the connecting rank */
    uint16_t purpose; /* enum hello_purpose */
    uint16_t path;    /* path index, where the purpose has paths */
    uint16_t stream;  /* connection number within the path */
    uint16_t reserved;
};

enum hello_purpose { HELLO_BOOTSTRAP = 1, HELLO_SHM = 2, HELLO_TCP = 3, HELLO_PURPOSE_END };

/*
 * Connecting side. `fd` is a connected stream socket (blocking or not); it is
 * left non-blocking. Blocks until the other side has proved itself, or the
 * deadline (clock_now_ns scale). A wrong secret on the other side is
 * POLYPATH_ERROR_MISMATCH. Does not close fd on error.
 */
polypath_result_t handshake_connect(int fd, const uint8_t secret[HANDSHAKE_SECRET_BYTES], const struct hello *mine,
                                    uint64_t deadline_ns);

/*
 * Called for every connection that has proved itself. The callee owns fd (non-blocking).
 * Returning an error ends handshake_accept with it.
 */
typedef polypath_result_t handshake_accepted(void *context, int fd, const struct hello *hello);

/*
 * Accepting side: takes connections from the listening sockets (made
 * non-blocking here) until `expected` of them have proved themselves, or the deadline. Strangers, slow
 * ones, and those with a wrong secret cost only their own connection (closed
 * after 5 s or at the first wrong byte, at most 1024 pending at once and no
 * more than a quarter of the descriptors, one line in the log): they neither
 * delay nor displace the others. Connections that are still proving themselves
 * when the last expected one is through are closed too, so everything that may
 * come to a listener has to be expected in one call.
 * `waiting_for` completes the time-out message, for example
 * "connections of ranks 3, 5"; may be NULL.
 */
polypath_result_t handshake_accept(const int *listeners, int nlisteners, const uint8_t secret[HANDSHAKE_SECRET_BYTES],
                                   uint64_t comm, int expected, handshake_accepted *accepted, void *context,
                                   const char *(*waiting_for)(void *context), uint64_t deadline_ns);

/*
 * The same as a part of a poll loop that also watches other descriptors:
 * handshake_acceptor_poll() fills `fds` (at most HANDSHAKE_POLL_MAX + nlisteners
 * entries, fewer in general) and lowers *wake_ns to when it next wants to run;
 * after poll(2), handshake_acceptor_step() takes the very same entries.
 * `listeners` and `secret` are copied. Closing it closes the pending
 * connections, not the listeners; NULL is allowed.
 */
struct handshake_acceptor;
struct pollfd;

#define HANDSHAKE_POLL_MAX 1024
#define HANDSHAKE_LISTENERS_MAX 64

polypath_result_t handshake_acceptor_open(const int *listeners, int nlisteners,
                                          const uint8_t secret[HANDSHAKE_SECRET_BYTES], uint64_t comm,
                                          handshake_accepted *accepted, void *context, struct handshake_acceptor **out);
int handshake_acceptor_poll(struct handshake_acceptor *acceptor, struct pollfd *fds, uint64_t *wake_ns);
polypath_result_t handshake_acceptor_step(struct handshake_acceptor *acceptor, const struct pollfd *fds, int nfds);
void handshake_acceptor_close(struct handshake_acceptor *acceptor);

/* The other end of a socket as text for messages: "10.0.0.1 port 4711"; text has room for 96. */
void handshake_peer_name(int fd, char *text);

#endif
