/* fuse_pointwise.c -- joins element-by-element ops into one node that runs tile by tile.
 *
 *   before:  %a = mul(%x, %y)  %b = add(%a, %z)  %c = relu(%b)  return %c
 *   after:   %c = tess.pointwise([%x, %y, %z], "mul(x0,x1);add(y0,x2);relu(y1)")  return %c
 *
 * Groups grow upwards from their last node: a producer joins when all its users are in
 * the group and it has the group's size, so nothing is computed twice and no value is
 * lost.  It does not if it would then wait beyond other work with several operands in its hands that are made for
 * it alone, where it left one result: parts of a gradient that are added up in a long backward.  Walks from the
 * end, so every node is met after all its users; linear but for the arguments of the group at hand.
 */
#include <stdio.h>
#include <string.h>

#include "ops/pointwise_ops.h"
#include "passes/match.h"
#include "passes/pass.h"

enum { MAX_OPS = 32, MAX_INPUTS = 12 };

typedef struct {
  Node *nodes[MAX_OPS]; /* in graph order, last first, while growing */
  int nnodes;
  Val *inputs[MAX_INPUTS];
  int ninputs;
} Group;

static bool arg_fits(const Arg *a) { return a->kind != ARG_LIST && a->kind != ARG_GRAPH && a->kind != ARG_COMPLEX; }

static bool is_candidate(const Node *n) {
  if (!n->op || !op_is_pointwise(n->op) || n->nouts != 1 || n->outs[0]->type != TY_TENSOR) return false;
  if (n->outs[0]->dtype == DT_NONE || n->outs[0]->ndim < 0) return false;
  for (int i = 0; i < n->nargs; i++) {
    if (!arg_fits(&n->args[i])) return false;
    if (n->args[i].kind == ARG_VAL && n->args[i].val->type != TY_TENSOR) return false;
  }
  return true;
}

static int find(Val *const *list, int n, const Val *v) {
  for (int i = 0; i < n; i++) {
    if (list[i] == v) return i;
  }
  return -1;
}

/* Val.mark counts uses; a producer joins when the group holds all of them. */
static int uses_in_group(const Group *g, const Val *v) {
  int n = 0;
  for (int k = 0; k < g->nnodes; k++) {
    for (int i = 0; i < g->nodes[k]->nargs; i++)
      n += g->nodes[k]->args[i].kind == ARG_VAL && g->nodes[k]->args[i].val == v;
  }
  return n;
}

static bool list_inputs(Group *g) {
  g->ninputs = 0;
  for (int k = 0; k < g->nnodes; k++) {
    for (int i = 0; i < g->nodes[k]->nargs; i++) {
      const Arg *a = &g->nodes[k]->args[i];
      if (a->kind != ARG_VAL || find(g->inputs, g->ninputs, a->val) >= 0) continue;
      bool inside = false;
      for (int j = 0; j < g->nnodes; j++) inside |= g->nodes[j]->outs[0] == a->val;
      if (inside) continue;
      if (g->ninputs == MAX_INPUTS) return false;
      g->inputs[g->ninputs++] = a->val;
    }
  }
  return true;
}

enum { NEAR = 32 }; /* nodes to look at */

/* Is there nothing but element-by-element work and views from p to the node behind it? */
static bool is_near(const Node *p, const Node *root) {
  const Node *n = p->next;
  for (int i = 0; n && n != root && i < NEAR; i++, n = n->next) {
    bool moves = n->op && n->op->def->moves != MOVES_NOT;
    if (!moves && !is_candidate(n)) return false;
  }
  return n == root;
}

/* Would more wait for the root than now does? */
static bool holds_up(const Node *p, const Node *root) {
  int lone = 0;
  for (int i = 0; i < p->nargs; i++) {
    const Val *v = p->args[i].kind == ARG_VAL ? p->args[i].val : NULL;
    lone += v && v->node && v->mark == 1 && same_sizes(v, root->outs[0]);
  }
  return lone > 1 && !is_near(p, root);
}

/* Node.mark: 1 = already in some group. */
static void grow(Group *g, Node *root) {
  g->nodes[0] = root;
  g->nnodes = 1;
  for (int k = 0; k < g->nnodes; k++) {
    for (int i = 0; i < g->nodes[k]->nargs && g->nnodes < MAX_OPS; i++) {
      const Arg *a = &g->nodes[k]->args[i];
      Node *p = a->kind == ARG_VAL ? a->val->node : NULL;
      if (!p || p->mark || !is_candidate(p) || !same_sizes(p->outs[0], root->outs[0])) continue;
      bool inside = false;
      for (int j = 0; j < g->nnodes; j++) inside |= g->nodes[j] == p;
      if (inside || uses_in_group(g, p->outs[0]) != p->outs[0]->mark || holds_up(p, root)) continue;
      g->nodes[g->nnodes++] = p;
      if (!list_inputs(g)) g->nnodes--;
    }
  }
}

/* ---- the fused node -------------------------------------------------------------------- */

/* Order of the list: a node's position is found by walking back from the root. */
static void sort_nodes(Group *g) {
  Node *sorted[MAX_OPS];
  int n = 0;
  for (Node *at = g->nodes[0]; at && n < g->nnodes; at = at->prev) {
    for (int k = 0; k < g->nnodes; k++) {
      if (g->nodes[k] == at) sorted[n++] = at;
    }
  }
  for (int k = 0; k < n; k++) g->nodes[k] = sorted[n - 1 - k];
}

static void write_value(TextBuf *b, const Value *v) {
  switch (v->kind) {
    case VAL_BOOL: text_puts(b, v->b ? "true" : "false"); break;
    case VAL_INT: text_printf(b, "%lld", (long long)v->i); break;
    case VAL_FLOAT: {
      char number[40];
      snprintf(number, sizeof number, "%.17g", v->f);
      text_puts(b, number);
      if (!strpbrk(number, ".einf")) text_puts(b, ".0"); /* an integer would promote differently */
      break;
    }
    case VAL_STR: text_printf(b, "'%s'", v->str); break;
    case VAL_DTYPE: text_puts(b, dtype_name(v->dtype)); break;
    default: text_puts(b, "none"); /* devices, layouts and memory formats do not change values */
  }
}

static void write_arg(TextBuf *b, const Group *g, int at, const Arg *a, const Param *param) {
  Value v = val_none();
  switch (a->kind) {
    case ARG_VAL: {
      int input = find(g->inputs, g->ninputs, a->val);
      if (input >= 0) {
        text_printf(b, "x%d", input);
        return;
      }
      for (int j = 0; j < at; j++) {
        if (g->nodes[j]->outs[0] == a->val) text_printf(b, "y%d", j);
      }
      return;
    }
    case ARG_UNSET: v = param->has_default ? param->value : val_none(); break;
    case ARG_BOOL: v = val_bool(a->b); break;
    case ARG_INT: v = val_int(a->i); break;
    case ARG_FLOAT: v = val_float(a->f); break;
    case ARG_STR: v = val_str(a->str); break;
    case ARG_DTYPE: v = val_dtype(a->dtype); break;
    default: break;
  }
  write_value(b, &v);
}

static void write_body(TextBuf *b, const Group *g) {
  for (int k = 0; k < g->nnodes; k++) {
    const Node *n = g->nodes[k];
    text_printf(b, "%s%s(", k ? ";" : "", n->target);
    for (int i = 0; i < n->nargs; i++) {
      if (i) text_puts(b, ",");
      write_arg(b, g, k, &n->args[i], &n->op->schema.params[i]);
    }
    text_puts(b, ")");
  }
}

static Status replace(Graph *graph, Group *g) {
  Node *root = g->nodes[0];
  sort_nodes(g);
  list_inputs(g);
  TextBuf body = {0};
  write_body(&body, g);
  const char *text = body.failed ? NULL : arena_strdup(graph->arena, body.text);
  text_free(&body);
  if (!text) return fail_oom();
  Arg *inputs;
  TRY_NEW(inputs, arena_new_n(graph->arena, Arg, g->ninputs));
  for (int i = 0; i < g->ninputs; i++) inputs[i] = arg_val(g->inputs[i]);
  Arg args[] = {arg_list(inputs, g->ninputs), arg_str(text)};
  Val *out;
  TRY(graph_emit_value(graph, root, root, "tess.pointwise.default", args, 2, root->outs[0], &out));
  root->outs[0]->forward = out;
  for (int k = 0; k < g->nnodes; k++) node_remove(g->nodes[k]);
  return OK;
}

Status pass_fuse_pointwise(Exported *e, const PassArgs *args) {
  Graph *g = e->graph;
  int groups = 0, fused = 0;
  if (!graph_is_functional(g)) return OK;
  for (Node *n = g->first; n; n = n->next) n->mark = 0;
  graph_count_uses(g);
  for (Node *n = g->last, *prev; n; n = prev) {
    prev = n->prev;
    if (n->mark || !is_candidate(n)) continue;
    Group group = {0};
    grow(&group, n);
    if (group.nnodes < 2 || !list_inputs(&group)) continue;
    /* Members between here and the root are removed: go on above the fused node. */
    for (int k = 0; k < group.nnodes; k++) group.nodes[k]->mark = 1;
    TRY(replace(g, &group));
    while (prev && prev->mark) prev = prev->prev;
    groups++;
    fused += group.nnodes;
  }
  graph_forward(g);
  if (args->stats) text_printf(args->stats, "fuse_pointwise: %d nodes in %d groups\n", fused, groups);
  return OK;
}
