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
  const void *rois;
  void *x, *y; /* one of them is read, the other written */
  bool back;   /* x gets the gradient for y's */
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
#define DEFINE_ROI(T, t, CEIL)                                                                                    \
  static bool border_##t(T v, int64_t size, int64_t *low, int64_t *high, T *share) {                              \
    if (!(v >= -1 && v <= (T)size)) return false;                                                                 \
    if (v < 0) v = 0;                                                                                             \
    *low = (int64_t)v;                                                                                            \
    if (*low >= size - 1) *low = *high = size - 1, *share = 0;                                                    \
    else *high = *low + 1, *share = v - (T)*low;                                                                  \
    return true;                                                                                                  \
  }                                                                                                               \
  static T sample_##t(const T *x, int64_t h, int64_t w, T v, T u) {                                               \
    int64_t y0, y1, x0, x1;                                                                                       \
    T ly, lx;                                                                                                     \
    if (!border_##t(v, h, &y0, &y1, &ly) || !border_##t(u, w, &x0, &x1, &lx)) return 0;                           \
    return (1 - ly) * (1 - lx) * x[y0 * w + x0] + (1 - ly) * lx * x[y0 * w + x1] +                                \
           ly * (1 - lx) * x[y1 * w + x0] + ly * lx * x[y1 * w + x1];                                             \
  }                                                                                                               \
  static void spread_##t(T *x, int64_t h, int64_t w, T v, T u, T g) {                                             \
    int64_t y0, y1, x0, x1;                                                                                       \
    T ly, lx;                                                                                                     \
    if (!border_##t(v, h, &y0, &y1, &ly) || !border_##t(u, w, &x0, &x1, &lx)) return;                             \
    x[y0 * w + x0] += (1 - ly) * (1 - lx) * g;                                                                    \
    x[y0 * w + x1] += (1 - ly) * lx * g;                                                                          \
    x[y1 * w + x0] += ly * (1 - lx) * g;                                                                          \
    x[y1 * w + x1] += ly * lx * g;                                                                                \
  }                                                                                                               \
  /* Per cell: as many as asked for, or one per pixel; none of a region that has no size. */                      \
  static int64_t samples_##t(int64_t sampling, T pixels) {                                                        \
    if (sampling > 0) return sampling;                                                                            \
    return pixels > 0 && pixels < (T)INT32_MAX ? (int64_t)CEIL(pixels) : 0;                                       \
  }                                                                                                               \
  /* One region and channel. */                                                                                   \
  static void roi_##t(const RoiAlign *r, T *x, const T *roi, T *y, bool back) {                                   \
    T scale = (T)r->scale, shift = r->aligned ? (T)0.5 : 0;                                                       \
    T u0 = roi[1] * scale - shift, v0 = roi[2] * scale - shift;                                                   \
    T width = roi[3] * scale - shift - u0, height = roi[4] * scale - shift - v0;                                  \
    if (!r->aligned) width = width > 1 ? width : 1, height = height > 1 ? height : 1;                             \
    T dv = height / (T)r->ph, du = width / (T)r->pw;                                                              \
    int64_t ny = samples_##t(r->sampling, height / (T)r->ph), nx = samples_##t(r->sampling, width / (T)r->pw);    \
    T count = ny > 0 && nx > 0 ? (T)(ny * nx) : 1;                                                                \
    for (int64_t i = 0; i < r->ph * r->pw; i++) {                                                                 \
      T sum = 0, v = v0 + (T)(i / r->pw) * dv, u = u0 + (T)(i % r->pw) * du;                                      \
      int64_t a0, a1, b0, b1;                                                                                     \
      inside((double)v, (double)(dv / (T)ny), ny, r->size[2], &a0, &a1);                                          \
      inside((double)u, (double)(du / (T)nx), nx, r->size[3], &b0, &b1);                                          \
      for (int64_t a = a0; a < a1; a++) {                                                                         \
        for (int64_t b = b0; b < b1; b++) {                                                                       \
          T sv = v + ((T)a + (T)0.5) * dv / (T)ny, su = u + ((T)b + (T)0.5) * du / (T)nx;                         \
          if (back) spread_##t(x, r->size[2], r->size[3], sv, su, y[i] / count);                                  \
          else sum += sample_##t(x, r->size[2], r->size[3], sv, su);                                              \
        }                                                                                                         \
      }                                                                                                           \
      if (!back) y[i] = sum / count;                                                                              \
    }                                                                                                             \
  }                                                                                                               \
  static void run_roi_##t(void *arg, int64_t begin, int64_t end, int worker) {                                    \
    (void)worker;                                                                                                 \
    const RoiJob *j = arg;                                                                                        \
    const RoiAlign *r = j->r;                                                                                     \
    int64_t channels = r->size[1], plane = r->size[2] * r->size[3], cells = r->ph * r->pw;                        \
    for (int64_t i = begin; i < end; i++) { /* regions and channels, or, back, channels: all that write to one */ \
      int64_t first = j->back ? 0 : i / channels, last = j->back ? r->rois : first + 1, c = i % channels;         \
      for (int64_t k = first; k < last; k++) {                                                                    \
        const T *roi = (const T *)j->rois + k * 5;                                                                \
        T *x = (T *)j->x + ((int64_t)roi[0] * channels + c) * plane;                                              \
        roi_##t(r, x, roi, (T *)j->y + (k * channels + c) * cells, j->back);                                      \
      }                                                                                                           \
    }                                                                                                             \
  }                                                                                                               \
  static Status check_images_##t(const RoiAlign *r, const T *rois) {                                              \
    for (int64_t i = 0; i < r->rois; i++) {                                                                       \
      if (rois[i * 5] >= 0 && rois[i * 5] < (T)r->size[0]) continue;                                              \
      return fail(ERR_FAIL, "region %lld is of image %g, and there are %lld", (long long)i, (double)rois[i * 5],  \
                  (long long)r->size[0]);                                                                         \
    }                                                                                                             \
    return OK;                                                                                                    \
  }
DEFINE_ROI(float, f32, ceilf)
DEFINE_ROI(double, f64, ceil)

Status kernel_roi_align(Kern *k, Dtype d, const RoiAlign *r, const void *x, const void *rois, void *y) {
  RoiJob job = {r, rois, (void *)(uintptr_t)x, y, false};
  TRY(d == DT_F64 ? check_images_f64(r, rois) : check_images_f32(r, rois));
  parallel_for(k->threads, r->rois * r->size[1], 1 + 4096 / (r->ph * r->pw),
               d == DT_F64 ? run_roi_f64 : run_roi_f32, &job);
  return OK;
}

Status kernel_roi_align_grad(Kern *k, Dtype d, const RoiAlign *r, const void *gy, const void *rois, void *gx) {
  RoiJob job = {r, rois, gx, (void *)(uintptr_t)gy, true};
  TRY(d == DT_F64 ? check_images_f64(r, rois) : check_images_f32(r, rois));
  parallel_for(k->threads, r->size[1], 1, d == DT_F64 ? run_roi_f64 : run_roi_f32, &job);
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

/* ---- and back --------------------------------------------------------------------------- */

typedef struct {
  const DeformColumns *g;
  const void *x, *offset, *mask, *gcolumns;
  void *gx, *goffset, *gmask;
} DeformBack;

/* To the image: a task is a channel, so that no two write to one.  To offsets and mask: a task is a tap of a group,
 * which sums over the group's channels.  A pixel outside is 0 wherever the tap lies. */
#define DEFINE_DEFORM_BACK(T, t, FLOOR)                                                                        \
  static void put_##t(T *x, int64_t h, int64_t w, int64_t i, int64_t j, T g) {                                 \
    if (i >= 0 && i < h && j >= 0 && j < w) x[i * w + j] += g;                                                 \
  }                                                                                                            \
  /* Where tap `tap` of position o lies. */                                                                    \
  static void locate_##t(const DeformColumns *g, const T *offset, int64_t part, int64_t tap, int64_t o, T *v,  \
                         T *u) {                                                                               \
    const T *dv = offset + part * 2 * g->oh * g->ow, *du = dv + g->oh * g->ow;                                 \
    *v = (T)(o / g->ow * g->stride[0] - g->pad[0] + tap / g->kw * g->dilation[0]) + dv[o];                     \
    *u = (T)(o % g->ow * g->stride[1] - g->pad[1] + tap % g->kw * g->dilation[1]) + du[o];                     \
  }                                                                                                            \
  static void image_back_##t(void *arg, int64_t begin, int64_t end, int worker) {                              \
    (void)worker;                                                                                              \
    const DeformBack *job = arg;                                                                               \
    const DeformColumns *g = job->g;                                                                           \
    int64_t taps = g->kh * g->kw, places = g->oh * g->ow;                                                      \
    for (int64_t row = begin * taps; row < end * taps; row++) {                                                \
      int64_t channel = row / taps, tap = row % taps, part = channel / (g->c / g->groups) * taps + tap;        \
      const T *mask = job->mask ? (const T *)job->mask + part * places : NULL;                                 \
      T *gx = (T *)job->gx + channel * g->h * g->w, v, u;                                                      \
      for (int64_t o = 0; o < places; o++) {                                                                   \
        locate_##t(g, job->offset, part, tap, o, &v, &u);                                                      \
        if (!(v > -1 && v < (T)g->h && u > -1 && u < (T)g->w)) continue;                                       \
        int64_t i = (int64_t)FLOOR(v), j = (int64_t)FLOOR(u);                                                  \
        T a = v - (T)i, b = u - (T)j, d = ((const T *)job->gcolumns)[row * places + o] * (mask ? mask[o] : 1); \
        put_##t(gx, g->h, g->w, i, j, (1 - a) * (1 - b) * d);                                                  \
        put_##t(gx, g->h, g->w, i, j + 1, (1 - a) * b * d);                                                    \
        put_##t(gx, g->h, g->w, i + 1, j, a * (1 - b) * d);                                                    \
        put_##t(gx, g->h, g->w, i + 1, j + 1, a * b * d);                                                      \
      }                                                                                                        \
    }                                                                                                          \
  }                                                                                                            \
  static void place_back_##t(const DeformBack *job, int64_t part, int64_t o) {                                 \
    const DeformColumns *g = job->g;                                                                           \
    int64_t taps = g->kh * g->kw, places = g->oh * g->ow, tap = part % taps, each = g->c / g->groups,          \
            first = part / taps * each;                                                                        \
    T v, u, sum[3] = {0};                                                                                      \
    locate_##t(g, job->offset, part, tap, o, &v, &u);                                                          \
    bool near = v >= -1 && v <= (T)g->h && u >= -1 && u <= (T)g->w;                                            \
    int64_t i = near ? (int64_t)FLOOR(v) : 0, j = near ? (int64_t)FLOOR(u) : 0;                                \
    T a = v - (T)i, b = u - (T)j;                                                                              \
    for (int64_t c = first; near && c < first + each; c++) {                                                   \
      const T *x = (const T *)job->x + c * g->h * g->w;                                                        \
      T d = ((const T *)job->gcolumns)[(c * taps + tap) * places + o];                                         \
      T p00 = pixel_##t(x, g->h, g->w, i, j), p01 = pixel_##t(x, g->h, g->w, i, j + 1),                        \
        p10 = pixel_##t(x, g->h, g->w, i + 1, j), p11 = pixel_##t(x, g->h, g->w, i + 1, j + 1);                \
      sum[0] += d * ((1 - b) * (p10 - p00) + b * (p11 - p01));                                                 \
      sum[1] += d * ((1 - a) * (p01 - p00) + a * (p11 - p10));                                                 \
      sum[2] += d * moved_##t(x, g->h, g->w, v, u);                                                            \
    }                                                                                                          \
    T m = job->mask ? ((const T *)job->mask)[part * places + o] : 1;                                           \
    ((T *)job->goffset)[part * 2 * places + o] = m * sum[0];                                                   \
    ((T *)job->goffset)[(part * 2 + 1) * places + o] = m * sum[1];                                             \
    if (job->gmask) ((T *)job->gmask)[part * places + o] = sum[2];                                             \
  }                                                                                                            \
  static void offset_back_##t(void *arg, int64_t begin, int64_t end, int worker) {                             \
    (void)worker;                                                                                              \
    const DeformBack *job = arg;                                                                               \
    for (int64_t part = begin; part < end; part++)                                                             \
      for (int64_t o = 0; o < job->g->oh * job->g->ow; o++) place_back_##t(job, part, o);                      \
  }
DEFINE_DEFORM_BACK(float, f32, floorf)
DEFINE_DEFORM_BACK(double, f64, floor)

void kernel_deform_columns_grad(Kern *k, Dtype d, const DeformColumns *g, const void *x, const void *offset,
                                const void *mask, const void *gcolumns, void *gx, void *goffset, void *gmask) {
  DeformBack job = {g, x, offset, mask, gcolumns, gx, goffset, gmask};
  bool wide = d == DT_F64;
  parallel_for(k->threads, g->c, 1, wide ? image_back_f64 : image_back_f32, &job);
  parallel_for(k->threads, g->groups * g->kh * g->kw, 1, wide ? offset_back_f64 : offset_back_f32, &job);
}
