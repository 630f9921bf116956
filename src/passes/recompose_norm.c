/* recompose_norm.c -- rms_norm, gelu and silu written out. */
#include <float.h>
#include <math.h>

#include "passes/match.h"
#include "passes/recompose.h"

/* The other operand of a product one of whose operands is v. */
static Val *other_factor(const Node *mul, const Val *v) {
  if (!node_is(mul, "aten.mul.Tensor") || mul->args[0].kind != ARG_VAL || mul->args[1].kind != ARG_VAL) return NULL;
  return mul->args[0].val == v ? mul->args[1].val : mul->args[1].val == v ? mul->args[0].val : NULL;
}

/* rsqrt(mean(x^2, -1, keepdim) + eps) */
static bool match_inverse_rms(const Val *r, Val **x, double *eps) {
  Node *rsqrt = match_val_node(r, "aten.rsqrt.default");
  Node *add = rsqrt ? match_node(&rsqrt->args[0], "aten.add.Tensor") : NULL;
  if (rsqrt && !add) add = match_node(&rsqrt->args[0], "aten.add.Scalar");
  Node *mean = add ? match_node(&add->args[0], "aten.mean.dim") : NULL;
  if (!mean || !match_number(&add->args[1], eps) || !match_plain_alpha(add)) return false;
  const Arg *dims = &mean->args[1];
  bool last = dims->kind == ARG_LIST && dims->n == 1 && match_is_last_dim(&dims->list[0], mean->args[0].val, 0);
  bool keep = mean->args[2].kind == ARG_BOOL && mean->args[2].b;
  if (!last || !keep || mean->args[0].val->dtype != mean->outs[0]->dtype) return false;
  Node *pow = match_node(&mean->args[0], "aten.pow.Tensor_Scalar");
  double two;
  if (pow && match_number(&pow->args[1], &two) && two == 2) return *x = pow->args[0].val, true;
  Node *mul = match_node(&mean->args[0], "aten.mul.Tensor");
  if (!mul || mul->args[0].kind != ARG_VAL || mul->args[1].kind != ARG_VAL || mul->args[0].val != mul->args[1].val)
    return false;
  *x = mul->args[0].val;
  return true;
}

/* x * inverse_rms(x) */
static bool match_normalized(const Val *v, Val **x, double *eps) {
  const Node *mul = v->node;
  if (!mul || !node_is(mul, "aten.mul.Tensor")) return false;
  for (int side = 0; side < 2; side++) {
    const Arg *r = &mul->args[side];
    if (r->kind == ARG_VAL && match_inverse_rms(r->val, x, eps) && other_factor(mul, r->val) == *x) return true;
  }
  return false;
}

/* weight * (x * rsqrt(mean(x^2) + eps)), weight over the last dimension */
Status recompose_rms_norm(Graph *g, Node *n, Val **out) {
  if (!node_is(n, "aten.mul.Tensor")) return OK;
  for (int side = 0; side < 2; side++) {
    Val *x;
    double eps;
    if (n->args[side].kind != ARG_VAL || n->args[1 - side].kind != ARG_VAL) return OK;
    Val *normalized = n->args[side].val, *weight = n->args[1 - side].val;
    if (weight->ndim != 1 || !match_normalized(normalized, &x, &eps) || x->ndim < 1) continue;
    const Sym *c = x->size[x->ndim - 1];
    if (weight->size[0] != c || !sym_is_int(c) || x->dtype != DT_F32 || weight->dtype != DT_F32 ||
        !same_sizes(x, n->outs[0]))
      continue;
    Arg *shape;
    TRY_NEW(shape, arena_new_n(g->arena, Arg, 1));
    shape[0] = arg_int(c->value);
    Arg args[] = {arg_val(x), arg_list(shape, 1), arg_val(weight), arg_float(eps)};
    return graph_emit_value(g, n, n, "aten.rms_norm.default", args, 4, n->outs[0], out);
  }
  return OK;
}

/* x * factor, either side; NULL if v is not that.  A factor that was written with fewer digits is another one. */
static Val *scaled_by(const Val *v, double factor) {
  Val *x;
  double f;
  if (!v || !match_scaled(v, &x, &f)) return NULL;
  return fabs(f - factor) <= (v->dtype == DT_F64 ? 4 * DBL_EPSILON : FLT_EPSILON) * fabs(factor) ? x : NULL;
}

/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
Status recompose_gelu(Graph *g, Node *n, Val **out) {
  if (!node_is(n, "aten.mul.Tensor")) return OK;
  for (int side = 0; side < 2; side++) {
    if (n->args[side].kind != ARG_VAL || n->args[1 - side].kind != ARG_VAL) return OK;
    Val *x = scaled_by(n->args[side].val, 0.5);
    Node *one_plus = match_node(&n->args[1 - side], "aten.add.Tensor");
    double one, cube;
    if (!x || !one_plus || !match_number(&one_plus->args[1], &one) || one != 1 || !match_plain_alpha(one_plus))
      continue;
    Node *tanh_node = match_node(&one_plus->args[0], "aten.tanh.default");
    Val *inner = tanh_node ? scaled_by(tanh_node->args[0].val, sqrt(2 / M_PI)) : NULL;
    Node *sum = inner ? match_val_node(inner, "aten.add.Tensor") : NULL;
    if (!sum || sum->args[0].kind != ARG_VAL || sum->args[0].val != x || sum->args[1].kind != ARG_VAL ||
        !match_plain_alpha(sum))
      continue;
    Val *third = scaled_by(sum->args[1].val, 0.044715);
    Node *pow = third ? match_val_node(third, "aten.pow.Tensor_Scalar") : NULL;
    if (!pow || pow->args[0].val != x || !match_number(&pow->args[1], &cube) || cube != 3) continue;
    if (x->dtype != DT_F32 && x->dtype != DT_F64) continue; /* half types round in between */
    Arg args[] = {arg_val(x), arg_str("tanh")};
    return graph_emit_value(g, n, n, "aten.gelu.default", args, 2, n->outs[0], out);
  }
  return OK;
}

/* x * sigmoid(x) */
Status recompose_silu(Graph *g, Node *n, Val **out) {
  if (!node_is(n, "aten.mul.Tensor")) return OK;
  for (int side = 0; side < 2; side++) {
    Node *sigmoid = match_node(&n->args[side], "aten.sigmoid.default");
    if (!sigmoid || n->args[1 - side].kind != ARG_VAL || n->args[1 - side].val != sigmoid->args[0].val) continue;
    const Dtype dtype = n->outs[0]->dtype; /* of integers, sigmoid makes floats first */
    if ((dtype != DT_F32 && dtype != DT_F64) || n->args[1 - side].val->dtype != dtype) continue;
    Arg args[] = {n->args[1 - side]};
    return graph_emit_value(g, n, n, "aten.silu.default", args, 1, n->outs[0], out);
  }
  return OK;
}
