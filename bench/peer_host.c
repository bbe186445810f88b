/*
 * The machine as bench/peers.sh records it beside every point. Answers each
 * line of standard input with one of JSON:
 *   flag    how long a flag in shared memory takes from core to core
 *   memory  what two threads together copy, and sum into two places, in GB/s
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE__
#include <immintrin.h>
#endif

#include "frontends/cli/bench.h"

#define MEMORY_BYTES ((size_t)32 << 20) /* of one array; well above the caches */
#define FLOATS (MEMORY_BYTES / sizeof(float))
#define THREADS 2
#define REPEATS 9

/*
 * One thread's arrays; both threads meet at the barrier before each pass. They
 * keep the time themselves: a third thread would find no core free to do so.
 */
struct worker {
    float *a, *b, *c, *d;
    void (*pass)(const struct worker *worker);
    pthread_barrier_t *barrier;
    uint64_t begin_ns[REPEATS], end_ns[REPEATS];
};

static void copy(const struct worker *w)
{
    memcpy(w->c, w->a, MEMORY_BYTES);
}

/* What an AllReduce of two ranks cannot avoid: read both inputs, write both outputs. */
static void sum(const struct worker *w)
{
    for (size_t i = 0; i < FLOATS; i++)
        w->c[i] = w->d[i] = w->a[i] + w->b[i];
}

static void sum_past_cache(const struct worker *w)
{
#ifdef __SSE__
    for (size_t i = 0; i < FLOATS; i += 4) {
        __m128 both = _mm_add_ps(_mm_load_ps(w->a + i), _mm_load_ps(w->b + i));
        _mm_stream_ps(w->c + i, both);
        _mm_stream_ps(w->d + i, both);
    }
    _mm_sfence();
#else
    sum(w);
#endif
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    for (int i = 0; i < REPEATS; i++) {
        pthread_barrier_wait(worker->barrier);
        worker->begin_ns[i] = cli_now_ns();
        worker->pass(worker);
        worker->end_ns[i] = cli_now_ns();
    }
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* GB/s of both threads together, the median over passes; 0 if it could not be measured. */
static double rate_of(void (*pass)(const struct worker *))
{
    pthread_barrier_t barrier;
    struct worker workers[THREADS] = {0};
    pthread_t threads[THREADS];
    float *memory = aligned_alloc(64, THREADS * 4 * MEMORY_BYTES);
    if (!memory)
        return 0;
    memset(memory, 0, THREADS * 4 * MEMORY_BYTES);
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int t = 0; t < THREADS; t++) {
        float *own = memory + (size_t)t * 4 * FLOATS;
        workers[t] = (struct worker){.a = own,
                                     .b = own + FLOATS,
                                     .c = own + 2 * FLOATS,
                                     .d = own + 3 * FLOATS,
                                     .pass = pass,
                                     .barrier = &barrier};
        if (pthread_create(&threads[t], NULL, work, &workers[t])) {
            perror("peer_host: pthread_create");
            exit(1);
        }
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    uint64_t took_ns[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        uint64_t begin_ns = workers[0].begin_ns[i], end_ns = workers[0].end_ns[i];
        for (int t = 1; t < THREADS; t++) {
            begin_ns = workers[t].begin_ns[i] < begin_ns ? workers[t].begin_ns[i] : begin_ns;
            end_ns = workers[t].end_ns[i] > end_ns ? workers[t].end_ns[i] : end_ns;
        }
        took_ns[i] = end_ns - begin_ns;
    }
    qsort(took_ns, REPEATS, sizeof took_ns[0], by_size);
    pthread_barrier_destroy(&barrier);
    free(memory);
    return THREADS * (double)MEMORY_BYTES / (double)took_ns[REPEATS / 2];
}

static void answer_memory(void)
{
    double copied = rate_of(copy), summed = rate_of(sum), past = rate_of(sum_past_cache);
    printf("{\"copy_gbps\": %.3f, \"sum_gbps\": %.3f}\n", copied, past > summed ? past : summed);
}

int main(void)
{
    char line[64];
    struct bench_flag *flag = bench_flag_start();
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "flag\n"))
            printf("{\"flag_us\": %.4f}\n", flag ? bench_flag_measure(flag) : -1.0);
        else if (!strcmp(line, "memory\n"))
            answer_memory();
        else
            break;
        fflush(stdout);
    }
    bench_flag_stop(flag);
    return 0;
}
