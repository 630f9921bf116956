/* feed.h -- where a program's inputs come from. */
#ifndef TESS_HARNESS_FEED_H
#define TESS_HARNESS_FEED_H

#include "graph/graph.h"
#include "runtime/feed_sizes.h"
#include "tensor/safetensors.h"

/* One Value per user input, from a .safetensors keyed by the inputs' names or positions.
 * Missing, unknown and doubled keys are errors that list what is wanted.  path NULL:
 * the program must take no inputs. */
Status feed_from_file(const Exported *e, const char *path, Scope *scope, Arena *arena, Value **inputs, int *n);

/* Made-up inputs: floats normal, integers small (below the size of any embedding they
 * index, as far as the graph tells), symbols as feed_symbols() (runtime/feed_sizes.h) chooses. */
Status feed_random(const Exported *e, uint64_t seed, bool hints, Scope *scope, Arena *arena, Value **inputs,
                   int *n);

#endif
