/*
 * How long the creation of a communicator takes, and how many calls it spent
 * measuring: started under polypath run or polypath lab run; rank 0 prints the
 * slowest rank's time.
 */
#include <stdio.h>
#include <time.h>

#include "polypath/polypath.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(void)
{
    polypath_comm_t comm;
    polypath_statistics_t statistics;
    const double begin = now();
    if (polypath_comm_create_from_env(&comm)) {
        fprintf(stderr, "%s\n", polypath_last_error());
        return 1;
    }
    double took = now() - begin, slowest = 0;
    int rank = 0, size = 0;
    polypath_comm_rank(comm, &rank);
    polypath_comm_size(comm, &size);
    polypath_comm_statistics(comm, &statistics);
    if (polypath_all_reduce(&took, &slowest, 1, POLYPATH_FLOAT64, POLYPATH_MAX, comm))
        return 1;
    if (rank == 0)
        printf("%d ranks: created in %.1f ms, %llu tuning calls, %.1f MiB held\n", size, slowest * 1e3,
               (unsigned long long)statistics.tuning_calls, (double)statistics.memory_bytes / 1048576.0);
    return polypath_comm_destroy(comm) ? 1 : 0;
}
