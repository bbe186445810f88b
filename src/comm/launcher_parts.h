/* What the launchers share: careful readers of environment variables, and the launchers themselves. */
#ifndef COMM_LAUNCHER_PARTS_H
#define COMM_LAUNCHER_PARTS_H

#include "comm/launcher.h"

extern const struct launcher launcher_polypath;
extern const struct launcher launcher_none;

/* Whether a variable is set and not empty. */
bool launcher_has(const char *name);

/* A decimal number from least to most; the error names `launcher` and the variable. */
polypath_result_t launcher_number(const char *launcher, const char *name, long least, long most, long *value);

/* The pair of rank and size; also that rank < size. */
polypath_result_t launcher_rank_size(const char *launcher, const char *rank_name, const char *size_name,
                                     struct launch *launch);

#endif
