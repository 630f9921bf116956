/* tensors.h -- the tensors of a call, one after the other.
 *
 * Tensors are numbered flat: in argument order, the elements of lists one by one, None left out.
 * Rules, decisions and gradients all count like this.
 *
 *     for (TensorWalk w = call_inputs(c); tensor_next(&w);) use(w.tensor, w.arg, w.flat);
 */
#ifndef TESS_OPS_TENSORS_H
#define TESS_OPS_TENSORS_H

#include "ops/op.h"

typedef struct {
  const Value *value;
  int nvalues;
  Tensor *tensor; /* where the walk stands: never NULL after tensor_next() */
  int arg, item;  /* value[arg], element `item` of it if it is a list, else 0 */
  int flat;       /* its number */
} TensorWalk;

static inline TensorWalk tensors_of(const Value *value, int n) {
  return (TensorWalk){.value = value, .nvalues = n, .item = -1, .flat = -1};
}
static inline TensorWalk call_inputs(const Call *c) { return tensors_of(c->arg, c->op->schema.nparams); }
static inline TensorWalk call_outputs(const Call *c) { return tensors_of(c->out, c->nout); }

static inline bool tensor_next(TensorWalk *w) {
  for (w->item++; w->arg < w->nvalues; w->arg++, w->item = 0) {
    const Value *v = &w->value[w->arg];
    if (v->kind == VAL_TENSOR && w->item == 0) return w->tensor = v->tensor, w->flat++, true;
    if (v->kind != VAL_TENSORS) continue;
    while (w->item < v->n && !v->tensors[w->item]) w->item++;
    if (w->item < v->n) return w->tensor = v->tensors[w->item], w->flat++, true;
  }
  return false;
}

/* How many there are. */
static inline int count_tensors(const Value *value, int n) {
  int count = 0;
  for (TensorWalk w = tensors_of(value, n); tensor_next(&w);) count++;
  return count;
}

/* The tensor of another list of values in the place where the walk stands. */
static inline Tensor *tensor_at(const Value *value, const TensorWalk *w) {
  const Value *v = &value[w->arg];
  return v->kind == VAL_TENSORS ? v->tensors[w->item] : v->tensor;
}

/* The same values with other tensors: with[i] in the place of tensor i, flat.  Lists are new ones,
 * in the arena; to may be value. */
Status replace_tensors(Arena *arena, const Value *value, int n, Tensor *const *with, Value *to);

#endif
