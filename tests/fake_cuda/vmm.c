/*
 * The fake's virtual memory management: reserved addresses, physical memory
 * (a memfd, so that it can be given to another process as a descriptor), and
 * mappings of one at the other. Nothing here waits for streams.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_cuda/internal.h"

#define GRANULARITY ((size_t)2 << 20)

struct physical {
    struct physical *next;
    unsigned handles, mappings;
    size_t bytes;
    int fd, device;
    bool exportable;
};

struct reservation {
    struct reservation *next;
    uintptr_t base;
    size_t bytes;
};

static struct physical *all;
static struct reservation *reservations;

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    for (struct physical *p = all; p; p = p->next)
        if ((uintptr_t)p == (uintptr_t)handle && p->handles)
            return p;
    return NULL;
}

static void free_if_unused(struct physical *physical)
{
    if (physical->handles || physical->mappings)
        return;
    struct physical **p = &all;
    while (*p != physical)
        p = &(*p)->next;
    *p = physical->next;
    close(physical->fd);
    free(physical);
}

static cuda_result_t add_physical(int fd, size_t bytes, int device, bool exportable,
                                  CUmemGenericAllocationHandle *handle)
{
    struct physical *p = calloc(1, sizeof *p);
    if (!p) {
        close(fd);
        return CUDA_IS_OUT_OF_MEMORY;
    }
    *p = (struct physical){.next = all, .handles = 1, .bytes = bytes, .fd = fd, .device = device};
    p->exportable = exportable;
    all = p;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
    return CUDA_IS_OK;
}

size_t fake_physical_count(void)
{
    size_t count = 0;
    for (const struct physical *p = all; p; p = p->next)
        count++;
    return count;
}

static bool valid_properties(const struct cuda_allocation *properties)
{
    return properties && properties->type == CUDA_ALLOCATION_PINNED &&
           properties->location.type == CUDA_LOCATION_DEVICE && properties->location.id >= 0 &&
           properties->location.id < fake_settings.devices &&
           !(properties->handle_types & ~(unsigned)CUDA_HANDLE_POSIX_FILE_DESCRIPTOR);
}

EXPORT cuda_result_t cuMemGetAllocationGranularity(size_t *bytes, const struct cuda_allocation *properties,
                                                   unsigned option)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    if (!bytes || option > CUDA_GRANULARITY_RECOMMENDED || !valid_properties(properties))
        return fake_leave(CUDA_IS_INVALID_VALUE);
    *bytes = GRANULARITY;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                                 const struct cuda_allocation *properties, unsigned long long flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    if (!handle || !bytes || bytes % GRANULARITY || flags || !valid_properties(properties))
        return fake_leave(CUDA_IS_INVALID_VALUE);
    const int fd = memfd_create("fake-cuda-vmm", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
        if (fd >= 0)
            close(fd);
        return fake_leave(CUDA_IS_OUT_OF_MEMORY);
    }
    return fake_leave(add_physical(fd, bytes, properties->location.id, properties->handle_types != 0, handle));
}

EXPORT cuda_result_t cuMemRelease(CUmemGenericAllocationHandle handle)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    struct physical *p = physical_of(handle);
    if (!p)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    p->handles--;
    free_if_unused(p);
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    struct range *r = fake_range_at((uintptr_t)address);
    if (!handle || !r || r->kind != RANGE_MAPPED)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    r->physical->handles++;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)r->physical;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, unsigned type,
                                                  unsigned long long flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    const struct physical *p = physical_of(handle);
    if (!p || !shareable || flags || type != CUDA_HANDLE_POSIX_FILE_DESCRIPTOR || !p->exportable)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    const int fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return fake_leave(CUDA_IS_OPERATING_SYSTEM);
    *(int *)shareable = fd;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                                    unsigned type)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    struct stat status;
    if (!handle || type != CUDA_HANDLE_POSIX_FILE_DESCRIPTOR)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    const int fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    if (fstat(fd, &status) || !status.st_size || (size_t)status.st_size % GRANULARITY) {
        close(fd);
        return fake_leave(CUDA_IS_INVALID_VALUE);
    }
    return fake_leave(add_physical(fd, (size_t)status.st_size, 0, true, handle));
}

/* ----------------------------------------------------------------- addresses */

EXPORT cuda_result_t cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                         unsigned long long flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    (void)wanted; /* a hint */
    if (!address || !bytes || bytes % GRANULARITY || flags || (alignment & (alignment - 1)))
        return fake_leave(CUDA_IS_INVALID_VALUE);
    const size_t align = alignment > GRANULARITY ? alignment : GRANULARITY;
    struct reservation *r = malloc(sizeof *r);
    void *base = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!r || base == MAP_FAILED) {
        if (base != MAP_FAILED)
            munmap(base, bytes + align);
        free(r);
        return fake_leave(CUDA_IS_OUT_OF_MEMORY);
    }
    const uintptr_t first = (uintptr_t)base, aligned = (first + align - 1) / align * align;
    if (aligned > first)
        munmap(base, aligned - first);
    munmap((void *)(aligned + bytes), first + align - aligned);
    *r = (struct reservation){reservations, aligned, bytes};
    reservations = r;
    *address = (CUdeviceptr)aligned;
    return fake_leave(CUDA_IS_OK);
}

EXPORT cuda_result_t cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    for (struct reservation **p = &reservations; *p; p = &(*p)->next) {
        struct reservation *r = *p;
        if (r->base != (uintptr_t)address || r->bytes != bytes)
            continue;
        for (uintptr_t at = r->base; at < r->base + r->bytes; at += GRANULARITY)
            if (fake_range_at(at))
                return fake_leave(CUDA_IS_INVALID_VALUE); /* something is still mapped there */
        *p = r->next;
        munmap((void *)r->base, r->bytes);
        free(r);
        return fake_leave(CUDA_IS_OK);
    }
    return fake_leave(CUDA_IS_INVALID_VALUE);
}

bool fake_is_reserved(uintptr_t address)
{
    for (const struct reservation *r = reservations; r; r = r->next)
        if (address >= r->base && address - r->base < r->bytes)
            return true;
    return false;
}

static bool reserved_and_free(uintptr_t address, size_t bytes)
{
    for (const struct reservation *r = reservations; r; r = r->next) {
        if (address < r->base || address + bytes > r->base + r->bytes)
            continue;
        for (uintptr_t at = address; at < address + bytes; at += GRANULARITY)
            if (fake_range_at(at))
                return false;
        return true;
    }
    return false;
}

EXPORT cuda_result_t cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                              unsigned long long flags)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    struct physical *p = physical_of(handle);
    const uintptr_t base = (uintptr_t)address;
    if (!p || !bytes || bytes % GRANULARITY || base % GRANULARITY || offset || flags || bytes > p->bytes ||
        !reserved_and_free(base, bytes))
        return fake_leave(CUDA_IS_INVALID_VALUE);
    if (mmap((void *)base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, p->fd, 0) == MAP_FAILED)
        return fake_leave(CUDA_IS_MAP_FAILED);
    struct range *r = fake_range_add(RANGE_MAPPED, base, bytes, bytes);
    if (!r)
        return fake_leave(CUDA_IS_OUT_OF_MEMORY);
    r->physical = p;
    r->device = p->device;
    p->mappings++;
    return fake_leave(CUDA_IS_OK);
}

/* Work that was given before and still uses the address fails: unmapping does not wait for it. */
EXPORT cuda_result_t cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT | NOT_IN_CAPTURE);
    if (result)
        return result;
    struct range *r = fake_range_at((uintptr_t)address);
    if (!r || r->kind != RANGE_MAPPED || r->base != (uintptr_t)address || r->bytes != bytes)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    struct physical *p = r->physical;
    fake_range_drop(r, false);
    pthread_rwlock_wrlock(&fake_memory);
    void *again = mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    pthread_rwlock_unlock(&fake_memory);
    p->mappings--;
    free_if_unused(p);
    return fake_leave(again == MAP_FAILED ? CUDA_IS_MAP_FAILED : CUDA_IS_OK);
}

EXPORT cuda_result_t cuMemSetAccess(CUdeviceptr address, size_t bytes, const struct cuda_access *access, size_t count)
{
    cuda_result_t result = fake_enter(__func__, NEEDS_INIT);
    if (result)
        return result;
    const uintptr_t base = (uintptr_t)address;
    if (!access || !count || !bytes || bytes % GRANULARITY)
        return fake_leave(CUDA_IS_INVALID_VALUE);
    for (uintptr_t at = base; at < base + bytes; at += GRANULARITY) {
        const struct range *r = fake_range_at(at);
        if (!r || r->kind != RANGE_MAPPED)
            return fake_leave(CUDA_IS_INVALID_VALUE);
    }
    const unsigned flags = access[count - 1].flags;
    pthread_rwlock_wrlock(&fake_memory);
    for (uintptr_t at = base; at < base + bytes; at += GRANULARITY)
        fake_range_at(at)->access = flags;
    const bool set = !mprotect((void *)base, bytes, flags ? PROT_READ | PROT_WRITE : PROT_NONE);
    pthread_rwlock_unlock(&fake_memory);
    return fake_leave(set ? CUDA_IS_OK : CUDA_IS_OPERATING_SYSTEM);
}
