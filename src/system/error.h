/*
 * Errors are values: a function that fails says what happened where it
 * happened, by error_set(), and returns the code. The text is kept per thread.
 */
#ifndef SYSTEM_ERROR_H
#define SYSTEM_ERROR_H

#include "polypath/polypath.h"

#define ERROR_TEXT_BYTES 1024

/* Sets the calling thread's error text (printf format) and returns `code`. */
polypath_result_t error_set(polypath_result_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "prefix: " in front of the calling thread's error text; returns `code`. For adding context on the way up. */
polypath_result_t error_prefix(polypath_result_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What may be done about an errno, to put behind strerror(): " (raise ...)" or "". */
const char *error_advice(int error_number);

/* The calling thread's last error text; never NULL. */
const char *error_text(void);

#endif
