/* cut.h -- a program cut into one program per rank, for PyTorch or for tessera: each runs by
 * itself and talks to the others through functional collectives of named groups.
 *
 *     Cut *cut;
 *     cut_open(e, "dp=2,tp=2", plan, &cut);
 *     for (r = 0; r < cut->mesh->size; r++) cut_rank(cut, r, &program, &facts), pt2_write(program, ...);
 *     cut_free(cut);
 *
 * I1  No rank need be there: this is arithmetic, on any number of ranks.
 * I2  Every rank's program makes the same collectives in the same order.
 * I3  Sizes that are symbols stay so.  Those that ranks share must divide evenly then; the
 *     program checks it where it can.
 * I4  Names, metadata, signature and specs of inputs and outputs are those of the program.
 */
#ifndef TESS_RUNTIME_CUT_H
#define TESS_RUNTIME_CUT_H

#include <pthread.h>

#include "base/strmap.h"
#include "dist/redistribute.h"
#include "passes/mark.h"
#include "runtime/specialize.h"

typedef struct Cut {
  Exported *program; /* inlined, functional */
  Dist *dist;        /* plans only */
  Mesh *mesh;
  Marks *marks;
  TextBuf notes;     /* what marking had to tell, a line each */
  Ctx ctx;
  Arena arena;
  SymBindings fixed; /* sizes that are no symbols any more */
  StrMap multiple;   /* symbol -> int64_t *: its size must be a multiple, because ranks share it evenly */
  pthread_mutex_t lock; /* of multiple and group: ranks may be cut at the same time */
  bool half_sums;    /* set after opening: parts of sums of halves are rounded before they are added up,
                      * as PyTorch does; else they are f32 until they are one */
  bool group[1 << MAX_AXES]; /* by set of axes: some rank's program calls this group */
} Cut;

/* Takes over e, also on failure.  mesh: "dp=2,tp=4". */
Status cut_open(Exported *e, const char *mesh, const PlanFile *plan, Cut **out);
void cut_free(Cut *c); /* NULL is fine */

/* From now on the symbol is a number.  ERR_USAGE if there is none of that name or it is out of
 * its range. */
Status cut_fix_size(Cut *c, const char *symbol, int64_t size);
/* "s0=2,s1=16"; NULL: none. */
Status cut_fix_sizes(Cut *c, const char *text);

/* What one rank's program has. */
typedef struct {
  int64_t weight_bytes; /* of its state */
  int nodes;
  CommLog log;          /* what it says to others, with the causes */
  Dist *dist;           /* what the log speaks of */
} RankFacts;
void rank_facts_free(RankFacts *f);

/* The program of one rank.  Borrows from the cut: free it first.  Threads may call it for
 * different ranks at the same time. */
Status cut_rank(Cut *c, int rank, Exported **out, RankFacts *facts);

#endif
