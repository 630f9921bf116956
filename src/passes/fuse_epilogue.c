/* fuse_epilogue.c -- gives a linear layer its activation or its residual addition.
 *
 *   before:  %y = linear(%x, %w, %b)  %g = gelu(%y)          after:  %g = tess.linear_act(%x, %w, %b, None, "gelu")
 *   before:  %y = linear(%x, %w, %b)  %s = add(%r, %y)       after:  %s = tess.linear_act(%x, %w, %b, %r, "none")
 *
 * The product is then finished while it is still in the cache.  Only where nobody else
 * uses the product, in f32, and the residual has the product's size.
 */
#include <string.h>

#include "passes/match.h"
#include "passes/pass.h"

/* The word of tess.linear_act for this node, NULL if it is no activation. */
static const char *activation_of(const Node *n) {
  static const struct {
    const char *target, *act;
  } table[] = {{"aten.relu.default", "relu"},
               {"aten.silu.default", "silu"},
               {"aten.tanh.default", "tanh"},
               {"aten.sigmoid.default", "sigmoid"}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (node_is(n, table[i].target)) return table[i].act;
  }
  if (!node_is(n, "aten.gelu.default")) return NULL;
  bool tanh_form = n->args[1].kind == ARG_STR && !strcmp(n->args[1].str, "tanh");
  return tanh_form ? "gelu_tanh" : "gelu";
}

static Node *lone_linear(const Arg *a) {
  Node *n = match_node(a, "aten.linear.default");
  return n && n->outs[0]->mark == 1 && n->outs[0]->dtype == DT_F32 ? n : NULL;
}

static Status finish(Graph *g, Node *n, Node *linear, Val *residual, const char *act, Val **out) {
  const Arg bias = linear->args[2].kind == ARG_VAL ? linear->args[2] : arg_val(NULL);
  Arg args[] = {linear->args[0], linear->args[1], bias, arg_val(residual), arg_str(act)};
  Val like = *n->outs[0];
  like.stride = NULL;
  TRY(graph_emit_value(g, n, linear, "tess.linear_act.default", args, 5, &like, out));
  node_remove(linear);
  node_remove(n);
  return OK;
}

static Status fuse_node(Graph *g, Node *n, Val **out) {
  const char *act = activation_of(n);
  Node *linear = act ? lone_linear(&n->args[0]) : NULL;
  if (linear) return finish(g, n, linear, NULL, act, out);
  if (!node_is(n, "aten.add.Tensor") || !match_plain_alpha(n)) return OK;
  for (int side = 1; side >= 0; side--) {
    linear = lone_linear(&n->args[side]);
    const Arg *r = &n->args[1 - side];
    if (!linear || r->kind != ARG_VAL || r->val->dtype != DT_F32 || !same_sizes(r->val, linear->outs[0])) continue;
    return finish(g, n, linear, r->val, "none", out);
  }
  return OK;
}

Status pass_fuse_epilogue(Exported *e, const PassArgs *args) {
  Graph *g = e->graph;
  int fused = 0;
  if (!graph_is_functional(g)) return OK;
  graph_count_uses(g);
  for (Node *n = g->first, *next; n; n = next) {
    next = n->next;
    node_forward(n);
    Val *v = NULL;
    if (n->op && n->nouts == 1) TRY(fuse_node(g, n, &v));
    if (!v) continue;
    v->mark = n->outs[0]->mark;
    n->outs[0]->forward = v;
    fused++;
  }
  graph_forward(g);
  if (args->stats) text_printf(args->stats, "fuse_epilogue: %d linear layers\n", fused);
  return OK;
}
