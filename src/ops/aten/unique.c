/* unique.c -- the values, or the slices along a dimension, that differ.
 *
 * A slice is a row of order keys (kernels/sort.h); rows are sorted, or left in place if
 * only neighbours count, and runs of equal ones become one.  A nan equals nothing.
 */
#include <string.h>

#include "kernels/copy.h"
#include "kernels/sort.h"
#include "ops/geometry.h"

/* Which arguments ask for what; -1: the op has no such argument. */
typedef struct {
  int dim, inverse, counts;
  bool consecutive;
} UniqueRow;

typedef struct {
  Tensor *self;
  int dim;          /* -1: all elements, flat */
  int64_t n, m;     /* rows, elements per row */
  char *rows;       /* [n, m] contiguous */
  uint64_t *key;    /* [n, m] */
  SortEntry *order; /* index: the row; key: its first key.  Twice n */
} Slices;

/* self with dim in front. */
static Geometry dim_first(const Tensor *t, int dim) {
  Geometry g = geometry_of(t);
  if (dim < 0) return g;
  for (int d = dim; d > 0; d--) g.size[d] = g.size[d - 1], g.stride[d] = g.stride[d - 1];
  g.size[0] = t->size[dim], g.stride[0] = t->stride[dim];
  return g;
}

static Status slices_of(const Call *c, Slices *s) {
  const UniqueRow *row = c->op->def->row;
  TRY(need_tensor(c, 0, &s->self));
  const Tensor *t = s->self;
  if (dtype_kind(t->dtype) > KIND_FLOAT) return op_fail(c, "%s has no order", dtype_name(t->dtype));
  s->dim = -1;
  if (row->dim >= 0 && !in_none(c, row->dim)) {
    if (t->ndim == 0) return op_fail(c, "a 0-d tensor has no dimension to be unique along");
    TRY(wrap_dim(c, in_int(c, row->dim), t->ndim, &s->dim));
    if (row->consecutive && t->ndim == 1) s->dim = -1;
  }
  int64_t all = tensor_numel(t), stride[MAX_DIMS];
  s->n = s->dim < 0 ? all : t->size[s->dim];
  s->m = s->dim < 0 ? 1 : s->n ? all / s->n : 0;
  Geometry from = dim_first(t, s->dim);
  contiguous_strides(t->ndim, from.size, stride);
  TRY_NEW(s->rows, kern_scratch(&c->ctx->kern, (size_t)all * dtype_size(t->dtype)));
  TRY_NEW(s->key, kern_scratch(&c->ctx->kern, (size_t)all * sizeof *s->key));
  TRY_NEW(s->order, kern_scratch(&c->ctx->kern, 2 * (size_t)s->n * sizeof *s->order));
  kernel_copy(&c->ctx->kern, (View){s->rows, from.size, stride, t->ndim, t->dtype}, geometry_view(&from, t));
  sort_keys(t->dtype, s->rows, 1, all, false, s->key);
  for (int64_t i = 0; i < s->n; i++) s->order[i] = (SortEntry){s->m ? s->key[i * s->m] : 0, i};
  return OK;
}

static int compare_rows(const Slices *s, int64_t a, int64_t b) {
  const uint64_t *x = s->key + a * s->m, *y = s->key + b * s->m;
  for (int64_t i = 0; i < s->m; i++) {
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  }
  return 0;
}

/* Merge sort of order[begin, end) by whole rows. */
static void sort_rows(const Slices *s, int64_t begin, int64_t end) {
  if (end - begin < 2) return;
  int64_t mid = begin + (end - begin) / 2, a = begin, b = mid;
  SortEntry *order = s->order, *merged = s->order + s->n;
  sort_rows(s, begin, mid);
  sort_rows(s, mid, end);
  for (int64_t i = begin; i < end; i++) {
    bool left = b == end || (a < mid && compare_rows(s, order[a].index, order[b].index) <= 0);
    merged[i] = order[left ? a++ : b++];
  }
  memcpy(order + begin, merged + begin, (size_t)(end - begin) * sizeof *order);
}

static bool same_rows(const Slices *s, int64_t a, int64_t b) {
  Dtype d = s->self->dtype;
  uint64_t nan = d == DT_F64 ? UINT64_MAX : UINT32_MAX;
  for (int64_t i = 0; i < s->m && dtype_is_float(d); i++) {
    if (s->key[a * s->m + i] == nan) return false;
  }
  return compare_rows(s, a, b) == 0;
}

static Status out_ints(Call *c, int ndim, const int64_t *size, const int64_t *values) {
  TRY(out_new(c, DT_I64, ndim, size));
  Tensor *t = out_tensor(c, c->nout - 1);
  TRY(tensor_materialize(t));
  if (tensor_numel(t)) memcpy(tensor_data(t), values, (size_t)tensor_numel(t) * sizeof *values);
  return OK;
}

/* The chosen rows, put back along the dimension they came from. */
static Status out_rows(Call *c, const Slices *s, const int64_t *first, int64_t found) {
  const Tensor *t = s->self;
  int64_t size[MAX_DIMS], stride[MAX_DIMS];
  size_t bytes = (size_t)s->m * dtype_size(t->dtype);
  char *chosen;
  memcpy(size, t->size, sizeof size);
  if (s->dim >= 0) size[s->dim] = found;
  else size[0] = found;
  TRY(out_new(c, t->dtype, s->dim < 0 ? 1 : t->ndim, size));
  Tensor *out = out_tensor(c, 0);
  TRY(tensor_materialize(out));
  TRY_NEW(chosen, kern_scratch(&c->ctx->kern, (size_t)found * bytes));
  for (int64_t g = 0; g < found; g++)
    memcpy(chosen + (size_t)g * bytes, s->rows + (size_t)s->order[first[g]].index * bytes, bytes);
  Geometry to = dim_first(out, s->dim);
  contiguous_strides(to.ndim, to.size, stride);
  kernel_copy(&c->ctx->kern, geometry_view(&to, out), (View){chosen, to.size, stride, to.ndim, to.dtype});
  return OK;
}

static Status unique_body(Call *c) {
  const UniqueRow *row = c->op->def->row;
  Slices s;
  int64_t found = 0, zero = 0, *group, *first, *count;
  TRY(slices_of(c, &s));
  TRY_NEW(group, kern_scratch(&c->ctx->kern, (size_t)s.n * sizeof *group));
  TRY_NEW(first, kern_scratch(&c->ctx->kern, (size_t)(s.n + 1) * sizeof *first));
  TRY_NEW(count, kern_scratch(&c->ctx->kern, (size_t)s.n * sizeof *count));
  if (!row->consecutive && s.m == 1) sort_entries(s.order, s.order + s.n, s.n, sort_key_bytes(s.self->dtype));
  else if (!row->consecutive) sort_rows(&s, 0, s.n);
  for (int64_t i = 0; i < s.n; i++) {
    if (i == 0 || !same_rows(&s, s.order[i].index, s.order[i - 1].index)) first[found++] = i;
    group[s.order[i].index] = found - 1;
  }
  first[found] = s.n;
  for (int64_t g = 0; g < found; g++) count[g] = first[g + 1] - first[g];
  TRY(out_rows(c, &s, first, found));
  bool along = s.dim >= 0; /* then the extra results are there in any case */
  bool inverse = along || (row->inverse >= 0 && in_bool(c, row->inverse)),
       counts = along || (row->counts >= 0 && in_bool(c, row->counts));
  bool flat = s.dim < 0 && inverse; /* then the inverse has self's size */
  if (row->inverse >= 0)
    TRY(out_ints(c, flat ? s.self->ndim : 1, flat ? s.self->size : inverse ? &s.n : &zero, group));
  if (row->counts >= 0) TRY(out_ints(c, 1, counts ? &found : &zero, count));
  return OK;
}

static Status unique_run(Call *c) { return with_scratch(c, unique_body); }

/* clang-format off */
#define UNIQUE(text, ...) \
  {.schema = text, .run = unique_run, .flags = OP_DYNAMIC, .row = &(const UniqueRow){__VA_ARGS__}}
/* clang-format on */

/* clang-format off */
const OpDef ops_unique[] = {
    /*     dim, inverse, counts, consecutive */
    UNIQUE("aten::_unique(Tensor self, bool sorted=True, bool return_inverse=False) -> (Tensor, Tensor)", -1, 2,
        -1, false),
    UNIQUE("aten::_unique2(Tensor self, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> "
           "(Tensor, Tensor, Tensor)", -1, 2, 3, false),
    UNIQUE("aten::unique_dim(Tensor self, int dim, bool sorted=True, bool return_inverse=False, bool "
           "return_counts=False) -> (Tensor, Tensor, Tensor)", 1, 3, 4, false),
    UNIQUE("aten::unique_consecutive(Tensor self, bool return_inverse=False, bool return_counts=False, int? "
           "dim=None) -> (Tensor, Tensor, Tensor)", 3, 1, 2, true),
    {0},
};
