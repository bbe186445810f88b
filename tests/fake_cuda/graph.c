/*
 * The fake's graphs: what a capture collects, and its replays. Operations keep
 * their order as the captured streams and events had it; what has no order
 * runs side by side, a thread for each branch, as branches may wait for one
 * another by memory operations.
 */
#include <stdlib.h>
#include <string.h>

#include "fake_cuda/internal.h"

struct CUgraphNode_st {
    struct op *op; /* owned */
    unsigned index, dependency_count;
    unsigned dependencies[DEPENDENCIES_MAX]; /* indices of earlier nodes */
    bool joined;                             /* another node comes after it */
};

struct CUgraph_st {
    struct CUgraph_st *next;
    struct CUgraphNode_st **nodes;
    unsigned count, room;
    bool collecting;
};

struct CUgraphExec_st {
    struct CUgraphExec_st *next;
    unsigned references; /* its handle, and every launch that has not ended */
    struct CUgraph_st *graph;
    unsigned *branch, branches; /* of each node */
    bool running;
};

static struct CUgraph_st *graphs;
static struct CUgraphExec_st *executables;
static struct capture *captures;
static uint64_t last_capture;
static _Thread_local unsigned thread_mode = CUDA_CAPTURE_GLOBAL;

/* ---------------------------------------------------------------------- graphs */

static struct CUgraph_st *graph_new(void)
{
    struct CUgraph_st *g = calloc(1, sizeof *g);
    if (g) {
        g->next = graphs;
        graphs = g;
    }
    return g;
}

static void graph_free(struct CUgraph_st *graph)
{
    struct CUgraph_st **p = &graphs;
    while (*p != graph)
        p = &(*p)->next;
    *p = graph->next;
    for (unsigned i = 0; i < graph->count; i++) {
        fake_op_free(graph->nodes[i]->op);
        free(graph->nodes[i]);
    }
    free(graph->nodes);
    free(graph);
}

/* Takes over `op` if it returns a node. */
static struct CUgraphNode_st *graph_add(struct CUgraph_st *graph, struct op *op)
{
    if (graph->count == graph->room) {
        const unsigned room = graph->room ? 2 * graph->room : 16;
        void *bigger = realloc(graph->nodes, room * sizeof *graph->nodes);
        if (!bigger)
            return NULL;
        graph->nodes = bigger;
        graph->room = room;
    }
    struct CUgraphNode_st *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    node->op = op;
    node->index = graph->count;
    graph->nodes[graph->count++] = node;
    return node;
}

size_t fake_graph_count(void)
{
    size_t count = 0;
    for (const struct CUgraph_st *g = graphs; g; g = g->next)
        count++;
    return count;
}

/* --------------------------------------------------------------------- captures */

struct capture *fake_capture_find(uint64_t id)
{
    struct capture *c = captures;
    while (c && c->id != id)
        c = c->next;
    return c;
}

/* Calls that might wait for a device are refused while the calling thread has promised, or must fear, a capture. */
bool fake_capture_forbids(void)
{
    bool forbids = false;
    for (struct capture *c = captures; c; c = c->next) {
        const bool mine = pthread_equal(c->thread, pthread_self());
        const bool protects =
            c->mode == CUDA_CAPTURE_GLOBAL
                ? thread_mode == CUDA_CAPTURE_GLOBAL || (mine && thread_mode == CUDA_CAPTURE_THREAD_LOCAL)
                : c->mode == CUDA_CAPTURE_THREAD_LOCAL && mine && thread_mode != CUDA_CAPTURE_RELAXED;
        if (!protects)
            continue;
        c->invalid = true;
        forbids = true;
    }
    return forbids;
}

static void capture_free(struct capture *capture)
{
    struct capture **p = &captures;
    while (*p != capture)
        p = &(*p)->next;
    *p = capture->next;
    free(capture);
}

/* The stream is destroyed while it is captured. */
void fake_capture_leave(struct CUstream_st *stream)
{
    struct capture *c = stream->capture;
    if (!c)
        return;
    stream->capture = NULL;
    c->invalid = true;
    if (c->origin == stream)
        c->origin = NULL;
    if (--c->streams == 0) {
        graph_free(c->graph);
        capture_free(c);
    }
}

cuda_result_t fake_capture_op(struct CUstream_st *stream, struct op *op)
{
    struct capture *c = stream->capture;
    cuda_result_t result = c->invalid ? CUDA_IS_STREAM_CAPTURE_INVALIDATED : CUDA_IS_OK;
    if (!result && (op->mark || op->shared || op->graph)) {
        c->invalid = true;
        result = CUDA_IS_STREAM_CAPTURE_UNSUPPORTED;
    }
    struct CUgraphNode_st *node = result ? NULL : graph_add(c->graph, op);
    if (!node) {
        fake_op_free(op);
        return result ? result : CUDA_IS_OUT_OF_MEMORY;
    }
    node->dependency_count = stream->dependency_count;
    for (unsigned i = 0; i < stream->dependency_count; i++) {
        node->dependencies[i] = stream->dependencies[i]->index;
        stream->dependencies[i]->joined = true;
    }
    stream->dependencies[0] = node;
    stream->dependency_count = 1;
    return CUDA_IS_OK;
}

cuda_result_t fake_capture_join(struct CUstream_st *stream, struct capture *capture,
                                struct CUgraphNode_st *const *dependencies, unsigned count)
{
    if (capture->invalid)
        return CUDA_IS_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != capture) {
        stream->capture->invalid = capture->invalid = true;
        return CUDA_IS_STREAM_CAPTURE_MERGE;
    }
    if (stream == stream->context->null_stream) {
        capture->invalid = true;
        return CUDA_IS_STREAM_CAPTURE_IMPLICIT;
    }
    if (!stream->capture) {
        stream->capture = capture;
        stream->dependency_count = 0;
        capture->streams++;
    }
    for (unsigned i = 0; i < count; i++) {
        unsigned known = 0;
        while (known < stream->dependency_count && stream->dependencies[known] != dependencies[i])
            known++;
        if (known < stream->dependency_count)
            continue;
        if (known == DEPENDENCIES_MAX)
            return CUDA_IS_NOT_SUPPORTED;
        stream->dependencies[stream->dependency_count++] = dependencies[i];
    }
    return CUDA_IS_OK;
}

EXPORT cuda_result_t cuStreamBeginCapture_v2(CUstream handle, unsigned mode)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    struct CUstream_st *s = fake_stream(handle);
    if (!s)
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    if (mode > CUDA_CAPTURE_RELAXED)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    if (s == s->context->null_stream)
        return fake_leave(CUDA_IS_STREAM_CAPTURE_UNSUPPORTED);
    if (s->capture)
        return fake_leave(CUDA_IS_ILLEGAL_STATE);
    struct capture *c = calloc(1, sizeof *c);
    struct CUgraph_st *g = c ? graph_new() : NULL;
    if (!g) {
        free(c);
        return fake_leave(CUDA_IS_OUT_OF_MEMORY);
    }
    g->collecting = true;
    *c = (struct capture){.next = captures, .mode = mode, .streams = 1, .id = ++last_capture, .origin = s, .graph = g};
    c->thread = pthread_self();
    captures = c;
    s->capture = c;
    s->dependency_count = 0;
    return fake_leave(CUDA_IS_OK);
}

/* Every branch must have come back to the stream in which the capture was begun. */
static bool all_joined(const struct capture *capture)
{
    const struct CUstream_st *s = capture->origin;
    for (unsigned i = 0; i < capture->graph->count; i++) {
        const struct CUgraphNode_st *node = capture->graph->nodes[i];
        bool last = false;
        for (unsigned k = 0; k < s->dependency_count; k++)
            last |= s->dependencies[k] == node;
        if (!node->joined && !last)
            return false;
    }
    return true;
}

EXPORT cuda_result_t cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    if (graph)
        *graph = NULL;
    struct CUstream_st *s = fake_stream(handle);
    if (!s || !graph)
        return fake_leave(s ? CUDA_IS_INVALID_VALUE : CUDA_IS_INVALID_HANDLE);
    struct capture *c = s->capture;
    if (!c)
        return fake_leave(CUDA_IS_ILLEGAL_STATE);
    if (c->origin != s) {
        c->invalid = true;
        return fake_leave(CUDA_IS_STREAM_CAPTURE_UNMATCHED);
    }
    if (c->mode != CUDA_CAPTURE_RELAXED && !pthread_equal(c->thread, pthread_self()))
        return fake_leave(CUDA_IS_STREAM_CAPTURE_WRONG_THREAD);
    result = c->invalid      ? CUDA_IS_STREAM_CAPTURE_INVALIDATED
             : all_joined(c) ? CUDA_IS_OK
                             : CUDA_IS_STREAM_CAPTURE_UNJOINED;
    for (int d = 0; d < fake_settings.devices; d++)
        for (struct CUstream_st *other = fake_context_of(d)->streams; other; other = other->next)
            if (other->capture == c)
                other->capture = NULL;
    c->graph->collecting = false;
    if (result)
        graph_free(c->graph);
    else
        *graph = c->graph;
    capture_free(c);
    return fake_leave(result);
}

static unsigned status_of(const struct CUstream_st *s)
{
    return !s->capture           ? CUDA_CAPTURE_STATUS_NONE
           : s->capture->invalid ? CUDA_CAPTURE_STATUS_INVALIDATED
                                 : CUDA_CAPTURE_STATUS_ACTIVE;
}

EXPORT cuda_result_t cuStreamIsCapturing(CUstream handle, unsigned *status)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    const struct CUstream_st *s = fake_stream(handle);
    if (!s)
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    *status = status_of(s);
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuStreamGetCaptureInfo_v2(CUstream handle, unsigned *status, uint64_t *id, CUgraph *graph,
                                               const CUgraphNode **dependencies, size_t *count)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    const struct CUstream_st *s = fake_stream(handle);
    if (!s)
        return fake_leave(CUDA_IS_INVALID_HANDLE);
    *status = status_of(s);
    if (*status == CUDA_CAPTURE_STATUS_ACTIVE) {
        if (id)
            *id = s->capture->id;
        if (graph)
            *graph = s->capture->graph;
        if (dependencies)
            *dependencies = s->dependencies;
        if (count)
            *count = s->dependency_count;
    }
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuThreadExchangeStreamCaptureMode(unsigned *mode)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    if (!mode || *mode > CUDA_CAPTURE_RELAXED)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    const unsigned old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return fake_leave(CUDA_IS_OK);
}

/* ---------------------------------------------------------------------- replays */

struct replay {
    struct CUgraphExec_st *graph;
    struct CUctx_st *context;
    bool *done;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    cuda_result_t result;
};

struct branch {
    struct replay *replay;
    unsigned number;
    pthread_t thread;
};

static void *run_branch(void *argument)
{
    const struct branch *b = argument;
    struct replay *r = b->replay;
    const struct CUgraph_st *g = r->graph->graph;
    for (unsigned i = 0; i < g->count; i++) {
        if (r->graph->branch[i] != b->number)
            continue;
        pthread_mutex_lock(&r->lock);
        for (unsigned k = 0; k < g->nodes[i]->dependency_count; k++)
            while (!r->done[g->nodes[i]->dependencies[k]])
                pthread_cond_wait(&r->changed, &r->lock);
        const bool skip = r->result != CUDA_IS_OK;
        pthread_mutex_unlock(&r->lock);
        const cuda_result_t result = skip ? CUDA_IS_OK : fake_execute(g->nodes[i]->op, r->context);
        pthread_mutex_lock(&r->lock);
        r->done[i] = true;
        if (result)
            r->result = result;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
    }
    return NULL;
}

static cuda_result_t run_branches(struct CUgraphExec_st *graph, struct CUctx_st *context)
{
    struct replay r = {graph,
                       context,
                       calloc(graph->graph->count + 1, sizeof *r.done),
                       PTHREAD_MUTEX_INITIALIZER,
                       PTHREAD_COND_INITIALIZER,
                       CUDA_IS_OK};
    struct branch *branches = calloc(graph->branches + 1, sizeof *branches);
    if (!r.done || !branches)
        abort();
    for (unsigned i = 0; i < graph->branches; i++) {
        branches[i] = (struct branch){.replay = &r, .number = i};
        if (i && pthread_create(&branches[i].thread, NULL, run_branch, &branches[i]))
            abort(); /* half of a graph cannot be taken back */
    }
    run_branch(&branches[0]);
    for (unsigned i = 1; i < graph->branches; i++)
        pthread_join(branches[i].thread, NULL);
    free(branches);
    free(r.done);
    return r.result;
}

/* Launches of one executable graph run one after another, whatever their streams. */
cuda_result_t fake_graph_run(struct CUgraphExec_st *graph, struct CUctx_st *context)
{
    pthread_mutex_lock(&fake_lock);
    while (graph->running)
        pthread_cond_wait(&fake_changed, &fake_lock);
    graph->running = true;
    pthread_mutex_unlock(&fake_lock);
    const cuda_result_t result = run_branches(graph, context);
    pthread_mutex_lock(&fake_lock);
    graph->running = false;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    return result;
}

void fake_graph_exec_drop(struct CUgraphExec_st *graph)
{
    if (--graph->references)
        return;
    graph_free(graph->graph);
    free(graph->branch);
    free(graph);
}

static struct CUgraph_st *graph_of(CUgraph handle)
{
    for (struct CUgraph_st *g = graphs; g; g = g->next)
        if (g == handle && !g->collecting)
            return g;
    return NULL;
}

/* A node continues the branch of a dependency that nothing else has continued yet, or begins a branch. */
static void find_branches(struct CUgraphExec_st *executable)
{
    const struct CUgraph_st *g = executable->graph;
    for (unsigned i = 0; i < g->count; i++) {
        executable->branch[i] = executable->branches;
        for (unsigned k = 0; k < g->nodes[i]->dependency_count; k++) {
            struct CUgraphNode_st *before = g->nodes[g->nodes[i]->dependencies[k]];
            if (before->joined)
                continue;
            before->joined = true;
            executable->branch[i] = executable->branch[before->index];
            break;
        }
        executable->branches += executable->branch[i] == executable->branches;
    }
}

static bool copy_nodes(struct CUgraph_st *to, const struct CUgraph_st *from)
{
    for (unsigned i = 0; i < from->count; i++) {
        struct op *op = fake_op_copy(from->nodes[i]->op);
        struct CUgraphNode_st *node = op ? graph_add(to, op) : NULL;
        if (!node) {
            fake_op_free(op);
            return false;
        }
        node->dependency_count = from->nodes[i]->dependency_count;
        memcpy(node->dependencies, from->nodes[i]->dependencies, sizeof node->dependencies);
    }
    return true;
}

EXPORT cuda_result_t cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph handle, unsigned long long flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    const struct CUgraph_st *g = graph_of(handle);
    (void)flags;
    if (!g || !executable)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    struct CUgraphExec_st *e = calloc(1, sizeof *e);
    if (!e)
        return fake_leave(CUDA_IS_OUT_OF_MEMORY);
    e->references = 1;
    e->branch = calloc(g->count + 1, sizeof *e->branch);
    e->graph = graph_new();
    if (!e->branch || !e->graph || !copy_nodes(e->graph, g)) {
        if (e->graph)
            graph_free(e->graph);
        free(e->branch);
        free(e);
        return fake_leave(CUDA_IS_OUT_OF_MEMORY);
    }
    e->graph->collecting = true; /* not a graph that has a handle */
    find_branches(e);
    e->next = executables;
    executables = e;
    *executable = e;
    return fake_leave(CUDA_IS_OK);
}

static struct CUgraphExec_st **executable_of(CUgraphExec handle)
{
    struct CUgraphExec_st **p = &executables;
    while (*p && *p != handle)
        p = &(*p)->next;
    return p;
}

EXPORT cuda_result_t cuGraphLaunch(CUgraphExec executable, CUstream stream)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    struct CUgraphExec_st *e = *executable_of(executable);
    struct CUstream_st *s = fake_stream(stream);
    if (!e || !s)
        return fake_leave(e ? CUDA_IS_INVALID_HANDLE : CUDA_IS_INVALID_VALUE);
    struct op *op = calloc(1, sizeof *op);
    if (op) {
        op->kind = OP_GRAPH;
        op->graph = e;
        e->references++;
    }
    return fake_leave(fake_submit(s, op));
}

EXPORT cuda_result_t cuGraphDestroy(CUgraph handle)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    struct CUgraph_st *g = graph_of(handle);
    if (!g)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    graph_free(g);
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuGraphExecDestroy(CUgraphExec handle)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    struct CUgraphExec_st **p = executable_of(handle);
    struct CUgraphExec_st *e = *p;
    if (!e)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    *p = e->next;
    fake_graph_exec_drop(e);
    return fake_leave(CUDA_IS_OK);
}
