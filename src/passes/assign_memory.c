/* assign_memory.c -- see assign_memory.h.
 *
 * Largest first: each storage takes the lowest offset that is free during its whole
 * life.  Quadratic in the number of storages that are alive together at worst, which
 * for ten thousand nodes is still milliseconds, and within a few percent of the lower
 * bound (the largest sum of sizes alive at once) on transformers. */
#include "passes/assign_memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "graph/infer.h"
#include "passes/pass.h"
#include "passes/started.h"

enum { ALIGN = 64 };

typedef struct {
  Storage *storage;
  int64_t size; /* rounded up */
  int first, last;
  bool apart; /* I3 */
} Life;

typedef struct {
  Life *lives;
  int n, cap;
  int now; /* number of the node at hand */
} Lives;

/* While lives are collected, plan holds the index of the storage's Life. */
static Status touch(Lives *l, Storage *s) {
  if (!storage_is_internal(s)) return OK;
  if (s->slab_offset >= 0) {
    l->lives[s->slab_offset].last = l->now;
    return OK;
  }
  TRY_ROOM(l->lives, l->n, l->cap);
  s->slab_offset = l->n;
  int64_t size = (int64_t)((s->size + ALIGN - 1) & ~(size_t)(ALIGN - 1));
  l->lives[l->n++] = (Life){.storage = s, .size = size, .first = l->now, .last = l->now};
  return OK;
}

typedef struct {
  Lives *lives;
  Status status;
} TouchArgs;

static void touch_ref(void *ctx, Val **ref) {
  TouchArgs *t = ctx;
  if (!t->status && (*ref)->tensor) t->status = touch(t->lives, (*ref)->tensor->storage);
}

static Status collect(Graph *g, Lives *l) {
  TouchArgs t = {l, OK};
  for (Node *n = g->first; n; n = n->next, l->now++) {
    node_each_val(n, touch_ref, &t);
    TRY(t.status);
    for (int i = 0; i < n->nouts; i++) {
      if (n->outs[i]->tensor) TRY(touch(l, n->outs[i]->tensor->storage));
    }
  }
  for (int i = 0; i < g->noutputs; i++) arg_each_val(&g->outputs[i], touch_ref, &t);
  return t.status;
}

/* What a started collective reads and writes is alive until its wait. */
static Status extend(Graph *g, Lives *l) {
  Hold *hold;
  int n;
  TRY(started_holds(g, &hold, &n));
  for (int i = 0; i < n; i++) {
    const Storage *s = hold[i].tensor->storage;
    if (!storage_is_internal(s) || s->slab_offset < 0) continue;
    Life *life = &l->lives[s->slab_offset];
    if (hold[i].until > life->last) life->last = hold[i].until;
  }
  free(hold);
  return OK;
}

/* I3. */
static void set_gradients_apart(const Graph *g, Lives *l) {
  int at = 0, end = -1; /* of the backward */
  for (const Node *n = g->first; n; n = n->next, at++)
    if (n->stage == STAGE_BACKWARD) end = at;
  at = 0;
  for (const Node *n = g->first; n; n = n->next, at++) {
    if (n->stage != STAGE_BACKWARD) continue;
    for (int i = 0; i < n->nouts; i++) {
      const Storage *s = n->outs[i]->tensor ? n->outs[i]->tensor->storage : NULL;
      if (!storage_is_internal(s) || s->slab_offset < 0) continue;
      Life *life = &l->lives[s->slab_offset];
      life->apart |= life->last > end;
    }
  }
}

static int larger_first(const void *a, const void *b) {
  const Life *x = a, *y = b;
  if (x->size != y->size) return x->size < y->size ? 1 : -1;
  return x->first - y->first;
}

typedef struct {
  int64_t begin, end;
} Range;

static int by_begin(const void *a, const void *b) {
  const Range *x = a, *y = b;
  return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* The lowest gap of the size among the ranges taken. */
static int64_t lowest_gap(Range *taken, int n, int64_t size) {
  qsort(taken, (size_t)n, sizeof *taken, by_begin);
  int64_t at = 0;
  for (int i = 0; i < n; i++) {
    if (taken[i].begin - at >= size) break;
    if (taken[i].end > at) at = taken[i].end;
  }
  return at;
}

/* In the order in which they are made, so that the buffer is filled from its beginning. */
static void place_apart(Lives *l, MemoryLayout *out) {
  out->gradients = 0;
  for (int i = 0; i < l->n; i++) {
    Life *me = &l->lives[i];
    if (!me->apart) continue;
    me->storage->slab_offset = (int64_t)(out->slab + out->gradients);
    out->gradients += (size_t)me->size;
  }
}

static Status place(Lives *l, size_t *slab_bytes) {
  Range *taken;
  *slab_bytes = 0;
  if (!l->n) return OK;
  TRY_NEW(taken, malloc(((size_t)l->n + 1) * sizeof *taken));
  qsort(l->lives, (size_t)l->n, sizeof *l->lives, larger_first);
  int64_t top = 0;
  for (int i = 0; i < l->n; i++) {
    Life *me = &l->lives[i];
    int n = 0;
    if (me->apart) continue;
    for (int j = 0; j < i; j++) {
      const Life *other = &l->lives[j];
      if (other->apart || other->first > me->last || other->last < me->first) continue;
      taken[n++] = (Range){other->storage->slab_offset, other->storage->slab_offset + other->size};
    }
    me->storage->slab_offset = lowest_gap(taken, n, me->size);
    if (me->storage->slab_offset + me->size > top) top = me->storage->slab_offset + me->size;
  }
  free(taken);
  *slab_bytes = (size_t)top;
  return OK;
}

Status assign_memory(Graph *g, MemoryLayout *out) {
  Lives l = {0};
  *out = (MemoryLayout){0};
  Status s = collect(g, &l);
  if (!s) s = extend(g, &l);
  if (!s && g->gradients_apart) set_gradients_apart(g, &l);
  if (!s) s = place(&l, &out->slab);
  if (!s) place_apart(&l, out);
  free(l.lives);
  return s;
}

Status pass_assign_memory(Exported *e, const PassArgs *args) {
  MemoryLayout memory;
  TRY(graph_infer(args->ctx, e));
  TRY(assign_memory(e->graph, &memory));
  if (args->stats) text_printf(args->stats, "assign_memory: %zu bytes\n", memory.slab);
  return OK;
}
