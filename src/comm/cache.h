/*
 * What was measured and balanced, kept on disk, so that a second start on the
 * same hardware tunes nothing. One JSON file for all jobs of a user; an entry
 * per key string. What the key is made of is the caller's affair, and so is
 * that all ranks start from the same: one rank loads and tells the others.
 *
 * The file is believed as little as any input: whatever is wrong with it is
 * one warning in the log, and then it counts as empty.
 */
#ifndef COMM_CACHE_H
#define COMM_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "balance/balance.h"
#include "polypath/polypath.h"

#define CACHE_KEYS 64       /* kept at most; those stored the longest ago are dropped */
#define CACHE_KEY_BYTES 256 /* longest key, without the final 0 */

/*
 * Writes the default file's name, $XDG_CACHE_HOME/polypath/shares.json or
 * ~/.cache/polypath/shares.json. Error USAGE if the environment names no
 * home folder, ARGUMENT if `bytes` are too few.
 */
polypath_result_t cache_default_file(char *file, size_t bytes);

/*
 * Looks up `key`. If it is there and sound for `npaths` paths, sets *found,
 * fills `paths`, and gives them and the shaped entries to `balance` (may be
 * NULL). Otherwise *found is false and nothing else is touched: no file is
 * no event, a file or key that is damaged is logged as a warning. Does not
 * wait for writers.
 */
void cache_load(const char *file, const char *key, struct balance *balance, struct balance_path *paths, int npaths,
                bool *found);

/*
 * Stores the paths and the shaped entries of `balance` (may be NULL) under
 * `key`, and makes missing folders (mode 0700). The file (mode 0600) is
 * replaced as a whole, under a lock (FILE.lock, which stays), so other jobs'
 * keys are kept and a reader never sees half of it. Waits at most two seconds
 * for the lock. Errors are logged too: nobody has to look at the result.
 */
polypath_result_t cache_store(const char *file, const char *key, const struct balance *balance,
                              const struct balance_path *paths, int npaths);

#endif
