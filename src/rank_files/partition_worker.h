/* cut_work.h -- what the files that cut a program share; not for others.
 *
 *   cut.c           one rank's program, at given sizes
 *   cut_dynamic.c   the same with sizes that stay symbols
 */
#ifndef TESS_RANK_FILES_PARTITION_WORKER_H
#define TESS_RANK_FILES_PARTITION_WORKER_H

#include "rank_files/partition.h"

/* One rank at work: a Dist of its own, because meshes and specs are as one rank sees them. */
typedef struct {
  Partition *cut;
  int rank;
  Ctx ctx;
  Dist *dist;
  Marks marks; /* the cut's, on this rank's mesh */
  Scope scope;
  Arena arena;
  Tensor **shard;
} Worker;

/* The rank's program where symbols have these values, lowered.  log and watch may be NULL. */
Status worker_program(Worker *w, const SymBindings *at, CommLog *log, const WalkWatch *watch, Exported **out);

/* With a word about sizes that depend on data, if that is what s is about. */
Status hint_dynamic(Status s);

/* The same for all values; `hints` are those of the export, with what was given a fixed size. */
Status worker_dynamic(Worker *w, const SymBindings *hints, CommLog *log, Exported **out);

/* The fixed size of a symbol; NULL: it has none. */
const int64_t *partition_fixed_size(const Partition *c, const char *symbol);

#endif
