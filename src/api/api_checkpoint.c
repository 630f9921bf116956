/* api_checkpoint.c -- public functions that plan checkpoints: who writes which boxes of which
 * tensors, and which parts of written boxes another layout reads.  JSON out, and in. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/json.h"
#include "dist/checkpoint.h"

/* One call: the mesh, what lies on it, and what is made of it. */
typedef struct {
  int naxes, ranks;
  const int *axis;
  const TessSaved *tensor;
  int n;
  Arena arena;
} Job;

static Status check_mesh(Job *j) {
  int64_t ranks = 1;
  if (j->naxes < 1 || j->naxes > MAX_AXES)
    return fail(ERR_USAGE, "a mesh has 1 to %d axes, not %d", MAX_AXES, j->naxes);
  for (int a = 0; a < j->naxes; a++) {
    if (j->axis[a] < 1 || (ranks *= j->axis[a]) > 1 << 20)
      return fail(ERR_USAGE, "mesh axis %d has %d ranks", a, j->axis[a]);
  }
  j->ranks = (int)ranks;
  return OK;
}

static Status layout_of(const Job *j, const TessSaved *t, Placement *place, Layout *out) {
  int64_t numel;
  int n = j->naxes;
  if (!t->name || !*t->name) return fail(ERR_USAGE, "a tensor of a checkpoint has no name");
  if ((unsigned)t->dtype > TESS_C64)
    return fail(ERR_USAGE, "'%s': there is no dtype number %d", t->name, (int)t->dtype);
  if (t->ndim < 0 || t->ndim > MAX_DIMS || (t->ndim && !t->shape) || !checked_numel(t->ndim, t->shape, &numel))
    return fail(ERR_USAGE, "'%s': impossible sizes", t->name);
  for (int a = 0; a < j->naxes; a++) place[a] = place_r();
  if (t->placements) {
    TRY(status_at(placements_parse(t->placements, t->ndim, place, &n), "'%s'", t->name));
    if (n != j->naxes)
      return fail(ERR_USAGE, "'%s': %d placements '%s' for a mesh of %d axes", t->name, n, t->placements, j->naxes);
    TRY(placements_check(place, n, t->ndim, t->name));
  }
  *out = (Layout){.ndim = t->ndim, .shape = t->shape, .naxes = j->naxes, .axis = j->axis, .place = place};
  return OK;
}

/* ---- saving ------------------------------------------------------------------------------------ */

static Status make_plans(Job *j, SaveTo to, SavePlan **out) {
  SavePlan *plan;
  TRY_NEW(plan, arena_new_n(&j->arena, SavePlan, j->ranks));
  for (int i = 0; i < j->n; i++) {
    Placement place[MAX_AXES];
    Layout l;
    TRY(layout_of(j, &j->tensor[i], place, &l));
    for (int r = 0; r < j->ranks; r++) {
      int coord[MAX_AXES];
      mesh_coord(j->axis, j->naxes, r, coord);
      TRY(save_plan_add_layout(&plan[r], &j->arena, j->tensor[i].name, (Dtype)j->tensor[i].dtype, &l, coord));
    }
  }
  *out = plan;
  return save_plans_dedup(plan, j->ranks, to);
}

static void put_ints(TextBuf *out, const char *name, const int64_t *v, int n) {
  text_printf(out, "\"%s\": [", name);
  for (int i = 0; i < n; i++) text_printf(out, "%s%lld", i ? ", " : "", (long long)v[i]);
  text_puts(out, "]");
}

/* The order of chunks is that of saved_list(): rank by rank. */
static void print_chunks(const Job *j, const SavePlan *plan, const TessSaved *t, TextBuf *out) {
  bool first = true;
  for (int r = 0; r < j->ranks; r++)
    for (int i = 0; i < plan[r].n; i++) {
      const WriteItem *w = &plan[r].v[i];
      if (strcmp(w->fqn, t->name)) continue;
      text_printf(out, "%s{\"rank\": %d, ", first ? "" : ", ", r);
      put_ints(out, "offset", w->chunk.offset, t->ndim);
      text_puts(out, ", ");
      put_ints(out, "size", w->chunk.size, t->ndim);
      text_puts(out, "}");
      first = false;
    }
}

static Status plan_save(Job *j, SaveTo to, TextBuf *out) {
  SavePlan *plan;
  SavedList saved;
  TRY(check_mesh(j));
  TRY(make_plans(j, to, &plan));
  TRY(saved_list(plan, j->ranks, &j->arena, &saved)); /* checks them */
  text_puts(out, "{\"tensors\": [");
  for (int i = 0; i < j->n; i++) {
    const TessSaved *t = &j->tensor[i];
    text_puts(out, i ? ",\n  {\"name\": " : "\n  {\"name\": ");
    text_json(out, t->name);
    text_printf(out, ", \"dtype\": \"%s\", ", dtype_name((Dtype)t->dtype));
    put_ints(out, "shape", t->shape, t->ndim);
    text_puts(out, ", \"chunks\": [");
    print_chunks(j, plan, t, out);
    text_puts(out, "]}");
  }
  text_puts(out, "]}");
  return OK;
}

/* The text, or NULL with the error sticking. */
static char *finish(TessCtx *ctx, Job *j, TextBuf *out, Status s) {
  arena_free(&j->arena);
  if (!s && out->failed) s = fail_oom();
  if (!api_stick(ctx, s)) return out->text;
  text_free(out);
  return NULL;
}

char *tess_plan_save(TessCtx *ctx, int naxes, const int *mesh, const TessSaved *tensors, int n, int how) {
  static const SaveTo ways[] = {SAVE_BALANCED, SAVE_BALANCED_WHOLE, SAVE_LOWEST_RANK};
  TextBuf out = {0};
  Job j = {.naxes = naxes, .axis = mesh, .tensor = tensors, .n = n};
  if (!API_BEGIN(ctx, LISTED("the mesh", mesh, naxes), LISTED("the tensors", tensors, n))) return NULL;
  return finish(ctx, &j, &out,
                how < 0 || how > 2 ? fail(ERR_USAGE, "there is no way %d to share the writing", how)
                                   : plan_save(&j, ways[how], &out));
}

/* ---- loading ------------------------------------------------------------------------------------- */

static Status read_ints(yyjson_val *object, const char *name, const char *what, int64_t *out, int n) {
  yyjson_val *list, *e;
  size_t i, m;
  TRY(json_array(object, name, what, &list));
  if ((int)yyjson_arr_size(list) != n)
    return fail(ERR_USAGE, "'%s': '%s' has %d numbers, not %d", what, name, (int)yyjson_arr_size(list), n);
  yyjson_arr_foreach(list, i, m, e) {
    if (!json_as_int64(e, &out[i]) || out[i] < 0)
      return fail(ERR_USAGE, "'%s': '%s' is no list of sizes", what, name);
  }
  return OK;
}

static yyjson_val *find_saved(yyjson_val *list, const char *name) {
  yyjson_val *e;
  size_t i, m;
  yyjson_arr_foreach(list, i, m, e) {
    const char *text = json_as_string(yyjson_obj_get(e, "name"));
    if (text && !strcmp(text, name)) return e;
  }
  return NULL;
}

/* What was saved of a tensor, which must be the one that is wanted. */
static Status read_saved(Job *j, yyjson_val *list, const TessSaved *want, ChunkList *out) {
  yyjson_val *saved = find_saved(list, want->name), *chunks, *e;
  const char *dtype;
  int64_t shape[MAX_DIMS];
  char a[200], b[200];
  size_t i, m;
  if (!saved) return fail(ERR_USAGE, "'%s' was not saved", want->name);
  TRY(json_string(saved, "dtype", want->name, &dtype));
  TRY(json_array(saved, "shape", want->name, &chunks));
  int ndim = (int)yyjson_arr_size(chunks);
  if (ndim > MAX_DIMS) return fail(ERR_USAGE, "'%s': %d dimensions", want->name, ndim);
  TRY(read_ints(saved, "shape", want->name, shape, ndim));
  bool same = ndim == want->ndim && (!ndim || !memcmp(shape, want->shape, (size_t)ndim * sizeof *shape));
  if (!same || strcmp(dtype, dtype_name((Dtype)want->dtype)))
    return fail(ERR_USAGE, "'%s' was saved as %s%s, wanted is %s%s", want->name, dtype,
                shape_describe(ndim, shape, a, sizeof a), dtype_name((Dtype)want->dtype),
                shape_describe(want->ndim, want->shape, b, sizeof b));
  TRY(json_array(saved, "chunks", want->name, &chunks));
  *out = (ChunkList){.n = (int)yyjson_arr_size(chunks)};
  TRY_NEW(out->v, arena_new_n(&j->arena, Chunk, out->n ? out->n : 1));
  yyjson_arr_foreach(chunks, i, m, e) {
    Chunk *c = &out->v[i];
    *c = (Chunk){.ndim = ndim};
    TRY(read_ints(e, "offset", want->name, c->offset, ndim));
    TRY(read_ints(e, "size", want->name, c->size, ndim));
  }
  return OK;
}

static Status plan_load_one(Job *j, yyjson_val *list, const TessSaved *want, const int *coord, TextBuf *out) {
  Placement place[MAX_AXES];
  Layout l;
  ChunkList saved, wanted;
  ReadPlan plan;
  TRY(layout_of(j, want, place, &l));
  TRY(read_saved(j, list, want, &saved));
  TRY(chunks_of(&l, coord, &j->arena, &wanted));
  TRY(read_plan(want->name, &saved, &wanted, &j->arena, &plan));
  text_puts(out, "{\"name\": ");
  text_json(out, want->name);
  text_puts(out, ", \"reads\": [");
  for (int i = 0; i < plan.n; i++) {
    text_printf(out, "%s{\"chunk\": %d, ", i ? ", " : "", plan.v[i].chunk);
    put_ints(out, "from", plan.v[i].from, l.ndim);
    text_puts(out, ", ");
    put_ints(out, "into", plan.v[i].into, l.ndim);
    text_puts(out, ", ");
    put_ints(out, "size", plan.v[i].size, l.ndim);
    text_puts(out, "}");
  }
  text_puts(out, "]}");
  return OK;
}

static Status plan_load(Job *j, const char *saved, const int *coord, TextBuf *out) {
  yyjson_doc *doc;
  yyjson_val *list;
  TRY(check_mesh(j));
  for (int a = 0; a < j->naxes; a++) {
    if (coord[a] < 0 || coord[a] >= j->axis[a])
      return fail(ERR_USAGE, "coordinate %d on an axis of %d ranks", coord[a], j->axis[a]);
  }
  TRY(json_parse("what was saved", saved, strlen(saved), 0, &doc));
  Status s = json_array(yyjson_doc_get_root(doc), "tensors", "what was saved", &list);
  text_puts(out, "{\"tensors\": [");
  for (int i = 0; i < j->n && !s; i++) {
    text_puts(out, i ? ",\n  " : "\n  ");
    s = plan_load_one(j, list, &j->tensor[i], coord, out);
  }
  text_puts(out, "]}");
  yyjson_doc_free(doc);
  return s;
}

char *tess_plan_load(TessCtx *ctx, const char *saved, int naxes, const int *mesh, const TessSaved *tensors, int n,
                     const int *coord) {
  TextBuf out = {0};
  Job j = {.naxes = naxes, .axis = mesh, .tensor = tensors, .n = n};
  if (!API_BEGIN(ctx, GIVEN("what was saved", saved), LISTED("the mesh", mesh, naxes),
                 LISTED("the tensors", tensors, n), LISTED("the coordinate", coord, naxes)))
    return NULL;
  return finish(ctx, &j, &out, plan_load(&j, saved, coord, &out));
}
