/* rebatch_inside.h -- what the files of rebatch.h share. */
#ifndef TESS_RUNTIME_REBATCH_INSIDE_H
#define TESS_RUNTIME_REBATCH_INSIDE_H

#include "runtime/rebatch.h"

enum { UNKNOWN = -1 }; /* an outer factor: the batch is in the dimension, more than once or with other rows */

static inline const int64_t *outer_of(const Rebatch *r, const Val *v) {
  return v && v->id < r->nvals ? r->outer[v->id] : NULL;
}

static inline const Val *tensor_arg(const Node *n, int i) {
  const Arg *a = i < n->nargs ? &n->args[i] : NULL;
  return a && a->kind == ARG_VAL && a->val->type == TY_TENSOR ? a->val : NULL;
}

static inline int64_t whole_size(const Val *v, int d) { return sym_is_int(v->size[d]) ? v->size[d]->value : -1; }

/* A dimension that an argument names; how much a number of rows of the program is now. */
static inline int dim_named(const Value *v, int ndim) {
  int64_t d = v->kind == VAL_INT ? v->i : 0;
  return (int)(d < 0 ? d + ndim : d);
}

static inline int64_t now(const Rebatch *r, int64_t rows) { return rows / r->from * r->to; }

/* The outer factors of a result, to be filled in before the call: they stand against what is inherited. */
static inline Status outer_to_be(const Rebatch *r, const Val *out, int64_t **there) {
  TRY_NEW(*there, arena_new_n(r->arena, int64_t, out->ndim + 1));
  if (out->id < r->nvals) r->outer[out->id] = *there;
  return OK;
}

/* How the arguments of an op tell sizes, or meet each other. */
typedef enum {
  SPELLS_RESHAPE,
  SPELLS_EXPAND,
  SPELLS_UNFLATTEN,
  SPELLS_SPLIT,
  SPELLS_FIRST,
  REPEATS,
  MEETS_ALL, /* from here on: who meets whom */
  MEETS_MATRICES,
  MEETS_BUT_ONE,
  MEETS_AROUND,
  MEETS_LABELS,      /* argument 1 */
  MEETS_LAST_LABELS, /* argument 2 */
  MEETS_STATES,
  MEETS_CELL_STATES,
  JOINS,
  STACKS,
  PICKS,
  PUTS,
  COUNTS_BAGS,
  MEETS_NOTHING,
} Meeting;

/* Arguments of the program's own rows are brought to those of the arguments that they meet. */
Status rebatch_meet(Rebatch *r, const Node *n, Value *bound, const Call *c, Meeting how);

/* Which arguments have been: from `was` to `bound`. */
Status rebatch_note_fits(Rebatch *r, const Node *n, const Value *was, const Value *bound);

#endif
