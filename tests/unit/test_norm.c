/* Softmax, norms and their gradients against plain loops in f64: rows longer than a block
 * and than what is done online, columns beyond a tile, every instruction set, threads. */
#include <math.h>

#include "kernels/norm.h"
#include "kernels/softmax.h"
#include "unit.h"

static float *make_data(int64_t n, uint32_t seed, float low, float high) {
  float *x = malloc((size_t)(n + 1) * sizeof *x);
  assert_non_null(x);
  for (int64_t i = 0; i < n; i++) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = low + (float)(seed >> 8) / (float)(1 << 24) * (high - low);
  }
  return x;
}

static void assert_close(double got, double want, double tolerance) {
  if (!(fabs(got - want) <= tolerance)) test_failed("%.9g, should be %.9g", got, want);
}

/* ---- softmax: (outer, n, inner) ----------------------------------------------------- */

static void naive_softmax(SoftmaxKind kind, double *y, const float *x, int64_t n, int64_t inner) {
  double max = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) max = fmax(max, (double)x[i * inner]);
  for (int64_t i = 0; i < n; i++) sum += exp((double)x[i * inner] - max);
  for (int64_t i = 0; i < n; i++) {
    double shifted = (double)x[i * inner] - max;
    y[i] = kind == SOFTMAX_LOG ? shifted - log(sum) : exp(shifted) / sum;
  }
}

static void check_softmax(Kern *k, SoftmaxKind kind, int64_t outer, int64_t n, int64_t inner, float range) {
  const int64_t size[3] = {outer, n, inner}, stride[3] = {n * inner, inner, 1}, total = outer * n * inner;
  float *x = make_data(total, 7, -range, range), *y = malloc((size_t)total * sizeof *y),
        *g = make_data(total, 9, -1, 1);
  double *want = malloc((size_t)n * sizeof *want);
  assert_true(y && want);
  View xv = {x, size, stride, 3, DT_F32}, yv = {y, size, stride, 3, DT_F32}, gv = {g, size, stride, 3, DT_F32};
  assert_ok(kernel_softmax(k, kind, yv, xv, 1));
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t i = 0; i < inner; i++) {
      int64_t at = o * n * inner + i;
      naive_softmax(kind, want, x + at, n, inner);
      for (int64_t j = 0; j < n; j++) {
        assert_close((double)y[at + j * inner], want[j],
                     kind == SOFTMAX_LOG ? 3e-6 * (1 + fabs(want[j]))
                                         : (3e-6 + 2e-7 * (double)range) * want[j] + 1e-37);
      }
    }
  }
  /* The gradient, written over the incoming one. */
  float *g0 = make_data(total, 9, -1, 1);
  assert_ok(kernel_softmax_backward(k, kind, gv, gv, yv, 1));
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t i = 0; i < inner; i++) {
      int64_t at = o * n * inner + i;
      double sum = 0;
      for (int64_t j = 0; j < n; j++)
        sum += (double)g0[at + j * inner] * (kind == SOFTMAX_LOG ? 1 : (double)y[at + j * inner]);
      for (int64_t j = 0; j < n; j++) {
        double yj = (double)y[at + j * inner], gj = (double)g0[at + j * inner];
        double gx = kind == SOFTMAX_LOG ? gj - exp(yj) * sum : yj * (gj - sum);
        assert_close((double)g[at + j * inner], gx, 1e-5 * (1 + fabs(gx)));
      }
    }
  }
  free(x), free(y), free(g), free(g0), free(want);
}

static void softmax_shapes(Kern *k) {
  static const int64_t shapes[][3] = {{1, 1, 1},     {3, 5, 1}, {7, 33, 1},   {5, 2050, 1},  {2, 66000, 1},
                                      {2, 70001, 1}, {3, 9, 4}, {2, 40, 300}, {1, 3000, 130}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    for (SoftmaxKind kind = SOFTMAX; kind <= SOFTMAX_SAFE; kind++) {
      check_softmax(k, kind, shapes[i][0], shapes[i][1], shapes[i][2], 3);
      if (kind != SOFTMAX_LOG) check_softmax(k, kind, shapes[i][0], shapes[i][1], shapes[i][2], 60);
    }
  }
}

/* Rows of -inf, alone and beside others; also longer than what is done online. */
static void test_masked(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 1);
  for (int64_t n = 3; n < 100000; n *= 31) {
    const int64_t size[1] = {n}, stride[1] = {1};
    float *x = make_data(n, 1, -1, 1);
    View v = {x, size, stride, 1, DT_F32};
    for (int64_t i = 0; i < n; i++) x[i] = -INFINITY;
    assert_ok(kernel_softmax(&k, SOFTMAX_SAFE, v, v, 0));
    for (int64_t i = 0; i < n; i++) assert_true(x[i] == 0);
    for (int64_t i = 0; i < n; i++) x[i] = -INFINITY;
    assert_ok(kernel_softmax(&k, SOFTMAX, v, v, 0));
    for (int64_t i = 0; i < n; i++) assert_true(isnan(x[i]));
    for (int64_t i = 0; i < n; i++) x[i] = -INFINITY;
    x[n - 1] = 5;
    assert_ok(kernel_softmax(&k, SOFTMAX, v, v, 0));
    for (int64_t i = 0; i < n; i++) assert_true(x[i] == (i == n - 1));
    free(x);
  }
  kern_free(&k);
}

/* ---- norms of rows ------------------------------------------------------------------- */

static void check_rows(Kern *k, int64_t rows, int64_t n, float low, float high, bool rms) {
  float *x = make_data(rows * n, 3, low, high), *w = make_data(n, 4, -1, 1), *b = make_data(n, 5, -1, 1);
  float *y = malloc((size_t)(rows * n) * sizeof *y), *mean = malloc((size_t)rows * sizeof *mean),
        *rstd = malloc((size_t)rows * sizeof *rstd);
  assert_true(y && mean && rstd);
  NormRows a = {.y = y,
                .x = x,
                .dtype = DT_F32,
                .rows = rows,
                .n = n,
                .groups = 1,
                .inner = 1,
                .weight = w,
                .bias = b,
                .param = DT_F32,
                .eps = 1e-5,
                .rms = rms,
                .mean = rms ? NULL : mean,
                .rstd = rstd,
                .stat = DT_F32};
  assert_ok(kernel_norm_rows(k, &a));
  for (int64_t r = 0; r < rows; r++) {
    double m = 0, v = 0;
    for (int64_t i = 0; i < n && !rms; i++) m += (double)x[r * n + i] / (double)n;
    for (int64_t i = 0; i < n; i++) v += ((double)x[r * n + i] - m) * ((double)x[r * n + i] - m) / (double)n;
    double s = 1 / sqrt(v + 1e-5);
    assert_close((double)rstd[r], s, 2e-6 * s);
    for (int64_t i = 0; i < n; i++) {
      double want = ((double)x[r * n + i] - m) * s * (double)w[i] + (double)b[i];
      assert_close((double)y[r * n + i], want, 4e-6 * (1 + fabs(want)));
    }
  }
  free(x), free(w), free(b), free(y), free(mean), free(rstd);
}

static void check_rows_backward(Kern *k, int64_t rows, int64_t n, bool rms) {
  float *x = make_data(rows * n, 3, -1, 2), *w = make_data(n, 4, -1, 1), *g = make_data(rows * n, 6, -1, 1);
  float *mean = make_data(rows, 7, 0.4f, 0.6f), *rstd = make_data(rows, 8, 0.9f, 1.1f),
        *gx = malloc((size_t)(rows * n) * sizeof *gx);
  float *gw = malloc((size_t)n * sizeof *gw), *gb = malloc((size_t)n * sizeof *gb);
  double *want_w = calloc((size_t)n, sizeof *want_w), *want_b = calloc((size_t)n, sizeof *want_b);
  assert_true(gx && gw && gb && want_w && want_b);
  NormRowsGrad a = {.gx = gx,
                    .gweight = gw,
                    .gbias = rms ? NULL : gb,
                    .g = g,
                    .x = x,
                    .mean = rms ? NULL : mean,
                    .rstd = rstd,
                    .weight = w,
                    .dtype = DT_F32,
                    .param = DT_F32,
                    .stat = DT_F32,
                    .rows = rows,
                    .n = n};
  assert_ok(kernel_norm_rows_backward(k, &a));
  for (int64_t r = 0; r < rows; r++) {
    double sum = 0, along = 0, m = rms ? 0 : (double)mean[r], s = (double)rstd[r];
    for (int64_t i = 0; i < n; i++) {
      double gi = (double)g[r * n + i], h = ((double)x[r * n + i] - m) * s;
      want_w[i] += gi * h, want_b[i] += gi;
      sum += rms ? 0 : gi * (double)w[i] / (double)n;
      along += gi * (double)w[i] * h / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
      double h = ((double)x[r * n + i] - m) * s, want = s * ((double)g[r * n + i] * (double)w[i] - sum - h * along);
      assert_close((double)gx[r * n + i], want, 5e-6 * (1 + fabs(want)));
    }
  }
  for (int64_t i = 0; i < n; i++) {
    assert_close((double)gw[i], want_w[i], 1e-5 * (1 + sqrt((double)rows)));
    if (!rms) assert_close((double)gb[i], want_b[i], 1e-5 * (1 + sqrt((double)rows)));
  }
  free(x), free(w), free(g), free(mean), free(rstd), free(gx), free(gw), free(gb), free(want_w), free(want_b);
}

static void norm_shapes(Kern *k) {
  static const int64_t shapes[][2] = {{1, 1}, {3, 7}, {100, 33}, {50, 768}, {2, 5000}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    for (int rms = 0; rms < 2; rms++) {
      check_rows(k, shapes[i][0], shapes[i][1], -1, 1, rms);
      if (shapes[i][1] > 1) check_rows(k, shapes[i][0], shapes[i][1], 990, 1010, rms);
      check_rows_backward(k, shapes[i][0], shapes[i][1], rms);
    }
  }
}

static void on_every_machine(void (*run)(Kern *)) {
  for (int threads = 1; threads <= 3; threads += 2) {
    Kern k;
    kern_init(&k, threads);
    for (Isa best = k.isa, isa = ISA_BASE; isa <= best; isa++) {
      if (threads > 1 && isa != best) continue;
      k.isa = isa;
      run(&k);
    }
    kern_free(&k);
  }
}

static void test_softmax(void **state) {
  (void)state;
  on_every_machine(softmax_shapes);
}

static void test_norms(void **state) {
  (void)state;
  on_every_machine(norm_shapes);
}

/* A first element far from the rest: the guess of the mean is useless, the result not. */
static void test_outlier(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 1);
  enum { N = 512 };
  float *x = make_data(N, 2, -1, 1), y[N], rstd;
  for (int i = 0; i < 8; i++) x[i] = 3e4f;
  NormRows a = {.y = y,
                .x = x,
                .dtype = DT_F32,
                .rows = 1,
                .n = N,
                .groups = 1,
                .inner = 1,
                .eps = 1e-5,
                .rstd = &rstd,
                .stat = DT_F32};
  assert_ok(kernel_norm_rows(&k, &a));
  double m = 0, v = 0;
  for (int i = 0; i < N; i++) m += (double)x[i] / N;
  for (int i = 0; i < N; i++) v += ((double)x[i] - m) * ((double)x[i] - m) / N;
  assert_close((double)rstd, 1 / sqrt(v + 1e-5), 1e-6 / sqrt(v));
  free(x);
  kern_free(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_softmax), cmocka_unit_test(test_masked),
                                     cmocka_unit_test(test_norms), cmocka_unit_test(test_outlier)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
