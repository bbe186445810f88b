/*
 * What a test may ask of the fake CUDA driver beyond the driver's own calls.
 * The fake is loaded like a driver; these entries are found with dlsym().
 *
 * Environment, read at load: FAKE_CUDA_DEVICES (1), FAKE_CUDA_VERSION (13000),
 * FAKE_CUDA_PEER (1: devices reach each other), FAKE_CUDA_MEMORY (bytes of a
 * device), FAKE_CUDA_COPY_GBPS (rate of every copy engine; 0: as fast as it
 * goes), FAKE_CUDA_FAIL (cuMemAlloc:3:2,...: call 3 of cuMemAlloc returns 2).
 */
#ifndef TESTS_FAKE_CUDA_H
#define TESTS_FAKE_CUDA_H

#include <stddef.h>

struct fake_cuda_launch {
    unsigned grid[3], block[3], shared_bytes;
};

/* A kernel: all of its blocks at once, on the thread of its stream. */
typedef void fake_cuda_kernel(const struct fake_cuda_launch *launch, void **parameters);

/*
 * cuModuleGetFunction() of any module finds `name` from now on. `sizes` are the
 * bytes of each of the `count` (at most 16) parameters.
 */
typedef void fake_cuda_add_kernel_function(const char *name, fake_cuda_kernel *kernel, unsigned count,
                                           const size_t *sizes);

/* The nth call (1: the next) of `entry` (with or without _v2) returns `code` and does nothing. */
typedef void fake_cuda_fail_function(const char *entry, unsigned nth, unsigned code);

/* Objects of one kind that exist in this process: "memory", "streams", "events", "modules", "graphs", "handles". */
typedef size_t fake_cuda_count_function(const char *kind);

fake_cuda_add_kernel_function fake_cuda_add_kernel;
fake_cuda_fail_function fake_cuda_fail;
fake_cuda_count_function fake_cuda_count;

#endif
