/* grad_conformance -- every op of the registry whose results can be floating point has a gradient: a row of its
 * own, that of its parts (composed), or that of its functional form (in place).  Ops that have none are listed
 * here, with the reason.
 *
 * An op whose results are integers, truths or no tensors needs none.  That is found out by inferring its results
 * for small tensors of floats, or of integers where it takes no floats: what cannot be inferred like this counts
 * as floating point. */
#include <stdio.h>
#include <string.h>

#include "ops/tensors.h"

typedef struct {
  const char *reason;
  const char *ops; /* names with spaces between; a name may end in a dot: all overloads */
} None;

static const None none[] = {
    {"indices, counts and samples",
     "aten.argwhere.default aten.nonzero.default aten.nonzero_numpy.default aten.one_hot.default "
     "aten.multinomial.default aten.count_nonzero.dim_IntList aten.repeat_interleave.Tensor "
     "torchvision.nms.default"},
    {"the only tensor is a condition", "aten.where.Scalar"},
    {"a token of an assertion",
     "aten._functional_assert_scalar.default aten._functional_sym_constrain_range.default "
     "aten._functional_sym_constrain_range_for_size.default"},
    {"PyTorch has none", "aten._unique.default aten._unique2.default aten.unique_consecutive.default "
                         "aten.unique_dim.default aten.bincount.default aten.scatter.reduce "
                         "aten.scatter.value_reduce aten._embedding_bag_forward_only.default"},
    {"PyTorch has no second derivative",
     "aten._embedding_bag_dense_backward.default aten.multi_margin_loss_backward.default "
     "aten.multilabel_margin_loss_backward.default aten._cdist_backward.default aten._pdist_backward.default "
     "aten._scaled_dot_product_flash_attention_for_cpu_backward.default tess.attention_mask_backward.default "
     "tess.attention_dropout_backward.default"},
    {"parts of batch norm on ranks, below the tape",
     "tess.channel_moments.default tess.channel_gradient_sums.default"},
    {"PyTorch has no second derivative",
     "torchvision._roi_align_backward.default torchvision._deform_conv2d_backward.default"},
    {"a second derivative that PyTorch has and tessera has not",
     "aten.grid_sampler_2d_backward.default aten.grid_sampler_3d_backward.default tess.lstm_backward. "
     "tess.lstm_cell_backward. tess.gru_backward. tess.gru_cell_backward. tess.rnn_tanh_backward. "
     "tess.rnn_tanh_cell_backward. tess.rnn_relu_backward. tess.rnn_relu_cell_backward."},
    {"stands in programs only after gradients were taken: made by a pass, or for a shard",
     "tess.pointwise.default tess.linear_act.default tess.embedding_part.default tess.embedding_bag_part.default "
     "tess.embedding_dense_backward_part.default tess.embedding_bag_backward_part.default "
     "tess.embedding_bag_samples_backward_part.default "
     "tess.gather_part.default tess.sum_exp.default tess.redistribute.default "
     "tess.nll_log_softmax_backward.default "
     "tess.gather_group.default tess.scatter_group.default tess.gather_each.default "
     "tess.embedding_dense_backward_add.default"},
    {"a step of an optimizer, which comes behind the gradients",
     "tess.adam_step.default tess.sgd_step.default tess.adagrad_step.default"},
    {NULL, NULL},
};

static const char *reason_of(const char *name) {
  for (const None *n = none; n->ops; n++)
    for (const char *p = n->ops; *p; p += strcspn(p, " "), p += strspn(p, " ")) {
      size_t length = strcspn(p, " ");
      bool prefix = p[length - 1] == '.';
      if (!strncmp(p, name, length) && (prefix || name[length] == 0)) return n->reason;
    }
  return NULL;
}

/* ---- results, inferred ------------------------------------------------------------------------------------ */

enum { SHAPES = 4 };
static const struct {
  int ndim;
  int64_t size[4];
} shapes[SHAPES] = {{2, {2, 2}}, {1, {2}}, {0, {0}}, {4, {2, 2, 2, 2}}};

static Status argument(Scope *scope, Arena *arena, const Param *p, Dtype d, int shape, Value *out) {
  static const int64_t numbers[4] = {1, 1, 1, 1};
  static const bool truths[4] = {true, true, true, true};
  *out = p->value;
  if (p->has_default || (p->optional && p->type != TYPE_TENSOR)) return OK;
  int n = p->length ? p->length : 2;
  switch (p->type) {
    case TYPE_TENSOR: {
      Tensor **list;
      TRY_NEW(list, arena_new_n(arena, Tensor *, 2));
      for (int i = 0; i < 2; i++) TRY(tensor_new(scope, d, shapes[shape].ndim, shapes[shape].size, &list[i]));
      *out = p->list ? val_tensors(list, 2) : val_tensor(list[0]);
      return OK;
    }
    case TYPE_INT: *out = p->list ? val_ints(numbers, n < 4 ? n : 4) : val_int(0); return OK;
    case TYPE_FLOAT: *out = val_float(0.5); return OK;
    case TYPE_SCALAR: *out = dtype_is_float(d) ? val_float(0.5) : val_int(1); return OK;
    case TYPE_BOOL: *out = p->list ? val_bools(truths, n < 4 ? n : 4) : val_bool(false); return OK;
    case TYPE_DTYPE: *out = val_dtype(DT_F32); return OK;
    case TYPE_STR: *out = val_str(""); return OK;
    default: return fail(ERR_USAGE, "no example of '%s'", p->name);
  }
}

/* Are all results other than floats?  False also where they cannot be inferred. */
static bool gives_no_floats(Ctx *ctx, const Op *op, Dtype d, int shape, bool *inferred) {
  Scope scope = {0};
  Arena arena = {0};
  Value bound[MAX_PARAMS];
  Call c = {.ctx = ctx, .op = op, .arg = bound, .scope = &scope, .arena = &arena};
  Status s = OK;
  bool floats = false;
  for (int i = 0; !s && i < op->schema.nparams; i++)
    s = argument(&scope, &arena, &op->schema.params[i], d, shape, &bound[i]);
  if (!s) s = op->def->infer(&c);
  for (TensorWalk w = call_outputs(&c); !s && tensor_next(&w);) floats |= dtype_kind(w.tensor->dtype) >= KIND_FLOAT;
  *inferred = !s;
  status_free(s);
  scope_clear(&scope);
  arena_free(&arena);
  return *inferred && !floats;
}

static bool needs_none(Ctx *ctx, const Op *op) {
  const Schema *s = &op->schema;
  bool takes = false, returns = false, inferred;
  for (int i = 0; i < s->nparams; i++) takes |= s->params[i].type == TYPE_TENSOR;
  for (int i = 0; i < s->nreturns; i++) returns |= s->returns[i].type == TYPE_TENSOR;
  if (!takes || !returns || op->def->flags & OP_SCALAR) return true;
  if (!op->def->infer) return false;
  for (int shape = 0; shape < SHAPES; shape++) {
    bool without = gives_no_floats(ctx, op, DT_F32, shape, &inferred);
    if (inferred) return without;
  }
  for (int shape = 0; shape < SHAPES; shape++)
    if (gives_no_floats(ctx, op, DT_I64, shape, &inferred)) return true;
  return false;
}

int main(int argc, char **argv) {
  Ctx ctx;
  Status s = op_registry_status();
  int have = 0, need_none = 0, listed = 0, missing = 0;
  bool verbose = argc > 1 && !strcmp(argv[1], "--verbose");
  if (s) return fprintf(stderr, "grad_conformance: %s\n", status_message(s)), 2;
  ctx_init(&ctx, 1);
  for (int i = 0; i < op_count(); i++) {
    const Op *op = op_at(i);
    const char *reason = reason_of(op->schema.name);
    bool has = op->grad || op->def->compose || op->def->inplace;
    if (reason && op->grad) {
      printf("%s is listed as without gradient (%s), but has one\n", op->schema.name, reason);
      missing++;
    } else if (has) {
      have++;
    } else if (reason) {
      listed++;
      if (verbose) printf("%s: %s\n", op->schema.name, reason);
    } else if (needs_none(&ctx, op)) {
      need_none++;
    } else {
      printf("%s has no gradient\n", op->schema.name);
      missing++;
    }
  }
  ctx_free(&ctx);
  printf("%d ops have a gradient, %d need none, %d are listed, %d wrong\n", have, need_none, listed, missing);
  return missing ? 1 : 0;
}
