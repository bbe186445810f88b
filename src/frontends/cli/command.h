/* Runs the tools that configure the network (ip, tc, nft), without a shell. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include <stddef.h>

#include "polypath/polypath.h"

/*
 * Runs a program, given as a NULL-terminated list of words, and waits for it.
 * A non-zero exit is an error whose text has the command and what it wrote to
 * standard error; a missing tool is an error with the line that installs it.
 */
polypath_result_t command_run(const char *tool, ...) __attribute__((sentinel));

/* The same; what the program wrote to standard output (cut to bytes - 1) comes back. */
polypath_result_t command_read(char *out, size_t bytes, const char *tool, ...) __attribute__((sentinel));

#endif
