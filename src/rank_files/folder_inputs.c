/* file_cuts.c -- see file_cuts.h. */
#include "rank_files/folder_inputs.h"

#include "base/file.h"
#include "base/json.h"
#include "plan/plan_file.h"
#include "runtime/shards.h"

/* {"dim": 0, "unit": 16, "segments": [64, 16, 16]} or null */
static Status read_cut(yyjson_val *v, const char *path, Placement *out) {
  int64_t dim, number;
  *out = place_r();
  if (yyjson_is_null(v)) return OK;
  TRY(json_int64(v, "dim", path, &dim));
  if (dim < 0 || dim >= MAX_DIMS)
    return fail(ERR_FILE, "%s: \"files\": a shard of dimension %lld", path, (long long)dim);
  *out = place_s((int)dim);
  yyjson_val *unit = yyjson_obj_get(v, "unit"), *factor = yyjson_obj_get(v, "factor"),
             *segments = yyjson_obj_get(v, "segments"), *turn = yyjson_obj_get(v, "turn"), *item;
  if (turn && json_as_int64(turn, &number) && number > 0 && number <= MAX_AXES) out->turn = (int)number;
  if (unit && json_as_int64(unit, &number) && number > 0) out->unit = number;
  if (factor && json_as_int64(factor, &number) && number > 0) out->factor = number;
  size_t i, n;
  int64_t size[MAX_SEGMENTS];
  if (yyjson_arr_size(segments) > MAX_SEGMENTS)
    return fail(ERR_FILE, "%s: \"files\": more than %d segments", path, MAX_SEGMENTS);
  yyjson_arr_foreach(segments, i, n, item) {
    if (!json_as_int64(item, &size[i])) return fail(ERR_FILE, "%s: \"files\": segment %zu is no number", path, i);
  }
  return segments ? place_segments((int)dim, size, (int)yyjson_arr_size(segments), out->unit, out) : OK;
}

static Status read_inputs(FolderInputs *c, yyjson_val *list, const char *path) {
  size_t i, n, a, naxes;
  yyjson_val *input, *cut;
  TRY_NEW(c->input, arena_alloc(&c->arena, (yyjson_arr_size(list) + 1) * sizeof *c->input));
  TRY_NEW(c->even, arena_new_n(&c->arena, unsigned, yyjson_arr_size(list) + 1));
  yyjson_arr_foreach(list, i, n, input) {
    Placement *place = c->input[c->ninputs++];
    for (int k = 0; k < MAX_AXES; k++) place[k] = place_r();
    if (yyjson_is_null(input)) continue;
    if (yyjson_arr_size(input) > MAX_AXES)
      return fail(ERR_FILE, "%s: \"files\": input %zu has more shards than a mesh has axes", path, i);
    yyjson_arr_foreach(input, a, naxes, cut) {
      TRY(read_cut(cut, path, &place[a]));
      if (yyjson_is_true(yyjson_obj_get(cut, "even"))) c->even[i] |= 1u << place[a].dim;
    }
  }
  return OK;
}

static Status read_files(FolderInputs *c, yyjson_val *root, const char *path) {
  yyjson_val *files = yyjson_obj_get(root, "files"), *list;
  if (!files) return OK;
  TRY(json_array(files, "inputs", path, &list));
  return read_inputs(c, list, path);
}

static Status read_mesh(FolderInputs *c, const char *path, const FileMap *f) {
  PlanFile *plan;
  TRY(plan_file_parse(path, (const char *)f->data, f->size, &plan));
  Status s = OK;
  if (plan->mesh && !(c->mesh = arena_strdup(&c->arena, plan->mesh))) s = fail_oom();
  plan_file_free(plan);
  return s;
}

Status folder_inputs_read(const char *path, FolderInputs *out) {
  FileMap *f;
  yyjson_doc *doc = NULL;
  *out = (FolderInputs){0};
  TRY(file_map(path, &f));
  Status s = json_parse(path, f->data, f->size, 0, &doc);
  if (!s) s = read_files(out, yyjson_doc_get_root(doc), path);
  if (!s && out->ninputs) s = read_mesh(out, path, f);
  yyjson_doc_free(doc);
  file_map_unref(f);
  if (s) folder_inputs_free(out);
  return s;
}

void folder_inputs_free(FolderInputs *c) {
  arena_free(&c->arena);
  *c = (FolderInputs){0};
}

static Status cut_input(const FolderInputs *c, Mesh *mesh, int i, Kern *kern, Scope *scope, Value *input) {
  const Spec *spec;
  Tensor *t = input->tensor, *part;
  TRY(spec_new(mesh, t->dtype, t->ndim, t->size, NULL, c->input[i], &spec));
  if (spec->replicated) return OK;
  TRY(shard_of(kern, scope, t, spec, &part));
  *input = val_tensor(part);
  return OK;
}

static Status with_mesh(const FolderInputs *c, int rank, Dist **d, Mesh **mesh) {
  TRY(dist_new(NULL, d));
  Status s = mesh_parse(*d, c->mesh, mesh);
  if (!s && !((*mesh)->inside = mesh_coord_of(*mesh, rank, (*mesh)->coord)))
    s = fail(ERR_USAGE, "rank %d is outside of the mesh %s", rank, c->mesh);
  if (s) dist_free(*d);
  return s;
}

static Status check_input(const FolderInputs *c, const Mesh *mesh, int i, const Tensor *t) {
  for (int d = 0; d < t->ndim; d++) {
    int64_t ranks = 1;
    for (int a = 0; a < mesh->naxes; a++) ranks *= is_s_of(&c->input[i][a], d) ? mesh->axis[a] : 1;
    if (c->even[i] >> d & 1 && t->size[d] % ranks)
      return fail(ERR_FILE,
                  "input %d has %lld elements in dimension %d: %lld ranks share them, they must be a multiple", i,
                  (long long)t->size[d], d, (long long)ranks);
  }
  return OK;
}

Status folder_inputs_check(const FolderInputs *c, const Value *inputs, int n) {
  Dist *d;
  Mesh *mesh;
  if (!c->mesh) return OK;
  TRY(with_mesh(c, 0, &d, &mesh));
  Status s = OK;
  for (int i = 0; i < n && i < c->ninputs && !s; i++)
    if (inputs[i].kind == VAL_TENSOR) s = check_input(c, mesh, i, inputs[i].tensor);
  dist_free(d);
  return s;
}

Status folder_inputs_shard(const FolderInputs *c, Kern *kern, int rank, Scope *scope, Value *inputs, int n) {
  Dist *d;
  Mesh *mesh;
  if (!c->mesh) return OK;
  TRY(folder_inputs_check(c, inputs, n));
  TRY(with_mesh(c, rank, &d, &mesh));
  Status s = OK;
  for (int i = 0; i < n && i < c->ninputs && !s; i++)
    if (inputs[i].kind == VAL_TENSOR) s = cut_input(c, mesh, i, kern, scope, &inputs[i]);
  dist_free(d);
  return s;
}
