/* ranks.c -- see ranks.h. */
#include "ranks.h"

#include <math.h>
#include <string.h>

enum { MOST_RANKS = 64 };

typedef struct {
  Case *c;
  RankCheck *check;
  bool better[MOST_RANKS], refused[MOST_RANKS];
} Trial;

static void count_collective(void *arg, const Comm *comm, const Coll *what, int64_t bytes) {
  (void)what, (void)bytes;
  if (comm_size(comm) > 1) ((Rank *)arg)->collectives++;
}

static Status run_rank(World *w, void *arg) {
  Trial *t = arg;
  Rank r = {.c = t->c, .w = w, .me = world_rank(w)};
  ctx_init(&r.ctx, 1);
  r.call = (Call){.ctx = &r.ctx, .scope = &r.scope, .arena = &r.arena, .op = op_find("aten.add.Tensor")};
  world_watch(w, count_collective, &r);
  Status s = dist_new(w, &r.dist);
  if (!s) ctx_attach_dist(&r.ctx, r.dist);
  if (!s) s = t->check(&r);
  world_watch(w, NULL, NULL);
  t->better[r.me] = r.better;
  t->refused[r.me] = r.refused;
  scope_clear(&r.scope);
  arena_free(&r.arena);
  ctx_free(&r.ctx);
  dist_free(r.dist);
  return s;
}

Verdict on_ranks(Case *c, int ranks, RankCheck *check) {
  Trial t = {.c = c, .check = check};
  if (ranks > MOST_RANKS) return wrong(c, "too many ranks");
  Status s = world_threads(ranks, run_rank, &t, NULL);
  if (s) return wrong_status(c, s);
  int refused = 0;
  for (int r = 0; r < ranks; r++) refused += t.refused[r];
  bool told = field(c, "error");
  if (refused && refused < ranks) return wrong(c, "%d of %d ranks refuse", refused, ranks);
  if (refused) return told ? SAME : wrong(c, "we refuse, PyTorch does not");
  for (int r = 0; r < ranks; r++)
    if (t.better[r]) return better(c, told ? "PyTorch refuses" : "PyTorch is wrong");
  return told ? wrong(c, "PyTorch refuses; ours is not said to be sensible") : SAME;
}

Status rank_mesh(Rank *r, Mesh **out) {
  int axis[MAX_AXES], n = read_sizes(field(r->c, "mesh"), axis, MAX_AXES);
  return mesh_new(r->dist, axis, n, NULL, NULL, out);
}

static double element(yyjson_val *v) {
  if (!yyjson_is_str(v)) return yyjson_get_num(v);
  const char *s = yyjson_get_str(v);
  return s[0] == 'n' ? NAN : s[0] == '-' ? -INFINITY : INFINITY;
}

Status rank_read(Rank *r, Dtype dtype, yyjson_val *local, Tensor **out) {
  int64_t size[MAX_DIMS];
  int ndim = read_ints(yyjson_arr_get(local, 0), size, MAX_DIMS);
  Tensor *wide;
  TRY(tensor_new(&r->scope, DT_F64, ndim, size, &wide));
  yyjson_val *e;
  size_t i, n;
  yyjson_arr_foreach(yyjson_arr_get(local, 1), i, n, e)((double *)tensor_data(wide))[i] = element(e);
  return OP(&r->call, "aten.to.dtype", out, val_tensor(wide), val_dtype(dtype));
}

Status rank_arange(Rank *r, Dtype dtype, int ndim, const int64_t *size, double step, double first, Tensor **out) {
  Tensor *wide;
  TRY(tensor_new(&r->scope, DT_F64, ndim, size, &wide));
  for (int64_t i = 0; i < tensor_numel(wide); i++) ((double *)tensor_data(wide))[i] = (double)i * step + first;
  return OP(&r->call, "aten.to.dtype", out, val_tensor(wide), val_dtype(dtype));
}

static Status as_doubles(Rank *r, const Tensor *t, Tensor **out) {
  TRY(OP(&r->call, "aten.to.dtype", out, val_tensor(t), val_dtype(DT_F64)));
  return OP(&r->call, "aten.contiguous.default", out, val_tensor(*out));
}

Status rank_same(Rank *r, const Tensor *ours, const Tensor *told, const char *what) {
  Tensor *a, *b;
  char x[128], y[128];
  if (!tensor_same_size(ours, told))
    return fail(ERR_DIFF, "%s: %s, not %s", what, tensor_describe(ours, x, sizeof x),
                tensor_describe(told, y, sizeof y));
  TRY(as_doubles(r, ours, &a));
  TRY(as_doubles(r, told, &b));
  for (int64_t i = 0; i < tensor_numel(a); i++) {
    double p = ((double *)tensor_data(a))[i], q = ((double *)tensor_data(b))[i];
    if (p != q && !(isnan(p) && isnan(q)) && !(fabs(p - q) <= 1e-5 * fabs(q)))
      return fail(ERR_DIFF, "%s: element %lld is %g, not %g", what, (long long)i, p, q);
  }
  return OK;
}

Status rank_same_ints(yyjson_val *told, const int64_t *ours, int n, const char *what) {
  char text[200];
  return same_ints(told, ours, n) ? OK : fail(ERR_DIFF, "%s: %s", what, shape_describe(n, ours, text, sizeof text));
}

int told_total(yyjson_val *comm) {
  yyjson_val *key, *count;
  size_t i, n;
  int total = 0;
  if (comm) yyjson_obj_foreach(comm, i, n, key, count) total += yyjson_get_int(count);
  return total;
}
