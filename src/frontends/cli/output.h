/*
 * Brings the ranks' output to the launcher's own: whole lines, each with the
 * rank in front. Never blocks: what the reader of the launcher's output does
 * not take is kept, and past a bound the ranks are not read any more.
 */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

struct output;

/*
 * For `size` ranks; descriptors are watched in `epoll` with data.u64 = tag |
 * index, and output_event() takes the index back. NULL when memory is short.
 */
struct output *output_open(int size, int epoll, uint64_t tag);

/* Takes over the reading end of a pipe: `which` is 1 for standard output, 2 for standard error. */
bool output_add(struct output *output, int rank, int which, int fd);

void output_event(struct output *output, uint64_t index);

/* Whether no rank's pipe is open any more and everything has been written. */
bool output_done(const struct output *output);

/* Reads what is still in the pipes without waiting for more, ends unfinished lines, and closes the pipes. */
void output_finish(struct output *output);

void output_close(struct output *output);

#endif
