/*
 * What the two ends of the bootstrap share: the inside of a unique id, and the
 * frames that go over a connection once the handshake has proved both ends.
 * All numbers are little-endian.
 *
 *   rank     JOIN    value = size, timeout_ms           -> WELCOME value = size (when all have come)
 *   rank     GATHER  value = round, timeout_ms, record  -> ALL value = round, all records in rank order
 *   rank     LEAVE
 *   service  FAIL    value = polypath_result_t, text; the connection is over
 */
#ifndef COMM_BOOTSTRAP_WIRE_H
#define COMM_BOOTSTRAP_WIRE_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/bootstrap.h"

union bootstrap_sockaddr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

struct bootstrap_address {
    uint8_t family; /* 4 or 6 */
    uint16_t port;
    uint8_t bytes[16];
    char scope[16]; /* interface name of a link-local address, else "" */
};

struct bootstrap_id {
    uint8_t secret[HANDSHAKE_SECRET_BYTES];
    uint64_t comm;
    bool derived; /* made by every rank for itself: the service may not be there yet, and at any port of the span */
    int span;     /* ports from `port` on; 1 unless derived */
    int naddresses;
    struct bootstrap_address addresses[BOOTSTRAP_ADDRESSES_MAX];
};

void bootstrap_encode(const struct bootstrap_id *from, polypath_unique_id_t *to);
polypath_result_t bootstrap_decode(const polypath_unique_id_t *from, struct bootstrap_id *to);

/* The address for socket calls; fails if its scope is not an interface of this host. Returns its length in *length. */
polypath_result_t bootstrap_sockaddr(const struct bootstrap_address *from, int port_offset,
                                     union bootstrap_sockaddr *to, socklen_t *length);
void bootstrap_address_set(struct bootstrap_address *to, const struct sockaddr *from, const char *scope);
/* "10.0.0.1 port 4711"; text has room for 96. */
void bootstrap_address_name(const struct bootstrap_address *address, int port_offset, char *text);

/* Keep-alive and no delay on a connection that may be idle for long but must notice a dead host. */
void bootstrap_tune_socket(int fd);

enum bootstrap_frame_type {
    FRAME_JOIN = 1,
    FRAME_WELCOME = 2,
    FRAME_GATHER = 3,
    FRAME_ALL = 4,
    FRAME_LEAVE = 5,
    FRAME_FAIL = 6
};

struct bootstrap_frame {
    uint32_t type, value;
    uint64_t timeout_ms;
    uint64_t length; /* bytes that follow */
};

#define BOOTSTRAP_FRAME_BYTES 24

void bootstrap_put_frame(const struct bootstrap_frame *frame, uint8_t bytes[BOOTSTRAP_FRAME_BYTES]);
void bootstrap_get_frame(const uint8_t bytes[BOOTSTRAP_FRAME_BYTES], struct bootstrap_frame *frame);

/*
 * Runs the service of `id` at the listening sockets in a detached thread,
 * which owns and closes them. Takes them also on error.
 */
polypath_result_t bootstrap_service_start(const struct bootstrap_id *id, const int *listeners, int nlisteners);

#endif
