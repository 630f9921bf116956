/* conv.c -- the routes of an f32 convolution, and how one is chosen; see conv.h.
 *
 *   naive      conv_naive.c: not f32, or nothing to compute
 *   depthwise  conv_depthwise.c: one input channel per group, contiguous images; reorders
 *              would cost more than the sums
 *   gemm       y = w * x, image by image, for 1x1 windows on contiguous images that are
 *              large (reorders cost more than they bring) or whose weights may change
 *              (packing them each time does)
 *   scatter    transposed, windows that do not overlap: all their elements in one product,
 *              which are then put where they belong
 *   onednn     a direct convolution in the layout that oneDNN likes (channels in blocks),
 *              with reorders before and after it where that is not ours
 *
 * Operands of other dtypes or with gaps are copied to contiguous f32 first.
 */
#include "kernels/conv.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/conv_depthwise.h"
#include "kernels/conv_layout.h"

typedef enum { ROUTE_GEMM, ROUTE_ONEDNN, ROUTE_NAIVE, ROUTE_DEPTHWISE, ROUTE_SCATTER } Route;

/* What a plan was made for. */
typedef struct {
  ConvGeometry g;
  int64_t x[CONV_DIMS], w[CONV_DIMS], y[CONV_DIMS], xs[CONV_DIMS], ws[CONV_DIMS], ys[CONV_DIMS];
  bool bias, w_fixed;
  int threads;
} Key;

struct ConvPlan {
  Key key;
  Route route;
  OnednnPrim *conv, *x_in, *w_in, *y_out; /* reorders are NULL where the layout is ours */
  size_t x_bytes, w_bytes, y_bytes;       /* of the reordered operands */
  void *packed;                           /* reordered weights, or contiguous f32 ones */
  bool is_packed;
};

void conv_plan_free(ConvPlan *p) {
  if (!p) return;
  onednn_prim_free(p->conv);
  onednn_prim_free(p->x_in);
  onednn_prim_free(p->w_in);
  onednn_prim_free(p->y_out);
  free(p->packed);
  free(p);
}

/* ---- planning --------------------------------------------------------------- */

enum { ANY_X = 1, ANY_W = 2, ANY_Y = 4 }; /* operands whose layout oneDNN may choose */

static Status plan_onednn(ConvPlan *p, const ConvGeometry *g, const Operand *x, const Operand *w, const Operand *y,
                          unsigned any) {
  OnednnDesc ours[4] = {0}, desc[4] = {0}; /* x, w, y, bias */
  int64_t right[3], one = 1;
  Status s;
  TRY_GOTO(done, operand_desc(x, false, &ours[0]));
  TRY_GOTO(done, weights_desc(g, w, false, &ours[1]));
  TRY_GOTO(done, operand_desc(y, false, &ours[2]));
  TRY_GOTO(done, operand_desc(x, any & ANY_X, &desc[0]));
  TRY_GOTO(done, weights_desc(g, w, any & ANY_W, &desc[1]));
  TRY_GOTO(done, operand_desc(y, any & ANY_Y, &desc[2]));
  if (p->key.bias) TRY_GOTO(done, onednn_desc(&desc[3], DT_F32, 1, &y->v.size[1], &one));
  right_padding(g, x->v.size, w->v.size, y->v.size, right);
  OnednnConv c = {.kind = g->transposed ? ONEDNN_DECONV : ONEDNN_CONV,
                  .src = &desc[0],
                  .weights = &desc[1],
                  .dst = &desc[2],
                  .bias = p->key.bias ? &desc[3] : NULL,
                  .nd = g->nd,
                  .stride = g->stride,
                  .dilation = g->dilation,
                  .pad_left = g->pad,
                  .pad_right = right};
  TRY_GOTO(done, onednn_conv_new(&c, &p->conv));
  if (!p->conv) goto done; /* OK, but the caller finds no primitive */
  TRY_GOTO(done, reorder_for(p->conv, DNNL_ARG_SRC, &ours[0], false, &p->x_bytes, &p->x_in));
  TRY_GOTO(done, reorder_for(p->conv, DNNL_ARG_WEIGHTS, &ours[1], false, &p->w_bytes, &p->w_in));
  TRY_GOTO(done, reorder_for(p->conv, DNNL_ARG_DST, &ours[2], true, &p->y_bytes, &p->y_out));
done:
  for (int i = 0; i < 4; i++) {
    onednn_desc_free(&ours[i]);
    onednn_desc_free(&desc[i]);
  }
  return s;
}

static bool is_pointwise(const ConvGeometry *g, const int64_t *w) {
  for (int d = 0; d < g->nd; d++) {
    if (w[d + 2] != 1 || g->stride[d] != 1 || g->pad[d] != 0) return false;
  }
  return true;
}

enum { MANY_PIXELS = 400 }; /* of an image; with fewer, packed weights are worth their reorders */
enum { FEW_TAPS = 25 };     /* of a depthwise window; with more, oneDNN's loops win over their reorders */

static bool windows_apart(const ConvGeometry *g, const int64_t *w) {
  for (int d = 0; d < g->nd; d++) {
    if ((w[d + 2] - 1) * g->dilation[d] >= g->stride[d]) return false;
  }
  return true;
}

static Route choose_route(const ConvGeometry *g, const Operand *x, const Operand *w, const Operand *y,
                          bool w_fixed) {
  bool plain = operand_is_contiguous(x) && operand_is_contiguous(w) && operand_is_contiguous(y) && g->nd <= 2;
  if (g->transposed) return plain && g->groups == 1 && windows_apart(g, w->v.size) ? ROUTE_SCATTER : ROUTE_ONEDNN;
  int64_t taps = 1;
  for (int d = 0; d < g->nd; d++) taps *= w->v.size[d + 2];
  if (plain && g->groups > 1 && w->v.size[1] == 1 && taps <= FEW_TAPS) return ROUTE_DEPTHWISE;
  if (plain && g->groups == 1 && is_pointwise(g, w->v.size)) {
    int64_t pixels = 1;
    for (int d = 0; d < g->nd; d++) pixels *= x->v.size[d + 2];
    return w_fixed && pixels < MANY_PIXELS ? ROUTE_ONEDNN : ROUTE_GEMM;
  }
  return ROUTE_ONEDNN;
}

static Status plan_new(const Key *key, const Operand *x, const Operand *w, const Operand *y, ConvPlan **out) {
  ConvPlan *p;
  TRY_NEW(p, calloc(1, sizeof *p));
  p->key = *key;
  p->route = choose_route(&key->g, x, w, y, key->w_fixed);
  Status s = OK;
  if (p->route == ROUTE_ONEDNN) {
    s = plan_onednn(p, &key->g, x, w, y, ANY_X | ANY_W | ANY_Y);
    if (!s && !p->conv) p->route = ROUTE_NAIVE;
  }
  if (s) {
    conv_plan_free(p);
    return s;
  }
  *out = p;
  return OK;
}

/* ---- running ---------------------------------------------------------------- */

/* The weights in the form that the route wants; kept in the plan if they are fixed. */
static Status weights_read(Kern *k, ConvPlan *p, const Operand *w, bool keep, void **data) {
  if (p->is_packed) return *data = p->packed, OK;
  TRY(operand_read(k, w, data));
  TRY(reorder_run(k, p->w_in, p->w_bytes, data));
  size_t bytes = p->w_in ? p->w_bytes : (size_t)view_numel(w->v) * sizeof(float);
  if (!keep || *data == w->v.data) return OK;
  TRY_NEW(p->packed, memory_alloc(bytes));
  memcpy(p->packed, *data, bytes);
  p->is_packed = true;
  return OK;
}

static Status run_onednn(Kern *k, ConvPlan *p, void *x, void *w, void *bias, void *y) {
  void *result = y;
  TRY(reorder_run(k, p->x_in, p->x_bytes, &x));
  if (p->y_out) TRY_NEW(result, kern_scratch(k, p->y_bytes));
  TRY(onednn_prim_run(k, p->conv, (void *[]){x, w, result, bias}));
  if (p->y_out) TRY(onednn_prim_run(k, p->y_out, (void *[]){result, y}));
  return OK;
}

static void fill_rows(float *y, const float *bias, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t i = 0; i < width; i++) y[r * width + i] = bias[r];
  }
}

/* y (oc, hw) = w (oc, ic) * x (ic, hw), image by image. */
static Status run_gemm(const Key *key, const float *x, const float *w, const float *bias, float *y) {
  int64_t n = key->x[0], ic = key->x[1], oc = key->y[1], hw = 1;
  for (int d = 0; d < key->g.nd; d++) hw *= key->x[d + 2];
  for (; n > 0; n--, x += ic * hw, y += oc * hw) {
    if (bias) fill_rows(y, bias, oc, hw);
    TRY(onednn_sgemm(false, false, oc, hw, ic, 1, w, ic, x, hw, bias ? 1 : 0, y, hw));
  }
  return OK;
}

typedef struct {
  const ConvSizes *c;
  const float *columns, *bias;
  float *y;
} Scatter;

/* Planes [begin, end) of y: the bias, then column (o, kh, kw) element (h, w) at
 * (h*stride - pad + kh*dilation, ...). */
static void scatter_planes(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Scatter *s = arg;
  const ConvSizes *c = s->c;
  int64_t area = c->k[1] * c->k[2], small = c->small[1] * c->small[2], wide = c->big[2];
  for (int64_t o = begin; o < end; o++) {
    float *y = s->y + o * c->big[1] * wide, zero = 0;
    fill_rows(y, s->bias ? s->bias + o : &zero, 1, c->big[1] * wide);
    for (int64_t e = 0; e < area; e++) {
      const float *from = s->columns + (o * area + e) * small;
      int64_t left = e % c->k[2] * c->dilation[2] - c->pad[2];
      for (int64_t h = 0; h < c->small[1]; h++, from += c->small[2]) {
        int64_t at = h * c->stride[1] + e / c->k[2] * c->dilation[1] - c->pad[1];
        if (at < 0 || at >= c->big[1]) continue;
        int64_t i = left < 0 ? (-left + c->stride[2] - 1) / c->stride[2] : 0;
        float *to = y + at * wide + left;
        for (; i < c->small[2] && left + i * c->stride[2] < wide; i++) to[i * c->stride[2]] += from[i];
      }
    }
  }
}

/* columns (oc*k, hw) = w (ic, oc*k)^T * x (ic, hw), image by image, then scattered. */
static Status run_scatter(Kern *k, const ConvSizes *c, const float *x, const float *w, const float *bias,
                          float *y) {
  int64_t hw = c->small[1] * c->small[2], rows = c->oc * c->k[1] * c->k[2];
  float *columns;
  TRY_NEW(columns, kern_scratch(k, (size_t)(rows * hw) * sizeof *columns));
  for (int64_t n = 0; n < c->n; n++, x += c->ic * hw, y += c->oc * c->big[1] * c->big[2]) {
    TRY(onednn_sgemm(true, false, rows, hw, c->ic, 1, w, rows, x, hw, 0, columns, hw));
    parallel_for(k->threads, c->oc, 1, scatter_planes, &(Scatter){c, columns, bias, y});
  }
  return OK;
}

static Status run_route(Kern *k, ConvPlan *p, void *x, void *w, void *bias, void *y) {
  const Key *key = &p->key;
  if (p->route == ROUTE_GEMM) return run_gemm(key, x, w, bias, y);
  if (p->route == ROUTE_ONEDNN) return run_onednn(k, p, x, w, bias, y);
  ConvSizes c = conv_sizes(&key->g, (View){.size = key->x}, (View){.size = key->w}, (View){.size = key->y});
  return p->route == ROUTE_SCATTER ? run_scatter(k, &c, x, w, bias, y) : conv_depthwise(k, &c, x, w, bias, y);
}

static void key_set(int64_t *to, const int64_t *from, int n) { memcpy(to, from, (size_t)n * sizeof *to); }

static Status forward_f32(Kern *k, const ConvGeometry *g, View x, View w, View bias, View y, ConvPlan **kept,
                          bool w_fixed) {
  Operand xo = operand_of(x), wo = operand_of(w), yo = operand_of(y);
  Key key;
  memset(&key, 0, sizeof key); /* padding, too: keys are compared as bytes */
  key.g.nd = g->nd;
  key.g.transposed = g->transposed;
  key.g.groups = g->groups;
  key_set(key.g.stride, g->stride, g->nd);
  key_set(key.g.pad, g->pad, g->nd);
  key_set(key.g.dilation, g->dilation, g->nd);
  key.bias = bias.data != NULL;
  key.w_fixed = w_fixed;
  key.threads = k->threads;
  key_set(key.x, x.size, x.ndim), key_set(key.xs, xo.stride, x.ndim);
  key_set(key.w, w.size, w.ndim), key_set(key.ws, wo.stride, w.ndim);
  key_set(key.y, y.size, y.ndim), key_set(key.ys, yo.stride, y.ndim);
  if (*kept && memcmp(&(*kept)->key, &key, sizeof key)) {
    conv_plan_free(*kept);
    *kept = NULL;
  }
  if (!*kept) TRY(plan_new(&key, &xo, &wo, &yo, kept));
  ConvPlan *p = *kept;
  if (!w_fixed) p->is_packed = false, free(p->packed), p->packed = NULL;
  if (p->route == ROUTE_NAIVE) return conv_naive(k, g, x, w, bias, y);

  void *xd, *wd, *bd = NULL, *yd;
  Operand bo = bias.data ? operand_of(bias) : (Operand){0};
  TRY(operand_read(k, &xo, &xd));
  TRY(weights_read(k, p, &wo, w_fixed, &wd));
  if (bias.data) TRY(operand_read(k, &bo, &bd));
  TRY(operand_room(k, &yo, &yd));
  TRY(run_route(k, p, xd, wd, bd, yd));
  operand_store(k, &yo, yd);
  return OK;
}

Status conv_forward(Kern *k, const ConvGeometry *g, View x, View w, View bias, View y, ConvPlan **plan,
                    bool w_fixed) {
  bool float32 = x.dtype == DT_F32 || x.dtype == DT_F16 || x.dtype == DT_BF16;
  if (view_numel(y) == 0) return OK;
  if (!float32 || view_numel(x) == 0 || view_numel(w) == 0) return conv_naive(k, g, x, w, bias, y);
  ConvPlan *own = NULL;
  size_t mark = kern_mark(k);
  Status s = forward_f32(k, g, x, w, bias, y, plan ? plan : &own, plan && w_fixed);
  kern_release(k, mark);
  conv_plan_free(own);
  return s;
}
