/* table_gradient.c -- see table_gradient.h. */
#include "ops/aten/table_gradient.h"

#include <string.h>

#include "kernels/copy.h"

Status flat_indices(const Call *c, const Tensor *t, int64_t extent, const int64_t **out) {
  Indices index;
  TRY(indices_prepare(c, t, extent, 0, NEGATIVE_FAILS, &index));
  int64_t n = tensor_numel(t), stride[MAX_DIMS], *flat;
  contiguous_strides(index.ndim, index.size, stride);
  *out = index.data;
  bool dense = true;
  for (int d = 0; d < index.ndim; d++) dense &= index.size[d] <= 1 || index.stride[d] == stride[d];
  if (dense) return OK;
  TRY_NEW(flat, kern_scratch(&c->ctx->kern, (size_t)n * sizeof *flat));
  kernel_copy(&c->ctx->kern, (View){flat, index.size, stride, index.ndim, DT_I64},
              (View){(void *)(uintptr_t)index.data, index.size, index.stride, index.ndim, DT_I64});
  *out = flat;
  return OK;
}

Status flat_numbers(const Call *c, const Tensor *t, Dtype d, void **out) {
  *out = tensor_data(t);
  if (t->dtype == d && tensor_is_contiguous(t)) return OK;
  int64_t stride[MAX_DIMS];
  contiguous_strides(t->ndim, t->size, stride);
  TRY_NEW(*out, kern_scratch(&c->ctx->kern, (size_t)tensor_numel(t) * dtype_size(d)));
  kernel_copy(&c->ctx->kern, (View){*out, t->size, stride, t->ndim, d}, tensor_view(t));
  return OK;
}

/* ---- sums --------------------------------------------------------------------------------------- */

Status new_scale(const Call *c, int64_t n, double **scale) {
  TRY_NEW(*scale, kern_scratch(&c->ctx->kern, (size_t)n * sizeof **scale));
  for (int64_t i = 0; i < n; i++) (*scale)[i] = 1;
  return OK;
}

Status divide_by_frequency(const Call *c, RowSums *s, double *scale) {
  int64_t *count;
  TRY_NEW(count, kern_scratch(&c->ctx->kern, (size_t)(s->rows + 1) * sizeof *count));
  memset(count, 0, (size_t)s->rows * sizeof *count);
  for (int pass = 0; pass < 2; pass++) {
    for (int64_t i = 0; i < s->n; i++) {
      int64_t row = s->row[i] - s->first_row;
      if (row < 0 || row >= s->rows) continue; /* another rank's */
      if (pass) scale[i] /= (double)count[row];
      else count[row]++;
    }
  }
  s->scale = scale;
  return OK;
}

void clear_table(Call *c) {
  const char zero[16] = {0};
  kernel_fill(&c->ctx->kern, tensor_view(out_tensor(c, 0)), zero);
}

Status add_rows(Call *c, RowSums *s) {
  Tensor *out = out_tensor(c, 0);
  Working to;
  TRY(working_begin(c, out, s->dtype, &to));
  s->out = to.data;
  kernel_add_rows(&c->ctx->kern, s);
  working_end(c, out, &to);
  return OK;
}

/* ---- rows on several ranks ------------------------------------------------------------------------ */

/* Is it wanted so along some axis, in one run for every rank? */
static bool rows_are_wanted(const Rules *r) {
  bool any = false;
  for (int a = 0; r->wanted && a < r->naxes; a++) {
    const Placement *p = &r->wanted[a];
    if (!is_s_of(p, 0)) continue;
    if (p->factor > 1 || p->nsegments || p->turn) return false;
    any = true;
  }
  return any;
}

bool rows_are_best(const Rules *r, int axis) {
  const Placement *grad = rule_have(r, 0, axis);
  if (!rows_are_wanted(r) || !is_s_of(&r->wanted[axis], 0)) return false;
  int64_t rows = tensor_numel(r->in[0]), table = tensor_numel(r->out[0]);
  return is_r(grad) || (is_p(grad) ? 2 * rows : rows) <= table; /* an all-reduce moves twice what a gather does */
}

Status local_rows(const Local *l, int64_t *first, int64_t *count) {
  int64_t size[MAX_DIMS];
  TRY(local_out_size(l, 0, size));
  *count = size[0];
  return local_out_begin(l, 0, 0, first);
}

Status check_rows(const Call *c, int64_t n, int64_t first, int64_t total) {
  if (n >= 0 && first >= 0 && total >= n && first <= total - n) return OK;
  return op_fail(c, "%lld rows from %lld on are not in a table of %lld", (long long)n, (long long)first,
                 (long long)total);
}
