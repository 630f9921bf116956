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
  View x, grid, y, grad_grid;
} Job;

/* From -1 .. 1 to pixels. */
static double unnormalize(const Job *j, double v, int64_t size) {
  return j->align ? (v + 1) / 2 * (double)(size - 1) : ((v + 1) * (double)size - 1) / 2;
}

/* Mirrored at the edges as often as it takes; slope: of where it goes. */
static double reflect(double v, double low, double high, double *slope) {
  double span = high - low;
  if (span <= 0) return *slope = 0, 0;
  if (v < low) *slope = -*slope;
  v = fabs(v - low);
  double flips = floor(v / span), rest = v - flips * span;
  if (fmod(flips, 2) == 0) return low + rest;
  *slope = -*slope;
  return high - rest;
}

/* The position that is read for v: where the padding mode moves it.  slope is multiplied with how fast it moves
 * there with v: not at all beyond the edges. */
static double place(const Job *j, double v, int64_t size, double *slope) {
  double last = (double)(size - 1);
  if (j->padding == GRID_ZEROS) return v;
  if (j->padding == GRID_REFLECTION)
    v = j->align ? reflect(v, 0, last, slope) : reflect(v, -0.5, last + 0.5, slope);
  if (v > 0 && v < last) return v;
  *slope = 0;
  return v > 0 ? last : 0; /* nan goes to 0 */
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
  double slope[3][MAX_TAPS]; /* of weight by the grid's numbers (d, h, w): gradients only */
} Taps;

/* Weights of four pixels, t behind the second, and their slopes by t. */
static void cubic_weights(double t, double *w, double *slope) {
  const double a = -0.75;
  double x[4] = {t + 1, t, 1 - t, 2 - t};
  for (int i = 0; i < 4; i++) {
    bool near = i == 1 || i == 2;
    w[i] = near ? ((a + 2) * x[i] - (a + 3)) * x[i] * x[i] + 1 : ((a * x[i] - 5 * a) * x[i] + 8 * a) * x[i] - 4 * a;
    slope[i] = near ? (3 * (a + 2) * x[i] - 2 * (a + 3)) * x[i] : (3 * a * x[i] - 10 * a) * x[i] + 8 * a;
    if (i > 1) slope[i] = -slope[i];
  }
}

/* One dimension: pixels from `low` on, their weights, and slopes by the grid's number. */
typedef struct {
  double low, weight[4], slope[4];
} Axis;

static void find_axis(const Job *j, double v, int64_t size, Axis *a) {
  double slope = j->align ? (double)(size - 1) / 2 : (double)size / 2, p = unnormalize(j, v, size);
  *a = (Axis){.weight = {1}};
  if (j->mode != GRID_CUBIC) p = place(j, p, size, &slope); /* cubic moves each pixel by itself */
  a->low = j->mode == GRID_NEAREST ? nearbyint(p) : floor(p);
  double t = p - a->low;
  if (j->mode == GRID_CUBIC) {
    cubic_weights(t, a->weight, a->slope);
    for (int e = 0; e < 4; e++) a->slope[e] *= slope;
    a->low -= 1;
  } else if (j->mode == GRID_LINEAR) {
    a->weight[0] = 1 - t, a->weight[1] = t;
    a->slope[0] = -slope, a->slope[1] = slope;
  }
}

/* The pixels that make the value at v (d, h, w), with their weights. */
static void find_taps(const Job *j, const double *v, bool slopes, Taps *t) {
  double at[3] = {0}, still = 1;
  Axis axis[3];
  int per_dim = j->mode == GRID_CUBIC ? 4 : j->mode == GRID_LINEAR ? 2 : 1;
  t->n = 1;
  for (int d = 3 - j->nd; d < 3; d++) find_axis(j, v[d], j->in[d], &axis[d]), t->n *= per_dim;
  for (int i = 0; i < t->n; i++) {
    int e[3] = {0}, rest = i;
    t->weight[i] = 1;
    for (int d = 2; d >= 3 - j->nd; d--, rest /= per_dim) {
      e[d] = rest % per_dim;
      at[d] = axis[d].low + e[d];
      if (j->mode == GRID_CUBIC) at[d] = place(j, at[d], j->in[d], &still);
      t->weight[i] *= axis[d].weight[e[d]];
    }
    t->at[i] = pixel(j, at);
    for (int g = 3 - j->nd; slopes && g < 3; g++) {
      t->slope[g][i] = 1;
      for (int d = 3 - j->nd; d < 3; d++) t->slope[g][i] *= d == g ? axis[d].slope[e[d]] : axis[d].weight[e[d]];
    }
  }
}

/* What position i of (n, out) reads and writes. */
typedef struct {
  Taps taps;        /* those inside only */
  int64_t image, y; /* offsets of channel 0 */
} Position;

static void find_position(const Job *j, int64_t i, bool slopes, Position *p) {
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
  find_taps(j, v, slopes, &all);
  p->taps.n = 0;
  for (int e = 0; e < all.n; e++) { /* what is outside counts as zero */
    if (all.at[e] < 0) continue;
    for (int d = 0; slopes && d < 3; d++) p->taps.slope[d][p->taps.n] = all.slope[d][e];
    p->taps.at[p->taps.n] = all.at[e];
    p->taps.weight[p->taps.n++] = all.weight[e];
  }
}

enum { CHUNK = 32 }; /* positions at a time: neighbours in y, channel by channel */

/* Positions [begin, end) of (n, out). */
#define DEFINE_SAMPLE(T)                                                                \
  static void sample_##T(void *arg, int64_t begin, int64_t end, int worker) {           \
    (void)worker;                                                                       \
    const Job *j = arg;                                                                 \
    Position position[CHUNK];                                                           \
    for (int64_t i = begin; i < end; i += CHUNK) {                                      \
      int64_t count = end - i < CHUNK ? end - i : CHUNK;                                \
      for (int64_t q = 0; q < count; q++) find_position(j, i + q, false, &position[q]); \
      for (int64_t c = 0; c < j->x.size[1]; c++) {                                      \
        for (int64_t q = 0; q < count; q++) {                                           \
          const Taps *t = &position[q].taps;                                            \
          const T *x = (const T *)j->x.data + position[q].image + c * j->x.stride[1];   \
          T sum = 0;                                                                    \
          for (int e = 0; e < t->n; e++) sum += (T)t->weight[e] * x[t->at[e]];          \
          ((T *)j->y.data)[position[q].y + c * j->y.stride[1]] = sum;                   \
        }                                                                               \
      }                                                                                 \
    }                                                                                   \
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

static void find_strides(Job *j) {
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
}

static void sample(Kern *k, Job *j) {
  find_strides(j);
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

/* ---- gradients ----------------------------------------------------------------- */

enum { CHANNELS = 8 }; /* that share the search for pixels */

/* Of the image: a task is some channels of one image.  Of the grid: positions.  x is the image or its gradient, y
 * the gradient of the result. */
#define DEFINE_GRADIENTS(T)                                                                               \
  static void image_grad_##T(void *arg, int64_t begin, int64_t end, int worker) {                         \
    (void)worker;                                                                                         \
    const Job *j = arg;                                                                                   \
    int64_t channels = j->x.size[1], tasks = (channels + CHANNELS - 1) / CHANNELS;                        \
    Position p;                                                                                           \
    for (int64_t task = begin; task < end; task++) {                                                      \
      int64_t n = task / tasks, c0 = task % tasks * CHANNELS,                                             \
              c1 = c0 + CHANNELS < channels ? c0 + CHANNELS : channels;                                   \
      for (int64_t i = n * j->out; i < (n + 1) * j->out; i++) {                                           \
        find_position(j, i, false, &p);                                                                   \
        for (int64_t c = c0; c < c1; c++) {                                                               \
          T g = ((const T *)j->y.data)[p.y + c * j->y.stride[1]];                                         \
          T *x = (T *)j->x.data + p.image + c * j->x.stride[1];                                           \
          for (int e = 0; e < p.taps.n; e++) x[p.taps.at[e]] += (T)p.taps.weight[e] * g;                  \
        }                                                                                                 \
      }                                                                                                   \
    }                                                                                                     \
  }                                                                                                       \
  static void grid_grad_##T(void *arg, int64_t begin, int64_t end, int worker) {                          \
    (void)worker;                                                                                         \
    const Job *j = arg;                                                                                   \
    int64_t axis = j->grad_grid.stride[j->grad_grid.ndim - 1];                                            \
    Position p;                                                                                           \
    for (int64_t i = begin; i < end; i++) {                                                               \
      double sum[3] = {0};                                                                                \
      find_position(j, i, true, &p);                                                                      \
      for (int64_t c = 0; c < j->x.size[1]; c++) {                                                        \
        double g = (double)((const T *)j->y.data)[p.y + c * j->y.stride[1]];                              \
        const T *x = (const T *)j->x.data + p.image + c * j->x.stride[1];                                 \
        for (int e = 0; e < p.taps.n; e++)                                                                \
          for (int d = 3 - j->nd; d < 3; d++) sum[d] += p.taps.slope[d][e] * g * (double)x[p.taps.at[e]]; \
      }                                                                                                   \
      for (int d = 0; d < j->nd; d++)                                                                     \
        ((T *)j->grad_grid.data)[i * j->nd + d * axis] = (T)(j->mode == GRID_NEAREST ? 0 : sum[2 - d]);   \
    }                                                                                                     \
  }
DEFINE_GRADIENTS(float)
DEFINE_GRADIENTS(double)

static Status gradients(Kern *k, Job *j, View x, View grid, View gy, View *grad_x, View *grad_grid) {
  int64_t stride[5][MAX_DIMS], images = gy.size[0];
  Dtype d = x.dtype == DT_F64 ? DT_F64 : DT_F32;
  const uint64_t zero = 0;
  View wide;
  TRY(room(k, grid, d, stride[0], &j->grid));
  TRY(room(k, gy, d, stride[1], &j->y));
  kernel_copy(k, j->grid, grid);
  kernel_copy(k, j->y, gy);
  if (grad_x) {
    int64_t chunks = (x.size[1] + CHANNELS - 1) / CHANNELS;
    TRY(room(k, x, d, stride[2], &wide));
    kernel_fill(k, wide, &zero);
    j->x = wide;
    find_strides(j);
    parallel_for(k->threads, images * chunks, 1, d == DT_F64 ? image_grad_double : image_grad_float, j);
    kernel_copy(k, *grad_x, wide);
  }
  if (!grad_grid) return OK;
  TRY(room(k, x, d, stride[3], &j->x));
  TRY(room(k, grid, d, stride[4], &j->grad_grid));
  kernel_copy(k, j->x, x);
  find_strides(j);
  parallel_for(k->threads, images * j->out, 256, d == DT_F64 ? grid_grad_double : grid_grad_float, j);
  kernel_copy(k, *grad_grid, j->grad_grid);
  return OK;
}

Status grid_sample_grad(Kern *k, GridMode mode, GridPadding padding, bool align_corners, View x, View grid, View gy,
                        View *grad_x, View *grad_grid) {
  const uint64_t zero = 0;
  if (numel(gy) == 0) {
    if (grad_x) kernel_fill(k, *grad_x, &zero);
    if (grad_grid) kernel_fill(k, *grad_grid, &zero);
    return OK;
  }
  Job j = {.mode = mode, .padding = padding, .align = align_corners, .nd = x.ndim - 2};
  size_t mark = kern_mark(k);
  Status s = gradients(k, &j, x, grid, gy, grad_x, grad_grid);
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
