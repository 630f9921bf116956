/* marker.h -- inside of marking: what is known of a program and a plan; for the files mark*.c.
 *
 * A Marker is opened once per program and plan (mark_match.c: which entry speaks of which
 * weight, and along which dimension it is to be cut); marks are then made of it, of the whole
 * plan or of some of its entries:
 *
 *   mark_place.c     weights and buffers, and what is asked of the values around them
 *   mark_sequence.c  sequence parallelism
 *   mark_ends.c      what the user gives and gets
 */
#ifndef TESS_PLAN_MARKER_H
#define TESS_PLAN_MARKER_H

#include "plan/blocks.h"
#include "plan/mark.h"
#include "plan/plan_names.h"
#include "plan/tied.h"

typedef enum { SIDE_NONE, SIDE_COLUMNS, SIDE_ROWS } Side;

/* What a style asks for. */
typedef struct {
  Side side;
  bool gather; /* results are to be whole */
} StyleRow;
extern const StyleRow style_table[STYLE_COUNT];

/* An entry of the plan that speaks of an input of the graph. */
typedef struct {
  const PlanEntry *entry;
  const char *name;   /* fqn that matched */
  const char *module; /* NULL: the entry names the parameter itself */
  int input, axis;
  int dim; /* that is cut; -1: none */
  Side side;
  const WeightUses *uses;
  const char *why; /* of what is asked for its sake: "colwise 'layers.0.mlp.up_proj'" */
} Planned;

struct Marker {
  const Exported *e;
  Probe *probe; /* the caller's */
  Mesh *mesh;
  const PlanFile *plan; /* NULL: none */
  TextBuf *notes;
  Arena arena;
  Tied tied;
  PlanNames names;
  Planned *planned;
  int nplanned, planned_cap;
  /* of the marks that are being made */
  const bool *off; /* by entry: left out; NULL: none */
  Marks *m;
  Marks *spare; /* whose memory is free; NULL: none */
  Blocks blocks;
  const PlanEntry *noted; /* the last one that a note was about */
};

static inline const Val *input_val(const Marker *k, int input) { return k->e->graph->inputs[input]; }
static inline bool entry_is_on(const Marker *k, const PlanEntry *e) {
  return !k->off || !k->off[e - k->plan->entry];
}
/* Some node uses the input. */
bool marker_uses(const Marker *k, int input);
/* fmt with two texts. */
void marker_note(Marker *k, const char *fmt, const char *a, const char *b);
/* The axis that the entry cuts; NULL: the one for tensor parallelism, else the last. */
Status marker_axis(const Marker *k, const PlanEntry *e, int *out);
bool use_in_module(const WeightUse *u, const char *module);
/* Placements that are neither one nor one per axis. */
Status marker_wrong_length(const Marker *k, const char *name, int n);

/* mark_match.c: adds what the entry speaks of to k->planned. */
Status match_entry(Marker *k, const PlanEntry *e);
/* mark_place.c */
Status place_weights(Marker *k);
/* mark_ends.c */
Status place_user_inputs(Marker *k);
Status place_outputs(Marker *k);

#endif
