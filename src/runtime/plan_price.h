/* plan_price.h -- what plans for one program cost: bytes sent, arithmetic and weights of a rank.
 *
 * A plan is priced by walking over the program as program_walk() does, on a mesh without ranks and
 * on tensors without elements.  What a call costs and how its results lie follows from how its
 * arguments lie and what the marks ask around it; that is recorded once, and plans that differ in
 * a few weights share all the rest.  So is the backward of the call, where gradients are wanted.
 *
 * I1  The price of a plan does not depend on the plans that were priced before.
 */
#ifndef TESS_RUNTIME_PLAN_PRICE_H
#define TESS_RUNTIME_PLAN_PRICE_H

#include "plan/mark.h"
#include "plan/probe.h"
#include "runtime/gradients.h"

typedef struct PlanPrice PlanPrice;

typedef struct {
  int64_t sent;    /* bytes that a rank receives in collectives */
  int64_t weights; /* bytes of parameters, of their gradients if they are wanted, and of buffers that it holds */
  double flops;
} Price;

/* sizes: of the program; stays the caller's and outlives the prices.  grad: gradients that are wanted, whose
 * backward (price_backward.h) and reductions then belong to the price; NULL: none. */
Status plan_price_open(const Probe *sizes, const Mesh *mesh, const GradRequest *grad, PlanPrice **out);
void plan_price_close(PlanPrice *p); /* NULL is fine */
/* The mesh that marks are to be made for: of the same axes, but without ranks. */
Mesh *plan_price_mesh(PlanPrice *p);
/* ERR_DYNAMIC: sizes depend on data, and there is no price. */
Status plan_price(PlanPrice *p, const Marks *marks, Price *out);

#endif
