/* api_layers.c -- public functions: modules with a forward function of their own, and the parameters of a tree. */
#include <math.h>
#include <stdlib.h>

#include "api/module.h"

/* ---- forward functions --------------------------------------------------------------------------------- */

static int one_input(TessCtx *ctx, TessModule *m, TessTensor **inputs, int ninputs, int cap) {
  char path[256];
  if (ninputs >= 1 && inputs[0] && cap >= 1) return 0;
  api_stick(ctx, fail(ERR_USAGE, "module '%s', of kind %s, takes one tensor and gives one",
                      tess_module_path(m, path, sizeof path), tess_module_kind(m)));
  return -1;
}

static int linear(TessCtx *ctx, TessModule *m, TessTensor **inputs, int n, TessTensor **out, int cap, void *arg) {
  (void)arg;
  if (one_input(ctx, m, inputs, n, cap)) return -1;
  const TessTensor *bias = tess_module_get(m, "bias");
  out[0] = tess_call(ctx, "aten.linear.default", tess_t(inputs[0]), tess_t(tess_module_get(m, "weight")),
                     bias ? tess_t(bias) : tess_none());
  return out[0] ? 1 : -1;
}

static int embedding(TessCtx *ctx, TessModule *m, TessTensor **inputs, int n, TessTensor **out, int cap,
                     void *arg) {
  (void)arg;
  if (one_input(ctx, m, inputs, n, cap)) return -1;
  out[0] = tess_call(ctx, "aten.embedding.default", tess_t(tess_module_get(m, "weight")), tess_t(inputs[0]));
  return out[0] ? 1 : -1;
}

/* arg: epsilon. */
static int norm(TessCtx *ctx, TessModule *m, TessTensor **inputs, int n, TessTensor **out, int cap, void *arg) {
  if (one_input(ctx, m, inputs, n, cap)) return -1;
  const TessTensor *weight = tess_module_get(m, "weight"), *bias = tess_module_get(m, "bias");
  TessArg size = tess_ints(tess_size(weight), 1), eps = tess_f(*(const double *)arg);
  out[0] = bias ? tess_call(ctx, "aten.layer_norm.default", tess_t(inputs[0]), size, tess_t(weight), tess_t(bias),
                            eps)
                : tess_call(ctx, "aten.rms_norm.default", tess_t(inputs[0]), size, tess_t(weight), eps);
  return out[0] ? 1 : -1;
}

/* ---- making them -------------------------------------------------------------------------------------------- */

static Status check_sizes(const int64_t *size, int n) {
  for (int i = 0; i < n; i++)
    if (size[i] < 1) return fail(ERR_USAGE, "a layer with a dimension of %lld features", (long long)size[i]);
  return OK;
}

/* A parameter that op fills, with these two numbers behind it. */
static bool put(TessCtx *ctx, TessModule *m, const char *name, int ndim, const int64_t *size, const char *op,
                double a, double b) {
  TessTensor *t = m && !api_stick(ctx, check_sizes(size, ndim)) ? tess_tensor_new(ctx, TESS_F32, ndim, size) : NULL;
  return t && tess_call(ctx, op, tess_t(t), tess_f(a), tess_f(b)) && !tess_set_requires_grad(ctx, t, 1) &&
         !tess_module_set(ctx, m, name, t);
}

/* The module that was made, unless something of it failed. */
static TessModule *made(TessCtx *ctx, TessModule *m, const char *kind, bool all) {
  if (all && !tess_module_set_kind(ctx, m, kind)) return m;
  tess_module_free(m);
  return NULL;
}

#define UNIFORM "aten.uniform_.default"
#define NORMAL "aten.normal_.default"

TessModule *tess_linear(TessCtx *ctx, int64_t in, int64_t out, int bias) {
  TessScope *scope = tess_scope_begin(ctx);
  TessModule *m = tess_module_new(ctx, linear, NULL);
  double most = in > 0 ? 1 / sqrt((double)in) : 0;
  bool all = put(ctx, m, "weight", 2, (int64_t[]){out, in}, UNIFORM, -most, most) &&
             (!bias || put(ctx, m, "bias", 1, (int64_t[]){out}, UNIFORM, -most, most));
  m = made(ctx, m, "linear", all);
  tess_scope_end(ctx, scope);
  return m;
}

TessModule *tess_embedding(TessCtx *ctx, int64_t rows, int64_t features) {
  TessScope *scope = tess_scope_begin(ctx);
  TessModule *m = tess_module_new(ctx, embedding, NULL);
  m = made(ctx, m, "embedding", put(ctx, m, "weight", 2, (int64_t[]){rows, features}, NORMAL, 0, 1));
  tess_scope_end(ctx, scope);
  return m;
}

static TessModule *make_norm(TessCtx *ctx, int64_t features, double eps, const char *kind, bool bias) {
  double *kept = malloc(sizeof *kept);
  if (!kept && ctx) api_stick(ctx, fail_oom());
  TessScope *scope = tess_scope_begin(ctx);
  TessModule *m = kept ? tess_module_new(ctx, norm, kept) : NULL;
  if (m) {
    *kept = eps;
    m->release = free;
  } else free(kept);
  bool all = put(ctx, m, "weight", 1, &features, UNIFORM, 1, 1) &&
             (!bias || put(ctx, m, "bias", 1, &features, UNIFORM, 0, 0));
  m = made(ctx, m, kind, all);
  tess_scope_end(ctx, scope);
  return m;
}

TessModule *tess_layer_norm(TessCtx *ctx, int64_t features, double eps) {
  return make_norm(ctx, features, eps, "layer_norm", true);
}
TessModule *tess_rms_norm(TessCtx *ctx, int64_t features, double eps) {
  return make_norm(ctx, features, eps, "rms_norm", false);
}

/* ---- the parameters of a tree ------------------------------------------------------------------------------- */

/* Tied: one leaf, or for buffers one memory. */
static bool is_same(const Tensor *a, const Tensor *b) {
  if (a->grad || b->grad) return a->grad == b->grad;
  return tensor_same_view(a->local ? a->local : a, b->local ? b->local : b);
}

static bool is_there(const ModuleTensors *list, const Tensor *t) {
  for (int i = 0; i < list->n; i++)
    if (is_same(list->v[i], t)) return true;
  return false;
}

static Status take(ModuleTensors *out, const ModuleAt *at, bool buffers) {
  const TessModule *m = at->module;
  for (int k = 0; k < m->ntensors; k++) {
    Tensor *t = m->tensor[k].tensor;
    if (m->tensor[k].buffer != buffers || (!buffers && !t->grad) || is_there(out, t)) continue;
    TRY_NEW(out->v, arena_more(&out->arena, out->v, out->n, &out->cap));
    TRY_NEW(out->name, arena_more(&out->arena, out->name, out->n, &out->name_cap));
    TRY_NEW(out->name[out->n],
            arena_printf(&out->arena, "%s%s%s", at->path, *at->path ? "." : "", m->tensor[k].name));
    out->v[out->n++] = t;
  }
  return OK;
}

Status module_tensors(TessModule *m, bool buffers, ModuleTensors *out) {
  ModuleList list;
  *out = (ModuleTensors){0};
  Status s = modules_of(m, &list);
  for (int i = 0; i < list.n && !s; i++) s = take(out, &list.v[i], buffers);
  module_list_free(&list);
  if (s) module_tensors_free(out);
  return s;
}

void module_tensors_free(ModuleTensors *list) { arena_free(&list->arena); }

int tess_module_parameters(TessCtx *ctx, TessModule *m, TessTensor **out, int cap) {
  ModuleTensors found;
  if (!API_BEGIN(ctx, GIVEN("the module", m), LISTED("the room for parameters", out, cap)) ||
      api_stick(ctx, module_tensors(m, false, &found)))
    return -1;
  for (int i = 0; i < found.n && i < cap; i++) out[i] = found.v[i];
  int n = found.n;
  module_tensors_free(&found);
  return n;
}
