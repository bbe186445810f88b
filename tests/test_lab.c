/*
 * `polypath lab` from the outside: links carry data and obey, and nothing is
 * ever left behind. Needs root and network namespaces; skips without. Nothing
 * is asserted by wall-clock: rates are what the kernel says they are, relays
 * are judged by what arrives, in which order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/program.h"

#define FOLDER "/run/polypath-lab"
#define DATAGRAMS 200
#define STREAM_BYTES (64u << 20)

static char lab[32];   /* a name that no other lab has */
static char self[400]; /* this program: ranks of the lab are copies of it */

/* --------------------------------------------------------- what ranks do */

static struct sockaddr_in address_of(int link, int host, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    char text[32];
    snprintf(text, sizeof text, "10.%d.0.%d", 77 + link, host + 1);
    inet_pton(AF_INET, text, &address.sin_addr);
    return address;
}

static int rank_number(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : -1;
}

/* Host 1 sends `bytes` of a pattern over each link to host 0, which checks them. */
static int rank_transfer(int links, size_t bytes)
{
    static unsigned char buffer[1 << 16];
    for (int link = 0; link < links; link++) {
        struct sockaddr_in address = address_of(link, 0, 7000);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (rank_number("POLYPATH_LAB_HOST") == 0) {
            int on = 1;
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
            if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1))
                return 10;
            int connection = accept(fd, NULL, NULL);
            size_t seen = 0;
            for (ssize_t got; (got = read(connection, buffer, sizeof buffer)) > 0; seen += (size_t)got)
                for (ssize_t i = 0; i < got; i++)
                    if (buffer[i] != (unsigned char)((seen + (size_t)i) % 251))
                        return 11;
            close(connection);
            printf("link %d: %zu bytes\n", link, seen);
            if (seen != bytes)
                return 12;
        } else {
            int tries = 0;
            while (connect(fd, (struct sockaddr *)&address, sizeof address))
                if (usleep(20000) || ++tries > 500)
                    return 13;
            for (size_t sent = 0; sent < bytes;) {
                size_t count = bytes - sent < sizeof buffer ? bytes - sent : sizeof buffer;
                for (size_t i = 0; i < count; i++)
                    buffer[i] = (unsigned char)((sent + i) % 251);
                ssize_t wrote = write(fd, buffer, count);
                if (wrote < 0)
                    return 14;
                sent += (size_t)wrote;
            }
        }
        close(fd);
    }
    return 0;
}

/* Host 1 sends numbered datagrams over link 0; host 0 says how many came, and how many after a later one. */
static int rank_datagrams(void)
{
    struct sockaddr_in address = address_of(0, 0, 7001);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct timeval patience = {.tv_sec = 2};
    if (rank_number("POLYPATH_LAB_HOST") == 1) {
        usleep(500000); /* until host 0 listens; more than it needs */
        for (int i = 0; i < DATAGRAMS; i++)
            if (sendto(fd, &i, sizeof i, 0, (struct sockaddr *)&address, sizeof address) < 0)
                return 20;
        return 0;
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (bind(fd, (struct sockaddr *)&address, sizeof address))
        return 21;
    int number, came = 0, late = 0, highest = -1;
    while (came < DATAGRAMS && recv(fd, &number, sizeof number, 0) == sizeof number) {
        came++;
        late += number < highest;
        highest = number > highest ? number : highest;
    }
    printf("came %d late %d\n", came, late);
    return 0;
}

/*
 * Each host tells every other on each link whom it has heard, until all have
 * heard all. Whoever is complete has heard of everyone's open socket, so what
 * it says once more before it goes does arrive.
 */
static int rank_everyone(int hosts, int links)
{
    int me = rank_number("POLYPATH_LAB_HOST"), others;
    if (me < 0)
        return 32;
    others = ((1 << hosts) - 1) & ~(1 << me);
    for (int link = 0; link < links; link++) {
        struct sockaddr_in mine = address_of(link, me, 7002);
        int fd = socket(AF_INET, SOCK_DGRAM, 0), heard = 0, complete = 0;
        struct timeval patience = {.tv_usec = 10000};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (bind(fd, (struct sockaddr *)&mine, sizeof mine))
            return 30;
        for (int round = 0; round < 1000; round++) {
            bool last = complete == others;
            int message[2] = {me, heard == others};
            for (int h = 0; h < hosts; h++) {
                struct sockaddr_in other = address_of(link, h, 7002);
                if (h != me)
                    sendto(fd, message, sizeof message, 0, (struct sockaddr *)&other, sizeof other);
            }
            if (last)
                break;
            for (int i = 0; i < hosts && recv(fd, message, sizeof message, 0) == sizeof message; i++) {
                heard |= 1 << message[0];
                complete |= message[1] << message[0];
            }
        }
        close(fd);
        if (complete != others)
            return 31;
    }
    return 0;
}

static int rank_main(char **argv)
{
    if (!strcmp(argv[1], "transfer"))
        return rank_transfer(atoi(argv[2]), strtoul(argv[3], NULL, 10));
    if (!strcmp(argv[1], "datagrams"))
        return rank_datagrams();
    return rank_everyone(atoi(argv[2]), atoi(argv[3]));
}

/* ----------------------------------------------------------------- helpers */

static bool can_make_labs(void)
{
    if (geteuid() != 0)
        return false;
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(CLONE_NEWNET | CLONE_NEWNS) ? 1 : 0);
    int status;
    return waitpid(pid, &status, 0) == pid && status == 0 && tool_output("ip", "-V", NULL);
}

#define NEEDS_LABS()                                                                                                   \
    do {                                                                                                               \
        if (!can_make_labs())                                                                                          \
            skip();                                                                                                    \
    } while (0)

/* Entries of a folder whose name contains that of the lab. */
static int entries_of_lab(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        count += strstr(entry->d_name, lab) != NULL;
    if (folder)
        closedir(folder);
    return count;
}

static int left_of_lab(void)
{
    return entries_of_lab("/run/netns") + entries_of_lab(FOLDER) + processes_with(lab);
}

/* What a guardian removes takes a moment. */
static bool nothing_is_left(void)
{
    for (int i = 0; i < 1000 && left_of_lab(); i++)
        usleep(10000);
    return !left_of_lab();
}

static json_t *lab_status(void)
{
    const struct ending *end = program_run("lab", "status", "--json", "--name", lab, NULL);
    assert_int_equal(end->status, 0);
    json_t *json = json_loads(end->out, 0, NULL);
    assert_non_null(json);
    return json;
}

static json_t *link_status(json_t *status, size_t index)
{
    return json_array_get(json_object_get(json_array_get(status, 0), "links"), index);
}

static long long relay_counter(const char *name)
{
    json_t *status = lab_status();
    json_t *value = json_object_get(json_object_get(link_status(status, 0), "relay"), name);
    assert_true(json_is_integer(value));
    long long number = json_integer_value(value);
    json_decref(status);
    return number;
}

static const char *qdiscs_of(int host, const char *device)
{
    char namespace[64];
    snprintf(namespace, sizeof namespace, "pp-%s-%d", lab, host);
    return tool_output("tc", "-n", namespace, "qdisc", "show", "dev", device, NULL);
}

static const char *rules_of(int host)
{
    char namespace[64];
    snprintf(namespace, sizeof namespace, "pp-%s-%d", lab, host);
    return tool_output("ip", "netns", "exec", namespace, "nft", "list", "ruleset", NULL);
}

#define lab_do(...) assert_int_equal(program_run("lab", __VA_ARGS__, "--name", lab, NULL)->status, 0)

static int down(void **state)
{
    (void)state;
    if (can_make_labs())
        program_run("lab", "down", "--name", lab, NULL);
    return 0;
}

/* ------------------------------------------------------------------- usage */

static void wrong_specs_are_usage_errors(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        "4",
                                        "4gb",
                                        "-1gbit",
                                        "1bit",
                                        "nan",
                                        "infgbit",
                                        "1e99gbit",
                                        "1gbit,",
                                        "1gbit,delay",
                                        "1gbit,delay=5",
                                        "1gbit,delay=1h",
                                        "1gbit,delay=1000s",
                                        "1gbit,loss=101%",
                                        "1gbit,loss=-1%",
                                        "1gbit,loss=0.1",
                                        "1gbit,mtu=100",
                                        "1gbit,name=",
                                        "1gbit,name=lo",
                                        "1gbit,name=a/b",
                                        "1gbit,name=far-too-long-a-name",
                                        "1gbit,name=x;reboot",
                                        "1gbit,colour=red",
                                        "1gbit,reorder=1%",
                                        "1gbit,via=magic"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct ending *end = program_run("lab", "up", "--name", lab, "--link", wrong[i], NULL);
        assert_int_equal(end->status, 2);
        assert_non_null(strstr(end->err, "polypath lab up: "));
    }
    assert_int_equal(program_run("lab", "up", "--name", "../x", "--link", "none", NULL)->status, 2);
    assert_int_equal(program_run("lab", "up", "--link", "none,name=a", "--link", "none,name=a", NULL)->status, 2);
    assert_int_equal(program_run("lab", "up", "--hosts", "1", "--link", "none", NULL)->status, 2);
    assert_int_equal(program_run("lab", "up", NULL)->status, 2);
    assert_int_equal(program_run("lab", "set", "--link", "eth0", NULL)->status, 2);
    assert_int_equal(program_run("lab", "nonsense", NULL)->status, 2);
    assert_int_equal(program_run("lab", NULL)->status, 2);
}

static void without_a_lab_errors_say_how_to_get_one(void **state)
{
    (void)state;
    NEEDS_LABS();
    const struct ending *end = program_run("lab", "run", "--name", lab, "-n", "2", "true", NULL);
    assert_int_equal(end->status, 1);
    assert_non_null(strstr(end->err, "lab up"));
    assert_int_equal(program_run("lab", "status", "--name", lab, NULL)->status, 1);
    assert_int_equal(program_run("lab", "set", "--name", lab, "--link", "eth0", "--down", NULL)->status, 1);
}

/* -------------------------------------------------------------- plain links */

static void up_status_down(void **state)
{
    (void)state;
    NEEDS_LABS();
    lab_do("up", "--hosts", "2", "--link", "4gbit", "--link", "1gbit,mtu=9000", "--link", "none,name=extra");
    json_t *status = lab_status();
    json_t *object = json_array_get(status, 0);
    assert_int_equal(json_array_size(json_object_get(object, "hosts")), 2);
    assert_int_equal(json_array_size(json_object_get(object, "links")), 3);
    assert_int_equal(json_integer_value(json_object_get(link_status(status, 0), "rate_bits_per_s")), 4000000000);
    assert_int_equal(json_integer_value(json_object_get(link_status(status, 1), "mtu")), 9000);
    assert_string_equal(json_string_value(json_object_get(link_status(status, 2), "name")), "extra");
    json_decref(status);
    for (int host = 0; host < 2; host++) {
        assert_non_null(strstr(qdiscs_of(host, "eth0"), "tbf"));
        assert_non_null(strstr(qdiscs_of(host, "eth0"), "rate 4Gbit"));
        assert_non_null(strstr(qdiscs_of(host, "eth1"), "rate 1Gbit"));
        assert_null(strstr(qdiscs_of(host, "extra"), "tbf"));
    }
    const struct ending *end = program_run("lab", "up", "--name", lab, "--link", "none", NULL);
    assert_int_equal(end->status, 1);
    assert_non_null(strstr(end->err, "up already"));
    lab_do("down");
    assert_int_equal(left_of_lab(), 0);
    lab_do("down");
}

static void data_flows_over_each_link(void **state)
{
    (void)state;
    NEEDS_LABS();
    lab_do("up", "--link", "4gbit", "--link", "1gbit", "--link", "none");
    const struct ending *end =
        program_run("lab", "run", "--name", lab, "-n", "2", self, "transfer", "3", "1000000", NULL);
    assert_int_equal(end->status, 0);
    assert_int_equal(occurrences(end->out, ": 1000000 bytes\n"), 3);
}

static void ranks_see_their_host_only(void **state)
{
    (void)state;
    NEEDS_LABS();
    lab_do("up", "--link", "1gbit,name=left", "--link", "1gbit,name=right");
    static const char script[] = "echo $POLYPATH_LAB_HOST $POLYPATH_LOCAL_RANK/$POLYPATH_LOCAL_SIZE "
                                 "$(ls /sys/class/net)";
    const struct ending *end = program_run("lab", "run", "--name", lab, "-n", "5", "--", "sh", "-c", script, NULL);
    assert_int_equal(end->status, 0);
    static const char *const block[] = {"[0] 0 0/3 left lo right\n", "[1] 0 1/3 left lo right\n",
                                        "[2] 0 2/3 left lo right\n", "[3] 1 0/2 left lo right\n",
                                        "[4] 1 1/2 left lo right\n"};
    for (int i = 0; i < 5; i++)
        assert_non_null(strstr(end->out, block[i]));
    end = program_run("lab", "run", "--name", lab, "--map", "round-robin", "-n", "3", "--", "sh", "-c", script, NULL);
    assert_non_null(strstr(end->out, "[0] 0 0/2"));
    assert_non_null(strstr(end->out, "[1] 1 0/1"));
    assert_non_null(strstr(end->out, "[2] 0 1/2"));
    end = program_run("lab", "run", "--name", lab, "-n", "2", "--", "sh", "-c", "exit $((POLYPATH_RANK * 6))", NULL);
    assert_int_equal(end->status, 6);
}

static void rate_changes_under_a_connection(void **state)
{
    (void)state;
    NEEDS_LABS();
    lab_do("up", "--link", "400mbit");
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%u", STREAM_BYTES);
    const char *const words[] = {"lab", "run", "--name", lab, "-n", "2", self, "transfer", "1", bytes, NULL};
    struct program program = program_start(NULL, words);
    static const char *const rates[] = {"200mbit", "none", "300mbit", "1gbit"};
    for (size_t i = 0; i < 4; i++) {
        usleep(100000);
        lab_do("set", "--link", "eth0", "--rate", rates[i]);
    }
    for (int host = 0; host < 2; host++)
        assert_non_null(strstr(qdiscs_of(host, "eth0"), "rate 1Gbit"));
    assert_int_equal(program_wait(&program)->status, 0);
}

static void a_link_goes_down_and_comes_back(void **state)
{
    (void)state;
    NEEDS_LABS();
    lab_do("up", "--link", "1gbit", "--link", "none");
    lab_do("set", "--link", "eth0", "--down");
    const struct ending *end = program_run("lab", "run", "--name", lab, "-n", "2", "cat",
                                           "/sys/class/net/eth0/operstate", "/sys/class/net/eth1/operstate", NULL);
    assert_int_equal(end->status, 0); /* the ranks still met, over the other one */
    assert_int_equal(occurrences(end->out, "] down\n"), 2);
    assert_int_equal(occurrences(end->out, "] up\n"), 2);
    json_t *status = lab_status();
    assert_true(json_is_true(json_object_get(link_status(status, 0), "down")));
    json_decref(status);
    lab_do("set", "--link", "eth0", "--up");
    end = program_run("lab", "run", "--name", lab, "-n", "2", self, "transfer", "2", "100000", NULL);
    assert_int_equal(end->status, 0);
    char namespace[64];
    snprintf(namespace, sizeof namespace, "pp-%s-1", lab);
    if (!access("/proc/sys/net/ipv6", F_OK))
        assert_non_null(strstr(tool_output("ip", "-n", namespace, "addr", "show", "eth0", NULL), "fd77:"));
}

static void loss_is_a_rule_of_the_packet_filter(void **state)
{
    (void)state;
    NEEDS_LABS();
    if (!tool_output("nft", "--version", NULL))
        skip();
    lab_do("up", "--link", "1gbit,loss=0.5%");
    for (int host = 0; host < 2; host++)
        assert_non_null(strstr(rules_of(host), "numgen random mod 1000000 < 5000"));
    lab_do("set", "--link", "eth0", "--loss", "100%");
    const struct ending *end = program_run("lab", "run", "--name", lab, "-n", "2", self, "datagrams", NULL);
    assert_non_null(strstr(end->out, "came 0 late 0"));
    lab_do("set", "--link", "eth0", "--loss", "0");
    assert_null(strstr(rules_of(0), "numgen"));
    end = program_run("lab", "run", "--name", lab, "-n", "2", self, "datagrams", NULL);
    assert_non_null(strstr(end->out, "came 200 late 0"));
}

static void three_hosts_reach_each_other(void **state)
{
    (void)state;
    NEEDS_LABS();
    lab_do("up", "--hosts", "3", "--link", "1gbit", "--link", "1gbit,delay=1ms,via=relay");
    assert_int_equal(program_run("lab", "run", "--name", lab, "-n", "3", self, "everyone", "3", "2", NULL)->status, 0);
    /* What two hosts send to a third must not arrive faster than its link. */
    char namespace[64];
    snprintf(namespace, sizeof namespace, "pp-%s-sw", lab);
    const char *ports = tool_output("tc", "-n", namespace, "qdisc", "show", NULL);
    assert_int_equal(occurrences(ports, "rate 1Gbit"), 3);
}

/* ------------------------------------------------------------------- relay */

static void relay_keeps_the_order(void **state)
{
    (void)state;
    NEEDS_LABS();
    lab_do("up", "--link", "none,delay=20ms,via=relay");
    const struct ending *end = program_run("lab", "run", "--name", lab, "-n", "2", self, "datagrams", NULL);
    assert_int_equal(end->status, 0);
    assert_non_null(strstr(end->out, "came 200 late 0"));
    assert_true(relay_counter("delayed") >= DATAGRAMS);
    assert_true(relay_counter("forwarded") >= DATAGRAMS);
    assert_int_equal(relay_counter("reordered") + relay_counter("lost") + relay_counter("corrupted"), 0);
    assert_int_equal(
        program_run("lab", "run", "--name", lab, "-n", "2", self, "transfer", "1", "3000000", NULL)->status, 0);
}

static void relay_reorders_loses_and_corrupts(void **state)
{
    (void)state;
    NEEDS_LABS();
    lab_do("up", "--link", "none,delay=20ms,reorder=20%,via=relay");
    const struct ending *end = program_run("lab", "run", "--name", lab, "-n", "2", self, "datagrams", NULL);
    assert_int_equal(end->status, 0);
    assert_non_null(strstr(end->out, "came 200"));
    assert_null(strstr(end->out, "late 0"));
    assert_true(relay_counter("reordered") > 0);
    lab_do("set", "--link", "eth0", "--reorder", "0", "--loss", "50%", "--delay", "1ms");
    end = program_run("lab", "run", "--name", lab, "-n", "2", self, "datagrams", NULL);
    assert_null(strstr(end->out, "came 200"));
    assert_null(strstr(end->out, "came 0"));
    assert_true(relay_counter("lost") > 0);
    /* A checksum finds each single turned bit: TCP gets its data through unharmed. */
    lab_do("set", "--link", "eth0", "--loss", "0", "--corrupt", "2%");
    end = program_run("lab", "run", "--name", lab, "-n", "2", self, "transfer", "1", "2000000", NULL);
    assert_int_equal(end->status, 0);
    assert_true(relay_counter("corrupted") > 0);
}

static void delay_cannot_be_added_to_a_plain_link(void **state)
{
    (void)state;
    NEEDS_LABS();
    lab_do("up", "--link", "1gbit");
    const struct ending *end = program_run("lab", "set", "--name", lab, "--link", "eth0", "--delay", "1ms", NULL);
    assert_int_equal(end->status, 1);
    assert_non_null(strstr(end->err, "delay=0"));
    end = program_run("lab", "set", "--name", lab, "--link", "eth9", "--up", NULL);
    assert_int_equal(end->status, 1);
    assert_non_null(strstr(end->err, "eth0")); /* what there is */
}

/* --------------------------------------------------------- nothing is left */

static void temporary_lab_goes_with_its_ranks(void **state)
{
    (void)state;
    NEEDS_LABS();
    const struct ending *end = program_run("lab", "run", "--name", lab, "--hosts", "2", "--link", "1gbit", "--link",
                                           "none,delay=1ms,via=relay", "-n", "4", self, "everyone", "2", "2", NULL);
    assert_int_equal(end->status, 30); /* two ranks a host want the same port: the first failure comes through */
    assert_int_equal(left_of_lab(), 0);
    end = program_run("lab", "run", "--name", lab, "--link", "1gbit", "-n", "2", self, "everyone", "2", "1", NULL);
    assert_int_equal(end->status, 0);
    assert_int_equal(left_of_lab(), 0);
}

static void killed_launcher_takes_its_temporary_lab_along(void **state)
{
    (void)state;
    NEEDS_LABS();
    char script[100];
    snprintf(script, sizeof script, "sleep 1000 & setsid sleep 1000 & : %s; wait", lab);
    const char *const words[] = {
        "lab", "run", "--name", lab,  "--hosts", "2",    "--link", "1gbit", "--link", "none,delay=1ms,via=relay",
        "-n",  "2",   "--",     "sh", "-c",      script, NULL};
    struct program program = program_start(NULL, words);
    assert_true(processes_become(lab, 5)); /* launcher, guardian, relay, two ranks */
    assert_int_equal(entries_of_lab("/run/netns"), 3);
    kill(program.pid, SIGKILL);
    program_wait(&program);
    assert_true(nothing_is_left());
}

static void up_killed_at_any_moment_leaves_all_or_nothing(void **state)
{
    (void)state;
    NEEDS_LABS();
    char name[80], state_file[120];
    snprintf(name, sizeof name, "--name=%s", lab);
    snprintf(state_file, sizeof state_file, FOLDER "/%s.json", lab);
    const char *const words[] = {
        "lab", "up", name, "--hosts", "3", "--link", "1gbit", "--link", "none,delay=1ms,via=relay", NULL};
    for (unsigned moment_us = 0; moment_us < 200000; moment_us += 15000) {
        struct program program = program_start(NULL, words);
        usleep(moment_us);
        kill(program.pid, SIGKILL);
        program_wait(&program);
        assert_true(processes_become(name, 0)); /* nobody makes or unmakes it; its relay does not have the word */
        if (!access(state_file, F_OK)) {        /* it was done already, so it is whole */
            json_t *status = lab_status();
            assert_int_equal(json_array_size(json_object_get(json_array_get(status, 0), "hosts")), 3);
            assert_int_equal(json_array_size(json_object_get(json_array_get(status, 0), "links")), 2);
            json_decref(status);
            lab_do("down");
        }
        assert_true(nothing_is_left());
    }
}

static void a_failing_up_leaves_nothing(void **state)
{
    (void)state;
    NEEDS_LABS();
    /* The second link cannot be made: a tap's mtu ends earlier than that of a veth. */
    const struct ending *end = program_run("lab", "up", "--name", lab, "--link", "1gbit", "--link",
                                           "none,delay=1ms,via=relay,mtu=65535", NULL);
    assert_int_equal(end->status, 1);
    assert_int_equal(left_of_lab(), 0);
}

static void what_an_earlier_boot_left_is_cleared(void **state)
{
    (void)state;
    NEEDS_LABS();
    char path[100];
    lab_do("up", "--link", "none");
    snprintf(path, sizeof path, FOLDER "/%s.json", lab);
    json_t *json = json_load_file(path, 0, NULL);
    assert_non_null(json);
    json_object_set_new(json, "boot", json_string("00000000-0000-0000-0000-000000000000"));
    assert_int_equal(json_dump_file(json, path, 0), 0);
    json_decref(json);
    assert_int_equal(program_run("lab", "status", NULL)->status, 0);
    assert_int_equal(left_of_lab(), 0);
}

static void an_unreadable_state_file_can_be_removed(void **state)
{
    (void)state;
    NEEDS_LABS();
    char path[100];
    lab_do("up", "--link", "none");
    snprintf(path, sizeof path, FOLDER "/%s.json", lab);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"name\": ", file);
    fclose(file);
    const struct ending *end = program_run("lab", "status", "--name", lab, NULL);
    assert_int_equal(end->status, 1);
    assert_non_null(strstr(end->err, "lab down"));
    lab_do("down");
    assert_int_equal(left_of_lab(), 0);
}

static void down_ends_what_runs_inside(void **state)
{
    (void)state;
    NEEDS_LABS();
    lab_do("up", "--link", "1gbit");
    const char *const words[] = {"lab", "run", "--name", lab, "-n", "2", "sleep", "1000", NULL};
    struct program program = program_start(NULL, words);
    json_t *status = NULL;
    for (int tries = 0; tries < 500; tries++) {
        json_decref(status);
        status = lab_status();
        json_t *host = json_array_get(json_object_get(json_array_get(status, 0), "hosts"), 1);
        if (json_array_size(json_object_get(host, "processes")) == 1)
            break;
        usleep(10000);
    }
    json_t *host = json_array_get(json_object_get(json_array_get(status, 0), "hosts"), 1);
    assert_int_equal(json_array_size(json_object_get(host, "processes")), 1);
    json_decref(status);
    lab_do("down");
    assert_int_not_equal(program_wait(&program)->status, 0);
    assert_true(nothing_is_left());
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return rank_main(argv);
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    snprintf(lab, sizeof lab, "test%d", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_specs_are_usage_errors),
        cmocka_unit_test_teardown(without_a_lab_errors_say_how_to_get_one, down),
        cmocka_unit_test_teardown(up_status_down, down),
        cmocka_unit_test_teardown(data_flows_over_each_link, down),
        cmocka_unit_test_teardown(ranks_see_their_host_only, down),
        cmocka_unit_test_teardown(rate_changes_under_a_connection, down),
        cmocka_unit_test_teardown(a_link_goes_down_and_comes_back, down),
        cmocka_unit_test_teardown(loss_is_a_rule_of_the_packet_filter, down),
        cmocka_unit_test_teardown(three_hosts_reach_each_other, down),
        cmocka_unit_test_teardown(relay_keeps_the_order, down),
        cmocka_unit_test_teardown(relay_reorders_loses_and_corrupts, down),
        cmocka_unit_test_teardown(delay_cannot_be_added_to_a_plain_link, down),
        cmocka_unit_test_teardown(temporary_lab_goes_with_its_ranks, down),
        cmocka_unit_test_teardown(killed_launcher_takes_its_temporary_lab_along, down),
        cmocka_unit_test_teardown(up_killed_at_any_moment_leaves_all_or_nothing, down),
        cmocka_unit_test_teardown(a_failing_up_leaves_nothing, down),
        cmocka_unit_test_teardown(what_an_earlier_boot_left_is_cleared, down),
        cmocka_unit_test_teardown(an_unreadable_state_file_can_be_removed, down),
        cmocka_unit_test_teardown(down_ends_what_runs_inside, down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
