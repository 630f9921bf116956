/* norm.c -- see norm.h.
 *
 * A row is read from memory once: its mean, its spread and the result are made while it
 * is in cache.  Rows that are not stored as f32 or f64 go through a worker's buffer.
 */
#include "kernels/norm.h"

#include <math.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/reduce.h"
#include "kernels/run.h"

enum {
  GRAIN = 1 << 13,   /* elements worth a thread */
  GUESS = 8,         /* elements whose mean stands for that of a row, at first */
  ROWS_IN_TYPE = 32, /* rows whose weight gradients are added before they are widened */
};

static void *at(const void *data, Dtype d, int64_t i) {
  return (char *)(uintptr_t)data + i * (int64_t)dtype_size(d);
}

static double load_one(Dtype d, const void *data, int64_t i) {
  switch (d) {
    case DT_F64: return ((const double *)data)[i];
    case DT_F32: return (double)((const float *)data)[i];
    case DT_F16: return (double)f16_to_f32(((const uint16_t *)data)[i]);
    default: return (double)bf16_to_f32(((const uint16_t *)data)[i]);
  }
}

static void store_one(Dtype d, void *data, int64_t i, double v) {
  switch (d) {
    case DT_F64: ((double *)data)[i] = v; break;
    case DT_F32: ((float *)data)[i] = (float)v; break;
    case DT_F16: ((uint16_t *)data)[i] = f32_to_f16((float)v); break;
    default: ((uint16_t *)data)[i] = f32_to_bf16((float)v);
  }
}

/* v as an array of type `as`: itself, or a converted copy in scratch memory. */
static Status as_type(Kern *k, Dtype as, const void *v, Dtype from, int64_t n, const void **out) {
  *out = v;
  if (!v || from == as) return OK;
  void *copy;
  TRY_NEW(copy, kern_scratch(k, (size_t)n * dtype_size(as)));
  SIMD_CALL(k->isa, convert_run)(copy, as, v, from, n);
  *out = copy;
  return OK;
}

/* ---- rows -------------------------------------------------------------------------- */

typedef struct {
  NormRows a;
  Isa isa;
  Dtype as;
  const NormLoops *loops;
  const ReduceLoops *squares;
  const void *weight, *bias; /* of type as */
  char *buffer;              /* [workers][n], NULL: rows are used where they lie */
} RowsJob;

static void apply_row(const RowsJob *j, int64_t r, void *y, const void *x, double mean, double rstd) {
  const NormRows *a = &j->a;
  int64_t channels = a->n / a->inner, first = r % a->groups * channels;
  if (a->inner == 1) {
    j->loops->row(y, x, a->n, mean, rstd, j->weight ? at(j->weight, j->as, first) : NULL,
                  j->bias ? at(j->bias, j->as, first) : NULL);
    return;
  }
  for (int64_t c = 0; c < channels; c++) {
    double scale = rstd * (j->weight ? load_one(j->as, j->weight, first + c) : 1);
    double shift = j->bias ? load_one(j->as, j->bias, first + c) : 0;
    j->loops->affine(at(y, j->as, c * a->inner), at(x, j->as, c * a->inner), a->inner, mean, scale, shift);
  }
}

/* Mean and variance from the moments about a guess; once more about the mean where the
 * guess was so far off that digits were lost. */
static void row_moments(const RowsJob *j, const void *x, double *mean, double *var) {
  const double n = (double)j->a.n;
  int64_t few = j->a.n < GUESS ? j->a.n : GUESS;
  double about = 0, s[2];
  for (int64_t i = 0; i < few; i++) about += load_one(j->as, x, i);
  about /= (double)few;
  for (int pass = 0; pass < 2; pass++) {
    if (j->as == DT_F32) about = (double)(float)about;
    j->loops->moments(x, j->a.n, about, s);
    double off = s[0] / n;
    *mean = about + off;
    *var = s[1] / n - off * off;
    if (off * off <= 4 * *var) return;
    about = *mean;
  }
  if (*var < 0) *var = 0;
}

static void norm_rows(void *arg, int64_t begin, int64_t end, int worker) {
  const RowsJob *j = arg;
  const NormRows *a = &j->a;
  const double n = (double)a->n;
  void *buffer = j->buffer ? at(j->buffer, j->as, worker * a->n) : NULL;
  for (int64_t r = begin; r < end; r++) {
    const void *x = at(a->x, a->dtype, r * a->n);
    void *y = at(a->y, a->dtype, r * a->n);
    if (buffer) {
      SIMD_CALL(j->isa, convert_run)(buffer, j->as, x, a->dtype, a->n);
      x = buffer;
    }
    double mean = 0, var;
    if (a->rms) {
      var = j->squares->row(x, a->n, 0).f / n;
    } else {
      row_moments(j, x, &mean, &var);
    }
    double rstd = 1 / sqrt(var + a->eps);
    apply_row(j, r, buffer ? buffer : y, x, mean, rstd);
    if (buffer) SIMD_CALL(j->isa, convert_run)(y, a->dtype, buffer, j->as, a->n);
    if (a->mean) store_one(a->stat, a->mean, r, mean);
    if (a->rstd) store_one(a->stat, a->rstd, r, rstd);
  }
}

Status kernel_norm_rows(Kern *k, const NormRows *a) {
  if (a->rows == 0) return OK;
  Dtype as = a->dtype == DT_F64 ? DT_F64 : DT_F32;
  RowsJob j = {.a = *a, .isa = k->isa, .as = as, .loops = SIMD_CALL(k->isa, norm_loops)(as)};
  j.squares = SIMD_CALL(k->isa, reduce_loops)(FOLD_SQUARES, as);
  size_t mark = kern_mark(k);
  int64_t channels = a->groups * (a->n / a->inner), grain = GRAIN / (a->n + 1) + 1;
  TRY(as_type(k, as, a->weight, a->param, channels, &j.weight));
  TRY(as_type(k, as, a->bias, a->param, channels, &j.bias));
  if (a->dtype != as) {
    size_t rows = (size_t)parallel_workers(k->threads, a->rows, grain);
    TRY_NEW(j.buffer, kern_scratch(k, rows * (size_t)a->n * dtype_size(as)));
  }
  parallel_for(k->threads, a->rows, grain, norm_rows, &j);
  kern_release(k, mark);
  return OK;
}

/* ---- gradients of rows --------------------------------------------------------------- */

typedef struct {
  NormRowsGrad a;
  Isa isa;
  Dtype as;
  const NormLoops *loops;
  const ReduceLoops *sum;
  const void *weight;
  char *rows;   /* [workers][2][n]: gradient and input of type as, or NULL */
  char *sums;   /* [workers][2][n]: gw and gb of some rows, of type as */
  Wide *totals; /* [workers][2][n] */
  bool wants_sums;
} GradJob;

static void grad_rows(void *arg, int64_t begin, int64_t end, int worker) {
  const GradJob *j = arg;
  const NormRowsGrad *a = &j->a;
  const double n = (double)a->n;
  void *gbuf = j->rows ? at(j->rows, j->as, 2 * worker * a->n) : NULL,
       *xbuf = j->rows ? at(gbuf, j->as, a->n) : NULL;
  void *sums = j->wants_sums ? at(j->sums, j->as, 2 * worker * a->n) : NULL;
  Wide *totals = j->wants_sums ? j->totals + 2 * worker * a->n : NULL;
  for (int64_t r = begin; r < end; r++) {
    const void *g = at(a->g, a->dtype, r * a->n), *x = at(a->x, a->dtype, r * a->n);
    void *gx = a->gx ? at(a->gx, a->dtype, r * a->n) : NULL;
    if (j->rows) {
      SIMD_CALL(j->isa, convert_run)(gbuf, j->as, g, a->dtype, a->n);
      SIMD_CALL(j->isa, convert_run)(xbuf, j->as, x, a->dtype, a->n);
      g = gbuf, x = xbuf;
    }
    double mean = a->mean ? load_one(a->stat, a->mean, r) : 0, rstd = load_one(a->stat, a->rstd, r), s[2] = {0, 0};
    if (gx) j->loops->grad_sums(g, x, j->weight, a->n, mean, rstd, s);
    if (!a->mean) s[0] = 0; /* rms: nothing was subtracted */
    j->loops->grad_row(gx ? (j->rows ? xbuf : gx) : NULL, a->gweight ? sums : NULL,
                       a->gbias ? at(sums, j->as, a->n) : NULL, g, x, j->weight, a->n, mean, rstd, s[0] / n,
                       s[1] / n);
    if (gx && j->rows) SIMD_CALL(j->isa, convert_run)(gx, a->dtype, xbuf, j->as, a->n);
    if (sums && ((r - begin) % ROWS_IN_TYPE == ROWS_IN_TYPE - 1 || r == end - 1)) {
      j->sum->widen(totals, sums, 2 * a->n);
      memset(sums, 0, (size_t)(2 * a->n) * dtype_size(j->as));
    }
  }
}

Status kernel_norm_rows_backward(Kern *k, const NormRowsGrad *a) {
  Dtype as = a->dtype == DT_F64 ? DT_F64 : DT_F32;
  GradJob j = {.a = *a,
               .isa = k->isa,
               .as = as,
               .loops = SIMD_CALL(k->isa, norm_loops)(as),
               .wants_sums = a->gweight || a->gbias};
  j.sum = SIMD_CALL(k->isa, reduce_loops)(FOLD_SUM, as);
  size_t mark = kern_mark(k);
  int64_t grain = GRAIN / (a->n + 1) + 1, pairs;
  int workers = parallel_workers(k->threads, a->rows, grain);
  pairs = 2 * workers * a->n;
  TRY(as_type(k, as, a->weight, a->param, a->n, &j.weight));
  if (a->dtype != as) TRY_NEW(j.rows, kern_scratch(k, (size_t)pairs * dtype_size(as)));
  if (j.wants_sums) {
    TRY_NEW(j.sums, kern_scratch(k, (size_t)pairs * dtype_size(as)));
    TRY_NEW(j.totals, kern_scratch(k, (size_t)pairs * sizeof *j.totals));
    memset(j.sums, 0, (size_t)pairs * dtype_size(as));
    memset(j.totals, 0, (size_t)pairs * sizeof *j.totals);
  }
  parallel_for(k->threads, a->rows, grain, grad_rows, &j);
  for (int w = 1; j.wants_sums && w < workers; w++) j.sum->merge(j.totals, j.totals + 2 * w * a->n, 2 * a->n);
  if (a->gweight) SIMD_CALL(k->isa, convert_run)(a->gweight, a->param, j.totals, DT_F64, a->n);
  if (a->gbias) SIMD_CALL(k->isa, convert_run)(a->gbias, a->param, j.totals + a->n, DT_F64, a->n);
  kern_release(k, mark);
  return OK;
}

/* ---- channels ------------------------------------------------------------------------ */

typedef struct {
  Isa isa;
  Dtype as;
  const NormLoops *loops;
  View y, x;
  int64_t channels, channel_in, channel_out;
  bool across;                  /* channels are neighbours in memory: rows of channels */
  int64_t run, run_in, run_out; /* otherwise runs of one channel */
  int n;                        /* the dimensions around, outermost first */
  int64_t size[MAX_DIMS], in[MAX_DIMS], out[MAX_DIMS];
  const double *mean, *scale, *shift;
  const char *typed; /* across: the three rows, of type as */
} ChannelJob;

/* y[i] = f(x[i]), i < n, in pieces that fit a buffer where one is needed. */
static void channel_run(const ChannelJob *j, int64_t x_at, int64_t y_at, int64_t c, int64_t n, int64_t in,
                        int64_t out) {
  RunBuffer xb, yb;
  bool x_direct = run_is_direct(j->as, j->x.dtype, in), y_direct = run_is_direct(j->as, j->y.dtype, out);
  int64_t piece = x_direct && y_direct ? n : RUN;
  for (int64_t i = 0; i < n; i += piece) {
    int64_t m = n - i < piece ? n - i : piece;
    void *to = at(j->y.data, j->y.dtype, y_at + i * out), *dense = y_direct ? to : (void *)yb.dense;
    const void *x = run_load(j->isa, &xb, j->as, at(j->x.data, j->x.dtype, x_at + i * in), j->x.dtype, in, m);
    if (j->across) {
      j->loops->affine_row(dense, x, m, at(j->typed, j->as, i), at(j->typed, j->as, j->channels + i),
                           at(j->typed, j->as, 2 * j->channels + i));
    } else {
      j->loops->affine(dense, x, m, j->mean[c], j->scale[c], j->shift[c]);
    }
    if (!y_direct) run_store(j->isa, &yb, to, j->y.dtype, out, dense, j->as, m);
  }
}

static void channel_runs(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const ChannelJob *j = arg;
  for (int64_t u = begin; u < end; u++) {
    int64_t rest = u, c = 0, x_at = 0, y_at = 0;
    if (!j->across) {
      c = rest % j->channels;
      rest /= j->channels;
      x_at = c * j->channel_in;
      y_at = c * j->channel_out;
    }
    for (int d = j->n - 1; d >= 0; d--) {
      x_at += rest % j->size[d] * j->in[d];
      y_at += rest % j->size[d] * j->out[d];
      rest /= j->size[d];
    }
    if (j->across) channel_run(j, x_at, y_at, 0, j->channels, j->channel_in, j->channel_out);
    else channel_run(j, x_at, y_at, c, j->run, j->run_in, j->run_out);
  }
}

Status kernel_channel_affine(Kern *k, View y, View x, int dim, const double *mean, const double *scale,
                             const double *shift) {
  Dtype as = y.dtype == DT_F64 ? DT_F64 : DT_F32;
  ChannelJob j = {.isa = k->isa,
                  .as = as,
                  .loops = SIMD_CALL(k->isa, norm_loops)(as),
                  .y = y,
                  .x = x,
                  .mean = mean,
                  .scale = scale,
                  .shift = shift,
                  .channels = x.size[dim],
                  .channel_in = x.stride[dim],
                  .channel_out = y.stride[dim],
                  .run = 1,
                  .run_in = 1,
                  .run_out = 1};
  int64_t units = 1;
  for (int d = 0; d < x.ndim; d++) {
    units *= d == dim ? 1 : x.size[d];
    if (d == dim || x.size[d] == 1) continue;
    int last = j.n - 1;
    bool merges = j.n && j.in[last] == x.stride[d] * x.size[d] && j.out[last] == y.stride[d] * x.size[d];
    if (!merges) last = j.n++, j.size[last] = 1;
    j.size[last] *= x.size[d], j.in[last] = x.stride[d], j.out[last] = y.stride[d];
  }
  if (units * j.channels == 0) return OK;
  j.across = j.n == 0 || (j.channel_in == 1 && j.channel_out == 1);
  size_t mark = kern_mark(k);
  if (j.across) {
    char *typed;
    size_t bytes = (size_t)j.channels * dtype_size(as);
    TRY_NEW(typed, kern_scratch(k, 3 * bytes));
    SIMD_CALL(k->isa, convert_run)(typed, as, mean, DT_F64, j.channels);
    SIMD_CALL(k->isa, convert_run)(typed + bytes, as, scale, DT_F64, j.channels);
    SIMD_CALL(k->isa, convert_run)(typed + 2 * bytes, as, shift, DT_F64, j.channels);
    j.typed = typed;
  } else {
    int best = 0; /* the longest run in memory order */
    for (int d = 1; d < j.n; d++) {
      if (j.out[d] < j.out[best]) best = d;
    }
    j.run = j.size[best], j.run_in = j.in[best], j.run_out = j.out[best];
    j.n--;
    for (int d = best; d < j.n; d++) j.size[d] = j.size[d + 1], j.in[d] = j.in[d + 1], j.out[d] = j.out[d + 1];
    units = units / j.run * j.channels;
  }
  parallel_for(k->threads, units, GRAIN / (j.across ? j.channels : j.run) + 1, channel_runs, &j);
  kern_release(k, mark);
  return OK;
}
