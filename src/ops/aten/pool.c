/* pool.c -- poolings and their gradients, in 1 to 3 spatial dimensions.
 *
 * Input (c, s...) or (n, c, s...).  A row says how many spatial dimensions an op has and
 * where its arguments are; results are channels last if the input is.
 */
#include "kernels/pool.h"

#include <string.h>

#include "ops/rule.h"

/* Positions of arguments; 0 = not there. */
typedef struct {
  int nd;
  int x; /* the input: 1 in gradients, where 0 is the gradient of the output */
  int kernel, stride, padding, dilation, ceil, include_pad, divisor;
  int indices_arg; /* of gradients of max */
  bool indices;    /* the second output */
} Row;

typedef struct {
  PoolWindow w;
  int64_t out[MAX_DIMS]; /* size of the output, all dimensions */
  int64_t divisor;       /* of averages; 0: as many as the window has elements */
} Problem;

static const char *shape(const Tensor *t, char *buf) { return tensor_describe(t, buf, 96); }

static Status check_input(const Call *c, const Row *row, const Tensor *x) {
  char a[96];
  if (!x) return op_fail(c, "input must be a tensor");
  if (x->ndim != row->nd + 1 && x->ndim != row->nd + 2) {
    return op_fail(c, "input %s needs %d or %d dimensions", shape(x, a), row->nd + 1, row->nd + 2);
  }
  if (!dtype_is_float(x->dtype) && !dtype_is_int(x->dtype))
    return op_fail(c, "there is no pooling of %s", dtype_name(x->dtype));
  return OK;
}

/* The nd numbers of a list as the last ones of three. */
static Status read_extents(const Call *c, int arg, const char *what, int nd, int64_t least, int64_t missing,
                           int64_t *out) {
  for (int d = 0; d < 3; d++) out[d] = missing;
  if (!arg) return OK;
  Ints v = in_ints(c, arg);
  if (v.n != 1 && v.n != nd) return op_fail(c, "%s has %d elements, must have %d", what, v.n, nd);
  for (int d = 0; d < nd; d++) {
    int64_t n = v.v[v.n == 1 ? 0 : d];
    if (n < least || n > INT32_MAX)
      return op_fail(c, "%s is %lld, must be at least %lld and at most %d", what, (long long)n, (long long)least,
                     INT32_MAX);
    out[3 - nd + d] = n;
  }
  return OK;
}

/* Windows that fit; with ceil_mode also a last one that overhangs, if it starts before
 * the padding on the right. */
static int64_t window_count(int64_t in, int64_t k, int64_t stride, int64_t pad, int64_t dilation, bool ceil_mode) {
  int64_t room = in + 2 * pad - dilation * (k - 1) - 1;
  if (room < 0 && !(ceil_mode && room > -stride)) return 0;
  int64_t n = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  if (ceil_mode && (n - 1) * stride >= in + pad) n--;
  return n;
}

static Status problem(const Call *c, Problem *p) {
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, row->x);
  char a[96];
  int nd = row->nd;
  TRY(check_input(c, row, x));
  TRY(read_extents(c, row->kernel, "kernel_size", nd, 1, 1, p->w.k));
  TRY(in_ints(c, row->stride).n ? read_extents(c, row->stride, "stride", nd, 1, 1, p->w.stride)
                                : read_extents(c, row->kernel, "kernel_size", nd, 1, 1, p->w.stride));
  TRY(read_extents(c, row->padding, "padding", nd, 0, 0, p->w.pad));
  TRY(read_extents(c, row->dilation, "dilation", nd, 1, 1, p->w.dilation));
  bool divides = row->divisor && !in_none(c, row->divisor);
  p->divisor = divides ? in_int(c, row->divisor) : 0;
  if (divides && p->divisor == 0) return op_fail(c, "divisor_override is 0");
  memcpy(p->out, x->size, sizeof p->out);
  for (int d = 3 - nd; d < 3; d++) {
    int at = x->ndim - 3 + d;
    int64_t reach = p->w.dilation[d] * (p->w.k[d] - 1) + 1;
    if (p->w.pad[d] * 2 > reach) {
      return op_fail(c, "padding %lld is more than half of the window of %lld", (long long)p->w.pad[d],
                     (long long)reach);
    }
    p->out[at] = window_count(x->size[at], p->w.k[d], p->w.stride[d], p->w.pad[d], p->w.dilation[d],
                              in_bool(c, row->ceil));
    if (p->out[at] < 1) {
      return op_fail(c, "the window of %lld does not fit in dimension %d of input %s with padding %lld",
                     (long long)reach, at, shape(x, a), (long long)p->w.pad[d]);
    }
  }
  return OK;
}

/* A fresh output; channels last if x is and has them. */
static Status new_output(Call *c, Dtype dtype, const Tensor *x, int nd, const int64_t *size) {
  if (x->ndim != nd + 2 || nd == 1 || x->size[1] < 2 || x->stride[1] != 1 || tensor_is_contiguous(x)) {
    return out_new(c, dtype, x->ndim, size);
  }
  int64_t stride[POOL_DIMS], n = size[1];
  stride[1] = 1;
  for (int i = x->ndim - 1; i >= 2; i--) stride[i] = n, n *= size[i];
  stride[0] = n;
  return out_strided(c, dtype, x->ndim, size, stride);
}

static Status pool_infer(Call *c) {
  const Row *row = c->op->def->row;
  Problem p;
  TRY(problem(c, &p));
  TRY(new_output(c, in_tensor(c, 0)->dtype, in_tensor(c, 0), row->nd, p.out));
  return row->indices ? new_output(c, DT_I64, in_tensor(c, 0), row->nd, p.out) : OK;
}

static Status max_run(Call *c) {
  const Row *row = c->op->def->row;
  Problem p;
  PoolShape room[3];
  TRY(problem(c, &p));
  View indices = row->indices ? pool_view(out_view_of(c, 1), row->nd, &room[2]) : (View){0};
  return pool_max(&c->ctx->kern, &p.w, pool_view(in_view(c, 0), row->nd, &room[0]),
                  pool_view(out_view_of(c, 0), row->nd, &room[1]), indices);
}

static Status avg_run(Call *c) {
  const Row *row = c->op->def->row;
  Problem p;
  PoolShape room[2];
  TRY(problem(c, &p));
  return pool_avg(&c->ctx->kern, &p.w, in_bool(c, row->include_pad), p.divisor,
                  pool_view(in_view(c, 0), row->nd, &room[0]), pool_view(out_view_of(c, 0), row->nd, &room[1]));
}

static double pool_flops(const Call *c) {
  const Row *row = c->op->def->row;
  Ints k = in_ints(c, row->kernel);
  const Tensor *x = in_tensor(c, row->x);
  double window = 1;
  for (int i = 0; i < row->nd; i++) {
    int64_t n = k.v[k.n == 1 ? 0 : i], in = x->size[x->ndim - row->nd + i];
    window *= (double)(n < in ? n : in); /* what lies outside is not visited */
  }
  return window * (double)tensor_numel(out_tensor(c, 0));
}

/* ---- adaptive --------------------------------------------------------------- */

static Status adaptive_infer(Call *c) {
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 0);
  int64_t out[3], size[MAX_DIMS];
  TRY(check_input(c, row, x));
  TRY(read_extents(c, row->kernel, "output_size", row->nd, 0, 1, out));
  memcpy(size, x->size, sizeof size);
  for (int d = 0; d < row->nd; d++) size[x->ndim - row->nd + d] = out[3 - row->nd + d];
  for (int i = x->ndim - row->nd; i < x->ndim; i++) {
    char a[96];
    if (x->size[i] == 0) return op_fail(c, "input %s has an empty spatial dimension", shape(x, a));
  }
  TRY(new_output(c, x->dtype, x, row->nd, size));
  return row->indices ? new_output(c, DT_I64, x, row->nd, size) : OK;
}

static Status adaptive_run(Call *c) {
  const Row *row = c->op->def->row;
  PoolShape room[3];
  View x = pool_view(in_view(c, 0), row->nd, &room[0]), y = pool_view(out_view_of(c, 0), row->nd, &room[1]);
  if (!row->indices) return pool_adaptive_avg(&c->ctx->kern, x, y);
  return pool_adaptive_max(&c->ctx->kern, x, y, pool_view(out_view_of(c, 1), row->nd, &room[2]));
}

static double adaptive_flops(const Call *c) { return (double)tensor_numel(in_tensor(c, 0)); }

/* ---- gradients -------------------------------------------------------------- */

static Status grad_infer(Call *c) {
  const Row *row = c->op->def->row;
  const Tensor *dy = in_tensor(c, 0), *x = in_tensor(c, 1);
  char a[96], b[96];
  TRY(check_input(c, row, x));
  bool fits = dy->ndim == x->ndim && dy->dtype == x->dtype && dtype_is_float(x->dtype);
  for (int d = 0; fits && d < x->ndim - row->nd; d++) fits = dy->size[d] == x->size[d];
  if (!fits) {
    return op_fail(c, "gradient %s and input %s do not belong together", shape(dy, a), shape(x, b));
  }
  return out_new(c, x->dtype, x->ndim, x->size);
}

static Status max_grad_infer(Call *c) {
  const Tensor *indices = in_tensor(c, ((const Row *)c->op->def->row)->indices_arg);
  if (!indices || indices->dtype != DT_I64 || !tensor_same_size(indices, in_tensor(c, 0)))
    return op_fail(c, "indices must be i64, of the gradient's size");
  return grad_infer(c);
}

static Status max_grad_run(Call *c) {
  const Row *row = c->op->def->row;
  PoolShape room[3];
  return pool_max_grad(&c->ctx->kern, pool_view(in_view(c, 0), row->nd, &room[0]),
                       pool_view(in_view(c, row->indices_arg), row->nd, &room[1]),
                       pool_view(out_view_of(c, 0), row->nd, &room[2]));
}

static Status avg_grad_infer(Call *c) {
  Problem p;
  TRY(grad_infer(c));
  TRY(problem(c, &p));
  const Tensor *dy = in_tensor(c, 0);
  if (memcmp(p.out, dy->size, (size_t)dy->ndim * sizeof *p.out))
    return op_fail(c, "the gradient does not have the size of the output");
  return OK;
}

static Status avg_grad_run(Call *c) {
  const Row *row = c->op->def->row;
  Problem p;
  PoolShape room[2];
  TRY(problem(c, &p));
  return pool_avg_grad(&c->ctx->kern, &p.w, in_bool(c, row->include_pad), p.divisor,
                       pool_view(in_view(c, 0), row->nd, &room[0]),
                       pool_view(out_view_of(c, 0), row->nd, &room[1]));
}

static Status adaptive_grad_run(Call *c) {
  const Row *row = c->op->def->row;
  PoolShape room[2];
  return pool_adaptive_avg_grad(&c->ctx->kern, pool_view(in_view(c, 0), row->nd, &room[0]),
                                pool_view(out_view_of(c, 0), row->nd, &room[1]));
}

/* ---- max_unpool (self, indices, output_size, ...) ----------------------------- */

static Status unpool_infer(Call *c) {
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 0), *indices = in_tensor(c, 1);
  int64_t size[MAX_DIMS];
  TRY(check_input(c, row, x));
  Ints out = in_ints(c, 2);
  if (!indices || indices->dtype != DT_I64 || !tensor_same_size(indices, x))
    return op_fail(c, "indices must be i64, of the input's size");
  if (out.n != row->nd) return op_fail(c, "output_size has %d elements, must have %d", out.n, row->nd);
  memcpy(size, x->size, sizeof size);
  for (int d = 0; d < row->nd; d++) size[x->ndim - row->nd + d] = out.v[d];
  return out_new(c, x->dtype, x->ndim, size);
}

static Status unpool_run(Call *c) {
  const Row *row = c->op->def->row;
  PoolShape room[3];
  Status s = pool_unpool(&c->ctx->kern, pool_view(in_view(c, 0), row->nd, &room[0]),
                         pool_view(in_view(c, 1), row->nd, &room[1]),
                         pool_view(out_view_of(c, 0), row->nd, &room[2]));
  return status_at(s, "%s", c->op->schema.name);
}

/* ---- fractional_max_pool2d (self, kernel_size, output_size, random_samples) ------ */

static Status fractional_infer(Call *c) {
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 0), *samples = in_tensor(c, 3);
  int64_t size[MAX_DIMS];
  TRY(check_input(c, row, x));
  Ints k = in_ints(c, 1), out = in_ints(c, 2);
  int64_t n = x->ndim == 4 ? x->size[0] : 1, channels = x->size[x->ndim - 3];
  if (!dtype_is_float(x->dtype) || !samples || samples->dtype != x->dtype || samples->ndim != 3 ||
      samples->size[0] != n || samples->size[1] != channels || samples->size[2] != 2) {
    return op_fail(c, "random_samples must be %s[%lld,%lld,2]", dtype_name(x->dtype), (long long)n,
                   (long long)channels);
  }
  memcpy(size, x->size, sizeof size);
  for (int d = 0; d < 2; d++) {
    int at = x->ndim - 2 + d;
    if (k.n != 2 || out.n != 2 || k.v[d] < 1 || out.v[d] < 1 || k.v[d] > x->size[at] ||
        out.v[d] > x->size[at] - k.v[d] + 1) {
      return op_fail(c, "windows and output do not fit into dimension %d of %lld elements", at,
                     (long long)x->size[at]);
    }
    size[at] = out.v[d];
  }
  TRY(out_new(c, x->dtype, x->ndim, size));
  return out_new(c, DT_I64, x->ndim, size);
}

static Status fractional_run(Call *c) {
  PoolShape room[3];
  return pool_fractional_max(&c->ctx->kern, in_ints(c, 1).v, in_view(c, 3), pool_view(in_view(c, 0), 2, &room[0]),
                             pool_view(out_view_of(c, 0), 2, &room[1]), pool_view(out_view_of(c, 1), 2, &room[2]));
}

/* ---- sharding ------------------------------------------------------------------
 * Batch and channels; without a batch the channels are dimension 0.  Means are linear. */

static bool is_batched(const Rules *r) {
  const Row *row = r->call->op->def->row;
  return r->in[0]->ndim >= row->nd + 2;
}

static Status place_pool(Rules *r) {
  TRY(rule_words(r, r->call->op->def->shard.linear ? "+0 s a" : "+0"));
  return is_batched(r) ? rule_words(r, "+1") : OK;
}

static Status place_unpool(Rules *r) { return rule_words(r, is_batched(r) ? "0 1" : "0"); }

static Status place_pool_grad(Rules *r) {
  TRY(place_unpool(r));
  return rule_words(r, "ssr aar");
}

/* ---- the table --------------------------------------------------------------- */

/* clang-format off */
#define MAX_POOL(n, name, returns, two) \
  {.schema = "aten::" name "(Tensor self, int[" #n "] kernel_size, int[" #n "] stride=[], int[" #n "] padding=0, int[" #n "] dilation=1, bool ceil_mode=False) -> " returns, \
    .infer = pool_infer, .run = max_run, .shard.place = place_pool, .flops = pool_flops, \
    .row = &(const Row){.nd = n, .kernel = 1, .stride = 2, .padding = 3, .dilation = 4, .ceil = 5, \
    .indices = two}}
#define AVG_POOL(n, last, position) \
  {.schema = "aten::avg_pool" #n "d(Tensor self, int[" #n "] kernel_size, int[" #n "] stride=[], int[" #n "] padding=0, bool ceil_mode=False, bool count_include_pad=True" last ") -> Tensor", \
    .infer = pool_infer, .run = avg_run, .shard.place = place_pool, .shard.linear = LINEAR_UNARY, \
    .flops = pool_flops, .row = &(const Row){.nd = n, .kernel = 1, .stride = 2, .padding = 3, .ceil = 4, \
    .include_pad = 5, .divisor = position}}
#define ADAPTIVE(n, name, returns, two) \
  {.schema = "aten::" name "(Tensor self, SymInt[" #n "] output_size) -> " returns, .infer = adaptive_infer, \
    .run = adaptive_run, .shard.place = place_pool, .shard.linear = two ? LINEAR_NO : LINEAR_UNARY, \
    .flops = adaptive_flops, .row = &(const Row){.nd = n, .kernel = 1, .indices = two}}
#define MAX_GRAD(n) \
  {.schema = "aten::max_pool" #n "d_with_indices_backward(Tensor grad_output, Tensor self, int[" #n "] kernel_size, int[" #n "] stride, int[" #n "] padding, int[" #n "] dilation, bool ceil_mode, Tensor indices) -> Tensor", \
    .infer = max_grad_infer, .run = max_grad_run, .shard.place = place_pool_grad, .row = &(const Row){.nd = n, \
    .x = 1, .indices_arg = 7}}
#define AVG_GRAD(n) \
  {.schema = "aten::avg_pool" #n "d_backward(Tensor grad_output, Tensor self, int[" #n "] kernel_size, int[" #n "] stride, int[" #n "] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor", \
    .infer = avg_grad_infer, .run = avg_grad_run, .shard.place = place_pool_grad, .row = &(const Row){.nd = n, \
    .x = 1, .kernel = 2, .stride = 3, .padding = 4, .ceil = 5, .include_pad = 6, .divisor = 7}}
#define ADAPTIVE_GRAD(n) \
  {.schema = "aten::_adaptive_avg_pool" #n "d_backward(Tensor grad_output, Tensor self) -> Tensor", \
    .infer = grad_infer, .run = adaptive_grad_run, .shard.place = place_pool_grad, .row = &(const Row){.nd = n, \
    .x = 1}}
#define ADAPTIVE_MAX_GRAD(n) \
  {.schema = "aten::adaptive_max_pool" #n "d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor", \
    .infer = max_grad_infer, .run = max_grad_run, .shard.place = place_pool_grad, .row = &(const Row){.nd = n, \
    .x = 1, .indices_arg = 2}}
/* clang-format on */

const OpDef ops_pool[] = {
    MAX_POOL(1, "max_pool1d", "Tensor", false),
    MAX_POOL(1, "max_pool1d_with_indices", "(Tensor, Tensor)", true),
    MAX_POOL(2, "max_pool2d", "Tensor", false),
    MAX_POOL(2, "max_pool2d_with_indices", "(Tensor, Tensor)", true),
    MAX_POOL(3, "max_pool3d", "Tensor", false),
    MAX_POOL(3, "max_pool3d_with_indices", "(Tensor, Tensor)", true),
    AVG_POOL(1, "", 0),
    AVG_POOL(2, ", int? divisor_override=None", 6),
    AVG_POOL(3, ", int? divisor_override=None", 6),
    ADAPTIVE(1, "adaptive_avg_pool1d", "Tensor", false),
    ADAPTIVE(2, "adaptive_avg_pool2d", "Tensor", false),
    ADAPTIVE(2, "_adaptive_avg_pool2d", "Tensor", false),
    ADAPTIVE(3, "adaptive_avg_pool3d", "Tensor", false),
    ADAPTIVE(3, "_adaptive_avg_pool3d", "Tensor", false),
    ADAPTIVE(1, "adaptive_max_pool1d", "(Tensor, Tensor)", true),
    ADAPTIVE(2, "adaptive_max_pool2d", "(Tensor, Tensor)", true),
    ADAPTIVE(3, "adaptive_max_pool3d", "(Tensor, Tensor)", true),
    {.schema = "aten::fractional_max_pool2d(Tensor self, int[2] kernel_size, int[2] output_size, Tensor "
               "random_samples) -> (Tensor, Tensor)",
     .infer = fractional_infer,
     .run = fractional_run,
     .shard.place = place_pool,
     .row = &(const Row){.nd = 2}},
    {.schema = "aten::max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor",
     .infer = unpool_infer,
     .run = unpool_run,
     .shard.place = place_unpool,
     .row = &(const Row){.nd = 2}},
    {.schema = "aten::max_unpool3d(Tensor self, Tensor indices, SymInt[3] output_size, int[3] stride, int[3] "
               "padding) -> Tensor",
     .infer = unpool_infer,
     .run = unpool_run,
     .shard.place = place_unpool,
     .row = &(const Row){.nd = 3}},
    MAX_GRAD(2),
    MAX_GRAD(3),
    AVG_GRAD(2),
    AVG_GRAD(3),
    ADAPTIVE_GRAD(2),
    ADAPTIVE_GRAD(3),
    ADAPTIVE_MAX_GRAD(2),
    ADAPTIVE_MAX_GRAD(3),
    {0},
};
