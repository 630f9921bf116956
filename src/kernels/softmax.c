/* softmax.c -- see softmax.h.
 *
 * A contiguous tensor is (outer, n, inner) around the dimension.  inner = 1: rows, each
 * in one piece.  Else tiles of up to SOFTMAX_WIDTH columns.  What is not stored as the
 * type it is computed in goes through a worker's buffer, a row or a tile at a time.
 */
#include "kernels/softmax.h"

#include "kernels/convert.h"

enum { GRAIN = 1 << 13 }; /* elements worth a thread */

typedef struct {
  SoftmaxKind kind;
  Isa isa;
  Dtype as;
  View y, x, g; /* forward: y from x; backward: y (the gradient) from g and x (the output) */
  int64_t n, inner, tiles;
  const SoftmaxLoops *loops;
  char *buffer;      /* NULL: nothing is converted */
  size_t per_worker; /* bytes */
} Job;

static void *at(View v, int64_t element) { return (char *)v.data + element * (int64_t)dtype_size(v.dtype); }

static void convert(const Job *j, void *dst, Dtype to, const void *src, Dtype from, int64_t n) {
  SIMD_CALL(j->isa, convert_run)(dst, to, src, from, n);
}

static void work_rows(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *j = arg;
  char *first = j->buffer ? j->buffer + (size_t)worker * j->per_worker : NULL;
  char *second = first ? first + j->per_worker / 2 : NULL;
  for (int64_t r = begin; r < end; r++) {
    int64_t start = r * j->n;
    const void *x = at(j->x, start), *g = j->g.data ? at(j->g, start) : NULL;
    void *y = at(j->y, start);
    if (first) {
      convert(j, first, j->as, x, j->x.dtype, j->n);
      if (g) convert(j, second, j->as, g, j->g.dtype, j->n);
      x = first, g = g ? second : NULL, y = first;
    }
    if (g) j->loops->grad_row(j->kind, y, g, x, j->n);
    else j->loops->row(j->kind, y, x, j->n);
    if (first) convert(j, at(j->y, start), j->y.dtype, first, j->as, j->n);
  }
}

static void work_tiles(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *j = arg;
  char *first = j->buffer ? j->buffer + (size_t)worker * j->per_worker : NULL;
  char *second = first ? first + j->per_worker / 2 : NULL;
  const int64_t row_bytes = SOFTMAX_WIDTH * (int64_t)dtype_size(j->as);
  for (int64_t t = begin; t < end; t++) {
    int64_t column = t % j->tiles * SOFTMAX_WIDTH, start = t / j->tiles * j->n * j->inner + column;
    int64_t width = j->inner - column < SOFTMAX_WIDTH ? j->inner - column : SOFTMAX_WIDTH;
    const void *x = at(j->x, start), *g = j->g.data ? at(j->g, start) : NULL;
    void *y = at(j->y, start);
    int64_t stride = j->inner;
    if (first) {
      for (int64_t r = 0; r < j->n; r++) {
        convert(j, first + r * row_bytes, j->as, at(j->x, start + r * j->inner), j->x.dtype, width);
        if (g) convert(j, second + r * row_bytes, j->as, at(j->g, start + r * j->inner), j->g.dtype, width);
      }
      x = first, g = g ? second : NULL, y = first, stride = SOFTMAX_WIDTH;
    }
    if (g) j->loops->grad_columns(j->kind, y, stride, g, x, stride, j->n, width);
    else j->loops->columns(j->kind, y, stride, x, stride, j->n, width);
    for (int64_t r = 0; first && r < j->n; r++) {
      convert(j, at(j->y, start + r * j->inner), j->y.dtype, first + r * row_bytes, j->as, width);
    }
  }
}

static Status work(Kern *k, Job *j, int dim) {
  int64_t outer = 1;
  j->n = j->inner = 1;
  for (int d = 0; d < j->x.ndim; d++) *(d < dim ? &outer : d == dim ? &j->n : &j->inner) *= j->x.size[d];
  if (outer * j->n * j->inner == 0) return OK;
  j->isa = k->isa;
  j->as = j->y.dtype == DT_F64 || j->x.dtype == DT_F64 ? DT_F64 : DT_F32;
  j->loops = SIMD_CALL(k->isa, softmax_loops)(j->as);
  j->tiles = (j->inner + SOFTMAX_WIDTH - 1) / SOFTMAX_WIDTH;
  int64_t width = j->inner == 1 ? 1 : SOFTMAX_WIDTH, each = j->n * (j->inner < width ? j->inner : width);
  int64_t units = outer * j->tiles, grain = GRAIN / each + 1;
  size_t mark = kern_mark(k);
  bool direct = j->x.dtype == j->as && j->y.dtype == j->as && (!j->g.data || j->g.dtype == j->as);
  if (!direct) {
    size_t row = ((size_t)(j->n * width) * dtype_size(j->as) + 63) & ~(size_t)63;
    j->per_worker = 2 * row;
    TRY_NEW(j->buffer, kern_scratch(k, j->per_worker * (size_t)parallel_workers(k->threads, units, grain)));
  }
  parallel_for(k->threads, units, grain, j->inner == 1 ? work_rows : work_tiles, j);
  kern_release(k, mark);
  return OK;
}

Status kernel_softmax(Kern *k, SoftmaxKind kind, View y, View x, int dim) {
  Job j = {.kind = kind, .y = y, .x = x};
  return work(k, &j, dim);
}

Status kernel_softmax_backward(Kern *k, SoftmaxKind kind, View gx, View g, View y, int dim) {
  Job j = {.kind = kind, .y = gx, .x = y, .g = g};
  return work(k, &j, dim);
}

/* ---- sums of exponentials -------------------------------------------------------------------------- */

static double get(View v, int64_t i) { return v.dtype == DT_F64 ? ((double *)v.data)[i] : ((float *)v.data)[i]; }

static void put(View v, int64_t i, double value) {
  if (v.dtype == DT_F64) ((double *)v.data)[i] = value;
  else ((float *)v.data)[i] = (float)value;
}

/* Element i of the results; what is not in one piece is brought together, SOFTMAX_WIDTH elements at a time. */
static double sum_one(const Job *j, int64_t i) {
  const int64_t start = i / j->inner * j->n * j->inner + i % j->inner;
  const double top = get(j->g, i);
  double piece[SOFTMAX_WIDTH], sum = 0;
  View some = {.data = piece, .dtype = j->x.dtype};
  if (j->inner == 1) return j->loops->sum_row(at(j->x, start), j->n, top);
  for (int64_t r = 0; r < j->n; r += SOFTMAX_WIDTH) {
    int64_t m = j->n - r < SOFTMAX_WIDTH ? j->n - r : SOFTMAX_WIDTH;
    for (int64_t q = 0; q < m; q++) put(some, q, get(j->x, start + (r + q) * j->inner));
    sum += j->loops->sum_row(piece, m, top);
  }
  return sum;
}

static void sum_some(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *j = arg;
  (void)worker;
  for (int64_t i = begin; i < end; i++) put(j->y, i, sum_one(j, i));
}

void kernel_sum_exp(Kern *k, View y, View x, View top, int dim) {
  Job j = {.y = y, .x = x, .g = top, .n = x.size[dim], .inner = 1};
  int64_t results = 1;
  for (int d = 0; d < y.ndim; d++) results *= y.size[d];
  for (int d = dim + 1; d < x.ndim; d++) j.inner *= x.size[d];
  j.loops = SIMD_CALL(k->isa, softmax_loops)(x.dtype);
  if (results) parallel_for(k->threads, results, GRAIN / (j.n + 1) + 1, sum_some, &j);
}
