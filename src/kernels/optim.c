/* optim.c -- see optim.h. */
#include "kernels/optim.h"

#include "kernels/run.h"

enum { GRAIN = 1 << 14 };

typedef struct {
  const Optim *o;
  const Dtype *d;
  Dtype as;
  bool direct; /* all arrays are of the type that the loops work in */
  Isa isa;
  void *const *a;
} Job;

static void step(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  RunBuffer buffer[OPTIM_ARRAYS];
  int64_t piece = j->direct ? end - begin : RUN;
  for (int64_t i = begin; i < end; i += piece) {
    int64_t n = end - i < piece ? end - i : piece;
    char *at[OPTIM_ARRAYS];
    void *part[OPTIM_ARRAYS];
    for (int k = 0; k < OPTIM_ARRAYS; k++) {
      at[k] = j->a[k] ? (char *)j->a[k] + i * (int64_t)dtype_size(j->d[k]) : NULL;
      part[k] = at[k] ? (void *)(uintptr_t)run_load(j->isa, &buffer[k], j->as, at[k], j->d[k], 1, n) : NULL;
    }
    SIMD_CALL(j->isa, optim_run)(j->o, j->as, part, n);
    for (int k = 0; k < OPTIM_ARRAYS; k++) {
      if (part[k] && j->d[k] != j->as && (k != OPTIM_GRADIENT || j->o->store_unscaled))
        run_store(j->isa, &buffer[k], at[k], j->d[k], 1, part[k], j->as, n);
    }
  }
}

void kernel_optim_step(Kern *k, const Optim *o, const Dtype d[OPTIM_ARRAYS], void *const a[OPTIM_ARRAYS],
                       int64_t n) {
  Job j = {.o = o, .d = d, .as = d[0] == DT_F64 ? DT_F64 : DT_F32, .direct = true, .isa = k->isa, .a = a};
  for (int i = 0; i < OPTIM_ARRAYS; i++) j.direct &= !a[i] || d[i] == j.as;
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
