/* resample_axis.c -- which input positions make an output position, with which weights.
 *
 * Coordinates are what ATen computes, including its rounding: in f32 (r() below rounds
 * each step) unless the data is f64 and interpolated.  A position on a boundary decides between two
 * pixels, so this is not a matter of accuracy.
 */
#include <math.h>

#include "kernels/resample.h"

typedef struct {
  bool wide;
  double scale; /* input steps per output step */
} Grid;

static double r(const Grid *g, double v) { return g->wide ? v : (double)(float)v; }

static Grid grid_of(const ResampleScale *s, bool wide) {
  Grid g = {.wide = wide};
  if (s->align_corners) g.scale = s->out > 1 ? r(&g, (double)(s->in - 1) / (double)(s->out - 1)) : 0;
  else g.scale = s->factor > 0 ? r(&g, 1.0 / s->factor) : r(&g, (double)s->in / (double)s->out);
  return g;
}

/* Where output i lies in the input, half-pixel centres unless corners are aligned. */
static double centre(const Grid *g, const ResampleScale *s, int64_t i) {
  if (s->align_corners) return r(g, g->scale * (double)i);
  return r(g, r(g, g->scale * r(g, (double)i + 0.5)) - 0.5);
}

static int64_t clamp(int64_t i, int64_t in) { return i < 0 ? 0 : i >= in ? in - 1 : i; }

/* |x| < 1 and 1 <= |x| < 2 of the cubic convolution kernel with parameter a. */
static double cubic_near(double x, double a) { return ((a + 2) * x - (a + 3)) * x * x + 1; }
static double cubic_far(double x, double a) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; }

static double filter_linear(double x) { return fabs(x) < 1 ? 1 - fabs(x) : 0; }
static double filter_cubic(double x) {
  x = fabs(x);
  return x < 1 ? cubic_near(x, -0.5) : x < 2 ? cubic_far(x, -0.5) : 0;
}

static void set(ResampleAxis *a, int tap, int64_t i, int64_t at, double weight) {
  a->at[(int64_t)tap * a->out + i] = (int32_t)clamp(at, a->in);
  a->weight[(int64_t)tap * a->out + i] = weight;
}

static void fill_nearest(const Grid *g, ResampleAxis *a, double shift) {
  for (int64_t i = 0; i < a->out; i++) set(a, 0, i, f64_to_i64(floor(r(g, r(g, (double)i + shift) * g->scale))), 1);
}

static void fill_linear(const Grid *g, const ResampleScale *s, ResampleAxis *a) {
  for (int64_t i = 0; i < a->out; i++) {
    double at = a->in == a->out ? (double)i : centre(g, s, i);
    if (at < 0) at = 0;
    int64_t low = clamp(f64_to_i64(at), a->in);
    double t = r(g, at - (double)low);
    t = t > 1 ? 1 : t;
    set(a, 0, i, low, r(g, 1 - t));
    set(a, 1, i, low + 1, t);
  }
}

static void fill_cubic(const Grid *g, const ResampleScale *s, ResampleAxis *a) {
  for (int64_t i = 0; i < a->out; i++) {
    double at = centre(g, s, i), low = floor(at);
    if (low > (double)(a->in - 1)) low = (double)(a->in - 1);
    if (!(low > -3)) low = -3; /* all taps on the first element */
    double t = r(g, at - low), f = -0.75;
    t = t > 1 ? 1 : t < 0 ? 0 : t;
    set(a, 0, i, (int64_t)low - 1, cubic_far(t + 1, f));
    set(a, 1, i, (int64_t)low, cubic_near(t, f));
    set(a, 2, i, (int64_t)low + 1, cubic_near(1 - t, f));
    set(a, 3, i, (int64_t)low + 2, cubic_far(2 - t, f));
  }
}

/* Half the width of the antialiasing filter, in input pixels. */
static double aa_support(const Grid *g, ResampleMode mode) {
  double half = mode == RESAMPLE_LINEAR_AA ? 1 : 2;
  return g->scale >= 1 ? r(g, half * g->scale) : half;
}

static void fill_aa(const Grid *g, ResampleMode mode, ResampleAxis *a) {
  double support = aa_support(g, mode), inverse = g->scale >= 1 ? r(g, 1 / g->scale) : 1;
  for (int64_t i = 0; i < a->out; i++) {
    double middle = r(g, g->scale * r(g, (double)i + 0.5)), total = 0;
    int64_t begin = f64_to_i64(r(g, r(g, middle - support) + 0.5)),
            end = f64_to_i64(r(g, r(g, middle + support) + 0.5));
    begin = begin < 0 ? 0 : begin > a->in ? a->in : begin;
    if (end > a->in) end = a->in;
    if (end - begin > a->taps) end = begin + a->taps;
    for (int t = 0; t < a->taps; t++) {
      double x = r(g, r(g, (double)(begin + t) - middle + 0.5) * inverse);
      double w = begin + t < end ? (mode == RESAMPLE_LINEAR_AA ? filter_linear(x) : filter_cubic(x)) : 0;
      set(a, t, i, begin + t < end ? begin + t : end - 1, w);
      total += w;
    }
    for (int t = 0; t < a->taps && total != 0; t++) a->weight[(int64_t)t * a->out + i] /= total;
  }
}

Status resample_axis(Kern *k, ResampleMode mode, const ResampleScale *s, bool wide, ResampleAxis *out) {
  Grid g = grid_of(s, wide && mode > RESAMPLE_NEAREST_EXACT);
  bool aa = mode == RESAMPLE_LINEAR_AA || mode == RESAMPLE_CUBIC_AA;
  const double most = (double)INT32_MAX / 4;
  if (aa && !(aa_support(&g, mode) < most))
    return fail(ERR_FAIL, "resampling from %lld to %lld elements takes too many at a time", (long long)s->in,
                (long long)s->out);
  int taps = mode <= RESAMPLE_NEAREST_EXACT ? 1
             : mode == RESAMPLE_LINEAR      ? 2
             : mode == RESAMPLE_CUBIC       ? 4
                                            : (int)ceil(aa_support(&g, mode)) * 2 + 1;
  *out = (ResampleAxis){.in = s->in, .out = s->out, .taps = taps};
  size_t n = (size_t)taps * (size_t)s->out + 1;
  TRY_NEW(out->at, kern_scratch(k, n * sizeof *out->at));
  TRY_NEW(out->weight, kern_scratch(k, n * sizeof *out->weight));
  if (aa) fill_aa(&g, mode, out);
  else if (mode == RESAMPLE_LINEAR) fill_linear(&g, s, out);
  else if (mode == RESAMPLE_CUBIC) fill_cubic(&g, s, out);
  else fill_nearest(&g, out, mode == RESAMPLE_NEAREST_EXACT ? 0.5 : 0);
  return OK;
}
