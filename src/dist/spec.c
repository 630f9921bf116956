/* spec.c -- see spec.h. */
#include "dist/spec.h"

#include <stdio.h>
#include <string.h>

#include "dist/dist.h"

static uint64_t spec_hash(const struct Spec *s) {
  uint64_t h = (uint64_t)(uintptr_t)s->mesh ^ (uint64_t)s->dtype << 56 ^ (uint64_t)s->ndim << 48;
  for (int d = 0; d < s->ndim; d++) {
    h = (h ^ (uint64_t)s->shape[d]) * 0x9e3779b97f4a7c15u;
    h = (h ^ (h >> 29) ^ (uint64_t)s->stride[d]) * 0xbf58476d1ce4e5b9u;
  }
  h = placements_hash(s->place, s->mesh->naxes, h);
  return h ^ h >> 31;
}

static bool same_spec(const struct Spec *a, const struct Spec *b) {
  size_t bytes = (size_t)a->ndim * sizeof *a->shape;
  return a->hash == b->hash && a->mesh == b->mesh && a->dtype == b->dtype && a->ndim == b->ndim &&
         !memcmp(a->shape, b->shape, bytes) && !memcmp(a->stride, b->stride, bytes) &&
         placements_equal(a->place, b->place, a->mesh->naxes);
}

Layout spec_layout(const Spec *s) {
  return (Layout){
      .ndim = s->ndim, .shape = s->shape, .naxes = s->mesh->naxes, .axis = s->mesh->axis, .place = s->place};
}

static Status fill_local(struct Spec *s) {
  Layout l = spec_layout(s);
  TRY(layout_check(&l)); /* alike on all ranks */
  s->numel = s->local_numel = 1;
  for (int d = 0; d < s->ndim; d++) s->numel *= s->shape[d];
  if (!s->mesh->inside) {
    s->local_ndim = 1;
    s->local[0] = s->local_numel = 0;
    return OK;
  }
  s->local_ndim = s->ndim;
  TRY(layout_local(&l, s->mesh->coord, s->local));
  for (int d = 0; d < s->ndim; d++) s->local_numel *= s->local[d];
  return OK;
}

Status spec_new(Mesh *m, Dtype dtype, int ndim, const int64_t *shape, const int64_t *stride, const Placement *place,
                const Spec **out) {
  struct Spec s = {.mesh = m, .dtype = dtype, .ndim = ndim, .replicated = true};
  if (ndim > MAX_DIMS) return fail(ERR_USAGE, "a tensor of %d dimensions; at most %d are possible", ndim, MAX_DIMS);
  if (ndim) memcpy(s.shape, shape, (size_t)ndim * sizeof *shape);
  if (stride && ndim) memcpy(s.stride, stride, (size_t)ndim * sizeof *stride);
  else contiguous_strides(ndim, shape, s.stride);
  for (int a = 0; a < m->naxes; a++) {
    s.place[a] = place[a];
    s.replicated &= is_r(&place[a]);
    s.partial |= is_p(&place[a]);
  }
  s.hash = spec_hash(&s);
  struct Spec **bucket = &m->dist->spec[s.hash % SPEC_BUCKETS];
  for (struct Spec *other = *bucket; other; other = other->next)
    if (same_spec(other, &s)) {
      *out = other;
      return OK;
    }
  TRY(placements_check(s.place, m->naxes, ndim, "placements"));
  TRY(fill_local(&s));
  struct Spec *kept;
  TRY_NEW(kept, arena_new(&m->dist->arena, struct Spec));
  s.next = *bucket;
  *kept = s;
  *bucket = kept;
  *out = kept;
  return OK;
}

Status spec_with(const Spec *s, const Placement *place, const Spec **out) {
  return spec_new(s->mesh, s->dtype, s->ndim, s->shape, s->stride, place, out);
}

Status spec_with_some(const Spec *s, const Placement *place, const Spec **out) {
  Placement fitting[MAX_AXES];
  Layout l = spec_layout(s);
  l.place = place;
  Status clash = layout_check(&l);
  if (!clash) return spec_with(s, place, out);
  status_free(clash);
  for (int a = 0; a < s->mesh->naxes; a++)
    fitting[a] = placement_equal(&place[a], &s->place[a]) ? place[a] : place_r();
  return spec_with(s, fitting, out);
}

int64_t spec_shards(const Spec *s) {
  int64_t n = 1;
  for (int a = 0; a < s->mesh->naxes; a++)
    if (is_s(&s->place[a])) n *= s->mesh->axis[a];
  return n;
}

const char *spec_print(const Spec *s, char *buf, size_t cap) {
  char shape[256], mesh[256], place[512];
  snprintf(buf, cap, "%s%s on %s %s", dtype_name(s->dtype), shape_describe(s->ndim, s->shape, shape, sizeof shape),
           mesh_print(s->mesh, mesh, sizeof mesh), placements_print(s->place, s->mesh->naxes, place, sizeof place));
  return buf;
}
