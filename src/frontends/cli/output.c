/*
 * Lines of many ranks into two streams. See output.h. Knows descriptors and
 * bytes; nothing of processes.
 */
#include "frontends/cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_MAX_BYTES (1u << 20) /* a longer line is cut here */
#define SINK_FULL (4u << 20)      /* unwritten bytes at which the ranks are not read any more */
#define WRITE_BYTES 4096u         /* PIPE_BUF: a pipe that poll calls writable takes that much without blocking */

/* Bytes that grow at the end and leave at the front. */
struct buffer {
    char *bytes;
    size_t start, end, room;
};

struct sink {
    int fd;
    struct buffer pending;
    bool watched; /* in epoll: waits to become writable */
    bool closed;  /* nobody reads it any more */
};

struct stream {
    int fd; /* -1: closed */
    int rank;
    struct sink *sink;
    struct buffer line;
    bool paused;
};

struct output {
    int epoll, size;
    uint64_t tag;
    struct sink sinks[2];
    struct stream *streams; /* 2 * rank + which - 1; epoll index + 2, as 0 and 1 are the sinks */
    bool paused;
};

static bool buffer_add(struct buffer *buffer, const char *bytes, size_t count)
{
    if (buffer->room - buffer->end < count && buffer->start) {
        memmove(buffer->bytes, buffer->bytes + buffer->start, buffer->end - buffer->start);
        buffer->end -= buffer->start;
        buffer->start = 0;
    }
    if (buffer->room - buffer->end < count) {
        size_t room = 2 * buffer->room > buffer->end + count ? 2 * buffer->room : buffer->end + count;
        char *grown = realloc(buffer->bytes, room);
        if (!grown)
            return false;
        buffer->bytes = grown;
        buffer->room = room;
    }
    memcpy(buffer->bytes + buffer->end, bytes, count);
    buffer->end += count;
    return true;
}

static size_t buffer_used(const struct buffer *buffer)
{
    return buffer->end - buffer->start;
}

static void buffer_take(struct buffer *buffer, size_t count)
{
    buffer->start += count;
    if (buffer->start == buffer->end)
        buffer->start = buffer->end = 0;
}

static bool same_file(int a, int b)
{
    struct stat sa, sb;
    return !fstat(a, &sa) && !fstat(b, &sb) && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

struct output *output_open(int size, int epoll, uint64_t tag)
{
    struct output *output = calloc(1, sizeof *output);
    if (!output)
        return NULL;
    output->streams = calloc(2 * (size_t)size, sizeof *output->streams);
    if (!output->streams) {
        free(output);
        return NULL;
    }
    output->epoll = epoll;
    output->size = size;
    output->tag = tag;
    /* `2>&1`: one queue, so that lines of the two streams do not tear each other. */
    bool same = same_file(1, 2);
    for (int i = 0; i < 2; i++)
        output->sinks[i].fd = i + 1;
    for (int i = 0; i < 2 * size; i++) {
        struct stream *stream = &output->streams[i];
        stream->fd = -1;
        stream->rank = i / 2;
        stream->sink = &output->sinks[same ? 0 : i % 2];
    }
    return output;
}

static void stream_watch(struct output *output, struct stream *stream, bool on)
{
    uint64_t index = (uint64_t)(stream - output->streams) + 2;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = output->tag | index};
    epoll_ctl(output->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, stream->fd, &event);
    stream->paused = !on;
}

bool output_add(struct output *output, int rank, int which, int fd)
{
    struct stream *stream = &output->streams[2 * rank + which - 1];
    stream->fd = fd;
    if (fcntl(fd, F_SETFL, O_NONBLOCK))
        return false;
    stream_watch(output, stream, true);
    return true;
}

static void stream_close(struct output *output, struct stream *stream)
{
    if (stream->fd < 0)
        return;
    if (!stream->paused)
        stream_watch(output, stream, false);
    close(stream->fd);
    stream->fd = -1;
}

static void pause_streams(struct output *output, bool pause)
{
    output->paused = pause;
    for (int i = 0; i < 2 * output->size; i++) {
        struct stream *stream = &output->streams[i];
        if (stream->fd >= 0 && stream->paused != pause)
            stream_watch(output, stream, !pause);
    }
}

/* The reader of our output has gone. As in a shell's pipeline the ranks are to learn it by SIGPIPE. */
static void sink_lost(struct output *output, struct sink *sink)
{
    sink->closed = true;
    if (sink->watched)
        epoll_ctl(output->epoll, EPOLL_CTL_DEL, sink->fd, NULL);
    sink->watched = false;
    buffer_take(&sink->pending, buffer_used(&sink->pending));
    for (int i = 0; i < 2 * output->size; i++)
        if (output->streams[i].sink == sink)
            stream_close(output, &output->streams[i]);
}

static bool writable(int fd, int timeout_ms)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
    return poll(&poll_fd, 1, timeout_ms) > 0;
}

/* Writes as much as goes without blocking, and has epoll tell when more does. */
static void sink_flush(struct output *output, struct sink *sink)
{
    while (buffer_used(&sink->pending) && writable(sink->fd, 0)) {
        size_t count = buffer_used(&sink->pending);
        ssize_t wrote =
            write(sink->fd, sink->pending.bytes + sink->pending.start, count < WRITE_BYTES ? count : WRITE_BYTES);
        if (wrote > 0)
            buffer_take(&sink->pending, (size_t)wrote);
        else if (errno == EAGAIN) /* somebody else made it non-blocking */
            break;
        else if (errno != EINTR) {
            sink_lost(output, sink);
            return;
        }
    }
    bool waiting = buffer_used(&sink->pending) > 0;
    if (waiting != sink->watched) {
        struct epoll_event event = {.events = EPOLLOUT, .data.u64 = output->tag | (uint64_t)(sink - output->sinks)};
        /* EPERM: a regular file, which is always writable and never gets here with something left */
        if (!epoll_ctl(output->epoll, waiting ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, sink->fd, &event))
            sink->watched = waiting;
    }
    bool full =
        buffer_used(&output->sinks[0].pending) > SINK_FULL || buffer_used(&output->sinks[1].pending) > SINK_FULL;
    if (full != output->paused)
        pause_streams(output, full);
}

/* Puts one line, without its line break, behind the others. */
static void emit(struct stream *stream, const char *line, size_t bytes)
{
    char prefix[24];
    int width = snprintf(prefix, sizeof prefix, "[%d] ", stream->rank);
    if (stream->sink->closed)
        return;
    if (!buffer_add(&stream->sink->pending, prefix, (size_t)width) ||
        !buffer_add(&stream->sink->pending, line, bytes) || !buffer_add(&stream->sink->pending, "\n", 1))
        fprintf(stderr, "polypath: out of memory for the output of rank %d\n", stream->rank);
}

/* Moves complete lines on; with `all` an unfinished one too. */
static void emit_lines(struct stream *stream, bool all)
{
    struct buffer *line = &stream->line;
    while (buffer_used(line)) {
        const char *start = line->bytes + line->start;
        const char *end = memchr(start, '\n', buffer_used(line));
        if (!end && !all && buffer_used(line) < LINE_MAX_BYTES)
            return;
        size_t bytes = end ? (size_t)(end - start) : buffer_used(line);
        emit(stream, start, bytes);
        buffer_take(line, bytes + (end != NULL));
    }
}

/* Reads once. False at the end of the stream, or when nothing is there. */
static bool stream_read(struct output *output, struct stream *stream)
{
    char chunk[65536];
    ssize_t got = read(stream->fd, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR)
        return true;
    if (got < 0 && errno == EAGAIN)
        return false;
    if (got <= 0) {
        emit_lines(stream, true);
        stream_close(output, stream);
        return false;
    }
    if (!buffer_add(&stream->line, chunk, (size_t)got))
        fprintf(stderr, "polypath: out of memory for the output of rank %d\n", stream->rank);
    emit_lines(stream, false);
    return true;
}

void output_event(struct output *output, uint64_t index)
{
    if (index < 2) {
        sink_flush(output, &output->sinks[index]);
        return;
    }
    struct stream *stream = &output->streams[index - 2];
    if (stream->fd < 0) /* closed by an earlier event of the same batch */
        return;
    struct sink *sink = stream->sink;
    stream_read(output, stream);
    sink_flush(output, sink);
}

bool output_done(const struct output *output)
{
    for (int i = 0; i < 2 * output->size; i++)
        if (output->streams[i].fd >= 0)
            return false;
    return !buffer_used(&output->sinks[0].pending) && !buffer_used(&output->sinks[1].pending);
}

void output_finish(struct output *output)
{
    for (int i = 0; i < 2 * output->size; i++) {
        struct stream *stream = &output->streams[i];
        /* Bounded: something that got away and still writes must not keep us here. */
        for (int reads = 0; stream->fd >= 0 && reads < 1024 && stream_read(output, stream); reads++)
            ;
        emit_lines(stream, true);
        stream_close(output, stream);
    }
    for (int i = 0; i < 2; i++)
        sink_flush(output, &output->sinks[i]);
}

void output_close(struct output *output)
{
    if (!output)
        return;
    for (int i = 0; i < 2 * output->size; i++) {
        stream_close(output, &output->streams[i]);
        free(output->streams[i].line.bytes);
    }
    for (int i = 0; i < 2; i++)
        free(output->sinks[i].pending.bytes);
    free(output->streams);
    free(output);
}
