/* kernel_cases.h -- cases of a kernel, made at random, with every instruction set that this machine has, on one
 * thread and on several. */
#ifndef TESS_TESTS_KERNEL_CASES_H
#define TESS_TESTS_KERNEL_CASES_H

#include "kernels/kernel.h"

static uint64_t seed = 1;
static int64_t pick(int64_t from, int64_t to) { /* from <= x <= to */
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return from + (int64_t)((seed >> 33) % (uint64_t)(to - from + 1));
}

static inline void on_every_machine(void (*one_case)(Kern *k, int number), int cases) {
  Isa best = isa_detect();
  for (int threads = 1; threads <= 3; threads += 2) {
    for (Isa isa = ISA_BASE; isa <= best; isa++) {
      Kern k;
      kern_init(&k, threads);
      k.isa = isa;
      for (int i = 0; i < cases; i++) one_case(&k, i);
      kern_free(&k);
    }
  }
}

#endif
