/*
 * Chooses the addresses at which a service listens, opens the listening
 * sockets and writes them into the unique id. The service itself is
 * bootstrap_service.c.
 */
#include <errno.h>
#include <netdb.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/bootstrap_wire.h"
#include "system/error.h"
#include "system/log.h"
#include "system/settings.h"
#include "topology/interfaces.h"

/* Where to listen: port 0 lets the kernel choose. */
struct place {
    union bootstrap_sockaddr address;
    socklen_t length;
    char scope[IF_NAMESIZE];
};

static void place_of_interface(const struct interface *i, struct place *place)
{
    memset(place, 0, sizeof *place);
    if (i->address.any.sa_family == AF_INET6) {
        place->address.v6 = i->address.v6;
        place->length = sizeof place->address.v6;
        snprintf(place->scope, sizeof place->scope, "%s", i->name);
    } else {
        place->address.v4 = i->address.v4;
        place->length = sizeof place->address.v4;
    }
}

static polypath_result_t place_of_text(const char *text, struct place *place)
{
    memset(place, 0, sizeof *place);
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(text, NULL, &hints, &found);
    if (error)
        return error_set(POLYPATH_ERROR_ARGUMENT, "%s is not a numeric IPv4 or IPv6 address: %s", text,
                         gai_strerror(error));
    memcpy(&place->address, found->ai_addr, found->ai_addrlen);
    place->length = found->ai_addrlen;
    freeaddrinfo(found);
    if (place->address.any.sa_family == AF_INET6 && place->address.v6.sin6_scope_id)
        if_indextoname(place->address.v6.sin6_scope_id, place->scope);
    return POLYPATH_SUCCESS;
}

/* The interface of the settings, else loopback; both of its families where it has them and the setting allows. */
static polypath_result_t places_of_settings(struct place places[BOOTSTRAP_ADDRESSES_MAX], int *nplaces)
{
    const struct settings *settings = settings_get();
    struct interface found[INTERFACES_MAX];
    int count, family = (int)settings->ip_family;
    bool named = *settings->bootstrap_interface;
    polypath_result_t result =
        interfaces_find(named ? settings->bootstrap_interface : settings->interfaces, family, found, &count);
    if (result != POLYPATH_SUCCESS)
        return error_prefix(result, "setting %s", named ? "bootstrap_interface" : "interfaces");
    if (named && !count)
        return error_set(POLYPATH_ERROR_SYSTEM, "setting bootstrap_interface: %s is down or has no address",
                         settings->bootstrap_interface);
    if (!count) {
        result = interfaces_loopback(family, &found[0]);
        if (result != POLYPATH_SUCCESS)
            return result;
        log_line(LOG_LEVEL_INFO, "no network interface is usable; ranks can only be on this host");
    }
    place_of_interface(&found[0], &places[0]);
    *nplaces = 1;
    if (family || found[0].address.any.sa_family != AF_INET || !count)
        return POLYPATH_SUCCESS;
    struct interface also[INTERFACES_MAX];
    if (interfaces_find(found[0].name, 6, also, &count) == POLYPATH_SUCCESS && count == 1 &&
        !IN6_IS_ADDR_LINKLOCAL(&also[0].address.v6.sin6_addr))
        place_of_interface(&also[0], &places[(*nplaces)++]);
    return POLYPATH_SUCCESS;
}

static uint16_t get_port(const union bootstrap_sockaddr *address)
{
    return ntohs(address->any.sa_family == AF_INET6 ? address->v6.sin6_port : address->v4.sin_port);
}

static polypath_result_t cannot_listen(const union bootstrap_sockaddr *address, int error)
{
    struct bootstrap_address named;
    char text[96];
    bootstrap_address_set(&named, &address->any, "");
    bootstrap_address_name(&named, 0, text);
    const char *hint = "";
    if (error == EADDRINUSE)
        hint = get_port(address) ? "" : ": no port is free (sysctl net.ipv4.ip_local_port_range)";
    else if (error == EADDRNOTAVAIL)
        hint = ": this is not an address of this host";
    else if (error == EMFILE)
        hint = ": raise the limit with `ulimit -n`";
    return error_set(error == EMFILE || error == ENFILE ? POLYPATH_ERROR_OUT_OF_MEMORY : POLYPATH_ERROR_SYSTEM,
                     "cannot listen at %s: %s%s", text, strerror(error), hint);
}

/*
 * Opens one listening socket; on success the address has its real port.
 * *taken: the port is in use (a fixed one may be tried with the next number).
 */
static polypath_result_t listen_at(struct place *place, int *out, bool *taken)
{
    *taken = false;
    int fd = socket(place->address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return cannot_listen(&place->address, errno);
    int on = 1;
    if (place->address.any.sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (get_port(&place->address)) /* connections of an earlier job that linger are no reason to fail */
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    socklen_t length = sizeof place->address;
    if (bind(fd, &place->address.any, place->length) || listen(fd, SOMAXCONN) ||
        getsockname(fd, &place->address.any, &length)) {
        int error = errno;
        close(fd);
        *taken = error == EADDRINUSE;
        return cannot_listen(&place->address, error);
    }
    *out = fd;
    return POLYPATH_SUCCESS;
}

polypath_result_t bootstrap_serve(polypath_unique_id_t *id, const char *address)
{
    if (sodium_init() < 0)
        return error_set(POLYPATH_ERROR_SYSTEM, "the system's random source cannot be used");
    struct place places[BOOTSTRAP_ADDRESSES_MAX];
    int nplaces = 1, listeners[BOOTSTRAP_ADDRESSES_MAX], nlisteners = 0;
    polypath_result_t result = address ? place_of_text(address, &places[0]) : places_of_settings(places, &nplaces);
    if (result != POLYPATH_SUCCESS)
        return error_prefix(result, "cannot start the meeting of the ranks");
    struct bootstrap_id inside = {.span = 1};
    for (int i = 0; i < nplaces; i++) {
        bool taken;
        result = listen_at(&places[i], &listeners[nlisteners], &taken);
        if (result != POLYPATH_SUCCESS && i == 0)
            return error_prefix(result, "cannot start the meeting of the ranks");
        if (result != POLYPATH_SUCCESS) {
            log_line(LOG_LEVEL_INFO, "%s; ranks meet at the interface's other address only", error_text());
            continue;
        }
        bootstrap_address_set(&inside.addresses[nlisteners++], &places[i].address.any, places[i].scope);
    }
    inside.naddresses = nlisteners;
    randombytes_buf(inside.secret, sizeof inside.secret);
    randombytes_buf(&inside.comm, sizeof inside.comm);
    result = bootstrap_service_start(&inside, listeners, nlisteners);
    if (result == POLYPATH_SUCCESS)
        bootstrap_encode(&inside, id);
    sodium_memzero(&inside, sizeof inside);
    return result;
}

/* One address of a derived id at the first port of its span that is free. */
static polypath_result_t listen_in_span(const struct bootstrap_id *id, const struct bootstrap_address *address,
                                        bool everywhere, int *listener)
{
    for (int offset = 0; offset < id->span; offset++) {
        struct place place = {.length = 0};
        bool taken = false;
        polypath_result_t result = bootstrap_sockaddr(address, offset, &place.address, &place.length);
        if (result == POLYPATH_SUCCESS && everywhere) {
            if (place.address.any.sa_family == AF_INET6) {
                place.address.v6.sin6_addr = in6addr_any;
                place.address.v6.sin6_scope_id = 0;
            } else {
                place.address.v4.sin_addr.s_addr = htonl(INADDR_ANY);
            }
        }
        if (result == POLYPATH_SUCCESS)
            result = listen_at(&place, listener, &taken);
        if (result == POLYPATH_SUCCESS || !taken)
            return result;
    }
    char text[96];
    bootstrap_address_name(address, 0, text);
    return error_set(POLYPATH_ERROR_SYSTEM,
                     "no port is free for the meeting of the ranks: %s and the %d after it are in use", text,
                     id->span - 1);
}

polypath_result_t bootstrap_serve_derived(const polypath_unique_id_t *id, bool everywhere)
{
    struct bootstrap_id inside;
    polypath_result_t result = bootstrap_decode(id, &inside), failed = POLYPATH_ERROR_ARGUMENT;
    if (result != POLYPATH_SUCCESS)
        return result;
    int listeners[BOOTSTRAP_ADDRESSES_MAX], nlisteners = 0;
    bool seen[2] = {false, false};
    for (int i = 0; i < inside.naddresses; i++) {
        bool six = inside.addresses[i].family == 6;
        if (everywhere && seen[six])
            continue; /* one socket takes all addresses of a family */
        seen[six] = true;
        result = listen_in_span(&inside, &inside.addresses[i], everywhere, &listeners[nlisteners]);
        if (result == POLYPATH_SUCCESS)
            nlisteners++;
        else
            failed = result;
    }
    if (nlisteners)
        result = bootstrap_service_start(&inside, listeners, nlisteners);
    else
        result = failed;
    sodium_memzero(&inside, sizeof inside);
    return result;
}
