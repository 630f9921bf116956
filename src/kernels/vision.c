/* vision.c -- see vision.h.  Everything once for f32 and f64: T, named t. */
#include "kernels/vision.h"

#include <math.h>
#include <string.h>

/* ---- boxes ------------------------------------------------------------------------ */

#define DEFINE_NMS(T, t)                                                                                   \
  static T shared_##t(const T *a, const T *b) {                                                            \
    T x1 = a[0] > b[0] ? a[0] : b[0], y1 = a[1] > b[1] ? a[1] : b[1];                                      \
    T x2 = a[2] < b[2] ? a[2] : b[2], y2 = a[3] < b[3] ? a[3] : b[3];                                      \
    return x2 > x1 && y2 > y1 ? (x2 - x1) * (y2 - y1) : 0;                                                 \
  }                                                                                                        \
  static int64_t nms_##t(const T *boxes, const int64_t *order, int64_t n, double threshold, uint8_t *gone, \
                         int64_t *keep) {                                                                  \
    int64_t count = 0;                                                                                     \
    memset(gone, 0, (size_t)n);                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                                      \
      if (gone[i]) continue;                                                                               \
      const T *a = boxes + order[i] * 4;                                                                   \
      T area = (a[2] - a[0]) * (a[3] - a[1]);                                                              \
      keep[count++] = order[i];                                                                            \
      for (int64_t j = i + 1; j < n; j++) {                                                                \
        const T *b = boxes + order[j] * 4;                                                                 \
        T inner = shared_##t(a, b), other = (b[2] - b[0]) * (b[3] - b[1]);                                 \
        if ((double)(inner / (area + other - inner)) > threshold) gone[j] = 1;                             \
      }                                                                                                    \
    }                                                                                                      \
    return count;                                                                                          \
  }
DEFINE_NMS(float, f32)
DEFINE_NMS(double, f64)

int64_t kernel_nms(Dtype d, const void *boxes, const int64_t *order, int64_t n, double threshold, uint8_t *gone,
                   int64_t *keep) {
  return d == DT_F64 ? nms_f64(boxes, order, n, threshold, gone, keep)
                     : nms_f32(boxes, order, n, threshold, gone, keep);
}

/* ---- means over regions ------------------------------------------------------------- */

typedef struct {
  const RoiAlign *r;
  const void *x, *rois;
  void *y;
} RoiJob;

/* Samples [*first, *end) of n, `step` apart from `from` on, that may lie in [-1, size]: the others are 0,
 * and a region may be any number of times larger than its image.  Coordinates are rounded to f32 at worst. */
static void inside(double from, double step, int64_t n, int64_t size, int64_t *first, int64_t *end) {
  *first = 0, *end = n;
  double slack = 3 + (fabs(from) + (double)n * step) * 0x1p-21 / step;
  if (!(step > 0 && isfinite(slack))) return;
  int64_t low = f64_to_i64((-1 - from) / step - slack), high = f64_to_i64(((double)size - from) / step + slack);
  *first = low < 0 ? 0 : low > n ? n : low;
  *end = high < *first ? *first : high > n ? n : high;
}

/* border_t: the pixel before coordinate v and the share of the one behind it; a coordinate up to
 * one pixel outside counts as the border. */
#define DEFINE_ROI(T, t, CEIL)                                                                                   \
  static bool border_##t(T v, int64_t size, int64_t *low, int64_t *high, T *share) {                             \
    if (!(v >= -1 && v <= (T)size)) return false;                                                                \
    if (v < 0) v = 0;                                                                                            \
    *low = (int64_t)v;                                                                                           \
    if (*low >= size - 1) *low = *high = size - 1, *share = 0;                                                   \
    else *high = *low + 1, *share = v - (T)*low;                                                                 \
    return true;                                                                                                 \
  }                                                                                                              \
  static T sample_##t(const T *x, int64_t h, int64_t w, T v, T u) {                                              \
    int64_t y0, y1, x0, x1;                                                                                      \
    T ly, lx;                                                                                                    \
    if (!border_##t(v, h, &y0, &y1, &ly) || !border_##t(u, w, &x0, &x1, &lx)) return 0;                          \
    return (1 - ly) * (1 - lx) * x[y0 * w + x0] + (1 - ly) * lx * x[y0 * w + x1] +                               \
           ly * (1 - lx) * x[y1 * w + x0] + ly * lx * x[y1 * w + x1];                                            \
  }                                                                                                              \
  /* Per cell: as many as asked for, or one per pixel; none of a region that has no size. */                     \
  static int64_t samples_##t(int64_t sampling, T pixels) {                                                       \
    if (sampling > 0) return sampling;                                                                           \
    return pixels > 0 && pixels < (T)INT32_MAX ? (int64_t)CEIL(pixels) : 0;                                      \
  }                                                                                                              \
  /* One region and channel. */                                                                                  \
  static void roi_##t(const RoiAlign *r, const T *x, const T *roi, T *y) {                                       \
    T scale = (T)r->scale, shift = r->aligned ? (T)0.5 : 0;                                                      \
    T u0 = roi[1] * scale - shift, v0 = roi[2] * scale - shift;                                                  \
    T width = roi[3] * scale - shift - u0, height = roi[4] * scale - shift - v0;                                 \
    if (!r->aligned) width = width > 1 ? width : 1, height = height > 1 ? height : 1;                            \
    T dv = height / (T)r->ph, du = width / (T)r->pw;                                                             \
    int64_t ny = samples_##t(r->sampling, height / (T)r->ph), nx = samples_##t(r->sampling, width / (T)r->pw);   \
    T count = ny > 0 && nx > 0 ? (T)(ny * nx) : 1;                                                               \
    for (int64_t i = 0; i < r->ph * r->pw; i++) {                                                                \
      T sum = 0, v = v0 + (T)(i / r->pw) * dv, u = u0 + (T)(i % r->pw) * du;                                     \
      int64_t a0, a1, b0, b1;                                                                                    \
      inside((double)v, (double)(dv / (T)ny), ny, r->size[2], &a0, &a1);                                         \
      inside((double)u, (double)(du / (T)nx), nx, r->size[3], &b0, &b1);                                         \
      for (int64_t a = a0; a < a1; a++) {                                                                        \
        for (int64_t b = b0; b < b1; b++) {                                                                      \
          sum += sample_##t(x, r->size[2], r->size[3], v + ((T)a + (T)0.5) * dv / (T)ny,                         \
                            u + ((T)b + (T)0.5) * du / (T)nx);                                                   \
        }                                                                                                        \
      }                                                                                                          \
      y[i] = sum / count;                                                                                        \
    }                                                                                                            \
  }                                                                                                              \
  static void run_roi_##t(void *arg, int64_t begin, int64_t end, int worker) {                                   \
    (void)worker;                                                                                                \
    const RoiJob *j = arg;                                                                                       \
    const RoiAlign *r = j->r;                                                                                    \
    int64_t channels = r->size[1], plane = r->size[2] * r->size[3], cells = r->ph * r->pw;                       \
    for (int64_t i = begin; i < end; i++) {                                                                      \
      const T *roi = (const T *)j->rois + i / channels * 5;                                                      \
      const T *x = (const T *)j->x + ((int64_t)roi[0] * channels + i % channels) * plane;                        \
      roi_##t(r, x, roi, (T *)j->y + i * cells);                                                                 \
    }                                                                                                            \
  }                                                                                                              \
  static Status check_images_##t(const RoiAlign *r, const T *rois) {                                             \
    for (int64_t i = 0; i < r->rois; i++) {                                                                      \
      if (rois[i * 5] >= 0 && rois[i * 5] < (T)r->size[0]) continue;                                             \
      return fail(ERR_FAIL, "region %lld is of image %g, and there are %lld", (long long)i, (double)rois[i * 5], \
                  (long long)r->size[0]);                                                                        \
    }                                                                                                            \
    return OK;                                                                                                   \
  }
DEFINE_ROI(float, f32, ceilf)
DEFINE_ROI(double, f64, ceil)

Status kernel_roi_align(Kern *k, Dtype d, const RoiAlign *r, const void *x, const void *rois, void *y) {
  RoiJob job = {r, x, rois, y};
  TRY(d == DT_F64 ? check_images_f64(r, rois) : check_images_f32(r, rois));
  parallel_for(k->threads, r->rois * r->size[1], 1 + 4096 / (r->ph * r->pw),
               d == DT_F64 ? run_roi_f64 : run_roi_f32, &job);
  return OK;
}

/* ---- columns of moved taps ------------------------------------------------------------ */

typedef struct {
  const DeformColumns *g;
  const void *x, *offset, *mask;
  void *columns;
} DeformJob;

/* Pixels outside are 0, and so is everything from a pixel beyond the border on. */
#define DEFINE_DEFORM(T, t, FLOOR)                                                                              \
  static T pixel_##t(const T *x, int64_t h, int64_t w, int64_t i, int64_t j) {                                  \
    return i >= 0 && i < h && j >= 0 && j < w ? x[i * w + j] : 0;                                               \
  }                                                                                                             \
  static T moved_##t(const T *x, int64_t h, int64_t w, T v, T u) {                                              \
    if (!(v > -1 && v < (T)h && u > -1 && u < (T)w)) return 0;                                                  \
    int64_t i = (int64_t)FLOOR(v), j = (int64_t)FLOOR(u);                                                       \
    T a = v - (T)i, b = u - (T)j;                                                                               \
    return (1 - a) * (1 - b) * pixel_##t(x, h, w, i, j) + (1 - a) * b * pixel_##t(x, h, w, i, j + 1) +          \
           a * (1 - b) * pixel_##t(x, h, w, i + 1, j) + a * b * pixel_##t(x, h, w, i + 1, j + 1);               \
  }                                                                                                             \
  static void run_deform_##t(void *arg, int64_t begin, int64_t end, int worker) {                               \
    (void)worker;                                                                                               \
    const DeformJob *job = arg;                                                                                 \
    const DeformColumns *g = job->g;                                                                            \
    int64_t taps = g->kh * g->kw, places = g->oh * g->ow;                                                       \
    for (int64_t row = begin; row < end; row++) { /* a channel and a tap */                                     \
      int64_t channel = row / taps, tap = row % taps, part = channel / (g->c / g->groups) * taps + tap;         \
      const T *x = (const T *)job->x + channel * g->h * g->w, *dv = (const T *)job->offset + part * 2 * places, \
              *du = dv + places, *mask = job->mask ? (const T *)job->mask + part * places : NULL;               \
      T *to = (T *)job->columns + row * places;                                                                 \
      for (int64_t o = 0; o < places; o++) {                                                                    \
        T v = (T)(o / g->ow * g->stride[0] - g->pad[0] + tap / g->kw * g->dilation[0]) + dv[o],                 \
          u = (T)(o % g->ow * g->stride[1] - g->pad[1] + tap % g->kw * g->dilation[1]) + du[o];                 \
        to[o] = moved_##t(x, g->h, g->w, v, u) * (mask ? mask[o] : 1);                                          \
      }                                                                                                         \
    }                                                                                                           \
  }
DEFINE_DEFORM(float, f32, floorf)
DEFINE_DEFORM(double, f64, floor)

void kernel_deform_columns(Kern *k, Dtype d, const DeformColumns *g, const void *x, const void *offset,
                           const void *mask, void *columns) {
  DeformJob job = {g, x, offset, mask, columns};
  parallel_for(k->threads, g->c * g->kh * g->kw, 1 + 4096 / (g->oh * g->ow),
               d == DT_F64 ? run_deform_f64 : run_deform_f32, &job);
}
