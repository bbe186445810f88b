/*
 * What the parts of `polypath topo` share: topo.c gathers the hosts and
 * measures the paths into one JSON document, topo_host.c describes the host of
 * the calling process, topo_tree.c prints the document as a tree.
 */
#ifndef CLI_TOPO_H
#define CLI_TOPO_H

#include <jansson.h>
#include <stdio.h>

/* What tells this host from others that ranks may run on: one per kernel and network namespace. Fixed size, padded. */
#define TOPO_HOST_KEY_BYTES 192
void topo_host_key(char key[TOPO_HOST_KEY_BYTES]);

/* This host: name, processor, cores, memory, caches, interfaces. The caller's to free. */
json_t *topo_describe_host(void);

/* The whole document: {"ranks", "hosts": [...], "groups_by", "groups": [...], "paths": [...]}. */
void topo_print_tree(const json_t *document, FILE *out);

#endif
