/* triangle.c -- the lower and upper part of matrices, and the indices of these parts.
 *
 * In the tables, row = true is the lower triangle. */
#include "kernels/fill.h"
#include "ops/rule_move.h"

static bool is_lower(const Call *c) { return *(const bool *)c->op->def->row; }

static Status triangle_infer(Call *c) {
  Tensor *self;
  TRY(need_tensor(c, 0, &self));
  if (self->ndim < 2) return op_fail(c, "expects a matrix or a batch of matrices, not %d dimensions", self->ndim);
  return out_like(c, self->dtype, self);
}

static Status triangle_run(Call *c) {
  kernel_triangle(&c->ctx->kern, out_view_of(c, 0), in_view(c, 0), in_int(c, 1), is_lower(c));
  return OK;
}

/* Rows and columns may be cut where a rank has one run of them; the diagonal moves. */
static Status triangle_place(Rules *r) {
  int ndim = r->in[0]->ndim;
  bool whole[MAX_DIMS] = {false};
  for (int a = 0; a < r->naxes; a++) {
    const Placement *p = rule_have(r, 0, a);
    if (is_s(p) && p->dim >= ndim - 2) whole[p->dim] |= p->factor > 1 || p->nsegments;
  }
  return rule_all_but(r, whole, PASS_ALL);
}

static Status triangle_localize(Local *l) {
  int ndim = l->in[0]->ndim;
  int64_t row, column;
  TRY(local_in_begin(l, 0, ndim - 2, &row));
  TRY(local_in_begin(l, 0, ndim - 1, &column));
  const int64_t beyond = INT64_MAX / 4; /* any matrix */
  int64_t diagonal = in_int(l->call, 1);
  diagonal = diagonal > beyond ? beyond : diagonal < -beyond ? -beyond : diagonal;
  if (row != column) l->arg[1] = val_int(diagonal + row - column);
  return OK;
}

/* The columns [*from, *to) of a row that belong to the triangle. */
static void row_part(bool lower, int64_t row, int64_t columns, int64_t offset, int64_t *from, int64_t *to) {
  int64_t cut;
  if (__builtin_add_overflow(row, offset, &cut) || __builtin_add_overflow(cut, lower, &cut))
    cut = offset < 0 ? 0 : columns;
  cut = cut < 0 ? 0 : cut > columns ? columns : cut;
  *from = lower ? 0 : cut;
  *to = lower ? cut : columns;
}

typedef __int128 Wide; /* sums and products of sizes and offsets, whatever they are */

static Wide between(Wide x, Wide low, Wide high) { return x < low ? low : x > high ? high : x; }

/* Elements (r, j) with j <= r + offset.  Rows from `first` on have some, from `full` on all. */
static Wide count_lower(Wide rows, Wide columns, Wide offset) {
  if (columns == 0) return 0;
  Wide first = between(-offset, 0, rows), full = between(columns - 1 - offset, first, rows), n = full - first;
  return n * (2 * (first + offset + 1) + n - 1) / 2 + (rows - full) * columns;
}

/* Rows that have elements: [*begin, *end). */
static void rows_of(const Call *c, int64_t *begin, int64_t *end) {
  Wide rows = in_int(c, 0), columns = in_int(c, 1), offset = in_int(c, 2);
  *begin = is_lower(c) ? (int64_t)between(-offset, 0, rows) : 0;
  *end = is_lower(c) ? (int64_t)rows : (int64_t)between(columns - offset, 0, rows);
  if (columns == 0) *end = *begin;
}

static Status triangle_indices_infer(Call *c) {
  int64_t rows = in_int(c, 0), columns = in_int(c, 1), size[2] = {2, 0}, area;
  if (rows < 0 || columns < 0 || __builtin_mul_overflow(rows, columns, &area)) {
    return op_fail(c, "a matrix of %lld rows and %lld columns is not possible", (long long)rows,
                   (long long)columns);
  }
  Wide offset = in_int(c, 2);
  size[1] = (int64_t)(is_lower(c) ? count_lower(rows, columns, offset)
                                  : area - count_lower(rows, columns, offset - 1));
  Dtype dtype = in_dtype(c, 3, DT_I64);
  if (dtype != DT_I64 && dtype != DT_I32) return op_fail(c, "indices are i64 or i32, not %s", dtype_name(dtype));
  return out_new(c, dtype, 2, size);
}

/* Row numbers, then column numbers, in row-major order. */
static Status triangle_indices_run(Call *c) {
  const Tensor *out = out_tensor(c, 0);
  void *data = tensor_data(out);
  int64_t n = out->size[1], at = 0, begin, end;
  rows_of(c, &begin, &end);
  for (int64_t r = begin; r < end; r++) {
    int64_t from, to;
    row_part(is_lower(c), r, in_int(c, 1), in_int(c, 2), &from, &to);
    for (int64_t j = from; j < to; j++, at++) {
      if (out->dtype == DT_I64) ((int64_t *)data)[at] = r, ((int64_t *)data)[n + at] = j;
      else ((int32_t *)data)[at] = (int32_t)r, ((int32_t *)data)[n + at] = (int32_t)j;
    }
  }
  return OK;
}

/* clang-format off */
#define TRIANGLE(text, fn, lower, ...) \
  {.schema = text, .infer = fn##_infer, .run = fn##_run, .row = &(const bool){lower}, __VA_ARGS__}
/* clang-format on */
#define SHARDS .flags = OP_UPDATE, .shard.place = triangle_place, .shard.localize = triangle_localize

/* clang-format off */
const OpDef ops_triangle[] = {
    TRIANGLE("aten::tril(Tensor self, SymInt diagonal=0) -> Tensor", triangle, true, SHARDS),
    TRIANGLE("aten::triu(Tensor self, SymInt diagonal=0) -> Tensor", triangle, false, SHARDS),
    TRIANGLE("aten::tril_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, Layout? layout=None, "
             "Device? device=None, bool? pin_memory=None) -> Tensor", triangle_indices, true, .flags = 0),
    TRIANGLE("aten::triu_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, Layout? layout=None, "
             "Device? device=None, bool? pin_memory=None) -> Tensor", triangle_indices, false, .flags = 0),
    {0},
};
