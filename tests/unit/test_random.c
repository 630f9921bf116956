/* Random numbers: known answers of Philox, and that an element's value depends on
 * nothing but seed, offset and its number. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "kernels/philox.h"
#include "kernels/random.h"

/* From the known-answer tests of Random123. */
static const struct {
  uint32_t counter[4], key[2], answer[4];
} known[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static void philox_known_answers(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    PhiloxBlock counter;
    memcpy(counter.word, known[i].counter, sizeof counter.word);
    PhiloxBlock got = philox4x32(counter, known[i].key[0], known[i].key[1]);
    assert_memory_equal(got.word, known[i].answer, sizeof got.word);
  }
}

enum { N = 5000 };

static const struct {
  RandomKind kind;
  Dtype dtype;
} kinds[] = {
    {RANDOM_UNIFORM, DT_F32}, {RANDOM_UNIFORM, DT_F64},     {RANDOM_UNIFORM, DT_BF16},   {RANDOM_NORMAL, DT_F32},
    {RANDOM_NORMAL, DT_F64},  {RANDOM_EXPONENTIAL, DT_F32}, {RANDOM_BERNOULLI, DT_BOOL}, {RANDOM_INTEGER, DT_I64},
};

static void parts_agree_with_the_whole(void **state) {
  (void)state;
  static unsigned char whole[N * 8], part[N * 8];
  Kern one, two;
  kern_init(&one, 1);
  kern_init(&two, 2);
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    Random r = {.kind = kinds[i].kind, .seed = 7, .offset = 3, .a = 0.5, .b = 2, .low = -3, .range = 17};
    size_t item = dtype_size(kinds[i].dtype);
    kernel_random(&two, &r, kinds[i].dtype, whole, 0, N);
    for (int64_t first = 0, n = 1; first < N; first += n, n = n * 2 + 1) {
      if (n > N - first) n = N - first;
      kernel_random(&one, &r, kinds[i].dtype, part + (size_t)first * item, first, n);
    }
    assert_memory_equal(whole, part, N * item);
  }
  kern_free(&one);
  kern_free(&two);
}

static void distributions_have_their_moments(void **state) {
  (void)state;
  static double x[N];
  Kern k;
  kern_init(&k, 1);
  static const struct {
    RandomKind kind;
    double a, b, mean, deviation;
  } expected[] = {
      {RANDOM_UNIFORM, 0, 1, 0.5, 0.2887},
      {RANDOM_NORMAL, 1, 2, 1, 2},
      {RANDOM_EXPONENTIAL, 2, 0, 0.5, 0.5},
      {RANDOM_BERNOULLI, 0.3, 0, 0.3, 0.4583},
  };
  for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
    Random r = {.kind = expected[i].kind, .seed = 11, .a = expected[i].a, .b = expected[i].b};
    kernel_random(&k, &r, DT_F64, x, 0, N);
    double sum = 0, squares = 0;
    for (int j = 0; j < N; j++) sum += x[j], squares += x[j] * x[j];
    double mean = sum / N, deviation = sqrt(squares / N - mean * mean);
    assert_true(fabs(mean - expected[i].mean) < 4 * expected[i].deviation / sqrt(N));
    assert_true(fabs(deviation - expected[i].deviation) < 0.05 * expected[i].deviation);
  }
  kern_free(&k);
}

static void draws_follow_their_weights(void **state) {
  (void)state;
  static int64_t draws[N];
  static double spare[64];
  const double p[4] = {1, 0, 3, 6};
  Random r = {.kind = RANDOM_INTEGER, .seed = 5};
  kernel_multinomial(&r, p, 1, 4, N, true, NULL, spare, draws);
  int count[4] = {0};
  for (int i = 0; i < N; i++) count[draws[i]]++;
  for (int i = 0; i < 4; i++) assert_true(fabs(count[i] - N * p[i] / 10) < 4 * sqrt(N * p[i] / 10) + 1e-9);
  kernel_multinomial(&r, p, 1, 4, 3, false, NULL, spare, draws);
  assert_int_equal(draws[0] + draws[1] + draws[2], 0 + 2 + 3); /* all that have a weight, once */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(philox_known_answers),
      cmocka_unit_test(parts_agree_with_the_whole),
      cmocka_unit_test(distributions_have_their_moments),
      cmocka_unit_test(draws_follow_their_weights),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
