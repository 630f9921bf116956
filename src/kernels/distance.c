/* distance.c -- see distance.h. */
#include "kernels/distance.h"

enum { GRAIN = 1 << 13 };

typedef struct {
  void *out;
  const char *a, *b;
  Dtype d;
  Isa isa;
  int64_t rows, columns, n;
  double p;
} Job;

static void put(const Job *j, int64_t at, int64_t r, int64_t c) {
  const int64_t row = j->n * (int64_t)dtype_size(j->d);
  double v = SIMD_CALL(j->isa, distance_row)(j->d, j->a + r * row, j->b + c * row, j->n, j->p);
  if (j->d == DT_F64) ((double *)j->out)[at] = v;
  else ((float *)j->out)[at] = (float)v;
}

static void all_of_rows(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  for (int64_t r = begin; r < end; r++) {
    for (int64_t c = 0; c < j->columns; c++) put(j, r * j->columns + c, r, c);
  }
}

static void later_rows(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  for (int64_t r = begin; r < end; r++) {
    int64_t first = r * (2 * j->rows - r - 1) / 2; /* pairs of earlier rows */
    for (int64_t c = r + 1; c < j->rows; c++) put(j, first + c - r - 1, r, c);
  }
}

void kernel_distances(Kern *k, void *out, const void *a, const void *b, Dtype d, int64_t rows, int64_t columns,
                      int64_t n, double p) {
  Job j = {out, a, b, d, k->isa, rows, columns, n, p};
  parallel_for(k->threads, rows, GRAIN / (columns * n + 1) + 1, all_of_rows, &j);
}

void kernel_pair_distances(Kern *k, void *out, const void *a, Dtype d, int64_t rows, int64_t n, double p) {
  Job j = {out, a, a, d, k->isa, rows, rows, n, p};
  parallel_for(k->threads, rows, GRAIN / (rows * n + 1) + 1, later_rows, &j);
}
