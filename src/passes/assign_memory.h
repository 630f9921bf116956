/* assign_memory.h -- where each result lives.
 *
 * Works on a specialised graph whose values have tensors (views share a storage).  A
 * storage is alive from the node that makes it to the last node that reads any view of
 * it; two storages may share bytes of the slab when their lives do not overlap.
 *
 * I1  Storages with data (weights, constants, buffers) and those bound at run time
 *     (inputs, results for the caller) get no place: plan stays -1.
 * I2  Offsets are multiples of 64.
 */
#ifndef TESS_PASSES_ASSIGN_MEMORY_H
#define TESS_PASSES_ASSIGN_MEMORY_H

#include "graph/graph.h"

/* Sets Storage.plan of every planned storage and the size of the slab. */
Status assign_memory(Graph *g, size_t *slab_bytes);

#endif
