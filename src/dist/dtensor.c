/* dtensor.c -- see dtensor.h. */
#include "dist/dtensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/boxes.h"
#include "dist/dist.h"
#include "kernels/copy.h"

static Status check_placements(const Mesh *m, const Placement *p, int ndim, const char *what) {
  return placements_check(p, m->naxes, ndim, what);
}

static Status empty_shard(Scope *scope, Dtype dtype, Tensor **out) {
  int64_t none = 0;
  return tensor_new(scope, dtype, 1, &none, out);
}

/* Calls an op of ops_dtensor.c as anybody would: through the line of handlers. */
static Status call_op(Ctx *ctx, Scope *scope, const char *name, const Value *args, int nargs, Tensor **out) {
  Arena arena = {0};
  Call c = {.ctx = ctx, .op = op_find(name), .scope = scope, .arena = &arena};
  Status s = c.op ? op_call(&c, name, out, 1, args, nargs) : fail(ERR_FAIL, "'%s' is not in the registry", name);
  arena_free(&arena);
  return s;
}

static Value val_spec(const Spec *spec) { return (Value){.kind = VAL_SPEC, .spec = spec}; }

/* A spec with other placements as an argument; NULL: None. */
static Status grad_value(const Spec *spec, const Placement *place, const char *what, Value *out) {
  const Spec *grad;
  *out = val_none();
  if (!place) return OK;
  TRY(check_placements(spec->mesh, place, spec->ndim, what));
  TRY(spec_with(spec, place, &grad));
  *out = val_spec(grad);
  return OK;
}

/* ---- from_local ------------------------------------------------------------------------------ */

enum { META = 2 + MAX_DIMS }; /* dtype, ndim, sizes */

static Status gather_meta(Mesh *m, const Tensor *local, int64_t **out) {
  Comm *group;
  TRY(mesh_group(m, (1u << m->naxes) - 1u, &group));
  int64_t mine[META] = {(int64_t)local->dtype, local->ndim};
  memcpy(mine + 2, local->size, (size_t)local->ndim * sizeof *mine);
  TRY_NEW(*out, malloc((size_t)m->size * META * sizeof **out));
  Coll c = {.kind = COLL_ALL_GATHER,
            .dtype = DT_I64,
            .send = mine,
            .recv = *out,
            .count = META,
            .where = m->hash,
            .why = "from_local(run_check)"};
  return comm_run(group, &c);
}

/* The global sizes that all shards together give: along a sharded dimension the sum over
 * the axes that cut it, with the other coordinates 0. */
static void sum_sizes(const Mesh *m, const Placement *p, const int64_t *meta, int ndim, int64_t *shape) {
  for (int d = 0; d < ndim; d++) {
    shape[d] = 0;
    for (int i = 0; i < m->size; i++) {
      int coord[MAX_AXES];
      bool counts = true;
      mesh_coord(m->axis, m->naxes, i, coord);
      for (int a = 0; a < m->naxes; a++) counts &= is_s_of(&p[a], d) || coord[a] == 0;
      if (counts) shape[d] += meta[i * META + 2 + d];
    }
  }
}

static Status compare_meta(const Mesh *m, const Placement *p, const int64_t *meta, int ndim, const int64_t *shape) {
  Layout l = {.ndim = ndim, .shape = shape, .naxes = m->naxes, .axis = m->axis, .place = p};
  char a[200], b[200], c[200];
  for (int i = 0; i < m->size; i++) {
    const int64_t *other = meta + i * META;
    int coord[MAX_AXES];
    int64_t want[MAX_DIMS];
    mesh_coord(m->axis, m->naxes, i, coord);
    if (other[0] != meta[0] || other[1] != meta[1])
      return fail(ERR_RANK, "from_local: rank %d brings %s with %lld dimensions, rank %d %s with %lld", m->rank[0],
                  dtype_name((Dtype)meta[0]), (long long)meta[1], m->rank[i], dtype_name((Dtype)other[0]),
                  (long long)other[1]);
    TRY(layout_local(&l, coord, want));
    if (memcmp(want, other + 2, (size_t)ndim * sizeof *want))
      return status_hint(fail(ERR_RANK, "from_local: rank %d brings %s, but %s placed %s gives it %s", m->rank[i],
                              shape_describe(ndim, other + 2, a, sizeof a),
                              shape_describe(ndim, shape, b, sizeof b), placements_print(p, m->naxes, c, sizeof c),
                              shape_describe(ndim, want, (char[200]){0}, 200)),
                         "shards are made as torch.chunk makes them: all alike but the last ones");
  }
  return OK;
}

/* Replicas become those of coordinate 0: one broadcast over all R axes. */
static Status agree_on_replicas(Ctx *ctx, Scope *scope, Mesh *m, const Placement *p, Tensor **local) {
  unsigned axes = 0;
  for (int a = 0; a < m->naxes; a++)
    if (is_r(&p[a]) && m->axis[a] > 1) axes |= 1u << a;
  if (!axes) return OK;
  Comm *group;
  TRY(mesh_group(m, axes, &group));
  Tensor *dense;
  TRY(tensor_new(scope, (*local)->dtype, (*local)->ndim, (*local)->size, &dense));
  kernel_copy(&ctx->kern, tensor_view(dense), tensor_view(*local));
  Coll c = {.kind = COLL_BROADCAST,
            .dtype = dense->dtype,
            .send = tensor_data(dense),
            .recv = tensor_data(dense),
            .count = tensor_numel(dense),
            .where = m->hash,
            .why = "from_local(run_check)"};
  dense->grad = grad_ref((*local)->grad);
  dense->grad_out = (*local)->grad_out;
  *local = dense;
  return comm_run(group, &c);
}

static Status run_check(Ctx *ctx, Scope *scope, Mesh *m, const Placement *p, bool known, int64_t *shape,
                        Tensor **local) {
  int64_t *meta = NULL;
  Status s = gather_meta(m, *local, &meta);
  if (!s && !known) sum_sizes(m, p, meta, (*local)->ndim, shape);
  if (!s) s = compare_meta(m, p, meta, (*local)->ndim, shape);
  free(meta);
  return s ? s : agree_on_replicas(ctx, scope, m, p, local);
}

/* As PyTorch does; where that makes elements share memory (a shard of one row, cut twice),
 * dense strides in the same order. */
static void infer_global(const Layout *l, const int64_t *local_stride, int64_t *shape, int64_t *stride) {
  Tensor whole = {.ndim = l->ndim};
  global_from_local(l, local_stride, whole.size, whole.stride);
  if (tensor_overlaps_itself(&whole)) local_strides(l->ndim, whole.size, local_stride, whole.stride);
  memcpy(shape, whole.size, (size_t)l->ndim * sizeof *shape);
  memcpy(stride, whole.stride, (size_t)l->ndim * sizeof *stride);
}

Status dtensor_from_local(Ctx *ctx, Scope *scope, Tensor *local, Mesh *m, const Placement *place,
                          const FromLocal *how, Tensor **out) {
  if (local->spec) return fail(ERR_USAGE, "from_local takes this rank's plain shard, not a DTensor");
  int ndim = how->shape ? how->ndim : local->ndim;
  int64_t shape[MAX_DIMS], stride[MAX_DIMS];
  if (ndim < 0 || ndim > MAX_DIMS)
    return fail(ERR_USAGE, "from_local: a tensor of %d dimensions; at most %d are possible", ndim, MAX_DIMS);
  TRY(check_placements(m, place, ndim, "from_local"));
  Layout l = {.ndim = ndim, .shape = local->size, .naxes = m->naxes, .axis = m->axis, .place = place};
  if (how->shape) {
    memcpy(shape, how->shape, (size_t)ndim * sizeof *shape);
    contiguous_strides(ndim, shape, stride);
  } else infer_global(&l, local->stride, shape, stride);
  if (how->stride) memcpy(stride, how->stride, (size_t)ndim * sizeof *stride);
  if (!m->inside) TRY(empty_shard(scope, local->dtype, &local));
  else if (how->run_check) {
    TRY(run_check(ctx, scope, m, place, how->shape != NULL, shape, &local));
    if (!how->shape && !how->stride) local_strides(ndim, shape, local->stride, stride);
  }
  const Spec *spec;
  TRY(spec_new(m, local->dtype, ndim, shape, stride, place, &spec));
  if (m->inside && (local->ndim != ndim || memcmp(spec->local, local->size, (size_t)ndim * sizeof *shape))) {
    char a[200], b[600];
    return status_hint(fail(ERR_USAGE, "from_local: this rank brings %s, but its part of %s is another size",
                            tensor_describe(local, a, sizeof a), spec_print(spec, b, sizeof b)),
                       "give the global shape, or set run_check");
  }
  Value grad;
  TRY(grad_value(spec, how->grad, "grad_placements of from_local", &grad));
  return call_op(ctx, scope, "tess.dtensor_from_local.default", OP_ARGS(val_tensor(local), val_spec(spec), grad),
                 out);
}

Status dtensor_to_local_with(Ctx *ctx, Scope *scope, const Tensor *t, const Placement *grad, Tensor **out) {
  Value asked;
  if (!t->spec) return fail(ERR_USAGE, "to_local of a plain tensor");
  if (!t->local) return fail(ERR_USAGE, "to_local on a mesh that is made for planning");
  TRY(grad_value(t->spec, grad, "grad_placements of to_local", &asked));
  return call_op(ctx, scope, "tess.dtensor_to_local.default", OP_ARGS(val_tensor(t), asked), out);
}

/* ---- redistribute ------------------------------------------------------------------------------ */

static Status cast_local(Ctx *ctx, Scope *scope, Tensor *local, Dtype dtype, Tensor **out) {
  TRY(tensor_new(scope, dtype, local->ndim, local->size, out));
  kernel_copy(&ctx->kern, tensor_view(*out), tensor_view(local));
  return OK;
}

Status dtensor_redistribute_as(Ctx *ctx, Scope *scope, const Tensor *t, Mesh *mesh, const Placement *place,
                               Dtype forward, Dtype backward, Tensor **out) {
  if (!t->spec) return status_hint(fail(ERR_USAGE, "redistribute of a plain tensor"), "distribute it first");
  Mesh *m = mesh ? mesh : t->spec->mesh;
  TRY(check_placements(m, place, t->ndim, "redistribute"));
  const Spec *to;
  TRY(spec_new(m, forward == DT_NONE ? t->dtype : forward, t->ndim, t->spec->shape, t->spec->stride, place, &to));
  return call_op(
      ctx, scope, "tess.dtensor_redistribute.default",
      OP_ARGS(val_tensor(t), val_spec(to), val_str("redistribute"), val_bool(false), val_dtype(backward)), out);
}

Status dtensor_redistribute(Ctx *ctx, Scope *scope, const Tensor *t, Mesh *mesh, const Placement *place,
                            Dtype dtype, Tensor **out) {
  return dtensor_redistribute_as(ctx, scope, t, mesh, place, dtype, DT_NONE, out);
}

Status dtensor_place(Ctx *ctx, Scope *scope, const Tensor *t, const Spec *to, const char *why, Tensor **out) {
  return call_op(ctx, scope, "tess.dtensor_redistribute.default",
                 OP_ARGS(val_tensor(t), val_spec(to), val_str(why), val_bool(true)), out);
}

Status dtensor_full_with(Ctx *ctx, Scope *scope, const Tensor *t, const Placement *grad, Tensor **out) {
  Placement r[MAX_AXES] = {{.kind = PLACE_R}};
  Tensor *whole;
  if (!t->spec) return fail(ERR_USAGE, "full_tensor of a plain tensor");
  TRY(dtensor_redistribute(ctx, scope, t, NULL, r, DT_NONE, &whole));
  return dtensor_to_local_with(ctx, scope, whole, grad, out);
}

/* ---- distribute -------------------------------------------------------------------------------- */

static Status refuse_again(const Tensor *t, const Spec *want) {
  char a[600], b[600];
  return status_hint(fail(ERR_USAGE, "distribute_tensor of a DTensor %s as %s", spec_print(t->spec, a, sizeof a),
                          spec_print(want, b, sizeof b)),
                     "use redistribute");
}

/* Everybody's part out of the root's whole, in one collective. */
static Status scatter_parts(Ctx *ctx, Scope *scope, const Spec *to, Tensor *whole, int src, Tensor **out) {
  Mesh *m = to->mesh;
  Comm *group;
  int root[MAX_AXES], coord[MAX_AXES];
  for (int a = 0; a < m->naxes; a++) {
    root[a] = src;
    if (src >= m->axis[a]) return fail(ERR_USAGE, "src_data_rank %d on a mesh axis of %d ranks", src, m->axis[a]);
  }
  TRY(mesh_group(m, (1u << m->naxes) - 1u, &group));
  TRY(tensor_new(scope, to->dtype, to->ndim, to->local, out));
  Placement r[MAX_AXES] = {{.kind = PLACE_R}};
  Layout all = spec_layout(to), parts = spec_layout(to);
  all.place = r;
  Arena arena = {0};
  BoxList send = {0}, recv = {0};
  Region region, part;
  int64_t none[MAX_DIMS] = {0};
  int giver = (int)mesh_position(m->axis, m->naxes, root);
  bool mine = !memcmp(root, m->coord, (size_t)m->naxes * sizeof *root);
  Status s = region_of(&all, root, &arena, &region);
  for (int i = 0; !s && mine && i < m->size; i++) {
    mesh_coord(m->axis, m->naxes, i, coord);
    s = region_of(&parts, coord, &arena, &part);
    if (!s) s = boxes_shared(&region, whole->stride, &part, none, i, &arena, &send, NULL);
  }
  if (!s) s = region_of(&parts, m->coord, &arena, &part);
  if (!s) s = boxes_shared(&region, none, &part, (*out)->stride, giver, &arena, NULL, &recv);
  Coll c = {.kind = COLL_EXCHANGE,
            .dtype = to->dtype,
            .send = tensor_data(whole),
            .recv = tensor_data(*out),
            .send_box = send.v,
            .nsend = send.n,
            .recv_box = recv.v,
            .nrecv = recv.n,
            .where = m->hash,
            .why = "distribute_tensor"};
  if (!s)
    s = dist_log(m->dist, STEP_SCATTER, (1u << m->naxes) - 1u, to->local_numel * (int64_t)dtype_size(to->dtype),
                 "distribute_tensor");
  if (!s) s = comm_run(group, &c);
  arena_free(&arena);
  (void)ctx;
  return s;
}

/* This rank's part of a plain tensor that all have; meta, or NULL, where there are no elements. */
Status dtensor_cut(Ctx *ctx, Scope *scope, Tensor *t, const Spec *to, int src, Tensor **out) {
  Mesh *m = to->mesh;
  const Spec *landed, *whole;
  Placement arrive[MAX_AXES], r[MAX_AXES] = {{.kind = PLACE_R}};
  *out = NULL;
  if (!m->world) return OK;
  if (!t->storage)
    return tensor_meta(scope, t->dtype, to->local_ndim, to->local, out); /* without data: sizes only */
  if (!m->inside) return empty_shard(scope, t->dtype, out);
  for (int a = 0; a < m->naxes; a++) arrive[a] = is_p(&to->place[a]) ? place_r() : to->place[a];
  TRY(spec_with(to, arrive, &landed));
  TRY(spec_with(to, r, &whole));
  if (src < 0) TRY(redistribute_local(ctx, whole, landed, t, "distribute_tensor", scope, out));
  else TRY(scatter_parts(ctx, scope, landed, t, src, out));
  TRY(redistribute_local(ctx, landed, to, *out, "distribute_tensor", scope, out));
  return *out == t ? cast_local(ctx, scope, t, t->dtype, out) : OK; /* never the caller's own memory */
}

Status dtensor_distribute(Ctx *ctx, Scope *scope, Tensor *t, Mesh *m, const Placement *place, int src,
                          Tensor **out) {
  TRY(check_placements(m, place, t->ndim, "distribute_tensor"));
  const Spec *to;
  int64_t stride[MAX_DIMS];
  local_strides(t->ndim, t->size, t->stride, stride); /* dense, dimensions in the order of t's */
  TRY(spec_new(m, t->dtype, t->ndim, t->size, stride, place, &to));
  if (t->spec)
    return t->spec->mesh == m && placements_equal(t->spec->place, place, m->naxes) ? tensor_handle(scope, t, out)
                                                                                   : refuse_again(t, to);
  return call_op(ctx, scope, "tess.dtensor_distribute.default", OP_ARGS(val_tensor(t), val_spec(to), val_int(src)),
                 out);
}

Status dtensor_fill(Ctx *ctx, Scope *scope, Mesh *m, const Placement *place, Dtype dtype, int ndim,
                    const int64_t *size, double value, Tensor **out) {
  TRY(check_placements(m, place, ndim, "a new DTensor"));
  const Spec *spec;
  TRY(spec_new(m, dtype, ndim, size, NULL, place, &spec));
  Tensor *local = NULL;
  if (m->world) {
    TRY(tensor_new(scope, dtype, spec->local_ndim, spec->local, &local));
    if (tensor_numel(local)) kernel_copy(&ctx->kern, tensor_view(local), (View){&value, NULL, NULL, 0, DT_F64});
  }
  return dtensor_wrap(scope, spec, local, out);
}

/* ---- asking ------------------------------------------------------------------------------------- */

Status dtensor_equal(Ctx *ctx, const Tensor *a, const Tensor *b, bool *out) {
  *out = false;
  if (a->dtype != b->dtype || !tensor_same_size(a, b)) return OK;
  Scope scope = {0};
  Arena arena = {0};
  Tensor *x = NULL, *y = NULL, *same = NULL;
  Status s = a->spec ? dtensor_full(ctx, &scope, a, &x) : tensor_alias(&scope, a, &x);
  if (!s) s = b->spec ? dtensor_full(ctx, &scope, b, &y) : tensor_alias(&scope, b, &y);
  Call c = {.ctx = ctx, .op = op_find("aten.eq.Tensor"), .scope = &scope, .arena = &arena};
  if (!s && tensor_numel(x)) {
    s = OP(&c, "aten.eq.Tensor", &same, val_tensor(x), val_tensor(y));
    if (!s) s = OP(&c, "aten.all.default", &same, val_tensor(same));
    if (!s) *out = *(bool *)tensor_data(same);
  } else if (!s) *out = true;
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

const char *dtensor_print(const Tensor *t, char *buf, size_t cap) {
  char mesh[256], place[400], local[160] = "none";
  if (!t->spec) return tensor_describe(t, buf, cap);
  if (t->local) tensor_describe(t->local, local, sizeof local);
  char whole[200];
  snprintf(buf, cap, "DTensor(%s%s, %s, [%s], local %s)", dtype_name(t->dtype),
           shape_describe(t->ndim, t->size, whole, sizeof whole), mesh_print(t->spec->mesh, mesh, sizeof mesh),
           placements_print(t->spec->place, t->spec->mesh->naxes, place, sizeof place), local);
  return buf;
}
