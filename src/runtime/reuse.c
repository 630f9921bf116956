/* reuse.c -- see reuse.h. */
#include "runtime/reuse.h"

#include <stdlib.h>
#include <string.h>

#include "passes/started.h"

/* Storage.mark: number of the last node that reads or makes any view of it. */
static void touch(void *ctx, Val **ref) {
  Tensor *t = (*ref)->tensor;
  if (t && t->storage) t->storage->mark = *(const int64_t *)ctx;
}

static void find_last_uses(Graph *g) {
  int64_t at = 0;
  for (int i = 0; i < g->ninputs; i++) touch(&at, &g->inputs[i]);
  for (Node *n = g->first; n; n = n->next) {
    at++;
    node_each_val(n, touch, &at);
    for (int i = 0; i < n->nouts; i++) touch(&at, &n->outs[i]);
  }
  /* Outputs are read at the very end, except a value on its way back to its own buffer:
   * program_run copies results for the caller first. */
  at = INT64_MAX;
  for (int i = 0; i < g->noutputs; i++) arg_each_val(&g->outputs[i], touch, &at);
}

static bool is_written_back(const Program *p, const Storage *s) {
  for (int i = 0; i < p->nwrite_backs; i++) {
    if (p->write_backs[i].to->storage == s) return true;
  }
  return false;
}

static bool whole_storage(const Tensor *t) {
  return tensor_is_contiguous(t) && t->offset == 0 && (size_t)tensor_numel(t) * dtype_size(t->dtype) == t->storage->size;
}

/* May `out` be made in `self`'s memory at node number `at`? */
static bool can_reuse(const Program *p, const Tensor *self, const Tensor *out, int64_t at) {
  if (self->storage == out->storage || self->storage->frozen || self->storage->mark > at) return false;
  if (out->storage->owner == p) return false; /* the caller gets it */
  if (self->dtype != out->dtype || !tensor_same_size(self, out) || !whole_storage(self) || !whole_storage(out)) return false;
  bool planned = !self->storage->data && !self->storage->owner;
  return planned || is_written_back(p, self->storage);
}

static void move_views(Program *p, Storage *from, Storage *to) {
  for (Node *n = p->graph->graph->first; n; n = n->next) {
    for (int i = 0; i < n->nouts; i++) {
      Tensor *t = n->outs[i]->tensor;
      if (!t || t->storage != from) continue;
      t->storage = storage_ref(to);
      storage_unref(from);
    }
  }
}

static bool same_view(const Tensor *a, const Tensor *b) {
  return a->storage == b->storage && a->offset == b->offset && a->dtype == b->dtype && tensor_same_size(a, b) &&
         tensor_is_contiguous(a) && tensor_is_contiguous(b);
}

/* An op that reads element i of each operand before it writes element i of its result. */
static bool is_pointwise(const Node *n) { return (n->op->def->flags & OP_POINTWISE) || node_is(n, "tess.pointwise.default"); }

/* Does the node see `self`'s memory through no other view than `self`? */
static bool sees_once(const Node *n, const Tensor *self) {
  for (int i = 0; i < n->nargs; i++) {
    const Arg *a = &n->args[i];
    for (int j = 0; j < (a->kind == ARG_LIST ? a->n : 1); j++) {
      const Arg *item = a->kind == ARG_LIST ? &a->list[j] : a;
      const Tensor *t = item->kind == ARG_VAL ? item->val->tensor : NULL;
      if (t && t->storage == self->storage && !same_view(t, self)) return false;
    }
  }
  return true;
}

/* The operand in whose memory the node's result may be made; NULL if there is none. */
static Tensor *find_room(const Program *p, const Node *n, int64_t at) {
  Tensor *out = n->nouts ? n->outs[0]->tensor : NULL;
  if (!out || !n->op || !n->nargs) return NULL;
  if (n->op->def->flags & OP_UPDATE) {
    Tensor *self = n->args[0].kind == ARG_VAL ? n->args[0].val->tensor : NULL;
    return self && can_reuse(p, self, out, at) && sees_once(n, self) ? self : NULL;
  }
  if (!is_pointwise(n)) return NULL;
  for (int i = 0; i < n->nargs; i++) {
    const Arg *a = &n->args[i];
    for (int j = 0; j < (a->kind == ARG_LIST ? a->n : 1); j++) {
      const Arg *item = a->kind == ARG_LIST ? &a->list[j] : a;
      Tensor *t = item->kind == ARG_VAL ? item->val->tensor : NULL;
      if (t && t->storage && can_reuse(p, t, out, at) && sees_once(n, t)) return t;
    }
  }
  return NULL;
}

/* A started collective uses its operands up to its wait; it may itself work in their memory,
 * so this comes after the question for room. */
static int hold(const Hold *h, int i, int n, int64_t at) {
  for (; i < n && h[i].from + 1 == at; i++) {
    if (h[i].storage->mark < h[i].until + 1) h[i].storage->mark = h[i].until + 1;
  }
  return i;
}

static void reuse_operands(Program *p, const Hold *h, int nholds) {
  int64_t at = 0;
  int held = 0;
  find_last_uses(p->graph->graph);
  for (Node *n = p->graph->graph->first; n; n = n->next) {
    at++;
    Tensor *self = find_room(p, n, at);
    if (self) {
      Storage *from = storage_ref(n->outs[0]->tensor->storage);
      self->storage->mark = from->mark;
      move_views(p, from, self->storage);
      storage_unref(from);
    }
    held = hold(h, held, nholds, at);
  }
}

Status reuse_memory(Program *p) {
  Hold *h;
  int n;
  TRY(started_holds(p->graph->graph, &h, &n));
  reuse_operands(p, h, n);
  free(h);
  int kept = 0;
  for (int i = 0; i < p->nwrite_backs; i++) {
    if (!same_view(p->write_backs[i].to, p->write_backs[i].from)) p->write_backs[kept++] = p->write_backs[i];
  }
  p->nwrite_backs = kept;
  return OK;
}
