/* plan_memory.h -- `tessera plan --grad --memory` and `tessera plan --train`: what a joint program or a step of
 * training takes of memory on one rank, and what a limit makes of it. */
#ifndef TESS_CLI_PLAN_MEMORY_H
#define TESS_CLI_PLAN_MEMORY_H

#include "cli/gradient_options.h"
#include "runtime/fit_memory.h"

/* Takes over e, as it was loaded, also on failure.  optim: a step of training with this optimizer; NULL: the
 * gradients alone. */
Status plan_memory(Exported *e, const GradientWords *gradients, const char *optim, MemoryLimit limit, bool json);

#endif
