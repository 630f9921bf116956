/* select.c -- gradients of what chooses elements along a dimension and says where they stood: extremes with
 * indices, sorting, medians, modes.  The cotangent goes back to the chosen places. */
#include "ops/grads/folded.h"

/* Zeros with g at the indices. */
static void give_chosen(Vjp *v, int64_t dim, Tensor *index, Tensor *g) {
  Tensor *zeros = vjp_zeros(v, g->dtype, v->in[0]->ndim, v->in[0]->size);
  vjp_give(v, 0, F_OP(&v->f, "aten.scatter_add.default", F_T(zeros), val_int(dim), F_T(index), F_T(g)));
}

/* One element per row: (values, indices). */
static void vjp_chosen(Vjp *v) {
  Value given = vjp_named(v, "dim");
  Tensor *g = vjp_cotangent(v), *index = v->out[1];
  int64_t dim = val_as_int(&given);
  const Tensor *x = v->in[0];
  if (x->ndim == 0) {
    vjp_give(v, 0, g);
    return;
  }
  if (g->ndim < x->ndim) {
    if (dim < 0) dim += x->ndim;
    g = F_OP(&v->f, "aten.unsqueeze.default", F_T(g), val_int(dim));
    index = F_OP(&v->f, "aten.unsqueeze.default", F_T(index), val_int(dim));
  }
  if (g) give_chosen(v, dim, index, g);
}

static Status msort_form(Call *c) {
  Formula f = {.c = c};
  return formula_give(&f, F_OP(&f, "aten.sort.default", c->arg[0], val_int(0)));
}

const GradDef grads_select[] = {
    GRAD("max.dim min.dim sort.default sort.stable topk.default kthvalue.default median.dim nanmedian.dim "
         "mode.default",
         vjp_chosen, "result1"),
    GRAD("histc.default", vjp_none, NULL), /* counts */
    TRAINS_AS("msort.default", msort_form),
    {0},
};
