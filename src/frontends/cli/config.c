/*
 * `polypath config`: every setting with its value and where that came from,
 * out of the one table in system/settings (which shows no secrets). Creates no
 * communicator.
 */
#include <argp.h>
#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "frontends/cli/cli.h"
#include "frontends/cli/cli_util.h"
#include "system/settings.h"

#define VARIABLE_PREFIX "POLYPATH_"
#define VALUE_BYTES 4096

struct config_options {
    bool json;
    const char *name; /* NULL: all */
};

/* ------------------------------------------------------- one setting as text */

static void format_variable(const struct setting *setting, char *text, size_t room)
{
    snprintf(text, room, "%s%s", VARIABLE_PREFIX, setting->name);
    for (char *c = text; *c; c++)
        *c = (char)toupper((unsigned char)*c);
}

/* Bytes as they may be written in the variable: 64K, 16M. */
static void format_scaled(uint64_t bytes, char *text, size_t room)
{
    static const char units[] = " KMGT";
    size_t unit = 0;
    while (bytes && bytes % 1024 == 0 && unit + 2 < sizeof units) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, room, unit ? "%llu%c" : "%llu", (unsigned long long)bytes, units[unit]);
}

static void format_range(const struct setting *setting, char *text, size_t room)
{
    char low[32], high[32];
    switch (setting->type) {
    case SETTING_BOOL: snprintf(text, room, "0 or 1"); break;
    case SETTING_STRING:
    case SETTING_SECRET: snprintf(text, room, "text"); break;
    case SETTING_CHOICE: snprintf(text, room, "%s", setting->choices); break;
    case SETTING_NUMBER:
        snprintf(text, room, "%llu to %llu", (unsigned long long)setting->minimum,
                 (unsigned long long)setting->maximum);
        break;
    case SETTING_BYTES:
        format_scaled(setting->minimum, low, sizeof low);
        format_scaled(setting->maximum, high, sizeof high);
        snprintf(text, room, "%s to %s", low, high);
        break;
    }
}

static const char *type_name(enum setting_type type)
{
    switch (type) {
    case SETTING_BOOL: return "bool";
    case SETTING_NUMBER: return "number";
    case SETTING_BYTES: return "bytes";
    case SETTING_STRING: return "text";
    case SETTING_CHOICE: return "choice";
    case SETTING_SECRET: return "secret";
    }
    return "";
}

static const char *shown(const char *text)
{
    return *text ? text : "\"\"";
}

/* ------------------------------------------------------------------- output */

static void print_one(const struct setting *setting, size_t index, bool styled)
{
    char value[VALUE_BYTES], variable[128], range[256];
    settings_format(index, value, sizeof value);
    format_variable(setting, variable, sizeof variable);
    format_range(setting, range, sizeof range);
    printf("%s%s%s: %s\n\n", cli_style(styled, CLI_BOLD), setting->name, cli_style(styled, CLI_RESET), setting->text);
    printf("  value     %s (%s)\n", shown(value), settings_origin(index));
    printf("  default   %s\n", shown(setting->fallback));
    printf("  range     %s\n", range);
    printf("  variable  %s\n", variable);
    printf("  ranks     %s\n", setting->agreed ? "all use the value of rank 0" : "each uses its own value");
}

/* The text of a setting, broken into lines below its row. */
static void print_wrapped(const char *text, const char *indent, size_t width, bool styled)
{
    size_t column = width + 1;
    for (const char *word = text; *word;) {
        size_t length = strcspn(word, " ");
        if (column + 1 + length > width) {
            printf("%s%s%s", word == text ? "" : "\n", indent, cli_style(styled && word == text, CLI_DIM));
            column = 0;
        } else {
            fputc(' ', stdout);
            column++;
        }
        fwrite(word, 1, length, stdout);
        column += length;
        word += length + strspn(word + length, " ");
    }
    printf("%s\n", cli_style(styled, CLI_RESET));
}

static int longest(const struct setting *table, size_t count, bool value)
{
    int most = 0;
    for (size_t i = 0; i < count; i++) {
        char text[VALUE_BYTES];
        if (value)
            settings_format(i, text, sizeof text);
        else
            format_variable(&table[i], text, sizeof text);
        int length = (int)strlen(shown(text));
        most = length > most ? length : most;
    }
    return most > 40 ? 40 : most;
}

static void print_all(const struct setting *table, size_t count, bool styled)
{
    int names = longest(table, count, false), values = longest(table, count, true);
    printf("%s%-*s  %-*s  %-11s  %-8s  %s%s\n", cli_style(styled, CLI_BOLD), names, "variable", values, "value", "from",
           "default", "range", cli_style(styled, CLI_RESET));
    for (size_t i = 0; i < count; i++) {
        char value[VALUE_BYTES], variable[128], range[256];
        settings_format(i, value, sizeof value);
        format_variable(&table[i], variable, sizeof variable);
        format_range(&table[i], range, sizeof range);
        bool changed = strcmp(settings_origin(i), "default") != 0;
        printf("%-*s  %s%-*s%s  %-11s  %-8s  %s\n", names, variable, cli_style(styled && changed, CLI_GREEN), values,
               shown(value), cli_style(styled && changed, CLI_RESET), settings_origin(i), shown(table[i].fallback),
               range);
        print_wrapped(table[i].text, "    ", 96, styled);
    }
}

static void print_warnings(bool styled)
{
    size_t count;
    const char *const *warnings = settings_warnings(&count);
    if (count)
        printf("\n");
    for (size_t i = 0; i < count; i++)
        printf("%swarning:%s %s\n", cli_style(styled, CLI_YELLOW), cli_style(styled, CLI_RESET), warnings[i]);
}

static json_t *choices_json(const char *choices)
{
    json_t *list = json_array();
    for (const char *word = choices; *word;) {
        size_t length = strcspn(word, " ");
        json_array_append_new(list, json_stringn(word, length));
        word += length + strspn(word + length, " ");
    }
    return list;
}

/* Text from the environment need not be UTF-8; what is not comes out as a replacement. */
static json_t *text_json(const char *text)
{
    json_t *string = json_string(text);
    return string ? string : json_string("(not UTF-8)");
}

static json_t *setting_json(const struct setting *setting, size_t index)
{
    char value[VALUE_BYTES], variable[128];
    settings_format(index, value, sizeof value);
    format_variable(setting, variable, sizeof variable);
    json_t *object = json_pack("{s:s, s:s, s:s, s:o, s:s, s:s}", "name", setting->name, "variable", variable, "type",
                               type_name(setting->type), "value", text_json(value), "origin", settings_origin(index),
                               "default", setting->fallback);
    if (setting->type == SETTING_NUMBER || setting->type == SETTING_BYTES)
        json_object_set_new(
            object, "range",
            json_pack("{s:I, s:I}", "minimum", (json_int_t)setting->minimum, "maximum", (json_int_t)setting->maximum));
    if (setting->type == SETTING_CHOICE)
        json_object_set_new(object, "choices", choices_json(setting->choices));
    json_object_set_new(object, "agreed", json_boolean(setting->agreed));
    json_object_set_new(object, "text", json_string(setting->text));
    return object;
}

static void print_json(const struct setting *table, size_t first, size_t last)
{
    json_t *settings = json_array(), *list = json_array();
    for (size_t i = first; i < last; i++)
        json_array_append_new(settings, setting_json(&table[i], i));
    size_t count;
    const char *const *warnings = settings_warnings(&count);
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, text_json(warnings[i]));
    json_t *document = json_pack("{s:o, s:o}", "settings", settings, "warnings", list);
    json_dumpf(document, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(document);
}

/* ------------------------------------------------------------- command line */

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct config_options *options = state->input;
    switch (key) {
    case 'j': options->json = true; return 0;
    case ARGP_KEY_ARG:
        if (options->name)
            argp_error(state, "one setting at a time, or none for all");
        options->name = argument;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The place of a setting in the table, by its name or its variable's; count if there is none. */
static size_t find_setting(const struct setting *table, size_t count, const char *name)
{
    size_t prefix = strlen(VARIABLE_PREFIX), i = 0;
    if (!strncasecmp(name, VARIABLE_PREFIX, prefix))
        name += prefix;
    while (i < count && strcasecmp(table[i].name, name))
        i++;
    return i;
}

int cli_config(int argc, char **argv)
{
    static const struct argp_option option_table[] = {{"json", 'j', 0, 0, "print as JSON", 0}, {0}};
    static const struct argp argp = {.options = option_table,
                                     .parser = parse,
                                     .args_doc = "[NAME]",
                                     .doc = "Shows every setting: its variable, value, where the value came from, "
                                            "default, range and meaning; or the one called NAME."};
    struct config_options options = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &options))
        return CLI_FAILURE;
    (void)settings_get(); /* reads the environment, which makes the warnings */
    size_t count, first = 0, last;
    const struct setting *table = settings_table(&count);
    last = count;
    if (options.name) {
        first = find_setting(table, count, options.name);
        if (first == count) {
            fprintf(stderr, "polypath config: no setting is called '%s'; the nearest is '%s'\n", options.name,
                    settings_nearest(options.name));
            return CLI_USAGE;
        }
        last = first + 1;
    }
    bool styled = cli_is_terminal(stdout);
    if (options.json) {
        print_json(table, first, last);
    } else {
        if (options.name)
            print_one(&table[first], first, styled);
        else
            print_all(table, count, styled);
        print_warnings(styled);
    }
    return CLI_SUCCESS;
}
