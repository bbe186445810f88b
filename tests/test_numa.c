/*
 * NUMA nodes (topology/numa.h) of pretended machines, and ranks that claim to
 * be on nodes: which groups they make, that two-level algorithms are used
 * between these and not elsewhere, that results do not depend on it, and what
 * is said about claims that make no sense.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "link/segment.h"
#include "support/exercise.h"
#include "support/program.h"
#include "support/quick.h"
#include "support/ranks.h"
#include "support/reference.h"
#include "topology/numa.h"

/* -------------------------------------------------------- pretended machines */

static struct numa_map *machine(const char *synthetic)
{
    struct numa_map *map = NULL;
    assert_int_equal(numa_map_load(synthetic, &map), POLYPATH_SUCCESS);
    return map;
}

/* The node of a process that may use cores first..last. */
static int node_of(const struct numa_map *map, int first, int last)
{
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (int cpu = first; cpu <= last; cpu++)
        CPU_SET((size_t)cpu, &cpus);
    return numa_map_find(map, &cpus);
}

static void test_two_nodes(void **state)
{
    (void)state;
    struct numa_map *map = machine("numa:2 core:4 pu:1");
    assert_int_equal(numa_map_count(map), 2);
    for (int cpu = 0; cpu < 8; cpu++)
        assert_int_equal(node_of(map, cpu, cpu), cpu / 4);
    assert_int_equal(node_of(map, 0, 3), 0);
    assert_int_equal(node_of(map, 4, 7), 1);
    assert_int_equal(node_of(map, 3, 4), NUMA_UNBOUND); /* a core of each */
    assert_int_equal(node_of(map, 0, 7), NUMA_UNBOUND);
    assert_int_equal(node_of(map, 7, 8), NUMA_UNBOUND); /* a core that the machine does not have */
    assert_int_equal(node_of(map, 1, 0), NUMA_UNBOUND); /* no core at all */
    numa_map_free(map);
}

static void test_two_nodes_in_each_package(void **state)
{
    (void)state;
    struct numa_map *map = machine("pack:2 numa:2 core:2 pu:2");
    assert_int_equal(numa_map_count(map), 4);
    for (int cpu = 0; cpu < 16; cpu++)
        assert_int_equal(node_of(map, cpu, cpu), cpu / 4);
    assert_int_equal(node_of(map, 8, 11), 2);
    assert_int_equal(node_of(map, 0, 7), NUMA_UNBOUND); /* a package, but two nodes */
    numa_map_free(map);
}

static void test_one_node(void **state)
{
    (void)state;
    struct numa_map *map = machine("core:4 pu:1");
    assert_int_equal(numa_map_count(map), 1);
    assert_int_equal(node_of(map, 0, 3), 0);
    assert_int_equal(node_of(map, 2, 2), 0);
    assert_int_equal(node_of(map, 0, 63), 0); /* of a machine with one node everybody is on it */
    numa_map_free(map);
}

/* Memory that belongs to more cores than another node's is nobody's home, nor is a second one for the same cores. */
static void test_memory_beside_the_nodes_is_no_home(void **state)
{
    (void)state;
    struct numa_map *map = machine("[numa] pack:2 [numa] [numa] core:2 pu:1");
    assert_int_equal(numa_map_count(map), 2);
    const int left = node_of(map, 0, 1), right = node_of(map, 2, 3);
    assert_int_not_equal(left, NUMA_UNBOUND);
    assert_int_not_equal(right, NUMA_UNBOUND);
    assert_int_not_equal(left, right);
    assert_int_equal(node_of(map, 0, 3), NUMA_UNBOUND);
    numa_map_free(map);
}

static void test_a_wrong_machine_is_an_error(void **state)
{
    (void)state;
    struct numa_map *map = NULL;
    assert_int_equal(numa_map_load("two nodes, please", &map), POLYPATH_ERROR_ARGUMENT);
    assert_non_null(strstr(polypath_last_error(), "two nodes, please"));
    assert_null(map);
}

static void test_numbers_of_nodes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
        int node;
    } cases[] = {{"", true, NUMA_UNBOUND}, {"0", true, 0},    {"1023", true, 1023},
                 {"1024", false, 0},       {"-5", false, 0},  {"first", false, 0},
                 {"1x", false, 0},         {" 1", false, 0},  {"+1", false, 0},
                 {"0x1", false, 0},        {"1,2", false, 0}, {"99999999999999999999", false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int node = 77;
        assert_int_equal(numa_parse(cases[i].text, &node), cases[i].good);
        assert_int_equal(node, cases[i].good ? cases[i].node : NUMA_UNBOUND);
        if (!cases[i].good)
            assert_non_null(strstr(polypath_last_error(), cases[i].text));
    }
}

/* ------------------------------------------------------------------- groups */

#define MOST 8

/* The groups of ranks on `nodes`, which ends with -2; hosts: a letter per rank. */
static void expect_groups(const char *hosts, const int *nodes, enum numa_mode mode, int count, bool by_node,
                          const int *want)
{
    static struct rank_info infos[MOST];
    const int size = (int)strlen(hosts);
    memset(infos, 0, sizeof infos);
    for (int r = 0; r < size; r++) {
        infos[r].host[0] = hosts[r];
        infos[r].numa_node = nodes[r];
    }
    struct comm_layout layout;
    assert_int_equal(layout_build(infos, size, mode, &layout), POLYPATH_SUCCESS);
    assert_int_equal(layout.ngroups, count);
    assert_int_equal(layout.by_node, by_node);
    for (int r = 0; r < size; r++)
        assert_int_equal(layout.group_of[r], want[r]);
    layout_free(&layout);
}

static void test_groups(void **state)
{
    (void)state;
    const int pairs[] = {0, 0, 1, 1}, far[] = {9, 4, 9, 4}, one[] = {3, 3, 3, 3}, partly[] = {0, 0, 1, NUMA_UNBOUND};
    const int none[] = {-1, -1, -1, -1}, uneven[] = {2, 2, 2, 0};
    expect_groups("aaaa", pairs, NUMA_AUTO, 2, true, (int[]){0, 0, 1, 1});
    expect_groups("aaaa", pairs, NUMA_ON, 2, true, (int[]){0, 0, 1, 1});
    expect_groups("aaaa", pairs, NUMA_OFF, 1, false, (int[]){0, 0, 0, 0});
    expect_groups("aaaa", far, NUMA_AUTO, 2, true, (int[]){0, 1, 0, 1});
    expect_groups("aaaa", uneven, NUMA_AUTO, 2, true, (int[]){0, 0, 0, 1});
    expect_groups("aaaa", one, NUMA_ON, 1, false, (int[]){0, 0, 0, 0});
    expect_groups("aaaa", partly, NUMA_ON, 1, false, (int[]){0, 0, 0, 0});
    expect_groups("aaaa", none, NUMA_ON, 1, false, (int[]){0, 0, 0, 0});
    expect_groups("abab", pairs, NUMA_ON, 2, false, (int[]){0, 1, 0, 1}); /* one level: the hosts */
}

/* Few ranks on a node do not fill what joins the nodes, many do. */
static void test_levels_are_preferred_where_nodes_have_many_ranks(void **state)
{
    (void)state;
    for (int each = 2; each <= 64; each *= 2) {
        int group[128];
        struct model model = {.within = {1500, 6000}, .shape = {2 * each, 2, group}, .cores_per_host = each};
        model.between = tune_between_nodes(&model.within);
        for (int r = 0; r < 2 * each; r++)
            group[r] = r / each;
        const bool preferred = model_prefers_levels(&model, POLYPATH_COLLECTIVE_ALL_REDUCE, 64u << 20);
        if (each <= 4)
            assert_false(preferred);
        if (each >= 32)
            assert_true(preferred);
        model.reproducible = true;
        assert_false(model_prefers_levels(&model, POLYPATH_COLLECTIVE_ALL_REDUCE, 64u << 20));
    }
}

/* ------------------------------------------------------------------- memory */

/* Every page of a segment is there, on the owner's node, before a peer can have touched it. */
static void test_segments_are_touched_by_their_owner(void **state)
{
    (void)state;
    struct segment *segment = NULL;
    const int node = numa_own_node();
    assert_int_equal(segment_create(3, 32768, 65536, 64u << 20, node, &segment), POLYPATH_SUCCESS);
    assert_true(segment->placed);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = segment->bytes / page;
    unsigned char *resident = calloc(1, pages);
    assert_non_null(resident);
    /* seen through a mapping of a peer, which has touched nothing */
    char *base = mmap(NULL, segment->bytes, PROT_READ, MAP_SHARED, segment->fd, 0);
    assert_true(base != MAP_FAILED);
    assert_int_equal(mincore(base, segment->bytes, resident), 0);
    for (size_t i = 0; i < pages; i++)
        assert_true(resident[i] & 1);
    for (size_t i = 0; i < pages && node != NUMA_UNBOUND; i++) {
        void *address = segment->base + i * page;
        int where = -1;
        if (syscall(SYS_move_pages, 0, 1UL, &address, NULL, &where, 0)) {
            print_message("the kernel does not say where pages lie; not checked\n");
            break;
        }
        assert_int_equal(where, node);
    }
    munmap(base, segment->bytes);
    free(resident);
    segment_free(segment);
}

/* A node that this machine does not have: the segment is made all the same, and says so. */
static void test_memory_on_a_node_that_is_not_there(void **state)
{
    (void)state;
    struct segment *segment = NULL;
    assert_int_equal(segment_create(1, 4096, 0, 1u << 20, NUMA_LARGEST, &segment), POLYPATH_SUCCESS);
    assert_false(segment->placed);
    segment_free(segment);
}

/* -------------------------------------------------------------------- ranks */

/* A digit for every rank: the node that it claims. '-': none. */
struct claim {
    const char *nodes;
    int groups;
};
static const struct claim claims[] = {{"0011", 2},   {"0101", 2},   {"0001", 2},
                                      {"001122", 3}, {"000011", 2}, {"012210", 3}};

static void claim_node(struct rank *me)
{
    const struct claim *claim = me->context;
    char text[40];
    const char node = claim->nodes[me->rank];
    snprintf(text, sizeof text, "POLYPATH_NUMA_NODE=%.1s", node == '-' ? "" : &node);
    ranks_setenv(text);
}

static const char *const on[] = {"POLYPATH_NUMA=on", "POLYPATH_PATHS=shm", NULL};
static const char *const automatic[] = {"POLYPATH_PATHS=shm", NULL};
static const char *const off[] = {"POLYPATH_NUMA=off", "POLYPATH_PATHS=shm", NULL};

static const struct {
    enum exercise_kind kind;
    polypath_collective_t collective;
    bool two_levels;
} kinds[] = {
    {EXERCISE_ALL_REDUCE, POLYPATH_COLLECTIVE_ALL_REDUCE, true},
    {EXERCISE_REDUCE, POLYPATH_COLLECTIVE_REDUCE, true},
    {EXERCISE_REDUCE_SCATTER, POLYPATH_COLLECTIVE_REDUCE_SCATTER, true},
    {EXERCISE_REDUCE_SCATTER_V, POLYPATH_COLLECTIVE_REDUCE_SCATTER, true},
    {EXERCISE_BROADCAST, POLYPATH_COLLECTIVE_BROADCAST, true},
    {EXERCISE_ALL_GATHER, POLYPATH_COLLECTIVE_ALL_GATHER, true},
    {EXERCISE_ALL_GATHER_V, POLYPATH_COLLECTIVE_ALL_GATHER, true},
    {EXERCISE_ALL_TO_ALL, POLYPATH_COLLECTIVE_ALL_TO_ALL, false},
    {EXERCISE_ALL_TO_ALL_V, POLYPATH_COLLECTIVE_ALL_TO_ALL, false},
    {EXERCISE_GATHER, POLYPATH_COLLECTIVE_GATHER, false},
    {EXERCISE_SCATTER, POLYPATH_COLLECTIVE_SCATTER, false},
    {EXERCISE_BARRIER, POLYPATH_COLLECTIVE_BARRIER, false},
    {EXERCISE_SEND_RECV, POLYPATH_COLLECTIVE_SEND_RECV, false},
};

/* Every collective, small and large, in and out of place; the large ones by two levels where there are any. */
static void all_collectives(struct rank *me)
{
    const struct claim *claim = me->context;
    const size_t counts[] = {1, 1000, 20011, 300007};
    CHECK(me, me->comm->layout.by_node && me->comm->layout.ngroups == claim->groups, "%d groups",
          me->comm->layout.ngroups);
    uint64_t seed = 3;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            const bool last = c + 1 == sizeof counts / sizeof counts[0];
            if (last && test_quick() && kinds[k].kind != EXERCISE_ALL_REDUCE)
                continue;
            seed++;
            EXERCISE(me, me->comm, .kind = kinds[k].kind, .type = POLYPATH_INT32,
                     .op = exercise_reduces(kinds[k].kind) ? POLYPATH_SUM : 0, .count = counts[c],
                     .root = (int)seed % me->size, .in_place = seed & 1, .seed = seed);
            const char *used = polypath_comm_algorithm(me->comm, kinds[k].collective);
            if (counts[c] >= 20000 && kinds[k].two_levels)
                CHECK(me, !strcmp(used, "hierarchical"), "%d of %zu went by %s", (int)kinds[k].kind, counts[c], used);
            else if (!kinds[k].two_levels || counts[c] == 1)
                CHECK(me,
                      strcmp(used, "hierarchical") || kinds[k].kind == EXERCISE_ALL_GATHER_V ||
                          kinds[k].kind == EXERCISE_REDUCE_SCATTER_V,
                      "%d of %zu went by %s", (int)kinds[k].kind, counts[c], used);
        }
}

static void test_all_collectives_between_nodes(void **state)
{
    const struct claim *claim = *state;
    RANKS_RUN(.size = (int)strlen(claim->nodes), .body = all_collectives, .prepare = claim_node, .context = claim,
              .environment = on);
}

/* A hash of results: of an integer and of a float sum. */
static uint64_t hash_bytes(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * 1099511628211u;
    return hash;
}

/* What rank 0 found goes to a file that both runs share. */
struct comparison {
    struct claim claim;
    uint64_t *integers; /* shared between processes: one per run */
    int run;
};

static void claim_for_comparison(struct rank *me)
{
    const struct comparison *c = me->context;
    struct rank inner = *me;
    inner.context = &c->claim;
    claim_node(&inner);
}

static void compare_body(struct rank *me)
{
    const struct comparison *c = me->context;
    enum { COUNT = 50021 };
    static int64_t numbers[COUNT], sums[COUNT];
    static float floats[COUNT], float_sums[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        const uint64_t h = reference_hash(11, (uint64_t)me->rank, i);
        numbers[i] = (int64_t)h;
        floats[i] = ((float)(h >> 40) / (float)(1 << 23) - 1.0f) * (h % 3 ? 1e-4f : 1e4f);
    }
    OK(me, polypath_all_reduce(numbers, sums, COUNT, POLYPATH_INT64, POLYPATH_SUM, me->comm));
    const bool levels = !strcmp(polypath_comm_algorithm(me->comm, POLYPATH_COLLECTIVE_ALL_REDUCE), "hierarchical");
    CHECK(me, levels == (c->run == 1), "run %d went by %s", c->run,
          polypath_comm_algorithm(me->comm, POLYPATH_COLLECTIVE_ALL_REDUCE));
    OK(me, polypath_all_reduce(floats, float_sums, COUNT, POLYPATH_FLOAT32, POLYPATH_SUM, me->comm));
    uint64_t mine[2] = {hash_bytes(sums, sizeof sums), hash_bytes(float_sums, sizeof float_sums)}, all[2 * RANKS_MAX];
    OK(me, polypath_all_gather(mine, all, 2, POLYPATH_UINT64, me->comm));
    for (int r = 0; r < me->size; r++) {
        CHECK(me, all[2 * r] == mine[0], "rank %d has another int64 sum", r);
        CHECK(me, all[2 * r + 1] == mine[1], "rank %d has other bits in its float32 sum", r);
    }
    if (me->rank == 0)
        c->integers[c->run] = mine[0];
}

static void test_results_are_the_same_with_and_without_nodes(void **state)
{
    const struct claim *claim = *state;
    uint64_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    struct comparison c = {.claim = *claim, .integers = shared};
    for (c.run = 0; c.run < 2; c.run++)
        RANKS_RUN(.size = (int)strlen(claim->nodes), .body = compare_body, .prepare = claim_for_comparison,
                  .context = &c, .environment = c.run ? on : off);
    assert_true(shared[0] && shared[0] == shared[1]);
    munmap(shared, 4096);
}

/* Few ranks on a node: auto leaves them on stages, and reproducible keeps reductions there even with numa=on. */
static void stays_on_stages(struct rank *me)
{
    CHECK(me, me->comm->layout.by_node, "no groups");
    EXERCISE(me, me->comm, .kind = EXERCISE_ALL_REDUCE, .type = POLYPATH_INT32, .count = 100003, .seed = 9);
    const char *used = polypath_comm_algorithm(me->comm, POLYPATH_COLLECTIVE_ALL_REDUCE);
    CHECK(me, !strcmp(used, "stage"), "it went by %s", used);
}

static void test_few_ranks_stay_on_stages(void **state)
{
    (void)state;
    static const char *const reproducible[] = {"POLYPATH_NUMA=on", "POLYPATH_REPRODUCIBLE=1", "POLYPATH_PATHS=shm",
                                               NULL};
    RANKS_RUN(.size = 4, .body = stays_on_stages, .prepare = claim_node, .context = &claims[0],
              .environment = automatic);
    RANKS_RUN(.size = 4, .body = stays_on_stages, .prepare = claim_node, .context = &claims[0],
              .environment = reproducible);
}

/* A part of a communicator has groups of its own: here all of one node, so none. */
static void split_body(struct rank *me)
{
    polypath_comm_t part;
    OK(me, polypath_comm_split(me->comm, me->rank / 2, me->rank, &part));
    CHECK(me, !part->layout.by_node && part->layout.ngroups == 1, "%d groups", part->layout.ngroups);
    EXERCISE(me, part, .kind = EXERCISE_ALL_REDUCE, .type = POLYPATH_INT32, .count = 100003, .seed = 9);
    CHECK(me, !strcmp(polypath_comm_algorithm(part, POLYPATH_COLLECTIVE_ALL_REDUCE), "stage"), "by %s",
          polypath_comm_algorithm(part, POLYPATH_COLLECTIVE_ALL_REDUCE));
    OK(me, polypath_comm_destroy(part));
}

static void test_parts_have_groups_of_their_own(void **state)
{
    (void)state;
    static const char *const quiet[] = {"POLYPATH_NUMA=on", "POLYPATH_LOG=none", "POLYPATH_PATHS=shm", NULL};
    RANKS_RUN(.size = 4, .body = split_body, .prepare = claim_node, .context = &claims[0], .environment = quiet);
}

/* A binding to cores of a pretended machine decides, without any claim. */
static void bound_body(struct rank *me)
{
    CHECK(me, me->comm->infos[me->rank].numa_node == me->rank, "node %d", me->comm->infos[me->rank].numa_node);
    CHECK(me, me->comm->layout.by_node && me->comm->layout.ngroups == 2, "%d groups", me->comm->layout.ngroups);
    EXERCISE(me, me->comm, .kind = EXERCISE_ALL_REDUCE, .type = POLYPATH_INT32, .count = 100003, .seed = 9);
}

static void bind_to_own_core(struct rank *me)
{
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET((size_t)me->rank, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus))
        _exit(3);
}

static void test_bindings_decide(void **state)
{
    (void)state;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    if (sched_getaffinity(0, sizeof cpus, &cpus) || !CPU_ISSET(0, &cpus) || !CPU_ISSET(1, &cpus)) {
        print_message("needs cores 0 and 1\n");
        skip();
    }
    static const char *const pretended[] = {"HWLOC_SYNTHETIC=numa:2 core:1 pu:1", "POLYPATH_NUMA=on",
                                            "POLYPATH_PATHS=shm", NULL};
    RANKS_RUN(.size = 2, .body = bound_body, .prepare = bind_to_own_core, .environment = pretended);
}

/* ----------------------------------------------------------------- nonsense */

struct nonsense {
    const char *numa, *node[2]; /* of the two ranks */
    const char *machine, *says; /* what must be in the log of rank 0 */
    int fallbacks;              /* counted by rank 0, at least */
};

static void make_nonsense(struct rank *me)
{
    const struct nonsense *n = me->context;
    char text[200];
    snprintf(text, sizeof text, "POLYPATH_NUMA=%s", n->numa);
    ranks_setenv(text);
    snprintf(text, sizeof text, "POLYPATH_NUMA_NODE=%s", n->node[me->rank]);
    ranks_setenv(text);
    if (n->machine) {
        snprintf(text, sizeof text, "HWLOC_SYNTHETIC=%s", n->machine);
        ranks_setenv(text);
    }
    snprintf(text, sizeof text, "POLYPATH_LOG_FILE=/tmp/polypath-test-numa.%d.%d", (int)getppid(), me->rank);
    ranks_setenv(text);
}

static void nonsense_body(struct rank *me)
{
    const struct nonsense *n = me->context;
    EXERCISE(me, me->comm, .kind = EXERCISE_ALL_REDUCE, .type = POLYPATH_INT32, .count = 50000, .seed = 9);
    CHECK(me, strcmp(polypath_comm_algorithm(me->comm, POLYPATH_COLLECTIVE_ALL_REDUCE), "hierarchical"), "two levels");
    polypath_statistics_t statistics;
    OK(me, polypath_comm_statistics(me->comm, &statistics));
    char file[200], text[4096] = "";
    snprintf(file, sizeof file, "/tmp/polypath-test-numa.%d.%d", (int)getppid(), me->rank);
    FILE *f = fopen(file, "re");
    const size_t bytes = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[bytes] = 0;
    if (f)
        fclose(f);
    unlink(file);
    if (me->rank)
        return;
    CHECK(me, strstr(text, n->says), "the log does not say \"%s\" but \"%s\"", n->says, text);
    CHECK(me, (int)statistics.fallbacks >= n->fallbacks, "%d fallbacks", (int)statistics.fallbacks);
}

static void test_nonsense_is_said(void **state)
{
    (void)state;
    static const struct nonsense cases[] = {
        {"on", {"-5", "0"}, "core:64 pu:1", "numa_node=-5: expected the number of a node, 0 to 1023", 0},
        {"on", {"left", "0"}, "core:64 pu:1", "numa_node=left: expected the number of a node", 0},
        {"on", {"0", "0"}, NULL, "all ranks are on node 0", 1},
        {"on", {"0", ""}, "numa:2 core:1 pu:1", "rank 1 may run on several nodes", 1},
        {"on", {"", ""}, "two, please", "hwloc does not understand the topology \"two, please\"", 1},
        {"auto", {"0", "1000"}, "core:64 pu:1", "shared memory cannot be placed on NUMA node 0", 1},
        {"perhaps", {"0", "0"}, NULL, "numa=perhaps: expected one of: off auto on", 0},
    };
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    const bool two = !sched_getaffinity(0, sizeof cpus, &cpus) && CPU_ISSET(0, &cpus) && CPU_ISSET(1, &cpus);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!two && cases[i].machine)
            continue; /* this process's binding is within one of the nodes */
        static const char *const environment[] = {"POLYPATH_LOG=info", "POLYPATH_PATHS=shm", NULL};
        print_message("%s %s,%s\n", cases[i].numa, cases[i].node[0], cases[i].node[1]);
        RANKS_RUN(.size = 2, .body = nonsense_body, .prepare = make_nonsense, .context = &cases[i],
                  .environment = environment);
    }
}

/* ------------------------------------------------------------- polypath topo */

static void test_topo_shows_nodes_and_groups(void **state)
{
    (void)state;
    const struct ending *tree =
        program_run("run", "-n", "4", "--", "sh", "-c", "POLYPATH_NUMA_NODE=$((POLYPATH_RANK / 3)) exec \"$0\" topo",
                    program_path(), NULL);
    assert_int_equal(tree->status, 0);
    assert_non_null(strstr(tree->out, "ranks 0-2 on NUMA node 0"));
    assert_non_null(strstr(tree->out, "rank 3 on NUMA node 1"));
    assert_non_null(strstr(tree->out, "groups of two-level algorithms, by NUMA node"));
    const struct ending *json = program_run("run", "-n", "4", "--", "sh", "-c",
                                            "POLYPATH_NUMA_NODE=$((POLYPATH_RANK / 3)) exec \"$0\" topo --json "
                                            "| tr -d ' \\n'",
                                            program_path(), NULL);
    assert_int_equal(json->status, 0);
    assert_non_null(strstr(json->out, "\"rank_nodes\":[0,0,0,1]"));
    assert_non_null(strstr(json->out, "\"groups_by\":\"numa_node\",\"groups\":[[0,1,2],[3]]"));
}

#define CLAIM(test, index)                                                                                             \
    {                                                                                                                  \
#test " " #index, test, NULL, NULL, (void *)(uintptr_t)&claims[index]                                          \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_nodes),
        cmocka_unit_test(test_two_nodes_in_each_package),
        cmocka_unit_test(test_one_node),
        cmocka_unit_test(test_memory_beside_the_nodes_is_no_home),
        cmocka_unit_test(test_a_wrong_machine_is_an_error),
        cmocka_unit_test(test_numbers_of_nodes),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_levels_are_preferred_where_nodes_have_many_ranks),
        CLAIM(test_all_collectives_between_nodes, 0),
        CLAIM(test_all_collectives_between_nodes, 1),
        CLAIM(test_all_collectives_between_nodes, 2),
        CLAIM(test_all_collectives_between_nodes, 3),
        CLAIM(test_all_collectives_between_nodes, 4),
        CLAIM(test_all_collectives_between_nodes, 5),
        CLAIM(test_results_are_the_same_with_and_without_nodes, 0),
        CLAIM(test_results_are_the_same_with_and_without_nodes, 2),
        CLAIM(test_results_are_the_same_with_and_without_nodes, 3),
        cmocka_unit_test(test_few_ranks_stay_on_stages),
        cmocka_unit_test(test_parts_have_groups_of_their_own),
        cmocka_unit_test(test_bindings_decide),
        cmocka_unit_test(test_nonsense_is_said),
        cmocka_unit_test(test_topo_shows_nodes_and_groups),
        /* last: they read the settings in this process, which is not to happen before ranks are forked */
        cmocka_unit_test(test_segments_are_touched_by_their_owner),
        cmocka_unit_test(test_memory_on_a_node_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
