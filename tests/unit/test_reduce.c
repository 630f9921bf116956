/* Reductions and searches for extremes against plain loops in f64: sizes beyond a tile,
 * a block and a thread's share, odd strides, every instruction set, several threads. */
#include <math.h>

#include "kernels/reduce.h"
#include "unit.h"

/* A view of up to 3 dimensions: sizes, and strides in the buffer. */
typedef struct {
  int ndim;
  int64_t size[3], stride[3];
} Layout;

static const Layout layouts[] = {
    {1, {1}, {1}},
    {1, {100003}, {1}},
    {1, {5000}, {3}},
    {2, {3, 40000}, {40000, 1}},
    {2, {40000, 3}, {3, 1}},
    {2, {700, 1300}, {1300, 1}},
    {2, {700, 1300}, {1, 700}},
    {2, {70, 130}, {0, 1}},
    {2, {130, 70}, {1, 0}},
    {3, {33, 5, 1100}, {5500, 1100, 1}},
    {3, {33, 5, 1100}, {1, 33, 165}},
    {3, {17, 600, 9}, {9, 153, 1}},
    {3, {4, 0, 9}, {9, 9, 1}},
    {3, {300, 7, 2}, {50, 5, 2}},
};

static int64_t count(const Layout *l) {
  int64_t n = 1;
  for (int d = 0; d < l->ndim; d++) n *= l->size[d];
  return n;
}

static float *make_data(const Layout *l, bool nans) {
  int64_t last = 0;
  for (int d = 0; d < l->ndim; d++) last += (l->size[d] ? l->size[d] - 1 : 0) * l->stride[d];
  float *x = malloc((size_t)(last + 1) * sizeof *x);
  assert_non_null(x);
  uint32_t state = 12345;
  for (int64_t i = 0; i <= last; i++) {
    state = state * 1664525u + 1013904223u;
    x[i] = (float)(state >> 8) / (float)(1 << 24) * 4 - 2;
    if (nans && state % 5003 == 0) x[i] = NAN;
  }
  return x;
}

/* ---- the plain loops -------------------------------------------------------------- */

static void naive(const Layout *l, const bool *reduced, const float *x, ReduceKind kind, double *out) {
  int64_t size[3] = {1, 1, 1}, stride[3] = {0, 0, 0}, kept[3] = {0, 0, 0}, n = 1, per = 1;
  for (int d = l->ndim - 1; d >= 0; d--) {
    size[d] = l->size[d], stride[d] = l->stride[d];
    kept[d] = reduced[d] ? 0 : n;
    n *= reduced[d] ? 1 : size[d];
    per *= reduced[d] ? size[d] : 1;
  }
  double *mean = calloc((size_t)(n ? n : 1), sizeof *mean);
  assert_non_null(mean);
  for (int64_t i = 0; i < n; i++) out[i] = kind == FOLD_MAX ? -INFINITY : kind == FOLD_MIN ? INFINITY : 0;
  for (int pass = kind == FOLD_VARIANCE ? 0 : 1; pass < 2; pass++) {
    for (int64_t a = 0; a < size[0]; a++) {
      for (int64_t b = 0; b < size[1]; b++) {
        for (int64_t c = 0; c < size[2]; c++) {
          int64_t to = a * kept[0] + b * kept[1] + c * kept[2];
          double v = (double)x[a * stride[0] + b * stride[1] + c * stride[2]], *o = &out[to];
          if (pass == 0) mean[to] += v / (double)per;
          else if (kind == FOLD_SUM) *o += v;
          else if (kind == FOLD_SQUARES) *o += v * v;
          else if (kind == FOLD_VARIANCE) *o += (v - mean[to]) * (v - mean[to]) / (double)per;
          else if (kind == FOLD_MAX) *o = v > *o || isnan(v) ? v : *o;
          else if (kind == FOLD_MIN) *o = v < *o || isnan(v) ? v : *o;
        }
      }
    }
  }
  free(mean);
}

static void assert_close(double got, double want, double tolerance) {
  if (isnan(want)) {
    assert_true(isnan(got));
  } else if (isinf(want)) {
    assert_true(got == want);
  } else if (!(fabs(got - want) <= tolerance)) {
    test_failed("%.9g, should be %.9g", got, want);
  }
}

static void check(Kern *k, const Layout *l, const bool *reduced, ReduceKind kind) {
  bool extreme = kind == FOLD_MAX || kind == FOLD_MIN;
  float *x = make_data(l, extreme);
  int64_t n = 1, per = 1, size[3], stride[3];
  for (int d = l->ndim - 1; d >= 0; d--) {
    size[d] = reduced[d] ? 1 : l->size[d];
    stride[d] = reduced[d] ? 0 : n;
    n *= size[d];
    per *= reduced[d] ? l->size[d] : 1;
  }
  double *want = malloc((size_t)(n + 1) * sizeof *want);
  float *got = malloc((size_t)(n + 1) * sizeof *got);
  assert_true(want && got);
  naive(l, reduced, x, kind, want);
  View in = {x, l->size, l->stride, l->ndim, DT_F32}, out = {got, size, stride, l->ndim, DT_F32};
  Reduction r = {kind, kind == FOLD_VARIANCE ? FINISH_VAR : FINISH_NONE, 0};
  kernel_reduce(k, r, DT_F32, out, in, reduced);
  /* A few roundings of partial sums of a block, and that of the result. */
  double tolerance = kind == FOLD_VARIANCE ? 1e-5 : extreme ? 0 : 1e-6 * (1 + sqrt((double)per));
  for (int64_t i = 0; i < n && per; i++)
    assert_close((double)got[i], want[i], tolerance + (extreme ? 0 : 5e-7 * fabs(want[i])));
  free(x), free(want), free(got);
}

static void check_search(Kern *k, const Layout *l, int dim, bool largest) {
  float *x = make_data(l, true);
  bool reduced[3] = {false, false, false};
  reduced[dim] = true;
  int64_t n = 1, size[3], stride[3];
  for (int d = l->ndim - 1; d >= 0; d--) {
    size[d] = d == dim ? 1 : l->size[d];
    stride[d] = d == dim ? 0 : n;
    n *= size[d];
  }
  double *want = malloc((size_t)(n + 1) * sizeof *want);
  float *value = malloc((size_t)(n + 1) * sizeof *value);
  int64_t *index = malloc((size_t)(n + 1) * sizeof *index);
  assert_true(want && value && index);
  naive(l, reduced, x, largest ? FOLD_MAX : FOLD_MIN, want);
  View in = {x, l->size, l->stride, l->ndim, DT_F32};
  View v = {value, size, stride, l->ndim, DT_F32}, at = {index, size, stride, l->ndim, DT_I64};
  kernel_argreduce(k, largest, v, at, in, dim);
  for (int64_t i = 0; i < n; i++) {
    int64_t rest = i, start = 0, first = 0;
    for (int d = l->ndim - 1; d >= 0; d--) {
      if (d == dim) continue;
      start += rest % l->size[d] * l->stride[d];
      rest /= l->size[d];
    }
    assert_close((double)value[i], want[i], 0);
    while (!(isnan(want[i]) ? isnan(x[start + first * l->stride[dim]])
                            : (double)x[start + first * l->stride[dim]] == want[i]))
      first++;
    assert_int_equal(index[i], first);
  }
  free(x), free(want), free(value), free(index);
}

static void every_layout(Kern *k) {
  static const ReduceKind kinds[] = {FOLD_SUM, FOLD_SQUARES, FOLD_MAX, FOLD_MIN, FOLD_VARIANCE};
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    const Layout *l = &layouts[i];
    for (int set = 0; set < 1 << l->ndim; set++) {
      bool reduced[3] = {set & 1, set & 2, set & 4};
      for (size_t j = 0; j < sizeof kinds / sizeof *kinds; j++) check(k, l, reduced, kinds[j]);
    }
    for (int d = 0; d < l->ndim && count(l); d++) check_search(k, l, d, true), check_search(k, l, d, false);
  }
}

static void test_reduce(void **state) {
  (void)state;
  for (int threads = 1; threads <= 3; threads++) {
    Kern k;
    kern_init(&k, threads);
    for (Isa best = k.isa, isa = ISA_BASE; isa <= best; isa++) {
      if (threads > 1 && isa != best) continue;
      k.isa = isa;
      every_layout(&k);
    }
    kern_free(&k);
  }
}

/* Equal numbers round the same way each time: no error may pile up over millions. */
static void test_long_sum(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 2);
  const int64_t n = 1 << 22, size[1] = {n}, stride[1] = {1}, one[1] = {1}, zero[1] = {0};
  float *x = malloc((size_t)n * sizeof *x), got;
  assert_non_null(x);
  for (int64_t i = 0; i < n; i++) x[i] = 0.1f;
  bool reduced[1] = {true};
  kernel_reduce(&k, (Reduction){FOLD_SUM, FINISH_NONE, 0}, DT_F32, (View){&got, one, zero, 1, DT_F32},
                (View){x, size, stride, 1, DT_F32}, reduced);
  assert_close((double)got, (double)0.1f * (double)n, 0.13);
  free(x);
  kern_free(&k);
}

static void test_bytes(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 1);
  enum { N = 5000 };
  unsigned char x[N], got;
  const int64_t size[1] = {N}, stride[1] = {1}, one[1] = {1}, zero[1] = {0};
  bool reduced[1] = {true};
  View in = {x, size, stride, 1, DT_BOOL}, out = {&got, one, zero, 1, DT_BOOL};
  for (int at = -1; at < N; at += 617) {
    memset(x, 0, N);
    if (at >= 0) x[at] = 1;
    kernel_reduce(&k, (Reduction){FOLD_ANY, FINISH_NONE, 0}, DT_F32, out, in, reduced);
    assert_int_equal(got, at >= 0);
    memset(x, 1, N);
    if (at >= 0) x[at] = 0;
    kernel_reduce(&k, (Reduction){FOLD_ALL, FINISH_NONE, 0}, DT_F32, out, in, reduced);
    assert_int_equal(got, at < 0);
  }
  kern_free(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_reduce), cmocka_unit_test(test_long_sum),
                                     cmocka_unit_test(test_bytes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
