/* early_updates.c -- in a training step, what is made of a gradient is made as soon as the gradient is there.
 *
 *   before:  %g1 = mm(..)  %g0 = mm(.., %w1)  %n1 = norm(%g1)  %n0 = norm(%g0)  %v1 = adam_step(%w1, %g1)  ...
 *   after:   %g1 = mm(..)  %n1 = norm(%g1)  %g0 = mm(.., %w1)  %v1 = adam_step(%w1, %g1)  %n0 = norm(%g0)  ...
 *
 * Its norm is taken while it is in the caches, and unless all gradients must be known first (clipping), the step is
 * made and its memory is free again.  A node of the update goes behind the last of what it reads and of those who
 * read the old value of what its results are written to, which can then be written in place.  Effects (collectives)
 * and random ops stay, and so does what comes after them.  One walk.
 */
#include <stdlib.h>
#include <string.h>

#include "passes/pass.h"

/* Positions are those of nodes as the pass finds them, from 1 on; 0: before the first. */
typedef struct {
  Node **node, **last; /* by position: the node; the last of those that now stand behind it, or itself (0: NULL) */
  int *made;           /* by value id: behind which position it is there */
  int *read;           /* by value id: the last position, update apart, that reads it */
  int *written;        /* by value id: the id of the input that it is written to; -1: none */
  int behind;          /* of the node at hand */
  int at, n;
} Early;

static void note_read(void *arg, Val **ref) {
  const Early *e = arg;
  e->read[(*ref)->id] = e->at;
}

static void wait_for(void *arg, Val **ref) {
  Early *e = arg;
  if (e->made[(*ref)->id] > e->behind) e->behind = e->made[(*ref)->id];
}

static bool may_move(const Node *n) {
  return n->stage == STAGE_UPDATE && n->op && !(n->op->def->flags & (OP_EFFECT | OP_RANDOM | OP_STARTS)) &&
         !n->op->schema.mutates;
}

static int input_of(const Exported *p, const OutputSpec *to) {
  for (int i = 0; i < p->graph->ninputs; i++) {
    const char *name = to->kind == OUT_USER_INPUT_MUTATION ? p->graph->inputs[i]->name : p->inputs[i].target;
    if (name && !strcmp(name, to->target)) return p->graph->inputs[i]->id;
  }
  return -1;
}

/* The part of a parameter that is updated here, of what is gathered at the end; v itself if it is no such. */
static const Val *made_here(const Val *v) {
  const Node *n = v->node;
  bool gathered = n && n->stage == STAGE_UPDATE && node_is(n, "tess.redistribute.default");
  return gathered && n->args[0].kind == ARG_VAL ? n->args[0].val : v;
}

static void look(Early *e, const Exported *p) {
  const Graph *g = p->graph;
  for (int i = 0; i < g->nvals; i++) e->written[i] = -1;
  for (int i = 0; i < g->noutputs; i++)
    if (output_is_mutation(p->outputs[i].kind) && g->outputs[i].kind == ARG_VAL)
      e->written[made_here(g->outputs[i].val)->id] = input_of(p, &p->outputs[i]);
  for (Node *n = g->first; n; n = n->next) {
    e->node[++e->at] = n;
    e->last[e->at] = n;
    if (!may_move(n)) node_each_val(n, note_read, e);
  }
  e->n = e->at;
}

/* Where the node's results are from now on, and the node itself if that is earlier. */
static bool settle(Early *e, int at) {
  Node *n = e->node[at], *after;
  e->behind = may_move(n) ? 0 : at;
  if (!e->behind) node_each_val(n, wait_for, e);
  for (int i = 0; e->behind < at && i < n->nouts; i++) {
    int to = e->written[n->outs[i]->id];
    if (to >= 0 && e->read[to] > e->behind) e->behind = e->read[to];
  }
  if (e->behind > at) e->behind = at;
  for (int i = 0; i < n->nouts; i++) e->made[n->outs[i]->id] = e->behind;
  after = e->last[e->behind];
  if (e->behind == at) return false;
  e->last[e->behind] = n;
  if (after == n->prev) return false;
  node_move_before(n, after ? after->next : n->graph->first);
  return true;
}

static Status move_all(Early *e, const Exported *p, int *moved) {
  size_t nodes = (size_t)p->graph->nnodes + 2, values = (size_t)p->graph->nvals + 1;
  TRY_NEW(e->node, calloc(nodes, sizeof(Node *)));
  TRY_NEW(e->last, calloc(nodes, sizeof(Node *)));
  TRY_NEW(e->made, calloc(values, sizeof *e->made));
  TRY_NEW(e->read, calloc(values, sizeof *e->read));
  TRY_NEW(e->written, calloc(values, sizeof *e->written));
  look(e, p);
  for (int at = 1; at <= e->n; at++) *moved += settle(e, at);
  return OK;
}

Status pass_early_updates(Exported *p, const PassArgs *args) {
  Early e = {0};
  int moved = 0;
  if (!graph_is_functional(p->graph)) return OK;
  Status s = move_all(&e, p, &moved);
  free(e.node);
  free(e.last);
  free(e.made);
  free(e.read);
  free(e.written);
  if (args->stats) text_printf(args->stats, "early_updates: %d nodes moved\n", moved);
  return s;
}
