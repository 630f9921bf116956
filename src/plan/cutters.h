/* cutters.h -- ops whose results are parts of one dimension of their argument: slices,
 * splits, selects. */
#ifndef TESS_PLAN_CUTTERS_H
#define TESS_PLAN_CUTTERS_H

#include "plan/probe.h"

bool is_cutter(const Node *n);
/* Result o of n begins at start[o] of dimension *dim of argument 0 (a select's result has
 * that dimension no more).  start has room for n->nouts.  false: no cutter, or not known. */
bool cutter_parts(const Probe *p, const Node *n, int *dim, int64_t *start);

/* A number among a node's arguments, `otherwise` if it is not given; false: not known. */
bool arg_number(const Probe *p, const Arg *a, int64_t otherwise, int64_t *out);

#endif
