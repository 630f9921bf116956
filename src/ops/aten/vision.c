/* vision.c -- operators of torchvision: nms, roi_align, deform_conv2d, and gradients of the last two.
 *
 * Like torchvision's they work on f32 and f64.
 */
#include "kernels/vision.h"

#include "kernels/conv.h"
#include "kernels/copy.h"
#include "kernels/gemm.h"
#include "kernels/sort.h"
#include "ops/aten/dense.h"
#include "ops/aten/indexing.h"
#include "ops/geometry.h"
#include "ops/rule.h"

static Status need_float(const Call *c, int i, const char *what, int ndim, Dtype d, Tensor **out) {
  char a[96];
  TRY(need_tensor(c, i, out));
  if ((*out)->ndim != ndim ||
      (d == DT_NONE ? (*out)->dtype != DT_F32 && (*out)->dtype != DT_F64 : (*out)->dtype != d))
    return op_fail(c, "%s %s needs %d dimensions and must be %s", what, tensor_describe(*out, a, sizeof a), ndim,
                   d == DT_NONE ? "f32 or f64" : dtype_name(d));
  return OK;
}

/* ---- nms (dets, scores, iou_threshold) ---------------------------------------------- */

static Status nms_body(Call *c) {
  Kern *k = &c->ctx->kern;
  Tensor *boxes, *scores;
  Dense dense;
  char a[96], b[96];
  TRY(need_float(c, 0, "dets", 2, DT_NONE, &boxes));
  TRY(need_float(c, 1, "scores", 1, boxes->dtype, &scores));
  int64_t n = boxes->size[0], one = 1, *order, *keep;
  uint8_t *gone;
  if (boxes->size[1] != 4 || scores->size[0] != n) {
    return op_fail(c, "dets %s must be (n, 4) and scores %s (n)", tensor_describe(boxes, a, sizeof a),
                   tensor_describe(scores, b, sizeof b));
  }
  TRY(dense_view(k, boxes, &dense));
  TRY_NEW(order, kern_scratch(k, (size_t)n * sizeof *order));
  TRY_NEW(keep, kern_scratch(k, (size_t)n * sizeof *keep));
  TRY_NEW(gone, kern_scratch(k, (size_t)n));
  if (n && !kernel_sort(k, tensor_view(scores), 0, true, 0, n, (View){NULL, &n, &one, 1, scores->dtype},
                        (View){order, &n, &one, 1, DT_I64}))
    return fail_oom();
  int64_t kept = kernel_nms(boxes->dtype, dense.view.data, order, n, in_float(c, 2), gone, keep);
  TRY(out_now(c, DT_I64, 1, &kept));
  kernel_copy(k, out_view_of(c, 0), (View){keep, &kept, &one, 1, DT_I64});
  return OK;
}

static Status nms_run(Call *c) { return with_scratch(c, nms_body); }

/* ---- roi_align (input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned) */

enum { ROI_MOST_SAMPLES = 256 }; /* in each direction of a cell */

static Status roi_align_infer(Call *c) {
  Tensor *x, *rois;
  char a[96];
  TRY(need_float(c, 0, "input", 4, DT_NONE, &x));
  TRY(need_float(c, 1, "rois", 2, x->dtype, &rois));
  if (rois->size[1] != 5)
    return op_fail(c, "rois %s must be (k, 5): image, x1, y1, x2, y2", tensor_describe(rois, a, sizeof a));
  int64_t size[4] = {rois->size[0], x->size[1], in_int(c, 3), in_int(c, 4)};
  if (size[2] < 1 || size[3] < 1)
    return op_fail(c, "pools to %lld x %lld, must be at least 1 x 1", (long long)size[2], (long long)size[3]);
  if (in_int(c, 5) > ROI_MOST_SAMPLES)
    return op_fail(c, "sampling_ratio is %lld, must be at most %d: samples lie closer than pixels long before",
                   (long long)in_int(c, 5), ROI_MOST_SAMPLES);
  return out_new(c, x->dtype, 4, size);
}

static Status roi_align_body(Call *c) {
  Kern *k = &c->ctx->kern;
  const Tensor *x = in_tensor(c, 0), *rois = in_tensor(c, 1), *y = out_tensor(c, 0);
  Dense xs, rs;
  int64_t stride[4];
  View to = out_view_of(c, 0), flat = {NULL, y->size, stride, 4, y->dtype};
  TRY(dense_view(k, x, &xs));
  TRY(dense_view(k, rois, &rs));
  contiguous_strides(4, y->size, stride);
  TRY_NEW(flat.data, kern_scratch(k, (size_t)tensor_numel(y) * dtype_size(y->dtype)));
  RoiAlign r = {{x->size[0], x->size[1], x->size[2], x->size[3]},
                rois->size[0],
                in_int(c, 3),
                in_int(c, 4),
                in_int(c, 5),
                in_float(c, 2),
                in_bool(c, 6)};
  if (tensor_numel(y) == 0) return OK;
  if (tensor_numel(x) == 0) return op_fail(c, "the images have no pixels");
  TRY(status_at(kernel_roi_align(k, x->dtype, &r, xs.view.data, rs.view.data, flat.data), "%s",
                c->op->schema.name));
  kernel_copy(k, to, flat);
  return OK;
}

static Status roi_align_run(Call *c) { return with_scratch(c, roi_align_body); }

/* _roi_align_backward(grad, rois, spatial_scale, pooled_height, pooled_width, batch_size, channels, height, width,
 * sampling_ratio, aligned) */
static Status roi_grad_infer(Call *c) {
  Tensor *g, *rois;
  char a[96];
  int64_t size[4] = {in_int(c, 5), in_int(c, 6), in_int(c, 7), in_int(c, 8)}, n;
  TRY(need_float(c, 0, "grad", 4, DT_NONE, &g));
  TRY(need_float(c, 1, "rois", 2, g->dtype, &rois));
  if (rois->size[1] != 5 || g->size[0] != rois->size[0] || g->size[1] != size[1] || g->size[2] != in_int(c, 3) ||
      g->size[3] != in_int(c, 4) || in_int(c, 9) > ROI_MOST_SAMPLES)
    return op_fail(c, "gradient %s does not go with the regions and sizes", tensor_describe(g, a, sizeof a));
  for (int d = 0; d < 4; d++)
    if (size[d] < 0) return op_fail(c, "an image cannot have size %lld", (long long)size[d]);
  if (!checked_numel(4, size, &n)) return op_fail(c, "the images are too large");
  return out_new(c, g->dtype, 4, size);
}

static Status roi_grad_body(Call *c) {
  Kern *k = &c->ctx->kern;
  const Tensor *out = out_tensor(c, 0), *rois = in_tensor(c, 1);
  Dense g, rs;
  const uint64_t zero = 0;
  kernel_fill(k, out_view_of(c, 0), &zero);
  TRY(dense_view(k, in_tensor(c, 0), &g));
  TRY(dense_view(k, rois, &rs));
  RoiAlign r = {{out->size[0], out->size[1], out->size[2], out->size[3]},
                rois->size[0],
                in_int(c, 3),
                in_int(c, 4),
                in_int(c, 9),
                in_float(c, 2),
                in_bool(c, 10)};
  if (tensor_numel(out) == 0 || tensor_numel(in_tensor(c, 0)) == 0) return OK;
  return status_at(kernel_roi_align_grad(k, out->dtype, &r, g.view.data, rs.view.data, tensor_data(out)), "%s",
                   c->op->schema.name);
}

static Status roi_grad_run(Call *c) { return with_scratch(c, roi_grad_body); }

/* ---- deform_conv2d (input, weight, offset, mask, bias, stride h w, pad h w, dilation h w, groups,
 * offset_groups, use_mask) --------------------------------------------------------------- */

enum { INPUT, WEIGHT, OFFSET, MASK, BIAS, STRIDE, PAD = 7, DILATION = 9, GROUPS = 11, OFFSET_GROUPS, USE_MASK };

static bool is_size(const Tensor *t, int64_t a, int64_t b, int64_t c, int64_t d) {
  return t->size[0] == a && t->size[1] == b && t->size[2] == c && t->size[3] == d;
}

/* Arguments from `first` on. */
static Status deform_problem(const Call *c, int first, DeformColumns *g) {
  Tensor *x, *w, *offset, *mask, *bias;
  char a[96], b[96];
  TRY(need_float(c, first + INPUT, "input", 4, DT_NONE, &x));
  TRY(need_float(c, first + WEIGHT, "weight", 4, x->dtype, &w));
  TRY(need_float(c, first + OFFSET, "offset", 4, x->dtype, &offset));
  TRY(need_float(c, first + BIAS, "bias", 1, x->dtype, &bias));
  int64_t groups = in_int(c, first + GROUPS);
  *g = (DeformColumns){.c = x->size[1],
                       .h = x->size[2],
                       .w = x->size[3],
                       .kh = w->size[2],
                       .kw = w->size[3],
                       .groups = in_int(c, first + OFFSET_GROUPS)};
  for (int d = 0; d < 2; d++) {
    int64_t kernel = d ? g->kw : g->kh, *out = d ? &g->ow : &g->oh;
    g->stride[d] = in_int(c, first + STRIDE + d), g->pad[d] = in_int(c, first + PAD + d),
    g->dilation[d] = in_int(c, first + DILATION + d);
    if (g->stride[d] < 1 || g->pad[d] < 0 || g->dilation[d] < 1 || kernel < 1 || g->stride[d] > INT32_MAX ||
        g->pad[d] > INT32_MAX || g->dilation[d] > INT32_MAX)
      return op_fail(
          c, "stride and dilation must be 1 or more, padding 0 or more, all below 2^31, and the weight not empty");
    int64_t room = (d ? g->w : g->h) + 2 * g->pad[d] - g->dilation[d] * (kernel - 1) - 1;
    if (room < 0)
      return op_fail(c, "weight %s does not fit input %s", tensor_describe(w, a, sizeof a),
                     tensor_describe(x, b, sizeof b));
    *out = room / g->stride[d] + 1;
  }
  if (groups < 1 || g->groups < 1 || g->c % groups || w->size[0] % groups || g->c % g->groups ||
      w->size[1] * groups != g->c || bias->size[0] != w->size[0])
    return op_fail(c, "weight %s does not fit input %s in %lld groups and %lld offset groups",
                   tensor_describe(w, a, sizeof a), tensor_describe(x, b, sizeof b), (long long)groups,
                   (long long)g->groups);
  int64_t taps = g->groups * g->kh * g->kw;
  if (!is_size(offset, x->size[0], 2 * taps, g->oh, g->ow))
    return op_fail(c, "offset %s must be [%lld,%lld,%lld,%lld]", tensor_describe(offset, a, sizeof a),
                   (long long)x->size[0], (long long)(2 * taps), (long long)g->oh, (long long)g->ow);
  if (!in_bool(c, first + USE_MASK)) return OK;
  TRY(need_float(c, first + MASK, "mask", 4, x->dtype, &mask));
  if (!is_size(mask, x->size[0], taps, g->oh, g->ow))
    return op_fail(c, "mask %s must be [%lld,%lld,%lld,%lld]", tensor_describe(mask, a, sizeof a),
                   (long long)x->size[0], (long long)taps, (long long)g->oh, (long long)g->ow);
  return OK;
}

static Status deform_infer(Call *c) {
  DeformColumns g;
  TRY(deform_problem(c, 0, &g));
  const Tensor *x = in_tensor(c, INPUT);
  int64_t size[4] = {x->size[0], in_tensor(c, WEIGHT)->size[0], g.oh, g.ow};
  return out_new(c, x->dtype, 4, size);
}

static void *at(View v, int64_t element) { return (char *)v.data + (size_t)element * dtype_size(v.dtype); }

/* y = weight columns + bias for one image, group by group. */
static Status deform_products(Call *c, const DeformColumns *g, View weight, View bias, void *columns, View y) {
  Kern *k = &c->ctx->kern;
  int64_t groups = in_int(c, GROUPS), inner = g->c / groups * g->kh * g->kw, outer = weight.size[0] / groups,
          places = g->oh * g->ow;
  int64_t wsize[2] = {outer, inner}, wstride[2] = {inner, 1}, csize[2] = {inner, places}, cstride[2] = {places, 1},
          ysize[2] = {outer, places}, bstride[2] = {1, 0};
  for (int64_t i = 0; i < groups; i++) {
    View add = {at(bias, i * outer), ysize, bstride, 2, bias.dtype};
    View from = {columns, NULL, NULL, 0, y.dtype};
    TRY(gemm(k, &(Gemm){.a = {at(weight, i * outer * inner), wsize, wstride, 2, y.dtype},
                        .b = {at(from, i * inner * places), csize, cstride, 2, y.dtype},
                        .c = {at(y, i * outer * places), ysize, cstride, 2, y.dtype},
                        .add = &add,
                        .alpha = 1,
                        .beta = 1}));
  }
  return OK;
}

static Status deform_body(Call *c) {
  Kern *k = &c->ctx->kern;
  DeformColumns g;
  Dense x, weight, offset, mask = {0}, bias;
  const Tensor *out = out_tensor(c, 0);
  int64_t stride[4], places, taps;
  void *columns;
  TRY(deform_problem(c, 0, &g));
  TRY(dense_view(k, in_tensor(c, INPUT), &x));
  TRY(dense_view(k, in_tensor(c, WEIGHT), &weight));
  TRY(dense_view(k, in_tensor(c, OFFSET), &offset));
  TRY(dense_view(k, in_tensor(c, BIAS), &bias));
  if (in_bool(c, USE_MASK)) TRY(dense_view(k, in_tensor(c, MASK), &mask));
  places = g.oh * g.ow, taps = g.groups * g.kh * g.kw;
  contiguous_strides(4, out->size, stride);
  View y = {NULL, out->size, stride, 4, out->dtype};
  TRY_NEW(columns, kern_scratch(k, (size_t)(g.c * g.kh * g.kw * places) * dtype_size(y.dtype)));
  TRY_NEW(y.data, kern_scratch(k, (size_t)tensor_numel(out) * dtype_size(y.dtype)));
  for (int64_t n = 0; n < out->size[0]; n++) {
    View image = y;
    image.data = at(y, n * out->size[1] * places);
    kernel_deform_columns(k, y.dtype, &g, at(x.view, n * g.c * g.h * g.w), at(offset.view, n * 2 * taps * places),
                          mask.view.data ? at(mask.view, n * taps * places) : NULL, columns);
    TRY(deform_products(c, &g, weight.view, bias.view, columns, image));
  }
  kernel_copy(k, out_view_of(c, 0), y);
  return OK;
}

static Status deform_run(Call *c) { return with_scratch(c, deform_body); }

static double deform_flops(const Call *c) {
  const Tensor *w = in_tensor(c, WEIGHT);
  double taps = (double)(w->size[1] * w->size[2] * w->size[3]);
  return 2 * taps * (double)tensor_numel(out_tensor(c, 0));
}

/* ---- _deform_conv2d_backward (grad, then the arguments of deform_conv2d) -> gradients of input, weight, offset,
 * mask and bias ----------------------------------------------------------------------------- */

static Status deform_grad_infer(Call *c) {
  DeformColumns g;
  Tensor *dy;
  TRY(deform_problem(c, 1, &g));
  const Tensor *x = in_tensor(c, 1 + INPUT);
  TRY(need_float(c, 0, "grad", 4, x->dtype, &dy));
  if (!is_size(dy, x->size[0], in_tensor(c, 1 + WEIGHT)->size[0], g.oh, g.ow))
    return op_fail(c, "the gradient is not of the result's size");
  for (int i = INPUT; i <= BIAS; i++) {
    const Tensor *t = in_tensor(c, 1 + i);
    TRY(out_new(c, x->dtype, t->ndim, t->size));
  }
  return OK;
}

/* One group of one image: gcolumns = weight^T dy, gweight += dy columns^T. */
static Status deform_products_back(Kern *k, Dtype d, const int64_t size[3], void *weight, void *dy, void *columns,
                                   void *gcolumns, void *gweight) {
  const int64_t outer = size[0], inner = size[1], places = size[2];
  const int64_t w[2] = {outer, inner}, wt[2] = {inner, outer}, turn[2] = {1, inner}, row[2] = {inner, 1};
  const int64_t y[2] = {outer, places}, cols[2] = {inner, places}, place[2] = {places, 1}, across[2] = {1, places};
  const int64_t cols_turned[2] = {places, inner};
  View to = {gweight, w, row, 2, d};
  TRY(gemm(k, &(Gemm){.a = {weight, wt, turn, 2, d},
                      .b = {dy, y, place, 2, d},
                      .c = {gcolumns, cols, place, 2, d},
                      .alpha = 1}));
  return gemm(k, &(Gemm){.a = {dy, y, place, 2, d},
                         .b = {columns, cols_turned, across, 2, d},
                         .c = to,
                         .add = &to,
                         .alpha = 1,
                         .beta = 1});
}

typedef struct {
  Dense in[5], dy; /* of the arguments; mask: if used */
  View out[5];
  void *columns, *gcolumns;
} DeformBackRoom;

static Status deform_image_back(Call *c, const DeformColumns *g, DeformBackRoom *r, int64_t n) {
  Kern *k = &c->ctx->kern;
  Dtype d = r->dy.view.dtype;
  bool masked = in_bool(c, 1 + USE_MASK);
  int64_t places = g->oh * g->ow, taps = g->groups * g->kh * g->kw, groups = in_int(c, 1 + GROUPS),
          channels = in_tensor(c, 1 + WEIGHT)->size[0], image = n * g->c * g->h * g->w;
  int64_t size[3] = {channels / groups, g->c / groups * g->kh * g->kw, places};
  void *offset = at(r->in[OFFSET].view, n * 2 * taps * places),
       *mask = masked ? at(r->in[MASK].view, n * taps * places) : NULL;
  View columns = {r->columns, NULL, NULL, 0, d}, gcolumns = {r->gcolumns, NULL, NULL, 0, d};
  kernel_deform_columns(k, d, g, at(r->in[INPUT].view, image), offset, mask, r->columns);
  for (int64_t i = 0; i < groups; i++)
    TRY(deform_products_back(k, d, size, at(r->in[WEIGHT].view, i * size[0] * size[1]),
                             at(r->dy.view, (n * channels + i * size[0]) * places),
                             at(columns, i * size[1] * places), at(gcolumns, i * size[1] * places),
                             at(r->out[WEIGHT], i * size[0] * size[1])));
  kernel_deform_columns_grad(k, d, g, at(r->in[INPUT].view, image), offset, mask, r->gcolumns,
                             at(r->out[INPUT], image), at(r->out[OFFSET], n * 2 * taps * places),
                             masked ? at(r->out[MASK], n * taps * places) : NULL);
  return OK;
}

static Status deform_grad_body(Call *c) {
  Kern *k = &c->ctx->kern;
  DeformColumns g;
  DeformBackRoom r = {0};
  const uint64_t zero = 0;
  TRY(deform_problem(c, 1, &g));
  TRY(dense_view(k, in_tensor(c, 0), &r.dy));
  for (int i = INPUT; i <= BIAS; i++) {
    TRY(dense_view(k, in_tensor(c, 1 + i), &r.in[i]));
    r.out[i] = out_view_of(c, i);
    kernel_fill(k, r.out[i], &zero);
  }
  size_t bytes = (size_t)(g.c * g.kh * g.kw * g.oh * g.ow) * dtype_size(r.dy.view.dtype);
  TRY_NEW(r.columns, kern_scratch(k, bytes));
  TRY_NEW(r.gcolumns, kern_scratch(k, bytes));
  for (int64_t n = 0; n < in_tensor(c, 0)->size[0]; n++) TRY(deform_image_back(c, &g, &r, n));
  return conv_grad_bias(k, r.dy.view, r.out[BIAS]);
}

static Status deform_grad_run(Call *c) { return with_scratch(c, deform_grad_body); }

/* Two products where forward has one. */
static double deform_grad_flops(const Call *c) {
  const Tensor *w = in_tensor(c, 1 + WEIGHT);
  return 4 * (double)(w->size[1] * w->size[2] * w->size[3]) * (double)tensor_numel(in_tensor(c, 0));
}

/* Images; the output's channels, where they all see all of the input's. */
static Status place_deform(Rules *r) {
  TRY(rule_words(r, "00r00r"));
  return in_int(r->call, GROUPS) == 1 ? rule_words(r, "1r0rr0") : OK;
}

const OpDef ops_vision[] = {
    {.schema = "torchvision::nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
     .run = nms_run,
     .flags = OP_DYNAMIC},
    {.schema =
         "torchvision::roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt "
         "pooled_width, int sampling_ratio, bool aligned) -> Tensor",
     .infer = roi_align_infer,
     .run = roi_align_run,
     .shard.rule = "11r 0r0 ssr"},
    {.schema =
         "torchvision::deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
         "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
         "SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor",
     .infer = deform_infer,
     .run = deform_run,
     .flops = deform_flops,
     .shard.place = place_deform},
    {.schema =
         "torchvision::_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, "
         "SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width, int "
         "sampling_ratio, bool aligned) -> Tensor",
     .infer = roi_grad_infer,
     .run = roi_grad_run},
    {.schema =
         "torchvision::_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor "
         "mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, "
         "SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, "
         "Tensor, Tensor)",
     .infer = deform_grad_infer,
     .run = deform_grad_run,
     .flops = deform_grad_flops,
     .shard.rule = "0s00s00r00r"},
    {0}};
