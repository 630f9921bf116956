/* local.c -- a call as one rank makes it: sizes and offsets of its own part; see rule.h. */
#include <string.h>

#include "ops/rule.h"

const Placement *local_place_out(const Local *l, int i) { return &l->place[i * l->naxes]; }
const Placement *local_place_in(const Local *l, int i) { return &l->place[(l->nout + i) * l->naxes]; }

static Layout layout_of(const Local *l, const Tensor *t, const Placement *p) {
  return (Layout){.ndim = t->ndim, .shape = t->size, .naxes = l->naxes, .axis = l->axis, .place = p};
}

Status local_out_size(const Local *l, int i, int64_t *size) {
  Layout at = layout_of(l, l->out[i], local_place_out(l, i));
  return layout_local(&at, l->coord, size);
}

Status local_in_size(const Local *l, int i, int64_t *size) {
  Layout at = layout_of(l, l->in[i], local_place_in(l, i));
  return layout_local(&at, l->coord, size);
}

static Status one_begin(const Local *l, const Tensor *t, const Placement *p, int dim, int64_t *begin) {
  Layout at = layout_of(l, t, p);
  Runs runs;
  TRY(layout_runs(&at, l->coord, dim, l->arena, &runs));
  if (runs.n > 1) return op_fail(l->call, "this rank's part of dimension %d is in %d pieces", dim, runs.n);
  *begin = runs.n ? runs.run[0].begin : t->size[dim];
  return OK;
}

Status local_in_begin(const Local *l, int i, int dim, int64_t *begin) {
  return one_begin(l, l->in[i], local_place_in(l, i), dim, begin);
}

Status local_out_begin(const Local *l, int i, int dim, int64_t *begin) {
  return one_begin(l, l->out[i], local_place_out(l, i), dim, begin);
}

Status local_set_ints(Local *l, int i, const int64_t *v, int n) {
  int64_t *copy;
  TRY_NEW(copy, arena_new_n(l->arena, int64_t, n ? n : 1));
  if (n) memcpy(copy, v, (size_t)n * sizeof *v);
  l->arg[i] = val_ints(copy, n);
  return OK;
}

Status local_set_out_size(Local *l, int i) {
  int64_t size[MAX_DIMS];
  TRY(local_out_size(l, 0, size));
  return local_set_ints(l, i, size, l->out[0]->ndim);
}
