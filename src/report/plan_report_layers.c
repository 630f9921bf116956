/* plan_report_layers.c -- from nodes, collectives and weights to layers, kinds, and what
 * nobody asked for; see plan_collect.h. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "report/plan_collect.h"

/* ---- texts ------------------------------------------------------------------------------------- */

Status collect_text(Collector *c, const char *text, const char **out) {
  const char *kept = strmap_get(&c->texts, text);
  if (kept) return *out = kept, OK;
  StrSlot *slot;
  TRY_NEW(kept, arena_strdup(&c->p->arena, text));
  TRY(strmap_slot(&c->texts, &c->p->arena, kept, &slot));
  slot->value = (void *)(uintptr_t)kept;
  *out = kept;
  return OK;
}

Status collect_place(Collector *c, const Spec *s, const char **out) {
  char text[1024];
  return collect_text(c, placements_print(s->place, s->mesh->naxes, text, sizeof text), out);
}

Status collect_type(Collector *c, Dtype d, int ndim, const int64_t *size, const char **out) {
  char text[512], shape[400];
  snprintf(text, sizeof text, "%s%s", dtype_name(d), shape_describe(ndim, size, shape, sizeof shape));
  return collect_text(c, text, out);
}

enum { MAX_NOTES = 64 };

Status collect_note(Collector *c, const char *fmt, ...) {
  PlanReport *p = c->p;
  char text[1024];
  va_list args;
  if (!p->note) TRY_NEW(p->note, arena_new_n(&p->arena, const char *, MAX_NOTES));
  if (p->nnotes == MAX_NOTES) return OK;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return collect_text(c, text, &p->note[p->nnotes++]);
}

/* ---- layers -------------------------------------------------------------------------------------- */

/* The part of a module's name up to its first number, and the number: "model.layers." 0 of
 * "model.layers.0.mlp".  Returns the length of the layer's name; *stem of its stem. */
static size_t layer_name(const char *module, size_t *stem, int *number) {
  *number = -1;
  for (const char *at = module; *at;) {
    size_t len = strcspn(at, "."), digits = strspn(at, "0123456789");
    if (len && digits == len && len < 9) {
      *number = 0;
      for (size_t i = 0; i < len; i++) *number = *number * 10 + (at[i] - '0');
      *stem = (size_t)(at - module);
      return *stem + len;
    }
    at += len + (at[len] == '.');
  }
  return *stem = strlen(module);
}

enum { LAYER_CAP = 64 };

Status collect_layer(Collector *c, const char *module, int *out) {
  PlanReport *p = c->p;
  char name[512];
  size_t stem;
  int number;
  size_t len = layer_name(module, &stem, &number);
  snprintf(name, sizeof name, "%.*s", (int)len, module);
  StrSlot *slot;
  const char *kept;
  TRY(collect_text(c, name, &kept));
  TRY(strmap_slot(&c->layers, &p->arena, kept, &slot));
  if (slot->value) return *out = (int)(intptr_t)slot->value - 1, OK;
  if (p->nlayers % LAYER_CAP == 0) {
    PlanLayer *more;
    TRY_NEW(more, arena_new_n(&p->arena, PlanLayer, p->nlayers + LAYER_CAP));
    if (p->nlayers) memcpy(more, p->layer, (size_t)p->nlayers * sizeof *more);
    p->layer = more;
  }
  PlanLayer *l = &p->layer[p->nlayers];
  l->number = number;
  l->name = kept;
  name[stem] = 0;
  TRY(collect_text(c, name, &l->stem));
  *out = p->nlayers++;
  slot->value = (void *)(intptr_t)p->nlayers;
  return OK;
}

Status collect_layer_of(Collector *c, const char *parameter, int *out) {
  const char *dot = strrchr(parameter, '.');
  char module[512];
  snprintf(module, sizeof module, "%.*s", dot ? (int)(dot - parameter) : 0, parameter);
  return collect_layer(c, module, out);
}

static bool about(double a, double b) { return fabs(a - b) <= 0.01 * fmax(fabs(a), fabs(b)); }

/* b follows a and does the same.  Work may differ a little: the first layer has a sum less. */
static bool follows(const PlanLayer *a, const PlanLayer *b) {
  if (a->number < 0 || b->number != a->number + 1 || strcmp(a->stem, b->stem)) return false;
  return !memcmp(a->count, b->count, sizeof a->count) && !memcmp(a->moved, b->moved, sizeof a->moved) &&
         !memcmp(a->backward, b->backward, sizeof a->backward) && a->rank_weights == b->rank_weights &&
         a->unasked == b->unasked && about(a->flops, b->flops);
}

Status collect_layers(Collector *c) {
  PlanReport *p = c->p;
  for (int i = 0; i < p->nmoves; i++) {
    PlanMove *m = &p->move[i];
    bool output = m->node < 0 && m->stage == STAGE_FORWARD && m->cause != CAUSE_PARAMETER;
    if (output) TRY(collect_layer(c, "outputs", &m->layer));
  }
  for (int i = 0; i < p->nnodes; i++) {
    PlanLayer *l = &p->layer[p->node[i].layer];
    l->nodes++;
    l->flops += p->node[i].flops;
    l->compute += p->node[i].seconds;
  }
  for (int i = 0; i < p->nmoves; i++) {
    const PlanMove *m = &p->move[i];
    PlanLayer *l = &p->layer[m->layer];
    l->count[m->kind]++;
    l->backward[m->kind] += m->stage == STAGE_BACKWARD;
    l->moved[m->kind] += m->bytes;
    l->communicate += m->seconds;
    l->unasked += m->cause == CAUSE_RULE;
  }
  for (int i = 0; i < p->nweights; i++) {
    const PlanWeight *w = &p->weight[i];
    if (w->layer < 0 || w->tied) continue;
    p->layer[w->layer].weights += w->bytes;
    p->layer[w->layer].rank_weights += w->rank_bytes;
  }
  for (int i = 0; i < p->nlayers;) {
    int k = i + 1;
    while (k < p->nlayers && follows(&p->layer[k - 1], &p->layer[k])) k++;
    p->layer[i].alike = k - i;
    i = k;
  }
  return OK;
}

/* ---- kinds ----------------------------------------------------------------------------------------- */

/* There is room for one more. */
static void add_kind(PlanReport *p, const PlanKind *more, int times) {
  PlanKind *k = p->kind, *end = p->kind + p->nkinds;
  while (k < end && (k->kind != more->kind || k->axes != more->axes || k->stage != more->stage)) k++;
  if (k == end) {
    *k = (PlanKind){.kind = more->kind, .axes = more->axes, .stage = more->stage};
    p->nkinds++;
  }
  k->count += times * more->count;
  k->unasked += times * more->unasked;
  k->bytes += times * more->bytes;
  k->joined += times * more->joined;
  k->seconds += times * more->seconds;
  k->exposed += times * more->exposed;
}

Status collect_kinds(Collector *c) {
  PlanReport *p = c->p;
  TRY_NEW(p->kind, arena_new_n(&p->arena, PlanKind, p->nmoves + 1));
  for (int i = 0; i < p->nmoves; i++) {
    const PlanMove *m = &p->move[i];
    const PlanKind one = {.kind = m->kind,
                          .axes = m->axes,
                          .stage = m->stage,
                          .count = 1,
                          .unasked = m->cause == CAUSE_RULE,
                          .bytes = m->bytes,
                          .joined = m->joined,
                          .seconds = m->seconds,
                          .exposed = m->exposed};
    add_kind(p, &one, 1);
    p->rank_total.communicate += m->seconds;
    p->rank_total.exposed += m->exposed;
  }
  return OK;
}

Status plan_report_add_kinds(PlanReport *to, const PlanReport *from, int times) {
  PlanKind *kind;
  TRY_NEW(kind, arena_new_n(&to->arena, PlanKind, to->nkinds + from->nkinds + 1));
  if (to->nkinds) memcpy(kind, to->kind, (size_t)to->nkinds * sizeof *kind);
  to->kind = kind;
  for (int i = 0; i < from->nkinds; i++) add_kind(to, &from->kind[i], times);
  return OK;
}

/* ---- what nobody asked for ---------------------------------------------------------------------------- */

/* The module with its number replaced: "model.layers.*.self_attn". */
static Status pattern_of(Collector *c, const char *module, const char **out) {
  char text[512];
  size_t stem;
  int number;
  size_t len = layer_name(module, &stem, &number);
  if (number < 0) return collect_text(c, module, out);
  snprintf(text, sizeof text, "%.*s*%s", (int)stem, module, module + len);
  return collect_text(c, text, out);
}

static bool alike(const PlanMove *a, const PlanMove *b) {
  return a->kind == b->kind && a->axes == b->axes && a->bytes == b->bytes && a->why == b->why &&
         a->rule == b->rule && a->stage == b->stage && a->from == b->from && a->to == b->to && a->type == b->type;
}

/* Does it go along axes that shard batches alone? */
static bool is_along_batches(const Collector *c, const PlanMove *m) {
  bool all = m->axes != 0;
  for (int a = 0; a < c->mesh->naxes; a++)
    if (m->axes >> a & 1) all &= mark_is_data_axis(c->mesh, c->r->plan, a);
  return all;
}

/* What a person can do about it. */
static Status advise(Collector *c, const PlanMove *m, const char **out) {
  char text[1024];
  const char *cut = m->sharded_by ? m->sharded_by : NULL;
  if (strstr(m->rule, "no sharding rule"))
    snprintf(text, sizeof text, "%s works on whole tensors only: leave what leads to it whole", m->why);
  else if (is_along_batches(c, m) || (cut && !strncmp(cut, "the batch", 9)))
    snprintf(text, sizeof text, "it needs all of the batch; if it has to, nothing helps but a smaller data axis");
  else if (cut)
    snprintf(text, sizeof text,
             "it is sharded by %s: a style that gathers says so openly (colwise_gather_output), another one for it "
             "may keep it sharded here",
             cut);
  else snprintf(text, sizeof text, "give the modules that lead here the same style");
  return collect_text(c, text, out);
}

Status collect_unasked(Collector *c) {
  PlanReport *p = c->p;
  TRY_NEW(p->unasked, arena_new_n(&p->arena, PlanUnasked, p->nmoves + 1));
  for (int i = 0; i < p->nmoves; i++) {
    const PlanMove *m = &p->move[i];
    const char *where;
    int k = 0;
    if (m->cause != CAUSE_RULE) continue;
    TRY(pattern_of(c, m->node >= 0 ? p->node[m->node].module : "outputs", &where));
    while (k < p->nunasked && (p->unasked[k].where != where || !alike(p->unasked[k].first, m))) k++;
    PlanUnasked *u = &p->unasked[k];
    if (k == p->nunasked) {
      *u = (PlanUnasked){.first = m, .where = where};
      TRY(advise(c, m, &u->advice));
      p->nunasked++;
    }
    u->count++;
    u->bytes += m->bytes;
    u->seconds += m->seconds;
  }
  return OK;
}
