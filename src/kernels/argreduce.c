/* argreduce.c -- positions of the largest or smallest element; see reduce.h.
 *
 * Along memory: the extreme of a run with the vectorised fold, then, only where it
 * beats what was found so far, a search for its first place.  Across memory: a tile of
 * columns, each with its best element and index so far.
 */
#include <string.h>

#include "kernels/reduce.h"
#include "kernels/run.h"

enum {
  GRAIN = 1 << 14, /* elements worth a thread */
  TILE = 256,      /* columns searched together */
};

typedef struct {
  bool largest;
  Isa isa;
  Dtype as;
  View value, index, x;
  int dim;
  int64_t n, step; /* elements along dim, their stride */
  int line;        /* dimension of the outputs that is walked innermost, -1: none */
  int64_t line_size, tiles_per_line;
  bool rows;
  const ReduceLoops *fold;
} Job;

/* ---- along memory ----------------------------------------------------------------- */

static bool beats(const Job *j, Wide v, Wide best) {
  if (j->as == DT_I64) return j->largest ? v.i > best.i : v.i < best.i;
  if (v.f != v.f) return best.f == best.f;
  return j->largest ? v.f > best.f : v.f < best.f;
}

static int64_t first_place(const Job *j, const void *x, int64_t n, Wide w) {
  int64_t i = 0;
  if (j->as == DT_I64) {
    const int64_t *v = x;
    while (i < n - 1 && v[i] != w.i) i++;
  } else if (j->as == DT_F64) {
    const double *v = x;
    while (i < n - 1 && v[i] != w.f && !(w.f != w.f && v[i] != v[i])) i++;
  } else {
    const float *v = x, f = (float)w.f;
    if (f != f)
      while (i < n - 1 && v[i] == v[i]) i++;
    else
      while (i < n - 1 && v[i] != f) i++;
  }
  return i;
}

static void search_row(const Job *j, const char *x, char *value, int64_t *index) {
  const int64_t bytes = (int64_t)dtype_size(j->x.dtype);
  RunBuffer buffer;
  Wide best = {0};
  int64_t place = 0;
  for (int64_t at = 0; at < j->n; at += RUN) {
    int64_t n = j->n - at < RUN
    ? j->n - at : RUN;
    const void *part = run_load(j->isa, &buffer, j->as, x + at * j->step * bytes, j->x.dtype, j->step, n);
    Wide w = j->fold->row(part, n, 0);
    if (at == 0 || beats(j, w, best)) {
      best = w;
      place = at + first_place(j, part, n, w);
    }
  }
  if (value) memcpy(value, x + place * j->step * bytes, (size_t)bytes);
  *index = place;
}

/* ---- across memory ---------------------------------------------------------------- */

static void search_columns(const Job *j, const char *x, int64_t width, char *value, int64_t value_step,
                           int64_t *index, int64_t index_step) {
  const int64_t bytes = (int64_t)dtype_size(j->x.dtype), step = j->x.stride[j->line];
  RunBuffer buffer;
  _Alignas(64) unsigned char best[TILE * 8];
  int64_t place[TILE] = {0};
  for (int64_t at = 0; at < j->n; at++) {
    const void *part = run_load(j->isa, &buffer, j->as, x + at * j->step * bytes, j->x.dtype, step, width);
    if (at == 0) memcpy(best, part, (size_t)width * dtype_size(j->as));
    else SIMD_CALL(j->isa, arg_columns)(j->as, j->largest, best, place, part, at, width);
  }
  if (value) run_store(j->isa, &buffer, value, j->value.dtype, value_step, best, j->as, width);
  run_store(j->isa, &buffer, index, DT_I64, index_step, place, DT_I64, width);
}

/* ---- all outputs ------------------------------------------------------------------ */

static void search_tiles(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  for (int64_t t = begin; t < end; t++) {
    int64_t start = t % j->tiles_per_line * TILE, rest = t / j->tiles_per_line, x_at = 0, value_at = 0,
            index_at = 0;
    if (j->rows) start = 0, rest = t;
    for (int d = j->x.ndim - 1; d >= 0; d--) {
      if (d == j->dim) continue;
      int64_t i = start;
      if (d != j->line || j->rows) {
        i = rest % j->x.size[d];
        rest /= j->x.size[d];
      }
      x_at += i * j->x.stride[d];
      index_at += i * j->index.stride[d];
      if (j->value.data) value_at += i * j->value.stride[d];
    }
    const char *x = (const char *)j->x.data + x_at * (int64_t)dtype_size(j->x.dtype);
    char *value = j->value.data ? (char *)j->value.data + value_at * (int64_t)dtype_size(j->value.dtype) : NULL;
    int64_t *index = (int64_t *)j->index.data + index_at;
    if (j->rows) {
      search_row(j, x, value, index);
    } else {
      int64_t width = j->line_size - start < TILE ? j->line_size - start : TILE;
      search_columns(j, x, width, value, value ? j->value.stride[j->line] : 0, index, j->index.stride[j->line]);
    }
  }
}

void kernel_argreduce(Kern *k, bool largest, View value, View index, View x, int dim) {
  Job j = {.largest = largest,
           .isa = k->isa,
           .value = value,
           .index = index,
           .x = x,
           .dim = dim,
           .line = -1,
           .tiles_per_line = 1};
  j.as = x.dtype == DT_F64 ? DT_F64 : dtype_is_float(x.dtype) || dtype_size(x.dtype) < 4 ? DT_F32 : DT_I64;
  j.n = x.ndim ? x.size[dim] : 1;
  j.step = x.ndim ? x.stride[dim] : 1;
  j.fold = SIMD_CALL(k->isa, reduce_loops)(largest ? FOLD_MAX : FOLD_MIN, j.as);
  int64_t outputs = 1;
  for (int d = 0; d < x.ndim; d++) {
    if (d == dim) continue;
    outputs *= x.size[d];
    if (x.size[d] > 1 && (j.line < 0 || x.stride[d] < x.stride[j.line])) j.line = d;
  }
  if (outputs == 0) return;
  j.line_size = j.line < 0 ? 1 : x.size[j.line];
  /* A tile across pays when its elements are neighbours or the rows are short. */
  j.rows = j.line < 0 || j.line_size < 8 || (j.step <= x.stride[j.line] && j.n >= 24);
  int64_t tiles = outputs;
  if (!j.rows) {
    j.tiles_per_line = (j.line_size + TILE - 1) / TILE;
    tiles = outputs / j.line_size * j.tiles_per_line;
  }
  int64_t each = (j.rows ? 1 : j.line_size < TILE ? j.line_size : TILE) * j.n;
  parallel_for(k->threads, tiles, GRAIN / (each + 1) + 1, search_tiles, &j);
}
