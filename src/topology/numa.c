/*
 * NUMA nodes through hwloc. See numa.h.
 */
#include "topology/numa.h"

#include <ctype.h>
#include <errno.h>
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "system/error.h"
#include "system/log.h"
#include "system/settings.h"

struct numa_map {
    hwloc_topology_t topology;
};

/* ---------------------------------------------------------------- the map */

static bool load(hwloc_topology_t topology, const char *synthetic)
{
    /* no caches, devices and the like; but the groups of cores that nodes hang from */
    return !hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_STRUCTURE) &&
           !(synthetic && hwloc_topology_set_synthetic(topology, synthetic)) && !hwloc_topology_load(topology);
}

polypath_result_t numa_map_load(const char *synthetic, struct numa_map **map)
{
    if (!synthetic)
        synthetic = getenv("HWLOC_SYNTHETIC"); /* hwloc itself would pass over a wrong one in silence */
    struct numa_map *m = calloc(1, sizeof *m);
    if (!m || hwloc_topology_init(&m->topology)) {
        free(m);
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    }
    errno = 0;
    if (!load(m->topology, synthetic)) {
        const int error = errno;
        numa_map_free(m);
        if (synthetic)
            return error_set(POLYPATH_ERROR_ARGUMENT, "hwloc does not understand the topology \"%s\"", synthetic);
        return error_set(POLYPATH_ERROR_SYSTEM, "hwloc cannot read the topology: %s", strerror(error));
    }
    *map = m;
    return POLYPATH_SUCCESS;
}

void numa_map_free(struct numa_map *m)
{
    if (!m)
        return;
    hwloc_topology_destroy(m->topology);
    free(m);
}

/* Whether it is a node of its own for the cores that it has (numa.h, struct numa_map). */
static bool is_home(const struct numa_map *m, hwloc_obj_t node)
{
    if (hwloc_bitmap_iszero(node->cpuset))
        return false;
    for (hwloc_obj_t other = NULL; (other = hwloc_get_next_obj_by_type(m->topology, HWLOC_OBJ_NUMANODE, other));) {
        if (other == node || hwloc_bitmap_iszero(other->cpuset) ||
            !hwloc_bitmap_isincluded(other->cpuset, node->cpuset))
            continue;
        if (!hwloc_bitmap_isequal(other->cpuset, node->cpuset) || other->logical_index < node->logical_index)
            return false;
    }
    return true;
}

int numa_map_count(const struct numa_map *m)
{
    int count = 0;
    for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(m->topology, HWLOC_OBJ_NUMANODE, node));)
        count += is_home(m, node);
    return count;
}

static int number_of(hwloc_obj_t node)
{
    return node->os_index <= NUMA_LARGEST ? (int)node->os_index : NUMA_UNBOUND;
}

int numa_map_find(const struct numa_map *m, const cpu_set_t *cpus)
{
    const bool only = numa_map_count(m) == 1;
    int found = NUMA_UNBOUND;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set)
        return NUMA_UNBOUND;
    hwloc_cpuset_from_glibc_sched_affinity(m->topology, set, cpus, sizeof *cpus);
    for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(m->topology, HWLOC_OBJ_NUMANODE, node));)
        if (is_home(m, node) && (only || (!hwloc_bitmap_iszero(set) && hwloc_bitmap_isincluded(set, node->cpuset))))
            found = number_of(node);
    hwloc_bitmap_free(set);
    return found;
}

/* ------------------------------------------------------------ this process */

bool numa_parse(const char *text, int *node)
{
    *node = NUMA_UNBOUND;
    if (!*text)
        return true;
    char *end;
    errno = 0;
    const unsigned long value = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || value > NUMA_LARGEST) {
        error_set(POLYPATH_ERROR_ARGUMENT, "numa_node=%s: expected the number of a node, 0 to %d", text, NUMA_LARGEST);
        return false;
    }
    *node = (int)value;
    return true;
}

/* What does not change while the process lives. The map is kept for numa_place(). */
static struct {
    int wish;
    int only; /* the one node with cores, where there is no map */
    struct numa_map *map;
} self;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The node, if the kernel lists only one that has cores; NUMA_UNBOUND if there are more. */
static int single_node(void)
{
    char list[64] = "";
    FILE *f = fopen("/sys/devices/system/node/has_cpu", "re");
    if (!f)
        return 0; /* a kernel without NUMA */
    const bool read = fgets(list, sizeof list, f) != NULL;
    fclose(f);
    if (!read)
        return 0;
    list[strcspn(list, "\n")] = 0;
    int node;
    return numa_parse(list, &node) && node != NUMA_UNBOUND ? node : NUMA_UNBOUND;
}

static void look(void)
{
    if (!numa_parse(settings_get()->numa_node, &self.wish))
        log_line(LOG_LEVEL_WARN, "POLYPATH_%s; the node is taken from the cores that the process may use",
                 error_text());
    const bool pretended = getenv("HWLOC_SYNTHETIC") || getenv("HWLOC_XMLFILE");
    self.only = pretended ? NUMA_UNBOUND : single_node();
    if (self.only == NUMA_UNBOUND && numa_map_load(NULL, &self.map))
        log_line(LOG_LEVEL_WARN, "NUMA nodes are left alone: %s", error_text());
}

int numa_own_node(void)
{
    if (settings_get()->numa == NUMA_OFF)
        return NUMA_UNBOUND;
    pthread_once(&once, look);
    if (self.wish != NUMA_UNBOUND)
        return self.wish;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    if (!self.map || sched_getaffinity(0, sizeof cpus, &cpus))
        return self.only;
    return numa_map_find(self.map, &cpus);
}

bool numa_place(void *base, size_t bytes, int node)
{
    if (node == NUMA_UNBOUND)
        return true;
    pthread_once(&once, look);
    if (!self.map)
        return node == self.only;
    if (!hwloc_topology_is_thissystem(self.map->topology)) /* hwloc would say yes and do nothing */
        return false;
    hwloc_obj_t object = hwloc_get_numanode_obj_by_os_index(self.map->topology, (unsigned)node);
    /* not strict: memory elsewhere is better than none */
    return object && !hwloc_set_area_membind(self.map->topology, base, bytes, object->nodeset, HWLOC_MEMBIND_BIND,
                                             HWLOC_MEMBIND_BYNODESET);
}
