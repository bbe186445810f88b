/*
 * For tests of what the CUDA driver does: opens the driver (the fake one, or
 * the one that POLYPATH_TEST_CUDA_DRIVER names, libcuda.so.1 on a machine with
 * a GPU) and makes a context of device 0 current. One per process.
 */
#ifndef SUPPORT_CUDA_H
#define SUPPORT_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "fake_cuda/fake_cuda.h"
#include "system/cuda_driver.h"

struct cuda_test {
    struct cuda_driver d;
    CUcontext context;
    bool fake;
    bool forked; /* a failed call ends the process: a child must not go on with its parent's tests */
    /* The fake's own entries; NULL with a real driver. */
    fake_cuda_add_kernel_function *add_kernel;
    fake_cuda_fail_function *fail_call;
    fake_cuda_count_function *count;
};
extern struct cuda_test cuda_test;

/*
 * Opens it; the process ends with a message after `seconds`, so that a test
 * that waits for ever is seen as that. Exits with 77 if the named driver is
 * not there.
 */
void cuda_test_open(unsigned seconds);
void cuda_test_close(void);

/* Fails the test, naming the call, unless it returned `expected`. */
void cuda_test_expect(cuda_result_t result, cuda_result_t expected, const char *call, const char *file, int line);
#define CU(call) cuda_test_expect(cuda_test.d.call, CUDA_IS_OK, #call, __FILE__, __LINE__)
#define CU_IS(expected, call) cuda_test_expect(cuda_test.d.call, expected, #call, __FILE__, __LINE__)

/* A word that host and device see, 0 at first. */
struct cuda_test_word {
    uint32_t *host;
    CUdeviceptr device;
};
struct cuda_test_word cuda_test_word(void);
void cuda_test_word_set(struct cuda_test_word word, uint32_t value); /* with release order */
uint32_t cuda_test_word_get(struct cuda_test_word word);
void cuda_test_word_free(struct cuda_test_word word);

CUstream cuda_test_stream(void); /* a non-blocking one */

void cuda_test_pause_ms(unsigned ms);

/* A module whose kernel `add`(uint32_t *to, uint32_t value) does *to += value. */
CUmodule cuda_test_module(void);
void cuda_test_launch_add(CUfunction add, CUdeviceptr to, uint32_t value, CUstream stream);

#endif
