/* memory_peak.h -- where the plan of a program's memory is at its height, and what is alive there. */
#ifndef TESS_RUNTIME_MEMORY_PEAK_H
#define TESS_RUNTIME_MEMORY_PEAK_H

#include "runtime/program.h"

typedef struct {
  const Val *value; /* the last that was made in this memory */
  size_t bytes;
} AliveValue;

/* The position of the first node, counted from 1, at which most bytes of the slab are in use; 0: it has none. */
Status memory_peak(const Program *p, int *position);
/* What lies in the slab at that node, the largest first; malloc'ed. */
Status memory_alive_at(const Program *p, int position, AliveValue **out, int *n);

/* Bytes of intermediate results that are in use at a node. */
typedef struct {
  int64_t saved;     /* made by the forward, for the backward */
  int64_t gradients; /* made by the backward, for the update */
  int64_t other;
} MemoryUse;

/* At every node, by its position from 1 on; malloc'ed. */
Status memory_uses(const Program *p, MemoryUse **out);

#endif
