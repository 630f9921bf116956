/* program_walk.c -- see program_walk.h. */
#include "runtime/program_walk.h"

#include <stdio.h>
#include <string.h>

#include "base/ptrmap.h"
#include "dist/dist.h"
#include "dist/dtensor.h"
#include "graph/resolve.h"
#include "passes/move_groups.h"

/* ---- what the marks ask for -------------------------------------------------------------------- */

/* Where a DTensor is wanted. */
static Status want_spec(const Want *want, const Tensor *t, const Spec **to) {
  Placement place[MAX_AXES];
  memcpy(place, t->spec->place, sizeof place);
  for (int a = 0; a < t->spec->mesh->naxes; a++)
    if (want->axes >> a & 1) place[a] = want->place[a];
  return spec_with(t->spec, place, to);
}

Status want_apply(Ctx *ctx, Scope *scope, const Want *want, Tensor *t, Tensor **out) {
  const Spec *to;
  *out = t;
  if (!t->spec || !want) return OK;
  TRY(want_spec(want, t, &to));
  if (to == t->spec) return OK;
  return dtensor_place(ctx, scope, t, to, want->why, out);
}

static const Anchor *anchor_of(const Marks *m, const Node *n, const Val *v) {
  const Anchor *a = n->nouts && n->outs[0]->id < m->nvals ? m->before[n->outs[0]->id] : NULL;
  while (a && a->val != v) a = a->next;
  return a;
}

/* Brings the arguments that are anchored to where the plan wants them: once for all nodes that want it there, so
 * that their gradients are added up before they go back. */
static Status anchor_arguments(Ctx *ctx, Scope *scope, const Marks *m, const Node *n, Value *bound,
                               PtrMap *placed) {
  for (int i = 0; i < n->nargs; i++) {
    const Anchor *a = n->args[i].kind == ARG_VAL ? anchor_of(m, n, n->args[i].val) : NULL;
    if (!a || bound[i].kind != VAL_TENSOR) continue;
    Tensor *from = bound[i].tensor, *t;
    const Spec *to = NULL;
    int64_t none = 0, *last = &none;
    if (placed) TRY(ptrmap_slot(placed, from, 0, &last));
    if (from->spec) TRY(want_spec(&a->want, from, &to));
    t = (Tensor *)(uintptr_t)*last;
    if (!t || t->spec != to) TRY(want_apply(ctx, scope, &a->want, from, &t));
    *last = (int64_t)(uintptr_t)t;
    bound[i] = val_tensor(t);
  }
  return OK;
}

static const Op *wide_op(const Op *op, Dtype d) {
  return op->def->shard.wide && (d == DT_F16 || d == DT_BF16) ? op_find(op->def->shard.wide) : NULL;
}

/* A sum in halves: the parts stay f32 until they are one. */
static Status call_wide(const Op *wide, const Want *want, Dtype dtype, Call *c) {
  const Op *op = c->op;
  Tensor *t;
  c->op = wide;
  TRY(op_dispatch(c));
  c->op = op;
  TRY(want_apply(c->ctx, c->scope, want, out_tensor(c, 0), &t));
  TRY(OP(c, "aten.to.dtype", &t, val_tensor(t), val_dtype(dtype)));
  c->out[0] = val_tensor(t);
  return OK;
}

Status marks_call(const Marks *m, const Node *n, Value *bound, Call *c, PtrMap *placed) {
  if (n->graph != m->graph) return op_dispatch(c);
  if (n->nouts && n->outs[0]->id < m->nvals && m->before[n->outs[0]->id])
    TRY(anchor_arguments(c->ctx, c->scope, m, n, bound, placed));
  const Want *sum = n->nouts == 1 && n->outs[0]->id < m->nvals ? m->after[n->outs[0]->id] : NULL;
  const Op *wide = sum && sum->partial_sum && !m->torch_ops ? wide_op(c->op, n->outs[0]->dtype) : NULL;
  if (wide) return call_wide(wide, sum, n->outs[0]->dtype, c);
  TRY(op_dispatch(c));
  for (int i = 0; i < n->nouts && i < c->nout; i++) {
    const Want *w = n->outs[i]->id < m->nvals ? m->after[n->outs[i]->id] : NULL;
    Tensor *t = w ? out_tensor(c, i) : NULL;
    if (!t) continue;
    TRY(want_apply(c->ctx, c->scope, w, t, &t));
    c->out[i] = val_tensor(t);
  }
  return OK;
}

/* ---- inputs -------------------------------------------------------------------------------------- */

Status marked_input_spec(const Marks *m, int i, const Tensor *whole, const Spec **out) {
  Placement place[MAX_AXES];
  marks_input_places(m, i, whole->ndim ? whole->size[0] : 0, place);
  return spec_new(m->mesh, whole->dtype, whole->ndim, whole->size, NULL, place, out);
}

static Status bind_tensor(const ProgramWalk *w, int i, Tensor *whole, Tensor *held, Value *out) {
  const Spec *spec = NULL;
  Tensor *t;
  if (w->marks) TRY(marked_input_spec(w->marks, i, whole, &spec));
  TRY(w->input(w->arg, i, whole, held, spec, &t));
  if (spec) TRY(dtensor_wrap(w->scope, spec, t, &t));
  *out = val_tensor(t);
  return OK;
}

static Status bind_input(const ProgramWalk *w, int i, const Value *user, Value *out) {
  const Exported *e = w->program;
  const InputSpec *spec = &e->inputs[i];
  switch (spec->kind) {
    case IN_CONSTANT: return arg_resolve(w->arena, NULL, &spec->constant, out);
    case IN_TOKEN: return *out = val_none(), OK;
    case IN_USER: *out = *user; return user->kind == VAL_TENSOR ? bind_tensor(w, i, user->tensor, NULL, out) : OK;
    default: break;
  }
  const StateEntry *s = exported_state(e, spec->target);
  if (!s || !s->tensor)
    return status_hint(fail(ERR_FILE, "%s '%s' has no data", input_kind_name(spec->kind), spec->target),
                       "give the weights (--weights FILE)");
  Tensor *held = w->state ? w->state[s - e->state] : NULL;
  return bind_tensor(w, i, s->tensor, held ? held : s->tensor, out);
}

static Status bind_inputs(const ProgramWalk *w, const Value *user, Value *inputs) {
  for (int i = 0, u = 0; i < w->program->graph->ninputs; i++) {
    TRY(bind_input(w, i, &user[u], &inputs[i]));
    if (w->bound) TRY(w->bound(w->arg, i, &inputs[i]));
    u += w->program->inputs[i].kind == IN_USER;
  }
  return OK;
}

/* ---- nodes ------------------------------------------------------------------------------------------ */

typedef struct {
  const ProgramWalk *w;
  Tape tape;     /* w->grad */
  PtrMap placed; /* w->grad, of a DTensor: the address of it as some node wanted it last */
} Walking;

static Status before_node(void *arg, const Node *n) {
  Walking *walking = arg;
  const ProgramWalk *w = walking->w;
  walking->tape.origin = n;
  return w->before ? w->before(w->arg, n) : OK;
}

static Status call_node(void *arg, const Node *n, Value *bound, Call *c) {
  Walking *walking = arg;
  const ProgramWalk *w = walking->w;
  Status s = w->rebatch ? rebatch_arguments(w->rebatch, n, bound, c) : OK;
  if (!s) s = w->marks ? marks_call(w->marks, n, bound, c, w->grad ? &walking->placed : NULL) : op_dispatch(c);
  if (s) return w->rebatch ? rebatch_explain(w->rebatch, s) : s;
  if (w->rebatch) TRY(rebatch_results(w->rebatch, n, c->out, c->nout));
  return w->after ? w->after(w->arg, n, c->out, c->nout) : OK;
}

/* ---- outputs ---------------------------------------------------------------------------------------- */

static Status place_outputs(const ProgramWalk *w, Value *outputs) {
  for (int i = 0; i < w->program->graph->noutputs; i++) {
    Tensor *t = outputs[i].kind == VAL_TENSOR ? outputs[i].tensor : NULL;
    if (!t || !t->spec) continue;
    TRY(want_apply(w->ctx, w->scope, &w->marks->output[i], t, &t));
    if (w->placed) TRY(w->placed(w->arg, i, t));
    outputs[i] = val_tensor(t->local);
  }
  return OK;
}

/* ---- gradients ---------------------------------------------------------------------------------------- */

static Status visits_node(void *arg, const void *origin) {
  const ProgramWalk *w = arg;
  return w->visits && origin ? w->visits(w->arg, origin) : OK;
}

static void describe_node(const void *origin, bool title, char *buf, size_t cap) {
  const Node *n = origin;
  char source[256] = "", module[256];
  if (!title) node_source(n, source, sizeof source);
  node_module(n, module, sizeof module);
  snprintf(buf, cap, "%s'%s'%s%s%s%s", title ? "" : "node ", n->nouts ? n->outs[0]->name : "-",
           *module ? " in " : "", module, *source ? ", " : "", source);
}

static void tape_open(Walking *walking) {
  const ProgramWalk *w = walking->w;
  tape_begin(&walking->tape, w->ctx);
  walking->tape.visits = visits_node;
  walking->tape.visits_arg = (void *)(uintptr_t)w;
  walking->tape.describe = describe_node;
}

/* By rows of this rank's own, which what is said of them (alike on all ranks) does not tell: its part of the mean.
 */
static Status share_loss(const ProgramWalk *w, Tensor *loss, Tensor **out) {
  Call c = {.ctx = w->ctx, .scope = w->scope, .arena = w->arena, .level = LEVEL_TAPE};
  *out = loss;
  if (!w->grad->replica_axes) return OK;
  return OP(&c, "aten.div.Tensor", out, val_tensor(loss), val_int(w->grad->replicas));
}

/* The gradients of such a loss are partial sums. */
static Status mark_partial(const ProgramWalk *w, Value *gradients) {
  for (int k = 0; w->grad->replica_axes && k < w->grad->n; k++) {
    Tensor *t = gradients[k].kind == VAL_TENSOR ? gradients[k].tensor : NULL;
    Placement place[MAX_AXES];
    const Spec *spec;
    if (!t || !t->spec) continue;
    memcpy(place, t->spec->place, sizeof place);
    for (int a = 0; a < t->spec->mesh->naxes; a++)
      if (w->grad->replica_axes >> a & 1) place[a] = place_p(REDUCE_SUM);
    TRY(spec_with(t->spec, place, &spec));
    TRY(dtensor_wrap(w->scope, spec, t->local, &t));
    gradients[k] = val_tensor(t);
  }
  return OK;
}

/* The shard in another dtype; *t itself if it is of that one, or none is wanted. */
static Status cast_shard(const ProgramWalk *w, Dtype dtype, Tensor **t) {
  Call c = {.ctx = w->ctx, .scope = w->scope, .arena = w->arena, .level = LEVEL_EMIT};
  const Spec *old = (*t)->spec, *spec;
  Tensor *local = old ? (*t)->local : *t;
  if (dtype == DT_NONE || dtype == (*t)->dtype) return OK;
  TRY(OP(&c, "aten._to_copy.default", &local, val_tensor(local), val_dtype(dtype)));
  if (!old) return *t = local, OK;
  TRY(spec_new(old->mesh, dtype, old->ndim, old->shape, old->stride, old->place, &spec));
  return dtensor_wrap(w->scope, spec, local, t);
}

/* Do ranks have to add up parts to get from one to the other? */
static bool is_reduced(const Spec *from, const Spec *to) {
  for (int a = 0; a < from->mesh->naxes; a++)
    if (is_p(&from->place[a]) && !is_p(&to->place[a])) return true;
  return false;
}

/* Brings gradient k to a placement; DTensors still.  What is reduced may be rounded, and stays so. */
static Status place_gradient(const ProgramWalk *w, int k, const Placement *place, Tensor **t) {
  const InputSpec *in = &w->program->inputs[w->grad->input[k]];
  const Spec *to;
  const char *why;
  TRY_NEW(why, arena_printf(w->arena, WHY_GRADIENT,
                            in->target ? in->target : w->program->graph->inputs[w->grad->input[k]]->name));
  TRY(spec_with((*t)->spec, place, &to));
  if (to == (*t)->spec) return OK;
  if (is_reduced((*t)->spec, to)) TRY(cast_shard(w, w->grad->reduce_dtype, t));
  TRY(spec_with((*t)->spec, to->place, &to));
  return dtensor_place(w->ctx, w->scope, *t, to, why, t);
}

/* I1 of gradients.h, or where the sum over micro-batches lies. */
static Status place_gradients(const ProgramWalk *w, const Value *inputs, Value *gradients) {
  const Update *u = w->grad->update;
  for (int k = w->grad->n - 1; k >= 0; k--) {
    Tensor *t = gradients[k].kind == VAL_TENSOR ? gradients[k].tensor : NULL;
    int like = u ? u->param[k].sum : w->grad->input[k];
    if (!t || like < 0) continue;
    if (t->spec) TRY(place_gradient(w, k, inputs[like].tensor->spec->place, &t));
    if (w->gradient && !u) TRY(w->gradient(w->arg, k));
    gradients[k] = val_tensor(t);
  }
  for (int k = 0; k < w->grad->n; k++) { /* when all are on their way */
    Tensor *t = gradients[k].kind == VAL_TENSOR ? gradients[k].tensor : NULL;
    if (!t) continue;
    TRY(cast_shard(w, inputs[w->grad->input[k]].tensor->dtype, &t));
    gradients[k] = val_tensor(t);
  }
  return OK;
}

static void open_shards(Value *v, int n) {
  for (int i = 0; i < n; i++)
    if (v[i].kind == VAL_TENSOR && v[i].tensor->spec) v[i] = val_tensor(v[i].tensor->local);
}

/* What is written to a parameter or buffer lies as it does; the norm of the gradients is whole. */
static Status place_update(const ProgramWalk *w, const Value *inputs, Value *outputs) {
  const Update *u = w->grad->update;
  for (int i = 0; i < u->noutputs; i++) {
    Tensor *t = outputs[i].kind == VAL_TENSOR ? outputs[i].tensor : NULL;
    const Spec *to = NULL;
    if (!t || !t->spec) continue;
    for (int j = 0; j < w->program->graph->ninputs && u->output[i].target; j++) {
      const InputSpec *in = &w->program->inputs[j];
      if (in->target && !strcmp(in->target, u->output[i].target)) to = inputs[j].tensor->spec;
    }
    Placement whole[MAX_AXES];
    const char *why;
    for (int a = 0; a < t->spec->mesh->naxes; a++) whole[a] = place_r();
    TRY(spec_with(t->spec, to ? to->place : whole, &to));
    TRY_NEW(why, u->output[i].target ? arena_printf(w->arena, "update of '%s'", u->output[i].target) : "update");
    if (to != t->spec) TRY(dtensor_place(w->ctx, w->scope, t, to, why, &t));
    outputs[i] = val_tensor(t);
  }
  return OK;
}

static Status enter(const ProgramWalk *w, Stage stage) { return w->enters ? w->enters(w->arg, stage) : OK; }

typedef struct {
  const ProgramWalk *w;
  const Value *inputs;
  Value *updated; /* the inputs, and of parameters the parts that this rank updates, when gradients are reduced */
} Reducing;

/* Where the part of input i that this rank updates lies; NULL: it updates all that it holds. */
static const Placement *updated_place(const ProgramWalk *w, int i) {
  return w->marks ? w->marks->input[i].updated : NULL;
}

static Status reduce_gradient(void *arg, int k, Tensor *t, Tensor **out) {
  const Reducing *r = arg;
  const ProgramWalk *w = r->w;
  Dist *d = w->marks ? w->marks->mesh->dist : NULL;
  *out = t;
  if (d) d->start_reductions = true;
  int input = w->grad->input[k];
  const Placement *part = updated_place(w, input);
  Status s = t->spec ? place_gradient(w, k, part ? part : r->inputs[input].tensor->spec->place, out) : OK;
  if (d) d->start_reductions = false;
  TRY(s);
  if (w->gradient && (*out)->spec) TRY(w->gradient(w->arg, k));
  return OK;
}

static Status all_reduced(void *arg) {
  const Reducing *r = arg;
  const ProgramWalk *w = r->w;
  TRY(enter(w, STAGE_UPDATE));
  for (int k = 0; k < w->grad->n; k++) {
    int i = w->grad->input[k];
    const Placement *part = updated_place(w, i);
    const Spec *to;
    Tensor *t = r->inputs[i].tensor;
    if (!part) continue;
    TRY(spec_with(t->spec, part, &to));
    TRY(dtensor_place(w->ctx, w->scope, t, to, "update", &t));
    r->updated[i] = val_tensor(t);
  }
  return OK;
}

static Status call_update(const ProgramWalk *w, const Value *inputs, const Value *gradients, Value *outputs) {
  Call c = {.ctx = w->ctx, .scope = w->scope, .arena = w->arena, .level = LEVEL_SHARD};
  Reducing r = {.w = w, .inputs = inputs};
  const UpdateHooks hooks = {&r, reduce_gradient, all_reduced};
  int n = w->program->graph->ninputs;
  TRY_NEW(r.updated, arena_new_n(w->arena, Value, n + 1));
  memcpy(r.updated, inputs, (size_t)n * sizeof *r.updated);
  TRY(update_walk(w->grad->update, w->grad->phase, &c, &hooks, r.updated, gradients, outputs));
  return place_update(w, inputs, outputs);
}

/* The backward, and what is done with the gradients; outputs: behind those of the graph.  leaves: the inputs, those
 * that gradients are asked for as the tape knows them. */
static Status walk_back(Walking *walking, const Value *inputs, const Value *leaves, const Value *forward,
                        Value *outputs) {
  const ProgramWalk *w = walking->w;
  const GradRequest *r = w->grad;
  Value *gradients = outputs, loss = forward[r->loss];
  if (loss.kind != VAL_TENSOR) return fail(ERR_USAGE, "the loss is no tensor");
  if (r->update) {
    Call c = {.ctx = w->ctx, .scope = w->scope, .arena = w->arena, .level = LEVEL_TAPE};
    TRY_NEW(gradients, arena_new_n(w->arena, Value, r->n + 1));
    TRY(update_loss(r->update, &c, inputs, loss.tensor, &loss.tensor));
  }
  TRY(share_loss(w, loss.tensor, &loss.tensor));
  TRY(enter(w, STAGE_BACKWARD));
  TRY(gradients_find(&walking->tape, r, leaves, loss.tensor, w->scope, w->arena, gradients));
  if (r->update) {
    Call c = {.ctx = w->ctx, .scope = w->scope, .arena = w->arena, .level = LEVEL_SHARD};
    TRY(update_spoil(r->update, &c, loss.tensor, gradients));
  }
  TRY(mark_partial(w, gradients));
  if (w->visits) TRY(w->visits(w->arg, NULL));
  TRY(place_gradients(w, inputs, gradients));
  if (r->update) TRY(call_update(w, inputs, gradients, outputs));
  open_shards(outputs, grad_outputs(r));
  return enter(w, STAGE_FORWARD);
}

/* An earlier name of the same parameter, which shares its placements; i itself if there is none. */
static int first_of_tied(const Marks *m, int i) {
  for (int j = 0; j < i; j++)
    if (m->input[j].gathered && m->input[j].place == m->input[i].place) return j;
  return i;
}

/* What the walk works with: of inputs that are sharded in memory alone, all.  Gradients are of these, and become
 * shards with the reductions (place_gradient). */
static Status gather_inputs(const ProgramWalk *w, const Value *inputs, Value **out) {
  const Graph *g = w->program->graph;
  TRY_NEW(*out, arena_new_n(w->arena, Value, g->ninputs + 1));
  memcpy(*out, inputs, (size_t)g->ninputs * sizeof **out);
  if (!w->marks) return OK;
  for (int i = 0; i < g->ninputs; i++) {
    const InputMark *mark = &w->marks->input[i];
    Placement place[MAX_AXES];
    const Spec *to;
    const char *why;
    Tensor *t = inputs[i].kind == VAL_TENSOR ? inputs[i].tensor : NULL;
    if (!t || !mark->gathered) continue;
    int first = first_of_tied(w->marks, i);
    if (first < i) {
      (*out)[i] = (*out)[first];
      continue;
    }
    for (int a = 0; a < w->marks->mesh->naxes; a++) {
      place[a] = mark->gathered >> a & 1 ? place_r() : mark->place[a];
      place[a].turn = 0;
    }
    TRY_NEW(why, arena_printf(w->arena, "parameter '%s'", w->program->inputs[i].target));
    TRY(spec_with(t->spec, place, &to));
    TRY(dtensor_place(w->ctx, w->scope, t, to, why, &t));
    (*out)[i] = val_tensor(t);
  }
  return OK;
}

/* ---- all of it -------------------------------------------------------------------------------------- */

static Status walk_under_tape(Walking *walking, const Value *user, Value *inputs, Value *outputs) {
  const ProgramWalk *w = walking->w;
  const Graph *g = w->program->graph;
  Walk nodes = {.ctx = w->ctx,
                .scope = w->scope,
                .arena = w->arena,
                .before = before_node,
                .call = call_node,
                .arg = walking};
  TRY(bind_inputs(w, user, inputs));
  Value *gathered;
  TRY(gather_inputs(w, inputs, &gathered));
  if (w->grad) TRY(gradients_require(&walking->tape, w->program, w->grad, w->scope, gathered));
  TRY(graph_walk(&nodes, g, gathered, outputs));
  if (w->rebatch) TRY(rebatch_check(w->rebatch, g));
  if (w->grad) TRY(walk_back(walking, inputs, gathered, outputs, outputs + g->noutputs));
  return place_outputs(w, outputs);
}

static Status walk(const ProgramWalk *w, const Value *user, Value *inputs, Value *outputs) {
  Walking walking = {.w = w};
  if (w->grad) tape_open(&walking);
  Status s = walk_under_tape(&walking, user, inputs, outputs);
  if (w->grad) tape_end(&walking.tape);
  ptrmap_free(&walking.placed);
  return s;
}

Status program_walk(const ProgramWalk *w, const Value *user, Value *inputs, Value *outputs) {
  Dist *d = w->marks ? w->marks->mesh->dist : NULL;
  struct Recording *outer = NULL;
  if (!d) return walk(w, user, inputs, outputs);
  bool replicates = d->implicit_replication, keeps = d->keep_sharded, records = ctx_is_recording(w->ctx);
  unsigned apart = d->apart;
  d->implicit_replication = true; /* what the program makes for itself is alike on all ranks */
  d->keep_sharded = true;
  d->apart = w->marks->apart;
  Status s = records ? dist_record(d, &outer) : OK;
  if (!s) s = walk(w, user, inputs, outputs);
  if (records) dist_record_end(d, outer);
  d->implicit_replication = replicates;
  d->keep_sharded = keeps;
  d->apart = apart;
  return s;
}
