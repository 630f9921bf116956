/* saved.c -- see saved.h. */
#include "runtime/saved.h"

#include <stdlib.h>

#include "base/ptrmap.h"
#include "graph/infer.h"
#include "ops/tensors.h"

enum { WORTH = 512 }; /* bytes of a home that are worth a node */

/* A core of a small server.  Only ratios matter: which results are cheap to have again. */
static const double flops_per_second = 60e9, bytes_per_second = 10e9, seconds_per_node = 0.5e-6;

/* ---- work ----------------------------------------------------------------------------------------------- */

static double bytes_of(const Tensor *t) { return t ? (double)tensor_numel(t) * (double)dtype_size(t->dtype) : 0; }

static bool shares_memory(const Call *c, const Tensor *t) {
  for (TensorWalk in = call_inputs(c); tensor_next(&in);)
    if (in.tensor->storage == t->storage) return true;
  return false;
}

NodeWork call_work(const Call *c) {
  NodeWork w = {0};
  double bytes = 0;
  bool views = c->nout > 0;
  for (int i = 0; i < c->nout; i++) {
    const Tensor *t = out_tensor(c, i);
    bytes += bytes_of(t);
    views &= t && shares_memory(c, t);
  }
  if (views) return w; /* nothing is done */
  for (TensorWalk in = call_inputs(c); tensor_next(&in);) bytes += bytes_of(in.tensor);
  w.flops = op_flops(c);
  double compute = w.flops / flops_per_second, move = bytes / bytes_per_second;
  w.seconds = seconds_per_node + (compute > move ? compute : move);
  return w;
}

static void price(void *arg, Node *n, const Call *c) { ((Saved *)arg)->work[n->mark] = call_work(c); }

/* ---- homes ----------------------------------------------------------------------------------------------- */

/* The loss itself may come late: on a mesh it is a sum over ranks, which is reduced when the program ends. */
const Node *saved_forward_end(const Exported *e) {
  for (const Node *n = e->graph->first; n; n = n->next)
    if (n->stage == STAGE_BACKWARD) return n->prev;
  for (int i = 0; i < e->graph->noutputs; i++) {
    const Arg *a = &e->graph->outputs[i];
    if (e->outputs[i].kind == OUT_LOSS && a->kind == ARG_VAL && a->val->node) return a->val->node;
  }
  return NULL;
}

/* Ranks choose by themselves what they compute again, and must all make the same collectives. */
static bool can_repeat(const Node *n) {
  return n->op && !n->op->schema.mutates && !(n->op->def->flags & (OP_EFFECT | OP_DYNAMIC)) &&
         !node_is(n, "tess.redistribute.default");
}

static Status add_home(Saved *s, PtrMap *homes, Val *v) {
  Storage *storage = v->tensor ? v->tensor->storage : NULL;
  int64_t *at;
  if (!storage) return OK;
  TRY(ptrmap_slot(homes, storage, -1, &at));
  if (*at == -1) {
    *at = s->nhomes;
    s->home[s->nhomes++] = (Home){
        .value = v, .bytes = storage->size, .fixed = storage->size < WORTH || !can_repeat(v->node)};
  }
  s->home_of[v->id] = (int)*at;
  return OK;
}

/* Memory of inputs is nobody's home: -2. */
static Status find_homes(Saved *s, PtrMap *homes) {
  const Graph *g = s->program->graph;
  for (int i = 0; i < s->nvals; i++) s->home_of[i] = -1;
  for (int i = 0; i < g->ninputs; i++) {
    int64_t *at;
    const Tensor *t = g->inputs[i]->tensor;
    if (t && t->storage) TRY(ptrmap_slot(homes, t->storage, -2, &at));
  }
  for (Node *n = g->first; n && n->mark <= s->forward_end; n = n->next)
    for (int i = 0; i < n->nouts; i++) TRY(add_home(s, homes, n->outs[i]));
  return OK;
}

static void note_saved(void *arg, Val **ref) {
  const Saved *s = arg;
  if (s->home_of[(*ref)->id] >= 0) s->home[s->home_of[(*ref)->id]].saved = true;
}

static void note_fixed(void *arg, Val **ref) {
  const Saved *s = arg;
  if (s->home_of[(*ref)->id] >= 0) s->home[s->home_of[(*ref)->id]].fixed = true;
}

static Status look(Ctx *ctx, Saved *s, PtrMap *homes) {
  Graph *g = s->program->graph;
  int at = 0;
  for (Node *n = g->first; n; n = n->next) n->mark = at++;
  s->nnodes = at;
  s->nvals = g->nvals;
  TRY_NEW(s->work, calloc((size_t)at + 1, sizeof *s->work));
  TRY_NEW(s->home, calloc((size_t)g->nvals + 1, sizeof *s->home));
  TRY_NEW(s->home_of, calloc((size_t)g->nvals + 1, sizeof *s->home_of));
  TRY(graph_infer_each(ctx, s->program, price, s));
  const Node *end = saved_forward_end(s->program);
  s->forward_end = end ? end->mark : -1;
  TRY(find_homes(s, homes));
  for (Node *n = g->first; n; n = n->next)
    if (n->mark > s->forward_end) node_each_val(n, note_saved, s);
  for (int i = 0; i < g->noutputs; i++) arg_each_val(&g->outputs[i], note_fixed, s);
  return OK;
}

Status saved_find(Ctx *ctx, Exported *joint, Saved *out) {
  PtrMap homes = {0};
  *out = (Saved){.program = joint};
  Status s = graph_is_functional(joint->graph) ? look(ctx, out, &homes)
                                               : fail(ERR_USAGE, "the program writes to its values");
  ptrmap_free(&homes);
  if (s) saved_free(out);
  return s;
}

void saved_free(Saved *s) {
  free(s->home);
  free(s->home_of);
  free(s->work);
  *s = (Saved){0};
}

/* ---- computing again -------------------------------------------------------------------------------------- */

typedef struct {
  const Saved *saved;
  const bool *again;
  Val **copy;   /* by value id; NULL: none so far */
  Node **chain; /* to be copied for the node at hand */
  bool *listed; /* by position: copied, or in the chain */
  int n;
} Copies;

static bool is_gone(const Copies *c, const Val *v) {
  return v->id < c->saved->nvals && home_is_gone(c->saved, c->again, c->saved->home_of[v->id]);
}

static void list_maker(void *arg, Val **ref) {
  Copies *c = arg;
  if (!is_gone(c, *ref) || c->listed[(*ref)->node->mark]) return;
  c->listed[(*ref)->node->mark] = true;
  c->chain[c->n++] = (*ref)->node;
}

static void use_copy(void *arg, Val **ref) {
  const Copies *c = arg;
  if (is_gone(c, *ref)) *ref = c->copy[(*ref)->id];
}

static int earlier_first(const void *a, const void *b) {
  return (*(Node *const *)a)->mark - (*(Node *const *)b)->mark;
}

static Status copy_node(const Copies *c, Node *n, Node *before) {
  Node *copy;
  TRY(node_clone(n, before, &copy));
  copy->outs_list = n->outs_list;
  copy->mark = before->mark;
  copy->stage = before->stage;
  copy->again = n;
  node_each_val(copy, use_copy, (void *)(uintptr_t)c);
  for (int i = 0; i < n->nouts; i++) c->copy[n->outs[i]->id] = copy->outs[i];
  return OK;
}

/* What a node of the backward reads and is not there, in the order of the forward, just before it. */
static Status compute_for(Copies *c, Node *reader) {
  c->n = 0;
  node_each_val(reader, list_maker, c);
  for (int i = 0; i < c->n; i++) node_each_val(c->chain[i], list_maker, c);
  if (c->n) qsort(c->chain, (size_t)c->n, sizeof(Node *), earlier_first);
  for (int i = 0; i < c->n; i++) TRY(copy_node(c, c->chain[i], reader));
  node_each_val(reader, use_copy, c);
  return OK;
}

static void unuse(void *arg, Val **ref) {
  (void)arg;
  (*ref)->mark--;
}

/* Nodes of the forward that only the backward had use for.  Random ones stay: others draw behind them. */
static void remove_unused(const Saved *s, Graph *g) {
  graph_count_uses(g);
  for (Node *n = g->last, *prev; n; n = prev) {
    prev = n->prev;
    bool used = n->mark > s->forward_end || !can_repeat(n) || n->op->def->flags & OP_RANDOM;
    for (int i = 0; i < n->nouts; i++) used |= n->outs[i]->mark > 0;
    if (used) continue;
    node_each_val(n, unuse, NULL);
    node_remove(n);
  }
}

static Status compute_all(Copies *c, Graph *g) {
  TRY_NEW(c->copy, calloc((size_t)c->saved->nvals + 1, sizeof *c->copy));
  TRY_NEW(c->chain, calloc((size_t)c->saved->nnodes + 1, sizeof(Node *)));
  TRY_NEW(c->listed, calloc((size_t)c->saved->nnodes + 1, sizeof *c->listed));
  for (Node *n = g->first; n; n = n->next)
    if (n->mark > c->saved->forward_end) TRY(compute_for(c, n));
  return OK;
}

Status saved_compute_again(const Saved *s, const bool *again, Graph *g) {
  Copies c = {.saved = s, .again = again};
  Status status = compute_all(&c, g);
  free(c.copy);
  free(c.chain);
  free(c.listed);
  if (!status) remove_unused(s, g);
  return status;
}
