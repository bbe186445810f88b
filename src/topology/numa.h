/*
 * NUMA nodes: on which one this process runs, and memory that lies on a given
 * one. What there is comes from hwloc, and from hwloc's variable
 * HWLOC_SYNTHETIC where a test or an operator pretends. Knows nothing of ranks.
 *
 * Loading hwloc's topology takes milliseconds, so it is left alone where the
 * kernel says in one small file that only one node has cores, and it is loaded
 * once per process.
 */
#ifndef TOPOLOGY_NUMA_H
#define TOPOLOGY_NUMA_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#include "polypath/polypath.h"

#define NUMA_UNBOUND (-1) /* no node, or several */
#define NUMA_LARGEST 1023 /* number of a node */

enum numa_mode { NUMA_OFF, NUMA_AUTO, NUMA_ON }; /* values of setting numa */

/*
 * The nodes of a machine. A node counts if it has cores, and no other node has
 * a part of them only: memory beside all nodes (CXL) is nobody's home, and of
 * nodes with the same cores (HBM beside DRAM) the first one counts.
 */
struct numa_map;

/*
 * synthetic: a machine in hwloc's notation ("numa:2 core:4 pu:1"); NULL: this
 * one, or what HWLOC_SYNTHETIC says. The caller frees it by numa_map_free().
 */
polypath_result_t numa_map_load(const char *synthetic, struct numa_map **map);
void numa_map_free(struct numa_map *map);

int numa_map_count(const struct numa_map *map);

/*
 * The number of the node that has all of these cores. NUMA_UNBOUND if there is
 * none: who may run on several nodes is on none of them, wherever it is just
 * now. Of a machine with one node always that one.
 */
int numa_map_find(const struct numa_map *map, const cpu_set_t *cpus);

/*
 * Reads setting numa_node: a number up to NUMA_LARGEST, or NUMA_UNBOUND for an
 * empty text. False, with the error text set, if it is neither.
 */
bool numa_parse(const char *text, int *node);

/*
 * The node of the calling thread: setting numa_node, else by the cores that it
 * may run on. NUMA_UNBOUND with setting numa=off.
 */
int numa_own_node(void);

/*
 * From now on untouched pages of this mapping come from that node, as long as
 * it has any. False if the machine has no such node or the kernel refuses.
 * With NUMA_UNBOUND, and where there is one node only, there is nothing to do.
 */
bool numa_place(void *base, size_t bytes, int node);

#endif
