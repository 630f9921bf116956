/* drawn_layouts.h -- shapes, meshes and placements drawn at random, and which elements of a tensor
 * a rank holds, by the definition; for the tests of views. */
#ifndef TESS_TESTS_DRAWN_LAYOUTS_H
#define TESS_TESTS_DRAWN_LAYOUTS_H

#include "shard/layout.h"
#include "unit.h"

static inline uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

static inline int64_t upto(uint64_t *s, int64_t n) { return n > 0 ? (int64_t)(next_random(s) % (uint64_t)n) : 0; }
static inline int64_t pick(uint64_t *s, const int64_t *v, int n) { return v[upto(s, n)]; }

/* ---- drawing -------------------------------------------------------------------------- */

static inline int draw_shape(uint64_t *s, int64_t *size) {
  static const int64_t sizes[] = {1, 2, 2, 3, 4, 4, 5, 6, 8, 12, 0};
  int ndim = 1 + (int)upto(s, 4);
  for (int d = 0; d < ndim; d++) size[d] = pick(s, sizes, upto(s, 12) ? 10 : 11);
  return ndim;
}

static inline int draw_mesh(uint64_t *s, int *axis) {
  static const int64_t sizes[] = {2, 2, 3, 4, 1};
  int n = 1 + (int)upto(s, 3);
  for (int a = 0; a < n; a++) axis[a] = (int)pick(s, sizes, 5);
  return n;
}

/* R, or a shard: mostly plain; strided; in units; in segments. */
static inline Placement draw_place(uint64_t *s, int ndim, const int64_t *size) {
  int kind = (int)upto(s, 10), dim = (int)upto(s, ndim);
  Placement p = place_s(dim);
  if (kind < 2) return place_r();
  if (kind == 6) p.factor = 2 + upto(s, 3);
  if (kind == 7) p.unit = 2 + upto(s, 3);
  if (kind == 8 && size[dim] > 2) {
    int64_t first = 1 + upto(s, size[dim] - 1), cut[2] = {first, size[dim] - first};
    assert_ok(place_segments(dim, cut, 2, 1, &p));
  }
  if (kind == 9) p.factor = 2, p.unit = 2;
  return p;
}

/* Sizes with the same number of elements: neighbours multiplied, factors taken apart. */
static inline int draw_reshape(uint64_t *s, int ndim, const int64_t *size, int64_t *to) {
  int n = ndim;
  memcpy(to, size, (size_t)ndim * sizeof *to);
  for (int steps = 1 + (int)upto(s, 4); steps > 0; steps--) {
    int d = n ? (int)upto(s, n) : 0;
    if (upto(s, 2) && d + 1 < n) {
      to[d] *= to[d + 1];
      memmove(to + d + 1, to + d + 2, (size_t)(n - d - 2) * sizeof *to);
      n--;
    } else if (n && n < 6) {
      static const int64_t factors[] = {1, 2, 2, 3, 4, 6};
      int64_t f = pick(s, factors, 6);
      if (to[d] % f) continue;
      memmove(to + d + 1, to + d, (size_t)(n - d) * sizeof *to);
      to[d] = upto(s, 2) ? f : to[d] / f;
      to[d + 1] = to[d] ? to[d + 1] / to[d] : to[d + 1];
      n++;
    }
  }
  int64_t have = 1, want = 1;
  for (int d = 0; d < ndim; d++) want *= size[d];
  for (int d = 0; d < n; d++) have *= to[d];
  if (have == want) return n;
  memcpy(to, size, (size_t)ndim * sizeof *to);
  return ndim;
}

/* ---- the definition ----------------------------------------------------------------------- */

enum { MOST = 1 << 16 };

/* The flat global indices that coord holds, in local order. */
static inline int64_t held(const Layout *l, const int *coord, Arena *arena, int64_t *out) {
  Runs runs[MAX_DIMS];
  int64_t local[MAX_DIMS], n = 1, *index[MAX_DIMS];
  for (int d = 0; d < l->ndim; d++) {
    assert_ok(layout_runs(l, coord, d, arena, &runs[d]));
    local[d] = runs[d].size;
    index[d] = arena_new_n(arena, int64_t, local[d] + 1);
    int64_t at = 0;
    for (int i = 0; i < runs[d].n; i++)
      for (int64_t j = 0; j < runs[d].run[i].size; j++) index[d][at++] = runs[d].run[i].begin + j;
    n *= local[d];
  }
  assert_true(n <= MOST);
  for (int64_t i = 0; i < n; i++) {
    int64_t rest = i, flat = 0, step = 1;
    for (int d = l->ndim - 1; d >= 0; d--) {
      flat += index[d][rest % local[d]] * step;
      step *= l->shape[d];
      rest /= local[d];
    }
    out[i] = flat;
  }
  return n;
}

static inline bool next_coord(const int *axis, int naxes, int *coord) {
  int a = naxes - 1;
  while (a >= 0 && ++coord[a] == axis[a]) coord[a--] = 0;
  return a >= 0;
}

/* Segments can fit what an axis left on one rank and not on another. */
static inline bool fits_everywhere(const Layout *l) {
  int coord[MAX_AXES] = {0};
  do {
    int64_t local[MAX_DIMS];
    Status s = layout_local(l, coord, local);
    status_free(s);
    if (s) return false;
  } while (next_coord(l->axis, l->naxes, coord));
  return true;
}

#endif
