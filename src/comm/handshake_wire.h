/*
 * The messages of the handshake as bytes. Three fixed-size messages:
 *
 *   connecting side  hello      magic, the hello, 32 random bytes
 *   accepting side   challenge  32 random bytes, proof over hello and challenge
 *   connecting side  proof      proof over hello and challenge
 *
 * A proof is HMAC-SHA-256 under the secret, over a label (another one for
 * each side, so that neither can be given its own words back), the whole hello
 * message and the accepting side's random bytes. Both sides' random bytes are
 * in both proofs, so nothing of an old connection can be replayed.
 */
#ifndef COMM_HANDSHAKE_WIRE_H
#define COMM_HANDSHAKE_WIRE_H

#include <stdbool.h>

#include "comm/handshake.h"

#define HANDSHAKE_MAGIC_BYTES 8
#define HANDSHAKE_NONCE_BYTES 32
#define HANDSHAKE_PROOF_BYTES 32
#define HANDSHAKE_HELLO_BYTES (HANDSHAKE_MAGIC_BYTES + 20 + HANDSHAKE_NONCE_BYTES)
#define HANDSHAKE_CHALLENGE_BYTES (HANDSHAKE_NONCE_BYTES + HANDSHAKE_PROOF_BYTES)

extern const uint8_t handshake_magic[HANDSHAKE_MAGIC_BYTES];

/* Which side a proof is from. */
enum handshake_side { HANDSHAKE_ACCEPTING, HANDSHAKE_CONNECTING };

void handshake_encode_hello(const struct hello *hello, const uint8_t nonce[HANDSHAKE_NONCE_BYTES],
                            uint8_t message[HANDSHAKE_HELLO_BYTES]);

/* What handshake_decode_hello() says of a connection that is well-formed and only came to the wrong port. */
extern const char handshake_other_communicator[];

/*
 * Judges the first `length` bytes of a hello: NULL while they could still become a
 * good one, else what is wrong with them. With all HANDSHAKE_HELLO_BYTES there, *hello is filled.
 */
const char *handshake_decode_hello(const uint8_t *message, size_t length, uint64_t comm, struct hello *hello);

void handshake_proof(const uint8_t secret[HANDSHAKE_SECRET_BYTES], enum handshake_side side,
                     const uint8_t hello[HANDSHAKE_HELLO_BYTES], const uint8_t nonce[HANDSHAKE_NONCE_BYTES],
                     uint8_t proof[HANDSHAKE_PROOF_BYTES]);

/* In constant time. */
bool handshake_proof_is(const uint8_t expected[HANDSHAKE_PROOF_BYTES], const uint8_t *seen);

#endif
