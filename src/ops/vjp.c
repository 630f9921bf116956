/* vjp.c -- see vjp.h. */
#include "ops/vjp.h"

static int flat_of(const Vjp *v, int arg, int item) {
  for (TensorWalk w = call_inputs(v->forward); tensor_next(&w);)
    if (w.arg == arg && w.item == item) return w.flat;
  return -1;
}

bool vjp_wants_item(const Vjp *v, int arg, int item) {
  int i = flat_of(v, arg, item);
  return i >= 0 && v->wanted[i];
}

bool vjp_wants(const Vjp *v, int arg) { return vjp_wants_item(v, arg, 0); }

/* g, summed to the size that t had before it was broadcast. */
static Tensor *sum_to(Formula *f, Tensor *g, const Tensor *t) {
  int64_t dims[MAX_DIMS];
  int n = 0, lead = g->ndim - t->ndim;
  for (int d = 0; d < g->ndim; d++)
    if (d < lead || (t->size[d - lead] == 1 && g->size[d] != 1)) dims[n++] = d;
  if (n) g = f_sum(f, g, dims, n, true);
  return g && lead ? f_view(f, g, t->size, t->ndim) : g;
}

void vjp_give_item(Vjp *v, int arg, int item, Tensor *g) {
  int i = flat_of(v, arg, item);
  if (i < 0 || !v->wanted[i] || !g || v->f.status) return;
  const Tensor *t = v->in[i];
  if (dtype_kind(g->dtype) == KIND_COMPLEX && dtype_kind(t->dtype) != KIND_COMPLEX)
    g = F_OP(&v->f, "aten.real.default", F_T(g));
  if (g && !tensor_same_size(g, t)) g = sum_to(&v->f, g, t);
  v->gradient[i] = g ? f_cast(&v->f, g, t->dtype) : NULL;
}

void vjp_give(Vjp *v, int arg, Tensor *g) { vjp_give_item(v, arg, 0, g); }

Tensor *vjp_op_for(Vjp *v, int arg, const char *name, const Value *args, int nargs) {
  Call c = *v->f.c;
  c.wanted = vjp_arg(v, arg)->spec;
  Formula f = {&c, v->f.status};
  Tensor *t = formula_op(&f, name, args, nargs);
  v->f.status = f.status;
  return t;
}

Tensor *vjp_zeros(Vjp *v, Dtype d, int ndim, const int64_t *size) {
  const Tensor *like = NULL;
  for (int i = 0; i < v->nout && !like; i++) like = v->cotangent[i];
  return F_OP(&v->f, "aten.new_zeros.default", F_T(like), val_ints(size, ndim), val_dtype(d));
}

Tensor *vjp_size(Vjp *v, Dtype d, int ndim, const int64_t *size) {
  return F_OP(&v->f, "aten.expand.default", F_T(vjp_zeros(v, d, 0, NULL)), val_ints(size, ndim));
}

Tensor *vjp_cotangent_or_zeros(Vjp *v, int i) {
  return v->cotangent[i] ? v->cotangent[i] : vjp_zeros_like(v, v->out[i]);
}

Tensor *vjp_conj(Vjp *v, Tensor *t) {
  return t && dtype_kind(t->dtype) == KIND_COMPLEX ? F_OP(&v->f, "aten._conj_physical.default", F_T(t)) : t;
}

void vjp_zero(Vjp *v) {
  for (int i = 0; i < v->nin; i++)
    if (v->wanted[i]) v->gradient[i] = vjp_zeros_like(v, v->in[i]);
}

void vjp_none(Vjp *v) { (void)v; }
