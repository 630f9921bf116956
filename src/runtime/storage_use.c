/* storage_use.c -- see storage_use.h. */
#include "runtime/storage_use.h"

#include <stdlib.h>

void storage_table_free(StorageTable *t) {
  free(t->v);
  free(t->tensor);
  free(t->next);
  ptrmap_free(&t->number);
  *t = (StorageTable){0};
}

/* One more value, at node `at`. */
static Status enter(StorageTable *t, Tensor *x, int64_t at) {
  if (!x || !x->storage) return OK;
  Storage *s = x->storage;
  int64_t *number;
  TRY(ptrmap_slot(&t->number, s, t->n, &number));
  if (*number == t->n) t->v[t->n++] = (StorageUse){.storage = s, .first = at, .last = at, .head = -1, .tail = -1};
  StorageUse *home = &t->v[*number];
  int i = t->ntensors++;
  t->tensor[i] = x;
  t->next[i] = -1;
  if (home->tail >= 0) t->next[home->tail] = i;
  else home->head = i;
  home->tail = i;
  home->last = at;
  return OK;
}

typedef struct {
  StorageTable *table;
  int64_t at;
} Visit;

static void touch(void *arg, Val **ref) {
  const Visit *v = arg;
  const Tensor *x = (*ref)->tensor;
  if (x && x->storage) storage_use_of(v->table, x->storage)->last = v->at;
}

static Status fill(Graph *g, StorageTable *t) {
  int count = g->ninputs;
  for (Node *n = g->first; n; n = n->next) count += n->nouts;
  TRY_NEW(t->v, malloc(((size_t)count + 1) * sizeof *t->v));
  TRY_NEW(t->tensor, malloc(((size_t)count + 1) * sizeof *t->tensor));
  TRY_NEW(t->next, malloc(((size_t)count + 1) * sizeof *t->next));
  Visit v = {t, 0};
  for (int i = 0; i < g->ninputs; i++) TRY(enter(t, g->inputs[i]->tensor, 0));
  for (Node *n = g->first; n; n = n->next) {
    v.at++;
    node_each_val(n, touch, &v);
    for (int i = 0; i < n->nouts; i++) TRY(enter(t, n->outs[i]->tensor, v.at));
  }
  v.at = INT64_MAX;
  for (int i = 0; i < g->noutputs; i++) arg_each_val(&g->outputs[i], touch, &v);
  return OK;
}

Status storage_table_new(Graph *g, StorageTable *out) {
  *out = (StorageTable){0};
  Status s = fill(g, out);
  if (s) storage_table_free(out);
  return s;
}

void storage_table_move(StorageTable *t, Storage *from, Storage *to, int64_t bytes) {
  StorageUse *a = storage_use_of(t, from), *b = storage_use_of(t, to);
  if (b->tail >= 0) t->next[b->tail] = a->head;
  else b->head = a->head;
  if (a->tail >= 0) b->tail = a->tail;
  if (a->first < b->first) b->first = a->first;
  if (a->last > b->last) b->last = a->last;
  int i = a->head;
  *a = (StorageUse){.head = -1, .tail = -1};
  for (; i >= 0; i = t->next[i]) {
    Tensor *x = t->tensor[i];
    x->offset += bytes / (int64_t)dtype_size(x->dtype);
    x->storage = storage_ref(to);
    storage_unref(from);
  }
}
