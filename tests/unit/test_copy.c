/* Strided copies, conversions and fills against one element at a time. */
#include <math.h>

#include "kernels/copy.h"
#include "ops/value.h"
#include "random_layout.h"
#include "unit.h"

enum { ROOM = 1 << 17, TURNS = 1500 };

/* Sizes of up to 5 dimensions, now and then empty, long or of one element. */
static Layout random_sizes(void) {
  Layout l = {.ndim = (int)below(6)};
  for (int d = 0; d < l.ndim; d++) l.size[d] = below(20) == 0 ? 0 : below(4) == 0 ? 1 + below(70) : 1 + below(5);
  return l;
}

static void random_element(Dtype d, void *element) {
  double f = (double)(below(4000) - 2000) / 7;
  Value v = below(3) ? val_float(f) : val_int(below(600) - 300);
  if (below(20) == 0) v = val_float(0);
  if (below(20) == 0 && dtype_is_float(d)) v = val_float(below(2) ? (double)NAN : (double)INFINITY);
  if (d == DT_C64) v = (Value){.kind = VAL_COMPLEX, .complex_ = {val_as_float(&v), (double)below(2)}};
  val_store(&v, d, element);
}

static bool same_element(Dtype d, const void *a, const void *b) {
  Value x = val_load(d, a), y = val_load(d, b);
  return !memcmp(a, b, dtype_size(d)) || (x.kind == VAL_FLOAT && isnan(x.f) && isnan(y.f));
}

/* One random copy: src broadcast to dst. */
static void copy_once(Kern *k, Dtype f, char *src, char *dst) {
  Layout to = random_sizes();
  if (random_strides(&to, false) > ROOM) return;
  Layout from = to;
  if (random_strides(&from, false) > ROOM) return;
  int skip = from.ndim ? (int)below(2) : 0; /* leading dimensions that src lacks */
  for (int d = 0; d < from.ndim; d++) {
    if (below(8) == 0) from.size[d] = 1;
    else if (below(10) == 0) from.stride[d] = 0;
  }
  Dtype t = below(2) ? f : (Dtype)below(11);
  size_t tb = dtype_size(t), fb = dtype_size(f);
  kernel_copy(k, (View){dst, to.size, to.stride, to.ndim, t},
              (View){src, from.size + skip, from.stride + skip, from.ndim - skip, f});
  int64_t n = 1, at[5] = {0};
  for (int d = 0; d < to.ndim; d++) n *= to.size[d];
  for (int64_t i = 0; i < n; i++) {
    int64_t s = 0, o = 0;
    for (int d = 0; d < to.ndim; d++) {
      o += at[d] * to.stride[d];
      if (d >= skip && from.size[d] != 1) s += at[d] * from.stride[d];
    }
    char want[16] = {0};
    Value v = val_load(f, src + (size_t)s * fb);
    val_store(&v, t, want);
    if (t == f) memcpy(want, src + (size_t)s * fb, fb);
    /* Out of range, the result depends on the widths on the way. */
    bool defined = !dtype_is_int(t) || v.kind == VAL_INT || v.kind == VAL_BOOL || fabs(val_as_float(&v)) < 1e6;
    if (defined && !same_element(t, want, dst + (size_t)o * tb))
      test_failed("%s to %s: element %lld differs", dtype_name(f), dtype_name(t), (long long)i);
    for (int d = to.ndim - 1; d >= 0 && ++at[d] == to.size[d]; d--) at[d] = 0;
  }
}

static void test_copies(void **state) {
  (void)state;
  char *src = malloc(ROOM * 16), *dst = malloc(ROOM * 16);
  assert_non_null(src);
  assert_non_null(dst);
  for (int isa = 0; isa <= (int)isa_detect(); isa++) {
    Kern k;
    kern_init(&k, 1 + isa % 2);
    k.isa = (Isa)isa;
    for (int turn = 0; turn < TURNS; turn++) {
      Dtype f = (Dtype)(turn / 50 % 11);
      for (int64_t i = 0; turn % 50 == 0 && i < ROOM; i++) random_element(f, src + i * (int64_t)dtype_size(f));
      copy_once(&k, f, src, dst);
    }
    kern_free(&k);
  }
  free(src);
  free(dst);
}

/* Rows that begin anywhere in a cache line and end anywhere; what lies around them stays as it was. */
static void test_past_caches(void **state) {
  (void)state;
  enum { AROUND = 80, LONGEST = 9000 };
  static unsigned char x[2 * LONGEST + 2 * AROUND], y[sizeof x];
  static const int64_t sizes[] = {0, 1, 63, 4095, 4096, 4097, 6150, LONGEST};
  for (size_t i = 0; i < sizeof x; i++) x[i] = (unsigned char)(i * 2654435761u >> 13);
  for (int isa = 0; isa <= (int)isa_detect(); isa++) {
    Kern k;
    kern_init(&k, 1 + isa % 2);
    k.isa = (Isa)isa;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
      for (int64_t begin = 0; begin < AROUND; begin += 7) {
        const int64_t n = sizes[s], size[2] = {2, n}, from[2] = {n, 1}, to[2] = {LONGEST, 1};
        memset(y, 0xa5, sizeof y);
        kernel_copy_past_caches(&k, (View){y + begin, size, to, 2, DT_U8}, (View){x + 3, size, from, 2, DT_U8});
        for (int64_t i = 0; i < (int64_t)sizeof y; i++) {
          int64_t row = (i - begin) / LONGEST, column = (i - begin) % LONGEST;
          bool copied = i >= begin && row < 2 && column < n;
          if (y[i] != (copied ? x[3 + row * n + column] : 0xa5))
            test_failed("isa %d: byte %lld of %lld from %lld on", isa, (long long)(i - begin), (long long)n,
                        (long long)begin);
        }
      }
    }
    kern_free(&k);
  }
}

static void test_fill(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 2);
  static float x[300 * 400];
  const int64_t size[2] = {300, 200}, stride[2] = {400, 2};
  const float value = 1.5f;
  memset(x, 0, sizeof x);
  kernel_fill(&k, (View){x, size, stride, 2, DT_F32}, &value);
  for (int i = 0; i < 300 * 400; i++) assert_true(x[i] == (i % 2 ? 0 : 1.5f));
  kern_free(&k);
}

/* Sizes around the block and a thread's share, both ways round. */
static void test_transposes(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 2);
  static const int64_t sides[] = {3, 15, 16, 17, 64, 1000};
  for (size_t a = 0; a < 6; a++) {
    for (size_t b = 0; b < 6; b++) {
      int64_t rows = sides[a], columns = sides[b], size[3] = {2, rows, columns},
              to[3] = {rows * columns, columns, 1}, from[3] = {rows * columns, 1, rows};
      for (size_t bytes = 1; bytes <= 16; bytes *= 2) {
        static const Dtype of_size[] = {[1] = DT_U8, [2] = DT_BF16, [4] = DT_F32, [8] = DT_I64, [16] = DT_C128};
        size_t n = (size_t)(2 * rows * columns);
        unsigned char *x = malloc(n * bytes), *y = malloc(n * bytes);
        assert_non_null(x);
        assert_non_null(y);
        for (size_t i = 0; i < n * bytes; i++) x[i] = (unsigned char)(i * 2654435761u >> 13);
        kernel_copy(&k, (View){y, size, to, 3, of_size[bytes]}, (View){x, size, from, 3, of_size[bytes]});
        for (int64_t p = 0; p < 2; p++) {
          for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < columns; c++) {
              assert_memory_equal(y + (size_t)(p * to[0] + r * to[1] + c) * bytes,
                                  x + (size_t)(p * from[0] + r + c * rows) * bytes, bytes);
            }
          }
        }
        free(x);
        free(y);
      }
    }
  }
  kern_free(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_copies), cmocka_unit_test(test_past_caches),
                                     cmocka_unit_test(test_fill), cmocka_unit_test(test_transposes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
