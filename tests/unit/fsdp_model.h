/* fsdp_model.h -- a small model of layers, fully sharded or not: what the tests of fully sharded modules train. */
#ifndef TESS_TESTS_FSDP_MODEL_H
#define TESS_TESTS_FSDP_MODEL_H

#include <math.h>

#include "api_ranks.h"

enum { FEATURES = 6, LAYERS = 3, ROWS = 12 };

static inline TessTensor *filled(TessCtx *ctx, int ndim, const int64_t *size, double phase) {
  TessTensor *t = tess_tensor_new(ctx, TESS_F32, ndim, size);
  float *v = tess_data(t);
  for (int64_t i = 0; v && i < tess_numel(t); i++) v[i] = (float)(0.4 * sin(phase + 1.7 * (double)i));
  return t;
}

/* tanh(x W^T + b) */
static inline int layer(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  (void)n, (void)cap, (void)arg;
  TessTensor *h = tess_call(ctx, "aten.linear.default", tess_t(in[0]), tess_t(tess_module_get(m, "weight")),
                            tess_t(tess_module_get(m, "bias")));
  out[0] = tess_call(ctx, "aten.tanh.default", tess_t(h));
  return out[0] ? 1 : -1;
}

/* All layers; the result is the mean of squares. */
static inline int model(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  TessTensor *h = in[0];
  (void)n, (void)cap, (void)arg;
  for (int i = 0; i < tess_module_child_count(m) && h; i++)
    if (tess_module_call(ctx, tess_module_child_at(m, i), &h, 1, &h, 1) != 1) return -1;
  h = tess_call(ctx, "aten.mul.Tensor", tess_t(h), tess_t(h));
  out[0] = tess_call(ctx, "aten.mean.default", tess_t(h));
  return out[0] ? 1 : -1;
}

static inline TessModule *new_model(TessCtx *ctx) {
  static const int64_t out[LAYERS] = {7, 5, 3}, in[LAYERS] = {FEATURES, 7, 5}; /* no size divides evenly */
  TessModule *m = tess_module_new(ctx, model, NULL);
  for (int i = 0; i < LAYERS; i++) {
    TessModule *l = tess_module_new(ctx, layer, NULL);
    char name[2] = {(char)('0' + i), 0};
    tess_module_set(ctx, l, "weight", filled(ctx, 2, (int64_t[]){out[i], in[i]}, i));
    tess_module_set(ctx, l, "bias", filled(ctx, 1, &out[i], i + 10));
    tess_module_add(ctx, m, name, l);
  }
  return m;
}

/* Rows of the batch that belong to one of so many. */
static inline TessTensor *rows(TessCtx *ctx, int place, int places) {
  TessTensor *all = filled(ctx, 2, (int64_t[]){ROWS, FEATURES}, 100);
  return tess_call(ctx, "aten.slice.Tensor", tess_t(all), tess_i(0), tess_i(place * ROWS / places),
                   tess_i((place + 1) * ROWS / places));
}

static inline int forward(TessCtx *ctx, TessModule *m, TessTensor *x, TessTensor **loss) {
  return tess_module_call(ctx, m, &x, 1, loss, 1) == 1 ? 0 : -1;
}

static inline int there_and_back(TessCtx *ctx, TessModule *m, TessTensor *x) {
  TessTensor *loss;
  return forward(ctx, m, x, &loss) || tess_backward(ctx, &loss, NULL, 1, 0) ? -1 : 0;
}

/* The whole gradient of a parameter, on every rank: `count` numbers. */
static inline int gradient(TessCtx *ctx, TessModule *m, const char *name, float *out) {
  TessTensor *g = tess_grad_of(ctx, tess_module_get(m, name));
  if (g && tess_is_dtensor(g)) g = tess_full_tensor(ctx, g);
  return g ? tess_read(ctx, g, out) : -1;
}

/* Gradients of a fully sharded model are `times` those of the same model in one process on the whole batch. */
static inline int same_gradients(TessCtx *ctx, TessModule *m, double times) {
  TessModule *plain = new_model(ctx);
  float is[64], want[64];
  for (int i = 0; i < LAYERS; i++)
    for (int k = 0; k < 2; k++) {
      char name[16];
      snprintf(name, sizeof name, "%d.%s", i, k ? "bias" : "weight");
      tess_set_requires_grad(ctx, tess_module_get(plain, name), 1);
    }
  CHECK(!there_and_back(ctx, plain, rows(ctx, 0, 1)));
  for (int i = 0; i < LAYERS; i++)
    for (int k = 0; k < 2; k++) {
      char name[16];
      snprintf(name, sizeof name, "%d.%s", i, k ? "bias" : "weight");
      CHECK(!gradient(ctx, plain, name, want) && !gradient(ctx, m, name, is));
      for (int64_t j = 0; j < tess_numel(tess_module_get(plain, name)); j++)
        CHECK(fabs(is[j] - times * want[j]) < 1e-5);
    }
  tess_module_free(plain);
  return 0;
}

static inline void zero(TessCtx *ctx, TessModule *m) {
  TessTensor *p[2 * LAYERS];
  int n = tess_module_parameters(ctx, m, p, 2 * LAYERS);
  for (int i = 0; i < n; i++) tess_set_grad(ctx, p[i], NULL);
}

/* Every layer, then the rest. */
static inline int shard(TessCtx *ctx, TessModule *m, TessMesh *mesh, const TessFsdpOptions *o) {
  for (int i = 0; i < tess_module_child_count(m); i++) {
    TessModule *l = tess_module_child_at(m, i);
    if (tess_fully_shard(ctx, &l, 1, mesh, o)) return -1;
  }
  return tess_fully_shard(ctx, &m, 1, mesh, o);
}

static inline int told(TessCtx *ctx, const char *part) {
  CHECK(tess_error(ctx) && strstr(tess_error_message(ctx), part));
  tess_error_clear(ctx);
  return 0;
}

/* A rank's model and rows. */
#define SETUP                                                      \
  TessModule *m = new_model(ctx);                                  \
  TessTensor *x = rows(ctx, tess_rank(ctx), tess_world_size(ctx)); \
  (void)arg

#endif
