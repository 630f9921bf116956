/* embedding.c -- rows of a table, and their gradient. */
#include <string.h>

#include "ops/aten/table_gradient.h"

/* ---- embedding ------------------------------------------------------------------------- */

static Status embedding_infer(Call *c) {
  Tensor *weight, *indices;
  TRY(need_tensor(c, 0, &weight));
  TRY(need_tensor(c, 1, &indices));
  if (weight->ndim != 2) return op_fail(c, "the weight must have two dimensions, not %d", weight->ndim);
  if (indices->ndim + 1 > MAX_DIMS) return op_fail(c, "the result has more than %d dimensions", MAX_DIMS);
  int64_t size[MAX_DIMS];
  memcpy(size, indices->size, sizeof size);
  size[indices->ndim] = weight->size[1];
  return out_new(c, weight->dtype, indices->ndim + 1, size);
}

static Status embedding_body(Call *c) {
  Tensor *weight = in_tensor(c, 0), *out = out_tensor(c, 0);
  Indices index;
  TRY(indices_prepare(c, in_tensor(c, 1), weight->size[0], 0, NEGATIVE_FAILS, &index));
  IndexMap map = {.ndim = out->ndim, .nindex = 1, .index = {{.data = index.data, .step = weight->stride[0]}}};
  memcpy(map.size, out->size, sizeof map.size);
  memcpy(map.index[0].stride, index.stride, (size_t)index.ndim * sizeof *index.stride);
  map.stride[index.ndim] = weight->stride[1];
  kernel_gather(&c->ctx->kern, &map, tensor_view(out), tensor_data(weight));
  return OK;
}

static Status embedding_run(Call *c) { return with_scratch(c, embedding_body); }

/* ---- a part of the table: embedding_part(weight, indices, begin, total) --------------------
 * weight has rows [begin, begin + n) of a table of `total`; other rows read as zeros, so that
 * the parts add up to the whole. */

static Status part_infer(Call *c) {
  TRY(embedding_infer(c));
  return check_rows(c, in_tensor(c, 0)->size[0], in_int(c, 2), in_int(c, 3));
}

static Status part_body(Call *c) {
  Tensor *weight = in_tensor(c, 0), *out = out_tensor(c, 0);
  int64_t begin = in_int(c, 2), n = tensor_numel(in_tensor(c, 1)), rows = weight->size[0], *row, one = 1;
  size_t width = (size_t)weight->size[1] * dtype_size(out->dtype);
  const int64_t *index;
  TRY(flat_indices(c, in_tensor(c, 1), in_int(c, 3), &index));
  if (!rows) {
    memset(tensor_data(out), 0, (size_t)n * width);
    return OK;
  }
  TRY_NEW(row, kern_scratch(&c->ctx->kern, (size_t)n * sizeof *row));
  for (int64_t i = 0; i < n; i++) row[i] = index[i] >= begin && index[i] < begin + rows ? index[i] - begin : 0;
  int64_t size[2] = {n, weight->size[1]}, stride[2] = {weight->size[1], 1};
  IndexMap map = {.ndim = 2,
                  .size = {n, weight->size[1]},
                  .stride = {0, weight->stride[1]},
                  .nindex = 1,
                  .index = {{.data = row, .stride = {one}, .step = weight->stride[0]}}};
  kernel_gather(&c->ctx->kern, &map, (View){tensor_data(out), size, stride, 2, out->dtype}, tensor_data(weight));
  for (int64_t i = 0; i < n; i++)
    if (index[i] < begin || index[i] >= begin + rows)
      memset((char *)tensor_data(out) + (size_t)i * width, 0, width);
  return OK;
}

static Status part_run(Call *c) { return with_scratch(c, part_body); }

/* Columns of the table; its rows, each rank adding what it has; dimensions of the indices. */
static Status embedding_place(Rules *r) {
  int n = r->in[1]->ndim;
  Placement p[3] = {place_s(n), place_s(1), place_r()}, rows[3] = {place_p(REDUCE_SUM), place_s(0), place_r()};
  TRY(rule_axis_exact(r, p));
  TRY(rule_axis(r, p));
  TRY(rule_axis_exact(r, rows));
  p[1] = place_r();
  for (int d = 0; d < n; d++) {
    p[0] = p[2] = place_s(d);
    TRY(rule_axis_exact(r, p));
    TRY(rule_axis(r, p));
  }
  return rule_words(r, "ssr aar");
}

static Status embedding_localize(Local *l) {
  bool cut = false;
  int64_t begin;
  for (int a = 0; a < l->naxes; a++) cut |= is_s_of(&local_place_in(l, 0)[a], 0);
  if (!cut) return OK;
  TRY(local_in_begin(l, 0, 0, &begin));
  l->op = op_find("tess.embedding_part.default");
  l->arg[2] = val_int(begin);
  l->arg[3] = val_int(l->in[0]->size[0]);
  return OK;
}

/* ---- gradients of the table --------------------------------------------------------------- */

/* embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq), and ..._part(...,
 * first_row, total_rows): rows [first_row, first_row + num_weights) of that of a table of total_rows. */
enum { GRAD, INDICES, NUM_WEIGHTS, PADDING, BY_FREQUENCY, FIRST_ROW, TOTAL_ROWS };

static Status dense_backward_infer(Call *c) {
  Tensor *grad, *indices;
  TRY(need_tensor(c, 0, &grad));
  TRY(need_tensor(c, 1, &indices));
  if (!dtype_is_float(grad->dtype) || grad->ndim == 0)
    return op_fail(c, "expects a gradient of floats, not %s", dtype_name(grad->dtype));
  if (tensor_numel(grad) != tensor_numel(indices) * grad->size[grad->ndim - 1])
    return op_fail(c, "the gradient does not have a row per index");
  int64_t size[2] = {in_int(c, NUM_WEIGHTS), grad->size[grad->ndim - 1]};
  return out_new(c, grad->dtype, 2, size);
}

static Status dense_backward_part_infer(Call *c) {
  TRY(dense_backward_infer(c));
  return check_rows(c, in_int(c, NUM_WEIGHTS), in_int(c, FIRST_ROW), in_int(c, TOTAL_ROWS));
}

/* A row of grad per index, for the result: rows from first_row on of a table of `total`. */
static Status sums_of(Call *c, const Tensor *grad, const Tensor *indices, int64_t first_row, int64_t total,
                      RowSums *s) {
  const Tensor *table = out_tensor(c, 0);
  void *rows;
  *s = (RowSums){.dtype = sum_dtype(grad->dtype),
                 .rows = table->size[0],
                 .width = table->size[1],
                 .n = tensor_numel(indices),
                 .nfrom = tensor_numel(indices),
                 .first_row = first_row,
                 .padding = in_int(c, PADDING)};
  TRY(flat_indices(c, indices, total, &s->row));
  TRY(flat_numbers(c, grad, s->dtype, &rows));
  s->grad = rows;
  return OK;
}

static Status dense_backward_body(Call *c) {
  RowSums s;
  bool part = c->op->schema.nparams > FIRST_ROW;
  int64_t first = part ? in_int(c, FIRST_ROW) : 0, total = in_int(c, part ? TOTAL_ROWS : NUM_WEIGHTS);
  TRY(sums_of(c, in_tensor(c, GRAD), in_tensor(c, INDICES), first, total, &s));
  if (in_bool(c, BY_FREQUENCY)) {
    double *scale;
    TRY(new_scale(c, s.n, &scale));
    TRY(divide_by_frequency(c, &s, scale));
  }
  clear_table(c);
  return add_rows(c, &s);
}

static Status dense_backward_run(Call *c) { return with_scratch(c, dense_backward_body); }

/* embedding_dense_backward_add(self, grad_output, indices, padding_idx): the gradient of a table that has one from
 * elsewhere already, in its memory. */
static Status backward_add_infer(Call *c) {
  Tensor *self, *grad, *indices;
  TRY(need_tensor(c, 0, &self));
  TRY(need_tensor(c, 1, &grad));
  TRY(need_tensor(c, 2, &indices));
  bool fits = self->ndim == 2 && grad->ndim > 0 && grad->dtype == self->dtype && dtype_is_float(self->dtype);
  if (!fits || grad->size[grad->ndim - 1] != self->size[1] ||
      tensor_numel(grad) != tensor_numel(indices) * self->size[1])
    return op_fail(c, "the gradient does not have a row of the table per index");
  return out_new(c, self->dtype, 2, self->size);
}

static Status backward_add_body(Call *c) {
  RowSums s;
  TRY(sums_of(c, in_tensor(c, 1), in_tensor(c, 2), 0, in_tensor(c, 0)->size[0], &s));
  copy_self(c, in_tensor(c, 0));
  return add_rows(c, &s);
}

static Status backward_add_run(Call *c) { return with_scratch(c, backward_add_body); }

/* Along one axis: rows of the table; else what the gradient has. */
static Status dense_backward_axis(const Rules *r, const void *arg, int axis, Placement *p) {
  const Placement *grad = rule_have(r, GRAD, axis), *indices = rule_have(r, INDICES, axis);
  bool by_frequency = in_bool(r->call, BY_FREQUENCY), columns = is_s_of(grad, r->in[GRAD]->ndim - 1);
  (void)arg;
  if (rows_are_best(r, axis)) p[0] = r->wanted[axis];
  else if (columns) {
    p[0] = p[1] = *grad;
    p[0].dim = 1;
  } else if ((is_s(grad) || (is_s(indices) && is_r(grad))) && !by_frequency) {
    p[0] = place_p(REDUCE_SUM);
    p[1] = p[2] = is_s(grad) ? *grad : *indices;
  } else if (is_p(grad) && grad->op == REDUCE_SUM && grad->norm == 0) p[0] = p[1] = *grad;
  return OK;
}

/* Columns; dimensions of the indices, which leave a sum (unless every rank must count how
 * often a row occurs); linear in the gradient.  Rows of the table, where they are wanted so. */
static Status dense_backward_place(Rules *r) {
  Placement p[3] = {place_s(1), place_s(r->in[GRAD]->ndim - 1), place_r()};
  bool rows = false;
  TRY(rule_axis_exact(r, p));
  TRY(rule_axis(r, p));
  p[0] = place_p(REDUCE_SUM);
  for (int d = 0; d < r->in[INDICES]->ndim && !in_bool(r->call, BY_FREQUENCY); d++) {
    p[1] = p[2] = place_s(d);
    TRY(rule_axis_exact(r, p));
    TRY(rule_axis(r, p));
  }
  r->uneven = true;
  for (int a = 0; a < r->naxes; a++) rows |= rows_are_best(r, a);
  if (rows) TRY(rule_follow(r, dense_backward_axis, NULL));
  return rule_words(r, "ssr");
}

static Status dense_backward_localize(Local *l) {
  bool cut = false;
  int64_t first, count;
  for (int a = 0; a < l->naxes; a++) cut |= is_s_of(&local_place_out(l, 0)[a], 0);
  if (!cut) return OK;
  TRY(local_rows(l, &first, &count));
  l->op = op_find("tess.embedding_dense_backward_part.default");
  l->arg[NUM_WEIGHTS] = val_int(count);
  l->arg[FIRST_ROW] = val_int(first);
  l->arg[TOTAL_ROWS] = val_int(l->out[0]->size[0]);
  return OK;
}

/* clang-format off */
const OpDef ops_embedding[] = {
    {.schema = "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool "
               "scale_grad_by_freq=False, bool sparse=False) -> Tensor", .infer = embedding_infer,
                   .run = embedding_run, .shard.place = embedding_place, .shard.localize = embedding_localize},
    {.schema = "tess::embedding_part(Tensor weight, Tensor indices, SymInt begin, SymInt total) -> Tensor",
     .infer = part_infer, .run = part_run},
    {.schema = "tess::embedding_dense_backward_add(Tensor self, Tensor grad_output, Tensor indices, SymInt "
               "padding_idx) -> Tensor",
     .infer = backward_add_infer,
     .run = backward_add_run,
     .flags = OP_UPDATE},
    {.schema = "aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt "
               "padding_idx, bool scale_grad_by_freq) -> Tensor", .infer = dense_backward_infer,
                   .run = dense_backward_run, .shard.place = dense_backward_place,
                   .shard.localize = dense_backward_localize},
    {.schema = "tess::embedding_dense_backward_part(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt "
               "padding_idx, bool scale_grad_by_freq, SymInt first_row, SymInt total_rows) -> Tensor",
     .infer = dense_backward_part_infer, .run = dense_backward_run},
    {0},
};
