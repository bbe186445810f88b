/*
 * Errors are values: a function that fails says what happened where it
 * happened, by error_set(), and returns the code. The text is kept per thread.
 */
#ifndef SYSTEM_ERROR_H
#define SYSTEM_ERROR_H

#include "polypath/polypath.h"

#define ERROR_TEXT_BYTES 1024

/* Sets the calling thread's error text (printf format). Returns 0. */
int error_write(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Puts "prefix: " in front of the calling thread's error text. Returns 0. */
int error_write_prefix(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline polypath_result_t error_code(polypath_result_t code, int written)
{
    (void)written;
    return code;
}

/*
 * error_set(code, format, ...) sets the text and returns `code`; error_prefix()
 * puts it in front of the text, for adding context on the way up. Macros,
 * because only so does every caller (and the static analyzer) see that what is
 * returned is `code`: a variadic function cannot be inlined.
 */
#define error_set(code, ...) error_code(code, error_write(__VA_ARGS__))
#define error_prefix(code, ...) error_code(code, error_write_prefix(__VA_ARGS__))

/* What may be done about an errno, to put behind strerror(): " (raise ...)" or "". */
const char *error_advice(int error_number);

/* The calling thread's last error text; never NULL. */
const char *error_text(void);

#endif
