/* started.c -- see started.h.  One walk; Storage.mark is the last hold whose collective
 * writes to the storage and is not waited for yet, -1 if there is none. */
#include "passes/started.h"

#include <stdlib.h>

typedef struct {
  Hold *v;
  int *writes; /* per hold: the one before it of the same result, -1: none */
  int n, cap;
} Holds;

static Status add(Holds *h, Tensor *t, int from, int64_t before) {
  if (h->n == h->cap) {
    int cap = h->cap ? h->cap * 2 : 64;
    Hold *more;
    int *writes;
    TRY_NEW(more, realloc(h->v, (size_t)cap * sizeof *more));
    h->v = more;
    TRY_NEW(writes, realloc(h->writes, (size_t)cap * sizeof *writes));
    h->writes = writes;
    h->cap = cap;
  }
  h->writes[h->n] = (int)before;
  h->v[h->n++] = (Hold){t, from, -1};
  return OK;
}

static void clear_mark(void *ctx, Val **ref) {
  (void)ctx;
  if ((*ref)->tensor && (*ref)->tensor->storage) (*ref)->tensor->storage->mark = -1;
}

/* NULL if it has no storage. */
static Tensor *with_storage(Tensor *t) { return t && t->storage ? t : NULL; }
static Tensor *tensor_of(const Arg *a) { return a->kind == ARG_VAL ? with_storage(a->val->tensor) : NULL; }

/* Result j is made of operand j; both are held. */
static Status start(Holds *h, const Node *n, int at) {
  const Arg *operands = &n->args[0];
  for (int j = 0; j < n->nouts; j++) {
    Tensor *out = with_storage(n->outs[j]->tensor),
           *in = tensor_of(operands->kind == ARG_LIST ? &operands->list[j] : operands);
    if (!out) continue;
    TRY(add(h, out, at, out->storage->mark));
    out->storage->mark = h->n - 1;
    if (!in) continue;
    TRY(add(h, in, at, out->storage->mark));
    out->storage->mark = h->n - 1;
  }
  return OK;
}

static void wait(Holds *h, const Tensor *t, int at) {
  if (!t) return;
  for (int64_t k = t->storage->mark; k >= 0; k = h->writes[k]) h->v[k].until = at;
  t->storage->mark = -1;
}

static Status find(Graph *g, Holds *h) {
  int at = 0;
  for (int i = 0; i < g->ninputs; i++) clear_mark(NULL, &g->inputs[i]);
  for (Node *n = g->first; n; n = n->next) {
    for (int i = 0; i < n->nouts; i++) clear_mark(NULL, &n->outs[i]);
  }
  for (Node *n = g->first; n; n = n->next, at++) {
    if (n->op && n->op->def->flags & OP_STARTS) TRY(start(h, n, at));
    else if (node_is(n, "_c10d_functional.wait_tensor.default")) wait(h, tensor_of(&n->args[0]), at);
  }
  for (int i = 0; i < h->n; i++) {
    if (h->v[i].until < 0) h->v[i].until = at;
  }
  return OK;
}

Status started_holds(Graph *g, Hold **out, int *n) {
  Holds h = {0};
  Status s = find(g, &h);
  free(h.writes);
  if (s) free(h.v);
  else *out = h.v, *n = h.n;
  return s;
}
