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
    d.count *= (double)d.x->size[i];
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

static Tensor *zero_where(Formula *f, Tensor *mask, Tensor *t) {
  return F_OP(f, "aten.where.ScalarSelf", F_T(mask), val_int(0), F_T(t));
}
static Tensor *power(Formula *f, Tensor *x, double e) {
  return e == 1 ? x : F_OP(f, "aten.pow.Tensor_Scalar", F_T(x), val_float(e));
}

Tensor *norm_slope(Vjp *v, Tensor *x, Tensor *norm, Tensor *g, double p) {
  Formula *f = &v->f;
  if (p == 1) return f_mul(f, F_OP(f, "aten.sgn.default", F_T(x)), g);
  Tensor *at_zero = F_OP(f, "aten.eq.Scalar", F_T(norm), val_int(0));
  Tensor *scale = zero_where(f, at_zero, f_div(f, g, power(f, norm, p - 1)));
  if (p == 2) return f_mul(f, x, scale);
  Tensor *size = f_abs(f, x);
  if (p > 2) return f_mul(f, f_mul(f, x, power(f, size, p - 2)), scale);
  Tensor *steep = f_mul(f, F_OP(f, "aten.sgn.default", F_T(x)), power(f, size, p - 1));
  if (p < 1) steep = zero_where(f, F_OP(f, "aten.eq.Scalar", F_T(size), val_int(0)), steep);
  return f_mul(f, steep, scale);
}
