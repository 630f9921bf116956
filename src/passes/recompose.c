/* recompose.c -- finds what decomposition took apart.
 *
 *   before:  %w = permute(%W, [1, 0])  %v = view(%x, [32, 8])  %m = addmm(%b, %v, %w)  %y = view(%m, [2, 16, 4])
 *   after:   %y = linear(%x, %W, %b)
 *
 * One walk; at each node every pattern is tried on the graph above it.  What a pattern
 * leaves unused is dce's to remove.  A pattern is used only where the result is the
 * same function of its inputs; sums may be taken in another order, as between any two
 * libraries, but no input may give nan, inf or a masked row where the other did not.
 * Memory layouts may change, so views become reshapes: PyTorch, which may run what we
 * write, has views for some layouts only.
 */
#include "passes/recompose.h"

#include "passes/match.h"
#include "passes/pass.h"
#include "passes/views.h"

/* A dropout that drops nothing, as models leave it between their other ops. */
static bool keeps_all(const Node *n) {
  const Arg *p = &n->args[1], *train = &n->args[2];
  if (!node_is(n, "aten.dropout.default")) return false;
  return (train->kind == ARG_BOOL && !train->b) || (p->kind == ARG_FLOAT && p->f == 0) ||
         (p->kind == ARG_INT && p->i == 0);
}

/* Values matter, memory layout does not: a copy is its argument, and so is a cast to the dtype that it has. */
static Status drop_copy(Graph *g, Node *n, Val **out) {
  static const char *const copies[] = {
      "aten.clone.default",   "aten.contiguous.default", "aten.lift_fresh_copy.default", "aten.to.dtype",
      "aten.to.dtype_layout", "aten.to.device",          "aten._to_copy.default"};
  (void)g;
  bool copy = keeps_all(n);
  for (size_t i = 0; !copy && i < sizeof copies / sizeof *copies; i++) copy = node_is(n, copies[i]);
  if (copy && n->args[0].kind == ARG_VAL && n->args[0].val->dtype == n->outs[0]->dtype) *out = n->args[0].val;
  return OK;
}

static const struct {
  const char *name;
  RecomposeFn *fn;
} patterns[] = {
    {"copies", drop_copy},
    {"linear", recompose_linear},
    {"repeated heads", recompose_repeated_heads},
    {"attention", recompose_attention},
    {"rms_norm", recompose_rms_norm},
    {"gelu", recompose_gelu},
    {"silu", recompose_silu},
};
enum { PATTERNS = sizeof patterns / sizeof *patterns };

/* What stands for a result is known by its name: in traces, in checks node by node. */
static void swap_names(Val *a, Val *b) {
  const char *name = a->name;
  a->name = b->name;
  b->name = name;
}

/* An attention whose mask is made of finite numbers, which may mask all keys of a query. */
static bool has_finite_mask(const Val *v) {
  const Node *n = v->node;
  return n && node_is(n, "aten.scaled_dot_product_attention.default") && n->args[3].kind == ARG_VAL &&
         match_is_finite(n->args[3].val);
}

Status pass_recompose(Exported *e, const PassArgs *args) {
  Graph *g = e->graph;
  int found[PATTERNS] = {0};
  const bool products = pass_flag(args, "products"), finite_masks = pass_flag(args, "finite_masks");
  if (!graph_is_functional(g) || g->dtypes_differ)
    return OK; /* patterns rely on values that do not change, on dtypes */
  graph_count_uses(g);
  for (Node *n = g->first; n; n = n->next) {
    node_forward(n);
    for (int p = 0; p < PATTERNS && n->op && n->nouts; p++) {
      Val *v = NULL;
      const int before = g->nvals;
      if (patterns[p].fn == recompose_linear && !products) continue;
      TRY(patterns[p].fn(g, n, &v));
      if (!v || (!finite_masks && v->id >= before && has_finite_mask(v))) continue;
      v->mark += n->outs[0]->mark;
      n->outs[0]->forward = v;
      if (v->id >= before) swap_names(v, n->outs[0]);
      else v->mark--; /* this node was a user of it, and is none any more */
      found[p]++;
      break;
    }
  }
  graph_forward(g);
  for (int p = 0; p < PATTERNS; p++) {
    if (found[p]) views_relax(g);
  }
  for (int p = 0; args->stats && p < PATTERNS; p++) {
    if (found[p]) text_printf(args->stats, "recompose: %d x %s\n", found[p], patterns[p].name);
  }
  return OK;
}
