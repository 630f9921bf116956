/* ddp.c -- reduces the gradients of a joint program over the ranks of a group.
 *
 *   before:  %g = mm(..)  return loss %l, gradient_to_parameter "w" %g
 *   after:   %g = mm(..)  %d = div(%g, 4)  %r = all_reduce(%d, "sum", "0")  %w = wait(%r)
 *            return loss %l, gradient_to_parameter "w" %w
 *
 * right behind the node that computes the gradient (at the end in a program that writes to
 * memory, where the gradient may not be finished before).  A gradient of several parameters is
 * reduced once.  Linear.  Keeps: the signature; gradients that were waited for already; all
 * other uses of a gradient.
 */
#include <string.h>

#include "passes/comm_block.h"
#include "passes/pass.h"

/* Marks of values. */
enum { PLAIN, GRADIENT };

typedef struct {
  Graph *graph;
  const char *group;
  int64_t ranks;
  int reduced, already, others, of_inputs;
} Ddp;

/* wait -> split -> reshape ...: is the value what some collective left? */
static bool is_reduced(const Val *v) {
  static const char *const views[] = {"aten.reshape.", "aten.split.", "aten.split_with_sizes.",
                                      "aten.view.",    "aten.alias.", "aten.detach."};
  for (const Node *n = v->node; n;) {
    if (node_is(n, WAIT_TENSOR)) return true;
    bool is_view = false;
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
      is_view |= !strncmp(n->target, views[i], strlen(views[i]));
    n = is_view && n->args[0].kind == ARG_VAL ? n->args[0].val->node : NULL;
  }
  return false;
}

static bool is_gradient(const OutputSpec *o, bool user_inputs) {
  return o->kind == OUT_GRADIENT_TO_PARAMETER || (user_inputs && o->kind == OUT_GRADIENT_TO_USER_INPUT);
}

static void mark_gradients(Exported *e, Ddp *d, bool user_inputs) {
  for (int i = 0; i < e->graph->ninputs; i++) e->graph->inputs[i]->mark = PLAIN;
  for (Node *n = e->graph->first; n; n = n->next) {
    for (int i = 0; i < n->nouts; i++) n->outs[i]->mark = PLAIN;
  }
  for (int i = 0; i < e->graph->noutputs; i++) {
    const Arg *a = &e->graph->outputs[i];
    d->of_inputs += !user_inputs && e->outputs[i].kind == OUT_GRADIENT_TO_USER_INPUT;
    if (!is_gradient(&e->outputs[i], user_inputs)) continue;
    if (a->kind != ARG_VAL || a->val->type != TY_TENSOR || (a->val->ndim >= 0 && dtype_is_integral(a->val->dtype)))
      d->others++;
    else if (is_reduced(a->val)) d->already++;
    else a->val->mark = GRADIENT;
  }
}

static Status add_like(Ddp *d, Node *before, const Val *like, const char *target, const Arg *args, int nargs,
                       const char *name, Val **out) {
  Node *n;
  TRY(graph_emit_like(d->graph, before, like->node, target, args, nargs, &n));
  TRY(node_add_out_like(n, name, like, out));
  (*out)->stride = NULL;
  return OK;
}

/* `before`: the node that follows the gradient's. */
static Status reduce(Ddp *d, Val *grad, Node *before) {
  Val *v;
  TRY(add_like(d, before, grad, "aten.div.Tensor", (Arg[]){arg_val(grad), arg_int(d->ranks)}, 2, "div_tensor", &v));
  v->stride = grad->stride; /* keeps the dimension order */
  TRY(add_like(d, before, grad, "_c10d_functional.all_reduce.default",
               (Arg[]){arg_val(v), arg_str("sum"), arg_str(d->group)}, 3, "all_reduce_default", &v));
  Arg started = arg_val(v);
  TRY(add_like(d, before, grad, WAIT_TENSOR, &started, 1, "wait_tensor_default", &v));
  grad->forward = v;
  d->reduced++;
  return OK;
}

static Status reduce_all(Ddp *d, bool at_end) {
  Graph *g = d->graph;
  Node *first = g->first, *last = g->last;
  for (int i = 0; i < g->ninputs; i++) {
    if (g->inputs[i]->mark == GRADIENT) TRY(reduce(d, g->inputs[i], at_end ? NULL : first));
  }
  for (Node *n = first, *next; n; n = next) {
    next = n == last ? NULL : n->next; /* behind the last one stand those that were added */
    for (int i = 0; i < n->nouts; i++) {
      if (n->outs[i]->mark == GRADIENT) TRY(reduce(d, n->outs[i], at_end ? NULL : next));
    }
  }
  return OK;
}

static void tell(const PassArgs *args, const Ddp *d, bool at_end) {
  if (!args->stats) return;
  if (!d->reduced && !d->already && !d->others && !d->of_inputs) {
    text_puts(args->stats, "ddp: the program has no gradient outputs: nothing to reduce\n");
    return;
  }
  text_printf(args->stats, "ddp: %d gradient%s divided by %lld and reduced over group \"%s\"%s\n", d->reduced,
              d->reduced == 1 ? "" : "s", (long long)d->ranks, d->group,
              at_end ? ", at the end: the program writes to memory" : "");
  if (d->already) text_printf(args->stats, "  left alone: %d, reduced already\n", d->already);
  if (d->of_inputs)
    text_printf(args->stats, "  left alone: %d, of inputs: the option user_inputs takes them too\n", d->of_inputs);
  if (d->others) text_printf(args->stats, "  left alone: %d, no tensors of floating point numbers\n", d->others);
}

Status pass_ddp(Exported *e, const PassArgs *args) {
  Ddp d = {.graph = e->graph, .ranks = pass_int(args, "world_size")};
  bool user_inputs = pass_flag(args, "user_inputs"), at_end = !graph_is_functional(e->graph);
  TRY_NEW(d.group, arena_strdup(e->graph->arena, pass_text(args, "group")));
  mark_gradients(e, &d, user_inputs);
  TRY(reduce_all(&d, at_end));
  for (int i = 0; i < e->graph->noutputs; i++) {
    Arg *a = &e->graph->outputs[i];
    if (is_gradient(&e->outputs[i], user_inputs) && a->kind == ARG_VAL && a->val->forward) a->val = a->val->forward;
  }
  for (int i = 0; i < e->graph->ninputs; i++) e->graph->inputs[i]->forward = NULL;
  for (Node *n = e->graph->first; n; n = n->next) {
    for (int i = 0; i < n->nouts; i++) n->outs[i]->forward = NULL;
  }
  tell(args, &d, at_end);
  return OK;
}
