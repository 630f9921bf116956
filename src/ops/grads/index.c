/* index.c -- gradients of what reads and writes where a mask or an index says.
 *
 * Reading picks elements, so the cotangent is added up where they came from; writing takes the cotangent at the
 * places written for the source, and leaves zero there for the tensor that is written to. */
#include "ops/vjp.h"

/* ---- masks ---------------------------------------------------------------------------------------------- */

/* g where `mask` is true (else: false), 0 elsewhere. */
static Tensor *chosen(Vjp *v, Tensor *g, Tensor *mask, bool where_true) {
  if (where_true) return F_OP(&v->f, "aten.where.ScalarOther", F_T(mask), F_T(g), val_int(0));
  return F_OP(&v->f, "aten.where.ScalarSelf", F_T(mask), val_int(0), F_T(g));
}

static void vjp_where(Vjp *v) {
  Tensor *g = vjp_cotangent(v), *condition = vjp_arg(v, 0);
  if (vjp_wants(v, 1)) vjp_give(v, 1, chosen(v, g, condition, true));
  if (vjp_wants(v, 2)) vjp_give(v, 2, chosen(v, g, condition, false));
}

static void vjp_masked_fill(Vjp *v) {
  Tensor *g = vjp_cotangent(v), *mask = vjp_arg(v, 1);
  if (vjp_wants(v, 0)) vjp_give(v, 0, F_OP(&v->f, "aten.masked_fill.Scalar", F_T(g), F_T(mask), val_int(0)));
  if (vjp_wants(v, 2)) vjp_give(v, 2, chosen(v, g, mask, true));
}

/* The size that self and mask have together. */
static int common_size(const Tensor *a, const Tensor *b, int64_t *size) {
  int ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
  for (int d = 0; d < ndim; d++) {
    int i = d - (ndim - a->ndim), j = d - (ndim - b->ndim);
    int64_t m = i < 0 ? 1 : a->size[i], n = j < 0 ? 1 : b->size[j];
    size[d] = m == 1 ? n : m;
  }
  return ndim;
}

static void vjp_masked_select(Vjp *v) {
  int64_t size[MAX_DIMS];
  Tensor *g = vjp_cotangent(v), *mask = vjp_arg(v, 1);
  int ndim = common_size(v->in[0], mask, size);
  Tensor *zeros = vjp_zeros(v, g->dtype, ndim, size);
  if (vjp_wants(v, 0)) vjp_give(v, 0, F_OP(&v->f, "aten.masked_scatter.default", F_T(zeros), F_T(mask), F_T(g)));
}

/* Element i of the source went to the place where the mask was true for the i-th time; the rest of the source
 * went nowhere.  Sizes do not depend on the mask: all of g is added to n + 1 places, of which the last takes what
 * is not wanted. */
static Tensor *masked_scatter_source(Vjp *v, Tensor *g, Tensor *mask, const Tensor *source) {
  Formula *f = &v->f;
  int64_t n = tensor_numel(source), more = n + 1, all = tensor_numel(g);
  Tensor *places = F_OP(f, "aten.logical_or.default", F_T(vjp_zeros(v, DT_BOOL, g->ndim, g->size)), F_T(mask));
  places = f_view(f, places, &all, 1);
  Tensor *number = F_OP(f, "aten.cumsum.default", F_T(places), val_int(0), val_dtype(DT_I64));
  number = F_OP(f, "aten.sub.Scalar", F_T(number), val_int(1));
  number = F_OP(f, "aten.where.ScalarOther", F_T(places), F_T(number), val_int(n));
  Tensor *sums = F_OP(f, "aten.index_add.default", F_T(vjp_zeros(v, g->dtype, 1, &more)), val_int(0), F_T(number),
                      F_T(f_view(f, g, &all, 1)));
  sums = F_OP(f, "aten.slice.Tensor", F_T(sums), val_int(0), val_int(0), val_int(n));
  return f_view(f, sums, source->size, source->ndim);
}

static void vjp_masked_scatter(Vjp *v) {
  Tensor *g = vjp_cotangent(v), *mask = vjp_arg(v, 1);
  if (vjp_wants(v, 0)) vjp_give(v, 0, F_OP(&v->f, "aten.masked_fill.Scalar", F_T(g), F_T(mask), val_int(0)));
  if (vjp_wants(v, 2)) vjp_give(v, 2, masked_scatter_source(v, g, mask, vjp_arg(v, 2)));
}

/* ---- x[i, :, j] ------------------------------------------------------------------------------------------- */

static void vjp_index(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  Tensor *zeros = vjp_zeros(v, g->dtype, v->in[0]->ndim, v->in[0]->size);
  vjp_give(v, 0, F_OP(&v->f, "aten.index_put.default", F_T(zeros), vjp_value(v, 1), F_T(g), val_bool(true)));
}

static void vjp_index_put(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  Value indices = vjp_value(v, 1);
  if (vjp_wants(v, 0) && in_bool(v->forward, 3)) vjp_give(v, 0, g);
  else if (vjp_wants(v, 0)) {
    Tensor *zero = vjp_zeros(v, g->dtype, 0, NULL);
    vjp_give(v, 0, F_OP(&v->f, "aten.index_put.default", F_T(g), indices, F_T(zero), val_bool(false)));
  }
  if (vjp_wants(v, 2)) vjp_give(v, 2, F_OP(&v->f, "aten.index.Tensor", F_T(g), indices));
}

/* ---- along one dimension ------------------------------------------------------------------------------------ */

static void vjp_index_select(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  Tensor *zeros = vjp_zeros(v, g->dtype, v->in[0]->ndim, v->in[0]->size);
  vjp_give(v, 0, F_OP(&v->f, "aten.index_add.default", F_T(zeros), vjp_value(v, 1), vjp_value(v, 2), F_T(g)));
}

static void vjp_gather(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  Tensor *zeros = vjp_zeros(v, g->dtype, v->in[0]->ndim, v->in[0]->size);
  vjp_give(v, 0, F_OP(&v->f, "aten.scatter_add.default", F_T(zeros), vjp_value(v, 1), vjp_value(v, 2), F_T(g)));
}

/* self seen as flat. */
static void vjp_take(Vjp *v) {
  const Tensor *x = v->in[0];
  Tensor *g = vjp_cotangent(v), *index = vjp_arg(v, 1);
  int64_t n = tensor_numel(x);
  Tensor *flat = F_OP(&v->f, "aten.index_put.default", F_T(vjp_zeros(v, g->dtype, 1, &n)), val_tensors(&index, 1),
                      F_T(g), val_bool(true));
  vjp_give(v, 0, f_view(&v->f, flat, x->size, x->ndim));
}

const GradDef grads_index[] = {
    GRAD("where.self where.ScalarSelf where.ScalarOther", vjp_where, "condition"),
    GRAD("masked_fill.Scalar masked_fill.Tensor", vjp_masked_fill, "mask"),
    GRAD("masked_select.default", vjp_masked_select, "mask"),
    GRAD("masked_scatter.default", vjp_masked_scatter, "mask"),
    GRAD("index.Tensor _unsafe_index.Tensor", vjp_index, "indices"),
    GRAD("index_put.default _unsafe_index_put.default", vjp_index_put, "indices"),
    GRAD("index_select.default", vjp_index_select, "index"),
    GRAD("gather.default", vjp_gather, "index"),
    GRAD("take.default", vjp_take, "index"),
    {0},
};
