/* program_walk.h -- one walk over a program on behalf of one rank, in three steps: inputs are bound, nodes are
 * called, outputs are placed.  Specialisation records such a walk, interpretation runs it.
 *
 * On a mesh the walk calls every op of the *global* program on DTensors; what the marks ask for around a node
 * is done before and after it.
 */
#ifndef TESS_RUNTIME_PROGRAM_WALK_H
#define TESS_RUNTIME_PROGRAM_WALK_H

#include "base/ptrmap.h"
#include "graph/walk.h"
#include "plan/mark.h"
#include "runtime/gradients.h"
#include "runtime/rebatch.h"

typedef struct {
  Ctx *ctx;
  const Exported *program;
  Tensor *const *state;    /* this rank's, parallel to the program's state; NULL: the program's own */
  const Marks *marks;      /* NULL: one rank, plain tensors */
  const GradRequest *grad; /* NULL: no gradients */
  Rebatch *rebatch;        /* NULL: inputs have the program's own sizes */
  Scope *scope;            /* owns the handles */
  Arena *arena;
  void *arg; /* of the functions below */
  /* This rank's tensor for input i of the graph: a user input (held NULL) or an entry of the state, of which
   * it holds `held`.  whole has the global sizes, spec is how it lies (NULL: one rank). */
  Status (*input)(void *arg, int i, Tensor *whole, Tensor *held, const Spec *spec, Tensor **out);
  /* Told of graph input i as the walk gets it, of every node, of output i where it is wanted; each may be
   * NULL. */
  Status (*bound)(void *arg, int i, const Value *v);
  Status (*before)(void *arg, const Node *n);
  Status (*after)(void *arg, const Node *n, const Value *outs, int nouts);
  Status (*placed)(void *arg, int i, const Tensor *t);
  /* The backward goes on to what belongs to this node (NULL: it has gone through all), then gradient k of the
   * request has been placed; each may be NULL. */
  Status (*visits)(void *arg, const Node *n);
  Status (*gradient)(void *arg, int k);
  /* What is called from now on belongs to this stage; first it is the forward.  May be NULL. */
  Status (*enters)(void *arg, Stage stage);
} ProgramWalk;

/* user: one Value per user input, of global sizes.  inputs and outputs have room for those of the graph, outputs
 * also for one per gradient behind them; on return outputs are plain: this rank's shard of each, where the marks
 * want it, of gradients as their inputs lie. */
Status program_walk(const ProgramWalk *w, const Value *user, Value *inputs, Value *outputs);

/* How input i of the graph lies on the marks' mesh. */
Status marked_input_spec(const Marks *m, int i, const Tensor *whole, const Spec **out);
/* A call of the walk, with what the marks ask for around it.  placed: of DTensors, as which they were wanted
 * before, for walks that keep all of them; NULL: others find out again. */
Status marks_call(const Marks *m, const Node *n, Value *bound, Call *c, PtrMap *placed);
/* t brought to what is wanted of it; plain tensors are left alone. */
Status want_apply(Ctx *ctx, Scope *scope, const Want *want, Tensor *t, Tensor **out);

#endif
