/* fuse_backward.c -- nodes of a backward that would hand on large tensors of zeros become one.
 *
 *   before:  %g = nll_loss_backward(%d, %y, %t, ...)  %s = _log_softmax_backward_data(%g, %y, 1, f32)
 *   after:   %s = tess.nll_log_softmax_backward(%y, %d, %t, ...)
 *
 * %g is 0 but for one class per row; written out it takes as much memory as the scores and as much time to write
 * and read.  The fused node works in the memory of %y.  The same bits: a sum of zeros and one number is that
 * number.
 *
 *   before:  %r = embedding_dense_backward(%d, %i, 50257, -1, false)  %s = add(%w, %r)
 *   after:   %s = tess.embedding_dense_backward_add(%w, %d, %i, -1)
 *
 * A table that is the last layer's weight as well: its gradient from there gets the rows that were looked up, in
 * its memory.  Rows that were looked up several times are added one by one, not as a sum.
 */
#include "passes/match.h"
#include "passes/pass.h"

/* Only its one user sees it. */
static Node *lone_node(const Arg *a, const char *target) {
  Node *n = match_node(a, target);
  return n && n->outs[0]->mark == 1 ? n : NULL;
}

static Status fuse_scores(Graph *g, Node *n, Node **gone, Val **out) {
  Node *nll = lone_node(&n->args[0], "aten.nll_loss_backward.default");
  if (!nll || n->args[1].kind != ARG_VAL || nll->args[1].kind != ARG_VAL || nll->args[1].val != n->args[1].val)
    return OK;
  const Val *y = n->args[1].val;
  bool rows = y->ndim == 2 && (y->dtype == DT_F32 || y->dtype == DT_F64) && match_is_last_dim(&n->args[2], y, -1);
  if (!rows || n->args[3].kind != ARG_DTYPE || n->args[3].dtype != y->dtype) return OK;
  Arg args[] = {nll->args[1], nll->args[0], nll->args[2], nll->args[3], nll->args[4], nll->args[5], nll->args[6]};
  *gone = nll;
  return graph_emit_value(g, n, n, "tess.nll_log_softmax_backward.default", args, 7, n->outs[0], out);
}

static Status fuse_table(Graph *g, Node *n, Node **gone, Val **out) {
  if (!match_plain_alpha(n)) return OK;
  for (int side = 1; side >= 0 && !*out; side--) {
    Node *rows = lone_node(&n->args[side], "aten.embedding_dense_backward.default");
    const Arg *other = &n->args[1 - side];
    bool scaled = rows && rows->args[4].kind == ARG_BOOL && rows->args[4].b;
    if (!rows || scaled || other->kind != ARG_VAL || other->val->dtype != rows->outs[0]->dtype ||
        !same_sizes(other->val, rows->outs[0]))
      continue;
    Arg args[] = {*other, rows->args[0], rows->args[1], rows->args[3]};
    *gone = rows;
    TRY(graph_emit_value(g, n, n, "tess.embedding_dense_backward_add.default", args, 4, n->outs[0], out));
  }
  return OK;
}

static const struct {
  const char *target; /* of the last node */
  Status (*fuse)(Graph *g, Node *n, Node **gone, Val **out);
} patterns[] = {{"aten._log_softmax_backward_data.default", fuse_scores}, {"aten.add.Tensor", fuse_table}};

Status pass_fuse_backward(Exported *e, const PassArgs *args) {
  Graph *g = e->graph;
  int fused = 0;
  if (!graph_is_functional(g)) return OK;
  graph_count_uses(g);
  for (Node *n = g->first, *next; n; n = next) {
    next = n->next;
    node_forward(n);
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
      Node *gone = NULL;
      Val *v = NULL;
      if (node_is(n, patterns[p].target)) TRY(patterns[p].fuse(g, n, &gone, &v));
      if (!v) continue;
      v->mark = n->outs[0]->mark;
      n->outs[0]->forward = v;
      node_remove(gone);
      node_remove(n);
      fused++;
      break;
    }
  }
  graph_forward(g);
  if (args->stats) text_printf(args->stats, "fuse_backward: %d pairs of nodes\n", fused);
  return OK;
}
