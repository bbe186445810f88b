/*
 * Exports. See exports.h. The list of the process is short (programs register
 * a few large buffers), is only looked at for messages of some size, and then
 * under a lock; a process that has none never takes it.
 */
#include "link/exports.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "system/error.h"
#include "system/log.h"

#define PAGE 4096u
#define HUGE_PAGE (2u << 20)

/* ------------------------------------------------------------ the process */

struct area {
    char *base;
    size_t bytes;
    int fd;
    bool in_place; /* the pages replace private ones */
    unsigned holds;
    uint64_t serial; /* never used twice */
    struct area *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct area *areas; /* guarded by lock */
static uint64_t serials;   /* guarded by lock */
/* counts comings and goings, so that a communicator knows when to look; written under the lock, release */
static atomic_uint changes;
static atomic_uint alive; /* areas in the list; written under the lock */

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* The number in the line of `file` that begins with `label`; SIZE_MAX if there is none. */
static size_t read_number(const char *file, const char *label, size_t unit)
{
    FILE *f = fopen(file, "re");
    size_t number = SIZE_MAX;
    char line[256];
    while (f && number == SIZE_MAX && fgets(line, sizeof line, f)) {
        unsigned long long value;
        if (!strncmp(line, label, strlen(label)) && sscanf(line + strlen(label), "%llu", &value) == 1)
            number = (size_t)value * unit;
    }
    if (f)
        fclose(f);
    return number;
}

/* Bytes that may still be reserved: by the machine, and by the control group where that can be seen. */
static size_t available(void)
{
    const size_t machine = read_number("/proc/meminfo", "MemAvailable:", 1024);
    const size_t most = read_number("/sys/fs/cgroup/memory.max", "", 1);
    const size_t now = read_number("/sys/fs/cgroup/memory.current", "", 1);
    const size_t group = most == SIZE_MAX || now == SIZE_MAX ? SIZE_MAX : most > now ? most - now : 0;
    return machine < group ? machine : group;
}

/* A sealed anonymous file of `bytes`, not yet filled in; -1 with the error set. */
static int make_file(size_t bytes, unsigned flags, polypath_result_t *result)
{
    /* the kernel does not refuse what it does not have: it would kill processes for it, perhaps others than this one */
    const size_t most = flags & MFD_HUGETLB ? SIZE_MAX : available();
    if (bytes > most) {
        *result = error_set(POLYPATH_ERROR_OUT_OF_MEMORY,
                            "%zu bytes of shared memory do not fit into the %zu there are", bytes, most);
        return -1;
    }
    int fd = memfd_create("polypath", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    int code = fd < 0 ? errno : 0;
    if (!code && ftruncate(fd, (off_t)bytes))
        code = errno;
    if (!code && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        code = errno;
    if (!code)
        return fd;
    if (fd >= 0)
        close(fd);
    *result = error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "cannot reserve %zu bytes of shared memory: %s%s", bytes,
                        strerror(code), error_advice(code));
    return -1;
}

/* Addresses for `bytes`, at the beginning of a huge page if they are as long as one; NULL: none. */
static char *find_room(size_t bytes)
{
    const size_t unit = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE, more = bytes + unit - PAGE;
    char *all = mmap(NULL, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return NULL;
    char *base = (char *)round_up((uintptr_t)all, unit);
    if (base != all)
        munmap(all, (size_t)(base - all));
    if (more != bytes + (size_t)(base - all))
        munmap(base + bytes, more - bytes - (size_t)(base - all));
    return base;
}

/*
 * Maps a file, where the system gives huge pages for the asking on those, and
 * fills its pages in now. NULL: no memory; errno says why.
 */
static char *map_file(int fd, size_t bytes)
{
    char *base = find_room(round_up(bytes, PAGE));
    if (!base)
        return NULL;
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED) {
        if (bytes >= HUGE_PAGE)
            madvise(base, bytes, MADV_HUGEPAGE);
        /* EINVAL: the kernel is older than this advice (5.14); then pages come as they are touched */
        if (!madvise(base, bytes, MADV_POPULATE_WRITE) || errno == EINVAL)
            return base;
    }
    const int code = errno;
    munmap(base, round_up(bytes, PAGE));
    errno = code;
    return NULL;
}

static struct area *find_area(const void *begin, size_t bytes)
{
    for (struct area *a = areas; a; a = a->next)
        if ((const char *)begin >= a->base && bytes <= a->bytes &&
            (size_t)((const char *)begin - a->base) <= a->bytes - bytes)
            return a;
    return NULL;
}

static void add_area(struct area *a)
{
    a->serial = ++serials;
    a->next = areas;
    areas = a;
    atomic_fetch_add_explicit(&alive, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&changes, 1, memory_order_release);
}

static void remove_area(struct area *a)
{
    struct area **link = &areas;
    while (*link != a)
        link = &(*link)->next;
    *link = a->next;
    atomic_fetch_sub_explicit(&alive, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&changes, 1, memory_order_release);
}

/* Gives an area a file and its memory; false with the error set. */
static bool make_area(struct area *a, size_t bytes, unsigned flags, polypath_result_t *result)
{
    a->bytes = bytes;
    a->fd = make_file(bytes, flags, result);
    if (a->fd < 0)
        return false;
    a->base = map_file(a->fd, bytes);
    if (a->base)
        return true;
    *result =
        error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "cannot map %zu bytes of shared memory: %s", bytes, strerror(errno));
    close(a->fd);
    return false;
}

polypath_result_t exports_allocate(size_t bytes, void **memory)
{
    polypath_result_t result = POLYPATH_SUCCESS;
    struct area *a = calloc(1, sizeof *a);
    if (!a)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    a->fd = -1;
    const bool huge = bytes >= HUGE_PAGE; /* reserved huge pages first, if there are some */
    if (!huge || !make_area(a, round_up(bytes, HUGE_PAGE), MFD_HUGETLB, &result))
        make_area(a, round_up(bytes ? bytes : 1, PAGE), 0, &result);
    if (!a->base) {
        free(a);
        return result;
    }
    pthread_mutex_lock(&lock);
    add_area(a);
    pthread_mutex_unlock(&lock);
    *memory = a->base;
    return POLYPATH_SUCCESS;
}

polypath_result_t exports_free(void *memory)
{
    if (!memory)
        return POLYPATH_SUCCESS;
    polypath_result_t result = POLYPATH_SUCCESS;
    pthread_mutex_lock(&lock);
    struct area *a = find_area(memory, 1);
    if (!a || a->base != memory || a->in_place)
        result = error_set(POLYPATH_ERROR_ARGUMENT, "%p was not allocated by polypath_mem_alloc", memory);
    else if (a->holds)
        result = error_set(POLYPATH_ERROR_USAGE, "%p is still registered with a communicator", memory);
    else
        remove_area(a);
    pthread_mutex_unlock(&lock);
    if (result)
        return result;
    munmap(a->base, a->bytes);
    close(a->fd);
    free(a);
    return POLYPATH_SUCCESS;
}

/* ------------------------------------------------- memory that is there already */

/* Whether a line of /proc/self/maps is private anonymous memory that may be read and written. */
static bool ordinary(const char *flags, const char *name)
{
    return !strncmp(flags, "rw-p", 4) &&
           (!*name || *name == '\n' || !strncmp(name, "[heap]", 6) || !strncmp(name, "[anon", 5));
}

/* Whether all of [begin, begin + bytes) is ordinary memory. */
static bool all_ordinary(const char *begin, size_t bytes)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        return false;
    uintptr_t next = (uintptr_t)begin;
    const uintptr_t end = next + bytes;
    char line[512];
    while (next < end && fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        char flags[8];
        int at = 0;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %*s %n", &from, &to, flags, &at) < 3 || to <= next)
            continue;
        if (from > next || !ordinary(flags, at ? line + at : ""))
            break;
        next = to;
    }
    fclose(maps);
    return next >= end;
}

/* Puts pages with the same contents, of `fd` or (-1) private ones, into the place of [base, base + bytes). */
static bool replace(char *base, size_t bytes, int fd)
{
    char *fresh =
        fd >= 0 ? map_file(fd, bytes) : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!fresh || fresh == MAP_FAILED)
        return false;
    memcpy(fresh, base, bytes);
    if (mremap(fresh, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, base) != MAP_FAILED)
        return true;
    munmap(fresh, bytes);
    return false;
}

static polypath_result_t share_in_place(char *begin, size_t bytes, struct area **out)
{
    if ((uintptr_t)begin % PAGE || bytes % PAGE || !bytes)
        return error_set(POLYPATH_ERROR_UNSUPPORTED,
                         "%p, %zu bytes, is not whole pages of %u bytes: only such memory, or that of "
                         "polypath_mem_alloc, can be read by other processes in place",
                         (void *)begin, bytes, PAGE);
    if (!all_ordinary(begin, bytes))
        return error_set(POLYPATH_ERROR_UNSUPPORTED,
                         "%p, %zu bytes, is not private anonymous memory all through: it stays as it is", (void *)begin,
                         bytes);
    polypath_result_t result = POLYPATH_SUCCESS;
    struct area *a = calloc(1, sizeof *a);
    if (!a)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    *a = (struct area){.base = begin, .bytes = bytes, .in_place = true, .fd = make_file(bytes, 0, &result)};
    if (a->fd >= 0 && !replace(begin, bytes, a->fd)) {
        result = error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "cannot map %zu bytes of shared memory: %s", bytes,
                           strerror(errno));
        close(a->fd);
    }
    if (result) {
        free(a);
        return result;
    }
    *out = a;
    return POLYPATH_SUCCESS;
}

polypath_result_t exports_hold(void *begin, size_t bytes)
{
    polypath_result_t result = POLYPATH_SUCCESS;
    pthread_mutex_lock(&lock);
    struct area *a = find_area(begin, bytes);
    if (!a) {
        result = share_in_place(begin, bytes, &a);
        if (!result)
            add_area(a);
    }
    if (!result)
        a->holds++;
    pthread_mutex_unlock(&lock);
    return result;
}

void exports_let_go(void *begin)
{
    pthread_mutex_lock(&lock);
    struct area *a = find_area(begin, 1);
    if (a && a->holds && --a->holds == 0 && a->in_place) {
        remove_area(a);
        if (!replace(a->base, a->bytes, -1))
            log_line(LOG_LEVEL_WARN, "%p, %zu bytes, stays shared memory: %s", (void *)a->base, a->bytes,
                     strerror(errno));
        close(a->fd);
        free(a);
    }
    pthread_mutex_unlock(&lock);
}

/* -------------------------------------------------------- a communicator */

enum { MESSAGE_EXPORT = 1, MESSAGE_RECALL = 2 };

/* Between processes of one host; an export carries the descriptor. */
struct message {
    uint32_t kind;
    uint32_t number; /* recall: of the export; export: its own */
    uint64_t bytes;
};

struct told { /* what this rank has announced */
    uint64_t serial;
    uint32_t number;
    char *base;
    size_t bytes;
};

struct reach { /* what a peer has announced */
    uint32_t number;
    char *base;
    size_t bytes;
};

struct peer {
    uint32_t seen;
    int count, room;
    struct reach *reach;
};

struct exports {
    int size;
    const int *control_fds;
    uint32_t posted;
    unsigned changes; /* of the process, when this looked last */
    bool failed;
    int count, room;
    struct told *told;
    struct peer *peers;
};

struct exports *exports_open(int size, const int *control_fds)
{
    struct exports *e = calloc(1, sizeof *e);
    if (e)
        e->peers = calloc((size_t)size, sizeof *e->peers);
    if (!e || !e->peers) {
        free(e);
        return NULL;
    }
    e->size = size;
    e->control_fds = control_fds;
    return e;
}

void exports_close(struct exports *e)
{
    if (!e)
        return;
    for (int r = 0; r < e->size; r++) {
        for (int i = 0; i < e->peers[r].count; i++)
            munmap(e->peers[r].reach[i].base, e->peers[r].reach[i].bytes);
        free(e->peers[r].reach);
    }
    free(e->peers);
    free(e->told);
    free(e);
}

static void fail(struct exports *e, const char *what, int peer)
{
    if (!e->failed)
        log_line(LOG_LEVEL_WARN, "registered memory is not used any more: %s (rank %d)", what, peer);
    e->failed = true;
}

/* Sends a message to every peer. A peer that takes none (its socket is full) ends it for this communicator. */
static void post(struct exports *e, const struct message *message, int fd)
{
    e->posted++;
    for (int r = 0; r < e->size && !e->failed; r++) {
        if (e->control_fds[r] < 0)
            continue;
        union {
            struct cmsghdr header;
            char room[CMSG_SPACE(sizeof(int))];
        } control = {0};
        struct iovec data = {(void *)(uintptr_t)message, sizeof *message};
        struct msghdr header = {.msg_iov = &data, .msg_iovlen = 1};
        if (fd >= 0) {
            header.msg_control = control.room;
            header.msg_controllen = sizeof control.room;
            struct cmsghdr *c = CMSG_FIRSTHDR(&header);
            *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
            memcpy(CMSG_DATA(c), &fd, sizeof fd);
        }
        ssize_t n;
        do
            n = sendmsg(e->control_fds[r], &header, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        if (n != (ssize_t)sizeof *message)
            fail(e, n < 0 ? strerror(errno) : "a message went out in parts", r);
    }
}

/* Calls back what is gone. The list of the process is locked. */
static void recall_gone(struct exports *e)
{
    for (int i = 0; i < e->count && !e->failed;) {
        const struct area *a = find_area(e->told[i].base, 1);
        if (a && a->serial == e->told[i].serial) {
            i++;
            continue;
        }
        const struct message message = {MESSAGE_RECALL, e->told[i].number, 0};
        e->told[i] = e->told[--e->count];
        post(e, &message, -1);
    }
}

static struct told *tell(struct exports *e, const struct area *a)
{
    for (int i = 0; i < e->count; i++)
        if (e->told[i].serial == a->serial)
            return &e->told[i];
    if (e->count == e->room) {
        const int room = e->room ? 2 * e->room : 8;
        struct told *grown = realloc(e->told, (size_t)room * sizeof *grown);
        if (!grown)
            return NULL;
        e->told = grown;
        e->room = room;
    }
    const struct message message = {MESSAGE_EXPORT, e->posted + 1, a->bytes};
    post(e, &message, a->fd);
    if (e->failed)
        return NULL;
    e->told[e->count] = (struct told){a->serial, message.number, a->base, a->bytes};
    return &e->told[e->count++];
}

struct export_place exports_place(struct exports *e, const void *begin, size_t bytes)
{
    struct export_place place = {0};
    if (e->failed || (!e->count && !atomic_load_explicit(&alive, memory_order_relaxed)))
        return place;
    pthread_mutex_lock(&lock);
    const unsigned now = atomic_load_explicit(&changes, memory_order_relaxed);
    if (now != e->changes) {
        e->changes = now;
        recall_gone(e);
    }
    const struct area *a = find_area(begin, bytes);
    const struct told *told = a && !e->failed ? tell(e, a) : NULL;
    if (told)
        place = (struct export_place){.number = told->number, .offset = (uint64_t)((const char *)begin - told->base)};
    pthread_mutex_unlock(&lock);
    return place;
}

uint32_t exports_posted(const struct exports *e)
{
    return e->posted;
}

uint32_t exports_seen(const struct exports *e, int peer)
{
    return e->peers[peer].seen;
}

bool exports_failed(const struct exports *e)
{
    return e->failed;
}

/* Receives one message; the descriptor, if one came, or -1. False if there is none. */
static bool hear(int socket, struct message *message, int *fd)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {message, sizeof *message};
    struct msghdr header = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    ssize_t n;
    do
        n = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    *fd = -1;
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&header) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof *fd))
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return n == (ssize_t)sizeof *message;
}

static bool add_reach(struct peer *p, const struct message *m, int fd)
{
    struct stat st;
    if (fd < 0 || m->bytes == 0 || m->bytes > SIZE_MAX / 2 || fstat(fd, &st) || (uint64_t)st.st_size != m->bytes)
        return false;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return false;
    if (p->count == p->room) {
        const int room = p->room ? 2 * p->room : 8;
        struct reach *grown = realloc(p->reach, (size_t)room * sizeof *grown);
        if (!grown)
            return false;
        p->reach = grown;
        p->room = room;
    }
    char *base = map_file(fd, m->bytes);
    if (!base)
        return false;
    p->reach[p->count++] = (struct reach){m->number, base, m->bytes};
    return true;
}

static void drop_reach(struct peer *p, uint32_t number)
{
    for (int i = 0; i < p->count; i++) {
        if (p->reach[i].number != number)
            continue;
        munmap(p->reach[i].base, p->reach[i].bytes);
        p->reach[i] = p->reach[--p->count];
        return;
    }
}

bool exports_take(struct exports *e, int peer, uint32_t posted)
{
    struct peer *p = &e->peers[peer];
    /* more may have been taken in already: `posted` was said before calls that were queued then */
    while ((int32_t)(posted - p->seen) > 0 && !e->failed) {
        struct message m = {0};
        int fd = -1;
        if (!hear(e->control_fds[peer], &m, &fd))
            fail(e, "its message did not come through", peer);
        else if (m.kind == MESSAGE_RECALL)
            drop_reach(p, m.number);
        else if (m.kind != MESSAGE_EXPORT || !add_reach(p, &m, fd))
            fail(e, "its memory cannot be mapped", peer);
        if (fd >= 0)
            close(fd);
        p->seen++;
    }
    return !e->failed;
}

void *exports_address(const struct exports *e, int peer, struct export_place place, size_t bytes)
{
    const struct peer *p = &e->peers[peer];
    for (int i = 0; i < p->count; i++) {
        const struct reach *r = &p->reach[i];
        if (r->number == place.number)
            return bytes <= r->bytes && place.offset <= r->bytes - bytes ? r->base + place.offset : NULL;
    }
    return NULL;
}
