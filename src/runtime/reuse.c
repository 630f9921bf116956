/* reuse.c -- see reuse.h. */
#include "runtime/reuse.h"

#include <stdlib.h>

#include "passes/started.h"
#include "runtime/place_concat.h"
#include "runtime/place_updates.h"
#include "runtime/storage_use.h"

static bool is_written_back(const Program *p, const Storage *s) {
  for (int i = 0; i < p->nwrite_backs; i++) {
    if (p->write_backs[i].to->storage == s) return true;
  }
  return false;
}

static bool whole_storage(const Tensor *t) {
  return tensor_is_contiguous(t) && t->offset == 0 &&
         (size_t)tensor_numel(t) * dtype_size(t->dtype) == t->storage->size;
}

/* May `out` be made in `self`'s memory at node number `at`?  If the caller gets it, rather
 * `self` in the memory of `out`. */
static bool can_reuse(const Program *p, const StorageTable *t, const Tensor *self, const Tensor *out, int64_t at) {
  if (self->storage == out->storage || self->storage->frozen || storage_use_of(t, self->storage)->last > at)
    return false;
  if (self->dtype != out->dtype || !tensor_same_size(self, out) || !whole_storage(self) || !whole_storage(out))
    return false;
  bool internal = storage_is_internal(self->storage);
  if (out->storage->owner == p) return internal && storage_use_of(t, out->storage)->first == at;
  return internal || is_written_back(p, self->storage);
}

/* An op that reads element i of each operand before it writes element i of its result. */
static bool is_pointwise(const Node *n) {
  return (n->op->def->flags & OP_POINTWISE) || node_is(n, "tess.pointwise.default");
}

/* Does the node see `self`'s memory through no other view than `self`? */
static bool sees_once(const Node *n, const Tensor *self) {
  for (int i = 0; i < n->nargs; i++) {
    const Arg *a = &n->args[i];
    for (int j = 0; j < (a->kind == ARG_LIST ? a->n : 1); j++) {
      const Arg *item = a->kind == ARG_LIST ? &a->list[j] : a;
      const Tensor *t = item->kind == ARG_VAL ? item->val->tensor : NULL;
      if (t && t->storage == self->storage && !(tensor_same_view(t, self) && tensor_is_contiguous(t))) return false;
    }
  }
  return true;
}

static Tensor *arg_tensor(const Arg *a) { return a->kind == ARG_VAL ? a->val->tensor : NULL; }

/* The operand in whose memory result `i` of the node may be made; NULL if there is none. */
static Tensor *find_room(const Program *p, const StorageTable *tenants, const Node *n, int i, int64_t at) {
  Tensor *out = n->outs[i]->tensor;
  if (!out || !n->op || !n->nargs) return NULL;
  bool each = n->op->def->flags & OP_UPDATE_EACH;
  if (each || (n->op->def->flags & OP_UPDATE && i == 0)) {
    Tensor *self = i < n->nargs ? arg_tensor(&n->args[i]) : NULL;
    return self && can_reuse(p, tenants, self, out, at) && sees_once(n, self) ? self : NULL;
  }
  if (!is_pointwise(n)) return NULL;
  for (int a = 0; a < n->nargs; a++) {
    const Arg *list = &n->args[a];
    for (int j = 0; j < (list->kind == ARG_LIST ? list->n : 1); j++) {
      Tensor *t = arg_tensor(list->kind == ARG_LIST ? &list->list[j] : list);
      if (t && t->storage && can_reuse(p, tenants, t, out, at) && sees_once(n, t)) return t;
    }
  }
  return NULL;
}

/* A started collective uses its operands up to its wait; it may itself work in their memory,
 * so this comes after the question for room. */
static int hold(const StorageTable *t, const Hold *h, int i, int n, int64_t at) {
  for (; i < n && h[i].from + 1 == at; i++) {
    StorageUse *home = storage_use_of(t, h[i].tensor->storage);
    if (home->last < h[i].until + 1) home->last = h[i].until + 1;
  }
  return i;
}

static void share_memory(const Program *p, StorageTable *t, const Tensor *self, const Tensor *result) {
  Storage *in = storage_ref(self->storage), *out = storage_ref(result->storage);
  if (out->owner == p) storage_table_move(t, in, out, 0);
  else storage_table_move(t, out, in, 0);
  storage_unref(in);
  storage_unref(out);
}

static void reuse_operands(Program *p, StorageTable *t, const Hold *h, int nholds) {
  int64_t at = 0;
  int held = 0;
  for (Node *n = p->graph->graph->first; n; n = n->next) {
    at++;
    for (int i = 0; i < n->nouts; i++) {
      Tensor *self = find_room(p, t, n, i, at);
      if (self) share_memory(p, t, self, n->outs[i]->tensor);
    }
    held = hold(t, h, held, nholds, at);
  }
}

static void drop_write_backs(Program *p) {
  int kept = 0;
  for (int i = 0; i < p->nwrite_backs; i++) {
    if (!tensor_same_view(p->write_backs[i].to, p->write_backs[i].from)) p->write_backs[kept++] = p->write_backs[i];
  }
  p->nwrite_backs = kept;
}

Status reuse_memory(Program *p) {
  Hold *h;
  int n;
  StorageTable t;
  TRY(started_holds(p->graph->graph, &h, &n));
  Status s = storage_table_new(p->graph->graph, &t);
  if (!s) {
    reuse_operands(p, &t, h, n);
    place_updates(p, &t);
    s = place_concat(p, &t);
    drop_write_backs(p);
    storage_table_free(&t);
  }
  free(h);
  return s;
}
