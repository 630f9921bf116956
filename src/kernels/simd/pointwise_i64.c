/* pointwise_i64.c -- the instructions of pointwise.h on integers.
 *
 * All widths compute in 64 bits and wrap; a result is cut to its own width when it is
 * settled or stored.  Sums and products wrap as unsigned numbers do. */
#include "kernels/pointwise.h"
#include "kernels/simd/math.h"

#define ROW1(OP, EXPR)                            \
  case PW_##OP: {                                 \
    INDEPENDENT for (int64_t i = 0; i < n; i++) { \
      const int64_t x = xs[i];                    \
      d[i] = (EXPR);                              \
    }                                             \
    return PW_OK;                                 \
  }
#define ROW2(OP, EXPR)                            \
  case PW_##OP: {                                 \
    INDEPENDENT for (int64_t i = 0; i < n; i++) { \
      const int64_t x = xs[i], y = ys[i];         \
      d[i] = (EXPR);                              \
    }                                             \
    return PW_OK;                                 \
  }
#define CALL2(OP, EXPR)                   \
  case PW_##OP: {                         \
    for (int64_t i = 0; i < n; i++) {     \
      const int64_t x = xs[i], y = ys[i]; \
      d[i] = (EXPR);                      \
    }                                     \
    return PW_OK;                         \
  }
#define DIVIDE(OP, EXPR)                       \
  case PW_##OP: {                              \
    for (int64_t i = 0; i < n; i++) {          \
      const int64_t x = xs[i], y = ys[i];      \
      if (y == 0) return PW_ZERO_DIVISION;     \
      d[i] = y == -1 ? MINUS_##OP(x) : (EXPR); \
    }                                          \
    return PW_OK;                              \
  }
#define TEST2(OP, EXPR)                           \
  case PW_##OP: {                                 \
    uint8_t *b = dst;                             \
    INDEPENDENT for (int64_t i = 0; i < n; i++) { \
      const int64_t x = xs[i], y = ys[i];         \
      b[i] = (EXPR);                              \
    }                                             \
    return PW_OK;                                 \
  }

static inline int64_t wrap_add(int64_t x, int64_t y) { return (int64_t)((uint64_t)x + (uint64_t)y); }
static inline int64_t wrap_sub(int64_t x, int64_t y) { return (int64_t)((uint64_t)x - (uint64_t)y); }
static inline int64_t wrap_mul(int64_t x, int64_t y) { return (int64_t)((uint64_t)x * (uint64_t)y); }
static inline int64_t wrap_neg(int64_t x) { return (int64_t)(0 - (uint64_t)x); }

/* Division by -1 apart: the smallest number has no opposite. */
#define MINUS_FLOOR_DIV(x) wrap_neg(x)
#define MINUS_TRUNC_DIV(x) wrap_neg(x)
#define MINUS_REMAINDER(x) 0
#define MINUS_FMOD(x) 0

static inline int64_t power(int64_t x, int64_t y) {
  if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
  uint64_t base = (uint64_t)x, out = 1;
  for (; y; y >>= 1, base *= base) out *= y & 1 ? base : 1;
  return (int64_t)out;
}
/* Of magnitudes: that of the smallest number has no sign bit to spare. */
static inline uint64_t magnitude(int64_t x) { return x < 0 ? 0 - (uint64_t)x : (uint64_t)x; }
static inline uint64_t common_divisor(uint64_t x, uint64_t y) {
  while (x) {
    const uint64_t rest = y % x;
    y = x;
    x = rest;
  }
  return y;
}
/* Wraps, and is not negative unless it is the smallest number. */
static inline int64_t common_multiple(int64_t x, int64_t y) {
  const uint64_t divisor = common_divisor(magnitude(x), magnitude(y));
  return divisor ? (int64_t)magnitude((int64_t)(magnitude(x) / divisor * magnitude(y))) : 0;
}
/* Shifts by more than the width, or by a negative number, leave nothing (or the sign). */
static inline int64_t shift_left(int64_t x, int64_t y) { return y < 0 || y > 63 ? 0 : (int64_t)((uint64_t)x << y); }
static inline int64_t shift_right(int64_t x, int64_t y) { return x >> (y < 0 || y > 63 ? 63 : y); }

PwFault SIMD(pw_step_i64)(const PwInstr *in, void *dst, const void *x_, const void *y_, const void *z_, int64_t n) {
  const int64_t *xs = x_, *ys = y_, *zs = z_;
  const int64_t p = in->imm.i[0], q = in->imm.i[1];
  int64_t *d = dst;
  /* clang-format off */
  switch ((PwOp)in->op) {
    ROW1(COPY, x)
    ROW1(NEG, wrap_neg(x))
    ROW1(ABS, x < 0 ? wrap_neg(x) : x)
    ROW1(SIGN, (x > 0) - (x < 0))
    ROW1(NOT, ~x)
    ROW1(SQUARE, wrap_mul(x, x))
    ROW1(CUBE, wrap_mul(wrap_mul(x, x), x))
    ROW1(RELU, x < 0 ? 0 : x)
    ROW1(CLAMP, (x < p ? p : x) > q ? q : (x < p ? p : x))
    ROW1(THRESHOLD, x <= p ? q : x)
    ROW2(ADD, wrap_add(x, y))
    ROW2(SUB, wrap_sub(x, y))
    ROW2(MUL, wrap_mul(x, y))
    ROW2(ADD_SCALED, wrap_add(x, wrap_mul(p, y)))
    DIVIDE(FLOOR_DIV, x / y - (x % y != 0 && (x < 0) != (y < 0)))
    DIVIDE(TRUNC_DIV, x / y)
    DIVIDE(REMAINDER, x % y != 0 && (x < 0) != (y < 0) ? x % y + y : x % y)
    DIVIDE(FMOD, x % y)
    ROW2(MAXIMUM, x > y ? x : y)
    ROW2(MINIMUM, x < y ? x : y)
    ROW2(FMAX, x > y ? x : y)
    ROW2(FMIN, x < y ? x : y)
    CALL2(POW, power(x, y))
    CALL2(GCD, (int64_t)common_divisor(magnitude(x), magnitude(y)))
    CALL2(LCM, common_multiple(x, y))
    ROW2(AND, x & y)
    ROW2(OR, x | y)
    ROW2(XOR, x ^ y)
    CALL2(SHIFT_LEFT, shift_left(x, y))
    CALL2(SHIFT_RIGHT, shift_right(x, y))
    ROW2(HEAVISIDE, x == 0 ? y : x > 0)
    ROW2(THRESHOLD_BACKWARD, y <= p ? 0 : x)
    TEST2(EQ, x == y)
    TEST2(NE, x != y)
    TEST2(LT, x < y)
    TEST2(LE, x <= y)
    TEST2(GT, x > y)
    TEST2(GE, x >= y)
    case PW_WHERE: {
      const uint8_t *condition = x_;
      INDEPENDENT for (int64_t i = 0; i < n; i++) d[i] = condition[i] ? ys[i] : zs[i];
      return PW_OK;
    }
    case PW_ADDCMUL: {
      INDEPENDENT for (int64_t i = 0; i < n; i++) d[i] = wrap_add(xs[i], wrap_mul(wrap_mul(p, ys[i]), zs[i]));
      return PW_OK;
    }
    default: return PW_UNKNOWN;
  }
  /* clang-format on */
}
