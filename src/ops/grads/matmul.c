/* matmul.c -- gradients of matrix products.
 *
 * All ops that are one product (ops/aten/product.h) have one gradient: with y = alpha a b + beta c and the
 * cotangent g of y, a gets alpha g b^T, b gets alpha a^T g, c gets beta g.  What was broadcast is summed by
 * vjp_give(); the rows of a batch that meet one matrix are folded first, so that its gradient is one product.
 */
#include "ops/aten/product.h"
#include "ops/vjp.h"

/* t times a number of the call. */
static Tensor *times(Vjp *v, Tensor *t, int arg) {
  if (arg == NO_ARG || !t) return t;
  Value by = vjp_value(v, arg);
  if (by.kind != VAL_COMPLEX && val_as_float(&by) == 1) return t;
  return F_OP(&v->f, "aten.mul.Scalar", F_T(t), by);
}

static Tensor *with_dim(Vjp *v, const Tensor *t, int at) {
  return F_OP(&v->f, "aten.unsqueeze.default", F_T(t), val_int(at));
}

static Tensor *without_dim(Vjp *v, const Tensor *t, int at) {
  return F_OP(&v->f, "aten.squeeze.dim", F_T(t), val_int(at));
}

static Tensor *turned(Vjp *v, const Tensor *t) {
  return F_OP(&v->f, "aten.transpose.int", F_T(t), val_int(-2), val_int(-1));
}

static Tensor *product(Vjp *v, const Tensor *a, const Tensor *b) {
  return F_OP(&v->f, "aten.matmul.default", F_T(a), F_T(b));
}

/* All but the last dimension as one. */
static Tensor *rows(Vjp *v, const Tensor *t) {
  if (!t || t->ndim <= 2) return (Tensor *)(uintptr_t)t;
  int64_t size[2] = {1, t->size[t->ndim - 1]};
  for (int d = 0; d < t->ndim - 1; d++) size[0] *= t->size[d];
  return f_view(&v->f, t, size, 2);
}

/* An operand as it is multiplied with g: conjugated, in g's dtype. */
static Tensor *factor(Vjp *v, int arg, const Tensor *g) {
  return f_cast(&v->f, vjp_conj(v, vjp_arg(v, arg)), g->dtype);
}

/* g (..., m, n), b of the call: (..., k, n) if it was, or a weight (n, k). */
static void give_left(Vjp *v, const Product *p, const Tensor *g) {
  const Tensor *b = factor(v, p->right, g);
  if (!b) return;
  if (b->ndim == 1) b = with_dim(v, b, 0);
  else if (!p->transposed) b = turned(v, b);
  Tensor *to = product(v, g, b);
  if (vjp_arg(v, p->left)->ndim == 1) to = without_dim(v, to, -2);
  vjp_give(v, p->left, times(v, to, p->alpha));
}

static void give_right(Vjp *v, const Product *p, Tensor *g) {
  Tensor *a = factor(v, p->left, g), *to;
  int ndim = vjp_arg(v, p->right)->ndim;
  if (a && a->ndim == 1) a = with_dim(v, a, 0);
  if (ndim <= 2 && a && a->ndim == g->ndim) a = rows(v, a), g = rows(v, g);
  to = p->transposed ? product(v, turned(v, g), a) : product(v, turned(v, a), g);
  if (ndim == 1) to = without_dim(v, to, p->transposed ? -2 : -1);
  vjp_give(v, p->right, times(v, to, p->alpha));
}

static void vjp_product(Vjp *v) {
  const Product *p = v->forward->op->def->row;
  Tensor *g = vjp_cotangent(v);
  if (p->add != NO_ARG && vjp_wants(v, p->add)) vjp_give(v, p->add, times(v, g, p->beta));
  bool row = vjp_arg(v, p->left)->ndim == 1, column = vjp_arg(v, p->right)->ndim == 1;
  if (row && column) { /* two vectors */
    if (vjp_wants(v, p->left)) vjp_give(v, p->left, f_mul(&v->f, g, factor(v, p->right, g)));
    if (vjp_wants(v, p->right)) vjp_give(v, p->right, f_mul(&v->f, g, factor(v, p->left, g)));
    return;
  }
  if (column) g = with_dim(v, g, -1);
  if (row) g = with_dim(v, g, -2);
  if (g && vjp_wants(v, p->left)) give_left(v, p, g);
  if (g && vjp_wants(v, p->right)) give_right(v, p, g);
}

/* beta self + alpha vec1 vec2^T */
static void vjp_addr(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  if (vjp_wants(v, 0)) vjp_give(v, 0, times(v, g, 3));
  if (vjp_wants(v, 1)) vjp_give(v, 1, times(v, product(v, g, factor(v, 2, g)), 4));
  if (vjp_wants(v, 2)) vjp_give(v, 2, times(v, product(v, turned(v, g), factor(v, 1, g)), 4));
}

/* act(beta self + alpha mat1 mat2): the product, then the activation. */
static Status activation_training(Call *c) {
  Formula f = {c, OK};
  Tensor *y = F_OP(&f, "aten.addmm.default", c->arg[0], c->arg[1], c->arg[2], c->arg[3], c->arg[4]);
  return formula_give(&f, F_OP(&f, in_bool(c, 5) ? "aten.gelu.default" : "aten.relu.default", F_T(y)));
}

static Tensor *grouped(Vjp *v, const Tensor *a, const Tensor *b) {
  return F_OP(&v->f, "aten._grouped_mm.default", F_T(a), F_T(b), vjp_value(v, 2));
}

/* Rows by group, each with a weight: those of the input's gradient meet the group's weight, turned around; a
 * weight's gradient is summed over its group.  Of two matrices that are summed by group: rows by group again. */
static void vjp_grouped(Vjp *v) {
  Tensor *g = vjp_cotangent(v), *a = vjp_arg(v, 0), *b = vjp_arg(v, 1);
  bool summed = b->ndim == 2;
  if (vjp_wants(v, 0))
    vjp_give(v, 0, summed ? turned(v, grouped(v, b, turned(v, g))) : grouped(v, g, turned(v, b)));
  if (vjp_wants(v, 1)) vjp_give(v, 1, grouped(v, turned(v, a), g));
}

/* Rows with the weight of their expert. */
static Tensor *with_experts(Vjp *v, const Tensor *x, const Tensor *weight, int first) {
  return F_OP(&v->f, "tess.expert_mm.default", F_T(x), F_T(weight), vjp_value(v, 2), vjp_value(v, first),
              vjp_value(v, first + 1));
}

static void vjp_expert_mm(Vjp *v) {
  Tensor *g = vjp_cotangent(v), *weight = vjp_arg(v, 1);
  if (vjp_wants(v, 0)) vjp_give(v, 0, with_experts(v, g, turned(v, weight), 3));
  if (vjp_wants(v, 1))
    vjp_give(v, 1,
             F_OP(&v->f, "tess.expert_mm_weight.default", F_T(vjp_arg(v, 0)), F_T(g), vjp_value(v, 2), F_T(weight),
                  vjp_value(v, 3), vjp_value(v, 4)));
}

static void vjp_expert_mm_weight(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  if (vjp_wants(v, 0)) vjp_give(v, 0, with_experts(v, vjp_arg(v, 1), turned(v, g), 4));
  if (vjp_wants(v, 1)) vjp_give(v, 1, with_experts(v, vjp_arg(v, 0), g, 4));
  if (vjp_wants(v, 3)) vjp_give(v, 3, vjp_zeros_like(v, vjp_arg(v, 3)));
}

/* a x b: the volume g . (a x b) does not change when its three vectors go around. */
static void vjp_cross(Vjp *v) {
  Tensor *g = vjp_cotangent(v), *a = vjp_arg(v, 0), *b = vjp_arg(v, 1);
  const char *cross = "aten.linalg_cross.default";
  if (vjp_wants(v, 0)) vjp_give(v, 0, F_OP(&v->f, cross, F_T(vjp_conj(v, b)), F_T(g), vjp_value(v, 2)));
  if (vjp_wants(v, 1)) vjp_give(v, 1, F_OP(&v->f, cross, F_T(g), F_T(vjp_conj(v, a)), vjp_value(v, 2)));
}

const GradDef grads_matmul[] = {
    GRAD("mm.default bmm.default", vjp_product, "self mat2"),
    GRAD("mv.default", vjp_product, "self vec"),
    GRAD("dot.default", vjp_product, "self tensor"),
    GRAD("vdot.default matmul.default tess.matmul_wide.default", vjp_product, "self other"),
    GRAD("addmm.default tess.addmm_wide.default", vjp_product, "mat1 mat2"),
    GRAD("baddbmm.default", vjp_product, "batch1 batch2"),
    GRAD("addmv.default", vjp_product, "mat vec"),
    GRAD("linear.default tess.linear_wide.default", vjp_product, "input weight"),
    GRAD("addr.default", vjp_addr, "vec1 vec2"),
    GRAD("linalg_cross.default", vjp_cross, "self other"),
    TRAINS_AS("_addmm_activation.default", activation_training),
    GRAD("transformers.grouped_mm_fallback.default", vjp_grouped, "input weight offs"),
    GRAD("_grouped_mm.default", vjp_grouped, "self mat2 offs"),
    GRAD("tess.expert_mm.default", vjp_expert_mm, "x weight ids"),
    GRAD("tess.expert_mm_weight.default", vjp_expert_mm_weight, "x grad ids"),
    {0},
};
