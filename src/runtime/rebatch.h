/* rebatch.h -- a program that was exported for one batch size, walked with another.
 *
 * Such a program has the batch in its arguments: view(x, [96, 64]) where 96 is 12 rows of 8 tokens.  While it is
 * walked with 6 rows, sizes that are spelled out are brought to what they are for 6: which of them belong to the
 * batch is followed from the user inputs on, value by value.
 *
 * For each dimension of a value that holds the batch its *outer factor* is known: the dimension is `outer` times
 * the batch times something, the batch standing between the two (1 for [batch], [batch * tokens]).  So a dimension
 * that was joined from several is split again at the right place.
 *
 * I1  Values that do not come from the batch stay as they are; where one meets the batch (a mask that was made for
 *     12 rows), its first rows are taken, behind each of the outer ones, or more of them if they are all alike, and
 *     numbers of rows that pick from it go on to count.
 * I2  A result whose sizes are neither those of the program nor in proportion is an error that names the node, and
 *     says to export with a dynamic batch.
 * I3  So is a result of the program's own rows, such as their sum, where I1 takes others of them elsewhere.
 */
#ifndef TESS_RUNTIME_REBATCH_H
#define TESS_RUNTIME_REBATCH_H

#include "graph/graph.h"
#include "ops/op.h"

/* A node's argument that was brought to the batch (I1). */
typedef struct {
  const struct Node *node;
  const struct Val *val;
} RebatchFit;

typedef struct {
  int64_t from, to;   /* rows of the program, and of this walk; from 0: they are the same */
  const Graph *graph; /* value ids are of this one: nodes of sub-graphs (cond, scan) are called as they are */
  int64_t **outer;    /* by value id, then by dimension: the outer factor, 0: no batch; NULL: none at all */
  int nvals;
  RebatchFit *fit;
  int nfits, fits_cap;
  Arena *arena;
} Rebatch;

/* Which batch the program is for and which is given, if they differ and all inputs that have it agree: then *out
 * has from > 0, and `as_exported` gets inputs of the program's own sizes, to be bound and checked in their place.
 */
Status rebatch_find(const Exported *e, const Value *user, int n, Scope *scope, Arena *arena, Rebatch *out,
                    const Value **as_exported);

/* Around a node's call: bound is c->arg. */
Status rebatch_arguments(Rebatch *r, const Node *n, Value *bound, Call *c);
Status rebatch_results(Rebatch *r, const Node *n, const Value *outs, int nouts);
/* Behind the last node: I3. */
Status rebatch_check(const Rebatch *r, const Graph *g);
/* What a call failed with, and that it may be so because of the other batch. */
Status rebatch_explain(const Rebatch *r, Status s);

#endif
