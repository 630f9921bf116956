/* parallel.c -- see parallel.h.  OpenMP, because oneDNN as packaged uses it: two
 * pools on the same cores would spin against each other. */
#include "base/parallel.h"

#ifdef _OPENMP
#include <omp.h>
#endif

int parallel_workers(int threads, int64_t n, int64_t grain) {
  if (grain < 1) grain = 1;
  int64_t pieces = (n + grain - 1) / grain;
  return pieces < threads ? (pieces < 1 ? 1 : (int)pieces) : threads < 1 ? 1 : threads;
}

void parallel_set_threads(int threads) {
#ifdef _OPENMP
  omp_set_num_threads(threads);
#else
  (void)threads;
#endif
}

void parallel_for(int threads, int64_t n, int64_t grain, ParallelFn *fn, void *arg) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
#ifdef _OPENMP
  int workers = parallel_workers(threads, n, grain);
  if (workers > 1 && !omp_in_parallel()) {
    int64_t pieces = (n + grain - 1) / grain;
#pragma omp parallel num_threads(workers)
    {
      int w = omp_get_thread_num(), team = omp_get_num_threads();
      /* The runtime may give fewer threads than asked: each then takes several ranges. */
      for (int i = w; i < workers; i += team) {
        int64_t begin = pieces * i / workers * grain, end = pieces * (i + 1) / workers * grain;
        if (end > n) end = n;
        if (begin < end) fn(arg, begin, end, i);
      }
    }
    return;
  }
#else
  (void)threads;
#endif
  fn(arg, 0, n, 0);
}
