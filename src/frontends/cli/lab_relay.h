/*
 * The relay: a process that carries the packets of one link between taps in
 * the hosts, and delays, reorders, corrupts and loses them on the way. For
 * kernels without an emulator of their own.
 */
#ifndef CLI_LAB_RELAY_H
#define CLI_LAB_RELAY_H

#include "frontends/cli/lab.h"

/* What it counts; mapped from lab_relay_file(). Written by the relay, read by anyone; each field for itself. */
struct relay_counters {
    _Atomic uint64_t forwarded, delayed, reordered, corrupted, lost, dropped; /* dropped: queue full or host down */
};

/* Starts the relay of a link, which makes its taps; returns when they are there, and sets the link's `relay`. */
polypath_result_t relay_start(struct lab *lab, int index);

/* Has it read the state file again. */
polypath_result_t relay_reload(const struct lab *lab, int index);

/* False if there are none. */
bool relay_read_counters(const char *lab, const char *link, struct relay_counters *counters);

#endif
