/* pool_fractional.c -- max over windows whose places are drawn at random; see pool.h. */
#include <math.h>

#include "kernels/copy.h"
#include "kernels/pool.h"

/* Where window i begins.  In f32 (f64 for f64 images): the truncations decide.  Samples lie in [0, 1); windows of
 * others (nan too) are moved into the image. */
static int64_t begin_of(int64_t i, double sample, int64_t in, int64_t out, int64_t k, bool wide) {
  if (i == out - 1) return in - k;
  if (!(sample >= 0 && sample <= 1)) sample = sample > 1 ? 1 : 0;
  int64_t begin;
  if (wide) {
    double alpha = (double)(in - k) / (double)(out - 1);
    begin = (int64_t)(((double)i + sample) * alpha) - (int64_t)(sample * alpha);
  } else {
    float s = (float)sample, alpha = (float)(in - k) / (float)(out - 1);
    begin = (int64_t)(((float)i + s) * alpha) - (int64_t)(s * alpha);
  }
  return begin < in - k ? begin : in - k;
}

static void pool_plane(const double *x, const double *samples, const int64_t *in, const int64_t *out,
                       const int64_t *k, bool wide, double *y, int64_t *index) {
  for (int64_t o = 0; o < out[0] * out[1]; o++) {
    int64_t h0 = begin_of(o / out[1], samples[1], in[0], out[0], k[0], wide),
            w0 = begin_of(o % out[1], samples[0], in[1], out[1], k[1], wide);
    double best = -INFINITY;
    int64_t at = h0 * in[1] + w0;
    for (int64_t h = h0; h < h0 + k[0]; h++) {
      for (int64_t w = w0; w < w0 + k[1]; w++) {
        double v = x[h * in[1] + w];
        if (v > best || isnan(v)) best = v, at = h * in[1] + w;
      }
    }
    y[o] = best;
    index[o] = at;
  }
}

static Status as_f64(Kern *k, View v, bool copy, int64_t *stride, View *out) {
  int64_t n = 1;
  for (int i = 0; i < v.ndim; i++) n *= v.size[i];
  contiguous_strides(v.ndim, v.size, stride);
  *out = (View){NULL, v.size, stride, v.ndim, DT_F64};
  TRY_NEW(out->data, kern_scratch(k, (size_t)(n + 1) * sizeof(double)));
  if (copy) kernel_copy(k, *out, v);
  return OK;
}

static Status fractional(Kern *k, const int64_t *window, View samples, View x, View y, View indices) {
  int64_t stride[4][POOL_DIMS], planes = x.size[0] * x.size[1], in = x.size[3] * x.size[4],
                                out = y.size[3] * y.size[4];
  View xw, sw, yw, iw = {.size = indices.size, .stride = stride[3], .ndim = indices.ndim, .dtype = DT_I64};
  TRY(as_f64(k, x, true, stride[0], &xw));
  TRY(as_f64(k, samples, true, stride[1], &sw));
  TRY(as_f64(k, y, false, stride[2], &yw));
  contiguous_strides(indices.ndim, indices.size, stride[3]);
  TRY_NEW(iw.data, kern_scratch(k, (size_t)(planes * out + 1) * sizeof(int64_t)));
  for (int64_t p = 0; p < planes; p++) {
    pool_plane((const double *)xw.data + p * in, (const double *)sw.data + p * 2, x.size + 3, y.size + 3, window,
               x.dtype == DT_F64, (double *)yw.data + p * out, (int64_t *)iw.data + p * out);
  }
  kernel_copy(k, y, yw);
  kernel_copy(k, indices, iw);
  return OK;
}

Status pool_fractional_max(Kern *k, const int64_t *window, View samples, View x, View y, View indices) {
  size_t mark = kern_mark(k);
  Status s = fractional(k, window, samples, x, y, indices);
  kern_release(k, mark);
  return s;
}
