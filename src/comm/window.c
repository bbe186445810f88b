/*
 * Windows: registered memory of a communicator (link/exports.h has the memory
 * itself). Registration is where all ranks come to know, at the same place in
 * their order of operations, that calls are to look for registered buffers.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "system/log.h"

/* What a rank says of its buffer. */
struct offer {
    uint32_t usable;
    uint32_t posted; /* messages about exports that it has sent */
};

/* Makes this rank's buffer reachable and announces it. */
static struct offer offer_buffer(struct polypath_comm *comm, struct polypath_window *window, size_t bytes)
{
    struct offer offer = {.usable = comm->exports != NULL};
    if (offer.usable && bytes && exports_hold(window->buffer, bytes)) {
        log_line(LOG_LEVEL_WARN, "registered memory is not used: %s", error_text());
        offer.usable = false;
    }
    if (!offer.usable)
        return offer;
    window->held = bytes != 0;
    drive_hold(comm);
    if (bytes)
        offer.usable = exports_place(comm->exports, window->buffer, bytes).number != 0;
    offer.posted = exports_posted(comm->exports);
    drive_let_go(comm);
    return offer;
}

/* Takes in what the others have announced. Whether all of it can be used. */
static bool accept_offers(struct polypath_comm *comm, const struct offer *offers)
{
    bool usable = comm->exports != NULL;
    for (int r = 0; r < comm->size; r++)
        usable = usable && offers[r].usable;
    if (!usable)
        return false;
    drive_hold(comm);
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank)
            exports_take(comm->exports, r, offers[r].posted); /* a failure is announced with the next call */
    drive_let_go(comm);
    return true;
}

polypath_result_t window_register(struct polypath_comm *comm, void *buffer, size_t bytes,
                                  struct polypath_window **window)
{
    struct polypath_window *w = calloc(1, sizeof *w);
    struct offer *offers = calloc((size_t)comm->size, sizeof *offers);
    polypath_result_t result = POLYPATH_SUCCESS;
    if (!w || !offers) {
        result = error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        goto end;
    }
    w->buffer = buffer;
    const struct offer mine = offer_buffer(comm, w, bytes);
    result = comm_internal(comm, POLYPATH_COLLECTIVE_ALL_GATHER, &mine, offers, sizeof mine, POLYPATH_UINT8,
                           POLYPATH_SUM, -1);
    if (result)
        goto end;
    w->counts = accept_offers(comm, offers);
    if (w->counts) {
        comm->registered++;
    } else if (comm->size > 1) {
        comm->statistics.fallbacks++;
        log_line(LOG_LEVEL_INFO, "a window of %zu bytes has no effect: %s", bytes,
                 !comm->one_host  ? "the ranks are on several hosts"
                 : !comm->exports ? "shared memory is not used, or the setting mapped is 0"
                 : !mine.usable   ? "this rank's buffer cannot be used"
                                  : "the buffer of another rank cannot be used");
    }
    w->next = comm->first_window;
    comm->first_window = w;
    *window = w;
    w = NULL;
end:
    if (w && w->held)
        exports_let_go(w->buffer);
    free(w);
    free(offers);
    return result;
}

static void forget(struct polypath_comm *comm, struct polypath_window *w)
{
    comm->registered -= w->counts;
    if (w->held)
        exports_let_go(w->buffer);
    free(w);
}

polypath_result_t window_deregister(struct polypath_comm *comm, struct polypath_window *window)
{
    struct polypath_window **link = &comm->first_window;
    while (*link && *link != window)
        link = &(*link)->next;
    if (!*link)
        return error_set(POLYPATH_ERROR_ARGUMENT, "the window is not one of this communicator");
    polypath_result_t result = comm_drain(comm);
    *link = window->next;
    forget(comm, window);
    return result;
}

void window_forget_all(struct polypath_comm *comm)
{
    while (comm->first_window) {
        struct polypath_window *next = comm->first_window->next;
        forget(comm, comm->first_window);
        comm->first_window = next;
    }
}
