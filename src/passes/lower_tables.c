/* lower_tables.c -- parts of tables, and of their gradients, as ops that PyTorch has.
 *
 * A rank has some rows of a table.  Looked up, others read as zeros; in a gradient, what goes to others goes to a
 * row behind its own, which is padding and is cut off.  Bags of other ranks go there as well.
 */
#include <math.h>
#include <string.h>

#include "graph/resolve.h"
#include "passes/lower_torch.h"

/* ---- rows ------------------------------------------------------------------------------------------ */

/* index - begin where that is one of n rows, else 0; outside tells where not. */
static Status rows_here(Lower *l, Tensor *index, int64_t begin, int64_t n, Tensor **row, Tensor **outside) {
  const Call *c = &l->call;
  Tensor *low, *high;
  TRY(OP(c, "aten.sub.Tensor", row, val_tensor(index), val_int(begin)));
  TRY(OP(c, "aten.lt.Scalar", &low, val_tensor(*row), val_int(0)));
  TRY(OP(c, "aten.ge.Scalar", &high, val_tensor(*row), val_int(n)));
  TRY(OP(c, "aten.logical_or.default", outside, val_tensor(low), val_tensor(high)));
  return OP(c, "aten.masked_fill.Scalar", row, val_tensor(*row), val_tensor(*outside), val_int(0));
}

static Status zeros(Lower *l, Tensor *like, const int64_t *size, int ndim, Tensor **out) {
  return OP(&l->call, "aten.new_zeros.default", out, val_tensor(like), val_ints(size, ndim));
}

static Status is_between(Lower *l, Tensor *index, int64_t begin, int64_t end, Tensor **out) {
  const Call *c = &l->call;
  Tensor *low, *high;
  TRY(OP(c, "aten.ge.Scalar", &low, val_tensor(index), val_int(begin)));
  TRY(OP(c, "aten.lt.Scalar", &high, val_tensor(index), val_int(end)));
  return OP(c, "aten.logical_and.default", out, val_tensor(low), val_tensor(high));
}

/* Where the rows are another rank's: not [begin, end), but some of total.  NULL: nowhere. */
static Status is_elsewhere(Lower *l, Tensor *index, int64_t begin, int64_t end, int64_t total, Tensor **out) {
  Tensor *before = NULL, *behind = NULL;
  if (begin > 0) TRY(is_between(l, index, 0, begin, &before));
  if (end < total) TRY(is_between(l, index, end, total, &behind));
  *out = before ? before : behind;
  if (!before || !behind) return OK;
  return OP(&l->call, "aten.logical_or.default", out, val_tensor(before), val_tensor(behind));
}

/* embedding_part(weight, indices, begin, total): rows of other ranks are zero.  An index that is no
 * row at all stays outside of every rank's part, and the embedding refuses it as that of the whole does. */
Status lower_embedding(Lower *l, const Node *n, Tensor **out) {
  const Call *c = &l->call;
  Tensor *weight, *index, *row, *elsewhere, *last;
  TRY(lower_tensor(l, n, 0, &weight));
  TRY(lower_tensor(l, n, 1, &index));
  if (weight->size[0] == 0) {
    int64_t size[MAX_DIMS];
    memcpy(size, index->size, (size_t)index->ndim * sizeof *size);
    size[index->ndim] = weight->size[1];
    return zeros(l, weight, size, index->ndim + 1, out);
  }
  int64_t begin = n->args[2].i;
  TRY(is_elsewhere(l, index, begin, begin + weight->size[0], n->args[3].i, &elsewhere));
  TRY(OP(c, "aten.sub.Tensor", &row, val_tensor(index), val_int(begin)));
  if (elsewhere) TRY(OP(c, "aten.masked_fill.Scalar", &row, val_tensor(row), val_tensor(elsewhere), val_int(0)));
  TRY(OP(c, "aten.embedding.default", out, val_tensor(weight), val_tensor(row)));
  if (!elsewhere) return OK;
  TRY(OP(c, "aten.unsqueeze.default", &last, val_tensor(elsewhere), val_int(-1)));
  return OP(c, "aten.masked_fill.Scalar", out, val_tensor(*out), val_tensor(last), val_int(0));
}

/* gather_part(self, dim, index, begin): elements of other ranks are zero. */
Status lower_gather(Lower *l, const Node *n, Tensor **out) {
  const Call *c = &l->call;
  Tensor *self, *index, *row, *outside;
  TRY(lower_tensor(l, n, 0, &self));
  TRY(lower_tensor(l, n, 2, &index));
  int64_t dim = n->args[1].i < 0 ? n->args[1].i + self->ndim : n->args[1].i;
  if (self->ndim == 0 || self->size[dim] == 0) return zeros(l, self, index->size, index->ndim, out);
  TRY(rows_here(l, index, n->args[3].i, self->size[dim], &row, &outside));
  TRY(OP(c, "aten.gather.default", out, val_tensor(self), val_int(dim), val_tensor(row)));
  return OP(c, "aten.masked_fill.Scalar", out, val_tensor(*out), val_tensor(outside), val_int(0));
}

/* ---- bags ----------------------------------------------------------------------------------------- */

static bool last_offset(const Node *n) { return n->args[7].kind == ARG_BOOL && n->args[7].b; }

/* Sums (0) or largest (2) of rows, bag by bag, of as many rows as there are indices. */
static Status bags_of(Lower *l, const Node *n, Tensor *rows, Tensor *samples, int64_t mode, Tensor **out) {
  const Call *c = &l->call;
  Tensor *offsets, *each, *four[4];
  TRY(lower_tensor(l, n, 2, &offsets));
  TRY(OP(c, "aten.arange.default", &each, val_int(rows->size[0]), val_dtype(offsets->dtype)));
  TRY(OP_N(c, "aten.embedding_bag.padding_idx", four, 4, val_tensor(rows), val_tensor(each), val_tensor(offsets),
           val_bool(false), val_int(mode), val_bool(false), samples ? val_tensor(samples) : val_none(),
           val_bool(last_offset(n)), val_none()));
  *out = four[0];
  return OK;
}

/* How many of a bag's indices are no padding, [bags, 1]. */
static Status bag_counts(Lower *l, const Node *n, Tensor *index, Dtype dtype, int64_t padding, Tensor **out) {
  const Call *c = &l->call;
  Tensor *counts;
  TRY(OP(c, "aten.ne.Scalar", &counts, val_tensor(index), val_int(padding)));
  TRY(OP(c, "aten.unsqueeze.default", &counts, val_tensor(counts), val_int(-1)));
  TRY(OP(c, "aten.to.dtype", &counts, val_tensor(counts), val_dtype(dtype)));
  return bags_of(l, n, counts, NULL, 0, out);
}

/* The sums of all bags, or their largest, of the rows that are here, zero (or -inf) in place of others. */
static Status bags_of_rows(Lower *l, const Node *n, Tensor **out) {
  const Call *c = &l->call;
  Tensor *weight, *index, *samples, *row, *outside, *rows, *counts, *last;
  int64_t mode = n->args[4].i, padding = n->args[8].i;
  bool max = mode == 2;
  TRY(lower_tensor(l, n, 0, &weight));
  TRY(lower_tensor(l, n, 1, &index));
  TRY(lower_tensor(l, n, 6, &samples));
  Value none = max ? val_float(-INFINITY) : val_int(0);
  TRY(rows_here(l, index, n->args[9].i, weight->size[0], &row, &outside));
  if (padding >= 0) {
    TRY(OP(c, "aten.eq.Scalar", &last, val_tensor(index), val_int(padding)));
    TRY(OP(c, "aten.logical_or.default", &outside, val_tensor(outside), val_tensor(last)));
  }
  int64_t size[2] = {index->size[0], weight->size[1]};
  if (weight->size[0] == 0) TRY(zeros(l, weight, size, 2, &rows));
  else TRY(OP(c, "aten.embedding.default", &rows, val_tensor(weight), val_tensor(row)));
  TRY(OP(c, "aten.unsqueeze.default", &last, val_tensor(outside), val_int(-1)));
  TRY(OP(c, "aten.masked_fill.Scalar", &rows, val_tensor(rows), val_tensor(last), none));
  TRY(bags_of(l, n, rows, samples, max ? 2 : 0, out));
  if (mode == 0 || (max && padding < 0)) return OK;
  TRY(bag_counts(l, n, index, weight->dtype, padding, &counts));
  if (!max) {
    TRY(OP(c, "aten.clamp_min.default", &counts, val_tensor(counts), val_int(1)));
    return OP(c, "aten.div.Tensor", out, val_tensor(*out), val_tensor(counts));
  }
  TRY(OP(c, "aten.eq.Scalar", &counts, val_tensor(counts), val_int(0)));
  return OP(c, "aten.masked_fill.Scalar", out, val_tensor(*out), val_tensor(counts), val_int(0));
}

/* What gradients want to know of bags whose rows lie on several ranks: the bag of each index, unless the op leaves
 * it out, and how many of each bag count (zeros in mode sum). */
static Status bag_facts(Lower *l, const Node *n, Tensor **of_index, Tensor **size) {
  const Call *c = &l->call;
  Tensor *index, *offsets, *each, *rows, *counts, *four[4];
  TRY(lower_tensor(l, n, 1, &index));
  TRY(lower_tensor(l, n, 2, &offsets));
  TRY(bag_counts(l, n, index, DT_F32, n->args[8].i, &counts));
  TRY(zeros(l, counts, (int64_t[]){index->size[0], 1}, 2, &rows));
  TRY(OP(c, "aten.arange.default", &each, val_int(index->size[0]), val_dtype(offsets->dtype)));
  TRY(OP_N(c, "aten._embedding_bag.default", four, 4, val_tensor(rows), val_tensor(each), val_tensor(offsets),
           val_bool(false), val_int(1), val_bool(false), val_none(), val_bool(last_offset(n))));
  if (n->outs[1]->size[0]->value == index->size[0]) *of_index = four[1];
  if (n->args[4].i == 0) return zeros(l, four[2], four[2]->size, 1, size);
  TRY(OP(c, "aten.squeeze.dim", &counts, val_tensor(counts), val_int(1)));
  return OP(c, "aten.to.dtype", size, val_tensor(counts), val_dtype(four[2]->dtype));
}

/* All bags of a whole table. */
static Status bags_of_table(Lower *l, const Node *n, bool forward_only, Tensor **out) {
  Value arg[9];
  for (int i = 0; i < 9; i++) {
    Tensor *t;
    TRY(lower_tensor(l, n, i, &t));
    if (t) arg[i] = val_tensor(t);
    else TRY(arg_resolve(l->call.arena, NULL, &n->args[i], &arg[i]));
  }
  if (forward_only && arg[8].i < 0) arg[8] = val_none(); /* else it would count from the end */
  return op_call(&l->call, forward_only ? "aten.embedding_bag.padding_idx" : "aten._embedding_bag.default", out, 4,
                 arg, 9);
}

/* embedding_bag_part(weight, indices, offsets, _, mode, _, samples, include_last, padding, begin, total,
 * forward_only, first_bag, bags): all bags are made, of the rows that are here (total is None: of all), and this
 * rank's are taken of them.  What only gradients ask for is told if there are some; but not which row of a part is
 * the largest. */
Status lower_bag(Lower *l, const Node *n, Tensor **out) {
  bool forward_only = n->args[11].kind == ARG_BOOL && n->args[11].b;
  if (n->args[10].kind != ARG_INT) TRY(bags_of_table(l, n, forward_only, out));
  else {
    TRY(bags_of_rows(l, n, &out[0]));
    if (!forward_only) TRY(bag_facts(l, n, &out[1], &out[2]));
    if (n->args[4].i != 2) out[3] = out[2]; /* as ATen has it */
  }
  for (int i = 0; i < 4; i++) {
    int64_t first = n->args[12].i;
    if (!out[i] || !out[i]->ndim || out[i]->size[0] == n->outs[i]->size[0]->value) continue;
    TRY(OP(&l->call, "aten.slice.Tensor", &out[i], val_tensor(out[i]), val_int(0), val_int(first),
           val_int(first + n->args[13].i)));
  }
  return OK;
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

/* The row of each index among n that begin with `first`, or n: of other ranks', and of padding. */
static Status row_or_behind(Lower *l, Tensor *index, int64_t first, int64_t n, int64_t padding, Tensor *outside,
                            Tensor **row) {
  const Call *c = &l->call;
  Tensor *elsewhere, *none;
  TRY(rows_here(l, index, first, n, row, &elsewhere));
  if (outside) TRY(OP(c, "aten.logical_or.default", &elsewhere, val_tensor(elsewhere), val_tensor(outside)));
  if (padding >= 0) {
    TRY(OP(c, "aten.eq.Scalar", &none, val_tensor(index), val_int(padding)));
    TRY(OP(c, "aten.logical_or.default", &elsewhere, val_tensor(elsewhere), val_tensor(none)));
  }
  return OP(c, "aten.masked_fill.Scalar", row, val_tensor(*row), val_tensor(elsewhere), val_int(n));
}

static Status first_rows(Lower *l, int64_t n, Tensor **table) {
  return OP(&l->call, "aten.slice.Tensor", table, val_tensor(*table), val_int(0), val_int(0), val_int(n));
}

/* embedding_dense_backward_part(grad, indices, num_weights, padding, by_frequency, first_row, total) */
Status lower_embedding_backward(Lower *l, const Node *n, Tensor **out) {
  Tensor *grad, *index, *row;
  int64_t rows = n->args[2].i;
  bool by_frequency = n->args[4].kind == ARG_BOOL && n->args[4].b;
  TRY(lower_tensor(l, n, 0, &grad));
  TRY(lower_tensor(l, n, 1, &index));
  if (!rows) return zeros(l, grad, (int64_t[]){0, grad->size[grad->ndim - 1]}, 2, out);
  TRY(row_or_behind(l, index, n->args[5].i, rows, n->args[3].i, NULL, &row));
  TRY(OP(&l->call, "aten.embedding_dense_backward.default", out, val_tensor(grad), val_tensor(row),
         val_int(rows + 1), val_int(rows), val_bool(by_frequency)));
  return first_rows(l, rows, out);
}

/* embedding_bag_backward_part(grad, indices, offset2bag, bag_size, maximum_indices, num_weights, by_frequency,
 * mode, samples, padding, first_bag, first_row, total) */
Status lower_bag_backward(Lower *l, const Node *n, Tensor **out) {
  const Call *c = &l->call;
  Tensor *grad, *index, *bag, *size, *largest, *samples, *outside;
  int64_t rows = n->args[5].i, mode = n->args[7].i, first_row = n->args[11].i;
  bool by_frequency = n->args[6].kind == ARG_BOOL && n->args[6].b;
  TRY(lower_tensor(l, n, 0, &grad));
  TRY(lower_tensor(l, n, 1, &index));
  TRY(lower_tensor(l, n, 2, &bag));
  TRY(lower_tensor(l, n, 3, &size));
  TRY(lower_tensor(l, n, 4, &largest));
  TRY(lower_tensor(l, n, 8, &samples));
  if (!rows || !grad->size[0]) return zeros(l, grad, (int64_t[]){rows, grad->size[1]}, 2, out);
  if (mode == 2) TRY(row_or_behind(l, largest, first_row, rows, -1, NULL, &largest));
  else {
    TRY(rows_here(l, bag, n->args[10].i, grad->size[0], &bag, &outside));
    TRY(row_or_behind(l, index, first_row, rows, n->args[9].i, outside, &index));
  }
  TRY(OP(c, "aten._embedding_bag_dense_backward.default", out, val_tensor(grad), val_tensor(index), val_tensor(bag),
         val_tensor(size), val_tensor(largest), val_int(rows + 1), val_bool(by_frequency), val_int(mode),
         samples ? val_tensor(samples) : val_none(), val_int(rows)));
  return first_rows(l, rows, out);
}

/* embedding_bag_samples_backward_part(grad, weight, indices, offsets, offset2bag, mode, padding, first_bag,
 * first_row, total) */
Status lower_samples_backward(Lower *l, const Node *n, Tensor **out) {
  const Call *c = &l->call;
  Tensor *grad, *weight, *index, *offsets, *bag, *row, *outside, *elsewhere;
  TRY(lower_tensor(l, n, 0, &grad));
  TRY(lower_tensor(l, n, 1, &weight));
  TRY(lower_tensor(l, n, 2, &index));
  TRY(lower_tensor(l, n, 3, &offsets));
  TRY(lower_tensor(l, n, 4, &bag));
  if (!grad->size[0] || !weight->size[0]) return zeros(l, grad, index->size, 1, out);
  TRY(rows_here(l, bag, n->args[7].i, grad->size[0], &bag, &outside));
  TRY(rows_here(l, index, n->args[8].i, weight->size[0], &row, &elsewhere));
  TRY(OP(c, "aten.logical_or.default", &outside, val_tensor(outside), val_tensor(elsewhere)));
  if (n->args[6].i >= 0) {
    TRY(OP(c, "aten.eq.Scalar", &elsewhere, val_tensor(index), val_int(n->args[6].i)));
    TRY(OP(c, "aten.logical_or.default", &outside, val_tensor(outside), val_tensor(elsewhere)));
  }
  TRY(OP(c, "aten._embedding_bag_per_sample_weights_backward.default", out, val_tensor(grad), val_tensor(weight),
         val_tensor(row), val_tensor(offsets), val_tensor(bag), val_int(0), val_int(-1)));
  return OP(c, "aten.masked_fill.Scalar", out, val_tensor(*out), val_tensor(outside), val_int(0));
}
