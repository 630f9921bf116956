/* checkpoint.c -- see checkpoint.h. */
#include "dist/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strmap.h"
#include "dist/boxes.h"

#define ADD_ITEM(list, arena, element)                                         \
  do {                                                                         \
    TRY_NEW((list)->v, arena_more(arena, (list)->v, (list)->n, &(list)->cap)); \
    (list)->v[(list)->n++] = (element);                                        \
  } while (0)

static int64_t volume(int ndim, const int64_t *size) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++) n *= size[d];
  return n;
}

/* ---- chunks ----------------------------------------------------------------------------------- */

static Status refuse_partial(const Layout *l) {
  char text[256];
  for (int a = 0; a < l->naxes; a++)
    if (is_p(&l->place[a]))
      return status_hint(fail(ERR_USAGE,
                              "a tensor placed %s cannot be saved or loaded: its values are still partial",
                              placements_print(l->place, l->naxes, text, sizeof text)),
                         "redistribute it to R or S first");
  return OK;
}

/* The empty chunk of an empty shard (I2). */
static void empty_chunk(const Region *r, const int64_t *shape, Chunk *c) {
  *c = (Chunk){.ndim = r->ndim};
  for (int d = 0; d < r->ndim; d++) {
    c->size[d] = r->dim[d].size;
    c->offset[d] = r->dim[d].n ? r->dim[d].run[0].begin : shape[d];
  }
}

Status chunks_of(const Layout *l, const int *coord, Arena *arena, ChunkList *out) {
  *out = (ChunkList){0};
  TRY(refuse_partial(l));
  Region r;
  TRY(region_of(l, coord, arena, &r));
  Chunk c;
  bool empty = false;
  for (int d = 0; d < l->ndim; d++) empty |= r.dim[d].n == 0;
  if (empty) {
    empty_chunk(&r, l->shape, &c);
    ADD_ITEM(out, arena, c);
    return OK;
  }
  int pick[MAX_DIMS] = {0}; /* a run of each dimension, the last fastest */
  int64_t before[MAX_DIMS] = {0};
  for (;;) {
    c = (Chunk){.ndim = l->ndim};
    for (int d = 0; d < l->ndim; d++) {
      c.offset[d] = r.dim[d].run[pick[d]].begin;
      c.size[d] = r.dim[d].run[pick[d]].size;
      c.local[d] = before[d];
    }
    ADD_ITEM(out, arena, c);
    int d = l->ndim - 1;
    for (; d >= 0; d--) {
      before[d] += r.dim[d].run[pick[d]].size;
      if (++pick[d] < r.dim[d].n) break;
      pick[d] = 0;
      before[d] = 0;
    }
    if (d < 0) return OK;
  }
}

Status dtensor_chunks(const Tensor *t, Arena *arena, ChunkList *out) {
  *out = (ChunkList){0};
  if (!t->spec) return fail(ERR_USAGE, "chunks of a plain tensor");
  Layout l = spec_layout(t->spec);
  if (!t->spec->mesh->inside) return refuse_partial(&l);
  return chunks_of(&l, t->spec->mesh->coord, arena, out);
}

static Status no_chunk(const Tensor *t, const int64_t *offset) {
  char a[200], b[600];
  return fail(ERR_USAGE, "no chunk of this rank's shard of %s begins at %s", spec_print(t->spec, b, sizeof b),
              shape_describe(t->ndim, offset, a, sizeof a));
}

Status dtensor_chunk(Scope *scope, const Tensor *t, const int64_t *offset, Tensor **out) {
  Arena arena = {0};
  ChunkList list;
  Status s = dtensor_chunks(t, &arena, &list);
  const Chunk *found = NULL;
  for (int i = 0; !s && i < list.n; i++)
    if (!t->ndim || !memcmp(list.v[i].offset, offset, (size_t)t->ndim * sizeof *offset)) found = &list.v[i];
  if (!s && !found) s = no_chunk(t, offset);
  if (!s && !t->local) s = fail(ERR_USAGE, "a mesh that is made for planning has no shards");
  if (!s) {
    int64_t at = t->local->offset;
    for (int d = 0; d < t->ndim; d++) at += found->local[d] * t->local->stride[d];
    s = tensor_as_strided(scope, t->local, t->ndim, found->size, t->local->stride, at, out);
  }
  arena_free(&arena);
  return s;
}

/* ---- saving -------------------------------------------------------------------------------------- */

Status save_plan_add_layout(SavePlan *plan, Arena *arena, const char *fqn, Dtype dtype, const Layout *l,
                            const int *coord) {
  ChunkList list;
  Status s = chunks_of(l, coord, arena, &list);
  if (s) return status_at(s, "%s", fqn);
  for (int i = 0; i < list.n; i++) {
    WriteItem item = {.fqn = fqn, .kind = ITEM_SHARD, .dtype = dtype, .chunk = list.v[i]};
    memcpy(item.size, l->shape, (size_t)l->ndim * sizeof *item.size);
    ADD_ITEM(plan, arena, item);
  }
  return OK;
}

Status save_plan_add(SavePlan *plan, Arena *arena, const char *fqn, const Tensor *t) {
  if (t->spec) {
    Layout l = spec_layout(t->spec);
    return t->spec->mesh->inside ? save_plan_add_layout(plan, arena, fqn, t->dtype, &l, t->spec->mesh->coord)
                                 : refuse_partial(&l);
  }
  WriteItem item = {.fqn = fqn, .kind = ITEM_TENSOR, .dtype = t->dtype, .chunk = {.ndim = t->ndim}};
  memcpy(item.size, t->size, (size_t)t->ndim * sizeof *t->size);
  memcpy(item.chunk.size, t->size, (size_t)t->ndim * sizeof *t->size);
  ADD_ITEM(plan, arena, item);
  return OK;
}

Status save_plan_add_bytes(SavePlan *plan, Arena *arena, const char *fqn) {
  WriteItem item = {.fqn = fqn, .kind = ITEM_BYTES};
  ADD_ITEM(plan, arena, item);
  return OK;
}

/* Ranks that disagree about a tensor cannot save it together. */
static Status same_tensor(const WriteItem *a, int rank_a, const WriteItem *b, int rank_b) {
  bool same = a->kind == b->kind && a->dtype == b->dtype && a->chunk.ndim == b->chunk.ndim &&
              !memcmp(a->size, b->size, (size_t)a->chunk.ndim * sizeof *a->size);
  char x[200], y[200];
  static const char *const kinds[] = {"shards of", "a plain", "bytes, not"};
  if (same) return OK;
  return fail(ERR_RANK, "'%s' is %s %s%s on rank %d, %s %s%s on rank %d", a->fqn, kinds[a->kind],
              dtype_name(a->dtype), shape_describe(a->chunk.ndim, a->size, x, sizeof x), rank_a, kinds[b->kind],
              dtype_name(b->dtype), shape_describe(b->chunk.ndim, b->size, y, sizeof y), rank_b);
}

/* An item wherever it is: name and offset as text. */
static Status item_key(const WriteItem *item, Arena *arena, const char **out) {
  size_t cap = strlen(item->fqn) + 24 * (size_t)(item->chunk.ndim + 1), at;
  char *text;
  TRY_NEW(text, arena_alloc(arena, cap));
  at = (size_t)snprintf(text, cap, "%s", item->fqn);
  for (int d = 0; d < item->chunk.ndim; d++)
    at += (size_t)snprintf(text + at, cap - at, "\n%lld", (long long)item->chunk.offset[d]);
  *out = text;
  return OK;
}

static int64_t item_bytes(const WriteItem *item, SaveTo to) {
  if (item->kind == ITEM_BYTES) return 1; /* nobody knows */
  int64_t n = volume(item->chunk.ndim, to == SAVE_BALANCED_WHOLE ? item->size : item->chunk.size) *
              (int64_t)dtype_size(item->dtype);
  return n ? n : 1;
}

/* All that have one item, as a list through the plans. */
typedef struct Holder {
  int plan, item;
  struct Holder *next;
} Holder;

typedef struct {
  Holder *first, *last;
} Holders;

typedef struct {
  SavePlan *plan;
  int n;
  Arena arena;
  StrMap items;    /* key -> Holders */
  StrMap names;    /* fqn -> Holder: the first with that name */
  Holders **order; /* of all items as they are first met */
  int count, cap;
} Dedup;

static Status meet_item(Dedup *d, int plan, int item) {
  const WriteItem *w = &d->plan[plan].v[item];
  StrSlot *slot;
  const char *key;
  Holder *h;
  Holders *all;
  TRY_NEW(h, arena_new(&d->arena, Holder));
  *h = (Holder){plan, item, NULL};
  TRY(strmap_slot(&d->names, &d->arena, w->fqn, &slot));
  const Holder *namesake = slot->value;
  if (!namesake) slot->value = h;
  else TRY(same_tensor(&d->plan[namesake->plan].v[namesake->item], namesake->plan, w, plan));
  TRY(item_key(w, &d->arena, &key));
  TRY(strmap_slot(&d->items, &d->arena, key, &slot));
  if (!slot->value) {
    TRY_NEW(all, arena_new(&d->arena, Holders));
    slot->value = all;
    struct {
      Holders **v;
      int n, cap;
    } order = {d->order, d->count, d->cap};
    ADD_ITEM(&order, &d->arena, all);
    d->order = order.v, d->count = order.n, d->cap = order.cap;
  }
  all = slot->value;
  if (all->last) all->last->next = h;
  else all->first = h;
  all->last = h;
  return OK;
}

/* Marks the items that others keep with an empty name. */
static Status choose_holders(Dedup *d, SaveTo to) {
  int64_t *bytes;
  TRY_NEW(bytes, arena_new_n(&d->arena, int64_t, d->n ? d->n : 1));
  for (int i = 0; i < d->n; i++) bytes[i] = 0;
  for (int i = 0; i < d->count; i++) {
    const Holder *kept = d->order[i]->first;
    for (const Holder *h = kept->next; h && to != SAVE_LOWEST_RANK; h = h->next)
      if (bytes[h->plan] < bytes[kept->plan]) kept = h;
    bytes[kept->plan] += item_bytes(&d->plan[kept->plan].v[kept->item], to);
    for (const Holder *h = d->order[i]->first; h; h = h->next)
      if (h != kept) d->plan[h->plan].v[h->item].fqn = NULL;
  }
  return OK;
}

static Status dedup(Dedup *d, SaveTo to) {
  for (int p = 0; p < d->n; p++)
    for (int i = 0; i < d->plan[p].n; i++) TRY(meet_item(d, p, i));
  TRY(choose_holders(d, to));
  for (int p = 0; p < d->n; p++) {
    int kept = 0;
    for (int i = 0; i < d->plan[p].n; i++)
      if (d->plan[p].v[i].fqn) d->plan[p].v[kept++] = d->plan[p].v[i];
    d->plan[p].n = kept;
  }
  return OK;
}

Status save_plans_dedup(SavePlan *plan, int nplans, SaveTo to) {
  Dedup d = {.plan = plan, .n = nplans};
  Status s = dedup(&d, to);
  arena_free(&d.arena);
  return s;
}

static Status check_saved(const SavedTensor *t) {
  int64_t total = 0;
  char a[200], b[200], c[200];
  for (int i = 0; i < t->chunk.n; i++) {
    const Chunk *k = &t->chunk.v[i];
    for (int d = 0; d < t->ndim; d++)
      if (k->offset[d] < 0 || k->size[d] < 0 || k->offset[d] > t->size[d] - k->size[d])
        return fail(ERR_FAIL, "'%s' %s: a chunk %s at %s lies outside", t->fqn,
                    shape_describe(t->ndim, t->size, a, sizeof a), shape_describe(t->ndim, k->size, b, sizeof b),
                    shape_describe(t->ndim, k->offset, c, sizeof c));
    total += volume(t->ndim, k->size);
  }
  if (total == volume(t->ndim, t->size)) return OK;
  return fail(ERR_FAIL, "'%s' %s has %lld elements, its chunks together %lld", t->fqn,
              shape_describe(t->ndim, t->size, a, sizeof a), (long long)volume(t->ndim, t->size), (long long)total);
}

Status saved_list(const SavePlan *plan, int nplans, Arena *arena, SavedList *out) {
  *out = (SavedList){0};
  StrMap names = {0};
  for (int p = 0; p < nplans; p++) {
    for (int i = 0; i < plan[p].n; i++) {
      const WriteItem *w = &plan[p].v[i];
      StrSlot *slot;
      TRY(strmap_slot(&names, arena, w->fqn, &slot));
      if (!slot->value) {
        SavedTensor t = {.fqn = w->fqn, .kind = w->kind, .dtype = w->dtype, .ndim = w->chunk.ndim};
        memcpy(t.size, w->size, sizeof t.size);
        ADD_ITEM(out, arena, t);
        slot->value = (void *)(uintptr_t)out->n; /* its number, from 1 */
      }
      SavedTensor *t = &out->v[(uintptr_t)slot->value - 1];
      if (w->kind != ITEM_BYTES) ADD_ITEM(&t->chunk, arena, w->chunk);
    }
  }
  for (int i = 0; i < out->n; i++)
    if (out->v[i].kind != ITEM_BYTES) TRY(check_saved(&out->v[i]));
  return OK;
}

/* ---- loading --------------------------------------------------------------------------------------- */

/* What a saved and a wanted chunk share; false: nothing. */
static bool share(const Chunk *saved, const Chunk *wanted, ReadItem *r) {
  for (int d = 0; d < wanted->ndim; d++) {
    int64_t begin = saved->offset[d] > wanted->offset[d] ? saved->offset[d] : wanted->offset[d];
    int64_t saved_end = saved->offset[d] + saved->size[d], wanted_end = wanted->offset[d] + wanted->size[d];
    r->size[d] = (saved_end < wanted_end ? saved_end : wanted_end) - begin;
    if (r->size[d] <= 0) return false;
    r->from[d] = begin - saved->offset[d];
    r->into[d] = wanted->local[d] + begin - wanted->offset[d];
  }
  return true;
}

Status read_plan(const char *fqn, const ChunkList *saved, const ChunkList *wanted, Arena *arena, ReadPlan *out) {
  *out = (ReadPlan){0};
  for (int w = 0; w < wanted->n; w++) {
    const Chunk *want = &wanted->v[w];
    int64_t found = 0;
    char a[200], b[200];
    for (int i = 0; i < saved->n; i++) {
      ReadItem r = {.chunk = i};
      if (saved->v[i].ndim != want->ndim)
        return fail(ERR_FAIL, "'%s' has %d dimensions, saved were %d", fqn, want->ndim, saved->v[i].ndim);
      if (!share(&saved->v[i], want, &r)) continue;
      found += volume(want->ndim, r.size);
      ADD_ITEM(out, arena, r);
    }
    if (found != volume(want->ndim, want->size))
      return fail(ERR_FAIL, "'%s': of the part %s at %s %lld elements were saved, not %lld", fqn,
                  shape_describe(want->ndim, want->size, a, sizeof a),
                  shape_describe(want->ndim, want->offset, b, sizeof b), (long long)found,
                  (long long)volume(want->ndim, want->size));
  }
  return OK;
}
