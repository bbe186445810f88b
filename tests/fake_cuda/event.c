/*
 * The fake's events. Recording one gives it a new mark; who waits for it waits
 * for the mark that it has at that moment. An event for other processes counts
 * in shared memory instead.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_cuda/internal.h"

struct CUevent_st {
    struct CUevent_st *next;
    struct CUctx_st *context;
    unsigned flags;
    struct mark *mark;
    uint64_t capture; /* id of the capture that it was last recorded in; 0: none */
    struct CUgraphNode_st *dependencies[DEPENDENCIES_MAX];
    unsigned dependency_count;
    struct shared_event *shared;
    int fd;
};

static struct CUevent_st *events;

struct mark *fake_mark_new(void)
{
    struct mark *mark = calloc(1, sizeof *mark);
    if (mark)
        mark->references = 1;
    return mark;
}

void fake_mark_drop(struct mark *mark)
{
    if (mark && --mark->references == 0)
        free(mark);
}

size_t fake_event_count(void)
{
    size_t count = 0;
    for (const struct CUevent_st *e = events; e; e = e->next)
        count++;
    return count;
}

static cuda_result_t enter_event(const char *entry, CUevent handle, struct CUevent_st **event)
{
    cuda_result_t result = fake_enter(entry, NEEDS_CONTEXT);
    if (result)
        return result;
    for (*event = events; *event; *event = (*event)->next)
        if (*event == handle)
            return CUDA_IS_OK;
    return fake_leave(CUDA_IS_INVALID_HANDLE);
}

/* ------------------------------------------------------------- between processes */

struct event_handle {
    char magic[8];
    int pid, fd;
    uint64_t inode;
};

static bool share(struct CUevent_st *event, int fd)
{
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *event->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return false;
    event->shared = page;
    event->fd = fd;
    return true;
}

static cuda_result_t add_event(unsigned flags, int fd, CUevent *event)
{
    struct CUevent_st *e = calloc(1, sizeof *e);
    if (!e || ((flags & CUDA_EVENT_INTERPROCESS) && !share(e, fd))) {
        free(e);
        if (fd >= 0)
            close(fd);
        return CUDA_IS_OUT_OF_MEMORY;
    }
    e->context = fake_context();
    e->flags = flags;
    e->next = events;
    events = e;
    *event = e;
    return CUDA_IS_OK;
}

EXPORT cuda_result_t cuEventCreate(CUevent *event, unsigned flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    const bool shared = flags & CUDA_EVENT_INTERPROCESS;
    if (!event || flags > 7 || (shared && !(flags & CUDA_EVENT_DISABLE_TIMING)))
        return fake_leave(CUDA_IS_INVALID_VALUE);
    int fd = -1;
    if (shared) {
        fd = memfd_create("fake-cuda-event", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, sizeof(struct shared_event))) {
            if (fd >= 0)
                close(fd);
            return fake_leave(CUDA_IS_OUT_OF_MEMORY);
        }
    }
    return fake_leave(add_event(flags, fd, event));
}

EXPORT cuda_result_t cuIpcGetEventHandle(struct cuda_ipc_handle *handle, CUevent event)
{
    struct CUevent_st *e;
    struct stat status;
    cuda_result_t result = enter_event(__func__, event, &e);
    if (result)
        return result;
    if (!e->shared || fstat(e->fd, &status))
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    const struct event_handle inside = {"fakeevt", getpid(), e->fd, status.st_ino};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &inside, sizeof inside);
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuIpcOpenEventHandle(CUevent *event, struct cuda_ipc_handle handle)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    struct event_handle inside;
    memcpy(&inside, &handle, sizeof inside);
    if (memcmp(inside.magic, "fakeevt", 8))
        return fake_leave(CUDA_IS_INVALID_VALUE);
    if (inside.pid == getpid())
        return fake_leave(CUDA_IS_INVALID_CONTEXT);
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", inside.pid, inside.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) || status.st_ino != inside.inode) {
        if (fd >= 0)
            close(fd);
        return fake_leave(CUDA_IS_INVALID_VALUE);
    }
    return fake_leave(add_event(CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING, fd, event));
}

/* ----------------------------------------------------------------------- calls */

/* The page of a shared event stays mapped: work that was given before may still count in it. */
static void event_free(struct CUevent_st *event)
{
    struct CUevent_st **p = &events;
    while (*p != event)
        p = &(*p)->next;
    *p = event->next;
    fake_mark_drop(event->mark);
    if (event->shared)
        close(event->fd);
    free(event);
}

void fake_events_of_context_free(struct CUctx_st *context)
{
    for (struct CUevent_st *e = events, *next; e; e = next) {
        next = e->next;
        if (e->context == context)
            event_free(e);
    }
}

EXPORT cuda_result_t cuEventDestroy_v2(CUevent event)
{
    struct CUevent_st *e;
    cuda_result_t result = enter_event(__func__, event, &e);
    if (result)
        return result;
    event_free(e);
    return fake_leave(CUDA_IS_OK);
}

static cuda_result_t record(struct CUevent_st *e, struct CUstream_st *s)
{
    if (s->capture) {
        if (s->capture->invalid)
            return CUDA_IS_STREAM_CAPTURE_INVALIDATED;
        if (e->shared) {
            s->capture->invalid = true;
            return CUDA_IS_STREAM_CAPTURE_UNSUPPORTED;
        }
        e->capture = s->capture->id;
        e->dependency_count = s->dependency_count;
        memcpy(e->dependencies, s->dependencies, sizeof e->dependencies);
        return CUDA_IS_OK;
    }
    struct op *op = calloc(1, sizeof *op);
    struct mark *mark = fake_mark_new();
    if (!op || !mark) {
        free(op);
        free(mark);
        return CUDA_IS_OUT_OF_MEMORY;
    }
    e->capture = 0;
    op->kind = e->shared ? OP_SHARE : OP_MARK;
    op->shared = e->shared;
    /* Release: whoever sees the count finds the work of before already given. */
    op->sequence = e->shared ? atomic_fetch_add_explicit(&e->shared->recorded, 1, memory_order_acq_rel) + 1 : 0;
    fake_mark_drop(e->mark);
    e->mark = e->shared ? NULL : mark;
    op->mark = mark;
    if (!e->shared)
        mark->references++;
    return fake_submit(s, op);
}

EXPORT cuda_result_t cuEventRecord(CUevent event, CUstream stream)
{
    struct CUevent_st *e;
    cuda_result_t result = enter_event(__func__, event, &e);
    if (result)
        return result;
    struct CUstream_st *s = fake_stream(stream);
    if (!s || s->context != e->context)
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    return fake_leave(record(e, s));
}

static cuda_result_t wait_for(struct CUstream_st *s, struct CUevent_st *e)
{
    if (e->capture) {
        struct capture *capture = fake_capture_find(e->capture);
        return capture ? fake_capture_join(s, capture, e->dependencies, e->dependency_count) : CUDA_IS_INVALID_VALUE;
    }
    if (s->capture && (e->mark || e->shared)) {
        s->capture->invalid = true;
        return CUDA_IS_STREAM_CAPTURE_ISOLATION;
    }
    if (!e->shared && (!e->mark || e->mark->done))
        return CUDA_IS_OK;
    struct op *op = calloc(1, sizeof *op);
    if (!op)
        return CUDA_IS_OUT_OF_MEMORY;
    op->kind = e->shared ? OP_AWAIT_SHARED : OP_AWAIT;
    op->shared = e->shared;
    if (e->shared) {
        op->sequence = atomic_load_explicit(&e->shared->recorded, memory_order_acquire);
    } else {
        op->mark = e->mark;
        op->mark->references++;
    }
    return fake_submit(s, op);
}

EXPORT cuda_result_t cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    struct CUevent_st *e;
    cuda_result_t result = enter_event(__func__, event, &e);
    if (result)
        return result;
    struct CUstream_st *s = fake_stream(stream);
    if (!s)
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    return fake_leave(flags ? CUDA_IS_INVALID_VALUE : wait_for(s, e));
}

static bool is_done(const struct CUevent_st *e)
{
    if (e->shared) /* acquire: pairs with the release of the stream that finished */
        return atomic_load_explicit(&e->shared->finished, memory_order_acquire) >=
               atomic_load_explicit(&e->shared->recorded, memory_order_acquire);
    return !e->mark || e->mark->done;
}

static cuda_result_t refuse_captured(const struct CUevent_st *e)
{
    struct capture *capture = e->capture ? fake_capture_find(e->capture) : NULL;
    if (capture)
        capture->invalid = true;
    return e->capture ? CUDA_IS_CAPTURED_EVENT : CUDA_IS_OK;
}

EXPORT cuda_result_t cuEventQuery(CUevent event)
{
    struct CUevent_st *e;
    cuda_result_t result = enter_event(__func__, event, &e);
    if (result)
        return result;
    result = refuse_captured(e);
    if (!result && fake_capture_forbids())
        result = CUDA_IS_STREAM_CAPTURE_UNSUPPORTED;
    if (!result)
        result = is_done(e) ? CUDA_IS_OK : CUDA_IS_NOT_READY;
    return fake_leave(result);
}

EXPORT cuda_result_t cuEventSynchronize(CUevent event)
{
    struct CUevent_st *e;
    cuda_result_t result = enter_event(__func__, event, &e);
    if (result)
        return result;
    result = refuse_captured(e);
    if (!result && fake_capture_forbids())
        result = CUDA_IS_STREAM_CAPTURE_UNSUPPORTED;
    if (result)
        return fake_leave(result);
    while (e->shared && !is_done(e) && !atomic_load(&e->context->broken)) {
        pthread_mutex_unlock(&fake_lock); /* another process does not signal us */
        fake_sleep_ns(50000);
        pthread_mutex_lock(&fake_lock);
    }
    struct mark *mark = e->mark;
    if (mark)
        mark->references++;
    while (mark && !mark->done && !e->context->dying)
        pthread_cond_wait(&fake_changed, &fake_lock);
    fake_mark_drop(mark);
    return fake_leave(atomic_load(&fake_context()->broken));
}

EXPORT cuda_result_t cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    struct CUevent_st *a, *b;
    cuda_result_t result = enter_event(__func__, start, &a);
    if (result)
        return result;
    for (b = events; b && b != end; b = b->next)
        ;
    if (!b || ((a->flags | b->flags) & CUDA_EVENT_DISABLE_TIMING) || !a->mark || !b->mark)
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    if (!a->mark->done || !b->mark->done)
        return fake_leave(CUDA_IS_NOT_READY);
    *milliseconds = (float)(int64_t)(b->mark->time_ns - a->mark->time_ns) * 1e-6f;
    return fake_leave(CUDA_IS_OK);
}
