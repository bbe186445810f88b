/*
 * What two processes share through the CUDA driver: memory and events by
 * handle, memory by descriptor, and signals in host memory that both have
 * registered. The other process is this program again with the name of a part,
 * since a driver does not survive fork().
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>
#include <spawn.h>

#include "support/cuda.h"

#define D cuda_test.d
#define BYTES ((size_t)1 << 20)
#define SHARED_BYTES 4096
#define ROUNDS 100

extern char **environ;

/* -------------------------------------------------------------------- the other process */

struct offer { /* what the first process hands to the other one, with one descriptor */
    struct cuda_ipc_handle memory, event;
    size_t bytes;
};

struct peer {
    pid_t pid;
    int socket;
};

static void send_offer(int socket, const struct offer *offer, int fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec part = {(void *)offer, sizeof *offer};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    assert_int_equal(sendmsg(socket, &message, MSG_NOSIGNAL), sizeof *offer);
}

static int receive_offer(int socket, struct offer *offer)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {offer, sizeof *offer};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes};
    message.msg_controllen = sizeof control.bytes;
    assert_int_equal(recvmsg(socket, &message, MSG_WAITALL), sizeof *offer);
    int fd = -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (c)
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

static void tell(int socket)
{
    assert_int_equal(send(socket, "x", 1, MSG_NOSIGNAL), 1);
}

static void hear(int socket)
{
    char byte;
    assert_int_equal(recv(socket, &byte, 1, 0), 1);
}

static struct peer start_peer(const char *part)
{
    int sockets[2];
    char number[16];
    struct peer peer;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    const int inherited = dup(sockets[1]);
    snprintf(number, sizeof number, "%d", inherited);
    char *arguments[] = {(char *)"test_cuda_processes", (char *)part, number, NULL};
    assert_int_equal(posix_spawn(&peer.pid, "/proc/self/exe", NULL, NULL, arguments, environ), 0);
    close(sockets[1]);
    close(inherited);
    peer.socket = sockets[0];
    return peer;
}

static void end_peer(struct peer peer)
{
    int status = -1;
    assert_int_equal(waitpid(peer.pid, &status, 0), peer.pid);
    close(peer.socket);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_msg("the other process ended with status %#x", status);
}

static void expect_bytes(CUdeviceptr from, unsigned char value, CUstream stream)
{
    unsigned char *host;
    CU(mem_host_alloc((void **)&host, BYTES, 0));
    CU(memcpy_dtoh_async(host, from, BYTES, stream));
    CU(stream_synchronize(stream));
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(host[i], value);
    CU(mem_free_host(host));
}

/* ------------------------------------------------------------------- memory by handle */

/* The order between the processes is by signals in the shared device memory itself. */
static void test_memory_by_handle(void **state)
{
    (void)state;
    struct peer peer = start_peer("memory");
    struct offer offer = {.bytes = BYTES + 8};
    CUdeviceptr memory, own;
    CUstream stream = cuda_test_stream();
    CU(mem_alloc(&memory, offer.bytes));
    CU(memset_d8_async(memory, 0, offer.bytes, stream));
    CU(stream_synchronize(stream));
    CU(ipc_get_mem_handle(&offer.memory, memory));
    CU_IS(CUDA_IS_INVALID_CONTEXT, ipc_open_mem_handle(&own, offer.memory, CUDA_IPC_LAZY_ENABLE_PEER_ACCESS));
    send_offer(peer.socket, &offer, -1);
    hear(peer.socket); /* it has opened the memory, and waits for the signal */
    CU(memset_d8_async(memory, 0x11, BYTES, stream));
    CU(stream_write_value_32(stream, memory + BYTES, 1, CUDA_WRITE_DEFAULT));
    CU(stream_wait_value_32(stream, memory + BYTES + 4, 1, CUDA_WAIT_GEQ));
    expect_bytes(memory, 0x22, stream);
    end_peer(peer);
    CU(mem_free(memory));
    CU(stream_destroy(stream));
}

struct closing {
    CUdeviceptr memory;
    cuda_result_t result;
    int done;
};

static void *close_memory(void *argument)
{
    struct closing *c = argument;
    const cuda_result_t result = D.ctx_set_current(cuda_test.context);
    c->result = result ? result : D.ipc_close_mem_handle(c->memory);
    __atomic_store_n(&c->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Like freeing, closing waits until all streams are idle. */
static void close_beside_a_waiting_stream(CUdeviceptr memory)
{
    struct cuda_test_word go = cuda_test_word();
    struct closing closing = {.memory = memory};
    CUstream stream = cuda_test_stream();
    pthread_t thread;
    CU(stream_wait_value_32(stream, go.device, 1, CUDA_WAIT_GEQ));
    assert_int_equal(pthread_create(&thread, NULL, close_memory, &closing), 0);
    cuda_test_pause_ms(100);
    const int returned = __atomic_load_n(&closing.done, __ATOMIC_ACQUIRE);
    cuda_test_word_set(go, 1);
    pthread_join(thread, NULL);
    assert_false(returned);
    assert_int_equal(closing.result, CUDA_IS_OK);
    CU(stream_destroy(stream));
    cuda_test_word_free(go);
}

static void peer_memory(int socket)
{
    struct offer offer;
    CUdeviceptr memory, again;
    CUstream stream = cuda_test_stream();
    receive_offer(socket, &offer);
    CU(ipc_open_mem_handle(&memory, offer.memory, CUDA_IPC_LAZY_ENABLE_PEER_ACCESS));
    CU(ipc_open_mem_handle(&again, offer.memory, CUDA_IPC_LAZY_ENABLE_PEER_ACCESS));
    assert_true(again == memory);
    CU(ipc_close_mem_handle(again)); /* opened twice, so closed twice */
    CU(stream_wait_value_32(stream, memory + BYTES, 1, CUDA_WAIT_GEQ));
    tell(socket);
    expect_bytes(memory, 0x11, stream);
    CU(memset_d8_async(memory, 0x22, BYTES, stream));
    CU(stream_write_value_32(stream, memory + BYTES + 4, 1, CUDA_WRITE_DEFAULT));
    CU(stream_synchronize(stream));
    close_beside_a_waiting_stream(memory);
    CU_IS(CUDA_IS_INVALID_VALUE, ipc_close_mem_handle(memory));
    CU(stream_destroy(stream));
}

/* -------------------------------------------------------------------- events by handle */

static void test_event_by_handle(void **state)
{
    (void)state;
    struct peer peer = start_peer("event");
    struct offer offer = {.bytes = 0};
    struct cuda_test_word go = cuda_test_word();
    CUstream stream = cuda_test_stream();
    CUevent event, own;
    CU_IS(CUDA_IS_INVALID_VALUE, event_create(&event, CUDA_EVENT_INTERPROCESS)); /* such events take no time */
    CU(event_create(&event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING));
    CU(ipc_get_event_handle(&offer.event, event));
    CU_IS(CUDA_IS_INVALID_CONTEXT, ipc_open_event_handle(&own, offer.event));
    CU(stream_wait_value_32(stream, go.device, 1, CUDA_WAIT_GEQ));
    CU(event_record(event, stream));
    send_offer(peer.socket, &offer, -1);
    hear(peer.socket); /* it has seen that the event is still to come */
    cuda_test_word_set(go, 1);
    CU(event_synchronize(event));
    end_peer(peer);
    CU(event_destroy(event));
    CU(stream_destroy(stream));
    cuda_test_word_free(go);
}

static void peer_event(int socket)
{
    struct offer offer;
    struct cuda_test_word seen = cuda_test_word();
    CUstream stream = cuda_test_stream();
    CUevent event;
    receive_offer(socket, &offer);
    CU(ipc_open_event_handle(&event, offer.event));
    CU(stream_wait_event(stream, event, 0));
    CU(stream_write_value_32(stream, seen.device, 1, CUDA_WRITE_DEFAULT));
    CU_IS(CUDA_IS_NOT_READY, event_query(event));
    cuda_test_pause_ms(20);
    assert_int_equal(cuda_test_word_get(seen), 0);
    tell(socket);
    CU(stream_synchronize(stream));
    CU(event_synchronize(event));
    assert_int_equal(cuda_test_word_get(seen), 1);
    CU(event_destroy(event));
    CU(stream_destroy(stream));
    cuda_test_word_free(seen);
}

/* -------------------------------------------------------------------- memory by descriptor */

static const struct cuda_allocation properties = {
    .type = CUDA_ALLOCATION_PINNED,
    .handle_types = CUDA_HANDLE_POSIX_FILE_DESCRIPTOR,
    .location = {CUDA_LOCATION_DEVICE, 0},
};

static size_t granule(void)
{
    size_t bytes;
    CU(mem_get_allocation_granularity(&bytes, &properties, CUDA_GRANULARITY_RECOMMENDED));
    assert_true(bytes >= BYTES);
    return bytes;
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle, size_t bytes)
{
    static const struct cuda_access both_ways = {{CUDA_LOCATION_DEVICE, 0}, CUDA_ACCESS_READ_WRITE};
    CUdeviceptr address;
    CU(mem_address_reserve(&address, bytes, 0, 0, 0));
    CU(mem_map(address, bytes, 0, handle, 0));
    CU(mem_set_access(address, bytes, &both_ways, 1));
    CU(mem_release(handle)); /* the mapping holds it */
    return address;
}

static void unmap(CUdeviceptr address, size_t bytes)
{
    CU(mem_unmap(address, bytes));
    CU(mem_address_free(address, bytes));
}

static void test_memory_by_descriptor(void **state)
{
    (void)state;
    struct peer peer = start_peer("descriptor");
    struct offer offer = {.bytes = granule()};
    CUmemGenericAllocationHandle handle, again;
    CUstream stream = cuda_test_stream();
    int fd = -1;
    CU(mem_create(&handle, offer.bytes, &properties, 0));
    CU(mem_export_to_shareable_handle(&fd, handle, CUDA_HANDLE_POSIX_FILE_DESCRIPTOR, 0));
    CUdeviceptr memory = map(handle, offer.bytes);
    CU(mem_retain_allocation_handle(&again, (void *)(uintptr_t)memory));
    CU(mem_release(again));
    CU(memset_d8_async(memory, 0x33, BYTES, stream));
    CU(stream_synchronize(stream));
    send_offer(peer.socket, &offer, fd);
    close(fd);
    end_peer(peer);
    expect_bytes(memory, 0x44, stream);
    unmap(memory, offer.bytes);
    CU(stream_destroy(stream));
}

static void peer_descriptor(int socket)
{
    struct offer offer;
    CUmemGenericAllocationHandle handle;
    CUstream stream = cuda_test_stream();
    const int fd = receive_offer(socket, &offer);
    CU(mem_import_from_shareable_handle(&handle, (void *)(intptr_t)fd, CUDA_HANDLE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    CUdeviceptr memory = map(handle, offer.bytes);
    expect_bytes(memory, 0x33, stream);
    CU(memset_d8_async(memory, 0x44, BYTES, stream));
    CU(stream_synchronize(stream));
    unmap(memory, offer.bytes);
    CU(stream_destroy(stream));
}

/* --------------------------------------------------------- signals in registered memory */

/* Streams of two processes hand a number to and fro, without either host. */
static void exchange(int fd, bool first)
{
    uint32_t *shared = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CUdeviceptr base;
    CUstream stream = cuda_test_stream();
    assert_ptr_not_equal(shared, MAP_FAILED);
    CU(mem_host_register(shared, SHARED_BYTES, CUDA_HOST_REGISTER_DEVICEMAP | CUDA_HOST_REGISTER_PORTABLE));
    CU(mem_host_get_device_pointer(&base, shared, 0));
    const CUdeviceptr mine = base + (first ? 0 : 64), others = base + (first ? 64 : 0), data = base + 128;
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        if (!first)
            CU(stream_wait_value_32(stream, others, round, CUDA_WAIT_GEQ));
        CU(memset_d32_async(data + (first ? 0 : 4) + 8 * round, round, 1, stream));
        CU(stream_write_value_32(stream, mine, round, CUDA_WRITE_DEFAULT));
        if (first)
            CU(stream_wait_value_32(stream, others, round, CUDA_WAIT_GEQ));
    }
    CU(stream_synchronize(stream));
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        assert_int_equal(shared[32 + 2 * round], round);
        if (first)
            assert_int_equal(shared[33 + 2 * round], round);
    }
    CU(mem_host_unregister(shared));
    CU(stream_destroy(stream));
    munmap(shared, SHARED_BYTES);
}

static void test_signals_in_registered_memory(void **state)
{
    (void)state;
    struct peer peer = start_peer("signals");
    const struct offer offer = {.bytes = SHARED_BYTES};
    const int fd = memfd_create("signals", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, SHARED_BYTES), 0);
    send_offer(peer.socket, &offer, fd);
    exchange(fd, true);
    end_peer(peer);
    close(fd);
}

static void peer_signals(int socket)
{
    struct offer offer;
    const int fd = receive_offer(socket, &offer);
    exchange(fd, false);
    close(fd);
}

/* ----------------------------------------------------------------------------- main */

static int run_peer(const char *part, int socket)
{
    static const struct {
        const char *name;
        void (*run)(int socket);
    } parts[] = {
        {"memory", peer_memory}, {"event", peer_event}, {"descriptor", peer_descriptor}, {"signals", peer_signals}};
    cuda_test_open(200);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strcmp(parts[i].name, part))
            parts[i].run(socket);
    close(socket);
    cuda_test_close();
    return 0;
}

static int open_driver(void **state)
{
    (void)state;
    cuda_test_open(300);
    return 0;
}

static int close_driver(void **state)
{
    (void)state;
    cuda_test_close();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return run_peer(argv[1], (int)strtol(argv[2], NULL, 10));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_by_handle),
        cmocka_unit_test(test_event_by_handle),
        cmocka_unit_test(test_memory_by_descriptor),
        cmocka_unit_test(test_signals_in_registered_memory),
    };
    return cmocka_run_group_tests(tests, open_driver, close_driver);
}
