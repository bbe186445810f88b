/*
 * Launchers that start ranks but give them no channel (torchrun, plain srun):
 * every rank works out the same meeting place and secret from what all of them
 * know. That is no better a secret than the material is: a run id, job number,
 * address and user id keep jobs apart and accidents out, but whoever can read
 * them can join. The setting `secret` (variable POLYPATH_SECRET) is what makes
 * it a secret on a network that others can reach.
 */
#include <errno.h>
#include <netdb.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/bootstrap.h"
#include "comm/bootstrap_wire.h"
#include "comm/launcher_parts.h"
#include "system/error.h"
#include "system/log.h"
#include "system/settings.h"
#include "topology/interfaces.h"

#define SECRET_SHORT 16 /* characters below which a secret can be guessed */

unsigned launcher_count(atomic_uint *counter)
{
    return atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); /* a number, it orders nothing */
}

static polypath_result_t resolve(const struct derived_place *place, union bootstrap_sockaddr *addresses, int *count)
{
    int family = (int)settings_get()->ip_family;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_family = family == 4   ? AF_INET
                                          : family == 6 ? AF_INET6
                                                        : AF_UNSPEC};
    struct addrinfo *found;
    int error = getaddrinfo(place->host, NULL, &hints, &found);
    if (error)
        return error_set(POLYPATH_ERROR_SYSTEM, "launcher %s: cannot find the address of rank 0's host %.128s: %s",
                         place->launcher, place->host, error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    *count = 0;
    for (const struct addrinfo *a = found; a && *count < BOOTSTRAP_ADDRESSES_MAX; a = a->ai_next)
        if ((a->ai_family == AF_INET || a->ai_family == AF_INET6) && a->ai_addrlen <= sizeof *addresses)
            memcpy(&addresses[(*count)++], a->ai_addr, a->ai_addrlen);
    freeaddrinfo(found);
    if (!*count)
        return error_set(POLYPATH_ERROR_SYSTEM, "launcher %s: rank 0's host %.128s has no IPv4 or IPv6 address",
                         place->launcher, place->host);
    return POLYPATH_SUCCESS;
}

static polypath_result_t loopback(union bootstrap_sockaddr *addresses, int *count)
{
    struct interface found;
    polypath_result_t result = interfaces_loopback((int)settings_get()->ip_family, &found);
    if (result != POLYPATH_SUCCESS)
        return result;
    memset(addresses, 0, sizeof *addresses);
    if (found.address.any.sa_family == AF_INET6)
        addresses->v6 = found.address.v6;
    else
        addresses->v4 = found.address.v4;
    *count = 1;
    return POLYPATH_SUCCESS;
}

/* Everything, each piece with its length in front so that no two sets of pieces look alike. The caller wipes and frees.
 */
static char *collect(const struct derived_place *place, const char *secret, size_t *bytes)
{
    static atomic_uint joins;
    char numbers[64];
    snprintf(numbers, sizeof numbers, "%lu %u", (unsigned long)getuid(), launcher_count(&joins));
    const char *pieces[4 + DERIVED_MATERIAL_MAX] = {"polypath derived 1", place->launcher, numbers, secret};
    size_t n = 4;
    for (size_t i = 0; i < DERIVED_MATERIAL_MAX; i++)
        pieces[n++] = place->material[i] ? place->material[i] : "";
    size_t room = 1;
    for (size_t i = 0; i < n; i++)
        room += strlen(pieces[i]) + 24;
    char *text = malloc(room);
    size_t used = 0;
    for (size_t i = 0; text && i < n; i++)
        used += (size_t)snprintf(text + used, room - used, "%zu:%s", strlen(pieces[i]), pieces[i]);
    *bytes = used;
    return text;
}

polypath_result_t launcher_meet_derived(const struct derived_place *place, struct launch *launch)
{
    if (launch->size == 1)
        return bootstrap_alone(&launch->id);
    const char *secret = settings_get()->secret;
    if (*secret && strlen(secret) < SECRET_SHORT && launch->rank == 0)
        log_line(LOG_LEVEL_WARN, "setting secret is shorter than %d characters and can be guessed", SECRET_SHORT);
    union bootstrap_sockaddr addresses[BOOTSTRAP_ADDRESSES_MAX];
    int count = 0;
    polypath_result_t result = place->one_host ? loopback(addresses, &count) : resolve(place, addresses, &count);
    if (result != POLYPATH_SUCCESS)
        return result;
    const struct sockaddr *list[BOOTSTRAP_ADDRESSES_MAX];
    for (int i = 0; i < count; i++)
        list[i] = &addresses[i].any;
    size_t bytes;
    char *material = collect(place, secret, &bytes);
    if (!material)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for the start-up");
    result = bootstrap_derive(&launch->id, material, bytes, list, count, (uint16_t)place->first_port, place->span);
    sodium_memzero(material, bytes);
    free(material);
    /* Hosts may know rank 0's by different addresses, so it listens at all of them unless all ranks are here. */
    if (result == POLYPATH_SUCCESS && launch->rank == 0)
        result = bootstrap_serve_derived(&launch->id, !place->one_host);
    return result == POLYPATH_SUCCESS ? result : error_prefix(result, "launcher %s", place->launcher);
}
