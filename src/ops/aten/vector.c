/* vector.c -- products of the vectors that lie along a dimension: cross and dot products.
 *
 * A cross product, y0 = a1 b2 - a2 b1 and so on around, is one program of the tile machine with an output for
 * each of the three elements, instead of six views, six products and a stack. */
#include <stdio.h>

#include "ops/formula.h"
#include "ops/geometry.h"
#include "ops/pointwise_ops.h"
#include "ops/promote.h"
#include "ops/rule.h"

/* The argument after self and other, wrapped: where the three elements of a vector stand. */
static Status cross_dim(const Call *c, int *dim) {
  const Tensor *self = in_tensor(c, 0);
  if (self->ndim == 0) return op_fail(c, "a tensor without dimensions holds no vectors");
  return wrap_dim(c, in_int(c, 2), self->ndim, dim);
}

static Status cross_infer(Call *c) {
  const Tensor *a = in_tensor(c, 0), *b = in_tensor(c, 1);
  char x[128], y[128];
  int dim, ndim;
  int64_t size[MAX_DIMS];
  Dtype dtype;
  TRY(promote_args(c, 3, &dtype)); /* refuses what cannot be computed with */
  tensor_describe(a, x, sizeof x);
  tensor_describe(b, y, sizeof y);
  if (a->ndim != b->ndim) return op_fail(c, "%s and %s must have the same number of dimensions", x, y);
  TRY(cross_dim(c, &dim));
  if (a->size[dim] != 3 || b->size[dim] != 3)
    return op_fail(c, "%s and %s must have 3 elements along dimension %d", x, y, dim);
  if (a->dtype != b->dtype) return op_fail(c, "%s and %s must have one dtype", x, y);
  if (a->dtype == DT_BOOL) return op_fail(c, "is not defined for bool");
  TRY(broadcast_args(c, 3, &ndim, size));
  return out_new(c, a->dtype, ndim, size);
}

/* Element i of every vector; size has room for the sizes of the view. */
static View element_of(View v, int dim, int i, int64_t *size) {
  for (int d = 0; d < v.ndim; d++) size[d] = d == dim ? 1 : v.size[d];
  if (v.data) v.data = (char *)v.data + i * v.stride[dim] * (int64_t)dtype_size(v.dtype);
  v.size = size;
  return v;
}

/* Products of f16 and bf16 are rounded before they are subtracted, as in ATen: where they nearly cancel, what
 * is left is their error. */
static Status cross_run(Call *c) {
  const View a = in_view(c, 0), b = in_view(c, 1), y = out_view_of(c, 0);
  int64_t size[3][MAX_DIMS];
  View in[6], out[3];
  int dim, reg[6];
  TRY(cross_dim(c, &dim));
  PwProgram p;
  pw_init(&p);
  for (int i = 0; i < 6; i++) {
    in[i] = i < 3 ? element_of(a, dim, i, size[0]) : element_of(b, dim, i - 3, size[1]);
    reg[i] = pw_input(&p, a.dtype);
  }
  for (int i = 0; i < 3; i++) {
    const int j = (i + 1) % 3, k = (i + 2) % 3;
    int left = pw_result(&p, pw_op(&p, PW_MUL, reg[j], reg[3 + k], -1, NULL), a.dtype);
    int right = pw_result(&p, pw_op(&p, PW_MUL, reg[k], reg[3 + j], -1, NULL), a.dtype);
    pw_output(&p, pw_result(&p, pw_op(&p, PW_SUB, left, right, -1, NULL), a.dtype));
    out[i] = element_of(y, dim, i, size[2]);
  }
  return kernel_pointwise(&c->ctx->kern, &p, out, in);
}

/* A vector stays whole, everything else is as in a product element by element: "*a[b],*a[b]->a[b]" where the
 * vectors of a matrix are its rows. */
static Status cross_place(Rules *r) {
  char word[MAX_DIMS + 3], text[3 * sizeof word + 8];
  int dim, n = 0;
  TRY(cross_dim(r->call, &dim));
  for (int d = 0; d < r->out[0]->ndim; d++) {
    if (d == dim) word[n++] = '[';
    word[n++] = (char)('a' + d);
    if (d == dim) word[n++] = ']';
  }
  word[n] = 0;
  snprintf(text, sizeof text, "*%s,*%s->%s", word, word, word);
  return rule_letters(r, text, true);
}

static double cross_flops(const Call *c) { return 3 * (double)tensor_numel(out_tensor(c, 0)); }

/* dim=None: the first dimension of three elements. */
static Status cross_compose(Call *c) {
  const Tensor *self = in_tensor(c, 0);
  int64_t dim = in_none(c, 2) ? 0 : in_int(c, 2);
  Tensor *y;
  if (in_none(c, 2)) {
    while (dim < self->ndim && self->size[dim] != 3) dim++;
    if (dim == self->ndim) return op_fail(c, "self has no dimension of 3 elements");
  }
  TRY(OP(c, "aten.linalg_cross.default", &y, c->arg[0], c->arg[1], val_int(dim)));
  return out_value(c, val_tensor(y));
}

/* The sum of conj(x) y along dim. */
static Status vecdot_compose(Call *c) {
  const Tensor *x = in_tensor(c, 0), *y = in_tensor(c, 1);
  char a[128], b[128];
  if (x->dtype != y->dtype || dtype_is_integral(x->dtype))
    return op_fail(c, "%s and %s must have one dtype, floating point or complex", tensor_describe(x, a, sizeof a),
                   tensor_describe(y, b, sizeof b));
  Formula f = {.c = c};
  const int64_t dim = in_int(c, 2);
  const Tensor *left = x->dtype == DT_C64 ? F_OP(&f, "aten.conj_physical.default", F_T(x)) : x;
  return formula_give(&f, f_sum(&f, f_mul(&f, left, y), &dim, 1, false));
}

const OpDef ops_vector[] = {
    {.schema = "aten::linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor",
     .infer = cross_infer,
     .run = cross_run,
     .flops = cross_flops,
     .shard.place = cross_place},
    {.schema = "aten::cross(Tensor self, Tensor other, int? dim=None) -> Tensor", .compose = cross_compose},
    {.schema = "aten::linalg_vecdot(Tensor x, Tensor y, *, int dim=-1) -> Tensor", .compose = vecdot_compose},
    {0}};
