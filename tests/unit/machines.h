/* machines.h -- a kernel's cases with every instruction set that this machine has, on one thread and on several. */
#ifndef TESS_TESTS_MACHINES_H
#define TESS_TESTS_MACHINES_H

#include "kernels/kernel.h"

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
