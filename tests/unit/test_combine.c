/* Several buffers into one: every op and dtype against one element at a time. */
#include "kernels/combine.h"

#include <math.h>

#include "kernels/convert.h"
#include "unit.h"

enum { N = 5000, MOST = 5 };

static const Dtype computed[] = {DT_BOOL, DT_U8, DT_I8, DT_I16, DT_I32, DT_I64, DT_F16, DT_BF16, DT_F32, DT_F64};

static uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

/* Small numbers: exact in every dtype, also summed up. */
static double made_up(uint64_t *state, Dtype d) {
  double x = (double)(next_random(state) % 7);
  if (d == DT_BOOL) return x > 3;
  return d == DT_U8 ? x : x - 3;
}

static double one(ReduceOp op, Dtype d, double x, double y) {
  int64_t a = (int64_t)x, b = (int64_t)y;
  switch (op) {
    case REDUCE_SUM: return d == DT_BOOL ? x != 0 || y != 0 : x + y;
    case REDUCE_AVG: return x + y;
    case REDUCE_PRODUCT: return x * y;
    case REDUCE_MIN: return x < y ? x : y;
    case REDUCE_MAX: return x > y ? x : y;
    case REDUCE_BAND: return (double)(a & b);
    case REDUCE_BOR: return (double)(a | b);
    case REDUCE_BXOR: return (double)(a ^ b);
    default: return 0;
  }
}

enum { ELSEWHERE = -1, PAST_CACHES = -2 };

/* place: the source that the result is written to, or one of these. */
static void check_case(Isa isa, ReduceOp op, Dtype d, int nsrc, int place, int64_t n) {
  static double value[MOST][N], want[N], got[N];
  static _Alignas(64) unsigned char bytes[MOST][N * 8], out[N * 8 + 64];
  const void *src[MOST];
  uint64_t state = (uint64_t)op * 131 + (uint64_t)d * 17 + (uint64_t)nsrc;
  for (int s = 0; s < nsrc; s++) {
    for (int64_t i = 0; i < n; i++) value[s][i] = made_up(&state, d);
    SIMD_CALL(ISA_BASE, convert_run)(bytes[s], d, value[s], DT_F64, n);
    src[s] = bytes[s];
  }
  for (int64_t i = 0; i < n; i++) {
    want[i] = value[0][i];
    for (int s = 1; s < nsrc; s++) want[i] = one(op, d, want[i], value[s][i]);
    if (op == REDUCE_AVG) want[i] = dtype_is_int(d) ? trunc(want[i] / nsrc) : want[i] / nsrc;
  }
  static unsigned char rounded[N * 8]; /* want, as d can say it */
  if (d == DT_F32 || d == DT_F16 || d == DT_BF16) {
    for (int64_t i = 0; i < n; i++) want[i] = (double)(float)want[i];
  }
  SIMD_CALL(ISA_BASE, convert_run)(rounded, d, want, DT_F64, n);
  SIMD_CALL(ISA_BASE, convert_run)(want, DT_F64, rounded, d, n);
  unsigned char *dst = place >= 0 ? bytes[place] : out + 3 * dtype_size(d); /* not at the beginning of a line */
  memset(out, 0x5a, sizeof out);
  (place == PAST_CACHES ? combine_past_caches : combine)(isa, op, d, dst, src, nsrc, n);
  for (size_t i = 0; i < 3 * dtype_size(d); i++) assert_int_equal(out[i], 0x5a);
  for (size_t i = ((size_t)n + 3) * dtype_size(d); i < sizeof out && place < 0; i++) assert_int_equal(out[i], 0x5a);
  SIMD_CALL(ISA_BASE, convert_run)(got, DT_F64, dst, d, n);
  for (int64_t i = 0; i < n; i++) {
    if (got[i] != want[i])
      test_failed("%s of %d %s buffers, element %lld: %g, expected %g", reduce_op_name(op), nsrc, dtype_name(d),
                  (long long)i, got[i], want[i]);
  }
}

static void agrees_with_one_at_a_time(void **state) {
  (void)state;
  for (ReduceOp op = 0; op < REDUCE_OP_COUNT; op++) {
    for (size_t t = 0; t < sizeof computed / sizeof *computed; t++) {
      Status s = combine_check(op, computed[t]);
      if (s) {
        status_free(s);
        continue;
      }
      for (int nsrc = 1; nsrc <= MOST; nsrc++) {
        for (Isa isa = ISA_BASE; isa <= isa_detect(); isa++) {
          check_case(isa, op, computed[t], nsrc, ELSEWHERE, N);
          check_case(isa, op, computed[t], nsrc, PAST_CACHES, N);
        }
        for (int place = 0; place < nsrc; place++) check_case(isa_detect(), op, computed[t], nsrc, place, N - 3);
      }
      check_case(isa_detect(), op, computed[t], 2, ELSEWHERE, 1);
      for (int64_t n = 2045; n < 2060; n++) check_case(isa_detect(), op, computed[t], 2, PAST_CACHES, n);
      check_case(isa_detect(), op, computed[t], 3, ELSEWHERE, 0);
    }
  }
}

static void refuses_by_name(void **state) {
  (void)state;
  assert_error(combine_check(REDUCE_MIN, DT_C64), "min is not defined for c64");
  assert_error(combine_check(REDUCE_BAND, DT_F32), "band is not defined for f32");
  assert_error(combine_check(REDUCE_AVG, DT_BOOL), "avg is not defined for bool");
  assert_error(combine_check(REDUCE_SUM, DT_F8E4M3), "f8e4m3fn");
  assert_ok(combine_check(REDUCE_PRODUCT, DT_C64));
}

static void nan_wins(void **state) {
  (void)state;
  for (Isa isa = ISA_BASE; isa <= isa_detect(); isa++) {
    float a[40], b[40], c[40], out[40];
    for (int i = 0; i < 40; i++) a[i] = (float)i, b[i] = 3, c[i] = 5;
    a[7] = b[8] = c[9] = NAN;
    a[30] = -INFINITY, b[31] = INFINITY;
    const void *src[] = {a, b, c};
    combine(isa, REDUCE_MIN, DT_F32, out, src, 3, 40);
    assert_true(isnan(out[7]) && isnan(out[8]) && isnan(out[9]) && out[10] == 3 && out[30] == -INFINITY);
    combine(isa, REDUCE_MAX, DT_F32, out, src, 3, 40);
    assert_true(isnan(out[7]) && isnan(out[8]) && isnan(out[9]) && out[2] == 5 && out[31] == INFINITY);
  }
}

static void integers_wrap_and_averages_do_not(void **state) {
  (void)state;
  int8_t a[] = {127, -128, 100, -7}, b[] = {1, -1, 100, 0}, out[4];
  const void *src[] = {a, b};
  combine(ISA_BASE, REDUCE_SUM, DT_I8, out, src, 2, 4);
  assert_true(out[0] == -128 && out[1] == 127 && out[2] == -56 && out[3] == -7);
  combine(ISA_BASE, REDUCE_AVG, DT_I8, out, src, 2, 4);
  assert_true(out[0] == 64 && out[1] == -64 && out[2] == 100 && out[3] == -3);
  int16_t p[] = {-1, 300}, q[] = {-1, 300}, r[2];
  const void *big[] = {p, q};
  combine(ISA_BASE, REDUCE_PRODUCT, DT_I16, r, big, 2, 2);
  assert_true(r[0] == 1 && r[1] == (int16_t)90000);
}

/* Eight times 0.25 beside 512: in f16 each step alone would be lost. */
static void halves_round_once(void **state) {
  (void)state;
  uint16_t x[5] = {f32_to_f16(1024), f32_to_f16(0.25f), f32_to_f16(0.25f), f32_to_f16(0.25f), f32_to_f16(0.25f)},
           out;
  const void *src[] = {&x[0], &x[1], &x[2], &x[3], &x[4]};
  combine(isa_detect(), REDUCE_SUM, DT_F16, &out, src, 5, 1);
  assert_int_equal(out, f32_to_f16(1025));
}

static void complex_numbers(void **state) {
  (void)state;
  float a[] = {1, 2, -3, 0.5f}, b[] = {4, -1, 2, 2}, out[4];
  const void *src[] = {a, b};
  combine(isa_detect(), REDUCE_PRODUCT, DT_C64, out, src, 2, 2);
  assert_true(out[0] == 6 && out[1] == 7 && out[2] == -7 && out[3] == -5);
  combine(isa_detect(), REDUCE_AVG, DT_C64, out, src, 2, 2);
  assert_true(out[0] == 2.5f && out[1] == 0.5f && out[2] == -0.5f && out[3] == 1.25f);
}

static void words(void **state) {
  (void)state;
  ReduceOp op;
  for (ReduceOp i = 0; i < REDUCE_OP_COUNT; i++) assert_true(reduce_op_parse(reduce_op_name(i), &op) && op == i);
  assert_true(reduce_op_parse("prod", &op) && op == REDUCE_PRODUCT);
  assert_true(reduce_op_parse("mean", &op) && op == REDUCE_AVG);
  assert_false(reduce_op_parse("median", &op));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(agrees_with_one_at_a_time),
      cmocka_unit_test(refuses_by_name),
      cmocka_unit_test(nan_wins),
      cmocka_unit_test(integers_wrap_and_averages_do_not),
      cmocka_unit_test(halves_round_once),
      cmocka_unit_test(complex_numbers),
      cmocka_unit_test(words),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
