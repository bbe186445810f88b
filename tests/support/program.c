/* See program.h. Knows nothing of what the program does. */
#include "support/program.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS_MAX 64

const char *program_path(void)
{
    static char path[4096];
    const char *given = getenv("POLYPATH_BINARY");
    if (path[0])
        return path;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 16);
    char *slash = length > 0 ? memrchr(path, '/', (size_t)length) : NULL;
    snprintf(slash ? slash + 1 : path, 16, "polypath");
    if (given)
        snprintf(path, sizeof path, "%s", given);
    unsetenv("POLYPATH_BINARY"); /* it is no setting, and the library says so */
    return path;
}

static struct program start(const char *file, const char *input, const char *const words[])
{
    struct program program = {.out = memfd_create("out", MFD_CLOEXEC), .err = memfd_create("err", MFD_CLOEXEC)};
    int in = memfd_create("in", MFD_CLOEXEC);
    if (input && (write(in, input, strlen(input)) < 0 || lseek(in, 0, SEEK_SET) < 0))
        abort();
    program.pid = fork();
    if (program.pid == 0) {
        dup2(in, 0);
        dup2(program.out, 1);
        dup2(program.err, 2);
        execvp(file, (char *const *)(const void *)words);
        fprintf(stderr, "cannot run %s: %s\n", file, strerror(errno));
        _exit(255);
    }
    close(in);
    return program;
}

static int wait_for(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void read_all(int fd, char *text)
{
    ssize_t got = pread(fd, text, PROGRAM_TEXT_BYTES - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    close(fd);
}

struct program program_start(const char *input, const char *const words[])
{
    const char *all[WORDS_MAX] = {"polypath"};
    for (size_t i = 0; words[i] && i < WORDS_MAX - 2; i++)
        all[i + 1] = words[i];
    return start(program_path(), input, all);
}

const struct ending *program_wait(struct program *program)
{
    static struct ending ending;
    ending.status = wait_for(program->pid);
    read_all(program->out, ending.out);
    read_all(program->err, ending.err);
    return &ending;
}

bool program_says(const struct program *program, const char *text, int times)
{
    static char said[PROGRAM_TEXT_BYTES];
    for (int i = 0; i < 1000; i++) {
        ssize_t got = pread(program->out, said, sizeof said - 1, 0);
        said[got > 0 ? got : 0] = '\0';
        if (occurrences(said, text) >= times)
            return true;
        usleep(10000);
    }
    return false;
}

static void collect(const char *words[WORDS_MAX], const char *first, va_list rest)
{
    size_t count = 0;
    words[count++] = first;
    while (count < WORDS_MAX && (words[count] = va_arg(rest, const char *)))
        count++;
}

const struct ending *program_run(const char *word, ...)
{
    const char *words[WORDS_MAX] = {0};
    va_list rest;
    va_start(rest, word);
    collect(words, word, rest);
    va_end(rest);
    struct program program = program_start(NULL, words);
    return program_wait(&program);
}

const struct ending *program_run_with_input(const char *input, const char *word, ...)
{
    const char *words[WORDS_MAX] = {0};
    va_list rest;
    va_start(rest, word);
    collect(words, word, rest);
    va_end(rest);
    struct program program = program_start(input, words);
    return program_wait(&program);
}

const char *tool_output(const char *tool, ...)
{
    static char text[PROGRAM_TEXT_BYTES];
    const char *words[WORDS_MAX] = {0};
    va_list rest;
    va_start(rest, tool);
    collect(words, tool, rest);
    va_end(rest);
    struct program program = start(tool, NULL, words);
    int status = wait_for(program.pid);
    read_all(program.out, text);
    close(program.err);
    return status ? NULL : text;
}

static bool command_line_has(const char *pid, const char *text)
{
    char path[300], line[65536];
    snprintf(path, sizeof path, "/proc/%s/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, line, sizeof line);
    if (fd >= 0)
        close(fd);
    return got > 0 && memmem(line, (size_t)got, text, strlen(text)); /* a zombie has none */
}

int processes_with(const char *text)
{
    int count = 0;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && (entry = readdir(processes));)
        if (isdigit((unsigned char)entry->d_name[0]) && atoi(entry->d_name) != getpid() &&
            command_line_has(entry->d_name, text))
            count++;
    if (processes)
        closedir(processes);
    return count;
}

bool processes_become(const char *text, int count)
{
    for (int i = 0; i < 1000; i++) {
        if (processes_with(text) == count)
            return true; /* not looked at again: a process that is just calling exec has no command line */
        usleep(10000);
    }
    return false;
}

int occurrences(const char *all, const char *text)
{
    int count = 0;
    for (; (all = strstr(all, text)); all += strlen(text))
        count++;
    return count;
}
