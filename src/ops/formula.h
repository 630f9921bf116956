/* formula.h -- composed ops that read like the formula they are.
 *
 *     Formula f = {c};
 *     Tensor *d = f_sub(&f, x, y);
 *     return formula_give(&f, f_mul(&f, d, d));
 *
 * The first error sticks: from then on every step gives NULL and does nothing, and
 * formula_give() returns the error.
 */
#ifndef TESS_OPS_FORMULA_H
#define TESS_OPS_FORMULA_H

#include "ops/op.h"

typedef struct {
  Call *c;
  Status status;
} Formula;

Tensor *formula_op(Formula *f, const char *name, const Value *args, int nargs);
#define F_OP(f, name, ...) formula_op((f), (name), OP_ARGS(__VA_ARGS__))
/* The first n results of an op; NULL where it gave none, or the formula failed. */
void formula_ops(Formula *f, const char *name, Tensor **out, int n, const Value *args, int nargs);
#define F_OPS(f, name, out, n, ...) formula_ops((f), (name), (out), (n), OP_ARGS(__VA_ARGS__))

/* Appends t (NULL: None) to the results.  Call it last for each result, in order. */
Status formula_give(Formula *f, const Tensor *t);

/* f16 and bf16 as f32; others as they are.  NULL stays NULL. */
Tensor *f_widen(Formula *f, const Tensor *t);
Tensor *f_cast(Formula *f, const Tensor *t, Dtype d);

/* DTensors among them are brought to where they can be combined element by element, partial
 * values reduced: once, not in every step.  NULL stays NULL. */
void f_align(Formula *f, Tensor **t, int n);

#define F_T val_tensor
static inline Tensor *f_add(Formula *f, const Tensor *a, const Tensor *b) {
  return F_OP(f, "aten.add.Tensor", F_T(a), F_T(b));
}
static inline Tensor *f_sub(Formula *f, const Tensor *a, const Tensor *b) {
  return F_OP(f, "aten.sub.Tensor", F_T(a), F_T(b));
}
static inline Tensor *f_mul(Formula *f, const Tensor *a, const Tensor *b) {
  return F_OP(f, "aten.mul.Tensor", F_T(a), F_T(b));
}
static inline Tensor *f_div(Formula *f, const Tensor *a, const Tensor *b) {
  return F_OP(f, "aten.div.Tensor", F_T(a), F_T(b));
}
static inline Tensor *f_scale(Formula *f, const Tensor *a, double by) {
  return F_OP(f, "aten.mul.Scalar", F_T(a), val_float(by));
}
static inline Tensor *f_shift(Formula *f, const Tensor *a, double by) {
  return F_OP(f, "aten.add.Scalar", F_T(a), val_float(by));
}
static inline Tensor *f_neg(Formula *f, const Tensor *a) { return F_OP(f, "aten.neg.default", F_T(a)); }
static inline Tensor *f_abs(Formula *f, const Tensor *a) { return F_OP(f, "aten.abs.default", F_T(a)); }
static inline Tensor *f_exp(Formula *f, const Tensor *a) { return F_OP(f, "aten.exp.default", F_T(a)); }
static inline Tensor *f_log(Formula *f, const Tensor *a) { return F_OP(f, "aten.log.default", F_T(a)); }
static inline Tensor *f_sqrt(Formula *f, const Tensor *a) { return F_OP(f, "aten.sqrt.default", F_T(a)); }
static inline Tensor *f_rsqrt(Formula *f, const Tensor *a) { return F_OP(f, "aten.rsqrt.default", F_T(a)); }
static inline Tensor *f_at_least(Formula *f, const Tensor *a, double low) {
  return F_OP(f, "aten.clamp_min.default", F_T(a), val_float(low));
}
static inline Tensor *f_where(Formula *f, const Tensor *if_, const Tensor *a, const Tensor *b) {
  return F_OP(f, "aten.where.self", F_T(if_), F_T(a), F_T(b));
}
static inline Tensor *f_zeros_like(Formula *f, const Tensor *a) {
  return F_OP(f, "aten.zeros_like.default", F_T(a));
}
static inline Tensor *f_view(Formula *f, const Tensor *a, const int64_t *size, int n) {
  return F_OP(f, "aten.reshape.default", F_T(a), val_ints(size, n));
}
static inline Tensor *f_sum(Formula *f, const Tensor *a, const int64_t *dims, int n, bool keepdim) {
  return F_OP(f, "aten.sum.dim_IntList", F_T(a), val_ints(dims, n), val_bool(keepdim));
}

#endif
