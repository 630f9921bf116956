/* walk.h -- several strided operands over one index space, in as few loops as possible.
 *
 * Operand 0 is the one that is written: its strides decide the order of the loops, so
 * that writes are as sequential as they can be.  Shared by copies and pointwise ops.
 *
 * I1  After walk_plan() dimension 0 is the innermost; no dimension has size 1; no two
 *     neighbours could be one (for all operands at once).  ndim may be 0: one element.
 * I2  Strides and offsets are in bytes, 0 where an operand is broadcast.
 * I3  numel is 0 if any size is.
 */
#ifndef TESS_KERNELS_WALK_H
#define TESS_KERNELS_WALK_H

#include "tensor/tensor.h"

enum { WALK_MAX = 24 }; /* operands */

typedef struct {
  int ndim, count;
  int64_t numel;
  int64_t size[MAX_DIMS];
  int64_t stride[WALK_MAX][MAX_DIMS];
} Walk;

void walk_init(Walk *w, int ndim, const int64_t *size);
/* v is broadcast to the walk's size: aligned at the last dimension. */
void walk_add(Walk *w, View v);
void walk_plan(Walk *w);

/* A place in the walk: elements are numbered in the order of the planned loops. */
typedef struct {
  int64_t index[MAX_DIMS];
  int64_t offset[WALK_MAX]; /* bytes from each operand's first element */
} Cursor;

void walk_seek(const Walk *w, int64_t element, Cursor *c);
/* Elements from here to the end of the innermost loop. */
static inline int64_t walk_run(const Walk *w, const Cursor *c) { return w->ndim ? w->size[0] - c->index[0] : 1; }
/* n <= walk_run().  At the end of the innermost loop goes on to the next. */
void walk_advance(const Walk *w, Cursor *c, int64_t n);
/* Byte stride of an operand in the innermost loop. */
static inline int64_t walk_step(const Walk *w, int operand) { return w->ndim ? w->stride[operand][0] : 0; }

#endif
