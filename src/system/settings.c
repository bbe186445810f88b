/*
 * The table of settings and its reader. Nothing here knows what a setting does.
 */
#include "system/settings.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "system/error.h"
#include "system/log.h"

#define AT(field) offsetof(struct settings, field)
#define KIB 1024ull
#define MIB (1024ull * KIB)
#define GIB (1024ull * MIB)

static const struct setting table[] = {
    {"timeout_ms", SETTING_NUMBER, AT(timeout_ms), 1, 86400000, "60000", NULL,
     "a call in which nothing at all moves for this long fails (milliseconds)", true},
    {"spin", SETTING_NUMBER, AT(spin), 0, 100000000, "300", NULL,
     "polls of a waiting rank before it gives its core away; lowered by itself when ranks outnumber cores", false},
    {"progress_thread", SETTING_CHOICE, AT(progress_thread), 0, 2, "auto", "never always auto",
     "a helper thread that moves non-blocking operations; auto: when the host has more cores than ranks", false},
    {"paths", SETTING_STRING, AT(paths), 0, 0, "", NULL, "paths to use, comma separated; empty: all that were found",
     true},
    {"interfaces", SETTING_STRING, AT(interfaces), 0, 0, "", NULL,
     "network interfaces to use, comma separated, or ^name,name to leave some out; empty: all but loopback, docker and "
     "bridges",
     false},
    {"host_id", SETTING_STRING, AT(host_id), 0, 0, "", NULL,
     "overrides what identifies a host; ranks with the same value share memory", false},
    {"ip_family", SETTING_NUMBER, AT(ip_family), 0, 6, "0", NULL, "4 or 6 uses only IPv4 or IPv6; 0: what is there",
     false},
    {"tcp_streams", SETTING_NUMBER, AT(tcp_streams), 1, 16, "1", NULL, "TCP connections per peer and interface", true},
    {"tcp_notsent_bytes", SETTING_BYTES, AT(tcp_notsent_bytes), 0, 64 * MIB, "64K", NULL,
     "TCP_NOTSENT_LOWAT of data connections: what may wait unsent in the kernel; 0 leaves it alone", false},
    {"tcp_congestion", SETTING_STRING, AT(tcp_congestion), 0, 0, "", NULL,
     "congestion control of data connections, for example cubic; empty: the system's", false},
    {"shm", SETTING_BOOL, AT(shm), 0, 1, "1", NULL, "use shared memory between ranks of a host", true},
    {"cma", SETTING_BOOL, AT(cma), 0, 1, "1", NULL, "use process_vm_readv between ranks of a host, where it works",
     true},
    {"bootstrap_interface", SETTING_STRING, AT(bootstrap_interface), 0, 0, "", NULL,
     "interface at which ranks meet at the start; empty: the first usable one", false},
    {"secret", SETTING_SECRET, AT(secret), 0, 0, "", NULL,
     "secret of the job, the same for all its ranks; needed where the launcher gives them no private channel (torchrun "
     "and plain srun over a network that others can reach); never printed",
     false},
    {"cuda_streams", SETTING_BOOL, AT(cuda_streams), 0, 1, "0", NULL,
     "operations on CUDA streams by way of host memory; off, since a copy to pageable memory that is queued behind one "
     "can stop the program for good",
     false},
    {"cuda_driver", SETTING_STRING, AT(cuda_driver), 0, 0, "libcuda.so.1", NULL,
     "library of the CUDA driver, searched for as programs' libraries are; empty: GPUs are not used", false},
    {"algorithm", SETTING_STRING, AT(algorithm), 0, 0, "", NULL,
     "direct, ring, halving_doubling, tree or hierarchical for every collective that has it; empty: by the model",
     true},
    {"chunk_bytes", SETTING_BYTES, AT(chunk_bytes), 0, 16 * MIB, "0", NULL,
     "largest piece of a message that moves at once; 0: by the size of the message", true},
    {"scratch_bytes", SETTING_BYTES, AT(scratch_bytes), 64 * KIB, 64 * GIB, "64M", NULL,
     "cap on the memory for data that waits to be reduced, per communicator and rank", true},
    {"shm_bytes", SETTING_BYTES, AT(shm_bytes), 64 * KIB, 64 * GIB, "64M", NULL,
     "cap on the shared memory of a communicator, per rank", true},
    {"stage_bytes", SETTING_BYTES, AT(stage_bytes), 0, 64 * MIB, "256K", NULL,
     "size of a chunk of the larger collectives of one host (8 of them per rank in shared memory); 0: they go as "
     "between hosts",
     true},
    {"mapped", SETTING_BOOL, AT(mapped), 0, 1, "1", NULL,
     "collectives of one host work in place on memory of polypath_mem_alloc and in windows, and fetch straight from "
     "each other's buffers where they are on path cma",
     true},
    {"reproducible", SETTING_BOOL, AT(reproducible), 0, 1, "0", NULL,
     "reduce every element in rank order whatever the sizes, even where another order is faster", true},
    {"numa", SETTING_CHOICE, AT(numa), 0, 2, "auto", "off auto on",
     "ranks of one host on several NUMA nodes: off: treated as on one; auto: memory near its reader, and two-level "
     "algorithms where the model expects them to be faster; on: two-level algorithms for all that is not small",
     true},
    {"numa_node", SETTING_STRING, AT(numa_node), 0, 0, "", NULL,
     "NUMA node of this rank; empty: the node that has all the cores which the rank may use", false},
    {"hand_over", SETTING_BOOL, AT(hand_over), 0, 1, "1", NULL,
     "a path that has finished its share takes queued chunks of the others", true},
    {"shares", SETTING_STRING, AT(shares), 0, 0, "", NULL,
     "fixed shares of the paths in their order, for example 0.8,0.2; empty: balanced", true},
    {"tune", SETTING_BOOL, AT(tune), 0, 1, "1", NULL, "measure the paths at creation when the cache does not know them",
     true},
    {"cache", SETTING_STRING, AT(cache), 0, 0, "", NULL,
     "file of measured shares; empty: polypath/shares.json in the user's cache folder; none: no cache", false},
    {"balance_window", SETTING_NUMBER, AT(balance_window), 1, 1024, "4", NULL,
     "calls between two agreed looks at the shares", true},
    {"log", SETTING_CHOICE, AT(log), 0, 4, "warn", "none error warn info debug", "how much is logged", false},
    {"log_file", SETTING_STRING, AT(log_file), 0, 0, "", NULL, "file that log lines are appended to", false},
};
#define COUNT (sizeof table / sizeof table[0])

/* Variables that are ours but not settings: the launcher's and the tests'. */
static const char *const launcher_names[] = {"RANK",     "SIZE",   "UNIQUE_ID",  "LOCAL_RANK",      "LOCAL_SIZE",
                                             "LAB_HOST", "BINARY", "TEST_QUICK", "TEST_CUDA_DRIVER"};

static struct settings values;
static bool from_environment[COUNT];
static const char *preferred[COUNT]; /* instead of the default; written before `once` */
static char *warnings[64];
static size_t warning_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t *number_at(struct settings *s, const struct setting *e)
{
    return (uint64_t *)((char *)s + e->offset);
}
static const char **string_at(struct settings *s, const struct setting *e)
{
    return (const char **)((char *)s + e->offset);
}

static bool parse_number(const char *text, bool bytes, uint64_t *out)
{
    if (!isdigit((unsigned char)*text))
        return false;
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 0);
    if (errno)
        return false;
    unsigned shift = 0;
    if (bytes && *end) {
        switch (toupper((unsigned char)*end)) {
        case 'K': shift = 10; break;
        case 'M': shift = 20; break;
        case 'G': shift = 30; break;
        default: return false;
        }
        end++;
        if (!strcasecmp(end, "iB") || !strcasecmp(end, "B"))
            end += strlen(end);
    }
    if (*end || (shift && v > (UINT64_MAX >> shift)))
        return false;
    *out = (uint64_t)v << shift;
    return true;
}

static bool parse_choice(const char *choices, const char *text, uint64_t *out)
{
    uint64_t position = 0;
    size_t length = strlen(text);
    for (const char *p = choices; *p; position++) {
        size_t word = strcspn(p, " ");
        if (word == length && !strncasecmp(p, text, word)) {
            *out = position;
            return true;
        }
        p += word;
        p += strspn(p, " ");
    }
    return false;
}

static bool parse_bool(const char *text, uint64_t *out)
{
    static const char *const yes[] = {"1", "yes", "true", "on"}, *const no[] = {"0", "no", "false", "off"};
    for (size_t i = 0; i < 4; i++) {
        if (!strcasecmp(text, yes[i]) || !strcasecmp(text, no[i])) {
            *out = !strcasecmp(text, yes[i]);
            return true;
        }
    }
    return false;
}

bool settings_parse(const struct setting *e, const char *text, struct settings *into)
{
    uint64_t v = 0;
    switch (e->type) {
    case SETTING_SECRET:
    case SETTING_STRING: *string_at(into, e) = text; return true;
    case SETTING_BOOL:
        if (!parse_bool(text, &v)) {
            error_set(POLYPATH_ERROR_ARGUMENT, "%s=%s: expected 0 or 1", e->name, text);
            return false;
        }
        break;
    case SETTING_CHOICE:
        if (!parse_choice(e->choices, text, &v)) {
            error_set(POLYPATH_ERROR_ARGUMENT, "%s=%s: expected one of: %s", e->name, text, e->choices);
            return false;
        }
        break;
    case SETTING_NUMBER:
    case SETTING_BYTES:
        if (!parse_number(text, e->type == SETTING_BYTES, &v) || v < e->minimum || v > e->maximum) {
            error_set(POLYPATH_ERROR_ARGUMENT, "%s=%s: expected a number from %llu to %llu%s", e->name, text,
                      (unsigned long long)e->minimum, (unsigned long long)e->maximum,
                      e->type == SETTING_BYTES ? " (K, M and G may follow)" : "");
            return false;
        }
        break;
    }
    *number_at(into, e) = v;
    return true;
}

static size_t edit_distance(const char *a, const char *b)
{
    size_t row[64], n = strlen(b);
    if (n >= 63)
        return 64;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t change = diagonal + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]));
            diagonal = row[j];
            size_t least = row[j] + 1 < row[j - 1] + 1 ? row[j] + 1 : row[j - 1] + 1;
            row[j] = change < least ? change : least;
        }
    }
    return row[n];
}

const char *settings_nearest(const char *name)
{
    size_t best = 0, least = SIZE_MAX;
    for (size_t i = 0; i < COUNT; i++) {
        size_t d = edit_distance(name, table[i].name);
        if (d < least) {
            least = d;
            best = i;
        }
    }
    return table[best].name;
}

static void warn(const char *format, const char *a, const char *b)
{
    char text[ERROR_TEXT_BYTES + 128];
    snprintf(text, sizeof text, format, a, b);
    if (warning_count < sizeof warnings / sizeof warnings[0] && (warnings[warning_count] = strdup(text)))
        warning_count++;
}

static void upper(char *out, const char *in, size_t bytes)
{
    size_t i = 0;
    for (; in[i] && i + 1 < bytes; i++)
        out[i] = (char)toupper((unsigned char)in[i]);
    out[i] = 0;
}

static bool known_variable(const char *name, size_t length)
{
    char other[64];
    for (size_t i = 0; i < COUNT; i++) {
        upper(other, table[i].name, sizeof other);
        if (strlen(other) == length && !strncmp(other, name, length))
            return true;
    }
    for (size_t i = 0; i < sizeof launcher_names / sizeof launcher_names[0]; i++)
        if (strlen(launcher_names[i]) == length && !strncmp(launcher_names[i], name, length))
            return true;
    return false;
}

extern char **environ;

static void read_environment(void)
{
    char variable[80] = "POLYPATH_";
    for (size_t i = 0; i < COUNT; i++) {
        settings_parse(&table[i], preferred[i] ? preferred[i] : table[i].fallback, &values);
        upper(variable + 9, table[i].name, sizeof variable - 9);
        const char *text = getenv(variable);
        if (!text)
            continue;
        if (table[i].type == SETTING_STRING || table[i].type == SETTING_SECRET) {
            char *copy = strdup(text); /* never freed: settings live as long as the process */
            if (copy) {
                *string_at(&values, &table[i]) = copy;
                from_environment[i] = true;
            }
            continue;
        }
        if (settings_parse(&table[i], text, &values))
            from_environment[i] = true;
        else
            warn("POLYPATH_%s; using the default %s", error_text(), table[i].fallback);
    }
    for (char **e = environ; e && *e; e++) {
        if (strncmp(*e, "POLYPATH_", 9))
            continue;
        size_t length = strcspn(*e + 9, "=");
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)length, *e + 9);
        if (!known_variable(name, length)) {
            char nearest[64];
            upper(nearest, settings_nearest(name), sizeof nearest);
            warn("unknown setting POLYPATH_%s; the nearest is POLYPATH_%s", name, nearest);
        }
    }
}

void settings_prefer(const char *name, const char *value)
{
    for (size_t i = 0; i < COUNT; i++)
        if (!strcmp(table[i].name, name))
            preferred[i] = value;
}

const struct settings *settings_get(void)
{
    static _Thread_local bool logged; /* logging reads the settings: guard against coming back here */
    pthread_once(&once, read_environment);
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static bool all_logged;
    if (!logged) {
        logged = true;
        pthread_mutex_lock(&mutex);
        bool mine = !all_logged;
        all_logged = true;
        pthread_mutex_unlock(&mutex);
        for (size_t i = 0; mine && i < warning_count; i++)
            log_line(LOG_LEVEL_WARN, "%s", warnings[i]);
    }
    return &values;
}

const struct setting *settings_table(size_t *count)
{
    *count = COUNT;
    return table;
}

const char *settings_origin(size_t index)
{
    settings_get();
    return index < COUNT && from_environment[index] ? "environment" : "default";
}

void settings_format(size_t index, char *text, size_t bytes)
{
    settings_get();
    const struct setting *e = &table[index];
    if (e->type == SETTING_STRING) {
        snprintf(text, bytes, "%s", *string_at(&values, e));
        return;
    }
    if (e->type == SETTING_SECRET) {
        snprintf(text, bytes, "%s", **string_at(&values, e) ? "(set)" : "");
        return;
    }
    uint64_t v = *number_at(&values, e);
    if (e->type == SETTING_CHOICE) {
        const char *p = e->choices;
        for (; v; v--)
            p += strcspn(p, " ") + 1;
        snprintf(text, bytes, "%.*s", (int)strcspn(p, " "), p);
    } else if (e->type == SETTING_BYTES && v && v % MIB == 0) {
        snprintf(text, bytes, "%lluM", (unsigned long long)(v / MIB));
    } else if (e->type == SETTING_BYTES && v && v % KIB == 0) {
        snprintf(text, bytes, "%lluK", (unsigned long long)(v / KIB));
    } else {
        snprintf(text, bytes, "%llu", (unsigned long long)v);
    }
}

const char *const *settings_warnings(size_t *count)
{
    settings_get();
    *count = warning_count;
    return (const char *const *)warnings;
}
