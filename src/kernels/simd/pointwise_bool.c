/* pointwise_bool.c -- the instructions of pointwise.h on truth values: bytes 0 and 1. */
#include "kernels/pointwise.h"
#include "kernels/simd/math.h"

#define ROW1(OP, EXPR)                            \
  case PW_##OP: {                                 \
    INDEPENDENT for (int64_t i = 0; i < n; i++) { \
      const uint8_t x = xs[i];                    \
      d[i] = (uint8_t)(EXPR);                     \
    }                                             \
    return PW_OK;                                 \
  }
#define ROW2(OP, EXPR)                            \
  case PW_##OP: {                                 \
    INDEPENDENT for (int64_t i = 0; i < n; i++) { \
      const uint8_t x = xs[i], y = ys[i];         \
      d[i] = (uint8_t)(EXPR);                     \
    }                                             \
    return PW_OK;                                 \
  }

PwFault SIMD(pw_step_bool)(const PwInstr *in, void *dst, const void *x_, const void *y_, const void *z_,
                           int64_t n) {
  const uint8_t *xs = x_, *ys = y_, *zs = z_;
  uint8_t *d = dst;
  /* clang-format off */
  switch ((PwOp)in->op) {
    ROW1(COPY, x)
    ROW1(NOT, x ^ 1)
    ROW1(RELU, x)
    ROW2(ADD, x | y)
    ROW2(MUL, x & y)
    ROW2(AND, x & y)
    ROW2(OR, x | y)
    ROW2(XOR, x ^ y)
    ROW2(MAXIMUM, x | y)
    ROW2(MINIMUM, x & y)
    ROW2(FMAX, x | y)
    ROW2(FMIN, x & y)
    ROW2(HEAVISIDE, x | y)
    ROW2(EQ, x == y)
    ROW2(NE, x != y)
    ROW2(LT, x < y)
    ROW2(LE, x <= y)
    ROW2(GT, x > y)
    ROW2(GE, x >= y)
    case PW_WHERE: {
      INDEPENDENT for (int64_t i = 0; i < n; i++) d[i] = xs[i] ? ys[i] : zs[i];
      return PW_OK;
    }
    default: return PW_UNKNOWN;
  }
  /* clang-format on */
}
