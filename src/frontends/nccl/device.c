/*
 * NCCL's interface: which GPU a communicator belongs to. Without a CUDA driver
 * there are none, and everything else works on host memory.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "frontends/nccl/internal.h"
#include "system/log.h"

int nccl_device_current(void)
{
    const struct cuda_driver *driver = cuda_driver_get(NULL);
    CUdevice device = 0;
    return driver && !driver->ctx_get_device(&device) ? device : 0;
}

polypath_result_t nccl_device_context(int device, CUcontext *context)
{
    const struct cuda_driver *driver = cuda_driver_get(NULL);
    *context = NULL;
    if (device < 0 || (driver && device >= driver->devices))
        return NCCL_BAD("there is no GPU %d (%d of them)", device, driver ? driver->devices : 0);
    if (!driver)
        return POLYPATH_SUCCESS;
    /* Never released, like the one that the CUDA runtime holds: the program may have memory in it. */
    CUdevice handle;
    polypath_result_t result = cuda_check(driver, driver->device_get(&handle, device), device, "cuDeviceGet");
    if (!result)
        result =
            cuda_check(driver, driver->device_primary_ctx_retain(context, handle), device, "cuDevicePrimaryCtxRetain");
    return result;
}

/* Who a rank's GPU is. Plain bytes. */
struct gpu {
    uint8_t there;
    struct cuda_uuid uuid;
};

polypath_result_t nccl_device_compare(polypath_comm_t inner, int device)
{
    if (inner->size == 1)
        return POLYPATH_SUCCESS;
    const struct cuda_driver *driver = cuda_driver_get(NULL);
    struct gpu mine = {0}, *all = calloc((size_t)inner->size, sizeof *all);
    if (!all)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    mine.there = driver && !driver->device_get_uuid(&mine.uuid, device);
    polypath_result_t result =
        comm_internal(inner, POLYPATH_COLLECTIVE_ALL_GATHER, &mine, all, sizeof mine, POLYPATH_UINT8, POLYPATH_SUM, -1);
    int gpus = 0, ranks = 0;
    for (int r = 0; r < inner->size && !result; r++) {
        bool first = all[r].there;
        for (int q = 0; q < r && first; q++)
            first = !all[q].there || memcmp(&all[q].uuid, &all[r].uuid, sizeof mine.uuid) != 0;
        gpus += first;
        ranks += all[r].there;
    }
    if (!result && inner->rank == 0 && gpus < ranks)
        log_line(LOG_LEVEL_WARN, "%d ranks share %d GPU%s: that works, but they share the speed as well", ranks, gpus,
                 gpus == 1 ? "" : "s");
    free(all);
    return result;
}
