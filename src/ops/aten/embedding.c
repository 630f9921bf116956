/* embedding.c -- rows of a table, one by one or summed in bags, and their gradients.
 *
 * The extra results of embedding_bag are what ATen's CPU kernel returns: with mode sum,
 * bag_size is zero and offset2bag empty where that kernel takes its short way.
 */
#include <string.h>

#include "kernels/copy.h"
#include "kernels/embedding.h"
#include "ops/aten/indexing.h"
#include "ops/rule.h"

/* An i64 tensor as a plain array. */
static Status flat_indices(const Call *c, const Tensor *t, int64_t extent, const int64_t **out) {
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
  int64_t begin = in_int(c, 2), n = in_tensor(c, 0)->size[0];
  if (begin < 0 || in_int(c, 3) < n || begin > in_int(c, 3) - n) {
    return op_fail(c, "%lld rows from %lld on are not in a table of %lld", (long long)n, (long long)begin,
                   (long long)in_int(c, 3));
  }
  return OK;
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

/* t in the dtype of sums, contiguous. */
static Status flat_numbers(const Call *c, const Tensor *t, Dtype d, void **out) {
  *out = tensor_data(t);
  if (t->dtype == d && tensor_is_contiguous(t)) return OK;
  int64_t stride[MAX_DIMS];
  contiguous_strides(t->ndim, t->size, stride);
  TRY_NEW(*out, kern_scratch(&c->ctx->kern, (size_t)tensor_numel(t) * dtype_size(d)));
  kernel_copy(&c->ctx->kern, (View){*out, t->size, stride, t->ndim, d}, tensor_view(t));
  return OK;
}

/* scale[i] /= how often row[i] occurs. */
static Status divide_by_frequency(const Call *c, RowSums *s, double *scale) {
  int64_t *count;
  TRY_NEW(count, kern_scratch(&c->ctx->kern, (size_t)s->rows * sizeof *count));
  memset(count, 0, (size_t)s->rows * sizeof *count);
  for (int64_t i = 0; i < s->n; i++) count[s->row[i]]++;
  for (int64_t i = 0; i < s->n; i++) scale[i] /= (double)count[s->row[i]];
  s->scale = scale;
  return OK;
}

static Status new_scale(const Call *c, int64_t n, double **scale) {
  TRY_NEW(*scale, kern_scratch(&c->ctx->kern, (size_t)n * sizeof **scale));
  for (int64_t i = 0; i < n; i++) (*scale)[i] = 1;
  return OK;
}

static void clear(Call *c) {
  const char zero[16] = {0};
  kernel_fill(&c->ctx->kern, tensor_view(out_tensor(c, 0)), zero);
}

/* Adds the rows to the result, rounds to its dtype. */
static Status add_rows(Call *c, RowSums *s) {
  Tensor *out = out_tensor(c, 0);
  Working to;
  TRY(working_begin(c, out, s->dtype, &to));
  s->out = to.data;
  kernel_add_rows(&c->ctx->kern, s);
  working_end(c, out, &to);
  return OK;
}

static Status dense_backward_infer(Call *c) {
  Tensor *grad, *indices;
  TRY(need_tensor(c, 0, &grad));
  TRY(need_tensor(c, 1, &indices));
  if (!dtype_is_float(grad->dtype) || grad->ndim == 0)
    return op_fail(c, "expects a gradient of floats, not %s", dtype_name(grad->dtype));
  if (tensor_numel(grad) != tensor_numel(indices) * grad->size[grad->ndim - 1])
    return op_fail(c, "the gradient does not have a row per index");
  int64_t size[2] = {in_int(c, 2), grad->size[grad->ndim - 1]};
  return out_new(c, grad->dtype, 2, size);
}

/* A row of grad per index, for the result, which is a table. */
static Status sums_of(Call *c, const Tensor *grad, const Tensor *indices, RowSums *s) {
  const Tensor *table = out_tensor(c, 0);
  void *rows;
  *s = (RowSums){.dtype = sum_dtype(grad->dtype),
                 .rows = table->size[0],
                 .width = table->size[1],
                 .n = tensor_numel(indices),
                 .padding = in_int(c, 3)};
  TRY(flat_indices(c, indices, s->rows, &s->row));
  TRY(flat_numbers(c, grad, s->dtype, &rows));
  s->grad = rows;
  return OK;
}

static Status dense_backward_body(Call *c) {
  RowSums s;
  TRY(sums_of(c, in_tensor(c, 0), in_tensor(c, 1), &s));
  if (in_bool(c, 4)) {
    double *scale;
    TRY(new_scale(c, s.n, &scale));
    TRY(divide_by_frequency(c, &s, scale));
  }
  clear(c);
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
  TRY(sums_of(c, in_tensor(c, 1), in_tensor(c, 2), &s));
  copy_self(c, in_tensor(c, 0));
  return add_rows(c, &s);
}

static Status backward_add_run(Call *c) { return with_scratch(c, backward_add_body); }

/* Columns; dimensions of the indices, which leave a sum (unless every rank must count how
 * often a row occurs); linear in the gradient. */
static Status dense_backward_place(Rules *r) {
  Placement p[3] = {place_s(1), place_s(r->in[0]->ndim - 1), place_r()};
  TRY(rule_axis_exact(r, p));
  TRY(rule_axis(r, p));
  p[0] = place_p(REDUCE_SUM);
  for (int d = 0; d < r->in[1]->ndim && !in_bool(r->call, 4); d++) {
    p[1] = p[2] = place_s(d);
    TRY(rule_axis_exact(r, p));
    TRY(rule_axis(r, p));
  }
  r->uneven = true;
  return rule_words(r, "ssr");
}

/* ---- embedding_bag -------------------------------------------------------------------------- */

/* Where the arguments are. */
typedef struct {
  int padding;
  bool forward_only; /* leaves out what ATen does without gradients */
  bool part;         /* tess.embedding_bag_part: a table's rows [begin, begin + n) of `total` */
} BagRow;
enum { PART_BEGIN = 9, PART_TOTAL, PART_FORWARD_ONLY }; /* arguments of that one alone */

static int64_t bag_padding(const Call *c, int64_t rows) {
  const BagRow *row = c->op->def->row;
  int64_t padding = row->padding < 0 || in_none(c, row->padding) ? -1 : in_int(c, row->padding);
  /* The public op counts from the end, the kernels take any negative number as none. */
  bool public = row->padding >= 0 && c->op->schema.params[row->padding].optional;
  return public && !in_none(c, row->padding) && padding < 0 ? padding + rows : padding;
}

static bool bag_forward_only(const Call *c) {
  const BagRow *row = c->op->def->row;
  return row->part ? in_bool(c, PART_FORWARD_ONLY) : row->forward_only;
}

/* Does ATen's kernel take its short way?  Parts are of tables whose rows are in one piece. */
static bool bag_is_short(const Call *c) {
  const BagRow *row = c->op->def->row;
  const Tensor *weight = in_tensor(c, 0), *samples = in_tensor(c, 6);
  bool whole = weight->dtype != DT_F64 && (row->part || weight->stride[1] == 1);
  return in_int(c, 4) == BAG_SUM && whole && bag_padding(c, weight->size[0]) < 0 &&
         (!samples || samples->stride[0] == 1);
}

static Status bag_infer(Call *c) {
  Tensor *weight, *indices, *offsets, *samples = in_tensor(c, 6);
  TRY(need_tensor(c, 0, &weight));
  TRY(need_tensor(c, 1, &indices));
  TRY(need_tensor(c, 2, &offsets));
  if (weight->ndim != 2 || !dtype_is_float(weight->dtype))
    return op_fail(c, "the weight must be a matrix of floats");
  if (indices->ndim != 1 || offsets->ndim != 1) return op_fail(c, "indices and offsets must have one dimension");
  if (!dtype_is_int(indices->dtype) || !dtype_is_int(offsets->dtype))
    return op_fail(c, "indices and offsets must be integers");
  int64_t mode = in_int(c, 4), bags = offsets->size[0] - in_bool(c, 7);
  if (mode < BAG_SUM || mode > BAG_MAX || bags < 0)
    return op_fail(c, "mode %lld with %lld bags is not possible", (long long)mode, (long long)bags);
  if (samples && (mode != BAG_SUM || samples->dtype != weight->dtype || !tensor_same_size(samples, indices))) {
    return op_fail(c, "per_sample_weights need mode sum, the weight's dtype and one number per index");
  }
  Dtype dtype = indices->dtype == DT_I32 && offsets->dtype == DT_I32 ? DT_I32 : DT_I64;
  int64_t out[2] = {bags, weight->size[1]}, of_index = bag_is_short(c) ? 0 : indices->size[0];
  int64_t sizes = mode == BAG_SUM && bag_forward_only(c) ? offsets->size[0] : bags;
  TRY(out_new(c, weight->dtype, 2, out));
  TRY(out_new(c, dtype, 1, &of_index));
  TRY(out_new(c, dtype, 1, &sizes));
  if (mode != BAG_MAX) return out_new(c, dtype, 1, &sizes);
  bool part = ((const BagRow *)c->op->def->row)->part; /* which rank has the largest is not known here */
  return part ? out_value(c, val_none()) : out_new(c, dtype, 2, out);
}

/* Writes a plain i64 array to an output. */
static void put_ints(Call *c, int output, const int64_t *values) {
  Tensor *t = out_tensor(c, output);
  int64_t stride[MAX_DIMS];
  contiguous_strides(t->ndim, t->size, stride);
  kernel_copy(&c->ctx->kern, tensor_view(t), (View){(void *)(uintptr_t)values, t->size, stride, t->ndim, DT_I64});
}

/* The bags' boundaries: one more than there are bags, ending with the number of indices. */
static Status bag_offsets(const Call *c, int64_t bags, int64_t n, const int64_t **out) {
  const int64_t *given;
  int64_t *offset;
  TRY(flat_indices(c, in_tensor(c, 2), n + 1, &given));
  TRY_NEW(offset, kern_scratch(&c->ctx->kern, (size_t)(bags + 1) * sizeof *offset));
  if (bags) memcpy(offset, given, (size_t)bags * sizeof *offset);
  offset[bags] = n;
  for (int64_t b = 0; b < bags; b++) {
    if (offset[b] > offset[b + 1] || offset[0] != 0)
      return op_fail(c, "offsets must start with 0 and not decrease");
  }
  *out = offset;
  return OK;
}

static Status bag_body(Call *c) {
  Tensor *weight = in_tensor(c, 0), *samples = in_tensor(c, 6), *out = out_tensor(c, 0);
  int64_t n = in_tensor(c, 1)->size[0], bags = out->size[0], *size, *largest = NULL, *bag_of;
  bool part = ((const BagRow *)c->op->def->row)->part;
  Bags b = {.table = tensor_view(weight),
            .begin = part ? in_int(c, PART_BEGIN) : 0,
            .bags = bags,
            .mode = (BagMode)in_int(c, 4),
            .padding = bag_padding(c, weight->size[0])};
  TRY(flat_indices(c, in_tensor(c, 1), part ? in_int(c, PART_TOTAL) : weight->size[0], &b.indices));
  TRY(bag_offsets(c, bags, n, &b.offset));
  if (samples) b.weight = tensor_data(samples), b.weight_step = samples->stride[0];
  TRY_NEW(size, kern_scratch(&c->ctx->kern, (size_t)(bags + 1) * sizeof *size));
  TRY_NEW(bag_of, kern_scratch(&c->ctx->kern, (size_t)n * sizeof *bag_of));
  if (b.mode == BAG_MAX && !part)
    TRY_NEW(largest, kern_scratch(&c->ctx->kern, (size_t)tensor_numel(out) * sizeof *largest));
  if (!kernel_embedding_bag(&c->ctx->kern, &b, tensor_data(out), size, largest)) return fail_oom();
  for (int64_t bag = 0; bag < bags; bag++) {
    for (int64_t i = b.offset[bag]; i < b.offset[bag + 1]; i++) bag_of[i] = bag;
  }
  if (b.mode == BAG_SUM) memset(size, 0, (size_t)(bags + 1) * sizeof *size);
  put_ints(c, 1, bag_of);
  put_ints(c, 2, size);
  if (out_tensor(c, 3)) put_ints(c, 3, largest ? largest : size);
  return OK;
}

static Status bag_run(Call *c) { return with_scratch(c, bag_body); }

/* Columns of the table.  Its rows: each rank adds what it has, divides by what the bag has on all
 * ranks, or leaves -inf where others have the bag's rows.  Sums are linear in the table. */
static Status bag_place(Rules *r) {
  bool max = in_int(r->call, 4) == BAG_MAX;
  Placement p[4 + 4]; /* four results; per_sample_weights may be left out */
  if (r->in[0]->stride[1] != 1) return rule_why(r, "a table whose rows are not in one piece"), OK;
  for (int i = 0; i < 4 + r->nin; i++) p[i] = place_r();
  p[0] = p[4] = place_s(1);
  if (max) p[3] = place_s(1);
  TRY(rule_axis_exact(r, p));
  TRY(rule_axis(r, p));
  p[0] = place_p(max ? REDUCE_MAX : REDUCE_SUM);
  p[3] = place_r();
  p[4] = place_s(0);
  TRY(rule_axis_exact(r, p));
  if (max) return OK;
  p[4] = place_p(REDUCE_SUM);
  return rule_axis(r, p);
}

static Status bag_localize(Local *l) {
  bool cut = false;
  int64_t begin, rows = l->in[0]->size[0];
  for (int a = 0; a < l->naxes; a++) cut |= is_s_of(&local_place_in(l, 0)[a], 0);
  if (!cut) return OK;
  TRY(local_in_begin(l, 0, 0, &begin));
  l->op = op_find("tess.embedding_bag_part.default");
  l->arg[((const BagRow *)l->op->def->row)->padding] = val_int(bag_padding(l->call, rows));
  l->arg[PART_BEGIN] = val_int(begin);
  l->arg[PART_TOTAL] = val_int(rows);
  l->arg[PART_FORWARD_ONLY] = val_bool(bag_forward_only(l->call));
  return OK;
}

/* ---- its gradient ------------------------------------------------------------------------------ */

static Status bag_backward_infer(Call *c) {
  Tensor *grad;
  TRY(need_tensor(c, 0, &grad));
  for (int i = 1; i <= 4; i++) {
    Tensor *t;
    TRY(need_tensor(c, i, &t));
  }
  if (grad->ndim != 2 || !dtype_is_float(grad->dtype)) return op_fail(c, "the gradient must be a matrix of floats");
  if (tensor_numel(in_tensor(c, 3)) < grad->size[0]) return op_fail(c, "bag_size must have a number per bag");
  if (in_int(c, 7) == BAG_MAX && tensor_numel(in_tensor(c, 4)) < tensor_numel(grad))
    return op_fail(c, "maximum_indices must have a number per element of the gradient");
  int64_t size[2] = {in_int(c, 5), grad->size[1]};
  return out_new(c, grad->dtype, 2, size);
}

/* Mode max: every element of a bag's gradient goes to the row that it came from. */
static Status bag_max_backward(Call *c, const int64_t *bag_size, Dtype dtype, void *grad) {
  Tensor *out = out_tensor(c, 0);
  int64_t bags = in_tensor(c, 0)->size[0], width = out->size[1], kept = 0, *list;
  const int64_t *largest;
  const char zero[16] = {0};
  Working to;
  TRY(flat_indices(c, in_tensor(c, 4), out->size[0], &largest));
  TRY_NEW(list, kern_scratch(&c->ctx->kern, (size_t)bags * sizeof *list));
  for (int64_t b = 0; b < bags; b++) {
    if (bag_size[b] > 0) list[kept++] = b;
  }
  kernel_fill(&c->ctx->kern, tensor_view(out), zero);
  TRY(working_begin(c, out, dtype, &to));
  for (int64_t i = 0; i < kept; i++) { /* one bag at a time: no two elements of it meet */
    int64_t b = list[i], one = 1;
    IndexMap map = {.ndim = 1,
                    .size = {width},
                    .stride = {1},
                    .nindex = 1,
                    .index = {{.data = largest + b * width, .stride = {1}, .step = width}}};
    View near = {(char *)grad + (size_t)(b * width) * dtype_size(dtype), &width, &one, 1, dtype};
    kernel_scatter(&c->ctx->kern, &map, to.data, near, SCATTER_ADD);
  }
  working_end(c, out, &to);
  return OK;
}

static Status bag_backward_body(Call *c) {
  Tensor *grad = in_tensor(c, 0), *samples = in_tensor(c, 8), *out = out_tensor(c, 0);
  BagMode mode = (BagMode)in_int(c, 7);
  RowSums s = {
      .dtype = sum_dtype(grad->dtype), .rows = out->size[0], .width = out->size[1], .padding = in_int(c, 9)};
  const int64_t *bag_size;
  void *rows;
  double *scale;
  TRY(flat_numbers(c, grad, s.dtype, &rows));
  TRY(flat_indices(c, in_tensor(c, 3), INT64_MAX, &bag_size));
  if (mode == BAG_MAX) return bag_max_backward(c, bag_size, s.dtype, rows);
  s.grad = rows;
  s.n = tensor_numel(in_tensor(c, 1));
  if (tensor_numel(in_tensor(c, 2)) != s.n) return op_fail(c, "offset2bag must have a number per index");
  TRY(flat_indices(c, in_tensor(c, 1), s.rows, &s.row));
  TRY(flat_indices(c, in_tensor(c, 2), grad->size[0], &s.from));
  TRY(new_scale(c, s.n, &scale));
  s.scale = scale;
  if (samples) {
    void *numbers;
    if (tensor_numel(samples) != s.n) return op_fail(c, "per_sample_weights must have a number per index");
    TRY(flat_numbers(c, samples, DT_F64, &numbers));
    memcpy(scale, numbers, (size_t)s.n * sizeof *scale);
  }
  for (int64_t i = 0; i < s.n && mode == BAG_MEAN; i++) scale[i] /= (double)bag_size[s.from[i]];
  if (in_bool(c, 6)) TRY(divide_by_frequency(c, &s, scale));
  clear(c);
  return add_rows(c, &s);
}

static Status bag_backward_run(Call *c) { return with_scratch(c, bag_backward_body); }

/* clang-format off */
#define BAG(text, ...) {.schema = text, .infer = bag_infer, .run = bag_run, .row = &(const BagRow){__VA_ARGS__}, \
                        .shard.place = bag_place, .shard.localize = bag_localize}
/* clang-format on */

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
                   .run = dense_backward_run, .shard.place = dense_backward_place},
    BAG("aten::embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int "
        "mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False) -> (Tensor, "
        "Tensor, Tensor, Tensor)", -1, true, false),
    BAG("aten::embedding_bag.padding_idx(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, "
        "int mode, bool sparse, Tensor? per_sample_weights, bool include_last_offset, int? padding_idx) -> "
        "(Tensor, Tensor, Tensor, Tensor)", 8, true, false),
    BAG("aten::_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int "
        "mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int "
        "padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)", 8, false, false),
    BAG("aten::_embedding_bag_forward_only(Tensor weight, Tensor indices, Tensor offsets, bool "
        "scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool "
        "include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)", 8, true, false),
    {.schema = "tess::embedding_bag_part(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int "
               "mode, bool sparse, Tensor? per_sample_weights, bool include_last_offset, int padding_idx, SymInt "
               "begin, SymInt total, bool forward_only) -> (Tensor, Tensor, Tensor, Tensor)", .infer = bag_infer,
                   .run = bag_run, .row = &(const BagRow){8, false, true}},
    {.schema = "aten::_embedding_bag_dense_backward(Tensor grad, Tensor indices, Tensor offset2bag, Tensor "
               "bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, Tensor? "
               "per_sample_weights, int padding_idx=-1) -> Tensor", .infer = bag_backward_infer,
                   .run = bag_backward_run},
    {0},
};
