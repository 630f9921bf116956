/* folded.c -- see folded.h. */
#include "ops/grads/folded.h"

#include <string.h>

Value vjp_named(const Vjp *v, const char *name) {
  int i = schema_find(&v->forward->op->schema, name);
  return i < 0 ? val_none() : vjp_value(v, i);
}

Folded folded(Vjp *v) {
  Value dim = vjp_named(v, "dim"), keepdim = vjp_named(v, "keepdim");
  Folded d = {.x = v->in[0], .count = 1, .keepdim = keepdim.kind == VAL_BOOL && keepdim.b};
  bool mask[MAX_DIMS] = {false};
  Ints given = dim.kind == VAL_INT    ? (Ints){&dim.i, 1}
               : dim.kind == VAL_INTS ? (Ints){dim.ints, dim.n}
                                      : (Ints){NULL, 0};
  d.all = given.n == 0;
  if (!v->f.status && !d.all) v->f.status = wrap_dims(v->forward, given, d.x->ndim, mask);
  for (int i = 0; i < d.x->ndim; i++) {
    if (!d.all && !mask[i]) continue;
    d.dim[d.n++] = i;
    d.count *= d.x->size[i];
  }
  return d;
}

Tensor *unfold(Vjp *v, const Folded *d, Tensor *t) {
  int64_t size[MAX_DIMS];
  if (!t || t->ndim == d->x->ndim || t->ndim == 0) return t;
  memcpy(size, d->x->size, (size_t)d->x->ndim * sizeof *size);
  for (int i = 0; i < d->n; i++) size[d->dim[i]] = 1;
  return f_view(&v->f, t, size, d->x->ndim);
}

Tensor *spread(Vjp *v, const Folded *d, Tensor *t) {
  t = unfold(v, d, t);
  if (!t || tensor_same_size(t, d->x)) return t;
  return F_OP(&v->f, "aten.expand.default", F_T(t), val_ints(d->x->size, d->x->ndim));
}
