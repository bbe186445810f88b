/*
 * The interfaces of this host: getifaddrs for names and addresses, sysfs for
 * speeds, and the filter of setting `interfaces`. Knows nothing of sockets,
 * ranks or paths.
 */
#include "topology/interfaces.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "system/error.h"
#include "system/log.h"

/* Left out by an empty filter: they lead to containers or virtual machines of this host, not to other hosts. */
static const char *const virtual_names[] = {"docker*", "br-*",      "virbr*", "cni*",   "flannel*", "cali*",
                                            "podman*", "kube-ipvs", "lxcbr*", "lxdbr*", "vmnet*",   "vboxnet*"};

struct filter {
    bool leave_out;   /* began with '^' */
    const char *text; /* the comma list behind it */
};

static bool matches(const char *entry, size_t length, const char *name)
{
    if (length && entry[length - 1] == '*')
        return !strncmp(entry, name, length - 1);
    return strlen(name) == length && !strncmp(entry, name, length);
}

/* Steps over the comma list: sets *entry and returns its length, 0 at the end. Blanks around names are allowed. */
static size_t next_entry(const char **list, const char **entry)
{
    const char *p = *list + strspn(*list, ", \t");
    size_t length = strcspn(p, ", \t");
    *entry = p;
    *list = p + length;
    return length;
}

static bool listed(const char *list, const char *name)
{
    const char *entry;
    for (size_t length; (length = next_entry(&list, &entry));)
        if (matches(entry, length, name))
            return true;
    return false;
}

/* A veth that hangs on a bridge is the host's end of a container's cable; one without a master is a real way out. */
static bool has_master(const char *name)
{
    char path[64 + IF_NAMESIZE];
    snprintf(path, sizeof path, "/sys/class/net/%s/master", name);
    return access(path, F_OK) == 0;
}

static bool is_virtual(const char *name)
{
    for (size_t i = 0; i < sizeof virtual_names / sizeof virtual_names[0]; i++)
        if (matches(virtual_names[i], strlen(virtual_names[i]), name))
            return true;
    return !strncmp(name, "veth", 4) && has_master(name);
}

static bool passes(const struct filter *filter, const char *name, bool loopback)
{
    if (!filter->leave_out && *filter->text)
        return listed(filter->text, name);
    if (filter->leave_out && listed(filter->text, name))
        return false;
    return !loopback && !is_virtual(name);
}

static uint8_t prefix_of(const struct sockaddr *mask)
{
    const uint8_t *bytes;
    size_t n;
    if (!mask)
        return 0;
    if (mask->sa_family == AF_INET6) {
        bytes = ((const struct sockaddr_in6 *)(const void *)mask)->sin6_addr.s6_addr;
        n = 16;
    } else {
        bytes = (const uint8_t *)&((const struct sockaddr_in *)(const void *)mask)->sin_addr;
        n = 4;
    }
    uint8_t bits = 0;
    for (size_t i = 0; i < n; i++)
        for (int b = 7; b >= 0; b--) {
            if (!(bytes[i] >> b & 1))
                return bits;
            bits++;
        }
    return bits;
}

static uint32_t speed_of(const char *name)
{
    char path[64 + IF_NAMESIZE];
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", name);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    long speed = 0;
    int got = fscanf(file, "%ld", &speed); /* the read itself fails with EINVAL where the driver has no answer */
    fclose(file);
    return got == 1 && speed > 0 && speed <= 100000000 ? (uint32_t)speed : 0;
}

/* 0 = best: IPv4, then global IPv6, then link-local IPv6; -1 = not an address we can use. */
static int preference(const struct sockaddr *address, int family)
{
    if (!address)
        return -1;
    if (address->sa_family == AF_INET)
        return family == 6 ? -1 : 0;
    if (address->sa_family != AF_INET6 || family == 4)
        return -1;
    return IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr) ? 2 : 1;
}

static void fill(struct interface *i, const struct ifaddrs *from)
{
    memset(i, 0, sizeof *i);
    snprintf(i->name, sizeof i->name, "%s", from->ifa_name);
    if (from->ifa_addr->sa_family == AF_INET)
        memcpy(&i->address.v4, from->ifa_addr, sizeof i->address.v4);
    else
        memcpy(&i->address.v6, from->ifa_addr, sizeof i->address.v6);
    i->prefix_bits = prefix_of(from->ifa_netmask);
    i->loopback = from->ifa_flags & IFF_LOOPBACK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct interface *)a)->name, ((const struct interface *)b)->name);
}

/* All names, each once, for error messages. */
static void list_names(const struct ifaddrs *all, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (const struct ifaddrs *a = all; a; a = a->ifa_next) {
        bool seen = false;
        for (const struct ifaddrs *b = all; b != a && !seen; b = b->ifa_next)
            seen = !strcmp(a->ifa_name, b->ifa_name);
        if (seen || used >= bytes)
            continue;
        int n = snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", a->ifa_name);
        used += n > 0 ? (size_t)n : 0;
    }
}

/* Every entry without '*' must exist; one that exists but was not taken is worth a line in the log. */
static polypath_result_t check_entries(const struct filter *filter, const struct ifaddrs *all,
                                       const struct interface *found, int count, int family)
{
    const char *list = filter->text, *entry;
    for (size_t length; (length = next_entry(&list, &entry));) {
        bool exists = entry[length - 1] == '*', taken = filter->leave_out || exists;
        for (const struct ifaddrs *a = all; a && !exists; a = a->ifa_next)
            exists = matches(entry, length, a->ifa_name);
        if (!exists) {
            char names[512];
            list_names(all, names, sizeof names);
            return error_set(POLYPATH_ERROR_ARGUMENT, "there is no network interface %.*s; there are: %s", (int)length,
                             entry, names);
        }
        for (int i = 0; i < count && !taken; i++)
            taken = matches(entry, length, found[i].name);
        if (!taken)
            log_line(LOG_LEVEL_WARN, "network interface %.*s is left out: it is down or has no %saddress", (int)length,
                     entry,
                     family == 4   ? "IPv4 "
                     : family == 6 ? "IPv6 "
                                   : "");
    }
    return POLYPATH_SUCCESS;
}

/*
 * Takes or improves one interface. Returns false if there was no room. `rank`
 * holds the preference of what found[] has so far.
 */
static bool take(const struct ifaddrs *a, int preferred, struct interface *found, int *rank, int *count)
{
    for (int i = 0; i < *count; i++) {
        if (strcmp(found[i].name, a->ifa_name))
            continue;
        if (preferred < rank[i]) {
            fill(&found[i], a);
            rank[i] = preferred;
        }
        return true;
    }
    if (*count == INTERFACES_MAX)
        return false;
    fill(&found[*count], a);
    rank[(*count)++] = preferred;
    return true;
}

polypath_result_t interfaces_find(const char *filter, int family, struct interface found[INTERFACES_MAX], int *count)
{
    *count = 0;
    if (family != 0 && family != 4 && family != 6)
        return error_set(POLYPATH_ERROR_ARGUMENT, "IP family %d: expected 0, 4 or 6", family);
    if (!filter)
        filter = "";
    filter += strspn(filter, " \t");
    struct filter wanted = {*filter == '^', *filter == '^' ? filter + 1 : filter};
    struct ifaddrs *all;
    if (getifaddrs(&all))
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot list the network interfaces: %s%s", strerror(errno),
                         error_advice(errno));
    int rank[INTERFACES_MAX];
    bool room = true;
    for (const struct ifaddrs *a = all; a; a = a->ifa_next) {
        int preferred = preference(a->ifa_addr, family);
        if (preferred < 0 || !(a->ifa_flags & IFF_UP) || !(a->ifa_flags & IFF_RUNNING) ||
            !passes(&wanted, a->ifa_name, a->ifa_flags & IFF_LOOPBACK))
            continue;
        room = take(a, preferred, found, rank, count) && room;
    }
    if (!room)
        log_line(LOG_LEVEL_WARN, "more than %d network interfaces; using %d of them (setting interfaces chooses)",
                 INTERFACES_MAX, INTERFACES_MAX);
    qsort(found, (size_t)*count, sizeof *found, by_name);
    for (int i = 0; i < *count; i++)
        found[i].speed_mbps = found[i].loopback ? 0 : speed_of(found[i].name);
    polypath_result_t result = check_entries(&wanted, all, found, *count, family);
    freeifaddrs(all);
    if (result != POLYPATH_SUCCESS)
        *count = 0;
    return result;
}

polypath_result_t interfaces_loopback(int family, struct interface *found)
{
    struct ifaddrs *all;
    if (getifaddrs(&all))
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot list the network interfaces: %s%s", strerror(errno),
                         error_advice(errno));
    int best = -1;
    for (const struct ifaddrs *a = all; a; a = a->ifa_next) {
        int preferred = preference(a->ifa_addr, family);
        if (preferred < 0 || !(a->ifa_flags & IFF_LOOPBACK) || !(a->ifa_flags & IFF_UP))
            continue;
        if (best < 0 || preferred < best) {
            fill(found, a);
            best = preferred;
        }
    }
    freeifaddrs(all);
    if (best < 0)
        return error_set(POLYPATH_ERROR_SYSTEM, "no loopback interface with an %s address is up",
                         family == 6   ? "IPv6"
                         : family == 4 ? "IPv4"
                                       : "IP");
    return POLYPATH_SUCCESS;
}

bool interfaces_same_subnet(const struct interface *a, const struct interface *b)
{
    if (a->address.any.sa_family != b->address.any.sa_family)
        return false;
    const uint8_t *x, *y;
    unsigned most;
    if (a->address.any.sa_family == AF_INET6) {
        x = a->address.v6.sin6_addr.s6_addr;
        y = b->address.v6.sin6_addr.s6_addr;
        most = 128;
    } else {
        x = (const uint8_t *)&a->address.v4.sin_addr;
        y = (const uint8_t *)&b->address.v4.sin_addr;
        most = 32;
    }
    unsigned bits = a->prefix_bits < most ? a->prefix_bits : most;
    if (memcmp(x, y, bits / 8))
        return false;
    unsigned rest = bits % 8;
    return !rest || (x[bits / 8] ^ y[bits / 8]) >> (8 - rest) == 0;
}

void interfaces_format(const struct interface *i, char *text)
{
    char address[INET6_ADDRSTRLEN] = "?";
    if (i->address.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &i->address.v4.sin_addr, address, sizeof address);
        snprintf(text, 64, "%s", address);
        return;
    }
    inet_ntop(AF_INET6, &i->address.v6.sin6_addr, address, sizeof address);
    if (IN6_IS_ADDR_LINKLOCAL(&i->address.v6.sin6_addr))
        snprintf(text, 64, "%s%%%s", address, i->name);
    else
        snprintf(text, 64, "%s", address);
}
