/* backward.c -- from the cotangents of some tensors to the gradients of others; see tape.h.
 *
 * Nodes that the outputs depend on are collected and sorted by number; visiting them from the latest to the
 * earliest, all cotangents of a node have arrived when it is its turn.
 */
#include <stdlib.h>
#include <string.h>

#include "base/textbuf.h"
#include "dist/dist.h"
#include "dist/spec.h"
#include "grad/family.h"
#include "grad/node.h"

typedef struct {
  TapeNode *node;
  Tensor **cotangent; /* by result; NULL: none has come */
  Scope held;         /* of the cotangents, while nothing is recorded */
  bool wanted;        /* a gradient must come here: it is asked for, or some input behind it */
  bool behind;        /* some input that is asked for lies behind it: it is gone through */
  bool asked;         /* it is one itself: its cotangents are kept */
} Visit;

typedef struct {
  Tape *tape;
  const Backward *how;
  Scope *scope;   /* of the gradients that are given */
  Scope step;     /* of what the gradient of one node makes; when calls are recorded, all of it stays in `scope` */
  bool recording; /* handles belong to the program that is made */
  Arena arena, step_arena; /* of the whole backward, and of one node unless calls are recorded */
  Visit *visit;            /* by number, latest first once they are sorted */
  int n, cap;
} Job;

/* ---- which nodes -------------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b) {
  uint64_t x = ((const Visit *)a)->node->number, y = ((const Visit *)b)->node->number;
  return x < y ? 1 : x > y ? -1 : 0;
}

static Status add_visit(Job *j, GradNode *node) {
  TapeNode *n = tape_node(node);
  if (n->visited == j->tape->backwards) return OK;
  n->visited = j->tape->backwards;
  TRY_NEW(j->visit, arena_more(&j->arena, j->visit, j->n, &j->cap));
  j->visit[j->n] = (Visit){.node = n};
  TRY_NEW(j->visit[j->n].cotangent, arena_new_n(&j->arena, Tensor *, n->nout + 1));
  j->n++;
  return OK;
}

static Visit *visit_of(Job *j, GradNode *node) {
  const Visit key = {.node = tape_node(node)};
  return j->n ? bsearch(&key, j->visit, (size_t)j->n, sizeof key, by_number) : NULL;
}

static Status collect(Job *j, Tensor *const *outputs, int noutputs) {
  for (int i = 0; i < noutputs; i++) {
    TRY(family_refresh(j->tape, outputs[i]));
    if (outputs[i]->grad) TRY(add_visit(j, outputs[i]->grad));
  }
  for (int at = 0; at < j->n; at++) {
    TapeNode *n = j->visit[at].node;
    for (int i = 0; i < n->nin; i++)
      if (n->source[i]) TRY(add_visit(j, n->source[i]));
  }
  if (j->n) qsort(j->visit, (size_t)j->n, sizeof *j->visit, by_number);
  return OK;
}

static Status ask_for(Job *j, Tensor *const *inputs, int ninputs) {
  for (int i = 0; i < ninputs; i++) {
    TRY(family_refresh(j->tape, inputs[i]));
    Visit *v = inputs[i]->grad ? visit_of(j, inputs[i]->grad) : NULL;
    if (v) v->asked = true;
  }
  return OK;
}

static void ask_for_leaves(Job *j) {
  for (int at = 0; at < j->n; at++) j->visit[at].asked = !j->visit[at].node->op;
}

/* A node is worth going through if an input that is asked for was made by one behind it. */
static void mark_wanted(Job *j) {
  for (int at = j->n - 1; at >= 0; at--) { /* earliest first */
    Visit *v = &j->visit[at];
    for (int i = 0; i < v->node->nin && !v->behind; i++)
      v->behind = v->node->source[i] && visit_of(j, v->node->source[i])->wanted;
    v->wanted = v->asked || v->behind;
  }
}

/* ---- errors -------------------------------------------------------------------------------------------- */

static void say_where(const Tape *t, const TapeNode *n, TextBuf *b) {
  char where[512] = "";
  if (t->describe && n->origin) t->describe(n->origin, false, where, sizeof where);
  if (*where) text_printf(b, " (%s)", where);
}

/* Every op on the way that has no gradient, each once, with the place of its first call. */
static Status refuse_missing(const Job *j) {
  TextBuf list = {0};
  int n = 0;
  for (int at = j->n - 1; at >= 0; at--) {
    const TapeNode *node = j->visit[at].node;
    if (!node->op || node->op->grad || !j->visit[at].behind) continue;
    bool told = false;
    for (int k = j->n - 1; k > at && !told; k--) told = j->visit[k].node->op == node->op && j->visit[k].behind;
    if (told) continue;
    text_printf(&list, "%s%s", n++ ? ", " : "", node->op->schema.name);
    say_where(j->tape, node, &list);
  }
  Status s = n ? fail(ERR_FAIL, "no gradient is known for %s", list.text ? list.text : "some op") : OK;
  text_free(&list);
  return s ? status_hint(s, "put a detach before it if none is meant to pass") : OK;
}

static const char *name_of(const TapeNode *n, int tensor) {
  if (tensor >= n->nin) return "result";
  for (TensorWalk w = tensors_of(n->arg, n->op->schema.nparams); tensor_next(&w);)
    if (w.flat == tensor) return n->op->schema.params[w.arg].name;
  return "argument";
}

static Status check_freed(const TapeNode *n) {
  return n->freed ? status_hint(fail(ERR_USAGE, "%s: the backward has been here before, and what it needs is gone",
                                     n->op->schema.name),
                                "keep it with retain_graph, or compute the forward again")
                  : OK;
}

static bool is_spoiled(const Kept *k) {
  const Kept *held = k->local ? k->local : k;
  return held->storage && held->storage->version != held->version;
}

/* Memory that comes and goes (a gathered parameter) has another version while it is gone. */
static bool is_freed(const Kept *k) {
  const Kept *held = k->local ? k->local : k;
  return held->storage && !held->storage->data;
}

/* An error of a gradient that tried to read what was written to is about that. */
static Status explain(const TapeNode *n, Status s) {
  for (int i = 0; i < n->nin + n->nout; i++) {
    if (!is_spoiled(&n->kept[i])) continue;
    status_free(s);
    if (is_freed(&n->kept[i]))
      return status_hint(fail(ERR_FAIL,
                              "%s: the memory of its %s has been freed since (a parameter that was resharded)",
                              n->op->schema.name, name_of(n, i)),
                         "unshard its module before, or let the backward do so");
    return status_hint(fail(ERR_FAIL, "%s: its %s was kept for the gradient and has been written to in place since",
                            n->op->schema.name, name_of(n, i)),
                       "write to a clone, or use the op that is not in place");
  }
  return status_at(s, "the gradient of %s", n->op->schema.name);
}

/* ---- one node -------------------------------------------------------------------------------------------- */

static Arena *step_arena(Job *j) { return j->recording ? &j->arena : &j->step_arena; }
static Scope *step_scope(Job *j) { return j->recording ? j->scope : &j->step; }

/* What a call of the backward is made with. */
static Call call_of(Job *j, const Op *op) {
  return (Call){.ctx = j->tape->ctx,
                .op = op,
                .scope = step_scope(j),
                .arena = step_arena(j),
                .level = j->how->create_graph ? LEVEL_TAPE : LEVEL_SHARD};
}

/* I3 */
static Status arrive(Job *j, GradNode *to, int out, Tensor *g) {
  Visit *v = visit_of(j, to);
  if (!v || !v->wanted) return OK;
  Tensor **at = &v->cotangent[out];
  if (*at) {
    Call c = call_of(j, op_find("aten.add.Tensor"));
    TRY(OP(&c, "aten.add.Tensor", &g, val_tensor(*at), val_tensor(g)));
    tensor_drop(*at);
  }
  return tensor_handle(j->recording ? j->scope : &v->held, g, at);
}

/* Handles on what a node kept, in the places that its tensors had; those of the backward's own gradient if that is
 * to be differentiated again. */
static Status unpack(Job *j, TapeNode *n, Tensor **tensor, Value **arg, Value **out) {
  Arena *arena = step_arena(j);
  for (int i = 0; i < n->nin + n->nout; i++) {
    Tensor t, local, *made;
    node_tensor(n, i, &t, &local);
    TRY(tensor_alias(step_scope(j), &t, &made));
    tensor[i] = made;
    if (is_spoiled(&n->kept[i])) made->seen = TENSOR_SPOILED;
    if (!j->how->create_graph || !n->kept[i].read || !can_have_gradient(made)) continue;
    made->grad = grad_ref(i < n->nin ? n->source[i] : &n->ref);
    made->grad_out = i < n->nin ? n->source_out[i] : i - n->nin;
  }
  int nargs = n->op->schema.nparams;
  TRY_NEW(*arg, arena_new_n(arena, Value, nargs + 1));
  TRY_NEW(*out, arena_new_n(arena, Value, n->nvalues + 1));
  TRY(replace_tensors(arena, n->arg, nargs, tensor, *arg));
  return replace_tensors(arena, n->out, n->nvalues, tensor + n->nin, *out);
}

/* An op through which partial values pass for nothing. */
static bool only_moves(const Op *op) { return op->def->moves != MOVES_NOT || op->def->flags & OP_DTENSOR; }

enum { MUCH_LARGER = 16 };

/* The gradient of a parameter is reduced in the end, with others and beside the rest of the backward: what leads to
 * nothing else need not be reduced before, unless the gradient is much larger than the cotangent. */
static bool ends_in_leaf(const Job *j, const TapeNode *n, const Tensor *table, const Tensor *cotangent) {
  return j->recording && n->op->grad && n->op->grad->passes_partial && is_leaf(n->source[0]) &&
         tensor_numel(table) <= MUCH_LARGER * tensor_numel(cotangent);
}

/* "cotangent of 'linear_3' in layers.0": a redistribution's cause. */
static Status cotangent_title(Job *j, const TapeNode *n, const char **out) {
  char of[512] = "";
  if (j->tape->describe && n->origin) j->tape->describe(n->origin, true, of, sizeof of);
  TRY_NEW(*out, arena_printf(&j->arena, "cotangent of %s", *of ? of : n->op->schema.name));
  return OK;
}

/* A cotangent that came as partial sums is reduced once, when all of it has come and before it is computed with, to
 * where its tensor lies: to shards where that is sharded, else to the whole. */
static Status settle(Job *j, const TapeNode *n, Tensor *const *tensor, int i, Tensor **cotangent) {
  Tensor *g = *cotangent;
  const Tensor *result = tensor[n->nin + i];
  if (!g || !g->spec || !g->spec->partial || only_moves(n->op) || ends_in_leaf(j, n, tensor[0], g)) return OK;
  const Spec *to;
  Placement place[MAX_AXES];
  for (int a = 0; a < g->spec->mesh->naxes; a++) {
    const Placement *there = result->spec && result->spec->mesh == g->spec->mesh ? &result->spec->place[a] : NULL;
    place[a] = !is_p(&g->spec->place[a]) ? g->spec->place[a] : there && is_s(there) ? *there : place_r();
  }
  Call c = call_of(j, n->op);
  const char *why;
  TRY(spec_with_some(g->spec, place, &to));
  TRY(cotangent_title(j, n, &why));
  return OP(&c, "tess.dtensor_redistribute.default", cotangent, val_tensor(g),
            ((Value){.kind = VAL_SPEC, .spec = to}), val_str(why), val_bool(true));
}

/* Constants that a gradient makes are plain tensors, the same on every rank. */
static void differentiate(Vjp *v) {
  Dist *d = v->forward->ctx->dist;
  bool before = d && d->implicit_replication;
  if (d) d->implicit_replication = true;
  v->forward->op->grad->vjp(v);
  if (d) d->implicit_replication = before;
}

/* A call that its op let through although its arguments do not belong together may have no gradient. */
static Status check_gradient(const TapeNode *n, int i, const Tensor *x, const Tensor *g) {
  char a[160], b[160];
  if (tensor_same_size(x, g) && x->dtype == g->dtype) return OK;
  return status_hint(fail(ERR_FAIL, "the gradient of %s: of %s, which is %s, it is %s", n->op->schema.name,
                          name_of(n, i), tensor_describe(x, a, sizeof a), tensor_describe(g, b, sizeof b)),
                     "the arguments of the call do not belong together");
}

static Status visit_node(Job *j, const Visit *at) {
  TapeNode *n = at->node;
  Call forward = {.ctx = j->tape->ctx, .op = n->op, .nout = n->nvalues}, calls = call_of(j, n->op);
  Tensor **tensor, **gradient, **cotangent;
  Value *arg;
  bool *wanted;
  TRY(check_freed(n));
  TRY_NEW(tensor, arena_new_n(step_arena(j), Tensor *, n->nin + n->nout + 1));
  TRY_NEW(gradient, arena_new_n(step_arena(j), Tensor *, n->nin + 1));
  TRY_NEW(wanted, arena_new_n(step_arena(j), bool, n->nin + 1));
  TRY(unpack(j, n, tensor, &arg, &forward.out));
  forward.arg = arg;
  TRY_NEW(cotangent, arena_new_n(step_arena(j), Tensor *, n->nout + 1));
  for (int i = 0; i < n->nout; i++) {
    cotangent[i] = at->cotangent[i];
    TRY(settle(j, n, tensor, i, &cotangent[i]));
  }
  for (int i = 0; i < n->nin; i++) {
    Visit *source = n->source[i] ? visit_of(j, n->source[i]) : NULL;
    wanted[i] = source && source->wanted;
  }
  Vjp v = {.f = {&calls, OK},
           .forward = &forward,
           .nin = n->nin,
           .nout = n->nout,
           .in = tensor,
           .out = tensor + n->nin,
           .cotangent = cotangent,
           .wanted = wanted,
           .gradient = gradient};
  differentiate(&v);
  if (v.f.status) return explain(n, v.f.status);
  for (int i = 0; i < n->nin; i++) {
    if (!wanted[i] || !gradient[i]) continue;
    TRY(check_gradient(n, i, tensor[i], gradient[i]));
    TRY(arrive(j, n->source[i], n->source_out[i], gradient[i]));
  }
  return OK;
}

/* ---- what users asked of a tensor ----------------------------------------------------------------------- */

static Status run_hook(Job *j, Visit *v, TapeHook *h) {
  Tensor **at = &v->cotangent[h->out], *is = *at, *given = is;
  char a[160], b[160];
  TRY(h->fn(h->arg, j->tape->ctx, is, step_scope(j), &given));
  if (h->takes) {
    tensor_drop(is);
    *at = NULL;
    return OK;
  }
  if (given == is) return OK;
  if (!tensor_same_size(given, is) || given->dtype != is->dtype || !given->spec != !is->spec)
    return fail(ERR_USAGE, "a hook replaced a gradient %s by %s", tensor_describe(is, a, sizeof a),
                tensor_describe(given, b, sizeof b));
  TRY(tensor_handle(j->recording ? j->scope : &v->held, given, at));
  tensor_drop(is);
  return OK;
}

static Status run_hooks(Job *j, Visit *v) {
  for (TapeHook *h = v->node->asked->hooks; h; h = h->next)
    if (v->cotangent[h->out] && !atomic_load(&h->removed)) TRY(run_hook(j, v, h));
  return OK;
}

/* Nobody else has its memory, and it lies dense: it may be handed over. */
static bool is_own(const Tensor *g) {
  const Tensor *held = g->spec ? g->local : g;
  return held && held->storage && atomic_load(&held->storage->refs) == 1 && !tensor_overlaps_itself(held) &&
         (size_t)tensor_numel(held) * dtype_size(held->dtype) == held->storage->size;
}

static bool can_add_in_place(const Job *j, const Tensor *sum, const Tensor *g) {
  return !j->how->create_graph && !sum->grad && sum->spec == g->spec && sum->dtype == g->dtype;
}

/* *sum += g, or becomes it; held. */
static Status add_to(Job *j, Tensor **sum, Tensor *g) {
  Call c = call_of(j, op_find("aten.clone.default"));
  Tensor *held;
  if (*sum && can_add_in_place(j, *sum, g))
    return OP(&c, "aten.add_.Tensor", &held, val_tensor(*sum), val_tensor(g));
  if (*sum) TRY(OP(&c, "aten.add.Tensor", &g, val_tensor(*sum), val_tensor(g)));
  else if (!j->how->create_graph && !is_own(g)) TRY(OP(&c, "aten.clone.default", &g, val_tensor(g)));
  TRY(tensor_hold(g, &held));
  tensor_release(*sum);
  *sum = held;
  return OK;
}

/* The gradients of leaves, and of others that are to keep theirs. */
static Status keep_gradients(Job *j, Visit *v, bool leaves) {
  Asked *a;
  for (int i = 0; i < v->node->nout; i++) {
    bool keeps = leaves ? !v->node->op : v->node->asked && v->node->asked->retained[i];
    if (!keeps || !v->cotangent[i]) continue;
    TRY(node_asked(v->node, &a));
    TRY(add_to(j, &a->gradient[i], v->cotangent[i]));
  }
  return OK;
}

static Status visit_one(Job *j, Visit *v) {
  Tape *t = j->tape;
  bool reached = false;
  for (int i = 0; i < v->node->nout; i++) reached |= v->cotangent[i] != NULL;
  if (!v->wanted) return OK;
  Status s = reached && v->node->asked ? run_hooks(j, v) : OK;
  if (!s && reached && v->node->asked) s = keep_gradients(j, v, false);
  if (v->behind) {
    if (!s && reached && t->visits) s = t->visits(t->visits_arg, v->node->origin);
    if (!s && reached) s = visit_node(j, v);
    if (!j->how->keep && !j->how->create_graph) node_forget(v->node);
  }
  if (s && t->describe && v->node->origin) {
    char where[512] = "";
    t->describe(v->node->origin, false, where, sizeof where);
    s = status_at(s, "%s", where);
  }
  scope_clear(&j->step);
  arena_free(&j->step_arena);
  if (!v->asked) scope_clear(&v->held);
  return s;
}

static Status visit_all(Job *j) {
  for (int at = 0; at < j->n; at++) TRY(visit_one(j, &j->visit[at]));
  return OK;
}

/* ---- all of it ---------------------------------------------------------------------------------------------- */

/* A plain number counts as one that every rank holds. */
static Status replicate(const Call *c, const Spec *like, Tensor **g) {
  const Placement whole[MAX_AXES] = {{.kind = PLACE_R}};
  const Spec *to;
  TRY(spec_with(like, whole, &to));
  return OP(c, "tess.dtensor_from_local.default", g, val_tensor(*g), ((Value){.kind = VAL_SPEC, .spec = to}));
}

static Status seed(Job *j, Tensor *const *outputs, Tensor *const *cotangents, int n) {
  for (int i = 0; i < n; i++) {
    const Tensor *y = outputs[i];
    Tensor *g = cotangents ? cotangents[i] : NULL;
    char a[160], b[160];
    if (!y->grad)
      return status_hint(fail(ERR_USAGE,
                              "output %d, %s, does not depend on anything whose gradient can be asked for", i,
                              tensor_describe(y, a, sizeof a)),
                         "mark inputs with requires_grad before the forward");
    if (!g && tensor_numel(y) != 1)
      return status_hint(fail(ERR_USAGE, "output %d is %s: only of a single number the gradient is meant by itself",
                              i, tensor_describe(y, a, sizeof a)),
                         "give a cotangent of its size");
    if (g && (!tensor_same_size(g, y) || g->dtype != y->dtype))
      return fail(ERR_USAGE, "the cotangent of output %d is %s, the output %s", i, tensor_describe(g, a, sizeof a),
                  tensor_describe(y, b, sizeof b));
    Call c = call_of(j, op_find("aten.ones_like.default"));
    if (!g) TRY(OP(&c, "aten.ones_like.default", &g, val_tensor(y)));
    else if (y->spec && !g->spec && tensor_numel(g) == 1) TRY(replicate(&c, y->spec, &g));
    TRY(arrive(j, y->grad, y->grad_out, g));
  }
  return OK;
}

static Status give(Job *j, Tensor *const *inputs, int n, Tensor **gradients) {
  for (int i = 0; i < n; i++) {
    Visit *v = inputs[i]->grad ? visit_of(j, inputs[i]->grad) : NULL;
    Tensor *g = v ? v->cotangent[inputs[i]->grad_out] : NULL;
    gradients[i] = NULL;
    if (g) TRY(tensor_handle(j->scope, g, &gradients[i]));
    else if (!j->how->allow_unused)
      return status_hint(fail(ERR_USAGE, "the outputs do not depend on input %d", i),
                         "allow_unused gives none for it");
  }
  return OK;
}

/* The backward's own calls leave nodes if they are to be differentiated again; so do those of hooks. */
static Status go_back(Job *j, Tensor *const *outputs, Tensor *const *cotangents, int n) {
  bool paused = j->tape->paused;
  mark_wanted(j);
  TRY(refuse_missing(j));
  j->tape->paused = !j->how->create_graph;
  j->tape->under_way++;
  Status s = seed(j, outputs, cotangents, n);
  if (!s) s = visit_all(j);
  j->tape->under_way--;
  j->tape->paused = paused;
  return s;
}

static void job_end(Job *j) {
  for (int i = 0; i < j->n; i++) scope_clear(&j->visit[i].held);
  scope_clear(&j->step);
  arena_free(&j->step_arena);
  arena_free(&j->arena);
}

Status tape_gradients(Tape *t, Tensor *const *outputs, Tensor *const *cotangents, int noutputs,
                      Tensor *const *inputs, int ninputs, const Backward *how, Scope *scope, Tensor **gradients) {
  Job j = {.tape = t, .how = how, .scope = scope, .recording = ctx_is_recording(t->ctx)};
  t->backwards++;
  Status s = collect(&j, outputs, noutputs);
  if (!s) s = ask_for(&j, inputs, ninputs);
  if (!s) s = go_back(&j, outputs, cotangents, noutputs);
  if (!s) s = give(&j, inputs, ninputs, gradients);
  job_end(&j);
  return s;
}

void tape_await(Tape *t, TapeEnd *e) {
  TapeEnd **last = &t->ends;
  while (*last) last = &(*last)->next;
  e->next = NULL;
  *last = e;
}

void tape_await_no_more(Tape *t, TapeEnd *e) {
  for (TapeEnd **at = &t->ends; *at; at = &(*at)->next) {
    if (*at != e) continue;
    *at = e->next;
    return;
  }
}

Status tape_backward(Tape *t, Tensor *const *outputs, Tensor *const *cotangents, int noutputs,
                     const Backward *how) {
  Scope scope = {0};
  Job j = {.tape = t, .how = how, .scope = &scope, .recording = ctx_is_recording(t->ctx)};
  t->backwards++;
  Status s = collect(&j, outputs, noutputs);
  if (!s) ask_for_leaves(&j);
  bool adding = t->adding;
  t->adding = true;
  if (!s) s = go_back(&j, outputs, cotangents, noutputs);
  t->adding = adding;
  for (TapeEnd *e = t->ends, *next; e; e = next) {
    next = e->next;
    s = e->fn(e->arg, s);
  }
  for (int at = 0; !s && at < j.n; at++) s = keep_gradients(&j, &j.visit[at], true);
  job_end(&j);
  scope_clear(&scope);
  return s;
}
