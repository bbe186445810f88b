/*
 * torchrun, and others that set the same variables (Kubernetes' PyTorchJob):
 * RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. MASTER_PORT itself belongs to
 * torch's own store, so the ranks meet at one of the ports behind it. There is
 * no private channel; what the secret is made of says launcher_derived.c.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/launcher_parts.h"
#include "system/error.h"
#include "system/log.h"
#include "system/settings.h"

#define SPAN 16 /* ports that are tried */

static bool present(void)
{
    bool place = launcher_has("MASTER_ADDR") || launcher_has("MASTER_PORT");
    return launcher_has("TORCHELASTIC_RUN_ID") || (place && (launcher_has("RANK") || launcher_has("WORLD_SIZE")));
}

static bool is_loopback_name(const char *host)
{
    return !strcmp(host, "localhost") || !strncmp(host, "127.", 4) || !strcmp(host, "::1");
}

static polypath_result_t join(struct launch *launch)
{
    long port, local_size = 0;
    polypath_result_t result = launcher_rank_size("torchrun", "RANK", "WORLD_SIZE", launch);
    if (result == POLYPATH_SUCCESS)
        result = launcher_number("torchrun", "MASTER_PORT", 1, 65535, &port);
    if (result == POLYPATH_SUCCESS && launcher_has("LOCAL_WORLD_SIZE"))
        result = launcher_number("torchrun", "LOCAL_WORLD_SIZE", 1, launch->size, &local_size);
    if (result != POLYPATH_SUCCESS)
        return result;
    const char *host = getenv("MASTER_ADDR"), *run = getenv("TORCHELASTIC_RUN_ID");
    if (!host || !*host)
        return error_set(POLYPATH_ERROR_ARGUMENT, "launcher torchrun: variable MASTER_ADDR is not set");
    struct derived_place place = {
        .launcher = "torchrun",
        .host = host,
        .one_host = local_size == launch->size || is_loopback_name(host),
        .first_port = port + SPAN <= 65535 ? (int)port + 1 : (int)port - SPAN,
        .span = SPAN,
        .material = {host, getenv("MASTER_PORT"), run, getenv("WORLD_SIZE"), getenv("TORCHELASTIC_RESTART_COUNT")},
    };
    bool weak = !run || !*run || !strcmp(run, "none");
    if (launch->rank == 0 && launch->size > 1 && weak && !place.one_host && !*settings_get()->secret)
        log_line(LOG_LEVEL_WARN, "torchrun gave no run id (--rdzv-id), so others on the network could guess how the "
                                 "ranks recognise each other; set POLYPATH_SECRET, the same on all ranks");
    return launcher_meet_derived(&place, launch);
}

const struct launcher launcher_torchrun = {"torchrun", present, join};
