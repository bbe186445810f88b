/*
 * See stores.h.
 */
#include "link/stores.h"

bool stores_curious(struct stores_cost *cost, bool past, size_t bytes)
{
    if (bytes < STORES_LEAST_BYTES)
        return false;
    const bool unusual = past != cost->last || !cost->ns[past];
    cost->last = past;
    return unusual || cost->seen++ % STORES_TIMED == 0;
}

void stores_note(struct stores_cost *cost, bool past, size_t bytes, uint64_t ns)
{
    const uint64_t before = cost->ns[past], other = cost->ns[!past];
    uint64_t now = (uint64_t)((double)ns * 65536 / (double)bytes) + 1;
    /* What disturbs makes things slower: so down fast, and up by an eighth at a time. */
    if (!before && other && now > 4 * other)
        now = 4 * other;
    if (before && now < before)
        now = (before + now) / 2;
    else if (before)
        now = now < before + before / 8 ? (3 * before + now) / 4 : before + before / 8;
    cost->ns[past] = now > UINT32_MAX ? UINT32_MAX : (uint32_t)now;
}

bool stores_choose(struct stores_writer *writer, const uint64_t readers[2])
{
    const uint32_t *own = writer->cost.ns;
    const uint32_t n = writer->writes++;
    if (own[0] && own[1] && readers[0] && readers[1]) {
        const uint64_t wanted = own[writer->past] + readers[writer->past];
        const uint64_t other = own[!writer->past] + readers[!writer->past];
        if (other + other / 8 < wanted) /* by less, noise would turn it over */
            writer->past = !writer->past;
    }
    return n % STORES_PROBE == STORES_FIRST_PROBE ? !writer->past : writer->past;
}
