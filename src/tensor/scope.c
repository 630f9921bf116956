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
    }
    used = PER_BLOCK;
    free(b);
  }
  *s = (Scope){0};
}
