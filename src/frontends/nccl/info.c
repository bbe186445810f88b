/*
 * NCCL's interface: the version, the names of errors, the one variable of NCCL
 * that is read, and what cannot be had here.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "frontends/nccl/internal.h"
#include "system/settings.h"

ncclResult_t nccl_translate(polypath_result_t result)
{
    switch (result) {
    case POLYPATH_SUCCESS: return ncclSuccess;
    case POLYPATH_ERROR_ARGUMENT: return ncclInvalidArgument;
    case POLYPATH_ERROR_USAGE:
    case POLYPATH_ERROR_MISMATCH:
    case POLYPATH_ERROR_UNSUPPORTED: return ncclInvalidUsage;
    case POLYPATH_ERROR_SYSTEM:
    case POLYPATH_ERROR_OUT_OF_MEMORY: return ncclSystemError;
    case POLYPATH_ERROR_TIMEOUT:
    case POLYPATH_ERROR_PEER_LOST:
    case POLYPATH_ERROR_ABORTED: return ncclRemoteError;
    default: return ncclInternalError;
    }
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[ncclNumResults] = {
        "no error",
        "a CUDA call failed; ncclGetLastError has its text",
        "the operating system refused something, or memory ran out; ncclGetLastError has its text",
        "a fault of the library; ncclGetLastError has its text",
        "an argument is wrong; ncclGetLastError says which",
        "a call that is not possible here or now, or calls that do not match; ncclGetLastError says why",
        "another rank is lost, does not answer, or has aborted; ncclGetLastError says which",
        "in progress",
    };
    return (unsigned)result < ncclNumResults ? texts[result] : "unknown result";
}
NCCL_PROFILED(ncclGetErrorString);

const char *ncclGetLastError(ncclComm_t comm)
{
    const char *text = polypath_last_error();
    if (*text || !comm || nccl_comm_check("ncclGetLastError", comm))
        return text;
    pthread_mutex_lock(&comm->lock);
    if (comm->failed)
        text = comm->failed_text; /* written once, and kept until the communicator goes */
    pthread_mutex_unlock(&comm->lock);
    return text;
}
NCCL_PROFILED(ncclGetLastError);

ncclResult_t ncclGetVersion(int *version)
{
    if (!version)
        return nccl_answer(NCCL_BAD("ncclGetVersion: version is NULL"));
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
NCCL_PROFILED(ncclGetVersion);

/* Settings are read once: there is nothing to reload. */
void ncclResetDebugInit(void) {}
NCCL_PROFILED(ncclResetDebugInit);

/* NCCL_DEBUG is what people set to see something; POLYPATH_LOG comes first. Before any thread can be there. */
__attribute__((constructor)) static void read_nccl_debug(void)
{
    const char *debug = getenv("NCCL_DEBUG");
    if (!debug)
        return;
    if (!strcasecmp(debug, "WARN"))
        settings_prefer("log", "warn");
    else if (!strcasecmp(debug, "INFO"))
        settings_prefer("log", "info");
    else if (!strcasecmp(debug, "TRACE"))
        settings_prefer("log", "debug");
}

/* --------------------------------------------------------- not to be had */

static ncclResult_t no_device_code(const char *name)
{
    return nccl_answer(error_set(POLYPATH_ERROR_UNSUPPORTED,
                                 "%s: kernels that communicate by themselves are not supported; use the operations "
                                 "of the host (ncclAllReduce and so on)",
                                 name));
}

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *requirements,
                               ncclDevComm_t *outDevComm)
{
    (void)comm, (void)requirements, (void)outDevComm;
    return no_device_code("ncclDevCommCreate");
}

ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm)
{
    (void)comm, (void)devComm;
    return no_device_code("ncclDevCommDestroy");
}
