/*
 * The labs that exist, one JSON file each in /run/polypath-lab. A file is
 * there before anything else of its lab and goes last, so that a crash at any
 * moment leaves a trace to clean up by.
 */
#ifndef CLI_LAB_STATE_H
#define CLI_LAB_STATE_H

#include "frontends/cli/lab.h"

#define LAB_FOLDER "/run/polypath-lab"

/*
 * One command at a time: every change happens under this lock, which dies
 * with its holder. Blocks. The folder exists while it is held.
 */
polypath_result_t lab_lock(int *lock);
void lab_unlock(int lock); /* removes the folder if no lab is left */

bool lab_exists(const char *name);

/* Reads one lab. If there is none: an error that names those there are. */
polypath_result_t lab_load(const char *name, struct lab *lab);
polypath_result_t lab_save(const struct lab *lab);

/* Removes all files of a lab. */
void lab_forget(const char *name);

/* The names of all labs, sorted; the caller frees with lab_names_free(). */
struct lab_names {
    char (*names)[LAB_NAME_MAX + 1];
    int count;
};
struct lab_names lab_list(void);
void lab_names_free(struct lab_names *names);

/* Marks a new lab with this boot and this process. */
void lab_sign(struct lab *lab);

/* Whether nobody can want it any more: from an earlier boot, half built, or temporary and its owner gone. */
bool lab_is_stale(const struct lab *lab);

/* The file in which a relay keeps its counters; `path` has room for 160. */
const char *lab_relay_file(char *path, const char *lab, const char *link);

#endif
