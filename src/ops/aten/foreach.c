/* foreach.c -- one op over lists of tensors.
 *
 * A row names the op for a single tensor.  Its arguments are those of the list op, in
 * order: element j of every list (Tensor[], Scalar[]), everything else as it is.  The
 * forms in place are in inplace.c.
 */
#include "ops/formula.h"

static bool is_list(const Value *v) { return v->kind == VAL_TENSORS || v->kind == VAL_LIST; }

static Value element(const Value *v, int j) {
  if (v->kind == VAL_TENSORS) return val_tensor(v->tensors[j]);
  return v->kind == VAL_LIST ? v->list[j] : *v;
}

static Status count_elements(const Call *c, int *n) {
  *n = -1;
  for (int i = 0; i < c->op->schema.nparams; i++) {
    const Value *v = &c->arg[i];
    if (!is_list(v)) continue;
    if (*n >= 0 && v->n != *n) return op_fail(c, "lists of %d and %d elements do not go together", *n, v->n);
    *n = v->n;
  }
  return *n < 0 ? op_fail(c, "no list was given") : OK;
}

static Status call_one(Call *c, int j, Tensor **out) {
  Value args[MAX_PARAMS];
  int n = c->op->schema.nparams;
  for (int i = 0; i < n; i++) args[i] = element(&c->arg[i], j);
  return op_call(c, c->op->def->row, out, 1, args, n);
}

static Status foreach_run(Call *c) {
  int n;
  TRY(count_elements(c, &n));
  for (int j = 0; j < n; j++) {
    Tensor *t;
    TRY(call_one(c, j, &t));
    TRY(out_value(c, val_tensor(t)));
  }
  return OK;
}

/* arguments: self, ord, dtype */
static Status norms(Call *c) {
  for (int j = 0; j < in_count(c, 0); j++) {
    Tensor *t;
    TRY(OP(c, "aten.linalg_vector_norm.default", &t, val_tensor(in_item(c, 0, j)), c->arg[1], val_none(),
           val_bool(false), c->arg[2]));
    TRY(out_value(c, val_tensor(t)));
  }
  return OK;
}

/* sum |x|^ord */
static Status power_sums(Call *c) {
  Formula f = {c, OK};
  for (int j = 0; j < in_count(c, 0); j++) {
    const Tensor *x = in_item(c, 0, j);
    Tensor *powers = F_OP(&f, "aten.pow.Tensor_Scalar",
                          val_tensor(f_abs(&f, f_cast(&f, x, in_dtype(c, 2, x->dtype)))), c->arg[1]);
    TRY(formula_give(&f, F_OP(&f, "aten.sum.default", val_tensor(powers))));
  }
  return OK;
}

/* self + scalars[j] * (tensor1 op tensor2) */
static Status addc_tensor(Call *c) {
  Formula f = {c, OK};
  for (int j = 0; j < in_count(c, 0); j++) {
    if (in_count(c, 1) != in_count(c, 0) || in_count(c, 2) != in_count(c, 0))
      return op_fail(c, "lists of different lengths");
    Tensor *s = F_OP(&f, "aten.select.int", c->arg[3], val_int(0), val_int(j));
    Tensor *t = F_OP(&f, c->op->def->row, val_tensor(in_item(c, 1, j)), val_tensor(in_item(c, 2, j)));
    TRY(formula_give(&f, f_add(&f, in_item(c, 0, j), f_mul(&f, t, s))));
  }
  return OK;
}

/* clang-format off */
#define EACH(name, rest, op) \
  {.schema = "aten::_foreach_" name "(Tensor[] self" rest ") -> Tensor[]", .compose = foreach_run, .row = op}
/* clang-format on */
#define UNARY(name) EACH(name, "", "aten." name ".default")
#define SCALARS(name, op) \
  EACH(name ".Scalar", ", Scalar scalar", op), EACH(name ".ScalarList", ", Scalar[] scalars", op)

const OpDef ops_foreach[] = {
    UNARY("abs"),
    UNARY("acos"),
    UNARY("asin"),
    UNARY("atan"),
    UNARY("ceil"),
    UNARY("cos"),
    UNARY("cosh"),
    UNARY("erf"),
    UNARY("erfc"),
    UNARY("exp"),
    UNARY("expm1"),
    UNARY("floor"),
    UNARY("frac"),
    UNARY("lgamma"),
    UNARY("log"),
    UNARY("log10"),
    UNARY("log1p"),
    UNARY("log2"),
    UNARY("neg"),
    UNARY("reciprocal"),
    UNARY("round"),
    UNARY("rsqrt"),
    UNARY("sigmoid"),
    UNARY("sign"),
    UNARY("sin"),
    UNARY("sinh"),
    UNARY("sqrt"),
    UNARY("tan"),
    UNARY("tanh"),
    UNARY("trunc"),

    SCALARS("add", "aten.add.Scalar"),
    EACH("add.List", ", Tensor[] other, *, Scalar alpha=1", "aten.add.Tensor"),
    EACH("add.Tensor", ", Tensor other, *, Scalar alpha=1", "aten.add.Tensor"),
    SCALARS("sub", "aten.sub.Scalar"),
    EACH("sub.List", ", Tensor[] other, *, Scalar alpha=1", "aten.sub.Tensor"),
    SCALARS("mul", "aten.mul.Scalar"),
    EACH("mul.List", ", Tensor[] other", "aten.mul.Tensor"),
    EACH("mul.Tensor", ", Tensor other", "aten.mul.Tensor"),
    SCALARS("div", "aten.div.Scalar"),
    EACH("div.List", ", Tensor[] other", "aten.div.Tensor"),
    EACH("div.Tensor", ", Tensor other", "aten.div.Tensor"),
    SCALARS("clamp_min", "aten.clamp_min.default"),
    EACH("clamp_min.List", ", Tensor[] other", "aten.maximum.default"),
    SCALARS("clamp_max", "aten.clamp_max.default"),
    EACH("clamp_max.List", ", Tensor[] other", "aten.minimum.default"),
    SCALARS("maximum", "aten.clamp_min.default"),
    EACH("maximum.List", ", Tensor[] other", "aten.maximum.default"),
    SCALARS("minimum", "aten.clamp_max.default"),
    EACH("minimum.List", ", Tensor[] other", "aten.minimum.default"),
    EACH("pow.List", ", Tensor[] exponent", "aten.pow.Tensor_Tensor"),
    EACH("pow.Scalar", ", Scalar exponent", "aten.pow.Tensor_Scalar"),
    EACH("pow.ScalarList", ", Scalar[] exponent", "aten.pow.Tensor_Scalar"),
    {.schema = "aten::_foreach_pow.ScalarAndTensor(Scalar self, Tensor[] exponent) -> Tensor[]",
     .compose = foreach_run,
     .row = "aten.pow.Scalar"},
    EACH("addcdiv.Scalar", ", Tensor[] tensor1, Tensor[] tensor2, Scalar value=1", "aten.addcdiv.default"),
    EACH("addcdiv.ScalarList", ", Tensor[] tensor1, Tensor[] tensor2, Scalar[] scalars", "aten.addcdiv.default"),
    EACH("addcmul.Scalar", ", Tensor[] tensor1, Tensor[] tensor2, Scalar value=1", "aten.addcmul.default"),
    EACH("addcmul.ScalarList", ", Tensor[] tensor1, Tensor[] tensor2, Scalar[] scalars", "aten.addcmul.default"),
    EACH("lerp.List", ", Tensor[] tensors1, Tensor[] weights", "aten.lerp.Tensor"),
    EACH("lerp.Scalar", ", Tensor[] tensors1, Scalar weight", "aten.lerp.Scalar"),
    EACH("lerp.ScalarList", ", Tensor[] tensors1, Scalar[] weight", "aten.lerp.Scalar"),

    EACH("max", "", "aten.max.default"),
    EACH("mm", ", Tensor[] mat2", "aten.mm.default"),
    EACH("clone", ", *, MemoryFormat? memory_format=None", "aten.clone.default"),
    {.schema = "aten::_foreach_norm.Scalar(Tensor[] self, Scalar ord=2, ScalarType? dtype=None) -> Tensor[]",
     .compose = norms},
    {.schema = "aten::_foreach_powsum.Scalar(Tensor[] self, Scalar ord=2, ScalarType? dtype=None) -> Tensor[]",
     .compose = power_sums},
    {.schema = "aten::_foreach_addcdiv.Tensor(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Tensor scalars) "
               "-> Tensor[]",
     .compose = addc_tensor,
     .row = "aten.div.Tensor"},
    {.schema = "aten::_foreach_addcmul.Tensor(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Tensor scalars) "
               "-> Tensor[]",
     .compose = addc_tensor,
     .row = "aten.mul.Tensor"},
    EACH("copy", ", Tensor[] src, bool non_blocking=False", "aten.copy.default"),
    EACH("zero", "", "aten.zeros_like.default"),
    {0}};
