/*
 * What an element type is called and how large it is. Knows nothing of the
 * arithmetic on it.
 */
#include "polypath/polypath.h"

static const struct {
    const char *name;
    size_t bytes;
} types[POLYPATH_TYPE_COUNT] = {
    [POLYPATH_INT8] = {"int8", 1},
    [POLYPATH_UINT8] = {"uint8", 1},
    [POLYPATH_INT32] = {"int32", 4},
    [POLYPATH_UINT32] = {"uint32", 4},
    [POLYPATH_INT64] = {"int64", 8},
    [POLYPATH_UINT64] = {"uint64", 8},
    [POLYPATH_FLOAT16] = {"float16", 2},
    [POLYPATH_FLOAT32] = {"float32", 4},
    [POLYPATH_FLOAT64] = {"float64", 8},
    [POLYPATH_BFLOAT16] = {"bfloat16", 2},
    [POLYPATH_FLOAT8_E4M3] = {"float8_e4m3", 1},
    [POLYPATH_FLOAT8_E5M2] = {"float8_e5m2", 1},
};

/* The value may come from a caller's integer, so negative ones are possible too. */
static bool known(polypath_type_t type)
{
    return (int)type >= 0 && (int)type < POLYPATH_TYPE_COUNT;
}

size_t polypath_type_bytes(polypath_type_t type)
{
    return known(type) ? types[type].bytes : 0;
}

const char *polypath_type_name(polypath_type_t type)
{
    return known(type) ? types[type].name : "unknown";
}
