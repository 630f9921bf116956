/* assign_memory.h -- where each result lives.
 *
 * Works on a specialised graph whose values have tensors (views share a storage).  A
 * storage is alive from the node that makes it to the last node that reads any view of
 * it; two storages may share bytes of the slab when their lives do not overlap.
 *
 * I1  Storages with data (weights, constants, buffers) and those bound at run time
 *     (inputs, results for the caller) get no place: plan stays -1.
 * I2  Offsets are multiples of 64.
 * I3  With Graph.gradients_apart, what the backward makes and the update reads after the backward's last node
 * stands behind the slab, where nothing shares its bytes: gradients that have to wait for all others (their norm).
 */
#ifndef TESS_PASSES_ASSIGN_MEMORY_H
#define TESS_PASSES_ASSIGN_MEMORY_H

#include "graph/graph.h"

typedef struct {
  size_t slab;      /* shared by what is not alive together */
  size_t gradients; /* behind it (I3) */
} MemoryLayout;

/* Sets Storage.slab_offset of every planned storage. */
Status assign_memory(Graph *g, MemoryLayout *out);

#endif
