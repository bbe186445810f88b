/*
 * Prints the document of `polypath topo` as a tree for people. Reads nothing
 * but the document.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/cli/cli_util.h"
#include "frontends/cli/topo.h"

/* A line of the tree and the lines below it. */
struct node {
    char *text;
    struct node *first, *last, *next;
};

static struct node *add(struct node *parent, const char *format, ...) __attribute__((format(printf, 2, 3)));
static struct node *add(struct node *parent, const char *format, ...)
{
    struct node *node = cli_allocate(sizeof *node);
    *node = (struct node){0};
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&node->text, format, arguments) < 0)
        node->text = NULL;
    va_end(arguments);
    if (parent) {
        *(parent->last ? &parent->last->next : &parent->first) = node;
        parent->last = node;
    }
    return node;
}

static void print_and_free(struct node *node, const char *indent, bool is_root, FILE *out)
{
    bool lines = cli_is_utf8();
    const char *branch = lines ? "├─ " : "|- ", *corner = lines ? "└─ " : "`- ", *trunk = lines ? "│  " : "|  ";
    if (is_root)
        fprintf(out, "%s\n", node->text ? node->text : "");
    for (struct node *child = node->first, *next; child; child = next) {
        next = child->next;
        fprintf(out, "%s%s%s\n", indent, next ? branch : corner, child->text ? child->text : "");
        char *deeper = NULL;
        if (asprintf(&deeper, "%s%s", indent, next ? trunk : "   ") >= 0)
            print_and_free(child, deeper, false, out);
        free(deeper);
    }
    free(node->text);
    free(node);
}

/* ----------------------------------------------------------------- contents */

static long long integer(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static const char *string(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static const char *plural(long long count)
{
    return count == 1 ? "" : "s";
}

static void add_host_name(const json_t *host, char *text, size_t room)
{
    const json_t *lab = json_object_get(host, "lab_host");
    snprintf(text, room, "%s", string(host, "name"));
    if (json_is_integer(lab))
        snprintf(text, room, "%s, host %lld of the lab", string(host, "name"), (long long)json_integer_value(lab));
}

/* "0-3, 7": the ranks of a host are often neighbours. */
static void format_ranks(const json_t *ranks, char *text, size_t room)
{
    size_t count = json_array_size(ranks), used = 0;
    *text = 0;
    for (size_t i = 0; i < count && used < room;) {
        long long first = json_integer_value(json_array_get(ranks, i)), last = first;
        for (i++; i < count && json_integer_value(json_array_get(ranks, i)) == last + 1; i++)
            last++;
        used += (size_t)snprintf(text + used, room - used, "%s%lld", used ? ", " : "", first);
        if (last > first && used < room)
            used += (size_t)snprintf(text + used, room - used, "%s%lld", last == first + 1 ? ", " : "-", last);
    }
}

static void add_machine(struct node *parent, const json_t *host)
{
    char memory[32];
    long long packages = integer(host, "packages"), cores = integer(host, "cores"), threads = integer(host, "threads");
    cli_format_bytes((size_t)integer(host, "memory_bytes"), memory, sizeof memory);
    const char *model = string(host, "processor");
    add(parent, "%s%s%lld package%s, %lld core%s, %lld thread%s, %s", model, *model ? ": " : "", packages,
        plural(packages), cores, plural(cores), threads, plural(threads), memory);
    const json_t *nodes = json_object_get(host, "numa_nodes"), *node, *caches = json_object_get(host, "caches");
    size_t i;
    json_array_foreach(nodes, i, node)
    {
        cli_format_bytes((size_t)integer(node, "memory_bytes"), memory, sizeof memory);
        add(parent, "NUMA node %lld: cpus %s, %s", integer(node, "number"), string(node, "cpus"), memory);
    }
    const json_t *cache;
    char line[256] = "";
    json_array_foreach(caches, i, cache)
    {
        char size[32];
        size_t used = strlen(line);
        cli_format_bytes((size_t)integer(cache, "bytes"), size, sizeof size);
        snprintf(line + used, sizeof line - used, "%s%s %lld x %s", i ? ", " : "", string(cache, "name"),
                 integer(cache, "count"), size);
    }
    if (*line)
        add(parent, "caches: %s", line);
}

/* A line for each NUMA node that ranks run on, and one for those that are bound to none. */
static void add_rank_nodes(struct node *parent, const json_t *host)
{
    const json_t *ranks = json_object_get(host, "ranks"), *nodes = json_object_get(host, "rank_nodes");
    const size_t count = json_array_size(nodes);
    for (size_t first = 0; first < count; first++) {
        const json_t *node = json_array_get(nodes, first);
        json_t *together = json_array();
        bool seen = false;
        for (size_t i = 0; i < count; i++) {
            if (!json_equal(json_array_get(nodes, i), node))
                continue;
            seen |= i < first;
            json_array_append(together, json_array_get(ranks, i));
        }
        char numbers[256];
        format_ranks(together, numbers, sizeof numbers);
        const char *several = plural((long long)json_array_size(together));
        if (!seen && json_is_integer(node))
            add(parent, "rank%s %s on NUMA node %lld", several, numbers, (long long)json_integer_value(node));
        else if (!seen)
            add(parent, "rank%s %s bound to no single NUMA node", several, numbers);
        json_decref(together);
    }
}

static void add_groups(struct node *parent, const json_t *document)
{
    const json_t *groups = json_object_get(document, "groups"), *group;
    const bool by_node = !strcmp(string(document, "groups_by"), "numa_node");
    size_t i;
    if (json_array_size(groups) < 2)
        return;
    struct node *node = add(parent, "groups of two-level algorithms, by %s", by_node ? "NUMA node" : "host");
    json_array_foreach(groups, i, group)
    {
        char numbers[256];
        format_ranks(group, numbers, sizeof numbers);
        add(node, "rank%s %s", plural((long long)json_array_size(group)), numbers);
    }
}

static void add_interfaces(struct node *parent, const json_t *host)
{
    const json_t *list = json_object_get(host, "interfaces"), *interface;
    size_t i;
    struct node *node = add(parent, json_array_size(list) ? "interfaces" : "interfaces: none but loopback");
    json_array_foreach(list, i, interface)
    {
        long long speed = integer(interface, "speed_mbps");
        if (speed)
            add(node, "%-10s %s/%lld, %lld Mbit/s", string(interface, "name"), string(interface, "address"),
                integer(interface, "prefix_bits"), speed);
        else
            add(node, "%-10s %s/%lld", string(interface, "name"), string(interface, "address"),
                integer(interface, "prefix_bits"));
    }
}

static void add_path(struct node *parent, const json_t *path, const json_t *hosts)
{
    struct node *node = add(parent, "%s (%s)", string(path, "name"), string(path, "kind"));
    const json_t *pairs = json_object_get(path, "measured"), *pair;
    size_t i;
    json_array_foreach(pairs, i, pair)
    {
        double latency = json_number_value(json_object_get(pair, "latency_us"));
        double rate = json_number_value(json_object_get(pair, "bandwidth_gbps"));
        if (json_array_size(hosts) > 1)
            add(node, "rank %lld - rank %lld (other host): %.1f us, %.3g GB/s (%.3g Gbit/s)", integer(pair, "from"),
                integer(pair, "to"), latency, rate, 8 * rate);
        else
            add(node, "rank %lld - rank %lld: %.2f us, %.3g GB/s", integer(pair, "from"), integer(pair, "to"), latency,
                rate);
    }
}

void topo_print_tree(const json_t *document, FILE *out)
{
    const json_t *hosts = json_object_get(document, "hosts"), *paths = json_object_get(document, "paths");
    long long ranks = integer(document, "ranks");
    size_t count = json_array_size(hosts), i;
    const json_t *host, *path;
    struct node *root = add(NULL, "%lld rank%s on %zu host%s", ranks, plural(ranks), count, plural((long long)count));
    json_array_foreach(hosts, i, host)
    {
        char name[320], numbers[256];
        add_host_name(host, name, sizeof name);
        format_ranks(json_object_get(host, "ranks"), numbers, sizeof numbers);
        struct node *node = add(root, "host %s: rank%s %s", name,
                                plural((long long)json_array_size(json_object_get(host, "ranks"))), numbers);
        add_machine(node, host);
        add_rank_nodes(node, host);
        add_interfaces(node, host);
    }
    add_groups(root, document);
    struct node *list = add(root, json_array_size(paths) ? "paths" : "paths: none (one rank)");
    json_array_foreach(paths, i, path)
    {
        add_path(list, path, hosts);
    }
    print_and_free(root, "", true, out);
}
