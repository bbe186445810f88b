/*
 * The schedule checker must find faults: schedules that are right are given
 * one fault each, of every kind and at every place, and the checker has to
 * refuse each of them. Small schedules made by hand pin down the reasons.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "schedule/check.h"
#include "schedule/schedule.h"
#include "system/error.h"

enum { LARGEST = 8 };

struct set {
    struct schedule *schedules[LARGEST];
    int size;
};

static bool check(const struct set *set, bool rank_order, char *why, size_t why_bytes)
{
    return schedule_check((const struct schedule *const *)set->schedules, set->size, rank_order, why, why_bytes);
}

static void set_build(struct set *set, polypath_collective_t collective, enum schedule_algorithm algorithm, int size,
                      bool scaled)
{
    static const int host[LARGEST] = {0, 1, 0, 1, 1, 2, 0, 1};
    const struct schedule_shape shape = {.size = size, .nhosts = size > 5 ? 3 : 2, .host = host};
    set->size = size;
    for (int r = 0; r < size; r++) {
        set->schedules[r] = schedule_build(collective, algorithm, &shape, r, size / 2, scaled);
        assert_non_null(set->schedules[r]);
    }
}

static void set_free(struct set *set)
{
    for (int r = 0; r < set->size; r++)
        schedule_free(set->schedules[r]);
}

static bool uses_scaling(const struct schedule *s)
{
    bool found = false;
    for (int i = 0; i < s->nsteps; i++)
        found |= s->steps[i].kind == STEP_SCALE;
    return found;
}

/* ------------------------------------------------------------- mutations */

enum fault {
    NO_FAULT,
    DROP_STEP,       /* and the edges that touch it */
    DROP_EDGE,       /* `edge`-th successor of the step */
    WRONG_PEER,      /* SEND or RECV: another rank */
    TWICE,           /* REDUCE: its first source once more at the end */
    TOGGLE_FINAL,    /* REDUCE */
    REVERSE_SOURCES, /* REDUCE */
    WRONG_BLOCK,     /* SEND or COPY: another block is read, or RECV: another is written */
    UNSCALED,        /* SCALE becomes COPY */
    FAULTS
};

static struct slice other_block(struct slice slice, int nblocks)
{
    slice.block = (uint16_t)((slice.block + 1) % nblocks);
    if (slice.buffer != SLICE_SCRATCH)
        slice.index = slice.block;
    return slice;
}

/* Adds a copy of step i, at fault. False if this fault does not apply to it. */
static bool copy_step(struct schedule_builder *b, const struct schedule *s, uint32_t i, enum fault fault)
{
    struct step step = s->steps[i];
    struct slice sources[64];
    bool message = step.kind == STEP_SEND || step.kind == STEP_RECV, token = step.flags & STEP_TOKEN;
    bool final = step.flags & STEP_FINAL;
    int nsrc = step.nsrc;
    assert_true(nsrc < 60);
    for (int k = 0; k < nsrc; k++)
        sources[fault == REVERSE_SOURCES ? nsrc - 1 - k : k] = s->sources[step.source + (uint32_t)k];
    switch (fault) {
    case WRONG_PEER:
        if (!message || s->size < 3)
            return false;
        do
            step.peer = (step.peer + 1) % s->size;
        while (step.peer == s->rank);
        break;
    case WRONG_BLOCK:
        if (token || s->nblocks < 2 || step.kind == STEP_REDUCE || step.kind == STEP_SCALE)
            return false;
        if (step.kind == STEP_RECV)
            step.dst = other_block(step.dst, s->nblocks);
        else
            sources[0] = other_block(sources[0], s->nblocks);
        break;
    case TWICE: sources[nsrc++] = sources[0]; break;
    case TOGGLE_FINAL: final = !final; break;
    case UNSCALED:
        if (step.kind != STEP_SCALE)
            return false;
        step.kind = STEP_COPY;
        break;
    default: break;
    }
    if ((fault == TWICE || fault == TOGGLE_FINAL || fault == REVERSE_SOURCES) && step.kind != STEP_REDUCE)
        return false;
    if (fault == REVERSE_SOURCES && nsrc < 2)
        return false;
    switch (step.kind) {
    case STEP_SEND: token ? schedule_send_token(b, step.peer) : schedule_send(b, step.peer, sources[0]); break;
    case STEP_RECV: token ? schedule_recv_token(b, step.peer) : schedule_recv(b, step.peer, step.dst); break;
    case STEP_REDUCE: schedule_reduce(b, step.dst, sources, nsrc, final); break;
    case STEP_COPY: schedule_copy(b, step.dst, sources[0]); break;
    default: schedule_scale(b, step.dst, sources[0]); break;
    }
    return true;
}

/* A copy of a schedule with one fault at step `at`. NULL if the fault does not apply there. */
static struct schedule *mutate(const struct schedule *s, enum fault fault, uint32_t at, uint32_t edge)
{
    struct schedule_builder *b = schedule_begin(s->collective, s->algorithm, s->size, s->rank, s->root, s->nblocks);
    bool applies = true;
    for (int i = 0; i < s->nscratch; i++)
        schedule_scratch(b, 0);
    for (uint32_t i = 0; i < (uint32_t)s->nsteps; i++)
        if (fault != DROP_STEP || i != at)
            applies &= copy_step(b, s, i, i == at ? fault : NO_FAULT);
    for (uint32_t i = 0; i < (uint32_t)s->nsteps; i++)
        for (uint32_t k = 0; k < s->steps[i].nnext; k++) {
            uint32_t after = s->successors[s->steps[i].next + k];
            if (fault == DROP_STEP && (i == at || after == at))
                continue;
            if (fault == DROP_EDGE && i == at && k == edge)
                continue;
            bool shifted = fault == DROP_STEP;
            schedule_after(b, i - (shifted && i > at), after - (shifted && after > at));
        }
    struct schedule *mutant = schedule_finish(b);
    if (!applies) {
        schedule_free(mutant);
        return NULL;
    }
    assert_non_null(mutant);
    return mutant;
}

static const char *const fault_names[FAULTS] = {"no fault",         "dropped step",       "dropped edge",
                                                "wrong peer",       "contribution twice", "final flag toggled",
                                                "sources reversed", "wrong block",        "not scaled"};

/* An edge into a token may be more than needed, where other messages tell the peer the same; not so in direct. */
static bool may_be_spare(const struct schedule *s, uint32_t step, uint32_t edge)
{
    const struct step *after = &s->steps[s->successors[s->steps[step].next + edge]];
    return after->kind == STEP_SEND && after->flags & STEP_TOKEN && strcmp(s->algorithm, "direct") != 0;
}

/* Puts the fault in at every place of every rank; each must be refused. Returns how many there were. */
static int refuse_everywhere(struct set *set, enum fault fault)
{
    int tried = 0;
    for (int r = 0; r < set->size; r++) {
        struct schedule *right = set->schedules[r];
        for (uint32_t i = 0; i < (uint32_t)right->nsteps; i++)
            for (uint32_t e = 0; e < (fault == DROP_EDGE ? right->steps[i].nnext : 1); e++) {
                char why[256] = "";
                set->schedules[r] = mutate(right, fault, i, e);
                if (!set->schedules[r])
                    continue;
                tried++;
                bool found = !check(set, false, why, sizeof why);
                if (!found && !(fault == DROP_EDGE && may_be_spare(right, i, e)))
                    fail_msg("%s %s of %d: %s at rank %d step %u was not found", right->algorithm,
                             polypath_collective_name(right->collective), set->size, fault_names[fault], r, i);
                assert_true(!found || strlen(why) > 10);
                schedule_free(set->schedules[r]);
            }
        set->schedules[r] = right;
    }
    return tried;
}

/*
 * Of every algorithm and collective. That each dropped step and edge is found
 * shows as well that the builders add nothing that is not needed.
 */
static void test_every_single_fault_is_found(void **state)
{
    (void)state;
    int tried[FAULTS] = {0};
    for (int a = 0; a < ALGORITHM_COUNT; a++)
        for (int c = 0; c < POLYPATH_COLLECTIVE_COUNT; c++)
            for (int size = 2; size <= LARGEST; size += size < 5 ? 1 : 3)
                for (int scaled = 0; scaled < 2; scaled++) {
                    enum schedule_algorithm algorithm = (enum schedule_algorithm)a;
                    polypath_collective_t collective = (polypath_collective_t)c;
                    struct set set;
                    char why[256] = "";
                    const struct schedule_shape shape = {.size = size, .nhosts = 1};
                    if (!schedule_supported(collective, algorithm, &shape))
                        continue;
                    set_build(&set, collective, algorithm, size, scaled);
                    if (scaled && !uses_scaling(set.schedules[0])) {
                        set_free(&set);
                        continue;
                    }
                    struct schedule *right = set.schedules[0];
                    set.schedules[0] = mutate(right, NO_FAULT, 0, 0);
                    if (!check(&set, schedule_rank_order(collective, algorithm), why, sizeof why))
                        fail_msg("a faithful copy is refused: %s", why);
                    schedule_free(set.schedules[0]);
                    set.schedules[0] = right;
                    for (int f = DROP_STEP; f < FAULTS; f++)
                        if (f != REVERSE_SOURCES)
                            tried[f] += refuse_everywhere(&set, (enum fault)f);
                    set_free(&set);
                }
    for (int f = DROP_STEP; f < FAULTS; f++)
        assert_true(f == REVERSE_SOURCES || tried[f] > 10);
}

/* Takes out one token at both ends, so that all messages still match: what is left is unsafe. */
static void test_every_missing_token_is_found(void **state)
{
    (void)state;
    int tried = 0;
    for (int a = 0; a < ALGORITHM_COUNT; a++)
        for (int c = 0; c < POLYPATH_COLLECTIVE_COUNT; c++)
            for (int size = 2; size <= LARGEST; size++) {
                enum schedule_algorithm algorithm = (enum schedule_algorithm)a;
                polypath_collective_t collective = (polypath_collective_t)c;
                const struct schedule_shape shape = {.size = size, .nhosts = 1};
                struct set set;
                if (!schedule_supported(collective, algorithm, &shape))
                    continue;
                set_build(&set, collective, algorithm, size, false);
                for (int r = 0; r < size; r++) {
                    struct schedule *sender = set.schedules[r];
                    for (uint32_t i = 0; i < (uint32_t)sender->nsteps; i++) {
                        const struct step *step = &sender->steps[i];
                        if (step->kind != STEP_SEND || !(step->flags & STEP_TOKEN))
                            continue;
                        char why[256] = "";
                        struct schedule *receiver = set.schedules[step->peer];
                        uint32_t recv = receiver->recvs[receiver->first_recv[r] + step->message];
                        set.schedules[step->peer] = mutate(receiver, DROP_STEP, recv, 0);
                        set.schedules[r] = mutate(sender, DROP_STEP, i, 0);
                        bool told = a == ALGORITHM_HALVING_DOUBLING && collective == POLYPATH_COLLECTIVE_REDUCE;
                        if (!check(&set, false, why, sizeof why))
                            assert_non_null(strstr(why, " may "));
                        else if (!told) /* there the results that the root receives may tell it as well */
                            fail_msg("%s %s of %d: a missing token from %d to %d was not found", sender->algorithm,
                                     polypath_collective_name(collective), size, r, step->peer);
                        schedule_free(set.schedules[r]);
                        schedule_free(set.schedules[step->peer]);
                        set.schedules[r] = sender;
                        set.schedules[step->peer] = receiver;
                        tried++;
                    }
                }
                set_free(&set);
            }
    assert_true(tried > 100);
}

/* Sums in another order are sums, but not reproducible ones. */
static void test_order_matters_only_if_asked(void **state)
{
    (void)state;
    char why[256];
    struct set set;
    set_build(&set, POLYPATH_COLLECTIVE_ALL_REDUCE, ALGORITHM_DIRECT, 4, false);
    struct schedule *right = set.schedules[1];
    for (uint32_t i = 0; i < (uint32_t)right->nsteps; i++) {
        if (right->steps[i].kind != STEP_REDUCE)
            continue;
        set.schedules[1] = mutate(right, REVERSE_SOURCES, i, 0);
        assert_true(check(&set, false, why, sizeof why));
        assert_false(check(&set, true, why, sizeof why));
        assert_non_null(strstr(why, "rank order"));
        schedule_free(set.schedules[1]);
    }
    set.schedules[1] = right;
    set_free(&set);
}

/* ------------------------------------------------- schedules made by hand */

static struct schedule_builder *begin(polypath_collective_t collective, int size, int rank, int nblocks)
{
    return schedule_begin(collective, "by hand", size, rank, 0, nblocks);
}

static void refuse(struct schedule_builder *first, struct schedule_builder *second, const char *reason)
{
    char why[256] = "accepted";
    struct set set = {.size = second ? 2 : 1};
    set.schedules[0] = schedule_finish(first);
    set.schedules[1] = second ? schedule_finish(second) : NULL;
    bool good = check(&set, false, why, sizeof why);
    if (good || !strstr(why, reason))
        fail_msg("expected \"%s\", got \"%s\"", reason, why);
    set_free(&set);
}

static void test_deadlock_is_found(void **state)
{
    (void)state;
    struct schedule_builder *b[2];
    for (int r = 0; r < 2; r++) { /* each waits for the other's token before it sends its own */
        b[r] = begin(POLYPATH_COLLECTIVE_BARRIER, 2, r, 0);
        uint32_t recv = schedule_recv_token(b[r], 1 - r);
        schedule_after(b[r], recv, schedule_send_token(b[r], 1 - r));
    }
    refuse(b[0], b[1], "deadlock");
}

/* AllGather of two ranks, where rank 1 would rather first copy, then receive: the message may be there before. */
static void test_receive_that_is_not_ready_is_found(void **state)
{
    (void)state;
    struct schedule_builder *b[2];
    for (int r = 0; r < 2; r++) {
        b[r] = begin(POLYPATH_COLLECTIVE_ALL_GATHER, 2, r, 2);
        uint32_t copy = schedule_copy(b[r], slice_output(r), slice_input(r));
        schedule_send(b[r], 1 - r, slice_input(r));
        uint32_t recv = schedule_recv(b[r], 1 - r, slice_output(1 - r));
        if (r == 1)
            schedule_after(b[r], copy, recv);
    }
    refuse(b[0], b[1], "may arrive before");
}

static void test_race_in_place_is_found(void **state)
{
    (void)state;
    struct schedule_builder *b = begin(POLYPATH_COLLECTIVE_ALL_REDUCE, 1, 0, 1);
    schedule_reduce(b, slice_output(0), (struct slice[]){slice_input(0)}, 1, true);
    schedule_copy(b, schedule_scratch(b, 0), slice_input(0)); /* still reads the input: fine unless in place */
    refuse(b, NULL, "in place");
}

static void test_race_for_an_output_is_found(void **state)
{
    (void)state;
    struct schedule_builder *b = begin(POLYPATH_COLLECTIVE_ALL_REDUCE, 1, 0, 1);
    schedule_reduce(b, slice_output(0), (struct slice[]){slice_input(0)}, 1, true);
    schedule_reduce(b, slice_output(0), (struct slice[]){slice_input(0)}, 1, true);
    refuse(b, NULL, "race");
}

static void test_scratch_used_twice_is_found(void **state)
{
    (void)state;
    struct schedule_builder *b = begin(POLYPATH_COLLECTIVE_ALL_REDUCE, 1, 0, 1);
    struct slice slot = schedule_scratch(b, 0);
    uint32_t first = schedule_copy(b, slot, slice_input(0));
    uint32_t second = schedule_copy(b, slot, slice_input(0));
    uint32_t fold = schedule_reduce(b, slice_output(0), &slot, 1, true);
    schedule_after(b, first, second);
    schedule_after(b, second, fold);
    refuse(b, NULL, "scratch slot again");
}

/* Folds of the same contributions that differ between ranks would give results that are not bit-identical. */
static void test_unlike_results_are_found(void **state)
{
    (void)state;
    struct schedule_builder *b[2];
    for (int r = 0; r < 2; r++) {
        b[r] = begin(POLYPATH_COLLECTIVE_ALL_REDUCE, 2, r, 1);
        struct slice theirs = schedule_scratch(b[r], 0);
        schedule_send(b[r], 1 - r, slice_input(0));
        uint32_t recv = schedule_recv(b[r], 1 - r, theirs);
        uint32_t fold = schedule_reduce(b[r], slice_output(0), (struct slice[]){slice_input(0), theirs}, 2, true);
        schedule_after(b[r], recv, fold);
        schedule_after(b[r], fold, schedule_send_token(b[r], 1 - r));
        schedule_recv_token(b[r], 1 - r);
    }
    refuse(b[0], b[1], "computed differently");
}

static void test_forbidden_buffers_are_found(void **state)
{
    (void)state;
    struct schedule_builder *b = begin(POLYPATH_COLLECTIVE_ALL_REDUCE, 1, 0, 1);
    schedule_copy(b, slice_input(0), slice_input(0));
    refuse(b, NULL, "writes");
    struct schedule_builder *root = begin(POLYPATH_COLLECTIVE_REDUCE, 2, 0, 1);
    struct schedule_builder *other = begin(POLYPATH_COLLECTIVE_REDUCE, 2, 1, 1);
    schedule_reduce(other, slice_output(0), (struct slice[]){slice_input(0)}, 1, false); /* may be NULL there */
    refuse(root, other, "writes");
}

static void test_final_twice_is_found(void **state)
{
    (void)state;
    struct schedule_builder *b = begin(POLYPATH_COLLECTIVE_ALL_REDUCE, 1, 0, 1);
    struct slice slot = schedule_scratch(b, 0);
    uint32_t first = schedule_reduce(b, slot, (struct slice[]){slice_input(0)}, 1, true);
    schedule_after(b, first, schedule_reduce(b, slice_output(0), &slot, 1, true));
    refuse(b, NULL, "final already");
}

/*
 * Rank 1 sends block 0 back when it has read both blocks, which tells rank 0
 * that its scratch is free. If block 0 is empty, nothing tells it.
 */
static void test_contract_that_rests_on_another_block_is_found(void **state)
{
    (void)state;
    char why[256];
    struct set set = {.size = 2};
    struct schedule_builder *b = begin(POLYPATH_COLLECTIVE_BROADCAST, 2, 0, 2);
    for (int block = 0; block < 2; block++) {
        schedule_send(b, 1, slice_input(block));
        schedule_copy(b, slice_output(block), slice_input(block));
    }
    struct slice back = schedule_scratch(b, 0);
    uint32_t recv = schedule_recv(b, 1, back);
    schedule_after(b, recv, schedule_copy(b, schedule_scratch(b, 0), back));
    schedule_release(b, 1);
    set.schedules[0] = schedule_finish(b);
    b = begin(POLYPATH_COLLECTIVE_BROADCAST, 2, 1, 2);
    uint32_t copies[2];
    for (int block = 0; block < 2; block++) {
        struct slice slot = schedule_scratch(b, block);
        recv = schedule_recv(b, 0, slot);
        copies[block] = schedule_copy(b, slice_output(block), slot);
        schedule_after(b, recv, copies[block]);
    }
    uint32_t send = schedule_send(b, 0, slice_output(0));
    schedule_after(b, copies[0], send);
    schedule_after(b, copies[1], send);
    schedule_recv_token(b, 0);
    set.schedules[1] = schedule_finish(b);
    const struct schedule *const *schedules = (const struct schedule *const *)set.schedules;
    assert_true(check(&set, false, why, sizeof why));
    assert_true(schedule_check_block(schedules, 2, 0, why, sizeof why));
    assert_false(schedule_check_block(schedules, 2, 1, why, sizeof why));
    assert_non_null(strstr(why, "may finish before"));
    set_free(&set);
}

/* --------------------------------------------------------------- builder */

static void test_builder_derives_its_arrays(void **state)
{
    (void)state;
    struct schedule_builder *b = begin(POLYPATH_COLLECTIVE_ALL_REDUCE, 3, 0, 3);
    struct slice slot = schedule_scratch(b, 1);
    uint32_t early = schedule_recv(b, 2, slot), other = schedule_recv(b, 1, slice_output(0));
    uint32_t late = schedule_recv(b, 2, slice_output(2));
    uint32_t fold = schedule_reduce(b, slice_output(1), (struct slice[]){slot, slot, slice_input(1)}, 3, true);
    schedule_after(b, early, fold);
    schedule_after(b, early, fold);
    schedule_after(b, other, fold);
    struct schedule *s = schedule_finish(b);
    assert_non_null(s);
    assert_int_equal(s->steps[early].message, 0);
    assert_int_equal(s->steps[late].message, 1);
    assert_int_equal(s->first_recv[1], 0);
    assert_int_equal(s->first_recv[2], 1);
    assert_int_equal(s->first_recv[3], 3);
    assert_int_equal(s->recvs[1], early);
    assert_int_equal(s->recvs[2], late);
    assert_int_equal(s->steps[fold].waits, 2);
    assert_int_equal(s->steps[early].nnext, 1);
    assert_int_equal(s->scratch_reads[0], 1);
    schedule_free(s);
}

static void test_failures_stick_to_the_builder(void **state)
{
    (void)state;
    struct schedule_builder *b = begin(POLYPATH_COLLECTIVE_ALL_REDUCE, 2, 0, 2);
    schedule_send(b, 2, slice_input(0));
    schedule_send(b, 1, slice_input(0));
    assert_null(schedule_finish(b));
    assert_non_null(strstr(error_text(), "rank that does not exist"));
    b = begin(POLYPATH_COLLECTIVE_ALL_REDUCE, 2, 0, 2);
    for (int i = 0; i < 65536; i++)
        schedule_scratch(b, 0);
    assert_null(schedule_finish(b));
    assert_non_null(strstr(error_text(), "scratch slots"));
    assert_null(schedule_finish(NULL)); /* a begin that found no memory */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_single_fault_is_found),
        cmocka_unit_test(test_every_missing_token_is_found),
        cmocka_unit_test(test_order_matters_only_if_asked),
        cmocka_unit_test(test_deadlock_is_found),
        cmocka_unit_test(test_receive_that_is_not_ready_is_found),
        cmocka_unit_test(test_race_in_place_is_found),
        cmocka_unit_test(test_race_for_an_output_is_found),
        cmocka_unit_test(test_scratch_used_twice_is_found),
        cmocka_unit_test(test_unlike_results_are_found),
        cmocka_unit_test(test_forbidden_buffers_are_found),
        cmocka_unit_test(test_final_twice_is_found),
        cmocka_unit_test(test_contract_that_rests_on_another_block_is_found),
        cmocka_unit_test(test_builder_derives_its_arrays),
        cmocka_unit_test(test_failures_stick_to_the_builder),
    };
    return cmocka_run_group_tests_name("schedule_check", tests, NULL, NULL);
}
