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
#include "grad/node.h"

typedef struct {
  TapeNode *node;
  Tensor **cotangent; /* by result; NULL: none has come */
  Scope held;         /* of the cotangents, while nothing is recorded */
  bool wanted;        /* some input that is asked for lies behind it */
  bool asked;         /* it is one itself: its cotangents are kept */
} Visit;

typedef struct {
  Tape *tape;
  const Backward *how;
  Scope *scope;   /* of the gradients that are given */
  Scope step;     /* of what the gradient of one node makes; when calls are recorded, all of it stays in `scope` */
  bool recording; /* handles belong to the program that is made */
  Arena arena;
  Visit *visit; /* by number, latest first once they are sorted */
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
  return bsearch(&key, j->visit, (size_t)j->n, sizeof key, by_number);
}

static Status collect(Job *j, Tensor *const *outputs, int noutputs) {
  for (int i = 0; i < noutputs; i++)
    if (outputs[i]->grad) TRY(add_visit(j, outputs[i]->grad));
  for (int at = 0; at < j->n; at++) {
    TapeNode *n = j->visit[at].node;
    for (int i = 0; i < n->nin; i++)
      if (n->source[i]) TRY(add_visit(j, n->source[i]));
  }
  qsort(j->visit, (size_t)j->n, sizeof *j->visit, by_number);
  return OK;
}

/* A node is worth visiting if an input that is asked for was made by it or by one behind it. */
static void mark_wanted(Job *j, Tensor *const *inputs, int ninputs) {
  for (int i = 0; i < ninputs; i++) {
    Visit *v = inputs[i]->grad ? visit_of(j, inputs[i]->grad) : NULL;
    if (v) v->wanted = v->asked = true;
  }
  for (int at = j->n - 1; at >= 0; at--) { /* earliest first */
    TapeNode *n = j->visit[at].node;
    for (int i = 0; i < n->nin && !j->visit[at].wanted; i++)
      j->visit[at].wanted = n->source[i] && visit_of(j, n->source[i])->wanted;
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
    if (!node->op || node->op->grad || !j->visit[at].wanted) continue;
    bool told = false;
    for (int k = j->n - 1; k > at && !told; k--) told = j->visit[k].node->op == node->op && j->visit[k].wanted;
    if (told) continue;
    text_printf(&list, "%s%s", n++ ? ", " : "", node->op->schema.name);
    say_where(j->tape, node, &list);
  }
  Status s = n ? fail(ERR_FAIL, "no gradient is known for %s", list.text ? list.text : "some op") : OK;
  text_free(&list);
  return s ? status_hint(s, "put a detach before it if none is meant to pass") : OK;
}

static Status check_kept(const TapeNode *n, const Call *forward) {
  if (n->freed)
    return status_hint(
        fail(ERR_USAGE, "%s: the backward has been here before, and what it needs is gone", n->op->schema.name),
        "keep it with retain_graph, or compute the forward again");
  const Value *value[2] = {forward->arg, forward->out};
  int count[2] = {n->op->schema.nparams, n->nvalues};
  for (int side = 0; side < 2; side++)
    for (TensorWalk w = tensors_of(value[side], count[side]); tensor_next(&w);) {
      int at = (side ? n->nin : 0) + w.flat;
      const Tensor *held = w.tensor->spec ? w.tensor->local : w.tensor;
      if (!n->kept[at] || !held || !held->storage || held->storage->version == n->version[at]) continue;
      return status_hint(fail(ERR_FAIL,
                              "%s: its %s was kept for the gradient and has been written to in place since",
                              n->op->schema.name, side ? "result" : n->op->schema.params[w.arg].name),
                         "write to a clone, or use the op that is not in place");
    }
  return OK;
}

/* ---- one node -------------------------------------------------------------------------------------------- */

/* What a call of the backward is made with. */
static Call call_of(Job *j, const Op *op) {
  return (Call){.ctx = j->tape->ctx,
                .op = op,
                .scope = j->recording ? j->scope : &j->step,
                .arena = &j->arena,
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

static Status flat(Arena *arena, const Value *values, int n, Tensor ***out) {
  TRY_NEW(*out, arena_new_n(arena, Tensor *, count_tensors(values, n) + 1));
  for (TensorWalk w = tensors_of(values, n); tensor_next(&w);) (*out)[w.flat] = w.tensor;
  return OK;
}

/* An op through which partial values pass for nothing. */
static bool only_moves(const Op *op) { return op->def->moves != MOVES_NOT || op->def->flags & OP_DTENSOR; }

/* "cotangent of 'linear_3' in layers.0": a redistribution's cause. */
static Status cotangent_title(Job *j, const TapeNode *n, const char **out) {
  char of[512] = "";
  if (j->tape->describe && n->origin) j->tape->describe(n->origin, true, of, sizeof of);
  TRY_NEW(*out, arena_printf(&j->arena, "cotangent of %s", *of ? of : n->op->schema.name));
  return OK;
}

/* A cotangent that came as partial sums is reduced once, when all of it has come and before it is computed with, to
 * where its tensor lies: to shards where that is sharded, else to the whole. */
static Status settle(Job *j, const TapeNode *n, const Tensor *result, Tensor **cotangent) {
  Tensor *g = *cotangent;
  if (!g || !g->spec || !g->spec->partial || only_moves(n->op)) return OK;
  const Spec *to;
  Placement place[MAX_AXES];
  for (int a = 0; a < g->spec->mesh->naxes; a++) {
    const Placement *there = result->spec && result->spec->mesh == g->spec->mesh ? &result->spec->place[a] : NULL;
    place[a] = !is_p(&g->spec->place[a]) ? g->spec->place[a] : there && is_s(there) ? *there : place_r();
  }
  Call c = call_of(j, n->op);
  const char *why;
  TRY(spec_with(g->spec, place, &to));
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

/* For gradients of gradients: what the node kept has the gradients of the call's own tensors, while it is computed
 * with.  Not longer: a node that refers to itself is never freed. */
static void lend_gradients(TapeNode *n, Tensor *const *in, Tensor *const *out, bool lend) {
  for (int i = 0; i < n->nin + n->nout; i++) {
    Tensor *t = i < n->nin ? in[i] : out[i - n->nin];
    grad_unref(t->grad);
    t->grad = NULL;
    if (!lend || !can_have_gradient(t)) continue;
    t->grad = grad_ref(i < n->nin ? n->source[i] : &n->ref);
    t->grad_out = i < n->nin ? n->source_out[i] : i - n->nin;
  }
}

static Status visit_node(Job *j, const Visit *at) {
  TapeNode *n = at->node;
  Call forward = {.ctx = j->tape->ctx, .op = n->op, .arg = n->arg, .out = n->out, .nout = n->nvalues};
  TRY(check_kept(n, &forward));
  Call calls = call_of(j, n->op);
  Tensor **in, **out, **gradient;
  bool *wanted;
  TRY(flat(&j->arena, n->arg, n->op->schema.nparams, &in));
  TRY(flat(&j->arena, n->out, n->nvalues, &out));
  for (int i = 0; i < n->nout; i++) TRY(settle(j, n, out[i], &at->cotangent[i]));
  TRY_NEW(gradient, arena_new_n(&j->arena, Tensor *, n->nin + 1));
  TRY_NEW(wanted, arena_new_n(&j->arena, bool, n->nin + 1));
  for (int i = 0; i < n->nin; i++) {
    Visit *source = n->source[i] ? visit_of(j, n->source[i]) : NULL;
    wanted[i] = source && source->wanted;
  }
  Vjp v = {.f = {&calls, OK},
           .forward = &forward,
           .nin = n->nin,
           .nout = n->nout,
           .in = in,
           .out = out,
           .cotangent = at->cotangent,
           .wanted = wanted,
           .gradient = gradient};
  if (j->how->create_graph) lend_gradients(n, in, out, true);
  differentiate(&v);
  if (j->how->create_graph) lend_gradients(n, in, out, false);
  if (v.f.status) return status_at(v.f.status, "the gradient of %s", n->op->schema.name);
  for (int i = 0; i < n->nin; i++)
    if (wanted[i] && gradient[i]) TRY(arrive(j, n->source[i], n->source_out[i], gradient[i]));
  return OK;
}

static Status visit_one(Job *j, Visit *v) {
  Tape *t = j->tape;
  bool reached = false;
  for (int i = 0; i < v->node->nout; i++) reached |= v->cotangent[i] != NULL;
  if (!v->node->op || !v->wanted) return OK;
  if (reached && t->visits) TRY(t->visits(t->visits_arg, v->node->origin));
  Status s = reached ? visit_node(j, v) : OK;
  if (s && t->describe && v->node->origin) {
    char where[512] = "";
    t->describe(v->node->origin, false, where, sizeof where);
    s = status_at(s, "%s", where);
  }
  if (!j->how->keep && !j->how->create_graph) tape_node_forget(v->node);
  scope_clear(&j->step);
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

Status tape_gradients(Tape *t, Tensor *const *outputs, Tensor *const *cotangents, int noutputs,
                      Tensor *const *inputs, int ninputs, const Backward *how, Scope *scope, Tensor **gradients) {
  Job j = {.tape = t, .how = how, .scope = scope, .recording = ctx_is_recording(t->ctx)};
  t->backwards++;
  Status s = collect(&j, outputs, noutputs);
  if (!s) mark_wanted(&j, inputs, ninputs);
  if (!s) s = refuse_missing(&j);
  if (!s) s = seed(&j, outputs, cotangents, noutputs);
  if (!s) s = visit_all(&j);
  if (!s) s = give(&j, inputs, ninputs, gradients);
  for (int i = 0; i < j.n; i++) scope_clear(&j.visit[i].held);
  scope_clear(&j.step);
  arena_free(&j.arena);
  return s;
}
