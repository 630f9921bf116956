/* fill.c -- see fill.h. */
#include "kernels/fill.h"

#include <math.h>
#include <string.h>

#include "kernels/odometer.h"

enum { GRAIN = 16384 };

/* ---- ranges --------------------------------------------------------------------------- */

typedef struct {
  View out;
  int64_t start_int, step_int;
  double start, end, step, base;
} Ramp;

/* Unsigned, so that ranges wrap as ATen's do. */
#define STORE_INTS(T)                                                                                   \
  for (int64_t i = begin; i < end; i++) {                                                               \
    ((T *)r->out.data)[i * stride] = (T)((uint64_t)r->start_int + (uint64_t)i * (uint64_t)r->step_int); \
  }

static void ramp_ints(void *arg, int64_t begin, int64_t end, int worker) {
  const Ramp *r = arg;
  int64_t stride = r->out.stride[0];
  (void)worker;
  switch (r->out.dtype) {
    case DT_U8: STORE_INTS(uint8_t) break;
    case DT_I8: STORE_INTS(int8_t) break;
    case DT_I16: STORE_INTS(int16_t) break;
    case DT_I32: STORE_INTS(int32_t) break;
    case DT_I64: STORE_INTS(int64_t) break;
    default: /* bool */
      for (int64_t i = begin; i < end; i++) {
        ((uint8_t *)r->out.data)[i * stride] = (uint64_t)r->start_int + (uint64_t)i * (uint64_t)r->step_int != 0;
      }
  }
}

static void store_float(View out, int64_t at, double x) {
  switch (out.dtype) {
    case DT_F16: ((uint16_t *)out.data)[at] = f32_to_f16((float)x); break;
    case DT_BF16: ((uint16_t *)out.data)[at] = f32_to_bf16((float)x); break;
    case DT_F32: ((float *)out.data)[at] = (float)x; break;
    case DT_F64: ((double *)out.data)[at] = x; break;
    case DT_C64: ((float *)out.data)[2 * at] = (float)x, ((float *)out.data)[2 * at + 1] = 0; break;
    case DT_BOOL: ((uint8_t *)out.data)[at] = x != 0; break;
    case DT_U8: ((uint8_t *)out.data)[at] = (uint8_t)f64_to_i64(x); break;
    case DT_I8: ((int8_t *)out.data)[at] = (int8_t)f64_to_i64(x); break;
    case DT_I16: ((int16_t *)out.data)[at] = (int16_t)f64_to_i64(x); break;
    case DT_I32: ((int32_t *)out.data)[at] = (int32_t)f64_to_i64(x); break;
    case DT_I64: ((int64_t *)out.data)[at] = f64_to_i64(x); break;
    default: break;
  }
}

static void ramp_floats(void *arg, int64_t begin, int64_t end, int worker) {
  const Ramp *r = arg;
  (void)worker;
  for (int64_t i = begin; i < end; i++) store_float(r->out, i * r->out.stride[0], r->start + (double)i * r->step);
}

/* From both ends to the middle, so that the last point is exactly `end`. */
static void ramp_points(void *arg, int64_t begin, int64_t end, int worker) {
  const Ramp *r = arg;
  int64_t n = r->out.size[0];
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    double x = i < n / 2 || n == 1 ? r->start + (double)i * r->step : r->end - (double)(n - 1 - i) * r->step;
    store_float(r->out, i * r->out.stride[0], r->base != 0 ? pow(r->base, x) : x);
  }
}

void kernel_arange_int(Kern *k, View out, int64_t start, int64_t step) {
  Ramp r = {.out = out, .start_int = start, .step_int = step};
  parallel_for(k->threads, out.size[0], GRAIN, ramp_ints, &r);
}

void kernel_arange_float(Kern *k, View out, double start, double step) {
  Ramp r = {.out = out, .start = start, .step = step};
  parallel_for(k->threads, out.size[0], GRAIN, ramp_floats, &r);
}

void kernel_linspace(Kern *k, View out, double start, double end, double base) {
  int64_t n = out.size[0];
  Ramp r = {
      .out = out, .start = start, .end = end, .step = n > 1 ? (end - start) / (double)(n - 1) : 0, .base = base};
  parallel_for(k->threads, n, GRAIN, ramp_points, &r);
}

/* ---- one-hot ---------------------------------------------------------------------------- */

void kernel_one_hot(Kern *k, View out, View classes) {
  int64_t n = odometer_count(classes.ndim, classes.size), width = out.size[out.ndim - 1], *to = out.data;
  const int64_t *from = classes.data;
  (void)k;
  if (n * width == 0) return;
  memset(to, 0, (size_t)(n * width) * sizeof *to);
  Odometer o = {.ndim = classes.ndim, .size = classes.size, .views = 1, .stride = {classes.stride}};
  odometer_begin(&o, 0);
  for (int64_t i = 0; i < n; i++, odometer_next(&o)) to[i * width + from[o.offset[0]]] = 1;
}

/* ---- triangles ---------------------------------------------------------------------------- */

typedef struct {
  View out, self;
  int64_t diagonal;
  bool lower;
} Triangle;

static void copy_elements(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n, size_t item) {
  if (n <= 0 || to == from) return;
  if (to_step == 1 && from_step == 1) {
    memcpy(to, from, (size_t)n * item);
    return;
  }
  for (int64_t i = 0; i < n; i++)
    memcpy(to + (size_t)(i * to_step) * item, from + (size_t)(i * from_step) * item, item);
}

static void zero_elements(char *to, int64_t step, int64_t n, size_t item) {
  if (n > 0 && step == 1) memset(to, 0, (size_t)n * item);
  else
    for (int64_t i = 0; i < n; i++) memset(to + (size_t)(i * step) * item, 0, item);
}

static void triangle_rows(void *arg, int64_t begin, int64_t end, int worker) {
  const Triangle *t = arg;
  int outer = t->out.ndim - 1;
  int64_t columns = t->out.size[outer], rows = t->out.size[outer - 1], so = t->out.stride[outer],
          ss = t->self.stride[outer];
  size_t item = dtype_size(t->out.dtype);
  Odometer o = {.ndim = outer, .size = t->out.size, .views = 2, .stride = {t->out.stride, t->self.stride}};
  (void)worker;
  odometer_begin(&o, begin);
  for (int64_t r = begin; r < end; r++, odometer_next(&o)) {
    char *to = (char *)t->out.data + (size_t)o.offset[0] * item;
    const char *from = (const char *)t->self.data + (size_t)o.offset[1] * item;
    int64_t cut = r % rows + t->diagonal + t->lower; /* lower keeps [0, cut), upper [cut, columns) */
    cut = cut < 0 ? 0 : cut > columns ? columns : cut;
    int64_t keep = t->lower ? 0 : cut, kept = t->lower ? cut : columns - cut, zero = t->lower ? cut : 0;
    copy_elements(to + (size_t)(keep * so) * item, so, from + (size_t)(keep * ss) * item, ss, kept, item);
    zero_elements(to + (size_t)(zero * so) * item, so, columns - kept, item);
  }
}

void kernel_triangle(Kern *k, View out, View self, int64_t diagonal, bool lower) {
  int64_t columns = out.size[out.ndim - 1], rows = odometer_count(out.ndim - 1, out.size);
  if (rows == 0 || columns == 0) return;
  int64_t most = out.size[out.ndim - 2] + columns; /* beyond it lies nothing */
  Triangle t = {out, self, diagonal > most ? most : diagonal < -most ? -most : diagonal, lower};
  parallel_for(k->threads, rows, GRAIN / columns + 1, triangle_rows, &t);
}

/* ---- the range of indices -------------------------------------------------------------------- */

void kernel_min_max_i64(View v, int64_t *least, int64_t *most) {
  int outer = v.ndim > 0 ? v.ndim - 1 : 0;
  int64_t inner = v.ndim > 0 ? v.size[outer] : 1, step = v.ndim > 0 ? v.stride[outer] : 0,
          rows = odometer_count(outer, v.size);
  *least = *most = 0;
  if (rows == 0 || inner == 0) return;
  int64_t low = INT64_MAX, high = INT64_MIN;
  Odometer o = {.ndim = outer, .size = v.size, .views = 1, .stride = {v.stride}};
  odometer_begin(&o, 0);
  for (int64_t r = 0; r < rows; r++, odometer_next(&o)) {
    const int64_t *x = (const int64_t *)v.data + o.offset[0];
    for (int64_t i = 0; i < inner; i++) {
      low = x[i * step] < low ? x[i * step] : low;
      high = x[i * step] > high ? x[i * step] : high;
    }
  }
  *least = low, *most = high;
}

bool kernel_all_below(View v, int64_t extent) {
  int outer = v.ndim > 0 ? v.ndim - 1 : 0;
  int64_t inner = v.ndim > 0 ? v.size[outer] : 1, step = v.ndim > 0 ? v.stride[outer] : 0,
          rows = odometer_count(outer, v.size);
  if (inner == 0) return true;
  uint64_t outside = 0; /* its sign bit: some x, or extent - 1 - x, is negative */
  Odometer o = {.ndim = outer, .size = v.size, .views = 1, .stride = {v.stride}};
  odometer_begin(&o, 0);
  for (int64_t r = 0; r < rows; r++, odometer_next(&o)) {
    const uint64_t *x = (const uint64_t *)v.data + o.offset[0], last = (uint64_t)extent - 1;
    if (step == 1) {
      for (int64_t i = 0; i < inner; i++) outside |= x[i] | (last - x[i]);
    } else {
      for (int64_t i = 0; i < inner; i++) outside |= x[i * step] | (last - x[i * step]);
    }
  }
  return !(outside >> 63);
}
