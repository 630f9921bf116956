/* partition.h -- a program cut into one program per rank, for PyTorch or for tessera: each runs by
 * itself and talks to the others through functional collectives of named groups.
 *
 *     Partition *cut;
 *     partition_open(e, "dp=2,tp=2", plan, &cut);
 *     for (r = 0; r < cut->mesh->size; r++) partition_rank(cut, r, &program, &facts), pt2_write(program, ...);
 *     partition_free(cut);
 *
 * I1  No rank need be there: this is arithmetic, on any number of ranks.
 * I2  Every rank's program makes the same collectives in the same order.
 * I3  Sizes that are symbols stay so.  Those that ranks share must divide evenly then; the
 *     program checks it where it can.
 * I4  Names, metadata, signature and specs of inputs and outputs are those of the program.
 */
#ifndef TESS_RANK_FILES_PARTITION_H
#define TESS_RANK_FILES_PARTITION_H

#include <pthread.h>

#include "base/strmap.h"
#include "dist/redistribute.h"
#include "plan/mark.h"
#include "runtime/prepared.h"
#include "runtime/specialize.h"

typedef struct Partition {
  Prepared *prepared;
  const Exported *program; /* the prepared one, its marks and their mesh, which has no ranks */
  const Marks *marks;
  const Mesh *mesh;
  Ctx ctx;
  Arena arena;
  SymBindings fixed;    /* sizes that are no symbols any more */
  StrMap multiple;      /* symbol -> int64_t *: its size must be a multiple, because ranks share it evenly */
  pthread_mutex_t lock; /* of multiple and group: ranks may be cut at the same time */
  bool half_sums;       /* set after opening: parts of sums of halves are rounded before they are added up,
                         * as PyTorch does; else they are f32 until they are one */
  GradRequest grad;     /* wants_grad: the ranks' programs are joint ones */
  bool wants_grad;
  bool loss_alone; /* set after asking for gradients: of what the program returns the loss stays, and nothing is
                    * communicated for the sake of the rest */
  int64_t batch;   /* set after opening: rows of the programs' batches, where the program has a fixed number of
                    * them; 0: as it was exported */
  ReduceGradients reduce;    /* set after opening: how fully sharded parameters are gathered */
  bool group[1 << MAX_AXES]; /* by set of axes: some rank's program calls this group */
} Partition;

/* The programs are training steps: the gradients are used as the recipe says.  Of the options, `loss` counts. */
typedef struct {
  const Recipe *recipe;
  const GradOptions *grad;
} PartitionStep;

/* Takes over e, also on failure.  mesh: "dp=2,tp=4".  step NULL: no training. */
Status partition_open(Exported *e, const char *mesh, const PlanFile *plan, const PartitionStep *step,
                      Partition **out);
void partition_free(Partition *c); /* NULL is fine */

/* The programs give the gradients behind their outputs, each placed like its parameter.  After opening. */
Status partition_want_gradients(Partition *c, const GradOptions *o);

/* Parameters and gradients are sharded over a data axis, too, and gathered group by group: see prepare_fsdp().
 * After opening without a step. */
Status partition_shard_fully(Partition *c, const PlanFile *plan, const char *axis);

/* Do the ranks' programs leave out this output of the program? */
bool partition_drops_output(const Partition *c, int i);

/* "s0=2,s1=16"; NULL: none. */
Status partition_fix_sizes(Partition *c, const char *text);

/* The sizes that symbols have in the files: fixed ones, and others as on export; *open: there are others.  out->v
 * is malloc'ed. */
Status partition_sizes(const Partition *c, SymBindings *out, bool *open);

/* How many rows this input has in the files, instead of as many as in the program; 0: it is as the program has it.
 */
int64_t partition_rows(const Partition *c, const Val *input);

/* What one rank's program has. */
typedef struct {
  int64_t weight_bytes; /* of its state */
  int nodes;
  CommLog log; /* what it says to others, with the causes */
  Dist *dist;  /* what the log speaks of */
} RankFacts;
void rank_facts_free(RankFacts *f);

/* The program of one rank.  Borrows from the cut: free it first.  Threads may call it for
 * different ranks at the same time. */
Status partition_rank(Partition *c, int rank, Exported **out, RankFacts *facts);

#endif
