/* mark.h -- from a plan to placements: where every weight, input and output of a program
 * lies, and what is asked of the values around planned weights.
 *
 * What lies between is decided call by call, by the rules of dist/ (partition, in
 * runtime/specialize.c).
 *
 * I1  Marking reads the program and never changes it.
 * I2  The marks are the same on every rank.
 */
#ifndef TESS_PLAN_MARK_H
#define TESS_PLAN_MARK_H

#include "base/textbuf.h"
#include "dist/spec.h"
#include "graph/graph.h"
#include "plan/plan_file.h"

/* What is asked of a value: placements of some axes, the others as they come. */
typedef struct {
  unsigned axes; /* bit a: place[a] is wanted */
  Placement place[MAX_AXES];
  const char *why;  /* "colwise 'layers.0.mlp.up_proj'" */
  bool partial_sum; /* after a node: its result is one, of which every rank has a part */
} Want;

/* Before a node: argument `val` is brought there first. */
typedef struct Anchor {
  struct Anchor *next;
  const Val *val;
  Want want;
} Anchor;

typedef struct {
  Placement *place;   /* one per axis of the mesh */
  const char *why;    /* the plan's entry; NULL: whole because nobody said otherwise */
  bool batch;         /* S(0) because it divides: a call where it does not has the whole */
  unsigned gathered;  /* bits of axes along which it is sharded in memory alone: the program works with all of it */
  Placement *updated; /* of a parameter: the part of it that this rank updates, where that is less than it holds, as
                         replicas share the work of an optimizer; NULL: all that it holds */
} InputMark;

typedef struct Marks {
  Arena arena;
  Mesh *mesh;
  const Graph *graph;  /* whose values the ids are: not those of a cond's branches */
  InputMark *input;    /* per graph input */
  Want *output;        /* per graph output: all axes */
  Anchor **before;     /* by id of a node's first result */
  Want **after;        /* by id of a result */
  Placement *sequence; /* by id: S where a sum is wanted cut along the sequence; NULL: nowhere */
  int nvals;
  PlanFile *derived; /* the plan, if it was made for this program; owned */
  unsigned apart;    /* bits of axes: ranks along them run the same program on rows of their own (Dist.apart) */
  bool torch_ops;    /* the recorded program is for PyTorch: no op of our own where there is a choice */
} Marks;

struct Probe;
/* p: of an inlined and functional program; stays the caller's.  notes (may be NULL) gets a line per fact worth
 * telling. */
Status mark(struct Probe *p, Mesh *mesh, const PlanFile *plan, TextBuf *notes, Marks **out);
void marks_free(Marks *m); /* NULL is fine */

/* The same in two steps, where several plans are tried that are parts of one: what its entries
 * speak of is found out once. */
typedef struct Marker Marker;
/* p: of the program; stays the caller's and outlives the marker, as does the plan. */
Status marker_open(struct Probe *p, Mesh *mesh, const PlanFile *plan, TextBuf *notes, Marker **out);
/* off: by entry of the plan, whether it is left out; NULL: none is. */
Status marker_marks(Marker *k, const bool *off, Marks **out);
/* The marks are not needed any more: their memory is for those that are made next. */
void marker_take_back(Marker *k, Marks *m);
void marker_close(Marker *k); /* NULL is fine */

/* How input i lies in a call where dimension 0 has `batch` elements: mesh->naxes placements. */
void marks_input_places(const Marks *m, int i, int64_t batch, Placement *out);

/* Is it an axis over which batches are sharded?  plan may be NULL. */
bool mark_is_data_axis(const Mesh *m, const PlanFile *plan, int axis);
/* The axis that styles cut: the one called tp (tensor, model, mp), else the last that is not
 * one for data (dp, data, fsdp ...); -1: all are.  plan may be NULL. */
int mark_tensor_axis(const Mesh *m, const PlanFile *plan);

#endif
