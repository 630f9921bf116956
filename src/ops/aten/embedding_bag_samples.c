/* embedding_bag_samples.c -- the gradient of the weights of samples in bags: of each index, the product of its row
 * of the table and its bag's gradient.
 *
 * On several ranks each has some columns, some rows of the table or some bags, and makes its term of a sum.
 */
#include "kernels/embedding.h"
#include "ops/aten/table_gradient.h"

/* tess.embedding_bag_samples_backward_part is what one rank makes, of the bags from first_bag on, and of a table's
 * rows from first_row on, of total_rows: of others zero. */
enum { GRAD, TABLE, INDICES, OFFSETS, OF_INDEX, MODE, PADDING, FIRST_BAG, FIRST_ROW, TOTAL_ROWS };

static bool is_part(const Call *c) { return c->op->schema.nparams > FIRST_BAG; }

static Status samples_infer(Call *c) {
  Tensor *t[OF_INDEX + 1];
  for (int i = GRAD; i <= OF_INDEX; i++) TRY(need_tensor(c, i, &t[i]));
  if (t[GRAD]->ndim != 2 || t[TABLE]->ndim != 2 || !dtype_is_float(t[GRAD]->dtype) ||
      t[GRAD]->dtype != t[TABLE]->dtype || t[GRAD]->size[1] != t[TABLE]->size[1])
    return op_fail(c, "the gradient and the weight must be matrices of floats of one dtype and width");
  if (in_int(c, MODE) != BAG_SUM) return op_fail(c, "weights of samples need mode sum");
  if (t[INDICES]->ndim != 1 || !tensor_same_size(t[INDICES], t[OF_INDEX]))
    return op_fail(c, "offset2bag must have a number per index");
  if (is_part(c) && in_int(c, FIRST_BAG) < 0) return op_fail(c, "the first bag is below zero");
  if (is_part(c)) TRY(check_rows(c, t[TABLE]->size[0], in_int(c, FIRST_ROW), in_int(c, TOTAL_ROWS)));
  return out_new(c, t[GRAD]->dtype, 1, t[INDICES]->size);
}

static Status samples_body(Call *c) {
  bool part = is_part(c);
  BagDots b = {.grad = tensor_view(in_tensor(c, GRAD)),
               .table = tensor_view(in_tensor(c, TABLE)),
               .n = tensor_numel(in_tensor(c, INDICES)),
               .first_bag = part ? in_int(c, FIRST_BAG) : 0,
               .first_row = part ? in_int(c, FIRST_ROW) : 0,
               .padding = in_int(c, PADDING)};
  TRY(flat_indices(c, in_tensor(c, INDICES), part ? in_int(c, TOTAL_ROWS) : b.table.size[0], &b.row));
  TRY(flat_indices(c, in_tensor(c, OF_INDEX), part ? INT64_MAX : b.grad.size[0], &b.bag));
  kernel_bag_dots(&c->ctx->kern, &b, tensor_data(out_tensor(c, 0)));
  return OK;
}

static Status samples_run(Call *c) { return with_scratch(c, samples_body); }

/* One run for every rank: this cut of dimension 0, or a plain one. */
static Placement in_one_piece(const Placement *p) { return p->factor == 1 && !p->nsegments ? *p : place_s(0); }

/* Along one axis: columns, rows of the table, or bags.  Nobody reads the offsets: they stay where they are. */
static Status samples_axis(const Rules *r, const void *arg, int axis, Placement *p) {
  const Placement *grad = rule_have(r, GRAD, axis), *table = rule_have(r, TABLE, axis);
  (void)arg;
  if (is_s(rule_have(r, OFFSETS, axis))) p[1 + OFFSETS] = *rule_have(r, OFFSETS, axis);
  if (!is_s(grad) && !is_s(table)) return OK;
  p[0] = place_p(REDUCE_SUM);
  if (is_s_of(table, 1)) p[1 + GRAD] = p[1 + TABLE] = *table;
  else if (is_s_of(table, 0)) p[1 + TABLE] = in_one_piece(table);
  else if (is_s_of(grad, 1)) p[1 + GRAD] = p[1 + TABLE] = *grad;
  else p[1 + GRAD] = in_one_piece(grad);
  return OK;
}

static Status samples_place(Rules *r) {
  r->uneven = true;
  return rule_follow(r, samples_axis, NULL);
}

static Status samples_localize(Local *l) {
  bool cut = false;
  int64_t first_bag, first_row;
  for (int a = 0; a < l->naxes; a++)
    cut |= is_s_of(&local_place_in(l, GRAD)[a], 0) || is_s_of(&local_place_in(l, TABLE)[a], 0);
  if (!cut) return OK;
  TRY(local_in_begin(l, GRAD, 0, &first_bag));
  TRY(local_in_begin(l, TABLE, 0, &first_row));
  l->op = op_find("tess.embedding_bag_samples_backward_part.default");
  l->arg[FIRST_BAG] = val_int(first_bag);
  l->arg[FIRST_ROW] = val_int(first_row);
  l->arg[TOTAL_ROWS] = val_int(l->in[TABLE]->size[0]);
  return OK;
}

/* clang-format off */
const OpDef ops_embedding_bag_samples[] = {
    {.schema = "aten::_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, Tensor "
               "offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor",
     .infer = samples_infer, .run = samples_run, .shard.place = samples_place, .shard.localize = samples_localize},
    {.schema = "tess::embedding_bag_samples_backward_part(Tensor grad, Tensor weight, Tensor indices, Tensor offsets, "
               "Tensor offset2bag, int mode, int padding_idx, SymInt first_bag, SymInt first_row, SymInt total_rows) "
               "-> Tensor", .infer = samples_infer, .run = samples_run},
    {0},
};
