/* grid.c -- see grid.h.  Positions and weights in f64, sums in the dtype of the image (f16
 * and bf16: copied to f32). */
#include "kernels/grid.h"

#include <math.h>
#include <string.h>

#include "kernels/copy.h"

enum { MAX_TAPS = 16 };

typedef struct {
  GridMode mode;
  GridPadding padding;
  bool align;
  int nd;
  int64_t in[3], x_stride[3], y_stride[3], grid_stride[3]; /* spatial, right-aligned */
  int64_t to[3], out;                                      /* spatial size of y; positions per image */
  View x, grid, y;
} Job;

/* From -1 .. 1 to pixels. */
static double unnormalize(const Job *j, double v, int64_t size) {
  return j->align ? (v + 1) / 2 * (double)(size - 1) : ((v + 1) * (double)size - 1) / 2;
}

/* Mirrored at the edges as often as it takes. */
static double reflect(double v, double low, double high) {
  double span = high - low;
  if (span <= 0) return 0;
  v = fabs(v - low);
  double flips = floor(v / span), rest = v - flips * span;
  return fmod(flips, 2) == 0 ? low + rest : high - rest;
}

/* The position that is read for v: where the padding mode moves it. */
static double place(const Job *j, double v, int64_t size) {
  double last = (double)(size - 1);
  if (j->padding == GRID_ZEROS) return v;
  if (j->padding == GRID_REFLECTION) v = j->align ? reflect(v, 0, last) : reflect(v, -0.5, last + 0.5);
  return v > 0 ? (v < last ? v : last) : 0; /* nan goes to 0 */
}

/* Offset of a pixel in x, -1 outside (also for nan). */
static int64_t pixel(const Job *j, const double *at) {
  int64_t offset = 0;
  for (int d = 3 - j->nd; d < 3; d++) {
    if (!(at[d] >= 0 && at[d] <= (double)(j->in[d] - 1))) return -1;
    offset += (int64_t)at[d] * j->x_stride[d];
  }
  return offset;
}

typedef struct {
  int n;
  int64_t at[MAX_TAPS];
  double weight[MAX_TAPS];
} Taps;

static void cubic_weights(double t, double *w) {
  const double a = -0.75;
  double x[4] = {t + 1, t, 1 - t, 2 - t};
  for (int i = 0; i < 4; i++) {
    w[i] = i == 1 || i == 2 ? ((a + 2) * x[i] - (a + 3)) * x[i] * x[i] + 1
                            : ((a * x[i] - 5 * a) * x[i] + 8 * a) * x[i] - 4 * a;
  }
}

/* The pixels that make the value at v (d, h, w), with their weights. */
static void find_taps(const Job *j, const double *v, Taps *t) {
  double at[3] = {0}, low[3] = {0}, part[3] = {0}, weight[3][4];
  for (int d = 3 - j->nd; d < 3; d++) {
    /* Cubic moves each pixel by itself, the others move the position. */
    double p = unnormalize(j, v[d], j->in[d]);
    if (j->mode != GRID_CUBIC) p = place(j, p, j->in[d]);
    low[d] = j->mode == GRID_NEAREST ? nearbyint(p) : floor(p);
    part[d] = p - low[d];
    if (j->mode == GRID_CUBIC) cubic_weights(part[d], weight[d]);
  }
  if (j->mode == GRID_NEAREST) {
    *t = (Taps){.n = 1, .at = {pixel(j, low)}, .weight = {1}};
    return;
  }
  int per_dim = j->mode == GRID_CUBIC ? 4 : 2;
  t->n = j->mode == GRID_CUBIC ? 16 : 1 << j->nd;
  for (int i = 0; i < t->n; i++) {
    int rest = i;
    t->weight[i] = 1;
    for (int d = 2; d >= 3 - j->nd; d--, rest /= per_dim) {
      int e = rest % per_dim;
      at[d] = j->mode == GRID_CUBIC ? place(j, low[d] - 1 + e, j->in[d]) : low[d] + e;
      t->weight[i] *= j->mode == GRID_CUBIC ? weight[d][e] : e ? part[d] : 1 - part[d];
    }
    t->at[i] = pixel(j, at);
  }
}

/* What position i of (n, out) reads and writes. */
typedef struct {
  Taps taps;        /* those inside only */
  int64_t image, y; /* offsets of channel 0 */
} Position;

static void find_position(const Job *j, int64_t i, Position *p) {
  int64_t n = i / j->out, rest = i % j->out, from = n * j->grid.stride[0], axis = j->grid.stride[j->grid.ndim - 1];
  p->image = n * j->x.stride[0];
  p->y = n * j->y.stride[0];
  for (int d = 2; d >= 0; d--) {
    from += rest % j->to[d] * j->grid_stride[d];
    p->y += rest % j->to[d] * j->y_stride[d];
    rest /= j->to[d];
  }
  double v[3] = {0};
  for (int d = 0; d < j->nd; d++) { /* x comes first */
    int64_t at = from + d * axis;
    v[2 - d] = j->grid.dtype == DT_F64 ? ((const double *)j->grid.data)[at]
                                       : (double)((const float *)j->grid.data)[at];
  }
  Taps all;
  find_taps(j, v, &all);
  p->taps.n = 0;
  for (int e = 0; e < all.n; e++) { /* what is outside counts as zero */
    if (all.at[e] < 0) continue;
    p->taps.at[p->taps.n] = all.at[e];
    p->taps.weight[p->taps.n++] = all.weight[e];
  }
}

enum { CHUNK = 32 }; /* positions at a time: neighbours in y, channel by channel */

/* Positions [begin, end) of (n, out). */
#define DEFINE_SAMPLE(T)                                                              \
  static void sample_##T(void *arg, int64_t begin, int64_t end, int worker) {         \
    (void)worker;                                                                     \
    const Job *j = arg;                                                               \
    Position position[CHUNK];                                                         \
    for (int64_t i = begin; i < end; i += CHUNK) {                                    \
      int64_t count = end - i < CHUNK ? end - i : CHUNK;                              \
      for (int64_t q = 0; q < count; q++) find_position(j, i + q, &position[q]);      \
      for (int64_t c = 0; c < j->x.size[1]; c++) {                                    \
        for (int64_t q = 0; q < count; q++) {                                         \
          const Taps *t = &position[q].taps;                                          \
          const T *x = (const T *)j->x.data + position[q].image + c * j->x.stride[1]; \
          T sum = 0;                                                                  \
          for (int e = 0; e < t->n; e++) sum += (T)t->weight[e] * x[t->at[e]];        \
          ((T *)j->y.data)[position[q].y + c * j->y.stride[1]] = sum;                 \
        }                                                                             \
      }                                                                               \
    }                                                                                 \
  }
DEFINE_SAMPLE(float)
DEFINE_SAMPLE(double)

static int64_t numel(View v) {
  int64_t n = 1;
  for (int i = 0; i < v.ndim; i++) n *= v.size[i];
  return n;
}

/* Room for v as contiguous d in scratch memory. */
static Status room(Kern *k, View v, Dtype d, int64_t *stride, View *out) {
  contiguous_strides(v.ndim, v.size, stride);
  *out = (View){NULL, v.size, stride, v.ndim, d};
  TRY_NEW(out->data, kern_scratch(k, (size_t)(numel(v) + 1) * dtype_size(d)));
  return OK;
}

static void sample(Kern *k, Job *j) {
  for (int d = 0; d < 3; d++) {
    int at = d - (3 - j->nd);
    bool there = at >= 0;
    j->in[d] = there ? j->x.size[at + 2] : 1;
    j->to[d] = there ? j->y.size[at + 2] : 1;
    j->x_stride[d] = there ? j->x.stride[at + 2] : 0;
    j->y_stride[d] = there ? j->y.stride[at + 2] : 0;
    j->grid_stride[d] = there ? j->grid.stride[at + 1] : 0;
  }
  j->out = j->to[0] * j->to[1] * j->to[2];
  parallel_for(k->threads, j->y.size[0] * j->out, 256, j->x.dtype == DT_F64 ? sample_double : sample_float, j);
}

static Status sample_any(Kern *k, Job *j) {
  int64_t stride[3][MAX_DIMS];
  View x, grid, y, result = j->y;
  if (result.dtype == DT_F32 || result.dtype == DT_F64) return sample(k, j), OK;
  TRY(room(k, j->x, DT_F32, stride[0], &x));
  TRY(room(k, j->grid, DT_F32, stride[1], &grid));
  TRY(room(k, result, DT_F32, stride[2], &y));
  kernel_copy(k, x, j->x);
  kernel_copy(k, grid, j->grid);
  j->x = x;
  j->grid = grid;
  j->y = y;
  sample(k, j);
  kernel_copy(k, result, y);
  return OK;
}

Status grid_sample(Kern *k, GridMode mode, GridPadding padding, bool align_corners, View x, View grid, View y) {
  if (numel(y) == 0) return OK;
  Job j = {
      .mode = mode, .padding = padding, .align = align_corners, .nd = x.ndim - 2, .x = x, .grid = grid, .y = y};
  size_t mark = kern_mark(k);
  Status s = sample_any(k, &j);
  kern_release(k, mark);
  return s;
}

/* ---- affine grids ------------------------------------------------------------ */

/* Coordinate i of n, from -1 to 1: at the corners or at pixel centres. */
static double coordinate(int64_t i, int64_t n, bool align) {
  if (n == 1) return 0;
  double v = -1 + 2 * (double)i / (double)(n - 1);
  return align ? v : v * (double)(n - 1) / (double)n;
}

static Status affine_wide(Kern *k, bool align, View theta, View grid) {
  int64_t stride[2][MAX_DIMS], nd = theta.size[1], points = 1;
  View tw, gw;
  TRY(room(k, theta, DT_F64, stride[0], &tw));
  TRY(room(k, grid, DT_F64, stride[1], &gw));
  kernel_copy(k, tw, theta);
  for (int d = 1; d <= nd; d++) points *= grid.size[d];
  double *to = gw.data;
  for (int64_t i = 0; i < grid.size[0] * points; i++) {
    const double *t = (const double *)tw.data + i / points * nd * (nd + 1);
    double v[4];
    int64_t rest = i % points;
    for (int64_t d = 0; d < nd; d++) { /* x, y, z: innermost first */
      int64_t n = grid.size[nd - d];
      v[d] = coordinate(rest % n, n, align);
      rest /= n;
    }
    for (int64_t d = 0; d < nd; d++, t += nd + 1) {
      double sum = t[nd];
      for (int64_t e = 0; e < nd; e++) sum += t[e] * v[e];
      *to++ = sum;
    }
  }
  kernel_copy(k, grid, gw);
  return OK;
}

Status grid_affine(Kern *k, bool align_corners, View theta, View grid) {
  if (numel(grid) == 0) return OK;
  size_t mark = kern_mark(k);
  Status s = affine_wide(k, align_corners, theta, grid);
  kern_release(k, mark);
  return s;
}
