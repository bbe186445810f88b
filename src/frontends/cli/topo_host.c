/*
 * Describes the host of the calling process: what hwloc knows of its cores,
 * memory and caches, and the interfaces that may carry data. Knows nothing of
 * ranks and paths.
 */
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontends/cli/topo.h"
#include "system/settings.h"
#include "topology/interfaces.h"

static void read_line(const char *file, char *text, size_t room)
{
    FILE *in = fopen(file, "re");
    if (!in || !fgets(text, (int)room, in))
        *text = 0;
    if (in)
        fclose(in);
    text[strcspn(text, "\n")] = 0;
}

void topo_host_key(char key[TOPO_HOST_KEY_BYTES])
{
    char boot[64];
    struct stat network = {0};
    memset(key, 0, TOPO_HOST_KEY_BYTES);
    if (*settings_get()->host_id) {
        snprintf(key, TOPO_HOST_KEY_BYTES, "%s", settings_get()->host_id);
        return;
    }
    read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    if (stat("/proc/self/ns/net", &network))
        network.st_ino = 0;
    snprintf(key, TOPO_HOST_KEY_BYTES, "%s %llu", boot, (unsigned long long)network.st_ino);
}

/* ------------------------------------------------------------ what hwloc has */

static json_t *describe_caches(hwloc_topology_t topology)
{
    static const struct {
        hwloc_obj_type_t type;
        const char *name;
    } kinds[] = {
        {HWLOC_OBJ_L1CACHE, "L1d"}, {HWLOC_OBJ_L2CACHE, "L2"}, {HWLOC_OBJ_L3CACHE, "L3"}, {HWLOC_OBJ_L4CACHE, "L4"}};
    json_t *caches = json_array();
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        int count = hwloc_get_nbobjs_by_type(topology, kinds[i].type);
        if (count <= 0)
            continue;
        hwloc_obj_t first = hwloc_get_obj_by_type(topology, kinds[i].type, 0);
        json_array_append_new(caches, json_pack("{s:s, s:i, s:I, s:i}", "name", kinds[i].name, "count", count, "bytes",
                                                (json_int_t)first->attr->cache.size, "threads_each",
                                                hwloc_bitmap_weight(first->cpuset)));
    }
    return caches;
}

static json_t *describe_numa(hwloc_topology_t topology)
{
    json_t *nodes = json_array();
    int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
    for (int i = 0; i < count; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)i);
        char cpus[128] = "";
        if (node->cpuset)
            hwloc_bitmap_list_snprintf(cpus, sizeof cpus, node->cpuset);
        json_array_append_new(nodes, json_pack("{s:i, s:s, s:I}", "number", (int)node->os_index, "cpus", cpus,
                                               "memory_bytes", (json_int_t)node->attr->numanode.local_memory));
    }
    return nodes;
}

static void describe_machine(json_t *host)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology))
        return;
    if (hwloc_topology_load(topology)) {
        hwloc_topology_destroy(topology);
        return;
    }
    hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    json_object_set_new(host, "processor", model && *model ? json_string(model) : json_null());
    json_object_set_new(host, "packages", json_integer(hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE)));
    json_object_set_new(host, "cores", json_integer(hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE)));
    json_object_set_new(host, "threads", json_integer(hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU)));
    json_object_set_new(host, "memory_bytes", json_integer((json_int_t)hwloc_get_root_obj(topology)->total_memory));
    json_object_set_new(host, "numa_nodes", describe_numa(topology));
    json_object_set_new(host, "caches", describe_caches(topology));
    hwloc_topology_destroy(topology);
}

/* --------------------------------------------------------------- interfaces */

static json_t *describe_interfaces(void)
{
    struct interface found[INTERFACES_MAX];
    int count = 0;
    json_t *list = json_array();
    const struct settings *settings = settings_get();
    if (interfaces_find(settings->interfaces, (int)settings->ip_family, found, &count))
        return list; /* a filter that names nothing; the communicator has said so */
    for (int i = 0; i < count; i++) {
        char address[64];
        interfaces_format(&found[i], address);
        json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:o}", "name", found[i].name, "address", address,
                                              "prefix_bits", (int)found[i].prefix_bits, "speed_mbps",
                                              found[i].speed_mbps ? json_integer(found[i].speed_mbps) : json_null()));
    }
    return list;
}

json_t *topo_describe_host(void)
{
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    json_t *host = json_pack("{s:s}", "name", *name ? name : "unnamed");
    const char *lab = getenv("POLYPATH_LAB_HOST");
    json_object_set_new(host, "lab_host", lab && *lab ? json_integer(atoi(lab)) : json_null());
    describe_machine(host);
    json_object_set_new(host, "interfaces", describe_interfaces());
    return host;
}
