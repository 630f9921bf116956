/* plan_steps.h -- shared by cost.c and plan.c. */
#ifndef TESS_DIST_PLAN_STEPS_H
#define TESS_DIST_PLAN_STEPS_H

#include "dist/plan.h"

/* A ring over n ranks, `rounds` times around (2: all-reduce), of gib per rank. */
double collective_cost(double gib, double n, int rounds, double latency, double bandwidth);
/* GiB that a rank holds, if shards were equal. */
double spec_gib(const Spec *s);

#endif
