/* tied.c -- see tied.h. */
#include "plan/tied.h"

#include <stdlib.h>

typedef struct {
  const Tensor *t;
  int entry;
} Memory;

/* Storage, offset, sizes; entries in their order within the same. */
static int compare(const Tensor *x, const Tensor *y) {
  if (!x || !y) return (x != NULL) - (y != NULL);
  if (x->storage != y->storage) return (uintptr_t)x->storage < (uintptr_t)y->storage ? -1 : 1;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  if (x->ndim != y->ndim) return x->ndim - y->ndim;
  for (int d = 0; d < x->ndim; d++)
    if (x->size[d] != y->size[d]) return x->size[d] < y->size[d] ? -1 : 1;
  return 0;
}

static int by_memory(const void *a, const void *b) {
  const Memory *x = a, *y = b;
  int order = compare(x->t, y->t);
  return order ? order : x->entry - y->entry;
}

static Status number_weights(Arena *arena, const Exported *e, Tied *out) {
  Memory *m;
  TRY_NEW(m, arena_new_n(arena, Memory, e->nstate + 1));
  TRY_NEW(out->weight, arena_new_n(arena, int, e->nstate + 1));
  for (int i = 0; i < e->nstate; i++) m[i] = (Memory){e->state[i].tensor, i};
  if (e->nstate) qsort(m, (size_t)e->nstate, sizeof *m, by_memory);
  for (int i = 0; i < e->nstate; i++) {
    bool same = i && m[i].t && m[i - 1].t && m[i].t->storage && tensor_numel(m[i].t) &&
                !compare(m[i - 1].t, m[i].t);
    out->weight[m[i].entry] = same ? out->weight[m[i - 1].entry] : m[i].entry;
  }
  return OK;
}

Status tied_find(Arena *arena, const Exported *e, Tied *out) {
  int n = e->graph->ninputs, *next;
  TRY(number_weights(arena, e, out));
  TRY_NEW(out->state, arena_new_n(arena, const StateEntry *, n + 1));
  TRY_NEW(out->first, arena_new_n(arena, int, e->nstate + 2));
  TRY_NEW(out->input, arena_new_n(arena, int, n + 1));
  TRY_NEW(next, arena_new_n(arena, int, e->nstate + 1));
  for (int i = 0; i < n; i++) {
    out->state[i] = e->inputs[i].target ? exported_state(e, e->inputs[i].target) : NULL;
    if (out->state[i]) out->first[out->weight[out->state[i] - e->state] + 1]++;
  }
  for (int w = 0; w < e->nstate; w++) {
    out->first[w + 1] += out->first[w];
    next[w] = out->first[w];
  }
  for (int i = 0; i < n; i++)
    if (out->state[i]) out->input[next[out->weight[out->state[i] - e->state]]++] = i;
  return OK;
}
