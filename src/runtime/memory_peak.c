/* memory_peak.c -- see memory_peak.h. */
#include "runtime/memory_peak.h"

#include <stdlib.h>

#include "passes/started.h"
#include "runtime/storage_use.h"

/* Storages of the slab, and with `apart` of the gradients behind it, with the nodes from and to which they are in
 * use; others have none. */
static Status find_lives(const Program *p, bool apart, StorageTable *t) {
  Graph *g = p->graph->graph;
  int nholds;
  Hold *hold;
  TRY(started_holds(g, &hold, &nholds));
  Status s = storage_table_new(g, t);
  for (int i = 0; !s && i < nholds; i++) {
    StorageUse *u = storage_use_of(t, hold[i].tensor->storage);
    if (u->last < hold[i].until + 1) u->last = hold[i].until + 1;
  }
  free(hold);
  for (int i = 0; !s && i < t->n; i++) {
    StorageUse *u = &t->v[i];
    if (u->last > g->nnodes) u->last = g->nnodes;
    const Storage *at = u->storage;
    size_t bytes = p->slab_bytes + (apart ? p->gradient_bytes : 0);
    if (!storage_is_internal(at) || at->slab_offset < 0 || at->slab_offset >= (int64_t)bytes) u->storage = NULL;
  }
  return s;
}

Status memory_peak(const Program *p, int *position) {
  StorageTable t;
  int nodes = p->graph->graph->nnodes;
  *position = 0;
  TRY(find_lives(p, false, &t));
  int64_t *bytes = calloc((size_t)nodes + 2, sizeof *bytes);
  for (int i = 0; bytes && i < t.n; i++) {
    if (!t.v[i].storage) continue;
    bytes[t.v[i].first] += (int64_t)t.v[i].storage->size;
    bytes[t.v[i].last + 1] -= (int64_t)t.v[i].storage->size;
  }
  for (int i = 1; bytes && i <= nodes; i++) {
    bytes[i] += bytes[i - 1];
    if (bytes[i] > bytes[*position]) *position = i;
  }
  storage_table_free(&t);
  if (!bytes) return fail_oom();
  free(bytes);
  return OK;
}

static int larger_first(const void *a, const void *b) {
  const AliveValue *x = a, *y = b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  return x->value->id - y->value->id;
}

Status memory_alive_at(const Program *p, int position, AliveValue **out, int *n) {
  StorageTable t;
  TRY(find_lives(p, false, &t));
  AliveValue *v = calloc((size_t)t.n + 1, sizeof *v);
  int at = 0;
  for (const Node *node = p->graph->graph->first; v && node && at < position; node = node->next) {
    at++;
    for (int i = 0; i < node->nouts; i++) {
      const Tensor *x = node->outs[i]->tensor;
      int64_t *number = x && x->storage ? ptrmap_find(&t.number, x->storage) : NULL;
      const StorageUse *u = number ? &t.v[*number] : NULL;
      if (u && u->storage && u->first <= position && u->last >= position)
        v[*number] = (AliveValue){node->outs[i], u->storage->size};
    }
  }
  *n = 0;
  for (int i = 0; v && i < t.n; i++)
    if (v[i].value) v[(*n)++] = v[i];
  storage_table_free(&t);
  if (!v) return fail_oom();
  qsort(v, (size_t)*n, sizeof *v, larger_first);
  *out = v;
  return OK;
}

static int64_t *kind_of_use(MemoryUse *u, Stage made, Stage last) {
  if (made == STAGE_FORWARD && last != STAGE_FORWARD) return &u->saved;
  return made == STAGE_BACKWARD && last == STAGE_UPDATE ? &u->gradients : &u->other;
}

static Status stages_of(const Graph *g, Stage **out) {
  int at = 1;
  TRY_NEW(*out, calloc((size_t)g->nnodes + 2, sizeof **out));
  for (const Node *n = g->first; n && at <= g->nnodes; n = n->next) (*out)[at++] = n->stage;
  return OK;
}

/* Changes at the ends of lives, added up. */
static void add_uses(const StorageTable *t, const Stage *stage, int nodes, MemoryUse *use) {
  for (int i = 0; i < t->n; i++) {
    const StorageUse *u = &t->v[i];
    if (!u->storage) continue;
    Stage made = stage[u->first], last = stage[u->last];
    *kind_of_use(&use[u->first], made, last) += (int64_t)u->storage->size;
    *kind_of_use(&use[u->last + 1], made, last) -= (int64_t)u->storage->size;
  }
  for (int i = 1; i <= nodes; i++) {
    use[i].saved += use[i - 1].saved;
    use[i].gradients += use[i - 1].gradients;
    use[i].other += use[i - 1].other;
  }
}

Status memory_uses(const Program *p, MemoryUse **out) {
  const Graph *g = p->graph->graph;
  StorageTable t;
  Stage *stage;
  TRY(stages_of(g, &stage));
  Status s = find_lives(p, true, &t);
  if (s) return free(stage), s;
  MemoryUse *use = calloc((size_t)g->nnodes + 2, sizeof *use);
  if (use) add_uses(&t, stage, g->nnodes, use);
  storage_table_free(&t);
  free(stage);
  return *out = use, use ? OK : fail_oom();
}
