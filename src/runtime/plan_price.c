/* plan_price.c -- see plan_price.h.
 *
 * Handles of a walk are its own, shards are not: of every value and spec there is one shard
 * (without elements) in all walks, so that a call is known again by its arguments' shards, and
 * a redistribution by its Moved record.
 */
#include "runtime/plan_price.h"

#include <stdlib.h>
#include <string.h>

#include "dist/dispatch.h"
#include "dist/dist.h"
#include "graph/builder.h"
#include "graph/resolve.h"
#include "runtime/program_walk.h"

/* Constants that are larger are not computed. */
enum { DRY_LIMIT = 1 << 16 };

/* How one tensor lies: spec and shard, or a plain tensor. */
typedef struct {
  const Spec *spec; /* NULL: plain */
  Tensor *local;    /* the shard; the tensor itself if it is plain */
} Lie;

/* A call that was made. */
typedef struct Made {
  struct Made *next;
  uint64_t *key;
  int nkey;
  Value *out; /* tensors on the mesh: handles of which spec and shard count */
  int *alias; /* by output: the tensor argument whose handle it is; -1: none */
  int nout;
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

struct PlanPrice {
  const Probe *sizes;
  const Exported *e;
  Ctx ctx;
  Dist *dist;
  Mesh *mesh;
  struct Recording *outer;
  Exported *program; /* whatever was recorded, of all plans */
  GraphBuilder builder;
  Arena arena;
  Made **made;       /* by id of a node's first result */
  Shard **shard;     /* by Val.id */
  const Want **want; /* different ones that marks have had */
  int nwants, wants_cap;
  /* of the walk that is under way */
  const Marks *marks;
  int walk; /* its number */
  Price now;
  Moved **asked; /* since the call began */
  int nasked, asked_cap;
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

Status plan_price_open(const Probe *sizes, const Mesh *mesh, PlanPrice **out) {
  PlanPrice *p;
  const Exported *e = sizes->e;
  TRY_NEW(p, calloc(1, sizeof *p));
  *p = (PlanPrice){.sizes = sizes, .e = e};
  ctx_init(&p->ctx, 1);
  p->made = arena_new_n(&p->arena, Made *, e->graph->nvals + 1);
  p->shard = arena_new_n(&p->arena, Shard *, e->graph->nvals + 1);
  Status s = p->made && p->shard ? exported_new(e->name, &p->program) : fail_oom();
  if (!s) s = open_dist(p, mesh);
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

static Status input_value(PlanPrice *p, int i, Scope *scope, Arena *arena, Value *out) {
  const Val *v = p->e->graph->inputs[i];
  const InputSpec *in = &p->e->inputs[i];
  const Tensor *t = probe_tensor(p->sizes, v);
  if (in->kind == IN_CONSTANT) return arg_resolve(arena, NULL, &in->constant, out);
  *out = in->kind == IN_TOKEN ? val_none() : p->sizes->env[v->id];
  if (!t) return OK;
  Placement place[MAX_AXES];
  const Spec *spec;
  Tensor *shard = NULL, *handle;
  marks_input_places(p->marks, i, t->ndim ? t->size[0] : 0, place);
  TRY(spec_new(p->mesh, t->dtype, t->ndim, t->size, NULL, place, &spec));
  const Shard *known = p->shard[v->id];
  while (known && known->spec != spec) known = known->next;
  if (!known) TRY(input_shard(p, spec, &shard));
  TRY(shard_of(p, v, spec, shard, &shard));
  TRY(dtensor_wrap(scope, spec, shard, &handle));
  *out = val_tensor(handle);
  if (in->kind != IN_USER) p->now.weights += spec->local_numel * (int64_t)dtype_size(spec->dtype);
  return OK;
}

/* ---- calls ------------------------------------------------------------------------------------------ */

/* The tensors among a call's arguments, one after another. */
typedef struct {
  Tensor **t;
  int n;
} Handles;

static Status handles_of(const Call *c, Handles *out) {
  int n = 0;
  for (int i = 0; i < c->op->schema.nparams; i++)
    n += c->arg[i].kind == VAL_TENSORS ? c->arg[i].n : c->arg[i].kind == VAL_TENSOR;
  *out = (Handles){0};
  TRY_NEW(out->t, arena_new_n(c->arena, Tensor *, n + 1));
  for (int i = 0; i < c->op->schema.nparams; i++) {
    if (c->arg[i].kind == VAL_TENSOR) out->t[out->n++] = c->arg[i].tensor;
    for (int j = 0; c->arg[i].kind == VAL_TENSORS && j < c->arg[i].n; j++)
      if (c->arg[i].tensors[j]) out->t[out->n++] = c->arg[i].tensors[j];
  }
  return OK;
}

static Lie lie_of(Tensor *t) { return t->spec ? (Lie){t->spec, t->local} : (Lie){NULL, t}; }

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

/* All that a call's cost and results depend on: where its tensors lie and what the marks ask. */
static Status key_of(PlanPrice *p, const Node *n, const Call *c, const Handles *h, uint64_t **out, int *nout) {
  const Marks *m = p->marks;
  int anchors = 0, at = 0;
  for (const Anchor *a = m->before[n->outs[0]->id]; a; a = a->next) anchors++;
  uint64_t *key;
  TRY_NEW(key, arena_new_n(c->arena, uint64_t, 2 * h->n + 2 * anchors + n->nouts + 1));
  for (int i = 0; i < h->n; i++) {
    Lie lie = lie_of(h->t[i]);
    key[at++] = (uint64_t)(uintptr_t)lie.spec;
    key[at++] = (uint64_t)(uintptr_t)lie.local;
  }
  for (const Anchor *a = m->before[n->outs[0]->id]; a; a = a->next) {
    key[at++] = (uint64_t)(uintptr_t)a->val;
    TRY(want_number(p, &a->want, &key[at++]));
  }
  for (int o = 0; o < n->nouts; o++) TRY(want_number(p, m->after[n->outs[o]->id], &key[at++]));
  *out = key;
  *nout = at;
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

static Status remember_results(PlanPrice *p, const Node *n, const Call *c, const Handles *h, Made *m) {
  m->nout = c->nout;
  TRY_NEW(m->out, arena_new_n(&p->arena, Value, c->nout + 1));
  TRY_NEW(m->alias, arena_new_n(&p->arena, int, c->nout + 1));
  for (int o = 0; o < c->nout; o++) {
    Tensor *t = out_tensor(c, o);
    m->out[o] = c->out[o];
    m->alias[o] = -1;
    for (int i = 0; t && i < h->n; i++)
      if (h->t[i] == t) m->alias[o] = i;
    if (t && t->spec && m->alias[o] < 0 && o < n->nouts) TRY(shard_of(p, n->outs[o], t->spec, t->local, &t->local));
  }
  return OK;
}

static Status call_anew(PlanPrice *p, const Node *n, Value *bound, Call *c, const Handles *h, Made *m) {
  TRY(call_counted(p, n, bound, c, &m->flops));
  TRY(remember_results(p, n, c, h, m));
  TRY_NEW(m->after, arena_new_n(&p->arena, Lie, h->n + 1));
  for (int i = 0; i < h->n; i++) m->after[i] = lie_of(h->t[i]);
  m->nmoved = p->nasked;
  TRY_NEW(m->moved, arena_new_n(&p->arena, Moved *, p->nasked + 1));
  if (p->nasked) memcpy(m->moved, p->asked, (size_t)p->nasked * sizeof *m->moved);
  return OK;
}

static Status call_again(PlanPrice *p, const Made *m, const Handles *h, Call *c) {
  for (int i = 0; i < h->n; i++) {
    if (!m->after[i].spec) continue;
    h->t[i]->spec = m->after[i].spec;
    h->t[i]->local = m->after[i].local;
  }
  for (int i = 0; i < m->nmoved; i++) count_moved(p, m->moved[i]);
  p->now.flops += m->flops;
  for (int o = 0; o < m->nout; o++) {
    Value v = m->out[o];
    if (m->alias[o] >= 0) v = val_tensor(h->t[m->alias[o]]);
    else if (v.kind == VAL_TENSOR && v.tensor->spec) {
      TRY(dtensor_wrap(c->scope, v.tensor->spec, v.tensor->local, &v.tensor));
    }
    TRY(out_value(c, v));
  }
  return OK;
}

static Status price_call(void *arg, const Node *n, Value *bound, Call *c) {
  PlanPrice *p = arg;
  Handles h;
  uint64_t *key;
  int nkey;
  double flops;
  if (n->graph != p->e->graph || !n->nouts) return call_counted(p, n, bound, c, &flops);
  TRY(handles_of(c, &h));
  TRY(key_of(p, n, c, &h, &key, &nkey));
  Made **list = &p->made[n->outs[0]->id], *m = *list;
  while (m && (m->nkey != nkey || memcmp(m->key, key, (size_t)nkey * sizeof *key))) m = m->next;
  if (m) return call_again(p, m, &h, c);
  TRY_NEW(m, arena_new(&p->arena, Made));
  TRY_NEW(m->key, arena_new_n(&p->arena, uint64_t, nkey + 1));
  memcpy(m->key, key, (size_t)nkey * sizeof *key);
  m->nkey = nkey;
  TRY(call_anew(p, n, bound, c, &h, m));
  m->next = *list;
  *list = m;
  return OK;
}

/* ---- a plan ------------------------------------------------------------------------------------------- */

static Status walk(PlanPrice *p, Scope *scope, Arena *arena) {
  const Graph *g = p->e->graph;
  Value *inputs, *outputs;
  Tensor *t;
  TRY_NEW(inputs, arena_new_n(arena, Value, g->ninputs + 1));
  TRY_NEW(outputs, arena_new_n(arena, Value, g->noutputs + 1));
  for (int i = 0; i < g->ninputs; i++) TRY(input_value(p, i, scope, arena, &inputs[i]));
  Walk w = {.ctx = &p->ctx, .scope = scope, .arena = arena, .call = price_call, .arg = p};
  TRY(graph_walk(&w, g, inputs, outputs));
  for (int i = 0; i < g->noutputs; i++) {
    if (outputs[i].kind != VAL_TENSOR || !outputs[i].tensor->spec) continue;
    TRY(want_apply(&p->ctx, &p->program->scope, &p->marks->output[i], outputs[i].tensor, &t));
  }
  return OK;
}

Status plan_price(PlanPrice *p, const Marks *marks, Price *out) {
  Scope scope = {0};
  Arena arena = {0};
  p->marks = marks;
  p->walk++;
  p->now = (Price){0};
  Status s = walk(p, &scope, &arena);
  scope_clear(&scope);
  arena_free(&arena);
  *out = p->now;
  return s;
}
