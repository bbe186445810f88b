/*
 * For tests of NCCL's interface: the library as a program would load it, every
 * function by name. Ranks are processes (support/ranks.h) that load it for
 * themselves. Buffers are host memory: tests/nccl/on_host.c does the operations.
 */
#ifndef TESTS_NCCL_LOAD_H
#define TESTS_NCCL_LOAD_H

#include <dlfcn.h>
#include <string.h>

#include "frontends/nccl/functions.h"
#include "frontends/nccl/types.h"
#include "support/ranks.h"

#define NCCL_POINTER(result, name, parameters)                                                                         \
    result(*name) parameters;                                                                                          \
    result(*p##name) parameters;
#define NCCL_POINTER_DEVICE(result, name, parameters) result(*name) parameters;
struct nccl {
    void *library;
    NCCL_FUNCTIONS(NCCL_POINTER)
    NCCL_DEVICE_FUNCTIONS(NCCL_POINTER_DEVICE)
};

/* Once per rank. */
static inline struct nccl nccl_load(const struct rank *me)
{
    struct nccl n = {.library = dlopen(NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL)};
    CHECK(me, n.library, "%s", dlerror());
#define NCCL_LOOK_UP_ONE(name)                                                                                         \
    void *name##_found = dlsym(n.library, #name);                                                                      \
    CHECK(me, name##_found, "%s", dlerror());                                                                          \
    memcpy(&n.name, &name##_found, sizeof name##_found);
#define NCCL_LOOK_UP(result, name, parameters) NCCL_LOOK_UP_ONE(name) NCCL_LOOK_UP_ONE(p##name)
#define NCCL_LOOK_UP_DEVICE(result, name, parameters) NCCL_LOOK_UP_ONE(name)
    NCCL_FUNCTIONS(NCCL_LOOK_UP)
    NCCL_DEVICE_FUNCTIONS(NCCL_LOOK_UP_DEVICE)
    return n;
}

/* A number of the helper's unique ids, which are the library's own. */
static inline ncclUniqueId nccl_id(const struct rank *me, int index)
{
    ncclUniqueId id;
    memcpy(&id, &me->shared->ids[index], sizeof id);
    return id;
}

static inline ncclConfig_t nccl_config(int blocking)
{
    const int undefined = NCCL_CONFIG_UNDEF_INT;
    return (ncclConfig_t){.size = sizeof(ncclConfig_t),
                          .magic = NCCL_CONFIG_MAGIC,
                          .version = NCCL_VERSION_CODE,
                          .blocking = blocking,
                          .cgaClusterSize = undefined,
                          .minCTAs = undefined,
                          .maxCTAs = undefined,
                          .splitShare = 1,
                          .trafficClass = undefined,
                          .commName = "test",
                          .collnetEnable = undefined,
                          .CTAPolicy = undefined,
                          .shrinkShare = undefined,
                          .nvlsCTAs = undefined,
                          .nChannelsPerNetPeer = undefined,
                          .nvlinkCentricSched = undefined};
}

/* The call must give this; the text of the library is in the message if not. */
#define GIVES(me, n, expected, call)                                                                                   \
    do {                                                                                                               \
        const ncclResult_t result_ = (n)->call;                                                                        \
        CHECK(me, result_ == (expected), "%s gives %d: %s", #call, (int)result_, (n)->ncclGetLastError(NULL));         \
    } while (0)
#define GOES(me, n, call) GIVES(me, n, ncclSuccess, call)

/* A communicator of all ranks of the run, by the first of its ids. */
static inline ncclComm_t nccl_comm(const struct rank *me, const struct nccl *n)
{
    ncclComm_t comm = NULL;
    GOES(me, n, ncclCommInitRank(&comm, me->size, nccl_id(me, 0), me->rank));
    return comm;
}

/* Its ranks can work together: a sum over all of them comes out right. */
static inline void nccl_check_works(const struct rank *me, const struct nccl *n, ncclComm_t comm)
{
    int rank, size;
    GOES(me, n, ncclCommUserRank(comm, &rank));
    GOES(me, n, ncclCommCount(comm, &size));
    int64_t mine[3] = {rank + 1, 10, rank}, sum[3] = {0};
    GOES(me, n, ncclAllReduce(mine, sum, 3, ncclInt64, ncclSum, comm, NULL));
    CHECK(me, sum[0] == size * (size + 1) / 2 && sum[1] == 10 * size, "%lld and %lld of %d ranks", (long long)sum[0],
          (long long)sum[1], size);
}

#endif
