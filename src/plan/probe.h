/* probe.h -- what an op of a program does to a shard, found out by asking its rule.
 *
 * A probe is a mesh of two ranks that are not there, and for every value of the program a
 * tensor without elements that is whole on it.  Asking costs a decision (dist/propagate.h)
 * and nothing runs.  Sizes that are symbols count with their hints.
 */
#ifndef TESS_PLAN_PROBE_H
#define TESS_PLAN_PROBE_H

#include "dist/dispatch.h"
#include "graph/graph.h"

typedef struct Probe {
  const Exported *e;
  Ctx ctx;
  Dist *dist;
  Mesh *mesh;
  Scope scope;
  Arena arena;
  Value *env;       /* by Val.id: whole tensors, numbers; None where sizes are not known */
  bool *activation; /* by Val.id: depends on what the user gives */
  Node **user;      /* nodes that use a value: user[first_user[id]] to user[first_user[id + 1] - 1] */
  int *first_user;
  struct Asked **asked;     /* by id of a node's first result: questions that were answered */
  struct WeightUses **uses; /* by graph input: weight_uses(); NULL: not asked for yet */
} Probe;

/* Zeroed p is a valid argument of probe_close(). */
Status probe_open(Probe *p, const Exported *e);
void probe_close(Probe *p);

/* Global sizes of a value; NULL: not known, or no tensor. */
const Tensor *probe_tensor(const Probe *p, const Val *v);

/* One value of the question: this one lies so, all others are whole. */
typedef struct {
  const Val *val;
  Placement place;
} Given;

/* How the results of n lie then (R where they are no tensors), out has room for
 * n->nouts; *free: nothing had to move.  known = false: the op cannot be asked.  Answers are
 * kept: asking again costs nothing. */
Status probe_ask(Probe *p, const Node *n, const Given *given, int ngiven, Placement *out, bool *free, bool *known);

#endif
