/* dtensor_random.c -- new DTensors of random numbers; see dtensor.h.
 *
 * Element i of the whole takes number i of the stream, wherever it lies: every mesh and
 * every placement gives the same tensor. */
#include "dist/dtensor.h"

/* The op's infer tells sizes and draws of the whole; its run is the shard's. */
static Status make_random(Ctx *ctx, Scope *scope, const char *name, Mesh *m, const Placement *place, Dtype dtype,
                          int ndim, const int64_t *size, Arena *arena, Tensor **out) {
  const Op *op = op_find(name);
  const Spec *spec;
  Value bound[MAX_PARAMS];
  NamedValue args[2] = {{NULL, val_ints(size, ndim)}, {"dtype", val_dtype(dtype)}};
  if (!op) return fail(ERR_FAIL, "'%s' is not in the registry", name);
  TRY(placements_check(place, m->naxes, ndim, "a random DTensor"));
  TRY(spec_new(m, dtype, ndim, size, NULL, place, &spec));
  if (spec->partial)
    return status_hint(
        fail(ERR_USAGE, "a random DTensor cannot be placed P: nobody knows the distribution of the parts"),
        "place it R or S");
  Scope metas = {0};
  Call whole = {.ctx = ctx, .op = op, .arg = bound, .scope = &metas, .arena = arena};
  Status s = op_bind(arena, op, args, 2, bound);
  if (!s) s = op->def->infer(&whole);
  int64_t draws = s ? 0 : op->def->draws(&whole);
  scope_clear(&metas);
  TRY(s);
  Tensor *local = NULL;
  if (m->world && m->inside) {
    Call part = {.ctx = ctx, .op = op, .arg = bound, .scope = scope, .arena = arena};
    args[0].value = val_ints(spec->local, spec->local_ndim);
    TRY(op_bind(arena, op, args, 2, bound));
    TRY(random_local(&part, spec, draws));
    local = out_tensor(&part, 0);
  } else {
    ctx->offset += (uint64_t)draws;
    if (m->world) TRY(tensor_new(scope, dtype, spec->local_ndim, spec->local, &local));
  }
  return dtensor_wrap(scope, spec, local, out);
}

static Status with_arena(Ctx *ctx, Scope *scope, const char *name, Mesh *m, const Placement *place, Dtype dtype,
                         int ndim, const int64_t *size, Tensor **out) {
  Arena arena = {0};
  Status s = make_random(ctx, scope, name, m, place, dtype, ndim, size, &arena, out);
  arena_free(&arena);
  return s;
}

Status dtensor_rand(Ctx *ctx, Scope *scope, Mesh *m, const Placement *place, Dtype dtype, int ndim,
                    const int64_t *size, Tensor **out) {
  return with_arena(ctx, scope, "aten.rand.default", m, place, dtype, ndim, size, out);
}

Status dtensor_randn(Ctx *ctx, Scope *scope, Mesh *m, const Placement *place, Dtype dtype, int ndim,
                     const int64_t *size, Tensor **out) {
  return with_arena(ctx, scope, "aten.randn.default", m, place, dtype, ndim, size, out);
}
