/* Ids, and the meeting of forked ranks: what works, and what each way of going wrong is reported as. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "comm/bootstrap.h"
#include "comm/bootstrap_wire.h"
#include "comm/handshake_wire.h"
#include "forked.h"
#include "topology/interfaces.h"

static int job_size; /* set before forking */
static int rounds;

static polypath_result_t serve_v4(struct forked *f)
{
    return bootstrap_serve(&f->id, "127.0.0.1");
}

static polypath_result_t serve_v6(struct forked *f)
{
    return bootstrap_serve(&f->id, "::1");
}

static uint8_t pattern(int rank, int round, size_t i)
{
    return (uint8_t)(rank * 37 + round * 11 + (int)(i * 7 % 251));
}

/* One round of `bytes` bytes each, checked. */
static polypath_result_t gather_checked(struct bootstrap *b, int rank, int size, int round, size_t bytes)
{
    uint8_t *mine = malloc(bytes + 1), *all = malloc(bytes * (size_t)size + 1);
    for (size_t i = 0; i < bytes; i++)
        mine[i] = pattern(rank, round, i);
    polypath_result_t result = bootstrap_all_gather(b, mine, bytes, all);
    for (int r = 0; r < size && result == POLYPATH_SUCCESS; r++)
        for (size_t i = 0; i < bytes; i++)
            if (all[(size_t)r * bytes + i] != pattern(r, round, i)) {
                result = error_set(POLYPATH_ERROR_INTERNAL, "wrong data of rank %d in round %d", r, round);
                break;
            }
    free(mine);
    free(all);
    return result;
}

static polypath_result_t all_rounds(struct forked *f, int rank)
{
    static const size_t bytes[] = {8, 0, 1, 65537, 100, BOOTSTRAP_RECORD_MAX, 3};
    struct bootstrap *b;
    polypath_result_t result = bootstrap_open(&f->id, rank, job_size, &b);
    for (int k = 0; k < rounds && result == POLYPATH_SUCCESS; k++)
        result = gather_checked(b, rank, job_size, k, bytes[k]);
    if (result == POLYPATH_SUCCESS)
        bootstrap_close(b);
    return result;
}

static void expect_all(const struct forked *f, int n, polypath_result_t result, const char *text)
{
    for (int i = 0; i < n; i++) {
        if (f->outcome[i].result != (int)result || !strstr(f->outcome[i].text, text))
            print_message("rank %d: %d %s\n", i, f->outcome[i].result, f->outcome[i].text);
        assert_int_equal(f->outcome[i].result, result);
        assert_non_null(strstr(f->outcome[i].text, text));
    }
}

static void gather_with(int size, int nrounds, polypath_result_t (*serve)(struct forked *))
{
    struct forked *f = forked_new();
    job_size = size;
    rounds = nrounds;
    forked_serve(f, serve);
    assert_int_equal(f->outcome[FORKED_MAX].result, POLYPATH_SUCCESS);
    forked_run(f, size, all_rounds);
    expect_all(f, size, POLYPATH_SUCCESS, "");
    forked_end(f);
}

static void all_gather_works_with_1_to_9_ranks(void **state)
{
    (void)state;
    for (int size = 1; size <= 9; size++)
        gather_with(size, 5, serve_v4);
    gather_with(3, 7, serve_v4);
}

static void all_gather_works_over_ipv6(void **state)
{
    (void)state;
    struct interface lo;
    if (interfaces_loopback(6, &lo) != POLYPATH_SUCCESS)
        skip();
    gather_with(3, 5, serve_v6);
}

static polypath_result_t serve_by_settings(struct forked *f)
{
    setenv("POLYPATH_BOOTSTRAP_INTERFACE", "lo", 1);
    return bootstrap_serve(&f->id, NULL);
}

static void the_setting_chooses_the_interface(void **state)
{
    (void)state;
    gather_with(2, 3, serve_by_settings);
}

static void one_rank_needs_no_service(void **state)
{
    (void)state;
    polypath_unique_id_t id;
    struct bootstrap *b;
    assert_int_equal(bootstrap_alone(&id), POLYPATH_SUCCESS);
    uint8_t secret[HANDSHAKE_SECRET_BYTES];
    uint64_t comm;
    assert_int_equal(bootstrap_parse(&id, secret, &comm), POLYPATH_SUCCESS);
    assert_int_equal(bootstrap_open(&id, 0, 1, &b), POLYPATH_SUCCESS);
    assert_int_equal(gather_checked(b, 0, 1, 0, 100), POLYPATH_SUCCESS);
    bootstrap_close(b);
    assert_int_equal(bootstrap_open(&id, 0, 2, &b), POLYPATH_ERROR_ARGUMENT);
}

/* ------------------------------------------------------------------- ids */

static void sample_id(struct bootstrap_id *inside, polypath_unique_id_t *id)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(4711)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(4712)};
    inet_pton(AF_INET, "10.0.0.7", &v4.sin_addr);
    inet_pton(AF_INET6, "fe80::7", &v6.sin6_addr);
    *inside = (struct bootstrap_id){.comm = 0x0123456789abcdef, .span = 1, .naddresses = 2};
    memset(inside->secret, 0x5a, sizeof inside->secret);
    bootstrap_address_set(&inside->addresses[0], (struct sockaddr *)&v4, "");
    bootstrap_address_set(&inside->addresses[1], (struct sockaddr *)&v6, "eth7");
    bootstrap_encode(inside, id);
}

static void ids_survive_the_round_trip(void **state)
{
    (void)state;
    struct bootstrap_id inside, again;
    polypath_unique_id_t id, back;
    char text[2 * POLYPATH_UNIQUE_ID_BYTES + 1], name[96];
    sample_id(&inside, &id);
    bootstrap_format(&id, text);
    assert_int_equal(strlen(text), 2 * POLYPATH_UNIQUE_ID_BYTES);
    assert_int_equal(bootstrap_unformat(text, &back), POLYPATH_SUCCESS);
    assert_memory_equal(&id, &back, sizeof id);
    assert_int_equal(bootstrap_decode(&back, &again), POLYPATH_SUCCESS);
    assert_memory_equal(again.secret, inside.secret, sizeof again.secret);
    assert_true(again.comm == inside.comm);
    assert_int_equal(again.naddresses, 2);
    bootstrap_address_name(&again.addresses[0], 0, name);
    assert_string_equal(name, "10.0.0.7 port 4711");
    bootstrap_address_name(&again.addresses[1], 0, name);
    assert_string_equal(name, "fe80::7%eth7 port 4712");
}

static void damaged_ids_are_refused(void **state)
{
    (void)state;
    struct bootstrap_id inside;
    polypath_unique_id_t id;
    char text[2 * POLYPATH_UNIQUE_ID_BYTES + 1];
    sample_id(&inside, &id);
    for (size_t i = 0; i < sizeof id.bytes; i++) {
        polypath_unique_id_t bad = id;
        bad.bytes[i] ^= 0x20;
        assert_int_equal(bootstrap_decode(&bad, &inside), POLYPATH_ERROR_ARGUMENT);
    }
    polypath_unique_id_t zero = {{0}};
    struct bootstrap *b;
    assert_int_equal(bootstrap_open(&zero, 0, 1, &b), POLYPATH_ERROR_ARGUMENT);
    bootstrap_format(&id, text);
    text[10] = 'x';
    assert_int_equal(bootstrap_unformat(text, &id), POLYPATH_ERROR_ARGUMENT);
    text[10] = 0;
    assert_int_equal(bootstrap_unformat(text, &id), POLYPATH_ERROR_ARGUMENT);
    assert_int_equal(bootstrap_unformat("", &id), POLYPATH_ERROR_ARGUMENT);
}

/* -------------------------------------------------------------- strangers */

/* A connection to the service of f->id. */
static int stranger(const struct forked *f)
{
    struct bootstrap_id inside;
    union bootstrap_sockaddr to;
    socklen_t length;
    assert_int_equal(bootstrap_decode(&f->id, &inside), POLYPATH_SUCCESS);
    assert_int_equal(bootstrap_sockaddr(&inside.addresses[0], 0, &to, &length), POLYPATH_SUCCESS);
    int fd = socket(to.any.sa_family, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, &to.any, length), 0);
    return fd;
}

static void strangers_do_not_stop_the_ranks(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    job_size = 4;
    rounds = 4;
    forked_serve(f, serve_v4);
    int silent = stranger(f), garbage = stranger(f), half = stranger(f), gone = stranger(f);
    uint8_t hello[HANDSHAKE_HELLO_BYTES], nonce[HANDSHAKE_NONCE_BYTES] = {1};
    struct hello words = {.comm = 1, .rank = 0, .purpose = HELLO_BOOTSTRAP};
    handshake_encode_hello(&words, nonce, hello);
    assert_true(send(garbage, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
    assert_true(send(half, hello, 20, MSG_NOSIGNAL) == 20);
    close(gone);
    forked_run(f, job_size, all_rounds);
    expect_all(f, job_size, POLYPATH_SUCCESS, "");
    close(silent);
    close(garbage);
    close(half);
    forked_end(f);
}

static polypath_result_t serve_with_few_descriptors(struct forked *f)
{
    struct rlimit few = {64, 64}; /* then at most 16 may be proving themselves */
    setrlimit(RLIMIT_NOFILE, &few);
    setenv("POLYPATH_LOG", "none", 1);
    return bootstrap_serve(&f->id, "127.0.0.1");
}

static void a_flood_of_strangers_does_not_stop_the_ranks(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    int fds[200];
    job_size = 3;
    rounds = 3;
    forked_serve(f, serve_with_few_descriptors);
    for (int i = 0; i < 200; i++)
        fds[i] = stranger(f);
    forked_run(f, job_size, all_rounds);
    expect_all(f, job_size, POLYPATH_SUCCESS, "");
    for (int i = 0; i < 200; i++)
        close(fds[i]);
    forked_end(f);
}

static polypath_result_t with_wrong_secret(struct forked *f, int rank)
{
    struct bootstrap_id inside;
    polypath_unique_id_t wrong;
    struct bootstrap *b;
    bootstrap_decode(&f->id, &inside);
    inside.secret[31] ^= 1;
    bootstrap_encode(&inside, &wrong);
    return bootstrap_open(&wrong, rank, 2, &b);
}

static void a_wrong_secret_is_refused_and_the_others_go_on(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    forked_serve(f, serve_v4);
    forked_run(f, 1, with_wrong_secret);
    expect_all(f, 1, POLYPATH_ERROR_MISMATCH, "secret");
    job_size = 2;
    rounds = 3;
    forked_run(f, 2, all_rounds);
    expect_all(f, 2, POLYPATH_SUCCESS, "");
    forked_end(f);
}

/* ----------------------------------------------------------------- errors */

static polypath_result_t as_ranks_0_1_1(struct forked *f, int index)
{
    struct bootstrap *b;
    return bootstrap_open(&f->id, index ? 1 : 0, 4, &b);
}

static void two_ranks_with_one_number_are_named(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    forked_serve(f, serve_v4);
    forked_run(f, 3, as_ranks_0_1_1);
    expect_all(f, 3, POLYPATH_ERROR_MISMATCH, "rank 1 came twice");
    forked_end(f);
}

static polypath_result_t with_other_sizes(struct forked *f, int index)
{
    struct bootstrap *b;
    return bootstrap_open(&f->id, index, index == 1 ? 5 : 4, &b);
}

static void ranks_that_disagree_on_the_size_are_named(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    forked_serve(f, serve_v4);
    forked_run(f, 3, with_other_sizes);
    expect_all(f, 3, POLYPATH_ERROR_MISMATCH, "disagree on how many they are");
    expect_all(f, 3, POLYPATH_ERROR_MISMATCH, "rank 1");
    forked_end(f);
}

static void impossible_ranks_and_sizes_are_refused(void **state)
{
    (void)state;
    polypath_unique_id_t id;
    struct bootstrap *b;
    assert_int_equal(bootstrap_alone(&id), POLYPATH_SUCCESS);
    static const int wrong[][2] = {{-1, 2}, {2, 2}, {0, 0}, {0, -3}, {0, BOOTSTRAP_SIZE_MAX + 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(bootstrap_open(&id, wrong[i][0], wrong[i][1], &b), POLYPATH_ERROR_ARGUMENT);
    assert_int_equal(bootstrap_open(&id, 7, 3, &b), POLYPATH_ERROR_ARGUMENT);
    assert_non_null(strstr(error_text(), "rank 7 is outside 0 to 2"));
}

static polypath_result_t impatient(struct forked *f, int index)
{
    struct bootstrap *b;
    setenv("POLYPATH_TIMEOUT_MS", "500", 1);
    return bootstrap_open(&f->id, index ? 3 : 0, 4, &b);
}

static void missing_ranks_are_named(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    forked_serve(f, serve_v4);
    forked_run(f, 2, impatient);
    expect_all(f, 2, POLYPATH_ERROR_TIMEOUT, "ranks 1 and 2 of 4 did not come");
    forked_end(f);
}

static polypath_result_t rank_2_stays_away(struct forked *f, int rank)
{
    struct bootstrap *b;
    if (rank != 2)
        setenv("POLYPATH_TIMEOUT_MS", "700", 1);
    polypath_result_t result = bootstrap_open(&f->id, rank, 3, &b);
    if (result != POLYPATH_SUCCESS)
        return result;
    if (rank == 2) { /* until the others have given up */
        while (atomic_load(&f->ready) < 3)
            forked_pause_ms(5);
        return error_set(POLYPATH_ERROR_TIMEOUT, "rank 2");
    }
    result = gather_checked(b, rank, 3, 0, 50);
    atomic_fetch_add(&f->ready, 1);
    return result;
}

static void a_rank_that_does_not_come_to_an_exchange_is_named(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    forked_serve(f, serve_v4);
    forked_run(f, 3, rank_2_stays_away);
    expect_all(f, 3, POLYPATH_ERROR_TIMEOUT, "rank 2");
    forked_end(f);
}

static int dying_style;

static polypath_result_t rank_1_dies(struct forked *f, int rank)
{
    struct bootstrap *b;
    polypath_result_t result = bootstrap_open(&f->id, rank, 4, &b);
    if (result == POLYPATH_SUCCESS)
        result = gather_checked(b, rank, 4, 0, 50);
    if (result != POLYPATH_SUCCESS)
        return result;
    if (rank == 1 && dying_style == 0)
        kill(getpid(), SIGKILL);
    if (rank == 1) {
        bootstrap_close(b);
        return error_set(POLYPATH_ERROR_PEER_LOST, "rank 1");
    }
    return gather_checked(b, rank, 4, 1, 200000);
}

static void a_rank_that_dies_is_named_to_the_others(void **state)
{
    (void)state;
    for (dying_style = 0; dying_style < 2; dying_style++) {
        struct forked *f = forked_new();
        forked_serve(f, serve_v4);
        forked_run(f, 4, rank_1_dies);
        if (dying_style == 0) {
            assert_int_equal(f->outcome[1].result, -1);
            f->outcome[1] = f->outcome[0];
        }
        expect_all(f, 4, POLYPATH_ERROR_PEER_LOST, "rank 1");
        forked_end(f);
    }
}

static polypath_result_t with_other_bytes(struct forked *f, int rank)
{
    struct bootstrap *b;
    uint8_t mine[64] = {0}, all[3 * 64];
    polypath_result_t result = bootstrap_open(&f->id, rank, 3, &b);
    if (result == POLYPATH_SUCCESS)
        result = bootstrap_all_gather(b, mine, rank == 2 ? 33 : 32, all);
    if (result == POLYPATH_ERROR_MISMATCH && bootstrap_all_gather(b, mine, 32, all) != POLYPATH_ERROR_USAGE)
        return error_set(POLYPATH_ERROR_INTERNAL, "went on after a failure");
    return result == POLYPATH_ERROR_MISMATCH ? error_set(result, "rank 2") : result;
}

static void ranks_that_give_other_sizes_are_told(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    forked_serve(f, serve_v4);
    forked_run(f, 3, with_other_bytes);
    expect_all(f, 3, POLYPATH_ERROR_MISMATCH, "rank 2");
    forked_end(f);
}

static void a_service_that_has_ended_is_an_error_before_the_deadline(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    forked_serve(f, serve_v4);
    kill(f->server, SIGKILL);
    waitpid(f->server, NULL, 0);
    f->server = 0;
    job_size = 2;
    forked_run(f, 2, all_rounds);
    expect_all(f, 2, POLYPATH_ERROR_PEER_LOST, "cannot join the start-up at 127.0.0.1 port");
    forked_end(f);
}

static polypath_result_t serve_badly(struct forked *f, int index)
{
    static const char *const where[] = {"203.0.113.1", "not-a-number", "127.0.0.1:80"};
    if (index < 3)
        return bootstrap_serve(&f->id, where[index]);
    setenv("POLYPATH_BOOTSTRAP_INTERFACE", "nosuch0", 1);
    return bootstrap_serve(&f->id, NULL);
}

static void places_that_cannot_be_listened_at_are_clear_errors(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    forked_run(f, 4, serve_badly);
    assert_non_null(strstr(f->outcome[0].text, "not an address of this host"));
    assert_non_null(strstr(f->outcome[1].text, "not-a-number is not a numeric"));
    assert_int_equal(f->outcome[2].result, POLYPATH_ERROR_ARGUMENT);
    assert_non_null(strstr(f->outcome[3].text, "no network interface nosuch0"));
    forked_end(f);
}

/* ------------------------------------------------------ the service's end */

static int open_descriptors(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static polypath_result_t serve_and_watch(struct forked *f, int index)
{
    if (index) { /* the one rank */
        while (!atomic_load(&f->ready))
            forked_pause_ms(1);
        job_size = 1;
        rounds = 3;
        return all_rounds(f, 0);
    }
    int before = open_descriptors();
    polypath_result_t result = bootstrap_serve(&f->id, "127.0.0.1");
    if (result != POLYPATH_SUCCESS)
        return result;
    atomic_store(&f->ready, 1);
    while (open_descriptors() != before) /* an alarm ends this child if it never comes to that */
        forked_pause_ms(5);
    return POLYPATH_SUCCESS;
}

static polypath_result_t serve_nobody(struct forked *f, int index)
{
    (void)index;
    setenv("POLYPATH_TIMEOUT_MS", "50", 1);
    int before = open_descriptors();
    polypath_result_t result = bootstrap_serve(&f->id, "127.0.0.1");
    while (result == POLYPATH_SUCCESS && open_descriptors() != before)
        forked_pause_ms(5);
    return result;
}

static void the_service_ends_and_closes_its_sockets(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    forked_run(f, 2, serve_and_watch);
    expect_all(f, 2, POLYPATH_SUCCESS, "");
    forked_run(f, 1, serve_nobody);
    expect_all(f, 1, POLYPATH_SUCCESS, "");
    forked_end(f);
}

/* ---------------------------------------------------------------- derived */

static uint16_t first_port;

static polypath_result_t derive(polypath_unique_id_t *id, const char *material)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr *const list[] = {(const struct sockaddr *)&v4};
    return bootstrap_derive(id, material, strlen(material), list, 1, first_port, 12);
}

static polypath_result_t derived_rank(struct forked *f, int rank)
{
    struct forked mine;
    polypath_result_t result = derive(&mine.id, "what all know");
    if (rank == 0) { /* the others are there first, and find nobody */
        forked_pause_ms(100);
        result = bootstrap_serve_derived(&mine.id, false);
    }
    (void)f;
    return result == POLYPATH_SUCCESS ? all_rounds(&mine, rank) : result;
}

static void derived_ids_meet_although_the_service_is_late_and_a_port_is_taken(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    int taken = -1;
    do { /* a silent stranger sits on the first port of the span */
        if (taken >= 0)
            close(taken);
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof any;
        taken = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(bind(taken, (struct sockaddr *)&any, sizeof any), 0);
        assert_int_equal(listen(taken, 64), 0);
        assert_int_equal(getsockname(taken, (struct sockaddr *)&any, &length), 0);
        first_port = ntohs(any.sin_port);
    } while (first_port > 65000);
    job_size = 3;
    rounds = 3;
    forked_run(f, 3, derived_rank);
    expect_all(f, 3, POLYPATH_SUCCESS, "");
    close(taken);
    forked_end(f);
}

static void derived_ids_depend_on_the_material_only(void **state)
{
    (void)state;
    polypath_unique_id_t a, b, c;
    first_port = 20000;
    assert_int_equal(derive(&a, "x"), POLYPATH_SUCCESS);
    assert_int_equal(derive(&b, "x"), POLYPATH_SUCCESS);
    assert_int_equal(derive(&c, "y"), POLYPATH_SUCCESS);
    assert_memory_equal(&a, &b, sizeof a);
    assert_memory_not_equal(a.bytes + 8, c.bytes + 8, 32);
    first_port = 65530;
    assert_int_equal(derive(&a, "x"), POLYPATH_ERROR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_survive_the_round_trip),
        cmocka_unit_test(damaged_ids_are_refused),
        cmocka_unit_test(all_gather_works_with_1_to_9_ranks),
        cmocka_unit_test(all_gather_works_over_ipv6),
        cmocka_unit_test(the_setting_chooses_the_interface),
        cmocka_unit_test(one_rank_needs_no_service),
        cmocka_unit_test(strangers_do_not_stop_the_ranks),
        cmocka_unit_test(a_flood_of_strangers_does_not_stop_the_ranks),
        cmocka_unit_test(a_wrong_secret_is_refused_and_the_others_go_on),
        cmocka_unit_test(two_ranks_with_one_number_are_named),
        cmocka_unit_test(ranks_that_disagree_on_the_size_are_named),
        cmocka_unit_test(impossible_ranks_and_sizes_are_refused),
        cmocka_unit_test(missing_ranks_are_named),
        cmocka_unit_test(a_rank_that_does_not_come_to_an_exchange_is_named),
        cmocka_unit_test(a_rank_that_dies_is_named_to_the_others),
        cmocka_unit_test(ranks_that_give_other_sizes_are_told),
        cmocka_unit_test(a_service_that_has_ended_is_an_error_before_the_deadline),
        cmocka_unit_test(places_that_cannot_be_listened_at_are_clear_errors),
        cmocka_unit_test(the_service_ends_and_closes_its_sockets),
        cmocka_unit_test(derived_ids_meet_although_the_service_is_late_and_a_port_is_taken),
        cmocka_unit_test(derived_ids_depend_on_the_material_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
