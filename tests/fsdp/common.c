/* common.c -- fsdp_common.jsonl: PyTorch's arithmetic of shards, meshes, reductions, dtypes and ownership.
 *
 * A row has a kind; check_KIND() says what is wrong with it, or nothing.  Rows of several ranks run on as many.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "dist/dist.h"
#include "fsdp/case.h"
#include "fsdp/common_ranks.h"
#include "fsdp/dp_mesh.h"

void common_wrong(Trouble *t, const char *format, ...) {
  va_list args;
  if (*t->text) return;
  va_start(args, format);
  vsnprintf(t->text, sizeof t->text, format, args);
  va_end(args);
}

int common_ints(yyjson_val *list, int *out, int cap) {
  int n = 0;
  size_t i, count;
  yyjson_val *item;
  yyjson_arr_foreach(list, i, count, item) if (n < cap) out[n++] = yyjson_get_int(item);
  return n;
}

static int int64s(yyjson_val *list, int64_t *out, int cap) {
  int small[MAX_DIMS], n = common_ints(list, small, cap < MAX_DIMS ? cap : MAX_DIMS);
  for (int i = 0; i < n; i++) out[i] = small[i];
  return n;
}

/* ---- sizes ------------------------------------------------------------------------------------------------- */

/* chunk_sizes: what each of k ranks holds.  A tensor without elements has none there, which is a mistake: a chunk
 * of nothing is taken for a missing one; `chunks` are right.  dim0_padded is what PyTorch pads to; nothing is
 * padded here. */
static void check_sizes(yyjson_val *row, Trouble *t) {
  int64_t shape[MAX_DIMS], want[MAX_DIMS], local[MAX_DIMS];
  int n = int64s(yyjson_obj_get(row, "shape"), shape, MAX_DIMS), k = yyjson_get_int(yyjson_obj_get(row, "k"));
  Placement place = place_s(yyjson_get_int(yyjson_obj_get(row, "dim")));
  const Layout l = {n, shape, 1, &k, &place};
  bool empty = false;
  for (int d = 0; d < n; d++) empty |= !shape[d];
  for (int r = 0; r < k; r++) {
    int64s(yyjson_arr_get(yyjson_obj_get(row, empty ? "chunks" : "chunk_sizes"), (size_t)r), want, MAX_DIMS);
    Status s = layout_local(&l, &r, local);
    bool missing = empty && yyjson_arr_size(yyjson_arr_get(yyjson_obj_get(row, "chunks"), (size_t)r)) != (size_t)n;
    if (s || (!missing && memcmp(want, local, (size_t)n * sizeof *want)))
      common_wrong(t, "rank %d has another size", r);
    status_free(s);
  }
}

/* ---- meshes ------------------------------------------------------------------------------------------------- */

/* "b" or ["b", "c"], joined by commas; NULL: none */
static const char *axis_names(yyjson_val *v, char *buf, size_t cap) {
  size_t at = 0, i, n;
  yyjson_val *item;
  if (yyjson_is_str(v)) return yyjson_get_str(v);
  if (!yyjson_is_arr(v)) return NULL;
  yyjson_arr_foreach(v, i, n, item)
      at += (size_t)snprintf(buf + at, cap - at, "%s%s", i ? "," : "", yyjson_get_str(item));
  return buf;
}

static void same_ranks(Trouble *t, const Mesh *m, int axis, yyjson_val *want, const char *what, int rank) {
  int ranks[64], listed[64], n = mesh_group_ranks(m, 1u << axis, m->coord, ranks);
  if (common_ints(want, listed, 64) != n || memcmp(ranks, listed, (size_t)n * sizeof *ranks))
    common_wrong(t, "rank %d: other ranks in the %s group", rank, what);
}

static void same_info(Trouble *t, const DpMesh *d, yyjson_val *want, int rank) {
  static const char *const classes[] = {"FSDPMeshInfo", "HSDPMeshInfo", "DDPMeshInfo"};
  if (strcmp(classes[d->kind], yyjson_get_str(yyjson_obj_get(want, "class"))))
    common_wrong(t, "rank %d: it is %s", rank, classes[d->kind]);
  else if (d->shard >= 0) {
    if (dp_shard_size(d) != yyjson_get_int(yyjson_obj_get(want, "shard_size")) ||
        d->mesh->coord[d->shard] != yyjson_get_int(yyjson_obj_get(want, "shard_rank")))
      common_wrong(t, "rank %d: another place in the shard group", rank);
    same_ranks(t, d->mesh, d->shard, yyjson_obj_get(want, "shard_group"), "shard", rank);
  }
  if (d->replicate >= 0) {
    if (dp_replicate_size(d) != yyjson_get_int(yyjson_obj_get(want, "replicate_size")))
      common_wrong(t, "rank %d: another number of replicas", rank);
    same_ranks(t, d->mesh, d->replicate, yyjson_obj_get(want, "replicate_group"), "replicate", rank);
  }
}

/* The mesh of the row as one rank of a world that moves nothing sees it. */
static Status mesh_as(yyjson_val *row, int rank, World **w, Dist **d, Mesh **out) {
  int axis[MAX_AXES], n = common_ints(yyjson_obj_get(row, "mesh"), axis, MAX_AXES), size = 1;
  const char *names[MAX_AXES] = {0};
  for (int i = 0; i < n; i++) {
    size *= axis[i];
    names[i] = yyjson_get_str(yyjson_arr_get(yyjson_obj_get(row, "names"), (size_t)i));
  }
  TRY(world_sim(size, rank, w));
  TRY(dist_new(*w, d));
  return mesh_new(*d, axis, n, names, NULL, out);
}

static void check_mesh_of(yyjson_val *row, Trouble *t, int rank, yyjson_val *want, bool post_forward) {
  World *w = NULL;
  Dist *d = NULL;
  Mesh *m;
  DpMesh dp;
  char a[64], b[64];
  yyjson_val *dims = yyjson_obj_get(row, "dp_mesh_dims"), *reshard = yyjson_obj_get(row, "reshard_after_forward");
  Status s = mesh_as(row, rank, &w, &d, &m);
  if (!s)
    s = dp_mesh_new(m, axis_names(yyjson_obj_get(dims, "shard"), a, sizeof a),
                    axis_names(yyjson_obj_get(dims, "replicate"), b, sizeof b),
                    yyjson_get_bool(yyjson_obj_get(row, "ddp")), &dp);
  Reshard how = RESHARD_ALWAYS;
  int ranks = yyjson_get_int(reshard);
  if (!s && post_forward)
    s = dp_reshard(&dp,
                   yyjson_is_bool(reshard) ? yyjson_get_bool(reshard) ? RESHARD_ALWAYS : RESHARD_NEVER : RESHARD_TO,
                   ranks, &how);
  const bool refused = yyjson_obj_get(want, "error") != NULL;
  if (!s != !refused) common_wrong(t, "rank %d: %s", rank, s ? status_message(s) : "it is taken");
  if (!s && !refused && !post_forward) same_info(t, &dp, want, rank);
  if (!s && !refused && post_forward) {
    Reshard expect = yyjson_is_null(want) ? RESHARD_NEVER : yyjson_is_str(want) ? RESHARD_ALWAYS : RESHARD_TO;
    if (how != expect) common_wrong(t, "rank %d: parameters are kept in another way", rank);
    else if (how == RESHARD_TO) {
      s = dp_split_axis(dp.mesh, dp.shard, ranks, &m);
      if (!s) same_ranks(t, m, dp.shard + 1, yyjson_obj_get(want, "shard_group"), "shard", rank);
    }
  }
  status_free(s);
  if (d) dist_free(d);
  world_free(w);
}

static void check_meshes(yyjson_val *row, Trouble *t) {
  const bool post_forward = !strcmp(yyjson_get_str(yyjson_obj_get(row, "kind")), "post_forward");
  size_t i, n;
  yyjson_val *want;
  yyjson_arr_foreach(yyjson_obj_get(row, "ranks"), i, n, want) check_mesh_of(row, t, (int)i, want, post_forward);
}

/* ---- reductions and dtypes
 * ------------------------------------------------------------------------------------------
 */

static void check_divide(yyjson_val *row, Trouble *t) {
  int mesh[2], n = common_ints(yyjson_obj_get(row, "mesh"), mesh, 2);
  Dtype dtype = dtype_parse(yyjson_get_str(yyjson_obj_get(row, "reduce_dtype")));
  DpReduction r = dp_reduction(mesh[n - 1], n == 2 ? mesh[0] : 0, dtype,
                               yyjson_get_num(yyjson_obj_get(row, "factor")),
                               yyjson_get_bool(yyjson_obj_get(row, "force_sum")));
  static const char *const names[] = {[REDUCE_SUM] = "SUM", [REDUCE_AVG] = "AVG"};
  yyjson_val *pre = yyjson_obj_get(row, "pre"), *post = yyjson_obj_get(row, "post");
  double before = yyjson_is_null(pre) ? 1 : yyjson_get_num(pre),
         after = yyjson_is_null(post) ? 1 : yyjson_get_num(post);
  const char *scatter = r.premultiplied ? "PREMUL_SUM" : names[r.scatter];
  if (strcmp(scatter, yyjson_get_str(yyjson_obj_get(row, "reduce_scatter_op"))) ||
      strcmp(names[r.all], yyjson_get_str(yyjson_obj_get(row, "all_reduce_op"))))
    common_wrong(t, "it is reduced by %s and %s", scatter, names[r.all]);
  if ((!r.premultiplied && 1 / r.before != before) || r.after != after)
    common_wrong(t, "it is divided by %g and %g", 1 / r.before, r.after);
}

static Dtype dtype_of(yyjson_val *v) { return yyjson_is_str(v) ? dtype_parse(yyjson_get_str(v)) : DT_NONE; }

static void check_dtypes(yyjson_val *row, Trouble *t) {
  Dtype param = dtype_of(yyjson_obj_get(row, "param_dtype")),
        reduce = dtype_of(yyjson_obj_get(row, "reduce_dtype"));
  dp_dtypes(dtype_of(yyjson_obj_get(row, "orig")), &param, &reduce);
  if (param != dtype_of(yyjson_obj_get(row, "param_dtype_out")) ||
      reduce != dtype_of(yyjson_obj_get(row, "reduce_dtype_out")))
    common_wrong(t, "parameters are %s, reductions %s", dtype_name(param), dtype_name(reduce));
}

/* ---- the flat buffers
 * ------------------------------------------------------------------------------------------------
 */

/* PyTorch's list without its zeros, which are padding: values begin at 1. */
static bool same_without_zeros(const int64_t *is, int64_t n, yyjson_val *want) {
  int64_t at = 0;
  size_t i, count;
  yyjson_val *item;
  yyjson_arr_foreach(want, i, count, item) {
    if (!yyjson_get_int(item)) continue;
    if (at == n || is[at++] != yyjson_get_int(item)) return false;
  }
  return at == n;
}

static Status lay_out(yyjson_val *row, Arena *arena, FlatGroup *g, int64_t **first) {
  yyjson_val *shapes = yyjson_obj_get(row, "shapes"), *shape;
  int n = (int)yyjson_arr_size(shapes), *world, *coord;
  FlatParam *p;
  Placement *place;
  size_t i, count;
  int64_t next = 1;
  TRY_NEW(p, arena_new_n(arena, FlatParam, n));
  TRY_NEW(*first, arena_new_n(arena, int64_t, n));
  TRY_NEW(world, arena_new_n(arena, int, 1));
  TRY_NEW(place, arena_new_n(arena, Placement, 2));
  *world = yyjson_get_int(yyjson_obj_get(row, "world"));
  place[0] = place_r();
  place[1] = place_s(0);
  TRY_NEW(coord, arena_new_n(arena, int, *world));
  for (int r = 0; r < *world; r++) coord[r] = r;
  yyjson_arr_foreach(shapes, i, count, shape) {
    int64_t *size;
    TRY_NEW(size, arena_new_n(arena, int64_t, MAX_DIMS));
    int dims = int64s(shape, size, MAX_DIMS);
    p[i] = (FlatParam){{dims, size, 1, world, &place[0]}, {dims, size, 1, world, &place[1]}, coord};
    (*first)[i] = next;
    int64_t numel = 1;
    for (int d = 0; d < dims; d++) numel *= size[d];
    next += numel;
  }
  return flat_group_new(p, n, *world, 0, arena, g);
}

/* Both buffers: what the reduce-scatter takes, and the flat shards of all ranks, one behind the other. */
static Status check_layout_in(yyjson_val *row, Trouble *t, Arena *arena) {
  FlatGroup g;
  FlatScatter way;
  int64_t *first, *buffer, shards = 0;
  TRY(lay_out(row, arena, &g, &first));
  TRY(flat_scatter(&g, NULL, NULL, arena, &way));
  TRY_NEW(buffer, arena_new_n(arena, int64_t, way.total + 1));
  for (int i = 0; i < way.into.n; i++) { /* shards of dimension 0 are stretches */
    int64_t n = 1;
    for (int d = 0; d < way.into.v[i].ndim; d++) n *= way.into.v[i].size[d];
    for (int64_t k = 0; k < n; k++)
      buffer[way.into.v[i].offset + k] = first[way.param[i]] + way.from.v[i].offset + k;
  }
  if (!same_without_zeros(buffer, way.total, yyjson_obj_get(row, "reduce_scatter_input")))
    common_wrong(t, "the reduce buffer is another");
  for (int m = 0; m < g.members; m++)
    for (int p = 0; p < g.n; p++) shards += flat_counts(&g, m)[p];
  if (!same_without_zeros(buffer, shards, yyjson_obj_get(row, "all_gather_output")))
    common_wrong(t, "the flat shards are others");
  return OK;
}

static void check_layout(yyjson_val *row, Trouble *t) {
  Arena arena = {0};
  Status s = check_layout_in(row, t, &arena);
  if (s) common_wrong(t, "%s", status_message(s));
  status_free(s);
  arena_free(&arena);
}

/* ---- all rows
 * ------------------------------------------------------------------------------------------------------------
 */

static const struct {
  const char *kind;
  void (*check)(yyjson_val *row, Trouble *t);
} kinds[] = {{"sizes", check_sizes},   {"mesh_info", check_meshes}, {"post_forward", check_meshes},
             {"divide", check_divide}, {"dtypes", check_dtypes},    {"collective_layout", check_layout},
             {"param", common_param},  {"modules", common_modules}};

static bool check_row(const char *line, size_t size) {
  yyjson_doc *doc = yyjson_read(line, size, 0);
  yyjson_val *row = yyjson_doc_get_root(doc);
  const char *kind = yyjson_get_str(yyjson_obj_get(row, "kind"));
  Trouble t = {""};
  bool known = false;
  for (size_t i = 0; kind && i < sizeof kinds / sizeof *kinds; i++) {
    if (strcmp(kind, kinds[i].kind)) continue;
    known = true;
    kinds[i].check(row, &t);
  }
  if (!known) common_wrong(&t, "there is no such kind of row");
  if (*t.text)
    printf("FAIL fsdp_common %d (%s): %s\n", yyjson_get_int(yyjson_obj_get(row, "id")), kind ? kind : "?", t.text);
  yyjson_doc_free(doc);
  return !*t.text;
}

void fsdp_common(const char *path, int every, int *passed, int *failed) {
  FileMap *f;
  Status s = file_map(path, &f);
  if (s) {
    printf("FAIL %s\n", status_message(s));
    status_free(s);
    ++*failed;
    return;
  }
  const char *at = (const char *)f->data, *end = at + f->size;
  for (int row = 0; at < end; row++) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    if (!stop) stop = end;
    if (stop > at && row % (every > 0 ? every : 1) == 0) {
      bool good = check_row(at, (size_t)(stop - at));
      *passed += good;
      *failed += !good;
    }
    at = stop + 1;
  }
  file_map_unref(f);
}
