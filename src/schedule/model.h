/*
 * The cost model: which algorithm is fastest, from latency and bandwidth.
 * Pure arithmetic on agreed numbers, so every rank comes to the same answer.
 * Hockney's model: a message of n bytes takes latency + n / bandwidth.
 */
#ifndef SCHEDULE_MODEL_H
#define SCHEDULE_MODEL_H

#include "schedule/schedule.h"

/* Integers, so that unlike CPUs compute alike. */
struct model_link {
    uint64_t latency_ns;
    uint64_t bytes_per_us; /* = MB/s */
};

/* A "host" is what the shape says: a group of ranks that are near each other, also a NUMA node. */
struct model {
    struct model_link within;  /* between ranks of a host */
    struct model_link between; /* between two hosts, all paths together; shared by the ranks of a host */
    struct schedule_shape shape;
    int cores_per_host; /* ranks that can really run at once on a host; 0 = as many as there are */
    bool reproducible;  /* only algorithms that fold in rank order */
};

/* Predicted time in nanoseconds of one call on `bytes` (the size that nccl-tests calls "size"). UINT64_MAX if
 * unsupported. */
uint64_t model_time_ns(const struct model *model, polypath_collective_t collective, enum schedule_algorithm algorithm,
                       uint64_t bytes);

/*
 * The fastest supported algorithm; ties go to the lower enum value. DIRECT if
 * none is supported, so that building it says why.
 */
enum schedule_algorithm model_choose(const struct model *model, polypath_collective_t collective, uint64_t bytes);

/*
 * Where every rank can read from every other (execute/stage.h): whether the
 * two-level algorithm is to be preferred all the same, because what joins the
 * groups would be too narrow for it. Stages do what the direct algorithms do
 * in half the passes over memory, so these must take more than twice as long.
 */
bool model_prefers_levels(const struct model *model, polypath_collective_t collective, uint64_t bytes);

#endif
