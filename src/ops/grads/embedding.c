/* embedding.c -- gradients of rows of a table that are looked up, one by one or summed up in bags. */
#include <math.h>

#include "ops/vjp.h"

static void vjp_embedding(Vjp *v) {
  vjp_give(v, 0,
           VJP_OP_FOR(v, 0, "aten.embedding_dense_backward.default", F_T(vjp_cotangent(v)), vjp_value(v, 1),
                      val_int(v->in[0]->size[0]), vjp_value(v, 2), vjp_value(v, 3)));
}

/* The rows that were looked up, but those of padding_idx. */
static void vjp_embedding_backward(Vjp *v) {
  const Tensor *indices = vjp_arg(v, 1);
  int64_t padding = in_int(v->forward, 3);
  Tensor *rows = F_OP(&v->f, "aten.embedding.default", F_T(vjp_cotangent(v)), F_T(indices));
  if (padding >= 0) {
    Tensor *none = F_OP(&v->f, "aten.eq.Scalar", F_T(indices), val_int(padding));
    none = F_OP(&v->f, "aten.unsqueeze.default", F_T(none), val_int(-1));
    rows = F_OP(&v->f, "aten.masked_fill.Scalar", F_T(rows), F_T(none), val_int(0));
  }
  vjp_give(v, 0, f_view(&v->f, rows, v->in[0]->size, v->in[0]->ndim));
}

/* ---- bags ------------------------------------------------------------------------------------------------- */

enum { WEIGHT, INDICES, OFFSETS, BY_FREQUENCY, MODE, SPARSE, SAMPLES, LAST_OFFSET, PADDING };
enum { OF_INDEX = 1, BAG_SIZE, LARGEST }; /* results */

/* The form that also tells what the gradient needs. */
static Status bag_training(Call *c) {
  bool has_padding = c->op->schema.nparams > PADDING && !in_none(c, PADDING);
  int64_t padding = has_padding ? in_int(c, PADDING) : -1;
  if (has_padding && padding < 0) padding += in_tensor(c, WEIGHT)->size[0];
  Value args[PADDING + 1];
  Tensor *out[4];
  for (int i = 0; i < PADDING; i++) args[i] = c->arg[i];
  args[PADDING] = val_int(padding);
  TRY(op_call(c, "aten._embedding_bag.default", out, 4, args, PADDING + 1));
  for (int i = 0; i < 4; i++) TRY(out_value(c, val_tensor(out[i])));
  return OK;
}

/* The bag of each index.  The op leaves it out where it is quicker without: then it is how many bags have begun,
 * less one. */
static Tensor *bag_of_index(Vjp *v) {
  Formula *f = &v->f;
  const Tensor *indices = vjp_arg(v, INDICES);
  int64_t n = indices->size[0], more = n + 1;
  Tensor *known = v->out[OF_INDEX], *offsets = vjp_arg(v, OFFSETS);
  if (tensor_numel(known) == n) return known;
  int64_t bags = v->out[0]->size[0];
  if (offsets->size[0] != bags)
    offsets = F_OP(f, "aten.slice.Tensor", F_T(offsets), val_int(0), val_int(0), val_int(bags));
  Tensor *ones = F_OP(f, "aten.ones_like.default", F_T(offsets), val_dtype(DT_I64));
  Tensor *begun = F_OP(f, "aten.index_add.default", F_T(vjp_zeros(v, DT_I64, 1, &more)), val_int(0), F_T(offsets),
                       F_T(ones));
  begun = F_OP(f, "aten.cumsum.default",
               F_T(F_OP(f, "aten.slice.Tensor", F_T(begun), val_int(0), val_int(0), val_int(n))), val_int(0));
  return F_OP(f, "aten.sub.Scalar", F_T(begun), val_int(1));
}

/* <row of the bag's cotangent, row of the table>, for each index */
static Tensor *to_samples(Vjp *v, Tensor *g, Tensor *bag) {
  return F_OP(&v->f, "aten._embedding_bag_per_sample_weights_backward.default", F_T(g), vjp_value(v, WEIGHT),
              vjp_value(v, INDICES), vjp_value(v, OFFSETS), F_T(bag), vjp_value(v, MODE), vjp_value(v, PADDING));
}

/* Twice: each index adds its number times the one row to the other's gradient. */
static void vjp_samples_backward(Vjp *v) {
  enum { GRADIENT, TABLE, INDEX, BAG = 4, SKIPPED = 6 };
  Formula *f = &v->f;
  Tensor *index = vjp_arg(v, INDEX),
         *number = F_OP(f, "aten.unsqueeze.default", F_T(vjp_cotangent(v)), val_int(-1));
  int64_t padding = in_int(v->forward, SKIPPED);
  if (padding >= 0) {
    Tensor *none = F_OP(f, "aten.eq.Scalar", F_T(index), val_int(padding));
    none = F_OP(f, "aten.unsqueeze.default", F_T(none), val_int(-1));
    number = F_OP(f, "aten.masked_fill.Scalar", F_T(number), F_T(none), val_int(0));
  }
  if (vjp_wants(v, GRADIENT)) {
    Tensor *rows = F_OP(f, "aten.embedding.default", vjp_value(v, TABLE), F_T(index));
    vjp_give(v, GRADIENT,
             F_OP(f, "aten.embedding_dense_backward.default", F_T(f_mul(f, rows, number)), vjp_value(v, BAG),
                  val_int(v->in[GRADIENT]->size[0]), val_int(-1), val_bool(false)));
  }
  if (!vjp_wants(v, TABLE)) return;
  Tensor *rows = F_OP(f, "aten.embedding.default", vjp_value(v, GRADIENT), vjp_value(v, BAG));
  vjp_give(v, TABLE,
           VJP_OP_FOR(v, TABLE, "aten.embedding_dense_backward.default", F_T(f_mul(f, rows, number)), F_T(index),
                      val_int(v->in[TABLE]->size[0]), val_int(-1), val_bool(false)));
}

/* t in a row per index, where it has a row per bag. */
static Tensor *of_bags(Vjp *v, Tensor *t, Tensor *place) {
  return F_OP(&v->f, "aten.gather.default", F_T(t), val_int(0), F_T(place));
}

/* The largest, or the smallest, of each bag; `least` where it has none. */
static Tensor *extreme(Vjp *v, Tensor *rows, Tensor *place, Value least, const char *which) {
  const Tensor *out = v->out[0];
  Tensor *start = F_OP(&v->f, "aten.new_full.default", F_T(rows), val_ints(out->size, 2), least);
  return F_OP(&v->f, "aten.scatter_reduce.two", F_T(start), val_int(0), F_T(place), F_T(rows), val_str(which));
}

/* Mode max, of a table whose rows lie on several ranks: which row is the largest was not told.  It is the first
 * of the bag that has its maximum. */
static Tensor *to_largest(Vjp *v, Tensor *g, Tensor *bag) {
  Formula *f = &v->f;
  Tensor *indices = vjp_arg(v, INDICES);
  int64_t n = indices->size[0], column[2] = {n, 1}, size[2] = {n, g->size[1]},
          padding = in_int(v->forward, PADDING);
  Tensor *place = F_OP(f, "aten.expand.default", F_T(f_view(f, f_cast(f, bag, DT_I64), column, 2)),
                       val_ints(size, 2));
  Tensor *rows = F_OP(f, "aten.embedding.default", vjp_value(v, WEIGHT), F_T(indices));
  Tensor *none = f_view(f, F_OP(f, "aten.eq.Scalar", F_T(indices), val_int(padding)), column, 2);
  rows = F_OP(f, "aten.masked_fill.Scalar", F_T(rows), F_T(none), val_float(-INFINITY));
  Tensor *largest = extreme(v, rows, place, val_float(-INFINITY), "amax");
  Tensor *is_largest = F_OP(f, "aten.eq.Tensor", F_T(rows), F_T(of_bags(v, largest, place)));
  is_largest = F_OP(f, "aten.logical_and.default", F_T(is_largest),
                    F_T(F_OP(f, "aten.logical_not.default", F_T(none))));
  Tensor *ones = F_OP(f, "aten.ones_like.default", F_T(place));
  Tensor *number = F_OP(f, "aten.where.ScalarOther", F_T(is_largest),
                        F_T(F_OP(f, "aten.cumsum.default", F_T(ones), val_int(0))), val_int(n + 1));
  Tensor *first = of_bags(v, extreme(v, number, place, val_int(n), "amin"), place);
  Tensor *chosen = F_OP(f, "aten.eq.Tensor", F_T(number), F_T(first));
  Tensor *share = F_OP(f, "aten.where.ScalarOther", F_T(chosen), F_T(of_bags(v, g, place)), val_int(0));
  return VJP_OP_FOR(v, WEIGHT, "aten.embedding_dense_backward.default", F_T(share), F_T(indices),
                    val_int(v->in[0]->size[0]), val_int(-1), val_bool(false));
}

static void vjp_embedding_bag(Vjp *v) {
  Tensor *g = v->cotangent[0];
  if (!g) return;
  Tensor *bag = bag_of_index(v);
  if (vjp_wants(v, WEIGHT) && v->forward->out[LARGEST].kind == VAL_NONE) vjp_give(v, WEIGHT, to_largest(v, g, bag));
  else if (vjp_wants(v, WEIGHT))
    vjp_give(v, WEIGHT,
             VJP_OP_FOR(v, WEIGHT, "aten._embedding_bag_dense_backward.default", F_T(g), vjp_value(v, INDICES),
                        F_T(bag), v->forward->out[BAG_SIZE], v->forward->out[LARGEST], val_int(v->in[0]->size[0]),
                        vjp_value(v, BY_FREQUENCY), vjp_value(v, MODE), vjp_value(v, SAMPLES),
                        vjp_value(v, PADDING)));
  if (vjp_wants(v, SAMPLES)) vjp_give(v, SAMPLES, to_samples(v, g, bag));
}

const GradDef grads_embedding[] = {
    {.ops = "embedding.default", .vjp = vjp_embedding, .reads = "indices", .passes_partial = true},
    GRAD("embedding_dense_backward.default", vjp_embedding_backward, "indices"),
    TRAINS_AS("embedding_bag.default embedding_bag.padding_idx", bag_training),
    GRAD("_embedding_bag.default", vjp_embedding_bag,
         "weight indices offsets per_sample_weights result1 result2 result3"),
    GRAD("_embedding_bag_per_sample_weights_backward.default", vjp_samples_backward,
         "grad weight indices offset2bag"),
    {0},
};
