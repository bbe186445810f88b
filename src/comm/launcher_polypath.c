/*
 * `polypath run`: the launcher's own process serves the unique id and hands it
 * to the ranks in their environment, which other users cannot read (unlike a
 * command line).
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "comm/bootstrap.h"
#include "comm/launcher_parts.h"
#include "system/error.h"

static bool present(void)
{
    return launcher_has("POLYPATH_RANK") || launcher_has("POLYPATH_SIZE") || launcher_has("POLYPATH_UNIQUE_ID");
}

static polypath_result_t join(struct launch *launch)
{
    polypath_result_t result = launcher_rank_size("polypath", "POLYPATH_RANK", "POLYPATH_SIZE", launch);
    if (result != POLYPATH_SUCCESS)
        return result;
    if (!launcher_has("POLYPATH_UNIQUE_ID"))
        return error_set(POLYPATH_ERROR_ARGUMENT,
                         "launcher polypath: POLYPATH_RANK and POLYPATH_SIZE are set but POLYPATH_UNIQUE_ID is not");
    result = bootstrap_unformat(getenv("POLYPATH_UNIQUE_ID"), &launch->id);
    if (result != POLYPATH_SUCCESS)
        return error_prefix(result, "launcher polypath: POLYPATH_UNIQUE_ID");
    static atomic_flag taken = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&taken)) /* sequentially consistent; once in a process */
        return error_set(POLYPATH_ERROR_USAGE,
                         "this process has already created the communicator of its job: polypath run gives one unique "
                         "id, for one communicator; make further ones with polypath_comm_split()");
    return POLYPATH_SUCCESS;
}

const struct launcher launcher_polypath = {"polypath", present, join};
