/* plan_report_step.c -- the course of a rank's run: what it computes and what it waits for, one after the other,
 * and the memory of intermediate results meanwhile; see plan_collect.h.
 *
 * The instructions are gone through in their order.  An op takes its predicted time.  A collective that is made at
 * once takes its time, too, and the rank waits for it.  One that is started goes on beside what follows, behind
 * those that were started in the same group before it; at its wait the rank waits for what is left of it.  Of its
 * time, the part that the machine cannot overlap (machine.h) is the rank's own at the start.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/ptrmap.h"
#include "ops/tensors.h"
#include "passes/comm_block.h"
#include "passes/started.h"
#include "report/plan_collect.h"
#include "runtime/memory_peak.h"

static bool is_redistribution(const Node *n) { return node_is(n, "tess.redistribute.default"); }
static bool is_wait(const Node *n) { return node_is(n, WAIT_TENSOR); }

bool collect_communicates(const Instr *in) {
  return is_redistribution(in->node) || is_wait(in->node) || node_starts(in->node);
}

/* ---- gradients that are reduced together --------------------------------------------------------------------- */

/* The values that were joined to what a collective reduces: through a division, a cat and flattened views. */
static int members_of(const Node *start, const Val **member, int cap) {
  const Val *v = start->args[0].val;
  int n = 0;
  if (v->node && !strncmp(v->node->target, "aten.div.", 9)) v = v->node->args[0].val;
  if (!v->node || !node_is(v->node, "aten.cat.default")) return 0;
  for (int i = 0; i < v->node->args[0].n && n < cap; i++) {
    const Val *part = v->node->args[0].list[i].val;
    if (part->node && node_is(part->node, "aten.flatten.using_ints")) part = part->node->args[0].val;
    member[n++] = part;
  }
  return n;
}

/* The move that was recorded for a gradient, by the name of the value; NULL: not known. */
static const PlanMove *move_on(const Collector *c, const char *name) {
  char stem[256];
  intptr_t found = (intptr_t)strmap_get(&c->moved, name);
  snprintf(stem, sizeof stem, "%s", name);
  for (char *end; !found && (end = strrchr(stem, '_'));) {
    *end = 0;
    found = (intptr_t)strmap_get(&c->moved, stem);
  }
  return found ? &c->p->move[found - 1] : NULL;
}

static Status bucket_causes(Collector *c, const Val *const *member, int n, const char **why) {
  char text[512];
  const PlanMove *first = n ? move_on(c, member[0]->name) : NULL,
                 *last = n ? move_on(c, member[n - 1]->name) : NULL;
  if (first && last && first != last)
    snprintf(text, sizeof text, "%d gradients together: %.180s to %.180s", n, first->why, last->why);
  else if (first) snprintf(text, sizeof text, "%.300s", first->why);
  else snprintf(text, sizeof text, "%d gradient%s", n, n == 1 ? "" : "s");
  return collect_text(c, text, why);
}

enum { MOST_MEMBERS = 4096 };

/* What an all-reduce of gradients is: *m has its kind, data and causes. */
static Status describe_bucket(Collector *c, const Node *start, const Val **member, PlanMove *m) {
  const Val *v = start->args[0].val;
  m->kind = STEP_ALL_REDUCE;
  m->cause = CAUSE_GRADIENT;
  m->axes = (unsigned)(uintptr_t)strmap_get(&c->groups, start->args[2].str);
  m->joined = members_of(start, member, MOST_MEMBERS);
  m->bytes = 2 * tensor_numel(v->tensor) * (int64_t)dtype_size(v->dtype);
  TRY(bucket_causes(c, member, m->joined, &m->why));
  return collect_type(c, v->dtype, v->tensor->ndim, v->tensor->size, &m->type);
}

/* What the collectives of groups are (ops_shard_group.c). */
static const struct {
  const char *target;
  StepKind kind;
  MoveCause cause;
  const char *what, *layer;
} groups[] = {
    {"tess.gather_group.default", STEP_ALL_GATHER, CAUSE_PARAMETER, "parameters", "parameters"},
    {"tess.scatter_group.default", STEP_REDUCE_SCATTER, CAUSE_GRADIENT, "gradients", "gradients"},
    {"tess.gather_each.default", STEP_ALL_GATHER, CAUSE_UPDATE, "updated parameters", "update"},
};

static size_t group_of(const Node *start) {
  size_t i = 0;
  while (i + 1 < sizeof groups / sizeof *groups && !node_is(start, groups[i].target)) i++;
  return i;
}

static int64_t bytes_of(const Val *v) { return tensor_numel(v->tensor) * (int64_t)dtype_size(v->dtype); }

static Status describe_group(Collector *c, const Node *start, PlanMove *m) {
  size_t of = group_of(start);
  Placement from[MAX_AXES], to[MAX_AXES];
  const Val *out = start->outs[0];
  const Arg *parts = &start->args[0];
  const char *moves = start->args[2].str;
  int naxes;
  char text[1024];
  TRY(placements_parse_move(&moves, (int)start->args[3].list[0].i, from, to, &naxes));
  m->kind = groups[of].kind;
  m->cause = groups[of].cause;
  m->axes = placements_exchange(from, to, naxes);
  m->joined = parts->n;
  TRY(collect_text(c, placements_print(from, naxes, text, sizeof text), &m->from));
  TRY(collect_text(c, placements_print(to, naxes, text, sizeof text), &m->to));
  for (int i = 0; i < start->nouts && m->kind == STEP_ALL_GATHER; i++) m->bytes += bytes_of(start->outs[i]);
  for (int i = 0; i < parts->n && m->kind != STEP_ALL_GATHER; i++) m->bytes += bytes_of(parts->list[i].val);
  snprintf(text, sizeof text, "%d %s together: %.300s", parts->n, groups[of].what, start->args[5].str);
  TRY(collect_text(c, text, &m->why));
  return collect_type(c, out->dtype, out->tensor->ndim, out->tensor->size, &m->type);
}

/* A collective that no node of the program asked for by itself: the passes have made it of several. */
static Status add_bucket(Collector *c, const Node *start, const Val **member) {
  PlanMove m = {.ranks = 1, .rule = "", .from = "", .to = "", .started = true, .node = -1, .stage = start->stage};
  PlanMove *kept;
  bool reduces = start->args[0].kind == ARG_VAL;
  TRY(reduces ? describe_bucket(c, start, member, &m) : describe_group(c, start, &m));
  for (int a = 0; a < c->mesh->naxes; a++)
    if (m.axes >> a & 1) m.ranks *= c->mesh->axis[a];
  m.bytes = m.bytes * (m.ranks - 1) / m.ranks;
  if (c->r->machine) m.seconds = machine_collective_seconds(c->r->machine, c->mesh, m.kind, m.axes, m.bytes);
  TRY(collect_text(c, start->outs[0]->name, &m.name));
  TRY(collect_layer(c, reduces ? "gradients" : groups[group_of(start)].layer, &m.layer));
  TRY(collect_add_move(c, &kept));
  *kept = m;
  return OK;
}

static Status known_moves(Collector *c, StrMap *known) {
  StrSlot *slot;
  for (int i = 0; i < c->p->nmoves; i++) {
    TRY(strmap_slot(known, &c->p->arena, c->p->move[i].name, &slot));
    slot->value = (void *)(intptr_t)(i + 1);
  }
  return OK;
}

Status collect_buckets(Collector *c, const Graph *g) {
  StrMap known = {0};
  const Val **member;
  if (!c->mesh) return OK;
  TRY(known_moves(c, &known));
  TRY_NEW(member, arena_new_n(&c->p->arena, const Val *, MOST_MEMBERS));
  for (const Node *n = g->first; n; n = n->next)
    if (node_starts(n) && !strmap_get(&known, n->outs[0]->name)) TRY(add_bucket(c, n, member));
  return OK;
}

/* ---- time --------------------------------------------------------------------------------------------------- */

typedef struct {
  Collector *c;
  StrMap move;                /* by the name of the collective's value: 1 + index */
  PtrMap span;                /* of a start: its span */
  double now;                 /* seconds */
  double idle[1 << MAX_AXES]; /* by axes of a group: when its last collective is over */
  int cap, layer;
  double *begun; /* by instruction */
} Course;

static Status add_span(Course *k, PlanSpan span, int *at) {
  PlanStep *s = &k->c->p->step;
  TRY_NEW(s->span, arena_more(&k->c->p->arena, s->span, s->nspans, &k->cap));
  *at = s->nspans;
  s->span[s->nspans++] = span;
  return OK;
}

/* A collective begins; *span: its place. */
static Status communicate(Course *k, const Node *n, int *span) {
  intptr_t found = (intptr_t)strmap_get(&k->move, n->outs[0]->name);
  if (!found) return fail(ERR_FAIL, "a collective '%s' that is in no list", n->outs[0]->name);
  const PlanMove *m = &k->c->p->move[found - 1];
  double begun = fmax(k->now, k->idle[m->axes]);
  k->idle[m->axes] = begun + m->seconds;
  return add_span(k,
                  (PlanSpan){.stage = n->stage,
                             .layer = m->layer,
                             .move = (int)found - 1,
                             .begun = begun,
                             .end = begun + m->seconds,
                             .calls = 1},
                  span);
}

/* The rank does nothing else for so long. */
static void expose(Course *k, int span, double seconds, Stage stage) {
  PlanReport *p = k->c->p;
  PlanSpan *s = &p->step.span[span];
  if (seconds <= 0) return;
  s->waits += seconds;
  p->move[s->move].exposed += seconds;
  p->step.stage[stage] += seconds;
  k->now += seconds;
}

static Status start(Course *k, const Node *n) {
  const Machine *machine = k->c->r->machine;
  int span;
  int64_t *slot;
  TRY(communicate(k, n, &span));
  TRY(ptrmap_slot(&k->span, n, span, &slot));
  const PlanSpan *s = &k->c->p->step.span[span];
  if (machine) expose(k, span, (1 - machine->overlap) * (s->end - s->begun), n->stage);
  return OK;
}

static void wait_for(Course *k, const Node *n) {
  const Node *from = n->args[0].kind == ARG_VAL ? n->args[0].val->node : NULL;
  const int64_t *span = from ? ptrmap_find(&k->span, from) : NULL;
  if (span) expose(k, (int)*span, k->c->p->step.span[*span].end - k->now, n->stage);
}

static Status compute(Course *k, const Instr *in) {
  PlanReport *p = k->c->p;
  Work w = collect_work(k->c, in);
  intptr_t node = collect_node_of(k->c, in);
  Stage stage = in->node->stage;
  int at = p->step.nspans - 1;
  if (stage == STAGE_UPDATE) {
    TRY(collect_layer(k->c, "update", &k->layer));
    p->layer[k->layer].flops += w.flops;
    p->layer[k->layer].compute += w.seconds;
  } else if (node > 0) k->layer = p->node[node - 1].layer;
  const PlanSpan *last = at >= 0 ? &p->step.span[at] : NULL;
  if (!last || last->move >= 0 || last->stage != stage || last->layer != k->layer)
    TRY(add_span(k, (PlanSpan){.stage = stage, .layer = k->layer, .move = -1, .begun = k->now}, &at));
  k->now += w.seconds;
  p->step.stage[stage] += w.seconds;
  p->step.span[at].end = k->now;
  p->step.span[at].calls++;
  return OK;
}

static Status go_through(Course *k, const Program *p) {
  for (int i = 0; i < p->ninstrs; i++) {
    const Node *n = p->instrs[i].node;
    int span;
    k->begun[i] = k->now;
    if (is_redistribution(n)) {
      TRY(communicate(k, n, &span));
      expose(k, span, k->c->p->step.span[span].end - k->now, n->stage);
    } else if (node_starts(n)) TRY(start(k, n));
    else if (is_wait(n)) wait_for(k, n);
    else TRY(compute(k, &p->instrs[i]));
  }
  return OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

enum { MEMORY_POINTS = 800 };

static int64_t sum_of(const MemoryUse *u) { return u->saved + u->gradients + u->other; }

/* Of neighbours that go into one point, the height is told. */
static Status keep_memory(Course *k, const Program *p, const MemoryUse *use) {
  PlanStep *s = &k->c->p->step;
  int at = 1, next = 0, each = p->ninstrs / MEMORY_POINTS + 1;
  int64_t most = -1;
  TRY_NEW(s->memory, arena_new_n(&k->c->p->arena, PlanMemoryAt, p->ninstrs / each + 2));
  for (const Node *n = p->graph->graph->first; n && next < p->ninstrs; n = n->next, at++) {
    if (use[at].saved > s->saved) s->saved = use[at].saved;
    if (use[at].gradients > s->gradients) s->gradients = use[at].gradients;
    if (p->instrs[next].node != n) continue;
    if (next % each == 0) s->nmemory++, most = -1;
    PlanMemoryAt *m = &s->memory[s->nmemory - 1];
    if (most < 0) m->at = k->c->r->machine ? k->begun[next] : next;
    if (sum_of(&use[at]) > most) {
      most = sum_of(&use[at]);
      m->stage = n->stage;
      m->saved = use[at].saved;
      m->gradients = use[at].gradients;
      m->other = use[at].other;
    }
    next++;
  }
  return OK;
}

static Status find_memory(Course *k, const Program *p) {
  MemoryUse *use;
  TRY(memory_uses(p, &use));
  Status s = keep_memory(k, p, use);
  free(use);
  return s;
}

/* ---- what a step is of
 * -------------------------------------------------------------------------------------------- */

/* Rows of the batch; of integers [rows, positions], all tokens. */
static void count_batch(Collector *c) {
  PlanStep *s = &c->p->step;
  for (int i = 0; i < c->r->ninputs; i++) {
    const Tensor *t = c->r->inputs[i].kind == VAL_TENSOR ? c->r->inputs[i].tensor : NULL;
    if (!t || !t->ndim) continue;
    if (!s->samples) s->samples = t->size[0];
    if (!s->tokens && dtype_is_integral(t->dtype) && t->ndim == 2) s->tokens = t->size[0] * t->size[1];
  }
}

static Status describe_step(Collector *c) {
  const Prepared *step = c->r->step;
  if (!step) return OK;
  const Recipe *r = &step->step.update->recipe;
  c->p->ngradients = step->step.n;
  count_batch(c);
  return collect_text(c, r->group[r->ngroups - 1].optim.optimizer->name, &c->p->step.optimizer);
}

Status collect_course(Collector *c, const Program *p) {
  Course k = {.c = c};
  TRY(describe_step(c));
  TRY_NEW(k.begun, arena_new_n(&c->p->arena, double, p->ninstrs + 1));
  TRY(known_moves(c, &k.move));
  Status s = go_through(&k, p);
  ptrmap_free(&k.span);
  TRY(s);
  return find_memory(&k, p);
}
