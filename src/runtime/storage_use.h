/* storage_use.h -- which values of a program lie in which storage, and from when to when.
 *
 * Whoever merges storages (reuse.c, place_concat.c) works on this: moving a storage's
 * values costs as many steps as it has values.
 *
 * I1  Nodes are numbered from 1; 0 stands for the inputs, INT64_MAX for the end of the
 *     program.  A storage is in use from the first to the last node that touches one of its
 *     values; what a started collective uses, up to its wait.
 * I2  Nothing is noted in the storages themselves: ranks in threads share those of the weights.
 */
#ifndef TESS_RUNTIME_STORAGE_USE_H
#define TESS_RUNTIME_STORAGE_USE_H

#include "base/ptrmap.h"
#include "graph/graph.h"

typedef struct {
  Storage *storage; /* NULL: its values have moved out */
  int64_t first, last;
  int head, tail; /* list of its values; -1: none */
} StorageUse;

typedef struct {
  StorageUse *v;
  int n;
  PtrMap number; /* of a storage: its place in v */
  Tensor **tensor;
  int *next; /* by tensor: the next in the same storage, or -1 */
  int ntensors;
} StorageTable;

Status storage_table_new(Graph *g, StorageTable *out);
void storage_table_free(StorageTable *t);

/* Of a storage that some value of the graph lies in. */
static inline StorageUse *storage_use_of(const StorageTable *t, const Storage *s) {
  return &t->v[*ptrmap_find(&t->number, s)];
}

/* All values of one storage move into another, so many bytes behind its beginning.  Their
 * dtypes must allow the distance. */
void storage_table_move(StorageTable *t, Storage *from, Storage *to, int64_t bytes);

#endif
