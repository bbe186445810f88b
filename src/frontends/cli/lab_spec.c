/*
 * Text to links and back. See lab_spec.h. Knows nothing of how a link is made.
 */
#include "frontends/cli/lab_spec.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "system/error.h"

struct unit {
    const char *name;
    double factor;
};

/* A number and a unit of the list (ended by a NULL name). False if it is anything else. */
static bool parse_quantity(const char *text, const struct unit *units, double *value)
{
    char *end;
    if (!isdigit((unsigned char)*text) && *text != '.')
        return false;
    errno = 0;
    double number = strtod(text, &end);
    if (end == text || errno || !isfinite(number) || number < 0)
        return false;
    if (number == 0 && !*end) { /* no unit needed */
        *value = 0;
        return true;
    }
    for (; units->name; units++)
        if (!strcasecmp(end, units->name)) {
            *value = number * units->factor;
            return true;
        }
    return false;
}

polypath_result_t lab_parse_rate(const char *text, uint64_t *bits)
{
    static const struct unit units[] = {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {NULL, 0}};
    double value;
    *bits = 0;
    if (!strcmp(text, "none"))
        return POLYPATH_SUCCESS;
    if (!parse_quantity(text, units, &value) || value < 8000 || value > 1e12)
        return error_set(POLYPATH_ERROR_ARGUMENT,
                         "a rate is a number from 8kbit to 1000gbit with bit, kbit, mbit or gbit behind it, or none; "
                         "not '%s'",
                         text);
    *bits = (uint64_t)llround(value);
    return POLYPATH_SUCCESS;
}

polypath_result_t lab_parse_delay(const char *text, uint64_t *ns)
{
    static const struct unit units[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
    double value;
    if (!parse_quantity(text, units, &value) || value > 10e9)
        return error_set(POLYPATH_ERROR_ARGUMENT, "a delay is a number up to 10s with us, ms or s behind it; not '%s'",
                         text);
    *ns = (uint64_t)llround(value);
    return POLYPATH_SUCCESS;
}

polypath_result_t lab_parse_percent(const char *text, uint32_t *ppm)
{
    static const struct unit units[] = {{"%", 1e4}, {NULL, 0}};
    double value;
    if (!parse_quantity(text, units, &value) || value > 1e6)
        return error_set(POLYPATH_ERROR_ARGUMENT, "a share of packets is a number from 0%% to 100%%; not '%s'", text);
    *ppm = (uint32_t)lround(value);
    return POLYPATH_SUCCESS;
}

polypath_result_t lab_check_name(const char *name)
{
    size_t length = strlen(name);
    if (!length || length > LAB_NAME_MAX ||
        length != strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") || name[0] == '-')
        return error_set(POLYPATH_ERROR_ARGUMENT,
                         "a lab's name is 1 to %d letters, digits and '-' (not in front); not '%s'", LAB_NAME_MAX,
                         name);
    return POLYPATH_SUCCESS;
}

static polypath_result_t parse_mtu(const char *text, int *mtu)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 1280 || value > 65535) /* 1280: what IPv6 asks for */
        return error_set(POLYPATH_ERROR_ARGUMENT, "an mtu is a number from 1280 to 65535; not '%s'", text);
    *mtu = (int)value;
    return POLYPATH_SUCCESS;
}

static polypath_result_t parse_interface(const char *text, char name[IF_NAMESIZE])
{
    size_t length = strlen(text);
    if (!length || length >= IF_NAMESIZE || !isalpha((unsigned char)*text) || !strcmp(text, "lo") ||
        length != strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"))
        return error_set(
            POLYPATH_ERROR_ARGUMENT,
            "an interface's name is up to %d letters, digits, '-' and '_', a letter first, not lo; not '%s'",
            IF_NAMESIZE - 1, text);
    memcpy(name, text, length + 1);
    return POLYPATH_SUCCESS;
}

static polypath_result_t parse_means(const char *text, struct lab_link *link)
{
    if (strcmp(text, "relay") && strcmp(text, "netem"))
        return error_set(POLYPATH_ERROR_ARGUMENT, "via is relay or netem; not '%s'", text);
    link->impaired = true;
    link->choose = false;
    link->means = strcmp(text, "relay") ? LAB_MEANS_NETEM : LAB_MEANS_RELAY;
    return POLYPATH_SUCCESS;
}

static polypath_result_t parse_field(const char *key, const char *value, struct lab_link *link)
{
    if (!strcmp(key, "rate"))
        return lab_parse_rate(value, &link->rate_bits);
    if (!strcmp(key, "loss"))
        return lab_parse_percent(value, &link->loss_ppm);
    if (!strcmp(key, "name"))
        return parse_interface(value, link->name);
    if (!strcmp(key, "mtu"))
        return parse_mtu(value, &link->mtu);
    if (!strcmp(key, "via"))
        return parse_means(value, link);
    if (strcmp(key, "delay") && strcmp(key, "reorder") && strcmp(key, "corrupt"))
        return error_set(POLYPATH_ERROR_ARGUMENT,
                         "'%s' is none of rate, delay, loss, reorder, corrupt, mtu, name and via", key);
    link->impaired = true;
    if (*key == 'd')
        return lab_parse_delay(value, &link->delay_ns);
    return lab_parse_percent(value, *key == 'r' ? &link->reorder_ppm : &link->corrupt_ppm);
}

polypath_result_t lab_check_link(const struct lab_link *link)
{
    if (link->reorder_ppm && !link->delay_ns)
        return error_set(POLYPATH_ERROR_ARGUMENT,
                         "link %s: reorder needs a delay: the reordered packets are those that are not delayed",
                         link->name);
    return POLYPATH_SUCCESS;
}

polypath_result_t lab_parse_link(const char *spec, struct lab *lab)
{
    if (lab->link_count == LAB_LINKS_MAX)
        return error_set(POLYPATH_ERROR_ARGUMENT, "a lab has at most %d links", LAB_LINKS_MAX);
    struct lab_link link = {.mtu = 1500, .choose = true};
    snprintf(link.name, sizeof link.name, "eth%d", lab->link_count);
    char copy[256], *rest = copy, *field;
    if (strlen(spec) >= sizeof copy)
        return error_set(POLYPATH_ERROR_ARGUMENT, "the link '%.40s...' is too long", spec);
    memcpy(copy, spec, strlen(spec) + 1);
    for (bool first = true; (field = strsep(&rest, ",")); first = false) {
        char *value = strchr(field, '=');
        polypath_result_t result;
        if (value) {
            *value++ = '\0';
            result = parse_field(field, value, &link);
        } else if (first) {
            result = lab_parse_rate(field, &link.rate_bits);
        } else {
            result = error_set(POLYPATH_ERROR_ARGUMENT, "'%s' has no value", field);
        }
        if (result)
            return error_prefix(result, "link '%s'", spec);
    }
    for (int i = 0; i < lab->link_count; i++)
        if (!strcmp(lab->links[i].name, link.name))
            return error_set(POLYPATH_ERROR_ARGUMENT, "two links are called %s", link.name);
    polypath_result_t result = lab_check_link(&link);
    if (!result)
        lab->links[lab->link_count++] = link;
    return result;
}

/* The number with the largest unit that leaves at least 1, without trailing zeros. */
static const char *format_quantity(char *text, double value, const struct unit *units)
{
    while (units[1].name && value >= units[1].factor)
        units++;
    snprintf(text, 32, "%.10g%s", value / units->factor, units->name);
    return text;
}

const char *lab_format_rate(char *text, uint64_t bits)
{
    static const struct unit units[] = {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {NULL, 0}};
    if (bits)
        return format_quantity(text, (double)bits, units);
    snprintf(text, 32, "none");
    return text;
}

const char *lab_format_delay(char *text, uint64_t ns)
{
    static const struct unit units[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
    if (ns)
        return format_quantity(text, (double)ns, units);
    snprintf(text, 32, "0");
    return text;
}

const char *lab_format_percent(char *text, uint32_t ppm)
{
    snprintf(text, 32, "%.10g%%", (double)ppm / 1e4);
    return text;
}
