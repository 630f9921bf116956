/* place_concat.c -- see place_concat.h.
 *
 *   before:  %g0 = mm(..)  %g1 = sum(..)  %c = cat([%g0, %g1])     each in a storage of its own
 *   after:   the storages of %g0 and %g1 are parts of %c's; cat copies nothing and is gone
 *
 * So gradients are made inside the bucket that goes to the other ranks.  A part moves if
 *   - it is contiguous in %c (no dimension before the joined one is longer than 1) and fills
 *     its own storage, which belongs to the program alone;
 *   - nobody uses its storage after the cat, so that whoever works in %c's memory later (the
 *     division, the all-reduce) spoils nothing;
 *   - nobody else is in %c's memory before the cat;
 *   - parts that move make up at least half of %c: its memory is in use from the first of
 *     them on, which would not pay for a small one.
 * One walk; a storage that was moved into another moves on with it.
 */
#include "runtime/place_concat.h"

#include <stdlib.h>

static bool fills_storage(const Tensor *t) {
  return t->offset == 0 && tensor_is_contiguous(t) &&
         (size_t)tensor_numel(t) * dtype_size(t->dtype) == t->storage->size;
}

static Tensor *part_of(const Node *n, int i) {
  return n->args[0].list[i].kind == ARG_VAL ? n->args[0].list[i].val->tensor : NULL;
}

/* The result has memory of its own, free before node `at`, and parts of it are contiguous. */
static bool can_take_parts(const Program *p, const StorageTable *t, const Node *n, const Tensor *out, int64_t at) {
  const Storage *s = out->storage;
  if (!s || s->data || s->release || s->frozen || !s->size || (s->owner && s->owner != p)) return false;
  if (!fills_storage(out) || storage_use_of(t, s)->first != at) return false;
  int64_t dim = n->args[1].kind == ARG_INT ? n->args[1].i : 0, before = 1;
  if (dim < 0) dim += out->ndim;
  for (int d = 0; d < dim && d < out->ndim; d++) before *= out->size[d];
  return before == 1;
}

static bool same_dtypes(const StorageTable *t, const Storage *s, Dtype dtype) {
  for (int i = storage_use_of(t, s)->head; i >= 0; i = t->next[i]) {
    if (t->tensor[i]->dtype != dtype) return false;
  }
  return true;
}

static bool can_move(const StorageTable *t, const Tensor *part, const Tensor *out, int64_t at) {
  const Storage *s = part->storage;
  return s && s != out->storage && storage_is_internal(s) && fills_storage(part) &&
         storage_use_of(t, s)->last <= at && same_dtypes(t, s, out->dtype);
}

static size_t bytes_of(const Tensor *t) { return (size_t)tensor_numel(t) * dtype_size(t->dtype); }

/* True if there is nothing left to copy. */
static bool place_parts(const Program *p, StorageTable *t, const Node *n, int64_t at) {
  const Tensor *out = n->outs[0]->tensor;
  int parts = n->args[0].n;
  size_t movable = 0, begin = 0;
  if (!out || !can_take_parts(p, t, n, out, at)) return false;
  for (int i = 0; i < parts; i++) {
    const Tensor *part = part_of(n, i);
    if (!part || part->dtype != out->dtype) return false;
    if (can_move(t, part, out, at)) movable += bytes_of(part);
  }
  if (movable < bytes_of(out) / 2 || !movable) return false;
  bool all = true;
  for (int i = 0; i < parts; i++) {
    const Tensor *part = part_of(n, i);
    if (can_move(t, part, out, at)) storage_table_move(t, part->storage, out->storage, (int64_t)begin);
    else all &= bytes_of(part) == 0;
    begin += bytes_of(part);
  }
  return all;
}

static bool is_concat(const Node *n) {
  return node_is(n, "aten.cat.default") && n->args[0].kind == ARG_LIST && n->nouts == 1;
}

Status place_concat(Program *p, StorageTable *t) {
  int64_t at = 0;
  int gone = 0;
  for (Node *n = p->graph->graph->first; n; n = n->next) {
    at++;
    n->mark = is_concat(n) && place_parts(p, t, n, at);
    gone += n->mark;
  }
  int kept = 0;
  for (int i = 0; i < p->ninstrs && gone; i++) {
    if (!p->instrs[i].node->mark) p->instrs[kept++] = p->instrs[i];
  }
  if (gone) p->ninstrs = kept;
  return OK;
}
