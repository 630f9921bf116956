/* mark_sequence.h -- sequence parallelism: norms and what lies between them work on a part
 * of the sequence each; for mark.c.
 *
 * What a module with this style gets is cut along the sequence, and so is every sum that
 * leads to it: a row-wise product in such a sum is reduced by a reduce-scatter instead of an
 * all-reduce. */
#ifndef TESS_PLAN_MARK_SEQUENCE_H
#define TESS_PLAN_MARK_SEQUENCE_H

#include "plan/mark.h"
#include "plan/probe.h"

/* Marks the modules that the entry names. */
Status sequence_mark(Marks *m, Probe *p, const PlanEntry *e, int axis);
/* Sets *place if v is part of a sum that is wanted cut along the sequence. */
void sequence_place(const Marks *m, const Val *v, Placement *place);

/* mark_place.c: what is asked before a node. */
Status marks_want_before(Marks *m, const Node *n, const Val *v, int axis, Placement place, const char *why);

#endif
