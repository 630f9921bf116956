/* plan_price.c -- see plan_price.h.
 *
 * Of every value and spec there is one shard (without elements) in all walks, so that a call is
 * known again by its arguments' shards, and a redistribution by its Moved record.  A call that is
 * known again is not looked at further: its results are the handles that were made first, which
 * are told again how they lie, since later calls may have changed that.
 */
#include "runtime/plan_price.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena_reuse.h"
#include "dist/dispatch.h"
#include "dist/dist.h"
#include "graph/builder.h"
#include "graph/resolve.h"
#include "runtime/price_backward.h"
#include "runtime/program_walk.h"

/* Constants that are larger are not computed. */
enum { DRY_LIMIT = 1 << 16 };

/* How one tensor lies: spec and shard, or a plain tensor. */
typedef struct {
  const Spec *spec; /* NULL: plain */
  Tensor *local;    /* the shard; the tensor itself if it is plain */
} Lie;

static Lie lie_of(Tensor *t) { return t->spec ? (Lie){t->spec, t->local} : (Lie){NULL, t}; }

/* Of a DTensor. */
static void lie_so(Tensor *t, const Lie *lie) {
  t->spec = lie->spec;
  t->local = lie->local;
}

/* A call that was made. */
typedef struct Made {
  struct Made *next;
  uint64_t *key;
  int nkey;
  Value *out;    /* by result of the node */
  Lie *lie;      /* by result: how it lies when it is made; a NULL shard: it is no DTensor */
  int *alias;    /* by result: the tensor argument whose handle it is; -1: none */
  Lie *after;    /* by tensor argument: how it lies afterwards */
  Moved **moved; /* redistributions that were asked for */
  int nmoved;
  double flops;
} Made;

typedef struct Shard {
  struct Shard *next;
  const Spec *spec;
  Tensor *local;
} Shard;

/* An input of the program as the walk before had it. */
typedef struct {
  Placement place[MAX_AXES];
  Lie lie;
  Tensor *handle; /* NULL: there was none */
} Input;

struct PlanPrice {
  const Probe *sizes;
  const Exported *e;
  PriceBackward *back; /* NULL: the forward alone is priced */
  Ctx ctx;
  Dist *dist;
  Mesh *mesh;
  struct Recording *outer;
  Exported *program; /* whatever was recorded, of all plans */
  GraphBuilder builder;
  Arena arena;
  Made **made;       /* by id of a node's first result */
  Shard **shard;     /* by Val.id */
  Input *input;      /* by graph input */
  const Want **want; /* different ones that marks have had */
  int nwants, wants_cap;
  /* of the walk that is under way */
  const Marks *marks;
  int walk; /* its number */
  Arena walk_arena;
  Price now;
  Moved **asked; /* since the call began */
  int nasked, asked_cap;
  Tensor **handle; /* of the call: the tensors among its arguments, one after another */
  const Val **val; /* and whose they are */
  int nhandles, handles_cap, vals_cap;
  uint64_t *key; /* of the call */
  int nkey, key_cap;
};

/* ---- opening ------------------------------------------------------------------------------------ */

/* Each redistribution counts once in a walk. */
static void count_moved(PlanPrice *p, Moved *m) {
  if (m->stamp == p->walk) return;
  m->stamp = p->walk;
  p->now.sent += m->bytes;
}

static Status see_moved(void *arg, Moved *m) {
  PlanPrice *p = arg;
  TRY_NEW(p->asked, arena_more(&p->arena, p->asked, p->nasked, &p->asked_cap));
  p->asked[p->nasked++] = m;
  count_moved(p, m);
  return OK;
}

static Status open_dist(PlanPrice *p, const Mesh *mesh) {
  TRY(dist_new(NULL, &p->dist));
  ctx_attach_dist(&p->ctx, p->dist);
  TRY(mesh_new(p->dist, mesh->axis, mesh->naxes, mesh->name, NULL, &p->mesh));
  memset(p->mesh->coord, 0, sizeof p->mesh->coord);
  p->mesh->inside = true;
  p->dist->keep_sharded = true; /* as program_walk() does */
  p->dist->implicit_replication = true;
  p->dist->moved = see_moved;
  p->dist->moved_arg = p;
  return dist_record(p->dist, &p->outer);
}

Status plan_price_open(const Probe *sizes, const Mesh *mesh, const GradRequest *grad, PlanPrice **out) {
  PlanPrice *p;
  const Exported *e = sizes->e;
  TRY_NEW(p, calloc(1, sizeof *p));
  *p = (PlanPrice){.sizes = sizes, .e = e};
  ctx_init(&p->ctx, 1);
  p->made = arena_new_n(&p->arena, Made *, e->graph->nvals + 1);
  p->shard = arena_new_n(&p->arena, Shard *, e->graph->nvals + 1);
  p->input = arena_new_n(&p->arena, Input, e->graph->ninputs + 1);
  Status s = p->made && p->shard && p->input ? exported_new(e->name, &p->program) : fail_oom();
  if (!s) s = open_dist(p, mesh);
  if (!s && grad) s = price_backward_new(e, grad, p->program, &p->arena, &p->back);
  if (!s) {
    builder_init(&p->builder, &p->ctx, p->program);
    p->builder.dry_limit = DRY_LIMIT;
    ctx_set_handler(&p->ctx, LEVEL_EMIT, &p->builder.handler);
    *out = p;
  } else plan_price_close(p);
  return s;
}

void plan_price_close(PlanPrice *p) {
  if (!p) return;
  if (p->dist) dist_record_end(p->dist, p->outer);
  builder_free(&p->builder);
  exported_free(p->program);
  ctx_free(&p->ctx);
  dist_free(p->dist);
  arena_free(&p->walk_arena);
  arena_free(&p->arena);
  free(p);
}

Mesh *plan_price_mesh(PlanPrice *p) { return p->mesh; }

/* ---- shards --------------------------------------------------------------------------------------- */

/* The one shard of a value that lies so; made: what it is if there is none yet. */
static Status shard_of(PlanPrice *p, const Val *v, const Spec *spec, Tensor *made, Tensor **out) {
  Shard *s = p->shard[v->id];
  while (s && s->spec != spec) s = s->next;
  if (!s) {
    TRY_NEW(s, arena_new(&p->arena, Shard));
    *s = (Shard){p->shard[v->id], spec, made};
    p->shard[v->id] = s;
  }
  *out = s->local;
  return OK;
}

/* A tensor that stands for an input of the recorded program. */
static Status input_shard(PlanPrice *p, const Spec *spec, Tensor **out) {
  Val *v;
  TRY_NEW(v, arena_new(&p->arena, Val));
  TRY(tensor_meta(&p->program->scope, spec->dtype, spec->ndim, spec->local, out));
  TRY(tensor_reserve(*out));
  TRY(val_set_tensor(p->program->graph, v, *out));
  (*out)->tag = v;
  return OK;
}

/* Where the marks want an input. */
static Status place_input(PlanPrice *p, int i, const Tensor *whole, Input *in) {
  const Val *v = p->e->graph->inputs[i];
  Placement place[MAX_AXES];
  marks_input_places(p->marks, i, whole->ndim ? whole->size[0] : 0, place);
  if (in->handle && placements_equal(place, in->place, p->mesh->naxes)) return OK;
  memcpy(in->place, place, sizeof place);
  TRY(spec_new(p->mesh, whole->dtype, whole->ndim, whole->size, NULL, place, &in->lie.spec));
  const Shard *known = p->shard[v->id];
  while (known && known->spec != in->lie.spec) known = known->next;
  Tensor *shard = NULL;
  if (!known) TRY(input_shard(p, in->lie.spec, &shard));
  TRY(shard_of(p, v, in->lie.spec, shard, &in->lie.local));
  return in->handle ? OK : dtensor_wrap(&p->program->scope, in->lie.spec, in->lie.local, &in->handle);
}

static Status input_value(PlanPrice *p, int i, Arena *arena, Value *out) {
  const Val *v = p->e->graph->inputs[i];
  const InputSpec *spec = &p->e->inputs[i];
  const Tensor *t = probe_tensor(p->sizes, v);
  if (spec->kind == IN_CONSTANT) return arg_resolve(arena, NULL, &spec->constant, out);
  *out = spec->kind == IN_TOKEN ? val_none() : p->sizes->env[v->id];
  if (!t) return OK;
  Input *in = &p->input[i];
  TRY(place_input(p, i, t, in));
  lie_so(in->handle, &in->lie);
  *out = val_tensor(in->handle);
  int64_t held = p->back && price_backward_wants(p->back, i) ? 2 : 1; /* its gradient is as large */
  if (spec->kind != IN_USER)
    p->now.weights += held * in->lie.spec->local_numel * (int64_t)dtype_size(in->lie.spec->dtype);
  return OK;
}

/* ---- calls ------------------------------------------------------------------------------------------ */

static Status add_handle(PlanPrice *p, const Val *val, const Value *v) {
  if (v->kind != VAL_TENSOR || !v->tensor) return OK;
  TRY_NEW(p->handle, arena_more(&p->arena, p->handle, p->nhandles, &p->handles_cap));
  TRY_NEW(p->val, arena_more(&p->arena, p->val, p->nhandles, &p->vals_cap));
  p->val[p->nhandles] = val;
  p->handle[p->nhandles++] = v->tensor;
  return OK;
}

static Status find_handles(PlanPrice *p, const Node *n, const Value *env) {
  p->nhandles = 0;
  for (int i = 0; i < n->nargs; i++) {
    const Arg *a = &n->args[i];
    if (a->kind == ARG_VAL) TRY(add_handle(p, a->val, &env[a->val->id]));
    for (int j = 0; a->kind == ARG_LIST && j < a->n; j++)
      if (a->list[j].kind == ARG_VAL) TRY(add_handle(p, a->list[j].val, &env[a->list[j].val->id]));
  }
  return OK;
}

static bool want_equal(const Want *a, const Want *b) {
  if (a->axes != b->axes || a->partial_sum != b->partial_sum) return false;
  for (int i = 0; i < MAX_AXES; i++)
    if (a->axes >> i & 1 && !placement_equal(&a->place[i], &b->place[i])) return false;
  return true;
}

/* A number for what is wanted: equal wants have the same. */
static Status want_number(PlanPrice *p, const Want *w, uint64_t *out) {
  *out = 0;
  if (!w) return OK;
  for (int i = 0; i < p->nwants; i++)
    if (want_equal(p->want[i], w)) return *out = (uint64_t)i + 1, OK;
  Want *copy;
  TRY_NEW(p->want, arena_more(&p->arena, p->want, p->nwants, &p->wants_cap));
  TRY_NEW(copy, arena_new(&p->arena, Want));
  *copy = *w;
  p->want[p->nwants++] = copy;
  *out = (uint64_t)p->nwants;
  return OK;
}

static Status add_word(PlanPrice *p, uint64_t word) {
  TRY_NEW(p->key, arena_more(&p->arena, p->key, p->nkey, &p->key_cap));
  p->key[p->nkey++] = word;
  return OK;
}

static Status add_want(PlanPrice *p, const Want *w) {
  uint64_t number;
  TRY(want_number(p, w, &number));
  return add_word(p, number);
}

/* All that a call's cost and results depend on: where its tensors lie and what the marks ask. */
static Status find_key(PlanPrice *p, const Node *n) {
  const Marks *m = p->marks;
  p->nkey = 0;
  for (int i = 0; i < p->nhandles; i++) {
    Lie lie = lie_of(p->handle[i]);
    TRY(add_word(p, (uint64_t)(uintptr_t)lie.spec));
    TRY(add_word(p, (uint64_t)(uintptr_t)lie.local));
  }
  for (const Anchor *a = m->before[n->outs[0]->id]; a; a = a->next) {
    TRY(add_word(p, (uint64_t)(uintptr_t)a->val));
    TRY(add_want(p, &a->want));
  }
  for (int o = 0; o < n->nouts; o++) TRY(add_want(p, m->after[n->outs[o]->id]));
  return OK;
}

/* Arithmetic of the nodes behind `last`. */
static Status flops_behind(PlanPrice *p, const Node *last, Arena *arena, double *out) {
  *out = 0;
  for (const Node *n = last ? last->next : p->program->graph->first; n; n = n->next) {
    Value arg[MAX_PARAMS], result[MAX_DIMS];
    if (!n->op || !n->op->def->flops || n->nouts > MAX_DIMS) continue;
    TRY(node_resolve(arena, NULL, n, arg));
    for (int i = 0; i < n->nouts; i++) result[i] = n->outs[i]->tensor ? val_tensor(n->outs[i]->tensor) : val_none();
    *out += op_flops(&(Call){.op = n->op, .arg = arg, .out = result, .nout = n->nouts});
  }
  return OK;
}

/* Makes the call and counts it.  What is recorded stays: handles that the call makes outlive the walk. */
static Status call_counted(PlanPrice *p, const Node *n, Value *bound, Call *c, double *flops) {
  const Node *last = p->program->graph->last;
  Scope *scope = c->scope;
  Arena *arena = c->arena;
  p->nasked = 0;
  p->builder.origin = n;
  c->scope = &p->program->scope;
  c->arena = &p->program->arena;
  Status s = marks_call(p->marks, n, bound, c, NULL);
  c->scope = scope;
  c->arena = arena;
  TRY(s);
  TRY(flops_behind(p, last, c->arena, flops));
  p->now.flops += *flops;
  return OK;
}

static Status remember_results(PlanPrice *p, const Node *n, const Call *c, Made *m) {
  TRY_NEW(m->out, arena_new_n(&p->arena, Value, n->nouts));
  TRY_NEW(m->lie, arena_new_n(&p->arena, Lie, n->nouts));
  TRY_NEW(m->alias, arena_new_n(&p->arena, int, n->nouts));
  for (int o = 0; o < n->nouts && o < c->nout; o++) {
    Tensor *t = out_tensor(c, o);
    m->out[o] = c->out[o];
    m->alias[o] = -1;
    for (int i = 0; t && i < p->nhandles; i++)
      if (p->handle[i] == t) m->alias[o] = i;
    if (!t || !t->spec || m->alias[o] >= 0) continue;
    TRY(shard_of(p, n->outs[o], t->spec, t->local, &t->local));
    m->lie[o] = lie_of(t);
  }
  return OK;
}

/* The backward of a call that has just been made, with the same arguments. */
static Status return_counted(PlanPrice *p, const Node *n, const Value *bound, Arena *arena, double *flops) {
  Price now = p->now;
  int asked = p->nasked;
  double more;
  TRY(price_backward_call(p->back, &p->ctx, p->marks, n, bound, p->val, arena));
  p->now = now; /* that was counted */
  p->nasked = asked;
  const Node *last = p->program->graph->last;
  TRY(price_backward_return(p->back));
  TRY(flops_behind(p, last, arena, &more));
  p->now.flops += more;
  *flops += more;
  return OK;
}

static Status call_anew(PlanPrice *p, const Node *n, Value *bound, Call *c, Made *m) {
  Value before[MAX_PARAMS]; /* marks may replace some */
  memcpy(before, bound, (size_t)n->op->schema.nparams * sizeof *before);
  TRY(call_counted(p, n, bound, c, &m->flops));
  TRY(remember_results(p, n, c, m));
  if (p->back && price_backward_visits(p->back, n)) {
    Status s = return_counted(p, n, before, c->arena, &m->flops);
    price_backward_end(p->back);
    TRY(s);
  }
  TRY_NEW(m->after, arena_new_n(&p->arena, Lie, p->nhandles + 1));
  for (int i = 0; i < p->nhandles; i++) m->after[i] = lie_of(p->handle[i]);
  m->nmoved = p->nasked;
  TRY_NEW(m->moved, arena_new_n(&p->arena, Moved *, p->nasked + 1));
  if (p->nasked) memcpy(m->moved, p->asked, (size_t)p->nasked * sizeof *m->moved);
  return OK;
}

static bool is_priced_once(const PlanPrice *p, const Node *n) { return n->graph == p->e->graph && n->nouts; }

/* The results of a call that was made before. */
static Status recall(void *arg, const Node *n, Value *env, bool *known) {
  PlanPrice *p = arg;
  *known = false;
  if (!is_priced_once(p, n)) return OK;
  TRY(find_handles(p, n, env));
  TRY(find_key(p, n));
  const Made *m = p->made[n->outs[0]->id];
  while (m && (m->nkey != p->nkey || memcmp(m->key, p->key, (size_t)p->nkey * sizeof *p->key))) m = m->next;
  if (!m) return OK;
  *known = true;
  for (int i = 0; i < p->nhandles; i++)
    if (m->after[i].spec) lie_so(p->handle[i], &m->after[i]);
  for (int i = 0; i < m->nmoved; i++) count_moved(p, m->moved[i]);
  p->now.flops += m->flops;
  for (int o = 0; o < n->nouts; o++) {
    env[n->outs[o]->id] = m->alias[o] < 0 ? m->out[o] : val_tensor(p->handle[m->alias[o]]);
    if (m->lie[o].local) lie_so(m->out[o].tensor, &m->lie[o]);
  }
  return OK;
}

/* recall() has found handles and key, but no such call. */
static Status price_call(void *arg, const Node *n, Value *bound, Call *c) {
  PlanPrice *p = arg;
  double flops;
  Made *m;
  if (!is_priced_once(p, n)) return call_counted(p, n, bound, c, &flops);
  TRY_NEW(m, arena_new(&p->arena, Made));
  TRY_NEW(m->key, arena_new_n(&p->arena, uint64_t, p->nkey + 1));
  memcpy(m->key, p->key, (size_t)p->nkey * sizeof *p->key);
  m->nkey = p->nkey;
  TRY(call_anew(p, n, bound, c, m));
  if (c->nout < n->nouts) return OK; /* an error of the walk */
  m->next = p->made[n->outs[0]->id];
  p->made[n->outs[0]->id] = m;
  return OK;
}

/* ---- a plan ------------------------------------------------------------------------------------------- */

static Status walk(PlanPrice *p, Scope *scope, Arena *arena) {
  const Graph *g = p->e->graph;
  Value *inputs, *outputs;
  Tensor *t;
  TRY_NEW(inputs, arena_new_n(arena, Value, g->ninputs + 1));
  TRY_NEW(outputs, arena_new_n(arena, Value, g->noutputs + 1));
  for (int i = 0; i < g->ninputs; i++) TRY(input_value(p, i, arena, &inputs[i]));
  Walk w = {.ctx = &p->ctx, .scope = scope, .arena = arena, .recall = recall, .call = price_call, .arg = p};
  TRY(graph_walk(&w, g, inputs, outputs));
  for (int i = 0; i < g->noutputs; i++) {
    if (outputs[i].kind != VAL_TENSOR || !outputs[i].tensor->spec) continue;
    TRY(want_apply(&p->ctx, &p->program->scope, &p->marks->output[i], outputs[i].tensor, &t));
  }
  return OK;
}

Status plan_price(PlanPrice *p, const Marks *marks, Price *out) {
  Scope scope = {0};
  p->marks = marks;
  p->walk++;
  p->now = (Price){0};
  Status s = walk(p, &scope, &p->walk_arena);
  scope_clear(&scope);
  arena_clear(&p->walk_arena);
  *out = p->now;
  return s;
}
