/*
 * Where the ranks of a new communicator meet: a small service in the process
 * that made the unique id, and one connection of each rank to it. Its only
 * operation is an all-gather of small records. Used while a communicator is
 * being created, closed afterwards.
 */
#ifndef COMM_BOOTSTRAP_H
#define COMM_BOOTSTRAP_H

#include "comm/handshake.h"
#include "polypath/polypath.h"

struct bootstrap;

/*
 * Fills a fresh id (secret from the system's random source, address of a
 * listening socket) and starts the service as a detached thread. The socket is
 * bound to `address` if not NULL (numeric IPv4 or IPv6 address), else to the
 * interface of setting `bootstrap_interface`, else to the first interface
 * that is up and usable (setting `interfaces`), else to loopback. The service
 * serves exactly one communicator and ends when all its ranks have closed, or
 * when nobody has come for the deadline.
 */
polypath_result_t bootstrap_serve(polypath_unique_id_t *id, const char *address);

/* The secret and the communicator number in an id; POLYPATH_ERROR_ARGUMENT if the id is not one of ours. */
polypath_result_t bootstrap_parse(const polypath_unique_id_t *id, uint8_t secret[HANDSHAKE_SECRET_BYTES],
                                  uint64_t *comm);

/* Text form for an environment variable (hex), and back. `text` has room for 2 * POLYPATH_UNIQUE_ID_BYTES + 1. */
void bootstrap_format(const polypath_unique_id_t *id, char *text);
polypath_result_t bootstrap_unformat(const char *text, polypath_unique_id_t *id);

/*
 * Connects this rank. Blocks until connected or the deadline of setting
 * timeout_ms. Two ranks with the same number, a rank outside 0..size-1 and
 * ranks that disagree on the size are errors that name them.
 */
polypath_result_t bootstrap_open(const polypath_unique_id_t *id, int rank, int size, struct bootstrap **bootstrap);

/*
 * Every rank gives `bytes` bytes (equal on all, at most 1 MiB); `all` receives
 * size * bytes in rank order. Blocks. The error of a time-out names the ranks
 * that did not come.
 */
polypath_result_t bootstrap_all_gather(struct bootstrap *bootstrap, const void *mine, size_t bytes, void *all);

void bootstrap_close(struct bootstrap *bootstrap);

#endif
