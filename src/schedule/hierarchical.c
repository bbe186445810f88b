/*
 * Two-level algorithms: what ranks of one host can do among themselves is done
 * there, and between hosts every byte travels once. For hosts that are joined
 * by less than what joins their ranks.
 *
 * Each host has one *collector* per block, which gathers and folds the host's
 * contributions and spreads results; different blocks have different
 * collectors, so that all ranks of a host share the work and the NICs. With as
 * many ranks on each host this moves 2N(H-1)/H bytes in and out of each of H
 * hosts for an AllReduce of N bytes, the least possible: the hierarchical
 * scheme of Karonis et al. (MPICH-G2, IPDPS 2000) on all ranks at once, as in
 * Cho et al., BlueConnect (MLSys 2019). Hosts may have unlike numbers of ranks,
 * in any order.
 *
 * Rounding: a host's partial result is rounded to the element type once, when
 * it leaves the host. The last fold takes the own host's contributions one by
 * one and the other hosts' partial results, in host order; within a host in
 * rank order.
 */
#include <stdlib.h>
#include <string.h>

#include "schedule/builders.h"

struct hosts {
    struct schedule_builder *b;
    const struct build *build;
    int nhosts, own;     /* own: this rank's host */
    int *first;          /* ranks of host h: member[first[h]] .. member[first[h + 1] - 1], ascending */
    int *member, *local; /* local[r]: r's index on its host */
    struct slice *sources;
    uint32_t *recvs; /* per source; NOT_RECEIVED for the own INPUT */
    int nsources;
};

#define NOT_RECEIVED UINT32_MAX

static int host_of(const struct hosts *h, int rank)
{
    return h->build->shape->host ? h->build->shape->host[rank] : 0;
}

static int host_size(const struct hosts *h, int host)
{
    return h->first[host + 1] - h->first[host];
}

static bool hosts_begin(struct hosts *h, struct schedule_builder *b, const struct build *build)
{
    size_t size = (size_t)build->size;
    *h = (struct hosts){.b = b, .build = build, .nhosts = build->shape->host ? build->shape->nhosts : 1};
    h->own = host_of(h, build->rank);
    h->first = calloc((size_t)h->nhosts + 1, sizeof *h->first);
    h->member = calloc(size, sizeof *h->member);
    h->local = calloc(size, sizeof *h->local);
    h->sources = calloc(size, sizeof *h->sources);
    h->recvs = calloc(size, sizeof *h->recvs);
    if (!h->first || !h->member || !h->local || !h->sources || !h->recvs) {
        schedule_fail(b, POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        return false;
    }
    for (int r = 0; r < build->size; r++)
        h->local[r] = h->first[host_of(h, r) + 1]++;
    for (int host = 0; host < h->nhosts; host++)
        h->first[host + 1] += h->first[host];
    for (int r = 0; r < build->size; r++)
        h->member[h->first[host_of(h, r)] + h->local[r]] = r;
    return true;
}

static void hosts_end(struct hosts *h)
{
    free(h->first);
    free(h->member);
    free(h->local);
    free(h->sources);
    free(h->recvs);
}

/* The k-th other rank of the own host, counted from this one on. */
static int local_peer(const struct hosts *h, int k)
{
    int count = host_size(h, h->own);
    return h->member[h->first[h->own] + (h->local[h->build->rank] + k) % count];
}

static int local_peers(const struct hosts *h)
{
    return host_size(h, h->own) - 1;
}

/*
 * Who gathers or spreads block `block` on `host`, which has ranks: its owner
 * on the owner's host, elsewhere the rank of the same local index, so that
 * each rank carries its part also where ranks are dealt out in turn.
 */
static int collector(const struct hosts *h, int host, int block)
{
    if (host_of(h, block) == host)
        return block;
    return h->member[h->first[host] + h->local[block] % host_size(h, host)];
}

/* The same for collectives with a root, where all blocks start or end at the root. */
static int carrier(const struct hosts *h, int host, int block)
{
    if (host_of(h, h->build->root) == host)
        return h->build->root;
    return h->member[h->first[host] + block % host_size(h, host)];
}

static void add_source(struct hosts *h, struct slice slice, uint32_t recv)
{
    h->sources[h->nsources] = slice;
    h->recvs[h->nsources++] = recv;
}

/* Folds what add_source() has gathered, and forgets it. */
static uint32_t fold_sources(struct hosts *h, struct slice dst, bool final)
{
    uint32_t fold = schedule_reduce(h->b, dst, h->sources, h->nsources, final);
    for (int i = 0; i < h->nsources; i++)
        if (h->recvs[i] != NOT_RECEIVED)
            schedule_after(h->b, h->recvs[i], fold);
    h->nsources = 0;
    return fold;
}

/* ------------------------------------------------ AllReduce and its halves */

/* A contribution that a local peer sends here: the slot and the step that fills it. */
struct arrival {
    struct slice slice;
    uint32_t recv;
};

/* Receives the local peers' contributions to all blocks that this rank collects; [block * ranks here + local index]. */
static void receive_contributions(struct hosts *h, struct arrival *arrivals)
{
    int size = h->build->size, count = host_size(h, h->own);
    for (int k = 1; k < count; k++) {
        int peer = local_peer(h, count - k);
        for (int i = 1; i <= size; i++) { /* in the peer's order of sending */
            int block = rank_shift(peer, i, size);
            if (collector(h, h->own, block) != h->build->rank)
                continue;
            struct arrival *arrival = &arrivals[(size_t)block * (size_t)count + (size_t)h->local[peer]];
            arrival->slice = schedule_scratch(h->b, block);
            arrival->recv = schedule_recv(h->b, peer, arrival->slice);
        }
    }
}

static void add_local_sources(struct hosts *h, const struct arrival *arrivals, int block)
{
    int count = host_size(h, h->own);
    for (int i = 0; i < count; i++) {
        const struct arrival *arrival = &arrivals[(size_t)block * (size_t)count + (size_t)i];
        if (h->member[h->first[h->own] + i] == h->build->rank)
            add_source(h, slice_input(block), NOT_RECEIVED);
        else
            add_source(h, arrival->slice, arrival->recv);
    }
}

/* The own host's part of a block that belongs to another host, to its owner. In place OUTPUT is safe: see direct.c. */
static void send_partial(struct hosts *h, const struct arrival *arrivals, int block, int target, bool in_output)
{
    if (local_peers(h) == 0) {
        schedule_send(h->b, target, slice_input(block));
        return;
    }
    struct slice partial = in_output ? slice_output(block) : schedule_scratch(h->b, block);
    add_local_sources(h, arrivals, block);
    uint32_t fold = fold_sources(h, partial, false);
    schedule_after(h->b, fold, schedule_send(h->b, target, partial));
}

/* Block b, complete, in OUTPUT b of rank b. Returns the fold of the own block. */
static uint32_t reduce_to_owners(struct hosts *h, bool in_output)
{
    int size = h->build->size, rank = h->build->rank;
    struct arrival *arrivals = calloc((size_t)size * (size_t)host_size(h, h->own), sizeof *arrivals);
    if (!arrivals) {
        schedule_fail(h->b, POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
        return 0;
    }
    for (int k = 1; k < size; k++) {
        int block = rank_shift(rank, k, size), target = collector(h, h->own, block);
        if (target != rank)
            schedule_send(h->b, target, slice_input(block));
    }
    receive_contributions(h, arrivals);
    for (int k = 1; k < size; k++) {
        int block = rank_shift(rank, k, size);
        if (collector(h, h->own, block) == rank)
            send_partial(h, arrivals, block, block, in_output);
    }
    for (int host = 0; host < h->nhosts; host++) {
        if (host == h->own) {
            add_local_sources(h, arrivals, rank);
        } else if (host_size(h, host) > 0) {
            struct slice partial = schedule_scratch(h->b, rank);
            add_source(h, partial, schedule_recv(h->b, collector(h, host, rank), partial));
        }
    }
    free(arrivals);
    return fold_sources(h, slice_output(rank), true);
}

/* To the own host's other ranks. */
static void send_to_locals(struct hosts *h, struct slice slice, bool waits, uint32_t ready)
{
    for (int k = 1; k <= local_peers(h); k++) {
        uint32_t send = schedule_send(h->b, local_peer(h, k), slice);
        if (waits)
            schedule_after(h->b, ready, send);
    }
}

/* The own block, in `own` after step `ready` (if `waits`), to all ranks; the others arrive in OUTPUT. */
static void gather_from_owners(struct hosts *h, struct slice own, bool waits, uint32_t ready)
{
    int size = h->build->size, rank = h->build->rank;
    for (int k = 1; k < h->nhosts; k++) { /* other hosts first: theirs is the longer way */
        int host = (h->own + k) % h->nhosts;
        if (host_size(h, host) == 0)
            continue;
        uint32_t send = schedule_send(h->b, collector(h, host, rank), own);
        if (waits)
            schedule_after(h->b, ready, send);
    }
    send_to_locals(h, own, waits, ready);
    for (int k = 1; k < size; k++) {
        int block = rank_shift(rank, k, size);
        if (host_of(h, block) == h->own || collector(h, h->own, block) != rank)
            continue;
        uint32_t recv = schedule_recv(h->b, block, slice_output(block));
        send_to_locals(h, slice_output(block), true, recv);
    }
    for (int i = 1; i <= local_peers(h); i++) {
        int peer = local_peer(h, host_size(h, h->own) - i);
        for (int k = 0; k < size; k++) { /* in the peer's order of sending */
            int block = rank_shift(peer, k, size);
            if (collector(h, h->own, block) == peer)
                schedule_recv(h->b, peer, slice_output(block));
        }
    }
}

/* No tokens: a block's result reaches every rank, and lies behind every fold of that block. */
void hierarchical_all_reduce(struct schedule_builder *b, const struct build *build)
{
    struct hosts h;
    if (hosts_begin(&h, b, build)) {
        uint32_t fold = reduce_to_owners(&h, true);
        gather_from_owners(&h, slice_output(build->rank), true, fold);
    }
    hosts_end(&h);
}

void hierarchical_all_gather(struct schedule_builder *b, const struct build *build)
{
    struct hosts h;
    if (hosts_begin(&h, b, build)) {
        gather_from_owners(&h, slice_input(build->rank), false, 0);
        schedule_copy(b, slice_output(build->rank), slice_input(build->rank));
    }
    hosts_end(&h);
}

void hierarchical_reduce_scatter(struct schedule_builder *b, const struct build *build)
{
    struct hosts h;
    if (hosts_begin(&h, b, build)) {
        reduce_to_owners(&h, false);
        for (int k = 1; k <= local_peers(&h); k++) {
            schedule_release(b, local_peer(&h, k));
            schedule_recv_token(b, local_peer(&h, k));
        }
        for (int host = 0; host < h.nhosts; host++)
            if (host != h.own && host_size(&h, host) > 0)
                schedule_release(b, collector(&h, host, build->rank));
        for (int block = 0; block < build->nblocks; block++)
            if (host_of(&h, block) != h.own && collector(&h, h.own, block) == build->rank)
                schedule_recv_token(b, block);
    }
    hosts_end(&h);
}

/* ------------------------------------------------------ with a root */

static void broadcast_block(struct hosts *h, int block)
{
    const struct build *build = h->build;
    int from = carrier(h, h->own, block);
    if (build->rank == build->root) {
        for (int k = 1; k < h->nhosts; k++) {
            int host = (h->own + k) % h->nhosts;
            if (host_size(h, host) > 0)
                schedule_send(h->b, carrier(h, host, block), slice_input(block));
        }
        send_to_locals(h, slice_input(block), false, 0);
        schedule_copy(h->b, slice_output(block), slice_input(block));
    } else if (build->rank == from) {
        uint32_t recv = schedule_recv(h->b, build->root, slice_output(block));
        send_to_locals(h, slice_output(block), true, recv);
    } else {
        schedule_recv(h->b, from, slice_output(block));
    }
}

void hierarchical_broadcast(struct schedule_builder *b, const struct build *build)
{
    struct hosts h;
    if (hosts_begin(&h, b, build))
        for (int block = 0; block < build->nblocks; block++)
            broadcast_block(&h, block);
    hosts_end(&h);
}

/* The own host's contributions to `block`, received from its ranks, as sources in rank order. */
static void receive_local_sources(struct hosts *h, int block)
{
    for (int i = 0; i < host_size(h, h->own); i++) {
        int peer = h->member[h->first[h->own] + i];
        if (peer == h->build->rank) {
            add_source(h, slice_input(block), NOT_RECEIVED);
            continue;
        }
        struct slice slice = schedule_scratch(h->b, block);
        add_source(h, slice, schedule_recv(h->b, peer, slice));
    }
}

static void reduce_block_at_root(struct hosts *h, int block)
{
    for (int host = 0; host < h->nhosts; host++) {
        if (host == h->own) {
            receive_local_sources(h, block);
        } else if (host_size(h, host) > 0) {
            struct slice partial = schedule_scratch(h->b, block);
            add_source(h, partial, schedule_recv(h->b, carrier(h, host, block), partial));
        }
    }
    fold_sources(h, slice_output(block), true);
}

static void reduce_block_elsewhere(struct hosts *h, int block)
{
    int target = carrier(h, h->own, block);
    if (target != h->build->rank) {
        schedule_send(h->b, target, slice_input(block));
    } else if (local_peers(h) == 0) {
        schedule_send(h->b, h->build->root, slice_input(block));
    } else {
        struct slice partial = schedule_scratch(h->b, block);
        receive_local_sources(h, block);
        uint32_t fold = fold_sources(h, partial, false);
        schedule_after(h->b, fold, schedule_send(h->b, h->build->root, partial));
    }
}

void hierarchical_reduce(struct schedule_builder *b, const struct build *build)
{
    struct hosts h;
    bool at_root = build->rank == build->root;
    if (hosts_begin(&h, b, build)) {
        for (int block = 0; block < build->nblocks; block++)
            if (at_root)
                reduce_block_at_root(&h, block);
            else
                reduce_block_elsewhere(&h, block);
        if (at_root) {
            for (int k = 1; k < build->size; k++)
                schedule_release(b, rank_shift(build->rank, k, build->size));
        } else {
            /* on the root's host the root is the only one that gathers */
            for (int k = 1; host_of(&h, build->root) != h.own && k <= local_peers(&h); k++) {
                schedule_release(b, local_peer(&h, k));
                schedule_recv_token(b, local_peer(&h, k));
            }
            schedule_recv_token(b, build->root);
        }
    }
    hosts_end(&h);
}

/* ------------------------------------------------------ barrier */

/* The first rank of each host collects its host's tokens, tells the other hosts' first ranks, and lets go its host. */
void hierarchical_barrier(struct schedule_builder *b, const struct build *build)
{
    struct hosts h;
    if (!hosts_begin(&h, b, build)) {
        hosts_end(&h);
        return;
    }
    int leader = h.member[h.first[h.own]];
    if (build->rank != leader) {
        schedule_send_token(b, leader);
        schedule_recv_token(b, leader);
        hosts_end(&h);
        return;
    }
    int nheard = 0;
    for (int k = 1; k <= local_peers(&h); k++)
        h.recvs[nheard++] = schedule_recv_token(b, local_peer(&h, k));
    for (int k = 1; k < h.nhosts; k++) {
        int host = (h.own + k) % h.nhosts;
        if (host_size(&h, host) == 0)
            continue;
        uint32_t send = schedule_send_token(b, h.member[h.first[host]]);
        for (int i = 0; i < nheard; i++)
            schedule_after(b, h.recvs[i], send);
    }
    for (int k = 1; k < h.nhosts; k++) {
        int host = (h.own + k) % h.nhosts;
        if (host_size(&h, host) > 0)
            h.recvs[nheard++] = schedule_recv_token(b, h.member[h.first[host]]);
    }
    for (int k = 1; k <= local_peers(&h); k++) {
        uint32_t send = schedule_send_token(b, local_peer(&h, k));
        for (int i = 0; i < nheard; i++)
            schedule_after(b, h.recvs[i], send);
    }
    hosts_end(&h);
}
