/*
 * `polypath topo`: which hosts the ranks run on, what is in them, and what
 * each path between them reaches. Started without a launcher it starts two
 * ranks of itself, so that there are paths to measure.
 */
#include "frontends/cli/topo.h"

#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/bootstrap.h"
#include "comm/comm.h"
#include "frontends/cli/cli.h"
#include "frontends/cli/cli_util.h"
#include "polypath/polypath.h"

#define SMALL_BYTES 8
#define SMALL_ROUNDS 200
#define LARGE_BYTES ((size_t)8 << 20)
#define LARGE_ROUNDS 5

struct topo_options {
    bool json, child;
};

/* Prints the library's message, and is true, if result is an error. */
static bool failed(polypath_result_t result)
{
    if (result)
        fprintf(stderr, "polypath topo: %s: %s\n", polypath_result_name(result), polypath_last_error());
    return result != POLYPATH_SUCCESS;
}

/* -------------------------------------------------------------- the two ranks */

#define RANK_VARIABLES 5

/* The environment of one rank, for execve(): the last RANK_VARIABLES entries are its own. free_environment(). */
static char **rank_environment(const char *id, int rank)
{
    size_t count = 0, kept = 0;
    while (environ[count])
        count++;
    char **list = cli_allocate((count + RANK_VARIABLES + 1) * sizeof *list);
    static const char *const names[RANK_VARIABLES] = {"RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "UNIQUE_ID"};
    for (size_t i = 0; i < count; i++) {
        bool ours = false;
        for (size_t n = 0; n < RANK_VARIABLES; n++) {
            size_t length = strlen(names[n]);
            ours |= !strncmp(environ[i], "POLYPATH_", 9) && !strncmp(environ[i] + 9, names[n], length) &&
                    environ[i][9 + length] == '=';
        }
        if (!ours)
            list[kept++] = environ[i];
    }
    for (size_t n = 0; n < RANK_VARIABLES; n++) {
        char *text = NULL;
        int length = n == 4  ? asprintf(&text, "POLYPATH_%s=%s", names[n], id)
                     : n % 2 ? asprintf(&text, "POLYPATH_%s=2", names[n])
                             : asprintf(&text, "POLYPATH_%s=%d", names[n], rank);
        if (length < 0)
            exit(CLI_FAILURE);
        list[kept++] = text;
    }
    list[kept] = NULL;
    return list;
}

static void free_environment(char **environment)
{
    size_t count = 0;
    while (environment[count])
        count++;
    for (size_t n = 0; n < RANK_VARIABLES && n < count; n++)
        free(environment[count - 1 - n]);
    free(environment);
}

static pid_t start_rank(char **environment, bool json)
{
    char name[] = "polypath", command[] = "topo", child[] = "--child", as_json[] = "--json";
    char *arguments[] = {name, command, child, json ? as_json : NULL, NULL};
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        /* Between fork and exec only what is allowed in a process that had threads. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
            execve("/proc/self/exe", arguments, environment);
        _exit(CLI_NOT_RUN);
    }
    return pid;
}

/* Waits for both; when one fails the other has nobody to talk to and is ended. */
static int wait_for_ranks(pid_t pids[2])
{
    int worst = 0;
    for (int left = 2; left > 0; left--) {
        int status;
        pid_t ended = wait(&status);
        if (ended < 0 && errno == EINTR) {
            left++;
            continue;
        }
        int code = ended > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : CLI_FAILURE;
        for (int r = 0; r < 2; r++) {
            if (pids[r] == ended)
                pids[r] = 0;
            else if (code && !worst && pids[r] > 0)
                kill(pids[r], SIGTERM);
        }
        worst = worst ? worst : code;
    }
    return worst;
}

static int start_pair(bool json)
{
    polypath_unique_id_t id;
    char text[2 * POLYPATH_UNIQUE_ID_BYTES + 1];
    pid_t pids[2] = {0, 0};
    if (failed(bootstrap_serve(&id, "127.0.0.1")))
        return CLI_FAILURE;
    bootstrap_format(&id, text);
    fflush(stdout);
    for (int rank = 0; rank < 2; rank++) {
        char **environment = rank_environment(text, rank);
        pids[rank] = start_rank(environment, json);
        free_environment(environment);
        if (pids[rank] < 0) {
            fprintf(stderr, "polypath topo: cannot start a rank: %s\n", strerror(errno));
            if (pids[0] > 0) {
                kill(pids[0], SIGTERM);
                waitpid(pids[0], NULL, 0);
            }
            return CLI_FAILURE;
        }
    }
    return wait_for_ranks(pids);
}

/* -------------------------------------------------------------------- hosts */

/* The ranks of one host by the number of its first rank, on all ranks. */
struct places {
    int *leaders; /* leaders[r]: the first rank on the host of rank r */
    int *hosts;   /* the leaders, each once, in order */
    int host_count;
};

static polypath_result_t find_places(polypath_comm_t comm, int size, struct places *places)
{
    char mine[TOPO_HOST_KEY_BYTES];
    char *keys = cli_allocate((size_t)size * TOPO_HOST_KEY_BYTES);
    topo_host_key(mine);
    polypath_result_t result = polypath_all_gather(mine, keys, TOPO_HOST_KEY_BYTES, POLYPATH_INT8, comm);
    places->leaders = cli_allocate((size_t)size * sizeof(int));
    places->hosts = cli_allocate((size_t)size * sizeof(int));
    places->host_count = 0;
    for (int r = 0; r < size && !result; r++) {
        int leader = 0;
        while (memcmp(keys + leader * TOPO_HOST_KEY_BYTES, keys + r * TOPO_HOST_KEY_BYTES, TOPO_HOST_KEY_BYTES))
            leader++;
        places->leaders[r] = leader;
        if (leader == r)
            places->hosts[places->host_count++] = r;
    }
    free(keys);
    return result;
}

/* Every host's description, made by its first rank, gathered as text and put together on all ranks. */
static polypath_result_t gather_hosts(polypath_comm_t comm, int rank, int size, const struct places *places,
                                      json_t *document)
{
    char *mine = NULL;
    if (places->leaders[rank] == rank) {
        json_t *host = topo_describe_host();
        mine = json_dumps(host, JSON_COMPACT);
        json_decref(host);
    }
    uint64_t length = mine ? strlen(mine) : 0, *lengths = cli_allocate((size_t)size * sizeof *lengths);
    polypath_result_t result = polypath_all_gather(&length, lengths, 1, POLYPATH_UINT64, comm);
    size_t *counts = cli_allocate((size_t)size * sizeof *counts), total = 0;
    for (int r = 0; r < size && !result; r++)
        total += counts[r] = (size_t)lengths[r];
    char *all = cli_allocate(total);
    if (!result)
        result = polypath_all_gather_v(mine ? mine : "", (size_t)length, all, counts, NULL, POLYPATH_UINT8, comm);
    json_t *hosts = json_array();
    size_t at = 0;
    for (int h = 0; h < places->host_count && !result; h++) {
        int leader = places->hosts[h];
        json_t *host = json_loadb(all + at, counts[leader], 0, NULL), *ranks = json_array();
        at += counts[leader];
        for (int r = 0; r < size; r++)
            if (places->leaders[r] == leader)
                json_array_append_new(ranks, json_integer(r));
        host = host ? host : json_object();
        json_object_set_new(host, "ranks", ranks);
        json_array_append_new(hosts, host);
    }
    json_object_set_new(document, "hosts", hosts);
    free(all);
    free(counts);
    free(lengths);
    free(mine);
    return result;
}

/* Which NUMA node each rank runs on, beside the ranks of its host, and what two-level algorithms take together. */
static void add_groups(const struct polypath_comm *comm, json_t *document)
{
    json_t *host;
    size_t h, i;
    json_array_foreach(json_object_get(document, "hosts"), h, host)
    {
        const json_t *ranks = json_object_get(host, "ranks"), *rank;
        json_t *nodes = json_array();
        json_array_foreach(ranks, i, rank)
        {
            const int node = comm->infos[json_integer_value(rank)].numa_node;
            json_array_append_new(nodes, node == NUMA_UNBOUND ? json_null() : json_integer(node));
        }
        json_object_set_new(host, "rank_nodes", nodes);
    }
    json_t *groups = json_array();
    for (int g = 0; g < comm->layout.ngroups; g++) {
        json_t *members = json_array();
        for (int r = 0; r < comm->size; r++)
            if (comm->layout.group_of[r] == g)
                json_array_append_new(members, json_integer(r));
        json_array_append_new(groups, members);
    }
    json_object_set_new(document, "groups_by", json_string(comm->layout.by_node ? "numa_node" : "host"));
    json_object_set_new(document, "groups", groups);
}

/* -------------------------------------------------------------------- paths */

static polypath_result_t bounce(polypath_comm_t comm, bool first, int peer, void *buffer, size_t bytes)
{
    polypath_result_t result = POLYPATH_SUCCESS;
    if (first)
        result = polypath_send(buffer, bytes, POLYPATH_UINT8, peer, comm);
    if (!result)
        result = polypath_recv(buffer, bytes, POLYPATH_UINT8, peer, comm);
    if (!result && !first)
        result = polypath_send(buffer, bytes, POLYPATH_UINT8, peer, comm);
    return result;
}

/* The median of half a round trip, in microseconds; both ranks of the pair call it. */
static polypath_result_t one_way(polypath_comm_t comm, bool first, int peer, void *buffer, size_t bytes, int rounds,
                                 double *time_us)
{
    double times[SMALL_ROUNDS];
    polypath_result_t result = POLYPATH_SUCCESS;
    for (int i = -2; i < rounds && !result; i++) { /* two that do not count */
        uint64_t start = cli_now_ns();
        result = bounce(comm, first, peer, buffer, bytes);
        if (i >= 0)
            times[i] = (double)(cli_now_ns() - start) / 2e3;
    }
    *time_us = cli_spread_of(times, (size_t)rounds).median;
    return result;
}

/* Measures the path in use between two ranks. All ranks call it; the answer is known to `from`. */
static polypath_result_t measure_pair(polypath_comm_t comm, int rank, int from, int to, void *buffer, json_t *pairs)
{
    double small_us = 0, large_us = 0;
    polypath_result_t result = polypath_barrier(comm);
    if (!result && (rank == from || rank == to)) {
        int peer = rank == from ? to : from;
        result = one_way(comm, rank == from, peer, buffer, SMALL_BYTES, SMALL_ROUNDS, &small_us);
        if (!result)
            result = one_way(comm, rank == from, peer, buffer, LARGE_BYTES, LARGE_ROUNDS, &large_us);
    }
    if (!result)
        json_array_append_new(pairs,
                              json_pack("{s:i, s:i, s:f, s:f}", "from", from, "to", to, "latency_us", small_us,
                                        "bandwidth_gbps", large_us > 0 ? (double)LARGE_BYTES / large_us / 1e3 : 0));
    return result;
}

/* One path: from the first rank to the first rank of every other host, or on one host to the next rank. */
static polypath_result_t measure_path(polypath_comm_t comm, int rank, const struct places *places,
                                      const polypath_path_info_t *info, void *buffer, json_t *paths)
{
    json_t *pairs = json_array();
    polypath_result_t result = polypath_comm_use_paths(comm, info->name);
    for (int h = 1; h < places->host_count && !result; h++)
        result = measure_pair(comm, rank, 0, places->hosts[h], buffer, pairs);
    if (places->host_count == 1 && !result)
        result = measure_pair(comm, rank, 0, 1, buffer, pairs);
    json_array_append_new(paths, json_pack("{s:s, s:s, s:f, s:f, s:o}", "name", info->name, "kind", info->kind,
                                           "model_latency_us", info->latency_us, "model_bandwidth_gbps",
                                           info->bandwidth_gbps, "measured", pairs));
    return result;
}

static polypath_result_t measure_paths(polypath_comm_t comm, int rank, const struct places *places, json_t *document)
{
    int count = 0;
    json_t *paths = json_array();
    void *buffer = cli_allocate(LARGE_BYTES);
    memset(buffer, 0x5A, LARGE_BYTES);
    polypath_result_t result = polypath_comm_path_count(comm, &count);
    for (int p = 0; p < count && !result; p++) {
        polypath_path_info_t info;
        result = polypath_comm_path_info(comm, p, &info);
        if (!result && info.enabled)
            result = measure_path(comm, rank, places, &info, buffer, paths);
        if (!result)
            result = polypath_comm_use_paths(comm, NULL);
    }
    free(buffer);
    json_object_set_new(document, "paths", paths);
    return result;
}

static polypath_result_t show(polypath_comm_t comm, int rank, int size, bool json)
{
    struct places places = {0};
    json_t *document = json_pack("{s:i}", "ranks", size);
    polypath_result_t result = find_places(comm, size, &places);
    if (!result)
        result = gather_hosts(comm, rank, size, &places, document);
    if (!result)
        add_groups(comm, document);
    if (!result)
        result = measure_paths(comm, rank, &places, document);
    if (!result && rank == 0 && json) {
        json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(5));
        printf("\n");
    } else if (!result && rank == 0) {
        topo_print_tree(document, stdout);
    }
    json_decref(document);
    free(places.leaders);
    free(places.hosts);
    return result;
}

/* ------------------------------------------------------------- command line */

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct topo_options *options = state->input;
    (void)argument;
    switch (key) {
    case 'j': options->json = true; return 0;
    case 'c': options->child = true; return 0;
    case ARGP_KEY_ARG: argp_error(state, "it takes no arguments"); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cli_topo(int argc, char **argv)
{
    static const struct argp_option option_table[] = {
        {"json", 'j', 0, 0, "print as JSON", 0}, {"child", 'c', 0, OPTION_HIDDEN, "a rank that topo started", 0}, {0}};
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .doc = "Shows the hosts, their cores, caches and interfaces, and the paths between them with the latency and "
               "GB/s of each, measured now. Alone it starts two ranks on this host; under polypath run, polypath lab "
               "run, mpirun, srun or torchrun it shows all hosts of the job."};
    struct topo_options options = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &options))
        return CLI_FAILURE;
    polypath_comm_t comm = NULL;
    int rank = 0, size = 0;
    if (failed(polypath_comm_create_from_env(&comm)))
        return CLI_FAILURE;
    polypath_result_t result = polypath_comm_rank(comm, &rank);
    if (!result)
        result = polypath_comm_size(comm, &size);
    if (!result && size == 1 && !options.child && !getenv("POLYPATH_RANK")) {
        polypath_comm_destroy(comm);
        return start_pair(options.json);
    }
    if (!result)
        result = show(comm, rank, size, options.json);
    bool wrong = failed(result);
    wrong |= failed(polypath_comm_destroy(comm));
    return wrong ? CLI_FAILURE : CLI_SUCCESS;
}
