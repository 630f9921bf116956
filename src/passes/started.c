/* started.c -- see started.h.  One walk over the graph. */
#include "passes/started.h"

#include <stdlib.h>

#include "base/ptrmap.h"

typedef struct {
  Hold *v;
  int *writes; /* per hold: the one before it of the same result, -1: none */
  int n, cap;
  PtrMap latest; /* of a storage: the last hold whose collective writes to it and is not waited for
                  * yet, -1 if there is none */
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

/* NULL if it has no storage. */
static Tensor *with_storage(Tensor *t) { return t && t->storage ? t : NULL; }
static Tensor *tensor_of(const Arg *a) { return a->kind == ARG_VAL ? with_storage(a->val->tensor) : NULL; }

/* Held until the storage is waited for. */
static Status hold(Holds *h, Tensor *t, int at, const Storage *writes) {
  int64_t *latest;
  if (!t) return OK;
  TRY(ptrmap_slot(&h->latest, writes, -1, &latest));
  TRY(add(h, t, at, *latest));
  *latest = h->n - 1;
  return OK;
}

/* Result j is made of operand j, or a single one of all of a list; all are held. */
static Status start(Holds *h, const Node *n, int at) {
  const Arg *operands = &n->args[0];
  bool list = operands->kind == ARG_LIST, together = list && n->nouts == 1;
  for (int j = 0; j < n->nouts; j++) {
    Tensor *out = with_storage(n->outs[j]->tensor);
    if (!out) continue;
    TRY(hold(h, out, at, out->storage));
    for (int k = together ? 0 : j; k < (together ? operands->n : j + 1); k++)
      TRY(hold(h, tensor_of(list ? &operands->list[k] : operands), at, out->storage));
  }
  return OK;
}

static void wait(Holds *h, const Tensor *t, int at) {
  int64_t *latest = t ? ptrmap_find(&h->latest, t->storage) : NULL;
  if (!latest) return;
  for (int64_t k = *latest; k >= 0; k = h->writes[k]) h->v[k].until = at;
  *latest = -1;
}

static Status find(Graph *g, Holds *h) {
  int at = 0;
  for (Node *n = g->first; n; n = n->next, at++) {
    if (node_starts(n)) TRY(start(h, n, at));
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
  ptrmap_free(&h.latest);
  if (s) free(h.v);
  else *out = h.v, *n = h.n;
  return s;
}
