/*
 * `polypath lab status`: shows what there is, as text or JSON. Changes nothing
 * but stale labs, which every command clears away.
 */
#include <argp.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/cli/cli.h"
#include "frontends/cli/lab_net.h"
#include "frontends/cli/lab_options.h"
#include "frontends/cli/lab_relay.h"
#include "frontends/cli/lab_spec.h"
#include "frontends/cli/lab_state.h"
#include "system/error.h"

struct arguments {
    const char *name; /* NULL: all */
    bool json;
};

static const struct argp_option option_table[] = {
    {"name", LAB_KEY_NAME, "NAME", 0, "only this lab", 0},
    {"json", 'j', NULL, 0, "as a JSON array, one object a lab", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    switch (key) {
    case LAB_KEY_NAME: arguments->name = arg; return 0;
    case 'j': arguments->json = true; return 0;
    case ARGP_KEY_ARG: argp_error(state, "'%s' is one word too many; a lab is named by --name", arg); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const char *means_text(const struct lab *lab, const struct lab_link *link)
{
    switch (link->means) {
    case LAB_MEANS_RELAY: return "relay";
    case LAB_MEANS_NETEM: return "netem";
    case LAB_MEANS_VETH: break;
    }
    return lab->hosts == 2 ? "veth" : "bridge";
}

/* -------------------------------------------------------------------- JSON */

static void add_process(void *context, pid_t pid)
{
    char path[48], name[64] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "re");
    if (file && !fgets(name, sizeof name, file))
        name[0] = '\0';
    if (file)
        fclose(file);
    name[strcspn(name, "\n")] = '\0';
    for (char *c = name; *c; c++)
        if (*c < ' ' || *c > '~') /* a process may call itself anything; JSON wants UTF-8 */
            *c = '?';
    json_array_append_new(context, json_pack("{s:i, s:s}", "pid", (int)pid, "command", name));
}

static json_t *host_json(const struct lab *lab, int host)
{
    char namespace[LAB_NAMESPACE_BYTES], address[LAB_ADDRESS_BYTES];
    lab_namespace(namespace, lab->name, host);
    json_t *processes = json_array(), *addresses = json_object();
    lab_each_process(namespace, add_process, processes);
    for (int i = 0; i < lab->link_count; i++) {
        json_t *list = json_array();
        json_array_append_new(list, json_string(lab_address(address, i, host, false)));
        if (lab->ipv6)
            json_array_append_new(list, json_string(lab_address(address, i, host, true)));
        json_object_set_new(addresses, lab->links[i].name, list);
    }
    return json_pack("{s:i, s:s, s:o, s:o}", "host", host, "namespace", namespace, "addresses", addresses, "processes",
                     processes);
}

static json_t *link_json(const struct lab *lab, int index)
{
    const struct lab_link *link = &lab->links[index];
    struct relay_counters counters;
    json_t *json =
        json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:i, s:b}", "name", link->name, "means", means_text(lab, link),
                  "rate_bits_per_s", (json_int_t)link->rate_bits, "delay_ms", (double)link->delay_ns / 1e6,
                  "loss_percent", link->loss_ppm / 1e4, "reorder_percent", link->reorder_ppm / 1e4, "corrupt_percent",
                  link->corrupt_ppm / 1e4, "mtu", link->mtu, "down", (int)link->down);
    if (link->means == LAB_MEANS_RELAY && relay_read_counters(lab->name, link->name, &counters))
        json_object_set_new(json, "relay",
                            json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "pid", (int)link->relay, "forwarded",
                                      (json_int_t)counters.forwarded, "delayed", (json_int_t)counters.delayed,
                                      "reordered", (json_int_t)counters.reordered, "corrupted",
                                      (json_int_t)counters.corrupted, "lost", (json_int_t)counters.lost, "dropped",
                                      (json_int_t)counters.dropped));
    return json;
}

static json_t *lab_json(const struct lab *lab)
{
    json_t *hosts = json_array(), *links = json_array();
    for (int h = 0; h < lab->hosts; h++)
        json_array_append_new(hosts, host_json(lab, h));
    for (int i = 0; i < lab->link_count; i++)
        json_array_append_new(links, link_json(lab, i));
    return json_pack("{s:s, s:b, s:o, s:o}", "name", lab->name, "temporary", (int)lab->temporary, "hosts", hosts,
                     "links", links);
}

/* -------------------------------------------------------------------- text */

static void print_link(const json_t *json, const struct lab_link *link)
{
    char rate[32], delay[32], percent[32];
    printf("  link %-6s %-9s", link->name, lab_format_rate(rate, link->rate_bits));
    if (link->delay_ns)
        printf(" delay %s", lab_format_delay(delay, link->delay_ns));
    if (link->loss_ppm)
        printf(" loss %s", lab_format_percent(percent, link->loss_ppm));
    if (link->reorder_ppm)
        printf(" reorder %s", lab_format_percent(percent, link->reorder_ppm));
    if (link->corrupt_ppm)
        printf(" corrupt %s", lab_format_percent(percent, link->corrupt_ppm));
    printf(" mtu %d (%s)%s\n", link->mtu, json_string_value(json_object_get(json, "means")), link->down ? " DOWN" : "");
    const json_t *relay = json_object_get(json, "relay");
    if (relay)
        printf("              relay: %lld forwarded, %lld reordered, %lld corrupted, %lld lost, %lld dropped\n",
               (long long)json_integer_value(json_object_get(relay, "forwarded")),
               (long long)json_integer_value(json_object_get(relay, "reordered")),
               (long long)json_integer_value(json_object_get(relay, "corrupted")),
               (long long)json_integer_value(json_object_get(relay, "lost")),
               (long long)json_integer_value(json_object_get(relay, "dropped")));
}

static void print_host(const json_t *host)
{
    size_t i;
    const char *link;
    json_t *list, *process;
    printf("  host %lld   %s", (long long)json_integer_value(json_object_get(host, "host")),
           json_string_value(json_object_get(host, "namespace")));
    json_object_foreach(json_object_get(host, "addresses"), link, list)
        printf("  %s %s", link, json_string_value(json_array_get(list, 0)));
    printf("\n");
    json_array_foreach(json_object_get(host, "processes"), i, process)
        printf("           process %lld %s\n", (long long)json_integer_value(json_object_get(process, "pid")),
               json_string_value(json_object_get(process, "command")));
}

static void print_lab(const struct lab *lab, const json_t *json)
{
    size_t i;
    json_t *entry;
    printf("lab %s: %d hosts%s\n", lab->name, lab->hosts, lab->temporary ? ", temporary" : "");
    json_array_foreach(json_object_get(json, "links"), i, entry) print_link(entry, &lab->links[i]);
    json_array_foreach(json_object_get(json, "hosts"), i, entry) print_host(entry);
}

/* ----------------------------------------------------------------- command */

static polypath_result_t show(const struct arguments *arguments, const char *name, json_t *all)
{
    struct lab lab;
    polypath_result_t result = lab_load(name, &lab);
    if (result)
        return result;
    json_t *json = lab_json(&lab);
    if (!json)
        return error_set(POLYPATH_ERROR_OUT_OF_MEMORY, "out of memory");
    if (!arguments->json)
        print_lab(&lab, json);
    json_array_append_new(all, json);
    return POLYPATH_SUCCESS;
}

int lab_status_main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .doc = "Shows the labs that are up: links, hosts, addresses, and the processes inside.",
    };
    struct arguments arguments = {0};
    int lock, status = CLI_SUCCESS;
    if (argp_parse(&argp, argc, argv, 0, NULL, &arguments) || !lab_is_root(argv[0]))
        return CLI_FAILURE;
    if (lab_lock(&lock)) {
        fprintf(stderr, "%s: %s\n", argv[0], error_text());
        return CLI_FAILURE;
    }
    lab_sweep();
    json_t *all = json_array();
    struct lab_names names = arguments.name ? (struct lab_names){0} : lab_list();
    for (int i = 0; i < (arguments.name ? 1 : names.count); i++)
        if (show(&arguments, arguments.name ? arguments.name : names.names[i], all)) {
            fprintf(stderr, "%s: %s\n", argv[0], error_text());
            status = CLI_FAILURE;
        }
    if (arguments.json && !status) {
        json_dumpf(all, stdout, JSON_INDENT(2));
        printf("\n");
    } else if (!arguments.name && !names.count) {
        printf("no lab is up\n");
    }
    lab_names_free(&names);
    json_decref(all);
    lab_unlock(lock);
    return status;
}
