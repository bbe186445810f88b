#include "support/cuda.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include "system/error.h"

struct cuda_test cuda_test;

static void hung(int signal)
{
    (void)signal;
    static const char text[] = "\nthe test still waits: a call did not come back, or work did not end\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(1);
}

void cuda_test_open(unsigned seconds)
{
    const char *real = getenv("POLYPATH_TEST_CUDA_DRIVER");
    const char *library = real && *real ? real : FAKE_CUDA_LIBRARY;
    signal(SIGALRM, hung);
    alarm(seconds);
    if (cuda_driver_load(library, &cuda_test.d)) {
        fprintf(stderr, "%s\n", error_text());
        exit(real && *real ? 77 : 1);
    }
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (handle) {
        *(void **)&cuda_test.add_kernel = dlsym(handle, "fake_cuda_add_kernel");
        *(void **)&cuda_test.fail_call = dlsym(handle, "fake_cuda_fail");
        *(void **)&cuda_test.count = dlsym(handle, "fake_cuda_count");
        dlclose(handle);
    }
    cuda_test.fake = cuda_test.add_kernel != NULL;
    if (cuda_test.d.device_primary_ctx_retain(&cuda_test.context, 0) ||
        cuda_test.d.ctx_set_current(cuda_test.context)) {
        fprintf(stderr, "no context of device 0\n");
        exit(1);
    }
}

void cuda_test_close(void)
{
    cuda_test.d.device_primary_ctx_release(0);
    alarm(0);
}

void cuda_test_expect(cuda_result_t result, cuda_result_t expected, const char *call, const char *file, int line)
{
    const char *name = "?";
    if (result == expected)
        return;
    (void)cuda_test.d.get_error_name(result, &name);
    print_error("%s returned %u (%s), not %u\n", call, result, name ? name : "?", expected);
    if (cuda_test.forked)
        _exit(1);
    _fail(file, line);
}

struct cuda_test_word cuda_test_word(void)
{
    struct cuda_test_word word = {NULL, 0};
    CU(mem_host_alloc((void **)&word.host, 64, CUDA_HOST_ALLOC_PORTABLE | CUDA_HOST_ALLOC_DEVICEMAP));
    CU(mem_host_get_device_pointer(&word.device, word.host, 0));
    cuda_test_word_set(word, 0);
    return word;
}

void cuda_test_word_set(struct cuda_test_word word, uint32_t value)
{
    __atomic_store_n(word.host, value, __ATOMIC_RELEASE);
}

uint32_t cuda_test_word_get(struct cuda_test_word word)
{
    return __atomic_load_n(word.host, __ATOMIC_ACQUIRE);
}

void cuda_test_word_free(struct cuda_test_word word)
{
    CU(mem_free_host(word.host));
}

CUstream cuda_test_stream(void)
{
    CUstream stream;
    CU(stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
    return stream;
}

void cuda_test_pause_ms(unsigned ms)
{
    struct timespec rest = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&rest, NULL);
}

/* ------------------------------------------------------------------------- kernel */

static const char add_ptx[] = ".version 7.0\n"
                              ".target sm_70\n"
                              ".address_size 64\n"
                              ".visible .entry add(.param .u64 to, .param .u32 value)\n"
                              "{\n"
                              "    .reg .b64 %address<3>;\n"
                              "    .reg .b32 %number<4>;\n"
                              "    ld.param.u64 %address1, [to];\n"
                              "    ld.param.u32 %number1, [value];\n"
                              "    cvta.to.global.u64 %address2, %address1;\n"
                              "    ld.global.u32 %number2, [%address2];\n"
                              "    add.u32 %number3, %number2, %number1;\n"
                              "    st.global.u32 [%address2], %number3;\n"
                              "    ret;\n"
                              "}\n";

static void add(const struct fake_cuda_launch *launch, void **parameters)
{
    (void)launch;
    **(uint32_t **)parameters[0] += *(uint32_t *)parameters[1];
}

CUmodule cuda_test_module(void)
{
    static bool added;
    static const size_t sizes[] = {sizeof(CUdeviceptr), sizeof(uint32_t)};
    if (cuda_test.fake && !added)
        cuda_test.add_kernel("add", add, 2, sizes);
    added = true;
    CUmodule module;
    CU(module_load_data(&module, add_ptx));
    return module;
}

void cuda_test_launch_add(CUfunction function, CUdeviceptr to, uint32_t value, CUstream stream)
{
    void *parameters[] = {&to, &value};
    CU(launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}
