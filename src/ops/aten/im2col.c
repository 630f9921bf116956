/* im2col.c -- im2col (unfold) and col2im (fold), with or without a batch dimension. */
#include "kernels/im2col.h"

#include <string.h>

#include "ops/op.h"

static Status pair(const Call *c, int arg, const char *what, int64_t least, int64_t *out) {
  Ints v = in_ints(c, arg);
  if (v.n != 2) return op_fail(c, "%s has %d elements, must have 2", what, v.n);
  for (int i = 0; i < 2; i++) {
    out[i] = v.v[i];
    if (out[i] < least || out[i] > INT32_MAX)
      return op_fail(c, "%s is %lld, must be at least %lld and at most %d", what, (long long)out[i],
                     (long long)least, INT32_MAX);
  }
  return OK;
}

/* Arguments from `first` on: kernel_size, dilation, padding, stride; image: h, w. */
static Status windows(const Call *c, int first, const int64_t *image, Windows *w) {
  TRY(pair(c, first, "kernel_size", 1, w->k));
  TRY(pair(c, first + 1, "dilation", 1, w->dilation));
  TRY(pair(c, first + 2, "padding", 0, w->pad));
  TRY(pair(c, first + 3, "stride", 1, w->stride));
  for (int d = 0; d < 2; d++) {
    int64_t room = image[d] + 2 * w->pad[d] - w->dilation[d] * (w->k[d] - 1) - 1;
    if (room < 0) {
      return op_fail(c, "a window of %lldx%lld does not fit in an image of %lldx%lld", (long long)w->k[0],
                     (long long)w->k[1], (long long)image[0], (long long)image[1]);
    }
    w->out[d] = room / w->stride[d] + 1;
  }
  return OK;
}

static Status im2col_infer(Call *c) {
  const Tensor *x = in_tensor(c, 0);
  Windows w;
  if (!x || x->ndim < 3 || x->ndim > 4) return op_fail(c, "input needs 3 or 4 dimensions: [n,] c, h, w");
  TRY(windows(c, 1, x->size + x->ndim - 2, &w));
  int64_t size[3] = {x->size[0], 0, 0}, rows[3] = {x->size[x->ndim - 3], w.k[0], w.k[1]};
  if (!checked_numel(3, rows, &size[1]) || !checked_numel(2, w.out, &size[2]))
    return op_fail(c, "there are too many windows");
  return x->ndim == 4 ? out_new(c, x->dtype, 3, size) : out_new(c, x->dtype, 2, size + 1);
}

static Status im2col_run(Call *c) {
  View x = in_view(c, 0), y = out_view_of(c, 0);
  Windows w;
  TRY(windows(c, 1, x.size + x.ndim - 2, &w));
  bool batched = x.ndim == 4;
  int64_t n = batched ? x.size[0] : 1, step = batched ? x.stride[0] : 0;
  size_t item = dtype_size(x.dtype), image = (size_t)(y.size[y.ndim - 2] * y.size[y.ndim - 1]) * item;
  for (int64_t i = 0; i < n; i++) {
    View one = {(char *)x.data + i * step * (int64_t)item, x.size + batched, x.stride + batched, 3, x.dtype};
    im2col(&c->ctx->kern, &w, one, (char *)y.data + (size_t)i * image);
  }
  return OK;
}

static Status col2im_infer(Call *c) {
  const Tensor *x = in_tensor(c, 0);
  int64_t image[2];
  char a[96];
  Windows w;
  if (!x || x->ndim < 2 || x->ndim > 3) return op_fail(c, "input needs 2 or 3 dimensions: [n,] c*kh*kw, windows");
  if (!dtype_is_float(x->dtype)) return op_fail(c, "there is no sum of windows in %s", dtype_name(x->dtype));
  TRY(pair(c, 1, "output_size", 1, image));
  TRY(windows(c, 2, image, &w));
  int64_t rows = x->size[x->ndim - 2], area = w.k[0] * w.k[1], count;
  if (!checked_numel(2, w.out, &count) || rows % area || x->size[x->ndim - 1] != count) {
    return op_fail(c, "input %s does not hold %lldx%lld windows of %lld elements", tensor_describe(x, a, sizeof a),
                   (long long)w.out[0], (long long)w.out[1], (long long)area);
  }
  int64_t size[4] = {x->size[0], rows / area, image[0], image[1]};
  return x->ndim == 3 ? out_new(c, x->dtype, 4, size) : out_new(c, x->dtype, 3, size + 1);
}

/* v with a batch dimension in front. */
static View batched(View v, int ndim, int64_t *size, int64_t *stride) {
  int lead = ndim - v.ndim;
  size[0] = stride[0] = 1;
  memcpy(size + lead, v.size, (size_t)v.ndim * sizeof *size);
  memcpy(stride + lead, v.stride, (size_t)v.ndim * sizeof *stride);
  return (View){v.data, size, stride, ndim, v.dtype};
}

static Status col2im_run(Call *c) {
  Windows w;
  int64_t xs[3], xt[3], ys[4], yt[4];
  View x = batched(in_view(c, 0), 3, xs, xt), y = batched(out_view_of(c, 0), 4, ys, yt);
  TRY(windows(c, 2, ys + 2, &w));
  return col2im(&c->ctx->kern, &w, x, y);
}

const OpDef ops_im2col[] = {
    {.schema =
         "aten::im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor",
     .infer = im2col_infer,
     .run = im2col_run},
    {.schema = "aten::col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] "
               "padding, int[2] stride) -> Tensor",
     .infer = col2im_infer,
     .run = col2im_run},
    {0},
};
