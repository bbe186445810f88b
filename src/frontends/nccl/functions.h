/*
 * Every function of NCCL's interface, once: FUNCTION(result, name, parameters).
 * Only names, no types, so that the test that compares them with NCCL's own
 * header can read this table beside it. Each exists with the prefix `nccl` and,
 * for profilers that put themselves between, with `pnccl`.
 */
#ifndef FRONTENDS_NCCL_FUNCTIONS_H
#define FRONTENDS_NCCL_FUNCTIONS_H

#define NCCL_FUNCTIONS(FUNCTION)                                                                                       \
    /* memory */                                                                                                       \
    FUNCTION(ncclResult_t, ncclMemAlloc, (void **ptr, size_t size))                                                    \
    FUNCTION(ncclResult_t, ncclMemFree, (void *ptr))                                                                   \
    FUNCTION(ncclResult_t, ncclCommRegister, (ncclComm_t comm, void *buff, size_t size, void **handle))                \
    FUNCTION(ncclResult_t, ncclCommDeregister, (ncclComm_t comm, void *handle))                                        \
    FUNCTION(ncclResult_t, ncclCommWindowRegister,                                                                     \
             (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags))                              \
    FUNCTION(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t win))                              \
    /* communicators: making them */                                                                                   \
    FUNCTION(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * uniqueId))                                                 \
    FUNCTION(ncclResult_t, ncclCommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank))           \
    FUNCTION(ncclResult_t, ncclCommInitRankConfig,                                                                     \
             (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config))                     \
    FUNCTION(ncclResult_t, ncclCommInitRankScalable,                                                                   \
             (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds, ncclConfig_t *config))     \
    FUNCTION(ncclResult_t, ncclCommInitAll, (ncclComm_t * comm, int ndev, const int *devlist))                         \
    FUNCTION(ncclResult_t, ncclCommSplit,                                                                              \
             (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config))                         \
    FUNCTION(ncclResult_t, ncclCommShrink,                                                                             \
             (ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,                      \
              ncclConfig_t *config, int shrinkFlags))                                                                  \
    /* and ending them */                                                                                              \
    FUNCTION(ncclResult_t, ncclCommFinalize, (ncclComm_t comm))                                                        \
    FUNCTION(ncclResult_t, ncclCommDestroy, (ncclComm_t comm))                                                         \
    FUNCTION(ncclResult_t, ncclCommAbort, (ncclComm_t comm))                                                           \
    FUNCTION(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int revokeFlags))                                         \
    /* what is asked of them */                                                                                        \
    FUNCTION(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * asyncError))                        \
    FUNCTION(ncclResult_t, ncclCommCount, (ncclComm_t comm, int *count))                                               \
    FUNCTION(ncclResult_t, ncclCommCuDevice, (ncclComm_t comm, int *device))                                           \
    FUNCTION(ncclResult_t, ncclCommUserRank, (ncclComm_t comm, int *rank))                                             \
    FUNCTION(ncclResult_t, ncclGetVersion, (int *version))                                                             \
    FUNCTION(const char *, ncclGetErrorString, (ncclResult_t result))                                                  \
    FUNCTION(const char *, ncclGetLastError, (ncclComm_t comm))                                                        \
    FUNCTION(void, ncclResetDebugInit, (void))                                                                         \
    /* operations */                                                                                                   \
    FUNCTION(                                                                                                          \
        ncclResult_t, ncclRedOpCreatePreMulSum,                                                                        \
        (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence, ncclComm_t comm))   \
    FUNCTION(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))                                        \
    FUNCTION(ncclResult_t, ncclReduce,                                                                                 \
             (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,   \
              ncclComm_t comm, cudaStream_t stream))                                                                   \
    FUNCTION(ncclResult_t, ncclBcast,                                                                                  \
             (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream))      \
    FUNCTION(ncclResult_t, ncclBroadcast,                                                                              \
             (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,  \
              cudaStream_t stream))                                                                                    \
    FUNCTION(ncclResult_t, ncclAllReduce,                                                                              \
             (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,             \
              ncclComm_t comm, cudaStream_t stream))                                                                   \
    FUNCTION(ncclResult_t, ncclReduceScatter,                                                                          \
             (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,         \
              ncclComm_t comm, cudaStream_t stream))                                                                   \
    FUNCTION(ncclResult_t, ncclAllGather,                                                                              \
             (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,        \
              cudaStream_t stream))                                                                                    \
    FUNCTION(ncclResult_t, ncclAlltoAll,                                                                               \
             (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,            \
              cudaStream_t stream))                                                                                    \
    FUNCTION(ncclResult_t, ncclGather,                                                                                 \
             (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,  \
              cudaStream_t stream))                                                                                    \
    FUNCTION(ncclResult_t, ncclScatter,                                                                                \
             (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,  \
              cudaStream_t stream))                                                                                    \
    FUNCTION(                                                                                                          \
        ncclResult_t, ncclSend,                                                                                        \
        (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)) \
    FUNCTION(ncclResult_t, ncclRecv,                                                                                   \
             (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream))  \
    /* groups */                                                                                                       \
    FUNCTION(ncclResult_t, ncclGroupStart, (void))                                                                     \
    FUNCTION(ncclResult_t, ncclGroupEnd, (void))                                                                       \
    FUNCTION(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * simInfo))

/* Declared by the header for device code beside the main one, without a name for profilers. */
#define NCCL_DEVICE_FUNCTIONS(FUNCTION)                                                                                \
    FUNCTION(ncclResult_t, ncclDevCommCreate,                                                                          \
             (ncclComm_t comm, const ncclDevCommRequirements_t *requirements, ncclDevComm_t *outDevComm))              \
    FUNCTION(ncclResult_t, ncclDevCommDestroy, (ncclComm_t comm, const ncclDevComm_t *devComm))

#endif
