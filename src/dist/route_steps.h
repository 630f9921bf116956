/* route_steps.h -- shared by cost.c and route.c. */
#ifndef TESS_DIST_ROUTE_STEPS_H
#define TESS_DIST_ROUTE_STEPS_H

#include "dist/route.h"

/* A ring over n ranks, `rounds` times around (2: all-reduce), of gib per rank. */
double collective_cost(double gib, double n, int rounds, double latency, double bandwidth);
/* What a rank receives in a step in which its share goes from `before` to `after` GiB. */
static inline double received_gib(StepKind kind, double before, double after, double n) {
  if (!step_communicates(kind)) return 0;
  return (kind == STEP_ALL_REDUCE ? 2 * before : kind == STEP_REDUCE_SCATTER ? before : after) * (n - 1) / n;
}

#endif
