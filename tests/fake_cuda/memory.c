/*
 * The fake's memory: a table of address ranges. Device memory is a memfd, so
 * that another process can map it; the address of freed memory stays taken for
 * a while, so that using it is found.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_cuda/internal.h"

#define FREED_MAX 1024 /* addresses kept after their memory was freed */

pthread_rwlock_t fake_memory = PTHREAD_RWLOCK_INITIALIZER;

static struct range *ranges, *freed;
static unsigned freed_count;
static uint64_t next_id;

/* --------------------------------------------------------------------- table */

size_t fake_pages(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static struct range *find(struct range *list, uintptr_t address)
{
    for (struct range *r = list; r; r = r->next)
        if (r->kind != RANGE_RESERVED && address >= r->base && address - r->base < r->bytes)
            return r;
    return NULL;
}

struct range *fake_range_at(uintptr_t address)
{
    return find(ranges, address);
}

bool fake_was_freed(uintptr_t address)
{
    return !find(ranges, address) && find(freed, address);
}

bool fake_device_can_reach(uintptr_t address, size_t bytes)
{
    const uintptr_t end = address + bytes;
    if (end < address)
        return false;
    do { /* neighbouring mappings may be used as one */
        const struct range *r = find(ranges, address);
        if (!r || (r->kind == RANGE_MAPPED && r->access != CUDA_ACCESS_READ_WRITE))
            return false;
        address = r->base + r->bytes;
    } while (address < end);
    return true;
}

bool fake_is_pageable(uintptr_t address, size_t bytes)
{
    return !fake_device_can_reach(address, bytes ? bytes : 1);
}

struct range *fake_range_add(enum range_kind kind, uintptr_t base, size_t bytes, size_t mapped_bytes)
{
    struct range *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    *r = (struct range){.kind = kind, .base = base, .bytes = bytes, .mapped_bytes = mapped_bytes, .fd = -1};
    r->id = ++next_id;
    r->references = 1;
    r->context = fake_context();
    r->device = r->context ? r->context->device : 0;
    pthread_rwlock_wrlock(&fake_memory);
    r->next = ranges;
    ranges = r;
    pthread_rwlock_unlock(&fake_memory);
    return r;
}

/* The address stays taken, without memory, until FREED_MAX others were freed. */
static void keep_address(struct range *r)
{
    if (mmap((void *)r->base, r->mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) == MAP_FAILED) {
        free(r);
        return;
    }
    r->next = freed;
    freed = r;
    if (++freed_count <= FREED_MAX)
        return;
    struct range **last = &freed;
    while ((*last)->next)
        last = &(*last)->next;
    munmap((void *)(*last)->base, (*last)->mapped_bytes);
    free(*last);
    *last = NULL;
    freed_count--;
}

void fake_range_drop(struct range *range, bool keep)
{
    pthread_rwlock_wrlock(&fake_memory);
    for (struct range **p = &ranges; *p; p = &(*p)->next) {
        if (*p == range) {
            *p = range->next;
            break;
        }
    }
    if (range->fd >= 0)
        close(range->fd);
    if (keep)
        keep_address(range);
    else
        free(range);
    pthread_rwlock_unlock(&fake_memory);
}

void fake_memory_of_context_free(struct CUctx_st *context)
{
    for (struct range *r = ranges, *next; r; r = next) {
        next = r->next;
        if (r->context == context && r->kind != RANGE_MAPPED && r->kind != RANGE_RESERVED)
            fake_range_drop(r, r->kind != RANGE_REGISTERED);
    }
}

size_t fake_memory_count(void)
{
    size_t count = 0;
    for (const struct range *r = ranges; r; r = r->next)
        count++;
    return count;
}

/* -------------------------------------------------------------- device memory */

static size_t used_on(int device)
{
    size_t bytes = 0;
    for (const struct range *r = ranges; r; r = r->next)
        if (r->kind == RANGE_DEVICE && r->device == device)
            bytes += r->mapped_bytes;
    return bytes;
}

EXPORT cuda_result_t cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    if (result)
        return result;
    if (!address || !bytes)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    const size_t mapped = fake_pages(bytes);
    if (mapped < bytes || used_on(fake_context()->device) + mapped > fake_settings.memory_bytes)
        return fake_leave(CUDA_IS_OUT_OF_MEMORY);
    const int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
    void *base = MAP_FAILED;
    if (fd >= 0 && !ftruncate(fd, (off_t)mapped))
        base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct range *r = base == MAP_FAILED ? NULL : fake_range_add(RANGE_DEVICE, (uintptr_t)base, bytes, mapped);
    if (!r) {
        if (base != MAP_FAILED)
            munmap(base, mapped);
        if (fd >= 0)
            close(fd);
        return fake_leave(CUDA_IS_OUT_OF_MEMORY);
    }
    r->fd = fd;
    *address = (CUdeviceptr)r->base;
    return fake_leave(CUDA_IS_OK);
}

/* Frees waits until the device is idle: nothing that was given to it before can still use the memory. */
static cuda_result_t free_when_idle(uintptr_t address, enum range_kind kind, cuda_result_t otherwise)
{
    struct range *r = fake_range_at(address);
    if (!r || r->base != address || r->kind != kind)
        return otherwise;
    const uint64_t id = r->id;
    cuda_result_t result = fake_wait_context(r->context);
    if (result)
        return result;
    r = fake_range_at(address); /* the lock was free meanwhile */
    if (!r || r->id != id)
        return otherwise;
    fake_range_drop(r, kind != RANGE_REGISTERED);
    return CUDA_IS_OK;
}

EXPORT cuda_result_t cuMemFree_v2(CUdeviceptr address)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    if (result || !address)
        return result ? result : fake_leave(CUDA_IS_OK);
    return fake_leave(free_when_idle((uintptr_t)address, RANGE_DEVICE, CUDA_IS_INVALID_VALUE));
}

EXPORT cuda_result_t cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    const struct range *r = fake_range_at((uintptr_t)address);
    if (!r)
        return fake_leave(CUDA_IS_NOT_FOUND);
    if (base)
        *base = (CUdeviceptr)r->base;
    if (bytes)
        *bytes = r->bytes;
    return fake_leave(CUDA_IS_OK);
}

/* ---------------------------------------------------------------- host memory */

EXPORT cuda_result_t cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    if (result)
        return result;
    if (!address || !bytes || flags > 7)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    const size_t mapped = fake_pages(bytes);
    void *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return fake_leave(CUDA_IS_OUT_OF_MEMORY);
    if (!fake_range_add(RANGE_HOST, (uintptr_t)base, bytes, mapped)) {
        munmap(base, mapped);
        return fake_leave(CUDA_IS_OUT_OF_MEMORY);
    }
    *address = base;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuMemFreeHost(void *address)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    if (result || !address)
        return result ? result : fake_leave(CUDA_IS_OK);
    return fake_leave(free_when_idle((uintptr_t)address, RANGE_HOST, CUDA_IS_INVALID_VALUE));
}

static bool mapped_in_process(uintptr_t address, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = address / page * page;
    const size_t pages = (address + bytes - first + page - 1) / page;
    unsigned char *resident = malloc(pages);
    const bool mapped = resident && !mincore((void *)first, pages * page, resident);
    free(resident);
    return mapped;
}

EXPORT cuda_result_t cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    if (result)
        return result;
    const uintptr_t base = (uintptr_t)address;
    if (!base || !bytes || base + bytes < base || flags > 15 || !mapped_in_process(base, bytes))
        return fake_leave(CUDA_IS_INVALID_VALUE);
    for (const struct range *r = ranges; r; r = r->next)
        if (base < r->base + r->bytes && r->base < base + bytes)
            return fake_leave(CUDA_IS_HOST_MEMORY_ALREADY_REGISTERED);
    return fake_leave(fake_range_add(RANGE_REGISTERED, base, bytes, bytes) ? CUDA_IS_OK : CUDA_IS_OUT_OF_MEMORY);
}

EXPORT cuda_result_t cuMemHostUnregister(void *address)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    if (result)
        return result;
    return fake_leave(free_when_idle((uintptr_t)address, RANGE_REGISTERED, CUDA_IS_HOST_MEMORY_NOT_REGISTERED));
}

EXPORT cuda_result_t cuMemHostGetDevicePointer_v2(CUdeviceptr *on_device, void *address, unsigned flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    const struct range *r = fake_range_at((uintptr_t)address);
    if (!on_device || flags || !r || (r->kind != RANGE_HOST && r->kind != RANGE_REGISTERED))
        return fake_leave(CUDA_IS_INVALID_VALUE);
    *on_device = (CUdeviceptr)(uintptr_t)address;
    return fake_leave(CUDA_IS_OK);
}

/* ------------------------------------------------------------------ attributes */

static cuda_result_t attribute_of(const struct range *r, void *value, unsigned attribute, uintptr_t address)
{
    const bool host = r->kind == RANGE_HOST || r->kind == RANGE_REGISTERED;
    switch (attribute) {
    case CUDA_POINTER_CONTEXT: *(CUcontext *)value = r->kind == RANGE_MAPPED ? NULL : r->context; break;
    case CUDA_POINTER_MEMORY_TYPE: *(unsigned *)value = host ? CUDA_MEMORY_HOST : CUDA_MEMORY_DEVICE; break;
    case CUDA_POINTER_DEVICE_POINTER: *(CUdeviceptr *)value = (CUdeviceptr)address; break;
    case CUDA_POINTER_HOST_POINTER:
        if (!host)
            return CUDA_IS_INVALID_VALUE;
        *(void **)value = (void *)address;
        break;
    case CUDA_POINTER_BUFFER_ID: *(uint64_t *)value = r->id; break;
    case CUDA_POINTER_IS_MANAGED: *(unsigned *)value = 0; break;
    case CUDA_POINTER_DEVICE_ORDINAL: *(int *)value = r->device; break;
    case CUDA_POINTER_IS_LEGACY_IPC_CAPABLE: *(bool *)value = r->kind == RANGE_DEVICE; break;
    case CUDA_POINTER_RANGE_START_ADDR: *(CUdeviceptr *)value = (CUdeviceptr)r->base; break;
    case CUDA_POINTER_RANGE_SIZE: *(size_t *)value = r->bytes; break;
    case CUDA_POINTER_MAPPED: *(bool *)value = true; break;
    case CUDA_POINTER_ALLOWED_HANDLE_TYPES: *(uint64_t *)value = r->kind == RANGE_MAPPED; break;
    default: return CUDA_IS_INVALID_VALUE;
    }
    return CUDA_IS_OK;
}

EXPORT cuda_result_t cuPointerGetAttribute(void *value, unsigned attribute, CUdeviceptr address)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    const struct range *r = fake_range_at((uintptr_t)address);
    return fake_leave(r && value ? attribute_of(r, value, attribute, (uintptr_t)address) : CUDA_IS_INVALID_VALUE);
}

static size_t attribute_bytes(unsigned attribute)
{
    switch (attribute) {
    case CUDA_POINTER_IS_LEGACY_IPC_CAPABLE:
    case CUDA_POINTER_MAPPED: return sizeof(bool);
    case CUDA_POINTER_MEMORY_TYPE:
    case CUDA_POINTER_IS_MANAGED:
    case CUDA_POINTER_DEVICE_ORDINAL: return sizeof(int);
    default: return sizeof(void *);
    }
}

/* Unlike the above, what does not apply to an address is 0 and no error. */
EXPORT cuda_result_t cuPointerGetAttributes(unsigned count, unsigned *attributes, void **values, CUdeviceptr address)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    const struct range *r = fake_range_at((uintptr_t)address);
    for (unsigned i = 0; i < count; i++) {
        memset(values[i], 0, attribute_bytes(attributes[i]));
        if (attributes[i] == CUDA_POINTER_DEVICE_ORDINAL)
            *(int *)values[i] = -2;
        if (r)
            (void)attribute_of(r, values[i], attributes[i], (uintptr_t)address);
    }
    return fake_leave(CUDA_IS_OK);
}

/* ---------------------------------------------------- memory of other processes */

struct mem_handle { /* what is inside of struct cuda_ipc_handle */
    char magic[8];
    int pid, fd, device;
    uint64_t bytes, inode;
};
_Static_assert(sizeof(struct mem_handle) <= sizeof(struct cuda_ipc_handle), "an IPC handle has 64 bytes");

EXPORT cuda_result_t cuIpcGetMemHandle(struct cuda_ipc_handle *handle, CUdeviceptr address)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT);
    if (result)
        return result;
    const struct range *r = fake_range_at((uintptr_t)address);
    struct stat status;
    if (!r || r->kind != RANGE_DEVICE || fstat(r->fd, &status))
        return fake_leave(CUDA_IS_INVALID_VALUE);
    const struct mem_handle inside = {"fakemem", getpid(), r->fd, r->device, r->bytes, status.st_ino};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &inside, sizeof inside);
    return fake_leave(CUDA_IS_OK);
}

static struct range *opened_before(const struct mem_handle *inside)
{
    for (struct range *r = ranges; r; r = r->next) {
        struct stat status;
        if (r->kind == RANGE_IMPORTED && r->context == fake_context() && !fstat(r->fd, &status) &&
            status.st_ino == inside->inode)
            return r;
    }
    return NULL;
}

static cuda_result_t open_memory(const struct mem_handle *inside, CUdeviceptr *address)
{
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", inside->pid, inside->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return CUDA_IS_INVALID_VALUE; /* the process is gone, or has freed the memory */
    void *base = MAP_FAILED;
    const size_t mapped = fake_pages(inside->bytes);
    if (!fstat(fd, &status) && status.st_ino == inside->inode && (size_t)status.st_size == mapped)
        base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct range *r =
        base == MAP_FAILED ? NULL : fake_range_add(RANGE_IMPORTED, (uintptr_t)base, inside->bytes, mapped);
    if (!r) {
        if (base != MAP_FAILED)
            munmap(base, mapped);
        close(fd);
        return CUDA_IS_INVALID_VALUE;
    }
    r->fd = fd;
    r->device = inside->device;
    *address = (CUdeviceptr)r->base;
    return CUDA_IS_OK;
}

EXPORT cuda_result_t cuIpcOpenMemHandle_v2(CUdeviceptr *address, struct cuda_ipc_handle handle, unsigned flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    if (result)
        return result;
    struct mem_handle inside;
    memcpy(&inside, &handle, sizeof inside);
    if (!address || flags > 1 || memcmp(inside.magic, "fakemem", 8))
        return fake_leave(CUDA_IS_INVALID_VALUE);
    if (inside.pid == getpid())
        return fake_leave(CUDA_IS_INVALID_CONTEXT); /* as the real one: not in the process that owns the memory */
    struct range *r = opened_before(&inside);
    if (!r)
        return fake_leave(open_memory(&inside, address));
    r->references++;
    *address = (CUdeviceptr)r->base;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuIpcCloseMemHandle(CUdeviceptr address)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    if (result)
        return result;
    struct range *r = fake_range_at((uintptr_t)address);
    if (!r || r->kind != RANGE_IMPORTED || r->base != (uintptr_t)address)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    if (--r->references)
        return fake_leave(CUDA_IS_OK);
    r->references = 1;
    return fake_leave(free_when_idle(r->base, RANGE_IMPORTED, CUDA_IS_INVALID_VALUE));
}
