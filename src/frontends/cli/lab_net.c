/*
 * Namespaces, interfaces and shaping. See lab_net.h. The kernel is told by ip
 * and tc (iproute2) and nft (nftables, only for loss on plain links).
 */
#include "frontends/cli/lab_net.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontends/cli/command.h"
#include "frontends/cli/lab_relay.h"
#include "frontends/cli/lab_spec.h"
#include "frontends/cli/lab_state.h"
#include "system/error.h"

#define NETNS_FOLDER "/run/netns"
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        polypath_result_t result_ = (call);                                                                            \
        if (result_)                                                                                                   \
            return result_;                                                                                            \
    } while (0)

/* -------------------------------------------------------------- namespaces */

polypath_result_t namespace_enter(const char *namespace, int *back)
{
    char path[160];
    snprintf(path, sizeof path, NETNS_FOLDER "/%s", namespace);
    *back = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*back >= 0 && fd >= 0 && !setns(fd, CLONE_NEWNET)) {
        close(fd);
        return POLYPATH_SUCCESS;
    }
    int reason = errno;
    if (*back >= 0)
        close(*back);
    if (fd >= 0)
        close(fd);
    return error_set(POLYPATH_ERROR_SYSTEM, "cannot enter the network namespace %s: %s", namespace, strerror(reason));
}

void namespace_leave(int back)
{
    if (setns(back, CLONE_NEWNET)) /* cannot fail for our own one, and going on in the wrong one would do harm */
        abort();
    close(back);
}

/* Settings of the namespace that this thread is in; those that a kernel does not have are not needed there. */
static void write_sysctl(const char *name, const char *value)
{
    char path[160];
    snprintf(path, sizeof path, "/proc/sys/net/%s", name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t wrote = write(fd, value, strlen(value));
    (void)wrote;
    close(fd);
}

static polypath_result_t make_namespace(const char *name, bool is_switch)
{
    int back;
    TRY(command_run("ip", "netns", "add", name, NULL));
    TRY(namespace_enter(name, &back));
    if (is_switch) { /* bridges are to forward, not to speak */
        write_sysctl("ipv6/conf/default/disable_ipv6", "1");
    } else {
        /* Addresses usable at once, and still there after the link has been down. */
        write_sysctl("ipv6/conf/default/accept_dad", "0");
        write_sysctl("ipv6/conf/all/keep_addr_on_down", "1");
        write_sysctl("ipv6/conf/default/keep_addr_on_down", "1");
    }
    namespace_leave(back);
    return command_run("ip", "-n", name, "link", "set", "lo", "up", NULL);
}

/* ----------------------------------------------------------------- shaping */

/* tbf's bucket: half a millisecond of the rate, but no smaller than a large segment (bench showed 128 KiB at 1 Gbit/s).
 */
static uint64_t bucket_bytes(uint64_t rate_bits)
{
    uint64_t bytes = rate_bits / 8 / 2000, least = rate_bits >= 500000000 ? 128 << 10 : 64 << 10;
    return bytes > least ? bytes : least;
}

static polypath_result_t shape_tbf(const char *namespace, const char *device, uint64_t rate_bits)
{
    char rate[32], burst[32], qdiscs[512];
    if (!rate_bits) {
        TRY(command_read(qdiscs, sizeof qdiscs, "tc", "-n", namespace, "qdisc", "show", "dev", device, "root", NULL));
        if (!strstr(qdiscs, "qdisc tbf"))
            return POLYPATH_SUCCESS;
        return command_run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root", NULL);
    }
    snprintf(rate, sizeof rate, "%llubit", (unsigned long long)rate_bits);
    snprintf(burst, sizeof burst, "%llub", (unsigned long long)bucket_bytes(rate_bits));
    /* replace changes a tbf in place: what is queued stays */
    return command_run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst",
                       burst, "latency", "10ms", NULL);
}

/* The kernel's emulator does rate and impairments in one. */
static polypath_result_t shape_netem(const char *namespace, const struct lab_link *link)
{
    char delay[32], loss[32], reorder[32], corrupt[32], rate[32];
    snprintf(delay, sizeof delay, "%lluus", (unsigned long long)(link->delay_ns / 1000));
    snprintf(rate, sizeof rate, "%llubit", (unsigned long long)link->rate_bits);
    const char *tail[12];
    size_t count = 0;
    if (link->loss_ppm) {
        tail[count++] = "loss";
        tail[count++] = lab_format_percent(loss, link->loss_ppm);
    }
    if (link->corrupt_ppm) {
        tail[count++] = "corrupt";
        tail[count++] = lab_format_percent(corrupt, link->corrupt_ppm);
    }
    if (link->reorder_ppm) {
        tail[count++] = "reorder";
        tail[count++] = lab_format_percent(reorder, link->reorder_ppm);
    }
    if (link->rate_bits) {
        tail[count++] = "rate";
        tail[count++] = rate;
    }
    while (count < 8)
        tail[count++] = NULL;
    return command_run("tc", "-n", namespace, "qdisc", "replace", "dev", link->name, "root", "netem", "limit", "100000",
                       "delay", delay, tail[0], tail[1], tail[2], tail[3], tail[4], tail[5], tail[6], tail[7], NULL);
}

/* Loss of what arrives, by a random number per packet; a table per link, replaced as a whole. */
static polypath_result_t set_loss(const char *namespace, const struct lab_link *link, uint32_t old_ppm)
{
    char rules[600];
    const char *name = link->name;
    if (!link->loss_ppm && !old_ppm)
        return POLYPATH_SUCCESS; /* nft is not needed where no loss is asked for */
    char chosen[48] = "";        /* nft has no "< 1000000": all of them need no choice */
    if (link->loss_ppm < 1000000)
        snprintf(chosen, sizeof chosen, "numgen random mod 1000000 < %u ", (unsigned)link->loss_ppm);
    int used = snprintf(rules, sizeof rules, "add table inet polypath-%s; delete table inet polypath-%s;", name, name);
    if (link->loss_ppm)
        snprintf(rules + used, sizeof rules - (size_t)used,
                 " add table inet polypath-%s; add chain inet polypath-%s loss { type filter hook prerouting priority "
                 "-300; }; add rule inet polypath-%s loss iifname \"%s\" %scounter drop",
                 name, name, name, name, chosen);
    int back;
    TRY(namespace_enter(namespace, &back));
    polypath_result_t result = command_run("nft", rules, NULL);
    namespace_leave(back);
    /* The other hosts lose what we send: as packets of the wire, not as segments of 64 KiB. 65535 is the default. */
    return result ? result
                  : command_run("ip", "-n", namespace, "link", "set", "dev", name, "gso_max_segs",
                                link->loss_ppm ? "1" : "65535", NULL);
}

/* The name of the switch's end of a host's veth. */
static const char *port_name(char name[IF_NAMESIZE], int link, int host)
{
    snprintf(name, IF_NAMESIZE, "l%uh%u", (unsigned)link % 1000, (unsigned)host % 1000); /* both are small */
    return name;
}

/* Rate, loss and impairments of one host's interface, given what they were. */
static polypath_result_t shape(const struct lab *lab, int index, const struct lab_link *link, int host,
                               uint32_t old_loss)
{
    char namespace[LAB_NAMESPACE_BYTES], port[IF_NAMESIZE];
    lab_namespace(namespace, lab->name, host);
    if (link->means == LAB_MEANS_NETEM)
        return shape_netem(namespace, link);
    TRY(shape_tbf(namespace, link->name, link->rate_bits));
    if (link->means == LAB_MEANS_RELAY)
        return POLYPATH_SUCCESS; /* the relay does the rest */
    TRY(set_loss(namespace, link, old_loss));
    if (lab->hosts == 2)
        return POLYPATH_SUCCESS;
    /* Several hosts can send to one: its interface must not receive faster than it could in the world. */
    return shape_tbf(lab_namespace(namespace, lab->name, LAB_SWITCH), port_name(port, index, host), link->rate_bits);
}

/* ---------------------------------------------------------------- creating */

static polypath_result_t make_pair(const struct lab *lab, const struct lab_link *link)
{
    char a[LAB_NAMESPACE_BYTES], b[LAB_NAMESPACE_BYTES], mtu[16];
    snprintf(mtu, sizeof mtu, "%d", link->mtu);
    lab_namespace(a, lab->name, 0);
    lab_namespace(b, lab->name, 1);
    return command_run("ip", "link", "add", link->name, "netns", a, "mtu", mtu, "type", "veth", "peer", "name",
                       link->name, "netns", b, "mtu", mtu, NULL);
}

static polypath_result_t make_bridge(const struct lab *lab, int index, const struct lab_link *link)
{
    char bridge[IF_NAMESIZE], port[IF_NAMESIZE], center[LAB_NAMESPACE_BYTES], host[LAB_NAMESPACE_BYTES], mtu[16];
    snprintf(mtu, sizeof mtu, "%d", link->mtu);
    snprintf(bridge, sizeof bridge, "br%d", index);
    lab_namespace(center, lab->name, LAB_SWITCH);
    TRY(command_run("ip", "-n", center, "link", "add", bridge, "mtu", mtu, "type", "bridge", "stp_state", "0",
                    "forward_delay", "0", "mcast_snooping", "0", NULL));
    for (int h = 0; h < lab->hosts; h++) {
        lab_namespace(host, lab->name, h);
        port_name(port, index, h);
        TRY(command_run("ip", "link", "add", link->name, "netns", host, "mtu", mtu, "type", "veth", "peer", "name",
                        port, "netns", center, "mtu", mtu, NULL));
        TRY(command_run("ip", "-n", center, "link", "set", port, "master", bridge, "up", NULL));
    }
    return command_run("ip", "-n", center, "link", "set", bridge, "up", NULL);
}

static polypath_result_t address_host(const struct lab *lab, int index, const struct lab_link *link, int host)
{
    char namespace[LAB_NAMESPACE_BYTES], address[LAB_ADDRESS_BYTES], full[LAB_ADDRESS_BYTES + 8];
    lab_namespace(namespace, lab->name, host);
    TRY(command_run("ip", "-n", namespace, "link", "set", link->name, "up", NULL));
    snprintf(full, sizeof full, "%s/24", lab_address(address, index, host, false));
    TRY(command_run("ip", "-n", namespace, "addr", "add", full, "dev", link->name, NULL));
    if (!lab->ipv6)
        return POLYPATH_SUCCESS;
    snprintf(full, sizeof full, "%s/64", lab_address(address, index, host, true));
    return command_run("ip", "-n", namespace, "-6", "addr", "add", full, "dev", link->name, "nodad", NULL);
}

static polypath_result_t make_link(struct lab *lab, int index)
{
    struct lab_link *link = &lab->links[index];
    if (link->means == LAB_MEANS_RELAY)
        TRY(relay_start(lab, index));
    else
        TRY(lab->hosts == 2 ? make_pair(lab, link) : make_bridge(lab, index, link));
    for (int h = 0; h < lab->hosts; h++) {
        TRY(address_host(lab, index, link, h));
        TRY(shape(lab, index, link, h, 0));
    }
    return POLYPATH_SUCCESS;
}

/* Tried rather than guessed: a kernel may have the emulator built in, as a module, or not at all. */
static bool kernel_has_netem(const char *namespace)
{
    return !command_run("tc", "-n", namespace, "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms",
                        NULL) &&
           !command_run("tc", "-n", namespace, "qdisc", "del", "dev", "lo", "root", NULL);
}

static void choose_means(struct lab *lab, const char *namespace)
{
    int netem = -1;
    for (int i = 0; i < lab->link_count; i++) {
        struct lab_link *link = &lab->links[i];
        if (!link->impaired || !link->choose)
            continue;
        if (netem < 0)
            netem = kernel_has_netem(namespace);
        link->means = netem ? LAB_MEANS_NETEM : LAB_MEANS_RELAY;
    }
}

static polypath_result_t build(struct lab *lab)
{
    char namespace[LAB_NAMESPACE_BYTES];
    for (int h = 0; h < lab->hosts; h++)
        TRY(make_namespace(lab_namespace(namespace, lab->name, h), false));
    choose_means(lab, lab_namespace(namespace, lab->name, 0));
    if (lab_has_switch(lab))
        TRY(make_namespace(lab_namespace(namespace, lab->name, LAB_SWITCH), true));
    TRY(lab_save(lab)); /* the relays read it */
    for (int i = 0; i < lab->link_count; i++)
        TRY(make_link(lab, i));
    return POLYPATH_SUCCESS;
}

polypath_result_t lab_create(struct lab *lab)
{
    lab_sign(lab);
    lab->building = true;
    lab->ipv6 = !access("/proc/sys/net/ipv6", F_OK);
    TRY(lab_save(lab));
    polypath_result_t result = build(lab);
    if (!result) {
        lab->building = false;
        result = lab_save(lab);
    }
    if (result) {
        char why[ERROR_TEXT_BYTES]; /* cleaning up has errors of its own */
        snprintf(why, sizeof why, "%s", error_text());
        lab_destroy(lab->name, false);
        error_set(result, "%s", why);
    }
    return result;
}

/* ---------------------------------------------------------------- changing */

polypath_result_t lab_change(struct lab *lab, int index, const struct lab_link *wanted)
{
    struct lab_link *link = &lab->links[index];
    char namespace[LAB_NAMESPACE_BYTES];
    TRY(lab_check_link(wanted));
    if (!link->impaired && (wanted->delay_ns || wanted->reorder_ppm || wanted->corrupt_ppm))
        return error_set(POLYPATH_ERROR_UNSUPPORTED,
                         "link %s was made without delay, reorder or corrupt, and cannot get them while it runs; give "
                         "it delay=0 at `lab up' to have them ready",
                         link->name);
    for (int h = 0; h < lab->hosts; h++) {
        TRY(shape(lab, index, wanted, h, link->loss_ppm));
        if (wanted->down != link->down)
            TRY(command_run("ip", "-n", lab_namespace(namespace, lab->name, h), "link", "set", link->name,
                            wanted->down ? "down" : "up", NULL));
    }
    *link = *wanted;
    TRY(lab_save(lab));
    return link->means == LAB_MEANS_RELAY ? relay_reload(lab, index) : POLYPATH_SUCCESS;
}

/* ---------------------------------------------------------------- removing */

void lab_each_process(const char *namespace, void (*visit)(void *context, pid_t pid), void *context)
{
    char path[400];
    struct stat wanted, seen;
    snprintf(path, sizeof path, NETNS_FOLDER "/%s", namespace);
    DIR *processes = stat(path, &wanted) ? NULL : opendir("/proc");
    if (!processes)
        return;
    for (struct dirent *entry; (entry = readdir(processes));) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%s/ns/net", entry->d_name);
        if (!stat(path, &seen) && seen.st_dev == wanted.st_dev && seen.st_ino == wanted.st_ino)
            visit(context, (pid_t)atoi(entry->d_name));
    }
    closedir(processes);
}

struct killing {
    int signal, found;
};

static void kill_one(void *context, pid_t pid)
{
    struct killing *killing = context;
    if (pid == getpid()) /* in it for a moment, to make something */
        return;
    killing->found++;
    kill(pid, killing->signal);
}

/* Until no process is left; those that start new ones are caught by going round again. */
static bool end_processes(const char *namespace, bool gently)
{
    for (int round = 0; round < 400; round++) {
        struct killing killing = {.signal = gently && round < 50 ? (round ? 0 : SIGTERM) : SIGKILL};
        lab_each_process(namespace, kill_one, &killing);
        if (!killing.found)
            return true;
        usleep(10000);
    }
    return false;
}

/* "0", "17" or "sw" behind "pp-NAME-". */
static bool is_namespace_of(const char *entry, const char *lab)
{
    char prefix[LAB_NAMESPACE_BYTES];
    size_t length = (size_t)snprintf(prefix, sizeof prefix, "pp-%s-", lab);
    if (strncmp(entry, prefix, length))
        return false;
    const char *rest = entry + length;
    return !strcmp(rest, "sw") || (*rest && strspn(rest, "0123456789") == strlen(rest));
}

static bool remove_namespace(const char *namespace, bool gently)
{
    char path[400];
    snprintf(path, sizeof path, NETNS_FOLDER "/%s", namespace);
    bool ended = end_processes(namespace, gently);
    umount2(path, MNT_DETACH); /* the file may be there without the mount, after a crash in between */
    return (!unlink(path) || errno == ENOENT) && ended;
}

bool lab_destroy(const char *name, bool gently)
{
    bool gone = true;
    DIR *folder = opendir(NETNS_FOLDER);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (is_namespace_of(entry->d_name, name))
            gone &= remove_namespace(entry->d_name, gently);
    if (folder)
        closedir(folder);
    lab_forget(name);
    return gone;
}

void lab_sweep(void)
{
    struct lab_names names = lab_list();
    for (int i = 0; i < names.count; i++) {
        struct lab lab;
        if (!lab_load(names.names[i], &lab) && lab_is_stale(&lab))
            lab_destroy(lab.name, false);
    }
    lab_names_free(&names);
}
