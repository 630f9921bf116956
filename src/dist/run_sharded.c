/* run_sharded.c -- see run_sharded.h. */
#include "dist/run_sharded.h"

#include <string.h>

#include "dist/dist.h"
#include "kernels/copy.h"
#include "ops/tensors.h"

Status dtensor_wrap(Scope *scope, const Spec *spec, Tensor *local, Tensor **out) {
  Tensor *t;
  TRY_NEW(t, scope_tensor(scope));
  t->spec = spec;
  t->local = local;
  t->dtype = spec->dtype;
  t->ndim = spec->ndim;
  memcpy(t->size, spec->shape, (size_t)spec->ndim * sizeof *t->size);
  memcpy(t->stride, spec->stride, (size_t)spec->ndim * sizeof *t->stride);
  *out = t;
  return OK;
}

static const char *dtensor_name(const Tensor *t, char *buf, size_t cap) {
  return t->spec ? spec_print(t->spec, buf, cap) : tensor_describe(t, buf, cap);
}

static Status refuse_implicit(const Call *c, const Spec *from, const Spec *to) {
  char a[512], b[512];
  return status_hint(op_fail(c, "needs %s as %s, and implicit redistribution is switched off here",
                             spec_print(from, a, sizeof a),
                             placements_print(to->place, to->mesh->naxes, b, sizeof b)),
                     "redistribute it yourself before the call");
}

/* While calls are recorded, shards are there without a world. */
static bool mesh_has_shards(const Ctx *ctx, const Mesh *m) {
  return (m->world || ctx_is_recording(ctx)) && m->inside;
}

/* why: the rule's words; NULL: it has none. */
static Status move_for_rule(const Call *c, const char *why, const Spec *from, const Spec *to, Tensor *local,
                            Tensor **out) {
  const char **rule = &from->mesh->dist->rule, *outer = *rule;
  *rule = why ? why : "";
  Status s = redistribute_local(c->ctx, from, to, local, c->op->schema.name, c->scope, out);
  *rule = outer;
  return s;
}

/* The shard that the local op gets for input i: what is there of it in *out, moved. */
static Status local_input(const Call *c, const Decision *d, int i, Tensor **out) {
  const Spec *from = d->have[i], *to = d->want[i];
  if (from == to) return OK;
  ImplicitMode mode = d->mesh->dist->implicit;
  if (mode == IMPLICIT_STRICT || (mode == IMPLICIT_LOUD && redistribute_cost(from, to->place) > 0))
    return refuse_implicit(c, from, to);
  return move_for_rule(c, d->why, from, to, *out, out);
}

/* What is recorded is reduced once: whoever comes later finds it so.  Not before all inputs are there: the decision
 * is about tensors as they were, and one may be several of them. */
static void keep_reduced(const Call *c, const Decision *d, Tensor *const *shard) {
  for (TensorWalk w = call_inputs(c); ctx_is_recording(c->ctx) && tensor_next(&w);) {
    const Spec *from = d->have[w.flat], *to = d->want[w.flat];
    if (from == to || !from->partial || to->partial || !w.tensor->spec) continue;
    w.tensor->spec = to;
    w.tensor->local = shard[w.flat];
  }
}

static Status local_arguments(const Call *c, const Decision *d, Value *local) {
  Tensor **shard;
  TRY_NEW(shard, arena_new_n(c->arena, Tensor *, d->nin + 1));
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) shard[w.flat] = w.tensor->spec ? w.tensor->local : w.tensor;
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) TRY(local_input(c, d, w.flat, &shard[w.flat]));
  keep_reduced(c, d, shard);
  int n = c->op->schema.nparams;
  TRY(replace_tensors(c->arena, c->arg, n, shard, local));
  for (int i = 0; d->rewritten && i < d->op->schema.nparams; i++)
    if (d->arg[i].kind != VAL_TENSOR && d->arg[i].kind != VAL_TENSORS) local[i] = d->arg[i];
  return OK;
}

/* In place: the results are the arguments themselves. */
static Status alias_mutated(Call *c) {
  for (int i = 0; i < c->op->schema.nparams; i++)
    if (c->op->schema.params[i].mutated && c->op->schema.nreturns && in_tensor(c, i))
      TRY(out_alias(c, in_tensor(c, i)));
  return OK;
}

/* An argument that was written to, brought back from where the op had it to where it lies. */
static Status return_written(Call *c, const Param *p, Tensor *t, const Spec *there, Tensor *part) {
  if (t->spec->partial) return op_fail(c, "in place on a partial tensor: argument '%s'", p->name);
  TRY(redistribute_local(c->ctx, there, t->spec, part, c->op->schema.name, c->scope, &part));
  kernel_copy(&c->ctx->kern, tensor_view(t->local), tensor_view(part));
  return OK;
}

static Status write_back(Call *c, const Decision *d, const Value *local) {
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    const Param *p = &c->op->schema.params[w.arg];
    if (!p->mutated || d->have[w.flat] == d->want[w.flat] || !w.tensor->spec) continue;
    TRY(return_written(c, p, w.tensor, d->want[w.flat], tensor_at(local, &w)));
  }
  return OK;
}

Status random_local(Call *local, const Spec *out, int64_t draws) {
  Ctx *ctx = local->ctx;
  ShardOf shard = {spec_layout(out), out->mesh->coord};
  if (out->partial) return op_fail(local, "random numbers cannot be partial");
  local->shard = out->replicated ? NULL : &shard;
  local->draws = draws;
  if (ctx_is_recording(ctx)) return op_dispatch(local);
  uint64_t next = ctx->offset + (uint64_t)draws;
  local->level = LEVEL_RUN;
  Status s = op_run(local);
  ctx->offset = next;
  return s;
}

/* A random op that draws nothing, such as dropout with p = 0, does not. */
static bool goes_by_numbers(const Decision *d) {
  const OpDef *def = d->op->def;
  return d->nout && (d->draws || (def->flags & OP_NUMBERED && !def->draws));
}

/* What a rank outside the mesh holds of a result. */
static Status outside_shard(Call *c, const Spec *s, Tensor **out) {
  *out = NULL;
  return s->mesh->world ? tensor_new(c->scope, s->dtype, s->local_ndim, s->local, out) : OK;
}

static void note_decision(const Call *c, const Decision *d) {
  Dist *dist = d->mesh->dist;
  dist->decided_cost += d->cost;
  if (dist->decided) dist->decided(dist->decided_arg, c, d);
}

Status run_decision(Call *c, const Decision *d) {
  bool inplace = c->op->schema.mutates;
  Call local = {.ctx = c->ctx, .op = d->op, .scope = c->scope, .arena = c->arena, .level = LEVEL_EMIT};
  Value arg[MAX_PARAMS];
  if (!d->mesh->world) note_decision(c, d);
  if (mesh_has_shards(c->ctx, d->mesh)) {
    TRY(local_arguments(c, d, arg));
    local.arg = arg;
    if (goes_by_numbers(d)) TRY(random_local(&local, d->out[0], d->draws));
    else TRY(op_dispatch(&local));
    if (inplace && d->moves) TRY(write_back(c, d, arg));
  } else c->ctx->offset += (uint64_t)d->draws;
  if (inplace && c->op->def->inplace) return alias_mutated(c);
  int next = 0;
  for (int i = 0; i < (local.arg ? local.nout : d->nout); i++) {
    if (local.arg && local.out[i].kind != VAL_TENSOR) {
      TRY(out_value(c, local.out[i]));
      continue;
    }
    Tensor *t;
    if (next >= d->nout) return op_fail(c, "gave more results than its rule has");
    if (local.arg) t = local.out[i].tensor;
    else TRY(outside_shard(c, d->out[next], &t));
    TRY(dtensor_wrap(c->scope, d->out[next++], t, &t));
    TRY(out_value(c, val_tensor(t)));
  }
  return OK;
}

/* ---- on whole tensors ------------------------------------------------------------------------- */

static const Placement whole_place[MAX_AXES] = {{.kind = PLACE_R}};

/* What every rank needs of an input: all of it. */
static Status gather_input(Call *c, const Tensor *t, const Spec **whole, Tensor **out) {
  const Mesh *mesh = t->spec->mesh;
  TRY(spec_with(t->spec, whole_place, whole));
  if (*whole != t->spec && mesh->dist->implicit == IMPLICIT_STRICT) return refuse_implicit(c, t->spec, *whole);
  if (!mesh->world && !ctx_is_recording(c->ctx))
    return op_fail(c, "the sizes of its results depend on elements, and a plan has none");
  if (!mesh->inside)
    return op_fail(c, "the sizes of its results depend on elements, and this rank is outside the mesh");
  return move_for_rule(c, "every rank needs all of its elements", t->spec, *whole, t->local, out);
}

/* After an op that ran on whole tensors: what it wrote to goes back to its placement. */
static Status return_whole(Call *c, const Value *local) {
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    const Param *p = &c->op->schema.params[w.arg];
    const Spec *whole;
    if (!p->mutated || !w.tensor->spec || w.tensor->spec->replicated) continue;
    TRY(spec_with(w.tensor->spec, whole_place, &whole));
    TRY(return_written(c, p, w.tensor, whole, tensor_at(local, &w)));
  }
  return alias_mutated(c);
}

Status run_replicated(Call *c) {
  Value arg[MAX_PARAMS];
  Mesh *mesh = NULL;
  Tensor **whole;
  int n = c->op->schema.nparams;
  TRY_NEW(whole, arena_new_n(c->arena, Tensor *, count_tensors(c->arg, n) + 1));
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    const Spec *spec;
    whole[w.flat] = w.tensor;
    if (!w.tensor->spec) continue;
    mesh = w.tensor->spec->mesh;
    TRY(gather_input(c, w.tensor, &spec, &whole[w.flat]));
  }
  TRY(replace_tensors(c->arena, c->arg, n, whole, arg));
  Call local = {.ctx = c->ctx, .op = c->op, .arg = arg, .scope = c->scope, .arena = c->arena, .level = LEVEL_EMIT};
  TRY(op_dispatch(&local));
  if (c->op->schema.mutates) return return_whole(c, arg);
  for (int i = 0; i < local.nout; i++) {
    Tensor *t = out_tensor(&local, i);
    if (t) {
      const Spec *spec;
      TRY(spec_new(mesh, t->dtype, t->ndim, t->size, NULL, whole_place, &spec));
      TRY(dtensor_wrap(c->scope, spec, t, &t));
      TRY(out_value(c, val_tensor(t)));
    } else TRY(out_value(c, local.out[i]));
  }
  return OK;
}

/* ---- part by part ------------------------------------------------------------------------------- */

Status run_parts(Call *c, OpFn *parts) {
  bool *allowed = &c->ctx->dist->implicit_replication, before = *allowed;
  *allowed = true;
  Status s = parts(c);
  *allowed = before;
  return s;
}

/* to = from, wherever the two lie. */
static Status write_moved(Call *c, Tensor *to, Tensor *from) {
  char a[600], b[600];
  if (!tensor_same_size(to, from))
    return op_fail(c, "the result %s does not fit in place of %s", dtensor_name(from, a, sizeof a),
                   dtensor_name(to, b, sizeof b));
  Tensor *part = from;
  if (to->spec && from->spec) {
    const Spec *there; /* as `to`, but of from's dtype */
    TRY(spec_new(to->spec->mesh, from->dtype, from->ndim, from->size, from->stride, to->spec->place, &there));
    part = from->local;
    if (part) TRY(redistribute_local(c->ctx, from->spec, there, part, c->op->schema.name, c->scope, &part));
  } else if (to->spec || from->spec) return op_fail(c, "a plain tensor and a DTensor: one is written to the other");
  if (part) kernel_copy(&c->ctx->kern, tensor_view(to->spec ? to->local : to), tensor_view(part));
  return OK;
}

Status run_inplace_apart(Call *c) {
  Call f;
  Value bound[MAX_PARAMS];
  TRY(op_functional(c, bound, &f));
  TRY(op_dispatch_from(&f, LEVEL_SHARD));
  return op_write_results(c, &f, write_moved);
}
