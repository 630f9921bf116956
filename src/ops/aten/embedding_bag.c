/* embedding_bag.c -- rows of a table summed in bags, and the gradient of the table.
 *
 * The extra results of embedding_bag are what ATen's CPU kernel returns: with mode sum,
 * bag_size is zero and offset2bag empty where that kernel takes its short way.
 *
 * On several ranks, each axis of a mesh may cut columns of the table, its rows, or the bags.
 */
#include <string.h>

#include "kernels/copy.h"
#include "ops/aten/table_gradient.h"

/* ---- bags ------------------------------------------------------------------------------------- */

/* Where the arguments are. */
typedef struct {
  int padding;
  bool forward_only; /* leaves out what ATen does without gradients */
  bool part;         /* tess.embedding_bag_part */
} BagRow;

/* tess.embedding_bag_part is what one rank makes: of the rows [begin, begin + n) of a table of `total` that it has,
 * or of all of them (total is None); the bags [first_bag, first_bag + bags), or all.  Indices, offsets and weights
 * of samples are those of all bags, and so is the bag of each index. */
enum {
  WEIGHT,
  INDICES,
  OFFSETS,
  MODE = 4,
  SAMPLES = 6,
  LAST_OFFSET,
  BEGIN = 9,
  TOTAL,
  FORWARD_ONLY,
  FIRST_BAG,
  BAG_COUNT
};

static int64_t bag_padding(const Call *c, int64_t rows) {
  const BagRow *row = c->op->def->row;
  int64_t padding = row->padding < 0 || in_none(c, row->padding) ? -1 : in_int(c, row->padding);
  /* The public op counts from the end, the kernels take any negative number as none. */
  bool public = row->padding >= 0 && c->op->schema.params[row->padding].optional;
  return public && !in_none(c, row->padding) && padding < 0 ? padding + rows : padding;
}

static bool is_part(const Call *c) { return ((const BagRow *)c->op->def->row)->part; }

/* Has it some rows of the table only? */
static bool has_some_rows(const Call *c) { return is_part(c) && !in_none(c, TOTAL); }

static bool bag_forward_only(const Call *c) {
  const BagRow *row = c->op->def->row;
  return row->part ? in_bool(c, FORWARD_ONLY) : row->forward_only;
}

/* Does ATen's kernel take its short way?  Parts are of tables whose rows are in one piece. */
static bool bag_is_short(const Call *c) {
  const BagRow *row = c->op->def->row;
  const Tensor *weight = in_tensor(c, WEIGHT), *samples = in_tensor(c, SAMPLES);
  bool whole = weight->dtype != DT_F64 && (row->part || weight->stride[1] == 1);
  return in_int(c, MODE) == BAG_SUM && whole && bag_padding(c, weight->size[0]) < 0 &&
         (!samples || samples->stride[0] == 1);
}

/* How many there are, of all ranks; *here: of these. */
static Status count_bags(const Call *c, int64_t *all, int64_t *here) {
  *all = in_tensor(c, OFFSETS)->size[0] - in_bool(c, LAST_OFFSET);
  *here = is_part(c) ? in_int(c, BAG_COUNT) : *all;
  if (!is_part(c)) return OK;
  int64_t first = in_int(c, FIRST_BAG);
  if (first >= 0 && *here >= 0 && *here <= *all && first <= *all - *here) return OK;
  return op_fail(c, "%lld bags from %lld on are not among %lld", (long long)*here, (long long)first,
                 (long long)*all);
}

static Status bag_infer(Call *c) {
  Tensor *weight, *indices, *offsets, *samples = in_tensor(c, SAMPLES);
  TRY(need_tensor(c, WEIGHT, &weight));
  TRY(need_tensor(c, INDICES, &indices));
  TRY(need_tensor(c, OFFSETS, &offsets));
  if (weight->ndim != 2 || !dtype_is_float(weight->dtype))
    return op_fail(c, "the weight must be a matrix of floats");
  if (indices->ndim != 1 || offsets->ndim != 1) return op_fail(c, "indices and offsets must have one dimension");
  if (!dtype_is_int(indices->dtype) || !dtype_is_int(offsets->dtype))
    return op_fail(c, "indices and offsets must be integers");
  int64_t mode = in_int(c, MODE), all = offsets->size[0] - in_bool(c, LAST_OFFSET), bags;
  if (mode < BAG_SUM || mode > BAG_MAX || all < 0)
    return op_fail(c, "mode %lld with %lld bags is not possible", (long long)mode, (long long)all);
  TRY(count_bags(c, &all, &bags));
  if (has_some_rows(c)) TRY(check_rows(c, weight->size[0], in_int(c, BEGIN), in_int(c, TOTAL)));
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
  /* which rank has the largest is not known here */
  return has_some_rows(c) ? out_value(c, val_none()) : out_new(c, dtype, 2, out);
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
  TRY(flat_indices(c, in_tensor(c, OFFSETS), n + 1, &given));
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

/* The bags that are made here; *all: how many there are, *offset: where each of them begins. */
static Status bags_prepare(const Call *c, Bags *b, int64_t *all, const int64_t **offset) {
  Tensor *weight = in_tensor(c, WEIGHT), *samples = in_tensor(c, SAMPLES);
  *b = (Bags){.table = tensor_view(weight), .mode = (BagMode)in_int(c, MODE)};
  b->begin = is_part(c) ? in_int(c, BEGIN) : 0;
  b->padding = bag_padding(c, weight->size[0]);
  TRY(count_bags(c, all, &b->bags));
  TRY(flat_indices(c, in_tensor(c, INDICES), has_some_rows(c) ? in_int(c, TOTAL) : weight->size[0], &b->indices));
  TRY(bag_offsets(c, *all, in_tensor(c, INDICES)->size[0], offset));
  b->offset = *offset + (is_part(c) ? in_int(c, FIRST_BAG) : 0);
  if (samples) b->weight = tensor_data(samples), b->weight_step = samples->stride[0];
  return OK;
}

static Status bag_body(Call *c) {
  Tensor *out = out_tensor(c, 0);
  Bags b;
  int64_t all, *size, *largest = NULL, *bag_of;
  const int64_t *offset = NULL;
  TRY(bags_prepare(c, &b, &all, &offset));
  TRY_NEW(size, kern_scratch(&c->ctx->kern, (size_t)(all + 2) * sizeof *size));
  TRY_NEW(bag_of, kern_scratch(&c->ctx->kern, (size_t)(in_tensor(c, INDICES)->size[0] + 1) * sizeof *bag_of));
  if (b.mode == BAG_MAX && !has_some_rows(c))
    TRY_NEW(largest, kern_scratch(&c->ctx->kern, (size_t)(tensor_numel(out) + 1) * sizeof *largest));
  if (!kernel_embedding_bag(&c->ctx->kern, &b, tensor_data(out), size, largest)) return fail_oom();
  for (int64_t bag = 0; bag < all; bag++) {
    for (int64_t i = offset[bag]; i < offset[bag + 1]; i++) bag_of[i] = bag;
  }
  if (b.mode == BAG_SUM) memset(size, 0, (size_t)(all + 2) * sizeof *size);
  put_ints(c, 1, bag_of);
  put_ints(c, 2, size);
  if (out_tensor(c, 3)) put_ints(c, 3, largest ? largest : size);
  return OK;
}

static Status bag_run(Call *c) { return with_scratch(c, bag_body); }

/* A cut of dimension 0 that gives every rank one run: this one, or a plain one. */
static Placement in_one_piece(const Placement *p) { return p->factor == 1 && !p->nsegments ? *p : place_s(0); }

/* Placements along one axis: of four results, then of the table and what else there is. */
enum { TABLE, RESULTS = 4 };

/* Columns of the table. */
static void by_columns(const Rules *r, Placement cut, Placement *p) {
  p[0] = p[RESULTS + TABLE] = cut;
  if (in_int(r->call, MODE) == BAG_MAX) p[3] = cut;
}

/* Rows of the table: each rank adds what it has, divides by what the bag has on all ranks, or leaves -inf where
 * others have the bag's rows. */
static void by_rows(const Rules *r, Placement cut, Placement *p) {
  p[0] = place_p(in_int(r->call, MODE) == BAG_MAX ? REDUCE_MAX : REDUCE_SUM);
  p[RESULTS + TABLE] = cut;
}

/* Bags: a rank makes its own, of the indices of all.  Sizes of another number than bags are zeros. */
static void by_bags(const Rules *r, Placement *p) {
  bool sizes = in_int(r->call, MODE) != BAG_SUM || !bag_forward_only(r->call);
  p[0] = place_s(0);
  if (sizes) p[2] = p[3] = place_s(0);
}

static bool has_cut_bags(const Rules *r, int axis) {
  bool cut = false;
  for (int i = 1; i < r->nin; i++) cut |= is_s(rule_have(r, i, axis));
  return cut;
}

/* Along one axis: as the table lies; where it is whole and what says which rows are in a bag is not, bags. */
static Status bag_axis(const Rules *r, const void *arg, int axis, Placement *p) {
  const Placement *table = rule_have(r, TABLE, axis);
  (void)arg;
  if (is_s_of(table, 1)) by_columns(r, *table, p);
  else if (is_s(table)) by_rows(r, in_one_piece(table), p);
  else if (is_r(table) && has_cut_bags(r, axis)) by_bags(r, p);
  return OK;
}

/* Sums are linear in the table, too.  What is whole on all ranks is not made in parts for nothing: bags are cut
 * only along an axis along which they come so. */
static Status bag_place(Rules *r) {
  Placement p[RESULTS + 4], none[RESULTS + 4]; /* per_sample_weights may be left out */
  bool bags = false;
  if (r->in[TABLE]->stride[1] != 1) return rule_why(r, "a table whose rows are not in one piece"), OK;
  for (int i = 0; i < RESULTS + r->nin; i++) none[i] = place_r();
  for (int a = 0; a < r->naxes; a++) bags |= has_cut_bags(r, a) && is_r(rule_have(r, TABLE, a));
  if (bags) TRY(rule_follow(r, bag_axis, NULL));
  memcpy(p, none, sizeof p);
  by_columns(r, place_s(1), p);
  TRY(rule_axis_exact(r, p));
  TRY(rule_axis(r, p));
  memcpy(p, none, sizeof p);
  by_rows(r, place_s(0), p);
  TRY(rule_axis_exact(r, p));
  if (in_int(r->call, MODE) == BAG_MAX) return OK;
  p[RESULTS + TABLE] = place_p(REDUCE_SUM);
  return rule_axis(r, p);
}

static Status bag_localize(Local *l) {
  bool rows = false, bags = false;
  int64_t begin = 0, first, size[MAX_DIMS];
  for (int a = 0; a < l->naxes; a++) {
    rows |= is_s_of(&local_place_in(l, TABLE)[a], 0);
    bags |= is_s_of(&local_place_out(l, 0)[a], 0);
  }
  if (!rows && !bags) return OK;
  if (rows) TRY(local_in_begin(l, TABLE, 0, &begin));
  TRY(local_out_begin(l, 0, 0, &first));
  TRY(local_out_size(l, 0, size));
  l->op = op_find("tess.embedding_bag_part.default");
  l->arg[((const BagRow *)l->op->def->row)->padding] = val_int(bag_padding(l->call, l->in[TABLE]->size[0]));
  l->arg[BEGIN] = val_int(begin);
  l->arg[TOTAL] = rows ? val_int(l->in[TABLE]->size[0]) : val_none();
  l->arg[FORWARD_ONLY] = val_bool(bag_forward_only(l->call));
  l->arg[FIRST_BAG] = val_int(first);
  l->arg[BAG_COUNT] = val_int(size[0]);
  return OK;
}

/* ---- the gradient of the table --------------------------------------------------------- */

/* _embedding_bag_dense_backward, and tess.embedding_bag_backward_part: what these bags, the first of which is
 * first_bag, add to the rows [first_row, first_row + num_weights) of the gradient of a table of total_rows. */
enum {
  GRAD,
  OF_INDEX = 2, /* the bag of each index */
  BAG_SIZE,
  LARGEST,
  NUM_WEIGHTS,
  BY_FREQUENCY,
  BACKWARD_MODE,
  BACKWARD_SAMPLES,
  BACKWARD_PADDING,
  PART_FIRST_BAG,
  PART_FIRST_ROW,
  PART_TOTAL_ROWS,
};

static bool is_backward_part(const Call *c) { return c->op->schema.nparams > PART_FIRST_BAG; }

static Status bag_backward_infer(Call *c) {
  Tensor *grad, *t;
  TRY(need_tensor(c, GRAD, &grad));
  for (int i = INDICES; i <= LARGEST; i++) TRY(need_tensor(c, i, &t));
  if (grad->ndim != 2 || !dtype_is_float(grad->dtype)) return op_fail(c, "the gradient must be a matrix of floats");
  if (tensor_numel(in_tensor(c, BAG_SIZE)) < grad->size[0])
    return op_fail(c, "bag_size must have a number per bag");
  if (in_int(c, BACKWARD_MODE) == BAG_MAX && tensor_numel(in_tensor(c, LARGEST)) < tensor_numel(grad))
    return op_fail(c, "maximum_indices must have a number per element of the gradient");
  if (is_backward_part(c) && in_int(c, PART_FIRST_BAG) < 0) return op_fail(c, "the first bag is below zero");
  if (is_backward_part(c))
    TRY(check_rows(c, in_int(c, NUM_WEIGHTS), in_int(c, PART_FIRST_ROW), in_int(c, PART_TOTAL_ROWS)));
  int64_t size[2] = {in_int(c, NUM_WEIGHTS), grad->size[1]};
  return out_new(c, grad->dtype, 2, size);
}

/* Mode max: every element of a bag's gradient goes to the row that it came from. */
static Status bag_max_backward(Call *c, RowSums *s, int64_t total, const int64_t *bag_size) {
  Tensor *out = out_tensor(c, 0);
  const int64_t *largest;
  Working to;
  TRY(flat_indices(c, in_tensor(c, LARGEST), total, &largest));
  clear_table(c);
  TRY(working_begin(c, out, s->dtype, &to));
  s->out = to.data;
  kernel_add_largest(&c->ctx->kern, s, bag_size, largest);
  working_end(c, out, &to);
  return OK;
}

/* What each index adds: as its sample weighs, or as many as there are in its bag. */
static Status bag_scale(Call *c, RowSums *s, const int64_t *bag_size) {
  const Tensor *samples = in_tensor(c, BACKWARD_SAMPLES);
  double *scale;
  TRY(new_scale(c, s->n, &scale));
  s->scale = scale;
  if (samples) {
    void *numbers;
    if (tensor_numel(samples) != s->n) return op_fail(c, "per_sample_weights must have a number per index");
    TRY(flat_numbers(c, samples, DT_F64, &numbers));
    memcpy(scale, numbers, (size_t)s->n * sizeof *scale);
  }
  for (int64_t i = 0; i < s->n && in_int(c, BACKWARD_MODE) == BAG_MEAN; i++) {
    int64_t bag = s->from[i] - s->first_from;
    if (bag >= 0 && bag < s->nfrom) scale[i] /= (double)bag_size[bag];
  }
  return in_bool(c, BY_FREQUENCY) ? divide_by_frequency(c, s, scale) : OK;
}

static Status bag_backward_body(Call *c) {
  Tensor *grad = in_tensor(c, GRAD), *out = out_tensor(c, 0);
  bool part = is_backward_part(c);
  int64_t total = in_int(c, part ? PART_TOTAL_ROWS : NUM_WEIGHTS);
  RowSums s = {.dtype = sum_dtype(grad->dtype),
               .rows = out->size[0],
               .nfrom = grad->size[0],
               .width = out->size[1],
               .n = tensor_numel(in_tensor(c, INDICES)),
               .first_row = part ? in_int(c, PART_FIRST_ROW) : 0,
               .first_from = part ? in_int(c, PART_FIRST_BAG) : 0,
               .padding = in_int(c, BACKWARD_PADDING)};
  const int64_t *bag_size;
  void *rows;
  TRY(flat_numbers(c, grad, s.dtype, &rows));
  s.grad = rows;
  TRY(flat_indices(c, in_tensor(c, BAG_SIZE), INT64_MAX, &bag_size));
  if (in_int(c, BACKWARD_MODE) == BAG_MAX) return bag_max_backward(c, &s, total, bag_size);
  if (tensor_numel(in_tensor(c, OF_INDEX)) != s.n) return op_fail(c, "offset2bag must have a number per index");
  TRY(flat_indices(c, in_tensor(c, INDICES), total, &s.row));
  TRY(flat_indices(c, in_tensor(c, OF_INDEX), part ? INT64_MAX : s.nfrom, &s.from));
  TRY(bag_scale(c, &s, bag_size));
  clear_table(c);
  return add_rows(c, &s);
}

static Status bag_backward_run(Call *c) { return with_scratch(c, bag_backward_body); }

/* Columns: of the gradient, and of what tells where its elements came from. */
static void backward_by_columns(const Rules *r, Placement cut, Placement *p) {
  p[0] = p[1 + GRAD] = cut;
  if (in_int(r->call, BACKWARD_MODE) == BAG_MAX) p[1 + LARGEST] = cut;
}

/* Bags: each rank adds what its own bags had; indices and their bags are those of all. */
static void backward_by_bags(const Rules *r, Placement cut, Placement *p) {
  p[0] = place_p(REDUCE_SUM);
  p[1 + GRAD] = p[1 + BAG_SIZE] = cut;
  if (r->in[LARGEST]->size[0] == r->in[GRAD]->size[0]) p[1 + LARGEST] = cut;
}

/* Has every bag its entry in all that a rank keeps of its own ones, and may it forget the others? */
static bool bags_are_apart(const Rules *r) {
  int64_t bags = r->in[GRAD]->size[0];
  bool max = in_int(r->call, BACKWARD_MODE) == BAG_MAX;
  for (int i = BAG_SIZE; i <= LARGEST; i++)
    if (!r->in[i]->ndim || ((i == BAG_SIZE || max) && r->in[i]->size[0] != bags)) return false;
  return !max || r->in[LARGEST]->ndim == 2 ? !in_bool(r->call, BY_FREQUENCY) : false;
}

/* The way in which bags are cut along an axis: as their gradient is, or their sizes.  Not in several pieces. */
static bool bags_cut(const Rules *r, int axis, Placement *cut) {
  for (int i = GRAD; i <= BAG_SIZE; i += BAG_SIZE) {
    const Placement *p = rule_have(r, i, axis);
    if (!is_s_of(p, 0)) continue;
    *cut = in_one_piece(p);
    return bags_are_apart(r);
  }
  return false;
}

/* Along one axis: rows of the table, where they are wanted; else what the gradient has. */
static Status bag_backward_axis(const Rules *r, const void *arg, int axis, Placement *p) {
  const Placement *grad = rule_have(r, GRAD, axis);
  Placement cut;
  (void)arg;
  if (rows_are_best(r, axis)) p[0] = r->wanted[axis];
  else if (is_s_of(grad, 1)) backward_by_columns(r, *grad, p);
  else if (bags_cut(r, axis, &cut)) backward_by_bags(r, cut, p);
  return OK;
}

static Status bag_backward_place(Rules *r) {
  Placement p[1 + BACKWARD_SAMPLES];
  bool follows = false;
  r->uneven = true;
  for (int a = 0; a < r->naxes; a++) {
    Placement cut;
    follows |= rows_are_best(r, a) || is_s_of(rule_have(r, GRAD, a), 1) || bags_cut(r, a, &cut);
  }
  if (follows) TRY(rule_follow(r, bag_backward_axis, NULL));
  for (int i = 0; i < 1 + r->nin; i++) p[i] = place_r();
  backward_by_columns(r, place_s(1), p);
  TRY(rule_axis_exact(r, p));
  if (!bags_are_apart(r)) return OK;
  for (int i = 0; i < 1 + r->nin; i++) p[i] = place_r();
  backward_by_bags(r, place_s(0), p);
  return rule_axis_exact(r, p);
}

static Status bag_backward_localize(Local *l) {
  bool cut = false;
  int64_t first_bag, first_row, rows;
  for (int a = 0; a < l->naxes; a++)
    cut |= is_s_of(&local_place_out(l, 0)[a], 0) || is_s_of(&local_place_in(l, GRAD)[a], 0);
  if (!cut) return OK;
  TRY(local_in_begin(l, GRAD, 0, &first_bag));
  TRY(local_rows(l, &first_row, &rows));
  l->op = op_find("tess.embedding_bag_backward_part.default");
  l->arg[NUM_WEIGHTS] = val_int(rows);
  l->arg[PART_FIRST_BAG] = val_int(first_bag);
  l->arg[PART_FIRST_ROW] = val_int(first_row);
  l->arg[PART_TOTAL_ROWS] = val_int(l->out[0]->size[0]);
  return OK;
}

/* clang-format off */
#define BAG(text, ...) {.schema = text, .infer = bag_infer, .run = bag_run, .row = &(const BagRow){__VA_ARGS__}, \
                        .shard.place = bag_place, .shard.localize = bag_localize}
/* clang-format on */

/* clang-format off */
const OpDef ops_embedding_bag[] = {
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
               "begin, SymInt? total, bool forward_only, SymInt first_bag, SymInt bags) -> (Tensor, Tensor, Tensor, Tensor)", .infer = bag_infer,
                   .run = bag_run, .row = &(const BagRow){8, false, true}},
    {.schema = "aten::_embedding_bag_dense_backward(Tensor grad, Tensor indices, Tensor offset2bag, Tensor "
               "bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, Tensor? "
               "per_sample_weights, int padding_idx=-1) -> Tensor", .infer = bag_backward_infer,
                   .run = bag_backward_run, .shard.place = bag_backward_place,
                   .shard.localize = bag_backward_localize},
    {.schema = "tess::embedding_bag_backward_part(Tensor grad, Tensor indices, Tensor offset2bag, Tensor bag_size, "
               "Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, Tensor? "
               "per_sample_weights, int padding_idx, SymInt first_bag, SymInt first_row, SymInt total_rows) -> Tensor",
     .infer = bag_backward_infer, .run = bag_backward_run},
    {0},
};
