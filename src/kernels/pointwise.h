/* pointwise.h -- element-by-element programs, run tile by tile in L1.
 *
 * A program is a list of instructions in single-assignment form on registers.  At run
 * time a register is a tile of TILE elements; the interpreter does one instruction for a
 * whole tile with a vectorised loop, so its overhead is spread over hundreds of elements
 * and chains of ops never leave the cache.  One eager op is a program of one
 * instruction; fused ops are longer ones.  No JIT.
 *
 *     PwProgram p;
 *     pw_init(&p);
 *     int x = pw_input(&p, DT_F32), two = pw_const(&p, DT_F32, pw_real(2));
 *     pw_output(&p, pw_op(&p, PW_MUL, x, two, -1, NULL));
 *     TRY(kernel_pointwise(k, &p, (View[]){out}, (View[]){in}));
 *
 * I1  A register computes in one of five classes, named by a dtype: BOOL, I64 (all
 *     integers), F32 (f16 and bf16 too), F64, C64.  The sources of an instruction are of
 *     one class (except the condition of PW_WHERE, which is BOOL).
 * I2  reg.dtype is the narrowest dtype known to hold the value.  A result that still has
 *     to be rounded or wrapped to its dtype is `loose`; whoever reads it gets the settled
 *     value, and storing it settles it.  So a fused program gives bit for
 *     bit what its ops give one by one.
 * I3  Errors while building (too long) stick to the program: kernel_pointwise reports them.
 * I4  Inputs are broadcast to the size of the outputs; all outputs have one size.  An
 *     output may be the same view as an input if it is the only output.
 */
#ifndef TESS_KERNELS_POINTWISE_H
#define TESS_KERNELS_POINTWISE_H

#include "kernels/kernel.h"

enum {
  PW_TILE = 1024, /* elements */
  PW_MAX_REGS = 160,
  PW_MAX_INSTRS = 128,
  PW_MAX_INPUTS = 16,
  PW_MAX_OUTPUTS = 8,
};

/* What instructions there are.  SAME: the result is of the sources' class; BOOL: it is a
 * truth value; REAL: complex in, f32 out; PAIR: f32 in, complex out.  p, q, r: immediates.
 * The meaning of each is a row of kernels/simd/pointwise_*; not every class has every op. */
#define PW_OPS(X)                                                                                   \
  /* one source */                                                                                  \
  X(COPY, SAME)                                                                                     \
  X(NEG, SAME)                                                                                      \
  X(ABS, SAME)                                                                                      \
  X(SIGN, SAME)                                                                                     \
  X(NOT, SAME)                                                                                      \
  X(SQUARE, SAME)                                                                                   \
  X(CUBE, SAME)                                                                                     \
  X(SQRT, SAME)                                                                                     \
  X(RSQRT, SAME)                                                                                    \
  X(RECIPROCAL, SAME)                                                                               \
  X(EXP, SAME)                                                                                      \
  X(EXP2, SAME)                                                                                     \
  X(EXPM1, SAME)                                                                                    \
  X(LOG, SAME)                                                                                      \
  X(LOG2, SAME)                                                                                     \
  X(LOG10, SAME)                                                                                    \
  X(LOG1P, SAME)                                                                                    \
  X(SIN, SAME)                                                                                      \
  X(COS, SAME)                                                                                      \
  X(TAN, SAME)                                                                                      \
  X(ASIN, SAME)                                                                                     \
  X(ACOS, SAME)                                                                                     \
  X(ATAN, SAME)                                                                                     \
  X(SINH, SAME)                                                                                     \
  X(COSH, SAME)                                                                                     \
  X(TANH, SAME)                                                                                     \
  X(ASINH, SAME)                                                                                    \
  X(ACOSH, SAME)                                                                                    \
  X(ATANH, SAME)                                                                                    \
  X(ERF, SAME)                                                                                      \
  X(ERFC, SAME)                                                                                     \
  X(ERFINV, SAME)                                                                                   \
  X(LGAMMA, SAME)                                                                                   \
  X(DIGAMMA, SAME)                                                                                  \
  X(CEIL, SAME)                                                                                     \
  X(FLOOR, SAME)                                                                                    \
  X(ROUND, SAME)                                                                                    \
  X(TRUNC, SAME)                                                                                    \
  X(FRAC, SAME)                                                                                     \
  X(SIGMOID, SAME)                                                                                  \
  X(LOG_SIGMOID, SAME)                                                                              \
  X(SILU, SAME)                                                                                     \
  X(MISH, SAME)                                                                                     \
  X(RELU, SAME)                                                                                     \
  X(GELU_ERF, SAME)                                                                                 \
  X(GELU_TANH, SAME)                                                                                \
  X(HARDSIGMOID, SAME)                                                                              \
  X(HARDSWISH, SAME)                                                                                \
  X(CLAMP, SAME)      /* p <= x <= q */                                                             \
  X(LEAKY_RELU, SAME) /* slope p */                                                                 \
  X(ELU, SAME)        /* x > 0 ? q x : p (e^(r x) - 1) */                                           \
  X(SOFTPLUS, SAME)   /* beta p, threshold q */                                                     \
  X(HARDSHRINK, SAME)                                                                               \
  X(SOFTSHRINK, SAME) /* p */                                                                       \
  X(THRESHOLD, SAME)  /* x > p ? x : q */                                                           \
  X(NAN_TO_NUM, SAME) /* nan p, inf q, -inf r */                                                    \
  X(ISNAN, BOOL)                                                                                    \
  X(ISINF, BOOL)                                                                                    \
  X(ISFINITE, BOOL)                                                                                 \
  X(ISPOSINF, BOOL)                                                                                 \
  X(ISNEGINF, BOOL)                                                                                 \
  X(SIGNBIT, BOOL)                                                                                  \
  X(CONJ, SAME)                                                                                     \
  X(MAGNITUDE, REAL)                                                                                \
  X(ANGLE, REAL)                                                                                    \
  /* two sources */                                                                                 \
  X(ADD, SAME)                                                                                      \
  X(SUB, SAME)                                                                                      \
  X(MUL, SAME)                                                                                      \
  X(DIV, SAME)                                                                                      \
  X(ADD_SCALED, SAME) /* x + p y */                                                                 \
  X(FLOOR_DIV, SAME)                                                                                \
  X(TRUNC_DIV, SAME)                                                                                \
  X(REMAINDER, SAME)                                                                                \
  X(FMOD, SAME)                                                                                     \
  X(MAXIMUM, SAME)                                                                                  \
  X(MINIMUM, SAME)                                                                                  \
  X(FMAX, SAME)                                                                                     \
  X(FMIN, SAME)                                                                                     \
  X(POW, SAME)                                                                                      \
  X(ATAN2, SAME)                                                                                    \
  X(HYPOT, SAME)                                                                                    \
  X(GCD, SAME)                                                                                      \
  X(LCM, SAME)                                                                                      \
  X(COPYSIGN, SAME)                                                                                 \
  X(XLOGY, SAME)                                                                                    \
  X(LOGADDEXP, SAME)                                                                                \
  X(LOGADDEXP2, SAME)                                                                               \
  X(HEAVISIDE, SAME)                                                                                \
  X(PRELU, SAME)                                                                                    \
  X(AND, SAME)                                                                                      \
  X(OR, SAME)                                                                                       \
  X(XOR, SAME)                                                                                      \
  X(SHIFT_LEFT, SAME)                                                                               \
  X(SHIFT_RIGHT, SAME)                                                                              \
  X(EQ, BOOL)                                                                                       \
  X(NE, BOOL)                                                                                       \
  X(LT, BOOL)                                                                                       \
  X(LE, BOOL)                                                                                       \
  X(GT, BOOL)                                                                                       \
  X(GE, BOOL)                                                                                       \
  X(POLAR, PAIR)                                                                                    \
  /* two sources: gradient of the output x, and y = the forward op's input, or output where said */ \
  X(TANH_BACKWARD, SAME)                                                                            \
  X(SIGMOID_BACKWARD, SAME) /* output */                                                            \
  X(SILU_BACKWARD, SAME)                                                                            \
  X(MISH_BACKWARD, SAME)                                                                            \
  X(GELU_ERF_BACKWARD, SAME)                                                                        \
  X(GELU_TANH_BACKWARD, SAME)                                                                       \
  X(HARDSIGMOID_BACKWARD, SAME)                                                                     \
  X(HARDSWISH_BACKWARD, SAME)                                                                       \
  X(LOG_SIGMOID_BACKWARD, SAME)                                                                     \
  X(THRESHOLD_BACKWARD, SAME)  /* y > p */                                                          \
  X(HARDTANH_BACKWARD, SAME)   /* p < y < q */                                                      \
  X(LEAKY_RELU_BACKWARD, SAME) /* slope p */                                                        \
  X(ELU_BACKWARD, SAME)                                                                             \
  X(ELU_BACKWARD_RESULT, SAME) /* as ELU; from the output */                                        \
  X(SOFTPLUS_BACKWARD, SAME)                                                                        \
  X(HARDSHRINK_BACKWARD, SAME)                                                                      \
  X(SOFTSHRINK_BACKWARD, SAME)                                                                      \
  /* three sources */                                                                               \
  X(WHERE, SAME)   /* x ? y : z */                                                                  \
  X(ADDCMUL, SAME) /* x + p y z */                                                                  \
  X(ADDCDIV, SAME) /* x + p y / z */                                                                \
  X(LERP, SAME)    /* x + z (y - x) */                                                              \
  /* special functions, kernels/special.h: one source, two sources */                               \
  X(I0, SAME)                                                                                       \
  X(I0E, SAME)                                                                                      \
  X(I1, SAME)                                                                                       \
  X(I1E, SAME)                                                                                      \
  X(K0, SAME)                                                                                       \
  X(K0E, SAME)                                                                                      \
  X(K1, SAME)                                                                                       \
  X(K1E, SAME)                                                                                      \
  X(J0, SAME)                                                                                       \
  X(J1, SAME)                                                                                       \
  X(Y0, SAME)                                                                                       \
  X(Y1, SAME)                                                                                       \
  X(SPHERICAL_J0, SAME)                                                                             \
  X(AIRY_AI, SAME)                                                                                  \
  X(ERFCX, SAME)                                                                                    \
  X(NDTR, SAME)                                                                                     \
  X(LOG_NDTR, SAME)                                                                                 \
  X(NDTRI, SAME)                                                                                    \
  X(ENTROPY, SAME)                                                                                  \
  X(SINC, SAME)                                                                                     \
  X(XLOG1PY, SAME)                                                                                  \
  X(ZETA, SAME)                                                                                     \
  X(POLYGAMMA, SAME)                                                                                \
  X(IGAMMA, SAME)                                                                                   \
  X(IGAMMAC, SAME)                                                                                  \
  X(CHEBYSHEV_T, SAME)                                                                              \
  X(CHEBYSHEV_U, SAME)                                                                              \
  X(CHEBYSHEV_V, SAME)                                                                              \
  X(CHEBYSHEV_W, SAME)                                                                              \
  X(HERMITE_H, SAME)                                                                                \
  X(HERMITE_HE, SAME)                                                                               \
  X(LAGUERRE, SAME)                                                                                 \
  X(LEGENDRE, SAME)                                                                                 \
  X(NEXT_AFTER, SAME) /* towards y; p digits, exponents from q, up to r; p = 0: the class's own */  \
  /* to another dtype; made by pw_cast() */                                                         \
  X(CAST, SAME)

/* clang-format off */
typedef enum {
#define X(op, result) PW_##op,
  PW_OPS(X)
#undef X
  PW_OP_COUNT
} PwOp;
/* clang-format on */

typedef struct {
  double re, im;
  int64_t i; /* bool and integers */
} PwNumber;
static inline PwNumber pw_real(double x) { return (PwNumber){x, 0, 0}; }
static inline PwNumber pw_int(int64_t i) { return (PwNumber){0, 0, i}; }

/* Immediates p, q, r: doubles, or int64 for ops on the I64 class. */
typedef union {
  double f[3];
  int64_t i[3];
} PwImm;

typedef struct {
  uint8_t op;
  uint8_t klass; /* Dtype: the class the sources are in */
  uint8_t dtype; /* Dtype: PW_CAST goes by way of this one */
  int16_t dst, src[3];
  PwImm imm;
} PwInstr;

typedef enum { PW_INPUT, PW_CONST, PW_RESULT } PwKind;

typedef struct {
  uint8_t kind;    /* PwKind */
  uint8_t klass;   /* I1 */
  uint8_t dtype;   /* I2 */
  bool loose;      /* I2 */
  int16_t settled; /* the settled copy of a loose register, -1 if there is none yet */
  int16_t input;   /* which input */
  PwNumber value;  /* of a constant */
} PwReg;

typedef struct {
  int nregs, ninstrs, ninputs, noutputs;
  bool too_long;
  int16_t output[PW_MAX_OUTPUTS];
  PwReg reg[PW_MAX_REGS];
  PwInstr instr[PW_MAX_INSTRS];
} PwProgram;

/* The class a dtype computes in. */
Dtype pw_class(Dtype d);
const char *pw_op_name(PwOp op);

void pw_init(PwProgram *p);
int pw_input(PwProgram *p, Dtype d);
int pw_const(PwProgram *p, Dtype d, PwNumber value);
/* A new register with the result.  Sources that are not there: -1.  imm may be NULL. */
int pw_op(PwProgram *p, PwOp op, int x, int y, int z, const PwImm *imm);
/* The value as dtype d, exactly as a stored tensor would have been converted. */
int pw_cast(PwProgram *p, int reg, Dtype d);
/* Says that a result stands for a value of dtype d (same class): it becomes loose if d
 * is narrower than its class.  Returns the register to go on with. */
int pw_result(PwProgram *p, int reg, Dtype d);
void pw_output(PwProgram *p, int reg);

/* One instruction on n elements; one function per class (kernels/simd/pointwise_*.c).
 * dst may be one of the sources, if their elements have the same size. */
typedef enum { PW_OK, PW_ZERO_DIVISION, PW_UNKNOWN } PwFault;
typedef PwFault PwStep(const PwInstr *in, void *dst, const void *x, const void *y, const void *z, int64_t n);
#define PW_STEP_ARGS (const PwInstr *in, void *dst, const void *x, const void *y, const void *z, int64_t n)
SIMD_DECLARE(PwFault, pw_step_bool, PW_STEP_ARGS);
SIMD_DECLARE(PwFault, pw_step_i64, PW_STEP_ARGS);
SIMD_DECLARE(PwFault, pw_step_f32, PW_STEP_ARGS);
SIMD_DECLARE(PwFault, pw_step_f64, PW_STEP_ARGS);
SIMD_DECLARE(PwFault, pw_step_c64, PW_STEP_ARGS);

/* Does the class have this instruction? */
bool pw_knows(PwOp op, Dtype klass);

/* out[i] = the program's outputs for in[i].  Fails on programs that are too long, on operands
 * of other dtypes or sizes, on integer division by zero and when there is no memory. */
Status kernel_pointwise(Kern *k, const PwProgram *p, const View *out, const View *in);

#endif
