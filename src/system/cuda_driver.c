/*
 * Finds the CUDA driver and fills its table. No GPU is a normal state of a
 * machine, so nothing here is fatal: what is missing becomes a text.
 */
#include "system/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "system/error.h"
#include "system/log.h"
#include "system/settings.h"

struct entry {
    const char *symbol;
    size_t offset; /* in struct cuda_driver */
};

#define ENTRY(field, symbol, parameters) {#symbol, offsetof(struct cuda_driver, field)},
static const struct entry entries[] = {CUDA_DRIVER_ENTRIES(ENTRY)};
#undef ENTRY

static struct cuda_driver process_driver;
static bool process_has_driver;
static char process_why[ERROR_TEXT_BYTES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Asked before the other entries: an old driver should be called old, not incomplete. */
static polypath_result_t check_version(void *handle, const char *library, struct cuda_driver *driver)
{
    *(void **)&driver->driver_get_version = dlsym(handle, "cuDriverGetVersion");
    if (!driver->driver_get_version)
        return error_set(POLYPATH_ERROR_UNSUPPORTED, "%s is not a CUDA driver: it has no cuDriverGetVersion", library);
    cuda_result_t result = driver->driver_get_version(&driver->version);
    if (result)
        return error_set(POLYPATH_ERROR_UNSUPPORTED, "%s does not tell its version: CUDA error %u", library, result);
    if (driver->version < CUDA_DRIVER_OLDEST)
        return error_set(POLYPATH_ERROR_UNSUPPORTED,
                         "the CUDA driver %s is too old: it is for CUDA %d.%d, and %d.%d is needed", library,
                         driver->version / 1000, driver->version % 1000 / 10, CUDA_DRIVER_OLDEST / 1000,
                         CUDA_DRIVER_OLDEST % 1000 / 10);
    return POLYPATH_SUCCESS;
}

static polypath_result_t fill(void *handle, const char *library, struct cuda_driver *driver)
{
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *address = dlsym(handle, entries[i].symbol);
        if (!address)
            return error_set(POLYPATH_ERROR_UNSUPPORTED, "the CUDA driver %s (%d.%d) has no %s", library,
                             driver->version / 1000, driver->version % 1000 / 10, entries[i].symbol);
        memcpy((char *)driver + entries[i].offset, &address, sizeof address);
    }
    return POLYPATH_SUCCESS;
}

static polypath_result_t start(const char *library, struct cuda_driver *driver, bool *loud)
{
    cuda_result_t result = driver->init(0);
    const char *call = "cuInit";
    if (!result) {
        result = driver->device_get_count(&driver->devices);
        call = "cuDeviceGetCount";
    }
    *loud = result && result != CUDA_IS_NO_DEVICE;
    if (!*loud && driver->devices < 1)
        return error_set(POLYPATH_ERROR_UNSUPPORTED, "the CUDA driver %s sees no GPU", library);
    if (cuda_check(driver, result, -1, "%s", call))
        return error_prefix(POLYPATH_ERROR_UNSUPPORTED, "the CUDA driver %s", library);
    return POLYPATH_SUCCESS;
}

/* *loud: whether a failure is worth a line. A machine without a driver is not, nor is one without a GPU. */
static polypath_result_t load(const char *library, struct cuda_driver *driver, bool *loud)
{
    memset(driver, 0, sizeof *driver);
    *loud = false;
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return error_set(POLYPATH_ERROR_UNSUPPORTED, "no CUDA driver: %s", dlerror());
    *loud = true;
    polypath_result_t code = check_version(handle, library, driver);
    if (!code)
        code = fill(handle, library, driver);
    if (code) {
        dlclose(handle); /* not initialised yet, so it may go */
        return code;
    }
    return start(library, driver, loud);
}

polypath_result_t cuda_driver_load(const char *library, struct cuda_driver *driver)
{
    bool loud;
    return load(library, driver, &loud);
}

static void load_once(void)
{
    const char *library = settings_get()->cuda_driver;
    bool loud;
    if (!*library) {
        snprintf(process_why, sizeof process_why, "GPUs are switched off: setting cuda_driver is empty");
        return;
    }
    process_has_driver = load(library, &process_driver, &loud) == POLYPATH_SUCCESS;
    if (process_has_driver) {
        log_line(LOG_LEVEL_INFO, "CUDA driver %s %d.%d, %d GPU(s)", library, process_driver.version / 1000,
                 process_driver.version % 1000 / 10, process_driver.devices);
        return;
    }
    snprintf(process_why, sizeof process_why, "%s", error_text());
    log_line(loud ? LOG_LEVEL_WARN : LOG_LEVEL_DEBUG, "GPUs are not used: %s", process_why);
}

const struct cuda_driver *cuda_driver_get(const char **why)
{
    pthread_once(&once, load_once);
    if (why)
        *why = process_why;
    return process_has_driver ? &process_driver : NULL;
}

/* The few results that mean something to a caller of the library. */
static polypath_result_t code_of(cuda_result_t result)
{
    switch (result) {
    case CUDA_IS_OUT_OF_MEMORY: return POLYPATH_ERROR_OUT_OF_MEMORY;
    case CUDA_IS_NOT_SUPPORTED:
    case CUDA_IS_PEER_ACCESS_UNSUPPORTED: return POLYPATH_ERROR_UNSUPPORTED;
    case CUDA_IS_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_IS_STREAM_CAPTURE_INVALIDATED: return POLYPATH_ERROR_USAGE;
    default: return POLYPATH_ERROR_SYSTEM;
    }
}

polypath_result_t cuda_check(const struct cuda_driver *driver, cuda_result_t result, int device, const char *format,
                             ...)
{
    if (result == CUDA_IS_OK)
        return POLYPATH_SUCCESS;
    const char *name = NULL, *text = NULL;
    if (driver->get_error_name(result, &name) || !name)
        name = "unknown error";
    if (driver->get_error_string(result, &text) || !text)
        text = "no text";
    char call[256], where[32] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(call, sizeof call, format, args);
    va_end(args);
    if (device >= 0)
        snprintf(where, sizeof where, " on GPU %d", device);
    return error_set(code_of(result), "%s%s: %s, %u (%s)", call, where, name, result, text);
}
