/* api_dtensor.c -- public functions on DTensors. */
#include <stdlib.h>
#include <string.h>

#include "dist/dtensor.h"
#include "runtime/api.h"

/* The mesh (NULL: the context's current one) and the placements that a text spells on it. */
typedef struct {
  Mesh *mesh;
  Placement place[MAX_AXES];
} Where;

static Status where(TessCtx *ctx, Mesh *mesh, const char *placements, int ndim, Where *out) {
  Dist *d = NULL;
  TRY(api_dist(ctx, &d));
  out->mesh = mesh ? mesh : d->current;
  if (!out->mesh) return status_hint(fail(ERR_USAGE, "no mesh is given and none is current"), "pass one, or tess_set_mesh()");
  int n = out->mesh->naxes;
  for (int a = 0; a < n; a++) out->place[a] = place_r();
  if (!placements) return OK;
  TRY(placements_parse(placements, ndim, out->place, &n));
  if (n == out->mesh->naxes) return OK;
  char text[256];
  return fail(ERR_USAGE, "%d placement%s '%s' for %s, which has %d axes", n, n == 1 ? "" : "s", placements, mesh_print(out->mesh, text, sizeof text), out->mesh->naxes);
}

TessTensor *tess_from_local(TessCtx *ctx, TessTensor *local, TessMesh *mesh, const char *placements, int run_check, int ndim,
                            const int64_t *shape, const int64_t *stride) {
  Where w;
  Tensor *t = NULL;
  if (ctx->error || !local || api_stick(ctx, where(ctx, mesh, placements, shape ? ndim : local->ndim, &w))) return NULL;
  FromLocal how = {.shape = shape, .stride = stride, .ndim = ndim, .run_check = run_check != 0};
  return api_stick(ctx, dtensor_from_local(ctx, api_scope(ctx), local, w.mesh, w.place, &how, &t)) ? NULL : t;
}

TessTensor *tess_to_local(TessCtx *ctx, const TessTensor *t) {
  Tensor *local = NULL;
  if (ctx->error || !t) return NULL;
  return api_stick(ctx, dtensor_to_local(api_scope(ctx), t, &local)) ? NULL : local;
}

TessTensor *tess_full_tensor(TessCtx *ctx, const TessTensor *t) {
  Tensor *whole = NULL;
  if (ctx->error || !t) return NULL;
  return api_stick(ctx, dtensor_full(ctx, api_scope(ctx), t, &whole)) ? NULL : whole;
}

TessTensor *tess_redistribute(TessCtx *ctx, const TessTensor *t, TessMesh *mesh, const char *placements, int dtype) {
  Where w;
  Tensor *moved = NULL;
  if (ctx->error || !t) return NULL;
  if (!placements && api_stick(ctx, fail(ERR_USAGE, "redistribute needs placements"))) return NULL;
  if (api_stick(ctx, where(ctx, mesh ? mesh : tess_mesh_of(t), placements, t->ndim, &w))) return NULL;
  Dtype as = dtype < 0 ? DT_NONE : (Dtype)dtype;
  return api_stick(ctx, dtensor_redistribute(ctx, api_scope(ctx), t, w.mesh, w.place, as, &moved)) ? NULL : moved;
}

struct TessWork {
  TessCtx *ctx;
  const Spec *to;
  Redistribution *moving;
};

TessWork *tess_redistribute_start(TessCtx *ctx, const TessTensor *t, const char *placements) {
  Where w;
  if (ctx->error || !t) return NULL;
  if (!t->spec && api_stick(ctx, fail(ERR_USAGE, "redistribute of a plain tensor"))) return NULL;
  if (!t->local && api_stick(ctx, fail(ERR_USAGE, "a mesh that is made for planning moves nothing"))) return NULL;
  if (api_stick(ctx, where(ctx, t->spec->mesh, placements, t->ndim, &w))) return NULL;
  TessWork *work = calloc(1, sizeof *work);
  if (!work) {
    api_stick(ctx, fail_oom());
    return NULL;
  }
  work->ctx = ctx;
  if (!api_stick(ctx, spec_with(t->spec, w.place, &work->to)) &&
      !api_stick(ctx, redistribute_start(ctx, t->spec, work->to, t->local, "redistribute", &work->moving)))
    return work;
  free(work);
  return NULL;
}

TessTensor *tess_redistribute_wait(TessWork *work) {
  if (!work) return NULL;
  TessCtx *ctx = work->ctx;
  Tensor *local = NULL, *t = NULL;
  const Spec *to = work->to;
  Status s = redistribute_wait(work->moving, api_scope(ctx), &local);
  free(work);
  if (!s) s = dtensor_wrap(api_scope(ctx), to, local, &t);
  return api_stick(ctx, s) ? NULL : t;
}

TessTensor *tess_distribute_tensor(TessCtx *ctx, TessTensor *t, TessMesh *mesh, const char *placements, int src) {
  Where w;
  Tensor *spread = NULL;
  if (ctx->error || !t || api_stick(ctx, where(ctx, mesh, placements, t->ndim, &w))) return NULL;
  return api_stick(ctx, dtensor_distribute(ctx, api_scope(ctx), t, w.mesh, w.place, src, &spread)) ? NULL : spread;
}

TessTensor *tess_dtensor_full(TessCtx *ctx, TessMesh *mesh, const char *placements, TessDtype dtype, int ndim, const int64_t *size, double value) {
  Where w;
  Tensor *t = NULL;
  if (ctx->error || api_stick(ctx, where(ctx, mesh, placements, ndim, &w))) return NULL;
  return api_stick(ctx, dtensor_fill(ctx, api_scope(ctx), w.mesh, w.place, (Dtype)dtype, ndim, size, value, &t)) ? NULL : t;
}

TessTensor *tess_dtensor_rand(TessCtx *ctx, TessMesh *mesh, const char *placements, TessDtype dtype, int ndim, const int64_t *size, int normal) {
  Where w;
  Tensor *t = NULL;
  if (ctx->error || api_stick(ctx, where(ctx, mesh, placements, ndim, &w))) return NULL;
  return api_stick(ctx, (normal ? dtensor_randn : dtensor_rand)(ctx, api_scope(ctx), w.mesh, w.place, (Dtype)dtype, ndim, size, &t)) ? NULL : t;
}

TessTensor *tess_plan_tensor(TessCtx *ctx, TessMesh *mesh, const char *placements, TessDtype dtype, int ndim, const int64_t *size, const int64_t *stride) {
  Where w;
  Tensor *t = NULL;
  const Spec *spec;
  if (ctx->error || api_stick(ctx, where(ctx, mesh, placements, ndim, &w))) return NULL;
  if (api_stick(ctx, spec_new(w.mesh, (Dtype)dtype, ndim, size, stride, w.place, &spec))) return NULL;
  return api_stick(ctx, dtensor_wrap(api_scope(ctx), spec, NULL, &t)) ? NULL : t;
}

int tess_is_dtensor(const TessTensor *t) { return t && t->spec; }
TessMesh *tess_mesh_of(const TessTensor *t) { return t && t->spec ? t->spec->mesh : NULL; }

const char *tess_placements(const TessTensor *t, char *buf, size_t cap) {
  if (cap) buf[0] = 0;
  return t && t->spec ? placements_print(t->spec->place, t->spec->mesh->naxes, buf, cap) : buf;
}

const char *tess_repr(const TessTensor *t, char *buf, size_t cap) { return dtensor_print(t, buf, cap); }

int tess_equal(TessCtx *ctx, const TessTensor *a, const TessTensor *b) {
  bool same = false;
  if (ctx->error || !a || !b || api_stick(ctx, dtensor_equal(ctx, a, b, &same))) return -1;
  return same;
}
