/*
 * The smallest whole program: every rank gives its number and all receive the
 * sum. Under any launcher, for example: polypath run -n 4 -- ./all_reduce
 */
#include <polypath/polypath.h>
#include <stdio.h>

int main(void)
{
    polypath_comm_t comm;
    int rank, size;
    if (polypath_comm_create_from_env(&comm) || polypath_comm_rank(comm, &rank) || polypath_comm_size(comm, &size)) {
        fprintf(stderr, "%s\n", polypath_last_error());
        return 1;
    }

    float mine = (float)rank, sum;
    polypath_result_t result = polypath_all_reduce(&mine, &sum, 1, POLYPATH_FLOAT32, POLYPATH_SUM, comm);
    if (result)
        fprintf(stderr, "%s\n", polypath_last_error());
    else
        printf("rank %d of %d: the sum is %g\n", rank, size, sum);

    polypath_comm_destroy(comm);
    return result != POLYPATH_SUCCESS;
}
