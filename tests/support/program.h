/*
 * Runs the `polypath` program (environment variable POLYPATH_BINARY, or the
 * one beside the test) and looks at what it says and leaves behind.
 */
#ifndef SUPPORT_PROGRAM_H
#define SUPPORT_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PROGRAM_TEXT_BYTES (1 << 20)

/* A program that was started. Its output goes to files without a name. */
struct program {
    pid_t pid;
    int out, err;
};

/* How it ended (exit code, or 128 + signal) and what it wrote; static, until the next call. */
struct ending {
    int status;
    char out[PROGRAM_TEXT_BYTES], err[PROGRAM_TEXT_BYTES];
};

/* The file of the `polypath` program. */
const char *program_path(void);

/* Starts polypath with the words of a NULL-terminated list; `input` becomes its standard input (NULL: empty). */
struct program program_start(const char *input, const char *const words[]);
const struct ending *program_wait(struct program *program);

/* Waits up to ten seconds until it has written `text` so often; returns whether it has. */
bool program_says(const struct program *program, const char *text, int times);

/* Both in one: program_run("run", "-n", "2", "true", NULL). */
const struct ending *program_run(const char *word, ...) __attribute__((sentinel));
const struct ending *program_run_with_input(const char *input, const char *word, ...) __attribute__((sentinel));

/* What a program of the system writes to standard output, or NULL if it fails. Static, until the next call. */
const char *tool_output(const char *tool, ...) __attribute__((sentinel));

/* Living processes (not zombies) with `text` in their command line, other than this one. */
int processes_with(const char *text);

/* Waits up to ten seconds for the number to be `count`; returns whether it is. */
bool processes_become(const char *text, int count);

/* How often `text` is in `all`. */
int occurrences(const char *all, const char *text);

#endif
