/* tape.c -- the handler, and what users ask of tensors; see tape.h. */
#include "grad/tape.h"

#include <stdlib.h>

#include "dist/dist.h"
#include "dist/run_sharded.h"
#include "grad/family.h"
#include "grad/node.h"

static Status record(Tape *t, Call *c) {
  TapeNode *n;
  TRY(node_of_call(t, c, &n));
  for (TensorWalk w = call_outputs(c); tensor_next(&w);) {
    if (!can_have_gradient(w.tensor)) continue;
    grad_unref(w.tensor->grad);
    w.tensor->grad = grad_ref(&n->ref);
    w.tensor->grad_out = w.flat;
  }
  grad_unref(&n->ref);
  return OK;
}

/* ---- the handler --------------------------------------------------------------------------------------- */

static Status wants_gradient(Tape *t, const Call *c, bool *out) {
  *out = false;
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    if (!t->paused) TRY(family_refresh(t, w.tensor));
    *out |= w.tensor->grad != NULL;
  }
  return OK;
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

static const Storage *memory_of(const Tensor *t) {
  const Tensor *held = t->spec ? t->local : t;
  return held ? held->storage : NULL;
}

/* Results that share memory with an argument join its family. */
static Status join_families(Call *c) {
  for (TensorWalk out = call_outputs(c); tensor_next(&out);) {
    const Storage *s = memory_of(out.tensor);
    for (TensorWalk in = call_inputs(c); s && tensor_next(&in);)
      if (memory_of(in.tensor) == s) {
        if (in.tensor != out.tensor) TRY(family_join(in.tensor, out.tensor));
        break;
      }
  }
  return OK;
}

/* The functional form is what is differentiated; its results become the arguments that are written to. */
static Status take_result(Call *c, Tensor *to, Tensor *from) {
  Tensor *written;
  TRY(OP(c, "aten.copy_.default", &written, val_tensor(to), val_tensor(from)));
  return family_wrote((Tape *)c->ctx->handler[LEVEL_TAPE], to, from);
}

static bool is_written(const Call *c, const Tensor *t) {
  for (TensorWalk w = call_inputs(c); tensor_next(&w);)
    if (c->op->schema.params[w.arg].mutated &&
        (w.tensor == t || (memory_of(t) && memory_of(w.tensor) == memory_of(t))))
      return true;
  return false;
}

/* What is about to be written to, and read by the gradient as it was before, is copied first. */
static Status keep_originals(Call *c, Call *f, Value *bound) {
  const Schema *s = &c->op->schema;
  Tensor **tensor;
  TRY_NEW(tensor, arena_new_n(c->arena, Tensor *, count_tensors(c->arg, s->nparams) + 1));
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    Tensor *original = w.tensor;
    bool read = !f->op->grad || !f->op->grad->vjp || (w.arg < f->op->schema.nparams && f->op->reads >> w.arg & 1);
    if (read && is_written(c, w.tensor)) TRY(OP(c, "aten.clone.default", &original, val_tensor(w.tensor)));
    tensor[w.flat] = original;
  }
  int n = f->op->schema.nparams < s->nparams ? f->op->schema.nparams : s->nparams;
  return replace_tensors(c->arena, bound, n, tensor, bound);
}

static Status check_writes(Tape *t, Call *c) {
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    if (!c->op->schema.params[w.arg].mutated) continue;
    TRY(family_check_write(c, w.tensor));
    TRY(family_refresh(t, w.tensor));
  }
  return OK;
}

/* Results of an op that writes in place are the arguments that it wrote to. */
static Status give_written(Call *c) {
  TensorWalk in = call_inputs(c);
  for (TensorWalk out = call_outputs(c); tensor_next(&out);) {
    do {
      if (!tensor_next(&in)) return OK;
    } while (!c->op->schema.params[in.arg].mutated);
    if (out.tensor == in.tensor || memory_of(in.tensor) != memory_of(out.tensor)) continue;
    TRY(family_join(in.tensor, out.tensor));
    grad_unref(out.tensor->grad);
    out.tensor->grad = grad_ref(in.tensor->grad);
    out.tensor->grad_out = in.tensor->grad_out;
  }
  return OK;
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
  return s ? s : give_written(c);
}

/* On with it, on the terms of what comes behind the tape; the caller's own are as they were afterwards. */
static Status pass_on(Call *c) {
  Level level = c->level;
  c->level = LEVEL_SHARD;
  Status s = op_dispatch_from(c, LEVEL_SHARD);
  c->level = level;
  return s;
}

/* Nothing is recorded. */
static Status pass_by(Call *c, bool wants) {
  TRY(pass_on(c));
  if (c->op->schema.mutates) return give_written(c);
  if (wants) TRY(own_outputs(c));
  return c->op->aliases && !(c->op->grad && c->op->grad->vjp == vjp_none) ? join_families(c) : OK;
}

/* Is some elements' gradient lost by a write, though no argument has one?  Through a view that was made without. */
static bool writes_to_gradient(const Call *c) {
  for (TensorWalk w = call_inputs(c); tensor_next(&w);)
    if (c->op->schema.params[w.arg].mutated && family_has_gradient(w.tensor)) return true;
  return false;
}

static Status in_parts(Call *c, OpFn *parts) { return c->ctx->dist ? run_parts(c, parts) : parts(c); }

/* The form that an op is trained as relies on arguments that the op itself would let through. */
static Status train(Call *c, OpFn *form) {
  Scope scope = {0};
  Call sizes = *c;
  sizes.scope = &scope;
  Status s = c->op->def->infer ? c->op->def->infer(&sizes) : OK;
  scope_clear(&scope);
  if (s && status_code(s) != ERR_DYNAMIC) return s;
  status_free(s);
  return in_parts(c, form);
}

/* A loss over classes (dimension 1) that are to stay sharded. */
static bool is_parallel(const Call *c) {
  const Dist *d = c->ctx->dist;
  const Tensor *scores = in_tensor(c, 0);
  if (!d || !call_has_dtensor(c)) return false;
  for (int a = 0; d->keep_sharded && scores && scores->spec && a < scores->spec->mesh->naxes; a++)
    if (is_s_of(&scores->spec->place[a], 1) && scores->spec->mesh->axis[a] > 1) return true;
  return d->loss_parallel;
}

static Status tape_call(Handler *self, Call *c) {
  Tape *t = (Tape *)self;
  const OpDef *def = c->op->def;
  const GradDef *grad = c->op->grad;
  bool wants;
  TRY(wants_gradient(t, c, &wants));
  if (c->op->schema.mutates && !t->paused) wants = wants || writes_to_gradient(c);
  if (t->paused || !wants || (grad && grad->vjp == vjp_none)) return pass_by(c, wants);
  if (c->op->schema.mutates) TRY(check_writes(t, c));
  bool own = grad && grad->vjp;
  if (!own && def->inplace) return tape_inplace(c);
  if (grad && grad->parallel && is_parallel(c)) return run_parts(c, grad->parallel);
  if (grad && grad->training) return train(c, grad->training); /* whose calls come back here */
  if (!own && def->compose) return in_parts(c, def->compose);
  TRY(pass_on(c));
  TRY(own_outputs(c));
  if (c->op->aliases) TRY(join_families(c));
  return record(t, c); /* without a gradient of its own: the backward says so if it comes there */
}

void tape_begin(Tape *t, Ctx *ctx) {
  *t = (Tape){.handler = {tape_call}, .ctx = ctx};
  t->outer = ctx_set_handler(ctx, LEVEL_TAPE, &t->handler);
}

void tape_end(Tape *t) { ctx_set_handler(t->ctx, LEVEL_TAPE, t->outer); }

/* ---- leaves ---------------------------------------------------------------------------------------------- */

static Status make_leaf(Tape *t, Tensor *x) {
  TapeNode *n;
  if (!can_have_gradient(x))
    return fail(ERR_USAGE, "only floating-point and complex tensors have gradients, not %s", dtype_name(x->dtype));
  TRY(node_leaf(t, &n));
  grad_unref(x->grad);
  x->grad = &n->ref;
  x->grad_out = 0;
  family_is_leaf(x);
  return OK;
}

Status tape_require(Tape *t, Scope *scope, const Tensor *x, Tensor **out) {
  TRY(tensor_alias(scope, x, out));
  return make_leaf(t, *out);
}

Status tape_set_required(Tape *t, Tensor *x, bool on) {
  TRY(family_refresh(t, x));
  if (on) return x->grad ? OK : make_leaf(t, x);
  if (!x->grad) return OK;
  if (!is_leaf(x->grad))
    return status_hint(
        fail(ERR_USAGE, "only a leaf can be told that it requires no gradient; this tensor was computed"),
        "take a detach of it");
  grad_unref(x->grad);
  x->grad = NULL;
  family_is_leaf(x);
  return OK;
}

Status tape_distribute(Tape *t, Scope *scope, Tensor *x, Mesh *m, const Placement *place, int src, Tensor **out) {
  TRY(family_refresh(t, x));
  bool leaf = is_leaf(x->grad) && !x->spec;
  if (leaf) TRY(tensor_alias(scope, x, &x));
  TRY(dtensor_distribute(t->ctx, scope, x, m, place, src, out));
  return leaf ? make_leaf(t, *out) : OK;
}

bool tensor_is_leaf(const Tensor *t) { return !tensor_requires_grad(t) || is_leaf(t->grad); }

Status tape_share(Tensor *t) { return family_of(t); }

/* ---- gradients that stay, and hooks ------------------------------------------------------------------------- */

static Asked *asked_of(const Tensor *t) { return t->grad ? tape_node(t->grad)->asked : NULL; }

Tensor *tape_gradient_of(const Tensor *t) {
  Asked *a = asked_of(t);
  return a ? a->gradient[t->grad_out] : NULL;
}

Status tape_set_gradient(Tape *t, Tensor *x, const Tensor *g) {
  Asked *a;
  Tensor *held = NULL;
  char is[160], want[160];
  TRY(family_refresh(t, x));
  if (!g && !asked_of(x)) return OK;
  if (!x->grad) return fail(ERR_USAGE, "a tensor that requires no gradient cannot be given one");
  if (g && (!tensor_same_size(g, x) || g->dtype != x->dtype || !g->spec != !x->spec))
    return fail(ERR_USAGE, "%s cannot be the gradient of %s", tensor_describe(g, is, sizeof is),
                tensor_describe(x, want, sizeof want));
  TRY(node_asked(tape_node(x->grad), &a));
  if (g) TRY(tensor_hold(g, &held));
  tensor_release(a->gradient[x->grad_out]);
  a->gradient[x->grad_out] = held;
  return OK;
}

Status tape_retain(Tape *t, Tensor *x) {
  Asked *a;
  TRY(family_refresh(t, x));
  if (!x->grad) return fail(ERR_USAGE, "a tensor that requires no gradient will have none to retain");
  TRY(node_asked(tape_node(x->grad), &a));
  a->retained[x->grad_out] = true;
  return OK;
}

Status tape_hook(Tape *t, Tensor *x, TapeHookFn *fn, void *arg, void (*release)(void *), TapeHook **out) {
  Asked *a;
  TapeHook *h;
  TRY(family_refresh(t, x));
  if (!x->grad) return fail(ERR_USAGE, "a hook on a tensor that requires no gradient would never be called");
  TRY(node_asked(tape_node(x->grad), &a));
  TRY_NEW(h, malloc(sizeof *h));
  *h = (TapeHook){.fn = fn, .arg = arg, .release = release, .out = x->grad_out};
  atomic_init(&h->refs, 2); /* the node's and the caller's */
  atomic_init(&h->removed, false);
  TapeHook **end = &a->hooks;
  while (*end) end = &(*end)->next;
  *end = *out = h;
  return OK;
}

Status tape_take(Tape *t, Tensor *x, TapeHookFn *fn, void *arg, void (*release)(void *)) {
  TapeHook *h;
  TRY(tape_hook(t, x, fn, arg, release, &h));
  h->takes = true;
  tape_unhook(h, false);
  return OK;
}

void tape_unhook(TapeHook *h, bool remove) {
  if (!h) return;
  if (remove) atomic_store(&h->removed, true);
  hook_unref(h);
}
