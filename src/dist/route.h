/* route.h -- from one set of placements to another: which steps, at which cost.
 *
 * I1  Every step is exact for every size: a state is a full list of placements, and a
 *     step is taken only if each rank finds what it needs within the step's group.
 * I2  The route is the cheapest over all sequences of states whose axes are each at their
 *     source, at R, or at their target, steps of one axis and of several merged; it never
 *     has more collectives than PyTorch's greedy route, equal neighbours merged.
 * I3  Planning never communicates; any mesh, any rank.
 */
#ifndef TESS_DIST_ROUTE_H
#define TESS_DIST_ROUTE_H

#include "dist/spec.h"

/*                      what                             on the axes of the group          */
#define STEP_KINDS(X)                                                                       \
  X(STEP_SLICE, "slice")                   /* R -> S: keep a part                        */ \
  X(STEP_PARTITION, "partition")           /* R -> P                                     */ \
  X(STEP_ALL_GATHER, "all_gather")         /* S -> R                                     */ \
  X(STEP_ALL_TO_ALL, "all_to_all")         /* S -> S of another dimension, one axis      */ \
  X(STEP_EXCHANGE, "exchange")             /* any S and R to any S and R, several axes   */ \
  X(STEP_REDUCE_SCATTER, "reduce_scatter") /* P -> S                                     */ \
  X(STEP_ALL_REDUCE, "all_reduce")         /* P -> R                                     */ \
  X(STEP_SCATTER, "scatter")               /* one rank's whole to everybody's part; in logs, not in routes */

/* clang-format off */
typedef enum {
#define X(id, name) id,
  STEP_KINDS(X)
#undef X
  STEP_KIND_COUNT
} StepKind;
/* clang-format on */

const char *step_kind_name(StepKind k);
static inline bool step_communicates(StepKind k) { return k >= STEP_ALL_GATHER; }

typedef struct {
  StepKind kind;
  unsigned axes;    /* the group: ranks that differ in these axes; 0 for local steps */
  unsigned changed; /* axes whose placement changes */
  Placement before[MAX_AXES], after[MAX_AXES];
  double cost;   /* microseconds */
  int64_t bytes; /* that a rank receives, at most */
} Step;

typedef struct {
  Step *step;
  int n;
  double cost;
  int64_t bytes;
  int collectives; /* steps that communicate over more than one rank */
} Route;

/* What a step that reduces does with the values: op over the group; then they are multiplied by
 * factor (averages over some axes and sums over others, in one go). */
typedef struct {
  ReduceOp op;
  double factor; /* 1: nothing to do */
  double norm;   /* not 0: values are norms of this exponent, reduced as sums of powers */
} StepReduction;
StepReduction step_reduction(const Mesh *m, const Step *s);

/* from and to: the same shape and dtype on the same mesh.  Steps live in the arena. */
Status route_find(const Spec *from, const Spec *to, Arena *arena, Route *out);
/* PyTorch's greedy route, for comparison; its steps are of one axis each.  Not meant to be
 * run: on uneven nested shards it can be wrong. */
Status route_greedy(const Spec *from, const Spec *to, Arena *arena, Route *out);

/* "S(0)S(0)->S(0)R->RR" */
const char *route_print(const Route *p, int naxes, char *buf, size_t cap);

/* ---- cost model ------------------------------------------------------------------------ */

/* PyTorch's numbers: axes within a host are fast, others slow (mesh->devices_per_host). */
typedef struct {
  double latency[MAX_AXES];   /* microseconds per hop */
  double bandwidth[MAX_AXES]; /* GiB/s */
} Links;
Links mesh_links(const Mesh *m);

/* PyTorch's redistribute_cost: what the choice of strategies weighs (propagate.h). */
double redistribute_cost(const Spec *from, const Placement *to);

#endif
