/*
 * The cache file: what is stored comes back, jobs do not lose each other's
 * keys, and nothing that stands in the file can do harm.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <ftw.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/cache.h"
#include "system/error.h"

static char folder[64], file[128], log_name[128];

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *ftw)
{
    (void)status;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/polypath-cache-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(file, sizeof file, "%s/a/b/shares.json", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}

static const struct balance_path known[3] = {{1200, 9000}, {30000, 1100}, {0, 0}};

static struct balance_key key_of(int bucket)
{
    struct balance_key key = {.collective = 2, .bucket = (uint8_t)bucket, .allowed = 7};
    return key;
}

static struct balance *shaped(uint32_t first)
{
    struct balance *b = balance_create(3, known);
    assert_non_null(b);
    uint32_t shares[BALANCE_PATHS] = {first, BALANCE_ONE - first, 0};
    balance_set_shares(b, key_of(21), shares);
    return b;
}

static void put(const char *text, size_t bytes)
{
    char name[128];
    snprintf(name, sizeof name, "%s/a", folder);
    mkdir(name, 0700);
    snprintf(name, sizeof name, "%s/a/b", folder);
    mkdir(name, 0700);
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    fclose(f);
}

static size_t get(char *text, size_t bytes)
{
    FILE *f = fopen(file, "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, bytes - 1, f);
    fclose(f);
    text[n] = 0;
    return n;
}

/* Warnings logged since the last call; `text` (may be NULL) must be in them if there are any. */
static int warnings(const char *text)
{
    static char lines[1 << 20];
    static long seen;
    FILE *f = fopen(log_name, "rb");
    if (!f)
        return 0;
    fseek(f, seen, SEEK_SET);
    size_t n = fread(lines, 1, sizeof lines - 1, f);
    seen = ftell(f);
    fclose(f);
    lines[n] = 0;
    int count = 0;
    for (const char *at = lines; (at = strstr(at, "WARN")); at++)
        count++;
    if (count && text)
        assert_non_null(strstr(lines, text));
    return count;
}

static bool loads(struct balance *b, const char *key)
{
    bool found = true;
    struct balance_path paths[3] = {{77, 77}, {77, 77}, {77, 77}};
    cache_load(file, key, b, paths, 3, &found);
    if (found)
        assert_memory_equal(paths, known, sizeof known);
    else
        assert_int_equal(paths[0].latency_ns + paths[1].latency_ns + paths[2].bytes_per_us, 3 * 77);
    return found;
}

static void what_is_stored_comes_back(void **state)
{
    (void)state;
    struct balance *b = shaped(40000), *other = balance_create(3, known);
    assert_false(loads(other, "hardware"));
    assert_int_equal(warnings(NULL), 0); /* no file is no event */
    assert_int_equal(cache_store(file, "hardware", b, known, 3), POLYPATH_SUCCESS);
    assert_true(loads(other, "hardware"));
    assert_false(loads(other, "other hardware"));
    uint32_t shares[BALANCE_PATHS];
    balance_shares(other, key_of(21), 1 << 20, shares);
    assert_int_equal(shares[0], 40000);
    assert_int_equal(shares[1], BALANCE_ONE - 40000);
    struct stat status;
    assert_int_equal(stat(file, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    char name[128];
    snprintf(name, sizeof name, "%s/a/b", folder);
    assert_int_equal(stat(name, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0700);
    assert_int_equal(cache_store(file, "paths only", NULL, known, 3), POLYPATH_SUCCESS);
    assert_true(loads(NULL, "paths only"));
    assert_true(loads(NULL, "hardware"));
    assert_int_equal(warnings(NULL), 0);
    balance_free(b);
    balance_free(other);
}

static void another_number_of_paths_does_not_match(void **state)
{
    (void)state;
    struct balance *b = shaped(40000);
    assert_int_equal(cache_store(file, "k", b, known, 3), POLYPATH_SUCCESS);
    struct balance_path two[2];
    bool found = true;
    cache_load(file, "k", NULL, two, 2, &found);
    assert_false(found);
    assert_int_equal(warnings("as many paths"), 1);
    balance_free(b);
}

static void the_oldest_keys_are_dropped(void **state)
{
    (void)state;
    struct balance *b = shaped(1000);
    char key[16];
    for (int i = 0; i < CACHE_KEYS + 10; i++) {
        snprintf(key, sizeof key, "key %d", i);
        assert_int_equal(cache_store(file, key, b, known, 3), POLYPATH_SUCCESS);
        if (i == 30)
            assert_int_equal(cache_store(file, "key 0", b, known, 3), POLYPATH_SUCCESS); /* used again: young */
    }
    for (int i = 0; i < CACHE_KEYS + 10; i++) {
        snprintf(key, sizeof key, "key %d", i);
        assert_int_equal(loads(NULL, key), i == 0 || i > 10);
    }
    balance_free(b);
}

static void every_truncation_is_treated_as_empty(void **state)
{
    (void)state;
    struct balance *b = shaped(40000);
    static char text[4096];
    assert_int_equal(cache_store(file, "k", b, known, 3), POLYPATH_SUCCESS);
    size_t bytes = get(text, sizeof text);
    for (size_t n = 0; n < bytes; n++) {
        put(text, n);
        assert_false(loads(b, "k"));
        assert_int_equal(warnings(file), 1);
    }
    put(text, bytes);
    assert_true(loads(b, "k"));
    balance_free(b);
}

/* Every byte overwritten in turn: found or not, but always with sound values, which loads() and the sum check. */
static void corrupted_bytes_do_no_harm(void **state)
{
    (void)state;
    struct balance *b = shaped(40000);
    static char text[4096];
    assert_int_equal(cache_store(file, "k", b, known, 3), POLYPATH_SUCCESS);
    size_t bytes = get(text, sizeof text);
    static const char with[] = {'9', '-', '"', '}', ',', '\0', '\xff', 'e'};
    for (size_t i = 0; i < bytes; i++) {
        char was = text[i];
        for (size_t w = 0; w < sizeof with; w++) {
            text[i] = with[w];
            put(text, bytes);
            bool found;
            struct balance_path paths[3];
            cache_load(file, "k", b, paths, 3, &found);
            if (found)
                for (int p = 0; p < 3; p++)
                    assert_true(paths[p].latency_ns <= 10000000000 && paths[p].bytes_per_us <= 1000000000);
            uint32_t shares[BALANCE_PATHS], sum = 0;
            balance_shares(b, key_of(21), 1 << 20, shares);
            for (int p = 0; p < BALANCE_PATHS; p++)
                sum += shares[p];
            assert_int_equal(sum, BALANCE_ONE);
        }
        text[i] = was;
    }
    warnings(NULL);
    balance_free(b);
}

#define TOP "{\"polypath_shares\":1,\"keys\":{\"k\":"
#define PATHS                                                                                                          \
    "\"paths\":[{\"latency_ns\":1200,\"bytes_per_us\":9000},{\"latency_ns\":30000,\"bytes_per_us\":1100},"             \
    "{\"latency_ns\":0,\"bytes_per_us\":0}]"
#define ENTRY(collective, bucket, allowed, shares)                                                                     \
    "{\"collective\":" collective ",\"bucket\":" bucket ",\"allowed\":" allowed ",\"shares\":" shares "}"
#define WITH(entries) TOP "{\"stamp\":1," PATHS ",\"entries\":" entries "}}}"

static void wrong_values_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        "garbage",
        "\xff\xfe\x00\x01",
        "[]",
        "null",
        "7",
        "{}",
        "{\"polypath_shares\":1}",
        "{\"polypath_shares\":2,\"keys\":{}}",
        "{\"polypath_shares\":\"1\",\"keys\":{}}",
        "{\"polypath_shares\":1,\"keys\":[]}",
        "{\"polypath_shares\":1,\"polypath_shares\":1,\"keys\":{}}",
        TOP "null}}",
        TOP "[]}}",
        TOP "{}}}",
        TOP "{\"stamp\":1,\"paths\":[],\"entries\":[]}}}",
        TOP "{\"stamp\":1," PATHS "}}}",
        TOP "{\"stamp\":1,\"paths\":[1,2,3],\"entries\":[]}}}",
        TOP "{\"stamp\":1,\"paths\":{\"a\":1},\"entries\":[]}}}",
        TOP "{\"stamp\":1,\"paths\":[{\"latency_ns\":-1,\"bytes_per_us\":1},{},{}],\"entries\":[]}}}",
        TOP "{\"stamp\":1,\"paths\":[{\"latency_ns\":1,\"bytes_per_us\":1e9},{},{}],\"entries\":[]}}}",
        TOP "{\"stamp\":1,\"paths\":[{\"latency_ns\":99999999999999,\"bytes_per_us\":1},{},{}],\"entries\":[]}}}",
        TOP
        "{\"stamp\":1,\"paths\":[{\"latency_ns\":99999999999999999999999,\"bytes_per_us\":1},{},{}],\"entries\":[]}}}",
        WITH("{}"),
        WITH("[1]"),
        WITH("[[]]"),
        WITH("[" ENTRY("256", "21", "7", "[65536,0,0]") "]"),
        WITH("[" ENTRY("-1", "21", "7", "[65536,0,0]") "]"),
        WITH("[" ENTRY("0", "65", "7", "[65536,0,0]") "]"),
        WITH("[" ENTRY("0", "21", "0", "[65536,0,0]") "]"),
        WITH("[" ENTRY("0", "21", "8", "[65536,0,0]") "]"),
        WITH("[" ENTRY("0", "21", "6", "[65536,0,0]") "]"),
        WITH("[" ENTRY("0", "21", "7", "[65535,0,0]") "]"),
        WITH("[" ENTRY("0", "21", "7", "[65536,1,0]") "]"),
        WITH("[" ENTRY("0", "21", "7", "[65537,-1,0]") "]"),
        WITH("[" ENTRY("0", "21", "7", "[4294967296,0,0]") "]"),
        WITH("[" ENTRY("0", "21", "7", "[65536,0]") "]"),
        WITH("[" ENTRY("0", "21", "7", "[65536,0,0,0]") "]"),
        WITH("[" ENTRY("0", "21", "7", "[\"65536\",0,0]") "]"),
        WITH("[" ENTRY("0", "21", "7", "{}") "]"),
        WITH("[" ENTRY("0", "21", "7", "[65536,0,0]") "," ENTRY("0", "21", "7", "[1,0,0]") "]"),
    };
    struct balance *b = shaped(40000);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        put(wrong[i], strlen(wrong[i]));
        assert_false(loads(b, "k"));
        assert_int_equal(warnings(file), 1);
        uint32_t shares[BALANCE_PATHS];
        balance_shares(b, key_of(21), 1 << 20, shares);
        assert_int_equal(shares[0], 40000); /* nothing of it came through */
    }
    static const char good[] = WITH("[" ENTRY("2", "21", "7", "[65535,1,0]") "]");
    put(good, strlen(good));
    assert_true(loads(b, "k"));
    balance_free(b);
}

static void deep_nesting_and_huge_files_are_refused(void **state)
{
    (void)state;
    size_t bytes = 100000;
    char *text = malloc(bytes);
    assert_non_null(text);
    memset(text, '[', bytes);
    put(text, bytes);
    free(text);
    assert_false(loads(NULL, "k"));
    assert_int_equal(warnings(file), 1);
    assert_int_equal(truncate(file, 1l << 40), 0);
    assert_false(loads(NULL, "k"));
    assert_int_equal(warnings("more than"), 1);
}

static void what_is_not_a_file_is_refused(void **state)
{
    (void)state;
    put("", 0);
    unlink(file);
    assert_int_equal(mkfifo(file, 0600), 0);
    assert_false(loads(NULL, "k")); /* and does not block */
    assert_int_equal(warnings("regular"), 1);
    unlink(file);
    assert_int_equal(mkdir(file, 0700), 0);
    assert_false(loads(NULL, "k"));
    assert_int_equal(warnings("regular"), 1);
    assert_int_not_equal(cache_store(file, "k", NULL, known, 3), POLYPATH_SUCCESS);
    assert_true(warnings(file) >= 1);
    assert_non_null(strstr(error_text(), file));
}

static void a_damaged_file_is_replaced(void **state)
{
    (void)state;
    put("garbage", 7);
    struct balance *b = shaped(3);
    assert_int_equal(cache_store(file, "k", b, known, 3), POLYPATH_SUCCESS);
    assert_int_equal(warnings("JSON"), 1);
    assert_true(loads(NULL, "k"));
    /* keys with odd stamps neither survive for ever nor break the count */
    static const char odd[] = "{\"polypath_shares\":1,\"keys\":{\"a\":{\"stamp\":-1},\"b\":7,\"c\":{},"
                              "\"d\":{\"stamp\":4503599627370496}}}";
    put(odd, strlen(odd));
    assert_int_equal(cache_store(file, "k", b, known, 3), POLYPATH_SUCCESS);
    assert_int_equal(cache_store(file, "l", b, known, 3), POLYPATH_SUCCESS);
    assert_true(loads(NULL, "k") && loads(NULL, "l"));
    static char text[4096];
    get(text, sizeof text);
    assert_null(strstr(text, "4503599627370496"));
    assert_null(strstr(text, "\"a\""));
    balance_free(b);
}

static void a_folder_that_cannot_be_written_is_an_error(void **state)
{
    (void)state;
    put("x", 1);
    char under[192];
    snprintf(under, sizeof under, "%s/c/shares.json", file); /* below a file: not even root can */
    assert_int_equal(cache_store(under, "k", NULL, known, 3), POLYPATH_ERROR_SYSTEM);
    assert_int_equal(warnings(under), 1);
    assert_non_null(strstr(error_text(), under));
    bool found = true;
    struct balance_path paths[3];
    cache_load(under, "k", NULL, paths, 3, &found);
    assert_false(found);
    warnings(NULL);
    if (geteuid() == 0)
        return;
    unlink(file);
    char name[128];
    snprintf(name, sizeof name, "%s/a/b", folder);
    chmod(name, 0500);
    assert_int_equal(cache_store(file, "k", NULL, known, 3), POLYPATH_ERROR_SYSTEM);
    assert_int_equal(warnings(file), 1);
    chmod(name, 0700);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    char key[CACHE_KEY_BYTES + 2];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    assert_int_equal(cache_store(file, key, NULL, known, 3), POLYPATH_ERROR_ARGUMENT);
    assert_int_equal(cache_store(file, "", NULL, known, 3), POLYPATH_ERROR_ARGUMENT);
    assert_int_equal(cache_store(file, "k", NULL, known, 0), POLYPATH_ERROR_ARGUMENT);
    assert_int_equal(cache_store(file, "k", NULL, known, BALANCE_PATHS + 1), POLYPATH_ERROR_ARGUMENT);
    assert_int_not_equal(cache_store(file, "\xff\xfe", NULL, known, 3), POLYPATH_SUCCESS);
    assert_int_equal(cache_store(file, key + 1, NULL, known, 3), POLYPATH_SUCCESS);
    assert_true(loads(NULL, key + 1));
    warnings(NULL);
}

/* Many processes store their own keys at once: all are there afterwards, and a reader never saw a damaged file. */
static void concurrent_writers_keep_each_others_keys(void **state)
{
    (void)state;
    enum { WRITERS = 8, ROUNDS = 6 };
    struct balance *b = shaped(123);
    assert_int_equal(cache_store(file, "first", b, known, 3), POLYPATH_SUCCESS);
    pid_t writers[WRITERS];
    for (int w = 0; w < WRITERS; w++) {
        writers[w] = fork();
        assert_true(writers[w] >= 0);
        if (writers[w] == 0) {
            char key[32];
            int wrong = 0;
            for (int i = 0; i < ROUNDS; i++) {
                snprintf(key, sizeof key, "writer %d round %d", w, i);
                wrong += cache_store(file, key, b, known, 3) != POLYPATH_SUCCESS;
                bool found = false;
                struct balance_path paths[3];
                cache_load(file, "first", NULL, paths, 3, &found);
                wrong += !found;
            }
            _exit(wrong);
        }
    }
    for (int w = 0; w < WRITERS; w++) {
        int status;
        assert_int_equal(waitpid(writers[w], &status, 0), writers[w]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    for (int w = 0; w < WRITERS; w++) {
        for (int i = 0; i < ROUNDS; i++) {
            char key[32];
            snprintf(key, sizeof key, "writer %d round %d", w, i);
            assert_true(loads(NULL, key));
        }
    }
    assert_int_equal(warnings(NULL), 0);
    balance_free(b);
}

static void a_lock_that_is_never_given_back_is_an_error(void **state)
{
    (void)state;
    put("", 0);
    unlink(file);
    char name[160];
    snprintf(name, sizeof name, "%s.lock", file);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    assert_int_equal(cache_store(file, "k", NULL, known, 3), POLYPATH_ERROR_SYSTEM);
    assert_int_equal(warnings("locked"), 1);
    close(fd);
    assert_int_equal(cache_store(file, "k", NULL, known, 3), POLYPATH_SUCCESS);
}

static void the_default_file_follows_the_environment(void **state)
{
    (void)state;
    char name[256];
    setenv("XDG_CACHE_HOME", "/x/cache", 1);
    assert_int_equal(cache_default_file(name, sizeof name), POLYPATH_SUCCESS);
    assert_string_equal(name, "/x/cache/polypath/shares.json");
    assert_int_equal(cache_default_file(name, 10), POLYPATH_ERROR_ARGUMENT);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", "/home/u", 1);
    assert_int_equal(cache_default_file(name, sizeof name), POLYPATH_SUCCESS);
    assert_string_equal(name, "/home/u/.cache/polypath/shares.json");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_int_equal(cache_default_file(name, sizeof name), POLYPATH_ERROR_USAGE);
}

int main(void)
{
    snprintf(log_name, sizeof log_name, "/tmp/polypath-cache-log-XXXXXX");
    int fd = mkstemp(log_name);
    if (fd < 0)
        return 1;
    close(fd);
    setenv("POLYPATH_LOG_FILE", log_name, 1);
    setenv("POLYPATH_LOG", "warn", 1);
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(what_is_stored_comes_back),
        TEST(another_number_of_paths_does_not_match),
        TEST(the_oldest_keys_are_dropped),
        TEST(every_truncation_is_treated_as_empty),
        TEST(corrupted_bytes_do_no_harm),
        TEST(wrong_values_are_refused),
        TEST(deep_nesting_and_huge_files_are_refused),
        TEST(what_is_not_a_file_is_refused),
        TEST(a_damaged_file_is_replaced),
        TEST(a_folder_that_cannot_be_written_is_an_error),
        TEST(bad_arguments_are_refused),
        TEST(concurrent_writers_keep_each_others_keys),
        TEST(a_lock_that_is_never_given_back_is_an_error),
        TEST(the_default_file_follows_the_environment),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(log_name);
    return failed;
}
