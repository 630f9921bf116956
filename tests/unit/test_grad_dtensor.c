/* test_grad_dtensor.c -- gradients of DTensors through the public header, on thread ranks: leaves, moves, second
 * derivatives, writes in place, and backwards that fail on one rank or on all. */
#include <math.h>

#include "tessera.h"
#include "unit.h"

enum { RANKS = 2 };

/* 0, or 1 with an error of the context. */
#define NEED(condition)                                                             \
  do {                                                                              \
    if (!(condition)) {                                                             \
      if (!tess_error(ctx)) fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      return 1;                                                                     \
    }                                                                               \
  } while (0)

static TessTensor *counted(TessCtx *ctx, int64_t rows, int64_t columns) {
  float v[64];
  for (int i = 0; i < rows * columns; i++) v[i] = (float)i + 1;
  return tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){rows, columns}, v);
}
static TessTensor *leaf(TessCtx *ctx, TessMesh *mesh, const char *placements) {
  TessTensor *t = tess_distribute_tensor(ctx, counted(ctx, 4, 3), mesh, placements, -1);
  tess_set_requires_grad(ctx, t, 1);
  return t;
}
static TessTensor *times(TessCtx *ctx, const TessTensor *a, const TessTensor *b) {
  return tess_call(ctx, "aten.mul.Tensor", tess_t(a), tess_t(b));
}
static TessTensor *total(TessCtx *ctx, const TessTensor *a) {
  return tess_call(ctx, "aten.sum.default", tess_t(a));
}
/* Is every element i of the whole k * (i + 1) ^ power? */
static int is_power(TessCtx *ctx, TessTensor *t, double k, int power) {
  TessTensor *whole = tess_is_dtensor(t) ? tess_full_tensor(ctx, tess_detach(ctx, t)) : t;
  float v[64];
  if (!whole || tess_read(ctx, whole, v)) return 0;
  for (int i = 0; i < tess_numel(whole); i++) {
    double want = k * pow(i + 1, power);
    if (fabs((double)v[i] - want) > 1e-4 * (1 + fabs(want))) return 0;
  }
  return 1;
}
static void on_ranks(TessRankFn *fn, const char *part) {
  char error[512] = "";
  int code = tess_run_ranks(RANKS, 1, fn, NULL, error, sizeof error);
  if (!part && code) test_failed("%d: %s", code, error);
  if (part && (!code || !strstr(error, part))) test_failed("'%s' does not say '%s'", error, part);
}

/* ---- gradients --------------------------------------------------------------------------------------------- */

static int leaves(TessCtx *ctx, void *arg) {
  (void)arg;
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){RANKS}, NULL);
  char text[64];
  for (int i = 0; i < 2; i++) {
    TessTensor *w = leaf(ctx, mesh, i ? "S(1)" : "S(0)"), *g, *gg,
               *loss = total(ctx, times(ctx, w, times(ctx, w, w)));
    NEED(loss && tess_backward(ctx, &loss, NULL, 1, TESS_RETAIN_GRAPH) == 0);
    NEED(tess_is_dtensor(tess_grad_of(ctx, w)) && is_power(ctx, tess_grad_of(ctx, w), 3, 2));
    NEED(!strcmp(tess_placements(tess_grad_of(ctx, w), text, sizeof text), i ? "S(1)" : "S(0)"));
    NEED(tess_backward(ctx, &loss, NULL, 1, 0) == 0 && is_power(ctx, tess_grad_of(ctx, w), 6, 2));
    loss = total(ctx, times(ctx, w, times(ctx, w, w)));
    NEED(tess_grad(ctx, &loss, NULL, 1, &w, 1, &g, TESS_CREATE_GRAPH) == 0);
    TessTensor *sum = total(ctx, tess_redistribute(ctx, g, NULL, "R", -1)); /* through a move, too */
    NEED(sum && tess_grad(ctx, &sum, NULL, 1, &w, 1, &gg, 0) == 0 && is_power(ctx, gg, 6, 1));
  }
  return 0;
}

static int moves(TessCtx *ctx, void *arg) {
  (void)arg;
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){RANKS}, NULL);
  TessTensor *plain = counted(ctx, 4, 3);
  tess_set_requires_grad(ctx, plain, 1);
  TessTensor *d = tess_distribute_tensor(ctx, plain, mesh, "S(0)", 0);
  NEED(tess_is_leaf(d) && tess_requires_grad(d)); /* with a gradient of its own */
  TessTensor *x = tess_distribute_tensor(ctx, times(ctx, plain, plain), mesh, "S(0)", 0), *loss = total(ctx, x);
  NEED(x && !tess_is_leaf(x) && tess_backward(ctx, &loss, NULL, 1, 0) == 0);
  NEED(is_power(ctx, tess_grad_of(ctx, plain), 2, 1) && !tess_grad_of(ctx, d));
  TessTensor *whole = tess_full_tensor_grad(ctx, times(ctx, d, d), "P(sum)");
  loss = total(ctx, whole); /* one of each rank */
  NEED(loss && tess_backward(ctx, &loss, NULL, 1, 0) == 0 && is_power(ctx, tess_grad_of(ctx, d), 2 * RANKS, 1));
  tess_set_grad(ctx, d, NULL);
  TessTensor *half = tess_redistribute_grad(ctx, d, NULL, "R", TESS_BF16, TESS_F16);
  loss = total(ctx, half);
  NEED(half && tess_dtype(half) == TESS_BF16 && tess_backward(ctx, &loss, NULL, 1, 0) == 0);
  NEED(tess_dtype(tess_grad_of(ctx, d)) == TESS_F32 && is_power(ctx, tess_grad_of(ctx, d), 1, 0));
  TessTensor *shard = counted(ctx, 2, 3);
  tess_set_requires_grad(ctx, shard, 1);
  TessTensor *made = tess_from_local_grad(ctx, shard, mesh, "S(0)", 0, 0, NULL, NULL, "R");
  loss = total(ctx, made);
  NEED(made && tess_backward(ctx, &loss, NULL, 1, 0) == -1 && strstr(tess_error_message(ctx), "grad_placements"));
  tess_error_clear(ctx);
  return 0;
}

static int writes(TessCtx *ctx, void *arg) {
  (void)arg;
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){RANKS}, NULL);
  TessTensor *w = leaf(ctx, mesh, "S(0)"), *h = times(ctx, w, w), *other = tess_keep(ctx, h);
  tess_call(ctx, "aten.mul_.Scalar", tess_t(h), tess_f(3));
  TessTensor *loss = total(ctx, other);
  NEED(loss && tess_backward(ctx, &loss, NULL, 1, 0) == 0 && is_power(ctx, tess_grad_of(ctx, w), 6, 1));
  h = times(ctx, w, w);
  TessTensor *row = tess_call(ctx, "aten.slice.Tensor", tess_t(h), tess_i(1), tess_i(0), tess_i(1));
  NEED(row && !tess_call(ctx, "aten.mul_.Scalar", tess_t(row), tess_f(3)));
  NEED(strstr(tess_error_message(ctx), "they are DTensors"));
  tess_error_clear(ctx);
  return 0;
}

/* ---- failures ---------------------------------------------------------------------------------------------- */

static int gives_up(TessCtx *ctx, TessTensor *g, TessTensor **out, void *arg) {
  (void)g, (void)out;
  return *(int *)arg < 0 || *(int *)arg == tess_rank(ctx) ? 7 : 0;
}

static int fails_on(TessCtx *ctx, int rank) {
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){RANKS}, NULL);
  TessTensor *w = leaf(ctx, mesh, "S(0)"), *h = tess_redistribute(ctx, times(ctx, w, w), NULL, "R", -1);
  TessTensor *y = tess_redistribute(ctx, times(ctx, h, h), NULL, "S(1)", -1), *loss = total(ctx, times(ctx, y, y));
  TessHook *hook = tess_register_hook(ctx, h, gives_up, &rank, NULL);
  int code = tess_backward(ctx, &loss, NULL, 1, 0);
  tess_remove_hook(hook);
  if (code < 0 && tess_grad_of(ctx, w)) return 2;
  /* A rank that did not fail itself learns of it where it next waits for the others. */
  if (code == 0) tess_full_tensor(ctx, tess_grad_of(ctx, w));
  return tess_error(ctx) ? 1 : 0;
}
static int one_fails(TessCtx *ctx, void *arg) {
  (void)arg;
  return fails_on(ctx, 1);
}
static int all_fail(TessCtx *ctx, void *arg) {
  (void)arg;
  return fails_on(ctx, -1);
}

static void gradients_of_leaves(void **state) {
  (void)state;
  on_ranks(leaves, NULL);
}
static void gradients_of_moves(void **state) {
  (void)state;
  on_ranks(moves, NULL);
}
static void gradients_after_writes(void **state) {
  (void)state;
  on_ranks(writes, NULL);
}
static void failures(void **state) {
  (void)state;
  on_ranks(one_fails, "code 7");
  on_ranks(all_fail, "code 7");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_of_leaves),
      cmocka_unit_test(gradients_of_moves),
      cmocka_unit_test(gradients_after_writes),
      cmocka_unit_test(failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
