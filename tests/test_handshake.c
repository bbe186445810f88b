/* Both sides of the handshake against each other, and each against one that does not play by the rules. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/handshake.h"
#include "comm/handshake_wire.h"
#include "forked.h"
#include "system/clock.h"

#define COMM 0x1122334455667788ull
#define LONG_NS 60000000000ull

static const uint8_t secret[HANDSHAKE_SECRET_BYTES] = "a secret of thirty-two bytes ...";
static const uint8_t other_secret[HANDSHAKE_SECRET_BYTES] = "another secret of as many bytes.";
static const struct hello rank_3 = {.comm = COMM, .rank = 3, .purpose = HELLO_TCP, .path = 2, .stream = 7};

static int listen_somewhere(struct sockaddr_in *at)
{
    socklen_t length = sizeof *at;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)at, sizeof *at), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)at, &length), 0);
    return fd;
}

static int connect_to(const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)to, sizeof *to), 0);
    return fd;
}

/* What was accepted. */
struct taken {
    int count, fds[16];
    struct hello hellos[16];
};

static polypath_result_t take(void *context, int fd, const struct hello *hello)
{
    struct taken *t = context;
    t->fds[t->count] = fd;
    t->hellos[t->count++] = *hello;
    return POLYPATH_SUCCESS;
}

static void drop(struct taken *t)
{
    for (int i = 0; i < t->count; i++)
        close(t->fds[i]);
}

/* A forked rank that connects to places[index % 2]. */
static struct sockaddr_in places[2];

static polypath_result_t connect_as(int index, const uint8_t *with, struct hello hello)
{
    int fd = connect_to(&places[index % 2]);
    hello.stream = (uint16_t)index;
    polypath_result_t result = handshake_connect(fd, with, &hello, clock_now_ns() + LONG_NS);
    if (result == POLYPATH_SUCCESS && send(fd, "payload", 7, MSG_NOSIGNAL) != 7)
        result = error_set(POLYPATH_ERROR_SYSTEM, "send");
    char end;
    while (result == POLYPATH_SUCCESS && recv(fd, &end, 1, 0) < 0 && errno != ECONNRESET)
        forked_pause_ms(1); /* stays until the accepting side closes */
    return result;
}

static polypath_result_t good_rank(struct forked *f, int index)
{
    (void)f;
    return connect_as(index, secret, rank_3);
}

static void many_prove_themselves_over_several_listeners(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    int listeners[2] = {listen_somewhere(&places[0]), listen_somewhere(&places[1])};
    pid_t pids[6];
    for (int i = 0; i < 6; i++)
        pids[i] = forked_start(f, i, good_rank);
    struct taken t = {.count = 0};
    assert_int_equal(handshake_accept(listeners, 2, secret, COMM, 6, take, &t, NULL, clock_now_ns() + LONG_NS),
                     POLYPATH_SUCCESS);
    assert_int_equal(t.count, 6);
    int seen = 0;
    for (int i = 0; i < 6; i++) {
        assert_true(t.hellos[i].comm == COMM);
        assert_int_equal(t.hellos[i].rank, 3);
        assert_int_equal(t.hellos[i].purpose, HELLO_TCP);
        assert_int_equal(t.hellos[i].path, 2);
        seen |= 1 << t.hellos[i].stream;
        assert_true(fcntl(t.fds[i], F_GETFL) & O_NONBLOCK);
        char payload[8] = "";
        struct pollfd p = {.fd = t.fds[i], .events = POLLIN};
        assert_int_equal(poll(&p, 1, FORKED_HANG_S * 1000), 1);
        assert_int_equal(recv(t.fds[i], payload, 7, 0), 7); /* nothing behind the proof was eaten */
        assert_string_equal(payload, "payload");
    }
    assert_int_equal(seen, 63);
    drop(&t);
    for (int i = 0; i < 6; i++) {
        waitpid(pids[i], NULL, 0);
        assert_int_equal(f->outcome[i].result, POLYPATH_SUCCESS);
    }
    close(listeners[0]);
    close(listeners[1]);
    forked_end(f);
}

static polypath_result_t mixed_company(struct forked *f, int index)
{
    (void)f;
    struct hello wrong_comm = rank_3;
    wrong_comm.comm++;
    switch (index) {
    case 0: return connect_as(0, other_secret, rank_3);
    case 1: return connect_as(1, secret, wrong_comm);
    default: return connect_as(index, secret, rank_3);
    }
}

static void wrong_secrets_and_other_communicators_are_refused(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    int listener = listen_somewhere(&places[0]);
    places[1] = places[0];
    pid_t pids[4];
    for (int i = 0; i < 2; i++) /* they queue up before the good ones */
        pids[i] = forked_start(f, i, mixed_company);
    forked_pause_ms(20);
    for (int i = 2; i < 4; i++)
        pids[i] = forked_start(f, i, mixed_company);
    struct taken t = {.count = 0};
    assert_int_equal(handshake_accept(&listener, 1, secret, COMM, 2, take, &t, NULL, clock_now_ns() + LONG_NS),
                     POLYPATH_SUCCESS);
    close(listener);
    drop(&t);
    for (int i = 0; i < 4; i++)
        waitpid(pids[i], NULL, 0);
    assert_true(t.hellos[0].stream >= 2 && t.hellos[1].stream >= 2);
    assert_true(f->outcome[0].result == POLYPATH_ERROR_MISMATCH || f->outcome[0].result == POLYPATH_ERROR_PEER_LOST);
    assert_int_equal(f->outcome[1].result, POLYPATH_ERROR_PEER_LOST);
    assert_int_equal(f->outcome[2].result, POLYPATH_SUCCESS);
    assert_int_equal(f->outcome[3].result, POLYPATH_SUCCESS);
    forked_end(f);
}

/* -------------------------------------- the acceptor, driven step by step */

struct rig {
    struct handshake_acceptor *acceptor;
    struct taken taken;
    struct sockaddr_in at;
    int listener;
};

static void rig_open(struct rig *r)
{
    memset(r, 0, sizeof *r);
    r->listener = listen_somewhere(&r->at);
    assert_int_equal(handshake_acceptor_open(&r->listener, 1, secret, COMM, take, &r->taken, &r->acceptor),
                     POLYPATH_SUCCESS);
}

static polypath_result_t rig_turn(struct rig *r, int wait_ms)
{
    struct pollfd fds[HANDSHAKE_POLL_MAX + 1];
    uint64_t wake_ns = UINT64_MAX;
    int n = handshake_acceptor_poll(r->acceptor, fds, &wake_ns);
    assert_true(poll(fds, (nfds_t)n, wait_ms) >= 0);
    return handshake_acceptor_step(r->acceptor, fds, n);
}

static void rig_close(struct rig *r)
{
    handshake_acceptor_close(r->acceptor);
    drop(&r->taken);
    close(r->listener);
}

/* Turns until the other side of fd has closed; true if nothing was said before. */
static bool closed_silently(struct rig *r, int fd)
{
    char byte;
    for (;;) {
        assert_int_equal(rig_turn(r, 10), POLYPATH_SUCCESS);
        ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (n > 0)
            return false;
        if (n == 0 || errno != EAGAIN)
            return true;
    }
}

static void hello_bytes(const struct hello *hello, uint8_t message[HANDSHAKE_HELLO_BYTES])
{
    uint8_t nonce[HANDSHAKE_NONCE_BYTES];
    randombytes_buf(nonce, sizeof nonce);
    handshake_encode_hello(hello, nonce, message);
}

static void the_first_wrong_byte_ends_a_connection(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    uint8_t good[HANDSHAKE_HELLO_BYTES];
    hello_bytes(&rank_3, good);
    for (size_t i = 0; i < HANDSHAKE_MAGIC_BYTES; i++) {
        int fd = connect_to(&r.at);
        uint8_t begin[HANDSHAKE_MAGIC_BYTES];
        memcpy(begin, good, sizeof begin);
        begin[i] ^= 0x80;
        assert_int_equal(send(fd, begin, i + 1, MSG_NOSIGNAL), i + 1);
        assert_true(closed_silently(&r, fd));
        close(fd);
    }
    assert_int_equal(r.taken.count, 0);
    rig_close(&r);
}

static void malformed_hellos_are_refused(void **state)
{
    (void)state;
    struct hello wrong[5] = {rank_3, rank_3, rank_3, rank_3, rank_3};
    wrong[0].comm ^= 1;
    wrong[1].rank = -1;
    wrong[2].purpose = 0;
    wrong[3].purpose = HELLO_PURPOSE_END;
    wrong[4].reserved = 1;
    struct rig r;
    rig_open(&r);
    for (size_t i = 0; i < 5; i++) {
        uint8_t message[HANDSHAKE_HELLO_BYTES];
        hello_bytes(&wrong[i], message);
        int fd = connect_to(&r.at);
        assert_int_equal(send(fd, message, sizeof message, MSG_NOSIGNAL), sizeof message);
        assert_true(closed_silently(&r, fd));
        close(fd);
    }
    assert_int_equal(r.taken.count, 0);
    rig_close(&r);
}

/* Sends a good hello, gets the challenge. */
static void get_challenge(struct rig *r, int fd, const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                          uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES])
{
    assert_int_equal(send(fd, hello, HANDSHAKE_HELLO_BYTES, MSG_NOSIGNAL), HANDSHAKE_HELLO_BYTES);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, 0) == 0)
        assert_int_equal(rig_turn(r, 10), POLYPATH_SUCCESS);
    assert_int_equal(recv(fd, challenge, HANDSHAKE_CHALLENGE_BYTES, MSG_WAITALL), HANDSHAKE_CHALLENGE_BYTES);
}

static void wrong_reflected_and_replayed_proofs_are_refused(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    uint8_t hello[HANDSHAKE_HELLO_BYTES], challenge[HANDSHAKE_CHALLENGE_BYTES], proof[HANDSHAKE_PROOF_BYTES];
    uint8_t old_proof[HANDSHAKE_PROOF_BYTES];
    hello_bytes(&rank_3, hello);
    int fd = connect_to(&r.at);
    get_challenge(&r, fd, hello, challenge);
    handshake_proof(secret, HANDSHAKE_CONNECTING, hello, challenge, old_proof);
    assert_int_equal(send(fd, old_proof, sizeof old_proof, MSG_NOSIGNAL), sizeof old_proof);
    while (r.taken.count == 0)
        assert_int_equal(rig_turn(&r, 10), POLYPATH_SUCCESS);
    close(fd);
    for (int way = 0; way < 4; way++) {
        fd = connect_to(&r.at);
        get_challenge(&r, fd, hello, challenge);
        handshake_proof(secret, HANDSHAKE_CONNECTING, hello, challenge, proof);
        if (way == 0)
            proof[31] ^= 1;
        else if (way == 1) /* its own proof given back */
            memcpy(proof, challenge + HANDSHAKE_NONCE_BYTES, sizeof proof);
        else if (way == 2) /* recorded from the connection before, with the very same hello */
            memcpy(proof, old_proof, sizeof proof);
        else
            handshake_proof(other_secret, HANDSHAKE_CONNECTING, hello, challenge, proof);
        assert_int_equal(send(fd, proof, sizeof proof, MSG_NOSIGNAL), sizeof proof);
        assert_true(closed_silently(&r, fd));
        close(fd);
    }
    assert_int_equal(r.taken.count, 1);
    rig_close(&r);
}

static void a_slow_peer_gets_through_byte_by_byte(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    uint8_t hello[HANDSHAKE_HELLO_BYTES], challenge[HANDSHAKE_CHALLENGE_BYTES], proof[HANDSHAKE_PROOF_BYTES];
    hello_bytes(&rank_3, hello);
    int fd = connect_to(&r.at), silent = connect_to(&r.at);
    for (size_t i = 0; i + 1 < sizeof hello; i++) {
        assert_int_equal(send(fd, hello + i, 1, MSG_NOSIGNAL), 1);
        assert_int_equal(rig_turn(&r, 0), POLYPATH_SUCCESS);
    }
    assert_int_equal(send(fd, hello + sizeof hello - 1, 1, MSG_NOSIGNAL), 1);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, 0) == 0)
        assert_int_equal(rig_turn(&r, 10), POLYPATH_SUCCESS);
    assert_int_equal(recv(fd, challenge, sizeof challenge, MSG_WAITALL), sizeof challenge);
    handshake_proof(secret, HANDSHAKE_CONNECTING, hello, challenge, proof);
    for (size_t i = 0; i < sizeof proof; i++) {
        assert_int_equal(r.taken.count, 0);
        assert_int_equal(send(fd, proof + i, 1, MSG_NOSIGNAL), 1);
        assert_int_equal(rig_turn(&r, 0), POLYPATH_SUCCESS);
    }
    while (r.taken.count == 0)
        assert_int_equal(rig_turn(&r, 10), POLYPATH_SUCCESS);
    close(fd);
    close(silent);
    rig_close(&r);
}

/* ------------------------------------------------- time-outs and limits */

static const char *who(void *context)
{
    (void)context;
    return "connections of ranks 3, 5";
}

static void a_timeout_says_who_is_missing(void **state)
{
    (void)state;
    struct taken t = {.count = 0};
    int listener = listen_somewhere(&places[0]);
    assert_int_equal(handshake_accept(&listener, 1, secret, COMM, 2, take, &t, who, clock_now_ns() + 20000000),
                     POLYPATH_ERROR_TIMEOUT);
    assert_non_null(strstr(error_text(), "connections of ranks 3, 5"));
    assert_int_equal(handshake_accept(&listener, 1, secret, COMM, 2, take, &t, NULL, clock_now_ns()),
                     POLYPATH_ERROR_TIMEOUT);
    assert_non_null(strstr(error_text(), "0 of 2"));
    assert_int_equal(handshake_accept(&listener, 1, secret, COMM, 0, take, &t, NULL, 0), POLYPATH_SUCCESS);
    close(listener);
}

static polypath_result_t refuse_all(void *context, int fd, const struct hello *hello)
{
    (void)context;
    close(fd);
    return error_set(POLYPATH_ERROR_MISMATCH, "no use for rank %d", (int)hello->rank);
}

static void an_error_of_the_callee_ends_accepting(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    int listener = listen_somewhere(&places[0]);
    places[1] = places[0];
    pid_t pid = forked_start(f, 0, good_rank);
    assert_int_equal(handshake_accept(&listener, 1, secret, COMM, 5, refuse_all, NULL, NULL, clock_now_ns() + LONG_NS),
                     POLYPATH_ERROR_MISMATCH);
    assert_string_equal(error_text(), "no use for rank 3");
    waitpid(pid, NULL, 0);
    close(listener);
    forked_end(f);
}

static polypath_result_t without_descriptors(struct forked *f, int index)
{
    (void)f;
    (void)index;
    struct taken t = {.count = 0};
    struct sockaddr_in at;
    int listener = listen_somewhere(&at), client = connect_to(&at);
    struct rlimit few = {(rlim_t)client + 1, (rlim_t)client + 1};
    setrlimit(RLIMIT_NOFILE, &few);
    while (dup(client) >= 0) /* fills what gaps there are below */
        ;
    return handshake_accept(&listener, 1, secret, COMM, 1, take, &t, NULL, clock_now_ns() + LONG_NS);
}

static void running_out_of_descriptors_says_what_to_raise(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    forked_run(f, 1, without_descriptors);
    assert_int_equal(f->outcome[0].result, POLYPATH_ERROR_OUT_OF_MEMORY);
    assert_non_null(strstr(f->outcome[0].text, "ulimit -n"));
    forked_end(f);
}

/* ------------------------------------------------- the connecting side */

static void an_impostor_is_found_out_and_learns_nothing(void **state)
{
    (void)state;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    uint8_t noise[HANDSHAKE_CHALLENGE_BYTES];
    randombytes_buf(noise, sizeof noise);
    assert_int_equal(send(pair[1], noise, sizeof noise, 0), sizeof noise);
    assert_int_equal(handshake_connect(pair[0], secret, &rank_3, clock_now_ns() + LONG_NS), POLYPATH_ERROR_MISMATCH);
    assert_non_null(strstr(error_text(), "secret"));
    close(pair[0]);
    uint8_t seen[256];
    assert_int_equal(recv(pair[1], seen, sizeof seen, 0), HANDSHAKE_HELLO_BYTES); /* the hello, and no proof */
    assert_int_equal(recv(pair[1], seen, sizeof seen, 0), 0);
    close(pair[1]);
}

static void silence_and_hanging_up_are_errors_of_the_connecting_side(void **state)
{
    (void)state;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(handshake_connect(pair[0], secret, &rank_3, clock_now_ns() + 20000000), POLYPATH_ERROR_TIMEOUT);
    close(pair[1]);
    assert_int_equal(handshake_connect(pair[0], secret, &rank_3, clock_now_ns() + LONG_NS), POLYPATH_ERROR_PEER_LOST);
    close(pair[0]);
}

static void hellos_survive_the_round_trip(void **state)
{
    (void)state;
    uint8_t message[HANDSHAKE_HELLO_BYTES];
    struct hello back;
    hello_bytes(&rank_3, message);
    for (size_t i = 0; i < sizeof message; i++)
        assert_null(handshake_decode_hello(message, i, COMM, &back));
    assert_null(handshake_decode_hello(message, sizeof message, COMM, &back));
    assert_memory_equal(&back, &rank_3, offsetof(struct hello, reserved) + sizeof back.reserved); /* not the padding */
    message[HANDSHAKE_MAGIC_BYTES - 1]++;
    assert_non_null(strstr(handshake_decode_hello(message, HANDSHAKE_MAGIC_BYTES, COMM, &back), "version"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hellos_survive_the_round_trip),
        cmocka_unit_test(many_prove_themselves_over_several_listeners),
        cmocka_unit_test(wrong_secrets_and_other_communicators_are_refused),
        cmocka_unit_test(the_first_wrong_byte_ends_a_connection),
        cmocka_unit_test(malformed_hellos_are_refused),
        cmocka_unit_test(wrong_reflected_and_replayed_proofs_are_refused),
        cmocka_unit_test(a_slow_peer_gets_through_byte_by_byte),
        cmocka_unit_test(a_timeout_says_who_is_missing),
        cmocka_unit_test(an_error_of_the_callee_ends_accepting),
        cmocka_unit_test(running_out_of_descriptors_says_what_to_raise),
        cmocka_unit_test(an_impostor_is_found_out_and_learns_nothing),
        cmocka_unit_test(silence_and_hanging_up_are_errors_of_the_connecting_side),
    };
    return sodium_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
