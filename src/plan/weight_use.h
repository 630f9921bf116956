/* weight_use.h -- what a weight's dimensions are to the ops that use it.
 *
 *   linear(x, w[o, i]):  o is a feature of the result, i is contracted with x
 *
 * Found by asking the ops' rules (probe.h), through transposes, casts and other ops on
 * weights alone: a weight kept transposed, or used by any op with a rule, needs no case
 * of its own.
 */
#ifndef TESS_PLAN_WEIGHT_USE_H
#define TESS_PLAN_WEIGHT_USE_H

#include "plan/probe.h"

typedef enum {
  DIM_OTHER,      /* cut, it would have to be gathered first */
  DIM_FEATURE,    /* cut, so is the result */
  DIM_CONTRACTED, /* cut, the results of the ranks are to be added up */
} DimRole;

/* A node where the weight meets what the user gave. */
typedef struct {
  const Node *node;
  const Val *weight;      /* as the node gets it */
  int place[MAX_DIMS];    /* dimension of `weight` that is the parameter's; -1: none, or flattened with others */
  DimRole role[MAX_DIMS]; /* of the parameter's dimensions */
  int out[MAX_DIMS];      /* DIM_FEATURE: the dimension of result 0 */
  int64_t begin[MAX_DIMS], end[MAX_DIMS]; /* the part of the parameter that `weight` is, where it was split */
  bool table;                             /* it meets indices only: rows are looked up */
} WeightUse;

enum { MAX_USES = 32 };
typedef struct WeightUses {
  int n;
  WeightUse use[];
} WeightUses;

/* v: an input of the graph.  Uses beyond MAX_USES are left out.  They are found once and belong to the probe. */
Status weight_uses(Probe *p, const Val *v, const WeightUses **out);

/* The argument (not a weight) and the dimension of it that are contracted with dimension
 * `dim` of the parameter.  NULL in *val: none, as with a table's rows. */
Status weight_partner(Probe *p, const WeightUse *use, int dim, const Val **val, int *val_dim);

#endif
