/* fft.c -- plans, and the way of strided sequences in and out of the lanes; see fft.h. */
#include "kernels/fft.h"

#include <math.h>
#include <string.h>

/* ---- plans ------------------------------------------------------------------- */

/* exp(-2 pi i * numerator / n) as two floats; the angle is reduced first, so it is exact
 * for any size of the numerator. */
static void root(int64_t numerator, int64_t n, float *out) {
  int64_t r = numerator % n, eighth = 8 * r / n; /* octant: sin and cos of small angles only */
  double angle = 2 * M_PI * (double)r / (double)n, c, s;
  switch (eighth) {
    case 1:
    case 2: c = -sin(angle - M_PI / 2), s = cos(angle - M_PI / 2); break;
    case 3:
    case 4: c = -cos(angle - M_PI), s = -sin(angle - M_PI); break;
    case 5:
    case 6: c = sin(angle - 3 * M_PI / 2), s = -cos(angle - 3 * M_PI / 2); break;
    default: c = cos(angle), s = sin(angle);
  }
  out[0] = (float)c;
  out[1] = (float)-s;
}

static Status plan_stage(Kern *k, FftTables *p, int radix, int64_t m) {
  FftStage *st = &p->stage[p->stages++];
  float *tw, *roots;
  TRY_NEW(tw, kern_scratch(k, (size_t)(m * radix) * 2 * sizeof *tw));
  TRY_NEW(roots, kern_scratch(k, (size_t)radix * 2 * sizeof *roots));
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < radix; j++) root(i * j, m * radix, tw + 2 * (i * radix + j));
  }
  for (int j = 0; j < radix; j++) root(j, radix, roots + 2 * j);
  *st = (FftStage){radix, tw, roots};
  return OK;
}

static Status plan_make(Kern *k, int64_t n, FftTables *p);

static Status plan_bluestein(Kern *k, FftTables *p) {
  int64_t m = 1, n = p->n;
  while (m < 2 * n - 1) m *= 2;
  FftTables *inner;
  float *chirp, *lanes, *work, *filter;
  TRY_NEW(inner, kern_scratch(k, sizeof *inner));
  TRY(plan_make(k, m, inner));
  TRY_NEW(chirp, kern_scratch(k, (size_t)n * 2 * sizeof *chirp));
  TRY_NEW(filter, kern_scratch(k, (size_t)m * 2 * sizeof *filter));
  size_t mark = kern_mark(k);
  TRY_NEW(lanes, kern_scratch(k, (size_t)m * 2 * FFT_LANES * sizeof *lanes));
  TRY_NEW(work, kern_scratch(k, fft_work(inner) * sizeof *work));
  float *re = lanes, *im = lanes + m * FFT_LANES;
  memset(lanes, 0, (size_t)m * 2 * FFT_LANES * sizeof *lanes);
  for (int64_t j = 0, square = 0; j < n; square = (square + 2 * j + 1) % (2 * n), j++) { /* j^2 mod 2n */
    root(square, 2 * n, chirp + 2 * j);
    for (int mirror = 0; mirror < 2; mirror++) {
      int64_t at = (mirror && j ? m - j : j) * FFT_LANES; /* lane 0 is enough */
      re[at] = chirp[2 * j] / (float)m;
      im[at] = -chirp[2 * j + 1] / (float)m;
    }
  }
  SIMD_CALL(k->isa, fft_lanes)(inner, re, im, work);
  for (int64_t j = 0; j < m; j++) {
    filter[2 * j] = re[j * FFT_LANES];
    filter[2 * j + 1] = im[j * FFT_LANES];
  }
  kern_release(k, mark);
  p->inner = inner;
  p->chirp = chirp;
  p->filter = filter;
  return OK;
}

static Status plan_make(Kern *k, int64_t n, FftTables *p) {
  *p = (FftTables){.n = n};
  int radix[FFT_STAGES], count = 0;
  int64_t rest = n;
  for (int r = 4; rest > 1 && r <= FFT_PRIME; r = r == 4 ? 2 : r == 2 ? 3 : r + 2) {
    while (rest % r == 0) radix[count++] = r, rest /= r;
  }
  if (rest > 1) return plan_bluestein(k, p);
  for (int64_t i = 0, m = n; i < count; i++) {
    m /= radix[i];
    TRY(plan_stage(k, p, radix[i], m));
  }
  return OK;
}

/* ---- sequences in and out ------------------------------------------------------ */

typedef enum { C2C, R2C, C2R } Kind;

typedef struct {
  Kind kind;
  Isa isa;
  const FftTables *plan;
  bool forward;
  float scale;
  View x, y;
  int dim;
  int64_t sequences;
  float *scratch;
  size_t worker_floats;
} Job;

/* Element offset of sequence i: its place in all dimensions but `dim`. */
static int64_t sequence_offset(View v, int dim, int64_t i) {
  int64_t offset = 0;
  for (int d = v.ndim - 1; d >= 0; d--) {
    if (d == dim) continue;
    offset += i % v.size[d] * v.stride[d];
    i /= v.size[d];
  }
  return offset;
}

typedef struct {
  float re, im;
} Complex;

/* Lane l of re, im. */
static void load_complex(const Job *j, int64_t sequence, float *re, float *im, int64_t n) {
  const Complex *x = (const Complex *)j->x.data + sequence_offset(j->x, j->dim, sequence);
  int64_t step = j->x.stride[j->dim];
  for (int64_t i = 0; i < n; i++) re[i * FFT_LANES] = x[i * step].re, im[i * FFT_LANES] = x[i * step].im;
}

static void store_complex(const Job *j, int64_t sequence, const float *re, const float *im, int64_t n,
                          float scale) {
  Complex *y = (Complex *)j->y.data + sequence_offset(j->y, j->dim, sequence);
  int64_t step = j->y.stride[j->dim];
  for (int64_t i = 0; i < n; i++) y[i * step] = (Complex){re[i * FFT_LANES] * scale, im[i * FFT_LANES] * scale};
}

static void load_real(const Job *j, int64_t sequence, float *to, int64_t n) {
  const float *x = (const float *)j->x.data + sequence_offset(j->x, j->dim, sequence);
  int64_t step = j->x.stride[j->dim];
  for (int64_t i = 0; i < n; i++) to[i * FFT_LANES] = x[i * step];
}

static void store_real(const Job *j, int64_t sequence, const float *from, int64_t n) {
  float *y = (float *)j->y.data + sequence_offset(j->y, j->dim, sequence);
  int64_t step = j->y.stride[j->dim];
  for (int64_t i = 0; i < n; i++) y[i * step] = from[i * FFT_LANES] * j->scale;
}

/* Adds A (or iB) of a sequence that is given by its first half. */
static void load_half(const Job *j, int64_t sequence, float *re, float *im, bool second) {
  const Complex *x = (const Complex *)j->x.data + sequence_offset(j->x, j->dim, sequence);
  int64_t step = j->x.stride[j->dim], n = j->plan->n;
  for (int64_t i = 0; i < n; i++) {
    bool mirrored = i > n / 2, real = i == 0 || 2 * i == n; /* what is real by symmetry is taken as real */
    Complex v = x[(mirrored ? n - i : i) * step];
    float im_part = real ? 0 : mirrored ? -v.im : v.im;
    re[i * FFT_LANES] += second ? -im_part : v.re;
    im[i * FFT_LANES] += second ? v.re : im_part;
  }
}

/* Sequences of one group of lanes: one each, or two where they are real. */
static void load_group(const Job *j, int64_t first, float *re, float *im) {
  int64_t n = j->plan->n;
  int each = j->kind == C2C ? 1 : 2;
  memset(re, 0, (size_t)(n * FFT_LANES) * sizeof *re);
  memset(im, 0, (size_t)(n * FFT_LANES) * sizeof *im);
  for (int s = 0; s < FFT_LANES * each && first + s < j->sequences; s++) {
    float *r = re + s / each, *i = im + s / each;
    if (j->kind == C2C) load_complex(j, first + s, r, i, n);
    else if (j->kind == R2C) load_real(j, first + s, s & 1 ? i : r, n);
    else load_half(j, first + s, r, i, s & 1);
  }
}

/* work: room for the second half of pairs. */
static void store_group(const Job *j, int64_t first, float *re, float *im, float *work) {
  int64_t n = j->plan->n, m = j->y.size[j->dim];
  int each = j->kind == C2C ? 1 : 2;
  if (j->kind == R2C) SIMD_CALL(j->isa, fft_split)(re, im, work, n, m, j->scale);
  for (int s = 0; s < FFT_LANES * each && first + s < j->sequences; s++) {
    int lane = s / each, second = s % each;
    if (j->kind == C2R) store_real(j, first + s, (second ? im : re) + lane, n);
    else if (second) store_complex(j, first + s, work + lane, work + m * FFT_LANES + lane, m, 1);
    else store_complex(j, first + s, re + lane, im + lane, m, j->kind == R2C ? 1 : j->scale);
  }
}

static void run_groups(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *j = arg;
  float *re = j->scratch + (size_t)worker * j->worker_floats, *im = re + j->plan->n * FFT_LANES,
        *work = im + j->plan->n * FFT_LANES;
  int64_t group = FFT_LANES * (j->kind == C2C ? 1 : 2);
  for (int64_t g = begin; g < end; g++) {
    load_group(j, g * group, re, im);
    SIMD_CALL(j->isa, fft_lanes)(j->plan, j->forward ? re : im, j->forward ? im : re, work);
    store_group(j, g * group, re, im, work);
  }
}

static Status run(Kern *k, Job *j, int64_t n) {
  FftTables plan;
  TRY(plan_make(k, n, &plan));
  j->isa = k->isa;
  j->plan = &plan;
  j->worker_floats = ((size_t)n * FFT_LANES * 2 + fft_work(&plan) + 15) & ~(size_t)15;
  TRY_NEW(j->scratch, kern_scratch(k, j->worker_floats * (size_t)k->threads * sizeof *j->scratch));
  int64_t group = FFT_LANES * (j->kind == C2C ? 1 : 2);
  parallel_for(k->threads, (j->sequences + group - 1) / group, 1 + 4096 / n, run_groups, j);
  return OK;
}

static Status transform(Kern *k, Job j) {
  View real = j.kind == C2R ? j.y : j.x; /* the one that has all n elements */
  int64_t n = real.size[j.dim];
  j.sequences = 1;
  for (int d = 0; d < real.ndim; d++) j.sequences *= d == j.dim ? 1 : real.size[d];
  if (n == 0 || j.sequences == 0) return OK;
  size_t mark = kern_mark(k);
  Status s = run(k, &j, n);
  kern_release(k, mark);
  return s;
}

Status fft_c2c(Kern *k, View x, View y, int dim, bool forward, double scale) {
  return transform(k, (Job){.kind = C2C, .x = x, .y = y, .dim = dim, .forward = forward, .scale = (float)scale});
}

Status fft_r2c(Kern *k, View x, View y, int dim, double scale) {
  return transform(k, (Job){.kind = R2C, .x = x, .y = y, .dim = dim, .forward = true, .scale = (float)scale});
}

Status fft_c2r(Kern *k, View x, View y, int dim, double scale) {
  return transform(k, (Job){.kind = C2R, .x = x, .y = y, .dim = dim, .forward = false, .scale = (float)scale});
}
