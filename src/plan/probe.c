/* probe.c -- see probe.h. */
#include "plan/probe.h"

#include <stdlib.h>
#include <string.h>

#include "dist/dist.h"
#include "graph/resolve.h"

enum { MOST_GIVEN = 4 };

/* A question and its answer. */
typedef struct Asked {
  struct Asked *next;
  Given given[MOST_GIVEN];
  int ngiven;
  bool free, known;
  Placement out[];
} Asked;

/* ---- opening ------------------------------------------------------------------------------------ */

enum { UNKNOWN_SIZE = 24 }; /* stands for a size that depends on elements */

static Status bind_hints(const Exported *e, Arena *arena, SymBindings *out) {
  TRY_NEW(out->v, arena_new_n(arena, SymBinding, e->nranges + 1));
  for (int i = 0; i < e->nranges; i++) {
    const SymRange *r = &e->ranges[i];
    int64_t hint = r->hint >= 0            ? r->hint
                   : r->max < UNKNOWN_SIZE ? r->max
                   : r->min > UNKNOWN_SIZE ? r->min
                                           : UNKNOWN_SIZE;
    out->v[out->n++] = (SymBinding){r->symbol, hint};
  }
  return OK;
}

/* A DTensor without a shard, whole on the probe's mesh. */
static Status whole_tensor(Probe *p, Dtype dtype, int ndim, const int64_t *size, Value *out) {
  Placement r = place_r();
  const Spec *spec;
  Tensor *t;
  TRY(spec_new(p->mesh, dtype, ndim, size, NULL, &r, &spec));
  TRY(dtensor_wrap(&p->scope, spec, NULL, &t));
  *out = val_tensor(t);
  return OK;
}

static Status value_of(Probe *p, const Val *v, const SymBindings *hints, Value *out) {
  int64_t size[MAX_DIMS];
  *out = val_none();
  if (v->type == TY_INT && v->sym) {
    Status s = sym_eval(v->sym, hints, &size[0]);
    if (!s) *out = val_int(size[0]);
    status_free(s);
    return OK;
  }
  if (v->type == TY_BOOL) *out = val_bool(true);
  if (v->type == TY_FLOAT) *out = val_float(1);
  if (v->type != TY_TENSOR || v->ndim < 0 || v->ndim > MAX_DIMS) return OK;
  for (int d = 0; d < v->ndim; d++) {
    Status s = sym_eval(v->size[d], hints, &size[d]);
    bool known = !s;
    status_free(s);
    if (!known) return OK;
  }
  int64_t numel; /* of sizes that the file tells, at hints that it tells */
  if (!checked_numel(v->ndim, size, &numel) || numel > INT64_MAX / 32) return OK;
  return whole_tensor(p, v->dtype, v->ndim, size, out);
}

static Status fill(Probe *p, const Val *v, const SymBindings *hints) {
  return value_of(p, v, hints, &p->env[v->id]);
}

static void any_activation(void *ctx, Val **ref) {
  Probe *p = ((void **)ctx)[0];
  bool *any = ((void **)ctx)[1];
  *any |= p->activation[(*ref)->id];
}

/* ---- users ---------------------------------------------------------------------------------------- */

typedef struct {
  Probe *p;
  Node *node;
  int *next; /* by Val.id: where its next user goes; while counting: NULL */
} Users;

static void add_user(void *ctx, Val **ref) {
  Users *u = ctx;
  int id = (*ref)->id;
  if (!u->next) u->p->first_user[id + 1]++;
  else if (u->next[id] == u->p->first_user[id] || u->p->user[u->next[id] - 1] != u->node)
    u->p->user[u->next[id]++] = u->node;
}

static Status list_users(Probe *p) {
  const Graph *g = p->e->graph;
  Users u = {.p = p};
  TRY_NEW(p->first_user, arena_new_n(&p->arena, int, g->nvals + 2));
  for (Node *n = g->first; n; n = n->next) node_each_val(n, add_user, &u);
  for (int i = 0; i < g->nvals; i++) p->first_user[i + 1] += p->first_user[i];
  TRY_NEW(p->user, arena_new_n(&p->arena, Node *, p->first_user[g->nvals] + 1));
  TRY_NEW(u.next, arena_new_n(&p->arena, int, g->nvals + 1));
  memcpy(u.next, p->first_user, (size_t)g->nvals * sizeof *u.next);
  for (Node *n = g->first; n; n = n->next) node_each_val(u.node = n, add_user, &u);
  return OK; /* a node that uses a value twice leaves a NULL behind */
}

static Status open_graph(Probe *p) {
  const Graph *g = p->e->graph;
  SymBindings hints = {0};
  TRY(bind_hints(p->e, &p->arena, &hints));
  for (int i = 0; i < g->ninputs; i++) {
    TRY(fill(p, g->inputs[i], &hints));
    p->activation[g->inputs[i]->id] = p->e->inputs[i].kind == IN_USER;
  }
  for (Node *n = g->first; n; n = n->next) {
    bool any = false;
    void *ctx[2] = {p, &any};
    node_each_val(n, any_activation, ctx);
    for (int i = 0; i < n->nouts; i++) {
      TRY(fill(p, n->outs[i], &hints));
      p->activation[n->outs[i]->id] = any;
    }
  }
  return OK;
}

Status probe_open(Probe *p, const Exported *e) {
  int two = 2;
  *p = (Probe){.e = e};
  ctx_init(&p->ctx, 1);
  TRY(dist_new(NULL, &p->dist));
  p->dist->implicit_replication = true;
  ctx_attach_dist(&p->ctx, p->dist);
  TRY(mesh_new(p->dist, &two, 1, NULL, NULL, &p->mesh));
  TRY_NEW(p->env, arena_new_n(&p->arena, Value, e->graph->nvals + 1));
  TRY_NEW(p->activation, arena_new_n(&p->arena, bool, e->graph->nvals + 1));
  TRY_NEW(p->asked, arena_new_n(&p->arena, Asked *, e->graph->nvals + 1));
  TRY_NEW(p->uses, arena_new_n(&p->arena, struct WeightUses *, e->graph->ninputs + 1));
  TRY(list_users(p));
  return open_graph(p);
}

void probe_close(Probe *p) {
  if (!p->e) return;
  ctx_free(&p->ctx);
  scope_clear(&p->scope);
  dist_free(p->dist);
  arena_free(&p->arena);
  *p = (Probe){0};
}

/* ---- asking --------------------------------------------------------------------------------------- */

const Tensor *probe_tensor(const Probe *p, const Val *v) {
  const Value *value = &p->env[v->id];
  return value->kind == VAL_TENSOR ? value->tensor : NULL;
}

static void all_known(void *ctx, Val **ref) {
  Probe *p = ((void **)ctx)[0];
  bool *known = ((void **)ctx)[1];
  *known &= p->env[(*ref)->id].kind != VAL_NONE;
}

static Status call_node(Probe *p, const Node *n, Scope *scope, Arena *arena, Call *c) {
  Value *bound;
  TRY_NEW(bound, arena_new_n(arena, Value, n->op->schema.nparams + 1));
  TRY(node_resolve(arena, p->env, n, bound));
  *c = (Call){.ctx = &p->ctx, .op = n->op, .arg = bound, .scope = scope, .arena = arena};
  return op_dispatch(c);
}

static Status ask(Probe *p, const Node *n, const Given *given, int ngiven, Placement *out, bool *free_,
                  bool *known) {
  Value former[MOST_GIVEN];
  Scope scope = {0};
  Arena arena = {0};
  Call c = {0};
  *known = !n->op->schema.mutates;
  void *ctx[2] = {p, known};
  if (*known) node_each_val((Node *)(uintptr_t)n, all_known, ctx);
  if (!*known) return OK;
  Status s = OK;
  int set = 0;
  for (; set < ngiven && !s; set++) {
    Value *slot = &p->env[given[set].val->id];
    const Spec *spec;
    Tensor *t;
    former[set] = *slot;
    s = spec_with(slot->tensor->spec, &given[set].place, &spec);
    if (!s) s = dtensor_wrap(&scope, spec, NULL, &t);
    if (!s) *slot = val_tensor(t);
  }
  double cost = p->dist->decided_cost;
  if (!s) s = call_node(p, n, &scope, &arena, &c);
  *free_ = p->dist->decided_cost == cost;
  *known = !s && c.nout >= n->nouts;
  for (int i = 0; i < n->nouts && *known; i++) {
    const Tensor *t = out_tensor(&c, i), *told = probe_tensor(p, n->outs[i]);
    out[i] = t && t->spec ? t->spec->place[0] : place_r();
    *known = !t || (told && told->ndim == t->ndim); /* else the file tells the value wrong */
  }
  bool short_of_memory = s == fail_oom();
  status_free(s); /* an op that cannot be asked is no error here */
  while (set-- > 0) p->env[given[set].val->id] = former[set];
  scope_clear(&scope);
  arena_free(&arena);
  return short_of_memory ? fail_oom() : OK;
}

static bool same_question(const Asked *a, const Given *given, int ngiven) {
  if (a->ngiven != ngiven) return false;
  for (int i = 0; i < ngiven; i++)
    if (a->given[i].val != given[i].val || !placement_equal(&a->given[i].place, &given[i].place)) return false;
  return true;
}

Status probe_ask(Probe *p, const Node *n, const Given *given, int ngiven, Placement *out, bool *free_,
                 bool *known) {
  *known = *free_ = false;
  if (!n->op || !n->nouts || ngiven > MOST_GIVEN) return OK;
  size_t bytes = (size_t)n->nouts * sizeof *out;
  Asked **list = &p->asked[n->outs[0]->id], *a = *list;
  while (a && !same_question(a, given, ngiven)) a = a->next;
  if (!a) {
    TRY_NEW(a, arena_alloc(&p->arena, sizeof *a + bytes));
    *a = (Asked){.ngiven = ngiven};
    memcpy(a->given, given, (size_t)ngiven * sizeof *given);
    TRY(ask(p, n, given, ngiven, a->out, &a->free, &a->known));
    a->next = *list;
    *list = a;
  }
  if (a->known) memcpy(out, a->out, bytes);
  *free_ = a->free;
  *known = a->known;
  return OK;
}
