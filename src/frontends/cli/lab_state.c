/*
 * State files and their lock. See lab_state.h. Knows nothing of namespaces.
 */
#include "frontends/cli/lab_state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontends/cli/lab_spec.h"
#include "system/error.h"

#define PATH_BYTES 160

static const char *const means_names[] = {"veth", "netem", "relay"};

static const char *state_file(char path[PATH_BYTES], const char *name, const char *ending)
{
    snprintf(path, PATH_BYTES, LAB_FOLDER "/%s.json%s", name, ending);
    return path;
}

const char *lab_relay_file(char *path, const char *lab, const char *link)
{
    snprintf(path, PATH_BYTES, LAB_FOLDER "/%s.%s.relay", lab, link);
    return path;
}

/* -------------------------------------------------------------------- lock */

polypath_result_t lab_lock(int *lock)
{
    for (;;) {
        if (mkdir(LAB_FOLDER, 0755) && errno != EEXIST)
            return error_set(POLYPATH_ERROR_SYSTEM, "cannot make " LAB_FOLDER ": %s", strerror(errno));
        int fd = open(LAB_FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT) /* its last lab went in between */
            continue;
        if (fd < 0)
            return error_set(POLYPATH_ERROR_SYSTEM, "cannot open " LAB_FOLDER ": %s", strerror(errno));
        int locked;
        while ((locked = flock(fd, LOCK_EX)) && errno == EINTR)
            ;
        struct stat held, there;
        if (!locked && !fstat(fd, &held) && !stat(LAB_FOLDER, &there) && held.st_ino == there.st_ino) {
            *lock = fd;
            return POLYPATH_SUCCESS;
        }
        int reason = errno;
        close(fd);
        if (locked)
            return error_set(POLYPATH_ERROR_SYSTEM, "cannot lock " LAB_FOLDER ": %s", strerror(reason));
    }
}

void lab_unlock(int lock)
{
    rmdir(LAB_FOLDER); /* fails while a lab is there */
    close(lock);
}

/* ---------------------------------------------------------------- identity */

static void read_boot_id(char boot[40])
{
    boot[0] = '\0';
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file)
        return;
    if (fscanf(file, "%39s", boot) != 1)
        boot[0] = '\0';
    fclose(file);
}

/* Field 22 of /proc/PID/stat; 0 if there is no such process (or only its zombie). */
static uint64_t start_time(pid_t pid)
{
    char path[48], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t got = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[got] = '\0';
    char *field = strrchr(line, ')'); /* the name before it may contain anything */
    if (!field || field[1] != ' ' || field[2] == 'Z')
        return 0;
    field += 2;
    for (int number = 3; number < 22 && field; number++) {
        field = strchr(field, ' ');
        field = field ? field + 1 : NULL;
    }
    return field ? strtoull(field, NULL, 10) : 0;
}

void lab_sign(struct lab *lab)
{
    read_boot_id(lab->boot);
    lab->owner = getpid();
    lab->owner_start = start_time(lab->owner);
}

bool lab_is_stale(const struct lab *lab)
{
    char boot[40];
    read_boot_id(boot);
    if (strcmp(boot, lab->boot))
        return true;
    bool owner_lives = lab->owner_start && start_time(lab->owner) == lab->owner_start;
    /* A builder holds the lock until it is done, so one that we can see has died. */
    return lab->building || (lab->temporary && !owner_lives);
}

/* -------------------------------------------------------------------- JSON */

static json_t *link_to_json(const struct lab_link *link)
{
    return json_pack("{s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:b, s:b, s:s, s:i}", "name", link->name, "rate_bits",
                     (json_int_t)link->rate_bits, "delay_ns", (json_int_t)link->delay_ns, "loss_ppm",
                     (int)link->loss_ppm, "reorder_ppm", (int)link->reorder_ppm, "corrupt_ppm", (int)link->corrupt_ppm,
                     "mtu", link->mtu, "impaired", (int)link->impaired, "down", (int)link->down, "means",
                     means_names[link->means], "relay", (int)link->relay);
}

static bool link_from_json(json_t *json, struct lab_link *link)
{
    const char *name, *means;
    json_int_t rate, delay;
    int loss, reorder, corrupt, impaired, down, relay;
    if (json_unpack(json, "{s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:b, s:b, s:s, s:i}", "name", &name, "rate_bits", &rate,
                    "delay_ns", &delay, "loss_ppm", &loss, "reorder_ppm", &reorder, "corrupt_ppm", &corrupt, "mtu",
                    &link->mtu, "impaired", &impaired, "down", &down, "means", &means, "relay", &relay) ||
        strlen(name) >= sizeof link->name || strchr(name, '/'))
        return false;
    memcpy(link->name, name, strlen(name) + 1);
    link->rate_bits = (uint64_t)rate;
    link->delay_ns = (uint64_t)delay;
    link->loss_ppm = (uint32_t)loss;
    link->reorder_ppm = (uint32_t)reorder;
    link->corrupt_ppm = (uint32_t)corrupt;
    link->impaired = impaired;
    link->down = down;
    link->relay = relay;
    for (int i = LAB_MEANS_VETH; i <= LAB_MEANS_RELAY; i++)
        if (!strcmp(means, means_names[i]))
            link->means = (enum lab_means)i;
    return true;
}

polypath_result_t lab_save(const struct lab *lab)
{
    char path[PATH_BYTES], fresh[PATH_BYTES];
    json_t *links = json_array();
    for (int i = 0; i < lab->link_count; i++)
        json_array_append_new(links, link_to_json(&lab->links[i]));
    json_t *json =
        json_pack("{s:s, s:i, s:b, s:b, s:i, s:I, s:s, s:b, s:o}", "name", lab->name, "hosts", lab->hosts, "building",
                  (int)lab->building, "temporary", (int)lab->temporary, "owner", (int)lab->owner, "owner_start",
                  (json_int_t)lab->owner_start, "boot", lab->boot, "ipv6", (int)lab->ipv6, "links", links);
    /* Renamed into place: whoever reads it sees the old or the new one, whole. */
    int failed = !json || json_dump_file(json, state_file(fresh, lab->name, ".new"), JSON_INDENT(2)) ||
                 rename(fresh, state_file(path, lab->name, ""));
    int reason = errno;
    json_decref(json);
    if (failed)
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot write %s: %s", state_file(path, lab->name, ""),
                         strerror(reason));
    return POLYPATH_SUCCESS;
}

static bool lab_from_json(json_t *json, struct lab *lab)
{
    const char *name, *boot;
    int building, temporary, ipv6, owner;
    json_int_t owner_start;
    json_t *links;
    if (json_unpack(json, "{s:s, s:i, s:b, s:b, s:i, s:I, s:s, s:b, s:o}", "name", &name, "hosts", &lab->hosts,
                    "building", &building, "temporary", &temporary, "owner", &owner, "owner_start", &owner_start,
                    "boot", &boot, "ipv6", &ipv6, "links", &links) ||
        strcmp(name, lab->name) || strlen(boot) >= sizeof lab->boot || lab->hosts < 2 || lab->hosts > LAB_HOSTS_MAX ||
        json_array_size(links) > LAB_LINKS_MAX)
        return false;
    memcpy(lab->boot, boot, strlen(boot) + 1);
    lab->building = building;
    lab->temporary = temporary;
    lab->ipv6 = ipv6;
    lab->owner = owner;
    lab->owner_start = (uint64_t)owner_start;
    lab->link_count = (int)json_array_size(links);
    for (int i = 0; i < lab->link_count; i++)
        if (!link_from_json(json_array_get(links, (size_t)i), &lab->links[i]))
            return false;
    return true;
}

/* ------------------------------------------------------------------- files */

bool lab_exists(const char *name)
{
    char path[PATH_BYTES];
    return !access(state_file(path, name, ""), F_OK);
}

static polypath_result_t no_such_lab(const char *name)
{
    char text[400] = "";
    struct lab_names names = lab_list();
    for (int i = 0; i < names.count && strlen(text) + LAB_NAME_MAX + 4 < sizeof text; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? ", " : "", names.names[i]);
    int count = names.count;
    lab_names_free(&names);
    return error_set(POLYPATH_ERROR_USAGE, "no lab '%s' is up (%s%s)", name, count ? "there is " : "none is", text);
}

polypath_result_t lab_load(const char *name, struct lab *lab)
{
    char path[PATH_BYTES];
    *lab = (struct lab){0};
    polypath_result_t result = lab_check_name(name);
    if (result)
        return result;
    memcpy(lab->name, name, strlen(name) + 1); /* as long as lab_check_name allows */
    if (!lab_exists(name))
        return no_such_lab(name);
    json_error_t where;
    json_t *json = json_load_file(state_file(path, name, ""), 0, &where);
    bool good = json && lab_from_json(json, lab);
    json_decref(json);
    if (!good)
        return error_set(POLYPATH_ERROR_SYSTEM, "%s cannot be read%s%s; `polypath lab down --name %s' removes the lab",
                         path, json ? "" : ": ", json ? "" : where.text, name);
    return POLYPATH_SUCCESS;
}

void lab_forget(const char *name)
{
    size_t length = strlen(name);
    DIR *folder = opendir(LAB_FOLDER);
    if (!folder)
        return;
    for (struct dirent *entry; (entry = readdir(folder));)
        if (!strncmp(entry->d_name, name, length) && entry->d_name[length] == '.')
            unlinkat(dirfd(folder), entry->d_name, 0);
    closedir(folder);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

struct lab_names lab_list(void)
{
    struct lab_names names = {0};
    DIR *folder = opendir(LAB_FOLDER);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char *dot = strchr(entry->d_name, '.');
        if (!dot || dot == entry->d_name || strcmp(dot, ".json") || dot - entry->d_name > LAB_NAME_MAX)
            continue;
        char(*grown)[LAB_NAME_MAX + 1] = realloc(names.names, (size_t)(names.count + 1) * sizeof *grown);
        if (!grown)
            break;
        names.names = grown;
        snprintf(names.names[names.count++], sizeof *grown, "%.*s", (int)(dot - entry->d_name), entry->d_name);
    }
    if (folder)
        closedir(folder);
    if (names.count)
        qsort(names.names, (size_t)names.count, sizeof *names.names, compare_names);
    return names;
}

void lab_names_free(struct lab_names *names)
{
    free(names->names);
    *names = (struct lab_names){0};
}
