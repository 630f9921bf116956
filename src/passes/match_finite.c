/* match_finite.c -- match_is_finite(): what the elements of a tensor lie between, as far as the graph tells.
 *
 *   where(cond, 0, -3.4e38)              -3.4e38 to 0
 *   mul(rsub(to(mask: bool, f32), 1), -10000)  -10000 to 0
 */
#include <float.h>
#include <math.h>

#include "passes/match.h"

typedef struct {
  double least, most;
} Range;

typedef enum {
  IS_NUMBER, /* argument a */
  IS_ZERO,
  IS_ONE,
  IS_SAME,   /* elements of argument a */
  IS_CHOICE, /* elements of arguments a and b */
  IS_SUM,
  IS_DIFFERENCE, /* a - b */
  IS_PRODUCT,
} What;

typedef struct {
  const char *target;
  What is;
  int a, b;
} Row;

static const Row rows[] = {
    {"aten.full.default", IS_NUMBER, 1, 0},
    {"aten.full_like.default", IS_NUMBER, 1, 0},
    {"aten.new_full.default", IS_NUMBER, 2, 0},
    {"aten.scalar_tensor.default", IS_NUMBER, 0, 0},
    {"aten.zeros.default", IS_ZERO, 0, 0},
    {"aten.zeros_like.default", IS_ZERO, 0, 0},
    {"aten.new_zeros.default", IS_ZERO, 0, 0},
    {"aten.ones.default", IS_ONE, 0, 0},
    {"aten.ones_like.default", IS_ONE, 0, 0},
    {"aten.new_ones.default", IS_ONE, 0, 0},
    {"aten.to.dtype", IS_SAME, 0, 0},
    {"aten.to.dtype_layout", IS_SAME, 0, 0},
    {"aten.to.device", IS_SAME, 0, 0},
    {"aten._to_copy.default", IS_SAME, 0, 0},
    {"aten.lift_fresh_copy.default", IS_SAME, 0, 0},
    {"aten.clone.default", IS_SAME, 0, 0},
    {"aten.contiguous.default", IS_SAME, 0, 0},
    {"aten.expand.default", IS_SAME, 0, 0},
    {"aten.unsqueeze.default", IS_SAME, 0, 0},
    {"aten.slice.Tensor", IS_SAME, 0, 0},
    {"aten.select.int", IS_SAME, 0, 0},
    {"aten.view.default", IS_SAME, 0, 0},
    {"aten.reshape.default", IS_SAME, 0, 0},
    {"aten.permute.default", IS_SAME, 0, 0},
    {"aten.transpose.int", IS_SAME, 0, 0},
    {"aten.where.self", IS_CHOICE, 1, 2},
    {"aten.where.ScalarOther", IS_CHOICE, 1, 2},
    {"aten.where.ScalarSelf", IS_CHOICE, 1, 2},
    {"aten.where.Scalar", IS_CHOICE, 1, 2},
    {"aten.masked_fill.Scalar", IS_CHOICE, 0, 2},
    {"aten.masked_fill.Tensor", IS_CHOICE, 0, 2},
    {"aten.add.Tensor", IS_SUM, 0, 1},
    {"aten.add.Scalar", IS_SUM, 0, 1},
    {"aten.sub.Tensor", IS_DIFFERENCE, 0, 1},
    {"aten.sub.Scalar", IS_DIFFERENCE, 0, 1},
    {"aten.rsub.Scalar", IS_DIFFERENCE, 1, 0},
    {"aten.mul.Tensor", IS_PRODUCT, 0, 1},
    {"aten.mul.Scalar", IS_PRODUCT, 0, 1},
};

/* The largest number up to which nothing overflows. */
static double largest(Dtype dtype) {
  if (dtype == DT_F64) return DBL_MAX;
  if (dtype == DT_F32) return FLT_MAX;
  return dtype_is_float(dtype) || dtype == DT_C64 ? 0 : 127; /* of the smallest integers */
}

static Range hull(const double *x, int n) {
  Range r = {x[0], x[0]};
  for (int i = 1; i < n; i++) r = (Range){fmin(r.least, x[i]), fmax(r.most, x[i])};
  return r;
}

static Range combine(What is, Range a, Range b) {
  const double products[] = {a.least * b.least, a.least * b.most, a.most * b.least, a.most * b.most};
  switch (is) {
    case IS_CHOICE: return (Range){fmin(a.least, b.least), fmax(a.most, b.most)};
    case IS_SUM: return (Range){a.least + b.least, a.most + b.most};
    case IS_DIFFERENCE: return (Range){a.least - b.most, a.most - b.least};
    case IS_PRODUCT: return hull(products, 4);
    default: return a;
  }
}

static const Row *row_of(const Node *n) {
  for (size_t i = 0; n && i < sizeof rows / sizeof *rows; i++)
    if (node_is(n, rows[i].target)) return &rows[i];
  return NULL;
}

/* left: how many values may still be looked at. */
static bool range_of(const Arg *arg, int *left, Range *out) {
  double number;
  if (match_number(arg, &number)) return *out = (Range){number, number}, isfinite(number);
  if (arg->kind != ARG_VAL || arg->val->type != TY_TENSOR || --*left < 0) return false;
  const Val *v = arg->val;
  if (v->dtype == DT_BOOL) return *out = (Range){0, 1}, true;
  const Node *n = v->node;
  const Row *row = row_of(n);
  if (!row) return false;
  Range a = {0, 0}, b = {0, 0};
  const bool fixed = row->is == IS_ZERO || row->is == IS_ONE, two = row->is >= IS_CHOICE,
             sum = row->is == IS_SUM || row->is == IS_DIFFERENCE;
  if (!fixed && !range_of(&n->args[row->a], left, &a)) return false;
  if (two && !range_of(&n->args[row->b], left, &b)) return false;
  if (sum && !match_plain_alpha(n)) return false;
  if (fixed) a.least = a.most = row->is == IS_ONE;
  *out = combine(row->is, a, b);
  return out->least >= -largest(v->dtype) && out->most <= largest(v->dtype);
}

bool match_is_finite(const Val *v) {
  const Arg arg = arg_val((Val *)(uintptr_t)v);
  int left = 64;
  Range r;
  return v->type == TY_TENSOR && (v->dtype == DT_F32 || v->dtype == DT_F64) && range_of(&arg, &left, &r);
}
