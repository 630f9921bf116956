/* fit_memory.h -- a limit for the memory of intermediate results: what the backward of a joint program reads of its
 * forward is computed again instead of kept, cheapest first, until the rest fits.
 *
 * One sequence of choices per program, whatever the limit: each step looks where the plan of memory is at its
 * height, lets go of what is kept across that point, the most bytes per second of computing first, and plans
 * again, with the planner that makes programs.  A limit takes the first step that fits.  So a smaller limit never
 * computes less again and never takes more memory, and the slab of the program that is built is the one promised.
 *
 * I1  Results keep their bits (saved.h).
 */
#ifndef TESS_RUNTIME_FIT_MEMORY_H
#define TESS_RUNTIME_FIT_MEMORY_H

#include "runtime/program.h"

/* "600M", "1.5G", "70%": bytes, with K, M, G, T of 1024, or a share of what a run takes without a limit. */
typedef struct {
  double amount;
  bool share; /* amount 1 is all; else bytes */
} MemoryLimit;

Status memory_limit_parse(const char *text, MemoryLimit *out);

typedef struct {
  size_t slab;
  double extra_flops, extra_seconds; /* predicted, of a core of a small server */
  int recomputed;                    /* nodes that are computed again */
} MemoryStep;

typedef struct {
  size_t free_slab; /* without a limit */
  size_t limit;     /* in bytes */
  double flops;     /* of a run without a limit */
  MemoryStep chosen;
  double group_seconds; /* predicted, of the collectives of fully sharded parameters, without a limit */
  size_t least;         /* what it takes with all computed again that can be, if that does not fit; 0: it fits */
} MemoryFit;

/* Rewrites the specialised joint program so that the slab that program_build() plans for it is at most the limit.
 * If nothing does, ERR_USAGE with the smallest limit that would.  `late` (NULL: none) lists the passes that the
 * program has yet to go through, such as those that say when parameters are gathered: every plan is made behind
 * them, and so is the program in the end. */
Status fit_memory(Ctx *ctx, Exported *joint, const char *late, MemoryLimit limit, MemoryFit *out);

/* What is told of a limit that cannot be met. */
Status memory_refused(size_t limit, size_t least, size_t free_slab);

/* All that can be had: steps[0] is the program as it is, each of the others takes less memory than all before it.
 * malloc'ed; joint is not changed but for its tensors. */
Status memory_curve(Ctx *ctx, Exported *joint, MemoryStep **steps, int *n);

/* The first step within a limit; NULL: none is. */
const MemoryStep *memory_step_within(const MemoryStep *steps, int n, size_t limit);

#endif
