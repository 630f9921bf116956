/* common_ranks.c -- see common_ranks.h. */
#include "fsdp/common_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera.h"

enum { MOST_RANKS = 16 };

static int forward(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  (void)ctx, (void)m, (void)n, (void)cap, (void)arg;
  out[0] = in[0];
  return 1;
}

/* ---- one parameter ------------------------------------------------------------------------------------------- */

typedef struct {
  yyjson_val *row;
  Trouble trouble[MOST_RANKS];
} ParamJob;

static int dim_of(TessCtx *ctx, const char *name, const TessTensor *param, int *dim, TessMesh **mesh, void *arg) {
  (void)ctx, (void)name, (void)param, (void)mesh;
  *dim = *(const int *)arg;
  return 0;
}

static TessTensor *counted(TessCtx *ctx, const int64_t *shape, int ndim) {
  TessTensor *t = tess_tensor_new(ctx, TESS_F32, ndim, shape);
  float *v = tess_data(t);
  for (int64_t i = 0; i < tess_numel(t); i++) v[i] = (float)(i + 1);
  return t;
}

/* As many ranks have summands of it. */
static int summands(yyjson_val *row) {
  yyjson_val *tp = yyjson_arr_get(yyjson_obj_get(row, "tp_placements"), 0);
  int axis[4], n = common_ints(yyjson_obj_get(row, "mesh"), axis, 4);
  return yyjson_is_str(tp) && yyjson_get_str(tp)[0] == 'P' ? axis[n - 1] : 1;
}

/* "S(0)" for every axis, or PyTorch's texts joined. */
static void joined(yyjson_val *list, char *out, size_t cap) {
  size_t i, n, at = 0;
  yyjson_val *item;
  out[0] = 0;
  yyjson_arr_foreach(list, i, n, item) at += (size_t)snprintf(out + at, cap - at, "%s", yyjson_get_str(item));
  for (char *c = out; *c; c++) /* _S(0,2) is spelled with a space here */
    if (*c == ',' && c[1] != ' ' && strlen(out) + 2 < cap) memmove(c + 2, c + 1, strlen(c)), c[1] = ' ';
}

static void same_size(Trouble *t, TessTensor *local, yyjson_val *want, const char *what) {
  int size[MAX_DIMS], n = common_ints(want, size, MAX_DIMS);
  bool same = n == tess_ndim(local);
  for (int d = 0; same && d < n; d++) same = size[d] == tess_size(local)[d];
  if (!same) common_wrong(t, "%s has another size", what);
}

static void same_values(TessCtx *ctx, Trouble *t, TessTensor *local, yyjson_val *want, const char *what) {
  size_t n = (size_t)tess_numel(local), i, count;
  float *v = malloc((n + 1) * sizeof *v);
  yyjson_val *item;
  if (v && !tess_read(ctx, local, v)) {
    if (yyjson_arr_size(want) != n) common_wrong(t, "%s has %zu elements", what, n);
    yyjson_arr_foreach(want, i, count, item) if (i < n && v[i] != (float)yyjson_get_num(item))
        common_wrong(t, "%s has other values", what);
  }
  free(v);
}

/* The placements say what the rank holds: gathered by them, the tensor is whole again, or `times` of it where it is
 * a sum. */
static void is_true(TessCtx *ctx, Trouble *t, TessTensor *p, int times) {
  TessTensor *full = tess_full_tensor(ctx, p);
  size_t n = full ? (size_t)tess_numel(full) : 0;
  float *v = malloc((n + 1) * sizeof *v);
  if (v && full && !tess_read(ctx, full, v))
    for (size_t i = 0; i < n; i++)
      if (v[i] != (float)((i + 1) * (size_t)times)) common_wrong(t, "its placements are not those of its values");
  free(v);
}

static void check_shard(TessCtx *ctx, yyjson_val *row, yyjson_val *want, Trouble *t, TessModule *m) {
  char is[256], text[256];
  TessTensor *p = tess_module_get(m, "p"), *local = tess_to_local(ctx, p);
  const bool uneven = yyjson_obj_get(want, "error") != NULL; /* which PyTorch refuses */
  bool wrong = uneven;
  size_t i, n;
  yyjson_val *other;
  yyjson_arr_foreach(yyjson_obj_get(row, "ranks"), i, n, other)
      wrong |= yyjson_get_bool(yyjson_obj_get(other, "torch_wrong"));
  is_true(ctx, t, p, summands(row));
  if (uneven) return;
  if (!wrong) { /* else PyTorch's placements, or its sizes, are not what the rank holds */
    joined(yyjson_obj_get(want, "placements"), text, sizeof text);
    if (strcmp(tess_placements(p, is, sizeof is), text)) common_wrong(t, "it is placed %s, not %s", is, text);
    same_size(t, local, yyjson_obj_get(want, "sharded_size"), "the shard");
  }
  same_values(ctx, t, local, yyjson_obj_get(want, "local"), "the shard");
}

/* A forward, after which the shards of fewer ranks are there. */
static void check_post_forward(TessCtx *ctx, yyjson_val *row, yyjson_val *want, Trouble *t, TessModule *m) {
  const int64_t one = 1;
  TessTensor *x = tess_tensor_new(ctx, TESS_F32, 1, &one), *out;
  if (tess_module_call(ctx, m, &x, 1, &out, 1) != 1) return;
  TessTensor *p = tess_module_get(m, "p");
  is_true(ctx, t, p, summands(row));
  if (!yyjson_get_bool(yyjson_obj_get(want, "post_forward_wrong")) && !yyjson_obj_get(want, "error"))
    same_size(t, tess_to_local(ctx, p), yyjson_obj_get(want, "post_forward_size"), "what is kept after forward");
}

static TessFsdpOptions options_of(yyjson_val *row, int *dim) {
  yyjson_val *reshard = yyjson_obj_get(row, "reshard_after_forward"), *shard_dim = yyjson_obj_get(row, "shard_dim");
  TessFsdpOptions o = {.reshard = TESS_RESHARD_ALWAYS};
  if (yyjson_is_bool(reshard) && !yyjson_get_bool(reshard)) o.reshard = TESS_RESHARD_NEVER;
  if (yyjson_is_int(reshard)) o.reshard = TESS_RESHARD_TO, o.reshard_ranks = yyjson_get_int(reshard);
  *dim = yyjson_get_int(shard_dim);
  if (yyjson_is_int(shard_dim)) o.placement = dim_of, o.placement_arg = dim;
  return o;
}

static int param_rank(TessCtx *ctx, void *arg) {
  ParamJob *job = arg;
  int rank = tess_rank(ctx), axis[4], naxes = common_ints(yyjson_obj_get(job->row, "mesh"), axis, 4),
      small[MAX_DIMS];
  int ndim = common_ints(yyjson_obj_get(job->row, "shape"), small, MAX_DIMS), dim;
  yyjson_val *names = yyjson_obj_get(job->row, "names"), *tp = yyjson_obj_get(job->row, "tp_placements");
  yyjson_val *want = yyjson_arr_get(yyjson_obj_get(job->row, "ranks"), (size_t)rank);
  const char *error = yyjson_get_str(yyjson_obj_get(yyjson_obj_get(want, "error"), "msg")), *name[4];
  Trouble *t = &job->trouble[rank];
  int64_t shape[MAX_DIMS];
  char text[128];
  for (int i = 0; i < ndim; i++) shape[i] = small[i];
  for (int i = 0; i < naxes; i++) name[i] = yyjson_get_str(yyjson_arr_get(names, (size_t)i));
  TessMesh *mesh = tess_init_device_mesh(ctx, naxes, axis, name), *dp = mesh;
  TessModule *m = tess_module_new(ctx, forward, NULL);
  TessTensor *p = counted(ctx, shape, ndim);
  if (yyjson_is_arr(tp)) {
    joined(tp, text, sizeof text);
    TessMesh *inner = tess_mesh_sub(ctx, mesh, &name[naxes - 1], 1);
    p = *text == 'P' ? tess_from_local(ctx, p, inner, text, 0, ndim, shape, NULL)
                     : tess_distribute_tensor(ctx, p, inner, text, -1);
    dp = tess_mesh_sub(ctx, mesh, name, naxes - 1);
  }
  tess_module_set(ctx, m, "p", p);
  TessFsdpOptions o = options_of(job->row, &dim);
  bool refuses = error && !strstr(error, "uneven"), refused = tess_fully_shard(ctx, &m, 1, dp, &o) != 0;
  if (refuses != refused) common_wrong(t, "it is %s: %s", refused ? "refused" : "taken", tess_error_message(ctx));
  if (refuses) tess_error_clear(ctx);
  else if (!refused) {
    check_shard(ctx, job->row, want, t, m);
    check_post_forward(ctx, job->row, want, t, m);
  }
  tess_module_free(m);
  return tess_error(ctx) ? -1 : 0;
}

void common_param(yyjson_val *row, Trouble *t) {
  int n = (int)yyjson_arr_size(yyjson_obj_get(row, "ranks"));
  char error[512];
  ParamJob *job = n <= MOST_RANKS ? calloc(1, sizeof *job) : NULL;
  if (!job) {
    common_wrong(t, "%d ranks", n);
    return;
  }
  job->row = row;
  if (tess_run_ranks(n, 1, param_rank, job, error, sizeof error)) common_wrong(t, "%s", error);
  for (int r = 0; r < n; r++)
    if (*job->trouble[r].text) common_wrong(t, "rank %d: %s", r, job->trouble[r].text);
  free(job);
}

/* ---- a tree
 * ------------------------------------------------------------------------------------------------------ */

/* Parts of a dotted name become modules on the way; the last one is a tensor. */
static void grow(TessCtx *ctx, TessModule *m, const char *name, bool tensor) {
  char part[64];
  for (const char *dot; (dot = strchr(name, '.')) || (!tensor && *name); name = dot ? dot + 1 : "") {
    snprintf(part, sizeof part, "%.*s", dot ? (int)(dot - name) : (int)strlen(name), name);
    TessModule *inner = tess_module_child(m, part);
    if (!inner) {
      inner = tess_module_new(ctx, forward, NULL);
      tess_module_add(ctx, m, part, inner);
    }
    m = inner;
    if (!dot) return;
  }
  if (tensor) tess_module_set(ctx, m, name, counted(ctx, (const int64_t[]){4}, 1));
}

static void owns(TessCtx *ctx, Trouble *t, TessModule *m, const char *path, yyjson_val *want) {
  char *json = tess_fsdp_json(ctx, m);
  yyjson_doc *doc = json ? yyjson_read(json, strlen(json), 0) : NULL;
  yyjson_val *params = yyjson_obj_get(yyjson_arr_get(yyjson_doc_get_root(doc), 0), "params"), *item;
  size_t i, n;
  if (yyjson_arr_size(params) != yyjson_arr_size(want))
    common_wrong(t, "'%s' owns %zu parameters instead of %zu", path, yyjson_arr_size(params),
                 yyjson_arr_size(want));
  yyjson_arr_foreach(params, i, n, item) {
    const char *name = yyjson_get_str(yyjson_obj_get(item, "name")),
               *other = yyjson_get_str(yyjson_arr_get(want, i));
    if (!other || strcmp(name, other)) common_wrong(t, "parameter %zu of '%s' is %s", i, path, name);
  }
  yyjson_doc_free(doc);
  tess_free(json);
}

void common_modules(yyjson_val *row, Trouble *t) {
  TessCtx *ctx = tess_ctx_new(1);
  TessModule *m = tess_module_new(ctx, forward, NULL);
  yyjson_val *item, *key;
  size_t i, n;
  const char *ignored[64];
  TessFsdpOptions o = {.ignored = ignored};
  yyjson_arr_foreach(yyjson_obj_get(row, "all_modules"), i, n, item) grow(ctx, m, yyjson_get_str(item), false);
  yyjson_arr_foreach(yyjson_obj_get(row, "parameters"), i, n, item) grow(ctx, m, yyjson_get_str(item), true);
  yyjson_arr_foreach(yyjson_obj_get(row, "inner_calls"), i, n, item) {
    TessModule *inner = tess_module_child(m, yyjson_get_str(item));
    const char *path = yyjson_get_str(item);
    size_t k, count, len = strlen(path);
    yyjson_val *name;
    o.nignored = 0; /* names are those below the module */
    yyjson_arr_foreach(yyjson_obj_get(row, "ignored"), k, count,
                       name) if (!strncmp(yyjson_get_str(name), path, len) && yyjson_get_str(name)[len] == '.' &&
                                 o.nignored < 64) ignored[o.nignored++] = yyjson_get_str(name) + len + 1;
    tess_fully_shard(ctx, &inner, 1, NULL, &o);
  }
  o.nignored = 0;
  yyjson_arr_foreach(yyjson_obj_get(row, "ignored"), i, n, item) if (o.nignored < 64)
      ignored[o.nignored++] = yyjson_get_str(item);
  tess_fully_shard(ctx, &m, 1, NULL, &o);
  yyjson_obj_foreach(yyjson_obj_get(row, "owned"), i, n, key, item)
      owns(ctx, t, tess_module_child(m, yyjson_get_str(key)), yyjson_get_str(key), item);
  if (tess_error(ctx)) common_wrong(t, "%s", tess_error_message(ctx));
  tess_module_free(m);
  tess_ctx_free(ctx);
}
