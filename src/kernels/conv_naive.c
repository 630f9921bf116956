/* conv_naive.c -- convolutions as the formula says, in double or in wrapping 64-bit
 * integers.  The twin that fast routes are compared with, and the route of f64 and of
 * integers. */
#include <string.h>

#include "kernels/conv.h"
#include "kernels/copy.h"

ConvSizes conv_sizes(const ConvGeometry *g, View x, View w, View y) {
  ConvSizes c = {.n = x.size[0], .groups = g->groups, .ic = x.size[1], .oc = y.size[1]};
  for (int i = 0; i < 3; i++) {
    int d = i - (3 - g->nd); /* spatial dimension, or a leading one that is not there */
    bool there = d >= 0;
    c.big[i] = there ? (g->transposed ? y : x).size[d + 2] : 1;
    c.small[i] = there ? (g->transposed ? x : y).size[d + 2] : 1;
    c.k[i] = there ? w.size[d + 2] : 1;
    c.stride[i] = there ? g->stride[d] : 1;
    c.pad[i] = there ? g->pad[d] : 0;
    c.dilation[i] = there ? g->dilation[d] : 1;
  }
  return c;
}

static int64_t volume(const int64_t *s) { return s[0] * s[1] * s[2]; }

typedef struct {
  ConvSizes c;
  bool transposed;
  const void *x, *w, *bias; /* contiguous, of the accumulator's type */
  void *y;
} Job;

/* The offset in the big plane of element k of the window at s; -1 outside. */
static inline int64_t big_offset(const ConvSizes *c, const int64_t *s, const int64_t *k) {
  int64_t at = 0;
  for (int d = 0; d < 3; d++) {
    int64_t i = s[d] * c->stride[d] - c->pad[d] + k[d] * c->dilation[d];
    if (i < 0 || i >= c->big[d]) return -1;
    at = at * c->big[d] + i;
  }
  return at;
}

/* The offset in the small plane of the window whose element k is at b; -1 if there is none. */
static inline int64_t small_offset(const ConvSizes *c, const int64_t *b, const int64_t *k) {
  int64_t at = 0;
  for (int d = 0; d < 3; d++) {
    int64_t i = b[d] + c->pad[d] - k[d] * c->dilation[d];
    if (i < 0 || i % c->stride[d] || i / c->stride[d] >= c->small[d]) return -1;
    at = at * c->small[d] + i / c->stride[d];
  }
  return at;
}

#define FOR3(v, size)                        \
  for (v[0] = 0; v[0] < (size)[0]; v[0]++)   \
    for (v[1] = 0; v[1] < (size)[1]; v[1]++) \
      for (v[2] = 0; v[2] < (size)[2]; v[2]++)

/* T: the accumulator.  Planes [begin, end) of (n, oc). */
#define DEFINE_FORWARD(T, suffix)                                                                          \
  static void forward_##suffix(void *arg, int64_t begin, int64_t end, int worker) {                        \
    (void)worker;                                                                                          \
    const Job *j = arg;                                                                                    \
    const ConvSizes *c = &j->c;                                                                            \
    const int64_t *out = j->transposed ? c->big : c->small, *in = j->transposed ? c->small : c->big;       \
    int64_t icg = c->ic / c->groups, ocg = c->oc / c->groups, nk = volume(c->k), nin = volume(in);         \
    for (int64_t plane = begin; plane < end; plane++) {                                                    \
      int64_t n = plane / c->oc, o = plane % c->oc, first = o / ocg * icg, at[3], k[3];                    \
      T *y = (T *)j->y + plane * volume(out);                                                              \
      FOR3(at, out) {                                                                                      \
        T sum = j->bias ? ((const T *)j->bias)[o] : 0;                                                     \
        for (int64_t i = 0; i < icg; i++) {                                                                \
          const T *x = (const T *)j->x + (n * c->ic + first + i) * nin;                                    \
          const T *w = (const T *)j->w + (j->transposed ? (first + i) * ocg + o % ocg : o * icg + i) * nk; \
          FOR3(k, c->k) {                                                                                  \
            int64_t p = j->transposed ? small_offset(c, at, k) : big_offset(c, at, k);                     \
            if (p >= 0) sum += x[p] * *w;                                                                  \
            w++;                                                                                           \
          }                                                                                                \
        }                                                                                                  \
        *y++ = sum;                                                                                        \
      }                                                                                                    \
    }                                                                                                      \
  }
DEFINE_FORWARD(double, f64)
DEFINE_FORWARD(uint64_t, i64) /* unsigned, because integers wrap */

/* dw, for pairs of channels [begin, end); x is the big one, y (gradients) the small one. */
static void grad_weights(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  const ConvSizes *c = &j->c;
  int64_t big_channels = j->transposed ? c->oc : c->ic, small_channels = j->transposed ? c->ic : c->oc;
  int64_t bg = big_channels / c->groups, sg = small_channels / c->groups, at[3], k[3];
  for (int64_t pair = begin; pair < end; pair++) {
    int64_t s = pair / bg, b = s / sg * bg + pair % bg;
    double *dw = (double *)j->y + pair * volume(c->k);
    FOR3(k, c->k) {
      double sum = 0;
      for (int64_t n = 0; n < c->n; n++) {
        const double *small = (const double *)j->w + (n * small_channels + s) * volume(c->small);
        const double *big = (const double *)j->x + (n * big_channels + b) * volume(c->big);
        FOR3(at, c->small) {
          int64_t p = big_offset(c, at, k);
          if (p >= 0) sum += *small * big[p];
          small++;
        }
      }
      *dw++ = sum;
    }
  }
}

static int64_t numel(View v) {
  int64_t n = 1;
  for (int i = 0; i < v.ndim; i++) n *= v.size[i];
  return n;
}

/* A contiguous copy in the accumulator's type. */
static Status widen(Kern *k, View v, Dtype d, void **out) {
  int64_t stride[MAX_DIMS];
  contiguous_strides(v.ndim, v.size, stride);
  TRY_NEW(*out, kern_scratch(k, (size_t)numel(v) * 8 + 8));
  kernel_copy(k, (View){*out, v.size, stride, v.ndim, d}, v);
  return OK;
}

static void narrow(Kern *k, View to, void *data, Dtype d) {
  int64_t stride[MAX_DIMS];
  contiguous_strides(to.ndim, to.size, stride);
  kernel_copy(k, to, (View){data, to.size, stride, to.ndim, d});
}

static Status naive(Kern *k, const ConvGeometry *g, View x, View w, View bias, View y) {
  bool whole = dtype_is_integral(x.dtype);
  Dtype d = whole ? DT_I64 : DT_F64;
  Job job = {.c = conv_sizes(g, x, w, y), .transposed = g->transposed};
  void *xs, *ws, *bs = NULL;
  TRY(widen(k, x, d, &xs));
  TRY(widen(k, w, d, &ws));
  if (bias.data) TRY(widen(k, bias, d, &bs));
  job.x = xs;
  job.w = ws;
  job.bias = bs;
  TRY_NEW(job.y, kern_scratch(k, (size_t)numel(y) * 8 + 8));
  parallel_for(k->threads, job.c.n * job.c.oc, 1, whole ? forward_i64 : forward_f64, &job);
  narrow(k, y, job.y, d);
  return OK;
}

Status conv_naive(Kern *k, const ConvGeometry *g, View x, View w, View bias, View y) {
  if (numel(y) == 0) return OK;
  size_t mark = kern_mark(k);
  Status s = naive(k, g, x, w, bias, y);
  kern_release(k, mark);
  return s;
}

static Status naive_grad_weights(Kern *k, const ConvGeometry *g, View x, View dy, View dw) {
  Job job = {.c = conv_sizes(g, x, dw, dy), .transposed = g->transposed};
  void *big, *small;
  TRY(widen(k, g->transposed ? dy : x, DT_F64, &big));
  TRY(widen(k, g->transposed ? x : dy, DT_F64, &small));
  job.x = big;
  job.w = small;
  TRY_NEW(job.y, kern_scratch(k, (size_t)numel(dw) * 8 + 8));
  parallel_for(k->threads, dw.size[0] * dw.size[1], 1, grad_weights, &job);
  narrow(k, dw, job.y, DT_F64);
  return OK;
}

Status conv_naive_grad_weights(Kern *k, const ConvGeometry *g, View x, View dy, View dw) {
  if (numel(dw) == 0) return OK;
  size_t mark = kern_mark(k);
  Status s = naive_grad_weights(k, g, x, dy, dw);
  kern_release(k, mark);
  return s;
}
