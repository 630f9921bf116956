/* Dtypes: the names once, promotion as PyTorch's table, and 16-bit floats over all their
 * bit patterns, against conversions written in the slow and obvious way. */
#include <math.h>

#include "tensor/dtype.h"
#include "unit.h"

/* A 16-bit float by its definition: sign, exponent, mantissa. */
static double half_value(uint16_t h, int exponent_bits) {
  int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  int e = (h & 0x7fff) >> mantissa_bits, m = h & ((1 << mantissa_bits) - 1);
  double v = e == (1 << exponent_bits) - 1 ? (m ? NAN : INFINITY)
             : e                           ? ldexp(1 + ldexp(m, -mantissa_bits), e - bias)
                                           : ldexp(m, 1 - bias - mantissa_bits);
  return h & 0x8000 ? -v : v;
}

typedef struct {
  float (*up)(uint16_t);
  uint16_t (*down)(float);
  int exponent_bits;
} Half;

/* Every value up and down; every midpoint between neighbours to the even one; a hair
 * above and below it to the nearer one. */
static void check_half(const Half *h) {
  uint16_t inf = (uint16_t)(((1 << h->exponent_bits) - 1) << (15 - h->exponent_bits));
  for (uint32_t i = 0; i < 0x10000; i++) {
    uint16_t bits = (uint16_t)i;
    double want = half_value(bits, h->exponent_bits);
    float got = h->up(bits);
    if (isnan(want)) {
      assert_true(isnan(got));
      uint16_t back = h->down(got);
      assert_true((back & 0x7fff) > inf);
      continue;
    }
    assert_true((double)got == want && !signbit(got) == !signbit(want));
    assert_int_equal(h->down(got), bits);
    if ((bits & 0x7fff) >= inf) continue;
    uint16_t next = (uint16_t)(bits + 1);
    /* The largest finite value's neighbour is where infinity would continue the row. */
    double above = (next & 0x7fff) == inf ? (bits & 0x8000 ? -1 : 1) * ldexp(1, 1 << (h->exponent_bits - 1))
                                          : half_value(next, h->exponent_bits);
    float middle = (float)((want + above) / 2), away = bits & 0x8000 ? -INFINITY : INFINITY;
    if ((double)middle != (want + above) / 2) continue; /* bf16 subnormals at the end of f32 */
    assert_int_equal(h->down(middle), bits & 1 ? next : bits);
    assert_int_equal(h->down(nextafterf(middle, away)), next);
    assert_int_equal(h->down(nextafterf(middle, 0)), bits);
  }
  assert_int_equal(h->down(INFINITY), inf);
  assert_int_equal(h->down(-INFINITY), inf | 0x8000);
  assert_true((h->down(f32_from_bits(0x7f800001)) & 0x7fff) > inf); /* signalling nan */
  assert_true((h->down(f32_from_bits(0xffffffff)) & 0x7fff) > inf);
}

static void f16_exhaustive(void **state) {
  (void)state;
  check_half(&(Half){f16_to_f32, f32_to_f16, 5});
}

static void bf16_exhaustive(void **state) {
  (void)state;
  check_half(&(Half){bf16_to_f32, f32_to_bf16, 8});
}

static void names(void **state) {
  (void)state;
  for (int d = 0; d < DT_COUNT; d++) {
    assert_int_equal(dtype_parse(dtype_info[d].name), d);
    assert_int_equal(dtype_parse(dtype_info[d].torch), d);
    assert_int_equal(dtype_from_pt2(dtype_info[d].pt2), d);
    if (*dtype_info[d].safetensors) assert_int_equal(dtype_from_safetensors(dtype_info[d].safetensors), d);
  }
  assert_int_equal(dtype_parse("f33"), DT_NONE);
  assert_int_equal(dtype_from_pt2(0), DT_NONE);
  assert_int_equal(dtype_from_safetensors(""), DT_NONE);
}

static void promotion(void **state) {
  (void)state;
  /* clang-format off */
  enum { b = DT_BOOL, u = DT_U8, i1 = DT_I8, i2 = DT_I16, i4 = DT_I32, i8 = DT_I64, h = DT_F16, g = DT_BF16,
      f = DT_F32, d = DT_F64 };
  static const int order[10] = {b, u, i1, i2, i4, i8, h, g, f, d};
  static const int want[10][10] = {
  /* clang-format off */
  /*        b   u   i1  i2  i4  i8  h   g   f   d  */
  /* b  */ {b,  u,  i1, i2, i4, i8, h,  g,  f,  d},
  /* u  */ {u,  u,  i2, i2, i4, i8, h,  g,  f,  d},
  /* i1 */ {i1, i2, i1, i2, i4, i8, h,  g,  f,  d},
  /* i2 */ {i2, i2, i2, i2, i4, i8, h,  g,  f,  d},
  /* i4 */ {i4, i4, i4, i4, i4, i8, h,  g,  f,  d},
  /* i8 */ {i8, i8, i8, i8, i8, i8, h,  g,  f,  d},
  /* h  */ {h,  h,  h,  h,  h,  h,  h,  f,  f,  d},
  /* g  */ {g,  g,  g,  g,  g,  g,  f,  g,  f,  d},
  /* f  */ {f,  f,  f,  f,  f,  f,  f,  f,  f,  d},
  /* d  */ {d,  d,  d,  d,  d,  d,  d,  d,  d,  d},
      /* clang-format on */
  };
  /* clang-format on */
  for (int x = 0; x < 10; x++) {
    for (int y = 0; y < 10; y++) assert_int_equal(dtype_promote((Dtype)order[x], (Dtype)order[y]), want[x][y]);
  }
  assert_int_equal(dtype_promote(DT_U16, DT_F32), DT_NONE);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(f16_exhaustive), cmocka_unit_test(bf16_exhaustive),
                                     cmocka_unit_test(names), cmocka_unit_test(promotion)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
