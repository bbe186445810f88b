/*
 * How a writer finds out which way of writing suits its readers
 * (link/stores.h), on simulated cores that share a cache or do not, with noise
 * and interruptions.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "link/stores.h"

/* ns per 64 KiB, [past]. */
struct world {
    double write[2], read[2];
};
static const struct world near = {{3000, 6500}, {3000, 6000}};
static const struct world far = {{9000, 6500}, {18000, 7500}};
static const struct world alike = {{5000, 5200}, {5000, 5100}};

static uint64_t state;

static double noise(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    const unsigned draw = (unsigned)(state >> 40);
    return draw % 50 == 0 ? 100 : 0.9 + (draw % 1000) / 5000.0; /* now and then somebody else had the core */
}

struct pair {
    struct stores_writer writer;
    struct stores_cost reader;
};

/* `count` chunks; returns how many were written past the caches. */
static unsigned run(struct pair *pair, const struct world *world, size_t bytes, unsigned count)
{
    unsigned past_count = 0;
    for (unsigned i = 0; i < count; i++) {
        const uint64_t readers[2] = {pair->reader.ns[0], pair->reader.ns[1]};
        const bool past = stores_choose(&pair->writer, readers);
        const double size = (double)bytes / 65536;
        if (stores_curious(&pair->writer.cost, past, bytes))
            stores_note(&pair->writer.cost, past, bytes, (uint64_t)(world->write[past] * size * noise()));
        if (stores_curious(&pair->reader, past, bytes))
            stores_note(&pair->reader, past, bytes, (uint64_t)(world->read[past] * size * noise()));
        past_count += past;
    }
    return past_count;
}

static void test_finds_the_better_way(void **unused)
{
    (void)unused;
    for (state = 1; state < 1000; state++) {
        const uint64_t seed = state;
        struct pair one = {0}, other = {0};
        run(&one, &near, 65536, 2000);
        assert_true(run(&one, &near, 65536, 10000) < 300); /* 1 in 256 are probes */
        run(&other, &far, 65536, 2000);
        assert_true(run(&other, &far, 65536, 10000) > 9700);
        state = seed;
    }
}

static void test_follows_a_change(void **unused)
{
    (void)unused;
    for (state = 1; state < 1000; state++) {
        const uint64_t seed = state;
        struct pair pair = {0};
        run(&pair, &near, 32768, 5000);
        run(&pair, &far, 32768, 3000);
        assert_true(run(&pair, &far, 32768, 10000) > 9700);
        run(&pair, &near, 32768, 3000);
        assert_true(run(&pair, &near, 32768, 10000) < 300);
        state = seed;
    }
}

/* Where it makes no difference it stays what it is. */
static void test_does_not_waver(void **unused)
{
    (void)unused;
    unsigned turns = 0;
    for (state = 1; state < 1000; state++) {
        const uint64_t seed = state;
        struct pair pair = {0};
        bool before = false;
        for (int i = 0; i < 100; i++) {
            run(&pair, &alike, 65536, 100);
            turns += pair.writer.past != before;
            before = pair.writer.past;
        }
        state = seed;
    }
    assert_true(turns < 3 * 999); /* in 10,000 chunks each */
}

static void test_small_pieces_are_not_timed(void **unused)
{
    (void)unused;
    struct pair pair = {0};
    state = 1;
    run(&pair, &far, STORES_LEAST_BYTES - 1, 5000);
    assert_false(pair.writer.past);
    assert_int_equal(pair.writer.cost.ns[0] + pair.writer.cost.ns[1] + pair.reader.ns[0] + pair.reader.ns[1], 0);
}

static void test_most_are_not_timed(void **unused)
{
    (void)unused;
    struct stores_cost cost = {0};
    unsigned timed = 0;
    for (int i = 0; i < 16000; i++)
        if (stores_curious(&cost, false, 65536)) {
            stores_note(&cost, false, 65536, 1000);
            timed++;
        }
    assert_in_range(timed, 900, 1100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_the_better_way), cmocka_unit_test(test_follows_a_change),
        cmocka_unit_test(test_does_not_waver),       cmocka_unit_test(test_small_pieces_are_not_timed),
        cmocka_unit_test(test_most_are_not_timed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
