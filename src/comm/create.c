/*
 * Creation, split and destruction of communicators.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/bootstrap.h"
#include "comm/comm.h"
#include "comm/launcher.h"
#include "system/log.h"

/* --------------------------------------------------------- about this rank */

static void read_line(const char *file, char *text, size_t bytes)
{
    FILE *f = fopen(file, "re");
    text[0] = 0;
    if (!f)
        return;
    if (fgets(text, (int)bytes, f))
        text[strcspn(text, "\n")] = 0;
    fclose(f);
}

static void cpu_name(char *text, size_t bytes)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    snprintf(text, bytes, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon)
            continue;
        snprintf(text, bytes, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f)
        fclose(f);
}

/* "name=value" lines of the settings on which all ranks must agree. */
static polypath_result_t settings_text(char text[RANK_SETTINGS_BYTES])
{
    size_t count, used = 0;
    const struct setting *table = settings_table(&count);
    text[0] = 0;
    for (size_t i = 0; i < count; i++) {
        char value[512];
        if (!table[i].agreed)
            continue;
        settings_format(i, value, sizeof value);
        int n = snprintf(text + used, RANK_SETTINGS_BYTES - used, "%s=%s\n", table[i].name, value);
        if (n < 0 || (size_t)n >= RANK_SETTINGS_BYTES - used || strchr(value, '\n'))
            return error_set(POLYPATH_ERROR_ARGUMENT, "setting %s is too long or has a line break", table[i].name);
        used += (size_t)n;
    }
    return POLYPATH_SUCCESS;
}

static polypath_result_t describe_self(struct rank_info *info)
{
    memset(info, 0, sizeof *info);
    info->byte_order = 0x01020304;
    info->version = (uint32_t)polypath_version();
    info->pid = (int32_t)getpid();
    gethostname(info->host_name, sizeof info->host_name - 1);
    read_line("/proc/sys/kernel/random/boot_id", info->machine, sizeof info->machine);
    struct stat ns;
    uint64_t inode = stat("/proc/self/ns/net", &ns) ? 0 : (uint64_t)ns.st_ino;
    if (*settings_get()->host_id)
        snprintf(info->host, sizeof info->host, "%s", settings_get()->host_id);
    else
        snprintf(info->host, sizeof info->host, "%s/%" PRIu64, *info->machine ? info->machine : info->host_name, inode);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        memcpy(info->cpus, &cpus, sizeof info->cpus);
    cpu_name(info->cpu, sizeof info->cpu);
    info->numa_node = numa_own_node();
    int count = 0;
    polypath_result_t result = settings_text(info->settings);
    if (!result)
        result = interfaces_find(settings_get()->interfaces, (int)settings_get()->ip_family, info->interfaces, &count);
    info->ninterfaces = count;
    return result;
}

/* -------------------------------------------------------------- agreement */

/* Everybody uses rank 0's values; who had others is told so. */
static polypath_result_t agree_settings(struct polypath_comm *comm)
{
    comm->settings = *settings_get();
    comm->settings_text = strndup(comm->infos[0].settings, RANK_SETTINGS_BYTES);
    if (!comm->settings_text)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    if (comm->rank && strncmp(comm->infos[comm->rank].settings, comm->infos[0].settings, RANK_SETTINGS_BYTES))
        log_line(LOG_LEVEL_WARN, "settings differ from rank 0's; rank 0's are used where all ranks must agree");
    size_t count;
    const struct setting *table = settings_table(&count);
    char *rest = NULL;
    for (char *line = strtok_r(comm->settings_text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *value = strchr(line, '=');
        if (!value)
            continue;
        *value++ = 0;
        for (size_t i = 0; i < count; i++)
            if (table[i].agreed && !strcmp(table[i].name, line) && !settings_parse(&table[i], value, &comm->settings))
                return POLYPATH_ERROR_MISMATCH;
    }
    const char *algorithm = comm->settings.algorithm;
    if (!comm->rank && *algorithm && schedule_algorithm_by_name(algorithm) == ALGORITHM_COUNT)
        log_line(LOG_LEVEL_WARN, "there is no algorithm %s (setting algorithm); the model chooses", algorithm);
    return POLYPATH_SUCCESS;
}

static polypath_result_t check_alike(const struct polypath_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        const struct rank_info *info = &comm->infos[r];
        if (info->failed)
            return error_set(POLYPATH_ERROR_PEER_LOST, "rank %d cannot take part: %.200s", r, info->settings);
        if (info->byte_order != 0x01020304)
            return error_set(POLYPATH_ERROR_UNSUPPORTED, "rank %d has another byte order than rank %d", r, comm->rank);
        if (info->version != comm->infos[comm->rank].version)
            return error_set(POLYPATH_ERROR_UNSUPPORTED, "rank %d runs version %u of the library, rank %d version %u",
                             r, info->version, comm->rank, comm->infos[comm->rank].version);
        if (info->ninterfaces < 0 || info->ninterfaces > INTERFACES_MAX || info->numa_node < NUMA_UNBOUND ||
            info->numa_node > NUMA_LARGEST || !memchr(info->host, 0, sizeof info->host) ||
            !memchr(info->host_name, 0, sizeof info->host_name) || !memchr(info->settings, 0, sizeof info->settings) ||
            !memchr(info->cpu, 0, sizeof info->cpu) || !memchr(info->machine, 0, sizeof info->machine))
            return error_set(POLYPATH_ERROR_INTERNAL, "rank %d described itself wrongly", r);
    }
    return POLYPATH_SUCCESS;
}

/* Cores that the ranks of `rank`'s machine (several hosts of a lab may be one) may use together, and how many they are.
 */
static int cores_of_machine(const struct polypath_comm *comm, int rank, int *ranks)
{
    cpu_set_t all;
    CPU_ZERO(&all);
    *ranks = 0;
    for (int r = 0; r < comm->size; r++) {
        if (strcmp(comm->infos[r].machine, comm->infos[rank].machine))
            continue;
        cpu_set_t one;
        memcpy(&one, comm->infos[r].cpus, sizeof one);
        CPU_OR(&all, &all, &one);
        ++*ranks;
    }
    return CPU_COUNT(&all);
}

/* Own numbers for waiting; the least of all machines for the model, which must be equal on all ranks. */
static void count_cores(struct polypath_comm *comm, int *least)
{
    int ranks;
    comm->cores = cores_of_machine(comm, comm->rank, &ranks);
    comm->oversubscribed = comm->cores > 0 && ranks > comm->cores;
    *least = INT_MAX;
    for (int h = 0; h < comm->layout.nhosts; h++) {
        const int cores = cores_of_machine(comm, comm->layout.first_rank[h], &ranks);
        *least = cores < *least ? cores : *least;
    }
}

/* The model's hosts are the groups; NUMA nodes share the cores of their host evenly, as many turns for each. */
static int cores_of_group(const struct polypath_comm *comm, int cores)
{
    if (!comm->layout.by_node || cores < 1)
        return cores;
    int widest = 0;
    for (int g = 0; g < comm->layout.ngroups; g++) {
        int count = 0;
        for (int r = 0; r < comm->size; r++)
            count += comm->layout.group_of[r] == g;
        widest = count > widest ? count : widest;
    }
    const int turns = (comm->size + cores - 1) / cores;
    return (widest + turns - 1) / turns;
}

static void start_model(struct polypath_comm *comm, int cores)
{
    comm->model = (struct model){.within = {1500, 6000},
                                 .between = {40000, 1000},
                                 .shape = {comm->size, comm->layout.ngroups, comm->layout.group_of},
                                 .cores_per_host = cores_of_group(comm, cores),
                                 .reproducible = comm->settings.reproducible};
    if (comm->layout.by_node)
        comm->model.between = tune_between_nodes(&comm->model.within);
}

/* Says, once, why there are no groups of NUMA nodes where they were asked for, or where some ranks are on nodes. */
static void explain_groups(struct polypath_comm *comm)
{
    if (comm->settings.numa == NUMA_OFF || comm->layout.by_node || comm->size == 1)
        return;
    int unbound = -1, bound = -1;
    for (int r = comm->size - 1; r >= 0; r--)
        *(comm->infos[r].numa_node == NUMA_UNBOUND ? &unbound : &bound) = r;
    if (comm->settings.numa == NUMA_ON)
        comm->statistics.fallbacks++;
    if (comm->rank)
        return;
    const enum log_level level = comm->settings.numa == NUMA_ON ? LOG_LEVEL_WARN : LOG_LEVEL_INFO;
    if (!comm->one_host)
        log_line(level, "NUMA nodes make no groups where there are several hosts; the hosts do");
    else if (unbound >= 0 && (bound >= 0 || comm->settings.numa == NUMA_ON))
        log_line(level,
                 "NUMA nodes make no groups: rank %d may run on several nodes (bind it, or set numa_node for it)",
                 unbound);
    else if (comm->settings.numa == NUMA_ON)
        log_line(level, "NUMA nodes make no groups: all ranks are on node %d", comm->infos[0].numa_node);
}

/* Which paths work is found out pair by pair; what one pair cannot do nobody uses. Also: all links are made. */
static polypath_result_t agree_paths(struct polypath_comm *comm, exchange_function *exchange, void *context)
{
    uint32_t *all = calloc((size_t)comm->size, sizeof *all);
    if (!all)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    uint32_t mine = comm->allowed;
    polypath_result_t result = exchange(context, &mine, sizeof mine, all);
    for (int r = 0; r < comm->size && !result; r++)
        comm->allowed &= all[r];
    free(all);
    if (!result && !comm->allowed && comm->size > 1)
        result = error_set(POLYPATH_ERROR_UNSUPPORTED, "no path works between all ranks");
    comm->working = comm->allowed;
    return result;
}

static polypath_result_t gather_infos(struct polypath_comm *comm, exchange_function *exchange, void *context)
{
    struct rank_info *mine = calloc(1, sizeof *mine);
    comm->infos = calloc((size_t)comm->size, sizeof *comm->infos);
    if (!mine || !comm->infos) {
        free(mine);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    }
    polypath_result_t own = describe_self(mine);
    if (own) { /* the others are waiting: tell them */
        mine->failed = 1;
        snprintf(mine->settings, sizeof mine->settings, "%s", error_text());
    }
    char kept[ERROR_TEXT_BYTES];
    snprintf(kept, sizeof kept, "%s", error_text());
    polypath_result_t result = exchange(context, mine, sizeof *mine, comm->infos);
    free(mine);
    if (own)
        return error_set(own, "%s", kept);
    return result ? result : check_alike(comm);
}

polypath_result_t comm_create(struct polypath_comm **out, int rank, int size, uint64_t id,
                              const uint8_t secret[HANDSHAKE_SECRET_BYTES], exchange_function *exchange, void *context)
{
    struct polypath_comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    comm->rank = rank;
    comm->size = size;
    comm->id = id;
    memcpy(comm->secret, secret, sizeof comm->secret);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    comm->peer_segments = calloc((size_t)size, sizeof *comm->peer_segments);
    comm->control_fds = calloc((size_t)size, sizeof *comm->control_fds);
    polypath_result_t result = POLYPATH_SUCCESS;
    struct path_choice choice = {0};
    int cores = 0;
    if (!comm->peer_segments || !comm->control_fds)
        result = error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    for (int r = 0; r < size && comm->control_fds; r++)
        comm->control_fds[r] = -1;
    if (!result)
        result = gather_infos(comm, exchange, context);
    if (!result)
        result = agree_settings(comm);
    if (!result)
        result = layout_build(comm->infos, size, (enum numa_mode)comm->settings.numa, &comm->layout);
    if (!result) {
        comm->one_host = comm->layout.nhosts == 1;
        explain_groups(comm);
        count_cores(comm, &cores);
        snprintf(comm->cpu, sizeof comm->cpu, "%s", comm->infos[0].cpu);
        result = size > 1 ? paths_choose(comm->infos, &comm->layout, &comm->settings, &choice) : POLYPATH_SUCCESS;
    }
    if (!result) {
        comm->npaths = choice.npaths;
        memcpy(comm->paths, choice.paths, sizeof comm->paths);
        comm->allowed = (1u << choice.npaths) - 1;
        start_model(comm, cores);
        struct balance_path unknown[BALANCE_PATHS] = {0};
        comm->balance = balance_create(comm->npaths ? comm->npaths : 1, unknown);
        comm->point_balance = balance_create(comm->npaths ? comm->npaths : 1, unknown);
        if (!comm->balance || !comm->point_balance)
            result = error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    }
    if (!result)
        result = connect_all(comm, &choice, exchange, context);
    free(choice.interface_of);
    if (!result)
        result = agree_paths(comm, exchange, context);
    if (!result)
        result = small_start(comm);
    if (!result)
        result = tune_start(comm);
    if (result) {
        comm_free(comm);
        return result;
    }
    *out = comm;
    return POLYPATH_SUCCESS;
}

void comm_free(struct polypath_comm *comm)
{
    if (!comm)
        return;
    struct attachment *attached = comm->attached;
    if (attached)
        attached->stop(attached);
    drive_stop(comm);
    window_forget_all(comm);
    small_stop(comm);
    host_free(comm->host);
    for (int r = 0; r < comm->size; r++) {
        if (comm->peer_segments)
            segment_free(comm->peer_segments[r]);
        if (comm->control_fds && comm->control_fds[r] >= 0)
            close(comm->control_fds[r]);
    }
    segment_free(comm->segment);
    for (int i = 0; i < comm->nschedules; i++)
        schedule_free(comm->schedules[i].schedule);
    for (int i = 0; i < POINT_CACHE; i++) {
        schedule_free(comm->point_cache[i].schedule);
        free(comm->point_cache[i].shape);
    }
    if (comm->exchange_call)
        call_release(comm->exchange_call);
    while (comm->all_calls) {
        struct polypath_request *call = comm->all_calls;
        comm->all_calls = call->older;
        if (call->schedule_owned)
            schedule_free(call->schedule);
        free(call->input);
        free(call->points);
        free(call->point_types);
        free(call);
    }
    balance_free(comm->balance);
    balance_free(comm->point_balance);
    layout_free(&comm->layout);
    sodium_memzero(comm->secret, sizeof comm->secret);
    pthread_mutex_destroy(&comm->lock);
    pthread_cond_destroy(&comm->changed);
    free(comm->exchange_send);
    free(comm->exchange_recv);
    free(comm->schedules);
    free(comm->settings_text);
    free(comm->infos);
    free(comm->peer_segments);
    free(comm->control_fds);
    free(comm);
}

/* ------------------------------------------------------------- public part */

static polypath_result_t by_bootstrap(void *context, const void *mine, size_t bytes, void *all)
{
    return bootstrap_all_gather(context, mine, bytes, all);
}

static polypath_result_t alone(void *context, const void *mine, size_t bytes, void *all)
{
    (void)context;
    memcpy(all, mine, bytes);
    return POLYPATH_SUCCESS;
}

polypath_result_t polypath_get_unique_id(polypath_unique_id_t *id)
{
    if (!id)
        return error_set(POLYPATH_ERROR_ARGUMENT, "polypath_get_unique_id: id is NULL");
    return bootstrap_serve(id, NULL);
}

polypath_result_t polypath_comm_create(polypath_comm_t *comm, int size, polypath_unique_id_t id, int rank)
{
    if (!comm)
        return error_set(POLYPATH_ERROR_ARGUMENT, "polypath_comm_create: comm is NULL");
    *comm = NULL;
    if (size < 1 || rank < 0 || rank >= size)
        return error_set(POLYPATH_ERROR_ARGUMENT, "polypath_comm_create: rank %d of %d ranks", rank, size);
    uint8_t secret[HANDSHAKE_SECRET_BYTES];
    uint64_t number;
    polypath_result_t result = bootstrap_parse(&id, secret, &number);
    if (result)
        return error_prefix(result, "polypath_comm_create");
    log_set_rank(rank);
    struct bootstrap *bootstrap = NULL;
    result = bootstrap_open(&id, rank, size, &bootstrap);
    if (!result)
        result = comm_create(comm, rank, size, number, secret, by_bootstrap, bootstrap);
    bootstrap_close(bootstrap);
    sodium_memzero(secret, sizeof secret);
    return result ? error_prefix(result, "creating a communicator of %d ranks", size) : POLYPATH_SUCCESS;
}

polypath_result_t polypath_comm_create_from_env(polypath_comm_t *comm)
{
    if (!comm)
        return error_set(POLYPATH_ERROR_ARGUMENT, "polypath_comm_create_from_env: comm is NULL");
    *comm = NULL;
    struct launch launch;
    polypath_result_t result = launcher_join(&launch);
    if (result)
        return result;
    if (launch.size == 1) {
        uint8_t secret[HANDSHAKE_SECRET_BYTES];
        randombytes_buf(secret, sizeof secret);
        log_set_rank(0);
        return comm_create(comm, 0, 1, 0, secret, alone, NULL);
    }
    return polypath_comm_create(comm, launch.size, launch.id, launch.rank);
}

/* ------------------------------------------------------------------- split */

struct member {
    int32_t color, key, rank;
};

struct split {
    struct polypath_comm *parent;
    int nmembers;
    int *members; /* parent ranks of the new communicator, in new order */
    void *buffer; /* whole-parent gather */
    size_t buffer_bytes;
    int exchanges; /* made so far */
};

/* The exchange of a split: an all-gather on the parent, of which each rank keeps its own group's part. */
static polypath_result_t by_parent(void *context, const void *mine, size_t bytes, void *all)
{
    struct split *split = context;
    split->exchanges++;
    const size_t want = bytes * (size_t)split->parent->size;
    if (want > split->buffer_bytes) {
        void *grown = realloc(split->buffer, want);
        if (!grown)
            return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        split->buffer = grown;
        split->buffer_bytes = want;
    }
    polypath_result_t result = comm_internal(split->parent, POLYPATH_COLLECTIVE_ALL_GATHER, mine, split->buffer, bytes,
                                             POLYPATH_UINT8, POLYPATH_SUM, -1);
    for (int i = 0; i < split->nmembers && !result; i++)
        memcpy((char *)all + (size_t)i * bytes, (char *)split->buffer + (size_t)split->members[i] * bytes, bytes);
    return result;
}

static int by_key(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* How many exchanges comm_create makes: ranks without a color take part in them too. */
#define CREATE_EXCHANGES 3

/*
 * Makes the exchanges that are left, so that the other ranks of the parent do
 * not wait for this one, and tells the own group that this rank has failed.
 */
static polypath_result_t stand_by(struct split *split, polypath_result_t failed)
{
    static const size_t sizes[CREATE_EXCHANGES] = {sizeof(struct rank_info), (HOST_PATHS + 1) * sizeof(uint16_t),
                                                   sizeof(uint32_t)};
    struct rank_info *info = calloc(1, sizeof *info);
    uint16_t ports[HOST_PATHS + 1] = {0};
    uint32_t no_paths = 0;
    if (!info)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    info->failed = 1;
    snprintf(info->settings, sizeof info->settings, "%s", error_text());
    ports[HOST_PATHS] = (uint16_t)failed;
    const void *last_words[CREATE_EXCHANGES] = {info, ports, &no_paths};
    polypath_result_t result = POLYPATH_SUCCESS;
    split->nmembers = 0; /* nobody listens here */
    while (split->exchanges < CREATE_EXCHANGES && !result)
        result = by_parent(split, last_words[split->exchanges], sizes[split->exchanges], NULL);
    free(info);
    return result;
}

polypath_result_t polypath_comm_split(polypath_comm_t parent, int color, int key, polypath_comm_t *new_comm)
{
    if (!parent || !new_comm)
        return error_set(POLYPATH_ERROR_ARGUMENT, "polypath_comm_split: %s is NULL", parent ? "new_comm" : "parent");
    *new_comm = NULL;
    if (color < 0 && color != POLYPATH_NO_COLOR)
        return error_set(POLYPATH_ERROR_ARGUMENT, "polypath_comm_split: color %d", color);
    polypath_result_t result = comm_check(parent);
    if (result)
        return result;
    struct split split = {.parent = parent};
    struct member mine = {color, key, parent->rank};
    struct member *all = calloc((size_t)parent->size, sizeof *all);
    split.members = calloc((size_t)parent->size, sizeof *split.members);
    if (!all || !split.members)
        result = error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    if (!result)
        result = comm_internal(parent, POLYPATH_COLLECTIVE_ALL_GATHER, &mine, all, sizeof mine, POLYPATH_UINT8,
                               POLYPATH_SUM, -1);
    if (!result) {
        int rank = -1;
        qsort(all, (size_t)parent->size, sizeof *all, by_key);
        for (int i = 0; i < parent->size; i++) {
            if (all[i].color != color || color == POLYPATH_NO_COLOR)
                continue;
            if (all[i].rank == parent->rank)
                rank = split.nmembers;
            split.members[split.nmembers++] = all[i].rank;
        }
        /* secret and number of the child: derived, so that no one needs to send them */
        uint8_t derived[HANDSHAKE_SECRET_BYTES + sizeof(uint64_t)];
        struct {
            uint64_t id;
            uint32_t split;
            int32_t color;
        } seed = {parent->id, parent->splits++, color};
        crypto_generichash(derived, sizeof derived, (const unsigned char *)&seed, sizeof seed, parent->secret,
                           sizeof parent->secret);
        uint64_t id;
        memcpy(&id, derived + HANDSHAKE_SECRET_BYTES, sizeof id);
        if (color != POLYPATH_NO_COLOR && rank < 0)
            result = error_set(POLYPATH_ERROR_INTERNAL, "rank %d is not in its own part", parent->rank);
        else if (color != POLYPATH_NO_COLOR)
            result = comm_create(new_comm, rank, split.nmembers, id, derived, by_parent, &split);
        sodium_memzero(derived, sizeof derived);
        if (color == POLYPATH_NO_COLOR) {
            result = stand_by(&split, POLYPATH_SUCCESS);
        } else if (result && !comm_check(parent)) {
            char text[ERROR_TEXT_BYTES];
            snprintf(text, sizeof text, "%s", error_text());
            stand_by(&split, result);
            error_set(result, "%s", text);
        }
    }
    free(all);
    free(split.members);
    free(split.buffer);
    return result;
}

void comm_settle(struct polypath_comm *comm)
{
    struct attachment *attached = comm->attached;
    if (attached)
        attached->settle(attached);
}

polypath_result_t comm_drain(struct polypath_comm *comm)
{
    polypath_result_t result = POLYPATH_SUCCESS;
    comm_settle(comm);
    for (;;) {
        pthread_mutex_lock(&comm->lock);
        struct polypath_request *last = comm->tail;
        pthread_mutex_unlock(&comm->lock);
        if (!last)
            return result;
        result = drive_until_done(last);
    }
}

polypath_result_t polypath_comm_destroy(polypath_comm_t comm)
{
    if (!comm)
        return POLYPATH_SUCCESS;
    polypath_result_t result = comm_drain(comm);
    tune_finish(comm);
    comm_free(comm);
    return result;
}

polypath_result_t polypath_comm_abort(polypath_comm_t comm)
{
    if (!comm)
        return error_set(POLYPATH_ERROR_ARGUMENT, "polypath_comm_abort: comm is NULL");
    if (!comm->host)
        return POLYPATH_SUCCESS;
    host_interrupt(comm->host);
    if (drive_try(comm)) { /* nobody drives: see it through here; otherwise the driver does when it next looks */
        comm_check_abort(comm);
        drive_let_go(comm);
    }
    struct attachment *attached = comm->attached;
    if (attached)
        attached->abort(attached);
    return POLYPATH_SUCCESS;
}
