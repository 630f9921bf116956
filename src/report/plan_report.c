/* plan_report.c -- see plan_report.h. */
#include "report/plan_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "dist/dispatch.h"
#include "dist/dist.h"
#include "passes/pass.h"
#include "report/plan_collect.h"
#include "runtime/auto_plan.h"
#include "runtime/fit_step.h"
#include "runtime/session.h"

/* ---- programs without weights ------------------------------------------------------------ */

/* Sizes of a weight, as the graph's input has them. */
static Status size_of_input(const Exported *e, const StateEntry *s, const Val **val, int64_t *size) {
  *val = NULL;
  for (int i = 0; i < e->graph->ninputs && !*val; i++)
    if (e->inputs[i].target && !strcmp(e->inputs[i].target, s->fqn)) *val = e->graph->inputs[i];
  const Val *v = *val;
  if (!v || v->type != TY_TENSOR || v->ndim < 0 || v->ndim > MAX_DIMS) return *val = NULL, OK;
  for (int d = 0; d < v->ndim; d++) {
    if (!sym_is_int(v->size[d]))
      return fail(ERR_FILE, "'%s' has no data, and the program does not tell its sizes", s->fqn);
    size[d] = v->size[d]->value;
  }
  return OK;
}

Status plan_report_sizes(Exported *e) {
  for (int i = 0; i < e->nstate; i++) {
    StateEntry *s = &e->state[i];
    const Val *v;
    int64_t size[MAX_DIMS];
    if (s->tensor) continue;
    TRY(size_of_input(e, s, &v, size));
    if (!v) continue;
    TRY(tensor_meta(&e->scope, v->dtype, v->ndim, size, &s->tensor));
    const Storage *twin = NULL; /* names of one record are one weight */
    for (int j = 0; j < i && !twin && s->record; j++)
      if (e->state[j].record && e->state[j].tensor && !strcmp(e->state[j].record, s->record))
        twin = e->state[j].tensor->storage;
    size_t bytes = (size_t)tensor_numel(s->tensor) * dtype_size(v->dtype);
    if (twin) s->tensor->storage = storage_ref((Storage *)(uintptr_t)twin);
    else TRY(storage_borrow(NULL, bytes, NULL, e, &s->tensor->storage));
  }
  return OK;
}

Status plan_report_prepare(Ctx *ctx, Exported *e) {
  TRY(plan_report_sizes(e));
  return prepare_program(ctx, e);
}

/* ---- shards -------------------------------------------------------------------------------- */

/* What a rank would compute ahead of constants is computed here, too, if it is small: masks
 * are recognised by their elements. */
enum { DATA_LIMIT = 1 << 20, DRY_LIMIT = 8 << 20 };

static bool keeps_data(const Exported *e, const StateEntry *s) {
  size_t bytes = (size_t)tensor_numel(s->tensor) * dtype_size(s->tensor->dtype);
  return tensor_data(s->tensor) && bytes <= DATA_LIMIT && !s->is_parameter && !exported_is_mutated(e, s->fqn);
}

/* place NULL: the whole. */
static Status shard_sizes(Collector *c, int state, const Placement *place) {
  const StateEntry *s = &c->e->state[state];
  const Tensor *whole = s->tensor;
  const Spec *spec = NULL;
  Tensor *t;
  if (place) TRY(spec_new(c->mesh, whole->dtype, whole->ndim, whole->size, NULL, place, &spec));
  if ((!spec || spec->replicated) && keeps_data(c->e, s))
    return tensor_alias(&c->scope, s->tensor, &c->shard[state]);
  TRY(tensor_meta(&c->scope, whole->dtype, whole->ndim, spec ? spec->local : whole->size, &t));
  TRY(storage_borrow(NULL, (size_t)tensor_numel(t) * dtype_size(whole->dtype), NULL, c, &t->storage));
  c->shard[state] = t;
  return OK;
}

static Status make_shards(Collector *c) {
  const Exported *e = c->e;
  TRY_NEW(c->shard, arena_new_n(&c->p->arena, Tensor *, e->nstate + 1));
  for (int i = 0; i < e->graph->ninputs; i++) {
    const StateEntry *s = e->inputs[i].target ? exported_state(e, e->inputs[i].target) : NULL;
    if (s && s->tensor && !c->shard[s - e->state])
      TRY(shard_sizes(c, (int)(s - e->state), c->marks ? c->marks->input[i].place : NULL));
  }
  return OK;
}

/* ---- the rank's program ----------------------------------------------------------------------- */

static void tell_unknown(Collector *c, Status s) {
  const char *message = status_message(s);
  c->p->unknown = arena_strndup(&c->p->arena, message, strlen(message));
  status_free(s);
}

static Status tell_fit(Collector *c, const StepFit *fit) {
  char text[128];
  int ahead = fit->how.prefetch < 0 ? 1 : fit->how.prefetch;
  PlanStep *step = &c->p->step;
  step->recomputed = fit->fit.chosen.recomputed;
  if (!marks_gathered_axes(c->marks)) return OK;
  snprintf(text, sizeof text, "%s, %d group%s ahead%s", fit->how.keep_gathered ? "once" : "again for the backward",
           ahead, ahead == 1 ? "" : "s", fit->how.reduce_at_once ? ", gradients reduced at once" : "");
  return collect_text(c, text, &step->gathering);
}

/* What the size of buckets of gradients is chosen for: the axes that rows are sharded over, and their slowest link.
 */
static BucketMachine bucket_machine_of(const Collector *c) {
  const Machine *m = c->r->machine;
  BucketMachine out = {.ranks = 1};
  for (int a = 0; m && c->mesh && c->marks && a < c->mesh->naxes; a++) {
    const MachineLink *l = c->mesh->axis[a] > 1 ? machine_link(m, c->mesh, a) : NULL;
    bool rows = false;
    for (int i = 0; i < c->e->graph->ninputs; i++)
      rows |= c->e->inputs[i].kind == IN_USER && is_s(&c->marks->input[i].place[a]);
    if (!l || !rows) continue;
    out.ranks *= c->mesh->axis[a];
    out.latency = fmax(out.latency, l->latency);
    out.bandwidth = out.bandwidth > 0 ? fmin(out.bandwidth, l->bandwidth) : l->bandwidth;
  }
  if (out.ranks < 2) return (BucketMachine){0};
  out.flops = m->flops[DT_F32] > 0 ? m->flops[DT_F32] : m->flops[DT_BF16];
  out.memory = m->memory_bandwidth;
  out.overlap = m->overlap;
  return out;
}

/* The program of the rank, as it will be run: a training step as session_specialize() makes it. */
static Status finish_program(Collector *c, Exported *local) {
  const Prepared *step = c->r->step;
  ReduceGradients reduce = c->r->reduce ? *c->r->reduce : reduce_gradients_default;
  StepFit fit;
  reduce.machine = bucket_machine_of(c);
  local->graph->gradients_apart = step && c->r->memory.amount > 0;
  if (step && c->marks) {
    TRY(fit_step(&c->ctx, local, &reduce, c->marks, c->r->memory, NULL, &fit));
    return tell_fit(c, &fit);
  }
  TRY(pass_run_list(local, passes_specialized, &c->ctx, NULL));
  return local->graph->gradients_apart ? fit_memory(&c->ctx, local, NULL, c->r->memory, &fit.fit) : OK;
}

static Status record_program(Collector *c) {
  WalkWatch watch = collect_watch(c);
  const Prepared *step = c->r->step;
  Specialize how = {.marks = c->marks,
                    .state = c->shard,
                    .dry_limit = c->dry ? DRY_LIMIT : 0,
                    .watch = c->marks ? &watch : NULL,
                    .trains = step ? step->step.update : NULL,
                    .any_batch = step != NULL,
                    .grad = c->wants_grad ? &c->grad : NULL};
  Exported *local;
  Program *program;
  if (c->dist) comm_log_begin(c->dist, &c->log);
  Status s = specialize(&c->ctx, c->e, &how, c->inputs, c->r->ninputs, &local);
  if (c->dist) comm_log_end(c->dist, &c->log);
  if (s && status_code(s) == ERR_DYNAMIC && !c->dry) {
    tell_unknown(c, s);
    return c->p->unknown ? OK : fail_oom();
  }
  TRY(s);
  s = finish_program(c, local);
  if (s) return exported_free(local), s;
  TRY(program_plan(&c->ctx, local, &program));
  s = collect_program(c, program);
  program_free(program);
  return s;
}

/* ---- notes -------------------------------------------------------------------------------------- */

static Status split_notes(Collector *c, const char *text) {
  while (text && *text) {
    size_t n = strcspn(text, "\n");
    if (n) TRY(collect_note(c, "%.*s", (int)n, text));
    text += n + (text[n] != 0);
  }
  return OK;
}

/* Axes of the mesh on which nothing is cut: their ranks all do the same. */
static Status note_idle_axes(Collector *c) {
  const Mesh *m = c->mesh;
  for (int a = 0; a < m->naxes; a++) {
    bool cut = m->axis[a] == 1;
    for (int i = 0; i < c->e->graph->ninputs && !cut; i++) cut = !is_r(&c->marks->input[i].place[a]);
    if (!cut)
      TRY(collect_note(
          c,
          "nothing is sharded on the axis '%s': its %d ranks all do the same work (a batch is sharded on axes "
          "called dp or data if it divides)",
          c->p->axis_name[a], m->axis[a]));
  }
  return OK;
}

/* A batch with fewer rows than the ranks that share it out. */
static Status note_small_batch(Collector *c) {
  for (int i = 0, u = 0; i < c->e->graph->ninputs; i++) {
    if (c->e->inputs[i].kind != IN_USER) continue;
    const Value *given = &c->inputs[u++];
    const Placement *place = c->marks->input[i].place;
    int64_t ranks = 1;
    if (given->kind != VAL_TENSOR || !given->tensor->ndim) continue;
    for (int a = 0; a < c->mesh->naxes; a++)
      if (is_s_of(&place[a], 0)) ranks *= c->mesh->axis[a];
    if (given->tensor->size[0] < ranks)
      return collect_note(c,
                          "the batch has %lld row%s for the %lld ranks that it is sharded over: some have none%s",
                          (long long)given->tensor->size[0], given->tensor->size[0] == 1 ? "" : "s",
                          (long long)ranks, c->r->step ? " (--batch N is another)" : "");
  }
  return OK;
}

static Status note_memory(Collector *c) {
  const PlanReport *p = c->p;
  double have = p->machine.memory, need = (double)p->rank_total.total;
  if (have <= 0 || need <= have) return OK;
  return collect_note(c, "a rank needs %.1f GB, and the machine '%s' has %.1f GB", need * 1e-9, p->machine.name,
                      have * 1e-9);
}

/* ---- all of it ------------------------------------------------------------------------------------ */

static Status describe(Collector *c) {
  PlanReport *p = c->p;
  const Mesh *m = c->mesh;
  char text[512];
  TRY(collect_text(c, c->e->name, &p->program));
  if (c->r->plan) TRY(collect_text(c, c->r->plan->path, &p->plan));
  TRY(collect_text(c, mesh_text(m, text, sizeof text), &p->mesh));
  TRY(collect_text(c, c->r->sizes ? c->r->sizes : "", &p->sizes));
  p->naxes = m->naxes;
  p->ranks = m->size;
  p->rank = c->r->rank;
  for (int a = 0; a < m->naxes; a++) {
    p->axis[a] = m->axis[a];
    snprintf(text, sizeof text, "%d", a);
    TRY(collect_text(c, m->name[a] ? m->name[a] : text, &p->axis_name[a]));
  }
  p->timed = c->r->machine != NULL;
  if (p->timed) p->machine = *c->r->machine;
  return p->timed ? machine_check(&p->machine, m) : OK;
}

/* The rows of a batch that the first of n replicas takes, of every input that has those of the first input. */
static Status take_rows(Collector *c, int64_t n) {
  Value *own;
  int64_t rows = -1;
  TRY_NEW(own, arena_new_n(&c->p->arena, Value, c->r->ninputs + 1));
  for (int i = 0; i < c->r->ninputs; i++) {
    const Tensor *t = c->r->inputs[i].kind == VAL_TENSOR ? c->r->inputs[i].tensor : NULL;
    Tensor *part;
    int64_t size[MAX_DIMS];
    own[i] = c->r->inputs[i];
    if (!t || !t->ndim) continue;
    if (rows < 0) rows = t->size[0];
    if (t->size[0] != rows) continue;
    memcpy(size, t->size, sizeof size);
    size[0] = (rows + n - 1) / n;
    TRY(tensor_meta(&c->scope, t->dtype, t->ndim, size, &part));
    own[i] = val_tensor(part);
  }
  c->inputs = own;
  return OK;
}

/* Replicas run the same program on rows of their own. */
static Status place_replica(Collector *c) {
  unsigned replicas = c->r->step ? c->r->step->replica_axes : 0;
  int n = 1;
  if (!replicas) return OK;
  for (int a = 0; a < c->mesh->naxes; a++) n *= replicas >> a & 1 ? c->mesh->axis[a] : 1;
  c->grad.replicas = n;
  c->grad.replica_axes = replicas;
  return take_rows(c, n);
}

static Status open_mesh(Collector *c) {
  const char *text = c->r->mesh ? c->r->mesh : c->r->plan ? c->r->plan->mesh : NULL;
  if (!text)
    return status_hint(fail(ERR_USAGE, "which mesh?"), "--mesh tp=4, or \"mesh\": {\"tp\": 4} in the plan");
  TRY(dist_new(NULL, &c->dist));
  ctx_attach_dist(&c->ctx, c->dist);
  TRY(mesh_parse(c->dist, text, &c->mesh));
  if (c->r->rank < 0 || c->r->rank >= c->mesh->size)
    return fail(ERR_USAGE, "rank %d of a mesh of %d ranks: they are 0 to %d", c->r->rank, c->mesh->size,
                c->mesh->size - 1);
  mesh_coord(c->mesh->axis, c->mesh->naxes, c->r->rank, c->mesh->coord); /* before the first spec is made */
  return place_replica(c);
}

static Status tell_derived(Collector *c) {
  TextBuf b = {0};
  if (!c->marks->derived) return OK;
  plan_file_print(&b, c->marks->derived, c->p->mesh);
  Status s = b.text && !b.failed ? collect_text(c, b.text, &c->p->derived) : fail_oom();
  text_free(&b);
  return s;
}

static Status find_gradients(Collector *c) {
  c->wants_grad = c->r->grad || c->r->step;
  if (!c->wants_grad) return OK;
  if (c->r->step) {
    GradRequest of = c->r->step->step;
    of.replicas = c->grad.replicas;
    of.replica_axes = c->grad.replica_axes;
    of.phase = c->r->phase;
    if (c->r->reduce) of.reduce_dtype = c->r->reduce->dtype;
    c->grad = of;
  } else TRY(grad_request(c->e, c->r->grad, &c->p->arena, &c->grad));
  const Arg *loss = &c->e->graph->outputs[c->grad.loss];
  return collect_text(c, loss->kind == ARG_VAL ? loss->val->name : "", &c->p->loss);
}

/* Those of the step, or of the plan. */
static Status find_marks(Collector *c) {
  TextBuf notes = {0};
  if (c->r->step) {
    c->of_step = prepared_marks(c->r->step, c->mesh);
    c->marks = &c->of_step;
    TRY(tell_derived(c));
    return split_notes(c, c->r->step->notes.text);
  }
  Status s = mark_with_plan(c->e, c->mesh, c->r->plan, c->r->grad, &notes, &c->own_marks);
  c->marks = c->own_marks;
  if (!s) s = tell_derived(c);
  if (!s) s = split_notes(c, notes.text);
  text_free(&notes);
  return s;
}

static void add_up(PlanTotals *t) {
  t->total = t->weights + t->buffers + t->optimizer + t->inputs + t->outputs + t->gradients + t->activations;
}

static Status collect(Collector *c) {
  const Graph *g = c->e->graph;
  TRY(open_mesh(c));
  TRY(describe(c));
  TRY(find_gradients(c));
  TRY(find_marks(c));
  TRY(make_shards(c));
  TRY_NEW(c->value, arena_new_n(&c->p->arena, Tensor *, g->nvals + 1));
  TRY_NEW(c->sharded_by, arena_new_n(&c->p->arena, const char *, g->nvals * c->mesh->naxes + 1));
  TRY(record_program(c));
  TRY(collect_weights(c));
  TRY(collect_layers(c));
  TRY(collect_kinds(c));
  TRY(collect_unasked(c));
  add_up(&c->p->rank_total);
  TRY(note_idle_axes(c));
  TRY(note_small_batch(c));
  return note_memory(c);
}

/* A training step on one rank without a mesh: the totals, to compare with. */
static Status collect_alone(Collector *c) {
  PlanTotals *t = &c->p->rank_total;
  TRY(find_gradients(c));
  TRY(make_shards(c));
  TRY(record_program(c));
  for (int i = 0; i < c->e->nstate; i++) {
    const StateEntry *s = &c->e->state[i];
    bool tied = !s->tensor;
    for (int j = 0; j < i && !tied; j++) tied = state_is_tied(&c->e->state[j], s);
    if (tied) continue;
    int64_t bytes = tensor_numel(s->tensor) * (int64_t)dtype_size(s->tensor->dtype);
    *(s->is_filled ? &t->optimizer : s->is_parameter ? &t->weights : &t->buffers) += bytes;
  }
  add_up(t);
  return OK;
}

static Status try_report(const Exported *e, const PlanRequest *r, bool dry, PlanReport **out) {
  Collector c = {.e = e, .r = r, .dry = dry, .inputs = r->inputs};
  TRY_NEW(c.p, calloc(1, sizeof *c.p));
  ctx_init(&c.ctx, 1);
  Status s = r->step && !r->mesh ? collect_alone(&c) : collect(&c);
  comm_log_free(&c.log);
  ptrmap_free(&c.index);
  marks_free(c.own_marks);
  scope_clear(&c.scope);
  ctx_free(&c.ctx);
  dist_free(c.dist);
  if (s) plan_report_free(c.p);
  else *out = c.p;
  return s;
}

/* Sizes may depend on elements of constants that were too large to compute just to look. */
static Status make_report(const Exported *e, const PlanRequest *r, PlanReport **out) {
  Status s = try_report(e, r, true, out);
  if (!s || status_code(s) != ERR_DYNAMIC) return s;
  status_free(s);
  return try_report(e, r, false, out);
}

/* `times` micro-batches before the last, which the totals are of. */
static Status add_batches(const Exported *e, const PlanRequest *r, Phase phase, int times, PlanReport *to) {
  PlanRequest request = *r;
  PlanReport *p;
  request.phase = phase;
  TRY(make_report(e, &request, &p));
  PlanTotals *t = &to->rank_total, *more = &p->rank_total;
  t->flops += times * more->flops;
  t->backward_flops += times * more->backward_flops;
  t->bytes += times * more->bytes;
  t->compute += times * more->compute;
  t->communicate += times * more->communicate;
  t->exposed += times * more->exposed;
  t->activations += more->activations; /* a program of its own, with memory of its own */
  t->gradients += more->gradients;
  t->total += more->activations + more->gradients;
  to->step.before += times * (more->compute + more->exposed);
  for (int i = 0; i < 3; i++) to->step.stage[i] += times * p->step.stage[i];
  Status s = plan_report_add_kinds(to, p, times);
  plan_report_free(p);
  return s;
}

/* A step that is made of several micro-batches: the last of them, and the others in its totals. */
static Status report_batches(const Exported *e, const PlanRequest *r, PlanReport **out) {
  int n = r->step ? r->step->step.update->recipe.accumulate : 1;
  PlanRequest last = *r;
  PlanReport *p;
  if (n == 1) return make_report(e, r, out);
  last.phase = PHASE_LAST;
  TRY(make_report(e, &last, &p));
  Status s = add_batches(e, r, PHASE_FIRST, 1, p);
  if (!s && n > 2) s = add_batches(e, r, PHASE_MORE, n - 2, p);
  if (s) return plan_report_free(p), s;
  p->step.batches = n;
  p->step.samples *= n;
  p->step.tokens *= n;
  *out = p;
  return OK;
}

Status plan_report(const Exported *e, const PlanRequest *r, PlanReport **out) {
  PlanReport *p, *alone;
  TRY(report_batches(e, r, &p));
  if (!r->no_whole && !p->unknown) {
    PlanRequest one = {.mesh = r->step ? NULL : "1",
                       .step = r->step,
                       .inputs = r->inputs,
                       .ninputs = r->ninputs,
                       .machine = r->machine,
                       .grad = r->grad,
                       .no_whole = true};
    Status s = report_batches(e, &one, &alone);
    if (s) {
      plan_report_free(p);
      return s;
    }
    p->whole = alone->rank_total;
    plan_report_free(alone);
  }
  *out = p;
  return OK;
}

void plan_report_free(PlanReport *r) {
  if (!r) return;
  arena_free(&r->arena);
  free(r);
}

/* ---- files ------------------------------------------------------------------------------------------ */

static bool ends_with(const char *s, const char *end) {
  size_t n = strlen(s), k = strlen(end);
  return n > k && !strcmp(s + n - k, end);
}

static Status json_text(const PlanReport *r, TextBuf *b) {
  yyjson_mut_doc *doc;
  TRY(plan_report_json(r, &doc));
  char *text = yyjson_mut_write(doc, YYJSON_WRITE_PRETTY, NULL);
  yyjson_mut_doc_free(doc);
  if (!text) return fail_oom();
  text_puts(b, text);
  text_puts(b, "\n");
  free(text);
  return OK;
}

Status plan_report_write(const PlanReport *r, const char *path, unsigned flags) {
  TextBuf b = {0};
  Status s = OK;
  if (ends_with(path, ".html")) s = plan_report_html(&b, r);
  else if (ends_with(path, ".json")) s = json_text(r, &b);
  else plan_report_text(&b, r, (PlanTextOptions){.nodes = true, .weights = true});
  if (!s && (b.failed || !b.text)) s = fail_oom();
  if (!s) s = file_write_all(path, b.text, b.len, flags);
  text_free(&b);
  return s;
}
