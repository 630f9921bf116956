/* builder.c -- see builder.h. */
#include "graph/builder.h"

#include <stdio.h>
#include <string.h>

#include "graph/resolve.h"
#include "ops/tensors.h"
#include "shard/layout.h"

enum { FOLD_LIMIT = 64 << 20 };

static Status builder_emit(Handler *self, Call *c);

void builder_init(GraphBuilder *b, Ctx *ctx, Exported *program) {
  *b = (GraphBuilder){
      .handler = {builder_emit}, .program = program, .ctx = ctx, .fold = true, .fold_limit = FOLD_LIMIT};
}

Status tensor_reserve(Tensor *t) {
  if (t->storage) return OK;
  return storage_borrow(NULL, (size_t)(t->offset + tensor_extent(t)) * dtype_size(t->dtype), NULL, NULL,
                        &t->storage);
}

/* ---- constants ------------------------------------------------------------------ */

static Status add_state(Exported *e, const char *fqn, Tensor *t) {
  StateEntry *more;
  TRY_NEW(more, arena_new_n(&e->arena, StateEntry, e->nstate + 1));
  if (e->nstate) memcpy(more, e->state, (size_t)e->nstate * sizeof *more);
  more[e->nstate++] = (StateEntry){.fqn = fqn, .tensor = t, .is_constant = true, .record = fqn};
  e->state = more;
  return OK;
}

Status builder_constant(GraphBuilder *b, const char *wish, Tensor *t, Val **out) {
  Exported *e = b->program;
  Graph *g = e->graph;
  InputSpec *specs;
  TRY_NEW(specs, arena_new_n(&e->arena, InputSpec, g->ninputs + 1));
  if (g->ninputs) memcpy(specs, e->inputs, (size_t)g->ninputs * sizeof *specs);
  e->inputs = specs;
  TRY(tensor_alias(&e->scope, t, &t)); /* whose handle it is may not live as long as the program */
  TRY(graph_add_input(g, wish, TY_TENSOR, out));
  TRY(val_set_tensor(g, *out, t));
  (*out)->constant = true;
  specs[g->ninputs - 1] = (InputSpec){.kind = IN_TENSOR_CONSTANT, .target = (*out)->name, .persistent = true};
  if (t->storage) t->storage->frozen = true;
  t->tag = *out;
  return add_state(e, (*out)->name, t);
}

Status builder_val(GraphBuilder *b, Tensor *t, Val **out) {
  if (t->tag) return *out = t->tag, OK;
  if (!tensor_data(t) && tensor_numel(t) && !b->dry_limit)
    return fail(ERR_FAIL, "a tensor that no node has made is used");
  const Graph *g = b->program->graph;
  char name[32];
  int64_t none = 0, *last = &none;
  if (t->storage) TRY(ptrmap_slot(&b->constants, t->storage, 0, &last));
  Val *known = *last ? g->inputs[*last - 1] : NULL;
  if (known && tensor_same_view(known->tensor, t)) { /* another handle on a constant that is there */
    *out = known;
  } else {
    snprintf(name, sizeof name, "folded_%d", b->folded++);
    TRY(builder_constant(b, name, t, out));
    *last = g->ninputs;
  }
  t->tag = *out;
  return OK;
}

void builder_free(GraphBuilder *b) { ptrmap_free(&b->constants); }

static Status val_of(void *ctx, Tensor *t, Val **out) { return builder_val(ctx, t, out); }

static bool is_constant(const Tensor *t) { return !t->tag || ((const Val *)t->tag)->constant; }

static bool args_are_constant(const Call *c) {
  for (TensorWalk w = call_inputs(c); tensor_next(&w);)
    if (!is_constant(w.tensor)) return false;
  for (int i = 0; i < c->op->schema.nparams; i++)
    if (c->arg[i].kind == VAL_GRAPH) return false;
  return true;
}

static bool args_lack_data(const Call *c) {
  for (TensorWalk w = call_inputs(c); tensor_next(&w);)
    if (!tensor_data(w.tensor) && tensor_numel(w.tensor)) return true;
  return false;
}

/* Constants that have sizes only. */
static Status fold_dry(GraphBuilder *b, Call *c) {
  TRY(c->op->def->infer(c));
  for (int i = 0; i < c->nout; i++) {
    Tensor *t = out_tensor(c, i);
    if (!t) continue;
    bool fresh = !t->storage;
    TRY(tensor_reserve(t));
    if (fresh) t->storage->owner = b->program; /* nobody plans its memory */
    t->storage->frozen = true;
    t->tag = NULL;
  }
  return OK;
}

/* Runs the call now; false in *done if the result would be too large to keep. */
static Status fold(GraphBuilder *b, Call *c, bool *done) {
  bool dry = b->dry_limit && args_lack_data(c);
  *done = false;
  if (b->dry_limit && !c->op->def->infer && c->op->def->compose) return OK; /* its parts come back */
  if (c->op->def->infer) {
    Call probe = *c;
    Status sizes = c->op->def->infer(&probe);
    if (sizes && status_code(sizes) != ERR_DYNAMIC) return sizes;
    status_free(sizes); /* sizes that depend on elements: these are here */
    int64_t fresh = 0;
    for (int i = 0; i < probe.nout; i++) {
      Tensor *t = out_tensor(&probe, i);
      if (t && !t->storage) fresh += tensor_extent(t) * (int64_t)dtype_size(t->dtype);
    }
    if (fresh > b->fold_limit) return OK;
    dry |= b->dry_limit && fresh > b->dry_limit;
  }
  if (dry && !c->op->def->infer) return OK;
  *done = true;
  if (dry) return fold_dry(b, c);
  Level level = c->level;
  c->level = LEVEL_RUN; /* of a composite op, the parts too */
  Status s = op_run(c);
  c->level = level;
  TRY(s);
  for (int i = 0; i < c->nout; i++) {
    if (c->out[i].kind != VAL_TENSOR) continue;
    Tensor *t = c->out[i].tensor;
    t->tag = NULL;
    if (t->storage) t->storage->frozen = true;
  }
  return OK;
}

/* ---- nodes ------------------------------------------------------------------------ */

/* alias, detach, contiguous of a contiguous tensor ...: the result is its argument. */
static bool is_identity(const Call *c) {
  Tensor *in = c->op->schema.nparams ? in_tensor(c, 0) : NULL;
  Tensor *out = c->nout == 1 ? out_tensor(c, 0) : NULL;
  return in && out && out->storage && tensor_same_view(in, out);
}

/* The origin's op, or what stands for it on one rank (tess.embedding_part). */
static bool is_origin(const GraphBuilder *b, const Call *c) {
  if (!b->origin || b->origin->op == c->op) return b->origin != NULL;
  const char *name = c->op->schema.name;
  return !strncmp(name, "tess.", 5) && strcmp(name, "tess.redistribute.default");
}

static const char *wish_for(const GraphBuilder *b, const Call *c, int i, char *buf, size_t cap) {
  const Node *origin = b->origin;
  if (!b->faithful || is_origin(b, c)) return origin && i < origin->nouts ? origin->outs[i]->name : NULL;
  const char *dot = strchr(c->op->schema.name, '.'), *word = dot ? dot + 1 : c->op->schema.name;
  snprintf(buf, cap, "%.*s", (int)strcspn(word, "."), word);
  return buf;
}

/* What a program need not say. */
static bool is_default(const Param *p, const Value *v) {
  if (!p->has_default || p->value.kind != v->kind) return false;
  switch (v->kind) {
    case VAL_NONE: return true;
    case VAL_BOOL: return p->value.b == v->b;
    case VAL_INT: return p->value.i == v->i;
    case VAL_FLOAT: return !memcmp(&p->value.f, &v->f, sizeof v->f);
    default: return false;
  }
}

static Status record(GraphBuilder *b, Call *c) {
  Graph *g = b->program->graph;
  Node *n;
  TRY(graph_add_node(g, b->before, c->op->schema.name, &n));
  n->nargs = c->op->schema.nparams;
  TRY_NEW(n->args, arena_new_n(g->arena, Arg, n->nargs));
  for (int i = 0; i < n->nargs; i++)
    if (!b->faithful || !is_default(&c->op->schema.params[i], &c->arg[i]))
      TRY(value_to_arg(g->arena, &c->arg[i], val_of, b, &n->args[i]));
  if (c->shard && c->op->def->flags & OP_NUMBERED) {
    TRY(shard_of_copy(c->shard, g->arena, &n->shard));
    n->draws = c->draws;
  }
  if (b->origin) node_take_meta(n, b->origin);
  if (b->stage != STAGE_FORWARD) n->stage = b->stage;
  for (int i = 0; i < c->nout; i++) {
    Val *v;
    char word[64];
    const char *wish = wish_for(b, c, i, word, sizeof word);
    bool tensor = c->out[i].kind == VAL_TENSOR;
    TRY(node_add_out(n, wish, tensor ? TY_TENSOR : TY_NONE, &v));
    if (!tensor) continue;
    TRY(tensor_reserve(c->out[i].tensor));
    TRY(val_set_tensor(g, v, c->out[i].tensor));
    v->tensor->tag = v;
  }
  return OK;
}

/* ---- composite ops that stay whole --------------------------------------------------- */

/* Records nothing: what would come out. */
static Status measure_emit(Handler *self, Call *c) {
  const OpDef *def = c->op->def;
  (void)self;
  if (def->flags & OP_SCALAR) return def->run(c);
  if (def->compose && !def->infer) return def->compose(c);
  if ((def->flags & OP_DYNAMIC) || !def->infer) {
    return def->flags & OP_EFFECT
               ? OK
               : fail(ERR_DYNAMIC, "%s: the size of its result depends on data", c->op->schema.name);
  }
  TRY(def->infer(c));
  for (int i = 0; i < c->nout; i++)
    if (c->out[i].kind == VAL_TENSOR) TRY(tensor_reserve(c->out[i].tensor));
  return OK;
}

static Status record_whole(GraphBuilder *b, Call *c) {
  Handler measure = {measure_emit}, *outer = ctx_set_handler(b->ctx, LEVEL_EMIT, &measure);
  Status s = measure_emit(&measure, c);
  ctx_set_handler(b->ctx, LEVEL_EMIT, outer);
  TRY(s);
  for (int i = 0; i < c->nout; i++) { /* the op may have returned its argument: a handle of its own */
    if (c->out[i].kind != VAL_TENSOR) continue;
    TRY(tensor_alias(c->scope, c->out[i].tensor, &c->out[i].tensor));
    c->out[i].tensor->tag = NULL;
  }
  return record(b, c);
}

/* An assertion about sizes: made once, here. */
static bool checks_numbers(const Call *c) {
  if (!(c->op->def->flags & OP_EFFECT) || c->op->def->infer || c->op->schema.nreturns) return false;
  return count_tensors(c->arg, c->op->schema.nparams) == 0;
}

static Status builder_emit(Handler *self, Call *c) {
  GraphBuilder *b = (GraphBuilder *)self;
  const OpDef *def = c->op->def;
  if (def->flags & OP_SCALAR || checks_numbers(c)) return def->run(c);
  if (def->inplace)
    return fail(ERR_FAIL, "%s writes to its argument; run the pass 'functionalize' first", c->op->schema.name);
  bool done = false;
  if ((b->fold || (b->faithful && (def->flags & OP_DYNAMIC || (!def->infer && !def->compose)))) &&
      !(def->flags & (OP_RANDOM | OP_EFFECT)) && args_are_constant(c))
    TRY(fold(b, c, &done));
  if (done) return OK;
  if (def->compose) return b->faithful ? record_whole(b, c) : def->compose(c);
  if ((def->flags & OP_DYNAMIC) || !def->infer) {
    if (!(def->flags & OP_EFFECT))
      return fail(ERR_DYNAMIC, "%s: the size of its result depends on data", c->op->schema.name);
    return record(b, c);
  }
  TRY(def->infer(c));
  if (!b->faithful && !(def->flags & OP_EFFECT) && is_identity(c)) {
    c->out[0].tensor->tag = in_tensor(c, 0)->tag;
    return OK;
  }
  return record(b, c);
}
