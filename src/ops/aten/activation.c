/* activation.c -- activation functions and their gradients, as ATen names them. */
#include "ops/pointwise_ops.h"
#include "ops/promote.h"
#include "ops/rule_move.h"

/* ---- one operand and parameters ------------------------------------------------- */

static Status emit_gelu(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  bool backward = row->op == PW_GELU_ERF_BACKWARD;
  const char *form = in_str(c, backward ? 2 : 1);
  bool tanh = form && form[0] == 't';
  if (form && form[0] != 't' && form[0] != 'n')
    return op_fail(c, "approximate is '%s', not 'none' or 'tanh'", form);
  PwRow chosen = *row;
  if (tanh) chosen.op = backward ? PW_GELU_TANH_BACKWARD : PW_GELU_TANH;
  return backward ? emit_binary(c, &chosen, p, reg, out) : emit_unary(c, &chosen, p, reg, out);
}

/* Immediates of PW_ELU: alpha scale, scale, input_scale. */
static PwImm elu_imm(double alpha, double scale, double input_scale) {
  return (PwImm){.f = {alpha * scale, scale, input_scale}};
}

static Status emit_elu_like(const Call *c, PwProgram *p, const int *reg, PwImm imm, PwValue *out) {
  return pw_return(p, pw_op(p, PW_ELU, reg[0], -1, -1, &imm), in_tensor(c, 0)->dtype, out);
}
static Status emit_elu(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  (void)row;
  return emit_elu_like(c, p, reg, elu_imm(in_float(c, 1), in_float(c, 2), in_float(c, 3)), out);
}
static Status emit_selu(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  (void)row;
  return emit_elu_like(c, p, reg, elu_imm(1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1),
                       out);
}
static Status emit_celu(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  (void)row;
  if (in_float(c, 1) == 0) return op_fail(c, "alpha must not be 0");
  return emit_elu_like(c, p, reg, elu_imm(in_float(c, 1), 1, 1 / in_float(c, 1)), out);
}
/* (grad_output, alpha, scale, input_scale, is_result, self_or_result) */
static Status emit_elu_backward(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  PwImm imm = elu_imm(in_float(c, 1), in_float(c, 2), in_float(c, 3));
  Dtype d;
  TRY(promote_args(c, 1u | 1u << 5, &d));
  int g = pw_cast(p, reg[0], d), x = pw_cast(p, reg[5], d);
  return pw_return(p, pw_op(p, in_bool(c, 4) ? PW_ELU_BACKWARD_RESULT : row->op, g, x, -1, &imm), d, out);
}

static Status emit_relu6(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = in_tensor(c, 0)->dtype;
  PwImm imm = {{0}};
  if (dtype_is_integral(d)) imm.i[1] = 6;
  else imm.f[1] = 6;
  return pw_return(p, pw_op(p, row->op, reg[0], -1, -1, &imm), d, out);
}

/* Outside of training the slope is the middle of the range; lower is argument row->how. */
static Status emit_rrelu(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  int lower = (int)row->how;
  if (in_bool(c, lower + 2)) return op_fail(c, "training is not supported: the slopes would be random");
  PwImm imm = {.f = {(in_float(c, lower) + in_float(c, lower + 1)) / 2, 0, 0}};
  return pw_return(p, pw_op(p, row->op, reg[0], -1, -1, &imm), in_tensor(c, 0)->dtype, out);
}
/* (grad_output, self, noise, lower, upper, training, self_is_result) */
static Status emit_rrelu_backward(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = in_tensor(c, 0)->dtype;
  double lower = in_float(c, 3), upper = in_float(c, 4);
  if (in_bool(c, 5) && upper - lower > 1e-6)
    return pw_return(p, pw_op(p, PW_MUL, reg[0], pw_cast(p, reg[2], d), -1, NULL), d, out);
  PwImm imm = {.f = {(lower + upper) / 2, 0, 0}};
  return pw_return(p, pw_op(p, row->op, reg[0], pw_cast(p, reg[1], d), -1, &imm), d, out);
}

/* ---- prelu ---------------------------------------------------------------------- */

/* weight: one number, or one per channel (dimension 1). */
static Status prelu_compose(Call *c) {
  const Tensor *x = in_tensor(c, 0), *w = in_tensor(c, 1);
  int64_t size[MAX_DIMS], n = tensor_numel(w), channels = x->ndim > 1 ? x->size[1] : 1;
  if (n != 1 && n != channels)
    return op_fail(c, "%lld weights for %lld channels", (long long)n, (long long)channels);
  for (int d = 0; d < x->ndim; d++) size[d] = d == 1 && n != 1 ? n : 1;
  Tensor *shaped, *y;
  TRY(OP(c, "aten.reshape.default", &shaped, c->arg[1], val_ints(size, x->ndim)));
  TRY(OP(c, "aten._prelu_kernel.default", &y, c->arg[0], val_tensor(shaped)));
  return out_value(c, val_tensor(y));
}

/* (grad_output, self, weight) -> gradients of self and of the weight, the latter not yet summed. */
static Status prelu_backward_infer(Call *c) {
  TRY(out_broadcast(c, in_tensor(c, 1)->dtype, 7));
  return out_broadcast(c, in_tensor(c, 2)->dtype, 7);
}
static Status prelu_backward_run(Call *c) {
  PwProgram p;
  pw_init(&p);
  Dtype d = in_tensor(c, 1)->dtype;
  int g = pw_cast(&p, pw_input(&p, in_tensor(c, 0)->dtype), d), x = pw_input(&p, d),
      w = pw_cast(&p, pw_input(&p, in_tensor(c, 2)->dtype), d);
  int zero = pw_const(&p, d, pw_real(0)), positive = pw_op(&p, PW_GT, x, zero, -1, NULL);
  pw_output(&p, pw_op(&p, PW_WHERE, positive, g, pw_op(&p, PW_MUL, w, g, -1, NULL), NULL));
  pw_output(&p, pw_op(&p, PW_WHERE, positive, zero, pw_op(&p, PW_MUL, x, g, -1, NULL), NULL));
  const View in[] = {in_view(c, 0), in_view(c, 1), in_view(c, 2)}, out[] = {out_view_of(c, 0), out_view_of(c, 1)};
  return kernel_pointwise(&c->ctx->kern, &p, out, in);
}

/* ---- glu: the first half of a dimension times the sigmoid of the second --------- */

static Status glu_dim(const Call *c, const Tensor *x, int64_t given, int *dim) {
  TRY(wrap_dim(c, given, x->ndim, dim));
  if (x->ndim == 0 || x->size[*dim] % 2) {
    char text[128];
    return op_fail(c, "%s has no two halves along dimension %d", tensor_describe(x, text, sizeof text), *dim);
  }
  return OK;
}

/* Half h of v along dim; size: room for the new sizes. */
static View half_of(View v, int dim, int h, int64_t *size) {
  for (int d = 0; d < v.ndim; d++) size[d] = d == dim ? v.size[d] / 2 : v.size[d];
  if (v.data) v.data = (char *)v.data + h * size[dim] * v.stride[dim] * (int64_t)dtype_size(v.dtype);
  v.size = size;
  return v;
}

static Status glu_infer(Call *c) {
  const Tensor *x = in_tensor(c, 0);
  int dim;
  TRY(glu_dim(c, x, in_int(c, 1), &dim));
  if (!dtype_is_float(x->dtype)) return op_fail(c, "is not defined for %s", dtype_name(x->dtype));
  int64_t size[MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) size[d] = d == dim ? x->size[d] / 2 : x->size[d];
  return out_new(c, x->dtype, x->ndim, size);
}
static Status glu_run(Call *c) {
  View x = in_view(c, 0), out = out_view_of(c, 0);
  int dim;
  TRY(wrap_dim(c, in_int(c, 1), x.ndim, &dim));
  int64_t size[MAX_DIMS];
  const View in[2] = {half_of(x, dim, 0, size), half_of(x, dim, 1, size)};
  PwProgram p;
  pw_init(&p);
  int a = pw_input(&p, x.dtype), b = pw_input(&p, x.dtype);
  pw_output(&p, pw_op(&p, PW_MUL, a, pw_op(&p, PW_SIGMOID, b, -1, -1, NULL), -1, NULL));
  return kernel_pointwise(&c->ctx->kern, &p, &out, in);
}

static Status glu_place(Rules *r) {
  int dim;
  TRY(wrap_dim(r->call, in_int(r->call, 1), r->in[0]->ndim, &dim));
  return rule_halves(r, dim);
}

/* (grad, self): linear in the gradient; along dim self has two halves. */
static Status glu_backward_place(Rules *r) {
  int dim;
  TRY(wrap_dim(r->call, in_int(r->call, 2), r->in[1]->ndim, &dim));
  for (int d = 0; d < r->in[1]->ndim; d++)
    if (d != dim) TRY(rule_axis(r, (Placement[]){place_s(d), place_s(d), place_s(d)}));
  TRY(rule_axis_exact(r, (Placement[]){place_strided(dim, 2), place_s(dim), place_strided(dim, 2)}));
  for (ReduceOp op = REDUCE_SUM; op <= REDUCE_AVG; op++)
    TRY(rule_axis(r, (Placement[]){place_p(op), place_p(op), place_r()}));
  return OK;
}

static Status glu_backward_infer(Call *c) {
  const Tensor *g = in_tensor(c, 0), *x = in_tensor(c, 1);
  char a[128], b[128];
  int dim;
  TRY(glu_dim(c, x, in_int(c, 2), &dim));
  bool fits = g->ndim == x->ndim && g->dtype == x->dtype && dtype_is_float(x->dtype);
  for (int d = 0; fits && d < x->ndim; d++) fits = g->size[d] == (d == dim ? x->size[d] / 2 : x->size[d]);
  if (!fits)
    return op_fail(c, "the gradient %s is not that of a half of %s along dimension %d",
                   tensor_describe(g, a, sizeof a), tensor_describe(x, b, sizeof b), dim);
  return out_new(c, x->dtype, x->ndim, x->size);
}
/* d/da = g s(b), d/db = g a s(b) (1 - s(b)) */
static Status glu_backward_run(Call *c) {
  View x = in_view(c, 1), y = out_view_of(c, 0);
  int dim;
  TRY(wrap_dim(c, in_int(c, 2), x.ndim, &dim));
  int64_t size[MAX_DIMS];
  const View in[] = {in_view(c, 0), half_of(x, dim, 0, size), half_of(x, dim, 1, size)};
  const View out[] = {half_of(y, dim, 0, size), half_of(y, dim, 1, size)};
  PwProgram p;
  pw_init(&p);
  int g = pw_input(&p, in[0].dtype), a = pw_input(&p, x.dtype), b = pw_input(&p, x.dtype);
  int s = pw_op(&p, PW_SIGMOID, b, -1, -1, NULL);
  pw_output(&p, pw_op(&p, PW_MUL, g, s, -1, NULL));
  pw_output(&p, pw_op(&p, PW_MUL, pw_op(&p, PW_SIGMOID_BACKWARD, g, s, -1, NULL), a, -1, NULL));
  return kernel_pointwise(&c->ctx->kern, &p, out, in);
}

/* ---- log_sigmoid, with the buffer that ATen keeps for the gradient --------------- */

static Status log_sigmoid_forward_compose(Call *c) { /* the buffer is exp(-|x|) */
  Tensor *y, *t;
  TRY(OP(c, "aten.log_sigmoid.default", &y, c->arg[0]));
  TRY(out_value(c, val_tensor(y)));
  TRY(OP(c, "aten.abs.default", &t, c->arg[0]));
  TRY(OP(c, "aten.neg.default", &t, val_tensor(t)));
  TRY(OP(c, "aten.exp.default", &t, val_tensor(t)));
  return out_value(c, val_tensor(t));
}
static Status log_sigmoid_forward_infer(Call *c) {
  for (int i = 0; i < 2; i++) TRY(out_like(c, in_tensor(c, 0)->dtype, in_tensor(c, 0)));
  return OK;
}
static Status log_sigmoid_backward_compose(Call *c) {
  Tensor *s, *y, *n;
  TRY(OP(c, "aten.neg.default", &n, c->arg[1]));
  TRY(OP(c, "aten.sigmoid.default", &s, val_tensor(n)));
  TRY(OP(c, "aten.mul.Tensor", &y, c->arg[0], val_tensor(s)));
  return out_value(c, val_tensor(y));
}

#define SELF "(Tensor self) -> Tensor"
#define GRAD "(Tensor grad_output, Tensor self) -> Tensor"
#define GRAD_OUTPUT "(Tensor grad_output, Tensor output) -> Tensor"
/* clang-format off */
#define ROW(name, args, EMIT, ...) {.schema = "aten::" name args, POINTWISE(EMIT, __VA_ARGS__)},
#define RISES(name, args, EMIT, ...) \
  {.schema = "aten::" name args, .shard.linear = RISING, POINTWISE(EMIT, __VA_ARGS__)},

const OpDef ops_activation[] = {
    RISES("relu", SELF, emit_unary, PW_RELU)
    RISES("relu6", SELF, emit_relu6, PW_CLAMP)
    ROW("silu", SELF, emit_unary, PW_SILU)
    ROW("mish", SELF, emit_unary, PW_MISH)
    RISES("log_sigmoid", SELF, emit_unary, PW_LOG_SIGMOID)
    RISES("hardsigmoid", SELF, emit_unary, PW_HARDSIGMOID)
    ROW("hardswish", SELF, emit_unary, PW_HARDSWISH)
    ROW("gelu", "(Tensor self, *, str approximate=\"none\") -> Tensor", emit_gelu, PW_GELU_ERF)
    RISES("hardtanh", "(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor", emit_unary, PW_CLAMP, 0, {1,
        2})
    ROW("leaky_relu", "(Tensor self, Scalar negative_slope=0.01) -> Tensor", emit_unary, PW_LEAKY_RELU, 0, {1})
    ROW("softplus", "(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor", emit_unary, PW_SOFTPLUS, 0, {1,
        2})
    RISES("hardshrink", "(Tensor self, Scalar lambd=0.5) -> Tensor", emit_unary, PW_HARDSHRINK, 0, {1})
    RISES("softshrink", "(Tensor self, Scalar lambd=0.5) -> Tensor", emit_unary, PW_SOFTSHRINK, 0, {1})
    ROW("threshold", "(Tensor self, Scalar threshold, Scalar value) -> Tensor", emit_unary, PW_THRESHOLD, 0, {1, 2})
    ROW("elu", "(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor", emit_elu, PW_ELU)
    RISES("selu", SELF, emit_selu, PW_ELU)
    ROW("celu", "(Tensor self, Scalar alpha=1.0) -> Tensor", emit_celu, PW_ELU)
    ROW("rrelu", "(Tensor self, Scalar lower=0.125, Scalar upper=0.33333333333333331, bool training=False, "
                 "Generator? generator=None) -> Tensor",
        emit_rrelu, PW_LEAKY_RELU, 1)
    ROW("_prelu_kernel", "(Tensor self, Tensor weight) -> Tensor", emit_binary, PW_PRELU)
    {.schema = "aten::prelu(Tensor self, Tensor weight) -> Tensor", .compose = prelu_compose},
    {.schema = "aten::glu(Tensor self, int dim=-1) -> Tensor", .infer = glu_infer, .run = glu_run,
     .shard.place = glu_place},

    ROW("tanh_backward", GRAD_OUTPUT, emit_binary, PW_TANH_BACKWARD)
    ROW("sigmoid_backward", GRAD_OUTPUT, emit_binary, PW_SIGMOID_BACKWARD)
    ROW("silu_backward", GRAD, emit_binary, PW_SILU_BACKWARD)
    ROW("mish_backward", GRAD, emit_binary, PW_MISH_BACKWARD)
    ROW("hardsigmoid_backward", GRAD, emit_binary, PW_HARDSIGMOID_BACKWARD)
    ROW("hardswish_backward", GRAD, emit_binary, PW_HARDSWISH_BACKWARD)
    ROW("gelu_backward", "(Tensor grad_output, Tensor self, *, str approximate=\"none\") -> Tensor", emit_gelu,
        PW_GELU_ERF_BACKWARD)
    ROW("threshold_backward", "(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor", emit_binary,
        PW_THRESHOLD_BACKWARD, 0, {2})
    ROW("hardtanh_backward", "(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> Tensor",
        emit_binary, PW_HARDTANH_BACKWARD, 0, {2, 3})
    ROW("leaky_relu_backward", "(Tensor grad_output, Tensor self, Scalar negative_slope, bool self_is_result) -> "
                               "Tensor", emit_binary,
        PW_LEAKY_RELU_BACKWARD, 0, {2})
    ROW("softplus_backward", "(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> Tensor",
        emit_binary, PW_SOFTPLUS_BACKWARD, 0, {2, 3})
    ROW("hardshrink_backward", "(Tensor grad_out, Tensor self, Scalar lambd) -> Tensor", emit_binary,
        PW_HARDSHRINK_BACKWARD, 0, {2})
    ROW("softshrink_backward", "(Tensor grad_output, Tensor self, Scalar lambd) -> Tensor", emit_binary,
        PW_SOFTSHRINK_BACKWARD, 0, {2})
    ROW("elu_backward", "(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool is_result, "
                        "Tensor self_or_result) -> Tensor",
        emit_elu_backward, PW_ELU_BACKWARD)
    ROW("rrelu_with_noise_backward",
        "(Tensor grad_output, Tensor self, Tensor noise, Scalar lower, Scalar upper, bool training, bool "
        "self_is_result) -> Tensor",
        emit_rrelu_backward, PW_LEAKY_RELU_BACKWARD)
    {.schema = "aten::_prelu_kernel_backward(Tensor grad_output, Tensor self, Tensor weight) -> (Tensor, Tensor)",
     .infer = prelu_backward_infer, .run = prelu_backward_run, .shard.place = place_pointwise},
    {.schema = "aten::glu_backward(Tensor grad_output, Tensor self, int dim) -> Tensor",
     .infer = glu_backward_infer, .run = glu_backward_run, .shard.place = glu_backward_place},
    {.schema = "aten::log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)",
     .compose = log_sigmoid_forward_compose,
     .infer = log_sigmoid_forward_infer, .shard.place = place_pointwise},
    {.schema = "aten::log_sigmoid_backward(Tensor grad_output, Tensor self, Tensor buffer) -> Tensor",
     .compose = log_sigmoid_backward_compose},
    {0}};
/* clang-format on */
