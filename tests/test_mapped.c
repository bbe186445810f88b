/*
 * Registered memory (link/exports.c, execute/mapped.c): collectives that work
 * on each other's buffers in place; when they do and when they must not; memory
 * that comes and goes; ranks that fail meanwhile.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "execute/mapped.h"
#include "support/exercise.h"
#include "support/quick.h"
#include "support/ranks.h"
#include "support/reference.h"
#include "topology/numa.h"

#define POOL (4u << 20)
#define COUNT 50000 /* of int32: larger than small for any number of ranks here */

static const char *const shm_only[] = {"POLYPATH_PATHS=shm", NULL};
static const char *const with_cma[] = {"POLYPATH_PATHS=shm,cma", NULL};
static const char *const only_cma_share[] = {"POLYPATH_PATHS=shm,cma", "POLYPATH_SHARES=0,1", NULL};
static const char *const not_wanted[] = {"POLYPATH_PATHS=shm", "POLYPATH_MAPPED=0", NULL};
static const char *const failing_fetch[] = {"POLYPATH_PATHS=shm,cma", "POLYPATH_SHARES=0,1", "POLYPATH_LOG=none",
                                            "POLYPATH_TIMEOUT_MS=1500", NULL};
static const char *const failing[] = {"POLYPATH_PATHS=shm", "POLYPATH_LOG=none", "POLYPATH_TIMEOUT_MS=1500", NULL};

static uint64_t draw(uint64_t *state)
{
    return reference_hash((*state)++, 11, 3) >> 8;
}

static bool went(struct rank *me, polypath_collective_t collective, const char *way)
{
    return !strcmp(polypath_comm_algorithm(me->comm, collective), way);
}

static uint64_t mapped_calls(struct rank *me)
{
    polypath_statistics_t statistics;
    OK(me, polypath_comm_statistics(me->comm, &statistics));
    return statistics.mapped_calls;
}

static uint64_t fallbacks(struct rank *me)
{
    polypath_statistics_t statistics;
    OK(me, polypath_comm_statistics(me->comm, &statistics));
    return statistics.fallbacks;
}

static const struct {
    enum exercise_kind kind;
    polypath_collective_t collective;
} kinds[] = {
    {EXERCISE_ALL_REDUCE, POLYPATH_COLLECTIVE_ALL_REDUCE},
    {EXERCISE_REDUCE, POLYPATH_COLLECTIVE_REDUCE},
    {EXERCISE_REDUCE_SCATTER, POLYPATH_COLLECTIVE_REDUCE_SCATTER},
    {EXERCISE_BROADCAST, POLYPATH_COLLECTIVE_BROADCAST},
    {EXERCISE_ALL_GATHER, POLYPATH_COLLECTIVE_ALL_GATHER},
    {EXERCISE_ALL_TO_ALL, POLYPATH_COLLECTIVE_ALL_TO_ALL},
    {EXERCISE_GATHER, POLYPATH_COLLECTIVE_GATHER},
    {EXERCISE_SCATTER, POLYPATH_COLLECTIVE_SCATTER},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

/* ------------------------------------------------------------- right results */

/* Every collective, type and op, out of a registered pool; counts around the ends of lines and tiles. */
static void sweep(struct rank *me)
{
    void *pool;
    polypath_window_t window;
    uint64_t state = 21;
    OK(me, polypath_mem_alloc(&pool, POOL));
    OK(me, polypath_comm_window_register(me->comm, pool, POOL, &window, 0));
    for (size_t k = 0; k < KINDS; k++)
        for (int type = 0; type < POLYPATH_TYPE_COUNT; type++)
            for (int op = 0; op < (exercise_reduces(kinds[k].kind) ? REFERENCE_OPS : 1); op++) {
                EXERCISE(me, me->comm, .kind = kinds[k].kind, .type = (polypath_type_t)type, .op = op,
                         .count = 17000 + draw(&state) % 3000, .root = (int)(draw(&state) % (uint64_t)me->size),
                         .in_place = draw(&state) & 1, .offset = draw(&state) % 3 ? 0 : draw(&state) % 8, .seed = state,
                         .pool = pool, .pool_bytes = POOL);
                CHECK(me, went(me, kinds[k].collective, op == REFERENCE_SCALED ? "stage" : "mapped"), "went %s",
                      polypath_comm_algorithm(me->comm, kinds[k].collective));
            }
    OK(me, polypath_comm_window_deregister(me->comm, window));
    OK(me, polypath_mem_free(pool));
}

static void test_every_collective(void **state)
{
    RANKS_RUN(.size = *(const int *)*state, .body = sweep, .environment = shm_only);
}

/* The same out of ordinary memory, copied from the other processes. A Reduce and scaled sums cannot go this way. */
static void fetch_sweep(struct rank *me)
{
    uint64_t state = 22;
    for (size_t k = 0; k < KINDS; k++)
        for (int type = 0; type < POLYPATH_TYPE_COUNT; type++)
            for (int op = 0; op < (exercise_reduces(kinds[k].kind) ? REFERENCE_OPS : 1); op++) {
                EXERCISE(me, me->comm, .kind = kinds[k].kind, .type = (polypath_type_t)type, .op = op,
                         .count = 17000 + draw(&state) % 3000, .root = (int)(draw(&state) % (uint64_t)me->size),
                         .in_place = draw(&state) & 1, .offset = draw(&state) % 3 ? 0 : draw(&state) % 8,
                         .seed = state);
                const bool fetched = op != REFERENCE_SCALED && kinds[k].kind != EXERCISE_REDUCE;
                CHECK(me, went(me, kinds[k].collective, "fetch") == fetched, "went %s",
                      polypath_comm_algorithm(me->comm, kinds[k].collective));
            }
    for (size_t k = 0; k < KINDS; k++) /* several pieces, past the caches */
        EXERCISE(me, me->comm, .kind = kinds[k].kind, .type = POLYPATH_FLOAT32, .count = 1500007, .root = 1,
                 .in_place = k & 1, .seed = k);
    CHECK(me, mapped_calls(me) == 0, "nothing is registered");
}

static void test_fetching(void **state)
{
    RANKS_RUN(.size = *(const int *)*state, .body = fetch_sweep, .environment = only_cma_share);
}

/* Long messages, which are written past the caches, and in several pieces. */
static void long_body(struct rank *me)
{
    enum { BYTES = 48 << 20 };
    void *pool;
    polypath_window_t window;
    OK(me, polypath_mem_alloc(&pool, BYTES));
    OK(me, polypath_comm_window_register(me->comm, pool, BYTES, &window, 0));
    const size_t n = (size_t)me->size;
    for (size_t k = 0; k < KINDS; k++)
        for (int in_place = 0; in_place < 2; in_place++) {
            const bool blocks = kinds[k].kind != EXERCISE_ALL_REDUCE && kinds[k].kind != EXERCISE_REDUCE &&
                                kinds[k].kind != EXERCISE_BROADCAST;
            EXERCISE(me, me->comm, .kind = kinds[k].kind, .type = POLYPATH_FLOAT32, .op = POLYPATH_SUM,
                     .count = 5000011 / (blocks ? n : 1), .root = 1, .in_place = in_place, .seed = k, .pool = pool,
                     .pool_bytes = BYTES);
            CHECK(me, went(me, kinds[k].collective, "mapped"), "went %s",
                  polypath_comm_algorithm(me->comm, kinds[k].collective));
        }
    /* left to polypath_comm_destroy: the window; the memory is held until then */
    CHECK(me, polypath_mem_free(pool) == POLYPATH_ERROR_USAGE, "freed, although it is registered");
    OK(me, polypath_comm_destroy(me->comm));
    me->comm = NULL;
    OK(me, polypath_mem_free(pool));
}

static void test_long_messages(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = long_body, .environment = shm_only);
    if (!test_quick())
        RANKS_RUN(.size = 3, .body = long_body, .environment = shm_only);
}

/* ------------------------------------------------- when it is used, and when not */

static void all_reduce(struct rank *me, int32_t *in, int32_t *out, int32_t salt)
{
    const int32_t n = me->size;
    for (int32_t i = 0; i < COUNT; i++)
        in[i] = i * (me->rank + 1) + salt;
    OK(me, polypath_all_reduce(in, out, COUNT, POLYPATH_INT32, POLYPATH_SUM, me->comm));
    for (int32_t i = 0; i < COUNT; i++)
        CHECK(me, out[i] == i * (n * (n + 1) / 2) + n * salt, "element %d is %d", i, out[i]);
}

/* Without a window the first call announces a buffer, and the second finds it known. */
static void unannounced_body(struct rank *me)
{
    void *memory;
    OK(me, polypath_mem_alloc(&memory, sizeof(int32_t) * 2 * COUNT));
    int32_t *in = memory, *out = in + COUNT;
    all_reduce(me, in, out, 1);
    CHECK(me, went(me, POLYPATH_COLLECTIVE_ALL_REDUCE, "stage"), "nobody knew the buffers");
    for (int i = 2; i < 6; i++)
        all_reduce(me, in, out, i);
    CHECK(me, went(me, POLYPATH_COLLECTIVE_ALL_REDUCE, "mapped") && mapped_calls(me) == 4, "everybody knows them");
    OK(me, polypath_mem_free(memory));
}

static void test_memory_is_announced_by_its_first_use(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = unannounced_body, .environment = shm_only);
}

/* A call that was queued before a window is registered announces its buffer after the registration has been offered. */
static void queued_body(struct rank *me)
{
    void *queued, *registered;
    polypath_window_t window;
    polypath_request_t request;
    OK(me, polypath_mem_alloc(&queued, sizeof(int32_t) * 2 * COUNT));
    OK(me, polypath_mem_alloc(&registered, sizeof(int32_t) * 2 * COUNT));
    OK(me, polypath_all_reduce_start(queued, (int32_t *)queued + COUNT, COUNT, POLYPATH_INT32, POLYPATH_SUM, me->comm,
                                     &request));
    OK(me, polypath_comm_window_register(me->comm, registered, sizeof(int32_t) * 2 * COUNT, &window, 0));
    OK(me, polypath_wait(&request));
    all_reduce(me, registered, (int32_t *)registered + COUNT, 1);
    CHECK(me, went(me, POLYPATH_COLLECTIVE_ALL_REDUCE, "mapped"), "went %s",
          polypath_comm_algorithm(me->comm, POLYPATH_COLLECTIVE_ALL_REDUCE));
    OK(me, polypath_comm_window_deregister(me->comm, window));
    OK(me, polypath_mem_free(queued));
    OK(me, polypath_mem_free(registered));
}

static void test_registration_behind_queued_calls(void **state)
{
    (void)state;
    static const char *const alone[] = {"POLYPATH_PATHS=shm", "POLYPATH_PROGRESS_THREAD=never", NULL};
    RANKS_RUN(.size = 3, .body = queued_body, .environment = alone);
}

/*
 * Numbers of calls wrap around; those that say how far a rank has got with
 * mapped calls stand still meanwhile. An old one must not count as this call's.
 */
static void test_old_numbers_do_not_count(void **state)
{
    (void)state;
    const uint32_t number = 0x90000000u;
    struct segment *segments[2];
    int none[2] = {-1, -1}, pids[2] = {getpid(), getpid()};
    for (int r = 0; r < 2; r++)
        assert_int_equal(segment_create(1, 4096, 4096, 1 << 20, NUMA_UNBOUND, &segments[r]), POLYPATH_SUCCESS);
    struct exports *exports = exports_open(2, none);
    struct mapped *mapped = mapped_create(0, 2, segments, exports, pids);
    assert_non_null(mapped);
    char room[256] = {0}, buffer[64] = {0};
    struct mapped_notice *notice = (void *)room;
    /* rank 0 is not the root of a Gather, which the root fetches: it has only to wait */
    const struct board_call call = {.fetch = true,
                                    .frame = {.collective = POLYPATH_COLLECTIVE_GATHER, .root = 1},
                                    .op = {POLYPATH_UINT8, POLYPATH_SUM, 0},
                                    .send = buffer,
                                    .bytes = sizeof buffer};
    mapped_announce(mapped, &call, notice);
    assert_int_equal(mapped_own(mapped), MAPPED_OPEN);
    assert_int_equal(mapped_hear(mapped, 1, notice), MAPPED_FETCH);
    assert_int_equal(mapped_begin(mapped, MAPPED_FETCH, number), POLYPATH_SUCCESS);
    atomic_uint *other = &segment_board(segments[1])->mapped_done;
    const uint32_t old[] = {0, 5, number - 1, number + 1000};
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++) {
        bool moved = false;
        polypath_result_t result = POLYPATH_SUCCESS;
        atomic_store(other, old[i]);
        assert_false(mapped_advance(mapped, &moved, &result));
        assert_false(mapped_peek(mapped));
        assert_int_equal(mapped_waits_for(mapped), 1);
    }
    bool moved = false;
    polypath_result_t result = POLYPATH_SUCCESS;
    atomic_store(other, number);
    assert_true(mapped_peek(mapped));
    assert_true(mapped_advance(mapped, &moved, &result));
    mapped_free(mapped);
    exports_close(exports);
    segment_free(segments[0]);
    segment_free(segments[1]);
}

/* One rank's buffer is ordinary memory: all go the usual way. A leaf of a Broadcast needs none of its own. */
static void partly_body(struct rank *me)
{
    static int32_t ordinary[2 * COUNT];
    void *memory;
    OK(me, polypath_mem_alloc(&memory, sizeof ordinary));
    const bool mine = me->rank != 1;
    int32_t *in = mine ? memory : ordinary, *out = in + COUNT;
    for (int i = 0; i < 4; i++) {
        all_reduce(me, in, out, i);
        CHECK(me, went(me, POLYPATH_COLLECTIVE_ALL_REDUCE, "stage"), "rank 1's memory cannot be reached");
    }
    for (int i = 0; i < 6; i++) {
        const int root = i % 2;
        in[COUNT - 1] = 0;
        if (me->rank == root)
            in[COUNT - 1] = 7000 + i;
        OK(me, polypath_broadcast(in, in, COUNT, POLYPATH_INT32, root, me->comm));
        CHECK(me, in[COUNT - 1] == 7000 + i, "element is %d", in[COUNT - 1]);
        CHECK(me, went(me, POLYPATH_COLLECTIVE_BROADCAST, root == 0 ? "mapped" : "stage"), "broadcast %d went %s", i,
              polypath_comm_algorithm(me->comm, POLYPATH_COLLECTIVE_BROADCAST));
    }
    OK(me, polypath_mem_free(memory));
}

static void test_ordinary_memory_on_one_rank(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = partly_body, .environment = shm_only);
}

static void not_wanted_body(struct rank *me)
{
    void *memory;
    polypath_window_t window;
    OK(me, polypath_mem_alloc(&memory, sizeof(int32_t) * 2 * COUNT));
    const uint64_t before = fallbacks(me);
    OK(me, polypath_comm_window_register(me->comm, memory, sizeof(int32_t) * 2 * COUNT, &window, 0));
    CHECK(me, fallbacks(me) == before + 1, "a window without effect was not counted");
    for (int i = 0; i < 3; i++)
        all_reduce(me, memory, (int32_t *)memory + COUNT, i);
    CHECK(me, mapped_calls(me) == 0, "used, although the setting forbids it");
    OK(me, polypath_comm_window_deregister(me->comm, window));
    OK(me, polypath_mem_free(memory));
}

static void test_setting_turns_it_off(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = not_wanted_body, .environment = not_wanted);
}

/* Where the balancer would share calls out over cma as well, windows still win. */
static void windows_win_body(struct rank *me)
{
    void *memory;
    polypath_window_t window;
    OK(me, polypath_mem_alloc(&memory, sizeof(int32_t) * 2 * COUNT));
    OK(me, polypath_comm_window_register(me->comm, memory, sizeof(int32_t) * 2 * COUNT, &window, 0));
    for (int i = 0; i < 40; i++)
        all_reduce(me, memory, (int32_t *)memory + COUNT, i);
    CHECK(me, mapped_calls(me) == 40, "%d of 40", (int)mapped_calls(me));
    /* at the same place in the order of all ranks, whatever is in flight */
    polypath_request_t request;
    OK(me, polypath_all_reduce_start(memory, (int32_t *)memory + COUNT, COUNT, POLYPATH_INT32, POLYPATH_MAX, me->comm,
                                     &request));
    OK(me, polypath_comm_window_deregister(me->comm, window));
    OK(me, polypath_wait(&request));
    CHECK(me, mapped_calls(me) == 41, "%d of 41", (int)mapped_calls(me));
    for (int i = 0; i < 40; i++)
        all_reduce(me, memory, (int32_t *)memory + COUNT, i);
    OK(me, polypath_mem_free(memory));
}

static void test_windows_decide(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = windows_win_body, .environment = with_cma);
}

/* ------------------------------------------------------ memory that is there already */

/* Whether a child of fork writes into this process's memory: whether it is shared. */
static bool is_shared(volatile char *memory)
{
    const char before = *memory;
    pid_t child = fork();
    if (child == 0) {
        *memory = (char)(before + 1);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    const bool shared = *memory != before;
    *memory = before;
    return shared;
}

static void in_place_body(struct rank *me)
{
    const size_t bytes = 100 * 4096;
    char *memory = aligned_alloc(4096, 3 * bytes);
    CHECK(me, memory, "no memory");
    for (size_t i = 0; i < 3 * bytes; i++)
        memory[i] = (char)(i * 7 + (size_t)me->rank);
    polypath_window_t window, again;
    OK(me, polypath_comm_window_register(me->comm, memory + bytes, bytes, &window, 0));
    OK(me, polypath_comm_window_register(me->comm, memory + bytes, bytes, &again, 0));
    for (size_t i = 0; i < 3 * bytes; i++)
        CHECK(me, memory[i] == (char)(i * 7 + (size_t)me->rank), "byte %zu has changed", i);
    CHECK(me, is_shared(memory + bytes) && !is_shared(memory + bytes - 1) && !is_shared(memory + 2 * bytes),
          "other pages than those of the window are shared");
    int32_t *in = (int32_t *)(void *)(memory + bytes);
    CHECK(me, bytes >= 2 * sizeof(int32_t) * COUNT, "too small");
    all_reduce(me, in, in + COUNT, 3);
    CHECK(me, mapped_calls(me) == 1, "not worked on in place");
    OK(me, polypath_comm_window_deregister(me->comm, window));
    CHECK(me, is_shared(memory + bytes), "registered twice, deregistered once");
    OK(me, polypath_comm_window_deregister(me->comm, again));
    CHECK(me, !is_shared(memory + bytes), "still shared");
    const int32_t n = me->size;
    for (int32_t i = 0; i < COUNT; i++)
        CHECK(me, in[COUNT + i] == i * (n * (n + 1) / 2) + n * 3, "element %d is %d", i, in[COUNT + i]);
    all_reduce(me, in, in + COUNT, 4);
    free(memory);
}

static void test_ordinary_pages_become_shared_and_private_again(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = in_place_body, .environment = shm_only);
}

/* Not whole pages on rank 1, a file's memory on rank 0: no error, no effect, counted, logged. */
static void unusable_body(struct rank *me)
{
    static int32_t in[COUNT], out[COUNT];
    polypath_window_t window, empty;
    const uint64_t before = fallbacks(me);
    char *memory = aligned_alloc(4096, 8192);
    CHECK(me, memory, "no memory");
    OK(me, polypath_comm_window_register(me->comm, memory, me->rank == 1 ? 8000 : 8192, &window, 0));
    CHECK(me, fallbacks(me) == before + 1, "not counted");
    CHECK(me, is_shared(memory) == (me->rank != 1), "rank 1's is not whole pages");
    OK(me, polypath_comm_window_register(me->comm, NULL, 0, &empty, 0));
    CHECK(me, fallbacks(me) == before + 1, "nothing to register is no fallback");
    all_reduce(me, in, out, 1);
    OK(me, polypath_comm_window_deregister(me->comm, window));
    OK(me, polypath_comm_window_deregister(me->comm, empty));
    free(memory);
}

static void test_unusable_buffers(void **state)
{
    (void)state;
    static const char *const quiet[] = {"POLYPATH_PATHS=shm", "POLYPATH_LOG=none", NULL};
    RANKS_RUN(.size = 2, .body = unusable_body, .environment = quiet);
}

/* --------------------------------------------------------------- coming and going */

static int count_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    while (maps && fgets(line, sizeof line, maps))
        count += strstr(line, "memfd:polypath") != NULL;
    if (maps)
        fclose(maps);
    return count;
}

static int count_files(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += lseek(fd, 0, SEEK_CUR) != -1;
    return count;
}

/* Memory is allocated, used and freed over and over, at the same addresses: old mappings must not be taken for new. */
static void coming_and_going_body(struct rank *me)
{
    int mappings = 0, files = 0;
    for (int i = 0; i < 120; i++) {
        void *in, *out;
        OK(me, polypath_mem_alloc(&in, sizeof(int32_t) * COUNT));
        OK(me, polypath_mem_alloc(&out, sizeof(int32_t) * COUNT));
        for (int k = 0; k < 3; k++)
            all_reduce(me, in, out, i * 3 + k);
        OK(me, polypath_mem_free(in));
        OK(me, polypath_mem_free(out));
        if (i == 5)
            mappings = count_mappings(), files = count_files();
    }
    CHECK(me, mapped_calls(me) == 240, "%d of 240", (int)mapped_calls(me));
    CHECK(me, count_mappings() <= mappings && count_files() <= files, "%d mappings, %d files; there were %d, %d",
          count_mappings(), count_files(), mappings, files);
    CHECK(me, fallbacks(me) == 0, "fell back");
}

static void test_memory_comes_and_goes(void **state)
{
    (void)state;
    RANKS_RUN(.size = 3, .body = coming_and_going_body, .environment = shm_only);
}

/* A rank that announces without end to others that never use what they hear must not fill their sockets. */
static void talkative_body(struct rank *me)
{
    static int32_t in[COUNT], out[COUNT];
    for (int i = 0; i < 1500; i++) {
        void *memory = NULL;
        if (me->rank == 0)
            OK(me, polypath_mem_alloc(&memory, sizeof(int32_t) * COUNT));
        int32_t *from = memory ? memory : in;
        from[COUNT - 1] = i + me->rank;
        OK(me, polypath_reduce(from, out, COUNT, POLYPATH_INT32, POLYPATH_SUM, 0, me->comm));
        CHECK(me, me->rank || out[COUNT - 1] == 2 * i + 1, "call %d: %d", i, out[COUNT - 1]);
        OK(me, polypath_mem_free(memory));
    }
    CHECK(me, count_mappings() < 12, "%d mappings", count_mappings());
}

static void test_announcements_are_taken_in(void **state)
{
    (void)state;
    RANKS_RUN(.size = 2, .body = talkative_body, .environment = shm_only);
}

/* The same memory in a communicator and a part of it; groups; non-blocking calls; small calls in between. */
static void several_body(struct rank *me)
{
    polypath_comm_t half;
    void *memory;
    OK(me, polypath_comm_split(me->comm, me->rank % 2, 0, &half));
    OK(me, polypath_mem_alloc(&memory, POOL));
    uint64_t state = 3;
    for (int i = 0; i < 60; i++) {
        const size_t k = draw(&state) % KINDS;
        const bool small = draw(&state) % 4 == 0;
        struct exercise e = {.kind = kinds[k].kind,
                             .type = POLYPATH_INT32,
                             .count = small ? 1 + draw(&state) % 100 : 17000 + draw(&state) % 500,
                             .seed = state,
                             .in_place = draw(&state) & 1,
                             .pool = memory,
                             .pool_bytes = POOL};
        const int how = (int)(draw(&state) % 3);
        polypath_comm_t comm = i % 3 ? me->comm : half;
        const char *wrong = exercise_begin(&e, comm, how == 1);
        if (!wrong && how == 2)
            OK(me, polypath_group_start());
        if (!wrong && how != 1)
            wrong = exercise_call(&e);
        if (!wrong && how == 2)
            OK(me, polypath_group_end());
        if (!wrong && how == 1)
            OK(me, polypath_wait(&e.request));
        CHECK(me, !wrong, "%s", wrong);
        wrong = exercise_end(&e);
        CHECK(me, !wrong, "%s", wrong);
    }
    CHECK(me, mapped_calls(me) > 10, "%d", (int)mapped_calls(me));
    OK(me, polypath_comm_destroy(half));
    OK(me, polypath_mem_free(memory));
}

static void test_several_communicators(void **state)
{
    (void)state;
    RANKS_RUN(.size = 4, .body = several_body, .environment = shm_only);
}

/* ------------------------------------------------------------------------ errors */

static void arguments_body(struct rank *me)
{
    void *memory = &memory;
    int x = 0;
    polypath_window_t window = (void *)&x;
    CHECK(me, polypath_mem_alloc(NULL, 8) == POLYPATH_ERROR_ARGUMENT, "no place for the address");
    CHECK(me, polypath_mem_alloc(&memory, SIZE_MAX / 2) == POLYPATH_ERROR_ARGUMENT && !memory, "too much");
    CHECK(me, polypath_mem_alloc(&memory, (size_t)1 << 50) == POLYPATH_ERROR_OUT_OF_MEMORY && !memory, "a petabyte");
    OK(me, polypath_mem_alloc(&memory, 0));
    CHECK(me, memory, "0 bytes have an address");
    CHECK(me, polypath_mem_free((char *)memory + 8) == POLYPATH_ERROR_ARGUMENT, "in the middle");
    OK(me, polypath_mem_free(memory));
    CHECK(me, polypath_mem_free(memory) == POLYPATH_ERROR_ARGUMENT && strstr(polypath_last_error(), "mem_free"),
          "twice: %s", polypath_last_error());
    OK(me, polypath_mem_free(NULL));
    CHECK(me, polypath_comm_window_register(NULL, &x, 4, &window, 0) == POLYPATH_ERROR_ARGUMENT, "no communicator");
    CHECK(me, polypath_comm_window_register(me->comm, &x, 4, NULL, 0) == POLYPATH_ERROR_ARGUMENT, "no window");
    CHECK(me, polypath_comm_window_register(me->comm, NULL, 4, &window, 0) == POLYPATH_ERROR_ARGUMENT && !window,
          "no buffer");
    CHECK(me, polypath_comm_window_register(me->comm, &x, SIZE_MAX, &window, 0) == POLYPATH_ERROR_ARGUMENT, "too long");
    CHECK(me, polypath_comm_window_register(me->comm, &x, 4, &window, 2) == POLYPATH_ERROR_ARGUMENT, "flags");
    CHECK(me, polypath_comm_window_deregister(me->comm, (void *)&x) == POLYPATH_ERROR_ARGUMENT, "not a window");
    OK(me, polypath_group_start());
    CHECK(me, polypath_comm_window_register(me->comm, &x, 4, &window, 0) == POLYPATH_ERROR_USAGE, "in a group");
    CHECK(me, polypath_group_end(), "a group with a refused operation must not succeed");
    OK(me, polypath_barrier(me->comm)); /* nothing has moved, nothing is broken */
}

static void test_arguments(void **state)
{
    (void)state;
    RANKS_RUN(.size = 1, .body = arguments_body);
    RANKS_RUN(.size = 2, .body = arguments_body, .environment = shm_only);
}

/* Rank 2 dies, stops or calls something else while the others are in mapped calls. */
struct trouble {
    enum trouble_kind { TROUBLE_DIES, TROUBLE_STOPS, TROUBLE_OTHER_COUNT } kind;
    bool fetch; /* from ordinary memory, instead of working on registered memory */
};

static void trouble_body(struct rank *me)
{
    static int32_t ordinary[2 * COUNT];
    const struct trouble *t = me->context;
    const enum trouble_kind trouble = t->kind;
    void *memory = ordinary;
    polypath_window_t window;
    if (!t->fetch) {
        OK(me, polypath_mem_alloc(&memory, sizeof ordinary));
        OK(me, polypath_comm_window_register(me->comm, memory, sizeof ordinary, &window, 0));
    }
    int32_t *in = memory, *out = in + COUNT;
    for (int i = 0; i < 5; i++)
        all_reduce(me, in, out, i);
    CHECK(me, went(me, POLYPATH_COLLECTIVE_ALL_REDUCE, t->fetch ? "fetch" : "mapped"), "went %s",
          polypath_comm_algorithm(me->comm, POLYPATH_COLLECTIVE_ALL_REDUCE));
    if (me->rank == 2 && trouble == TROUBLE_DIES)
        raise(SIGKILL);
    if (me->rank == 2 && trouble == TROUBLE_STOPS) {
        ranks_await(me, 0, me->size - 1);
        return;
    }
    const size_t count = me->rank == 2 ? COUNT - 1 : COUNT;
    polypath_result_t result = POLYPATH_SUCCESS;
    for (int i = 0; i < 3 && !result; i++)
        result = polypath_all_reduce(in, out, count, POLYPATH_INT32, POLYPATH_SUM, me->comm);
    const char *said = polypath_last_error();
    switch (trouble) {
    case TROUBLE_DIES:
        CHECK(me, result == POLYPATH_ERROR_PEER_LOST || result == POLYPATH_ERROR_ABORTED, "%s: %s",
              polypath_result_name(result), said);
        break;
    case TROUBLE_STOPS:
        CHECK(me, result == POLYPATH_ERROR_TIMEOUT || result == POLYPATH_ERROR_ABORTED, "%s: %s",
              polypath_result_name(result), said);
        break;
    default:
        CHECK(me, result == POLYPATH_ERROR_MISMATCH || result == POLYPATH_ERROR_ABORTED, "%s: %s",
              polypath_result_name(result), said);
    }
    CHECK(me, strstr(said, "rank "), "%s", said);
    ranks_raise(me, 0);
}

static void test_ranks_that_fail(void **state)
{
    (void)state;
    static const struct trouble troubles[] = {
        {TROUBLE_DIES, false}, {TROUBLE_STOPS, false}, {TROUBLE_OTHER_COUNT, false},
        {TROUBLE_DIES, true},  {TROUBLE_STOPS, true},  {TROUBLE_OTHER_COUNT, true},
    };
    for (size_t i = 0; i < sizeof troubles / sizeof troubles[0]; i++)
        RANKS_RUN(.size = 3, .body = trouble_body, .context = &troubles[i],
                  .environment = troubles[i].fetch ? failing_fetch : failing,
                  .killed = troubles[i].kind == TROUBLE_DIES ? 1u << 2 : 0);
}

int main(void)
{
    static int sizes[] = {2, 3, 4, 7};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_every_collective, &sizes[0]),
        cmocka_unit_test_prestate(test_every_collective, &sizes[1]),
        cmocka_unit_test_prestate(test_every_collective, &sizes[3]),
        cmocka_unit_test_prestate(test_fetching, &sizes[0]),
        cmocka_unit_test_prestate(test_fetching, &sizes[2]),
        cmocka_unit_test_prestate(test_fetching, &sizes[3]),
        cmocka_unit_test(test_long_messages),
        cmocka_unit_test(test_memory_is_announced_by_its_first_use),
        cmocka_unit_test(test_registration_behind_queued_calls),
        cmocka_unit_test(test_old_numbers_do_not_count),
        cmocka_unit_test(test_ordinary_memory_on_one_rank),
        cmocka_unit_test(test_setting_turns_it_off),
        cmocka_unit_test(test_windows_decide),
        cmocka_unit_test(test_ordinary_pages_become_shared_and_private_again),
        cmocka_unit_test(test_unusable_buffers),
        cmocka_unit_test(test_memory_comes_and_goes),
        cmocka_unit_test(test_announcements_are_taken_in),
        cmocka_unit_test(test_several_communicators),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_ranks_that_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
