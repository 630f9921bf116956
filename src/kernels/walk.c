/* walk.c -- see walk.h. */
#include "kernels/walk.h"

void walk_init(Walk *w, int ndim, const int64_t *size) {
  w->ndim = ndim;
  w->count = 0;
  w->numel = 1;
  for (int d = 0; d < ndim; d++) {
    w->size[ndim - 1 - d] = size[d];
    w->numel *= size[d];
  }
}

void walk_add(Walk *w, View v) {
  int64_t *stride = w->stride[w->count++];
  int64_t bytes = (int64_t)dtype_size(v.dtype);
  for (int d = 0; d < w->ndim; d++) {
    int from = v.ndim - 1 - d;
    stride[d] = from < 0 || v.size[from] < 2 ? 0 : v.stride[from] * bytes;
  }
}

/* Does loop a belong inside loop b?  The first operand that has an opinion decides. */
static bool belongs_inside(const Walk *w, int a, int b) {
  for (int k = 0; k < w->count; k++) {
    int64_t x = w->stride[k][a], y = w->stride[k][b];
    if (x != y) return x < y;
  }
  return false;
}

static void swap_loops(Walk *w, int a, int b) {
  int64_t t = w->size[a];
  w->size[a] = w->size[b], w->size[b] = t;
  for (int k = 0; k < w->count; k++) {
    t = w->stride[k][a];
    w->stride[k][a] = w->stride[k][b], w->stride[k][b] = t;
  }
}

static bool can_merge(const Walk *w, int inner, int outer) {
  for (int k = 0; k < w->count; k++) {
    if (w->stride[k][outer] != w->stride[k][inner] * w->size[inner]) return false;
  }
  return true;
}

static void move_loop(Walk *w, int to, int from) {
  w->size[to] = w->size[from];
  for (int k = 0; k < w->count; k++) w->stride[k][to] = w->stride[k][from];
}

void walk_plan(Walk *w) {
  int n = 0;
  for (int d = 0; d < w->ndim; d++) {
    if (w->size[d] != 1) move_loop(w, n++, d);
  }
  w->ndim = n;
  for (int i = 1; i < n; i++) {
    for (int j = i; j > 0 && belongs_inside(w, j, j - 1); j--) swap_loops(w, j, j - 1);
  }
  if (n == 0) return;
  int last = 0;
  for (int d = 1; d < n; d++) {
    if (can_merge(w, last, d)) w->size[last] *= w->size[d];
    else if (++last != d) move_loop(w, last, d);
  }
  w->ndim = last + 1;
}

void walk_seek(const Walk *w, int64_t element, Cursor *c) {
  for (int k = 0; k < w->count; k++) c->offset[k] = 0;
  for (int d = 0; d < w->ndim; d++) {
    int64_t i = element % w->size[d];
    element /= w->size[d];
    c->index[d] = i;
    for (int k = 0; k < w->count; k++) c->offset[k] += i * w->stride[k][d];
  }
}

void walk_advance(const Walk *w, Cursor *c, int64_t n) {
  if (w->ndim == 0) return;
  c->index[0] += n;
  for (int k = 0; k < w->count; k++) c->offset[k] += n * w->stride[k][0];
  for (int d = 0; c->index[d] == w->size[d] && d + 1 < w->ndim; d++) {
    c->index[d] = 0;
    c->index[d + 1]++;
    for (int k = 0; k < w->count; k++) c->offset[k] += w->stride[k][d + 1] - w->size[d] * w->stride[k][d];
  }
}
