/* scatter.c -- gradients of what writes along one dimension, where an index says. */
#include "ops/vjp.h"

#include <string.h>

/* What the source gets: the cotangent at its places.  An index may be smaller than the source, whose other
 * elements go nowhere. */
static Tensor *gather_for(Vjp *v, Tensor *g, const Tensor *source) {
  const Tensor *index = vjp_arg(v, 2);
  Tensor *x = F_OP(&v->f, "aten.gather.default", F_T(g), vjp_value(v, 1), F_T(index));
  int64_t size[MAX_DIMS];
  memcpy(size, index->size, sizeof size);
  for (int d = 0; d < index->ndim && d < source->ndim; d++) {
    int64_t have = size[d];
    if (have == source->size[d]) continue;
    size[d] = source->size[d];
    x = F_OP(&v->f, "aten.slice_backward.default", F_T(x), val_ints(size, index->ndim), val_int(d), val_int(0),
             val_int(have), val_int(1));
  }
  return x;
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
    GRAD("index_copy.default", vjp_index_copy, "index"),
    GRAD("index_add.default", vjp_index_add, "index"),
    GRAD("index_fill.int_Scalar index_fill.int_Tensor", vjp_index_fill, "index"),
    {0},
};
