/*
 * Per-thread error text. Knows nothing of communicators.
 */
#include "system/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char text[ERROR_TEXT_BYTES];

int error_write(const char *format, ...)
{
    char fresh[ERROR_TEXT_BYTES]; /* an argument may be the old text itself */
    va_list args;
    va_start(args, format);
    vsnprintf(fresh, sizeof fresh, format, args);
    va_end(args);
    memcpy(text, fresh, sizeof text);
    return 0;
}

int error_write_prefix(const char *format, ...)
{
    char old[ERROR_TEXT_BYTES];
    memcpy(old, text, sizeof old);
    va_list args;
    va_start(args, format);
    int used = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (used > 0 && (size_t)used + 3 < sizeof text)
        snprintf(text + used, sizeof text - (size_t)used, ": %.*s", (int)(sizeof text - (size_t)used - 3), old);
    return 0;
}

const char *error_advice(int error_number)
{
    return error_number == EMFILE ? " (raise the limit with ulimit -n)"
           : error_number == ENFILE
               ? " (all of the machine's are in use: sysctl fs.file-max; ulimit -n is for one process)"
               : "";
}

const char *error_text(void)
{
    return text;
}
