/* saved.h -- what the backward of a joint program reads of its forward, and how to compute it again there instead.
 *
 * The forward ends before the first node of the backward (Node.stage), or with the node that makes the loss where
 * stages are not known; every node behind it belongs to the backward, whether the program ends in gradients or in
 * updates made of them.
 *
 * A *home* is one memory that a node of the forward fills: a value with all its views.  Homes are kept or computed
 * again as a whole.  A copy of the node that fills a home stands just before the first node of the backward that
 * reads it; what the copy reads is kept, too, or computed again by the same rule.
 *
 * I1  A copy is the same call on the same values: results keep their bits.  Copies of random ops draw the numbers
 *     of the first (Node.again).
 * I2  Fixed homes are never computed again: results of collectives and other effects, outputs of the program,
 *     and what is too small to be worth a node.
 */
#ifndef TESS_RUNTIME_SAVED_H
#define TESS_RUNTIME_SAVED_H

#include "graph/graph.h"

typedef struct {
  Val *value; /* the first in it */
  size_t bytes;
  bool saved; /* the backward reads it */
  bool fixed; /* I2 */
} Home;

typedef struct {
  double flops, seconds;
} NodeWork;

typedef struct {
  Exported *program; /* Node.mark: position */
  int forward_end;   /* position of the last node of the forward; -1: there is no backward */
  Home *home;
  int nhomes;
  int *home_of;   /* by value id: -1 for what the forward does not make */
  NodeWork *work; /* by position */
  int nvals, nnodes;
} Saved;

/* The last node of the forward; NULL: there is no backward. */
const Node *saved_forward_end(const Exported *e);

/* Predicted, of a call on a core of a small server.  What a collective moves counts as work. */
NodeWork call_work(const Call *c);

/* Of a functional, specialised program; its values get tensors (graph_infer). */
Status saved_find(Ctx *ctx, Exported *joint, Saved *out);
void saved_free(Saved *s);

/* Is there nothing of this home when the backward begins?  What the backward does not read is not kept for copies;
 * `again`, by home, says of the rest. */
static inline bool home_is_gone(const Saved *s, const bool *again, int home) {
  return home >= 0 && !s->home[home].fixed && (again[home] || !s->home[home].saved);
}

/* Rewrites g, the program's graph or that of a copy of it: homes with again[home] are computed again. */
Status saved_compute_again(const Saved *s, const bool *again, Graph *g);

#endif
