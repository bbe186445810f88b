/*
 * Operations on streams: the queue, the words that streams wait for, and the
 * thread. What an operation does is in cuda_stage.c.
 *
 * Locks: `posting` before a worker's own. A host function of the driver takes
 * both for a moment; nobody holds them while calling the driver.
 */
#include "frontends/cuda_worker.h"

#include <stdlib.h>
#include <string.h>

#include "frontends/cuda_stage.h"
#include "system/log.h"

#define WORDS 1024 /* of a page of words; the first of the first page counts what has been done */

struct worker;

struct job {
    struct worker *worker; /* guarded by posting; NULL: it has gone */
    struct job *next;      /* in the queue */
    struct job *older;     /* of the captured ones */
    struct cuda_operation operation;
    uint32_t number;
    bool posted;   /* its stream has come to it */
    bool captured; /* part of a graph: runs whenever it is posted, and lives as long as the process */
    bool queued;   /* captured: it has been posted and not yet carried out */
    atomic_uint *word;
};

struct page {
    struct page *older;
    atomic_uint *words; /* pinned, of CUDA_PAGE */
    int used;
};

struct queue {
    struct job *head, *tail;
};

struct worker {
    struct attachment attachment;
    struct polypath_comm *comm;
    const struct cuda_driver *driver;
    CUcontext context; /* in which everything was made */
    struct stage_memory_cuda *memory;
    struct page *pages;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* guarded by lock */
    struct queue issued; /* in the order issued; the first runs when its stream has come to it */
    struct queue
        replayed;         /* of graphs, in the order in which streams came to them: before those, which may be behind */
    struct job *captured; /* all of graphs */
    uint32_t submitted;
    bool busy, stop, failed;
};

static pthread_mutex_t posting = PTHREAD_MUTEX_INITIALIZER;

static struct worker *worker_of(struct attachment *attachment)
{
    return (struct worker *)(void *)attachment; /* the first member */
}

static void free_operation(struct cuda_operation *operation)
{
    if (operation->call)
        call_release(operation->call);
    free(operation->points);
}

/* ------------------------------------------------------------------- words */

static void set_word(atomic_uint *word, uint32_t value)
{
    /* release: what the operation has written, before the stream goes on */
    atomic_store_explicit(word, value, memory_order_release);
}

/* A fresh word that is 0; NULL with the error set. The caller's thread may be capturing: see relaxed(). */
static atomic_uint *new_word(struct worker *w)
{
    if (!w->pages || w->pages->used == WORDS) {
        struct page *page = calloc(1, sizeof *page);
        void *words = NULL;
        if (!page) {
            error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
            return NULL;
        }
        if (cuda_check(w->driver,
                       w->driver->mem_host_alloc(&words, WORDS * sizeof *page->words,
                                                 CUDA_HOST_ALLOC_PORTABLE | CUDA_HOST_ALLOC_DEVICEMAP),
                       -1, "cuMemHostAlloc")) {
            free(page);
            return NULL;
        }
        *page = (struct page){.older = w->pages, .words = words};
        for (int i = 0; i < WORDS; i++)
            atomic_init(&page->words[i], 0);
        w->pages = page;
    }
    return &w->pages->words[w->pages->used++];
}

static atomic_uint *done_word(const struct worker *w)
{
    const struct page *page = w->pages;
    while (page->older)
        page = page->older;
    return &page->words[0];
}

/* ------------------------------------------------------------------- queue */

static void push(struct queue *queue, struct job *job)
{
    job->next = NULL;
    if (queue->tail)
        queue->tail->next = job;
    else
        queue->head = job;
    queue->tail = job;
}

static void pop(struct queue *queue)
{
    queue->head = queue->head->next;
    if (!queue->head)
        queue->tail = NULL;
}

/* The queue whose first operation can run now; NULL: none. With the lock. */
static struct queue *due(struct worker *w)
{
    if (w->replayed.head)
        return &w->replayed;
    return w->issued.head && w->issued.head->posted ? &w->issued : NULL;
}

/* Lets every stream go on that waits for this worker, now and later. With the lock. */
static void let_go(struct worker *w)
{
    w->failed = true;
    set_word(done_word(w), w->submitted);
    for (struct job *job = w->captured; job; job = job->older)
        if (job->queued)
            set_word(job->word, 1);
    pthread_cond_broadcast(&w->changed);
}

/* The stream has come to the operation. On a thread of the driver, which must not wait for anything. */
static void post(void *argument)
{
    struct job *job = argument;
    pthread_mutex_lock(&posting);
    struct worker *w = job->worker;
    if (!w) {
        if (job->captured)
            set_word(job->word, 1);
        else
            free(job);
        pthread_mutex_unlock(&posting);
        return;
    }
    pthread_mutex_lock(&w->lock);
    job->posted = true;
    if (job->captured && w->failed) {
        set_word(job->word, 1);
    } else if (job->captured) {
        job->queued = true;
        push(&w->replayed, job);
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_mutex_unlock(&posting);
}

/* Carries out the first operation of a queue. With the lock, which it gives up meanwhile. */
static void run_first(struct worker *w, struct queue *queue)
{
    struct job *job = queue->head;
    polypath_result_t result = POLYPATH_SUCCESS;
    w->busy = true;
    if (!w->failed) {
        pthread_mutex_unlock(&w->lock);
        result = comm_check(w->comm);
        if (!result)
            result = cuda_stage_run(w->memory, &job->operation);
        if (result && !comm_check(w->comm)) { /* not the communicator's own failure: the driver's */
            drive_hold(w->comm);
            comm_fail(w->comm, result, NULL);
            drive_let_go(w->comm);
        }
        pthread_mutex_lock(&w->lock);
    }
    if (result)
        let_go(w);
    pop(queue);
    w->busy = false;
    if (job->captured) {
        job->queued = false;
        set_word(job->word, 1);
    } else {
        if (!w->failed)
            set_word(done_word(w), job->number);
        free_operation(&job->operation);
        free(job);
    }
    pthread_cond_broadcast(&w->changed);
}

static void *work(void *argument)
{
    struct worker *w = argument;
    pthread_setname_np(pthread_self(), "polypath-stream");
    unsigned mode = CUDA_CAPTURE_RELAXED; /* somebody else's capture must not end because of what this thread does */
    w->driver->ctx_set_current(w->context);
    w->driver->thread_exchange_stream_capture_mode(&mode);
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        struct queue *queue = due(w);
        if (queue)
            run_first(w, queue);
        else
            pthread_cond_wait(&w->changed, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* -------------------------------------------------------------- attachment */

static void settle(struct attachment *attachment)
{
    struct worker *w = worker_of(attachment);
    if (pthread_equal(pthread_self(), w->thread))
        return;
    pthread_mutex_lock(&w->lock);
    while (w->busy || (!w->failed && (w->issued.head || w->replayed.head)))
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void abort_worker(struct attachment *attachment)
{
    struct worker *w = worker_of(attachment);
    pthread_mutex_lock(&w->lock);
    let_go(w);
    pthread_mutex_unlock(&w->lock);
}

static void free_worker(struct worker *w, bool words)
{
    cuda_stage_close(w->memory);
    while (w->pages) {
        struct page *page = w->pages;
        w->pages = page->older;
        if (words)
            w->driver->mem_free_host((void *)page->words);
        free(page);
    }
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    free(w);
}

static void stop(struct attachment *attachment)
{
    struct worker *w = worker_of(attachment);
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_lock(&posting);
    /* what streams and graphs may still come to outlives the worker, and so do the words that they wait for */
    const bool words = !w->issued.head && !w->captured;
    set_word(done_word(w), w->submitted);
    for (struct job *job = w->replayed.head; job; job = job->next)
        set_word(job->word, 1);
    for (struct job *job = w->issued.head, *next; job; job = next) {
        next = job->next;
        free_operation(&job->operation);
        job->operation = (struct cuda_operation){0};
        job->worker = NULL;
        if (job->posted)
            free(job);
    }
    for (struct job *job = w->captured; job; job = job->older) {
        free_operation(&job->operation);
        job->operation = (struct cuda_operation){0};
        job->worker = NULL;
    }
    pthread_mutex_unlock(&posting);
    CUcontext before = NULL;
    w->driver->ctx_get_current(&before);
    w->driver->ctx_set_current(w->context);
    const struct cuda_driver *driver = w->driver;
    free_worker(w, words);
    driver->ctx_set_current(before);
}

static polypath_result_t start(struct polypath_comm *comm, const struct cuda_driver *driver, CUcontext context,
                               struct worker **out)
{
    struct worker *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    *w =
        (struct worker){.attachment = {settle, abort_worker, stop}, .comm = comm, .driver = driver, .context = context};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    polypath_result_t result = new_word(w) ? POLYPATH_SUCCESS : POLYPATH_ERROR_OUT_OF_MEMORY;
    if (!result)
        result = cuda_stage_open(comm, driver, context, &w->memory);
    const int error = result ? 0 : pthread_create(&w->thread, NULL, work, w);
    if (error)
        result = error_set(POLYPATH_ERROR_SYSTEM, "no thread for operations on streams: %s", strerror(error));
    if (result) {
        free_worker(w, true);
        return result;
    }
    comm->attached = &w->attachment;
    *out = w;
    return POLYPATH_SUCCESS;
}

/* -------------------------------------------------------------- submission */

/* The parts of an operation on its stream. */
static polypath_result_t put_on_stream(struct worker *w, struct job *job)
{
    const struct cuda_driver *d = w->driver;
    CUstream stream = job->operation.stream;
    /* once its host function is on the stream the job may end at any time, and be freed */
    const bool captured = job->captured;
    const uint32_t number = job->number;
    atomic_uint *word = captured ? job->word : done_word(w);
    CUdeviceptr address = 0;
    polypath_result_t result =
        cuda_check(d, d->mem_host_get_device_pointer(&address, (void *)word, 0), -1, "cuMemHostGetDevicePointer");
    if (!result)
        result = cuda_check(d, d->launch_host_func(stream, post, job), -1, "cuLaunchHostFunc");
    if (result)
        return result;
    if (captured) {
        result = cuda_check(d, d->stream_wait_value_32(stream, address, 1, CUDA_WAIT_EQ), -1, "cuStreamWaitValue32");
        if (!result)
            result = cuda_check(d, d->stream_write_value_32(stream, address, 0, CUDA_WRITE_DEFAULT), -1,
                                "cuStreamWriteValue32");
    } else {
        result =
            cuda_check(d, d->stream_wait_value_32(stream, address, number, CUDA_WAIT_GEQ), -1, "cuStreamWaitValue32");
    }
    if (result) /* the operation will run, but the stream would not wait for it */
        log_line(LOG_LEVEL_ERROR, "%s", error_text());
    return POLYPATH_SUCCESS;
}

/* Makes the job known to the worker, before its stream can come to it. */
static void enter(struct worker *w, struct job *job)
{
    pthread_mutex_lock(&w->lock);
    if (job->captured) {
        job->older = w->captured;
        w->captured = job;
    } else {
        job->number = ++w->submitted;
        push(&w->issued, job);
        if (w->failed)
            set_word(done_word(w), w->submitted);
    }
    pthread_mutex_unlock(&w->lock);
}

/* Nothing was queued on the stream: as if it had been posted, with nothing to do. */
static void withdraw(struct worker *w, struct job *job)
{
    pthread_mutex_lock(&w->lock);
    if (!job->captured) {
        free_operation(&job->operation);
        job->operation = (struct cuda_operation){0};
        job->posted = true;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
}

static polypath_result_t submit(const struct cuda_driver *driver, struct job *job)
{
    struct polypath_comm *comm = job->operation.comm;
    unsigned status = CUDA_CAPTURE_STATUS_NONE;
    polypath_result_t result = comm_check(comm);
    if (!result)
        result =
            cuda_check(driver, driver->stream_is_capturing(job->operation.stream, &status), -1, "cuStreamIsCapturing");
    struct worker *w = comm->attached ? worker_of(comm->attached) : NULL;
    if (!result && !w)
        result = start(comm, driver, job->operation.context, &w);
    job->captured = status == CUDA_CAPTURE_STATUS_ACTIVE;
    if (!result && job->captured && !(job->word = new_word(w)))
        result = POLYPATH_ERROR_OUT_OF_MEMORY;
    if (result) {
        free_operation(&job->operation);
        free(job);
        return result;
    }
    job->worker = w;
    enter(w, job);
    result = put_on_stream(w, job);
    if (result)
        withdraw(w, job);
    return result;
}

polypath_result_t cuda_worker_submit(const struct cuda_driver *driver, const struct cuda_operation *operation)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        struct cuda_operation copy = *operation;
        free_operation(&copy);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    }
    job->operation = *operation;
    /* allocating is not allowed while this thread captures, unless it says so */
    unsigned mode = CUDA_CAPTURE_RELAXED;
    CUcontext before = NULL;
    driver->ctx_get_current(&before);
    driver->ctx_set_current(operation->context);
    driver->thread_exchange_stream_capture_mode(&mode);
    polypath_result_t result = submit(driver, job);
    driver->thread_exchange_stream_capture_mode(&mode);
    driver->ctx_set_current(before);
    return result;
}
