/*
 * NCCL's interface where there is a CUDA driver (the fake one): devices and
 * their memory, ranks that share a GPU, and what NCCL_DEBUG shows.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_cuda/fake_cuda.h"
#include "nccl/load.h"

#define COMMS 4
#define DRIVER "POLYPATH_CUDA_DRIVER=" FAKE_CUDA_LIBRARY

/* Objects of the fake driver that this process has. */
static size_t gpu_objects(const struct rank *me, const char *kind)
{
    void *library = dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    CHECK(me, library, "the driver is not loaded: %s", dlerror());
    fake_cuda_count_function *count;
    void *found = dlsym(library, "fake_cuda_count");
    memcpy(&count, &found, sizeof count);
    const size_t objects = count(kind);
    dlclose(library);
    return objects;
}

static void body_devices(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comms[COMMS];
    int device = -1;
    GIVES(me, &n, ncclInvalidArgument, ncclCommInitAll(comms, COMMS, NULL)); /* there are two */
    CHECK(me, strstr(n.ncclGetLastError(NULL), "no GPU 2"), "%s", n.ncclGetLastError(NULL));
    CHECK(me, !comms[0] && !comms[1], "handles stay");
    GOES(me, &n, ncclCommInitAll(comms, COMMS, (int[]){0, 1, 1, 0}));
    GOES(me, &n, ncclCommCuDevice(comms[2], &device));
    CHECK(me, device == 1, "%d", device);
    int32_t one = 1, sums[COMMS];
    GOES(me, &n, ncclGroupStart());
    for (int c = 0; c < COMMS; c++)
        GOES(me, &n, ncclAllReduce(&one, &sums[c], 1, ncclInt, ncclSum, comms[c], NULL));
    GOES(me, &n, ncclGroupEnd());
    for (int c = 0; c < COMMS; c++) {
        CHECK(me, sums[c] == COMMS, "%d", sums[c]);
        GOES(me, &n, ncclCommDestroy(comms[c]));
    }
}

static void body_memory(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    void *memory, *more;
    GOES(me, &n, ncclMemAlloc(&memory, 10000));
    CHECK(me, gpu_objects(me, "memory") == 1, "%zu", gpu_objects(me, "memory"));
    GIVES(me, &n, ncclUnhandledCudaError, ncclMemAlloc(&more, 10000)); /* FAKE_CUDA_FAIL */
    CHECK(me, strstr(n.ncclGetLastError(NULL), "cuMemAlloc of 10000 bytes"), "%s", n.ncclGetLastError(NULL));
    CHECK(me, !more, "an address of nothing");
    GOES(me, &n, ncclMemFree(memory));
    CHECK(me, gpu_objects(me, "memory") == 0, "%zu", gpu_objects(me, "memory"));
    GIVES(me, &n, ncclInvalidArgument, ncclMemFree(memory));
}

static void test_memory_of_the_gpu(void **state)
{
    (void)state;
    static const char *const environment[] = {DRIVER, "FAKE_CUDA_FAIL=cuMemAlloc:2:2", NULL};
    RANKS_RUN(.size = 1, .body = body_memory, .no_comm = true, .environment = environment);
}

static void body_process(struct rank *me)
{
    const struct nccl n = nccl_load(me);
    ncclComm_t comm = nccl_comm(me, &n);
    nccl_check_works(me, &n, comm);
    GOES(me, &n, ncclCommDestroy(comm));
}

/* What ranks write to the log, with one more variable. */
static const char *log_of(int size, ranks_body *body, const char *variable)
{
    static char text[8192];
    char file[64];
    const int fd = memfd_create("log", 0);
    assert_true(fd >= 0);
    snprintf(file, sizeof file, "POLYPATH_LOG_FILE=/proc/%d/fd/%d", (int)getpid(), fd);
    const char *const environment[] = {file, DRIVER, "FAKE_CUDA_DEVICES=2", variable, NULL};
    RANKS_RUN(.size = size, .body = body, .no_comm = true, .environment = environment);
    const ssize_t bytes = pread(fd, text, sizeof text - 1, 0);
    text[bytes < 0 ? 0 : bytes] = 0;
    close(fd);
    return text;
}

static int times(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at++)
        n++;
    return n;
}

static void test_ranks_that_share_a_gpu_are_told_once(void **state)
{
    (void)state;
    const char *log = log_of(1, body_devices, NULL);
    if (times(log, "4 ranks share 2 GPUs") != 1)
        fail_msg("one process: %s", log);
    log = log_of(3, body_process, NULL); /* nobody has set a device: all are on the first */
    if (times(log, "3 ranks share 1 GPU:") != 1)
        fail_msg("processes: %s", log);
}

static void test_nccl_debug_sets_the_level_of_the_log(void **state)
{
    (void)state;
    const char *shown = "INFO";
    if (times(log_of(1, body_process, NULL), shown) || !times(log_of(1, body_process, "NCCL_DEBUG=INFO"), shown) ||
        times(log_of(1, body_process, "NCCL_DEBUG=warn"), shown))
        fail_msg("the level is not that of NCCL_DEBUG");
    setenv("POLYPATH_LOG", "warn", 1);
    const char *log = log_of(1, body_process, "NCCL_DEBUG=INFO");
    unsetenv("POLYPATH_LOG");
    if (times(log, shown))
        fail_msg("POLYPATH_LOG does not come first: %s", log);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_of_the_gpu),
        cmocka_unit_test(test_ranks_that_share_a_gpu_are_told_once),
        cmocka_unit_test(test_nccl_debug_sets_the_level_of_the_log),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
