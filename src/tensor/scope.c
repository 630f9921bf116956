/* scope.c -- who owns tensor handles; see tensor.h I3. */
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"

enum { PER_BLOCK = 16 };

typedef struct ScopeBlock {
  struct ScopeBlock *next;
  Tensor tensor[PER_BLOCK];
} ScopeBlock;

Tensor *scope_tensor(Scope *s) {
  if (!s->blocks || s->used == PER_BLOCK) {
    ScopeBlock *b = malloc(sizeof *b);
    if (!b) return NULL;
    b->next = s->blocks;
    s->blocks = b;
    s->used = 0;
  }
  Tensor *t = &s->blocks->tensor[s->used++];
  /* Sizes beyond ndim stay uninitialised: nobody reads them. */
  t->storage = NULL;
  t->spec = NULL;
  t->local = NULL;
  t->tag = NULL;
  t->grad = NULL;
  t->grad_out = 0;
  t->seen = 0;
  t->family = NULL;
  t->offset = 0;
  t->dtype = DT_F32;
  t->ndim = 0;
  return t;
}

void scope_clear(Scope *s) {
  int used = s->used;
  for (ScopeBlock *b = s->blocks, *next; b; b = next) {
    next = b->next;
    for (int i = 0; i < used; i++) {
      storage_unref(b->tensor[i].storage);
      grad_unref(b->tensor[i].grad);
      grad_unref(b->tensor[i].family);
    }
    used = PER_BLOCK;
    free(b);
  }
  *s = (Scope){0};
}

typedef struct {
  Tensor tensor; /* first: what the caller has */
  Tensor shard;  /* of a DTensor */
} Held;

Status tensor_hold(const Tensor *t, Tensor **out) {
  Held *h;
  TRY_NEW(h, malloc(sizeof *h));
  h->tensor = *t;
  storage_ref(t->storage);
  grad_ref(t->grad);
  grad_ref(t->family);
  if (t->local) {
    h->shard = *t->local;
    h->shard.grad = h->shard.family = NULL;
    storage_ref(t->local->storage);
    h->tensor.local = &h->shard;
  }
  *out = &h->tensor;
  return OK;
}

void tensor_release(Tensor *held) {
  if (!held) return;
  storage_unref(held->storage);
  if (held->local) storage_unref(held->local->storage);
  grad_unref(held->grad);
  grad_unref(held->family);
  free(held);
}
