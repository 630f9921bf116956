/* pointwise_ops.h -- how a pointwise op becomes instructions (kernels/pointwise.h).
 *
 * Every op with OP_POINTWISE is a row of its family's table that points to a PwRow.  The
 * row's emit function is the only place that knows the op: it promotes, adds instructions
 * to a program and says which register and dtype the result has.  infer, run and the
 * compiler of fused nodes all go through it, so a fused chain computes bit for bit what
 * its ops compute one by one.
 *
 * To compile a list of calls c[0], c[1], ... (fuse_pointwise):
 *
 *     PwProgram p;
 *     pw_init(&p);
 *     for each call:
 *       for each argument i that is a tensor:
 *         reg[i] = the register of the earlier call that made it, or pw_input(&p, dtype)
 *                  (one input per distinct tensor)
 *       TRY(pointwise_emit(&c[k], &p, reg, &value));    value.reg is the call's result
 *     for each result that is used outside: pw_output(&p, value.reg);
 *     ...
 *     TRY(kernel_pointwise(kern, &p, output_views, input_views));
 *
 * Calls need arguments that are bound; of tensors emit reads dtype, ndim and sizes only
 * (meta tensors will do).  All outputs must have one size, to which every input
 * broadcasts: an op in the chain whose own result is smaller is computed redundantly, for
 * each element it is broadcast to.  The limits are PW_MAX_* in kernels/pointwise.h;
 * p.too_long tells when they were exceeded.  A program does not depend on sizes: keep it
 * as long as dtypes, ranks and numbers stay the same.
 */
#ifndef TESS_OPS_POINTWISE_OPS_H
#define TESS_OPS_POINTWISE_OPS_H

#include "kernels/pointwise.h"
#include "ops/op.h"

typedef struct {
  int reg;
  Dtype dtype;
} PwValue;

/* reg[i]: register of argument i if that is a tensor, else not looked at. */
Status pointwise_emit(const Call *c, PwProgram *p, const int *reg, PwValue *out);
static inline bool op_is_pointwise(const Op *op) { return (op->def->flags & OP_POINTWISE) != 0; }

/* ---- for the families ----------------------------------------------------------- */

typedef struct PwRow PwRow;
typedef Status PwEmit(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out);

typedef enum {
  PW_FLOAT = 1,    /* bool and integers compute, and come out, as f32 */
  PW_INT_SAME = 2, /* bool and integers come out as they went in */
  PW_TRUTH = 4,    /* the result is bool */
  PW_ALPHA = 8,    /* argument 2 scales the second operand */
  PW_WIDE = 16,    /* numbers and 0-d operands are not rounded to f16 and bf16 first */
} PwHow;

struct PwRow {
  PwEmit *emit;
  PwOp op;
  unsigned how;
  uint8_t imm[3]; /* arguments that are immediates p, q, r; 0: none (argument 0 never is) */
};

/* One operand, emit_unary; arguments 0 and 1, emit_binary. */
PwEmit emit_unary, emit_binary;

/* infer and run of every pointwise op. */
Status pointwise_infer(Call *c);
Status pointwise_run(Call *c);

#define POINTWISE_WITH(FLAGS, ...)                                                                         \
  .infer = pointwise_infer, .run = pointwise_run, .flags = OP_POINTWISE | (FLAGS), .row = &(const PwRow) { \
    .emit = __VA_ARGS__                                                                                    \
  }
#define POINTWISE(...) POINTWISE_WITH(0, __VA_ARGS__)
/* Any operand may be a number: the emit function takes operands with pw_operand() only. */
#define POINTWISE_NUMBERS(...) POINTWISE_WITH(OP_NUMBERS, __VA_ARGS__)

/* Argument i, tensor or number, as dtype d. */
int pw_operand(const Call *c, PwProgram *p, const int *reg, int i, Dtype d);
/* The same, but a number or 0-d tensor keeps f32 precision when d is f16 or bf16. */
int pw_wide_operand(const Call *c, PwProgram *p, const int *reg, int i, Dtype d);
/* pw_result and *out in one. */
Status pw_return(PwProgram *p, int reg, Dtype d, PwValue *out);
/* Immediate k from a number, for instructions on dtype d. */
void pw_set_imm(PwImm *imm, int k, Dtype d, const Value *v);

#endif
