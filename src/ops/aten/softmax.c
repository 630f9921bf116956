/* softmax.c -- softmax and log_softmax in all their spellings, and their gradients.
 *
 * The kernel wants contiguous memory: a strided input is first copied to the output,
 * which is then worked on in place.
 */
#include "kernels/softmax.h"
#include "kernels/copy.h"
#include "ops/aten/dense.h"
#include "ops/formula.h"
#include "ops/rule.h"

typedef struct {
  SoftmaxKind kind;
  bool to_float; /* argument 2 is half_to_float, not a dtype */
} Row;

static Dtype result_dtype(const Call *c) {
  const Row *row = c->op->def->row;
  Dtype d = in_tensor(c, 0)->dtype;
  if (row->to_float) return in_bool(c, 2) && dtype_is_float(d) && d != DT_F64 ? DT_F32 : d;
  return in_dtype(c, 2, d);
}

static Status softmax_infer(Call *c) {
  const Tensor *x = in_tensor(c, 0);
  char text[128];
  int dim;
  TRY(wrap_dim(c, in_int(c, 1), x->ndim, &dim));
  if (!dtype_is_float(result_dtype(c))) {
    return op_fail(c, "%s: the input or the dtype argument must be a float", tensor_describe(x, text, sizeof text));
  }
  return out_new(c, result_dtype(c), x->ndim, x->size);
}

static Status softmax_run(Call *c) {
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 0);
  Kern *k = &c->ctx->kern;
  View y = out_view_of(c, 0), from = tensor_view(x);
  int dim;
  TRY(wrap_dim(c, in_int(c, 1), x->ndim, &dim));
  /* A dtype argument converts first: to 16 bits that rounds. */
  bool as_it_is = tensor_is_contiguous(x) && dtype_is_float(x->dtype) &&
                  (dtype_size(y.dtype) > 2 || x->dtype == y.dtype);
  if (!as_it_is || (y.dtype == DT_F32 && x->dtype == DT_F64)) {
    kernel_copy(k, y, from);
    from = y;
  }
  return kernel_softmax(k, row->kind, y, from, dim);
}

static Status backward_infer(Call *c) {
  const Tensor *g = in_tensor(c, 0), *y = in_tensor(c, 1);
  char a[128], b[128];
  int dim;
  TRY(wrap_dim(c, in_int(c, 2), g->ndim, &dim));
  if (!tensor_same_size(g, y) || !dtype_is_float(g->dtype) || !dtype_is_float(y->dtype)) {
    return op_fail(c, "gradient %s and output %s do not go together", tensor_describe(g, a, sizeof a),
                   tensor_describe(y, b, sizeof b));
  }
  return out_new(c, in_dtype(c, 3, g->dtype), g->ndim, g->size);
}

static Status backward_run(Call *c) {
  const Row *row = c->op->def->row;
  Kern *k = &c->ctx->kern;
  Dense g, y;
  int dim;
  size_t mark = kern_mark(k);
  TRY(wrap_dim(c, in_int(c, 2), in_tensor(c, 0)->ndim, &dim));
  TRY(dense_view(k, in_tensor(c, 0), &g));
  TRY(dense_view(k, in_tensor(c, 1), &y));
  TRY(kernel_softmax_backward(k, row->kind, out_view_of(c, 0), g.view, y.view, dim));
  kern_release(k, mark);
  return OK;
}

/* Both lie as the one that is cut into more shards. */
static Status place_backward(Rules *r) {
  Fold f = {.lead = 0};
  int64_t shards[2] = {1, 1};
  for (int i = 0; i < 2; i++)
    for (int a = 0; a < r->naxes; a++) shards[i] *= is_s(rule_have(r, i, a)) ? r->axis[a] : 1;
  f.lead = shards[1] > shards[0];
  TRY(rule_dims(r, f.whole));
  return rule_fold(r, &f);
}

/* Along a dimension that is cut: the largest and the sum go over the ranks, rows do not.  Exponentials are not kept
 * beside the input: what follows the sum is one pass, which may be made in the input's memory. */
static Status softmax_in_parts(Call *c, const Sharded *how, bool *done) {
  const Row *row = c->op->def->row;
  Tensor *x = in_tensor(c, 0);
  bool along[MAX_DIMS] = {false};
  int dim;
  TRY(wrap_dim(c, in_int(c, 1), x->ndim, &dim));
  along[dim] = x->ndim > 0;
  *done = row->kind != SOFTMAX_SAFE && sharded_along(how, c, 0, along);
  if (!*done) return OK;
  Formula f = {c, OK};
  const int64_t d = dim;
  Dtype dtype = result_dtype(c);
  Tensor *wide = f_widen(&f, f_cast(&f, x, dtype));
  Tensor *top = F_OP(&f, "aten.amax.default", F_T(wide), val_ints(&d, 1), val_bool(true));
  Tensor *part[2] = {wide, top};
  f_align(&f, part, 2);
  wide = part[0], top = part[1];
  part[1] = F_OP(&f, "tess.sum_exp.default", F_T(wide), F_T(top), val_int(d));
  f_align(&f, part, 2);
  Tensor *shifted = f_sub(&f, part[0], top), *sum = part[1];
  Tensor *y = row->kind == SOFTMAX_LOG ? f_sub(&f, shifted, f_log(&f, sum)) : f_div(&f, f_exp(&f, shifted), sum);
  return formula_give(&f, f_cast(&f, y, dtype));
}

/* ---- sum_exp(self, top, dim): of exp(self - top), along dim, which stays with one element --------------- */

static Status sum_exp_infer(Call *c) {
  const Tensor *x = in_tensor(c, 0), *top = in_tensor(c, 1);
  char a[128], b[128];
  int dim;
  TRY(wrap_dim(c, in_int(c, 2), x->ndim, &dim));
  bool fits = x->ndim > 0 && x->ndim == top->ndim && x->dtype == top->dtype &&
              (x->dtype == DT_F32 || x->dtype == DT_F64);
  for (int d = 0; fits && d < x->ndim; d++) fits = top->size[d] == (d == dim ? 1 : x->size[d]);
  if (!fits)
    return op_fail(c, "%s and the largest %s do not go together", tensor_describe(x, a, sizeof a),
                   tensor_describe(top, b, sizeof b));
  return out_new(c, x->dtype, top->ndim, top->size);
}

static Status sum_exp_run(Call *c) {
  Kern *k = &c->ctx->kern;
  Dense x, top;
  int dim;
  size_t mark = kern_mark(k);
  TRY(wrap_dim(c, in_int(c, 2), in_tensor(c, 0)->ndim, &dim));
  TRY(dense_view(k, in_tensor(c, 0), &x));
  TRY(dense_view(k, in_tensor(c, 1), &top));
  kernel_sum_exp(k, out_view_of(c, 0), x.view, top.view, dim);
  kern_release(k, mark);
  return OK;
}

static Status place_sum_exp(Rules *r) {
  int dim;
  TRY(wrap_dim(r->call, in_int(r->call, 2), r->in[0]->ndim, &dim));
  for (int d = 0; d < r->in[0]->ndim; d++) {
    const Placement cut = place_s(d);
    Placement p[3] = {cut, cut, cut}; /* result, self, top */
    if (d == dim) {
      p[0] = place_p(REDUCE_SUM);
      p[2] = place_r();
    }
    TRY(rule_axis(r, p));
  }
  r->uneven = true; /* a rank without elements adds 0 */
  return OK;
}

/* clang-format off */
#define FORWARD(text, ...) \
  {.schema = "aten::" text, .infer = softmax_infer, .run = softmax_run, .flags = OP_UPDATE, .shard.place = place_along, \
    .shard.compose_sharded = softmax_in_parts, .row = &(const Row){__VA_ARGS__}}
#define BACKWARD(text, ...) \
  {.schema = "aten::" text, .infer = backward_infer, .run = backward_run, .flags = OP_UPDATE, .shard.place = place_backward, \
    .row = &(const Row){__VA_ARGS__}}

const OpDef ops_softmax[] = {
    FORWARD("softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", SOFTMAX, false),
    FORWARD("special_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", SOFTMAX, false),
    FORWARD("_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", SOFTMAX, true),
    FORWARD("_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", SOFTMAX_SAFE, false),
    FORWARD("log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", SOFTMAX_LOG, false),
    FORWARD("special_log_softmax(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", SOFTMAX_LOG, false),
    FORWARD("_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", SOFTMAX_LOG, true),
    BACKWARD("_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor", SOFTMAX, false),
    BACKWARD("_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> "
             "Tensor", SOFTMAX_LOG, false),
    {.schema = "tess::sum_exp(Tensor self, Tensor top, int dim) -> Tensor", .infer = sum_exp_infer, .run = sum_exp_run,
     .shard.place = place_sum_exp},
    {0}};
/* clang-format on */
