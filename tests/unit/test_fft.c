/* test_fft.c -- transforms of many lengths against the definition, and there and back. */
#include "kernels/fft.h"

#include <math.h>
#include <stdlib.h>

#include "unit.h"

static const int64_t lengths[] = {1,   2,   3,   4,   5,   6,   7,    8,    9,    10,   11,  12,  13,
                                  15,  16,  17,  20,  21,  25,  27,   30,   31,   32,   33,  35,  37,
                                  41,  60,  64,  74,  97,  100, 101,  120,  128,  143,  210, 243, 256,
                                  257, 360, 400, 401, 512, 625, 1000, 1009, 1024, 1155, 2048};

static float noise(void) { return (float)(rand() % 2001 - 1000) / 1000; }

/* Element k of a transform of n complex numbers, as the formula says. */
static void naive(const float *x, int64_t n, int64_t k, double sign, double *out) {
  out[0] = out[1] = 0;
  for (int64_t j = 0; j < n; j++) {
    double angle = sign * 2 * M_PI * (double)(j * k % n) / (double)n, c = cos(angle), s = sin(angle);
    out[0] += (double)x[2 * j] * c - (double)x[2 * j + 1] * s;
    out[1] += (double)x[2 * j] * s + (double)x[2 * j + 1] * c;
  }
}

static void check(const float *got, const double *want, int64_t n, int64_t k) {
  double limit = 2e-6 * sqrt((double)n) * (1 + log2((double)n)); /* rounding errors add up like this */
  if (!(fabs((double)got[0] - want[0]) <= limit && fabs((double)got[1] - want[1]) <= limit)) {
    test_failed("length %lld, element %lld: %g%+gi, should be %g%+gi", (long long)n, (long long)k, (double)got[0],
                (double)got[1], want[0], want[1]);
  }
}

/* Sequences are columns, so that they are strided; more of them than there are lanes. */
static void definition(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 2);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    int64_t n = lengths[i], columns = 11, size[2] = {n, columns}, stride[2] = {columns, 1};
    float *x = malloc((size_t)(n * columns) * 8), *y = malloc((size_t)(n * columns) * 8),
          *one = malloc((size_t)n * 8);
    assert_true(x && y && one);
    for (int forward = 0; forward < 2; forward++) {
      for (int64_t e = 0; e < n * columns * 2; e++) x[e] = noise();
      assert_ok(fft_c2c(&k, (View){x, size, stride, 2, DT_C64}, (View){y, size, stride, 2, DT_C64}, 0, forward, 1));
      for (int64_t c = 0; c < columns; c += 5) {
        for (int64_t j = 0; j < n; j++)
          one[2 * j] = x[2 * (j * columns + c)], one[2 * j + 1] = x[2 * (j * columns + c) + 1];
        for (int64_t e = 0; e < n; e += 1 + n / 40) {
          double want[2];
          naive(one, n, e, forward ? -1 : 1, want);
          check(y + 2 * (e * columns + c), want, n, e);
        }
      }
    }
    free(x), free(y), free(one);
  }
  kern_free(&k);
}

/* Real to complex to real gives the input; its first half is that of the complex one. */
static void real(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 1);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    int64_t n = lengths[i], m = n / 2 + 1, rows = 19, size[2] = {rows, n}, stride[2] = {n, 1},
            half_size[2] = {rows, m}, half_stride[2] = {m, 1};
    float *x = malloc((size_t)(rows * n) * 4), *y = malloc((size_t)(rows * m) * 8),
          *back = malloc((size_t)(rows * n) * 4), *one = malloc((size_t)n * 8);
    assert_true(x && y && back && one);
    for (int64_t e = 0; e < rows * n; e++) x[e] = noise();
    View half = {y, half_size, half_stride, 2, DT_C64};
    assert_ok(fft_r2c(&k, (View){x, size, stride, 2, DT_F32}, half, 1, 1));
    for (int64_t r = 0; r < rows; r += 6) {
      for (int64_t j = 0; j < n; j++) one[2 * j] = x[r * n + j], one[2 * j + 1] = 0;
      for (int64_t e = 0; e < m; e += 1 + m / 20) {
        double want[2];
        naive(one, n, e, -1, want);
        check(y + 2 * (r * m + e), want, n, e);
      }
    }
    assert_ok(fft_c2r(&k, half, (View){back, size, stride, 2, DT_F32}, 1, 1 / (double)n));
    for (int64_t e = 0; e < rows * n; e++) {
      if (!(fabsf(back[e] - x[e]) <= 1e-5f))
        test_failed("length %lld: %g came back as %g", (long long)n, (double)x[e], (double)back[e]);
    }
    free(x), free(y), free(back), free(one);
  }
  kern_free(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(definition), cmocka_unit_test(real)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
