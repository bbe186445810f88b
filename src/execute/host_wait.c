/*
 * Waiting: spin a little, give the core away a few times, then sleep until a
 * peer rings the bell or a socket is ready. Every wait ends at a deadline, and
 * peers that have gone are noticed here.
 */
#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "execute/host_internal.h"

#define YIELDS 256 /* times the core is given away before sleeping */
#define NAP_MS 50  /* longest sleep: interrupts and lost peers are seen at least this often */
#define EVENTS 64

/* epoll data: a link's address, or a tagged number for other descriptors */
#define TAG_BELL 1u
#define TAG_CONTROL 3u

static polypath_result_t watch(struct host *h, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events | EPOLLET, .data.u64 = data};
    if (epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, fd, &event))
        return error_set(POLYPATH_ERROR_SYSTEM, "epoll_ctl: %s", strerror(errno));
    return POLYPATH_SUCCESS;
}

polypath_result_t host_wait_open(struct host *h)
{
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (h->epoll_fd < 0)
        return error_set(POLYPATH_ERROR_SYSTEM, "epoll_create1: %s%s", strerror(errno), error_advice(errno));
    if (h->config.segment)
        return watch(h, h->config.segment->event_fd, EPOLLIN, TAG_BELL);
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->wake_fd < 0)
        return error_set(POLYPATH_ERROR_SYSTEM, "eventfd: %s%s", strerror(errno), error_advice(errno));
    return watch(h, h->wake_fd, EPOLLIN, TAG_BELL);
}

polypath_result_t host_watch_link(struct host *h, struct link *link)
{
    h->ntcp++;
    return watch(h, link->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, (uint64_t)(uintptr_t)link);
}

polypath_result_t host_watch_control(struct host *h, int peer)
{
    return watch(h, h->peers[peer].control_fd, EPOLLIN | EPOLLRDHUP, (uint64_t)(uint32_t)peer << 2 | TAG_CONTROL);
}

/* What a peer says about its exports may wait unread before the end of its connection, hence both questions. */
static void check_control(struct host *h, int peer, uint32_t events)
{
    char byte;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        h->peers[peer].lost = true;
    ssize_t n = recv(h->peers[peer].control_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        h->peers[peer].lost = true;
}

void host_poll_events(struct host *h, int timeout_ms)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(h->epoll_fd, events, EVENTS, timeout_ms);
    for (int i = 0; i < n; i++) {
        uint64_t data = events[i].data.u64;
        if ((data & 3) == TAG_CONTROL) {
            check_control(h, (int)(data >> 2), events[i].events);
        } else if (data != TAG_BELL) {
            struct link *link = (struct link *)(uintptr_t)data;
            if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
                link->readable = true;
            if (events[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
                link->writable = true;
        }
    }
}

/* Every way to the peer is closed: what it has sent has been delivered, so what is missing will not come. */
static bool all_links_lost(const struct host_peer *peer)
{
    for (int i = 0; i < peer->nlinks; i++)
        if (!peer->links[i]->lost && peer->links[i]->fd >= 0)
            return false;
    for (int i = 0; i < peer->nlinks; i++)
        if (peer->links[i]->fd < 0 && !peer->links[i]->lost)
            return peer->lost;
    return true;
}

static const char *path_name(const struct host *h, const struct link *link)
{
    return link->path >= 0 && h->config.path_names[link->path] ? h->config.path_names[link->path] : link->class->name;
}

static polypath_result_t lost_peer(const struct host *h, int p, const struct link *link)
{
    const struct host_peer *peer = &h->peers[p];
    char what[200];
    host_describe(h, what, sizeof what);
    return error_set(POLYPATH_ERROR_PEER_LOST,
                     "%s: rank %d lost rank %d over path %s (%s); %" PRIu64 " of %" PRIu64
                     " messages received, %" PRIu64 " of %" PRIu64 " sent",
                     what, h->config.rank, p, path_name(h, link),
                     link->lost ? link->lost_reason : "its process has ended", peer->recvs_all - peer->recvs_left,
                     peer->recvs_all, peer->sends_all - peer->sends_left, peer->sends_all);
}

/* The link over which a needed peer has been lost, or NULL. */
static const struct link *lost_link(struct host_peer *peer)
{
    for (int i = 0; i < peer->nlinks; i++)
        if (peer->links[i]->broken)
            return peer->links[i];
    if (!all_links_lost(peer))
        return NULL;
    /* what it left behind may still have to be taken: an error only when next found idle */
    if (!peer->gone) {
        peer->gone = true;
        return NULL;
    }
    return peer->links[0];
}

/* The ranks that a call waits for other than `except`, as an end of a message: the cause may lie beyond the one that
 * failed first. */
static void add_awaited(const struct host *h, int except, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int p = 0; p < h->config.size && h->active && used < bytes; p++)
        if (p != except && (h->peers[p].recvs_left || h->peers[p].sends_left))
            used += used ? (size_t)snprintf(text + used, bytes - used, ", %d", p)
                         : (size_t)snprintf(text, bytes, " (rank %d waits for rank %d", h->config.rank, p);
    if (used && used + 2 < bytes)
        snprintf(text + used, bytes - used, ")");
}

polypath_result_t host_peer_failed(struct host *h, int peer, const char *why)
{
    char awaited[120];
    add_awaited(h, peer, awaited, sizeof awaited);
    return error_set(POLYPATH_ERROR_ABORTED, "rank %d failed: %.900s%s", peer, why, awaited);
}

polypath_result_t host_check_peers(struct host *h)
{
    for (int p = 0; p < h->config.size; p++) {
        struct host_peer *peer = &h->peers[p];
        if (peer->segment) {
            const struct abort_note *note = segment_abort_note(peer->segment);
            if (atomic_load_explicit(&note->set, memory_order_acquire))
                return host_peer_failed(h, p, note->text);
        }
        if (peer->nlinks == 0 || (!peer->sends_left && !peer->recvs_left))
            continue;
        const struct link *link = lost_link(peer);
        if (link)
            return lost_peer(h, p, link);
    }
    return POLYPATH_SUCCESS;
}

/* The paths whose links to this peer are in the middle of something. */
static void stuck_paths(const struct host *h, const struct host_peer *peer, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < peer->nlinks && used < bytes; i++)
        if (!link_ready(peer->links[i]) && !peer->links[i]->lost)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "; stuck on path ",
                                     path_name(h, peer->links[i]));
}

polypath_result_t host_timeout(struct host *h)
{
    char text[700] = "", what[200];
    size_t used = 0;
    int named = 0;
    host_describe(h, what, sizeof what);
    for (int p = 0; p < h->config.size && used < sizeof text - 1; p++) {
        const struct host_peer *peer = &h->peers[p];
        if (!peer->sends_left && !peer->recvs_left)
            continue;
        if (named++ == 4) {
            snprintf(text + used, sizeof text - used, "; and others");
            break;
        }
        char other[200] = "", stuck[80];
        stuck_paths(h, peer, stuck, sizeof stuck);
        if (peer->early)
            host_describe_frame(&peer->early_frame, other, sizeof other);
        used += (size_t)snprintf(
            text + used, sizeof text - used,
            "%srank %d (%" PRIu64 " of %" PRIu64 " messages received, %" PRIu64 " of %" PRIu64 " sent%s%s%s)",
            named > 1 ? "; " : "", p, peer->recvs_all - peer->recvs_left, peer->recvs_all,
            peer->sends_all - peer->sends_left, peer->sends_all, stuck, *other ? "; it is in " : "", other);
    }
    return error_set(POLYPATH_ERROR_TIMEOUT, "%s: rank %d saw nothing move for %" PRIu64 " ms; it waits for %s", what,
                     h->config.rank, h->config.timeout_ms, text);
}

/* Sleeps until woken, at most NAP_MS. The bell's flag is raised first and work looked for once more (segment.h). */
static polypath_result_t nap(struct host *h)
{
    struct bell *bell = h->config.segment ? segment_bell(h->config.segment) : NULL;
    unsigned word = 0;
    if (bell) {
        word = atomic_load_explicit(&bell->word, memory_order_acquire);
        atomic_store_explicit(&bell->sleeping, h->ntcp ? BELL_EVENTFD : BELL_FUTEX, memory_order_relaxed);
        bell_fence_sleeper(bell);
        uint64_t moved = 0;
        polypath_result_t result = POLYPATH_SUCCESS;
        for (int i = 0; i < h->nlinks && !result; i++)
            if (h->links[i]->fd < 0)
                result = link_progress(h->links[i], &h->sink, &moved);
        if (h->failure)
            result = h->failure;
        if (!moved && !result && h->peek && h->peek(h->peek_context))
            moved = 1;
        if (moved || result) {
            atomic_store_explicit(&bell->sleeping, BELL_AWAKE, memory_order_relaxed);
            h->idle = 0;
            return result;
        }
    }
    if (h->ntcp || !bell) {
        host_poll_events(h, NAP_MS);
    } else {
        struct timespec limit = {0, NAP_MS * 1000000L};
        syscall(SYS_futex, &bell->word, FUTEX_WAIT, word, &limit, NULL, 0);
    }
    if (bell)
        atomic_store_explicit(&bell->sleeping, BELL_AWAKE, memory_order_relaxed);
    return POLYPATH_SUCCESS;
}

static uint64_t yields(const struct host *h)
{
    return h->ntcp ? 2 : YIELDS;
}

void host_set_peek(struct host *h, bool (*peek)(void *context), void *context)
{
    h->peek = peek;
    h->peek_context = context;
}

void host_rest(struct host *h)
{
    h->idle = h->config.oversubscribed ? 0 : h->config.spin;
}

void host_stirred(struct host *h)
{
    h->idle = 0;
}

bool host_patient(const struct host *h)
{
    return h->idle > (h->config.oversubscribed ? 0 : h->config.spin) + yields(h);
}

bool host_early_frame(const struct host *h, int peer, struct frame *frame)
{
    *frame = h->peers[peer].early_frame;
    return h->peers[peer].early;
}

bool host_peer_gone(const struct host *h, int peer)
{
    return h->peers[peer].lost;
}

polypath_result_t host_idle(struct host *h)
{
    const uint64_t spin = h->config.oversubscribed ? 0 : h->config.spin;
    const uint64_t idle = h->idle++;
    if (idle < spin) {
        if (h->ntcp && idle % 8 == 7)
            host_poll_events(h, 0);
        else
            host_relax();
        return POLYPATH_SUCCESS;
    }
    if (idle < spin + yields(h)) {
        sched_yield();
        if (h->ntcp)
            host_poll_events(h, 0);
        return POLYPATH_SUCCESS;
    }
    if (host_interrupted(h))
        return POLYPATH_SUCCESS; /* the driver looks */
    host_take_back(h);
    polypath_result_t result = nap(h);
    if (!h->ntcp)
        host_poll_events(h, 0); /* the control sockets */
    return result;
}

void host_wake(struct host *h)
{
    if (h->config.segment) {
        segment_ring(h->config.segment);
        return;
    }
    uint64_t one = 1;
    if (write(h->wake_fd, &one, sizeof one) < 0)
        return; /* EAGAIN: it is awake already */
}

void host_interrupt(struct host *h)
{
    atomic_store_explicit(&h->interrupted, true, memory_order_relaxed);
    host_wake(h);
}

bool host_interrupted(const struct host *h)
{
    return atomic_load_explicit(&h->interrupted, memory_order_relaxed);
}

void host_poll_now(struct host *h)
{
    host_poll_events(h, 0);
}

polypath_result_t host_check(struct host *h, bool late)
{
    polypath_result_t result = host_check_peers(h);
    return result || !late ? result : host_timeout(h);
}

void host_fail(struct host *h, const char *why)
{
    h->active = false;
    if (h->config.segment) {
        struct abort_note *note = segment_abort_note(h->config.segment);
        if (!atomic_load_explicit(&note->set, memory_order_relaxed)) {
            snprintf(note->text, sizeof note->text, "%s", why);
            atomic_store_explicit(&note->set, 1, memory_order_release);
        }
    }
    for (int p = 0; p < h->config.size; p++)
        if (h->peers[p].segment)
            segment_ring(h->peers[p].segment);
    char text[900]; /* shorter than what a peer has room for: it adds a prefix before telling others */
    snprintf(text, sizeof text, "%s", why);
    struct frame frame = {.magic = FRAME_MAGIC, .kind = FRAME_ABORT, .bytes = (uint32_t)strlen(text) + 1};
    for (int i = 0; i < h->nlinks; i++) {
        struct link *link = h->links[i];
        if (link->fd < 0)
            continue;
        /* a link in the middle of a frame cannot say it; its peer sees the connection end there */
        if (link_ready(link))
            link_send(link, &frame, text, UINT64_MAX, &h->sink);
        shutdown(link->fd, SHUT_WR);
    }
}
