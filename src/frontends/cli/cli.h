/*
 * The sub-commands of the `polypath` program. Each takes its own argument
 * vector (argv[0] is what its messages begin with, for example "polypath run")
 * and returns the exit status.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

/* Exit statuses. Those of a launched program come through as they are; 127 and 126 are as a shell gives them. */
enum cli_status {
    CLI_SUCCESS = 0,
    CLI_FAILURE = 1,
    CLI_USAGE = 2,
    CLI_TIMED_OUT = 124,
    CLI_NOT_RUN = 126,
    CLI_MISSING = 127
};

int cli_run(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_topo(int argc, char **argv);
int cli_lab(int argc, char **argv);
int cli_config(int argc, char **argv);
int cli_demo(int argc, char **argv);

#endif
