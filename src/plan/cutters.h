/* cutters.h -- ops whose results are parts of one dimension of their argument (MOVES_CUT): slices,
 * splits, selects.  Which dimension and from where on is in arguments that all of them call alike. */
#ifndef TESS_PLAN_CUTTERS_H
#define TESS_PLAN_CUTTERS_H

#include "plan/probe.h"

/* The dimension of argument 0, where the first result begins, and how far its elements are apart.
 * false: no such op, or not known. */
bool cutter_steps(const Probe *p, const Node *n, int64_t *dim, int64_t *start, int64_t *step);
/* Result o of n begins at start[o] of dimension *dim of argument 0 (a select's result has
 * that dimension no more).  start has room for n->nouts.  false: no such op, steps, or not known. */
bool cutter_parts(const Probe *p, const Node *n, int *dim, int64_t *start);

/* A number among a node's arguments, `otherwise` if it is not given; false: not known. */
bool arg_number(const Probe *p, const Arg *a, int64_t otherwise, int64_t *out);

#endif
