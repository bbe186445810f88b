/*
 * The log. A line is built whole and written by one write(2), so that lines
 * of several ranks do not mix.
 */
#include "system/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "system/settings.h"

static atomic_int log_rank = -1; /* relaxed: a label only */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int log_fd = STDERR_FILENO;

static void open_log(void)
{
    const char *path = settings_get()->log_file;
    if (!path || !*path)
        return;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0)
        log_fd = fd;
    else
        dprintf(STDERR_FILENO, "polypath WARN: cannot open log_file %s: %s; logging to standard error\n", path,
                strerror(errno));
}

void log_set_rank(int rank)
{
    atomic_store_explicit(&log_rank, rank, memory_order_relaxed);
}

void log_line(enum log_level level, const char *format, ...)
{
    static const char *const names[] = {"", "ERROR", "WARN", "INFO", "DEBUG"};
    if (level == LOG_LEVEL_NONE || (uint64_t)level > settings_get()->log)
        return;
    pthread_once(&once, open_log);
    char line[1400];
    int rank = atomic_load_explicit(&log_rank, memory_order_relaxed);
    int used = rank >= 0 ? snprintf(line, sizeof line, "polypath %s rank %d: ", names[level], rank)
                         : snprintf(line, sizeof line, "polypath %s pid %d: ", names[level], (int)getpid());
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    size_t length = (size_t)used + (more < 0 ? 0 : (size_t)more);
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    if (write(log_fd, line, length) < 0)
        return; /* nobody is left to tell */
}
