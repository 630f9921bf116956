/* shards.c -- see shards.h. */
#include "runtime/shards.h"

#include <string.h>

#include "base/strmap.h"
#include "dist/boxes.h"
#include "kernels/copy.h"

static Status view_of(Scope *scope, Tensor *whole, const Region *part, Tensor **out) {
  int64_t size[MAX_DIMS], offset = whole->offset;
  for (int d = 0; d < whole->ndim; d++) {
    size[d] = part->dim[d].size;
    if (part->dim[d].n) offset += part->dim[d].run[0].begin * whole->stride[d];
  }
  return tensor_as_strided(scope, whole, whole->ndim, size, whole->stride, offset, out);
}

static Status copy_of(Kern *kern, Scope *scope, Tensor *whole, const Region *part, Arena *arena, Tensor **out) {
  Run all[MAX_DIMS];
  Region everything = {.ndim = whole->ndim};
  int64_t size[MAX_DIMS];
  BoxList from = {0}, into = {0};
  for (int d = 0; d < whole->ndim; d++) {
    all[d] = (Run){0, whole->size[d]};
    everything.dim[d] = (Runs){.run = &all[d], .n = whole->size[d] > 0, .size = whole->size[d]};
    size[d] = part->dim[d].size;
  }
  TRY(tensor_new(scope, whole->dtype, whole->ndim, size, out));
  TRY(boxes_shared(&everything, whole->stride, part, (*out)->stride, 0, arena, &from, &into));
  char *src = tensor_data(whole), *dst = tensor_data(*out);
  int64_t width = (int64_t)dtype_size(whole->dtype);
  for (int i = 0; i < from.n; i++) {
    const Box *a = &from.v[i], *b = &into.v[i];
    kernel_copy(kern, (View){dst + b->offset * width, b->size, b->stride, b->ndim, whole->dtype},
                (View){src + a->offset * width, a->size, a->stride, a->ndim, whole->dtype});
  }
  return OK;
}

Status shard_of(Kern *kern, Scope *scope, Tensor *whole, const Spec *spec, Tensor **out) {
  if (!whole->storage) return tensor_meta(scope, whole->dtype, spec->local_ndim, spec->local, out);
  if (spec->partial) return fail(ERR_USAGE, "a tensor that is given whole cannot be placed P");
  if (spec->replicated) return tensor_alias(scope, whole, out);
  Arena arena = {0};
  Region part;
  Layout l = spec_layout(spec);
  Status s = region_of(&l, spec->mesh->coord, &arena, &part);
  bool one = true;
  for (int d = 0; !s && d < part.ndim; d++) one &= part.dim[d].n <= 1;
  if (!s) s = one ? view_of(scope, whole, &part, out) : copy_of(kern, scope, whole, &part, &arena, out);
  arena_free(&arena);
  return s;
}

/* Entries of the state by the record they lie in: only these can be tied. */
typedef struct {
  StrMap last; /* record -> 1 + position of the last entry seen */
  int *before; /* of an entry: the one seen before it in the same record; -1 */
} Tied;

/* The shard of another entry that is the same part of the same memory. */
static Status shard_of_tied(Tied *tied, Arena *arena, const Exported *e, Tensor *const *shard,
                            const Spec *const *spec, int at, Tensor **out) {
  const Tensor *t = e->state[at].tensor;
  StrSlot *slot;
  *out = NULL;
  if (!e->state[at].record) return OK;
  TRY(strmap_slot(&tied->last, arena, e->state[at].record, &slot));
  tied->before[at] = (int)(intptr_t)slot->value - 1;
  slot->value = (void *)(intptr_t)(at + 1);
  for (int i = tied->before[at]; i >= 0 && !*out; i = tied->before[i]) {
    const Tensor *o = e->state[i].tensor;
    if (shard[i] && spec[i] == spec[at] && o->storage == t->storage && o->offset == t->offset &&
        !memcmp(o->stride, t->stride, (size_t)t->ndim * sizeof *t->stride))
      *out = shard[i];
  }
  return OK;
}

Status shards_of_state(Kern *kern, const Exported *e, const Marks *marks, Scope *scope, Arena *arena,
                       Tensor ***out) {
  const Spec **spec;
  Tensor **shard;
  Tied tied = {0};
  TRY_NEW(tied.before, arena_new_n(arena, int, e->nstate + 1));
  TRY_NEW(shard, arena_new_n(arena, Tensor *, e->nstate + 1));
  TRY_NEW(spec, arena_new_n(arena, const Spec *, e->nstate + 1));
  for (int i = 0; i < e->graph->ninputs; i++) {
    const StateEntry *entry = e->inputs[i].target ? exported_state(e, e->inputs[i].target) : NULL;
    if (!entry || !entry->tensor) continue;
    int at = (int)(entry - e->state);
    const Tensor *whole = entry->tensor;
    TRY(spec_new(marks->mesh, whole->dtype, whole->ndim, whole->size, NULL, marks->input[i].place, &spec[at]));
    if (shard[at]) continue; /* an input twice */
    TRY(shard_of_tied(&tied, arena, e, shard, spec, at, &shard[at]));
    if (!shard[at]) TRY(shard_of(kern, scope, entry->tensor, spec[at], &shard[at]));
  }
  *out = shard;
  return OK;
}
