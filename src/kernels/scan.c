/* scan.c -- see scan.h.
 *
 * Rows go to the threads; a row is one loop.  Where rows lie across memory, neighbours
 * are scanned together, COLUMNS at a time, so that every line of memory is read once.
 */
#include "kernels/scan.h"

#include <math.h>
#include <string.h>

#include "kernels/odometer.h"

enum { GRAIN = 8192, COLUMNS = 128 };

/* The rows of up to three views along dim. */
typedef struct {
  View view[3];
  int views, dim, ndim;
  int64_t size[MAX_DIMS], stride[3][MAX_DIMS]; /* without dim */
  int64_t n, rows;
  ScanOp op;
  bool largest;
} Rows;

static Rows rows_of(const View *views, int count, int dim) {
  Rows r = {.views = count, .dim = dim, .n = 1, .rows = 1};
  for (int v = 0; v < count; v++) r.view[v] = views[v];
  for (int d = 0; d < views[0].ndim; d++) {
    if (d == dim) {
      r.n = views[0].size[d];
      continue;
    }
    r.size[r.ndim] = views[0].size[d];
    for (int v = 0; v < count; v++) r.stride[v][r.ndim] = views[v].stride[d];
    r.rows *= views[0].size[d];
    r.ndim++;
  }
  return r;
}

static int64_t step_of(const Rows *r, int view) { return r->view[view].ndim ? r->view[view].stride[r->dim] : 0; }

static Odometer odometer_of(const Rows *r, int64_t begin) {
  Odometer o = {
      .ndim = r->ndim, .size = r->size, .views = r->views, .stride = {r->stride[0], r->stride[1], r->stride[2]}};
  odometer_begin(&o, begin);
  return o;
}

static void for_rows(Kern *k, Rows *r, ParallelFn *fn) {
  if (r->rows == 0 || r->n == 0) return;
  parallel_for(k->threads, r->rows, GRAIN / r->n + 1, fn, r);
}

/* ---- sums ------------------------------------------------------------------------------- */

static double log_add(double a, double b) {
  if (a != a || b != b) return NAN;
  double low = a < b ? a : b, high = a < b ? b : a;
  return isfinite(low) || low != high ? high + log1p(exp(low - high)) : b;
}

#define SAME(x) (x)
#define SCAN_ROW(T, A, LOAD, STORE)                                                                     \
  do {                                                                                                  \
    T *x = (T *)r->view[0].data + o.offset[0];                                                          \
    if (r->op == SCAN_SUM) {                                                                            \
      A sum = 0;                                                                                        \
      for (int64_t i = 0; i < r->n; i++) sum += LOAD(x[i * step]), x[i * step] = (T)STORE(sum);         \
    } else if (r->op == SCAN_PROD) {                                                                    \
      A product = 1;                                                                                    \
      for (int64_t i = 0; i < r->n; i++) product *= LOAD(x[i * step]), x[i * step] = (T)STORE(product); \
    } else {                                                                                            \
      double sum = -INFINITY;                                                                           \
      for (int64_t i = 0; i < r->n; i++)                                                                \
        sum = log_add(sum, (double)LOAD(x[i * step])), x[i * step] = (T)STORE((A)sum);                  \
    }                                                                                                   \
  } while (0)

static void scan_part(void *arg, int64_t begin, int64_t end, int worker) {
  const Rows *r = arg;
  int64_t step = step_of(r, 0);
  Odometer o = odometer_of(r, begin);
  (void)worker;
  for (int64_t row = begin; row < end; row++, odometer_next(&o)) {
    switch (r->view[0].dtype) {
      case DT_F16: SCAN_ROW(uint16_t, float, f16_to_f32, f32_to_f16); break;
      case DT_BF16: SCAN_ROW(uint16_t, float, bf16_to_f32, f32_to_bf16); break;
      case DT_F32: SCAN_ROW(float, double, SAME, SAME); break;
      case DT_F64: SCAN_ROW(double, double, SAME, SAME); break;
      default: SCAN_ROW(uint64_t, uint64_t, SAME, SAME); /* i64, wrapping */
    }
  }
}

/* Rows begin .. end - 1, which lie side by side: their first elements are neighbours. */
#define SCAN_COLUMNS(T, A)                                                \
  do {                                                                    \
    A sum[COLUMNS];                                                       \
    for (int64_t j = 0; j < m; j++) sum[j] = r->op == SCAN_PROD;          \
    for (int64_t i = 0; i < r->n; i++) {                                  \
      T *x = (T *)r->view[0].data + o.offset[0] + i * step;               \
      if (r->op == SCAN_SUM) {                                            \
        for (int64_t j = 0; j < m; j++) sum[j] += x[j], x[j] = (T)sum[j]; \
      } else {                                                            \
        for (int64_t j = 0; j < m; j++) sum[j] *= x[j], x[j] = (T)sum[j]; \
      }                                                                   \
    }                                                                     \
  } while (0)

static void scan_columns_part(void *arg, int64_t begin, int64_t end, int worker) {
  const Rows *r = arg;
  int64_t step = step_of(r, 0), width = r->size[r->ndim - 1];
  (void)worker;
  while (begin < end) {
    Odometer o = odometer_of(r, begin);
    int64_t left = width - begin % width, m = end - begin < COLUMNS ? end - begin : COLUMNS;
    if (m > left) m = left;
    switch (r->view[0].dtype) {
      case DT_F32: SCAN_COLUMNS(float, double); break;
      case DT_F64: SCAN_COLUMNS(double, double); break;
      default: SCAN_COLUMNS(uint64_t, uint64_t);
    }
    begin += m;
  }
}

static bool lie_side_by_side(const Rows *r) {
  Dtype d = r->view[0].dtype;
  bool known = d == DT_F32 || d == DT_F64 || d == DT_I64;
  return known && r->op != SCAN_LOGSUMEXP && r->ndim && r->stride[0][r->ndim - 1] == 1 && r->size[r->ndim - 1] > 1;
}

void kernel_scan(Kern *k, View x, int dim, ScanOp op) {
  Rows r = rows_of(&x, 1, dim);
  r.op = op;
  if (lie_side_by_side(&r)) {
    for_rows(k, &r, scan_columns_part);
    return;
  }
  for_rows(k, &r, scan_part);
}

/* ---- extremes ------------------------------------------------------------------------------ */

#define EXTREME_ROW(T, LOAD)                                               \
  do {                                                                     \
    const T *x = (const T *)r->view[0].data + o.offset[0];                 \
    T *values = (T *)r->view[1].data + o.offset[1];                        \
    int64_t *indices = (int64_t *)r->view[2].data + o.offset[2], best = 0; \
    for (int64_t i = 0; i < r->n; i++) {                                   \
      double_or_int(T) a = LOAD(x[best * s0]), b = LOAD(x[i * s0]);        \
      if (a == a && (b != b || (r->largest ? b >= a : b <= a))) best = i;  \
      values[i * s1] = x[best * s0];                                       \
      indices[i * s2] = best;                                              \
    }                                                                      \
  } while (0)
#define double_or_int(T) __typeof__(_Generic((T)0, uint16_t : 0.f, float : 0.f, double : 0., default : (int64_t)0))

static void extreme_part(void *arg, int64_t begin, int64_t end, int worker) {
  const Rows *r = arg;
  int64_t s0 = step_of(r, 0), s1 = step_of(r, 1), s2 = step_of(r, 2);
  Odometer o = odometer_of(r, begin);
  (void)worker;
  for (int64_t row = begin; row < end; row++, odometer_next(&o)) {
    switch (r->view[0].dtype) {
      case DT_F16: EXTREME_ROW(uint16_t, f16_to_f32); break;
      case DT_BF16: EXTREME_ROW(uint16_t, bf16_to_f32); break;
      case DT_F32: EXTREME_ROW(float, SAME); break;
      case DT_F64: EXTREME_ROW(double, SAME); break;
      case DT_I8: EXTREME_ROW(int8_t, SAME); break;
      case DT_I16: EXTREME_ROW(int16_t, SAME); break;
      case DT_I32: EXTREME_ROW(int32_t, SAME); break;
      case DT_I64: EXTREME_ROW(int64_t, SAME); break;
      default: EXTREME_ROW(uint8_t, SAME);
    }
  }
}

void kernel_running_extreme(Kern *k, View in, int dim, bool largest, View values, View indices) {
  Rows r = rows_of((const View[]){in, values, indices}, 3, dim);
  r.largest = largest;
  for_rows(k, &r, extreme_part);
}
