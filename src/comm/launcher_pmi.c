/*
 * PMI-1, as MPICH's mpirun (hydra) and `srun --mpi=pmi2` speak it: one line of
 * "cmd=... key=value ..." each way over the inherited socket PMI_FD. Rank 0
 * puts the unique id into the job's key-value space, in pieces where values
 * are limited, everybody meets in a barrier, and reads it.
 *
 * The launcher takes a rank that said `init` but not `finalize` for crashed, and
 * closes the socket on `finalize`. An MPI in the same process uses the same socket,
 * so `finalize` is said as late as possible: at exit, over our own duplicate.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/bootstrap.h"
#include "comm/launcher_parts.h"
#include "system/clock.h"
#include "system/error.h"
#include "system/settings.h"

#define LINE_BYTES 4096
#define HEX_BYTES (2 * POLYPATH_UNIQUE_ID_BYTES + 1)

/* One session per process; used by the thread that joins, then at exit. */
static struct {
    int fd;
    pid_t owner; /* a forked child must not finalize for its parent */
    char space[256];
    long value_max;
} session = {.fd = -1};

static bool present(void)
{
    return launcher_has("PMI_FD");
}

static polypath_result_t talk_failed(const char *command, const char *how)
{
    return error_set(POLYPATH_ERROR_PEER_LOST, "launcher pmi: \"%s\" to the launcher failed: %s", command, how);
}

static polypath_result_t wait_ready(const char *command, short events, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd p = {.fd = session.fd, .events = events};
        int ready = poll(&p, 1, clock_ms_until(deadline_ns));
        if (ready > 0)
            return POLYPATH_SUCCESS;
        if (ready < 0 && errno != EINTR)
            return talk_failed(command, strerror(errno));
        if (clock_now_ns() >= deadline_ns)
            return error_set(POLYPATH_ERROR_TIMEOUT, "launcher pmi: no answer to \"%s\" before the deadline%s", command,
                             strcmp(command, "barrier_in") ? "" : " (a rank may have not come)");
    }
}

/* recv() and send() so that a vanished launcher is an error, not SIGPIPE; PMI_FD is a socket, but be content with a
 * pipe. */
static ssize_t put_bytes(const char *from, size_t length)
{
    ssize_t n = send(session.fd, from, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 && errno == ENOTSOCK ? write(session.fd, from, length) : n;
}

/* Sends one line and receives one line, without its end. */
static polypath_result_t talk(const char *command, const char *line, char answer[LINE_BYTES], uint64_t deadline_ns)
{
    size_t length = strlen(line), got = 0;
    while (length) {
        ssize_t n = put_bytes(line, length);
        if (n > 0) {
            line += n;
            length -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            polypath_result_t result = wait_ready(command, POLLOUT, deadline_ns);
            if (result != POLYPATH_SUCCESS)
                return result;
        } else if (n == 0 || errno != EINTR) {
            return talk_failed(command, strerror(errno));
        }
    }
    for (;;) {
        polypath_result_t result = wait_ready(command, POLLIN, deadline_ns);
        if (result != POLYPATH_SUCCESS)
            return result;
        ssize_t n = read(session.fd, answer + got, 1); /* lines are short and few */
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return talk_failed(command, n ? strerror(errno) : "it closed the connection");
        if (answer[got] == '\n')
            break;
        if (++got == LINE_BYTES)
            return talk_failed(command, "its answer is too long");
    }
    answer[got] = 0;
    return POLYPATH_SUCCESS;
}

/* The value of `key=` in an answer, up to the next blank; `value` gets "" and false is returned if it is not there. */
static bool answer_value(const char *answer, const char *key, char *value, size_t bytes)
{
    size_t length = strlen(key);
    value[0] = 0;
    for (const char *p = answer; *p;) {
        p += strspn(p, " ");
        size_t word = strcspn(p, " ");
        if (word > length && !strncmp(p, key, length) && p[length] == '=') {
            if (word - length - 1 >= bytes)
                return false;
            memcpy(value, p + length + 1, word - length - 1);
            value[word - length - 1] = 0;
            return true;
        }
        p += word;
    }
    return false;
}

/* talk(), and the answer must be `expected` with rc=0 where it has an rc. */
static polypath_result_t ask(const char *command, const char *line, const char *expected, char answer[LINE_BYTES],
                             uint64_t deadline_ns)
{
    polypath_result_t result = talk(command, line, answer, deadline_ns);
    if (result != POLYPATH_SUCCESS)
        return result;
    char value[64];
    if (!answer_value(answer, "cmd", value, sizeof value) || strcmp(value, expected))
        return error_set(POLYPATH_ERROR_SYSTEM, "launcher pmi: unexpected answer to \"%s\": %.200s", command, answer);
    if (answer_value(answer, "rc", value, sizeof value) && strcmp(value, "0"))
        return error_set(POLYPATH_ERROR_SYSTEM, "launcher pmi: the launcher refused \"%s\": %.200s", command, answer);
    return POLYPATH_SUCCESS;
}

static void finalize_at_exit(void)
{
    char answer[LINE_BYTES];
    if (session.fd < 0 || session.owner != getpid())
        return;
    /* If an MPI in this process has finalized already, the other end is closed; that is just as well. */
    talk("finalize", "cmd=finalize\n", answer, clock_now_ns() + 2000000000ull);
    close(session.fd);
    session.fd = -1;
}

static polypath_result_t open_session(uint64_t deadline_ns)
{
    long fd;
    polypath_result_t result = launcher_number("pmi", "PMI_FD", 0, 1 << 30, &fd);
    if (result != POLYPATH_SUCCESS)
        return result;
    session.fd = fcntl((int)fd, F_DUPFD_CLOEXEC, 0);
    if (session.fd < 0)
        return error_set(POLYPATH_ERROR_ARGUMENT, "launcher pmi: PMI_FD=%ld cannot be used: %s", fd, strerror(errno));
    char answer[LINE_BYTES], number[32];
    result = ask("init", "cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init", answer, deadline_ns);
    if (result == POLYPATH_SUCCESS) {
        session.owner = getpid();
        atexit(finalize_at_exit);
        result = ask("get_maxes", "cmd=get_maxes\n", "maxes", answer, deadline_ns);
    }
    if (result == POLYPATH_SUCCESS) {
        session.value_max = answer_value(answer, "vallen_max", number, sizeof number) ? atol(number) : 0;
        if (session.value_max < 2)
            result = error_set(POLYPATH_ERROR_SYSTEM, "launcher pmi: the launcher allows no values: %.200s", answer);
    }
    if (result == POLYPATH_SUCCESS)
        result = ask("get_my_kvsname", "cmd=get_my_kvsname\n", "my_kvsname", answer, deadline_ns);
    if (result == POLYPATH_SUCCESS && (!answer_value(answer, "kvsname", session.space, sizeof session.space)))
        result = error_set(POLYPATH_ERROR_SYSTEM, "launcher pmi: the launcher names no key-value space");
    if (result != POLYPATH_SUCCESS) { /* without a finalize: this rank has failed, and its launcher may know it */
        close(session.fd);
        session.fd = -1;
    }
    return result;
}

/* Puts or gets all pieces of the hex id under keys of this join; a piece has at most value_max - 1 characters. */
static polypath_result_t pieces(bool put, unsigned join, char hex[HEX_BYTES], uint64_t deadline_ns)
{
    char line[LINE_BYTES], answer[LINE_BYTES], value[HEX_BYTES];
    size_t piece = session.value_max - 1 < HEX_BYTES - 1 ? (size_t)session.value_max - 1 : HEX_BYTES - 1;
    polypath_result_t result = POLYPATH_SUCCESS;
    for (size_t at = 0, i = 0; at < HEX_BYTES - 1 && result == POLYPATH_SUCCESS; at += piece, i++) {
        size_t length = HEX_BYTES - 1 - at < piece ? HEX_BYTES - 1 - at : piece;
        if (put) {
            snprintf(line, sizeof line, "cmd=put kvsname=%s key=polypath-%u-%zu value=%.*s\n", session.space, join, i,
                     (int)length, hex + at);
            result = ask("put", line, "put_result", answer, deadline_ns);
            continue;
        }
        snprintf(line, sizeof line, "cmd=get kvsname=%s key=polypath-%u-%zu\n", session.space, join, i);
        result = ask("get", line, "get_result", answer, deadline_ns);
        if (result == POLYPATH_SUCCESS &&
            (!answer_value(answer, "value", value, sizeof value) || strlen(value) != length))
            result =
                error_set(POLYPATH_ERROR_SYSTEM, "launcher pmi: the launcher gave back something else than was put");
        if (result == POLYPATH_SUCCESS)
            memcpy(hex + at, value, length);
    }
    hex[HEX_BYTES - 1] = 0;
    sodium_memzero(line, sizeof line);
    sodium_memzero(answer, sizeof answer);
    sodium_memzero(value, sizeof value);
    return result;
}

static polypath_result_t join(struct launch *launch)
{
    static atomic_uint joins;
    polypath_result_t result = launcher_rank_size("pmi", "PMI_RANK", "PMI_SIZE", launch);
    if (result != POLYPATH_SUCCESS)
        return result;
    uint64_t deadline_ns = clock_now_ns() + settings_get()->timeout_ms * 1000000;
    if (session.fd < 0 || session.owner != getpid())
        result = open_session(deadline_ns);
    unsigned number = launcher_count(&joins);
    char hex[HEX_BYTES] = "", answer[LINE_BYTES];
    if (result == POLYPATH_SUCCESS && launch->rank == 0) {
        result = bootstrap_serve(&launch->id, NULL);
        if (result == POLYPATH_SUCCESS) {
            bootstrap_format(&launch->id, hex);
            result = pieces(true, number, hex, deadline_ns);
        }
    }
    if (result == POLYPATH_SUCCESS)
        result = ask("barrier_in", "cmd=barrier_in\n", "barrier_out", answer, deadline_ns);
    if (result == POLYPATH_SUCCESS && launch->rank != 0) {
        result = pieces(false, number, hex, deadline_ns);
        if (result == POLYPATH_SUCCESS)
            result = bootstrap_unformat(hex, &launch->id);
    }
    sodium_memzero(hex, sizeof hex);
    return result;
}

const struct launcher launcher_pmi = {"pmi", present, join};
