/* constant_fold.c -- computes what depends on constants alone.
 *
 *   before:  %a = arange(4)  %m = cos(%a)  %y = mul(%x, %m)
 *   after:   %y = mul(%x, %cos)      with %cos a new tensor_constant input
 *
 * Constants are weights, buffers and tensor constants whose data is there and that the
 * program does not write to.  Left alone: random ops, asserts, views (they cost nothing
 * and their result would pin the whole of what they view), results above 64 MiB, and
 * programs that are not functional yet.
 */
#include "graph/builder.h"
#include "graph/resolve.h"
#include "passes/pass.h"

enum { LARGEST = 64 << 20 };

static void check_constant(void *ctx, Val **ref) {
  bool tensor = (*ref)->type == TY_TENSOR && (*ref)->constant && (*ref)->tensor;
  if (!tensor) *(bool *)ctx = false;
}

static bool is_candidate(Node *n) {
  if (!n->op || n->nouts == 0 || n->op->schema.mutates || (n->op->def->flags & (OP_RANDOM | OP_EFFECT | OP_SCALAR)))
    return false;
  if (n->op->schema.nreturns && n->op->schema.returns[0].aliased) return false;
  bool constant = true;
  node_each_val(n, check_constant, &constant);
  for (int i = 0; i < n->nargs; i++) constant &= n->args[i].kind != ARG_GRAPH;
  return constant;
}

static bool too_large(const Node *n) {
  for (int i = 0; i < n->nouts; i++) {
    const Val *v = n->outs[i];
    double bytes = v->dtype == DT_NONE ? 0 : (double)dtype_size(v->dtype);
    for (int d = 0; d < v->ndim; d++) {
      if (!sym_is_int(v->size[d])) return true;
      bytes *= (double)v->size[d]->value;
    }
    if (bytes > LARGEST) return true;
  }
  return false;
}

/* The node's results become constants without a place in the program yet. */
static Status fold(Ctx *ctx, Exported *e, Node *n) {
  Value bound[MAX_PARAMS];
  TRY(node_resolve(&e->arena, NULL, n, bound));
  Call c = {.ctx = ctx, .op = n->op, .arg = bound, .scope = &e->scope, .arena = &e->arena};
  TRY(op_run(&c));
  for (int i = 0; i < n->nouts && i < c.nout; i++) {
    n->outs[i]->tensor = out_tensor(&c, i);
    n->outs[i]->constant = n->outs[i]->tensor != NULL;
  }
  return OK;
}

typedef struct {
  GraphBuilder builder;
  Status status;
} Placing;

/* What the rest of the program still asks for becomes an input. */
static void place_used(void *ctx, Val **ref) {
  Placing *p = ctx;
  Val *v = *ref, *input;
  if (p->status || !v->constant || !v->node) return;
  if (!v->forward) {
    p->status = builder_constant(&p->builder, v->name, v->tensor, &input);
    if (p->status) return;
    v->forward = input;
  }
  *ref = v->forward;
}

Status pass_constant_fold(Exported *e, const PassArgs *args) {
  Graph *g = e->graph;
  int folded = 0;
  if (!graph_is_functional(g)) return OK;
  for (int i = 0; i < g->ninputs; i++) {
    Val *v = g->inputs[i];
    const StateEntry *s = e->inputs[i].target ? exported_state(e, e->inputs[i].target) : NULL;
    v->constant = s && s->tensor && !exported_is_mutated(e, s->fqn);
    if (v->constant) v->tensor = s->tensor;
  }
  for (Node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (!is_candidate(n) || too_large(n)) continue;
    TRY(fold(args->ctx, e, n));
    node_remove(n);
    folded++;
  }
  Placing p = {.status = OK};
  builder_init(&p.builder, args->ctx, e);
  graph_each_val(g, place_used, &p);
  builder_free(&p.builder);
  TRY(p.status);
  if (args->stats) text_printf(args->stats, "constant_fold: %d nodes computed\n", folded);
  return OK;
}
