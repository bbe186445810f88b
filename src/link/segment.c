/*
 * Making and mapping segments, and ringing bells. Only layout: what goes
 * through the channels is shm.c's and cma.c's business.
 */
#include "link/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "system/error.h"
#include "topology/numa.h"

#define PAGE 4096u

static size_t round_up(size_t n)
{
    return (n + PAGE - 1) & ~(size_t)(PAGE - 1);
}

static size_t channel_stride(size_t slot_bytes)
{
    return round_up(sizeof(struct channel)) + SEGMENT_DEPTH * slot_bytes;
}

static size_t stage_size(size_t stage_bytes)
{
    return stage_bytes ? round_up(sizeof(struct stage_memory) + (size_t)2 * STAGE_DEPTH * stage_bytes) : 0;
}

static size_t segment_size(int nchannels, size_t slot_bytes, size_t stage_bytes)
{
    return PAGE + round_up(sizeof(struct board_memory)) + (size_t)nchannels * channel_stride(slot_bytes) +
           stage_size(stage_bytes);
}

static void initialise(struct segment *s)
{
    for (int c = 0; c < s->nchannels; c++) {
        struct channel *channel = segment_channel(s, c);
        for (unsigned i = 0; i < SEGMENT_DEPTH; i++)
            atomic_init(&channel->slots[i].turn, i);
        for (unsigned i = 0; i < SEGMENT_CMA_DEPTH; i++)
            atomic_init(&channel->cma[i].turn, i);
        atomic_init(&channel->cma_done, 0);
    }
}

/* Before the first page is there: the memory keeps this policy of its own, whoever maps it and touches it later. */
static bool place(const struct segment *s, int node)
{
    if (node == NUMA_UNBOUND)
        return true;
    void *base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (base == MAP_FAILED)
        return false;
    const bool placed = numa_place(base, s->bytes, node);
    munmap(base, s->bytes);
    return placed;
}

polypath_result_t segment_create(int nchannels, size_t slot_bytes, size_t stage_bytes, size_t cap, int node,
                                 struct segment **segment)
{
    while (stage_bytes && segment_size(nchannels, slot_bytes, stage_bytes) > cap)
        stage_bytes = stage_bytes > PAGE ? stage_bytes / 2 : 0;
    while (slot_bytes > PAGE && segment_size(nchannels, slot_bytes, 0) > cap)
        slot_bytes /= 2;
    if (segment_size(nchannels, slot_bytes, 0) > cap)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY,
                         "%d ranks on this host need %zu bytes of shared memory each, but shm_bytes allows %zu",
                         nchannels + 1, segment_size(nchannels, slot_bytes, 0), cap);
    struct segment *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    *s = (struct segment){.fd = -1,
                          .event_fd = -1,
                          .slot_bytes = slot_bytes,
                          .stage_bytes = stage_bytes,
                          .nchannels = nchannels,
                          .own = true};
    s->bytes = segment_size(nchannels, slot_bytes, stage_bytes);
    polypath_result_t result = POLYPATH_ERROR_OUT_OF_MEMORY;
    s->fd = memfd_create("polypath", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->fd < 0 || s->event_fd < 0) {
        error_set(result, "cannot create shared memory: %s%s", strerror(errno), error_advice(errno));
        goto fail;
    }
    /* allocate now: running out later would be a SIGBUS instead of an error, and pages that a peer touches first
     * would lie near the peer */
    int rc = ftruncate(s->fd, (off_t)s->bytes) ? errno : 0;
    if (!rc) {
        s->placed = place(s, node);
        rc = posix_fallocate(s->fd, 0, (off_t)s->bytes);
    }
    if (rc) {
        error_set(result, "cannot reserve %zu bytes of shared memory: %s", s->bytes, strerror(rc));
        goto fail;
    }
    if (fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        result = error_set(POLYPATH_ERROR_SYSTEM, "cannot seal shared memory: %s", strerror(errno));
        goto fail;
    }
    s->base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, s->fd, 0);
    if (s->base == MAP_FAILED) {
        s->base = NULL;
        error_set(result, "cannot map %zu bytes of shared memory: %s", s->bytes, strerror(errno));
        goto fail;
    }
    initialise(s);
    *segment = s;
    return POLYPATH_SUCCESS;
fail:
    segment_free(s);
    return result;
}

polypath_result_t segment_map(const struct segment_info *info, int fd, int event_fd, struct segment **segment)
{
    struct stat st;
    struct segment *s = calloc(1, sizeof *s);
    if (!s) {
        close(fd);
        close(event_fd);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    }
    *s = (struct segment){.fd = fd,
                          .event_fd = event_fd,
                          .bytes = info->bytes,
                          .slot_bytes = info->slot_bytes,
                          .stage_bytes = info->stage_bytes,
                          .nchannels = (int)info->nchannels};
    int seals = fcntl(fd, F_GET_SEALS);
    if (info->nchannels > 65536 || info->slot_bytes < PAGE || info->slot_bytes > (64u << 20) ||
        info->stage_bytes > (64u << 20) || info->stage_bytes % 64 || fstat(fd, &st) ||
        (uint64_t)st.st_size != info->bytes || seals < 0 || !(seals & F_SEAL_SHRINK) ||
        info->bytes != segment_size((int)info->nchannels, info->slot_bytes, info->stage_bytes)) {
        segment_free(s);
        return error_set(POLYPATH_ERROR_SYSTEM, "a local rank sent shared memory that does not fit its description");
    }
    s->base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (s->base == MAP_FAILED) {
        s->base = NULL;
        segment_free(s);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "cannot map a local rank's %zu bytes of shared memory: %s",
                         (size_t)info->bytes, strerror(errno));
    }
    close(s->fd);
    s->fd = -1;
    *segment = s;
    return POLYPATH_SUCCESS;
}

void segment_info(const struct segment *s, struct segment_info *info)
{
    *info = (struct segment_info){.slot_bytes = s->slot_bytes,
                                  .stage_bytes = s->stage_bytes,
                                  .bytes = s->bytes,
                                  .nchannels = (uint32_t)s->nchannels};
}

void segment_free(struct segment *s)
{
    if (!s)
        return;
    if (s->base)
        munmap(s->base, s->bytes);
    if (s->fd >= 0)
        close(s->fd);
    if (s->event_fd >= 0)
        close(s->event_fd);
    free(s);
}

struct abort_note *segment_abort_note(struct segment *s)
{
    return (struct abort_note *)(void *)(s->base + 1024); /* behind the bell, in the first page */
}

struct bell *segment_bell(struct segment *s)
{
    return (struct bell *)(void *)s->base;
}

struct board_memory *segment_board(struct segment *s)
{
    return (struct board_memory *)(void *)(s->base + PAGE);
}

struct stage_memory *segment_stage(struct segment *s)
{
    return s->stage_bytes ? (struct stage_memory *)(void *)segment_channel(s, s->nchannels) : NULL;
}

struct channel *segment_channel(struct segment *s, int index)
{
    return (struct channel *)(void *)(s->base + PAGE + round_up(sizeof(struct board_memory)) +
                                      (size_t)index * channel_stride(s->slot_bytes));
}

char *segment_slot_data(struct segment *s, int channel, int slot)
{
    return (char *)segment_channel(s, channel) + round_up(sizeof(struct channel)) + (size_t)slot * s->slot_bytes;
}

/* Whether this process takes part in the barriers of others. Once true it stays so, also across fork. */
static atomic_bool registered;

void segment_promise_barrier(struct segment *s)
{
    if (!atomic_load_explicit(&registered, memory_order_relaxed)) {
        long can = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
        if (can < 0 || !(can & MEMBARRIER_CMD_GLOBAL_EXPEDITED) ||
            syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0))
            return;
        atomic_store_explicit(&registered, true, memory_order_relaxed);
    }
    atomic_store_explicit(&segment_bell(s)->barrier, 1, memory_order_release);
}

/*
 * The fence of who has published work for the owner of `bell`, before looking
 * whether it sleeps. True if it was one that counts for all owners.
 */
static bool fence_ringer(const struct bell *bell)
{
    if (atomic_load_explicit(&registered, memory_order_relaxed) &&
        atomic_load_explicit(&bell->barrier, memory_order_relaxed)) {
        atomic_signal_fence(memory_order_seq_cst); /* the compiler must keep the order; the owner sees to the CPU */
        return false;
    }
    atomic_thread_fence(memory_order_seq_cst);
    return true;
}

void bell_fence_sleeper(const struct bell *bell)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&bell->barrier, memory_order_relaxed))
        syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0); /* cannot fail once registered */
}

/* Rings the bell if its owner sleeps; the fence has been done. */
static void ring_sleeper(struct segment *s)
{
    struct bell *bell = segment_bell(s);
    unsigned state = atomic_load_explicit(&bell->sleeping, memory_order_relaxed);
    if (state == BELL_AWAKE)
        return;
    atomic_fetch_add_explicit(&bell->word, 1, memory_order_release);
    if (state == BELL_FUTEX) {
        syscall(SYS_futex, &bell->word, FUTEX_WAKE, 1, NULL, NULL, 0);
    } else {
        uint64_t one = 1;
        if (write(s->event_fd, &one, sizeof one) < 0)
            return; /* EAGAIN: it has been rung often enough */
    }
}

void segment_ring(struct segment *s)
{
    /* pairs with the fence of the sleeper: the work before this fence, or the flag after it, is seen */
    fence_ringer(segment_bell(s));
    ring_sleeper(s);
}

void segment_ring_others(struct segment *const *segments, int count, int self)
{
    bool fenced = false;
    for (int i = 0; i < count; i++) {
        if (i == self)
            continue;
        if (!fenced) /* as in segment_ring */
            fenced = fence_ringer(segment_bell(segments[i]));
        ring_sleeper(segments[i]);
    }
}
