/* symbolic.c -- arithmetic on sizes and other numbers, with Python's meaning.
 *
 * A bool counts as an int; an int stays exact (overflow is an error, Python's ints have
 * no end); / and sqrt give floats; // and % round towards minus infinity.  Results are
 * numbers, so these ops run when a program is specialised (OP_SCALAR).
 */
#include <math.h>
#include <string.h>

#include "ops/geometry.h"

typedef Status NumberFn(const Call *c, const Value *a, const Value *b, Value *out);
typedef struct {
  NumberFn *fn;
} NumberRow;

static bool is_int(const Value *v) { return v->kind == VAL_BOOL || v->kind == VAL_INT; }
static bool both_int(const Value *a, const Value *b) { return is_int(a) && is_int(b); }

static Status too_large(const Call *c, const Value *a, const Value *b) {
  return op_fail(c, "the result for %lld and %lld does not fit in 64 bits", (long long)val_as_int(a),
                 (long long)val_as_int(b));
}

/* ---- + - * ---------------------------------------------------------------------------- */

#define ARITHMETIC(name, OVERFLOWS, FLOAT)                                        \
  static Status name(const Call *c, const Value *a, const Value *b, Value *out) { \
    double x = val_as_float(a), y = val_as_float(b);                              \
    int64_t i = val_as_int(a), j = val_as_int(b), r;                              \
    if (!both_int(a, b)) return *out = val_float(FLOAT), OK;                      \
    if (OVERFLOWS) return too_large(c, a, b);                                     \
    return *out = val_int(r), OK;                                                 \
  }
ARITHMETIC(add, __builtin_add_overflow(i, j, &r), x + y)
ARITHMETIC(sub, __builtin_sub_overflow(i, j, &r), x - y)
ARITHMETIC(mul, __builtin_mul_overflow(i, j, &r), x *y)

/* ---- division ---------------------------------------------------------------------------- */

static Status by_zero(const Call *c) { return op_fail(c, "division by zero"); }

static Status truediv(const Call *c, const Value *a, const Value *b, Value *out) {
  if (val_as_float(b) == 0) return by_zero(c);
  return *out = val_float(val_as_float(a) / val_as_float(b)), OK;
}

static Status floordiv(const Call *c, const Value *a, const Value *b, Value *out) {
  double x = val_as_float(a), y = val_as_float(b);
  if (y == 0) return by_zero(c);
  if (!both_int(a, b)) return *out = val_float(floor(x / y)), OK;
  int64_t i = val_as_int(a), j = val_as_int(b);
  if (i == INT64_MIN && j == -1) return too_large(c, a, b);
  return *out = val_int(i / j - (i % j != 0 && (i < 0) != (j < 0))), OK;
}

static Status mod(const Call *c, const Value *a, const Value *b, Value *out) {
  double x = val_as_float(a), y = val_as_float(b);
  if (y == 0) return by_zero(c);
  if (!both_int(a, b)) {
    double r = fmod(x, y);
    return *out = val_float(r != 0 && (r < 0) != (y < 0) ? r + y : r), OK;
  }
  int64_t i = val_as_int(a), j = val_as_int(b), r = j == -1 ? 0 : i % j;
  return *out = val_int(r != 0 && (r < 0) != (j < 0) ? r + j : r), OK;
}

/* ---- powers and shifts ---------------------------------------------------------------------- */

static Status power(const Call *c, const Value *a, const Value *b, Value *out) {
  if (!both_int(a, b) || val_as_int(b) < 0) return *out = val_float(pow(val_as_float(a), val_as_float(b))), OK;
  int64_t base = val_as_int(a), n = val_as_int(b), r = 1;
  bool overflow = false;
  for (; n; n >>= 1) {
    if (n & 1) overflow |= __builtin_mul_overflow(r, base, &r);
    if (n > 1 && __builtin_mul_overflow(base, base, &base)) overflow = true;
  }
  if (overflow) return too_large(c, a, b);
  return *out = val_int(r), OK;
}

static Status left_shift(const Call *c, const Value *a, const Value *b, Value *out) {
  int64_t i = val_as_int(a), n = val_as_int(b), r;
  if (n < 0) return op_fail(c, "a shift by %lld", (long long)n);
  if (i == 0) return *out = val_int(0), OK;
  if (n > 62 || __builtin_mul_overflow(i, (int64_t)1 << n, &r)) return too_large(c, a, b);
  return *out = val_int(r), OK;
}

static Status right_shift(const Call *c, const Value *a, const Value *b, Value *out) {
  int64_t i = val_as_int(a), n = val_as_int(b);
  if (n < 0) return op_fail(c, "a shift by %lld", (long long)n);
  return *out = val_int(i >> (n > 63 ? 63 : n)), OK;
}

/* ---- comparisons, logic, choice --------------------------------------------------------------- */

#define COMPARISON(name, OP)                                                                       \
  static Status name(const Call *c, const Value *a, const Value *b, Value *out) {                  \
    (void)c;                                                                                       \
    bool r = both_int(a, b) ? val_as_int(a) OP val_as_int(b) : val_as_float(a) OP val_as_float(b); \
    return *out = val_bool(r), OK;                                                                 \
  }
COMPARISON(eq, ==)
COMPARISON(ne, !=)
COMPARISON(lt, <)
COMPARISON(le, <=)
COMPARISON(gt, >)
COMPARISON(ge, >=)

/* Two bools give a bool, ints are combined bit by bit. */
#define LOGIC(name, OP)                                                                \
  static Status name(const Call *c, const Value *a, const Value *b, Value *out) {      \
    if (!both_int(a, b)) return op_fail(c, "expects bools or ints");                   \
    int64_t r = val_as_int(a) OP val_as_int(b);                                        \
    *out = a->kind == VAL_BOOL && b->kind == VAL_BOOL ? val_bool(r != 0) : val_int(r); \
    return OK;                                                                         \
  }
LOGIC(and_, &)
LOGIC(or_, |)
LOGIC(xor_, ^)

/* If either is a float the result is one. */
static Status choose(const Value *a, const Value *b, bool first, Value *out) {
  const Value *v = first ? a : b;
  *out = both_int(a, b) ? val_int(val_as_int(v)) : val_float(val_as_float(v));
  return OK;
}
static Status max_(const Call *c, const Value *a, const Value *b, Value *out) {
  return (void)c,
         choose(a, b, both_int(a, b) ? val_as_int(a) >= val_as_int(b) : val_as_float(a) >= val_as_float(b), out);
}
static Status min_(const Call *c, const Value *a, const Value *b, Value *out) {
  return (void)c,
         choose(a, b, both_int(a, b) ? val_as_int(a) <= val_as_int(b) : val_as_float(a) <= val_as_float(b), out);
}

/* ---- of one number (b is not used) --------------------------------------------------------------- */

static Status neg(const Call *c, const Value *a, const Value *b, Value *out) {
  (void)b;
  if (!is_int(a)) return *out = val_float(-val_as_float(a)), OK;
  if (val_as_int(a) == INT64_MIN) return too_large(c, a, a);
  return *out = val_int(-val_as_int(a)), OK;
}
static Status pos(const Call *c, const Value *a, const Value *b, Value *out) {
  (void)c, (void)b;
  return *out = is_int(a) ? val_int(val_as_int(a)) : *a, OK;
}
static Status not_(const Call *c, const Value *a, const Value *b, Value *out) {
  (void)c, (void)b;
  return *out = val_bool(val_as_float(a) == 0), OK;
}
static Status to_float(const Call *c, const Value *a, const Value *b, Value *out) {
  (void)c, (void)b;
  return *out = val_float(val_as_float(a)), OK;
}

/* Floats to the int on one side. */
static Status whole(const Call *c, const Value *a, double (*round)(double), Value *out) {
  if (is_int(a)) return *out = val_int(val_as_int(a)), OK;
  double x = round(val_as_float(a));
  if (!(x >= -0x1p63 && x < 0x1p63)) return op_fail(c, "%g is not an integer of 64 bits", x);
  return *out = val_int((int64_t)x), OK;
}
static Status trunc_(const Call *c, const Value *a, const Value *b, Value *out) {
  return (void)b, whole(c, a, trunc, out);
}
static Status ceil_(const Call *c, const Value *a, const Value *b, Value *out) {
  return (void)b, whole(c, a, ceil, out);
}
static Status floor_(const Call *c, const Value *a, const Value *b, Value *out) {
  return (void)b, whole(c, a, floor, out);
}

#define FUNCTION(name)                                                               \
  static Status name##_(const Call *c, const Value *a, const Value *b, Value *out) { \
    (void)c, (void)b;                                                                \
    return *out = val_float(name(val_as_float(a))), OK;                              \
  }
FUNCTION(sqrt)
FUNCTION(exp)
FUNCTION(log)
FUNCTION(log2)
FUNCTION(sin)
FUNCTION(cos)
FUNCTION(tan)
FUNCTION(sinh)
FUNCTION(cosh)
FUNCTION(tanh)
FUNCTION(asin)
FUNCTION(acos)
FUNCTION(atan)

static Status number_run(Call *c) {
  const NumberRow *row = c->op->def->row;
  Value a, b = val_int(0), out;
  TRY(in_number(c, 0, &a));
  if (c->op->schema.nparams > 1) TRY(in_number(c, 1, &b));
  if (!val_is_number(&a) || !val_is_number(&b)) return op_fail(c, "expects numbers");
  if (a.kind == VAL_COMPLEX || b.kind == VAL_COMPLEX) return op_fail(c, "does not take complex numbers");
  TRY(row->fn(c, &a, &b, &out));
  return out_value(c, out);
}

static Status ite_run(Call *c) { return out_value(c, c->arg[in_bool(c, 0) ? 1 : 2]); }

static Status sum_run(Call *c) {
  Value total = val_int(0);
  for (int i = 0; i < c->arg[0].n; i++) {
    Value sum, item = c->arg[0].kind == VAL_LIST ? c->arg[0].list[i] : val_int(c->arg[0].ints[i]);
    if (!val_is_number(&item)) return op_fail(c, "expects numbers");
    TRY(add(c, &total, &item, &sum));
    total = sum;
  }
  return out_value(c, total);
}

/* ---- what tensors know about themselves -------------------------------------------------------------- */

static Status tensor_dim(const Call *c, Tensor **t, int *dim) {
  TRY(need_tensor(c, 0, t));
  if ((*t)->ndim == 0) return op_fail(c, "a 0-d tensor has no sizes");
  return wrap_dim(c, in_int(c, 1), (*t)->ndim, dim);
}

static Status sym_size_run(Call *c) {
  Tensor *t;
  int dim;
  TRY(tensor_dim(c, &t, &dim));
  return out_value(c, val_int(t->size[dim]));
}
static Status sym_stride_run(Call *c) {
  Tensor *t;
  int dim;
  TRY(tensor_dim(c, &t, &dim));
  return out_value(c, val_int(t->stride[dim]));
}
static Status sym_numel_run(Call *c) {
  Tensor *t;
  TRY(need_tensor(c, 0, &t));
  return out_value(c, val_int(tensor_numel(t)));
}
static Status sym_storage_offset_run(Call *c) {
  Tensor *t;
  TRY(need_tensor(c, 0, &t));
  return out_value(c, val_int(t->offset));
}
static Status dim_run(Call *c) {
  Tensor *t;
  TRY(need_tensor(c, 0, &t));
  return out_value(c, val_int(t->ndim));
}
static Status sym_is_contiguous_run(Call *c) {
  Tensor *t;
  TRY(need_tensor(c, 0, &t));
  MemoryFormat format = c->op->schema.nparams > 1 && c->arg[1].kind == VAL_MEMORY_FORMAT ? c->arg[1].memory_format
                                                                                         : MEMORY_CONTIGUOUS;
  int need = format == MEMORY_CHANNELS_LAST ? 4 : format == MEMORY_CHANNELS_LAST_3D ? 5 : t->ndim;
  if (t->ndim != need) return out_value(c, val_bool(false));
  int64_t stride[MAX_DIMS];
  TRY(format_strides(c, format, t, stride));
  bool yes = true;
  for (int d = 0; d < t->ndim; d++) yes &= t->size[d] == 1 || t->stride[d] == stride[d];
  return out_value(c, val_bool(yes || tensor_numel(t) == 0));
}

/* clang-format off */
#define NUMBERS(text, f) {.schema = text, .run = number_run, .flags = OP_SCALAR, .row = &(const NumberRow){f}}
/* clang-format on */
#define TWO(name, f) NUMBERS(name "(Scalar a, Scalar b) -> Scalar", f)
#define ONE(name, f) NUMBERS(name "(Scalar a) -> Scalar", f)
#define MATH(name, f) NUMBERS(name "(Scalar x) -> Scalar", f)
/* clang-format off */
#define SCALAR(text, f) {.schema = text, .run = f##_run, .flags = OP_SCALAR}
/* clang-format on */

/* clang-format off */
const OpDef ops_symbolic[] = {
    TWO("_operator::add", add),         TWO("_operator::sub", sub),           TWO("_operator::mul", mul),
    TWO("_operator::truediv", truediv), TWO("_operator::floordiv", floordiv), TWO("_operator::mod", mod),
    TWO("_operator::pow", power),       TWO("_operator::lshift", left_shift), TWO("_operator::rshift", right_shift),
    TWO("_operator::eq", eq),           TWO("_operator::ne", ne),             TWO("_operator::lt", lt),
    TWO("_operator::le", le),           TWO("_operator::gt", gt),             TWO("_operator::ge", ge),
    TWO("_operator::and_", and_),       TWO("_operator::or_", or_),           TWO("_operator::xor", xor_),
    ONE("_operator::neg", neg),         ONE("_operator::pos", pos),           ONE("_operator::not_", not_),
    TWO("torch::sym_max", max_),        TWO("torch::sym_min", min_),          ONE("torch::sym_not", not_),
    ONE("torch::sym_float", to_float),  ONE("torch::sym_int", trunc_),        ONE("torch::sym_sqrt", sqrt_),
    ONE("torch::_sym_sqrt", sqrt_),     ONE("torch::_sym_log2", log2_),       ONE("torch::_sym_sin", sin_),
    ONE("torch::_sym_cos", cos_),       ONE("torch::_sym_tan", tan_),         ONE("torch::_sym_sinh", sinh_),
    ONE("torch::_sym_cosh", cosh_),     ONE("torch::_sym_tanh", tanh_),       ONE("torch::_sym_asin", asin_),
    ONE("torch::_sym_acos", acos_),     ONE("torch::_sym_atan", atan_),
    MATH("math::trunc", trunc_),         MATH("math::ceil", ceil_),             MATH("math::floor", floor_),
    MATH("math::sqrt", sqrt_),           MATH("math::exp", exp_),               MATH("math::log", log_),
    MATH("math::log2", log2_),           MATH("math::sin", sin_),               MATH("math::cos", cos_),
    MATH("math::tan", tan_),             NUMBERS("math::pow(Scalar x, Scalar y) -> Scalar", power),
    SCALAR("torch::sym_ite(Scalar b, Scalar t, Scalar f) -> Scalar", ite),
    SCALAR("torch::sym_sum(Scalar[] args) -> Scalar", sum),
    SCALAR("aten::sym_size.int(Tensor self, int dim) -> SymInt", sym_size),
    SCALAR("aten::sym_stride.int(Tensor self, int dim) -> SymInt", sym_stride),
    SCALAR("aten::sym_numel(Tensor self) -> SymInt", sym_numel),
    SCALAR("aten::sym_storage_offset(Tensor self) -> SymInt", sym_storage_offset),
    SCALAR("aten::sym_is_contiguous(Tensor self, MemoryFormat memory_format=0) -> bool", sym_is_contiguous),
    SCALAR("aten::size.int(Tensor self, int dim) -> int", sym_size),
    SCALAR("aten::stride.int(Tensor self, int dim) -> int", sym_stride),
    SCALAR("aten::numel(Tensor self) -> int", sym_numel),
    SCALAR("aten::dim(Tensor self) -> int", dim),
    SCALAR("aten::is_contiguous(Tensor self) -> bool", sym_is_contiguous),
    SCALAR("aten::is_contiguous.memory_format(Tensor self, MemoryFormat memory_format) -> bool", sym_is_contiguous),
    {0},
};
