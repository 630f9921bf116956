/* spec.h -- how a DTensor is spread: mesh, placements, and the global tensor's geometry.
 *
 * I1  Specs are interned in their mesh's Dist: equal specs are one pointer.
 * I2  placements_check() and layout_check() hold for every spec.
 */
#ifndef TESS_DIST_SPEC_H
#define TESS_DIST_SPEC_H

#include "dist/mesh.h"

struct Spec {
  Mesh *mesh;
  Dtype dtype;
  int ndim;
  int64_t shape[MAX_DIMS], stride[MAX_DIMS]; /* global */
  int64_t local[MAX_DIMS];                   /* sizes of this rank's shard; {0} of 1 dimension outside the mesh */
  int local_ndim;
  Placement place[MAX_AXES];
  int64_t numel; /* global */
  int64_t local_numel;
  bool replicated; /* every axis R */
  bool partial;    /* some axis P */
  uint64_t hash;
  struct Spec *next;
};

/* stride NULL: contiguous.  Dims of placements are normalised (not negative). */
Status spec_new(Mesh *m, Dtype dtype, int ndim, const int64_t *shape, const int64_t *stride, const Placement *place,
                const Spec **out);
/* The same tensor placed otherwise. */
Status spec_with(const Spec *s, const Placement *place, const Spec **out);
/* The same with placements that come from several tensors: where they do not go together (segments of a dimension
 * that another axis cuts otherwise), it is whole on the axes on which s is placed otherwise. */
Status spec_with_some(const Spec *s, const Placement *place, const Spec **out);

Layout spec_layout(const Spec *s);
/* Ranks that share one element: product of the axes that are sharded. */
int64_t spec_shards(const Spec *s);

/* "f32[8,4] on Mesh(dp=2, tp=2) RS(1)"; buf is returned. */
const char *spec_print(const Spec *s, char *buf, size_t cap);

#endif
