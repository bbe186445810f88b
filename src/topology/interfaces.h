/*
 * The network interfaces of this host that may carry data. Reads the kernel
 * (getifaddrs, sysfs); opens no connection.
 */
#ifndef TOPOLOGY_INTERFACES_H
#define TOPOLOGY_INTERFACES_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "polypath/polypath.h"

#define INTERFACES_MAX 16

struct interface {
    char name[IF_NAMESIZE];
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;           /* port 0 */
    uint8_t prefix_bits; /* length of the subnet's prefix */
    bool loopback;
    uint32_t speed_mbps; /* what the driver says; 0 = it does not */
};

/*
 * Interfaces that are up and pass the filter (a comma list of names, or
 * "^a,b" to leave some out; an entry matches as a prefix if it ends in '*').
 * family: 0, 4 or 6. One address each: IPv4 before global IPv6 before
 * link-local IPv6. With an empty filter loopback and the usual virtual bridges
 * (docker*, br-*, virbr*, veth*@docker...) are left out; a filter that names
 * "lo" brings it in. Sorted by name. Unknown names in the filter are an error
 * that lists what there is.
 */
polypath_result_t interfaces_find(const char *filter, int family, struct interface found[INTERFACES_MAX], int *count);

/* The loopback interface. */
polypath_result_t interfaces_loopback(int family, struct interface *found);

/* Whether two addresses are in one subnet (of a's prefix). */
bool interfaces_same_subnet(const struct interface *a, const struct interface *b);

/* "10.0.0.1" or "fe80::1%eth0"; text has room for 64. */
void interfaces_format(const struct interface *i, char *text);

#endif
