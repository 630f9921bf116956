/* grad_points.h -- the slope of one call of an op along a line through its arguments: by differences, and by the
 * gradients of a tape.
 *
 * The call gives a number: L = sum over results of Re<cotangent, result>, with random cotangents.  The tensors that
 * are moved go from x to x + step * d with a random direction d.  dL/dstep is (L(h) - L(-h)) / 2h, and Re<g, d>
 * with the gradients g.
 *
 * Every evaluation has copies of the arguments and a context of its own: ops in place may write, and random ones
 * draw the same numbers each time. */
#ifndef TESS_TESTS_GRAD_POINTS_H
#define TESS_TESTS_GRAD_POINTS_H

#include "ops/tensors.h"

enum { POINT_TENSORS = 64 };

typedef struct {
  const Op *op;
  const Value *arg;      /* bound */
  uint64_t moved, heard; /* bit i: tensor argument i is moved, result i counts; flat */
  uint64_t seed;         /* of direction and cotangents */
} Point;

typedef struct {
  double value;                   /* L, or its slope */
  double size;                    /* the sum of the slope's parts as positive numbers */
  int results;                    /* tensors that the call gave, floats or not */
  bool halves;                    /* some tensor is of 16-bit floats */
  uint64_t floats, exact, linked; /* bit i: result i is floating point or complex, f64, has a gradient to ask for */
} Found;

/* L. */
Status point_value(const Point *p, double step, Found *out);
/* Its slope at 0, by a tape. */
Status point_slope(const Point *p, Found *out);

#endif
