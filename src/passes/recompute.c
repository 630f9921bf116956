/* recompute.c -- in a joint program, results of element-by-element ops that the backward reads are computed again
 * there instead of being kept from the forward.
 *
 *   before:  %h = linear(%x, %W)  %a = gelu(%h)  %y = linear(%a, %V)
 *            ... %dV = matmul(%g, %a)  %dh = gelu_backward(%da, %h)
 *   after:   ... %a_1 = gelu(%h)  %dV = matmul(%g, %a_1)  %dh = gelu_backward(%da, %h)
 *
 * A result is computed again if what it is made of is there in the backward anyway: parameters, constants, values
 * that the backward reads for other reasons and for as long, small ones, or other results that are computed again.
 * So nothing is kept longer than before, and no product, reduction or random number is computed twice.
 *
 * The forward is what the outputs that are no gradients depend on; of a training step, whose gradients are used and
 * gone, what stands before the loss.  The backward is the rest.  One walk over each.
 */
#include <limits.h>
#include <stdlib.h>

#include "passes/pass.h"

enum {
  WORTH = 16 << 10, /* bytes of a result that are worth a node */
  DEEP = 12,        /* nodes that may be computed again for one result */
  SMALL = 8,        /* a value of at most this part of the result may be kept for it */
};

/* By value id.  Times are numbers of backward nodes. */
typedef struct {
  bool forward;    /* made there, or an input */
  int first, last; /* backward nodes that read it; 0: none */
  int can;         /* until when it can be computed again; 0: never */
  int cost;        /* nodes that this takes */
  Val *again;      /* the copy */
} Facts;

typedef struct {
  Graph *g;
  Facts *facts;
  int now;
} Recompute;

static int64_t bytes_of(const Val *v) {
  int64_t n = (int64_t)dtype_size(v->dtype);
  for (int d = 0; d < v->ndim; d++) {
    if (!sym_is_int(v->size[d])) return 0;
    n *= v->size[d]->value;
  }
  return n;
}

/* ---- forward and backward ------------------------------------------------------------------------------ */

static void note_forward(void *arg, Val **ref) { ((Recompute *)arg)->facts[(*ref)->id].forward = true; }

static bool makes_forward(const Recompute *r, const Node *n) {
  bool forward = n->nouts == 0; /* an effect */
  for (int i = 0; i < n->nouts; i++) forward |= r->facts[n->outs[i]->id].forward;
  return forward;
}

static bool is_gradient(OutputKind k) { return k == OUT_GRADIENT_TO_PARAMETER || k == OUT_GRADIENT_TO_USER_INPUT; }

/* The node that makes the loss of a program without gradients among its outputs; NULL: it has some. */
static const Node *loss_of_step(const Graph *g, const Exported *e) {
  const Node *loss = NULL;
  for (int i = 0; i < g->noutputs; i++) {
    if (is_gradient(e->outputs[i].kind)) return NULL;
    if (e->outputs[i].kind == OUT_LOSS && g->outputs[i].kind == ARG_VAL) loss = g->outputs[i].val->node;
  }
  return loss;
}

/* Node.mark: 0 of the forward, else the node's number in the backward. */
static void divide(Recompute *r, const Exported *e) {
  const Node *loss = loss_of_step(r->g, e);
  bool before = false;
  for (int i = 0; i < r->g->noutputs && !loss; i++)
    if (!is_gradient(e->outputs[i].kind)) arg_each_val(&r->g->outputs[i], note_forward, r);
  for (Node *n = r->g->last; n; n = n->prev) {
    before |= n == loss;
    n->mark = loss ? !before : !makes_forward(r, n);
    if (!n->mark) node_each_val(n, note_forward, r);
  }
  for (int i = 0; i < r->g->ninputs; i++) r->facts[r->g->inputs[i]->id].forward = true;
}

static void note_use(void *arg, Val **ref) {
  const Recompute *r = arg;
  Facts *f = &r->facts[(*ref)->id];
  if (!f->first) f->first = r->now;
  f->last = r->now;
}

static void number_backward(Recompute *r) {
  for (Node *n = r->g->first; n; n = n->next) {
    if (!n->mark) continue;
    n->mark = ++r->now;
    node_each_val(n, note_use, r);
  }
  r->now++;
  for (int i = 0; i < r->g->noutputs; i++)
    arg_each_val(&r->g->outputs[i], note_use, r); /* kept to the end anyway */
}

/* ---- what can be computed again ---------------------------------------------------------------------------- */

static bool is_view(const Node *n) {
  return n->op->def->moves != MOVES_NOT && n->op->schema.nreturns == 1 && !(n->op->def->flags & OP_POINTWISE);
}

static bool is_cheap(const Node *n) {
  if (!n->op || n->nouts != 1 || n->outs[0]->type != TY_TENSOR || n->op->def->inplace) return false;
  if (n->op->def->flags & (OP_RANDOM | OP_EFFECT | OP_DYNAMIC)) return false;
  return n->op->def->flags & OP_POINTWISE || is_view(n);
}

typedef struct {
  const Recompute *r;
  const Val *result;
  int can, cost; /* so far */
} Chain;

static bool is_small(const Val *v, const Val *beside) { return bytes_of(v) * SMALL <= bytes_of(beside); }

static void add_operand(void *arg, Val **ref) {
  Chain *c = arg;
  const Facts *f = &c->r->facts[(*ref)->id];
  if (!(*ref)->node || is_small(*ref, c->result)) return; /* there anyway, or kept */
  int until = f->last > f->can ? f->last : f->can;
  if (until < c->can) c->can = until;
  if (!f->last) c->cost += f->cost;
}

static void find_costs(Recompute *r) {
  for (Node *n = r->g->first; n; n = n->next) {
    if (n->mark || !is_cheap(n)) continue;
    Chain c = {.r = r, .result = n->outs[0], .can = INT_MAX, .cost = 1};
    node_each_val(n, add_operand, &c);
    Facts *f = &r->facts[n->outs[0]->id];
    f->can = c.cost > DEEP ? 0 : c.can;
    f->cost = c.cost;
  }
}

/* ---- copies
 * ------------------------------------------------------------------------------------------------------ */

typedef struct {
  Recompute *r;
  Node *before;
  const Val *result; /* what is computed again; NULL: a node of the backward is looked at */
  Status status;
} Copies;

/* Kept so far, and better computed again. */
static bool is_worth_it(const Recompute *r, const Val *v) {
  const Facts *f = &r->facts[v->id];
  return f->forward && v->node && !v->node->mark && f->last && f->last < r->now && f->can >= f->first &&
         bytes_of(v) >= WORTH && v->node->op->def->flags & OP_POINTWISE;
}

static void use_copy(void *arg, Val **ref);

static Status copy_of(Copies *c, Val *v, Val **out) {
  Facts *f = &c->r->facts[v->id];
  if (!f->again) {
    Node *copy;
    TRY(node_clone(v->node, c->before, &copy));
    copy->mark = c->before->mark;
    copy->stage = c->before->stage;
    Copies inner = {c->r, copy, v, OK};
    node_each_val(copy, use_copy, &inner);
    TRY(inner.status);
    f->again = copy->outs[0];
  }
  *out = f->again;
  return OK;
}

/* An operand of a copy, or of a node of the backward: what is not there is a copy, too. */
static void use_copy(void *arg, Val **ref) {
  Copies *c = arg;
  const Facts *f = &c->r->facts[(*ref)->id];
  if (c->status || !(*ref)->node || (*ref)->node->mark) return;
  bool gone = c->result && f->can >= c->before->mark && f->last < c->before->mark && !is_small(*ref, c->result);
  if (gone || is_worth_it(c->r, *ref)) c->status = copy_of(c, *ref, ref);
}

static Status compute_again(Recompute *r, int *count) {
  for (Node *n = r->g->first; n; n = n->next) {
    if (!n->mark) continue;
    Copies c = {r, n, NULL, OK};
    int before = r->g->nnodes;
    node_each_val(n, use_copy, &c);
    TRY(c.status);
    *count += r->g->nnodes - before;
  }
  return OK;
}

Status pass_recompute(Exported *e, const PassArgs *args) {
  Recompute r = {.g = e->graph};
  int count = 0;
  if (!exported_is_joint(e) || !graph_is_functional(e->graph)) return OK;
  TRY_NEW(r.facts, calloc((size_t)e->graph->nvals * 2 + 1, sizeof *r.facts)); /* copies have ids as well */
  divide(&r, e);
  number_backward(&r);
  find_costs(&r);
  Status s = compute_again(&r, &count);
  free(r.facts);
  if (args->stats) text_printf(args->stats, "recompute: %d nodes are computed again in the backward\n", count);
  return s;
}
