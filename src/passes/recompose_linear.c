/* recompose_linear.c -- addmm and mm as linear, n-dimensional where views only fold and
 * unfold the leading dimensions. */
#include "passes/match.h"
#include "passes/recompose.h"

static bool is_one(const Arg *a) {
  double x = 1;
  return a->kind == ARG_UNSET || (match_number(a, &x) && x == 1);
}

typedef struct {
  Val *x, *weight, *bias; /* x: (m, k); weight: (k, n) as the product has it; bias: (n) or NULL */
} Product;

/* The file tells their sizes, and tells them right. */
static bool are_matrices(const Node *n, const Product *p) {
  return p->x && p->weight && p->x->ndim == 2 && p->weight->ndim == 2 && n->outs[0]->ndim == 2;
}

static bool match_product(const Node *n, Product *p) {
  *p = (Product){0};
  if (node_is(n, "aten.mm.default")) {
    p->x = n->args[0].val;
    p->weight = n->args[1].val;
    return are_matrices(n, p);
  }
  if (!node_is(n, "aten.addmm.default") || !is_one(&n->args[3]) || !is_one(&n->args[4])) return false;
  p->bias = n->args[0].val;
  p->x = n->args[1].val;
  p->weight = n->args[2].val;
  return are_matrices(n, p) && p->bias->ndim == 1 && p->bias->size[0] == n->outs[0]->size[1] &&
         p->bias->dtype == n->outs[0]->dtype;
}

static Status emit_linear(Graph *g, Node *n, Val *x, const Product *p, const Val *like, Val **out) {
  Val *w = match_transposed(p->weight);
  if (!w) {
    Arg args[] = {arg_val(p->weight)};
    Val shape = *p->weight; /* (n, k) */
    const Sym **size;
    TRY_NEW(size, arena_new_n(g->arena, const Sym *, 2));
    size[0] = p->weight->size[1];
    size[1] = p->weight->size[0];
    shape.size = size;
    shape.stride = NULL;
    TRY(graph_emit_value(g, n, n, "aten.t.default", args, 1, &shape, &w));
    w->constant = false;
  }
  Arg args[] = {arg_val(x), arg_val(w), arg_val(p->bias)};
  return graph_emit_value(g, n, n, "aten.linear.default", args, 3, like, out);
}

/* A 2-D matrix that was repeated for every batch: expand (k, n) -> (b, k, n) and views. */
static Val *unrepeated_matrix(Val *b) {
  Val *v = match_before_views(b);
  Node *expand = match_val_node(v, "aten.expand.default");
  Val *w = expand && expand->args[0].kind == ARG_VAL ? expand->args[0].val : NULL;
  return w && w->ndim == 2 && same_last_sizes(w, b, 2) && same_last_sizes(w, v, 2) ? w : NULL;
}

/* bmm(x, w repeated)  ->  linear(x, w) */
static Status recompose_batched(Graph *g, Node *n, Val **out) {
  Val *w = unrepeated_matrix(n->args[1].val);
  Product p = {.weight = w};
  return w ? emit_linear(g, n, n->args[0].val, &p, n->outs[0], out) : OK;
}

/* All but the last dimension equal. */
static bool same_leading(const Val *a, const Val *b) {
  if (a->ndim != b->ndim || a->ndim < 1) return false;
  for (int i = 0; i + 1 < a->ndim; i++) {
    if (a->size[i] != b->size[i]) return false;
  }
  return true;
}

Status recompose_linear(Graph *g, Node *n, Val **out) {
  Product p;
  if (match_product(n, &p)) return emit_linear(g, n, p.x, &p, n->outs[0], out);
  if (node_is(n, "aten.bmm.default")) return recompose_batched(g, n, out);
  /* view(linear(view(x)))  ->  linear(x) */
  bool view = node_is(n, "aten.view.default") || node_is(n, "aten.reshape.default") ||
              node_is(n, "aten._unsafe_view.default");
  Node *linear = view ? match_node(&n->args[0], "aten.linear.default") : NULL;
  if (!linear || linear->outs[0]->ndim != 2) return OK;
  Val *flat = linear->args[0].val, *x = flat;
  while (x->node && (node_is(x->node, "aten.view.default") || node_is(x->node, "aten.reshape.default"))) {
    x = x->node->args[0].val;
    if (same_leading(x, n->outs[0]) && same_last_sizes(x, flat, 1) &&
        same_last_sizes(n->outs[0], linear->outs[0], 1)) {
      Arg args[] = {arg_val(x), linear->args[1], linear->args[2]};
      return graph_emit_value(g, n, linear, "aten.linear.default", args, 3, n->outs[0], out);
    }
  }
  return OK;
}
