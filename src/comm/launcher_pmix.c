/*
 * PMIx: Open MPI's mpirun, and Slurm with `--mpi=pmix`. libpmix.so.2 is loaded
 * when its launcher is there, so the library neither needs it to be built nor
 * to run. The few types used here are declared by hand after the PMIx standard
 * (they have kept their layout from version 2 on); where the header is found at
 * build time the compiler compares.
 *
 * Rank 0 puts the unique id, all meet in a fence, the others get it. The
 * non-blocking calls are used, because only they let us keep a deadline.
 * PMIx_Finalize is left for the exit of the process: PMIx cannot be relied on to
 * start twice, and the launcher takes a process that never finalized for crashed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sodium.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/bootstrap.h"
#include "comm/launcher_parts.h"
#include "system/error.h"
#include "system/log.h"
#include "system/settings.h"

#define HEX_BYTES (2 * POLYPATH_UNIQUE_ID_BYTES + 1)

/* The standard's values. */
#define STATUS_SUCCESS 0
#define STATUS_OPERATION_SUCCEEDED (-157) /* done at once, no callback will come */
#define SCOPE_GLOBAL 3
#define TYPE_STRING 3
#define TYPE_UINT32 14
#define RANK_ALL (UINT32_MAX - 1)
#define RANK_LARGEST (UINT32_MAX - 50)

struct pmix_process {
    char name_space[256];
    uint32_t rank;
};

struct pmix_datum {
    uint16_t type;
    union {
        char *string;
        uint32_t uint32;
        uint64_t room[4]; /* the real union is larger than what is used here */
    } data;
};

#if defined(__has_include)
#if __has_include(<pmix.h>)
#include <pmix.h>
_Static_assert(sizeof(struct pmix_process) == sizeof(pmix_proc_t), "pmix_proc_t");
_Static_assert(offsetof(struct pmix_process, rank) == offsetof(pmix_proc_t, rank), "pmix_proc_t.rank");
_Static_assert(sizeof(struct pmix_datum) >= sizeof(pmix_value_t), "pmix_value_t");
_Static_assert(offsetof(struct pmix_datum, data) == offsetof(pmix_value_t, data), "pmix_value_t.data");
_Static_assert(STATUS_SUCCESS == PMIX_SUCCESS && STATUS_OPERATION_SUCCEEDED == PMIX_OPERATION_SUCCEEDED, "status");
_Static_assert(SCOPE_GLOBAL == PMIX_GLOBAL && sizeof(pmix_scope_t) == 1, "scope");
_Static_assert(TYPE_STRING == PMIX_STRING && TYPE_UINT32 == PMIX_UINT32 && sizeof(pmix_data_type_t) == 2, "types");
_Static_assert(RANK_ALL == (PMIX_RANK_WILDCARD) && RANK_LARGEST == (PMIX_RANK_VALID), "ranks");
#endif
#endif

typedef void operation_done(int status, void *context);
typedef void value_done(int status, struct pmix_datum *value, void *context);

static struct {
    void *handle;
    int (*init)(struct pmix_process *self, void *info, size_t ninfo);
    int (*finalize)(void *info, size_t ninfo);
    int (*put)(uint8_t scope, const char *key, struct pmix_datum *value);
    int (*commit)(void);
    int (*fence)(const struct pmix_process *who, size_t count, void *info, size_t ninfo, operation_done *, void *);
    int (*get)(const struct pmix_process *who, const char *key, void *info, size_t ninfo, value_done *, void *);
    const char *(*error_string)(int status);
    struct pmix_process self;
    pid_t owner; /* a forked child must not finalize for its parent; 0: not started */
} pmix;

static bool find(void *into, const char *name)
{
    void *symbol = dlsym(pmix.handle, name);
    memcpy(into, &symbol, sizeof symbol); /* ISO C has no conversion from an object pointer to a function pointer */
    return symbol;
}

static bool load(void)
{
    if (pmix.handle)
        return true;
    pmix.handle = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!pmix.handle) {
        log_line(LOG_LEVEL_WARN, "the launcher offers PMIx, but it cannot be used here: %s", dlerror());
        return false;
    }
    if (find(&pmix.init, "PMIx_Init") && find(&pmix.finalize, "PMIx_Finalize") && find(&pmix.put, "PMIx_Put") &&
        find(&pmix.commit, "PMIx_Commit") && find(&pmix.fence, "PMIx_Fence_nb") && find(&pmix.get, "PMIx_Get_nb") &&
        find(&pmix.error_string, "PMIx_Error_string"))
        return true;
    log_line(LOG_LEVEL_WARN, "the launcher offers PMIx, but libpmix.so.2 is not as expected: %s", dlerror());
    dlclose(pmix.handle);
    pmix.handle = NULL;
    return false;
}

static bool present(void)
{
    return launcher_has("PMIX_NAMESPACE") && launcher_has("PMIX_RANK") && load();
}

static polypath_result_t failed(const char *what, int status)
{
    return error_set(POLYPATH_ERROR_SYSTEM, "launcher pmix: %s failed: %s", what, pmix.error_string(status));
}

/* What a callback leaves for the waiter. Both hold it: after a time-out the callback may still come. */
struct answer {
    pthread_mutex_t mutex;
    pthread_cond_t came;
    int holders;
    bool done;
    int status;
    uint32_t number;
    char text[HEX_BYTES];
};

static struct answer *answer_make(void)
{
    struct answer *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->came, &monotonic);
    pthread_condattr_destroy(&monotonic);
    a->holders = 2;
    return a;
}

static void answer_release(struct answer *a, int holders)
{
    pthread_mutex_lock(&a->mutex);
    a->holders -= holders;
    bool last = !a->holders;
    pthread_mutex_unlock(&a->mutex);
    if (!last)
        return;
    pthread_cond_destroy(&a->came);
    pthread_mutex_destroy(&a->mutex);
    sodium_memzero(a, sizeof *a);
    free(a);
}

static void value_came(int status, struct pmix_datum *value, void *context)
{
    struct answer *a = context;
    pthread_mutex_lock(&a->mutex);
    a->done = true;
    a->status = status;
    if (status == STATUS_SUCCESS && value && value->type == TYPE_STRING && value->data.string)
        snprintf(a->text, sizeof a->text, "%s", value->data.string);
    if (status == STATUS_SUCCESS && value && value->type == TYPE_UINT32)
        a->number = value->data.uint32;
    pthread_cond_signal(&a->came);
    pthread_mutex_unlock(&a->mutex);
    answer_release(a, 1);
}

static void operation_came(int status, void *context)
{
    value_came(status, NULL, context);
}

/* `started` is what the call that took `a` returned. Waits, and copies what came to *into (which may be NULL). */
static polypath_result_t await(struct answer *a, int started, const char *what, const struct timespec *deadline,
                               struct answer *into)
{
    if (started != STATUS_SUCCESS) {
        answer_release(a, 2);
        return started == STATUS_OPERATION_SUCCEEDED ? POLYPATH_SUCCESS : failed(what, started);
    }
    int error = 0;
    pthread_mutex_lock(&a->mutex);
    while (!a->done && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&a->came, &a->mutex, deadline);
    bool done = a->done;
    int status = a->status;
    if (into && done) {
        into->number = a->number;
        memcpy(into->text, a->text, sizeof into->text);
    }
    pthread_mutex_unlock(&a->mutex);
    answer_release(a, 1);
    if (!done)
        return error_set(POLYPATH_ERROR_TIMEOUT, "launcher pmix: timed out in %s (a rank may have not come)", what);
    return status == STATUS_SUCCESS ? POLYPATH_SUCCESS : failed(what, status);
}

static polypath_result_t fence(const struct timespec *deadline)
{
    struct answer *a = answer_make();
    if (!a)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for the start-up");
    return await(a, pmix.fence(NULL, 0, NULL, 0, operation_came, a), "the fence of all ranks", deadline, NULL);
}

static polypath_result_t get(uint32_t rank, const char *key, const struct timespec *deadline, struct answer *into)
{
    struct pmix_process who = pmix.self;
    who.rank = rank;
    struct answer *a = answer_make();
    if (!a)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for the start-up");
    return await(a, pmix.get(&who, key, NULL, 0, value_came, a), key, deadline, into);
}

static void finalize_at_exit(void)
{
    if (pmix.owner == getpid())
        pmix.finalize(NULL, 0);
}

static polypath_result_t start(void)
{
    if (pmix.owner == getpid())
        return POLYPATH_SUCCESS;
    if (pmix.owner)
        return error_set(POLYPATH_ERROR_USAGE, "launcher pmix: this process was forked from a rank that had joined");
    int status = pmix.init(&pmix.self, NULL, 0);
    if (status != STATUS_SUCCESS)
        return failed("PMIx_Init", status);
    pmix.owner = getpid();
    atexit(finalize_at_exit);
    return POLYPATH_SUCCESS;
}

static polypath_result_t rank_and_size(struct launch *launch, const struct timespec *deadline)
{
    struct answer size = {.number = 0};
    polypath_result_t result = get(RANK_ALL, "pmix.job.size", deadline, &size);
    if (result != POLYPATH_SUCCESS)
        return result;
    if (size.number < 1 || size.number > BOOTSTRAP_SIZE_MAX || pmix.self.rank >= size.number)
        return error_set(POLYPATH_ERROR_ARGUMENT, "launcher pmix: rank %u of %u ranks is not possible",
                         (unsigned)pmix.self.rank, (unsigned)size.number);
    launch->rank = (int)pmix.self.rank;
    launch->size = (int)size.number;
    return POLYPATH_SUCCESS;
}

static polypath_result_t publish(const char *key, polypath_unique_id_t *id)
{
    char hex[HEX_BYTES];
    polypath_result_t result = bootstrap_serve(id, NULL);
    if (result != POLYPATH_SUCCESS)
        return result;
    bootstrap_format(id, hex);
    struct pmix_datum value = {.type = TYPE_STRING, .data.string = hex};
    int status = pmix.put(SCOPE_GLOBAL, key, &value);
    sodium_memzero(hex, sizeof hex);
    if (status != STATUS_SUCCESS)
        return failed("PMIx_Put", status);
    status = pmix.commit();
    return status == STATUS_SUCCESS ? POLYPATH_SUCCESS : failed("PMIx_Commit", status);
}

static polypath_result_t join(struct launch *launch)
{
    static atomic_uint joins;
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += (time_t)(settings_get()->timeout_ms / 1000);
    deadline.tv_nsec += (long)(settings_get()->timeout_ms % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_nsec -= 1000000000;
        deadline.tv_sec++;
    }
    polypath_result_t result = start();
    if (result == POLYPATH_SUCCESS)
        result = rank_and_size(launch, &deadline);
    char key[32];
    snprintf(key, sizeof key, "polypath-%u", launcher_count(&joins));
    if (result == POLYPATH_SUCCESS && launch->rank == 0)
        result = publish(key, &launch->id);
    if (result == POLYPATH_SUCCESS)
        result = fence(&deadline);
    if (result == POLYPATH_SUCCESS && launch->rank != 0) {
        struct answer id = {.number = 0};
        result = get(0, key, &deadline, &id);
        if (result == POLYPATH_SUCCESS)
            result = bootstrap_unformat(id.text, &launch->id);
        sodium_memzero(&id, sizeof id);
    }
    return result;
}

const struct launcher launcher_pmix = {"pmix", present, join};
