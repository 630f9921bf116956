/* reduce.c -- see reduce.h.
 *
 * Kept and reduced dimensions are sorted by stride and merged.  Then one of two ways:
 *
 *   rows     the fold runs along memory: one output at a time, its elements in runs of
 *            the innermost reduced dimension;
 *   columns  a neighbour of an element belongs to the next output: a tile of outputs
 *            at a time, rows of elements are folded into a row of accumulators.
 *
 * Threads share the outputs; when there are too few of these, each folds a part of
 * every output's elements and the parts are folded in order.
 */
#include "kernels/reduce.h"

#include <math.h>
#include <string.h>

#include "kernels/run.h"

enum {
  TILE = 512,        /* outputs of a tile */
  ROWS_IN_TYPE = 32, /* rows folded before the sums are widened */
  GRAIN = 1 << 15,   /* elements worth a thread */
  MAX_PARTS = 32,    /* threads that share the elements of an output */
  SHORT_RUN = 24,    /* a run below this is not worth a call */
};

typedef struct {
  int64_t size, in, out; /* strides in elements; out is 0 in reduced dimensions */
} Dim;

/* Dimension 0 is the innermost. */
typedef struct {
  Dim dim[MAX_DIMS];
  int n;
  int64_t numel;
} Dims;

typedef struct {
  Reduction r;
  Dtype as;
  Isa isa;
  Dims kept, reduced;
  int64_t width;          /* outputs of a tile; 1: rows */
  bool one_run;           /* rows, and each is one dense run */
  bool bytes;             /* any or all of bytes, in such runs */
  int64_t tiles_per_line; /* tiles of the innermost kept dimension */
  int64_t parts;          /* > 1: elements of an output are shared out */
  View x, out;
  View centre_out;                 /* p of each output is wanted too: same strides as out */
  const ReduceLoops *first, *last; /* first: gives p, or NULL */
  const double *centre;            /* parts: p of each output, from the first fold */
  Wide *shared;                    /* parts: [parts][outputs] */
  bool in_first;                   /* parts: which fold */
} Job;

/* ---- the plan --------------------------------------------------------------------- */

static void dims_add(Dims *d, Dim dim) {
  d->numel *= dim.size;
  if (dim.size == 1) return;
  /* An expanded dimension (stride 0) goes outermost: its elements are not a run. */
  uint64_t key = dim.in ? (uint64_t)dim.in : UINT64_MAX;
  int i = d->n++;
  for (; i > 0; i--) {
    int64_t other = d->dim[i - 1].in;
    if ((other ? (uint64_t)other : UINT64_MAX) <= key) break;
    d->dim[i] = d->dim[i - 1];
  }
  d->dim[i] = dim;
}

static void dims_merge(Dims *d) {
  int n = 0;
  for (int i = 0; i < d->n; i++) {
    Dim *low = n ? &d->dim[n - 1] : NULL, high = d->dim[i];
    if (low && high.in == low->in * low->size && high.out == low->out * low->size) low->size *= high.size;
    else d->dim[n++] = high;
  }
  if (n == 0) d->dim[n++] = (Dim){1, 1, 1};
  d->n = n;
}

/* Offset of element e of dims[from..]; also where each dimension stands. */
static int64_t dims_seek(const Dims *d, int from, int64_t e, int64_t *index, int64_t *out) {
  int64_t in = 0, to = 0;
  for (int i = from; i < d->n; i++) {
    index[i] = e % d->dim[i].size;
    e /= d->dim[i].size;
    in += index[i] * d->dim[i].in;
    to += index[i] * d->dim[i].out;
  }
  if (out) *out = to;
  return in;
}

/* Steps dims[from..] by one; returns the change of the offset. */
static int64_t dims_step(const Dims *d, int from, int64_t *index) {
  int64_t in = 0;
  for (int i = from; i < d->n; i++) {
    in += d->dim[i].in;
    if (++index[i] < d->dim[i].size) return in;
    in -= d->dim[i].size * d->dim[i].in;
    index[i] = 0;
  }
  return in;
}

static bool along_rows(const Dims *kept, const Dims *reduced) {
  Dim k = kept->dim[0], r = reduced->dim[0];
  if (kept->numel == 1) return true;
  if (reduced->numel == 1) return false;
  if (r.in && (r.in < k.in || !k.in)) return r.size >= SHORT_RUN || k.size < SHORT_RUN;
  return k.size < 8 && r.size >= SHORT_RUN;
}

/* ---- folding ---------------------------------------------------------------------- */

static void fold_row(const Job *j, const ReduceLoops *loops, const char *x, int64_t begin, int64_t end, double p,
                     Wide *into) {
  const Dim run = j->reduced.dim[0];
  const int64_t bytes = (int64_t)dtype_size(j->x.dtype);
  bool direct = run_is_direct(j->as, j->x.dtype, run.in);
  RunBuffer buffer;
  int64_t index[MAX_DIMS], at = begin % run.size;
  int64_t offset = dims_seek(&j->reduced, 1, begin / run.size, index, NULL);
  while (begin < end) {
    int64_t n = run.size - at;
    if (n > end - begin) n = end - begin;
    if (!direct && n > RUN) n = RUN;
    const void *part = run_load(j->isa, &buffer, j->as, x + (offset + at * run.in) * bytes, j->x.dtype, run.in, n);
    Wide w = loops->row(part, n, p);
    loops->merge(into, &w, 1);
    begin += n;
    at += n;
    if (at == run.size) {
      at = 0;
      offset += dims_step(&j->reduced, 1, index);
    }
  }
}

static void fold_columns(const Job *j, const ReduceLoops *loops, const char *x, int64_t begin, int64_t end,
                         int64_t width, const double *p, Wide *into) {
  const Dim run = j->reduced.dim[0];
  const int64_t bytes = (int64_t)dtype_size(j->x.dtype), step = j->kept.dim[0].in;
  bool direct = run_is_direct(j->as, j->x.dtype, step);
  RunBuffer buffer;
  _Alignas(64) unsigned char acc[TILE * 8], param[TILE * 8];
  for (int64_t i = 0; i < width; i++) {
    double v = p ? p[i] : j->r.param;
    if (j->as == DT_F32) ((float *)(void *)param)[i] = (float)v;
    else ((double *)(void *)param)[i] = v;
  }
  int64_t index[MAX_DIMS], at = begin % run.size;
  int64_t offset = dims_seek(&j->reduced, 1, begin / run.size, index, NULL);
  while (begin < end) {
    loops->clear(acc, width);
    for (int64_t left = end - begin < ROWS_IN_TYPE ? end - begin : ROWS_IN_TYPE; left > 0;) {
      int64_t rows = run.size - at < left ? run.size - at : left;
      if (!direct) rows = 1;
      const void *part = run_load(j->isa, &buffer, j->as, x + (offset + at * run.in) * bytes, j->x.dtype, step,
                                  width);
      loops->columns(acc, part, run.in, rows, width, param);
      left -= rows;
      begin += rows;
      at += rows;
      if (at == run.size) {
        at = 0;
        offset += dims_step(&j->reduced, 1, index);
      }
    }
    loops->widen(into, acc, width);
  }
}

static double test_bytes(const Job *j, const char *x, int64_t n) {
  const unsigned char *bytes = (const unsigned char *)x;
  return j->r.kind == FOLD_ANY ? SIMD_CALL(j->isa, bytes_any)(bytes, n) : SIMD_CALL(j->isa, bytes_all)(bytes, n);
}

static void fold(const Job *j, const ReduceLoops *loops, const char *x, int64_t begin, int64_t end, int64_t width,
                 const double *p, Wide *into) {
  for (int64_t i = 0; i < width; i++) into[i] = loops->identity;
  if (begin >= end) return;
  if (j->bytes) into->f = test_bytes(j, x + begin, end - begin);
  else if (j->one_run) *into = loops->row(x + begin * (int64_t)dtype_size(j->as), end - begin, p ? *p : j->r.param);
  else if (j->width == 1) fold_row(j, loops, x, begin, end, p ? *p : j->r.param, into);
  else fold_columns(j, loops, x, begin, end, width, p, into);
}

/* ---- finishing -------------------------------------------------------------------- */

/* What a first fold gives the second: the mean, or the maximum (0 for -inf, so that
 * exp(-inf - p) is 0). */
static double centre_of(const Job *j, Wide first) {
  if (j->r.kind == FOLD_VARIANCE) return first.f / (double)j->reduced.numel;
  return first.f == -INFINITY ? 0 : first.f;
}

/* w[i].f becomes what the reduction is asked for. */
static void finish(const Job *j, Wide *w, const double *centre, int64_t count) {
  const double n = (double)j->reduced.numel, free = n - j->r.param > 0 ? n - j->r.param : 0, param = j->r.param;
  if (j->r.kind == FOLD_VARIANCE && j->as == DT_F32) {
    for (int64_t i = 0; i < count; i++) { /* the spread was taken around the mean as f32 */
      double off = centre[i] - (double)(float)centre[i], s = w[i].f - n * off * off;
      w[i].f = s < 0 ? 0 : s;
    }
  }
#define EACH(expr)                      \
  for (int64_t i = 0; i < count; i++) { \
    double s = w[i].f;                  \
    w[i].f = (expr);                    \
  }                                     \
  break
  switch (j->r.finish) {
    case FINISH_NONE: break;
    case FINISH_MEAN: EACH(s / (param != 0 ? param : n));
    case FINISH_VAR: EACH(s / free);
    case FINISH_STD: EACH(sqrt(s / free));
    case FINISH_SQRT: EACH(sqrt(s));
    case FINISH_ROOT: EACH(pow(s, 1 / param));
    case FINISH_LOG: EACH(centre[i] == INFINITY ? centre[i] : log(s) + centre[i]);
  }
#undef EACH
}

static void store(const Job *j, int64_t at, int64_t stride, Wide *w, const double *centre, int64_t n) {
  RunBuffer buffer;
  if (j->centre_out.data) {
    char *mean = (char *)j->centre_out.data + at * (int64_t)dtype_size(j->centre_out.dtype);
    run_store(j->isa, &buffer, mean, j->centre_out.dtype, stride, centre, DT_F64, n);
  }
  char *to = (char *)j->out.data + at * (int64_t)dtype_size(j->out.dtype);
  if (j->as != DT_I64) finish(j, w, centre, n);
  if (n == 1 && j->out.dtype == DT_F32 && j->as != DT_I64) *(float *)(void *)to = (float)w->f;
  else run_store(j->isa, &buffer, to, j->out.dtype, stride, w, j->as == DT_I64 ? DT_I64 : DT_F64, n);
}

/* ---- who does what ---------------------------------------------------------------- */

typedef struct {
  int64_t width, in, out; /* outputs; offsets of the first in elements */
} Tile;

static Tile tile_at(const Job *j, int64_t t) {
  const Dim line = j->kept.dim[0];
  int64_t index[MAX_DIMS], start = t % j->tiles_per_line * j->width;
  Tile tile = {.width = line.size - start < j->width ? line.size - start : j->width};
  tile.in = dims_seek(&j->kept, 1, t / j->tiles_per_line, index, &tile.out) + start * line.in;
  tile.out += start * line.out;
  return tile;
}

static const ReduceLoops *loops_for(Isa isa, ReduceKind kind, Dtype as) {
  return SIMD_CALL(isa, reduce_loops)(kind, as);
}

/* Is a spread so small that it may be nothing but the rounding of the mean in f32?  Equal elements have none. */
static bool is_doubtful(const Job *j, const Wide *w, const double *centre, int64_t n) {
  if (j->r.kind != FOLD_VARIANCE || j->as != DT_F32) return false;
  for (int64_t i = 0; i < n; i++) {
    double rounding = 1e-6 * centre[i];
    if (w[i].f > 0 && w[i].f < (double)j->reduced.numel * rounding * rounding) return true;
  }
  return false;
}

/* The same in f64. */
static Job widened(const Job *j) {
  Job wide = *j;
  wide.as = DT_F64;
  wide.one_run = false;
  wide.first = loops_for(j->isa, FOLD_SUM, DT_F64);
  wide.last = loops_for(j->isa, j->r.kind, DT_F64);
  return wide;
}

static void fold_tiles(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *j = arg;
  Wide wide[TILE];
  double centre[TILE];
  for (int64_t t = begin; t < end; t++) {
    Tile tile = tile_at(j, t);
    const char *x = j->x.data ? (const char *)j->x.data + tile.in * (int64_t)dtype_size(j->x.dtype) : NULL;
    const double *p = NULL;
    if (j->first) {
      fold(j, j->first, x, 0, j->reduced.numel, tile.width, NULL, wide);
      for (int64_t i = 0; i < tile.width; i++) centre[i] = centre_of(j, wide[i]);
      p = centre;
    }
    fold(j, j->last, x, 0, j->reduced.numel, tile.width, p, wide);
    if (is_doubtful(j, wide, p, tile.width)) {
      Job again = widened(j);
      fold_tiles(&again, t, t + 1, worker);
    } else {
      store(j, tile.out, j->kept.dim[0].out, wide, p, tile.width);
    }
  }
}

/* Folds that lose nothing in their own type go straight to the output. */
static void fold_narrow(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  for (int64_t t = begin; t < end; t++) {
    Tile tile = tile_at(j, t);
    const char *x = j->x.data ? (const char *)j->x.data + tile.in * (int64_t)dtype_size(j->as) : NULL;
    char *to = (char *)j->out.data + tile.out * (int64_t)dtype_size(j->as);
    int64_t index[MAX_DIMS], offset = dims_seek(&j->reduced, 1, 0, index, NULL);
    const Dim run = j->reduced.dim[0];
    const char zeros[TILE * 8] = {0};
    j->last->clear(to, tile.width);
    for (int64_t done = 0; done < j->reduced.numel; done += run.size) {
      j->last->columns(to, x + offset * (int64_t)dtype_size(j->as), run.in, run.size, tile.width, zeros);
      offset += dims_step(&j->reduced, 1, index);
    }
  }
}

/* There is one tile; each part folds its share of the elements. */
static void fold_parts(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  int64_t n = j->reduced.numel, outs = j->kept.numel;
  for (int64_t part = begin; part < end; part++) {
    fold(j, j->in_first ? j->first : j->last, j->x.data, n * part / j->parts, n * (part + 1) / j->parts, outs,
         j->in_first ? NULL : j->centre, j->shared + part * outs);
  }
}

static void run_parts(Kern *k, Job *j) {
  Wide shared[MAX_PARTS * SHORT_RUN];
  double centre[SHORT_RUN];
  int64_t outs = j->kept.numel;
  j->shared = shared;
  for (int stage = j->first ? 0 : 1; stage < 2; stage++) {
    j->in_first = stage == 0;
    parallel_for(k->threads, j->parts, 1, fold_parts, j);
    const ReduceLoops *loops = j->in_first ? j->first : j->last;
    for (int64_t part = 1; part < j->parts; part++) loops->merge(shared, shared + part * outs, outs);
    if (!j->in_first) break;
    for (int64_t i = 0; i < outs; i++) centre[i] = centre_of(j, shared[i]);
    j->centre = centre;
  }
  if (is_doubtful(j, shared, j->centre, outs)) {
    Job again = widened(j);
    run_parts(k, &again);
  } else {
    store(j, 0, j->kept.dim[0].out, shared, j->centre, outs);
  }
}

static void reduce(Kern *k, Reduction r, Dtype as, View out, View centre_out, View x, const bool *reduced) {
  Job j = {.r = r, .as = as, .isa = k->isa, .x = x, .out = out, .centre_out = centre_out, .parts = 1};
  j.kept.numel = j.reduced.numel = 1;
  for (int d = x.ndim - 1; d >= 0; d--) {
    if (reduced[d]) dims_add(&j.reduced, (Dim){x.size[d], x.stride[d], 0});
    else dims_add(&j.kept, (Dim){x.size[d], x.stride[d], out.stride[d]});
  }
  if (j.kept.numel == 0) return;
  if (j.reduced.numel == 0) j.reduced = (Dims){.n = 1}; /* nothing to fold, whatever the other dimensions are */
  dims_merge(&j.reduced);
  dims_merge(&j.kept);
  j.last = loops_for(k->isa, r.kind, as);
  if (r.kind == FOLD_VARIANCE) j.first = loops_for(k->isa, FOLD_SUM, as);
  if (r.kind == FOLD_EXPSUM) j.first = loops_for(k->isa, FOLD_MAX, as);

  int64_t line = j.kept.dim[0].size;
  bool rows = along_rows(&j.kept, &j.reduced);
  bool dense = rows && j.reduced.n == 1 && j.reduced.dim[0].in == 1;
  j.one_run = dense && x.dtype == as;
  j.bytes = dense && dtype_size(x.dtype) == 1 && as == DT_F32 && (r.kind == FOLD_ANY || r.kind == FOLD_ALL);
  bool few = k->threads > 1 && j.kept.numel <= (rows ? 1 : SHORT_RUN) && j.kept.n == 1;
  int64_t parts = j.reduced.numel * j.kept.numel / GRAIN;
  if (few && parts > 1) {
    j.width = rows ? 1 : line;
    j.parts = parts < k->threads ? parts : k->threads;
    if (j.parts > MAX_PARTS) j.parts = MAX_PARTS;
    run_parts(k, &j);
    return;
  }
  j.width = rows ? 1 : TILE;
  if (!rows && line > TILE / 8) { /* enough tiles for every thread, none too narrow */
    int64_t lines = j.kept.numel / line, wanted = k->threads / lines;
    while (j.width > TILE / 8 && (line + j.width - 1) / j.width < wanted) j.width /= 2;
  }
  bool extreme = r.kind == FOLD_MAX || r.kind == FOLD_MIN || r.kind == FOLD_ABSMAX || r.kind == FOLD_ABSMIN;
  bool narrow = !rows && !j.first && r.finish == FINISH_NONE && x.dtype == as && out.dtype == as &&
                r.kind != FOLD_POWERS && j.kept.dim[0].in == 1 && j.kept.dim[0].out == 1 &&
                (extreme || j.reduced.numel <= ROWS_IN_TYPE);
  j.tiles_per_line = (line + j.width - 1) / j.width;
  int64_t tiles = j.kept.numel / line * j.tiles_per_line;
  int64_t each = (rows ? 1 : line < j.width ? line : j.width) * (j.reduced.numel + 1);
  parallel_for(k->threads, tiles, GRAIN / each + 1, narrow ? fold_narrow : fold_tiles, &j);
}

void kernel_reduce(Kern *k, Reduction r, Dtype as, View out, View x, const bool *reduced) {
  reduce(k, r, as, out, (View){0}, x, reduced);
}

void kernel_var_mean(Kern *k, double correction, Dtype as, View var, View mean, View x, const bool *reduced) {
  reduce(k, (Reduction){FOLD_VARIANCE, FINISH_VAR, correction}, as, var, mean, x, reduced);
}
