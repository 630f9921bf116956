/* place_updates.c -- see place_updates.h.
 *
 *   before:  %s = slice(%w)  %v, .. = adam_step(%s, ..)  %h = gather_each([%v])  %w' = wait(%h)
 *            %w' is written to %w.  %v and %h have storages of their own, and %h is copied to %w at the end.
 *   after:   %h is %w's memory, and %v the part of it that %s is: a step works on the parameter in place, other
 *            ranks read this rank's part there, and theirs come to where they belong.
 *
 * A parameter is placed if
 *   - it fills its storage, which may be written to, and its result has a storage of its own;
 *   - %v is made by an op that changes its argument element by element (OP_UPDATE_EACH), and that is part of %w;
 *   - nobody reads %w after that op.
 */
#include "runtime/place_updates.h"

static bool fills_storage(const Tensor *t) {
  return t->offset == 0 && tensor_is_contiguous(t) &&
         (size_t)tensor_numel(t) * dtype_size(t->dtype) == t->storage->size;
}

/* What the gathered tensor is written to; NULL: nothing. */
static const Tensor *target_of(const Program *p, const Tensor *gathered) {
  for (int i = 0; i < p->nwrite_backs; i++)
    if (p->write_backs[i].from->storage == gathered->storage) return p->write_backs[i].to;
  return NULL;
}

/* The argument that `part` is a changed copy of; NULL: it is no such. */
static const Tensor *changed_argument(const Val *part) {
  const Node *n = part->node;
  if (!n || !n->op || !(n->op->def->flags & OP_UPDATE_EACH)) return NULL;
  for (int i = 0; i < n->nouts && i < n->nargs; i++)
    if (n->outs[i] == part) return n->args[i].kind == ARG_VAL ? n->args[i].val->tensor : NULL;
  return NULL;
}

/* Do the node's other arguments stay clear of a storage? */
static bool reads_once(const Node *n, const Tensor *t) {
  int reads = 0;
  for (int i = 0; i < n->nargs; i++)
    reads += n->args[i].kind == ARG_VAL && n->args[i].val->tensor && n->args[i].val->tensor->storage == t->storage;
  return reads == 1;
}

static void place(const Program *p, StorageTable *t, const Val *part, const Tensor *gathered, int64_t at) {
  const Tensor *v = part->tensor, *to = gathered ? target_of(p, gathered) : NULL, *was = changed_argument(part);
  if (!v || !v->storage || !was || !to || was->storage != to->storage || to->storage->frozen) return;
  if (!storage_is_internal(gathered->storage) || !storage_is_internal(v->storage) ||
      v->storage == gathered->storage)
    return;
  if (!fills_storage(to) || !fills_storage(gathered) || !fills_storage(v) || !tensor_is_contiguous(was)) return;
  if (to->dtype != gathered->dtype || to->dtype != v->dtype || !tensor_same_size(to, gathered)) return;
  if (storage_use_of(t, gathered->storage)->first != at || !reads_once(part->node, was)) return;
  if (storage_use_of(t, to->storage)->last > storage_use_of(t, v->storage)->first) return;
  int64_t begin = was->offset * (int64_t)dtype_size(was->dtype);
  storage_table_move(t, v->storage, to->storage, begin);
  storage_table_move(t, gathered->storage, to->storage, 0);
}

void place_updates(const Program *p, StorageTable *t) {
  int64_t at = 0;
  for (Node *n = p->graph->graph->first; n; n = n->next) {
    at++;
    if (!node_is(n, "tess.gather_each.default") || n->args[0].kind != ARG_LIST) continue;
    for (int i = 0; i < n->nouts && i < n->args[0].n; i++)
      if (n->args[0].list[i].kind == ARG_VAL) place(p, t, n->args[0].list[i].val, n->outs[i]->tensor, at);
  }
}
