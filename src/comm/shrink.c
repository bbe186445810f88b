/*
 * A communicator of some of another one's ranks, without the others, which may
 * be dead. So nothing goes over the parent: the ranks that are left derive the
 * same secret and meeting place from what all of them know of it, and the first
 * of them serves there.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "comm/bootstrap.h"
#include "comm/comm.h"

#define FIRST_PORT 15000 /* below the kernel's usual range of ephemeral ports */
#define PORTS 16000
#define SPAN 16

/* Who is left, in order of rank. Returns how many, or -1 with the error set. */
static int find_members(const struct polypath_comm *parent, const int *excluded, int nexcluded, int *members)
{
    for (int r = 0; r < parent->size; r++)
        members[r] = 1;
    for (int i = 0; i < nexcluded; i++) {
        const int r = excluded[i];
        if (r < 0 || r >= parent->size || r == parent->rank || !members[r]) {
            error_set(POLYPATH_ERROR_ARGUMENT, "rank %d cannot be left out: it is %s", r,
                      r == parent->rank            ? "the caller"
                      : r < 0 || r >= parent->size ? "not in the communicator"
                                                   : "named twice");
            return -1;
        }
        members[r] = 0;
    }
    int n = 0;
    for (int r = 0; r < parent->size; r++)
        if (members[r]) /* n <= r: not overwritten before it is looked at */
            members[n++] = r;
    return n;
}

/* Addresses at which the first member can be reached. Returns how many there are. */
static int find_addresses(const struct polypath_comm *parent, const int *members, int nmembers, struct interface *found,
                          bool *one_host)
{
    *one_host = true;
    for (int i = 1; i < nmembers; i++)
        *one_host = *one_host && parent->layout.host_of[members[i]] == parent->layout.host_of[members[0]];
    const struct rank_info *first = &parent->infos[members[0]];
    int n = 0;
    for (int i = 0; i < first->ninterfaces && n < BOOTSTRAP_ADDRESSES_MAX && !*one_host; i++)
        if (!first->interfaces[i].loopback)
            found[n++] = first->interfaces[i];
    if (!n && !interfaces_loopback((int)settings_get()->ip_family, &found[0]))
        n = 1;
    return n;
}

/* The id that all members come to by themselves, and the service of the first of them. */
static polypath_result_t meet(struct polypath_comm *parent, const int *members, int nmembers, polypath_unique_id_t *id)
{
    struct {
        uint8_t secret[HANDSHAKE_SECRET_BYTES];
        uint8_t members[crypto_generichash_BYTES];
        uint64_t id;
        uint64_t shrinks;
    } material;
    memset(&material, 0, sizeof material);
    memcpy(material.secret, parent->secret, sizeof material.secret);
    crypto_generichash(material.members, sizeof material.members, (const unsigned char *)members,
                       (size_t)nmembers * sizeof *members, NULL, 0);
    material.id = parent->id;
    material.shrinks = parent->shrinks++;
    unsigned char hash[crypto_generichash_BYTES];
    uint16_t number;
    crypto_generichash(hash, sizeof hash, (const unsigned char *)&material, sizeof material, NULL, 0);
    memcpy(&number, hash, sizeof number);
    struct interface found[BOOTSTRAP_ADDRESSES_MAX];
    const struct sockaddr *addresses[BOOTSTRAP_ADDRESSES_MAX];
    bool one_host;
    const int naddresses = find_addresses(parent, members, nmembers, found, &one_host);
    for (int i = 0; i < naddresses; i++)
        addresses[i] = &found[i].address.any;
    polypath_result_t result = bootstrap_derive(id, &material, sizeof material, addresses, naddresses,
                                                (uint16_t)(FIRST_PORT + number % PORTS), SPAN);
    sodium_memzero(&material, sizeof material);
    if (!result && members[0] == parent->rank)
        result = bootstrap_serve_derived(id, !one_host);
    return result;
}

polypath_result_t polypath_comm_shrink(polypath_comm_t parent, const int *excluded_ranks, int excluded_count,
                                       polypath_comm_t *new_comm, int flags)
{
    static const char name[] = "polypath_comm_shrink";
    if (!parent || !new_comm || (!excluded_ranks && excluded_count))
        return error_set(POLYPATH_ERROR_ARGUMENT, "%s: %s is NULL", name,
                         !parent     ? "parent"
                         : !new_comm ? "new_comm"
                                     : "excluded_ranks");
    *new_comm = NULL;
    if (excluded_count < 0 || excluded_count >= parent->size || flags & ~POLYPATH_SHRINK_ABORT)
        return error_set(POLYPATH_ERROR_ARGUMENT, "%s: %d of %d ranks, flags %d", name, excluded_count, parent->size,
                         flags);
    int *members = calloc((size_t)parent->size, sizeof *members);
    if (!members)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    const int nmembers = find_members(parent, excluded_ranks, excluded_count, members);
    polypath_result_t result = nmembers < 0 ? POLYPATH_ERROR_ARGUMENT : POLYPATH_SUCCESS;
    if (!result)
        result = flags & POLYPATH_SHRINK_ABORT ? polypath_comm_abort(parent) : comm_check(parent);
    polypath_unique_id_t id;
    int rank = 0;
    while (!result && members[rank] != parent->rank)
        rank++;
    if (!result)
        result = nmembers == 1 ? bootstrap_alone(&id) : meet(parent, members, nmembers, &id);
    if (!result)
        result = polypath_comm_create(new_comm, nmembers, id, rank);
    free(members);
    return result ? error_prefix(result, "%s", name) : POLYPATH_SUCCESS;
}
