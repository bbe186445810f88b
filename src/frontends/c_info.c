/*
 * The C interface, second part: what a communicator is and does, ops, names.
 */
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"

#define BAD(...) error_set(POLYPATH_ERROR_ARGUMENT, __VA_ARGS__)

const char *polypath_result_name(polypath_result_t result)
{
    static const char *const names[] = {"success",   "argument", "usage",   "system",      "out of memory", "timeout",
                                        "peer lost", "mismatch", "aborted", "unsupported", "internal"};
    return (unsigned)result < sizeof names / sizeof names[0] ? names[result] : "unknown";
}

const char *polypath_last_error(void)
{
    return error_text();
}

int polypath_version(void)
{
    return POLYPATH_VERSION_MAJOR * 10000 + POLYPATH_VERSION_MINOR * 100 + POLYPATH_VERSION_PATCH;
}

polypath_result_t polypath_comm_rank(polypath_comm_t comm, int *rank)
{
    if (!comm || !rank)
        return BAD("polypath_comm_rank: %s is NULL", comm ? "rank" : "comm");
    *rank = comm->rank;
    return POLYPATH_SUCCESS;
}

polypath_result_t polypath_comm_size(polypath_comm_t comm, int *size)
{
    if (!comm || !size)
        return BAD("polypath_comm_size: %s is NULL", comm ? "size" : "comm");
    *size = comm->size;
    return POLYPATH_SUCCESS;
}

polypath_result_t polypath_comm_status(polypath_comm_t comm)
{
    return comm ? comm_check(comm) : BAD("polypath_comm_status: comm is NULL");
}

polypath_result_t polypath_op_create_scaled_sum(polypath_op_t *op, const void *scalar, polypath_type_t type,
                                                polypath_comm_t comm)
{
    if (!op || !scalar || !comm)
        return BAD("polypath_op_create_scaled_sum: %s is NULL", !op ? "op" : !scalar ? "scalar" : "comm");
    if (!polypath_type_bytes(type))
        return BAD("polypath_op_create_scaled_sum: unknown type %d", (int)type);
    for (int i = 0; i < SCALED_OPS; i++) {
        struct scaled_op *entry = &comm->scaled_ops[i];
        if (entry->used)
            continue;
        *entry = (struct scaled_op){.used = true, .type = type};
        memcpy(entry->scalar, scalar, polypath_type_bytes(type));
        *op = POLYPATH_OP_COUNT + i;
        return POLYPATH_SUCCESS;
    }
    return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "a communicator has room for %d scaled sums", SCALED_OPS);
}

polypath_result_t polypath_op_destroy(polypath_op_t op, polypath_comm_t comm)
{
    const int index = op - POLYPATH_OP_COUNT;
    if (!comm)
        return BAD("polypath_op_destroy: comm is NULL");
    if (index < 0 || index >= SCALED_OPS || !comm->scaled_ops[index].used)
        return BAD("polypath_op_destroy: op %d was not created on this communicator", op);
    comm->scaled_ops[index].used = false;
    return POLYPATH_SUCCESS;
}

/* ---------------------------------------------------------- looking inside */

polypath_result_t polypath_comm_path_count(polypath_comm_t comm, int *count)
{
    if (!comm || !count)
        return BAD("polypath_comm_path_count: %s is NULL", comm ? "count" : "comm");
    *count = comm->npaths;
    return POLYPATH_SUCCESS;
}

polypath_result_t polypath_comm_path_info(polypath_comm_t comm, int index, polypath_path_info_t *info)
{
    if (!comm || !info)
        return BAD("polypath_comm_path_info: %s is NULL", comm ? "info" : "comm");
    if (index < 0 || index >= comm->npaths)
        return BAD("polypath_comm_path_info: path %d is not in 0..%d", index, comm->npaths - 1);
    const struct comm_path *path = &comm->paths[index];
    drive_hold(comm);
    memset(info, 0, sizeof *info);
    memcpy(info->name, path->name, sizeof info->name);
    memcpy(info->kind, path->kind, sizeof info->kind);
    info->enabled = comm->allowed >> index & 1;
    info->latency_us = (double)path->latency_ns * 1e-3;
    info->bandwidth_gbps = (double)path->bytes_per_us * 1e-3;
    host_totals(comm->host, index, &info->bytes_sent, &info->messages_sent);
    info->bytes_sent += comm->staged_bytes[index];
    info->messages_sent += comm->staged_calls[index];
    drive_let_go(comm);
    return POLYPATH_SUCCESS;
}

polypath_result_t polypath_comm_use_paths(polypath_comm_t comm, const char *names)
{
    if (!comm)
        return BAD("polypath_comm_use_paths: comm is NULL");
    polypath_result_t result = comm_check(comm);
    if (result)
        return result;
    uint32_t wish = 0;
    for (const char *p = names ? names : ""; *p;) {
        const size_t word = strcspn(p, ",");
        int found = -1;
        for (int i = 0; i < comm->npaths; i++)
            if (strlen(comm->paths[i].name) == word && !strncmp(comm->paths[i].name, p, word))
                found = i;
        if (found < 0)
            return BAD("polypath_comm_use_paths: there is no path %.*s", (int)word, p);
        wish |= 1u << found;
        p += word;
        p += *p == ',';
    }
    if (!wish)
        wish = comm->working;
    if (wish & ~comm->working)
        return error_set(POLYPATH_ERROR_UNSUPPORTED, "one of the paths %s does not work between all ranks", names);
    if (comm->size == 1)
        return POLYPATH_SUCCESS;
    /* agree before anything changes, so that all ranks switch at the same call */
    uint32_t mine[2] = {wish, ~wish}, all[2] = {0, 0};
    result = comm_internal(comm, POLYPATH_COLLECTIVE_ALL_REDUCE, mine, all, 2, POLYPATH_UINT32, POLYPATH_MAX, -1);
    if (result)
        return result;
    if (all[0] != wish || all[1] != ~wish)
        return error_set(POLYPATH_ERROR_MISMATCH, "polypath_comm_use_paths: ranks asked for different paths");
    drive_hold(comm);
    comm->allowed = wish;
    comm->small.known = false;
    drive_let_go(comm);
    return POLYPATH_SUCCESS;
}

polypath_result_t polypath_comm_shares(polypath_comm_t comm, polypath_collective_t collective, double *shares,
                                       int capacity)
{
    if (!comm || !shares)
        return BAD("polypath_comm_shares: %s is NULL", comm ? "shares" : "comm");
    if ((unsigned)collective >= POLYPATH_COLLECTIVE_COUNT)
        return BAD("polypath_comm_shares: unknown collective %d", (int)collective);
    drive_hold(comm);
    for (int p = 0; p < capacity; p++)
        shares[p] = p < comm->npaths ? comm->last_shares[collective][p] : 0;
    drive_let_go(comm);
    return POLYPATH_SUCCESS;
}

const char *polypath_comm_algorithm(polypath_comm_t comm, polypath_collective_t collective)
{
    if (!comm || (unsigned)collective >= POLYPATH_COLLECTIVE_COUNT)
        return "";
    drive_hold(comm);
    const char *name = comm->last_algorithm[collective];
    drive_let_go(comm);
    return name ? name : "";
}

polypath_result_t polypath_comm_statistics(polypath_comm_t comm, polypath_statistics_t *statistics)
{
    if (!comm || !statistics)
        return BAD("polypath_comm_statistics: %s is NULL", comm ? "statistics" : "comm");
    drive_hold(comm);
    *statistics = comm->statistics;
    statistics->chunks_handed_over = host_chunks_handed_over(comm->host);
    statistics->memory_bytes = host_memory(comm->host);
    drive_let_go(comm);
    return POLYPATH_SUCCESS;
}
