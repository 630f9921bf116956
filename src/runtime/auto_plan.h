/* auto_plan.h -- `--plan auto`: a plan in the manner of Megatron, derived from the program.
 *
 * Weights whose result features are contracted with another weight make a pair: the first
 * is cut by columns, the second by rows, and only the second's result is communicated.
 * Pairs, tables and the last layer are then tried with and without, and what costs least
 * stays.  Weights of repeated blocks (names that differ in a number) are decided together.
 *
 * What is priced is the forward and, where gradients are wanted, the backward with their reductions.
 *
 * I1  The plan is a function of program, mesh and gradients: every rank derives the same.
 */
#ifndef TESS_RUNTIME_AUTO_PLAN_H
#define TESS_RUNTIME_AUTO_PLAN_H

#include "plan/mark.h"
#include "runtime/gradients.h"

/* mark(), with a plan that may be "auto"; what was derived is then the marks' own plan.  grad: which gradients will
 * be asked for; NULL: none. */
Status mark_with_plan(const Exported *e, Mesh *mesh, const PlanFile *plan, const GradOptions *grad, TextBuf *notes,
                      Marks **out);

#endif
