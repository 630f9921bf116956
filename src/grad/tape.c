/* tape.c -- the handler, and the nodes that calls leave; see tape.h. */
#include "grad/tape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/run_sharded.h"
#include "grad/node.h"

/* ---- nodes ---------------------------------------------------------------------------------------- */

void tape_node_forget(TapeNode *n) {
  scope_clear(&n->scope);
  n->freed = true;
}

/* Chains of calls are as long as programs: nodes that die with this one are freed one after the other, not one
 * inside the other. */
static void node_release(GradNode *ref) {
  TapeNode *dying = tape_node(ref), *next;
  dying->next_dying = NULL;
  for (; dying; dying = next) {
    next = dying->next_dying;
    for (int i = 0; i < dying->nin; i++) {
      GradNode *source = dying->source[i];
      if (!source || atomic_fetch_sub_explicit(&source->refs, 1, memory_order_acq_rel) != 1) continue;
      tape_node(source)->next_dying = next;
      next = tape_node(source);
    }
    scope_clear(&dying->scope);
    arena_free(&dying->arena);
    free(dying);
  }
}

static Status node_new(Tape *t, TapeNode **out) {
  TapeNode *n;
  TRY_NEW(n, calloc(1, sizeof *n));
  atomic_init(&n->ref.refs, 1);
  n->ref.release = node_release;
  n->number = ++t->calls;
  n->origin = t->origin;
  *out = n;
  return OK;
}

/* ---- what is kept ---------------------------------------------------------------------------------- */

/* Is `name` one of the words of `list`? */
static bool names(const char *list, const char *name) {
  size_t n = strlen(name);
  for (const char *p = list; p && *p; p += strcspn(p, " "), p += strspn(p, " "))
    if (strcspn(p, " ") == n && !strncmp(p, name, n)) return true;
  return false;
}

static bool reads_argument(const Op *op, int i) {
  return op->grad && names(op->grad->reads, op->schema.params[i].name);
}

/* Results that are a list (op.h: flat) are read all or none. */
static bool reads_result(const Op *op, int i) {
  char name[24];
  snprintf(name, sizeof name, i ? "result%d" : "result", i);
  return op->grad && names(op->grad->reads, name);
}

/* A handle on t, or on its sizes alone. */
static Status keep(TapeNode *n, const Tensor *t, bool elements, Tensor **out) {
  TRY(tensor_alias(&n->scope, t, out));
  if (elements) return OK;
  (*out)->tag = NULL;
  storage_unref((*out)->storage);
  (*out)->storage = NULL;
  if ((*out)->local) tensor_drop((*out)->local), (*out)->local = NULL;
  return OK;
}

static uint64_t version_of(const Tensor *t) {
  const Tensor *held = t->spec ? t->local : t;
  return held && held->storage ? held->storage->version : 0;
}

/* ---- recording --------------------------------------------------------------------------------------- */

static Status keep_inputs(TapeNode *n, const Call *c) {
  const Schema *s = &c->op->schema;
  Tensor **kept;
  TRY_NEW(kept, arena_new_n(&n->arena, Tensor *, n->nin + 1));
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    n->kept[w.flat] = reads_argument(c->op, w.arg);
    n->version[w.flat] = version_of(w.tensor);
    n->source[w.flat] = grad_ref(w.tensor->grad);
    n->source_out[w.flat] = w.tensor->grad_out;
    TRY(keep(n, w.tensor, n->kept[w.flat], &kept[w.flat]));
  }
  TRY_NEW(n->arg, arena_new_n(&n->arena, Value, s->nparams + 1));
  for (int i = 0; i < s->nparams; i++) TRY(val_copy(&n->arena, &c->arg[i], &n->arg[i]));
  return replace_tensors(&n->arena, n->arg, s->nparams, kept, n->arg);
}

static Status keep_outputs(TapeNode *n, const Call *c) {
  Tensor **kept;
  TRY_NEW(kept, arena_new_n(&n->arena, Tensor *, n->nout + 1));
  for (TensorWalk w = call_outputs(c); tensor_next(&w);) {
    int at = n->nin + w.flat;
    n->kept[at] = reads_result(c->op, w.flat);
    n->version[at] = version_of(w.tensor);
    TRY(keep(n, w.tensor, n->kept[at], &kept[w.flat]));
  }
  n->nvalues = c->nout;
  TRY_NEW(n->out, arena_new_n(&n->arena, Value, c->nout + 1));
  return replace_tensors(&n->arena, c->out, c->nout, kept, n->out);
}

static Status fill_node(TapeNode *n, const Call *c) {
  n->op = c->op;
  n->nin = count_tensors(c->arg, c->op->schema.nparams);
  n->nout = count_tensors(c->out, c->nout);
  int all = n->nin + n->nout;
  TRY_NEW(n->source, arena_new_n(&n->arena, GradNode *, n->nin + 1));
  TRY_NEW(n->source_out, arena_new_n(&n->arena, int, n->nin + 1));
  TRY_NEW(n->version, arena_new_n(&n->arena, uint64_t, all + 1));
  TRY_NEW(n->kept, arena_new_n(&n->arena, bool, all + 1));
  TRY(keep_inputs(n, c));
  return keep_outputs(n, c);
}

/* A node of a call that was made; gives its results their grad. */
static Status record(Tape *t, Call *c) {
  TapeNode *n;
  TRY(node_new(t, &n));
  Status s = fill_node(n, c);
  for (TensorWalk w = call_outputs(c); !s && tensor_next(&w);) {
    if (!can_have_gradient(w.tensor)) continue;
    grad_unref(w.tensor->grad);
    w.tensor->grad = grad_ref(&n->ref);
    w.tensor->grad_out = w.flat;
  }
  grad_unref(&n->ref);
  return s;
}

/* ---- the handler --------------------------------------------------------------------------------------- */

static bool wants_gradient(const Call *c) {
  for (TensorWalk w = call_inputs(c); tensor_next(&w);)
    if (w.tensor->grad) return true;
  return false;
}

static bool is_argument(const Call *c, const Tensor *t) {
  for (TensorWalk w = call_inputs(c); tensor_next(&w);)
    if (w.tensor == t) return true;
  return false;
}

/* Results become handles of their own, without a gradient so far: an op may have returned its argument's. */
static Status own_outputs(Call *c) {
  for (int i = 0; i < c->nout; i++) {
    Tensor *t = out_tensor(c, i);
    if (t && (t->grad || is_argument(c, t))) TRY(tensor_alias(c->scope, t, &c->out[i].tensor));
  }
  return OK;
}

/* The functional form is what is differentiated; its results become the arguments that are written to. */
static Status take_result(Call *c, Tensor *to, Tensor *from) {
  Tensor *written;
  TRY(OP(c, "aten.copy_.default", &written, val_tensor(to), val_tensor(from)));
  GradNode *former = to->grad;
  to->grad = grad_ref(from->grad);
  to->grad_out = from->grad_out;
  grad_unref(former);
  return OK;
}

/* What is about to be written to, and read by the gradient as it was before, is copied first. */
static Status keep_originals(Call *c, Call *f, Value *bound) {
  const Schema *s = &c->op->schema;
  Tensor **tensor;
  TRY_NEW(tensor, arena_new_n(c->arena, Tensor *, count_tensors(c->arg, s->nparams) + 1));
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    Tensor *original = w.tensor;
    bool read = !f->op->grad || !f->op->grad->vjp ||
                (w.arg < f->op->schema.nparams && reads_argument(f->op, w.arg));
    if (s->params[w.arg].mutated && read) TRY(OP(c, "aten.clone.default", &original, val_tensor(w.tensor)));
    tensor[w.flat] = original;
  }
  int n = f->op->schema.nparams < s->nparams ? f->op->schema.nparams : s->nparams;
  return replace_tensors(c->arena, bound, n, tensor, bound);
}

static Status tape_inplace(Call *c) {
  Call f;
  Value bound[MAX_PARAMS];
  TRY(op_functional(c, bound, &f));
  TRY(keep_originals(c, &f, bound));
  TRY(op_dispatch_from(&f, LEVEL_TAPE));
  Level level = c->level;
  c->level = LEVEL_SHARD; /* the copy into place is no call of its own */
  Status s = op_write_results(c, &f, take_result);
  c->level = level;
  return s;
}

/* On with it, on the terms of what comes behind the tape; the caller's own are as they were afterwards. */
static Status pass_on(Call *c) {
  Level level = c->level;
  c->level = LEVEL_SHARD;
  Status s = op_dispatch_from(c, LEVEL_SHARD);
  c->level = level;
  return s;
}

static Status in_parts(Call *c, OpFn *parts) { return c->ctx->dist ? run_parts(c, parts) : parts(c); }

static Status tape_call(Handler *self, Call *c) {
  Tape *t = (Tape *)self;
  const OpDef *def = c->op->def;
  const GradDef *grad = c->op->grad;
  bool wants = wants_gradient(c);
  if (t->paused || !wants || (grad && grad->vjp == vjp_none)) {
    TRY(pass_on(c));
    return wants && !c->op->schema.mutates ? own_outputs(c) : OK;
  }
  bool own = grad && grad->vjp;
  if (!own && def->inplace) return tape_inplace(c);
  if (grad && grad->training) return in_parts(c, grad->training); /* which come back here */
  if (!own && def->compose) return in_parts(c, def->compose);
  TRY(pass_on(c));
  TRY(own_outputs(c));
  return record(t, c); /* without a gradient of its own: the backward says so if it comes there */
}

void tape_begin(Tape *t, Ctx *ctx) {
  *t = (Tape){.handler = {tape_call}, .ctx = ctx};
  t->outer = ctx_set_handler(ctx, LEVEL_TAPE, &t->handler);
}

void tape_end(Tape *t) { ctx_set_handler(t->ctx, LEVEL_TAPE, t->outer); }

Status tape_require(Tape *t, Scope *scope, const Tensor *x, Tensor **out) {
  TapeNode *n;
  if (!can_have_gradient(x))
    return fail(ERR_USAGE, "only floating-point and complex tensors have gradients, not %s", dtype_name(x->dtype));
  TRY(tensor_alias(scope, x, out));
  TRY(node_new(t, &n));
  (*out)->grad = &n->ref;
  (*out)->grad_out = 0;
  n->nout = 1;
  return OK;
}
