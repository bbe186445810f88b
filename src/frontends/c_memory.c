/*
 * The C interface of registered memory: checks arguments. What it is for
 * stands in link/exports.h and execute/mapped.h.
 */
#include "comm/comm.h"
#include "frontends/group.h"

polypath_result_t polypath_mem_alloc(void **memory, size_t bytes)
{
    if (!memory)
        return error_set(POLYPATH_ERROR_ARGUMENT, "polypath_mem_alloc: memory is NULL");
    *memory = NULL;
    if (bytes > SIZE_MAX / 4)
        return error_set(POLYPATH_ERROR_ARGUMENT, "polypath_mem_alloc: %zu bytes are too many", bytes);
    polypath_result_t result = exports_allocate(bytes, memory);
    return result ? error_prefix(result, "polypath_mem_alloc") : POLYPATH_SUCCESS;
}

polypath_result_t polypath_mem_free(void *memory)
{
    polypath_result_t result = exports_free(memory);
    return result ? error_prefix(result, "polypath_mem_free") : POLYPATH_SUCCESS;
}

polypath_result_t polypath_comm_window_register(polypath_comm_t comm, void *buffer, size_t bytes,
                                                polypath_window_t *window, int flags)
{
    static const char name[] = "polypath_comm_window_register";
    if (!comm || !window)
        return error_set(POLYPATH_ERROR_ARGUMENT, "%s: %s is NULL", name, comm ? "window" : "comm");
    *window = NULL;
    if (!buffer && bytes)
        return error_set(POLYPATH_ERROR_ARGUMENT, "%s: buffer is NULL", name);
    if (bytes > SIZE_MAX / 4 || bytes > UINTPTR_MAX - (uintptr_t)buffer)
        return error_set(POLYPATH_ERROR_ARGUMENT, "%s: %zu bytes are too many", name, bytes);
    if (flags)
        return error_set(POLYPATH_ERROR_ARGUMENT, "%s: flags %d, must be 0", name, flags);
    if (group_active())
        return group_refuse(error_set(POLYPATH_ERROR_USAGE, "%s is not allowed inside a group", name));
    polypath_result_t result = comm_check(comm);
    if (!result)
        result = window_register(comm, buffer, bytes, window);
    return result ? error_prefix(result, "%s", name) : POLYPATH_SUCCESS;
}

polypath_result_t polypath_comm_window_deregister(polypath_comm_t comm, polypath_window_t window)
{
    if (!comm || !window)
        return error_set(POLYPATH_ERROR_ARGUMENT, "polypath_comm_window_deregister: %s is NULL",
                         comm ? "window" : "comm");
    polypath_result_t result = window_deregister(comm, window);
    return result ? error_prefix(result, "polypath_comm_window_deregister") : POLYPATH_SUCCESS;
}
