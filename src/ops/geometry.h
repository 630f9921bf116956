/* geometry.h -- the arithmetic of views, once.
 *
 * A Geometry is how a tensor lies in its storage.  A GeometryFn turns the geometry of a
 * tensor into that of a view of it, reading its own arguments from the call, starting
 * at argument `first`: select(self, dim, index) has first = 1, and
 * select_scatter(self, src, dim, index) and select_backward(grad, sizes, dim, index)
 * have first = 2.  So one function serves the view, its copy, its scatter and its gradient.
 *
 * I1  Only the geometry is read and changed; an error names the op and leaves it undefined.
 * I2  Strides are ATen's, also those of dimensions of size 1.
 */
#ifndef TESS_OPS_GEOMETRY_H
#define TESS_OPS_GEOMETRY_H

#include "ops/op.h"

typedef struct {
  Dtype dtype;
  int ndim;
  int64_t offset; /* elements of dtype from the start of the storage */
  int64_t size[MAX_DIMS], stride[MAX_DIMS];
} Geometry;

typedef Status GeometryFn(const Call *c, int first, Geometry *g);

Geometry geometry_of(const Tensor *t);
/* A tensor of its own: row-major, offset 0. */
Status geometry_contiguous(const Call *c, Dtype d, Ints size, Geometry *g);
/* Appends a view of t, or a fresh tensor, of this geometry. */
Status out_geometry_view(Call *c, const Tensor *t, const Geometry *g);
Status out_geometry_new(Call *c, const Geometry *g);
/* Fails if g reaches outside of t's storage; of a tensor without storage nothing is known. */
Status geometry_check(const Call *c, const Geometry *g, const Tensor *t);
/* What kernels get: the part of t's storage that g describes.  g must outlive it. */
View geometry_view(const Geometry *g, const Tensor *t);

/* ---- the views; the argument lists are those of the op of the same name -------- */

GeometryFn geometry_alias, geometry_transpose, geometry_t, geometry_reverse, geometry_mt, geometry_permute,
    geometry_expand, geometry_expand_as, geometry_squeeze_all, geometry_squeeze_dim, geometry_squeeze_dims,
    geometry_unsqueeze, geometry_slice, geometry_select, geometry_narrow, geometry_diagonal, geometry_as_strided,
    geometry_unfold, geometry_movedim, geometry_movedims, geometry_view_as_real, geometry_view_as_complex,
    geometry_real, geometry_imag, geometry_view_dtype;

/* ---- pieces that other ops need ------------------------------------------------ */

/* The elements start, start + step, ... below end of dimension dim (already wrapped). */
Status geometry_cut(const Call *c, Geometry *g, int dim, int64_t start, int64_t end, int64_t step);
/* Python's clamping of slice bounds; None is the beginning or the end. */
void slice_bounds(const Value *start, const Value *end, int64_t size, int64_t *from, int64_t *to);
/* size with its -1 filled in so that it has numel elements. */
Status infer_size(const Call *c, Ints size, int64_t numel, int64_t *out);
/* The size that both broadcast to; in place on (ndim, size). */
Status broadcast_size(const Call *c, int *ndim, int64_t *size, int other_ndim, const int64_t *other);
/* Strides that read t as if it had the broadcast size: 0 where it is repeated. */
void broadcast_strides(const Tensor *t, int ndim, int64_t *stride);

/* Strides of t's size in a memory format; preserve keeps t's own order of dimensions. */
Status format_strides(const Call *c, MemoryFormat format, const Tensor *t, int64_t *stride);
/* Appends a fresh tensor of t's size; format is a MemoryFormat? argument or NULL (preserve). */
Status out_format(Call *c, Dtype d, const Tensor *t, const Value *format);

/* The argument as a tensor; fails by name if a number or None stands there. */
Status need_tensor(const Call *c, int i, Tensor **out);
/* A Scalar argument; a 0-d tensor is read (in run only). */
Status in_number(const Call *c, int i, Value *out);

#endif
