/* apply.c -- the dispatcher: every op call of the eager API, the interpreter, compose
 * functions and gradients comes through op_dispatch(). */
#include <stdlib.h>
#include <string.h>

#include "comm/groups.h"
#include "kernels/copy.h"
#include "ops/tensors.h"

void ctx_init(Ctx *ctx, int threads) {
  *ctx = (Ctx){0};
  kern_init(&ctx->kern, threads);
}

void ctx_free(Ctx *ctx) {
  scope_clear(&ctx->scope);
  arena_free(&ctx->arena);
  kern_free(&ctx->kern);
  status_free(ctx->error);
  *ctx = (Ctx){0};
}

void ctx_random_state(const Ctx *ctx, unsigned char *state) {
  for (int i = 0; i < 8; i++) {
    state[i] = (unsigned char)(ctx->seed >> 8 * i);
    state[8 + i] = (unsigned char)(ctx->offset >> 8 * i);
  }
}

void ctx_set_random_state(Ctx *ctx, const unsigned char *state) {
  ctx->seed = ctx->offset = 0;
  for (int i = 0; i < 8; i++) {
    ctx->seed |= (uint64_t)state[i] << 8 * i;
    ctx->offset |= (uint64_t)state[8 + i] << 8 * i;
  }
}

/* May a result of one dtype be written to a tensor of another?  ATen's rule: to a lower
 * kind never.  What cannot be computed with cannot be converted. */
static bool can_write(Dtype from, Dtype to) {
  return from == to || (dtype_is_compute(to) && dtype_kind(from) <= dtype_kind(to));
}

/* The result of the functional op, written to the argument in whose place it belongs. */
static Status write_result(Call *c, Tensor *to, Tensor *from) {
  char a[128], b[128];
  if (to->storage == from->storage && to->offset == from->offset) return OK; /* was made in place */
  if (!tensor_same_size(to, from) || !can_write(from->dtype, to->dtype)) {
    return op_fail(c, "the result %s does not fit in place of %s", tensor_describe(from, a, sizeof a),
                   tensor_describe(to, b, sizeof b));
  }
  if (tensor_overlaps_itself(to))
    return op_fail(c, "%s has elements that share memory and cannot be written to",
                   tensor_describe(to, b, sizeof b));
  if (c->ctx->groups) TRY(groups_wait(c->ctx->groups, from->storage));
  kernel_copy(&c->ctx->kern, tensor_view(to), tensor_view(from));
  to->storage->version++;
  return OK;
}

/* Does an operand other than argument 0 lie in its memory, in a way that writing one
 * element could spoil another that is still to be read? */
static bool operands_interfere(const Call *f, const Tensor *self) {
  bool pointwise = f->op->def->flags & OP_POINTWISE;
  for (TensorWalk w = call_inputs(f); tensor_next(&w);)
    if (w.arg > 0 && w.tensor->storage == self->storage && !(pointwise && tensor_same_view(w.tensor, self)))
      return true;
  return false;
}

/* Runs the functional op with its result in argument 0's own memory, if it is of a kind
 * that allows it (element by element, or an update of a part). */
static Status run_in_memory(Call *c, Call *f, bool *done) {
  const OpDef *def = f->op->def;
  Tensor *self = in_tensor(c, 0), *out;
  *done = false;
  if (!(def->flags & (OP_POINTWISE | OP_UPDATE)) || !def->infer || !def->run || !c->op->schema.params[0].mutated)
    return OK;
  if (!self || !self->storage || tensor_overlaps_itself(self) || operands_interfere(f, self)) return OK;
  Status s = def->infer(f);
  out = !s && f->nout == 1 ? out_tensor(f, 0) : NULL;
  if (s || !out || out->storage || out->dtype != self->dtype || !tensor_same_size(out, self)) {
    status_free(s); /* the general way will say it again */
    f->nout = 0;
    return OK;
  }
  *out = *self;
  out->grad = out->family = NULL;
  storage_ref(out->storage);
  *done = true;
  TRY(call_ready(f));
  self->storage->version++;
  return def->run(f);
}

Status op_functional(const Call *c, Value *bound, Call *f) {
  const Op *op = op_find(c->op->def->inplace);
  if (!op) return op_fail(c, "its functional form '%s' is not in the registry", c->op->def->inplace);
  NamedValue args[MAX_PARAMS];
  int n = op->schema.nparams < c->op->schema.nparams ? op->schema.nparams : c->op->schema.nparams;
  for (int i = 0; i < n; i++) args[i] = (NamedValue){NULL, c->arg[i]};
  TRY(op_bind(c->arena, op, args, n, bound));
  *f = (Call){.ctx = c->ctx,
              .op = op,
              .arg = bound,
              .scope = c->scope,
              .arena = c->arena,
              .level = c->level,
              .shard = c->shard,
              .draws = c->draws};
  return OK;
}

Status op_write_results(Call *c, const Call *f, WriteFn *write) {
  int next = 0;
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    const Param *p = &c->op->schema.params[w.arg];
    if (!p->mutated) continue;
    Tensor *from = next < f->nout ? out_tensor(f, next) : NULL;
    next++;
    if (!from) return op_fail(c, "there is no result to write to argument '%s'", p->name);
    TRY(write(c, w.tensor, from));
    if (c->op->schema.nreturns) TRY(out_alias(c, w.tensor));
  }
  return OK;
}

/* The functional op, then its results written to the arguments marked (a!), in order. */
static Status run_inplace(Call *c) {
  Call f;
  Value bound[MAX_PARAMS];
  bool done;
  TRY(op_functional(c, bound, &f));
  TRY(run_in_memory(c, &f, &done));
  if (!done) TRY(op_run(&f));
  return op_write_results(c, &f, write_result);
}

Status op_run(Call *c) {
  const OpDef *def = c->op->def;
  if (def->inplace) return run_inplace(c);
  if (def->compose) return def->compose(c);
  if ((def->flags & (OP_DYNAMIC | OP_SCALAR)) || !def->infer) {
    TRY(call_ready(c));
    return def->run(c);
  }
  Status s = def->infer(c);
  if (s && status_code(s) == ERR_DYNAMIC) { /* sizes that these arguments leave to the elements */
    status_free(s);
    c->nout = 0;
    TRY(call_ready(c));
    return def->run(c);
  }
  TRY(s);
  bool fresh = c->nout == 0;
  for (int i = 0; i < c->nout; i++) {
    if (c->out[i].kind != VAL_TENSOR || c->out[i].tensor->storage) continue;
    fresh = true;
    TRY(tensor_materialize(c->out[i].tensor));
  }
  if ((!fresh && !(def->flags & OP_EFFECT)) || !def->run) return OK;
  TRY(call_ready(c));
  return def->run(c);
}

Status op_dispatch_from(Call *c, Level level) {
  for (; level < LEVEL_RUN; level++) {
    Handler *h = c->ctx->handler[level];
    if (h) return h->call(h, c);
  }
  return op_run(c);
}

Status op_dispatch(Call *c) { return op_dispatch_from(c, c->level); }

static bool reads_spoiled(const Value *args, int nargs) {
  for (int i = 0; i < nargs; i++) {
    if (args[i].kind == VAL_TENSOR && tensor_is_spoiled(args[i].tensor)) return true;
    for (int j = 0; args[i].kind == VAL_TENSORS && j < args[i].n; j++)
      if (args[i].tensors[j] && tensor_is_spoiled(args[i].tensors[j])) return true;
  }
  return false;
}

static Status call_named(const Call *c, const char *name, const Value *args, int nargs, Call *sub) {
  const Op *op = op_find(name);
  if (!op) return fail(ERR_FAIL, "%s: needs '%s', which is not in the registry", c->op->schema.name, name);
  *sub = (Call){.ctx = c->ctx,
                .op = op,
                .scope = c->scope,
                .arena = c->arena,
                .level = c->level,
                .shard = c->shard,
                .draws = c->draws,
                .wanted = c->wanted};
  NamedValue given[MAX_PARAMS];
  Value *bound;
  if (nargs > MAX_PARAMS) return op_fail(c, "too many arguments for '%s'", name);
  if (reads_spoiled(args, nargs)) return op_fail(c, "'%s' reads what has been written to in place", name);
  for (int i = 0; i < nargs; i++) given[i] = (NamedValue){NULL, args[i]};
  TRY_NEW(bound, arena_new_n(c->arena, Value, op->schema.nparams));
  TRY(op_bind(c->arena, op, given, nargs, bound));
  sub->arg = bound;
  return op_dispatch(sub);
}

Status op_call(const Call *c, const char *name, Tensor **out, int n, const Value *args, int nargs) {
  Call sub;
  TRY(call_named(c, name, args, nargs, &sub));
  if (sub.nout < n)
    return fail(ERR_FAIL, "%s: '%s' gave %d results, %d are needed", c->op->schema.name, name, sub.nout, n);
  for (int i = 0; i < n; i++) out[i] = out_tensor(&sub, i);
  return OK;
}

Status op_call_list(const Call *c, const char *name, Tensor ***out, int *n, const Value *args, int nargs) {
  Call sub;
  TRY(call_named(c, name, args, nargs, &sub));
  TRY_NEW(*out, arena_new_n(c->arena, Tensor *, sub.nout));
  for (int i = 0; i < sub.nout; i++) (*out)[i] = out_tensor(&sub, i);
  *n = sub.nout;
  return OK;
}
