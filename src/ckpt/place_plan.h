/* place_plan.h -- how the tensors of a checkpoint lie on a mesh, by a plan (plan/plan_file.h) and names alone.
 *
 * There is no program here, so the style words mean what they mean for Linear and Embedding modules, whose weights
 * are [out, in] and [entries, features]:
 *
 *     colwise, colwise_gather_output, embedding_rowwise    S(0) of weight and bias
 *     rowwise, rowwise_split_input                         S(1) of the weight, the bias is whole
 *     packed_colwise, packed_rowwise                       the same with as many segments as "packed" says (2)
 *     everything else, and what no entry names             R
 *     placements                                           as they are written
 *
 * A state of the optimizer that has the size of its parameter lies as it does.
 */
#ifndef TESS_CKPT_PLACE_PLAN_H
#define TESS_CKPT_PLACE_PLAN_H

#include "ckpt/writing.h"
#include "plan/plan_file.h"

typedef struct {
  const Mesh *mesh;
  const PlanFile *plan; /* NULL: dimension 0 of every tensor is cut over all axes */
  const Derived *d;
} PlacePlan;

/* A WriteMesh.place; arg is a PlacePlan. */
Status place_by_plan(const void *arg, const DerivedTensor *t, Placement *out);

#endif
