/*
 * One line per event on standard error (or the file of setting `log_file`):
 * "polypath WARN host rank: text". Levels are those of setting `log`.
 */
#ifndef SYSTEM_LOG_H
#define SYSTEM_LOG_H

enum log_level { LOG_LEVEL_NONE, LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The rank that log lines of this process name; -1 (the start value) prints the pid instead. */
void log_set_rank(int rank);

#endif
