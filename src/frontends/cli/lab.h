/*
 * What a lab is: hosts (network namespaces) joined by links (an interface in
 * each host). Data and names only; lab_spec parses it, lab_state keeps it in a
 * file, lab_net makes it real.
 */
#ifndef CLI_LAB_H
#define CLI_LAB_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "polypath/polypath.h"

#define LAB_HOSTS_MAX 64
#define LAB_LINKS_MAX 16
#define LAB_NAME_MAX 40
#define LAB_NAME_DEFAULT "default"
#define LAB_SWITCH (-1) /* in place of a host's number: the namespace of bridges and relays */

/* What carries a link's packets between the hosts. */
enum lab_means {
    LAB_MEANS_VETH,  /* a veth pair, or veths into a bridge */
    LAB_MEANS_NETEM, /* the same with the kernel's emulator */
    LAB_MEANS_RELAY  /* taps, and a process that forwards between them */
};

struct lab_link {
    char name[IF_NAMESIZE];
    uint64_t rate_bits; /* per second; 0: not shaped */
    uint64_t delay_ns;  /* one way */
    uint32_t loss_ppm, reorder_ppm, corrupt_ppm;
    int mtu;
    bool impaired;     /* delay, reorder or corrupt was asked for, be it 0, so that it can be set later */
    bool choose, down; /* choose: between netem and relay by what the kernel has */
    enum lab_means means;
    pid_t relay; /* 0: none */
};

struct lab {
    char name[LAB_NAME_MAX + 1];
    int hosts, link_count;
    struct lab_link links[LAB_LINKS_MAX];
    bool building;  /* its maker has not finished; seen by another it means a crash */
    bool temporary; /* lives as long as its owner */
    pid_t owner;
    uint64_t owner_start; /* the owner's start time, as a process number may come again */
    char boot[40];        /* kernel's boot id */
    bool ipv6;
};

/* "pp-NAME-0", "pp-NAME-sw"; text has room for LAB_NAMESPACE_BYTES. */
#define LAB_NAMESPACE_BYTES (LAB_NAME_MAX + 24)
static inline const char *lab_namespace(char *text, const char *lab, int host)
{
    if (host == LAB_SWITCH)
        snprintf(text, LAB_NAMESPACE_BYTES, "pp-%s-sw", lab);
    else
        snprintf(text, LAB_NAMESPACE_BYTES, "pp-%s-%d", lab, host);
    return text;
}

/* The address of a host on a link, without the prefix length (/24 and /64). Labs do not see each other, so may be
 * alike. */
#define LAB_ADDRESS_BYTES 48
static inline const char *lab_address(char *text, int link, int host, bool ipv6)
{
    if (ipv6)
        snprintf(text, LAB_ADDRESS_BYTES, "fd77:7070:6c61:%x::%x", link + 1, host + 1);
    else
        snprintf(text, LAB_ADDRESS_BYTES, "10.%d.0.%d", 77 + link, host + 1);
    return text;
}

/* Whether the lab has a switch namespace. */
static inline bool lab_has_switch(const struct lab *lab)
{
    bool relay = false;
    for (int i = 0; i < lab->link_count; i++)
        relay |= lab->links[i].means == LAB_MEANS_RELAY;
    return relay || lab->hosts > 2;
}

/* The sub-commands of `polypath lab` that have a file of their own. */
int lab_run_main(int argc, char **argv);
int lab_status_main(int argc, char **argv);
int lab_relay_main(int argc, char **argv);

/* Prints the one line for those who are not root; true if they are. */
bool lab_is_root(const char *command);

#endif
