/* quantile.c -- gradients of quantile and nanquantile (self, q, dim, keepdim, interpolation).
 *
 * The rows are sorted once more: place q (n - 1) of a row lies between two elements, which get the cotangent by
 * their weights.  n counts no nan in nanquantile; a row with nan is nan in quantile, and so is its last element,
 * which gets everything. */
#include <string.h>

#include "ops/vjp.h"

typedef struct {
  Vjp *v;
  int dim, nrest; /* the sorted dimension, -1: all elements are one row; those of the rows */
  int64_t order[MAX_DIMS], rest[MAX_DIMS + 1], n;
  Tensor *sorted, *from; /* rows, and where their elements stood */
  Tensor *last, *nan;    /* n - 1 as seen from each row; rows that are nan */
  Tensor *place;         /* (..., fractions) */
  bool ignores_nan;
} Quantile;

static bool begin(Quantile *s) {
  Vjp *v = s->v;
  Formula *f = &v->f;
  const Tensor *x = v->in[0];
  s->dim = -1;
  if (!in_none(v->forward, 2)) f->status = wrap_dim(v->forward, in_int(v->forward, 2), x->ndim, &s->dim);
  if (f->status) return false;
  if (x->ndim == 0) s->dim = -1;
  s->n = s->dim < 0 ? tensor_numel(x) : x->size[s->dim];
  for (int d = 0; s->dim >= 0 && d < x->ndim; d++)
    if (d != s->dim) s->rest[s->nrest] = x->size[d], s->order[s->nrest++] = d;
  s->order[s->nrest] = s->dim;
  Tensor *rows = s->dim < 0 ? f_view(f, vjp_arg(v, 0), &s->n, 1)
                            : F_OP(f, "aten.permute.default", vjp_value(v, 0), val_ints(s->order, x->ndim));
  Tensor *pair[2];
  F_OPS(f, "aten.sort.default", pair, 2, F_T(rows), val_int(-1));
  s->sorted = pair[0], s->from = pair[1];
  return !f->status;
}

static void find_places(Quantile *s) {
  Vjp *v = s->v;
  Formula *f = &v->f;
  const int64_t along = -1;
  if (s->ignores_nan) {
    Tensor *number = F_OP(f, "aten.logical_not.default", F_T(F_OP(f, "aten.isnan.default", F_T(s->sorted))));
    s->last = f_shift(f, f_cast(f, f_sum(f, number, &along, 1, true), s->sorted->dtype), -1);
    s->nan = F_OP(f, "aten.lt.Scalar", F_T(s->last), val_int(0));
  } else {
    Tensor *end = F_OP(f, "aten.narrow.default", F_T(s->sorted), val_int(-1), val_int(s->n - 1), val_int(1));
    s->last = F_OP(f, "aten.full_like.default", F_T(end), val_int(s->n - 1));
    s->nan = F_OP(f, "aten.isnan.default", F_T(end));
  }
  s->place = F_OP(f, "aten.mul.Tensor", F_T(s->last), vjp_value(v, 1));
  s->place = s->ignores_nan ? f_at_least(f, s->place, 0) : f_where(f, s->nan, s->last, s->place);
}

/* The cotangent as (..., fractions). */
static Tensor *cotangent(Quantile *s) {
  Formula *f = &s->v->f;
  const Tensor *q = vjp_arg(s->v, 1);
  int64_t size[MAX_DIMS + 1], back[MAX_DIMS + 1];
  int lead = q && q->ndim;
  size[0] = lead ? q->size[0] : 1;
  memcpy(size + 1, s->rest, (size_t)s->nrest * sizeof *size);
  Tensor *g = f_view(f, vjp_cotangent(s->v), size, s->nrest + 1);
  for (int d = 0; d <= s->nrest; d++) back[d] = d < s->nrest ? d + 1 : 0;
  return F_OP(f, "aten.permute.default", F_T(g), val_ints(back, s->nrest + 1));
}

static Tensor *element(Quantile *s, Tensor *of, Tensor *index) {
  return F_OP(&s->v->f, "aten.gather.default", F_T(of), val_int(-1), F_T(index));
}

static Tensor *rounded(Quantile *s, const char *how) {
  return f_cast(&s->v->f, F_OP(&s->v->f, how, F_T(s->place)), DT_I64);
}

/* zeros with g added at the places of the original rows */
static Tensor *add_at(Quantile *s, Tensor *zeros, Tensor *index, Tensor *g) {
  return F_OP(&s->v->f, "aten.scatter_add.default", F_T(zeros), val_int(-1), F_T(element(s, s->from, index)),
              F_T(g));
}

static void give_rows(Quantile *s, Tensor *gx) {
  Formula *f = &s->v->f;
  const Tensor *x = s->v->in[0];
  int64_t inverse[MAX_DIMS];
  for (int d = 0; s->dim >= 0 && d < x->ndim; d++) inverse[s->order[d]] = d;
  vjp_give(s->v, 0,
           s->dim < 0 ? f_view(f, gx, x->size, x->ndim)
                      : F_OP(f, "aten.permute.default", F_T(gx), val_ints(inverse, x->ndim)));
}

static void vjp_quantile(Vjp *v) {
  Formula *f = &v->f;
  Quantile s = {.v = v, .ignores_nan = strstr(v->forward->op->schema.name, "nanquantile") != NULL};
  const char *mode = in_str(v->forward, 4);
  if (!begin(&s)) return;
  find_places(&s);
  Tensor *g = cotangent(&s), *zeros = s.sorted ? vjp_zeros_like(v, s.sorted) : NULL;
  if (strcmp(mode, "linear") && strcmp(mode, "midpoint")) {
    const char *how = !strcmp(mode, "lower")    ? "aten.floor.default"
                      : !strcmp(mode, "higher") ? "aten.ceil.default"
                                                : "aten.round.default";
    if (vjp_wants(v, 0)) give_rows(&s, add_at(&s, zeros, rounded(&s, how), g));
    if (vjp_wants(v, 1)) vjp_give(v, 1, vjp_zeros_like(v, vjp_arg(v, 1)));
    return;
  }
  Tensor *low = rounded(&s, "aten.floor.default"), *high = rounded(&s, "aten.ceil.default");
  bool linear = mode[0] == 'l';
  if (vjp_wants(v, 0)) {
    Tensor *up = linear ? f_mul(f, g, f_sub(f, s.place, low)) : f_scale(f, g, 0.5);
    give_rows(&s, add_at(&s, add_at(&s, zeros, low, f_sub(f, g, up)), high, up));
  }
  if (!vjp_wants(v, 1)) return;
  Tensor *slope = f_mul(f, f_sub(f, element(&s, s.sorted, high), element(&s, s.sorted, low)), s.last);
  if (!linear) slope = f_zeros_like(f, slope);
  if (s.nan) slope = F_OP(f, "aten.where.ScalarSelf", F_T(s.nan), val_int(0), F_T(slope));
  Tensor *gq = f_mul(f, g, slope);
  vjp_give(v, 1, vjp_arg(v, 1)->ndim ? gq : F_OP(f, "aten.sum.default", F_T(gq)));
}

const GradDef grads_quantile[] = {
    GRAD("quantile.default quantile.scalar nanquantile.default nanquantile.scalar", vjp_quantile, "self q"),
    {0},
};
