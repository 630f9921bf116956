/* checkpoint.c -- checkpoint.jsonl: what each rank writes, and reads of what was written. */
#include "dist/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "case.h"

typedef struct {
  Case *c;
  Arena arena;
  int axis[MAX_AXES], naxes, ranks;
} Trial;

static void read_mesh(Trial *t) {
  t->naxes = read_sizes(field(t->c, "mesh"), t->axis, MAX_AXES);
  t->ranks = 1;
  for (int a = 0; a < t->naxes; a++) t->ranks *= t->axis[a];
}

/* [offsets, sizes] */
static bool same_chunk(yyjson_val *told, const Chunk *ours) {
  return same_ints(yyjson_arr_get(told, 0), ours->offset, ours->ndim) &&
         same_ints(yyjson_arr_get(told, 1), ours->size, ours->ndim);
}

/* ---- chunks ------------------------------------------------------------------------------ */

/* The chunks hold the rank's elements, each once, where the shard has them. */
static bool covers(const Layout *l, const int *coord, const ChunkList *list, Arena *arena) {
  int64_t *index[MAX_DIMS], n[MAX_DIMS], held = 1, total = 0;
  for (int d = 0; d < l->ndim; d++) {
    Status s = layout_indices(l, coord, d, arena, &index[d], &n[d]);
    status_free(s);
    if (s) return false;
    held *= n[d];
  }
  for (int i = 0; i < list->n; i++) {
    const Chunk *c = &list->v[i];
    int64_t size = 1;
    for (int d = 0; d < l->ndim; d++) size *= c->size[d];
    for (int d = 0; size && d < l->ndim; d++) {
      for (int64_t j = 0; j < c->size[d]; j++)
        if (c->local[d] + j >= n[d] || index[d][c->local[d] + j] != c->offset[d] + j) return false;
    }
    total += size;
  }
  return total == held;
}

static Verdict check_chunks(Trial *t) {
  Case *c = t->c;
  int64_t shape[MAX_DIMS];
  int ndim = read_ints(field(c, "shape"), shape, MAX_DIMS), n;
  Placement place[MAX_AXES];
  bool several = false;
  if (!read_placements(field(c, "placements"), ndim, place, &n)) return wrong(c, "a placement does not parse");
  Layout l = {.ndim = ndim, .shape = shape, .naxes = t->naxes, .axis = t->axis, .place = place};
  for (int r = 0; r < t->ranks; r++) {
    int coord[MAX_AXES];
    ChunkList list;
    mesh_coord(t->axis, t->naxes, r, coord);
    Status s = chunks_of(&l, coord, &t->arena, &list);
    if (field(c, "error")) {
      status_free(s);
      if (!s) return wrong(c, "rank %d gives chunks", r);
      continue;
    }
    if (s) return wrong_status(c, s);
    if (!covers(&l, coord, &list, &t->arena)) return wrong(c, "the chunks of rank %d are not what it holds", r);
    several |= list.n > 1;
    if (list.n == 1 && !same_chunk(yyjson_arr_get(field(c, "chunks"), (size_t)r), &list.v[0]))
      return wrong(c, "the chunk of rank %d", r);
  }
  bool torch_wrong = field(c, "torch_wrong");
  if (several != torch_wrong)
    return wrong(c, several ? "several chunks where one will do" : "one chunk where PyTorch's one is wrong");
  return several ? better(c, "PyTorch writes scattered rows as one box") : SAME;
}

/* ---- saving ------------------------------------------------------------------------------- */

static Status add_entry(Trial *t, yyjson_val *entry, int rank, SavePlan *plan) {
  const char *fqn = yyjson_get_str(yyjson_obj_get(entry, "fqn")),
             *kind = yyjson_get_str(yyjson_obj_get(entry, "kind"));
  if (!strcmp(kind, "bytes")) return save_plan_add_bytes(plan, &t->arena, fqn);
  int64_t *shape;
  TRY_NEW(shape, arena_new_n(&t->arena, int64_t, MAX_DIMS));
  int ndim = read_ints(yyjson_obj_get(entry, "shape"), shape, MAX_DIMS), n, coord[MAX_AXES];
  Dtype dtype = read_dtype(yyjson_obj_get(entry, "dtype"));
  if (!strcmp(kind, "tensor")) {
    Tensor plain = {.dtype = dtype, .ndim = ndim};
    memcpy(plain.size, shape, (size_t)ndim * sizeof *shape);
    return save_plan_add(plan, &t->arena, fqn, &plain);
  }
  Placement place[MAX_AXES];
  if (!read_placements(yyjson_obj_get(entry, "placements"), ndim, place, &n))
    return fail(ERR_FAIL, "a placement does not parse");
  Layout l = {.ndim = ndim, .shape = shape, .naxes = t->naxes, .axis = t->axis, .place = place};
  mesh_coord(t->axis, t->naxes, rank, coord);
  return save_plan_add_layout(plan, &t->arena, fqn, dtype, &l, coord);
}

/* Every rank writes all that it has. */
static Status make_full_plans(Trial *t, SavePlan *plans) {
  memset(plans, 0, (size_t)t->ranks * sizeof *plans);
  for (int r = 0; r < t->ranks; r++) {
    yyjson_val *entry;
    size_t i, n;
    yyjson_arr_foreach(field(t->c, "state"), i, n, entry) TRY(add_entry(t, entry, r, &plans[r]));
  }
  return OK;
}

static Status make_plans(Trial *t, SaveTo to, SavePlan *plans) {
  TRY(make_full_plans(t, plans));
  return save_plans_dedup(plans, t->ranks, to);
}

static bool has_item(const SavePlan *p, const WriteItem *w) {
  for (int i = 0; i < p->n; i++) {
    const WriteItem *v = &p->v[i];
    if (!strcmp(v->fqn, w->fqn) && v->kind == w->kind &&
        (w->kind == ITEM_BYTES ||
         !memcmp(v->chunk.offset, w->chunk.offset, (size_t)w->chunk.ndim * sizeof *w->chunk.offset)))
      return true;
  }
  return false;
}

/* What an item counts: the bytes of the whole tensor, but at least 1, as PyTorch counts. */
static int64_t load_of(const WriteItem *w) {
  int64_t bytes = w->kind == ITEM_BYTES ? 0 : (int64_t)dtype_size(w->dtype);
  for (int d = 0; bytes && d < w->chunk.ndim; d++) bytes *= w->size[d];
  return bytes ? bytes : 1;
}

/* Each item is written once, by a rank that has it and had the least to write so far.  Among equals PyTorch
 * takes the one that comes first in a Python set, which from nine ranks on is not the lowest. */
static bool are_balanced(const SavePlan *full, const SavePlan *ours, int ranks) {
  int64_t load[64] = {0};
  for (int r = 0; r < ranks; r++)
    for (int i = 0; i < full[r].n; i++) {
      const WriteItem *w = &full[r].v[i];
      int writer = -1, writers = 0;
      bool before = false;
      for (int q = 0; q < r; q++) before |= has_item(&full[q], w);
      if (before) continue;
      for (int q = 0; q < ranks; q++)
        if (has_item(&ours[q], w)) writer = q, writers++;
      if (writers != 1 || !has_item(&full[writer], w)) return false;
      for (int q = 0; q < ranks; q++)
        if (has_item(&full[q], w) && load[q] < load[writer]) return false;
      load[writer] += load_of(w);
    }
  return true;
}

/* [[fqn, offsets or null], ...] per rank */
static bool same_plans(yyjson_val *told, const SavePlan *plans, int ranks) {
  for (int r = 0; r < ranks; r++) {
    yyjson_val *list = yyjson_arr_get(told, (size_t)r);
    if ((int)yyjson_arr_size(list) != plans[r].n) return false;
    for (int i = 0; i < plans[r].n; i++) {
      yyjson_val *item = yyjson_arr_get(list, (size_t)i), *offsets = yyjson_arr_get(item, 1);
      const WriteItem *w = &plans[r].v[i];
      if (strcmp(yyjson_get_str(yyjson_arr_get(item, 0)), w->fqn)) return false;
      if (yyjson_is_null(offsets) != (w->kind == ITEM_BYTES)) return false;
      if (w->kind != ITEM_BYTES && !same_ints(offsets, w->chunk.offset, w->chunk.ndim)) return false;
    }
  }
  return true;
}

static bool same_metadata(yyjson_val *told, const SavedList *ours) {
  if ((int)yyjson_obj_size(told) != ours->n) return false;
  yyjson_val *key, *chunks;
  size_t i, n;
  yyjson_obj_foreach(told, i, n, key, chunks) {
    const SavedTensor *t = &ours->v[i];
    if (strcmp(yyjson_get_str(key), t->fqn) || yyjson_is_null(chunks) != (t->kind == ITEM_BYTES)) return false;
    if ((int)yyjson_arr_size(chunks) != t->chunk.n) return false;
    for (int j = 0; j < t->chunk.n; j++)
      if (!same_chunk(yyjson_arr_get(chunks, (size_t)j), &t->chunk.v[j])) return false;
  }
  return true;
}

/* The same chunks of the same tensors, in any order. */
static bool same_saved(yyjson_val *told, const SavedList *ours) {
  if ((int)yyjson_obj_size(told) != ours->n) return false;
  for (int i = 0; i < ours->n; i++) {
    const SavedTensor *t = &ours->v[i];
    yyjson_val *chunks = yyjson_obj_get(told, t->fqn);
    if (!chunks || yyjson_is_null(chunks) != (t->kind == ITEM_BYTES)) return false;
    if ((int)yyjson_arr_size(chunks) != t->chunk.n) return false;
    for (int j = 0; j < t->chunk.n; j++) {
      bool found = false;
      for (int k = 0; k < t->chunk.n && !found; k++)
        found = same_chunk(yyjson_arr_get(chunks, (size_t)k), &t->chunk.v[j]);
      if (!found) return false;
    }
  }
  return true;
}

static Verdict check_save(Trial *t) {
  Case *c = t->c;
  SavePlan plans[64], full[64];
  SavedList saved;
  Status s = make_plans(t, SAVE_LOWEST_RANK, plans);
  if (!s && !same_plans(field(c, "written_by_lowest_rank"), plans, t->ranks))
    return wrong(c, "the plans of the lowest ranks");
  if (!s) s = make_plans(t, SAVE_BALANCED, plans); /* another choice, but whole: saved_list() counts */
  if (!s) s = saved_list(plans, t->ranks, &t->arena, &saved);
  if (!s && (int)yyjson_obj_size(field(c, "metadata")) != saved.n) return wrong(c, "balanced plans lose a tensor");
  if (!s) s = make_plans(t, SAVE_BALANCED_WHOLE, plans);
  if (!s) s = make_full_plans(t, full);
  bool same = !s && same_plans(field(c, "written_by"), plans, t->ranks);
  if (!s && !same && (t->ranks < 9 || !are_balanced(full, plans, t->ranks))) return wrong(c, "the balanced plans");
  if (!s) s = saved_list(plans, t->ranks, &t->arena, &saved);
  if (!s && !(same ? same_metadata : same_saved)(field(c, "metadata"), &saved)) return wrong(c, "the chunks");
  return s ? wrong_status(c, s) : SAME;
}

/* ---- loading -------------------------------------------------------------------------------- */

/* [saved chunk, offsets in it, offsets in local, lengths] */
static bool same_read(yyjson_val *told, const ReadItem *r, int ndim) {
  return yyjson_get_int(yyjson_arr_get(told, 0)) == r->chunk && same_ints(yyjson_arr_get(told, 1), r->from, ndim) &&
         same_ints(yyjson_arr_get(told, 2), r->into, ndim) && same_ints(yyjson_arr_get(told, 3), r->size, ndim);
}

/* In any order: ours is that of the file. */
static bool same_reads(yyjson_val *told, const ReadPlan *ours, int ndim) {
  if ((int)yyjson_arr_size(told) != ours->n) return false;
  for (int i = 0; i < ours->n; i++) {
    bool found = false;
    for (int j = 0; j < ours->n && !found; j++)
      found = same_read(yyjson_arr_get(told, (size_t)j), &ours->v[i], ndim);
    if (!found) return false;
  }
  return true;
}

static Verdict check_read(Trial *t) {
  Case *c = t->c;
  int64_t shape[MAX_DIMS];
  int ndim = read_ints(field(c, "shape"), shape, MAX_DIMS), n;
  Placement place[MAX_AXES];
  if (!read_placements(field(c, "load_as"), ndim, place, &n)) return wrong(c, "a placement does not parse");
  Layout l = {.ndim = ndim, .shape = shape, .naxes = t->naxes, .axis = t->axis, .place = place};
  yyjson_val *told = field(c, "saved_chunks");
  ChunkList saved = {.n = (int)yyjson_arr_size(told)}, wanted;
  if (!(saved.v = arena_new_n(&t->arena, Chunk, saved.n + 1))) return wrong_status(c, fail_oom());
  for (int i = 0; i < saved.n; i++) {
    yyjson_val *chunk = yyjson_arr_get(told, (size_t)i);
    saved.v[i].ndim = read_ints(yyjson_arr_get(chunk, 0), saved.v[i].offset, MAX_DIMS);
    read_ints(yyjson_arr_get(chunk, 1), saved.v[i].size, MAX_DIMS);
  }
  for (int r = 0; r < t->ranks; r++) {
    int coord[MAX_AXES];
    ReadPlan plan;
    mesh_coord(t->axis, t->naxes, r, coord);
    Status s = chunks_of(&l, coord, &t->arena, &wanted);
    if (!s) s = read_plan("x", &saved, &wanted, &t->arena, &plan);
    if (s) return wrong_status(c, s);
    if (!same_reads(yyjson_arr_get(field(c, "reads"), (size_t)r), &plan, ndim))
      return wrong(c, "the reads of rank %d", r);
  }
  return SAME;
}

Verdict case_checkpoint(Case *c) {
  static const struct {
    const char *kind;
    Verdict (*check)(Trial *t);
  } table[] = {{"chunks", check_chunks}, {"save_plan", check_save}, {"read_plan", check_read}};
  const char *kind = yyjson_get_str(field(c, "kind"));
  Trial t = {.c = c};
  read_mesh(&t);
  if (t.ranks > 64) return wrong(c, "too many ranks");
  Verdict v = wrong(c, "a case of unknown kind '%s'", kind);
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (!strcmp(kind, table[i].kind)) v = table[i].check(&t);
  arena_free(&t.arena);
  return v;
}
