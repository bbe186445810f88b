/*
 * What stands behind NCCL's operations in a library that was built without the
 * operations on streams: each says so. Weak: the real ones take their place.
 */
#include "frontends/nccl/internal.h"
#include "polypath/cuda.h"

#define IGNORED(name, ...)                                                                                             \
    __attribute__((weak)) polypath_result_t name(__VA_ARGS__)                                                          \
    {                                                                                                                  \
        return error_set(POLYPATH_ERROR_UNSUPPORTED, #name ": this build has no operations on streams");               \
    }
#define UNUSED __attribute__((unused))

IGNORED(polypath_cuda_all_reduce, UNUSED const void *a, UNUSED void *b, UNUSED size_t c, UNUSED polypath_type_t d,
        UNUSED polypath_op_t e, UNUSED polypath_comm_t f, UNUSED polypath_cuda_stream_t g)
IGNORED(polypath_cuda_reduce, UNUSED const void *a, UNUSED void *b, UNUSED size_t c, UNUSED polypath_type_t d,
        UNUSED polypath_op_t e, UNUSED int f, UNUSED polypath_comm_t g, UNUSED polypath_cuda_stream_t h)
IGNORED(polypath_cuda_broadcast, UNUSED const void *a, UNUSED void *b, UNUSED size_t c, UNUSED polypath_type_t d,
        UNUSED int e, UNUSED polypath_comm_t f, UNUSED polypath_cuda_stream_t g)
IGNORED(polypath_cuda_all_gather, UNUSED const void *a, UNUSED void *b, UNUSED size_t c, UNUSED polypath_type_t d,
        UNUSED polypath_comm_t e, UNUSED polypath_cuda_stream_t f)
IGNORED(polypath_cuda_reduce_scatter, UNUSED const void *a, UNUSED void *b, UNUSED size_t c, UNUSED polypath_type_t d,
        UNUSED polypath_op_t e, UNUSED polypath_comm_t f, UNUSED polypath_cuda_stream_t g)
IGNORED(polypath_cuda_all_to_all, UNUSED const void *a, UNUSED void *b, UNUSED size_t c, UNUSED polypath_type_t d,
        UNUSED polypath_comm_t e, UNUSED polypath_cuda_stream_t f)
IGNORED(polypath_cuda_gather, UNUSED const void *a, UNUSED void *b, UNUSED size_t c, UNUSED polypath_type_t d,
        UNUSED int e, UNUSED polypath_comm_t f, UNUSED polypath_cuda_stream_t g)
IGNORED(polypath_cuda_scatter, UNUSED const void *a, UNUSED void *b, UNUSED size_t c, UNUSED polypath_type_t d,
        UNUSED int e, UNUSED polypath_comm_t f, UNUSED polypath_cuda_stream_t g)
IGNORED(polypath_cuda_send, UNUSED const void *a, UNUSED size_t b, UNUSED polypath_type_t c, UNUSED int d,
        UNUSED polypath_comm_t e, UNUSED polypath_cuda_stream_t f)
IGNORED(polypath_cuda_recv, UNUSED void *a, UNUSED size_t b, UNUSED polypath_type_t c, UNUSED int d,
        UNUSED polypath_comm_t e, UNUSED polypath_cuda_stream_t f)
IGNORED(polypath_cuda_op_create_scaled_sum, UNUSED polypath_op_t *a, UNUSED const void *b, UNUSED polypath_type_t c,
        UNUSED polypath_comm_t d)
