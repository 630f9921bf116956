/* dist.h -- inside of a Dist: the tables of one rank. */
#ifndef TESS_DIST_DIST_H
#define TESS_DIST_DIST_H

#include "dist/propagate.h"
#include "dist/redistribute.h"

enum { SPEC_BUCKETS = 1024 };

/* A redistribution that was recorded: this shard, from one spec to another. */
typedef struct Moved {
  struct Moved *next;
  const Tensor *local;
  const Spec *from, *to;
  Tensor *result;
  int64_t bytes; /* that a rank receives */
  int stamp;     /* for whoever is told of it; 0 at first */
} Moved;

struct Dist {
  Handler handler; /* of LEVEL_SHARD: dispatch.c */
  World *world;
  Arena arena;
  Mesh *meshes;
  struct Spec *spec[SPEC_BUCKETS];
  CommLog *log;     /* innermost; NULL: nobody watches */
  const char *rule; /* while an op's inputs are moved because its rule says so: its words; NULL: at other times */
  ImplicitMode implicit;
  Mesh *current;             /* mesh scope: what functions without a mesh argument use */
  bool implicit_replication; /* plain tensors of any size meet DTensors as R */
  bool loss_parallel;        /* keep_sharded, but for ops on single calls; and implicit_replication */
  bool keep_sharded;   /* softmax, norms and losses over a cut dimension exchange their sums instead of gathering:
                        * fewer bytes, other roundings.  PyTorch gathers; programs that are compiled do not */
  unsigned apart;      /* bits of mesh axes along which what is said to be whole is each rank's own, because ranks
                        * have rows of their own: an op whose inputs are all whole there may not share its work */
  double decided_cost; /* of all decisions on meshes without a world, microseconds */
  /* Told of each of these (or NULL). */
  void (*decided)(void *arg, const Call *c, const Decision *d);
  void *decided_arg;
  /* While recording, all-reduces are two nodes, one that starts and one that waits (_c10d_functional), so that
   * passes may join them and compute in between: for gradients. */
  bool start_reductions;
  /* While recording, told of each redistribution that is asked for, made before or not (or NULL). */
  Status (*moved)(void *arg, Moved *m);
  void *moved_arg;
  struct Recording *recording; /* emit.c; NULL: nobody records */
  struct Decisions *decisions; /* decisions.c */
};

/* Between these, redistributions that are recorded are remembered.  Not nested by hand:
 * end gets what begin gave. */
Status dist_record(Dist *d, struct Recording **outer);
void dist_record_end(Dist *d, struct Recording *outer);

#endif
