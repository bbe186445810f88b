/*
 * The inside of the fake CUDA driver. All state is guarded by one lock, which
 * fake_enter() takes and fake_leave() gives back; streams work outside of it.
 * A fake need not be fast, but it must be easy to believe.
 */
#ifndef TESTS_FAKE_CUDA_INTERNAL_H
#define TESTS_FAKE_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fake_cuda/fake_cuda.h"
#include "system/cuda_driver.h"

#define EXPORT __attribute__((visibility("default")))
#define DEVICES_MAX 16
#define DEPENDENCIES_MAX 32

extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed; /* something was finished, freed or destroyed */

uint64_t fake_clock_ns(void);
void fake_sleep_ns(uint64_t ns);

/* ------------------------------------------------------------------ entering */

enum needs {
    NEEDS_NOTHING = 0,
    NEEDS_INIT = 1,
    NEEDS_CONTEXT = 3,
    NOT_IN_CAPTURE = 4, /* "potentially unsafe" while a stream is captured: invalidates the capture */
};

/*
 * Start of every call: takes the lock if it returns CUDA_IS_OK. Checks faults,
 * that this is not a host function or a forked child, and what `needs` says.
 */
cuda_result_t fake_enter(const char *entry, unsigned needs);
cuda_result_t fake_leave(cuda_result_t result);

extern _Thread_local bool fake_in_host_function;

/* ----------------------------------------------------------------- contexts */

struct CUctx_st {
    int device;
    unsigned references;
    _Atomic bool dying;           /* written with the lock; read by streams at work */
    _Atomic cuda_result_t broken; /* an error that every later call of the context returns */
    struct CUstream_st *streams;  /* the first created is the NULL stream */
    struct CUstream_st *null_stream;
    unsigned peers; /* bit per device */
};

struct fake_settings {
    int devices, version, peer;
    size_t memory_bytes;
    double copy_gbps;
};
extern struct fake_settings fake_settings;

struct CUctx_st *fake_context(void);          /* the calling thread's; NULL if none */
struct CUctx_st *fake_context_of(int device); /* whether it is alive or not */
bool fake_context_alive(struct CUctx_st *context);

/* ------------------------------------------------------------------- memory */

enum range_kind { RANGE_DEVICE, RANGE_IMPORTED, RANGE_MAPPED, RANGE_HOST, RANGE_REGISTERED, RANGE_RESERVED };

struct range {
    struct range *next;
    enum range_kind kind;
    uintptr_t base;
    size_t bytes;        /* as asked for */
    size_t mapped_bytes; /* whole pages */
    struct CUctx_st *context;
    int device;
    int fd; /* RANGE_DEVICE: what an IPC handle leads to */
    uint64_t id;
    unsigned references; /* RANGE_IMPORTED: times opened */
    unsigned access;     /* RANGE_MAPPED */
    struct physical *physical;
};

/* Readers (streams at work) hold it while they touch memory; who unmaps holds it for writing, within fake_lock. */
extern pthread_rwlock_t fake_memory;

struct range *fake_range_at(uintptr_t address); /* live; NULL if none. Call with either lock */
bool fake_was_freed(uintptr_t address);
bool fake_is_reserved(uintptr_t address); /* by cuMemAddressReserve(), whether mapped or not */
bool fake_device_can_reach(uintptr_t address, size_t bytes);
bool fake_is_pageable(uintptr_t address, size_t bytes);
struct range *fake_range_add(enum range_kind kind, uintptr_t base, size_t bytes, size_t mapped_bytes);
void fake_range_drop(struct range *range, bool keep_address);
size_t fake_pages(size_t bytes);
void fake_memory_of_context_free(struct CUctx_st *context);
void fake_physical_unmapped(struct physical *physical);
size_t fake_physical_count(void);
size_t fake_memory_count(void);

/* --------------------------------------------------------------------- work */

/* Something that happens once; what events are made of. */
struct mark {
    unsigned references;
    bool done;
    uint64_t time_ns;
};

/* The state of an event that several processes share. */
struct shared_event {
    _Atomic uint64_t recorded, finished;
};

enum op_kind {
    OP_COPY,
    OP_SET,
    OP_MEM_OPS,
    OP_HOST,
    OP_KERNEL,
    OP_MARK,
    OP_AWAIT,
    OP_SHARE,
    OP_AWAIT_SHARED,
    OP_GRAPH
};

struct op {
    struct op *next;
    uint64_t ticket; /* of all operations of the process, in the order in which they were given */
    enum op_kind kind;
    uintptr_t to, from;
    bool to_device, from_device; /* the address was given as a device's */
    size_t bytes;
    unsigned value, width;
    unsigned op_count;
    union cuda_mem_op *ops; /* owned */
    cuda_host_function *function;
    void *argument;
    struct kernel *kernel;
    struct fake_cuda_launch launch;
    unsigned char *parameters; /* owned: kernel arguments one after another */
    struct mark *mark;         /* a reference */
    struct shared_event *shared;
    uint64_t sequence;
    struct CUgraphExec_st *graph; /* a reference */
};

struct kernel {
    struct kernel *next;
    char *name;
    fake_cuda_kernel *code;
    unsigned count;
    size_t sizes[16], parameter_bytes;
};

cuda_result_t fake_execute(const struct op *op, struct CUctx_st *context); /* without the lock */
struct op *fake_op_copy(const struct op *op);
void fake_op_free(struct op *op); /* with the lock */
struct mark *fake_mark_new(void);
void fake_mark_drop(struct mark *mark);
size_t fake_module_count(void);
void fake_modules_of_context_free(struct CUctx_st *context);
void fake_events_of_context_free(struct CUctx_st *context);

/* ------------------------------------------------------------------ streams */

struct CUstream_st {
    struct CUstream_st *next;
    struct CUctx_st *context;
    unsigned flags;
    bool closed; /* destroyed by its owner; ends when its work is done */
    bool ended;
    struct op *head, *tail;
    pthread_cond_t wake;
    struct capture *capture;
    struct CUgraphNode_st *dependencies[DEPENDENCIES_MAX]; /* of the next captured operation */
    unsigned dependency_count;
};

/* The stream of a handle, 0 being the context's NULL stream; NULL if there is no such stream. */
struct CUstream_st *fake_stream(CUstream handle);
cuda_result_t fake_stream_new(struct CUctx_st *context, unsigned flags, struct CUstream_st **stream);
void fake_streams_of_context_end(struct CUctx_st *context);
size_t fake_stream_count(void);

/* Takes over `op` whatever it returns: puts it on the stream, or into the graph that the stream is captured into. */
cuda_result_t fake_submit(struct CUstream_st *stream, struct op *op);
/* Waits (the lock is free meanwhile) until what was given to the stream, or to all of the context's, is done. */
cuda_result_t fake_wait_stream(struct CUstream_st *stream);
cuda_result_t fake_wait_context(struct CUctx_st *context);
size_t fake_event_count(void);

/* ----------------------------------------------------------------- captures */

struct capture {
    struct capture *next;
    unsigned mode, streams;
    uint64_t id;
    pthread_t thread;
    bool invalid;
    struct CUstream_st *origin;
    struct CUgraph_st *graph;
};

cuda_result_t fake_capture_op(struct CUstream_st *stream, struct op *op);
cuda_result_t fake_capture_join(struct CUstream_st *stream, struct capture *capture,
                                struct CUgraphNode_st *const *dependencies, unsigned count);
struct capture *fake_capture_find(uint64_t id);
bool fake_capture_forbids(void); /* and invalidates what it protects */
void fake_capture_leave(struct CUstream_st *stream);
cuda_result_t fake_graph_run(struct CUgraphExec_st *graph, struct CUctx_st *context);
void fake_graph_exec_drop(struct CUgraphExec_st *graph);
size_t fake_graph_count(void);

#endif
