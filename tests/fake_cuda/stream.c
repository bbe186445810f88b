/*
 * The fake's streams: a thread each, which does what it was given in order.
 * A destroyed stream finishes its work first, and nobody waits for that.
 */
#include <stdlib.h>
#include <string.h>

#include "fake_cuda/internal.h"

static uint64_t last_ticket;

/* --------------------------------------------------------------------- queue */

static void finish(struct CUstream_st *s, struct op *op, cuda_result_t result)
{
    s->head = op->next;
    if (!s->head)
        s->tail = NULL;
    if (op->kind == OP_MARK) {
        op->mark->done = true;
        op->mark->time_ns = fake_clock_ns();
    }
    if (result)
        atomic_store(&s->context->broken, result);
    fake_op_free(op);
    pthread_cond_broadcast(&fake_changed);
}

static bool await(struct CUstream_st *s, const struct mark *mark)
{
    while (!mark->done && !s->context->dying)
        pthread_cond_wait(&fake_changed, &fake_lock);
    return mark->done;
}

static void *run_stream(void *argument)
{
    struct CUstream_st *s = argument;
    pthread_mutex_lock(&fake_lock);
    while (!s->context->dying) {
        struct op *op = s->head;
        if (!op) {
            if (s->closed)
                break;
            pthread_cond_wait(&s->wake, &fake_lock);
            continue;
        }
        cuda_result_t result = CUDA_IS_OK;
        if (op->kind == OP_AWAIT) {
            await(s, op->mark);
        } else if (op->kind != OP_MARK && !atomic_load(&s->context->broken)) {
            pthread_mutex_unlock(&fake_lock);
            result = fake_execute(op, s->context);
            pthread_mutex_lock(&fake_lock);
        }
        finish(s, op, result);
    }
    while (s->head)
        finish(s, s->head, CUDA_IS_OK);
    struct CUstream_st **p = &s->context->streams;
    while (*p != s)
        p = &(*p)->next;
    *p = s->next;
    pthread_cond_destroy(&s->wake);
    free(s);
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

cuda_result_t fake_stream_new(struct CUctx_st *context, unsigned flags, struct CUstream_st **stream)
{
    struct CUstream_st *s = calloc(1, sizeof *s);
    pthread_t thread;
    if (!s)
        return CUDA_IS_OUT_OF_MEMORY;
    s->context = context;
    s->flags = flags;
    pthread_cond_init(&s->wake, NULL);
    if (pthread_create(&thread, NULL, run_stream, s)) {
        pthread_cond_destroy(&s->wake);
        free(s);
        return CUDA_IS_OUT_OF_MEMORY;
    }
    pthread_detach(thread);
    s->next = context->streams;
    context->streams = s;
    *stream = s;
    return CUDA_IS_OK;
}

void fake_streams_of_context_end(struct CUctx_st *context)
{
    for (struct CUstream_st *s = context->streams; s; s = s->next) {
        fake_capture_leave(s);
        pthread_cond_signal(&s->wake);
    }
    pthread_cond_broadcast(&fake_changed);
    while (context->streams)
        pthread_cond_wait(&fake_changed, &fake_lock);
}

struct CUstream_st *fake_stream(CUstream handle)
{
    const uintptr_t number = (uintptr_t)handle;
    if (number <= 2) /* the NULL stream, also by the names CU_STREAM_LEGACY and CU_STREAM_PER_THREAD */
        return fake_context() ? fake_context()->null_stream : NULL;
    for (int d = 0; d < fake_settings.devices; d++)
        for (struct CUstream_st *s = fake_context_of(d)->streams; s; s = s->next)
            if (s == handle && !s->closed)
                return s;
    return NULL;
}

size_t fake_stream_count(void)
{
    size_t count = 0;
    for (int d = 0; d < fake_settings.devices; d++)
        for (const struct CUstream_st *s = fake_context_of(d)->streams; s; s = s->next)
            count += !s->closed && s != s->context->null_stream;
    return count;
}

/* -------------------------------------------------------------------- waiting */

static bool listed(const struct CUctx_st *context, const struct CUstream_st *stream)
{
    for (const struct CUstream_st *s = context->streams; s; s = s->next)
        if (s == stream)
            return true;
    return false;
}

static bool idle_up_to(const struct CUstream_st *s, uint64_t ticket)
{
    return !s->head || s->head->ticket > ticket;
}

static cuda_result_t state_of(struct CUctx_st *context)
{
    return context->dying ? CUDA_IS_CONTEXT_IS_DESTROYED : atomic_load(&context->broken);
}

cuda_result_t fake_wait_stream(struct CUstream_st *stream)
{
    struct CUctx_st *context = stream->context;
    const uint64_t ticket = last_ticket;
    while (!state_of(context) && listed(context, stream) && !idle_up_to(stream, ticket))
        pthread_cond_wait(&fake_changed, &fake_lock);
    return state_of(context);
}

cuda_result_t fake_wait_context(struct CUctx_st *context)
{
    const uint64_t ticket = last_ticket;
    for (;;) {
        bool idle = true;
        for (const struct CUstream_st *s = context->streams; s && idle; s = s->next)
            idle = idle_up_to(s, ticket);
        if (idle || state_of(context))
            return state_of(context);
        pthread_cond_wait(&fake_changed, &fake_lock);
    }
}

/* ----------------------------------------------------------------- submission */

static void push(struct CUstream_st *s, struct op *op)
{
    op->ticket = ++last_ticket;
    op->next = NULL;
    if (s->tail)
        s->tail->next = op;
    else
        s->head = op;
    s->tail = op;
    pthread_cond_signal(&s->wake);
}

/* `stream` goes on when what `other` has been given so far is done. */
static cuda_result_t follow(struct CUstream_st *stream, struct CUstream_st *other)
{
    if (!other->head)
        return CUDA_IS_OK;
    struct op *mark = calloc(1, sizeof *mark), *wait = calloc(1, sizeof *wait);
    struct mark *shared = fake_mark_new();
    if (!mark || !wait || !shared) {
        free(mark);
        free(wait);
        fake_mark_drop(shared);
        return CUDA_IS_OUT_OF_MEMORY;
    }
    mark->kind = OP_MARK;
    wait->kind = OP_AWAIT;
    mark->mark = wait->mark = shared;
    shared->references++;
    push(other, mark);
    push(stream, wait);
    return CUDA_IS_OK;
}

/* The NULL stream and all that are not non-blocking wait for each other. */
static cuda_result_t follow_null_stream(struct CUstream_st *stream)
{
    struct CUctx_st *context = stream->context;
    if (stream != context->null_stream)
        return stream->flags & CUDA_STREAM_NON_BLOCKING ? CUDA_IS_OK : follow(stream, context->null_stream);
    cuda_result_t result = CUDA_IS_OK;
    for (struct CUstream_st *s = context->streams; s && !result; s = s->next) {
        if (s == stream || s->flags & CUDA_STREAM_NON_BLOCKING)
            continue;
        if (s->capture) {
            s->capture->invalid = true;
            return CUDA_IS_STREAM_CAPTURE_IMPLICIT;
        }
        result = follow(stream, s);
    }
    return result;
}

cuda_result_t fake_submit(struct CUstream_st *stream, struct op *op)
{
    if (!op)
        return CUDA_IS_OUT_OF_MEMORY;
    if (stream->capture)
        return fake_capture_op(stream, op);
    cuda_result_t result = state_of(stream->context);
    if (!result)
        result = follow_null_stream(stream);
    if (result)
        fake_op_free(op);
    else
        push(stream, op);
    return result;
}

/* ----------------------------------------------------------------------- calls */

EXPORT cuda_result_t cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    (void)priority; /* clamped to the range, and the fake has no use for it */
    if (!stream || flags > CUDA_STREAM_NON_BLOCKING)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    return fake_leave(fake_stream_new(fake_context(), flags, stream));
}

EXPORT cuda_result_t cuStreamCreate(CUstream *stream, unsigned flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    fake_leave(CUDA_IS_OK);
    return cuStreamCreateWithPriority(stream, flags, 0);
}

/* Start of a call about a stream that already has work: looks the handle up. */
static cuda_result_t enter_stream(const char *entry, CUstream handle, struct CUstream_st **stream)
{
    cuda_result_t result = fake_enter(entry, NEEDS_CONTEXT);
    if (result)
        return result;
    *stream = fake_stream(handle);
    return *stream ? CUDA_IS_OK : fake_leave(CUDA_IS_INVALID_HANDLE);
}

EXPORT cuda_result_t cuStreamDestroy_v2(CUstream handle)
{
    struct CUstream_st *s;
    cuda_result_t result = enter_stream(__func__, handle, &s);
    if (result)
        return result;
    if (s == s->context->null_stream)
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    fake_capture_leave(s);
    s->closed = true;
    pthread_cond_signal(&s->wake);
    return fake_leave(CUDA_IS_OK);
}

/* Asking a captured stream how far it is has no answer, and ends the capture; asking others may end it too. */
static bool captured(struct CUstream_st *s)
{
    if (s->capture)
        s->capture->invalid = true;
    return fake_capture_forbids() || s->capture;
}

EXPORT cuda_result_t cuStreamQuery(CUstream handle)
{
    struct CUstream_st *s;
    cuda_result_t result = enter_stream(__func__, handle, &s);
    if (result)
        return result;
    if (captured(s))
        return fake_leave(CUDA_IS_STREAM_CAPTURE_UNSUPPORTED);
    return fake_leave(s->head ? CUDA_IS_NOT_READY : state_of(s->context));
}

EXPORT cuda_result_t cuStreamSynchronize(CUstream handle)
{
    struct CUstream_st *s;
    cuda_result_t result = enter_stream(__func__, handle, &s);
    if (result)
        return result;
    if (captured(s))
        return fake_leave(CUDA_IS_STREAM_CAPTURE_UNSUPPORTED);
    return fake_leave(fake_wait_stream(s));
}

EXPORT cuda_result_t cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    struct CUstream_st *s;
    cuda_result_t result = enter_stream(__func__, handle, &s);
    if (result)
        return result;
    *context = s->context;
    return fake_leave(CUDA_IS_OK);
}
