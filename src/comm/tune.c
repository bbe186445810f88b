/*
 * The balancer's surroundings: measuring the paths when a communicator is
 * created (stage 1), collecting what calls did and agreeing on it (stage 2),
 * and the cache of results. The balancer itself is pure (balance/).
 */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "comm/cache.h"
#include "comm/comm.h"
#include "system/clock.h"
#include "system/log.h"

#define OBSERVE_BYTES (64u << 10) /* smaller calls are not split, so there is nothing to learn */
#define SHORT_BYTES (4u << 20)    /* between ranks of one host */
#define SHORT_TIMES 8u
#define PROBE_BYTES (256u << 10)
#define PROBE_BYTES_MAX (8u << 20)
#define PROBE_NS 30000000u /* how long one measurement of a path's rate may take */
#define SAMPLE_WORDS (1 + 2 * HOST_PATHS)

/* ------------------------------------------------------------------ shares */

/* A decimal fraction such as "0.8" or ".25" in millionths, whatever the locale; -1 if it is none. */
static int64_t parse_fraction(const char **text)
{
    int64_t value = 0, unit = 1000000;
    const char *p = *text;
    for (; *p >= '0' && *p <= '9' && value < 1000; p++)
        value = value * 10 + (*p - '0');
    value *= unit;
    if (*p == '.')
        for (p++; *p >= '0' && *p <= '9'; p++)
            value += (unit /= 10) * (*p - '0');
    const bool good = p != *text && (*p == ',' || !*p);
    *text = p;
    return good ? value : -1;
}

/* Reads setting `shares` into parts for each path (any unit); all 0 if it is empty. */
static polypath_result_t read_fixed_shares(struct polypath_comm *comm)
{
    const char *text = comm->settings.shares;
    int64_t sum = 0;
    for (int p = 0; p < comm->npaths && *text; p++) {
        int64_t part = parse_fraction(&text);
        if (part < 0)
            return error_set(POLYPATH_ERROR_ARGUMENT, "setting shares=%s: expected fractions such as 0.8,0.2",
                             comm->settings.shares);
        comm->fixed_shares[p] = (uint32_t)(part > 1000000000 ? 1000000000 : part);
        sum += part;
        text += *text == ',';
    }
    if (*comm->settings.shares && !sum)
        return error_set(POLYPATH_ERROR_ARGUMENT, "setting shares=%s gives no path anything", comm->settings.shares);
    return POLYPATH_SUCCESS;
}

static bool fixed_shares(const struct polypath_comm *comm, uint32_t shares[BALANCE_PATHS])
{
    uint64_t sum = 0;
    uint32_t given = 0;
    int last = 0;
    for (int p = 0; p < comm->npaths; p++)
        sum += comm->allowed >> p & 1 ? comm->fixed_shares[p] : 0;
    if (!sum)
        return false;
    for (int p = 0; p < comm->npaths; p++) {
        const uint64_t part = comm->allowed >> p & 1 ? comm->fixed_shares[p] : 0;
        shares[p] = (uint32_t)(part * BALANCE_ONE / sum);
        given += shares[p];
        last = part ? p : last;
    }
    shares[last] += BALANCE_ONE - given;
    return true;
}

void tune_shares(struct polypath_request *call)
{
    struct polypath_comm *comm = call->comm;
    memset(call->shares, 0, sizeof call->shares);
    call->key =
        (struct balance_key){(uint8_t)call->collective, (uint8_t)balance_bucket(call->bytes), (uint16_t)comm->allowed};
    call->observe = false;
    if (comm->npaths == 0)
        return;
    if (fixed_shares(comm, call->shares))
        return;
    balance_shares(call->npoints ? comm->point_balance : comm->balance, call->key, call->bytes, call->shares);
    const bool several = (comm->allowed & (comm->allowed - 1)) != 0;
    /* ranks of an AllToAllV know only their own sizes, so they could not agree on when to look */
    call->observe = several && call->bytes >= OBSERVE_BYTES && !call->internal && !call->variant;
}

/*
 * The window of a key. When all are taken one gives way: the same one on every
 * rank, since the keys of collectives come in the same order everywhere.
 */
static struct window *window_of(struct window windows[WINDOWS], int *count, struct balance_key key)
{
    for (int i = 0; i < *count; i++)
        if (!memcmp(&windows[i].key, &key, sizeof key))
            return &windows[i];
    int i = *count < WINDOWS ? (*count)++ : (key.bucket + key.collective * 7) % WINDOWS;
    windows[i] = (struct window){.key = key};
    return &windows[i];
}

void tune_remember(struct polypath_request *call)
{
    struct polypath_comm *comm = call->comm;
    double *shares = comm->last_shares[call->collective];
    uint64_t sum = 0;
    struct host_path_report reports[HOST_PATHS];
    for (int p = 0; p < comm->npaths; p++) {
        host_report(comm->host, p, &reports[p]);
        sum += reports[p].bytes_sent + reports[p].bytes_received;
    }
    for (int p = 0; p < comm->npaths; p++)
        shares[p] = sum ? (double)(reports[p].bytes_sent + reports[p].bytes_received) / (double)sum : 0;
}

static void observe(struct polypath_comm *comm, struct balance *balance, const struct window *w)
{
    if (!balance_observe(balance, w->key, w->bytes / w->calls, &w->sum))
        return;
    comm->statistics.share_changes++;
    comm->cache_changed = true;
}

/*
 * Calls between two looks. On one host a short call takes microseconds, and a
 * few of them say nothing: one interruption outweighs them all.
 */
static uint32_t window_calls(const struct polypath_request *call)
{
    const struct polypath_comm *comm = call->comm;
    const uint32_t calls = (uint32_t)comm->settings.balance_window;
    return comm->one_host && call->bytes < SHORT_BYTES ? SHORT_TIMES * calls : calls;
}

void tune_observe(struct polypath_request *call)
{
    struct polypath_comm *comm = call->comm;
    struct window *w = call->npoints ? window_of(comm->point_windows, &comm->npoint_windows, call->key)
                                     : window_of(comm->windows, &comm->nwindows, call->key);
    w->bytes += call->bytes;
    w->sum.calls++;
    const uint64_t elapsed_ns = call->staged ? clock_now_ns() - call->begin_ns : host_elapsed_ns(comm->host);
    w->sum.call_ns += elapsed_ns;
    for (int p = 0; p < comm->npaths; p++) {
        struct host_path_report report = {0};
        if (!call->staged)
            host_report(comm->host, p, &report);
        else if (p == call->staged_path)
            report = (struct host_path_report){.bytes_sent = call->bytes, .busy_ns = elapsed_ns};
        w->sum.bytes[p] += report.bytes_sent + report.bytes_received;
        w->sum.busy_ns[p] += report.busy_ns;
    }
    if (++w->calls < window_calls(call))
        return;
    if (call->npoints) {
        observe(comm, comm->point_balance, w); /* only the sender's own choice: nothing to agree on */
    } else {
        comm->exchange_window = *w;
        comm->exchange_due = true;
    }
    *w = (struct window){.key = w->key};
}

/* ---------------------------------------------------------------- exchange */

void tune_exchange_begin(struct polypath_comm *comm)
{
    const struct balance_sample *s = &comm->exchange_window.sum;
    uint64_t *words = comm->exchange_send;
    words[0] = s->call_ns;
    for (int p = 0; p < HOST_PATHS; p++) {
        words[1 + p] = s->bytes[p];
        words[1 + HOST_PATHS + p] = s->busy_ns[p];
    }
    comm->exchange_due = false;
    struct polypath_request *call = comm->exchange_call;
    call->collective = POLYPATH_COLLECTIVE_ALL_GATHER;
    call->type = POLYPATH_UINT64;
    call->internal = true;
    call_fill(call, words, comm->exchange_recv, SAMPLE_WORDS);
}

/* The same arithmetic on the same numbers on every rank: bytes add up, times are the slowest rank's. */
void tune_exchange_end(struct polypath_comm *comm)
{
    struct window *w = &comm->exchange_window;
    struct balance_sample sum = {.calls = w->sum.calls};
    for (int r = 0; r < comm->size; r++) {
        const uint64_t *words = comm->exchange_recv + (size_t)r * SAMPLE_WORDS;
        if (words[0] > sum.call_ns)
            sum.call_ns = words[0];
        for (int p = 0; p < comm->npaths; p++) {
            sum.bytes[p] += words[1 + p];
            if (words[1 + HOST_PATHS + p] > sum.busy_ns[p])
                sum.busy_ns[p] = words[1 + HOST_PATHS + p];
        }
    }
    w->sum = sum;
    observe(comm, comm->balance, w);
}

/* --------------------------------------------------------------- measuring */

static polypath_result_t slowest(struct polypath_comm *comm, uint64_t *value)
{
    uint64_t out = 0;
    polypath_result_t result =
        comm_internal(comm, POLYPATH_COLLECTIVE_ALL_REDUCE, value, &out, 1, POLYPATH_UINT64, POLYPATH_MAX, -1);
    *value = out;
    return result;
}

static polypath_result_t timed(struct polypath_comm *comm, float *buffer, size_t bytes, int repeats, uint64_t *ns)
{
    *ns = UINT64_MAX;
    for (int i = 0; i < repeats; i++) {
        uint64_t begin = clock_now_ns();
        polypath_result_t result = comm_internal(comm, POLYPATH_COLLECTIVE_ALL_REDUCE, buffer, buffer, bytes / 4,
                                                 POLYPATH_FLOAT32, POLYPATH_SUM, -1);
        uint64_t took = clock_now_ns() - begin;
        if (result)
            return result;
        comm->statistics.tuning_calls++;
        if (took < *ns)
            *ns = took;
    }
    return slowest(comm, ns);
}

static polypath_result_t measure_path(struct polypath_comm *comm, int path, float *buffer)
{
    const uint32_t allowed = comm->allowed;
    comm->allowed = 1u << path;
    comm->measuring = true;
    uint64_t latency = 0, ns = 0;
    size_t bytes = PROBE_BYTES;
    polypath_result_t result = timed(comm, buffer, 8, 7, &latency);
    if (!result)
        result = timed(comm, buffer, bytes, 2, &ns);
    if (!result) {
        uint64_t more = (uint64_t)bytes * PROBE_NS / (ns + 1);
        bytes = more > PROBE_BYTES_MAX ? PROBE_BYTES_MAX
                : more < PROBE_BYTES   ? PROBE_BYTES
                                       : (size_t)more & ~(size_t)4095;
        result = timed(comm, buffer, bytes, 3, &ns);
    }
    comm->allowed = allowed;
    comm->measuring = false;
    if (result)
        return result;
    if (ns <= latency)
        ns = latency + 1;
    comm->paths[path].latency_ns = latency;
    comm->paths[path].bytes_per_us = (uint64_t)bytes * 1000 / (ns - latency);
    if (!comm->paths[path].bytes_per_us)
        comm->paths[path].bytes_per_us = 1;
    return POLYPATH_SUCCESS;
}

static polypath_result_t measure(struct polypath_comm *comm)
{
    float *buffer = calloc(1, PROBE_BYTES_MAX);
    if (!buffer)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "no memory for measuring the paths");
    polypath_result_t result = POLYPATH_SUCCESS;
    for (int p = 0; p < comm->npaths && !result; p++)
        if (comm->allowed >> p & 1)
            result = measure_path(comm, p, buffer);
    free(buffer);
    if (!result)
        comm->cache_changed = true;
    return result;
}

/* ------------------------------------------------------------------- cache */

static void cache_key(const struct polypath_comm *comm, char key[65])
{
    char text[4096];
    struct utsname name;
    uname(&name);
    int used = snprintf(text, sizeof text, "%d|%s|%s|%s|%d", polypath_version(), name.machine, name.release, comm->cpu,
                        comm->size);
    size_t at = (size_t)used;
    for (int h = 0; h < comm->layout.nhosts && at < sizeof text - 1; h++)
        at += (size_t)snprintf(text + at, sizeof text - at, "|%d", comm->layout.local_size[h]);
    for (int r = 0; r < comm->size && comm->layout.by_node && at < sizeof text - 1; r++)
        at += (size_t)snprintf(text + at, sizeof text - at, "|node %d", comm->layout.group_of[r]);
    for (int p = 0; p < comm->npaths && at < sizeof text - 1; p++)
        at += (size_t)snprintf(text + at, sizeof text - at, "|%s:%s", comm->paths[p].name, comm->paths[p].kind);
    for (int r = 0; r < comm->size && at < sizeof text - 1; r++)
        if (comm->layout.first_rank[comm->layout.host_of[r]] == r)
            at += (size_t)snprintf(text + at, sizeof text - at, "|%s", comm->infos[r].host_name);
    unsigned char hash[32];
    crypto_generichash(hash, sizeof hash, (const unsigned char *)text, at < sizeof text ? at : sizeof text - 1, NULL,
                       0);
    sodium_bin2hex(key, 65, hash, sizeof hash);
}

struct cached {
    struct balance_key key;
    uint32_t shares[BALANCE_PATHS];
};

struct cached_list {
    struct cached *entries;
    size_t count, room;
};

static void collect(void *context, struct balance_key key, const uint32_t shares[BALANCE_PATHS])
{
    struct cached_list *list = context;
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 64;
        struct cached *grown = realloc(list->entries, room * sizeof *grown);
        if (!grown)
            return;
        list->entries = grown;
        list->room = room;
    }
    list->entries[list->count].key = key;
    memcpy(list->entries[list->count++].shares, shares, sizeof list->entries->shares);
}

static const char *cache_path(const struct polypath_comm *comm, char *text, size_t bytes)
{
    const char *wish = comm->settings.cache;
    if (!strcmp(wish, "none"))
        return NULL;
    if (*wish)
        return wish;
    return cache_default_file(text, bytes) ? NULL : text;
}

/*
 * Two NUMA nodes of one host, to the model: a flag takes twice as long to get
 * across, and what joins the nodes carries as much as four ranks copy at a
 * time. Assumed, in round numbers for two sockets; not measured, as no path
 * leads only from node to node.
 */
struct model_link tune_between_nodes(const struct model_link *within)
{
    return (struct model_link){2 * within->latency_ns, 4 * within->bytes_per_us};
}

/* What the model of the algorithms knows: ranks of a host as measured there, hosts by the sum of the paths. */
static void inform(struct polypath_comm *comm)
{
    struct balance_path known[BALANCE_PATHS] = {0};
    uint64_t rate = 0, latency = UINT64_MAX;
    int best = 0;
    for (int p = 0; p < comm->npaths; p++) {
        known[p] = (struct balance_path){comm->paths[p].latency_ns, comm->paths[p].bytes_per_us};
        rate += comm->paths[p].bytes_per_us;
        if (comm->paths[p].bytes_per_us > comm->paths[best].bytes_per_us)
            best = p;
        if (comm->paths[p].latency_ns && comm->paths[p].latency_ns < latency)
            latency = comm->paths[p].latency_ns;
    }
    /*
     * The paths of one host share its cores and its memory, so their rates do
     * not add up. Where a whole call can go past the executor (over stages, or by
     * fetching) it is never split, and the paths are tried against each other:
     * they differ by collective and size by more than AllReduce, which has been
     * measured, can tell. Otherwise begin with the best one; others come in by probes.
     */
    const bool whole = comm->board && board_stages(comm->board, POLYPATH_COLLECTIVE_ALL_REDUCE);
    if (whole) {
        struct balance_settings settings = balance_default_settings();
        settings.minimum_bytes = UINT64_MAX;
        settings.patient_contested = 3 * BALANCE_ONE;
        settings.patient_bytes = SHORT_BYTES;
        settings.patient_looks = 3; /* the first calls another way find the caches as the other one has left them */
        balance_set_settings(comm->balance, &settings);
    }
    for (int p = 0; p < comm->npaths && comm->one_host && !whole; p++)
        if (p != best && known[p].bytes_per_us)
            known[p].bytes_per_us = 1;
    if (comm->one_host && comm->npaths)
        rate = comm->paths[best].bytes_per_us;
    balance_set_paths(comm->balance, known);
    balance_set_paths(comm->point_balance, known);
    if (!rate || latency == UINT64_MAX)
        return;
    struct model_link *link = comm->one_host ? &comm->model.within : &comm->model.between;
    /* an AllReduce of n bytes took two messages' latencies and moved about 2n(H-1)/H bytes per host */
    link->latency_ns = latency / 2 + 1;
    link->bytes_per_us =
        comm->one_host ? rate * 2 : rate * 2 * (uint64_t)(comm->layout.nhosts - 1) / (uint64_t)comm->layout.nhosts;
    if (!link->bytes_per_us)
        link->bytes_per_us = 1;
    if (comm->layout.by_node)
        comm->model.between = tune_between_nodes(&comm->model.within);
    memset(comm->choices, 0, sizeof comm->choices);
}

/* Rank 0 reads the cache and tells the others what it found. */
static polypath_result_t load(struct polypath_comm *comm, bool *found)
{
    struct balance_path paths[BALANCE_PATHS] = {0};
    struct cached_list list = {0};
    uint64_t head[2 + 2 * HOST_PATHS] = {0};
    *found = false;
    if (comm->rank == 0) {
        char file[4096], key[65];
        const char *path = cache_path(comm, file, sizeof file);
        cache_key(comm, key);
        /* into a table of its own: every rank, this one too, then takes the same steps with the real one */
        struct balance *read = path ? balance_create(comm->npaths, paths) : NULL;
        if (read)
            cache_load(path, key, read, paths, comm->npaths, found);
        if (*found)
            balance_visit(read, collect, &list);
        balance_free(read);
        head[0] = *found;
        head[1] = list.count;
        for (int p = 0; p < comm->npaths; p++) {
            head[2 + 2 * p] = paths[p].latency_ns;
            head[3 + 2 * p] = paths[p].bytes_per_us;
        }
    }
    polypath_result_t result = comm_internal(comm, POLYPATH_COLLECTIVE_BROADCAST, head, head, 2 + 2 * HOST_PATHS,
                                             POLYPATH_UINT64, POLYPATH_SUM, 0);
    *found = head[0];
    if (!result && *found && head[1]) {
        if (comm->rank) {
            list.entries = malloc(head[1] * sizeof *list.entries);
            list.count = list.entries ? head[1] : 0;
        }
        if (list.count != head[1])
            result = error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        else
            result = comm_internal(comm, POLYPATH_COLLECTIVE_BROADCAST, list.entries, list.entries,
                                   head[1] * sizeof *list.entries, POLYPATH_UINT8, POLYPATH_SUM, 0);
    }
    for (int p = 0; p < comm->npaths && *found && !result; p++) {
        comm->paths[p].latency_ns = head[2 + 2 * p];
        comm->paths[p].bytes_per_us = head[3 + 2 * p];
    }
    if (*found && !result)
        inform(comm);
    for (size_t i = 0; i < list.count && !result; i++)
        balance_set_shares(comm->balance, list.entries[i].key, list.entries[i].shares);
    free(list.entries);
    return result;
}

polypath_result_t tune_start(struct polypath_comm *comm)
{
    comm->exchange_send = calloc(SAMPLE_WORDS, sizeof *comm->exchange_send);
    comm->exchange_recv = calloc((size_t)comm->size * SAMPLE_WORDS, sizeof *comm->exchange_recv);
    comm->exchange_call = call_new(comm, comm->size);
    if (!comm->exchange_send || !comm->exchange_recv || !comm->exchange_call)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    polypath_result_t result = read_fixed_shares(comm);
    if (result || (comm->allowed & (comm->allowed - 1)) == 0)
        return result; /* one path: nothing to balance */
    bool found;
    result = load(comm, &found);
    if (!result && !found && comm->settings.tune && !*comm->settings.shares) {
        result = measure(comm);
        if (!result)
            inform(comm);
    }
    return result;
}

void tune_finish(struct polypath_comm *comm)
{
    if (comm->rank || !comm->cache_changed || !comm->balance || *comm->settings.shares)
        return;
    char file[4096], key[65];
    const char *path = cache_path(comm, file, sizeof file);
    if (!path)
        return;
    struct balance_path paths[BALANCE_PATHS] = {0};
    for (int p = 0; p < comm->npaths; p++)
        paths[p] = (struct balance_path){comm->paths[p].latency_ns, comm->paths[p].bytes_per_us};
    cache_key(comm, key);
    cache_store(path, key, comm->balance, paths, comm->npaths);
}
