/* fit_step.h -- the passes of a training step on several ranks, within a limit of memory.
 *
 * With fully sharded parameters two things save memory and cost time: gathering parameters again for the backward
 * and gathering them less far ahead; and computing results again (fit_memory.h).  They are chosen together.  Every
 * way of gathering that the user has left open is planned with the planner that makes programs; of the ways that
 * can be made to fit, the one that is predicted to take the least time is taken.
 *
 * I1  A larger limit is never slower: what fits a smaller one is among its choices.
 * I2  All ranks gather alike, in buckets of one size: they agree on the slowest prediction of any rank before they
 *     choose.  Ranks with rows of their own, whose programs are made at different times (the last batch has fewer
 *     rows for one of them), agree on the first and keep to it.
 */
#ifndef TESS_RUNTIME_FIT_STEP_H
#define TESS_RUNTIME_FIT_STEP_H

#include "runtime/fit_memory.h"
#include "runtime/prepared.h"

typedef struct {
  ReduceGradients how; /* as asked for, with the size of buckets, keep_gathered and prefetch as they were chosen */
  MemoryFit fit;       /* with a limit */
} StepFit;

/* Runs the passes of a training step on a specialised program, and fits it to the limit (amount 0: none).
 * Collective over the marks' mesh, if it has a world; agreed: what came of it for other sizes of inputs, which
 * counts for these, too, without asking anybody; NULL: nothing did. */
Status fit_step(Ctx *ctx, Exported *local, const ReduceGradients *how, const Marks *marks, MemoryLimit limit,
                const StepFit *agreed, StepFit *out);

#endif
