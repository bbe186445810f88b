/* The options that describe a lab, shared by `lab up` and `lab run`. */
#ifndef CLI_LAB_OPTIONS_H
#define CLI_LAB_OPTIONS_H

#include <argp.h>

#include "frontends/cli/lab.h"

enum { LAB_KEY_NAME = 0x300, LAB_KEY_HOSTS, LAB_KEY_LINK };

/* --name, --hosts, --link; the input is a zeroed struct lab. hosts stays 0 and the name "" where not given. */
extern const struct argp lab_argp;

#define LAB_SPEC_HELP                                                                                                  \
    "\vSPEC is RATE or none, with any of delay=TIME, loss=SHARE, reorder=SHARE, corrupt=SHARE, mtu=BYTES, name=NAME "  \
    "and via=relay|netem behind it, for example 4gbit or 1gbit,delay=1ms,loss=0.1%. The links are called eth0, "       \
    "eth1, ... unless named."

/* For guard_start(): removes the lab of that name, alone in the world. */
void lab_undo(const char *name);

#endif
