/* What the launchers share: careful readers of environment variables, and the launchers themselves. */
#ifndef COMM_LAUNCHER_PARTS_H
#define COMM_LAUNCHER_PARTS_H

#include <stdatomic.h>

#include "comm/launcher.h"

extern const struct launcher launcher_polypath;
extern const struct launcher launcher_torchrun;
extern const struct launcher launcher_pmix;
extern const struct launcher launcher_pmi;
extern const struct launcher launcher_slurm;
extern const struct launcher launcher_none;

/* Whether a variable is set and not empty. */
bool launcher_has(const char *name);

/* A decimal number from least to most; the error names `launcher` and the variable. */
polypath_result_t launcher_number(const char *launcher, const char *name, long least, long most, long *value);

/* The pair of rank and size; also that rank < size. */
polypath_result_t launcher_rank_size(const char *launcher, const char *rank_name, const char *size_name,
                                     struct launch *launch);

/*
 * How many times this process has joined before, counted per launcher: all
 * ranks join equally often, so it tells the keys of one job's communicators apart.
 */
unsigned launcher_count(atomic_uint *counter);

#define DERIVED_MATERIAL_MAX 8

/* A meeting place that all ranks work out for themselves; see launcher_derived.c. */
struct derived_place {
    const char *launcher;
    const char *host; /* of rank 0; not used if one_host */
    bool one_host;    /* all ranks are on this host: loopback */
    int first_port, span;
    const char *material[DERIVED_MATERIAL_MAX]; /* what the ranks know in common; NULL entries count as "" */
};

/* Derives launch->id (rank and size are known already); rank 0 serves it. */
polypath_result_t launcher_meet_derived(const struct derived_place *place, struct launch *launch);

/*
 * The first host of a Slurm node list such as "gpu[03-05,9],login1" into `host`.
 * False if the list is malformed or the name does not fit.
 */
bool launcher_slurm_first_host(const char *list, char *host, size_t bytes);

#endif
