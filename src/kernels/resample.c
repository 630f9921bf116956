/* resample.c -- see resample.h.
 *
 * Row by row of the output: the input rows that matter are blended over the outer axes
 * into one row (long vector loops), which is then resampled along w: elements, or pixels
 * of all channels where the images are channels last.
 */
#include "kernels/resample.h"

#include <string.h>

#include "kernels/copy.h"

enum { DIMS = 5 };

typedef struct {
  Isa isa;
  const ResampleAxis *axis;
  const void *weight; /* axis[2]'s, as the accumulator's type */
  View x, y;
  bool channel_lanes;
  char *scratch;
  size_t row_bytes; /* per worker */
} Job;

static int64_t numel(View v) {
  int64_t n = 1;
  for (int i = 0; i < v.ndim; i++) n *= v.size[i];
  return n;
}

/* ---- nearest: elements are only moved ----------------------------------------- */

static void pick(char *to, int64_t to_step, const char *from, int64_t from_step, const int32_t *at, int64_t n,
                 size_t item) {
#define PICK(T)                   \
  for (int64_t i = 0; i < n; i++) \
  ((T *)(void *)to)[i * to_step] = ((const T *)(const void *)from)[at[i] * from_step]
  switch (item) {
    case 1: PICK(uint8_t); break;
    case 2: PICK(uint16_t); break;
    case 4: PICK(uint32_t); break;
    case 8: PICK(uint64_t); break;
    default:
      for (int64_t i = 0; i < n; i++)
        memcpy(to + i * to_step * (int64_t)item, from + at[i] * from_step * (int64_t)item, item);
  }
#undef PICK
}

/* Rows [begin, end) of (n, c, od, oh), or (n, od, oh, ow) with all channels each. */
static void move_rows(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  const ResampleAxis *a = j->axis;
  int64_t item = (int64_t)dtype_size(j->y.dtype), channels = j->channel_lanes ? 1 : j->y.size[1],
          width = j->channel_lanes ? a[2].out : 1;
  const int64_t *xs = j->x.stride, *ys = j->y.stride;
  for (int64_t i = begin; i < end; i++) {
    int64_t ow = i % width, oh = i / width % a[1].out, od = i / width / a[1].out % a[0].out,
            plane = i / width / a[1].out / a[0].out;
    int64_t n = plane / channels, c = plane % channels;
    const char *from = (const char *)j->x.data +
                       (n * xs[0] + c * xs[1] + a[0].at[od] * xs[2] + a[1].at[oh] * xs[3]) * item;
    char *to = (char *)j->y.data + (n * ys[0] + c * ys[1] + od * ys[2] + oh * ys[3]) * item;
    if (j->channel_lanes) {
      memcpy(to + ow * ys[4] * item, from + a[2].at[ow] * xs[4] * item, (size_t)(j->y.size[1] * item));
    } else if (i > begin && oh > 0 && a[1].at[oh] == a[1].at[oh - 1] && ys[4] == 1) {
      memcpy(to, to - ys[3] * item, (size_t)(a[2].out * item)); /* the row above is the same */
    } else {
      pick(to, ys[4], from, xs[4], a[2].at, a[2].out, (size_t)item);
    }
  }
}

/* ---- blending ------------------------------------------------------------------ */

/* The same rows, with weights. */
#define DEFINE_BLEND(T, t)                                                                                         \
  static void blend_rows_##t(void *arg, int64_t begin, int64_t end, int worker) {                                  \
    const Job *j = arg;                                                                                            \
    const ResampleAxis *a = j->axis;                                                                               \
    const int64_t *xs = j->x.stride, *ys = j->y.stride;                                                            \
    T *row = (T *)(void *)(j->scratch + (size_t)worker * j->row_bytes), *result = row + a[2].in;                   \
    for (int64_t i = begin; i < end; i++) {                                                                        \
      int64_t oh = i % a[1].out, od = i / a[1].out % a[0].out, plane = i / a[1].out / a[0].out;                    \
      int64_t n = plane / j->y.size[1], c = plane % j->y.size[1];                                                  \
      const T *x = (const T *)j->x.data + n * xs[0] + c * xs[1];                                                   \
      for (int p = 0; p < a[0].taps; p++) {                                                                        \
        for (int q = 0; q < a[1].taps; q++) {                                                                      \
          int64_t d = p * a[0].out + od, h = q * a[1].out + oh;                                                    \
          SIMD_CALL(j->isa, resample_row_##t)                                                                      \
          (row, x + a[0].at[d] * xs[2] + a[1].at[h] * xs[3], a[2].in, xs[4], (T)(a[0].weight[d] * a[1].weight[h]), \
           p + q == 0);                                                                                            \
        }                                                                                                          \
      }                                                                                                            \
      T *y = (T *)j->y.data + n * ys[0] + c * ys[1] + od * ys[2] + oh * ys[3], *to = ys[4] == 1 ? y : result;      \
      SIMD_CALL(j->isa, resample_taps_##t)(to, row, a[2].at, j->weight, a[2].taps, a[2].out);                      \
      for (int64_t w = 0; to == result && w < a[2].out; w++) y[w * ys[4]] = result[w];                             \
    }                                                                                                              \
  }                                                                                                                \
  /* Rows [begin, end) of (n, od, oh), pixels of all channels. */                                                  \
  static void blend_pixels_##t(void *arg, int64_t begin, int64_t end, int worker) {                                \
    const Job *j = arg;                                                                                            \
    const ResampleAxis *a = j->axis;                                                                               \
    const int64_t *xs = j->x.stride, *ys = j->y.stride, channels = j->y.size[1];                                   \
    T *row = (T *)(void *)(j->scratch + (size_t)worker * j->row_bytes);                                            \
    for (int64_t i = begin; i < end; i++) {                                                                        \
      int64_t oh = i % a[1].out, od = i / a[1].out % a[0].out, n = i / a[1].out / a[0].out;                        \
      const T *x = (const T *)j->x.data + n * xs[0];                                                               \
      for (int p = 0; p < a[0].taps; p++) {                                                                        \
        for (int q = 0; q < a[1].taps; q++) {                                                                      \
          int64_t d = p * a[0].out + od, h = q * a[1].out + oh;                                                    \
          const T *from = x + a[0].at[d] * xs[2] + a[1].at[h] * xs[3];                                             \
          SIMD_CALL(j->isa, resample_row_##t)                                                                      \
          (row, from, a[2].in * channels, 1, (T)(a[0].weight[d] * a[1].weight[h]), p + q == 0);                    \
        }                                                                                                          \
      }                                                                                                            \
      T *y = (T *)j->y.data + n * ys[0] + od * ys[2] + oh * ys[3];                                                 \
      SIMD_CALL(j->isa, resample_pixels_##t)(y, row, a[2].at, j->weight, a[2].taps, a[2].out, channels);           \
    }                                                                                                              \
  }                                                                                                                \
  /* Planes [begin, end) of the gradient: x is dx, contiguous and zero; y is dy, contiguous. */                    \
  static void grad_planes_##t(void *arg, int64_t begin, int64_t end, int worker) {                                 \
    (void)worker;                                                                                                  \
    const Job *j = arg;                                                                                            \
    const ResampleAxis *a = j->axis;                                                                               \
    int64_t in = a[0].in * a[1].in * a[2].in, out = a[0].out * a[1].out * a[2].out;                                \
    int taps = a[0].taps * a[1].taps * a[2].taps;                                                                  \
    for (int64_t i = begin * out; i < end * out; i++) {                                                            \
      int64_t ow = i % a[2].out, oh = i / a[2].out % a[1].out, od = i / a[2].out / a[1].out % a[0].out;            \
      T g = ((const T *)j->y.data)[i], *dx = (T *)j->x.data + i / out * in;                                        \
      for (int p = 0; p < taps; p++) {                                                                             \
        int64_t w = p % a[2].taps * a[2].out + ow, h = p / a[2].taps % a[1].taps * a[1].out + oh;                  \
        int64_t d = p / a[2].taps / a[1].taps * a[0].out + od;                                                     \
        dx[(a[0].at[d] * a[1].in + a[1].at[h]) * a[2].in + a[2].at[w]] += g *                                      \
                                                                          (T)(a[0].weight[d] * a[1].weight[h] *    \
                                                                              a[2].weight[w]);                     \
      }                                                                                                            \
    }                                                                                                              \
  }
DEFINE_BLEND(float, f32)
DEFINE_BLEND(double, f64)

/* axis[2]'s weights as T. */
static Status narrow_weights(Kern *k, const ResampleAxis *a, Dtype d, const void **out) {
  *out = a->weight;
  if (d == DT_F64) return OK;
  int64_t n = a->taps * a->out;
  float *w;
  TRY_NEW(w, kern_scratch(k, (size_t)n * sizeof *w));
  for (int64_t i = 0; i < n; i++) w[i] = (float)a->weight[i];
  *out = w;
  return OK;
}

static Status blend(Kern *k, Job *j) {
  bool wide = j->x.dtype == DT_F64;
  size_t item = wide ? 8 : 4;
  TRY(narrow_weights(k, &j->axis[2], j->x.dtype, &j->weight));
  int64_t lanes = j->channel_lanes ? j->axis[2].in * j->y.size[1] : j->axis[2].in + j->axis[2].out;
  j->row_bytes = ((size_t)lanes * item + 63) & ~(size_t)63;
  TRY_NEW(j->scratch, kern_scratch(k, j->row_bytes * (size_t)k->threads));
  int64_t rows = numel(j->y) / j->axis[2].out / (j->channel_lanes ? j->y.size[1] : 1);
  parallel_for(k->threads, rows, 1 + 8192 / lanes,
               j->channel_lanes ? (wide ? blend_pixels_f64 : blend_pixels_f32)
               : wide           ? blend_rows_f64
                                : blend_rows_f32,
               j);
  return OK;
}

/* Room for v as contiguous d, in scratch memory. */
static Status room_for(Kern *k, View v, Dtype d, int64_t *stride, View *out) {
  contiguous_strides(v.ndim, v.size, stride);
  *out = (View){NULL, v.size, stride, v.ndim, d};
  TRY_NEW(out->data, kern_scratch(k, (size_t)numel(v) * dtype_size(d) + 8));
  return OK;
}

static Status resample_any(Kern *k, Job *j) {
  bool nearest = j->axis[0].taps * j->axis[1].taps * j->axis[2].taps == 1;
  View y = j->y;
  int64_t xs[DIMS], ys[DIMS];
  int64_t channels = y.size[1];
  j->channel_lanes = channels > 1 && j->x.stride[1] == 1 && j->x.stride[4] == channels && y.stride[1] == 1 &&
                     y.stride[4] == channels;
  if (nearest) {
    int64_t lanes = j->channel_lanes ? y.size[1] : j->axis[2].out;
    parallel_for(k->threads, numel(y) / lanes, 1 + 16384 / lanes, move_rows, j);
    return OK;
  }
  if (y.dtype == DT_F32 || y.dtype == DT_F64) return blend(k, j);
  View x;
  TRY(room_for(k, j->x, DT_F32, xs, &x));
  TRY(room_for(k, y, DT_F32, ys, &j->y));
  kernel_copy(k, x, j->x);
  j->x = x;
  j->channel_lanes = false;
  TRY(blend(k, j));
  kernel_copy(k, y, j->y);
  return OK;
}

Status resample(Kern *k, const ResampleAxis axis[3], View x, View y) {
  if (numel(y) == 0) return OK;
  size_t mark = kern_mark(k);
  Status s = resample_any(k, &(Job){.isa = k->isa, .axis = axis, .x = x, .y = y});
  kern_release(k, mark);
  return s;
}

static Status grad_any(Kern *k, const ResampleAxis *axis, View dy, View dx) {
  Dtype d = dx.dtype == DT_F64 ? DT_F64 : DT_F32;
  int64_t xs[DIMS], ys[DIMS];
  Job j = {.axis = axis};
  TRY(room_for(k, dx, d, xs, &j.x));
  TRY(room_for(k, dy, d, ys, &j.y));
  kernel_copy(k, j.y, dy);
  memset(j.x.data, 0, (size_t)numel(dx) * dtype_size(d));
  parallel_for(k->threads, dx.size[0] * dx.size[1], 1, d == DT_F64 ? grad_planes_f64 : grad_planes_f32, &j);
  kernel_copy(k, dx, j.x);
  return OK;
}

Status resample_grad(Kern *k, const ResampleAxis axis[3], View dy, View dx) {
  if (numel(dx) == 0) return OK;
  size_t mark = kern_mark(k);
  Status s = grad_any(k, axis, dy, dx);
  kern_release(k, mark);
  return s;
}
