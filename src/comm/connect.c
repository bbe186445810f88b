/*
 * Making the links of a communicator: listeners on the interfaces in use (and
 * on an abstract local socket), their ports told to everybody, then every rank
 * connects to the lower ones and accepts from the higher ones. Both ends prove
 * the secret before anything else (handshake.h).
 */
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "comm/comm.h"
#include "system/clock.h"
#include "system/log.h"

#define PROBE_VALUE 0x706f6c7970617468ull

struct connecting {
    struct polypath_comm *comm;
    const struct path_choice *choice;
    const struct rank_info *infos;
    uint16_t *ports; /* [rank * HOST_PATHS + path] */
    int listeners[HOST_PATHS + 1];
    int nlisteners;
    uint64_t deadline_ns;
    uint64_t probe; /* what peers read to see whether they can read us */
    bool *arrived;  /* per rank: at least one connection */
    char missing[256];
};

struct introduction {
    struct segment_info segment;
    uint64_t probe_address;
    int32_t pid;
    uint32_t reserved;
};

static int local_index(const struct polypath_comm *c, int rank)
{
    int index = 0;
    for (int r = 0; r < rank; r++)
        index += c->layout.host_of[r] == c->layout.host_of[rank];
    return index;
}

static bool is_local(const struct polypath_comm *c, int peer)
{
    return c->layout.host_of[peer] == c->layout.host_of[c->rank];
}

static bool wants_segment(const struct polypath_comm *c, int peer)
{
    return is_local(c, peer) && (c->settings.shm || (c->settings.cma && c->one_host));
}

/* Whether the pair talks tcp on this path. */
static bool wants_tcp(const struct polypath_comm *c, int path, int peer)
{
    if (strcmp(c->paths[path].kind, "tcp"))
        return false;
    return !is_local(c, peer) || !c->paths[path].between_hosts || !c->settings.shm;
}

static socklen_t address_bytes(const struct interface *i)
{
    return i->address.any.sa_family == AF_INET6 ? sizeof i->address.v6 : sizeof i->address.v4;
}

static void set_port(struct interface *i, uint16_t port)
{
    if (i->address.any.sa_family == AF_INET6)
        i->address.v6.sin6_port = htons(port);
    else
        i->address.v4.sin_port = htons(port);
}

static struct interface path_interface(const struct connecting *k, int path, int rank, polypath_result_t *result)
{
    struct interface found = {0};
    int host = k->comm->layout.host_of[rank];
    int index = k->choice->interface_of[path * k->comm->layout.nhosts + host];
    if (index >= 0)
        found = k->infos[k->comm->layout.first_rank[host]].interfaces[index];
    else
        *result = interfaces_loopback((int)k->comm->settings.ip_family, &found);
    return found;
}

static polypath_result_t socket_error(const char *what, const struct interface *i)
{
    char address[64];
    interfaces_format(i, address);
    return error_set(errno == EMFILE || errno == ENFILE ? POLYPATH_ERROR_OUT_OF_MEMORY : POLYPATH_ERROR_SYSTEM,
                     "%s %s (%s): %s%s", what, address, i->name, strerror(errno), error_advice(errno));
}

static polypath_result_t listen_on(struct connecting *k, int path, uint16_t *port)
{
    polypath_result_t result = POLYPATH_SUCCESS;
    struct interface here = path_interface(k, path, k->comm->rank, &result);
    if (result)
        return result;
    int fd = socket(here.address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return socket_error("cannot make a socket for", &here);
    k->listeners[k->nlisteners++] = fd;
    set_port(&here, 0);
    if (bind(fd, &here.address.any, address_bytes(&here)) || listen(fd, 4096))
        return socket_error("cannot listen on", &here);
    socklen_t bytes = sizeof here.address;
    if (getsockname(fd, &here.address.any, &bytes))
        return socket_error("cannot listen on", &here);
    *port = ntohs(here.address.any.sa_family == AF_INET6 ? here.address.v6.sin6_port : here.address.v4.sin_port);
    return POLYPATH_SUCCESS;
}

/* Abstract: bound to the network namespace, and gone with its socket. */
static socklen_t local_address(uint64_t comm, int rank, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "polypath-%016" PRIx64 "-%d", comm, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static polypath_result_t listen_locally(struct connecting *k)
{
    struct sockaddr_un address;
    socklen_t bytes = local_address(k->comm->id, k->comm->rank, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot make a local socket: %s%s", strerror(errno),
                         error_advice(errno));
    k->listeners[k->nlisteners++] = fd;
    if (bind(fd, (struct sockaddr *)&address, bytes) || listen(fd, 4096))
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot listen on a local socket: %s", strerror(errno));
    return POLYPATH_SUCCESS;
}

/* ---------------------------------------------------------- local peers */

/* recvmsg/sendmsg of exactly one message, with a deadline; the socket is non-blocking. */
static polypath_result_t wait_for(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd p = {fd, events, 0};
        int n = poll(&p, 1, clock_ms_until(deadline_ns));
        if (n > 0)
            return POLYPATH_SUCCESS;
        if (n == 0)
            return error_set(POLYPATH_ERROR_TIMEOUT, "a local rank stopped answering while links were made");
        if (errno != EINTR)
            return error_set(POLYPATH_ERROR_SYSTEM, "poll: %s", strerror(errno));
    }
}

static polypath_result_t tell(int fd, const void *data, size_t bytes, const int *fds, int nfds, uint64_t deadline_ns)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)data, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (nfds) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
        control.header = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int))};
        memcpy(CMSG_DATA(&control.header), fds, (size_t)nfds * sizeof(int));
    }
    for (;;) {
        ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (n == (ssize_t)bytes)
            return POLYPATH_SUCCESS;
        if (n >= 0 || (errno != EAGAIN && errno != EINTR))
            return error_set(POLYPATH_ERROR_SYSTEM, "telling a local rank about shared memory: %s", strerror(errno));
        polypath_result_t result = wait_for(fd, POLLOUT, deadline_ns);
        if (result)
            return result;
    }
}

/* Closes descriptors that came with a message that is not what was expected. */
static void close_strays(const struct msghdr *message)
{
    struct cmsghdr *header = message->msg_controllen ? CMSG_FIRSTHDR(message) : NULL;
    for (size_t i = 0; header && header->cmsg_type == SCM_RIGHTS && CMSG_LEN((i + 1) * sizeof(int)) <= header->cmsg_len;
         i++) {
        int stray;
        memcpy(&stray, CMSG_DATA(header) + i * sizeof stray, sizeof stray);
        close(stray);
    }
}

static polypath_result_t hear(int fd, void *data, size_t bytes, int *fds, int nfds, uint64_t deadline_ns)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec part = {data, bytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    for (;;) {
        polypath_result_t result = wait_for(fd, POLLIN, deadline_ns);
        if (result)
            return result;
        ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n == (ssize_t)bytes)
            break;
        close_strays(&message);
        return error_set(POLYPATH_ERROR_PEER_LOST, "a local rank ended while links were made");
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!nfds && !header)
        return POLYPATH_SUCCESS;
    if (!header || !nfds || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN((size_t)nfds * sizeof(int))) {
        close_strays(&message);
        return error_set(POLYPATH_ERROR_SYSTEM, "a local rank's file descriptors did not arrive%s",
                         message.msg_flags & MSG_CTRUNC ? error_advice(EMFILE) : "");
    }
    memcpy(fds, CMSG_DATA(header), (size_t)nfds * sizeof(int));
    return POLYPATH_SUCCESS;
}

static polypath_result_t add_link(struct polypath_comm *c, struct link *link, int peer, int path, int queue)
{
    link->peer = peer;
    link->path = path;
    link->queue = queue;
    return host_add_link(c->host, link);
}

/* Path index of kind `kind` on one host; -1 if it is not used. */
static int local_path(const struct polypath_comm *c, const char *kind)
{
    for (int p = 0; p < c->npaths; p++)
        if (!strcmp(c->paths[p].kind, kind))
            return p;
    return -1;
}

/* Swaps segments over a connected, proven local socket, and makes the shm and cma links. Takes over fd. */
static polypath_result_t introduce(struct connecting *k, int fd, int peer)
{
    struct polypath_comm *c = k->comm;
    c->control_fds[peer] = fd;
    struct introduction mine = {.probe_address = (uint64_t)(uintptr_t)&k->probe, .pid = (int32_t)getpid()}, theirs;
    segment_info(c->segment, &mine.segment);
    int fds[2] = {c->segment->fd, c->segment->event_fd}, got[2];
    polypath_result_t result = tell(fd, &mine, sizeof mine, fds, 2, k->deadline_ns);
    if (!result)
        result = hear(fd, &theirs, sizeof theirs, got, 2, k->deadline_ns);
    if (!result)
        result = segment_map(&theirs.segment, got[0], got[1], &c->peer_segments[peer]);
    if (result)
        return result;
    const int me = local_index(c, c->rank), other = local_index(c, peer);
    const int in = other < me ? other : other - 1, out = me < other ? me : me - 1;
    if ((uint32_t)out >= theirs.segment.nchannels)
        return error_set(POLYPATH_ERROR_INTERNAL, "rank %d has too few channels", peer);
    uint8_t can = c->settings.cma && cma_probe(theirs.pid, theirs.probe_address, PROBE_VALUE), they_can = 0;
    result = tell(fd, &can, 1, NULL, 0, k->deadline_ns);
    if (!result)
        result = hear(fd, &they_can, 1, NULL, 0, k->deadline_ns);
    if (result)
        return result;
    struct link *link;
    const int shm = local_path(c, "shm"), cma = local_path(c, "cma");
    /* between hosts the ranks of one host use one local link, shm, whatever the path; it counts for none (-1) */
    if (c->one_host ? shm >= 0 : c->settings.shm) {
        result = shm_link_create(c->segment, c->peer_segments[peer], in, out, &link);
        if (!result)
            result = add_link(c, link, peer, shm, c->one_host ? shm : 0);
    }
    if (!result && c->one_host && cma >= 0 && can && they_can) {
        result = cma_link_create(c->segment, c->peer_segments[peer], in, out, theirs.pid, &link);
        if (!result)
            result = add_link(c, link, peer, cma, cma);
    } else if (!result && c->one_host && cma >= 0) {
        c->statistics.fallbacks++;
        c->allowed &= ~(1u << cma); /* for all ranks: agree_paths */
        log_line(LOG_LEVEL_INFO, "process_vm_readv does not work between ranks %d and %d; path cma is not used",
                 c->rank, peer);
    }
    return result ? result : host_add_peer(c->host, peer, fd, c->peer_segments[peer]);
}

static polypath_result_t connect_locally(struct connecting *k, int peer)
{
    struct sockaddr_un address;
    socklen_t bytes = local_address(k->comm->id, peer, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int failed = fd < 0;
    /* EAGAIN: its queue of connections is full just now */
    while (!failed && (failed = connect(fd, (struct sockaddr *)&address, bytes)) && errno == EAGAIN &&
           clock_now_ns() < k->deadline_ns) {
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
        failed = 0;
    }
    if (failed) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot reach rank %d on this host: %s%s", peer, strerror(error),
                         error_advice(error));
    }
    struct hello hello = {.comm = k->comm->id, .rank = k->comm->rank, .purpose = HELLO_SHM};
    polypath_result_t result = handshake_connect(fd, k->comm->secret, &hello, k->deadline_ns);
    if (result) {
        close(fd);
        return error_prefix(result, "rank %d to rank %d", k->comm->rank, peer);
    }
    return introduce(k, fd, peer);
}

/* ------------------------------------------------------------------- tcp */

static polypath_result_t adopt_tcp(struct polypath_comm *c, int fd, int peer, int path)
{
    struct link *link;
    const char *congestion = c->settings.tcp_congestion;
    if (*congestion && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion))) {
        c->statistics.fallbacks++;
        log_line(LOG_LEVEL_WARN, "tcp_congestion=%s cannot be had (%s); the system's is used", congestion,
                 strerror(errno));
    }
    polypath_result_t result = tcp_link_create(fd, c->settings.tcp_notsent_bytes, &link);
    return result ? result : add_link(c, link, peer, path, path);
}

static polypath_result_t finish_connect(int fd, uint64_t deadline_ns)
{
    polypath_result_t result = wait_for(fd, POLLOUT, deadline_ns);
    int error = 0;
    socklen_t bytes = sizeof error;
    if (!result && !getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) && error) {
        errno = error;
        return POLYPATH_ERROR_SYSTEM;
    }
    if (result)
        errno = ETIMEDOUT;
    return result;
}

static polypath_result_t connect_tcp(struct connecting *k, int peer, int path, int stream)
{
    polypath_result_t result = POLYPATH_SUCCESS;
    struct interface from = path_interface(k, path, k->comm->rank, &result);
    struct interface to = path_interface(k, path, peer, &result);
    if (result)
        return result;
    set_port(&to, k->ports[peer * HOST_PATHS + path]);
    set_port(&from, 0);
    if (to.address.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&to.address.v6.sin6_addr))
        to.address.v6.sin6_scope_id = if_nametoindex(from.name);
    int fd = socket(to.address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return socket_error("cannot make a socket for", &from);
    /* two interfaces may be on one subnet: the address alone would not decide which one sends */
    if (!from.loopback)
        setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, from.name, (socklen_t)strlen(from.name));
    if (bind(fd, &from.address.any, address_bytes(&from))) {
        result = socket_error("cannot bind to", &from);
    } else if (connect(fd, &to.address.any, address_bytes(&to)) &&
               (errno != EINPROGRESS || finish_connect(fd, k->deadline_ns))) {
        result = socket_error("cannot connect to", &to);
    } else {
        struct hello hello = {.comm = k->comm->id,
                              .rank = k->comm->rank,
                              .purpose = HELLO_TCP,
                              .path = (uint16_t)path,
                              .stream = (uint16_t)stream};
        result = handshake_connect(fd, k->comm->secret, &hello, k->deadline_ns);
    }
    if (result) {
        close(fd);
        return error_prefix(result, "path %s, rank %d to rank %d", k->comm->paths[path].name, k->comm->rank, peer);
    }
    return adopt_tcp(k->comm, fd, peer, path);
}

/* -------------------------------------------------------------- accepting */

static polypath_result_t accepted(void *context, int fd, const struct hello *hello)
{
    struct connecting *k = context;
    struct polypath_comm *c = k->comm;
    if (hello->rank <= c->rank || hello->rank >= c->size) {
        close(fd);
        return error_set(POLYPATH_ERROR_INTERNAL, "rank %d connected to rank %d", hello->rank, c->rank);
    }
    k->arrived[hello->rank] = true;
    if (hello->purpose == HELLO_SHM && wants_segment(c, hello->rank) && c->control_fds[hello->rank] < 0)
        return introduce(k, fd, hello->rank);
    if (hello->purpose == HELLO_TCP && hello->path < c->npaths && wants_tcp(c, hello->path, hello->rank))
        return adopt_tcp(c, fd, hello->rank, hello->path);
    close(fd);
    return error_set(POLYPATH_ERROR_INTERNAL, "rank %d connected for something unknown", hello->rank);
}

static const char *waiting_for(void *context)
{
    struct connecting *k = context;
    size_t used = (size_t)snprintf(k->missing, sizeof k->missing, "connections of rank");
    for (int r = k->comm->rank + 1; r < k->comm->size && used < sizeof k->missing - 1; r++)
        if (!k->arrived[r])
            used += (size_t)snprintf(k->missing + used, sizeof k->missing - used, " %d", r);
    return k->missing;
}

static polypath_result_t make_links(struct connecting *k)
{
    struct polypath_comm *c = k->comm;
    polypath_result_t result = POLYPATH_SUCCESS;
    int expected = 0;
    for (int peer = 0; peer < c->size && !result; peer++) {
        const bool connects = peer < c->rank;
        if (peer == c->rank)
            continue;
        if (wants_segment(c, peer)) {
            expected += !connects;
            if (connects)
                result = connect_locally(k, peer);
        }
        for (int path = 0; path < c->npaths && !result; path++) {
            if (!wants_tcp(c, path, peer))
                continue;
            for (int s = 0; s < (int)c->settings.tcp_streams && !result; s++) {
                expected += !connects;
                if (connects)
                    result = connect_tcp(k, peer, path, s);
            }
        }
    }
    if (!result && expected)
        result = handshake_accept(k->listeners, k->nlisteners, c->secret, c->id, expected, accepted, k, waiting_for,
                                  k->deadline_ns);
    return result;
}

static polypath_result_t open_listeners(struct connecting *k)
{
    struct polypath_comm *c = k->comm;
    bool local = false, tcp[HOST_PATHS] = {false};
    polypath_result_t result = POLYPATH_SUCCESS;
    for (int peer = 0; peer < c->size; peer++) {
        if (peer == c->rank)
            continue;
        local |= wants_segment(c, peer);
        for (int p = 0; p < c->npaths; p++)
            tcp[p] |= wants_tcp(c, p, peer);
    }
    for (int p = 0; p < c->npaths && !result; p++)
        if (tcp[p])
            result = listen_on(k, p, &k->ports[c->rank * HOST_PATHS + p]);
    if (!result && local)
        result = listen_locally(k);
    return result;
}

static void map_queues(struct polypath_comm *c)
{
    for (int peer = 0; peer < c->size; peer++) {
        int queue_of_path[HOST_PATHS];
        const bool one = !c->one_host && is_local(c, peer) && c->settings.shm;
        for (int p = 0; p < c->npaths; p++)
            queue_of_path[p] = one ? 0 : p;
        host_map_paths(c->host, peer, queue_of_path);
    }
}

static polypath_result_t make_segment(struct polypath_comm *c, int locals)
{
    const int node = c->settings.numa == NUMA_OFF ? NUMA_UNBOUND : c->infos[c->rank].numa_node;
    /* a slot holds a whole row, so that reductions can read it in place */
    polypath_result_t result = segment_create(locals - 1, c->one_host ? 32768 : 131072,
                                              c->one_host ? c->settings.stage_bytes & ~(size_t)4095 : 0,
                                              c->settings.shm_bytes, node, &c->segment);
    if (!result && !c->segment->placed) {
        c->statistics.fallbacks++;
        log_line(LOG_LEVEL_INFO, "shared memory cannot be placed on NUMA node %d; it lies where this rank runs now",
                 node);
    }
    return result;
}

polypath_result_t connect_all(struct polypath_comm *c, const struct path_choice *choice, exchange_function *exchange,
                              void *context)
{
    struct connecting k = {.comm = c,
                           .choice = choice,
                           .infos = c->infos,
                           .probe = PROBE_VALUE,
                           .deadline_ns = clock_now_ns() + c->settings.timeout_ms * 1000000};
    const int locals = c->layout.local_size[c->layout.host_of[c->rank]];
    polypath_result_t result = POLYPATH_SUCCESS;
    k.ports = calloc((size_t)c->size * HOST_PATHS, sizeof *k.ports);
    k.arrived = calloc((size_t)c->size, sizeof *k.arrived);
    if (!k.ports || !k.arrived)
        result = error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    if (!result && locals > 1 && (c->settings.shm || c->settings.cma))
        result = make_segment(c, locals);
    if (!result) {
        struct host_config config = {.rank = c->rank,
                                     .size = c->size,
                                     .npaths = c->npaths,
                                     .spin = c->settings.spin,
                                     .oversubscribed = c->oversubscribed,
                                     .timeout_ms = c->settings.timeout_ms,
                                     .scratch_bytes = c->settings.scratch_bytes,
                                     .segment = c->segment};
        for (int p = 0; p < c->npaths; p++)
            config.path_names[p] = c->paths[p].name;
        result = host_create(&config, &c->host);
    }
    if (!result)
        result = open_listeners(&k);
    /* everyone takes part in the exchange, also a rank that has failed: it says so by port 0 of path 0 and its result
     */
    uint16_t mine[HOST_PATHS + 1] = {0};
    if (k.ports)
        memcpy(mine, k.ports + (size_t)c->rank * HOST_PATHS, HOST_PATHS * sizeof *mine);
    mine[HOST_PATHS] = (uint16_t)result;
    uint16_t *all = calloc((size_t)c->size, sizeof mine);
    if (!all && !result)
        result = error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    if (all) {
        char kept[ERROR_TEXT_BYTES];
        snprintf(kept, sizeof kept, "%s", error_text());
        polypath_result_t exchanged = exchange(context, mine, sizeof mine, all);
        if (!result)
            result = exchanged;
        else
            error_set(result, "%s", kept);
        for (int r = 0; r < c->size && !result && k.ports; r++) {
            if (all[r * (HOST_PATHS + 1) + HOST_PATHS])
                result = error_set(POLYPATH_ERROR_PEER_LOST, "rank %d could not open its side of the links (%s)", r,
                                   polypath_result_name((polypath_result_t)all[r * (HOST_PATHS + 1) + HOST_PATHS]));
            memcpy(k.ports + (size_t)r * HOST_PATHS, all + (size_t)r * (HOST_PATHS + 1), HOST_PATHS * sizeof *mine);
        }
    }
    if (!result) {
        map_queues(c);
        result = make_links(&k);
    }
    for (int i = 0; i < k.nlisteners; i++)
        close(k.listeners[i]);
    free(all);
    free(k.ports);
    free(k.arrived);
    return result;
}
