/*
 * The handshake's messages and its connecting side. The accepting side, which
 * serves many at once, is handshake_accept.c. Knows nothing of ranks' tables
 * or of what a connection will carry.
 */
#include "comm/handshake.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "comm/handshake_wire.h"
#include "comm/little_endian.h"
#include "system/clock.h"
#include "system/error.h"

_Static_assert(HANDSHAKE_PROOF_BYTES == crypto_auth_hmacsha256_BYTES, "proof is one HMAC-SHA-256");

/* The last byte is the version of the handshake. */
const uint8_t handshake_magic[HANDSHAKE_MAGIC_BYTES] = {'P', 'O', 'L', 'Y', 'P', 'T', 'H', 1};

const char handshake_other_communicator[] = "it belongs to another communicator";

void handshake_encode_hello(const struct hello *hello, const uint8_t nonce[HANDSHAKE_NONCE_BYTES],
                            uint8_t message[HANDSHAKE_HELLO_BYTES])
{
    uint8_t *p = message;
    memcpy(p, handshake_magic, HANDSHAKE_MAGIC_BYTES);
    p += HANDSHAKE_MAGIC_BYTES;
    put_le(p, hello->comm, 8);
    put_le(p + 8, (uint32_t)hello->rank, 4);
    put_le(p + 12, hello->purpose, 2);
    put_le(p + 14, hello->path, 2);
    put_le(p + 16, hello->stream, 2);
    put_le(p + 18, hello->reserved, 2);
    memcpy(p + 20, nonce, HANDSHAKE_NONCE_BYTES);
}

const char *handshake_decode_hello(const uint8_t *message, size_t length, uint64_t comm, struct hello *hello)
{
    size_t known = length < HANDSHAKE_MAGIC_BYTES ? length : HANDSHAKE_MAGIC_BYTES;
    if (known == HANDSHAKE_MAGIC_BYTES && !memcmp(message, handshake_magic, HANDSHAKE_MAGIC_BYTES - 1) &&
        message[HANDSHAKE_MAGIC_BYTES - 1] != handshake_magic[HANDSHAKE_MAGIC_BYTES - 1])
        return "another version of Polypath";
    if (memcmp(message, handshake_magic, known))
        return "it does not speak Polypath's handshake";
    if (length < HANDSHAKE_HELLO_BYTES)
        return NULL;
    const uint8_t *p = message + HANDSHAKE_MAGIC_BYTES;
    *hello = (struct hello){
        .comm = get_le(p, 8),
        .rank = (int32_t)get_le(p + 8, 4),
        .purpose = (uint16_t)get_le(p + 12, 2),
        .path = (uint16_t)get_le(p + 14, 2),
        .stream = (uint16_t)get_le(p + 16, 2),
        .reserved = (uint16_t)get_le(p + 18, 2),
    };
    if (hello->comm != comm)
        return handshake_other_communicator;
    if (hello->rank < 0 || hello->purpose == 0 || hello->purpose >= HELLO_PURPOSE_END || hello->reserved)
        return "its hello is malformed";
    return NULL;
}

void handshake_proof(const uint8_t secret[HANDSHAKE_SECRET_BYTES], enum handshake_side side,
                     const uint8_t hello[HANDSHAKE_HELLO_BYTES], const uint8_t nonce[HANDSHAKE_NONCE_BYTES],
                     uint8_t proof[HANDSHAKE_PROOF_BYTES])
{
    static const char labels[2][16] = {"polypath accept", "polypath connect"}; /* not terminated: fixed length */
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, secret, HANDSHAKE_SECRET_BYTES);
    crypto_auth_hmacsha256_update(&state, (const uint8_t *)labels[side], sizeof labels[side]);
    crypto_auth_hmacsha256_update(&state, hello, HANDSHAKE_HELLO_BYTES);
    crypto_auth_hmacsha256_update(&state, nonce, HANDSHAKE_NONCE_BYTES);
    crypto_auth_hmacsha256_final(&state, proof);
    sodium_memzero(&state, sizeof state);
}

bool handshake_proof_is(const uint8_t expected[HANDSHAKE_PROOF_BYTES], const uint8_t *seen)
{
    return sodium_memcmp(expected, seen, HANDSHAKE_PROOF_BYTES) == 0;
}

void handshake_peer_name(int fd, char *text)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage storage;
    } peer = {.storage = {0}};
    socklen_t length = sizeof peer;
    char address[INET6_ADDRSTRLEN];
    if (getpeername(fd, &peer.any, &length)) {
        snprintf(text, 96, "an unknown address");
    } else if (peer.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &peer.v4.sin_addr, address, sizeof address);
        snprintf(text, 96, "%s port %d", address, ntohs(peer.v4.sin_port));
    } else if (peer.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &peer.v6.sin6_addr, address, sizeof address);
        snprintf(text, 96, "%s port %d", address, ntohs(peer.v6.sin6_port));
    } else {
        snprintf(text, 96, "a process of this host");
    }
}

static polypath_result_t wait_for(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int ready = poll(&p, 1, clock_ms_until(deadline_ns));
        if (ready > 0)
            return POLYPATH_SUCCESS;
        if (ready < 0 && errno != EINTR)
            return error_set(POLYPATH_ERROR_SYSTEM, "poll: %s", strerror(errno));
        if (clock_now_ns() >= deadline_ns)
            return error_set(POLYPATH_ERROR_TIMEOUT, "no answer to the handshake before the deadline");
    }
}

static polypath_result_t send_whole(int fd, const uint8_t *bytes, size_t length, uint64_t deadline_ns)
{
    while (length) {
        ssize_t n = send(fd, bytes, length, MSG_NOSIGNAL);
        if (n > 0) {
            bytes += n;
            length -= (size_t)n;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            polypath_result_t result = wait_for(fd, POLLOUT, deadline_ns);
            if (result != POLYPATH_SUCCESS)
                return result;
        } else {
            return error_set(POLYPATH_ERROR_PEER_LOST, "the connection broke in the handshake: %s", strerror(errno));
        }
    }
    return POLYPATH_SUCCESS;
}

static polypath_result_t receive_whole(int fd, uint8_t *bytes, size_t length, uint64_t deadline_ns)
{
    while (length) {
        ssize_t n = recv(fd, bytes, length, 0);
        if (n > 0) {
            bytes += n;
            length -= (size_t)n;
        } else if (n == 0) {
            return error_set(POLYPATH_ERROR_PEER_LOST,
                             "the other side closed the connection in the handshake (it may belong to another job)");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            polypath_result_t result = wait_for(fd, POLLIN, deadline_ns);
            if (result != POLYPATH_SUCCESS)
                return result;
        } else if (errno != EINTR) {
            return error_set(POLYPATH_ERROR_PEER_LOST, "the connection broke in the handshake: %s", strerror(errno));
        }
    }
    return POLYPATH_SUCCESS;
}

polypath_result_t handshake_connect(int fd, const uint8_t secret[HANDSHAKE_SECRET_BYTES], const struct hello *mine,
                                    uint64_t deadline_ns)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot make a socket non-blocking: %s", strerror(errno));
    if (sodium_init() < 0)
        return error_set(POLYPATH_ERROR_SYSTEM, "the system's random source cannot be used");
    uint8_t nonce[HANDSHAKE_NONCE_BYTES], hello[HANDSHAKE_HELLO_BYTES], challenge[HANDSHAKE_CHALLENGE_BYTES];
    uint8_t proof[HANDSHAKE_PROOF_BYTES];
    randombytes_buf(nonce, sizeof nonce);
    handshake_encode_hello(mine, nonce, hello);
    polypath_result_t result = send_whole(fd, hello, sizeof hello, deadline_ns);
    if (result == POLYPATH_SUCCESS)
        result = receive_whole(fd, challenge, sizeof challenge, deadline_ns);
    if (result != POLYPATH_SUCCESS)
        return result;
    /* Theirs first: one that does not hold the secret never sees our proof. */
    handshake_proof(secret, HANDSHAKE_ACCEPTING, hello, challenge, proof);
    if (!handshake_proof_is(proof, challenge + HANDSHAKE_NONCE_BYTES))
        return error_set(POLYPATH_ERROR_MISMATCH, "the other side does not hold this communicator's secret");
    handshake_proof(secret, HANDSHAKE_CONNECTING, hello, challenge, proof);
    result = send_whole(fd, proof, sizeof proof, deadline_ns);
    sodium_memzero(proof, sizeof proof);
    return result;
}
