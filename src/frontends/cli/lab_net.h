/* Makes a lab real, changes it, and takes it away. All under lab_lock(). */
#ifndef CLI_LAB_NET_H
#define CLI_LAB_NET_H

#include "frontends/cli/lab.h"

/*
 * Makes namespaces, interfaces, shaping and relays of `lab`, which must not
 * exist; fills in what was found out on the way (means, relays, ipv6) and
 * keeps the state file. After an error nothing is left.
 */
polypath_result_t lab_create(struct lab *lab);

/* Makes link `index` be as `wanted`, while it carries traffic; then updates lab and its file. */
polypath_result_t lab_change(struct lab *lab, int index, const struct lab_link *wanted);

/*
 * Kills what runs inside (gently: SIGTERM and half a second first), removes
 * namespaces and files. Works without a state file too, and when there is
 * nothing. False if something would not go.
 */
bool lab_destroy(const char *name, bool gently);

/* Removes the labs that lab_is_stale(). */
void lab_sweep(void);

/* Calls visit(context, pid) for each process whose main thread is in that namespace. */
void lab_each_process(const char *namespace, void (*visit)(void *context, pid_t pid), void *context);

/*
 * Puts the calling thread into a namespace of /run/netns; *back is a
 * descriptor that namespace_leave() returns by and closes.
 */
polypath_result_t namespace_enter(const char *namespace, int *back);
void namespace_leave(int back);

#endif
