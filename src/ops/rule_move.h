/* rule_move.h -- sharding rules of ops that move elements and compute nothing.
 *
 * Each is a PlaceFn or a LocalizeFn for the op's record, or a piece of one.  Rules of
 * views keep every axis where it is if the result can be told as shards (the view
 * calculus, shard/view_calculus.h); an axis that cannot becomes R, and rule_why() says
 * which and why.
 */
#ifndef TESS_OPS_RULE_MOVE_H
#define TESS_OPS_RULE_MOVE_H

#include "ops/geometry.h"
#include "ops/rule.h"

/* Which partial values go through. */
typedef enum {
  PASS_NONE,
  PASS_LINEAR, /* sum, avg */
  PASS_EQUAL,  /* every rank adds the same constant: avg, max, min */
  PASS_ALL,    /* elements only move, or zeros join them */
} Pass;
bool pass_partial(Pass pass, const Placement *p);

/* Output 0 (and all others) is input 0 with dimension d at to[d], -1: it must be whole.
 * Further inputs stay as they are: only their sizes matter. */
Status rule_renumber(Rules *r, const int *to, Pass pass);
/* to[d] for a view that is a GeometryFn: where the elements of dimension d are, if the
 * result has all of them in a dimension of their own. */
Status follow_geometry(const Rules *r, GeometryFn *view, int first, const Tensor *whole, int *to);

/* ---- views -------------------------------------------------------------------------- */

PlaceFn rule_reshape;   /* output i is input i in other sizes, row-major */
PlaceFn rule_same_dims; /* dimension d stays d where sizes are equal; sums pass if linear */
PlaceFn rule_alias;     /* the same sizes, everything passes */
PlaceFn rule_slice;     /* arguments dim, start, end, step */
PlaceFn rule_narrow;    /* dim, start, length */
PlaceFn rule_as_strided;
/* Outputs are pieces of dimension dim of input 0, one after the other. */
Status rule_pieces(Rules *r, int dim);

/* Output 0 combines the two halves of dimension dim of input 0, which is not linear. */
Status rule_halves(Rules *r, int dim);

LocalizeFn localize_view;    /* any reshape: as a view of the local sizes */
LocalizeFn localize_expand;  /* any expand: argument 1 becomes the local sizes */
LocalizeFn localize_squeeze; /* as squeeze.dims: only what is 1 globally goes */
LocalizeFn localize_slice, localize_narrow, localize_as_strided;
Status localize_pieces(Local *l, int dim); /* as split_with_sizes */

/* ---- several tensors ------------------------------------------------------------------ */

PlaceFn rule_cat;
PlaceFn rule_index_select, rule_gather, rule_take;
PlaceFn rule_index, rule_index_put;
PlaceFn rule_scatter;   /* (self, dim, index, src or value) */
PlaceFn rule_index_dim; /* index_fill, index_add, index_copy: (self, dim, index, source or value) */
/* X_scatter(self, src, ...) and X_backward(grad, sizes, ...) of a view. */
Status rule_view_scatter(Rules *r, GeometryFn *view);
Status rule_view_backward(Rules *r, GeometryFn *view);

/* All dimensions but those of the mask stay; further inputs are R. */
Status rule_all_but(Rules *r, const bool *whole, Pass pass);

#endif
