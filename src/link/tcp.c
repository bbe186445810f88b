/*
 * tcp: frames over one connected stream socket, non-blocking. Sending is one
 * vectored write of frame and payload, straight from the caller's buffer;
 * receiving reads the payload straight into its destination together with the
 * start of what follows it. A small unsent limit in the kernel
 * (TCP_NOTSENT_LOWAT) keeps what is queued on a slow connection small, so that
 * its remaining frames can still be handed over to a faster one.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "link/link.h"
#include "system/error.h"

#define STAGE_BYTES 4096 /* frames, and payloads so small that a direct read does not pay */

/* How much one call of progress reads, so that sending gets its turn. */
#define READ_BUDGET (1u << 20)

struct tcp_link {
    struct link link;
    /* sending: what is left of the current frame */
    bool sending;
    bool unsendable; /* the other end takes no more */
    struct frame frame;
    const char *payload;
    uint32_t sent; /* of frame and payload together */
    uint64_t cookie;
    /* receiving */
    bool receiving; /* `in` has been accepted; its payload is being read */
    struct frame in;
    char *destination;
    uint32_t received;   /* bytes of the payload at the destination */
    uint32_t begin, end; /* unread part of `stage` */
    char stage[STAGE_BYTES];
};

static bool tcp_ready(struct link *link)
{
    struct tcp_link *l = (struct tcp_link *)link;
    return !l->sending && link->writable && !l->unsendable && !link->lost;
}

static void lose(struct tcp_link *l, const char *what, int error)
{
    l->link.lost = true;
    l->link.broken = error != 0 || l->receiving || l->unsendable;
    l->sending = false;
    snprintf(l->link.lost_reason, sizeof l->link.lost_reason, "%s%s%s", what, error ? ": " : "",
             error ? strerror(error) : "");
}

static void push(struct tcp_link *l, struct link_sink *sink, uint64_t *moved)
{
    const uint32_t total = (uint32_t)sizeof l->frame + l->frame.bytes;
    while (l->sending && l->link.writable && !l->unsendable) {
        struct iovec parts[2];
        int n = 0;
        if (l->sent < sizeof l->frame)
            parts[n++] = (struct iovec){(char *)&l->frame + l->sent, sizeof l->frame - l->sent};
        uint32_t of_payload = l->sent < sizeof l->frame ? 0 : l->sent - (uint32_t)sizeof l->frame;
        if (l->frame.bytes > of_payload)
            parts[n++] = (struct iovec){(char *)(uintptr_t)l->payload + of_payload, l->frame.bytes - of_payload};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)n};
        ssize_t written = sendmsg(l->link.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (written < 0) {
            if (errno == EINTR)
                continue;
            l->link.writable = false;
            /* it may have said why before it closed: reading finds the end of the connection */
            if (errno != EAGAIN)
                l->unsendable = l->link.readable = true;
            return;
        }
        l->sent += (uint32_t)written;
        *moved += (uint64_t)written;
        if (l->sent == total) {
            l->sending = false;
            sink->sent(sink, &l->link, l->cookie, l->frame.bytes);
        }
    }
}

static polypath_result_t tcp_send(struct link *link, const struct frame *frame, const void *payload, uint64_t cookie,
                                  struct link_sink *sink)
{
    struct tcp_link *l = (struct tcp_link *)link;
    l->frame = *frame;
    l->payload = payload;
    l->cookie = cookie;
    l->sent = 0;
    l->sending = true;
    uint64_t moved = 0;
    push(l, sink, &moved);
    return POLYPATH_SUCCESS;
}

/* Moves staged bytes of the current payload to where they belong. */
static void drain_stage(struct tcp_link *l)
{
    uint32_t want = l->in.bytes - l->received, have = l->end - l->begin;
    uint32_t n = want < have ? want : have;
    if (n)
        memcpy(l->destination + l->received, l->stage + l->begin, n);
    l->received += n;
    l->begin += n;
}

/* Delivers every frame that is complete. Sets *wait if the sink does not take the next one yet. */
static polypath_result_t deliver(struct tcp_link *l, struct link_sink *sink, bool *wait)
{
    *wait = false;
    for (;;) {
        if (!l->receiving) {
            if (l->end - l->begin < sizeof l->in)
                return POLYPATH_SUCCESS;
            memcpy(&l->in, l->stage + l->begin, sizeof l->in);
            if (l->in.magic != FRAME_MAGIC)
                return error_set(POLYPATH_ERROR_INTERNAL, "rank %d sent something that is not a frame", l->link.peer);
            void *destination = NULL;
            bool borrow = false;
            switch (sink->begin(sink, &l->link, &l->in, &destination, &borrow)) {
            case SINK_LATER: *wait = true; return POLYPATH_SUCCESS;
            case SINK_FAIL: return POLYPATH_ERROR_INTERNAL;
            case SINK_TAKE: break;
            }
            l->begin += (uint32_t)sizeof l->in;
            l->destination = destination;
            l->received = 0;
            l->receiving = true;
        }
        drain_stage(l);
        if (l->received < l->in.bytes)
            return POLYPATH_SUCCESS;
        l->receiving = false;
        sink->end(sink, &l->link, &l->in, NULL, 0);
    }
}

/* One read: the rest of the payload, then the stage. Returns bytes read, 0 if none came. */
static uint32_t read_some(struct tcp_link *l)
{
    if (l->begin) {
        memmove(l->stage, l->stage + l->begin, l->end - l->begin);
        l->end -= l->begin;
        l->begin = 0;
    }
    struct iovec parts[2];
    int n = 0;
    uint32_t direct = 0;
    if (l->receiving) {
        direct = l->in.bytes - l->received;
        parts[n++] = (struct iovec){l->destination + l->received, direct};
    }
    if (l->end < STAGE_BYTES)
        parts[n++] = (struct iovec){l->stage + l->end, STAGE_BYTES - l->end};
    ssize_t got;
    do {
        got = readv(l->link.fd, parts, n);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) {
        if (got == 0)
            lose(l, "it closed the connection", 0);
        else if (errno != EAGAIN)
            lose(l, "receiving", errno);
        l->link.readable = false;
        return 0;
    }
    uint32_t of_payload = (uint32_t)got < direct ? (uint32_t)got : direct;
    l->received += of_payload;
    l->end += (uint32_t)got - of_payload;
    return (uint32_t)got;
}

static polypath_result_t tcp_progress(struct link *link, struct link_sink *sink, uint64_t *moved)
{
    struct tcp_link *l = (struct tcp_link *)link;
    uint32_t budget = READ_BUDGET;
    for (;;) {
        bool wait;
        polypath_result_t result = deliver(l, sink, &wait);
        if (result)
            return result;
        if (wait || !link->readable || link->lost)
            break;
        uint32_t got = read_some(l);
        *moved += got;
        if (!got && !link->readable)
            break;
        budget -= got < budget ? got : budget;
        if (!budget)
            break;
    }
    if (l->sending)
        push(l, sink, moved);
    return POLYPATH_SUCCESS;
}

static uint64_t tcp_under_way(struct link *link)
{
    int bytes = 0;
    return ioctl(link->fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? (uint64_t)bytes : 0;
}

static void tcp_close(struct link *link)
{
    shutdown(link->fd, SHUT_WR);
    close(link->fd);
    free(link);
}

static const struct link_class tcp_class = {
    .name = "tcp",
    .ready = tcp_ready,
    .send = tcp_send,
    .progress = tcp_progress,
    .under_way = tcp_under_way,
    .close = tcp_close,
};

polypath_result_t tcp_link_create(int fd, uint64_t notsent_bytes, struct link **link)
{
    int one = 1, lowat = (int)notsent_bytes;
    struct tcp_link *l = calloc(1, sizeof *l);
    if (!l) {
        close(fd);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    }
    /* neither is needed for being right */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (lowat)
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof lowat);
    l->link = (struct link){.class = &tcp_class, .fd = fd, .readable = true, .writable = true};
    *link = &l->link;
    return POLYPATH_SUCCESS;
}
