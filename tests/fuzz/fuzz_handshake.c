/*
 * libFuzzer harness for everything that reads bytes of strangers or of the
 * environment at start-up: the accepting side of the handshake, unique ids in
 * both forms, and node lists. Not part of the test run:
 *
 *   clang -std=c17 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -Isrc -Iinclude \
 *       src/comm/[a-z]*.c src/topology/[a-z]*.c src/system/[a-z]*.c tests/fuzz/fuzz_handshake.c -lsodium -lpthread \
 *       -o fuzz_handshake && ./fuzz_handshake -max_total_time=60
 *
 * The first byte of an input chooses what is fed with the rest.
 */
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "comm/bootstrap_wire.h"
#include "comm/handshake_wire.h"
#include "comm/launcher_parts.h"

#define COMM 0x0807060504030201ull

static const uint8_t secret[HANDSHAKE_SECRET_BYTES] = {7};

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    setenv("POLYPATH_LOG", "none", 1);
    if (sodium_init() < 0)
        abort();
    return 0;
}

static void decode_hello(const uint8_t *data, size_t size)
{
    uint8_t message[HANDSHAKE_HELLO_BYTES], again[HANDSHAKE_HELLO_BYTES];
    struct hello hello;
    if (size > sizeof message)
        size = sizeof message;
    memcpy(message, data, size);
    const char *wrong = handshake_decode_hello(message, size, COMM, &hello);
    /* What is good was good in all its beginnings, and reads back as the same bytes. */
    for (size_t i = 0; !wrong && i < size; i++)
        if (handshake_decode_hello(message, i, COMM, &hello))
            abort();
    if (!wrong && size == sizeof message) {
        handshake_decode_hello(message, size, COMM, &hello);
        handshake_encode_hello(&hello, message + sizeof message - HANDSHAKE_NONCE_BYTES, again);
        if (memcmp(message, again, sizeof message))
            abort();
    }
}

/* Ids with a right checksum, which a fuzzer would not find by itself, unless the input says otherwise. */
static void decode_id(const uint8_t *data, size_t size)
{
    polypath_unique_id_t id = {{0}}, again;
    struct bootstrap_id inside;
    uint8_t hash[crypto_generichash_BYTES_MIN], *bytes = (uint8_t *)id.bytes;
    memcpy(bytes, data, size < sizeof id.bytes ? size : sizeof id.bytes);
    if (size < 120) {
        memcpy(bytes, "PPID\1", 5);
        crypto_generichash(hash, sizeof hash, bytes, 120, NULL, 0);
        memcpy(bytes + 120, hash, 8);
    }
    if (bootstrap_decode(&id, &inside) != POLYPATH_SUCCESS)
        return;
    for (int i = 0; i < inside.naddresses; i++) {
        union bootstrap_sockaddr address;
        socklen_t length;
        char name[96], text[2 * POLYPATH_UNIQUE_ID_BYTES + 1];
        bootstrap_address_name(&inside.addresses[i], inside.span - 1, name);
        bootstrap_sockaddr(&inside.addresses[i], inside.span - 1, &address, &length);
        bootstrap_format(&id, text);
        if (bootstrap_unformat(text, &again) != POLYPATH_SUCCESS || memcmp(&id, &again, sizeof id))
            abort();
    }
}

static void read_texts(const uint8_t *data, size_t size)
{
    char text[512], host[64];
    size_t length = size < sizeof text - 1 ? size : sizeof text - 1;
    memcpy(text, data, length);
    text[length] = 0;
    polypath_unique_id_t id;
    bootstrap_unformat(text, &id);
    if (launcher_slurm_first_host(text, host, sizeof host) && (!*host || strlen(host) >= sizeof host))
        abort();
}

static polypath_result_t must_not_happen(void *context, int fd, const struct hello *hello)
{
    (void)context;
    (void)fd;
    (void)hello;
    abort(); /* nobody here holds the secret */
}

static void turn(struct handshake_acceptor *acceptor)
{
    struct pollfd fds[HANDSHAKE_POLL_MAX + 1];
    uint64_t wake_ns = UINT64_MAX;
    int n = handshake_acceptor_poll(acceptor, fds, &wake_ns);
    if (poll(fds, (nfds_t)n, 0) < 0 || handshake_acceptor_step(acceptor, fds, n) != POLYPATH_SUCCESS)
        abort();
}

/* One connection says the input in two pieces (the first byte says where it is cut) and hangs up. */
static void talk(const uint8_t *data, size_t size)
{
    static int listener = -1;
    static struct sockaddr_un at = {.sun_family = AF_UNIX};
    static socklen_t length;
    if (listener < 0) {
        length = sizeof at;
        listener = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(listener, (struct sockaddr *)&at, sizeof at.sun_family) || listen(listener, 16) ||
            getsockname(listener, (struct sockaddr *)&at, &length))
            abort();
    }
    struct handshake_acceptor *acceptor;
    if (handshake_acceptor_open(&listener, 1, secret, COMM, must_not_happen, NULL, &acceptor) != POLYPATH_SUCCESS)
        abort();
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, length))
        abort();
    size_t cut = size ? data[0] : 0;
    if (cut > size)
        cut = size;
    if (send(fd, data, cut, MSG_NOSIGNAL) < 0 && cut)
        abort();
    turn(acceptor);
    turn(acceptor);
    if (send(fd, data + cut, size - cut, MSG_NOSIGNAL) >= 0)
        turn(acceptor);
    close(fd);
    turn(acceptor);
    handshake_acceptor_close(acceptor);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    switch (data[0] % 5) {
    case 0: decode_hello(data + 1, size - 1); break;
    case 1: decode_id(data + 1, size - 1); break;
    case 2: read_texts(data + 1, size - 1); break;
    case 3: talk(data + 1, size - 1); break;
    default: { /* behind a good hello */
        uint8_t message[HANDSHAKE_HELLO_BYTES + 256], nonce[HANDSHAKE_NONCE_BYTES] = {0};
        struct hello hello = {.comm = COMM, .rank = 1, .purpose = HELLO_TCP};
        size_t rest = size - 1 < 256 ? size - 1 : 256;
        handshake_encode_hello(&hello, nonce, message);
        memcpy(message + HANDSHAKE_HELLO_BYTES, data + 1, rest);
        talk(message, HANDSHAKE_HELLO_BYTES + rest);
    }
    }
    return 0;
}
