/* optim.c -- see optim.h. */
#include "kernels/optim.h"

#include "kernels/run.h"

enum { GRAIN = 1 << 14 };

typedef struct {
  const Optim *o;
  Dtype d, as;
  Isa isa;
  void *const *a;
} Job;

static void step(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  const int64_t bytes = (int64_t)dtype_size(j->d);
  RunBuffer buffer[OPTIM_ARRAYS];
  int64_t piece = j->d == j->as ? end - begin : RUN;
  for (int64_t i = begin; i < end; i += piece) {
    int64_t n = end - i < piece ? end - i : piece;
    void *part[OPTIM_ARRAYS];
    for (int k = 0; k < OPTIM_ARRAYS; k++) {
      char *from = j->a[k] ? (char *)j->a[k] + i * bytes : NULL;
      part[k] = from ? (void *)(uintptr_t)run_load(j->isa, &buffer[k], j->as, from, j->d, 1, n) : NULL;
    }
    SIMD_CALL(j->isa, optim_run)(j->o, j->as, part, n);
    for (int k = 0; k < OPTIM_ARRAYS && j->d != j->as; k++) {
      if (part[k]) run_store(j->isa, &buffer[k], (char *)j->a[k] + i * bytes, j->d, 1, part[k], j->as, n);
    }
  }
}

void kernel_optim_step(Kern *k, const Optim *o, Dtype d, void *const a[OPTIM_ARRAYS], int64_t n) {
  Job j = {.o = o, .d = d, .as = d == DT_F64 ? DT_F64 : DT_F32, .isa = k->isa, .a = a};
  parallel_for(k->threads, n, GRAIN, step, &j);
}

bool kernel_unscale(Kern *k, Dtype d, void *x, int64_t n, double scale) {
  Dtype as = d == DT_F64 ? DT_F64 : DT_F32;
  RunBuffer buffer;
  bool found = false;
  for (int64_t i = 0; i < n; i += RUN) {
    int64_t m = n - i < RUN
    ? n - i : RUN;
    char *at = (char *)x + i * (int64_t)dtype_size(d);
    void *part = (void *)(uintptr_t)run_load(k->isa, &buffer, as, at, d, 1, m);
    found |= SIMD_CALL(k->isa, unscale_run)(as, part, m, scale);
    run_store(k->isa, &buffer, at, d, 1, part, as, m);
  }
  return found;
}
