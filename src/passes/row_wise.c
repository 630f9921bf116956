/* row_wise.c -- see row_wise.h. */
#include "passes/row_wise.h"

#include "passes/match.h"

static bool is_row_count(const Val *v, const Sym *count) {
  return v->type == TY_TENSOR && v->ndim >= 1 && v->size[0] == count;
}

/* One tensor, or a list of tensors. */
static bool have_rows(const Arg *a, const Sym *count) {
  if (a->kind == ARG_VAL) return is_row_count(a->val, count);
  for (int i = 0; i < a->n && a->kind == ARG_LIST; i++)
    if (a->list[i].kind != ARG_VAL || !is_row_count(a->list[i].val, count)) return false;
  return a->kind == ARG_LIST && a->n > 0;
}

/* Broadcast to every row. */
static bool is_the_same_for_rows(const Val *v, int ndim) {
  if (v->type != TY_TENSOR || (v->ndim >= 0 && v->ndim < ndim)) return true;
  return v->ndim == ndim && sym_is_int(v->size[0]) && v->size[0]->value == 1;
}

/* Every tensor among the arguments has these rows, or broadcasts. */
static bool meet_row_by_row(const Node *n, unsigned rows, int ndim) {
  for (int i = 0; i < n->nargs; i++) {
    const Arg *a = &n->args[i];
    if (a->kind == ARG_LIST)
      for (int j = 0; j < a->n; j++)
        if (a->list[j].kind == ARG_VAL && a->list[j].val->type == TY_TENSOR) return false;
    if (a->kind != ARG_VAL) continue;
    if (rows >> i & 1 ? a->val->ndim != ndim : !is_the_same_for_rows(a->val, ndim)) return false;
  }
  return true;
}

/* The argument names a dimension of a tensor of ndim dimensions, and not the rows. */
static bool is_other_dim(const Arg *a, int64_t otherwise, int ndim) {
  int64_t d;
  if (!match_int(a, otherwise, &d)) return false;
  d += d < 0 ? ndim : 0;
  return d > 0 && d < ndim;
}

static bool are_other_dims(const Arg *a, int ndim) {
  if (a->kind != ARG_LIST || !a->n) return false;
  for (int i = 0; i < a->n; i++)
    if (!is_other_dim(&a->list[i], 0, ndim)) return false;
  return true;
}

/* ---- ops of one argument with rows: argument 0 --------------------------------------------------------------- */

typedef bool OneFn(const Node *n, const Val *x);

static bool always(const Node *n, const Val *x) { return (void)n, (void)x, true; }
static bool along_1(const Node *n, const Val *x) { return is_other_dim(&n->args[1], 0, x->ndim); }
static bool along_1_last(const Node *n, const Val *x) { return is_other_dim(&n->args[1], -1, x->ndim); }
static bool along_2(const Node *n, const Val *x) { return is_other_dim(&n->args[2], 0, x->ndim); }
static bool along_1_and_2(const Node *n, const Val *x) { return along_1(n, x) && along_2(n, x); }
static bool along_list(const Node *n, const Val *x) { return are_other_dims(&n->args[1], x->ndim); }
static bool adds_dim(const Node *n, const Val *x) { return is_other_dim(&n->args[1], 0, x->ndim + 1); }

static bool keeps_first(const Node *n, const Val *x) {
  const Arg *order = &n->args[1];
  int64_t first;
  return order->kind == ARG_LIST && order->n == x->ndim && match_int(&order->list[0], 0, &first) &&
         (first == 0 || first == -x->ndim);
}

/* Sizes in row-major order, of which the first stays: rows stay what they are. */
static bool keeps_rows(const Node *n, const Val *x) { return is_row_count(n->outs[0], x->size[0]); }
/* No dimension is added in front of the rows. */
static bool keeps_dims(const Node *n, const Val *x) { return n->outs[0]->ndim == x->ndim && keeps_rows(n, x); }

/* The other operands are matrices or vectors. */
static bool is_product(const Node *n, const Val *x) {
  for (int i = 1; i < n->nargs; i++)
    if (n->args[i].kind == ARG_VAL && (n->args[i].val->ndim < 0 || n->args[i].val->ndim > 2)) return false;
  return x->ndim >= 2;
}

static const struct {
  const char *target;
  OneFn *fn;
} one[] = {
    {"aten.clone.default", always},
    {"aten.contiguous.default", always},
    {"aten.alias.default", always},
    {"aten.detach.default", always},
    {"aten.view.default", keeps_rows},
    {"aten.reshape.default", keeps_rows},
    {"aten._unsafe_view.default", keeps_rows},
    {"aten.flatten.using_ints", keeps_rows},
    {"aten.expand.default", keeps_dims},
    {"aten.permute.default", keeps_first},
    {"aten.transpose.int", along_1_and_2},
    {"aten.unsqueeze.default", adds_dim},
    {"aten.squeeze.dim", along_1},
    {"aten.slice.Tensor", along_1},
    {"aten.narrow.default", along_1},
    {"aten.select.int", along_1},
    {"aten.chunk.default", along_2},
    {"aten.split.Tensor", along_2},
    {"aten.split.sizes", along_2},
    {"aten.split_with_sizes.default", along_2},
    {"aten.glu.default", along_1_last},
    {"aten.softmax.int", along_1},
    {"aten._softmax.default", along_1},
    {"aten.sum.dim_IntList", along_list},
    {"aten.mean.dim", along_list},
    {"aten.linear.default", is_product},
    {"aten.mm.default", is_product},
    {"aten.matmul.default", is_product},
};

bool is_row_wise(const Node *n, unsigned rows, const Sym *count) {
  if (!n->op || !rows || !n->nouts || n->nargs > 32 || n->op->schema.mutates) return false;
  if (n->op->def->flags & (OP_RANDOM | OP_EFFECT | OP_NUMBERED | OP_DYNAMIC | OP_EMPTY)) return false;
  for (int i = 0; i < n->nargs; i++)
    if (rows >> i & 1 && !have_rows(&n->args[i], count)) return false;
  for (int i = 0; i < n->nouts; i++)
    if (!is_row_count(n->outs[i], count)) return false;
  const int ndim = n->outs[0]->ndim;
  if (n->op->def->flags & OP_POINTWISE) return meet_row_by_row(n, rows, ndim);
  if (node_is(n, "aten.addmm.default")) return (rows & ~1u) == 2 && meet_row_by_row(n, rows | 4, 2);
  if (node_is(n, "aten.cat.default")) return rows == 1 && is_other_dim(&n->args[1], 0, ndim);
  if (rows != 1 || n->args[0].kind != ARG_VAL) return false;
  for (size_t i = 0; i < sizeof one / sizeof *one; i++)
    if (node_is(n, one[i].target)) return one[i].fn(n, n->args[0].val);
  return false;
}
