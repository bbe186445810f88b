/*
 * The cache of measured paths and shares: reading, checking and replacing the
 * JSON file. Knows nothing of how the numbers come about or what keys mean.
 *
 * {"polypath_shares": 1,
 *  "keys": {"KEY": {"stamp": 7,
 *                   "paths": [{"latency_ns": 1200, "bytes_per_us": 9000}, ...],
 *                   "entries": [{"collective": 0, "bucket": 21, "allowed": 3, "shares": [40000, 25536]}, ...]}}}
 */
#include "comm/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "system/error.h"
#include "system/log.h"

#define FORMAT 1
#define FILE_BYTES (16u << 20)
#define ENTRIES_MOST 4096
#define LATENCY_MOST 10000000000 /* ns */
#define RATE_MOST 1000000000     /* bytes per microsecond */
#define STAMP_MOST ((json_int_t)1 << 52)
#define LOCK_TRIES 200
#define LOCK_PAUSE_NS 10000000

polypath_result_t cache_default_file(char *file, size_t bytes)
{
    const char *folder = getenv("XDG_CACHE_HOME"), *between = "";
    if (!folder || folder[0] != '/') { /* the XDG rule: a relative one is ignored */
        folder = getenv("HOME");
        between = "/.cache";
    }
    if (!folder || folder[0] != '/')
        return error_set(POLYPATH_ERROR_USAGE, "no cache file: neither XDG_CACHE_HOME nor HOME is an absolute path");
    int n = snprintf(file, bytes, "%s%s/polypath/shares.json", folder, between);
    if (n < 0 || (size_t)n >= bytes)
        return error_set(POLYPATH_ERROR_ARGUMENT, "the cache file's name needs %d bytes, there are %zu", n + 1, bytes);
    return POLYPATH_SUCCESS;
}

static void warn_unusable(const char *file, const char *reason)
{
    log_line(LOG_LEVEL_WARN, "cache file %s: %s; treated as empty", file, reason);
}

/* ------------------------------------------------------------- reading */

/* All bytes of a regular file of bearable size, or NULL with `reason` written (left empty if there is no file). */
static char *read_file(const char *file, size_t *bytes, char reason[256])
{
    char *text = NULL;
    reason[0] = 0;
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a FIFO of that name must not block */
    if (fd < 0) {
        if (errno != ENOENT)
            snprintf(reason, 256, "cannot be opened: %s", strerror(errno));
        return NULL;
    }
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        snprintf(reason, 256, "is not a regular file");
        goto out;
    }
    if (status.st_size > FILE_BYTES) {
        snprintf(reason, 256, "has %jd bytes, more than the %u allowed", (intmax_t)status.st_size, FILE_BYTES);
        goto out;
    }
    size_t size = (size_t)status.st_size, done = 0;
    text = malloc(size + 1);
    if (!text) {
        snprintf(reason, 256, "no memory to read it");
        goto out;
    }
    while (done < size) {
        ssize_t n = read(fd, text + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            snprintf(reason, 256, "cannot be read: %s", n < 0 ? strerror(errno) : "it became shorter");
            free(text);
            text = NULL;
            goto out;
        }
        done += (size_t)n;
    }
    *bytes = size;
out:
    close(fd);
    return text;
}

/* The file's content if it is of our form at the top, else NULL; what is wrong has been logged. Caller decrefs. */
static json_t *read_root(const char *file)
{
    char reason[256];
    size_t bytes = 0;
    char *text = read_file(file, &bytes, reason);
    if (!text) {
        if (reason[0])
            warn_unusable(file, reason);
        return NULL;
    }
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!root) {
        snprintf(reason, sizeof reason, "is not valid JSON: line %d: %.180s", error.line, error.text);
        warn_unusable(file, reason);
        return NULL;
    }
    json_t *format = json_object_get(root, "polypath_shares");
    if (!json_is_integer(format) || json_integer_value(format) != FORMAT) {
        warn_unusable(file, "\"polypath_shares\" is not 1: not a share cache, or of another version");
        json_decref(root);
        return NULL;
    }
    if (!json_is_object(json_object_get(root, "keys"))) {
        warn_unusable(file, "\"keys\" is not an object");
        json_decref(root);
        return NULL;
    }
    return root;
}

/* The integer member `name` of `object` within bounds, or false. */
static bool get_integer(const json_t *object, const char *name, json_int_t least, json_int_t most, json_int_t *value)
{
    const json_t *member = json_object_get(object, name);
    if (!json_is_integer(member))
        return false;
    *value = json_integer_value(member);
    return *value >= least && *value <= most;
}

static const char *parse_paths(const json_t *value, struct balance_path *paths, int npaths)
{
    if (!json_is_array(value) || json_array_size(value) != (size_t)npaths)
        return "\"paths\" is not a list of as many paths as there are";
    for (int p = 0; p < npaths; p++) {
        json_int_t latency, rate;
        const json_t *path = json_array_get(value, (size_t)p);
        if (!get_integer(path, "latency_ns", 0, LATENCY_MOST, &latency) ||
            !get_integer(path, "bytes_per_us", 0, RATE_MOST, &rate))
            return "a path's \"latency_ns\" or \"bytes_per_us\" is missing or out of range";
        paths[p].latency_ns = (uint64_t)latency;
        paths[p].bytes_per_us = (uint64_t)rate;
    }
    return NULL;
}

static const char *parse_entry(const json_t *value, int npaths, struct balance_key *key, uint32_t shares[BALANCE_PATHS])
{
    json_int_t collective, bucket, allowed;
    if (!get_integer(value, "collective", 0, UINT8_MAX, &collective) ||
        !get_integer(value, "bucket", 0, BALANCE_BUCKETS - 1, &bucket) ||
        !get_integer(value, "allowed", 1, ((json_int_t)1 << npaths) - 1, &allowed))
        return "an entry's \"collective\", \"bucket\" or \"allowed\" is missing or out of range";
    const json_t *list = json_object_get(value, "shares");
    if (!json_is_array(list) || json_array_size(list) != (size_t)npaths)
        return "an entry's \"shares\" is not a list of as many shares as there are paths";
    json_int_t sum = 0;
    memset(shares, 0, BALANCE_PATHS * sizeof *shares);
    for (int p = 0; p < npaths; p++) {
        const json_t *share = json_array_get(list, (size_t)p);
        json_int_t v = json_is_integer(share) ? json_integer_value(share) : -1;
        if (v < 0 || v > BALANCE_ONE || (v && !(allowed & (json_int_t)1 << p)))
            return "a share is not a number in range, or of a path that is not allowed";
        shares[p] = (uint32_t)v;
        sum += v;
    }
    if (sum != BALANCE_ONE)
        return "an entry's shares do not sum up to the whole";
    *key = (struct balance_key){(uint8_t)collective, (uint8_t)bucket, (uint16_t)allowed};
    return NULL;
}

/* Checks everything; hands entries to `balance` if it is not NULL. NULL, or what is wrong. */
static const char *parse_entries(const json_t *list, struct balance *balance, int npaths)
{
    if (!json_is_array(list) || json_array_size(list) > ENTRIES_MOST)
        return "\"entries\" is not a list, or too long";
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct balance_key key;
        uint32_t shares[BALANCE_PATHS];
        const char *wrong = parse_entry(json_array_get(list, i), npaths, &key, shares);
        if (wrong)
            return wrong;
        if (balance)
            balance_set_shares(balance, key, shares);
    }
    return NULL;
}

static bool good_arguments(const char *file, const char *key, int npaths)
{
    return file && *file && key && *key && strlen(key) <= CACHE_KEY_BYTES && npaths >= 1 && npaths <= BALANCE_PATHS;
}

void cache_load(const char *file, const char *key, struct balance *balance, struct balance_path *paths, int npaths,
                bool *found)
{
    *found = false;
    if (!good_arguments(file, key, npaths))
        return;
    json_t *root = read_root(file);
    if (!root)
        return;
    const json_t *value = json_object_get(json_object_get(root, "keys"), key);
    if (value) {
        struct balance_path read[BALANCE_PATHS] = {{0, 0}};
        const json_t *entries = json_object_get(value, "entries");
        const char *wrong = parse_paths(json_object_get(value, "paths"), read, npaths);
        if (!wrong)
            wrong = parse_entries(entries, NULL, npaths);
        if (wrong) {
            log_line(LOG_LEVEL_WARN, "cache file %s, key %s: %s; treated as not there", file, key, wrong);
        } else {
            memcpy(paths, read, (size_t)npaths * sizeof *paths);
            if (balance) {
                balance_set_paths(balance, paths);
                parse_entries(entries, balance, npaths);
            }
            *found = true;
        }
    }
    json_decref(root);
}

/* ------------------------------------------------------------- writing */

struct collected {
    json_t *entries;
    int npaths;
    bool failed;
};

static void collect(void *context, struct balance_key key, const uint32_t shares[BALANCE_PATHS])
{
    struct collected *c = context;
    json_t *list = json_array();
    for (int p = 0; p < c->npaths; p++)
        c->failed |= json_array_append_new(list, json_integer(shares[p])) != 0;
    json_t *entry = json_pack("{s:i, s:i, s:i, s:o}", "collective", (int)key.collective, "bucket", (int)key.bucket,
                              "allowed", (int)key.allowed, "shares", list);
    c->failed |= json_array_append_new(c->entries, entry) != 0; /* also if entry is NULL */
}

/* The value stored under a key, or NULL when memory ran out. */
static json_t *make_value(const struct balance *balance, const struct balance_path *paths, int npaths, json_int_t stamp)
{
    struct collected c = {json_array(), npaths, false};
    json_t *list = json_array();
    for (int p = 0; p < npaths; p++) {
        uint64_t latency = paths[p].latency_ns, rate = paths[p].bytes_per_us;
        json_t *path =
            json_pack("{s:I, s:I}", "latency_ns", (json_int_t)(latency < LATENCY_MOST ? latency : LATENCY_MOST),
                      "bytes_per_us", (json_int_t)(rate < RATE_MOST ? rate : RATE_MOST));
        c.failed |= json_array_append_new(list, path) != 0;
    }
    if (balance)
        balance_visit(balance, collect, &c);
    json_t *value = json_pack("{s:I, s:o, s:o}", "stamp", stamp, "paths", list, "entries", c.entries);
    if (c.failed) {
        json_decref(value);
        return NULL;
    }
    return value;
}

/* Drops keys without a sound stamp, then the oldest beyond `most`. Returns the newest stamp. */
static json_int_t drop_oldest(json_t *keys, size_t most)
{
    json_int_t newest = 0;
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(keys, next, name, value)
    {
        json_int_t stamp;
        if (!get_integer(value, "stamp", 0, STAMP_MOST, &stamp))
            json_object_del(keys, name);
        else
            newest = stamp > newest ? stamp : newest;
    }
    while (json_object_size(keys) > most) {
        const char *oldest = NULL;
        json_int_t least = STAMP_MOST + 1;
        json_object_foreach(keys, name, value)
        {
            json_int_t stamp = json_integer_value(json_object_get(value, "stamp"));
            if (stamp < least) {
                least = stamp;
                oldest = name;
            }
        }
        json_object_del(keys, oldest);
    }
    return newest;
}

/* Stamps count stores; a file that claims a huge one is renumbered in order. */
static json_int_t next_stamp(json_t *keys)
{
    json_int_t newest = drop_oldest(keys, CACHE_KEYS - 1);
    if (newest < STAMP_MOST)
        return newest + 1;
    const char *name;
    json_t *value;
    json_object_foreach(keys, name, value) json_object_set_new(value, "stamp", json_integer(0));
    return 1;
}

static bool make_folders(const char *file)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", file) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return access(path, F_OK) == 0; /* one that is there may be on a read-only file system */
        *slash = '/';
    }
    return true;
}

static int take_lock(const char *file)
{
    char name[PATH_MAX];
    if (snprintf(name, sizeof name, "%s.lock", file) >= (int)sizeof name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return -1;
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return fd;
        if (errno != EWOULDBLOCK && errno != EINTR)
            break;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
    }
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static bool write_all(int fd, const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        text += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Replaces the file in one step, but without fsync: what a power cut spoils is only measured again. false: errno. */
static bool replace_file(const char *file, const char *text)
{
    char name[PATH_MAX];
    if (snprintf(name, sizeof name, "%s.XXXXXX", file) >= (int)sizeof name) {
        errno = ENAMETOOLONG;
        return false;
    }
    int fd = mkostemp(name, O_CLOEXEC); /* mode 0600 */
    if (fd < 0)
        return false;
    bool good = write_all(fd, text, strlen(text));
    int why = errno;
    if (close(fd) != 0 && good) {
        why = errno;
        good = false;
    }
    if (good && rename(name, file) == 0)
        return true;
    why = good ? errno : why;
    unlink(name);
    errno = why;
    return false;
}

static polypath_result_t store_failed(polypath_result_t code, const char *file, const char *what, int why)
{
    log_line(LOG_LEVEL_WARN, "cache file %s: %s%s%s; measured shares are not kept", file, what, why ? ": " : "",
             why ? strerror(why) : "");
    return error_set(code, "cache file %s: %s%s%s", file, what, why ? ": " : "", why ? strerror(why) : "");
}

/* The file's new text, with everything that other jobs stored; NULL when memory ran out. Caller frees. */
static char *new_text(const char *file, const char *key, const struct balance *balance,
                      const struct balance_path *paths, int npaths)
{
    json_t *root = read_root(file);
    if (!root)
        root = json_pack("{s:i, s:{}}", "polypath_shares", FORMAT, "keys");
    if (!root)
        return NULL;
    char *text = NULL;
    json_t *keys = json_object_get(root, "keys");
    json_object_del(keys, key);
    json_t *value = make_value(balance, paths, npaths, next_stamp(keys));
    if (value && json_object_set_new(keys, key, value) == 0)
        text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

polypath_result_t cache_store(const char *file, const char *key, const struct balance *balance,
                              const struct balance_path *paths, int npaths)
{
    if (!good_arguments(file, key, npaths))
        return error_set(POLYPATH_ERROR_ARGUMENT, "cache_store: no file, no key of 1 to %d bytes, or %d paths",
                         CACHE_KEY_BYTES, npaths);
    if (!make_folders(file))
        return store_failed(POLYPATH_ERROR_SYSTEM, file, "its folder cannot be made", errno);
    int lock = take_lock(file);
    if (lock < 0)
        return store_failed(POLYPATH_ERROR_SYSTEM, file, "cannot be locked", errno);
    polypath_result_t result = POLYPATH_SUCCESS;
    char *text = new_text(file, key, balance, paths, npaths);
    if (!text)
        result = store_failed(POLYPATH_ERROR_OUT_OF_MEMORY, file, "no memory, or the key is not UTF-8", 0);
    else if (strlen(text) > FILE_BYTES)
        result = store_failed(POLYPATH_ERROR_SYSTEM, file, "would grow beyond what is read back", 0);
    else if (!replace_file(file, text))
        result = store_failed(POLYPATH_ERROR_SYSTEM, file, "cannot be written", errno);
    free(text);
    close(lock); /* and with it the lock */
    return result;
}
