/* prepared.h -- a program made ready, once per process: checked, inlined, functional, and marked with a plan
 * if it is for a mesh.  Whoever runs, partitions or reports a program starts from this, and ranks that are
 * threads share it.
 *
 *     Prepared *p;
 *     prepare(&ctx, e, &p);                    // takes over e
 *     prepare_marks(p, "dp=2,tp=2", plan);     // only for a mesh
 *     prepare_update(p, &recipe, NULL);        // only for training
 *     ... on every rank: session_open_prepared(ctx, p, mesh, &session) ...
 *     prepared_unref(p);
 *
 * I1  Read-only once it is made: ranks work on it at the same time.
 *     Node.mark of every node is its number.
 * I2  The marks lie on a mesh without ranks; prepared_marks() gives them as a rank sees them.
 */
#ifndef TESS_RUNTIME_PREPARED_H
#define TESS_RUNTIME_PREPARED_H

#include <stdatomic.h>

#include "passes/bucket_size.h"
#include "plan/mark.h"
#include "runtime/gradients.h"

/* The passes that every program goes through, in order: as it was read, and specialised.  A training step on
 * several ranks goes through passes_of_step instead, then what is computed again is chosen, then through
 * passes_of_reductions(). */
extern const char passes_once[], passes_once_for_torch[], passes_specialized[], passes_of_step[];

/* As many MiB as the machine is done with first (passes/bucket_size.h). */
enum { BUCKET_AUTO = -2 };

/* How a training step reduces its gradients over the ranks that have parts of the batch. */
typedef struct {
  double bucket_mb;      /* MiB that are reduced at once; 0: every gradient by itself; BUCKET_AUTO */
  BucketMachine machine; /* whose size BUCKET_AUTO is; all 0: as the passes have it */
  bool wait_at_once;     /* nothing is computed between a reduction's start and its wait: for comparison */
  Dtype dtype; /* gradients are rounded to it before they are added up, and come back in their own; DT_NONE:
                  not so */
  /* Of fully sharded parameters: */
  const char *wrap;    /* patterns of modules whose parameters are gathered at once, | between them; NULL: modules
                          whose   name is a number */
  bool keep_gathered;  /* from the forward to the backward */
  int prefetch;        /* groups that are gathered ahead; negative: 1, unless a limit of memory asks for others */
  bool reduce_at_once; /* reductions of a group's gradients are waited for where they start: for the sake of memory
                        */
} ReduceGradients;
extern const ReduceGradients reduce_gradients_default;
/* The axes that parameters are fully sharded over, as bits; marks NULL: none. */
unsigned marks_gathered_axes(const Marks *m);
/* Passes that put the collectives of parameters and gradients where they belong; buf is returned, which has room
 * for PASSES_CAP characters. */
enum { PASSES_CAP = 4096 };
const char *passes_of_reductions(const ReduceGradients *how, const Marks *marks, char *buf, size_t cap);
/* "scatter_gradients(..),fsdp(..)," of it; "": no parameters are fully sharded. */
const char *passes_of_fsdp(const ReduceGradients *how, const Marks *marks, char *buf, size_t cap);

typedef struct {
  atomic_int refs;
  Exported *program;
  Dist *dist;            /* of the marks' mesh; NULL: no marks */
  Marks *marks;          /* NULL: one rank */
  TextBuf notes;         /* what marking had to tell, a line each */
  unsigned replica_axes; /* bits of axes of a rank's mesh: ranks along them run the same program on rows of their
                            own, and average their gradients */
  bool shards_updates;   /* prepare_sharded_updates() was called */
  GradRequest step;      /* with an update: what a training step asks for */
  Arena arena;           /* of the step */
} Prepared;

/* Takes over e, also on failure. */
Status prepare(Ctx *ctx, Exported *e, Prepared **out);
/* The same for a program that PyTorch will run: it has no op there whose gradient PyTorch gets wrong. */
Status prepare_for_torch(Ctx *ctx, Exported *e, Prepared **out);
/* The same without taking it over, for those who go on to change it. */
Status prepare_program(Ctx *ctx, Exported *e);
/* plan NULL: nothing is sharded but the batch; it may be "auto", which is priced with the gradients that will be
 * asked for (NULL: none).  Once, before anybody shares p. */
Status prepare_marks(Prepared *p, const char *mesh, const PlanFile *plan, const GradOptions *grad);
/* Fully sharded data parallelism: parameters are sharded along a data axis as well, and gathered for the walk;
 * their gradients and what optimizers keep of them lie as they do.  axis NULL: the data axis that is not called
 * replica or ddp.  After prepare_marks() and before prepare_update(). */
Status prepare_fsdp(Prepared *p, const PlanFile *plan, const char *axis);
/* Replicas of a parameter, ranks along axes that shard batches, are to update a part of it each: gradients are
 * reduced to these parts, states are kept of these alone, and updated parts are gathered.  Where parameters are
 * sharded in memory (FSDP) or an optimizer works on whole matrices, nothing changes.  After prepare_marks() and
 * before prepare_update(). */
void prepare_sharded_updates(Prepared *p);
/* Of a program that is trained: ranks have rows of their own along these axes of the mesh.  After prepare_marks()
 * and before prepare_update(). */
void prepare_replicas(Prepared *p, unsigned axes);
/* The program is trained: its state gets what the optimizers keep, which on a mesh lies as the parameters do.
 * loss: as in GradOptions; the recipe's texts are borrowed.  Once,
 * after the marks (plans speak of the program's own names) and before anybody shares p. */
Status prepare_update(Prepared *p, const Recipe *r, const char *loss);
/* The marks on a rank's own mesh, of the same axes; borrowed from p. */
Marks prepared_marks(const Prepared *p, Mesh *mesh);

Prepared *prepared_ref(Prepared *p);
void prepared_unref(Prepared *p); /* NULL is fine */

#endif
