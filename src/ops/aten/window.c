/* window.c -- window functions of signal processing, written with the ops that ATen makes them
 * of, so that narrow dtypes are rounded in the same places.
 *
 * (window_length, periodic = true, further numbers, *, dtype, ...): a periodic window is one of
 * length + 1 without its last element. */
#include <math.h>
#include <string.h>

#include "ops/formula.h"

typedef struct {
  Tensor *(*make)(Formula *f, int64_t n, Dtype d, const double *p);
  double p[2];     /* the numbers, unless the call has them */
  int npositional; /* arguments before the dtype */
} Row;

/* ATen rounds numbers to the dtype before it calculates with them. */
static Tensor *scale(Formula *f, Tensor *t, double by) { return t ? f_scale(f, t, val_round(t->dtype, by)) : NULL; }
static Tensor *shift(Formula *f, Tensor *t, double by) { return t ? f_shift(f, t, val_round(t->dtype, by)) : NULL; }

static Tensor *count_up(Formula *f, int64_t n, Dtype d) {
  return F_OP(f, "aten.arange.default", val_int(n), val_dtype(d));
}

/* alpha - beta cos(2 pi i / (n - 1)) */
static Tensor *cosine(Formula *f, int64_t n, Dtype d, const double *p) {
  Tensor *angle = scale(f, count_up(f, n, d), 2 * M_PI / (double)(n - 1));
  return shift(f, scale(f, F_OP(f, "aten.cos.default", F_T(angle)), -p[1]), p[0]);
}

static Tensor *blackman(Formula *f, int64_t n, Dtype d, const double *p) {
  (void)p;
  Tensor *angle = scale(f, count_up(f, n, d), M_PI / (double)(n - 1));
  Tensor *four = scale(f, F_OP(f, "aten.cos.default", F_T(scale(f, angle, 4))), 0.08),
         *two = scale(f, F_OP(f, "aten.cos.default", F_T(scale(f, angle, 2))), 0.5);
  return shift(f, f_sub(f, four, two), 0.42);
}

/* Up to 1 and down again. */
static Tensor *bartlett(Formula *f, int64_t n, Dtype d, const double *p) {
  (void)p;
  Tensor *up = scale(f, count_up(f, n, d), 2 / (double)(n - 1));
  int64_t half = (n - 1) / 2 + 1;
  Tensor *parts[2] = {F_OP(f, "aten.slice.Tensor", F_T(up), val_int(0), val_int(0), val_int(half)),
                      F_OP(f, "aten.slice.Tensor", F_T(up), val_int(0), val_int(half), val_int(n))};
  parts[1] = shift(f, f_neg(f, parts[1]), 2);
  return parts[0] && parts[1] ? F_OP(f, "aten.cat.default", val_tensors(parts, 2), val_int(0)) : NULL;
}

/* i0(beta sqrt(1 - (2 i / (n - 1) - 1)^2)) / i0(beta), in f32 at least. */
static Tensor *kaiser(Formula *f, int64_t n, Dtype d, const double *p) {
  Dtype wide = d == DT_F64 ? DT_F64 : DT_F32;
  Tensor *x = shift(f, scale(f, count_up(f, n, wide), 2 / (double)(n - 1)), -1);
  Tensor *inside = f_abs(f, shift(f, f_neg(f, f_mul(f, x, x)), 1));
  Tensor *top = F_OP(f, "aten.i0.default", F_T(scale(f, f_sqrt(f, inside), p[0])));
  Tensor *beta = F_OP(f, "aten.full_like.default", F_T(x), val_float(p[0]));
  return f_cast(f, f_div(f, top, F_OP(f, "aten.i0.default", F_T(beta))), d);
}

static Status window(Call *c) {
  const Row *row = c->op->def->row;
  Formula f = {.c = c};
  int64_t n = in_int(c, 0);
  Dtype d = in_dtype(c, row->npositional, DT_F32);
  bool periodic = row->npositional < 2 || in_bool(c, 1);
  double p[2];
  if (n < 0 || n > (int64_t)1 << 40)
    return op_fail(c, "window_length is %lld, must be 0 or more, and not beyond all memory", (long long)n);
  if (!dtype_is_float(d)) return op_fail(c, "makes floats, not %s", dtype_name(d));
  memcpy(p, row->p, sizeof p);
  for (int i = 2; i < row->npositional; i++) p[i - 2] = in_float(c, i);
  if (n < 2) return formula_give(&f, F_OP(&f, "aten.ones.default", val_ints(&n, 1), val_dtype(d)));
  Tensor *y = row->make(&f, n + periodic, d, p);
  if (periodic) y = F_OP(&f, "aten.slice.Tensor", F_T(y), val_int(0), val_int(0), val_int(n));
  return formula_give(&f, y);
}

/* clang-format off */
#define OPTIONS ", *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
#define WITH(name, args, count, MAKE, ...) \
  {.schema = "aten::" name "(int window_length" args OPTIONS, .compose = window, \
   .row = &(const Row){.make = MAKE, .npositional = count, .p = {__VA_ARGS__}}},
#define WINDOW(name, MAKE, ...) \
  WITH(name, "", 1, MAKE, __VA_ARGS__) WITH(name ".periodic", ", bool periodic", 2, MAKE, __VA_ARGS__)

const OpDef ops_window[] = {
    WINDOW("hann_window",     cosine,   0.5, 0.5)
    WINDOW("hamming_window",  cosine,   0.54, 0.46)
    WINDOW("blackman_window", blackman, 0)
    WINDOW("bartlett_window", bartlett, 0)
    WINDOW("kaiser_window",   kaiser,   12)
    WITH("hamming_window.periodic_alpha", ", bool periodic, float alpha", 3, cosine, 0.54, 0.46)
    WITH("hamming_window.periodic_alpha_beta", ", bool periodic, float alpha, float beta", 4, cosine, 0.54, 0.46)
    WITH("kaiser_window.beta", ", bool periodic, float beta", 3, kaiser, 12)
    {0}};
/* clang-format on */
