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
struct sockaddr;

#define BOOTSTRAP_ADDRESSES_MAX 2       /* in one id */
#define BOOTSTRAP_SIZE_MAX 65536        /* ranks */
#define BOOTSTRAP_RECORD_MAX (1u << 20) /* bytes of one rank in one all-gather */

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

/* An id for a communicator of one rank: a fresh secret and number, and no place to meet. */
polypath_result_t bootstrap_alone(polypath_unique_id_t *id);

/*
 * For launchers that give the ranks no channel: every rank makes the same id
 * from what all of them know. Secret and communicator number are hashed from
 * `material`, so they are only as secret as that is. The service is at one of
 * `span` ports from `first_port` on, of one of the addresses (1 to
 * BOOTSTRAP_ADDRESSES_MAX, IPv4 or IPv6; addresses may differ between ranks).
 */
polypath_result_t bootstrap_derive(polypath_unique_id_t *id, const void *material, size_t bytes,
                                   const struct sockaddr *const *addresses, int naddresses, uint16_t first_port,
                                   int span);

/*
 * Serves a derived id, as bootstrap_serve(), at the first of its ports that is
 * free; at its addresses, or with `everywhere` at all addresses of this host.
 */
polypath_result_t bootstrap_serve_derived(const polypath_unique_id_t *id, bool everywhere);

/*
 * Connects this rank. Blocks until all `size` ranks have come, or the deadline
 * of setting timeout_ms; the error of a time-out names the ranks that did not
 * come. A service that does not listen yet is tried again until then if the id
 * is a derived one. Two ranks with the same number, a rank outside 0..size-1 and
 * ranks that disagree on the size are errors that name them.
 */
polypath_result_t bootstrap_open(const polypath_unique_id_t *id, int rank, int size, struct bootstrap **out);

/*
 * Every rank gives `bytes` bytes (equal on all, at most 1 MiB); `all` receives
 * size * bytes in rank order. Blocks. The error of a time-out names the ranks
 * that did not come.
 */
polypath_result_t bootstrap_all_gather(struct bootstrap *bootstrap, const void *mine, size_t bytes, void *all);

void bootstrap_close(struct bootstrap *bootstrap);

#endif
