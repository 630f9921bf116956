/* match.c -- see match.h. */
#include "passes/match.h"

#include <string.h>

Node *match_val_node(const Val *v, const char *target) {
  return v && v->node && !strcmp(v->node->target, target) ? v->node : NULL;
}

Node *match_node(const Arg *a, const char *target) {
  return a->kind == ARG_VAL ? match_val_node(a->val, target) : NULL;
}

bool match_number(const Arg *a, double *out) {
  switch (a->kind) {
    case ARG_INT: *out = (double)a->i; return true;
    case ARG_FLOAT: *out = a->f; return true;
    case ARG_VAL: {
      const Tensor *t = a->val->constant ? a->val->tensor : NULL;
      if (!t || tensor_numel(t) != 1 || !tensor_data(t)) return false;
      Value v = val_load(t->dtype, tensor_data(t));
      *out = val_as_float(&v);
      return v.kind != VAL_COMPLEX && v.kind != VAL_NONE;
    }
    default: return false;
  }
}

bool match_scaled(const Val *v, Val **x, double *factor) {
  const Node *n = v->node;
  if (!n) return false;
  bool mul = node_is(n, "aten.mul.Tensor") || node_is(n, "aten.mul.Scalar"),
       div = node_is(n, "aten.div.Tensor") || node_is(n, "aten.div.Scalar");
  if (!mul && !div) return false;
  int number = 1;
  if (mul && n->args[0].kind == ARG_VAL && n->args[1].kind == ARG_VAL && match_number(&n->args[0], factor))
    number = 0;
  if (n->args[1 - number].kind != ARG_VAL || !match_number(&n->args[number], factor)) return false;
  *x = n->args[1 - number].val;
  if (div) *factor = 1 / *factor;
  return (*x)->dtype == v->dtype && same_sizes(*x, v);
}

bool match_plain_alpha(const Node *add) {
  double alpha = 1;
  return add->args[2].kind == ARG_UNSET || (match_number(&add->args[2], &alpha) && alpha == 1);
}

Val *match_transposed(const Val *v) {
  Node *n = v->node;
  int64_t a, b;
  if (!n || v->ndim < 2) return NULL;
  if (node_is(n, "aten.t.default") || node_is(n, "aten.numpy_T.default"))
    return v->ndim == 2 ? n->args[0].val : NULL;
  if (node_is(n, "aten.transpose.int")) {
    if (!match_int(&n->args[1], 0, &a) || !match_int(&n->args[2], 0, &b)) return NULL;
    a = a < 0 ? a + v->ndim : a;
    b = b < 0 ? b + v->ndim : b;
    return (a == v->ndim - 1 && b == v->ndim - 2) || (a == v->ndim - 2 && b == v->ndim - 1) ? n->args[0].val : NULL;
  }
  if (!node_is(n, "aten.permute.default") || n->args[1].kind != ARG_LIST || n->args[1].n != v->ndim) return NULL;
  for (int i = 0; i < v->ndim; i++) {
    int want = i == v->ndim - 1 ? v->ndim - 2 : i == v->ndim - 2 ? v->ndim - 1 : i;
    if (!match_int(&n->args[1].list[i], 0, &a) || (a < 0 ? a + v->ndim : a) != want) return NULL;
  }
  return n->args[0].val;
}

bool same_last_sizes(const Val *a, const Val *b, int n) {
  if (a->ndim < n || b->ndim < n) return false;
  for (int i = 1; i <= n; i++) {
    if (a->size[a->ndim - i] != b->size[b->ndim - i]) return false; /* interned */
  }
  return true;
}

bool same_sizes(const Val *a, const Val *b) {
  return a->ndim == b->ndim && a->ndim >= 0 && same_last_sizes(a, b, a->ndim);
}

static bool keeps_order(const Node *n) {
  static const char *const names[] = {"aten.view.default",  "aten.reshape.default",    "aten._unsafe_view.default",
                                      "aten.clone.default", "aten.contiguous.default", "aten.flatten.using_ints",
                                      "aten.unflatten.int", "aten.unsqueeze.default"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (node_is(n, names[i])) return true;
  }
  return node_is(n, "aten.expand.default") && n->args[0].kind == ARG_VAL && same_sizes(n->args[0].val, n->outs[0]);
}

Val *match_before_views(Val *v) {
  while (v->node && keeps_order(v->node) && v->node->args[0].kind == ARG_VAL) v = v->node->args[0].val;
  return v;
}

bool match_int(const Arg *a, int64_t otherwise, int64_t *out) {
  *out = a->kind == ARG_INT ? a->i : otherwise;
  return a->kind == ARG_INT || a->kind == ARG_UNSET;
}

bool match_is_last_dim(const Arg *a, const Val *v, int64_t otherwise) {
  int64_t d;
  return match_int(a, otherwise, &d) && (d == -1 || d == v->ndim - 1);
}
