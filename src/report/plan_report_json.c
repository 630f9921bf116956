/* plan_report_json.c -- a plan for programs, and for its own page; docs/plan-report.md tells the
 * fields. */
#include "base/json.h"
#include "report/plan_report.h"

typedef yyjson_mut_val Json;
/* A document that is being written; failed: memory was short, something is missing. */
typedef struct {
  yyjson_mut_doc *doc;
  bool failed;
} Doc;

static Json *kept(Doc *d, Json *v) {
  d->failed |= !v;
  return v;
}
static Json *object(Doc *d, Json *to, const char *key) { return kept(d, yyjson_mut_obj_add_obj(d->doc, to, key)); }
static Json *list(Doc *d, Json *to, const char *key) { return kept(d, yyjson_mut_obj_add_arr(d->doc, to, key)); }
static Json *item(Doc *d, Json *to) { return kept(d, yyjson_mut_arr_add_obj(d->doc, to)); }
/* The report outlives the document: texts are not copied. */
static void text(Doc *d, Json *to, const char *key, const char *value) {
  d->failed |= value && !yyjson_mut_obj_add_str(d->doc, to, key, value);
}
static void whole(Doc *d, Json *to, const char *key, int64_t n) {
  d->failed |= !yyjson_mut_obj_add_int(d->doc, to, key, n);
}
static void real(Doc *d, Json *to, const char *key, double x) {
  d->failed |= !yyjson_mut_obj_add_real(d->doc, to, key, x);
}
static void yes(Doc *d, Json *to, const char *key) { d->failed |= !yyjson_mut_obj_add_bool(d->doc, to, key, true); }
static void add_text(Doc *d, Json *to, const char *value) {
  d->failed |= !yyjson_mut_arr_add_str(d->doc, to, value);
}
static void add_whole(Doc *d, Json *to, int64_t n) { d->failed |= !yyjson_mut_arr_add_int(d->doc, to, n); }

static const char *const causes[] = {
    [CAUSE_PLAN] = "plan",           [CAUSE_OUTPUT] = "output",     [CAUSE_RULE] = "rule",
    [CAUSE_COTANGENT] = "cotangent", [CAUSE_GRADIENT] = "gradient", [CAUSE_PARAMETER] = "parameter",
    [CAUSE_UPDATE] = "update",       [CAUSE_PARTIAL] = "partial"};

/* The forward goes without saying. */
static void add_stage(Doc *d, Json *to, Stage stage) {
  if (stage) yes(d, to, stage_name(stage));
}

static void add_axes(Doc *d, Json *to, const PlanReport *r, unsigned axes) {
  Json *names = list(d, to, "axes");
  for (int a = 0; a < r->naxes; a++)
    if (axes >> a & 1) add_text(d, names, r->axis_name[a]);
}

static void add_totals(Doc *d, Json *root, const char *key, const PlanReport *r, const PlanTotals *t) {
  Json *o = object(d, root, key), *memory = object(d, o, "memory");
  whole(d, memory, "weights", t->weights);
  whole(d, memory, "buffers", t->buffers);
  if (t->optimizer) whole(d, memory, "optimizer", t->optimizer);
  whole(d, memory, "inputs", t->inputs);
  whole(d, memory, "outputs", t->outputs);
  if (t->gradients) whole(d, memory, "gradients", t->gradients);
  whole(d, memory, "activations", t->activations);
  whole(d, memory, "total", t->total);
  real(d, o, "flops", t->flops);
  if (r->loss) real(d, o, "backward_flops", t->backward_flops);
  real(d, o, "bytes", t->bytes);
  whole(d, o, "steps", t->steps);
  if (!r->timed) return;
  Json *seconds = object(d, o, "seconds");
  real(d, seconds, "compute", t->compute);
  real(d, seconds, "communicate", t->communicate);
  real(d, seconds, "exposed", t->exposed);
  real(d, seconds, "total", t->compute + t->exposed);
}

static void add_head(Doc *d, Json *root, const PlanReport *r) {
  text(d, root, "program", r->program);
  text(d, root, "plan", r->plan);
  text(d, root, "derived_plan", r->derived);
  text(d, root, "mesh", r->mesh);
  Json *axes = list(d, root, "axes");
  for (int a = 0; a < r->naxes; a++) {
    Json *axis = item(d, axes);
    text(d, axis, "name", r->axis_name[a]);
    whole(d, axis, "size", r->axis[a]);
  }
  whole(d, root, "ranks", r->ranks);
  whole(d, root, "as_rank", r->rank);
  text(d, root, "sizes", r->sizes);
  text(d, root, "loss", r->loss);
  if (r->loss) whole(d, root, "gradients", r->ngradients);
  text(d, root, "unknown", r->unknown);
}

static void add_machine(Doc *d, Json *root, const PlanReport *r) {
  if (!r->timed) return;
  Json *m = object(d, root, "machine"), *flops = NULL, *links = NULL;
  text(d, m, "name", r->machine.name);
  flops = object(d, m, "flops");
  for (int i = 0; i < DT_COUNT; i++)
    if (r->machine.flops[i] > 0) real(d, flops, dtype_name((Dtype)i), r->machine.flops[i]);
  real(d, m, "memory_bandwidth", r->machine.memory_bandwidth);
  if (r->machine.memory > 0) real(d, m, "memory", r->machine.memory);
  if (r->machine.update_bandwidth > 0) real(d, m, "update_bandwidth", r->machine.update_bandwidth);
  real(d, m, "op_latency", r->machine.op_latency);
  if (r->machine.ranks_per_node) whole(d, m, "ranks_per_node", r->machine.ranks_per_node);
  links = object(d, m, "links");
  for (int i = 0; i < r->machine.nlinks; i++) {
    Json *link = object(d, links, r->machine.link[i].name);
    real(d, link, "bandwidth", r->machine.link[i].bandwidth);
    real(d, link, "latency", r->machine.link[i].latency);
  }
}

static void add_kinds(Doc *d, Json *root, const PlanReport *r) {
  Json *kinds = list(d, root, "collectives");
  for (int i = 0; i < r->nkinds; i++) {
    const PlanKind *k = &r->kind[i];
    Json *o = item(d, kinds);
    text(d, o, "kind", step_kind_name(k->kind));
    add_axes(d, o, r, k->axes);
    add_stage(d, o, k->stage);
    whole(d, o, "count", k->count);
    if (k->joined) whole(d, o, "joined", k->joined);
    whole(d, o, "not_asked_for", k->unasked);
    whole(d, o, "bytes", k->bytes);
    if (!r->timed) continue;
    real(d, o, "seconds", k->seconds);
    real(d, o, "exposed", k->exposed);
  }
}

static void add_layers(Doc *d, Json *root, const PlanReport *r) {
  Json *layers = list(d, root, "layers");
  for (int i = 0; i < r->nlayers; i++) {
    const PlanLayer *l = &r->layer[i];
    Json *o = item(d, layers);
    text(d, o, "name", l->name);
    whole(d, o, "alike", l->alike);
    whole(d, o, "nodes", l->nodes);
    Json *counts = object(d, o, "collectives");
    for (int k = 0; k < STEP_KIND_COUNT; k++) {
      if (!l->count[k]) continue;
      Json *one = object(d, counts, step_kind_name((StepKind)k));
      whole(d, one, "count", l->count[k]);
      whole(d, one, "bytes", l->moved[k]);
      if (l->backward[k]) whole(d, one, "backward", l->backward[k]);
    }
    whole(d, o, "not_asked_for", l->unasked);
    whole(d, o, "weights", l->weights);
    whole(d, o, "rank_weights", l->rank_weights);
    real(d, o, "flops", l->flops);
    if (!r->timed) continue;
    real(d, o, "compute_seconds", l->compute);
    real(d, o, "communicate_seconds", l->communicate);
  }
}

static void add_move(Doc *d, Json *to, const PlanReport *r, const PlanMove *m) {
  Json *o = item(d, to);
  text(d, o, "kind", step_kind_name(m->kind));
  add_axes(d, o, r, m->axes);
  whole(d, o, "ranks", m->ranks);
  whole(d, o, "bytes", m->bytes);
  if (r->timed) real(d, o, "seconds", m->seconds);
  if (r->timed) real(d, o, "exposed", m->exposed);
  if (m->started) yes(d, o, "started");
  if (m->joined) whole(d, o, "joined", m->joined);
  text(d, o, "name", m->name);
  text(d, o, "type", m->type);
  text(d, o, "from", m->from);
  text(d, o, "to", m->to);
  text(d, o, "cause", causes[m->cause]);
  text(d, o, "why", m->why);
  if (m->cause == CAUSE_RULE) text(d, o, "rule", m->rule);
  text(d, o, "sharded_by", m->sharded_by);
  if (m->node >= 0) whole(d, o, "node", m->node);
  if (m->after) yes(d, o, "after");
  add_stage(d, o, m->stage);
  whole(d, o, "layer", m->layer);
}

static void add_values(Doc *d, Json *to, const char *key, const PlanValue *v, int n) {
  Json *values = list(d, to, key);
  for (int i = 0; i < n; i++) {
    Json *o = item(d, values);
    text(d, o, "name", v[i].name);
    text(d, o, "type", v[i].type);
    text(d, o, "place", v[i].place);
  }
}

static void add_nodes(Doc *d, Json *root, const PlanReport *r) {
  Json *nodes = list(d, root, "nodes");
  for (int i = 0; i < r->nnodes; i++) {
    const PlanNode *n = &r->node[i];
    Json *o = item(d, nodes);
    text(d, o, "name", n->name);
    text(d, o, "op", n->op);
    text(d, o, "module", n->module);
    if (*n->source) text(d, o, "source", n->source);
    add_values(d, o, "in", n->in, n->nin);
    add_values(d, o, "out", n->out, n->nout);
    if (n->nmoves) {
      Json *moves = list(d, o, "moves"); /* positions in "moves" */
      for (int m = 0; m < n->nmoves; m++) add_whole(d, moves, n->move + m);
    }
    if (n->flops > 0) real(d, o, "flops", n->flops);
    if (n->bytes > 0) real(d, o, "bytes", n->bytes);
    if (r->timed && n->seconds > 0) real(d, o, "seconds", n->seconds);
    whole(d, o, "layer", n->layer);
  }
}

static void add_weights(Doc *d, Json *root, const PlanReport *r) {
  Json *state = list(d, root, "weights"), *inputs = list(d, root, "inputs");
  for (int i = 0; i < r->nweights; i++) {
    const PlanWeight *w = &r->weight[i];
    Json *o = item(d, w->kind == IN_USER ? inputs : state);
    text(d, o, "name", w->name);
    if (w->kind != IN_USER) text(d, o, "kind", input_kind_name(w->kind));
    text(d, o, "type", w->type);
    text(d, o, "place", w->place);
    text(d, o, "why", w->why);
    whole(d, o, "bytes", w->bytes);
    whole(d, o, "rank_bytes", w->rank_bytes);
    text(d, o, "tied", w->tied);
    if (w->kind != IN_USER) whole(d, o, "layer", w->layer);
  }
}

static void add_unasked(Doc *d, Json *root, const PlanReport *r) {
  Json *all = list(d, root, "not_asked_for");
  for (int i = 0; i < r->nunasked; i++) {
    const PlanUnasked *u = &r->unasked[i];
    Json *o = item(d, all);
    whole(d, o, "count", u->count);
    whole(d, o, "bytes", u->bytes);
    if (r->timed) real(d, o, "seconds", u->seconds);
    text(d, o, "where", u->where);
    text(d, o, "advice", u->advice);
    whole(d, o, "first", u->first - r->move);
  }
}

static void add_ranks(Doc *d, Json *root, const PlanReport *r) {
  Json *classes = list(d, root, "rank_classes");
  for (int i = 0; i < r->nclasses; i++) {
    Json *o = item(d, classes);
    text(d, o, "ranks", r->rank_class[i].ranks);
    whole(d, o, "count", r->rank_class[i].count);
    whole(d, o, "weights", r->rank_class[i].weights);
    whole(d, o, "buffers", r->rank_class[i].buffers);
    if (r->step.optimizer) whole(d, o, "optimizer", r->rank_class[i].optimizer);
  }
}

/* Spans and points are many: a list of numbers each. */
static void add_span(Doc *d, Json *to, const PlanSpan *s) {
  Json *o = kept(d, yyjson_mut_arr_add_arr(d->doc, to));
  add_whole(d, o, s->stage);
  add_whole(d, o, s->layer);
  add_whole(d, o, s->move);
  d->failed |= !yyjson_mut_arr_add_real(d->doc, o, s->begun);
  d->failed |= !yyjson_mut_arr_add_real(d->doc, o, s->end);
  d->failed |= !yyjson_mut_arr_add_real(d->doc, o, s->waits);
  add_whole(d, o, s->calls);
}

static void add_point(Doc *d, Json *to, const PlanMemoryAt *m) {
  Json *o = kept(d, yyjson_mut_arr_add_arr(d->doc, to));
  d->failed |= !yyjson_mut_arr_add_real(d->doc, o, m->at);
  add_whole(d, o, m->stage);
  add_whole(d, o, m->saved);
  add_whole(d, o, m->gradients);
  add_whole(d, o, m->other);
}

static void add_step(Doc *d, Json *root, const PlanReport *r) {
  const PlanStep *s = &r->step;
  double total = r->rank_total.compute + r->rank_total.exposed;
  if (!s->optimizer) return;
  Json *o = object(d, root, "step");
  text(d, o, "optimizer", s->optimizer);
  whole(d, o, "samples", s->samples);
  if (s->batches > 1) whole(d, o, "micro_batches", s->batches);
  if (s->batches > 1 && r->timed) real(d, o, "seconds_before_the_last", s->before);
  if (s->tokens) whole(d, o, "tokens", s->tokens);
  if (s->gathering) text(d, o, "gathering", s->gathering);
  whole(d, o, "recomputed", s->recomputed);
  whole(d, o, "saved", s->saved);
  whole(d, o, "gradients", s->gradients);
  Json *memory = list(d, o, "memory");
  for (int i = 0; i < s->nmemory; i++) add_point(d, memory, &s->memory[i]);
  if (!r->timed) return;
  real(d, o, "seconds", total);
  if (total > 0) real(d, o, "samples_per_second", (double)s->samples / total);
  if (total > 0 && s->tokens) real(d, o, "tokens_per_second", (double)s->tokens / total);
  Json *stages = object(d, o, "stages"), *spans = list(d, o, "spans");
  for (int i = 0; i < 3; i++) real(d, stages, stage_name((Stage)i), s->stage[i]);
  for (int i = 0; i < s->nspans; i++) add_span(d, spans, &s->span[i]);
}

Status plan_report_json(const PlanReport *r, struct yyjson_mut_doc **out) {
  Doc doc = {.doc = yyjson_mut_doc_new(NULL)}, *d = &doc;
  if (!doc.doc) return fail_oom();
  Json *root = kept(d, yyjson_mut_obj(doc.doc));
  yyjson_mut_doc_set_root(doc.doc, root);
  add_head(d, root, r);
  add_machine(d, root, r);
  add_totals(d, root, "rank", r, &r->rank_total);
  if (r->whole.total) add_totals(d, root, "one_rank", r, &r->whole);
  add_step(d, root, r);
  add_ranks(d, root, r);
  add_kinds(d, root, r);
  add_unasked(d, root, r);
  add_layers(d, root, r);
  add_weights(d, root, r);
  add_values(d, root, "outputs", r->output, r->noutputs);
  Json *moves = list(d, root, "moves");
  for (int i = 0; i < r->nmoves; i++) add_move(d, moves, r, &r->move[i]);
  add_nodes(d, root, r);
  Json *notes = list(d, root, "notes");
  for (int i = 0; i < r->nnotes; i++) add_text(d, notes, r->note[i]);
  if (doc.failed) {
    yyjson_mut_doc_free(doc.doc);
    return fail_oom();
  }
  *out = doc.doc;
  return OK;
}
