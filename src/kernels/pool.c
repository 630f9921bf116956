/* pool.c -- see pool.h.
 *
 * Results are made in groups of neighbours, the lanes: a row of the output when x is
 * contiguous along w, all channels of one position when x is channels last.  Each element
 * of the window ("tap") is one loop over the lanes it concerns, so the windows' edges are
 * dealt with per tap and not per element.  Taps that no lane has in the input are not visited:
 * a window costs what it covers, however large it is.
 */
#include "kernels/pool.h"

#include <math.h>
#include <string.h>

#include "kernels/copy.h"

View pool_view(View v, int nd, PoolShape *room) {
  int lead = v.ndim - nd; /* 1 or 2 */
  for (int i = 0; i < POOL_DIMS; i++) room->size[i] = 1, room->stride[i] = 0;
  for (int i = 0; i < v.ndim; i++) {
    int to = i < lead ? i + 2 - lead : i + POOL_DIMS - v.ndim;
    room->size[to] = v.size[i];
    room->stride[to] = v.stride[i];
  }
  return (View){v.data, room->size, room->stride, POOL_DIMS, v.dtype};
}

int64_t pool_span(const PoolWindow *w, bool include_pad, int64_t in, int64_t o, int d) {
  int64_t begin = o * w->stride[d] - w->pad[d], end = begin + w->k[d];
  if (end > in + w->pad[d]) end = in + w->pad[d];
  if (!include_pad && begin < 0) begin = 0;
  if (!include_pad && end > in) end = in;
  return end - begin;
}

/* ---- one job: a pooling of one accumulator type ------------------------------- */

typedef struct Job Job;
struct Job {
  Isa isa;
  const PoolWindow *w;
  bool include_pad, channel_lanes;
  int64_t divisor;
  View x, y, indices;
  int64_t taps[3]; /* max: most that a group of lanes visits; their numbers count in these extents */
  int64_t *deltas; /* max: from a group's first tap to each of its others, in the plane */
  int64_t *spans;  /* avg: pool_span along w */
  char *scratch;   /* per worker: accumulators, then taps */
  size_t scratch_bytes;
  void (*lanes)(const Job *j, int64_t n, int64_t c, const int64_t *o, void *acc, int32_t *tap);
};

static int64_t numel(View v) {
  int64_t n = 1;
  for (int i = 0; i < v.ndim; i++) n *= v.size[i];
  return n;
}

/* Lane positions [first, last) whose element at kw lies inside of x. */
static void inside(const PoolWindow *w, int64_t kw, int64_t in, int64_t out, int64_t *first, int64_t *last) {
  int64_t at = kw * w->dilation[2] - w->pad[2];
  *first = at < 0 ? (-at + w->stride[2] - 1) / w->stride[2] : 0;
  *last = at < in ? (in - at + w->stride[2] - 1) / w->stride[2] : 0;
  if (*last > out) *last = out;
  if (*first > *last) *first = *last;
}

/* A tap of the window at output o: lanes [first, last), the first one's input. */
typedef struct {
  int64_t first, last, offset, step;
} Tap;

/* False if the tap is outside for all lanes. */
static bool tap_at(const Job *j, int64_t n, int64_t c, const int64_t *o, const int64_t *k, Tap *t) {
  const PoolWindow *w = j->w;
  const int64_t *in = j->x.size + 2, *s = j->x.stride;
  int64_t at[3];
  for (int d = 0; d < 3; d++) {
    at[d] = o[d] * w->stride[d] - w->pad[d] + k[d] * w->dilation[d];
    if (d == 2 && !j->channel_lanes) break;
    if (at[d] < 0 || at[d] >= in[d]) return false;
  }
  if (j->channel_lanes) {
    *t = (Tap){0, j->x.size[1], n * s[0] + at[0] * s[2] + at[1] * s[3] + at[2] * s[4], s[1]};
    return true;
  }
  inside(w, k[2], in[2], j->y.size[4], &t->first, &t->last);
  int64_t x = t->first * w->stride[2] - w->pad[2] + k[2] * w->dilation[2];
  t->offset = n * s[0] + c * s[1] + at[0] * s[2] + at[1] * s[3] + x * s[4];
  t->step = w->stride[2] * s[4];
  return t->first < t->last;
}

/* Taps [begin, end) along each dimension: those that lie in x for some lane of the group. */
typedef struct {
  int64_t begin[3], end[3];
} Taps;

static int64_t ceil_div(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : 0; }

static Taps taps_of(const Job *j, const int64_t *o) {
  const PoolWindow *w = j->w;
  const int64_t *in = j->x.size + 2;
  Taps t;
  for (int d = 0; d < 3; d++) { /* where the first and the last lane's windows begin */
    int64_t low = o[d] * w->stride[d] - w->pad[d], high = low;
    if (d == 2 && !j->channel_lanes) low = -w->pad[2], high = low + (j->y.size[4] - 1) * w->stride[2];
    t.begin[d] = ceil_div(-high, w->dilation[d]);
    t.end[d] = ceil_div(in[d] - low, w->dilation[d]);
    if (t.end[d] > w->k[d]) t.end[d] = w->k[d];
    if (t.begin[d] > t.end[d]) t.begin[d] = t.end[d];
  }
  return t;
}

#define FOR_TAPS(k, t)                                   \
  for (k[0] = (t).begin[0]; k[0] < (t).end[0]; k[0]++)   \
    for (k[1] = (t).begin[1]; k[1] < (t).end[1]; k[1]++) \
      for (k[2] = (t).begin[2]; k[2] < (t).end[2]; k[2]++)

static int32_t tap_number(const Job *j, const Taps *t, const int64_t *k) {
  return (int32_t)(((k[0] - t->begin[0]) * j->taps[1] + k[1] - t->begin[1]) * j->taps[2] + k[2] - t->begin[2]);
}

/* A lane without any tap in x gets the place where its window begins. */
static void store_indices(const Job *j, int64_t n, int64_t c, const int64_t *o, const Taps *t, const int32_t *tap,
                          int64_t lanes) {
  const int64_t *s = j->indices.stride, *in = j->x.size + 2;
  const PoolWindow *w = j->w;
  int64_t *to = (int64_t *)j->indices.data + n * s[0] + c * s[1] + o[0] * s[2] + o[1] * s[3] + o[2] * s[4];
  int64_t step = j->channel_lanes ? s[1] : s[4], next = j->channel_lanes ? 0 : w->stride[2], window = 0, first = 0;
  for (int d = 0; d < 3; d++) {
    int64_t at = o[d] * w->stride[d] - w->pad[d];
    window = window * in[d] + at;
    first = first * in[d] + at + t->begin[d] * w->dilation[d];
  }
  for (int64_t i = 0; i < lanes; i++) to[i * step] = i * next + (tap[i] < 0 ? window : first + j->deltas[tap[i]]);
}

static int64_t row_span(const Job *j, const int64_t *o) {
  const int64_t *in = j->x.size + 2;
  return pool_span(j->w, j->include_pad, in[0], o[0], 0) * pool_span(j->w, j->include_pad, in[1], o[1], 1);
}

/* U: T, or the unsigned type of the same width, in which sums wrap. */
#define DEFINE_LANES(T, U, t, LOWEST)                                                                              \
  static void max_##t(const Job *j, int64_t n, int64_t c, const int64_t *o, void *room, int32_t *tap) {            \
    int64_t lanes = j->channel_lanes ? j->x.size[1] : j->y.size[4], k[3];                                          \
    const Taps taps = taps_of(j, o);                                                                               \
    T *acc = room;                                                                                                 \
    for (int64_t i = 0; i < lanes; i++) acc[i] = LOWEST;                                                           \
    if (j->indices.data) memset(tap, 0xff, (size_t)lanes * sizeof *tap);                                           \
    FOR_TAPS(k, taps) {                                                                                            \
      Tap p;                                                                                                       \
      if (tap_at(j, n, c, o, k, &p)) {                                                                             \
        const T *x = (const T *)j->x.data + p.offset;                                                              \
        int64_t m = p.last - p.first;                                                                              \
        if (j->indices.data)                                                                                       \
          SIMD_CALL(j->isa, pool_argmax_##t)(acc + p.first, tap + p.first, m, x, p.step, tap_number(j, &taps, k)); \
        else SIMD_CALL(j->isa, pool_max_##t)(acc + p.first, m, x, p.step);                                         \
      }                                                                                                            \
    }                                                                                                              \
    if (j->indices.data) store_indices(j, n, c, o, &taps, tap, lanes);                                             \
    const int64_t *s = j->y.stride;                                                                                \
    T *y = (T *)j->y.data + n * s[0] + c * s[1] + o[0] * s[2] + o[1] * s[3] + o[2] * s[4];                         \
    for (int64_t i = 0; i < lanes; i++) y[i * (j->channel_lanes ? s[1] : s[4])] = acc[i];                          \
  }                                                                                                                \
  static void avg_##t(const Job *j, int64_t n, int64_t c, const int64_t *o, void *room, int32_t *tap) {            \
    (void)tap;                                                                                                     \
    int64_t lanes = j->channel_lanes ? j->x.size[1] : j->y.size[4], k[3];                                          \
    const Taps taps = taps_of(j, o);                                                                               \
    T *acc = room;                                                                                                 \
    memset(acc, 0, (size_t)lanes * sizeof *acc);                                                                   \
    FOR_TAPS(k, taps) {                                                                                            \
      Tap p;                                                                                                       \
      if (!tap_at(j, n, c, o, k, &p)) continue;                                                                    \
      SIMD_CALL(j->isa, pool_add_##t)(acc + p.first, p.last - p.first, (const T *)j->x.data + p.offset, p.step);   \
    }                                                                                                              \
    const int64_t *s = j->y.stride;                                                                                \
    T *y = (T *)j->y.data + n * s[0] + c * s[1] + o[0] * s[2] + o[1] * s[3] + o[2] * s[4];                         \
    if (j->channel_lanes || j->divisor) {                                                                          \
      T by = (T)(j->divisor ? j->divisor : row_span(j, o) * j->spans[o[2]]);                                       \
      for (int64_t i = 0; i < lanes; i++)                                                                          \
        y[i * (j->channel_lanes ? s[1] : s[4])] = by == -1 ? (T)(0 - (U)acc[i]) : by != 0 ? acc[i] / by : 0;       \
    } else {                                                                                                       \
      int64_t rows = row_span(j, o);                                                                               \
      for (int64_t i = 0; i < lanes; i++) { /* a window may lie in the padding altogether */                       \
        T by = (T)(rows * j->spans[i]);                                                                            \
        y[i * s[4]] = by == -1 ? (T)(0 - (U)acc[i]) : by != 0 ? acc[i] / by : 0;                                   \
      }                                                                                                            \
    }                                                                                                              \
  }                                                                                                                \
  /* One result of an adaptive pooling. */                                                                         \
  static void adaptive_avg_##t(const Job *j, int64_t n, int64_t c, const int64_t *o, void *room, int32_t *tap) {   \
    (void)room, (void)tap;                                                                                         \
    const int64_t *in = j->x.size + 2, *out = j->y.size + 2, *s = j->x.stride, *ys = j->y.stride;                  \
    int64_t b[3], e[3];                                                                                            \
    for (int d = 0; d < 3; d++)                                                                                    \
      b[d] = pool_adaptive_begin(o[d], in[d], out[d]), e[d] = pool_adaptive_end(o[d], in[d], out[d]);              \
    const T *x = (const T *)j->x.data + n * s[0] + c * s[1];                                                       \
    U sum = 0;                                                                                                     \
    if (out[1] == 1 && out[2] == 1 && s[3] == in[2] * s[4]) { /* whole planes: one run */                          \
      for (int64_t d = b[0]; d < e[0]; d++)                                                                        \
        sum += (U)SIMD_CALL(j->isa, pool_sum_##t)(x + d * s[2], in[1] * in[2], s[4]);                              \
    } else {                                                                                                       \
      for (int64_t d = b[0]; d < e[0]; d++) {                                                                      \
        for (int64_t h = b[1]; h < e[1]; h++) {                                                                    \
          sum += (U)SIMD_CALL(j->isa, pool_sum_##t)(x + d * s[2] + h * s[3] + b[2] * s[4], e[2] - b[2], s[4]);     \
        }                                                                                                          \
      }                                                                                                            \
    }                                                                                                              \
    T by = (T)((e[0] - b[0]) * (e[1] - b[1]) * (e[2] - b[2]));                                                     \
    ((T *)j->y.data)[n * ys[0] + c * ys[1] + o[0] * ys[2] + o[1] * ys[3] + o[2] * ys[4]] = (T)sum / by;            \
  }                                                                                                                \
  static void adaptive_max_##t(const Job *j, int64_t n, int64_t c, const int64_t *o, void *room, int32_t *tap) {   \
    (void)room, (void)tap;                                                                                         \
    const int64_t *in = j->x.size + 2, *out = j->y.size + 2, *s = j->x.stride, *ys = j->y.stride,                  \
                  *is = j->indices.stride;                                                                         \
    int64_t b[3], e[3], best = -1;                                                                                 \
    for (int d = 0; d < 3; d++)                                                                                    \
      b[d] = pool_adaptive_begin(o[d], in[d], out[d]), e[d] = pool_adaptive_end(o[d], in[d], out[d]);              \
    T max = LOWEST;                                                                                                \
    for (int64_t z = b[0]; z < e[0]; z++) {                                                                        \
      for (int64_t h = b[1]; h < e[1]; h++) {                                                                      \
        for (int64_t w = b[2]; w < e[2]; w++) {                                                                    \
          T v = ((const T *)j->x.data)[n * s[0] + c * s[1] + z * s[2] + h * s[3] + w * s[4]];                      \
          if (best < 0 || v > max || v != v) max = v, best = (z * in[1] + h) * in[2] + w;                          \
        }                                                                                                          \
      }                                                                                                            \
    }                                                                                                              \
    ((T *)j->y.data)[n * ys[0] + c * ys[1] + o[0] * ys[2] + o[1] * ys[3] + o[2] * ys[4]] = max;                    \
    if (j->indices.data)                                                                                           \
      ((int64_t *)j->indices.data)[n * is[0] + c * is[1] + o[0] * is[2] + o[1] * is[3] + o[2] * is[4]] = best;     \
  }
DEFINE_LANES(float, float, f32, -INFINITY)
DEFINE_LANES(double, double, f64, -(double)INFINITY)
DEFINE_LANES(int64_t, uint64_t, i64, INT64_MIN)

/* Groups [begin, end) of lanes: (n, c, od, oh) with a row each, (n, od, oh, ow) with all
 * channels each. */
static void run_lanes(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *j = arg;
  char *room = j->scratch + (size_t)worker * j->scratch_bytes;
  const int64_t *out = j->y.size + 2;
  int64_t channels = j->channel_lanes ? 1 : j->y.size[1], width = j->channel_lanes ? out[2] : 1;
  for (int64_t i = begin; i < end; i++) {
    int64_t o[3] = {i / width / out[1] % out[0], i / width % out[1], i % width},
            plane = i / width / out[1] / out[0];
    j->lanes(j, plane / channels, plane % channels, o, room, (int32_t *)(void *)(room + j->scratch_bytes / 3 * 2));
  }
}

/* Single results [begin, end). */
static void run_points(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  const int64_t *out = j->y.size + 2;
  for (int64_t i = begin; i < end; i++) {
    int64_t o[3] = {i / out[2] / out[1] % out[0], i / out[2] % out[1], i % out[2]},
            plane = i / out[2] / out[1] / out[0];
    j->lanes(j, plane / j->y.size[1], plane % j->y.size[1], o, NULL, NULL);
  }
}

typedef enum { MAX, AVG, ADAPTIVE_MAX, ADAPTIVE_AVG } Kind;

static Status make_tables(Kern *k, Kind kind, Job *j) {
  const PoolWindow *w = j->w;
  const int64_t *in = j->x.size + 2;
  if (kind == AVG) {
    TRY_NEW(j->spans, kern_scratch(k, (size_t)j->y.size[4] * sizeof *j->spans));
    for (int64_t i = 0; i < j->y.size[4]; i++) j->spans[i] = pool_span(w, j->include_pad, in[2], i, 2);
  } else if (j->indices.data) {
    Taps row = taps_of(j, (int64_t[3]){0});
    for (int d = 0; d < 3; d++) {
      int64_t most = ceil_div(in[d], w->dilation[d]);
      j->taps[d] = d == 2 && !j->channel_lanes ? row.end[2] - row.begin[2] : most < w->k[d] ? most : w->k[d];
    }
    int64_t taps = j->taps[0] * j->taps[1] * j->taps[2];
    if (taps > INT32_MAX)
      return fail(ERR_FAIL, "a window covers %lld elements, which is too many", (long long)taps);
    TRY_NEW(j->deltas, kern_scratch(k, (size_t)taps * sizeof *j->deltas));
    for (int64_t t = 0; t < taps; t++) {
      int64_t a = t / j->taps[2] / j->taps[1] * w->dilation[0], b = t / j->taps[2] % j->taps[1] * w->dilation[1],
              c = t % j->taps[2] * w->dilation[2];
      j->deltas[t] = (a * in[1] + b) * in[2] + c;
    }
  }
  return OK;
}

static Status run_job(Kern *k, Kind kind, Job *j) {
  static void (*const table[4][3])(const Job *, int64_t, int64_t, const int64_t *, void *, int32_t *) = {
      [MAX] = {max_f32, max_f64, max_i64},
      [AVG] = {avg_f32, avg_f64, avg_i64},
      [ADAPTIVE_MAX] = {adaptive_max_f32, adaptive_max_f64, adaptive_max_i64},
      [ADAPTIVE_AVG] = {adaptive_avg_f32, adaptive_avg_f64, adaptive_avg_i64},
  };
  j->isa = k->isa;
  j->lanes = table[kind][j->x.dtype == DT_F32 ? 0 : j->x.dtype == DT_F64 ? 1 : 2];
  int64_t results = numel(j->y), cost = numel(j->x) / results + 1; /* reads per result, about */
  if (kind == ADAPTIVE_MAX || kind == ADAPTIVE_AVG) {
    parallel_for(k->threads, results, 1 + 32768 / cost, run_points, j);
    return OK;
  }
  j->channel_lanes = j->x.stride[1] == 1 && j->x.size[1] > 1 && j->x.stride[4] != 1;
  int64_t lanes = j->channel_lanes ? j->x.size[1] : j->y.size[4];
  j->scratch_bytes = (((size_t)lanes * 4 + 63) & ~(size_t)63) * 3; /* 8 bytes and 4 for each lane */
  TRY_NEW(j->scratch, kern_scratch(k, j->scratch_bytes * (size_t)k->threads));
  TRY(make_tables(k, kind, j));
  parallel_for(k->threads, results / lanes, 1 + 16384 / (lanes * cost), run_lanes, j);
  return OK;
}

/* Copies to f32 or i64 where there are no loops of x's dtype. */
static Status pool(Kern *k, Kind kind, Job *j) {
  if (numel(j->y) == 0) return OK;
  size_t mark = kern_mark(k);
  View y = j->y;
  Dtype d = y.dtype == DT_F16 || y.dtype == DT_BF16 ? DT_F32 : dtype_is_integral(y.dtype) ? DT_I64 : y.dtype;
  int64_t xs[POOL_DIMS], ys[POOL_DIMS];
  Status s = OK;
  if (d != y.dtype) {
    contiguous_strides(POOL_DIMS, j->x.size, xs);
    contiguous_strides(POOL_DIMS, y.size, ys);
    void *x_wide = kern_scratch(k, (size_t)numel(j->x) * dtype_size(d) + 8),
         *y_wide = kern_scratch(k, (size_t)numel(y) * dtype_size(d));
    if (!x_wide || !y_wide) TRY_GOTO(end, fail_oom());
    View x = {x_wide, j->x.size, xs, POOL_DIMS, d};
    kernel_copy(k, x, j->x);
    j->x = x;
    j->y = (View){y_wide, y.size, ys, POOL_DIMS, d};
  }
  TRY_GOTO(end, run_job(k, kind, j));
  if (d != y.dtype) kernel_copy(k, y, j->y);
end:
  kern_release(k, mark);
  return s;
}

Status pool_max(Kern *k, const PoolWindow *w, View x, View y, View indices) {
  return pool(k, MAX, &(Job){.w = w, .x = x, .y = y, .indices = indices});
}

Status pool_avg(Kern *k, const PoolWindow *w, bool include_pad, int64_t divisor, View x, View y) {
  return pool(k, AVG, &(Job){.w = w, .include_pad = include_pad, .divisor = divisor, .x = x, .y = y});
}

/* Sizes that divide give windows that are all alike; but a row of one result has no lanes. */
Status pool_adaptive_avg(Kern *k, View x, View y) {
  PoolWindow w = {.dilation = {1, 1, 1}};
  bool alike = y.size[4] > 4 || (x.stride[1] == 1 && x.stride[4] != 1);
  for (int d = 0; d < 3; d++) {
    if (y.size[d + 2] == 0) return OK;
    alike = alike && x.size[d + 2] % y.size[d + 2] == 0;
    w.k[d] = w.stride[d] = x.size[d + 2] / y.size[d + 2];
  }
  return alike ? pool_avg(k, &w, true, 0, x, y) : pool(k, ADAPTIVE_AVG, &(Job){.x = x, .y = y});
}

Status pool_adaptive_max(Kern *k, View x, View y, View indices) {
  return pool(k, ADAPTIVE_MAX, &(Job){.x = x, .y = y, .indices = indices});
}
