/* Values that are partial (P) go through ops: every rank holds something else, and what comes
 * out is what the paid value gives. */
#include <math.h>

#include "api_ranks.h"

enum { RANKS = 3, ROWS = 5, COLS = 4 };

/* Different on each rank, of both signs, never 0. */
static TessTensor *part(TessCtx *ctx, int salt) {
  float data[ROWS * COLS];
  for (int i = 0; i < ROWS * COLS; i++)
    data[i] = (float)(((i + 1) * 37 + (tess_rank(ctx) + 1) * 53 + salt * 11) % 29) / 7.0f - 2.05f;
  return tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){ROWS, COLS}, data);
}

static TessTensor *same(TessCtx *ctx, int salt) {
  float data[ROWS * COLS];
  for (int i = 0; i < ROWS * COLS; i++) data[i] = (float)(((i + 1) * 31 + salt * 17) % 23) / 5.0f - 2.1f;
  return tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){ROWS, COLS}, data);
}

static int close_to(TessCtx *ctx, const TessTensor *a, const TessTensor *b) {
  TessTensor *x = tess_call(ctx, "aten.to.dtype", tess_t(a), tess_d(TESS_F32)),
             *y = tess_call(ctx, "aten.to.dtype", tess_t(b), tess_d(TESS_F32));
  float p[ROWS * COLS], q[ROWS * COLS];
  if (!x || !y || tess_numel(x) != tess_numel(y) || tess_read(ctx, x, p) || tess_read(ctx, y, q)) return 0;
  for (int64_t i = 0; i < tess_numel(x); i++)
    if (!(p[i] == q[i] || fabsf(p[i] - q[i]) <= 1e-4f * (1 + fabsf(q[i])) || (isnan(p[i]) && isnan(q[i]))))
      return 0;
  return 1;
}

typedef struct {
  const char *op;
  int tensors; /* leading arguments that are tensors */
  int numbers; /* then so many numbers */
  double number[2];
} Trial;

static const Trial trials[] = {
    {"aten.exp.default", 1, 0, {0}},        {"aten.neg.default", 1, 0, {0}},
    {"aten.erfc.default", 1, 0, {0}},       {"aten.sign.default", 1, 0, {0}},
    {"aten.relu.default", 1, 0, {0}},       {"aten.hardtanh.default", 1, 0, {0}},
    {"aten.floor.default", 1, 0, {0}},      {"aten.square.default", 1, 0, {0}},
    {"aten.softshrink.default", 1, 0, {0}}, {"aten.clamp.default", 1, 2, {-1, 1}},
    {"aten.clone.default", 1, 0, {0}},      {"aten.deg2rad.default", 1, 0, {0}},
    {"aten.add.Scalar", 1, 1, {1.5}},       {"aten.sub.Scalar", 1, 1, {1.5}},
    {"aten.mul.Scalar", 1, 1, {-1.5}},      {"aten.div.Scalar", 1, 1, {-1.5}},
    {"aten.rsub.Scalar", 1, 1, {2}},        {"aten.mul.Tensor", 1, 1, {-2}},
    {"aten.add.Tensor", 1, 1, {-2}},        {"aten.div.Tensor", 1, 1, {-2}},
    {"aten.add.Tensor", 2, 0, {0}},         {"aten.sub.Tensor", 2, 0, {0}},
    {"aten.mul.Tensor", 2, 0, {0}},         {"aten.div.Tensor", 2, 0, {0}},
    {"aten.maximum.default", 2, 0, {0}},    {"aten.minimum.default", 2, 0, {0}},
    {"aten.logaddexp.default", 2, 0, {0}},  {"aten.clamp_min.Tensor", 2, 0, {0}},
    {"aten.rsub.Tensor", 2, 0, {0}},        {"aten.copy.default", 2, 0, {0}},
    {"aten.sum.default", 1, 0, {0}},        {"aten.mean.default", 1, 0, {0}},
    {"aten.amax.default", 1, 0, {0}},       {"aten.amin.default", 1, 0, {0}},
    {"aten.any.default", 1, 0, {0}},        {"aten.all.default", 1, 0, {0}},
    {"aten.max.default", 1, 0, {0}},        {"aten.norm.Scalar", 1, 0, {0}},
    {"aten.var.default", 1, 0, {0}},        {"aten.mse_loss.default", 2, 0, {0}},
};

/* Every way to place two operands. */
static int through(TessCtx *ctx, void *arg) {
  (void)arg;
  static const char *const place[] = {"R", "P(sum)", "P(avg)", "P(max)", "P(min)", "S(0)"};
  enum { PLACES = sizeof place / sizeof *place };
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){RANKS}, NULL);
  for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
    for (int pair = 0; pair < PLACES * PLACES; pair++) {
      const Trial *t = &trials[i];
      if (t->tensors == 1 && pair >= PLACES) continue;
      TessScope *scope = tess_scope_begin(ctx);
      TessArg spread[4], whole[4];
      int n = 0;
      for (; n < t->tensors; n++) {
        const char *p = place[n ? pair / PLACES : pair % PLACES];
        TessTensor *x = p[0] == 'P' ? tess_from_local(ctx, part(ctx, n), mesh, p, 0, 0, NULL, NULL)
                                    : tess_distribute_tensor(ctx, same(ctx, n), mesh, p, 0);
        CHECK(x);
        spread[n] = tess_t(x);
        whole[n] = tess_t(tess_full_tensor(ctx, x));
      }
      for (int k = 0; k < t->numbers; k++, n++) spread[n] = whole[n] = tess_f(t->number[k]);
      TessTensor *got = tess_call_1(ctx, t->op, spread, n), *want = tess_call_1(ctx, t->op, whole, n);
      CHECK(got && want);
      TessTensor *full = tess_full_tensor(ctx, got);
      char text[64];
      if (!full || !close_to(ctx, full, want)) {
        fprintf(stderr, "%s of %s, %s gives another value (%s)\n", t->op, place[pair % PLACES],
                t->tensors > 1 ? place[pair / PLACES] : "-", tess_placements(got, text, sizeof text));
        return 1;
      }
      tess_scope_end(ctx, scope);
    }
  return 0;
}

static void test_owed_values(void **state) {
  (void)state;
  on_ranks(RANKS, through);
}

/* From any two placements to any two: the same whole.  Debts of different kinds are never partial
 * at once, also not on the way. */
static int from_all_to_all(TessCtx *ctx, void *arg) {
  (void)arg;
  static const char *const place[] = {"R", "S(0)", "S(1)", "_S(0, 2)", "P(sum)", "P(avg)", "P(max)", "P(product)"};
  enum { PLACES = sizeof place / sizeof *place };
  char from[64], to[64];
  int tried = 0;
  TessMesh *mesh = tess_init_device_mesh(ctx, 2, (int[]){2, 2}, NULL);
  for (int i = 0; i < PLACES * PLACES * PLACES * PLACES; i++) {
    TessScope *scope = tess_scope_begin(ctx);
    snprintf(from, sizeof from, "%s, %s", place[i % PLACES], place[i / PLACES % PLACES]);
    snprintf(to, sizeof to, "%s, %s", place[i / PLACES / PLACES % PLACES], place[i / PLACES / PLACES / PLACES]);
    TessTensor *whole = same(ctx, 1), *x = tess_distribute_tensor(ctx, whole, mesh, from, -1);
    TessTensor *y = x ? tess_redistribute(ctx, x, NULL, to, -1) : NULL;
    if (!y) {
      CHECK(strstr(tess_error_message(ctx), "cannot be partial at once"));
      tess_error_clear(ctx);
    } else {
      TessTensor *back = tess_full_tensor(ctx, y);
      tried++;
      if (!back || !close_to(ctx, back, whole)) {
        fprintf(stderr, "%s to %s gives another value\n", from, to);
        return 1;
      }
    }
    tess_scope_end(ctx, scope);
  }
  return tried < 2000;
}

static void test_redistribution(void **state) {
  (void)state;
  on_ranks(4, from_all_to_all);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_owed_values), cmocka_unit_test(test_redistribution)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
