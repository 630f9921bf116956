/* price_backward.c -- see price_backward.h. */
#include "runtime/price_backward.h"

#include <string.h>

#include "dist/dtensor.h"
#include "graph/builder.h"
#include "graph/resolve.h"
#include "ops/tensors.h"
#include "runtime/program_walk.h"

/* What stands for the cotangent of a value that lies so, whichever use it comes from. */
typedef struct Cotangent {
  struct Cotangent *next;
  const Tensor *value; /* its shard */
  const Spec *spec;
  Tensor *tensor;
} Cotangent;

struct PriceBackward {
  const Exported *e;
  Exported *recorded;
  Arena *arena;
  bool *wanted;          /* by graph input */
  bool *flows;           /* by Val.id: it has a gradient, and the loss depends on it */
  Cotangent **cotangent; /* by Val.id */
  /* of the call that is under way */
  Tape tape;
  bool open;
  Call call;
  int nleaves;
  Tensor **leaf, **value;
  const Val **val; /* whose the leaves are, and their values' handles */
};

/* ---- where gradients flow ----------------------------------------------------------------------- */

typedef struct {
  const bool *has;
  bool any;
} Search;

static void is_one(void *ctx, Val **ref) {
  Search *s = ctx;
  s->any |= s->has[(*ref)->id];
}

static void mark_one(void *ctx, Val **ref) { ((bool *)ctx)[(*ref)->id] = true; }

static bool can_flow(const Val *v) { return v->type == TY_TENSOR && dtype_kind(v->dtype) >= KIND_FLOAT; }

static Status find_flow(PriceBackward *b, const GradRequest *r) {
  Graph *g = b->e->graph;
  bool *needed;
  TRY_NEW(needed, arena_new_n(b->arena, bool, g->nvals + 1));
  for (int k = 0; k < r->n; k++) b->wanted[r->input[k]] = b->flows[g->inputs[r->input[k]]->id] = true;
  for (Node *n = g->first; n; n = n->next) {
    Search s = {b->flows, false};
    node_each_val(n, is_one, &s);
    for (int i = 0; i < n->nouts && s.any; i++) b->flows[n->outs[i]->id] = can_flow(n->outs[i]);
  }
  arg_each_val(&g->outputs[r->loss], mark_one, needed);
  for (Node *n = g->last; n; n = n->prev) {
    bool any = false;
    for (int i = 0; i < n->nouts; i++) any |= needed[n->outs[i]->id];
    if (any) node_each_val(n, mark_one, needed);
  }
  for (int i = 0; i < g->nvals; i++) b->flows[i] &= needed[i];
  return OK;
}

Status price_backward_new(const Exported *e, const GradRequest *r, Exported *recorded, Arena *arena,
                          PriceBackward **out) {
  PriceBackward *b;
  TRY_NEW(b, arena_new(arena, PriceBackward));
  *b = (PriceBackward){.e = e, .recorded = recorded, .arena = arena};
  TRY_NEW(b->wanted, arena_new_n(arena, bool, e->graph->ninputs + 1));
  TRY_NEW(b->flows, arena_new_n(arena, bool, e->graph->nvals + 1));
  TRY_NEW(b->cotangent, arena_new_n(arena, Cotangent *, e->graph->nvals + 1));
  TRY(find_flow(b, r));
  *out = b;
  return OK;
}

bool price_backward_wants(const PriceBackward *b, int input) { return b->wanted[input]; }

bool price_backward_visits(const PriceBackward *b, const Node *n) {
  for (int i = 0; i < n->nouts; i++)
    if (b->flows[n->outs[i]->id]) return true;
  return false;
}

/* ---- there ------------------------------------------------------------------------------------------ */

static Status make_leaves(PriceBackward *b, const Value *bound, const Val *const *val, Arena *arena) {
  Call *c = &b->call;
  Tensor **with;
  Value *arg;
  int n = count_tensors(bound, c->op->schema.nparams);
  TRY_NEW(with, arena_new_n(arena, Tensor *, n + 1));
  TRY_NEW(arg, arena_new_n(arena, Value, c->op->schema.nparams + 1));
  TRY_NEW(b->leaf, arena_new_n(arena, Tensor *, n + 1));
  TRY_NEW(b->value, arena_new_n(arena, Tensor *, n + 1));
  TRY_NEW(b->val, arena_new_n(arena, const Val *, n + 1));
  b->nleaves = 0;
  c->arg = bound;
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    with[w.flat] = w.tensor;
    if (!b->flows[val[w.flat]->id]) continue;
    TRY(tape_require(&b->tape, c->scope, w.tensor, &with[w.flat]));
    b->leaf[b->nleaves] = with[w.flat];
    b->value[b->nleaves] = w.tensor;
    b->val[b->nleaves++] = val[w.flat];
  }
  TRY(replace_tensors(arena, bound, c->op->schema.nparams, with, arg));
  c->arg = arg;
  return OK;
}

Status price_backward_call(PriceBackward *b, Ctx *ctx, const Marks *marks, const Node *n, const Value *bound,
                           const Val *const *val, Arena *arena) {
  tape_begin(&b->tape, ctx);
  b->open = true;
  b->call = (Call){.ctx = ctx, .op = n->op, .scope = &b->recorded->scope, .arena = &b->recorded->arena};
  TRY(make_leaves(b, bound, val, arena));
  return marks_call(marks, n, (Value *)(uintptr_t)b->call.arg, &b->call, NULL);
}

void price_backward_end(PriceBackward *b) {
  if (b->open) tape_end(&b->tape);
  b->open = false;
}

/* ---- and back ----------------------------------------------------------------------------------------- */

/* A tensor without elements that stands for a value of the recorded program. */
static Status stand_in(PriceBackward *b, Dtype dtype, int ndim, const int64_t *size, Tensor **out) {
  Val *v;
  TRY_NEW(v, arena_new(b->arena, Val));
  TRY(tensor_meta(&b->recorded->scope, dtype, ndim, size, out));
  TRY(tensor_reserve(*out));
  TRY(val_set_tensor(b->recorded->graph, v, *out));
  (*out)->tag = v;
  return OK;
}

/* How the cotangent of what lies so does: partial values have whole ones. */
static Status cotangent_spec(const Spec *s, const Spec **out) {
  Placement place[MAX_AXES];
  memcpy(place, s->place, sizeof place);
  for (int a = 0; a < s->mesh->naxes; a++)
    if (is_p(&place[a])) place[a] = place_r();
  return spec_with(s, place, out);
}

static Status new_cotangent(PriceBackward *b, const Tensor *result, Tensor **out) {
  const Spec *spec;
  if (!result->spec) return stand_in(b, result->dtype, result->ndim, result->size, out);
  TRY(cotangent_spec(result->spec, &spec));
  TRY(stand_in(b, spec->dtype, spec->local_ndim, spec->local, out));
  return dtensor_wrap(&b->recorded->scope, spec, *out, out);
}

/* The one tensor for all uses of a value: what is done to it is recorded once (emit.c). */
static Status shared_cotangent(PriceBackward *b, const Val *v, const Tensor *value, const Spec *spec,
                               Tensor **out) {
  const Tensor *shard = value->spec ? value->local : value;
  Cotangent *c = b->cotangent[v->id];
  while (c && (c->value != shard || c->spec != spec)) c = c->next;
  if (!c) {
    TRY_NEW(c, arena_new(b->arena, Cotangent));
    *c = (Cotangent){b->cotangent[v->id], shard, spec, NULL};
    TRY(stand_in(b, spec->dtype, spec->local_ndim, spec->local, &c->tensor));
    b->cotangent[v->id] = c;
  }
  return dtensor_wrap(&b->recorded->scope, spec, c->tensor, out);
}

/* I1. */
static Status place_cotangent(PriceBackward *b, const Val *v, const Tensor *value, const Spec *spec) {
  Placement place[MAX_AXES];
  const Spec *to;
  Tensor *t;
  bool parameter = !v->node && b->wanted[v->index];
  memcpy(place, spec->place, sizeof place);
  for (int a = 0; a < spec->mesh->naxes; a++) {
    const Placement *lies = value->spec ? &value->spec->place[a] : NULL;
    if (parameter && lies) place[a] = *lies;
    else if (is_p(&place[a])) place[a] = lies && is_s(lies) ? *lies : place_r();
  }
  TRY(spec_with(spec, place, &to));
  if (to == spec) return OK;
  TRY(shared_cotangent(b, v, value, spec, &t));
  return dtensor_place(b->call.ctx, &b->recorded->scope, t, to, "", &t);
}

Status price_backward_return(PriceBackward *b) {
  const Call *c = &b->call;
  Tensor **out, **cotangent, **gradient;
  int n = 0;
  TRY_NEW(out, arena_new_n(c->arena, Tensor *, 2 * c->nout + b->nleaves + 1));
  cotangent = out + c->nout;
  gradient = cotangent + c->nout;
  for (int i = 0; i < c->nout; i++) {
    Tensor *t = out_tensor(c, i);
    if (!t || !t->grad || dtype_kind(t->dtype) < KIND_FLOAT) continue;
    TRY(new_cotangent(b, t, &cotangent[n]));
    out[n++] = t;
  }
  if (!n) return OK;
  Status s = tape_gradients(&b->tape, out, cotangent, n, b->leaf, b->nleaves, &(Backward){.allow_unused = true},
                            &b->recorded->scope, gradient);
  if (s) return status_free(s), OK; /* an op without a gradient */
  for (int i = 0; i < b->nleaves; i++)
    if (gradient[i] && gradient[i]->spec) TRY(place_cotangent(b, b->val[i], b->value[i], gradient[i]->spec));
  return OK;
}
