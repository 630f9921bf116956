/* conv.c -- convolutions, transposed convolutions and their gradient.
 *
 *   conv1d, conv2d, conv3d          numbers or 'same'/'valid' as padding
 *   conv_transpose1d, 2d, 3d        output_padding adds rows on the right
 *   convolution, _convolution       any of the above, as core ATen spells them
 *   convolution_backward
 *
 * The named ones take an input without a batch dimension, too.  All of them are one
 * infer and one run; a row tells which argument is what.
 */
#include "kernels/conv.h"

#include <string.h>

#include "ops/rule.h"

/* Positions of arguments; 0 = not there.  x, w, bias are always 0, 1, 2. */
typedef struct {
  int nd;          /* spatial dimensions; 0 = those of the weight */
  bool transposed; /* unless an argument says so */
  int stride, padding, dilation, transposed_arg, output_padding, groups;
} Row;

static const Row rows_conv[] = {
    {1, false, 3, 4, 5, 0, 0, 6}, {2, false, 3, 4, 5, 0, 0, 6}, {3, false, 3, 4, 5, 0, 0, 6}};
static const Row rows_transpose[] = {
    {1, true, 3, 4, 7, 0, 5, 6}, {2, true, 3, 4, 7, 0, 5, 6}, {3, true, 3, 4, 7, 0, 5, 6}};
static const Row row_convolution = {0, false, 3, 4, 5, 6, 7, 8};

/* One convolution: tensors with a batch dimension, and its geometry. */
typedef struct {
  ConvGeometry g;
  bool batched;
  int64_t right[3]; /* padding (or, transposed, output_padding) on the right */
  int64_t y[5];     /* size of the result, with the batch dimension */
} Problem;

static const char *shape(const Tensor *t, char *buf) { return tensor_describe(t, buf, 96); }

/* Element i of a list of one or nd numbers. */
static Status read_extents(const Call *c, int arg, const char *what, int nd, int64_t least, int64_t *out) {
  Ints v = in_ints(c, arg);
  if (v.n != 1 && v.n != nd)
    return op_fail(c, "%s has %d elements; the convolution has %d spatial dimensions", what, v.n, nd);
  for (int i = 0; i < nd; i++) {
    out[i] = v.v[v.n == 1 ? 0 : i];
    if (out[i] < least || out[i] > INT32_MAX)
      return op_fail(c, "%s is %lld, must be at least %lld and at most %d", what, (long long)out[i],
                     (long long)least, INT32_MAX);
  }
  return OK;
}

/* 'same': total padding d*(k-1), the odd one on the right. */
static Status named_padding(const Call *c, const char *name, const int64_t *kernel, Problem *p) {
  bool same = !strcmp(name, "same");
  if (!same && strcmp(name, "valid"))
    return op_fail(c, "padding is '%s'; it can be numbers, 'same' or 'valid'", name);
  for (int d = 0; d < p->g.nd; d++) {
    if (same && p->g.stride[d] != 1)
      return op_fail(c, "padding 'same' needs stride 1, not %lld", (long long)p->g.stride[d]);
    int64_t total = same ? p->g.dilation[d] * (kernel[d] - 1) : 0;
    p->g.pad[d] = total / 2;
    p->right[d] = total - total / 2;
  }
  return OK;
}

static Status check_tensors(const Call *c, const Problem *p, const Tensor *x, const Tensor *w, const Tensor *bias) {
  char a[96], b[96];
  int nd = p->g.nd;
  int64_t g = p->g.groups, channels = x->size[x->ndim - nd - 1];
  if (x->dtype != w->dtype || (bias && bias->dtype != x->dtype)) {
    return op_fail(c, "input is %s, weight %s, bias %s: they must be of one dtype", dtype_name(x->dtype),
                   dtype_name(w->dtype), bias ? dtype_name(bias->dtype) : "none");
  }
  if (!dtype_is_float(x->dtype) && !dtype_is_int(x->dtype))
    return op_fail(c, "there is no convolution of %s", dtype_name(x->dtype));
  if (g < 1) return op_fail(c, "groups is %lld, must be at least 1", (long long)g);
  if (w->size[0] % g)
    return op_fail(c, "weight %s: its first dimension is not a multiple of %lld groups", shape(w, a), (long long)g);
  if (channels != (p->g.transposed ? w->size[0] : w->size[1] * g)) {
    return op_fail(c, "input %s has %lld channels; weight %s with %lld groups takes %lld", shape(x, a),
                   (long long)channels, shape(w, b), (long long)g,
                   (long long)(p->g.transposed ? w->size[0] : w->size[1] * g));
  }
  int64_t out = p->g.transposed ? w->size[1] * g : w->size[0];
  if (bias && (bias->ndim != 1 || bias->size[0] != out)) {
    return op_fail(c, "bias %s does not have the %lld output channels of weight %s", shape(bias, a), (long long)out,
                   shape(w, b));
  }
  return OK;
}

static Status output_size(const Call *c, const Tensor *x, const Tensor *w, Problem *p) {
  char a[96], b[96];
  const ConvGeometry *g = &p->g;
  p->y[0] = p->batched ? x->size[0] : 1;
  p->y[1] = g->transposed ? w->size[1] * g->groups : w->size[0];
  for (int d = 0; d < g->nd; d++) {
    int64_t in = x->size[x->ndim - g->nd + d], reach = g->dilation[d] * (w->size[d + 2] - 1) + 1;
    int64_t room = in + g->pad[d] + p->right[d] - reach;
    p->y[d + 2] = g->transposed ? (in - 1) * g->stride[d] - 2 * g->pad[d] + reach + p->right[d]
                                : room / g->stride[d] + 1;
    if (w->size[d + 2] < 1 || (g->transposed ? p->y[d + 2] < 1 : room < 0)) {
      return op_fail(c,
                     "the window of weight %s does not fit in input %s (dimension %d, padding %lld, dilation %lld)",
                     shape(w, a), shape(x, b), d + 2, (long long)g->pad[d], (long long)g->dilation[d]);
    }
  }
  return OK;
}

static Status read_geometry(const Call *c, const Row *row, const Tensor *w, Problem *p) {
  ConvGeometry *g = &p->g;
  g->transposed = row->transposed_arg ? in_bool(c, row->transposed_arg) : row->transposed;
  g->groups = in_int(c, row->groups);
  TRY(read_extents(c, row->stride, "stride", g->nd, 1, g->stride));
  TRY(read_extents(c, row->dilation, "dilation", g->nd, 1, g->dilation));
  if (in_str(c, row->padding)) return named_padding(c, in_str(c, row->padding), w->size + 2, p);
  TRY(read_extents(c, row->padding, "padding", g->nd, 0, g->pad));
  memcpy(p->right, g->pad, sizeof p->right);
  if (!g->transposed) return OK;
  TRY(read_extents(c, row->output_padding, "output_padding", g->nd, 0, p->right));
  for (int d = 0; d < g->nd; d++) {
    int64_t limit = g->stride[d] > g->dilation[d] ? g->stride[d] : g->dilation[d];
    if (p->right[d] >= limit) {
      return op_fail(c, "output_padding %lld must be less than stride %lld or dilation %lld",
                     (long long)p->right[d], (long long)g->stride[d], (long long)g->dilation[d]);
    }
  }
  return OK;
}

static Status problem_of(const Call *c, const Row *row, const Tensor *x, const Tensor *w, const Tensor *bias,
                         Problem *p) {
  char a[96], b[96];
  *p = (Problem){0};
  int nd = p->g.nd = row->nd ? row->nd : w->ndim - 2;
  if (nd < 1 || nd > 3 || w->ndim != nd + 2 || (x->ndim != nd + 2 && x->ndim != nd + 1)) {
    return op_fail(c, "input %s and weight %s are not those of a convolution in %d dimensions", shape(x, a),
                   shape(w, b), nd);
  }
  p->batched = x->ndim == nd + 2;
  TRY(read_geometry(c, row, w, p));
  TRY(check_tensors(c, p, x, w, bias));
  return output_size(c, x, w, p);
}

static Status problem(const Call *c, Problem *p) {
  return problem_of(c, c->op->def->row, in_tensor(c, 0), in_tensor(c, 1), in_tensor(c, 2), p);
}

/* Channels innermost, and not contiguous at the same time. */
static bool is_channels_last(const Tensor *t) {
  int64_t n = 1;
  if (t->ndim < 4 || tensor_is_contiguous(t)) return false;
  for (int i = 0; i < t->ndim; i++) {
    int d = i == 0 ? 1 : i == t->ndim - 1 ? 0 : t->ndim - i;
    if (t->size[d] > 1 && t->stride[d] != n) return false;
    n *= t->size[d];
  }
  return true;
}

static Status conv_infer(Call *c) {
  Problem p;
  TRY(problem(c, &p));
  const Tensor *x = in_tensor(c, 0);
  if (!p.batched) return out_new(c, x->dtype, p.g.nd + 1, p.y + 1);
  if (!is_channels_last(x) && !is_channels_last(in_tensor(c, 1))) return out_new(c, x->dtype, p.g.nd + 2, p.y);
  int64_t stride[5], n = p.y[1]; /* channels last in, channels last out */
  stride[1] = 1;
  for (int d = p.g.nd + 1; d >= 2; d--) stride[d] = n, n *= p.y[d];
  stride[0] = n;
  return out_strided(c, x->dtype, p.g.nd + 2, p.y, stride);
}

/* A view with a batch dimension in front; size and stride have room for five. */
static View batched(View v, int ndim, int64_t *size, int64_t *stride) {
  int lead = ndim - v.ndim; /* 0 or 1 */
  size[0] = stride[0] = 1;
  memcpy(size + lead, v.size, (size_t)v.ndim * sizeof *size);
  memcpy(stride + lead, v.stride, (size_t)v.ndim * sizeof *stride);
  return (View){v.data, size, stride, ndim, v.dtype};
}

static void free_plan(void *plan) { conv_plan_free(plan); }

static Status conv_run(Call *c) {
  Problem p;
  TRY(problem(c, &p));
  int64_t xs[5], xt[5], ys[5], yt[5];
  View x = batched(in_view(c, 0), p.g.nd + 2, xs, xt), y = batched(out_view_of(c, 0), p.g.nd + 2, ys, yt);
  View bias = in_tensor(c, 2) ? in_view(c, 2) : (View){0};
  if (c->state) *c->state_free = free_plan;
  return conv_forward(&c->ctx->kern, &p.g, x, in_view(c, 1), bias, y, (ConvPlan **)c->state, in_fixed(c, 1));
}

static double conv_flops(const Call *c) {
  const Tensor *w = in_tensor(c, 1);
  double per_weight = 2; /* each weight meets each position of the smaller image */
  const Row *row = c->op->def->row;
  bool transposed = row->transposed_arg ? in_bool(c, row->transposed_arg) : row->transposed;
  const Tensor *small = transposed ? in_tensor(c, 0) : out_tensor(c, 0);
  int nd = w->ndim - 2;
  for (int i = 0; i < nd; i++) per_weight *= (double)small->size[small->ndim - nd + i];
  if (small->ndim == nd + 2) per_weight *= (double)small->size[0];
  return per_weight * (double)tensor_numel(w);
}

/* ---- sharding ------------------------------------------------------------------
 * The batch; without groups also the channels, of the result or (leaving a sum) of the
 * input; with groups whole groups at a time. */

static Status place_conv(Rules *r) {
  Problem p;
  TRY(problem(r->call, &p));
  if (!p.batched)
    return p.g.groups > 1 ? rule_grouped(r, "0000", p.g.groups)
                          : rule_words(r, p.g.transposed ? "0r10 s00s" : "0r00 s01s");
  TRY(rule_words(r, "00r"));
  return p.g.groups > 1 ? rule_grouped(r, "1100", p.g.groups)
                        : rule_words(r, p.g.transposed ? "1r10 s10s" : "1r00 s11s");
}

/* Groups of this rank: its share of the channels. */
static Status localize_conv(Local *l) {
  const Row *row = l->def->row;
  int64_t groups = val_as_int(&l->arg[row->groups]), size[MAX_DIMS];
  const Tensor *x = l->in[0];
  int channel = x->ndim - (l->in[1]->ndim - 2) - 1;
  if (groups == 1 || !x->size[channel]) return OK;
  TRY(local_in_size(l, 0, size));
  l->arg[row->groups] = val_int(groups * size[channel] / x->size[channel]);
  return OK;
}

/* ---- convolution_backward ----------------------------------------------------
 * (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
 *  output_padding, groups, output_mask) -> gradients of input, weight, bias */

enum { DY, X, W, BIAS_SIZES, STRIDE, PADDING, DILATION, TRANSPOSED, OUTPUT_PADDING, GROUPS, MASK };

static const Row row_backward = {0, false, STRIDE, PADDING, DILATION, TRANSPOSED, OUTPUT_PADDING, GROUPS};

static Status backward_infer(Call *c) {
  const Tensor *x = in_tensor(c, X), *w = in_tensor(c, W), *dy = in_tensor(c, DY);
  char a[96], b[96];
  Problem p;
  if (w->ndim < 3 || w->ndim > 5 || x->ndim != w->ndim || dy->ndim != w->ndim) {
    return op_fail(c, "needs a gradient, an input and a weight of 3 to 5 dimensions");
  }
  TRY(problem_of(c, &row_backward, x, w, NULL, &p));
  if (memcmp(dy->size, p.y, (size_t)dy->ndim * sizeof *p.y))
    return op_fail(c, "the gradient %s is not of the result's size %s", shape(dy, a),
                   shape_describe(dy->ndim, p.y, b, sizeof b));
  if (x->dtype != w->dtype || x->dtype != dy->dtype || !dtype_is_float(x->dtype))
    return op_fail(c, "needs floats of one dtype");
  const bool *mask = c->arg[MASK].bools;
  TRY(mask[0] ? out_new(c, x->dtype, x->ndim, x->size) : out_value(c, val_none()));
  TRY(mask[1] ? out_new(c, w->dtype, w->ndim, w->size) : out_value(c, val_none()));
  return mask[2] ? out_new(c, dy->dtype, 1, &dy->size[1]) : out_value(c, val_none());
}

static Status backward_run(Call *c) {
  Kern *k = &c->ctx->kern;
  View dy = in_view(c, DY), x = in_view(c, X), w = in_view(c, W);
  const bool *mask = c->arg[MASK].bools;
  ConvGeometry g = {.nd = w.ndim - 2, .transposed = in_bool(c, TRANSPOSED), .groups = in_int(c, GROUPS)};
  TRY(read_extents(c, STRIDE, "stride", g.nd, 1, g.stride));
  TRY(read_extents(c, PADDING, "padding", g.nd, 0, g.pad));
  TRY(read_extents(c, DILATION, "dilation", g.nd, 1, g.dilation));
  if (mask[0]) {
    ConvGeometry back = g;
    back.transposed = !g.transposed;
    TRY(conv_forward(k, &back, dy, w, (View){0}, out_view_of(c, 0), NULL, false));
  }
  if (mask[1]) TRY(conv_grad_weights(k, &g, x, dy, out_view_of(c, 1)));
  return mask[2] ? conv_grad_bias(k, dy, out_view_of(c, 2)) : OK;
}

static double backward_flops(const Call *c) {
  const Tensor *w = in_tensor(c, W), *small = in_bool(c, TRANSPOSED) ? in_tensor(c, X) : in_tensor(c, DY);
  double positions = (double)tensor_numel(small) / (double)(small->size[1] ? small->size[1] : 1);
  return 2 * positions * (double)tensor_numel(w) * ((out_tensor(c, 0) != NULL) + (out_tensor(c, 1) != NULL));
}

static Status place_backward(Rules *r) {
  TRY(rule_words(r, "0ss00r"));
  if (in_int(r->call, GROUPS) > 1) return OK;
  return rule_words(r, in_bool(r->call, TRANSPOSED) ? "s101r1 10rr10" : "s001r0 11rr11");
}

static Status localize_backward(Local *l) {
  int64_t size[MAX_DIMS];
  if (l->arg[BIAS_SIZES].kind != VAL_INTS || l->arg[BIAS_SIZES].n != 1) return OK;
  TRY(local_in_size(l, 0, size));
  return local_set_ints(l, BIAS_SIZES, &size[1], 1);
}

/* clang-format off */
#define CONV(name, rowp) \
  {.schema = "aten::" name, .infer = conv_infer, .run = conv_run, .shard.place = place_conv, \
    .shard.localize = localize_conv, .flops = conv_flops, .row = rowp}
/* clang-format on */
#define CONV_N(n)                                                                                        \
  CONV("conv" #n "d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[" #n "] stride=1, SymInt[" #n \
       "] padding=0, SymInt[" #n "] dilation=1, SymInt groups=1) -> Tensor",                             \
       &rows_conv[n - 1]),                                                                               \
      CONV("conv" #n "d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[" #n              \
           "] stride=1, str padding=\"valid\", SymInt[" #n "] dilation=1, SymInt groups=1) -> Tensor",   \
           &rows_conv[n - 1])
#define TRANSPOSE_N(n, overload)                                                                            \
  CONV("conv_transpose" #n "d" overload "(Tensor input, Tensor weight, Tensor? bias=None, SymInt[" #n       \
       "] stride=1, SymInt[" #n "] padding=0, SymInt[" #n "] output_padding=0, SymInt groups=1, SymInt[" #n \
       "] dilation=1) -> Tensor",                                                                           \
       &rows_transpose[n - 1])
#define CONVOLUTION                                                                                         \
  "(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool " \
  "transposed, "                                                                                            \
  "SymInt[] output_padding, SymInt groups"

const OpDef ops_conv[] = {
    CONV_N(1),
    CONV_N(2),
    CONV_N(3),
    TRANSPOSE_N(1, ""),
    TRANSPOSE_N(2, ".input"),
    TRANSPOSE_N(3, ".input"),
    CONV("convolution" CONVOLUTION ") -> Tensor", &row_convolution),
    CONV("_convolution" CONVOLUTION
         ", bool benchmark, bool deterministic, bool cudnn_enabled, bool allow_tf32) -> Tensor",
         &row_convolution),
    CONV("_convolution.deprecated" CONVOLUTION
         ", bool benchmark, bool deterministic, bool cudnn_enabled) -> Tensor",
         &row_convolution),
    {.schema = "aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, "
               "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, "
               "SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
     .infer = backward_infer,
     .run = backward_run,
     .shard.place = place_backward,
     .shard.localize = localize_backward,
     .flops = backward_flops},
    {0},
};
