/* api_dtensor.c -- public functions on DTensors. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/json.h"
#include "dist/checkpoint.h"
#include "dist/dtensor.h"

/* The mesh (NULL: the context's current one) and the placements that a text spells on it. */
typedef struct {
  Mesh *mesh;
  Placement place[MAX_AXES];
} Where;

Status api_mesh(TessCtx *ctx, Mesh *given, Mesh **out) {
  Dist *d = NULL;
  TRY(api_dist(ctx, &d));
  *out = given ? given : d->current;
  return *out
             ? OK
             : status_hint(fail(ERR_USAGE, "no mesh is given and none is current"), "pass one, or tess_set_mesh()");
}

Status api_axis(TessCtx *ctx, Mesh *given, const char *what, Mesh **out) {
  char text[256];
  TRY(api_mesh(ctx, given, out));
  if ((*out)->naxes == 1 && (*out)->inside && (*out)->world) return OK;
  return status_hint(fail(ERR_USAGE, "%s on a mesh of one axis that this rank is on, not on %s", what,
                          mesh_print(*out, text, sizeof text)),
                     "take the axis with tess_mesh_sub(), in Python mesh[\"tp\"]");
}

static Status where(TessCtx *ctx, Mesh *mesh, const char *placements, int ndim, Where *out) {
  TRY(api_mesh(ctx, mesh, &out->mesh));
  int n = out->mesh->naxes;
  for (int a = 0; a < n; a++) out->place[a] = place_r();
  if (!placements) return OK;
  TRY(placements_parse(placements, ndim, out->place, &n));
  if (n == out->mesh->naxes) return OK;
  char text[256];
  return fail(ERR_USAGE, "%d placement%s '%s' for %s, which has %d axes", n, n == 1 ? "" : "s", placements,
              mesh_print(out->mesh, text, sizeof text), out->mesh->naxes);
}

/* Placements of a gradient, by the axes of a mesh; NULL if none are told. */
static Status grad_places(const Mesh *m, const char *text, int ndim, Placement *room, const Placement **out) {
  int n = 0;
  *out = text ? room : NULL;
  if (!text) return OK;
  TRY(placements_parse(text, ndim, room, &n));
  return n == m->naxes
             ? OK
             : fail(ERR_USAGE, "%d placements of a gradient, '%s', on a mesh of %d axes", n, text, m->naxes);
}

TessTensor *tess_from_local_grad(TessCtx *ctx, TessTensor *local, TessMesh *mesh, const char *placements,
                                 int run_check, int ndim, const int64_t *shape, const int64_t *stride,
                                 const char *grad_placements) {
  Where w;
  Tensor *t = NULL;
  Placement grad[MAX_AXES];
  FromLocal how = {.shape = shape, .stride = stride, .ndim = ndim, .run_check = run_check != 0};
  if (!API_BEGIN(ctx, GIVEN("the shard", local), LISTED("the shape", "", shape ? ndim : 0)) ||
      api_stick(ctx, where(ctx, mesh, placements, shape ? ndim : local->ndim, &w)) ||
      api_stick(ctx, grad_places(w.mesh, grad_placements, shape ? ndim : local->ndim, grad, &how.grad)))
    return NULL;
  return api_stick(ctx, dtensor_from_local(ctx, api_scope(ctx), local, w.mesh, w.place, &how, &t)) ? NULL : t;
}

TessTensor *tess_from_local(TessCtx *ctx, TessTensor *local, TessMesh *mesh, const char *placements, int run_check,
                            int ndim, const int64_t *shape, const int64_t *stride) {
  return tess_from_local_grad(ctx, local, mesh, placements, run_check, ndim, shape, stride, NULL);
}

static Status open_local(TessCtx *ctx, const Tensor *t, const char *text, bool full, Tensor **out) {
  Placement grad[MAX_AXES];
  const Placement *given = NULL;
  if (text && !t->spec) return fail(ERR_USAGE, "a plain tensor has no shards");
  if (text) TRY(grad_places(t->spec->mesh, text, t->ndim, grad, &given));
  return (full ? dtensor_full_with : dtensor_to_local_with)(ctx, api_scope(ctx), t, given, out);
}

TessTensor *tess_to_local_grad(TessCtx *ctx, const TessTensor *t, const char *grad_placements) {
  Tensor *local = NULL;
  if (!API_BEGIN(ctx, GIVEN("the tensor", t))) return NULL;
  return api_stick(ctx, open_local(ctx, t, grad_placements, false, &local)) ? NULL : local;
}

TessTensor *tess_to_local(TessCtx *ctx, const TessTensor *t) { return tess_to_local_grad(ctx, t, NULL); }

TessTensor *tess_full_tensor_grad(TessCtx *ctx, const TessTensor *t, const char *grad_placements) {
  Tensor *whole = NULL;
  if (!API_BEGIN(ctx, GIVEN("the tensor", t))) return NULL;
  return api_stick(ctx, open_local(ctx, t, grad_placements, true, &whole)) ? NULL : whole;
}

TessTensor *tess_full_tensor(TessCtx *ctx, const TessTensor *t) { return tess_full_tensor_grad(ctx, t, NULL); }

static Status dtype_of(int number, Dtype *out) {
  if (number > (int)TESS_C64) return fail(ERR_USAGE, "there is no dtype %d", number);
  *out = number < 0 ? DT_NONE : (Dtype)number;
  return OK;
}

TessTensor *tess_redistribute_grad(TessCtx *ctx, const TessTensor *t, TessMesh *mesh, const char *placements,
                                   int dtype, int backward_dtype) {
  Where w;
  Tensor *moved = NULL;
  Dtype forward = DT_NONE, backward = DT_NONE;
  if (!API_BEGIN(ctx, GIVEN("the tensor", t), GIVEN("the text of placements", placements)) ||
      api_stick(ctx, dtype_of(dtype, &forward)) || api_stick(ctx, dtype_of(backward_dtype, &backward)))
    return NULL;
  if (api_stick(ctx, where(ctx, mesh ? mesh : tess_mesh_of(t), placements, t->ndim, &w))) return NULL;
  return api_stick(ctx, dtensor_redistribute_as(ctx, api_scope(ctx), t, w.mesh, w.place, forward, backward, &moved))
             ? NULL
             : moved;
}

TessTensor *tess_redistribute(TessCtx *ctx, const TessTensor *t, TessMesh *mesh, const char *placements,
                              int dtype) {
  return tess_redistribute_grad(ctx, t, mesh, placements, dtype, -1);
}

struct TessWork {
  TessCtx *ctx;
  const Spec *to;
  Redistribution *moving;
};

TessWork *tess_redistribute_start(TessCtx *ctx, const TessTensor *t, const char *placements) {
  Where w;
  if (!API_BEGIN(ctx, GIVEN("the tensor", t))) return NULL;
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

Status api_distribute(TessCtx *ctx, Scope *scope, Tensor *t, Mesh *mesh, const Placement *place, int src,
                      Tensor **out) {
  return tensor_requires_grad(t) ? tape_distribute(api_tape(ctx), scope, t, mesh, place, src, out)
                                 : dtensor_distribute(ctx, scope, t, mesh, place, src, out);
}

TessTensor *tess_distribute_tensor(TessCtx *ctx, TessTensor *t, TessMesh *mesh, const char *placements, int src) {
  Where w;
  Tensor *spread = NULL;
  if (!API_BEGIN(ctx, GIVEN("the tensor", t)) || api_stick(ctx, where(ctx, mesh, placements, t->ndim, &w)))
    return NULL;
  return api_stick(ctx, api_distribute(ctx, api_scope(ctx), t, w.mesh, w.place, src, &spread)) ? NULL : spread;
}

TessTensor *tess_dtensor_full(TessCtx *ctx, TessMesh *mesh, const char *placements, TessDtype dtype, int ndim,
                              const int64_t *size, double value) {
  Where w;
  Tensor *t = NULL;
  if (!API_READY(ctx) || api_stick(ctx, api_check_type(dtype, ndim, size)) ||
      api_stick(ctx, where(ctx, mesh, placements, ndim, &w)))
    return NULL;
  return api_stick(ctx, dtensor_fill(ctx, api_scope(ctx), w.mesh, w.place, (Dtype)dtype, ndim, size, value, &t))
             ? NULL
             : t;
}

TessTensor *tess_dtensor_rand(TessCtx *ctx, TessMesh *mesh, const char *placements, TessDtype dtype, int ndim,
                              const int64_t *size, int normal) {
  Where w;
  Tensor *t = NULL;
  if (!API_READY(ctx) || api_stick(ctx, api_check_type(dtype, ndim, size)) ||
      api_stick(ctx, where(ctx, mesh, placements, ndim, &w)))
    return NULL;
  return api_stick(ctx, (normal ? dtensor_randn : dtensor_rand)(ctx, api_scope(ctx), w.mesh, w.place, (Dtype)dtype,
                                                                ndim, size, &t))
             ? NULL
             : t;
}

TessTensor *tess_plan_tensor(TessCtx *ctx, TessMesh *mesh, const char *placements, TessDtype dtype, int ndim,
                             const int64_t *size, const int64_t *stride) {
  Where w;
  Tensor *t = NULL;
  const Spec *spec;
  if (!API_READY(ctx) || api_stick(ctx, api_check_type(dtype, ndim, size)) ||
      api_stick(ctx, tensor_meta(api_scope(ctx), (Dtype)dtype, ndim, size, &t)) || /* could there be one? */
      api_stick(ctx, where(ctx, mesh, placements, ndim, &w)))
    return NULL;
  if (api_stick(ctx, spec_new(w.mesh, (Dtype)dtype, ndim, size, stride, w.place, &spec))) return NULL;
  return api_stick(ctx, dtensor_wrap(api_scope(ctx), spec, NULL, &t)) ? NULL : t;
}

int tess_is_dtensor(const TessTensor *t) { return t && t->spec; }
TessMesh *tess_mesh_of(const TessTensor *t) { return t && t->spec ? t->spec->mesh : NULL; }

const char *tess_placements(const TessTensor *t, char *buf, size_t cap) {
  if (!buf || !cap) return "";
  buf[0] = 0;
  return t && t->spec ? placements_print(t->spec->place, t->spec->mesh->naxes, buf, cap) : buf;
}

const char *tess_repr(const TessTensor *t, char *buf, size_t cap) {
  if (!buf || !cap) return "";
  buf[0] = 0;
  return t ? dtensor_print(t, buf, cap) : buf;
}

int tess_equal(TessCtx *ctx, const TessTensor *a, const TessTensor *b) {
  bool same = false;
  if (!API_BEGIN(ctx, GIVEN("the first tensor", a), GIVEN("the second tensor", b)) ||
      api_stick(ctx, dtensor_equal(ctx, a, b, &same)))
    return -1;
  return same;
}

/* ---- in two parts ---------------------------------------------------------------------------------- */

static void put_list(TextBuf *out, const char *name, const int64_t *v, int n) {
  text_printf(out, "\"%s\": [", name);
  for (int i = 0; i < n; i++) text_printf(out, "%s%lld", i ? ", " : "", (long long)v[i]);
  text_puts(out, "], ");
}

static Status spec_text(const Spec *s, char *buf, size_t cap) {
  TextBuf out = {0};
  char place[512];
  text_puts(&out, "{");
  put_list(&out, "shape", s->shape, s->ndim);
  put_list(&out, "stride", s->stride, s->ndim);
  text_printf(&out, "\"placements\": \"%s\"}", placements_print(s->place, s->mesh->naxes, place, sizeof place));
  Status status = out.failed       ? fail_oom()
                  : out.len >= cap ? fail(ERR_USAGE, "a spec of %zu bytes does not fit %zu", out.len + 1, cap)
                                   : OK;
  if (!status) memcpy(buf, out.text, out.len + 1);
  text_free(&out);
  return status;
}

TessTensor *tess_dtensor_flatten(TessCtx *ctx, const TessTensor *t, char *spec, size_t cap) {
  if (!API_BEGIN(ctx, GIVEN("the tensor", t), GIVEN("the room for the spec", spec))) return NULL;
  if (!t->spec && api_stick(ctx, fail(ERR_USAGE, "flatten of a plain tensor"))) return NULL;
  return api_stick(ctx, spec_text(t->spec, spec, cap)) ? NULL : tess_to_local(ctx, t);
}

static Status read_list(yyjson_val *object, const char *name, int64_t *out, int *n) {
  yyjson_val *list, *e;
  size_t i, m;
  TRY(json_array(object, name, "spec", &list));
  *n = (int)yyjson_arr_size(list);
  if (*n > MAX_DIMS) return fail(ERR_USAGE, "a spec of %d dimensions; at most %d are possible", *n, MAX_DIMS);
  yyjson_arr_foreach(list, i, m, e) if (!json_as_int64(e, &out[i]) || out[i] < 0) return fail(
      ERR_USAGE, "'%s' of a spec is no list of sizes", name);
  return OK;
}

typedef struct {
  int64_t shape[MAX_DIMS], stride[MAX_DIMS];
  int ndim;
  char place[512];
} SpecText;

static Status read_spec(const char *text, SpecText *out) {
  yyjson_doc *doc = NULL;
  const char *place = NULL;
  int n = 0;
  TRY(json_parse("spec", text, strlen(text), 0, &doc));
  Status s = read_list(yyjson_doc_get_root(doc), "shape", out->shape, &out->ndim);
  if (!s) s = read_list(yyjson_doc_get_root(doc), "stride", out->stride, &n);
  if (!s && n != out->ndim) s = fail(ERR_USAGE, "a spec of %d sizes and %d strides", out->ndim, n);
  if (!s) s = json_string(yyjson_doc_get_root(doc), "placements", "spec", &place);
  if (!s && strlen(place) >= sizeof out->place) s = fail(ERR_USAGE, "placements of a spec are too long");
  if (!s) strcpy(out->place, place);
  yyjson_doc_free(doc);
  return s;
}

TessTensor *tess_dtensor_unflatten(TessCtx *ctx, TessTensor *local, TessMesh *mesh, const char *spec) {
  SpecText read;
  if (!API_BEGIN(ctx, GIVEN("the shard", local), GIVEN("the spec", spec))) return NULL;
  if (api_stick(ctx, read_spec(spec, &read))) return NULL;
  return tess_from_local(ctx, local, mesh, read.place, 0, read.ndim, read.shape, read.stride);
}

/* ---- checkpoints ------------------------------------------------------------------------------------- */

int tess_chunk_list(TessCtx *ctx, const TessTensor *t, int64_t *offsets, int64_t *sizes, int cap) {
  Arena arena = {0};
  ChunkList list = {0};
  if (!API_BEGIN(ctx, GIVEN("the tensor", t), LISTED("the offsets", offsets, cap), LISTED("the sizes", sizes, cap)))
    return -1;
  bool failed = api_stick(ctx, t->spec ? dtensor_chunks(t, &arena, &list)
                                       : fail(ERR_USAGE, "a plain tensor has no chunks"));
  for (int i = 0; !failed && i < list.n && i < cap; i++)
    for (int d = 0; d < t->ndim; d++) {
      offsets[i * t->ndim + d] = list.v[i].offset[d];
      sizes[i * t->ndim + d] = list.v[i].size[d];
    }
  int n = failed ? -1 : list.n;
  arena_free(&arena);
  return n;
}

TessTensor *tess_get_chunk(TessCtx *ctx, const TessTensor *t, const int64_t *offsets) {
  Tensor *part = NULL;
  if (!API_BEGIN(ctx, GIVEN("the tensor", t), LISTED("the offsets", offsets, t && t->ndim > 0))) return NULL;
  return api_stick(ctx, t->spec ? dtensor_chunk(api_scope(ctx), t, offsets, &part)
                                : fail(ERR_USAGE, "a plain tensor has no chunks"))
             ? NULL
             : part;
}
