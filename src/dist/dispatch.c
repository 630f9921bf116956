/* dispatch.c -- see dispatch.h. */
#include "dist/dispatch.h"

#include <string.h>

#include "dist/decisions.h"
#include "dist/dist.h"

/* Sizes and dtypes are those of the whole: handles answer by themselves. */
static bool asks_for_sizes(const Op *op) {
  if (!(op->def->flags & OP_SCALAR) || !op->schema.nparams) return false;
  return !strncmp(op->schema.name, "aten.sym_", 9) ||
         !strcmp(op->schema.name, "aten._assert_tensor_metadata.default");
}

/* functional: the op that an in-place one stands for, or the op itself. */
static const Op *functional_of(const Op *op) { return op->def->inplace ? op_find(op->def->inplace) : op; }

static bool has_rule_of_its_own(const Op *functional) {
  return functional &&
         (functional->def->shard.place || functional->def->shard.rule || functional->def->flags & OP_POINTWISE);
}

static bool takes_apart(const Op *op, const Op *functional, bool has_rule) {
  if (op->def->compose && !has_rule) return true;
  bool to_others = op->def->inplace && !op->schema.params[0].mutated;
  return op->def->inplace && functional && (to_others || (functional->def->compose && !has_rule));
}

bool dispatch_takes_apart(const Op *op) {
  const Op *functional = functional_of(op);
  return takes_apart(op, functional, has_rule_of_its_own(functional));
}

bool dispatch_prefers_parts(const Op *op, const Decision *d) {
  return op->def->shard.compose_unmoved && d->cost > 0 && !d->have[0]->partial;
}

/* Every DTensor among the arguments is whole. */
static bool is_replicated(const Call *c) {
  for (TensorWalk w = call_inputs(c); tensor_next(&w);)
    if (w.tensor->spec && !w.tensor->spec->replicated) return false;
  return true;
}

bool call_has_dtensor(const Call *c) {
  for (TensorWalk w = call_inputs(c); tensor_next(&w);)
    if (w.tensor->spec) return true;
  return false;
}

/* The dimensions of a tensor that are sharded over more than one rank. */
static unsigned sharded_dims(const Tensor *t) {
  unsigned dims = 0;
  for (int a = 0; t->spec && a < t->spec->mesh->naxes; a++)
    if (is_s(&t->spec->place[a]) && t->spec->mesh->axis[a] > 1) dims |= 1u << t->spec->place[a].dim;
  return dims;
}

static Status try_sharded(Call *c, bool *done) {
  const Dist *d = c->ctx->dist;
  unsigned *dims;
  TRY_NEW(dims, arena_new_n(c->arena, unsigned, count_tensors(c->arg, c->op->schema.nparams) + 1));
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) dims[w.flat] = sharded_dims(w.tensor);
  return c->op->def->shard.compose_sharded(c, &(Sharded){d->keep_sharded || d->loss_parallel, dims}, done);
}

/* The order in which the ways to make a call are asked. */
static Status dispatch_dtensors(Call *c) {
  const OpDef *def = c->op->def;
  const Op *functional = functional_of(c->op);
  bool has_rule = has_rule_of_its_own(functional), recording = ctx_is_recording(c->ctx), done = false;
  if (recording && def->compose && !has_rule && is_replicated(c)) return run_replicated(c); /* recorded as it is */
  if (takes_apart(c->op, functional, has_rule))
    return def->inplace ? run_inplace_apart(c) : run_parts(c, def->compose);
  if (asks_for_sizes(c->op)) return op_run(c);
  if (def->shard.compose_sharded) TRY(try_sharded(c, &done));
  if (done) return OK;
  if ((def->flags & (OP_DYNAMIC | OP_SCALAR | OP_EFFECT) && !has_rule) || (!def->inplace && !def->infer))
    return run_replicated(c);
  const Decision *d;
  Status s = decision_find(c, &d);
  if (s && status_code(s) == ERR_DYNAMIC) {
    status_free(s);
    return run_replicated(c);
  }
  TRY(s);
  if (recording && d->draws && !(def->flags & OP_NUMBERED)) return run_replicated(c); /* it draws whole tensors */
  if (dispatch_prefers_parts(c->op, d)) return run_parts(c, def->shard.compose_unmoved);
  return run_decision(c, d);
}

static Status shard_call(Handler *self, Call *c) {
  (void)self; /* the Dist, which is the context's as well */
  if (c->op->def->flags & OP_DTENSOR) return c->op->def->run(c);
  return call_has_dtensor(c) ? dispatch_dtensors(c) : op_dispatch_from(c, LEVEL_EMIT);
}

void ctx_attach_dist(Ctx *ctx, Dist *d) {
  ctx->dist = d;
  d->handler = (Handler){shard_call};
  ctx_set_handler(ctx, LEVEL_SHARD, &d->handler);
}

void ctx_detach_dist(Ctx *ctx) {
  ctx->dist = NULL;
  ctx_set_handler(ctx, LEVEL_SHARD, NULL);
}
