/*
 * The unique id: what is in its 128 bytes, how it is made, read and written as
 * text, and the frames of the bootstrap as bytes. Opens no connection.
 *
 *   0   "PPID", version, flags (1 = derived), span, number of addresses
 *   8   secret (32)
 *   40  communicator number (8)
 *   48  two addresses of 36: family, 0, port (2), address (16), scope name (16)
 *   120 checksum (8) against damage in transport; no protection against malice
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "comm/bootstrap_wire.h"
#include "comm/little_endian.h"
#include "system/error.h"

#define ID_VERSION 1
#define ID_FLAG_DERIVED 1
#define ID_CHECKSUM_AT 120
#define ID_ADDRESS_BYTES 36

_Static_assert(48 + BOOTSTRAP_ADDRESSES_MAX * ID_ADDRESS_BYTES == ID_CHECKSUM_AT, "addresses fill the id");
_Static_assert(ID_CHECKSUM_AT + 8 == POLYPATH_UNIQUE_ID_BYTES, "the checksum ends the id");
_Static_assert(sizeof(((struct bootstrap_address *)0)->scope) == IF_NAMESIZE, "a scope is an interface name");

static const uint8_t id_magic[4] = {'P', 'P', 'I', 'D'};

static void checksum(const uint8_t *bytes, uint8_t sum[8])
{
    uint8_t hash[crypto_generichash_BYTES_MIN];
    crypto_generichash(hash, sizeof hash, bytes, ID_CHECKSUM_AT, NULL, 0);
    memcpy(sum, hash, 8);
}

void bootstrap_encode(const struct bootstrap_id *from, polypath_unique_id_t *to)
{
    uint8_t *bytes = (uint8_t *)to->bytes;
    memset(bytes, 0, sizeof to->bytes);
    memcpy(bytes, id_magic, sizeof id_magic);
    bytes[4] = ID_VERSION;
    bytes[5] = from->derived ? ID_FLAG_DERIVED : 0;
    bytes[6] = (uint8_t)from->span;
    bytes[7] = (uint8_t)from->naddresses;
    memcpy(bytes + 8, from->secret, sizeof from->secret);
    put_le(bytes + 40, from->comm, 8);
    for (int i = 0; i < BOOTSTRAP_ADDRESSES_MAX && i < from->naddresses; i++) {
        uint8_t *p = bytes + 48 + i * ID_ADDRESS_BYTES;
        p[0] = from->addresses[i].family;
        put_le(p + 2, from->addresses[i].port, 2);
        memcpy(p + 4, from->addresses[i].bytes, 16);
        memcpy(p + 20, from->addresses[i].scope, 16);
    }
    checksum(bytes, bytes + ID_CHECKSUM_AT);
}

static polypath_result_t not_ours(const char *why)
{
    return error_set(POLYPATH_ERROR_ARGUMENT, "this is not a unique id of polypath_get_unique_id(): %s", why);
}

static bool decode_address(const uint8_t *p, int span, struct bootstrap_address *to)
{
    to->family = p[0];
    to->port = (uint16_t)get_le(p + 2, 2);
    memcpy(to->bytes, p + 4, 16);
    memcpy(to->scope, p + 20, 16);
    return (to->family == 4 || to->family == 6) && p[1] == 0 && to->port != 0 && memchr(to->scope, 0, 16) &&
           to->port + span - 1 <= 65535;
}

polypath_result_t bootstrap_decode(const polypath_unique_id_t *from, struct bootstrap_id *to)
{
    const uint8_t *bytes = (const uint8_t *)from->bytes;
    memset(to, 0, sizeof *to);
    if (memcmp(bytes, id_magic, sizeof id_magic))
        return not_ours("it does not begin like one");
    if (bytes[4] != ID_VERSION)
        return error_set(POLYPATH_ERROR_ARGUMENT,
                         "the unique id is of version %d, this library reads version %d: all ranks need the same "
                         "version of Polypath",
                         bytes[4], ID_VERSION);
    uint8_t sum[8];
    checksum(bytes, sum);
    if (memcmp(sum, bytes + ID_CHECKSUM_AT, sizeof sum))
        return not_ours("it was damaged on its way (wrong checksum)");
    to->derived = bytes[5] & ID_FLAG_DERIVED;
    to->span = bytes[6];
    to->naddresses = bytes[7];
    if (bytes[5] & ~ID_FLAG_DERIVED || to->span < 1 || to->naddresses > BOOTSTRAP_ADDRESSES_MAX ||
        (!to->derived && to->span != 1))
        return not_ours("its header is malformed");
    for (int i = 0; i < to->naddresses; i++)
        if (!decode_address(bytes + 48 + i * ID_ADDRESS_BYTES, to->span, &to->addresses[i]))
            return not_ours("an address in it is malformed");
    memcpy(to->secret, bytes + 8, sizeof to->secret);
    to->comm = get_le(bytes + 40, 8);
    return POLYPATH_SUCCESS;
}

polypath_result_t bootstrap_parse(const polypath_unique_id_t *id, uint8_t secret[HANDSHAKE_SECRET_BYTES],
                                  uint64_t *comm)
{
    struct bootstrap_id inside;
    polypath_result_t result = bootstrap_decode(id, &inside);
    if (result == POLYPATH_SUCCESS) {
        memcpy(secret, inside.secret, sizeof inside.secret);
        *comm = inside.comm;
    }
    sodium_memzero(&inside, sizeof inside);
    return result;
}

void bootstrap_format(const polypath_unique_id_t *id, char *text)
{
    sodium_bin2hex(text, 2 * sizeof id->bytes + 1, (const uint8_t *)id->bytes, sizeof id->bytes);
}

polypath_result_t bootstrap_unformat(const char *text, polypath_unique_id_t *id)
{
    size_t length = strlen(text), used;
    if (length != 2 * sizeof id->bytes)
        return error_set(POLYPATH_ERROR_ARGUMENT, "a unique id as text is %zu hexadecimal digits, this one has %zu",
                         2 * sizeof id->bytes, length);
    if (sodium_hex2bin((uint8_t *)id->bytes, sizeof id->bytes, text, length, NULL, &used, NULL) ||
        used != sizeof id->bytes)
        return error_set(POLYPATH_ERROR_ARGUMENT, "a unique id as text is %zu hexadecimal digits, this one has others",
                         2 * sizeof id->bytes);
    struct bootstrap_id inside;
    polypath_result_t result = bootstrap_decode(id, &inside);
    sodium_memzero(&inside, sizeof inside);
    return result;
}

polypath_result_t bootstrap_alone(polypath_unique_id_t *id)
{
    if (sodium_init() < 0)
        return error_set(POLYPATH_ERROR_SYSTEM, "the system's random source cannot be used");
    struct bootstrap_id inside = {.span = 1};
    randombytes_buf(inside.secret, sizeof inside.secret);
    randombytes_buf(&inside.comm, sizeof inside.comm);
    bootstrap_encode(&inside, id);
    sodium_memzero(&inside, sizeof inside);
    return POLYPATH_SUCCESS;
}

polypath_result_t bootstrap_derive(polypath_unique_id_t *id, const void *material, size_t bytes,
                                   const struct sockaddr *const *addresses, int naddresses, uint16_t first_port,
                                   int span)
{
    if (naddresses < 1 || naddresses > BOOTSTRAP_ADDRESSES_MAX || first_port < 1 || span < 1 || span > 255 ||
        first_port + span - 1 > 65535)
        return error_set(POLYPATH_ERROR_ARGUMENT, "cannot derive a unique id: %d addresses, ports %d to %d", naddresses,
                         first_port, first_port + span - 1);
    if (sodium_init() < 0)
        return error_set(POLYPATH_ERROR_SYSTEM, "the system's random source cannot be used");
    struct bootstrap_id inside = {.derived = true, .span = span, .naddresses = naddresses};
    uint8_t hash[HANDSHAKE_SECRET_BYTES + 8];
    crypto_generichash(hash, sizeof hash, material, bytes, NULL, 0);
    memcpy(inside.secret, hash, sizeof inside.secret);
    inside.comm = get_le(hash + sizeof inside.secret, 8);
    for (int i = 0; i < naddresses; i++) {
        char scope[IF_NAMESIZE] = "";
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)addresses[i];
        if (addresses[i]->sa_family == AF_INET6 && v6->sin6_scope_id)
            if_indextoname(v6->sin6_scope_id, scope);
        bootstrap_address_set(&inside.addresses[i], addresses[i], scope);
        inside.addresses[i].port = first_port;
    }
    bootstrap_encode(&inside, id);
    sodium_memzero(hash, sizeof hash);
    sodium_memzero(&inside, sizeof inside);
    return POLYPATH_SUCCESS;
}

void bootstrap_address_set(struct bootstrap_address *to, const struct sockaddr *from, const char *scope)
{
    memset(to, 0, sizeof *to);
    if (from->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)from;
        to->family = 6;
        to->port = ntohs(v6->sin6_port);
        memcpy(to->bytes, &v6->sin6_addr, 16);
        if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr))
            snprintf(to->scope, sizeof to->scope, "%s", scope);
    } else {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)from;
        to->family = 4;
        to->port = ntohs(v4->sin_port);
        memcpy(to->bytes, &v4->sin_addr, 4);
    }
}

polypath_result_t bootstrap_sockaddr(const struct bootstrap_address *from, int port_offset,
                                     union bootstrap_sockaddr *to, socklen_t *length)
{
    memset(to, 0, sizeof *to);
    uint16_t port = htons((uint16_t)(from->port + port_offset));
    if (from->family == 4) {
        to->v4.sin_family = AF_INET;
        to->v4.sin_port = port;
        memcpy(&to->v4.sin_addr, from->bytes, 4);
        *length = sizeof to->v4;
        return POLYPATH_SUCCESS;
    }
    to->v6.sin6_family = AF_INET6;
    to->v6.sin6_port = port;
    memcpy(&to->v6.sin6_addr, from->bytes, 16);
    *length = sizeof to->v6;
    if (*from->scope && !(to->v6.sin6_scope_id = if_nametoindex(from->scope)))
        return error_set(
            POLYPATH_ERROR_SYSTEM,
            "the ranks meet at a link-local address of interface %s, which this host does not have (setting "
            "bootstrap_interface chooses another)",
            from->scope);
    return POLYPATH_SUCCESS;
}

void bootstrap_address_name(const struct bootstrap_address *address, int port_offset, char *text)
{
    char number[INET6_ADDRSTRLEN] = "?";
    inet_ntop(address->family == 4 ? AF_INET : AF_INET6, address->bytes, number, sizeof number);
    snprintf(text, 96, "%s%s%s port %d", number, *address->scope ? "%" : "", address->scope,
             address->port + port_offset);
}

void bootstrap_tune_socket(int fd)
{
    /* Failing only costs speed or a later notice of a dead host. */
    int on = 1, idle_s = 10, interval_s = 5, probes = 4;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

void bootstrap_put_frame(const struct bootstrap_frame *frame, uint8_t bytes[BOOTSTRAP_FRAME_BYTES])
{
    put_le(bytes, frame->type, 4);
    put_le(bytes + 4, frame->value, 4);
    put_le(bytes + 8, frame->timeout_ms, 8);
    put_le(bytes + 16, frame->length, 8);
}

void bootstrap_get_frame(const uint8_t bytes[BOOTSTRAP_FRAME_BYTES], struct bootstrap_frame *frame)
{
    frame->type = (uint32_t)get_le(bytes, 4);
    frame->value = (uint32_t)get_le(bytes + 4, 4);
    frame->timeout_ms = get_le(bytes + 8, 8);
    frame->length = get_le(bytes + 16, 8);
}
