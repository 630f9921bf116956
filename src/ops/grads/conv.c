/* conv.c -- gradients of convolutions: all of them are convolution_backward.
 *
 * A convolution is linear in its input and in its weight, so that the gradient of convolution_backward is made of
 * the same two ops. */
#include <string.h>

#include "ops/vjp.h"

/* A convolution as core ATen spells it. */
typedef struct {
  int nd;
  bool batched, transposed;
  Value stride, padding, dilation, output_padding, groups;
} Conv;

static const int64_t zeros[3] = {0, 0, 0};

static Value argument(const Call *c, const char *name, Value otherwise) {
  int i = schema_find(&c->op->schema, name);
  return i < 0 ? otherwise : c->arg[i];
}

static Conv conv_of(const Call *c, const Tensor *x, const Tensor *w) {
  int nd = w->ndim - 2;
  Value transposed = argument(c, "transposed", val_bool(strstr(c->op->schema.name, "transpose") != NULL));
  return (Conv){.nd = nd,
                .batched = x->ndim == w->ndim,
                .transposed = transposed.b,
                .stride = argument(c, "stride", val_none()),
                .padding = argument(c, "padding", val_none()),
                .dilation = argument(c, "dilation", val_none()),
                .output_padding = argument(c, "output_padding", val_ints(zeros, nd)),
                .groups = argument(c, "groups", val_int(1))};
}

static Tensor *batch_of_one(Vjp *v, Tensor *t) { return F_OP(&v->f, "aten.unsqueeze.default", F_T(t), val_int(0)); }

static void backward(Vjp *v, const Conv *n, Tensor *g, Tensor *x, Tensor *w, const bool *mask, Tensor **grad) {
  F_OPS(&v->f, "aten.convolution_backward.default", grad, 3, F_T(g), F_T(x), F_T(w), val_none(), n->stride,
        n->padding, n->dilation, val_bool(n->transposed), n->output_padding, n->groups, val_bools(mask, 3));
}

static void vjp_conv(Vjp *v) {
  Tensor *g = vjp_cotangent(v), *x = vjp_arg(v, 0), *w = vjp_arg(v, 1), *grad[3];
  Conv n = conv_of(v->forward, x, w);
  bool mask[3] = {vjp_wants(v, 0), vjp_wants(v, 1), vjp_wants(v, 2)};
  if (!n.batched) x = batch_of_one(v, x), g = batch_of_one(v, g);
  backward(v, &n, g, x, w, mask, grad);
  if (grad[0] && !n.batched) grad[0] = F_OP(&v->f, "aten.squeeze.dim", F_T(grad[0]), val_int(0));
  for (int i = 0; i < 3; i++) vjp_give(v, i, grad[i]);
}

/* padding = 'same' or 'valid', in numbers; what 'same' has more on the right is padded first. */
static Status named_padding_training(Call *c) {
  Formula f = {c, OK};
  Tensor *x = in_tensor(c, 0), *w = in_tensor(c, 1);
  int nd = w ? w->ndim - 2 : 0;
  int64_t pad[3], right[6] = {0};
  bool same = !strcmp(in_str(c, 4), "same"), uneven = false;
  if (!x || nd < 1 || nd > 3 || in_ints(c, 5).n < 1) return op_fail(c, "needs a weight of 3 to 5 dimensions");
  for (int d = 0; d < nd; d++) {
    Ints dilation = in_ints(c, 5), stride = in_ints(c, 3);
    int64_t total = same ? dilation.v[dilation.n == 1 ? 0 : d] * (w->size[d + 2] - 1) : 0;
    if (same && stride.v[stride.n == 1 ? 0 : d] != 1) return op_fail(c, "padding 'same' needs stride 1");
    pad[d] = total / 2;
    right[2 * (nd - 1 - d) + 1] = total % 2;
    uneven |= total % 2 != 0;
  }
  if (uneven) x = F_OP(&f, "aten.constant_pad_nd.default", F_T(x), val_ints(right, 2 * nd));
  const char *name = nd == 1 ? "aten.conv1d.default" : nd == 2 ? "aten.conv2d.default" : "aten.conv3d.default";
  return formula_give(
      &f, F_OP(&f, name, F_T(x), c->arg[1], c->arg[2], c->arg[3], val_ints(pad, nd), c->arg[5], c->arg[6]));
}

/* ---- gradients of gradients ------------------------------------------------------------------- */

/* convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
 * output_padding, groups, output_mask), with cotangents of the gradients of input, weight and bias. */
enum { DY, X, W };

static Tensor *convolve(Vjp *v, const Conv *n, Tensor *x, Tensor *w) {
  return F_OP(&v->f, "aten.convolution.default", F_T(x), F_T(w), val_none(), n->stride, n->padding, n->dilation,
              val_bool(n->transposed), n->output_padding, n->groups);
}

static Tensor *sum(Vjp *v, Tensor *a, Tensor *b) { return a && b ? f_add(&v->f, a, b) : a ? a : b; }

/* The cotangent of result i of three that may be None: they count only where they are. */
static Tensor *cotangent_of(const Vjp *v, int i) {
  int flat = 0;
  for (int k = 0; k < i; k++) flat += v->forward->out[k].kind == VAL_TENSOR;
  return v->forward->out[i].kind == VAL_TENSOR ? v->cotangent[flat] : NULL;
}

static Tensor *of_grad_output(Vjp *v, const Conv *n, Tensor *gx, Tensor *gw, Tensor *gb) {
  Tensor *to = NULL;
  const Tensor *dy = vjp_arg(v, DY);
  if (gx) to = convolve(v, n, gx, vjp_arg(v, W));
  if (gw) to = sum(v, to, convolve(v, n, vjp_arg(v, X), gw));
  if (!gb) return to;
  int64_t size[5] = {1, gb->size[0], 1, 1, 1};
  gb = f_view(&v->f, gb, size, dy->ndim);
  return to ? sum(v, to, gb) : F_OP(&v->f, "aten.expand.default", F_T(gb), val_ints(dy->size, dy->ndim));
}

static void vjp_conv_backward(Vjp *v) {
  Tensor *dy = vjp_arg(v, DY), *x = vjp_arg(v, X), *w = vjp_arg(v, W), *grad[3];
  Tensor *gx = cotangent_of(v, 0), *gw = cotangent_of(v, 1), *gb = cotangent_of(v, 2);
  Conv n = conv_of(v->forward, x, w);
  if (vjp_wants(v, DY)) vjp_give(v, DY, of_grad_output(v, &n, gx, gw, gb));
  if (gw && vjp_wants(v, X)) {
    backward(v, &n, dy, x, gw, (const bool[]){true, false, false}, grad);
    vjp_give(v, X, grad[0]);
  }
  if (gx && vjp_wants(v, W)) {
    backward(v, &n, dy, gx, w, (const bool[]){false, true, false}, grad);
    vjp_give(v, W, grad[1]);
  }
}

const GradDef grads_conv[] = {
    GRAD("conv1d.default conv2d.default conv3d.default conv_transpose1d.default conv_transpose2d.input "
         "conv_transpose3d.input convolution.default _convolution.default _convolution.deprecated",
         vjp_conv, "input weight"),
    TRAINS_AS("conv1d.padding conv2d.padding conv3d.padding", named_padding_training),
    GRAD("convolution_backward.default", vjp_conv_backward, "grad_output input weight"),
    {0},
};
