/* distance_grad.c -- gradients of distances; see distance.h.  A task is one row. */
#include <math.h>
#include <string.h>

#include "kernels/distance.h"

typedef struct {
  void *out;
  const void *a, *b, *g, *dist;
  int64_t rows, columns, n;
  double p;
  bool pairs; /* rows of a with each other: g and dist are of all i < j, in order */
} Job;

/* Slope of the distance of two rows by each element x of their difference. */
static double slope(double x, double dist, double p) {
  double sign = x > 0 ? 1 : x < 0 ? -1 : 0;
  if (p == 0) return 0;
  if (p == 1) return sign;
  if (isinf(p)) return fabs(x) == dist ? sign : 0;
  if (dist == 0 || (p < 1 && x == 0)) return 0;
  if (p == 2) return x / dist;
  return sign * pow(fabs(x) / dist, p - 1);
}

/* Where the distance of rows i and j stands. */
static int64_t place(const Job *job, int64_t i, int64_t j) {
  if (!job->pairs) return i * job->columns + j;
  int64_t low = i < j ? i : j, high = i < j ? j : i;
  return low * job->rows - low * (low + 1) / 2 + high - low - 1;
}

#define DEFINE_ROWS(T)                                                                                            \
  static void rows_##T(void *arg, int64_t begin, int64_t end, int worker) {                                       \
    (void)worker;                                                                                                 \
    const Job *job = arg;                                                                                         \
    for (int64_t i = begin; i < end; i++) {                                                                       \
      const T *a = (const T *)job->a + i * job->n;                                                                \
      T *out = (T *)job->out + i * job->n;                                                                        \
      memset(out, 0, (size_t)job->n * sizeof *out);                                                               \
      for (int64_t c = 0; c < job->columns; c++) {                                                                \
        if (job->pairs && c == i) continue;                                                                       \
        int64_t at = place(job, i, c);                                                                            \
        const T *b = (const T *)job->b + c * job->n;                                                              \
        T g = ((const T *)job->g)[at], dist = ((const T *)job->dist)[at];                                         \
        for (int64_t e = 0; e < job->n; e++) out[e] += g * (T)slope((double)(a[e] - b[e]), (double)dist, job->p); \
      }                                                                                                           \
    }                                                                                                             \
  }
DEFINE_ROWS(float)
DEFINE_ROWS(double)

static void run(Kern *k, Dtype d, Job *job) {
  int64_t work = job->columns * job->n + 1;
  parallel_for(k->threads, job->rows, 1 + 4096 / work, d == DT_F64 ? rows_double : rows_float, job);
}

void kernel_distances_grad(Kern *k, void *out, const void *a, const void *b, const void *g, const void *dist,
                           Dtype d, int64_t rows, int64_t columns, int64_t n, double p) {
  Job job = {out, a, b, g, dist, rows, columns, n, p, false};
  run(k, d, &job);
}

void kernel_pair_distances_grad(Kern *k, void *out, const void *a, const void *g, const void *dist, Dtype d,
                                int64_t rows, int64_t n, double p) {
  Job job = {out, a, a, g, dist, rows, rows, n, p, true};
  run(k, d, &job);
}
