/* scatter.c -- gradients of what writes along one dimension, where an index says. */
#include "ops/vjp.h"

#include <string.h>

/* An index may be smaller than the source: x, of the index's size, with zeros for the source's other elements,
 * which go nowhere. */
static Tensor *padded(Vjp *v, Tensor *x, const Tensor *source) {
  int64_t size[MAX_DIMS];
  if (!x || x->ndim != source->ndim) return x;
  memcpy(size, x->size, sizeof size);
  for (int d = 0; d < source->ndim; d++) {
    int64_t have = size[d];
    if (have == source->size[d]) continue;
    size[d] = source->size[d];
    x = F_OP(&v->f, "aten.slice_backward.default", F_T(x), val_ints(size, source->ndim), val_int(d), val_int(0),
             val_int(have), val_int(1));
  }
  return x;
}

/* What the source gets: the cotangent at its places. */
static Tensor *gather_for(Vjp *v, Tensor *g, const Tensor *source) {
  return padded(v, F_OP(&v->f, "aten.gather.default", F_T(g), vjp_value(v, 1), vjp_value(v, 2)), source);
}

static void vjp_scatter(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  if (vjp_wants(v, 0))
    vjp_give(v, 0, F_OP(&v->f, "aten.scatter.value", F_T(g), vjp_value(v, 1), vjp_value(v, 2), val_int(0)));
  if (vjp_wants(v, 3)) vjp_give(v, 3, gather_for(v, g, vjp_arg(v, 3)));
}

static void vjp_scatter_add(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  vjp_give(v, 0, g);
  if (vjp_wants(v, 3)) vjp_give(v, 3, gather_for(v, g, vjp_arg(v, 3)));
}

/* ---- reduced ------------------------------------------------------------------------------------------------ */

/* scatter_reduce(self, dim, index, src, reduce, include_self) */
typedef struct {
  Vjp *v;
  Formula *f;
  Tensor *g, *self, *index, *src, *result; /* src: the part that the index covers */
  Value dim;
  bool include_self;
  Tensor *to_self, *to_src; /* what they get */
} Reduced;

static Tensor *gather(Reduced *r, Tensor *from) {
  return F_OP(r->f, "aten.gather.default", F_T(from), r->dim, F_T(r->index));
}
static Tensor *scatter_add(Reduced *r, Tensor *to, Tensor *src) {
  return F_OP(r->f, "aten.scatter_add.default", F_T(to), r->dim, F_T(r->index), F_T(src));
}
static Tensor *is_zero(Reduced *r, Tensor *t) { return F_OP(r->f, "aten.eq.Scalar", F_T(t), val_int(0)); }
static Tensor *with_ones(Reduced *r, Tensor *t, Tensor *mask) {
  return F_OP(r->f, "aten.masked_fill.Scalar", F_T(t), F_T(mask), val_int(1));
}
static Tensor *product(Reduced *r, Tensor *self, Tensor *src) {
  return F_OP(r->f, "aten.scatter_reduce.two", F_T(self), r->dim, F_T(r->index), F_T(src), val_str("prod"),
              val_bool(r->include_self));
}

static void reduced_sum(Reduced *r) {
  r->to_self = r->g;
  r->to_src = gather(r, r->g);
}

static void reduced_mean(Reduced *r) {
  Tensor *ones = F_OP(r->f, "aten.ones_like.default", F_T(r->src));
  Tensor *count = F_OP(r->f, r->include_self ? "aten.ones_like.default" : "aten.zeros_like.default", F_T(r->g));
  count = scatter_add(r, count, ones);
  count = with_ones(r, count, is_zero(r, count));
  r->to_self = f_div(r->f, r->g, count);
  r->to_src = gather(r, r->to_self);
}

/* The product of the others: the result divided by the element, but where that is zero. */
static void reduced_product(Reduced *r) {
  Tensor *self = with_ones(r, r->self, is_zero(r, r->self));
  r->to_self = f_div(r->f, f_mul(r->f, r->g, product(r, self, r->src)), self);
  Tensor *zero = is_zero(r, r->src);
  Tensor *zeros = gather(r, scatter_add(r, f_zeros_like(r->f, r->self), f_cast(r->f, zero, r->self->dtype)));
  Tensor *single = F_OP(r->f, "aten.logical_and.default", F_T(zero),
                        F_T(F_OP(r->f, "aten.eq.Scalar", F_T(zeros), val_int(1))));
  Tensor *others = product(r, r->self, with_ones(r, r->src, single));
  Tensor *there = gather(r, f_mul(r->f, r->g, others));
  Tensor *elsewhere = f_div(r->f, gather(r, f_mul(r->f, r->g, r->result)), with_ones(r, r->src, zero));
  r->to_src = f_where(r->f, single, there, elsewhere);
}

/* Equal shares to all that are the largest, or the smallest. */
static void reduced_extreme(Reduced *r) {
  Dtype d = r->g->dtype;
  Tensor *src = F_OP(r->f, "aten.eq.Tensor", F_T(r->src), F_T(gather(r, r->result)));
  Tensor *self = F_OP(r->f, "aten.eq.Tensor", F_T(r->self), F_T(r->result));
  src = f_cast(r->f, src, d), self = f_cast(r->f, self, d);
  Tensor *share = f_div(r->f, r->g, scatter_add(r, self, src));
  r->to_self = f_mul(r->f, self, share);
  r->to_src = f_mul(r->f, src, gather(r, share));
}

/* The part of the source that the index covers. */
static Tensor *covered(Vjp *v, Tensor *t, const Tensor *index) {
  for (int d = 0; t && d < index->ndim && d < t->ndim; d++)
    if (t->size[d] != index->size[d])
      t = F_OP(&v->f, "aten.slice.Tensor", F_T(t), val_int(d), val_int(0), val_int(index->size[d]));
  return t;
}

static void vjp_scatter_reduce(Vjp *v) {
  Tensor *index = vjp_arg(v, 2), *src = vjp_arg(v, 3);
  const char *how = in_str(v->forward, 4);
  Reduced r = {.v = v,
               .f = &v->f,
               .g = vjp_cotangent(v),
               .self = vjp_arg(v, 0),
               .index = index,
               .src = covered(v, src, index),
               .result = v->out[0],
               .dim = vjp_value(v, 1),
               .include_self = in_bool(v->forward, 5)};
  if (!r.src) return;
  if (!strcmp(how, "sum")) reduced_sum(&r);
  else if (!strcmp(how, "mean")) reduced_mean(&r);
  else if (!strcmp(how, "prod")) reduced_product(&r);
  else reduced_extreme(&r);
  if (!r.include_self && vjp_wants(v, 0))
    r.to_self = F_OP(&v->f, "aten.scatter.value", F_T(r.to_self), r.dim, F_T(index), val_int(0));
  vjp_give(v, 0, r.to_self);
  if (vjp_wants(v, 3)) vjp_give(v, 3, padded(v, r.to_src, src));
}

/* ---- whole slices ---------------------------------------------------------------------------------------- */

static Tensor *without_slices(Vjp *v, Tensor *g) {
  return F_OP(&v->f, "aten.index_fill.int_Scalar", F_T(g), vjp_value(v, 1), vjp_value(v, 2), val_int(0));
}

/* The slices of g, in the source's size: a source without dimensions is one element. */
static Tensor *slices_for(Vjp *v, Tensor *g, const Tensor *source) {
  Tensor *x = F_OP(&v->f, "aten.index_select.default", F_T(g), vjp_value(v, 1), vjp_value(v, 2));
  return x && source->ndim < x->ndim ? f_view(&v->f, x, source->size, source->ndim) : x;
}

static void vjp_index_copy(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  if (vjp_wants(v, 0)) vjp_give(v, 0, without_slices(v, g));
  if (vjp_wants(v, 3)) vjp_give(v, 3, slices_for(v, g, vjp_arg(v, 3)));
}

static void vjp_index_add(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  Value alpha = vjp_value(v, 4);
  vjp_give(v, 0, g);
  if (!vjp_wants(v, 3)) return;
  Tensor *x = slices_for(v, g, vjp_arg(v, 3));
  bool one = alpha.kind != VAL_COMPLEX && val_as_float(&alpha) == 1;
  vjp_give(v, 3, one ? x : F_OP(&v->f, "aten.mul.Scalar", F_T(x), alpha));
}

static void vjp_index_fill(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  if (vjp_wants(v, 0)) vjp_give(v, 0, without_slices(v, g));
  if (!vjp_wants(v, 3)) return;
  Tensor *x = F_OP(&v->f, "aten.index_select.default", F_T(g), vjp_value(v, 1), vjp_value(v, 2));
  vjp_give(v, 3, F_OP(&v->f, "aten.sum.default", F_T(x)));
}

const GradDef grads_scatter[] = {
    GRAD("scatter.src scatter.value", vjp_scatter, "index"),
    GRAD("scatter_add.default", vjp_scatter_add, "index"),
    GRAD("scatter_reduce.two", vjp_scatter_reduce, "self index src result"),
    GRAD("index_copy.default", vjp_index_copy, "index"),
    GRAD("index_add.default", vjp_index_add, "index"),
    GRAD("index_fill.int_Scalar index_fill.int_Tensor", vjp_index_fill, "index"),
    {0},
};
