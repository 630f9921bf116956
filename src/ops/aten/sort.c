/* sort.c -- order along a dimension: sort, topk, kthvalue, median, mode.
 *
 * nan is larger than everything; a 0-d tensor is a row of one.
 */
#include "kernels/sort.h"

#include <string.h>

#include "ops/geometry.h"
#include "ops/rule.h"

static Status row_of(const Call *c, int dim_argument, Tensor **self, int *dim, int64_t *n) {
  TRY(need_tensor(c, 0, self));
  if (dtype_kind((*self)->dtype) > KIND_FLOAT) return op_fail(c, "%s has no order", dtype_name((*self)->dtype));
  TRY(wrap_dim(c, in_int(c, dim_argument), (*self)->ndim, dim));
  *n = (*self)->ndim ? (*self)->size[*dim] : 1;
  return OK;
}

static Status out_pair(Call *c, Dtype d, int ndim, const int64_t *size) {
  TRY(out_new(c, d, ndim, size));
  return out_new(c, DT_I64, ndim, size);
}

/* ---- whole rows --------------------------------------------------------------------------- */

/* Which argument is which, and what the op returns. */
typedef struct {
  int dim, descending; /* -1: ascending */
  bool values, indices;
} SortRow;

static Status sort_infer(Call *c) {
  const SortRow *row = c->op->def->row;
  Tensor *self;
  int dim;
  int64_t n = 0;
  TRY(need_tensor(c, 0, &self));
  if (dtype_kind(self->dtype) > KIND_FLOAT) return op_fail(c, "%s has no order", dtype_name(self->dtype));
  if (row->dim >= 0) TRY(row_of(c, row->dim, &self, &dim, &n));
  if (row->values) TRY(out_like(c, self->dtype, self));
  if (row->indices) TRY(out_like(c, DT_I64, self));
  return OK;
}

static Status sort_run(Call *c) {
  const SortRow *row = c->op->def->row;
  Tensor *self = in_tensor(c, 0);
  int dim = 0;
  int64_t n = self->ndim ? self->size[0] : 1;
  if (row->dim >= 0) TRY(row_of(c, row->dim, &self, &dim, &n));
  View values = {0}, indices = {0};
  if (row->values) values = out_view_of(c, 0);
  if (row->indices) indices = out_view_of(c, row->values);
  bool descending = row->descending >= 0 && in_bool(c, row->descending);
  return kernel_sort(&c->ctx->kern, tensor_view(self), dim, descending, 0, n, values, indices) ? OK : fail_oom();
}

/* ---- topk ------------------------------------------------------------------------------------ */

static Status topk_infer(Call *c) {
  Tensor *self;
  int dim;
  int64_t n = 0, k = in_int(c, 1), size[MAX_DIMS];
  TRY(row_of(c, 2, &self, &dim, &n));
  if (k < 0 || k > n)
    return op_fail(c, "k = %lld, but dimension %d has %lld elements", (long long)k, dim, (long long)n);
  memcpy(size, self->size, sizeof size);
  size[dim] = k;
  return out_pair(c, self->dtype, self->ndim, size);
}

static Status topk_run(Call *c) {
  Tensor *self;
  int dim;
  int64_t n = 0;
  TRY(row_of(c, 2, &self, &dim, &n));
  if (tensor_numel(out_tensor(c, 0)) == 0) return OK;
  bool done = kernel_sort(&c->ctx->kern, tensor_view(self), dim, in_bool(c, 3), 0, in_int(c, 1), out_view_of(c, 0),
                          out_view_of(c, 1));
  return done ? OK : fail_oom();
}

/* ---- one element per row ------------------------------------------------------------------------ */

/* Sizes with dimension dim reduced to one, or gone. */
static Status reduced_infer(Call *c, const Tensor *self, int dim, bool keep) {
  int64_t size[MAX_DIMS];
  int ndim = 0;
  for (int d = 0; d < self->ndim; d++) {
    if (d != dim) size[ndim++] = self->size[d];
    else if (keep) size[ndim++] = 1;
  }
  return out_pair(c, self->dtype, ndim, size);
}

/* An output with dimension dim of size 1 again, as kernel_sort wants it. */
static View with_dim(const Tensor *t, int ndim, int dim, Geometry *g) {
  *g = geometry_of(t);
  if (t->ndim < ndim) {
    for (int d = t->ndim; d > dim; d--) g->size[d] = g->size[d - 1], g->stride[d] = g->stride[d - 1];
    g->size[dim] = 1, g->stride[dim] = 0;
    g->ndim = ndim;
  }
  return geometry_view(g, t);
}

static Status place_in_row(Call *c, const Tensor *self, int dim, int64_t place) {
  Geometry g[2];
  View values = with_dim(out_tensor(c, 0), self->ndim, dim, &g[0]),
       indices = with_dim(out_tensor(c, 1), self->ndim, dim, &g[1]);
  return kernel_sort(&c->ctx->kern, tensor_view(self), dim, false, place, 1, values, indices) ? OK : fail_oom();
}

static Status kthvalue_infer(Call *c) {
  Tensor *self;
  int dim;
  int64_t n = 0, k = in_int(c, 1);
  TRY(row_of(c, 2, &self, &dim, &n));
  if (k < 1 || k > n)
    return op_fail(c, "k = %lld, but dimension %d has %lld elements", (long long)k, dim, (long long)n);
  return reduced_infer(c, self, dim, in_bool(c, 3));
}

static Status kthvalue_run(Call *c) {
  Tensor *self;
  int dim;
  int64_t n = 0;
  TRY(row_of(c, 2, &self, &dim, &n));
  return place_in_row(c, self, dim, in_int(c, 1) - 1);
}

/* median(self, dim, keepdim) and mode(self, dim, keepdim) */
static Status row_statistic_infer(Call *c) {
  Tensor *self;
  int dim;
  int64_t n = 0;
  TRY(row_of(c, 1, &self, &dim, &n));
  if (n == 0) return op_fail(c, "dimension %d has no elements", dim);
  return reduced_infer(c, self, dim, in_bool(c, 2));
}

typedef struct {
  Tensor *self;
  int dim;
  int64_t n;
  SortEntry *entries; /* 2 * n */
} RowSort;

/* Sorts one row (the elements from `at` on, along dim) into r->entries. */
static void sort_one_row(const RowSort *r, const char *at) {
  Dtype d = r->self->dtype;
  int64_t step = r->self->ndim ? r->self->stride[r->dim] : 0;
  for (int64_t i = 0; i < r->n; i++) {
    uint64_t key;
    sort_keys(d, at + (size_t)(i * step) * dtype_size(d), 1, 1, false, &key);
    r->entries[i] = (SortEntry){key, i};
  }
  sort_entries(r->entries, r->entries + r->n, r->n, sort_key_bytes(d));
}

static bool is_nan_key(Dtype d, uint64_t key) {
  return dtype_is_float(d) && key == (d == DT_F64 ? UINT64_MAX : UINT32_MAX);
}

/* The lower of the two in the middle; a nan wins unless it is to be ignored. */
static int64_t median_of(const RowSort *r, bool ignore_nan) {
  int64_t numbers = r->n;
  while (numbers > 0 && is_nan_key(r->self->dtype, r->entries[numbers - 1].key)) numbers--;
  if (numbers < r->n && !ignore_nan) return r->entries[numbers].index;
  return r->entries[numbers > 0 ? (numbers - 1) / 2 : 0].index;
}

/* The value that occurs most, of equals the smallest; its last place. */
static int64_t mode_of(const RowSort *r, bool unused) {
  int64_t best = 0, longest = 0;
  (void)unused;
  for (int64_t i = 0, run = 0; i < r->n; i++) {
    run = i && r->entries[i].key == r->entries[i - 1].key ? run + 1 : 1;
    if (run > longest) longest = run, best = i;
    else if (run == longest && r->entries[best].key == r->entries[i].key) best = i;
  }
  return r->entries[best].index;
}

typedef struct {
  int64_t (*choose)(const RowSort *r, bool ignore_nan);
  bool ignore_nan;
} StatisticRow;

static Status row_statistic_body(Call *c) {
  const StatisticRow *row = c->op->def->row;
  RowSort r;
  Geometry whole, to[2];
  int64_t none = 0;
  TRY(row_of(c, 1, &r.self, &r.dim, &r.n));
  TRY_NEW(r.entries, kern_scratch(&c->ctx->kern, 2 * (size_t)r.n * sizeof *r.entries));
  size_t item = dtype_size(r.self->dtype);
  View values = with_dim(out_tensor(c, 0), r.self->ndim, r.dim, &to[0]),
       indices = with_dim(out_tensor(c, 1), r.self->ndim, r.dim, &to[1]);
  whole = geometry_of(r.self);
  if (r.self->ndim) whole.size[r.dim] = 1;
  int64_t rows = 1, index[MAX_DIMS] = {0};
  for (int d = 0; d < whole.ndim; d++) rows *= whole.size[d];
  for (int64_t i = 0; i < rows; i++) {
    int64_t at = 0, at_value = 0, at_index = 0;
    for (int d = 0; d < whole.ndim; d++) {
      at += index[d] * whole.stride[d];
      at_value += index[d] * values.stride[d];
      at_index += index[d] * indices.stride[d];
    }
    const char *first = (const char *)tensor_data(r.self) + at * (int64_t)item;
    sort_one_row(&r, first);
    int64_t chosen = row->choose(&r, row->ignore_nan);
    memcpy((char *)values.data + at_value * (int64_t)item,
           first + chosen * (r.self->ndim ? whole.stride[r.dim] : none) * (int64_t)item, item);
    ((int64_t *)indices.data)[at_index] = chosen;
    for (int d = whole.ndim - 1; d >= 0 && ++index[d] == whole.size[d]; d--) index[d] = 0;
  }
  return OK;
}

static Status row_statistic_run(Call *c) { return with_scratch(c, row_statistic_body); }

/* median(self), nanmedian(self): of all elements; the row is the op with a dimension. */
static Status median_all_compose(Call *c) {
  Tensor *self, *flat, *result[2];
  int64_t n = 0;
  TRY(need_tensor(c, 0, &self));
  n = tensor_numel(self);
  TRY(OP(c, "aten.reshape.default", &flat, val_tensor(self), val_ints(&n, 1)));
  TRY(OP_N(c, c->op->def->row, result, 2, val_tensor(flat), val_int(0), val_bool(false)));
  return out_value(c, val_tensor(result[0]));
}

/* msort has no argument for it and sorts along the first dimension. */
static Status place_sort(Rules *r) {
  const SortRow *row = r->call->op->def->row;
  Fold f = {.lead = 0, .any = true, .offers = true, .whole = {true}};
  return row->dim >= 0 ? place_rows_offered(r) : rule_fold(r, &f);
}

/* clang-format off */
#define SORT(text, ...) \
  {.schema = text, .infer = sort_infer, .run = sort_run, .shard.place = place_sort, \
    .row = &(const SortRow){__VA_ARGS__}}
#define STATISTIC(text, ...) \
  {.schema = text, .infer = row_statistic_infer, .run = row_statistic_run, .shard.place = place_rows, \
    .row = &(const StatisticRow){__VA_ARGS__}}
/* clang-format on */

/* clang-format off */
const OpDef ops_sort[] = {
    /*   dim, descending, values, indices */
    SORT("aten::sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)", 1, 2,
        true, true),
    SORT("aten::sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, "
         "Tensor indices)", 2, 3, true, true),
    SORT("aten::argsort(Tensor self, int dim=-1, bool descending=False) -> Tensor", 1, 2, false, true),
    SORT("aten::argsort.stable(Tensor self, *, bool stable, int dim=-1, bool descending=False) -> Tensor", 2, 3,
        false, true),
    SORT("aten::msort(Tensor self) -> Tensor", -1, -1, true, false),
    {.schema = "aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor "
               "values, Tensor indices)", .infer = topk_infer, .run = topk_run, .shard.place = place_rows_offered},
    {.schema = "aten::kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor "
               "indices)", .infer = kthvalue_infer, .run = kthvalue_run, .shard.place = place_rows},
    STATISTIC("aten::median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        median_of, false),
    STATISTIC("aten::nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        median_of, true),
    STATISTIC("aten::mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
        mode_of, false),
    {.schema = "aten::median(Tensor self) -> Tensor", .compose = median_all_compose, .row = "aten.median.dim"},
    {.schema = "aten::nanmedian(Tensor self) -> Tensor", .compose = median_all_compose, .row = "aten.nanmedian.dim"},
    {0},
};
