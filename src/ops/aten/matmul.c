/* matmul.c -- matrix products: mm, bmm, addmm, matmul, linear and their relatives.
 *
 * Nearly all are one gemm (product.h); a row tells where its arguments are.  Written with
 * other ops: outer, addbmm.  einsum and what is made of it is in einsum.c.
 */
#include <string.h>

#include "kernels/copy.h"
#include "ops/aten/product.h"

/* clang-format off */
/*                                 left right add     beta    alpha   ranks  transposed residual out */
static const Product row_mm =      {0, 1,    NO_ARG, NO_ARG, NO_ARG, 2, 2,  false,     NO_ARG,  DT_NONE};
static const Product row_int_mm =  {0, 1,    NO_ARG, NO_ARG, NO_ARG, 2, 2,  false,     NO_ARG,  DT_I32};
static const Product row_bmm =     {0, 1,    NO_ARG, NO_ARG, NO_ARG, 3, 3,  false,     NO_ARG,  DT_NONE};
static const Product row_mv =      {0, 1,    NO_ARG, NO_ARG, NO_ARG, 2, 1,  false,     NO_ARG,  DT_NONE};
static const Product row_dot =     {0, 1,    NO_ARG, NO_ARG, NO_ARG, 1, 1,  false,     NO_ARG,  DT_NONE};
static const Product row_matmul =  {0, 1,    NO_ARG, NO_ARG, NO_ARG, 0, 0,  false,     NO_ARG,  DT_NONE};
static const Product row_addmm =   {1, 2,    0,      3,      4,      2, 2,  false,     NO_ARG,  DT_NONE};
static const Product row_baddbmm = {1, 2,    0,      3,      4,      3, 3,  false,     NO_ARG,  DT_NONE};
static const Product row_addmv =   {1, 2,    0,      3,      4,      2, 1,  false,     NO_ARG,  DT_NONE};
/* Sums that are to be added up further: f32, whatever the operands are. */
static const Product row_linear_wide = {0, 1, 2,     NO_ARG, NO_ARG, 0, 0,  true,      NO_ARG,  DT_F32};
static const Product row_addmm_wide =  {1, 2, 0,     3,      4,      2, 2,  false,     NO_ARG,  DT_F32};
static const Product row_matmul_wide = {0, 1, NO_ARG, NO_ARG, NO_ARG, 0, 0, false,     NO_ARG,  DT_F32};
static const Product row_linear =  {0, 1,    2,      NO_ARG, NO_ARG, 0, 0,  true,      NO_ARG,  DT_NONE};
/* clang-format on */

static Status row_infer(Call *c) { return product_infer(c, c->op->def->row); }
static Status row_run(Call *c) { return product_run(c, c->op->def->row, GEMM_ACT_NONE); }
static Status row_place(Rules *r) { return product_place(r, r->call->op->def->row, true); }
static double row_flops(const Call *c) { return product_flops(c, c->op->def->row); }

/* vdot of complex numbers conjugates its first operand: not here. */
static Status vdot_infer(Call *c) {
  TRY(product_infer(c, &row_dot));
  return out_tensor(c, 0)->dtype == DT_C64 ? op_fail(c, "complex numbers are not supported") : OK;
}

/* _addmm_activation(self, mat1, mat2, *, beta, alpha, use_gelu) */
static Status activation_run(Call *c) {
  return product_run(c, &row_addmm, in_bool(c, 5) ? GEMM_ACT_GELU : GEMM_ACT_RELU);
}

static Status activation_place(Rules *r) { return product_place(r, &row_addmm, false); }

/* ---- outer products ------------------------------------------------------------------- */

/* outer(self, vec2) = self[:, None] * vec2 */
static Status outer_compose(Call *c) {
  const Tensor *a = in_tensor(c, 0), *b = in_tensor(c, 1);
  char x[128], y[128];
  if (!a || !b || a->ndim != 1 || b->ndim != 1) {
    return op_fail(c, "needs two vectors, not %s and %s", a ? tensor_describe(a, x, sizeof x) : "a number",
                   b ? tensor_describe(b, y, sizeof y) : "a number");
  }
  Tensor *column, *out;
  TRY(OP(c, "aten.unsqueeze.default", &column, val_tensor(a), val_int(1)));
  TRY(OP(c, "aten.mul.Tensor", &out, val_tensor(column), val_tensor(b)));
  return out_value(c, val_tensor(out));
}

/* addr(self, vec1, vec2, *, beta, alpha): a product with k = 1. */
static Status addr_infer(Call *c) {
  const Tensor *self = in_tensor(c, 0), *a = in_tensor(c, 1), *b = in_tensor(c, 2);
  char x[128], y[128];
  if (!self || !a || !b) return op_fail(c, "its operands must be tensors");
  if (a->ndim != 1 || b->ndim != 1) {
    return op_fail(c, "needs two vectors, not %s and %s", tensor_describe(a, x, sizeof x),
                   tensor_describe(b, y, sizeof y));
  }
  int64_t size[2] = {a->size[0], b->size[0]};
  if (self->dtype != a->dtype || a->dtype != b->dtype || !dtype_is_compute(a->dtype)) {
    return op_fail(c, "needs operands of one dtype, not %s, %s and %s", dtype_name(self->dtype),
                   dtype_name(a->dtype), dtype_name(b->dtype));
  }
  bool fits = self->ndim <= 2;
  for (int d = 0; fits && d < self->ndim; d++) {
    int64_t n = self->size[self->ndim - 1 - d];
    fits = n == 1 || n == size[1 - d];
  }
  if (!fits)
    return op_fail(c, "self %s does not broadcast to %s", tensor_describe(self, x, sizeof x),
                   shape_describe(2, size, y, sizeof y));
  return out_new(c, a->dtype, 2, size);
}

/* (beta and self) or (alpha and vec1 and vec2) */
static void addr_bool(Call *c) {
  const Tensor *self = in_tensor(c, 0), *a = in_tensor(c, 1), *b = in_tensor(c, 2), *out = out_tensor(c, 0);
  bool beta = in_float(c, 3) != 0, alpha = in_float(c, 4) != 0;
  const uint8_t *s = tensor_data(self), *x = tensor_data(a), *y = tensor_data(b);
  uint8_t *to = tensor_data(out);
  int64_t row = self->ndim == 2 && self->size[0] > 1 ? self->stride[0] : 0, last = self->ndim - 1;
  int64_t col = last >= 0 && self->size[last] > 1 ? self->stride[last] : 0;
  for (int64_t i = 0; i < out->size[0]; i++) {
    for (int64_t j = 0; j < out->size[1]; j++) {
      to[i * out->stride[0] + j * out->stride[1]] = (beta && s[i * row + j * col]) ||
                                                    (alpha && x[i * a->stride[0]] && y[j * b->stride[0]]);
    }
  }
}

static Status addr_run(Call *c) {
  const Tensor *a = in_tensor(c, 1), *b = in_tensor(c, 2);
  if (a->dtype == DT_BOOL) return addr_bool(c), OK;
  int64_t left[2] = {a->size[0], 1}, left_stride[2] = {a->stride[0], 1}, right[2] = {1, b->size[0]},
          right_stride[2] = {1, b->stride[0]};
  View self = in_view(c, 0);
  return gemm(&c->ctx->kern, &(Gemm){.a = {tensor_data(a), left, left_stride, 2, a->dtype},
                                     .b = {tensor_data(b), right, right_stride, 2, b->dtype},
                                     .c = out_view_of(c, 0),
                                     .add = &self,
                                     .beta = in_float(c, 3),
                                     .alpha = in_float(c, 4)});
}

static double addr_flops(const Call *c) { return c->nout ? 2.0 * (double)tensor_numel(out_tensor(c, 0)) : 0; }

/* ---- sums of products ----------------------------------------------------------------- */

/* addbmm: the batch is one more summed dimension. */
static Status addbmm_compose(Call *c) {
  const Tensor *a = in_tensor(c, 1), *b = in_tensor(c, 2);
  char x[128], y[128];
  if (!a || !b || a->ndim != 3 || b->ndim != 3 || a->size[0] != b->size[0] || a->size[2] != b->size[1]) {
    return op_fail(c, "cannot multiply %s and %s", a ? tensor_describe(a, x, sizeof x) : "a number",
                   b ? tensor_describe(b, y, sizeof y) : "a number");
  }
  int64_t order[3] = {1, 0, 2}, left[2] = {a->size[1], a->size[0] * a->size[2]},
          right[2] = {b->size[0] * b->size[1], b->size[2]};
  Tensor *moved, *wide, *tall, *out;
  TRY(OP(c, "aten.permute.default", &moved, val_tensor(a), val_ints(order, 3)));
  TRY(OP(c, "aten.reshape.default", &wide, val_tensor(moved), val_ints(left, 2)));
  TRY(OP(c, "aten.reshape.default", &tall, val_tensor(b), val_ints(right, 2)));
  TRY(OP(c, "aten.addmm.default", &out, c->arg[0], val_tensor(wide), val_tensor(tall), c->arg[3], c->arg[4]));
  return out_value(c, val_tensor(out));
}

static Status chain_compose(Call *c) {
  int n = in_count(c, 0);
  if (n < 1) return op_fail(c, "needs at least one matrix");
  Tensor *out = in_item(c, 0, 0);
  for (int i = 1; i < n; i++) TRY(OP(c, "aten.mm.default", &out, val_tensor(out), val_tensor(in_item(c, 0, i))));
  return out_value(c, val_tensor(out));
}

/* ---- grouped: rows offs[i-1] .. offs[i] of the input times weight[i] ---------------------- */

static Status grouped_infer(Call *c) {
  const Tensor *x = in_tensor(c, 0), *w = in_tensor(c, 1), *offs = in_tensor(c, 2);
  char a[128], b[128];
  if (!x || !w || !offs || x->ndim != 2 || w->ndim != 3 || offs->ndim != 1 || x->size[1] != w->size[1] ||
      offs->size[0] != w->size[0]) {
    return op_fail(
        c, "needs an input [n,k], weights [g,k,m] and g offsets; the input is %s, the weights are %s, %lld offsets",
        x ? tensor_describe(x, a, sizeof a) : "missing", w ? tensor_describe(w, b, sizeof b) : "missing",
        offs && offs->ndim == 1 ? (long long)offs->size[0] : 0LL);
  }
  if (x->dtype != w->dtype || !dtype_is_compute(x->dtype) || x->dtype == DT_BOOL) {
    return op_fail(c, "there are no products of %s and %s", dtype_name(x->dtype), dtype_name(w->dtype));
  }
  if (offs->dtype != DT_I32 && offs->dtype != DT_I64)
    return op_fail(c, "offsets are %s, must be i32 or i64", dtype_name(offs->dtype));
  return out_new(c, x->dtype, 2, (int64_t[]){x->size[0], w->size[2]});
}

static int64_t offset_at(const Tensor *offs, int64_t i) {
  const char *at = (const char *)tensor_data(offs) + i * offs->stride[0] * (int64_t)dtype_size(offs->dtype);
  int64_t wide;
  int32_t narrow;
  if (offs->dtype == DT_I32) return memcpy(&narrow, at, sizeof narrow), narrow;
  return memcpy(&wide, at, sizeof wide), wide;
}

static View rows_of(View v, int64_t begin, int64_t count, int64_t *size) {
  size[0] = count;
  size[1] = v.size[1];
  v.data = (char *)v.data + begin * v.stride[0] * (int64_t)dtype_size(v.dtype);
  v.size = size;
  return v;
}

static Status grouped_run(Call *c) {
  const Tensor *w = in_tensor(c, 1), *offs = in_tensor(c, 2);
  View x = in_view(c, 0), y = out_view_of(c, 0);
  int64_t begin = 0, n = x.size[0];
  uint64_t zero = 0;
  for (int64_t g = 0; g < offs->size[0]; g++) {
    int64_t end = offset_at(offs, g), x_size[2], y_size[2];
    if (end < begin || end > n)
      return op_fail(c, "offset %lld of group %lld is not between %lld and %lld", (long long)end, (long long)g,
                     (long long)begin, (long long)n);
    char *weight = (char *)tensor_data(w) + g * w->stride[0] * (int64_t)dtype_size(w->dtype);
    if (end > begin) {
      TRY(gemm(&c->ctx->kern, &(Gemm){.a = rows_of(x, begin, end - begin, x_size),
                                      .b = {weight, w->size + 1, w->stride + 1, 2, w->dtype},
                                      .c = rows_of(y, begin, end - begin, y_size),
                                      .alpha = 1}));
    }
    begin = end;
  }
  int64_t rest[2];
  if (begin < n) kernel_fill(&c->ctx->kern, rows_of(y, begin, n - begin, rest), &zero);
  return OK;
}

/* _grouped_mm(self, mat2, offs, bias, out_dtype): the groups are rows of self, each with a weight of its own, or
 * stretches of the summed dimension of two matrices, each with a product of its own. */
static bool is_summed_by_group(const Tensor *x, const Tensor *w) { return x && w && x->ndim == 2 && w->ndim == 2; }

static Status summed_groups_infer(Call *c, const Tensor *x, const Tensor *y, const Tensor *offs) {
  char a[128], b[128];
  if (offs->ndim != 1 || x->size[1] != y->size[0] || x->dtype != y->dtype || !dtype_is_float(x->dtype))
    return op_fail(c, "needs [m,k] and [k,n], floats of one dtype, and offsets along k, not %s and %s",
                   tensor_describe(x, a, sizeof a), tensor_describe(y, b, sizeof b));
  if (offs->dtype != DT_I32 && offs->dtype != DT_I64)
    return op_fail(c, "offsets are %s, must be i32 or i64", dtype_name(offs->dtype));
  return out_new(c, x->dtype, 3, (int64_t[]){offs->size[0], x->size[0], y->size[1]});
}

static Status aten_grouped_infer(Call *c) {
  const Tensor *x = in_tensor(c, 0), *w = in_tensor(c, 1), *offs = in_tensor(c, 2);
  if (!offs || in_tensor(c, 3))
    return op_fail(c, "only an input [n,k] with weights [g,k,m], or [m,k] with [k,n], offsets and no bias are "
                      "understood");
  if (x && in_dtype(c, 4, x->dtype) != x->dtype)
    return op_fail(c, "the result can only have the input's dtype %s", dtype_name(x->dtype));
  return is_summed_by_group(x, w) ? summed_groups_infer(c, x, w, offs) : grouped_infer(c);
}

static Status summed_groups_run(Call *c) {
  const Tensor *offs = in_tensor(c, 2), *out = out_tensor(c, 0);
  View x = in_view(c, 0), y = in_view(c, 1);
  int64_t begin = 0, item = (int64_t)dtype_size(x.dtype);
  for (int64_t g = 0; g < offs->size[0]; g++) {
    int64_t end = offset_at(offs, g), y_size[2];
    if (end < begin || end > y.size[0])
      return op_fail(c, "offset %lld of group %lld is not between %lld and %lld", (long long)end, (long long)g,
                     (long long)begin, (long long)y.size[0]);
    int64_t x_size[2] = {x.size[0], end - begin};
    View to = {(char *)tensor_data(out) + g * out->stride[0] * item, out->size + 1, out->stride + 1, 2, x.dtype};
    View part = {(char *)x.data + begin * x.stride[1] * item, x_size, x.stride, 2, x.dtype};
    TRY(gemm(&c->ctx->kern, &(Gemm){.a = part, .b = rows_of(y, begin, end - begin, y_size), .c = to, .alpha = 1}));
    begin = end;
  }
  return OK;
}

static Status aten_grouped_run(Call *c) {
  return is_summed_by_group(in_tensor(c, 0), in_tensor(c, 1)) ? summed_groups_run(c) : grouped_run(c);
}

static Status aten_grouped_place(Rules *r) {
  return is_summed_by_group(r->in[0], r->in[1]) ? rule_letters(r, "m[k],[k]n,[g]->[g]mn", true)
                                                : rule_letters(r, "[n]k,[g]km,[g]->[n]m", true);
}

static double grouped_flops(const Call *c) {
  if (!c->nout) return 0;
  const Tensor *x = in_tensor(c, 0), *w = in_tensor(c, 1); /* every row of x, or every column, once */
  return 2.0 * (double)tensor_numel(x) * (double)w->size[w->ndim - 1];
}

/* ---- the family ------------------------------------------------------------------------- */

/* clang-format off */
#define PRODUCT_OF_HALVES(text, r, name) \
  {.schema = text, .infer = row_infer, .run = row_run, .flops = row_flops, .shard.place = row_place, .row = &(r), \
   .shard.wide = name}
#define PRODUCT(text, r) PRODUCT_OF_HALVES(text, r, NULL)
/* clang-format on */

const OpDef ops_matmul[] = {
    PRODUCT_OF_HALVES("aten::mm(Tensor self, Tensor mat2) -> Tensor", row_mm, "tess.matmul_wide.default"),
    PRODUCT("aten::_int_mm(Tensor self, Tensor mat2) -> Tensor", row_int_mm),
    PRODUCT_OF_HALVES("aten::bmm(Tensor self, Tensor mat2) -> Tensor", row_bmm, "tess.matmul_wide.default"),
    PRODUCT("aten::mv(Tensor self, Tensor vec) -> Tensor", row_mv),
    PRODUCT("aten::dot(Tensor self, Tensor tensor) -> Tensor", row_dot),
    {.schema = "aten::vdot(Tensor self, Tensor other) -> Tensor",
     .infer = vdot_infer,
     .run = row_run,
     .flops = row_flops,
     .shard.place = row_place,
     .row = &row_dot},
    PRODUCT_OF_HALVES("aten::matmul(Tensor self, Tensor other) -> Tensor", row_matmul, "tess.matmul_wide.default"),
    PRODUCT_OF_HALVES(
        "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor", row_addmm,
        "tess.addmm_wide.default"),
    PRODUCT("aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
            row_baddbmm),
    PRODUCT("aten::addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
            row_addmv),
    PRODUCT_OF_HALVES("aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", row_linear,
                      "tess.linear_wide.default"),
    PRODUCT("tess::linear_wide(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", row_linear_wide),
    PRODUCT("tess::addmm_wide(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
            row_addmm_wide),
    PRODUCT("tess::matmul_wide(Tensor self, Tensor other) -> Tensor", row_matmul_wide),
    {.schema = "aten::_addmm_activation(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, "
               "bool use_gelu=False) -> Tensor",
     .infer = row_infer,
     .run = activation_run,
     .flops = row_flops,
     .shard.place = activation_place,
     .row = &row_addmm},
    {.schema = "aten::outer(Tensor self, Tensor vec2) -> Tensor", .compose = outer_compose},
    {.schema = "aten::addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
     .infer = addr_infer,
     .run = addr_run,
     .flops = addr_flops,
     .shard.rule = "*~mn,m,n->mn",
     .shard.linear = LINEAR_MULTI},
    {.schema =
         "aten::addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
     .compose = addbmm_compose},
    {.schema = "aten::chain_matmul(Tensor[] matrices) -> Tensor", .compose = chain_compose},
    {.schema = "transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor",
     .infer = grouped_infer,
     .run = grouped_run,
     .flops = grouped_flops,
     .shard.rule = "[n]k,[g]km,[g]->[n]m",
     .shard.linear = LINEAR_MULTI},
    {.schema = "aten::_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? "
               "out_dtype=None) -> Tensor",
     .infer = aten_grouped_infer,
     .run = aten_grouped_run,
     .flops = grouped_flops,
     .shard.place = aten_grouped_place},
    {0}};
