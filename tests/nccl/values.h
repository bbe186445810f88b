/*
 * What a program compiled against NCCL's header has in it: every number,
 * size and offset, as one list that is compiled once with our declarations and
 * once with NCCL's.
 */
/* The formatter does not come to rest here. */
/* clang-format off */
#define NCCL_VALUES(VALUE) \
    VALUE(NCCL_MAJOR) VALUE(NCCL_MINOR) VALUE(NCCL_UNIQUE_ID_BYTES) VALUE(NCCL_CONFIG_UNDEF_INT) \
    VALUE(NCCL_SPLIT_NOCOLOR) VALUE(NCCL_UNDEF_FLOAT) VALUE(NCCL_WIN_DEFAULT) VALUE(NCCL_WIN_COLL_SYMMETRIC) \
    VALUE(NCCL_WIN_REQUIRED_ALIGNMENT) VALUE(NCCL_CTA_POLICY_DEFAULT) VALUE(NCCL_CTA_POLICY_EFFICIENCY) \
    VALUE(NCCL_CTA_POLICY_ZERO) VALUE(NCCL_SHRINK_DEFAULT) VALUE(NCCL_SHRINK_ABORT) VALUE(NCCL_REVOKE_DEFAULT) \
    VALUE(ncclSuccess) VALUE(ncclUnhandledCudaError) VALUE(ncclSystemError) VALUE(ncclInternalError) \
    VALUE(ncclInvalidArgument) VALUE(ncclInvalidUsage) VALUE(ncclRemoteError) VALUE(ncclInProgress) \
    VALUE(ncclNumResults) VALUE(ncclSum) VALUE(ncclProd) VALUE(ncclMax) VALUE(ncclMin) VALUE(ncclAvg) \
    VALUE(ncclNumOps) VALUE(ncclMaxRedOp) VALUE(ncclInt8) VALUE(ncclChar) VALUE(ncclUint8) VALUE(ncclInt32) \
    VALUE(ncclInt) VALUE(ncclUint32) VALUE(ncclInt64) VALUE(ncclUint64) VALUE(ncclFloat16) VALUE(ncclHalf) \
    VALUE(ncclFloat32) VALUE(ncclFloat) VALUE(ncclFloat64) VALUE(ncclDouble) VALUE(ncclBfloat16) \
    VALUE(ncclFloat8e4m3) VALUE(ncclFloat8e5m2) VALUE(ncclNumTypes) VALUE(ncclScalarDevice) \
    VALUE(ncclScalarHostImmediate) VALUE(sizeof(ncclUniqueId)) VALUE(sizeof(ncclResult_t)) \
    VALUE(sizeof(ncclRedOp_t)) VALUE(sizeof(ncclDataType_t)) VALUE(sizeof(ncclScalarResidence_t)) \
    VALUE((ncclResult_t)-1 > 0) VALUE((ncclRedOp_t)-1 > 0) VALUE((ncclDataType_t)-1 > 0) VALUE(sizeof(ncclConfig_t)) \
    VALUE(offsetof(ncclConfig_t, size)) VALUE(offsetof(ncclConfig_t, magic)) VALUE(offsetof(ncclConfig_t, version)) \
    VALUE(offsetof(ncclConfig_t, blocking)) VALUE(offsetof(ncclConfig_t, cgaClusterSize)) \
    VALUE(offsetof(ncclConfig_t, minCTAs)) VALUE(offsetof(ncclConfig_t, maxCTAs)) \
    VALUE(offsetof(ncclConfig_t, netName)) VALUE(offsetof(ncclConfig_t, splitShare)) \
    VALUE(offsetof(ncclConfig_t, trafficClass)) VALUE(offsetof(ncclConfig_t, commName)) \
    VALUE(offsetof(ncclConfig_t, collnetEnable)) VALUE(offsetof(ncclConfig_t, CTAPolicy)) \
    VALUE(offsetof(ncclConfig_t, shrinkShare)) VALUE(offsetof(ncclConfig_t, nvlsCTAs)) \
    VALUE(offsetof(ncclConfig_t, nChannelsPerNetPeer)) VALUE(offsetof(ncclConfig_t, nvlinkCentricSched)) \
    VALUE(sizeof(ncclSimInfo_t)) VALUE(offsetof(ncclSimInfo_t, size)) VALUE(offsetof(ncclSimInfo_t, magic)) \
    VALUE(offsetof(ncclSimInfo_t, version)) VALUE(offsetof(ncclSimInfo_t, estimatedTime)) \
    VALUE(_Alignof(ncclConfig_t)) VALUE(_Alignof(ncclSimInfo_t)) VALUE(_Alignof(ncclUniqueId))
/* clang-format on */

struct nccl_value {
    const char *name;
    double value;
};
#define VALUE(expression) {#expression, (double)(expression)},

extern const struct nccl_value nccl_our_values[];
extern const int nccl_our_value_count;
