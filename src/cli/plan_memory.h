/* plan_memory.h -- `tessera plan --grad --memory`: what a limit of memory makes of a joint program on one rank. */
#ifndef TESS_CLI_PLAN_MEMORY_H
#define TESS_CLI_PLAN_MEMORY_H

#include "cli/gradient_options.h"
#include "runtime/fit_memory.h"

/* Takes over e, as it was loaded, also on failure. */
Status plan_memory(Exported *e, const GradientWords *gradients, MemoryLimit limit, bool json);

#endif
