/* Matrix products: every route, dtype and instruction set against the three loops of
 * gemm_naive(), on random sizes and layouts. */
#include "kernel_cases.h"
#include "unit.h"

#include <math.h>

#include "kernels/convert.h"
#include "kernels/copy.h"
#include "kernels/gemm_problem.h"

enum { CASES = 200, STREAMED_CASES = 5, MOST = 1 << 20 };

/* A tensor with its own memory. */
typedef struct {
  int64_t size[4], stride[4];
  View v;
  size_t bytes;
} Array;

/* Random strides: dimensions in any order, sometimes with gaps, sometimes broadcast. */
static void array_make(Array *a, Dtype d, int ndim, const int64_t *size, bool result) {
  int order[4] = {0, 1, 2, 3};
  for (int i = ndim - 1; i > 0 && pick(0, 2) == 0; i--) {
    int j = (int)pick(0, i), old = order[i];
    order[i] = order[j];
    order[j] = old;
  }
  int64_t step = !result && pick(0, 5) == 0 ? 2 : 1;
  for (int i = ndim - 1; i >= 0; i--) {
    int at = order[i];
    a->size[at] = size[at];
    a->stride[at] = !result && ndim > 2 && at < ndim - 2 && pick(0, 3) == 0 ? 0 : step;
    step *= a->stride[at] ? size[at] : 1;
    if (pick(0, 4) == 0) step += 3;
  }
  size_t bytes = (size_t)(step + 8) * dtype_size(d);
  a->v = (View){calloc(1, bytes), a->size, a->stride, ndim, d};
  a->bytes = bytes;
  assert_non_null(a->v.data);
  for (int64_t i = 0; i < step + 8; i++) {
    double x = dtype_is_integral(d) ? (double)pick(-9, 9) : (double)pick(-1000, 1000) / 1000;
    SIMD_CALL(ISA_BASE, convert_run)((char *)a->v.data + (size_t)i * dtype_size(d), d, &x, DT_F64, 1);
  }
}

static void compare(View got, View want, double k, const char *what) {
  static const double eps[DT_COUNT] = {
      [DT_F32] = 2e-6, [DT_C64] = 2e-6, [DT_F64] = 1e-14, [DT_BF16] = 8e-3, [DT_F16] = 1e-3};
  int64_t n = 1;
  for (int d = 0; d < got.ndim; d++) n *= got.size[d];
  for (int64_t i = 0; i < n; i++) {
    int64_t rest = i, at = 0;
    for (int d = got.ndim - 1; d >= 0; rest /= got.size[d], d--) at += rest % got.size[d] * got.stride[d];
    for (int part = 0; part < (got.dtype == DT_C64 ? 2 : 1); part++) {
      size_t byte = (size_t)at * dtype_size(got.dtype) + (size_t)part * 4;
      Dtype d = got.dtype == DT_C64 ? DT_F32 : got.dtype;
      double x, y;
      SIMD_CALL(ISA_BASE, convert_run)(&x, DT_F64, (char *)got.data + byte, d, 1);
      SIMD_CALL(ISA_BASE, convert_run)(&y, DT_F64, (char *)want.data + byte, d, 1);
      if (!(fabs(x - y) <= eps[got.dtype] * (fabs(y) + sqrt(k) + 1)))
        test_failed("%s: element %lld is %.9g, should be %.9g", what, (long long)i, x, y);
    }
  }
}

/* A product of random layouts, with what may come behind it, once or several times. */
static void check_product(Kern *k, int number, Dtype d, int batches, int64_t m, int64_t n, int64_t depth) {
  bool real = d == DT_F32 || d == DT_BF16 || d == DT_F16;
  int64_t a_size[4], b_size[4], c_size[4], add_size[4];
  for (int i = 0; i < batches; i++) a_size[i] = b_size[i] = c_size[i] = pick(1, 3);
  memcpy(a_size + batches, (int64_t[]){m, depth}, 16);
  memcpy(b_size + batches, (int64_t[]){depth, n}, 16);
  memcpy(c_size + batches, (int64_t[]){m, n}, 16);
  for (int i = 0; i < batches + 2; i++) add_size[i] = pick(0, 2) ? c_size[i] : 1;
  Array a, b, c, want, add, residual;
  array_make(&a, d, batches + 2, a_size, false);
  array_make(&b, d, batches + 2, b_size, false);
  array_make(&c, d, batches + 2, c_size, true);
  array_make(&add, d, batches + 2, add_size, true);
  array_make(&residual, d, batches + 2, c_size, false);
  want = c;
  want.v.data = calloc(1, MOST * 8);
  want.v.size = want.size, want.v.stride = want.stride;
  assert_non_null(want.v.data);
  Gemm g = {.a = a.v, .b = b.v, .c = c.v, .alpha = pick(0, 2) ? 1 : 2, .beta = pick(0, 1) ? 1 : 3};
  bool vector = pick(0, 3) == 0; /* add with a dimension less */
  View row = {add.v.data, add.size + 1, add.stride + 1, add.v.ndim - 1, d};
  if (pick(0, 1)) g.add = vector ? &row : &add.v;
  if (real && pick(0, 1)) g.act = (GemmAct)pick(0, GEMM_ACT_SIGMOID);
  if (real && pick(0, 1)) g.residual = &residual.v;
  char what[160];
  snprintf(what, sizeof what, "case %d: %s, %d batch dimensions, m %lld, n %lld, k %lld, %s", number, dtype_name(d),
           batches, (long long)m, (long long)n, (long long)depth, isa_name(k->isa));
  GemmPack *pack = NULL;
  bool fixed = pick(0, 1);
  char *first = malloc(c.bytes);
  assert_non_null(first);
  for (int turn = 0; turn < (fixed ? 3 : 1); turn++) { /* packed from the second on */
    if (fixed) g.pack = &pack;
    assert_ok(gemm(k, &g));
    if (turn == 0) memcpy(first, c.v.data, c.bytes);
    assert_memory_equal(first, c.v.data, c.bytes); /* the same bits, packed or not */
  }
  gemm_pack_free(pack);
  free(first);
  g.c = want.v;
  assert_ok(gemm_naive(k, &g));
  compare(c.v, want.v, (double)depth, what);
  Array *all[] = {&a, &b, &c, &want, &add, &residual};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->v.data);
}

static void one_case(Kern *k, int number) {
  static const Dtype dtypes[] = {DT_F32, DT_F32, DT_F32, DT_BF16, DT_F16, DT_F64, DT_I64, DT_I32, DT_I8, DT_C64};
  static const int64_t rows[] = {1, 2, 4, 5, 6, 7, 13, 16, 24, 33, 66, 150, 200};
  Dtype d = dtypes[pick(0, 9)];
  bool small = d != DT_F32;
  int batches = pick(0, 2) ? 0 : (int)pick(1, 2);
  int64_t m = rows[pick(0, small ? 9 : 12)], n = pick(0, 3) ? pick(1, 70) : pick(100, 300),
          depth = pick(0, 9)   ? pick(1, 90)
                  : pick(0, 1) ? 0
                               : 900;
  check_product(k, number, d, batches, m, n, depth);
}

/* More columns than rows, and sums longer than a step of k: b is packed as it is used. */
static void streamed_case(Kern *k, int number) {
  static const int64_t rows[] = {48, 97, 130}, depths[] = {1, 90, 384, 800};
  int64_t m = rows[pick(0, 2)];
  check_product(k, number, DT_F32, 0, m, m + pick(1, 80), depths[pick(0, 3)]);
}

/* The same in several blocks of k and of rows, b along k and along n; some elements of c. */
static void blocks_are_added(void **state) {
  (void)state;
  enum { M = 1100, N = 1130, K = 800 };
  Kern k;
  kern_init(&k, 2);
  float *a = malloc(sizeof(float) * M * K), *b = malloc(sizeof(float) * K * N), *c = malloc(sizeof(float) * M * N);
  assert_true(a && b && c);
  for (int i = 0; i < M * K; i++) a[i] = (float)pick(-9, 9);
  for (int i = 0; i < K * N; i++) b[i] = (float)pick(-9, 9);
  for (int along_k = 0; along_k < 2; along_k++) {
    const Matrix of_b = {(char *)b, DT_F32, 0, along_k ? 1 : N, along_k ? K : 1};
    const Problem p = {.batch = 1,
                       .m = M,
                       .n = N,
                       .k = K,
                       .a = {(char *)a, DT_F32, 0, K, 1},
                       .b = of_b,
                       .c = {(char *)c, DT_F32, 0, N, 1},
                       .alpha = 1};
    assert_true(gemm_streams(&p));
    assert_ok(gemm_stream(&k, &p));
    for (int t = 0; t < 2000; t++) {
      const int64_t i = pick(0, M - 1), j = pick(0, N - 1);
      float sum = 0; /* of whole numbers: exact */
      for (int64_t q = 0; q < K; q++) sum += a[i * K + q] * b[q * of_b.row + j * of_b.col];
      assert_true(c[i * N + j] == sum);
    }
  }
  free(a), free(b), free(c);
  kern_free(&k);
}

static void routes_agree_with_the_naive_one(void **state) {
  (void)state;
  on_every_machine(one_case, CASES);
  on_every_machine(streamed_case, STREAMED_CASES);
}

/* c = beta * c + a b, in place. */
static void add_may_be_the_result(void **state) {
  (void)state;
  static const int64_t rows[] = {1, 3, 20, 40, 200};
  Kern k;
  kern_init(&k, 2);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    enum { N = 33, K = 20 };
    int64_t m = rows[i];
    static float a[200 * K], b[K * N], c[200 * N], want[200 * N];
    for (int64_t j = 0; j < m * K; j++) a[j] = (float)pick(-9, 9);
    for (int64_t j = 0; j < K * N; j++) b[j] = (float)pick(-9, 9);
    for (int64_t j = 0; j < m * N; j++) c[j] = want[j] = (float)pick(-9, 9);
    Array x = {{m, K}, {K, 1}, {0}, 0}, y = {{K, N}, {N, 1}, {0}, 0}, z = {{m, N}, {N, 1}, {0}, 0};
    View add = {c, z.size, z.stride, 2, DT_F32};
    Gemm g = {.a = {a, x.size, x.stride, 2, DT_F32},
              .b = {b, y.size, y.stride, 2, DT_F32},
              .c = add,
              .add = &add,
              .alpha = 1,
              .beta = 2};
    for (int act = 0; act < 2; act++) {
      g.act = act ? GEMM_ACT_RELU : GEMM_ACT_NONE;
      for (int64_t r = 0; r < m; r++) {
        for (int64_t s = 0; s < N; s++) {
          float sum = 2 * want[r * N + s];
          for (int64_t q = 0; q < K; q++) sum += a[r * K + q] * b[q * N + s];
          want[r * N + s] = act && sum < 0 ? 0 : sum;
        }
      }
      assert_ok(gemm(&k, &g));
      assert_memory_equal(c, want, (size_t)(m * N) * sizeof(float));
    }
  }
  kern_free(&k);
}

/* nan in add does not count when beta is 0; nan in a product does. */
static void beta_zero_does_not_read(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 1);
  float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 0, 0, 1, 1, NAN}, c[4], add[4] = {NAN, NAN, NAN, NAN};
  int64_t as[2] = {2, 3}, at[2] = {3, 1}, bs[2] = {3, 2}, bt[2] = {2, 1}, cs[2] = {2, 2}, ct[2] = {2, 1};
  View addend = {add, cs, ct, 2, DT_F32};
  assert_ok(gemm(&k, &(Gemm){.a = {a, as, at, 2, DT_F32},
                             .b = {b, bs, bt, 2, DT_F32},
                             .c = {c, cs, ct, 2, DT_F32},
                             .add = &addend,
                             .alpha = 1}));
  assert_true(c[0] == 4 && c[2] == 10 && isnan(c[1]) && isnan(c[3]));
  kern_free(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(routes_agree_with_the_naive_one),
      cmocka_unit_test(blocks_are_added),
      cmocka_unit_test(add_may_be_the_result),
      cmocka_unit_test(beta_zero_does_not_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
