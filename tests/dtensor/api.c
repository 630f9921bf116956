/* api.c -- api.jsonl: making DTensors and coming back, on real ranks. */
#include <math.h>
#include <string.h>

#include "gradients.h"
#include "ranks.h"

/* A case's numbers as every rank reads them. */
typedef struct {
  Mesh *mesh;
  int ndim;
  int64_t size[MAX_DIMS];
  Placement place[MAX_AXES];
} Wanted;

static Status read_wanted(Rank *r, const char *size, Wanted *w) {
  int n;
  TRY(rank_mesh(r, &w->mesh));
  w->ndim = read_ints(field(r->c, size), w->size, MAX_DIMS);
  if (!read_placements(field(r->c, "placements"), w->ndim, w->place, &n))
    return fail(ERR_FAIL, "a placement does not parse");
  return OK;
}

static Status fewer_collectives(const Rank *r, const char *key) {
  int told = told_total(field(r->c, key));
  return r->collectives <= told ? OK : fail(ERR_DIFF, "%d collectives, PyTorch has %d", r->collectives, told);
}

/* Placements, sizes and strides of the whole. */
static Status same_spec(Rank *r, const Tensor *t, yyjson_val *places, yyjson_val *size, yyjson_val *stride) {
  Placement p[MAX_AXES];
  int n;
  char text[200];
  if (places && (!read_placements(places, t->ndim, p, &n) || !placements_equal(p, t->spec->place, n)))
    return fail(ERR_DIFF, "placed %s", placements_print(t->spec->place, t->spec->mesh->naxes, text, sizeof text));
  (void)r;
  TRY(rank_same_ints(size, t->size, t->ndim, "global size"));
  return stride ? rank_same_ints(stride, t->stride, t->ndim, "global stride") : OK;
}

/* ---- distribute_tensor ---------------------------------------------------------------------- */

/* What PyTorch's shards reduce to, or, if it refuses, what rank `src` brought. */
static Status told_whole(Rank *r, const Wanted *w, const Tensor *ours, int src, Tensor **out) {
  if (field(r->c, "error")) {
    int world = world_size(r->w), coord[MAX_AXES];
    for (int a = 0; a < w->mesh->naxes; a++) coord[a] = src;
    double first = 1000.0 * world * (double)mesh_position(w->mesh->axis, w->mesh->naxes, coord);
    return rank_arange(r, DT_F32, w->ndim, w->size, world, first, out);
  }
  Tensor *local, *whole;
  TRY(rank_read(r, DT_F32, yyjson_arr_get(field(r->c, "local"), (size_t)r->me), &local));
  FromLocal how = {.shape = ours->size, .stride = ours->stride, .ndim = ours->ndim};
  TRY(dtensor_from_local(&r->ctx, &r->scope, local, w->mesh, w->place, &how, &whole));
  return dtensor_full(&r->ctx, &r->scope, whole, out);
}

static Status check_distribute(Rank *r) {
  Wanted w;
  Tensor *brought, *t, *local, *told, *full;
  TRY(read_wanted(r, "shape", &w));
  int world = world_size(r->w),
      src = yyjson_is_int(field(r->c, "src_data_rank")) ? yyjson_get_int(field(r->c, "src_data_rank")) : -1;
  TRY(rank_arange(r, DT_F32, w.ndim, w.size, world, 1000.0 * world * r->me, &brought));
  TRY(dtensor_distribute(&r->ctx, &r->scope, brought, w.mesh, w.place, src, &t));
  if (field(r->c, "error")) r->better = true;
  else {
    TRY(fewer_collectives(r, "comm"));
    TRY(same_spec(r, t, field(r->c, "out_placements"), field(r->c, "global"), field(r->c, "stride")));
  }
  TRY(dtensor_to_local(&r->ctx, &r->scope, t, &local));
  if (t->spec->partial || r->better) { /* a split may be any: what it sums up to counts */
    TRY(told_whole(r, &w, t, src, &told));
    TRY(dtensor_full(&r->ctx, &r->scope, t, &full));
    return rank_same(r, full, told, "the whole");
  }
  TRY(rank_read(r, DT_F32, yyjson_arr_get(field(r->c, "local"), (size_t)r->me), &told));
  return rank_same(r, local, told, "the shard");
}

/* ---- from_local --------------------------------------------------------------------------------- */

/* Strides under which elements of the whole would share memory: PyTorch's where a shard has
 * one row, and two axes cut. */
static bool overlaps(yyjson_val *strides, const Tensor *t) {
  Tensor told = {.ndim = t->ndim};
  memcpy(told.size, t->size, sizeof told.size);
  read_ints(strides, told.stride, MAX_DIMS);
  return tensor_overlaps_itself(&told);
}

static Status check_from_local(Rank *r) {
  Wanted w;
  Tensor *local, *t, *kept;
  TRY(rank_mesh(r, &w.mesh));
  int64_t size[MAX_DIMS], shape[MAX_DIMS], stride[MAX_DIMS];
  int ndim = read_ints(yyjson_arr_get(field(r->c, "local_shapes"), (size_t)r->me), size, MAX_DIMS), n;
  if (!read_placements(field(r->c, "placements"), ndim, w.place, &n))
    return fail(ERR_FAIL, "a placement does not parse");
  TRY(rank_arange(r, DT_F32, ndim, size, 0, r->me, &local));
  FromLocal how = {.run_check = yyjson_get_bool(field(r->c, "run_check"))};
  if (field(r->c, "shape")) {
    how.ndim = read_ints(field(r->c, "shape"), shape, MAX_DIMS);
    read_ints(field(r->c, "stride"), stride, MAX_DIMS);
    how.shape = shape;
    how.stride = stride;
  }
  TRY(dtensor_from_local(&r->ctx, &r->scope, local, w.mesh, w.place, &how, &t));
  TRY(dtensor_to_local(&r->ctx, &r->scope, t, &kept));
  if (field(r->c, "error")) { /* uneven shards, found by run_check: the sizes add up */
    r->better = true;
    TRY(dtensor_full(&r->ctx, &r->scope, t, &kept));
    return tensor_same_size(kept, t) ? OK : fail(ERR_DIFF, "the whole has another size");
  }
  TRY(fewer_collectives(r, "comm"));
  yyjson_val *strides = yyjson_arr_get(field(r->c, "global_stride"), (size_t)r->me);
  if (overlaps(strides, t)) r->better = true, strides = NULL;
  TRY(same_spec(r, t, NULL, yyjson_arr_get(field(r->c, "global"), (size_t)r->me), strides));
  yyjson_val *fill = yyjson_arr_get(yyjson_arr_get(field(r->c, "fill"), (size_t)r->me), 0);
  double first = fill ? yyjson_get_num(fill) : 0;
  if (tensor_numel(kept) && (double)*(float *)tensor_data(kept) != first)
    return fail(ERR_DIFF, "filled with %g, not %g", (double)*(float *)tensor_data(kept), first);
  return OK;
}

/* ---- factories ------------------------------------------------------------------------------------ */

/* PyTorch on CPU has no random DTensors: ours are those of one rank. */
static Status check_random(Rank *r, const Wanted *w, Dtype dtype, bool normal) {
  Tensor *t, *plain, *full;
  r->ctx.seed = 5;
  Status s = (normal ? dtensor_randn : dtensor_rand)(&r->ctx, &r->scope, w->mesh, w->place, dtype, w->ndim, w->size,
                                                     &t);
  bool partial = false;
  for (int a = 0; a < w->mesh->naxes; a++) partial |= is_p(&w->place[a]);
  if (partial || !dtype_is_float(dtype)) {
    r->refused = s != OK;
    status_free(s);
    return OK;
  }
  TRY(s);
  r->ctx.offset = 0;
  TRY(OP(&r->call, normal ? "aten.randn.default" : "aten.rand.default", &plain, val_ints(w->size, w->ndim),
         val_dtype(dtype)));
  TRY(dtensor_full(&r->ctx, &r->scope, t, &full));
  r->better = true;
  return rank_same(r, full, plain, "random numbers");
}

static Status check_factory(Rank *r) {
  Wanted w;
  TRY(read_wanted(r, "size", &w));
  const char *fn = yyjson_get_str(field(r->c, "fn")), *name = yyjson_get_str(field(r->c, "dtype"));
  const char *made = yyjson_get_str(field(r->c, "out_dtype")); /* what PyTorch takes if none is given */
  Dtype dtype = name ? dtype_parse(name) : made ? dtype_parse(made) : DT_F32;
  if (!strncmp(fn, "rand", 4)) return check_random(r, &w, dtype, !strcmp(fn, "randn"));
  yyjson_val *value = yyjson_arr_get(yyjson_arr_get(field(r->c, "value"), 0), 0);
  double fill = value ? yyjson_get_num(value) : 0;
  Tensor *t;
  TRY(dtensor_fill(&r->ctx, &r->scope, w.mesh, w.place, dtype, w.ndim, w.size, fill, &t));
  TRY(same_spec(r, t, NULL, field(r->c, "global"), field(r->c, "stride")));
  if (t->dtype != dtype_parse(yyjson_get_str(field(r->c, "out_dtype"))))
    return fail(ERR_DIFF, "a tensor of %s", dtype_name(t->dtype));
  TRY(rank_same_ints(yyjson_arr_get(field(r->c, "local_shape"), (size_t)r->me), t->local->size, t->local->ndim,
                     "local size"));
  yyjson_val *first = yyjson_arr_get(yyjson_arr_get(field(r->c, "value"), (size_t)r->me), 0);
  if (!first) return OK;
  Tensor *told;
  TRY(rank_arange(r, DT_F64, t->local->ndim, t->local->size, 0, yyjson_get_num(first), &told));
  return rank_same(r, t->local, told, "elements");
}

/* ---- full_tensor ------------------------------------------------------------------------------------ */

static Status check_full(Rank *r) {
  Wanted w;
  Tensor *whole, *t, *full, *told;
  TRY(read_wanted(r, "shape", &w));
  TRY(rank_arange(r, DT_F32, w.ndim, w.size, 1, 0, &whole));
  TRY(dtensor_distribute(&r->ctx, &r->scope, whole, w.mesh, w.place, -1, &t));
  r->collectives = 0;
  TRY(dtensor_full(&r->ctx, &r->scope, t, &full));
  TRY(fewer_collectives(r, "comm_fwd"));
  TRY(rank_read(r, DT_F32, field(r->c, "full"), &told));
  TRY(rank_same(r, full, told, "the whole"));
  return field(r->c, "grad") ? check_grad_full(r) : OK;
}

Verdict case_api(Case *c) {
  static const struct {
    const char *kind;
    RankCheck *check;
  } table[] = {{"distribute_tensor", check_distribute},
               {"from_local", check_from_local},
               {"factory", check_factory},
               {"full_tensor", check_full},
               {"grad_redistribute", check_grad_redistribute},
               {"grad_from_local", check_grad_from_local},
               {"grad_to_local", check_grad_to_local}};
  const char *kind = yyjson_get_str(field(c, "kind"));
  int axis[MAX_AXES], n = read_sizes(field(c, "mesh"), axis, MAX_AXES), ranks = 1;
  for (int a = 0; a < n; a++) ranks *= axis[a];
  if (!strcmp(kind, "behaviour")) return case_behaviour(c);
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (!strcmp(kind, table[i].kind)) return on_ranks(c, ranks, table[i].check);
  return wrong(c, "a case of unknown kind '%s'", kind);
}
