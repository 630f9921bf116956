/* plan_report_text.c -- a plan for people: the summary first, tables on request. */
#include <stdio.h>
#include <string.h>

#include "base/human.h"
#include "report/plan_report.h"

enum { NAME = 34, MOST_UNASKED = 20 };

static const char *axes_text(const PlanReport *r, unsigned axes, char *buf, size_t cap) {
  size_t at = 0;
  buf[0] = 0;
  for (int a = 0; a < r->naxes && at < cap; a++) {
    if (!(axes >> a & 1)) continue;
    int n = snprintf(buf + at, cap - at, "%s%s", at ? "+" : "", r->axis_name[a]);
    at += n < 0 ? 0 : (size_t)n;
  }
  return buf;
}

static const char *bytes(int64_t n, char *buf) { return human_bytes((double)n, buf, 32); }

/* ---- summary --------------------------------------------------------------------------------- */

static void put_head(TextBuf *b, const PlanReport *r) {
  text_printf(b, "%s on %s: %d rank%s, %s%s", r->program, r->mesh, r->ranks, PLURAL(r->ranks),
              r->plan ? "plan " : "no plan", r->plan ? r->plan : "");
  if (*r->sizes) text_printf(b, ", at %s", r->sizes);
  if (r->rank) text_printf(b, "; as rank %d", r->rank);
  if (r->step.optimizer) {
    text_printf(b, "; a step of %s on the loss '%s', %d parameter%s", r->step.optimizer, r->loss, r->ngradients,
                PLURAL(r->ngradients));
    if (r->step.batches > 1) text_printf(b, ", %d micro-batches", r->step.batches);
  } else if (r->loss)
    text_printf(b, "; with %d gradient%s of the loss '%s'", r->ngradients, PLURAL(r->ngradients), r->loss);
  text_puts(b, "\n");
  for (int i = 0; i < r->nweights; i++) {
    const PlanWeight *w = &r->weight[i];
    if (w->kind != IN_USER) continue;
    text_printf(b, "  input  %-*s %-22s %s%s%s\n", NAME - 9, w->name, w->type, w->place, w->why ? "   " : "",
                w->why ? w->why : "");
  }
  for (int i = 0; i < r->noutputs; i++)
    text_printf(b, "  output %-*s %-22s %s\n", NAME - 9, r->output[i].name, r->output[i].type, r->output[i].place);
}

static void put_amount(TextBuf *b, const char *what, int64_t n, int64_t whole, const char *more) {
  char x[32], y[32];
  text_printf(b, "  %-*s %12s", NAME - 10, what, bytes(n, x));
  if (whole > 0) text_printf(b, "   of %10s on one rank", bytes(whole, y));
  text_printf(b, "%s%s\n", *more ? ", " : "", more);
}

static void put_memory(TextBuf *b, const PlanReport *r) {
  const PlanTotals *t = &r->rank_total, *w = &r->whole;
  char sharded[64];
  int n = 0, of = 0;
  for (int i = 0; i < r->nweights; i++) {
    if (r->weight[i].kind != IN_PARAMETER || r->weight[i].tied) continue;
    of++;
    n += r->weight[i].cut;
  }
  snprintf(sharded, sizeof sharded, "%d of %d are sharded", n, of);
  text_printf(b, "\nmemory of a rank%s\n", r->rank ? "" : " (the largest)");
  put_amount(b, "weights", t->weights, w->weights, sharded);
  if (t->buffers || w->buffers) put_amount(b, "buffers, constants", t->buffers, w->buffers, "");
  if (t->optimizer) put_amount(b, "optimizer state", t->optimizer, w->optimizer, "");
  if (r->unknown) return;
  put_amount(b, "inputs, outputs", t->inputs + t->outputs, w->inputs + w->outputs, "");
  if (t->gradients) put_amount(b, "gradients", t->gradients, w->gradients, "");
  put_amount(b, r->loss ? "activations, cotangents" : "activations at most", t->activations, w->activations, "");
  if (r->step.optimizer) {
    put_amount(b, "  saved for the backward", r->step.saved, 0, "at most");
    put_amount(b, "  gradients", r->step.gradients, 0, "at most");
  }
  put_amount(b, "total", t->total, w->total, "");
  if (r->step.gathering) text_printf(b, "  parameters are gathered %s\n", r->step.gathering);
  if (r->step.recomputed)
    text_printf(b, "  results of %d nodes are computed again in the backward\n", r->step.recomputed);
}

static void put_step(TextBuf *b, const PlanReport *r) {
  const PlanStep *s = &r->step;
  const PlanTotals *t = &r->rank_total;
  double total = t->compute + t->exposed;
  char x[32], y[32], z[32];
  if (!s->optimizer || !r->timed || total <= 0) return;
  text_printf(b, "  %-*s %12s   backward %s, update %s\n", NAME - 10, "of it forward",
              human_seconds(s->stage[STAGE_FORWARD], x, sizeof x),
              human_seconds(s->stage[STAGE_BACKWARD], y, sizeof y),
              human_seconds(s->stage[STAGE_UPDATE], z, sizeof z));
  text_printf(b, "  %-*s %12s   of the %s that are communicated: %.1f %% of the step\n", NAME - 10,
              "exposed communication", human_seconds(t->exposed, x, sizeof x),
              human_seconds(t->communicate, y, sizeof y), 100 * t->exposed / total);
  text_printf(b, "  %-*s %12.4g samples/s", NAME - 10, "throughput of all ranks", (double)s->samples / total);
  if (s->tokens) text_printf(b, ", %.4g tokens/s", (double)s->tokens / total);
  if (s->batches > 1)
    text_printf(b, " at %d batches of %lld; all but the last take %s\n", s->batches,
                (long long)(s->samples / s->batches), human_seconds(s->before, x, sizeof x));
  else text_printf(b, " at a batch of %lld\n", (long long)s->samples);
}

static void put_ranks(TextBuf *b, const PlanReport *r) {
  char x[32], y[32];
  if (r->nclasses < 2) return;
  const RankClass *most = &r->rank_class[0], *least = &r->rank_class[r->nclasses - 1];
  text_printf(b, "  ranks differ: from %s of weights and buffers (rank%s %.60s) to %s (rank%s %.60s)\n",
              bytes(most->weights + most->buffers, x), PLURAL(most->count), most->ranks,
              bytes(least->weights + least->buffers, y), PLURAL(least->count), least->ranks);
}

static void put_work(TextBuf *b, const PlanReport *r) {
  const PlanTotals *t = &r->rank_total, *w = &r->whole;
  char x[32], y[32], z[32];
  if (r->unknown) return;
  text_printf(b, "\nwork of a rank\n  %-*s %12s", NAME - 10, "arithmetic", human_flops(t->flops, x, sizeof x));
  double share = w->flops > 0 ? 100 * t->flops / w->flops : 0;
  if (w->flops > 0)
    text_printf(b, "   of %10s on one rank, %.*f %% of it; an even share is %.*f %%",
                human_flops(w->flops, y, sizeof y), share < 10 ? 2 : 0, share, r->ranks > 10 ? 2 : 0,
                100.0 / r->ranks);
  text_printf(b, "\n");
  if (r->loss)
    text_printf(b, "  %-*s %12s\n", NAME - 10, "of it backward", human_flops(t->backward_flops, x, sizeof x));
  if (!r->timed) return;
  text_printf(b, "  %-*s %12s   computing %s, communicating %s", NAME - 10, "time, predicted",
              human_seconds(t->compute + t->exposed, x, sizeof x), human_seconds(t->compute, y, sizeof y),
              human_seconds(t->communicate, z, sizeof z));
  double faster = w->compute / (t->compute + t->exposed);
  if (w->compute > 0)
    text_printf(b, "; one rank %s: %.2f times %s", human_seconds(w->compute, x, sizeof x),
                faster >= 1 ? faster : 1 / faster, faster >= 1 ? "faster" : "slower");
  text_printf(b, "   (machine %s)\n", r->machine.name);
  put_step(b, r);
}

/* ---- collectives ------------------------------------------------------------------------------- */

static void put_kinds(TextBuf *b, const PlanReport *r) {
  char axes[128], x[32], y[32];
  if (!r->nkinds) {
    text_puts(b, r->unknown ? "\nno collectives so far\n" : "\nno collectives\n");
    return;
  }
  int width = r->loss ? NAME - 4 : NAME - 10; /* ", backward" has its place */
  bool steps = r->timed && r->step.optimizer;
  text_printf(b, "\n%-*s %8s %14s%s%s\n", width + 2, "collectives", "calls", "received",
              r->timed ? "       time" : "", steps ? "    exposed" : "");
  for (int i = 0; i < r->nkinds; i++) {
    const PlanKind *k = &r->kind[i];
    char name[64];
    snprintf(name, sizeof name, "%s %s%s", step_kind_name(k->kind), axes_text(r, k->axes, axes, sizeof axes),
             k->stage == STAGE_BACKWARD ? ", backward"
             : k->stage == STAGE_UPDATE ? ", update"
                                        : "");
    text_printf(b, "  %-*s %8d %14s", width, name, k->count, bytes(k->bytes, x));
    if (r->timed) text_printf(b, " %10s", human_seconds(k->seconds, y, sizeof y));
    if (steps) text_printf(b, " %10s", human_seconds(k->exposed, y, sizeof y));
    if (k->joined)
      text_printf(b, "   %d %s, joined", k->joined, k->kind == STEP_ALL_GATHER ? "parameters" : "gradients");
    if (k->unasked) text_printf(b, "   %d not asked for", k->unasked);
    text_puts(b, "\n");
  }
}

static void put_asked(TextBuf *b, const PlanReport *r) {
  if (r->nmoves && !r->nunasked) text_puts(b, "  all of them follow from the plan\n");
}

static int moves_of(const PlanLayer *l) {
  int n = 0;
  for (int k = 0; k < STEP_KIND_COUNT; k++) n += l->count[k];
  return n;
}

static const char *layer_title(const PlanReport *r, const PlanLayer *l, char *buf, size_t cap) {
  if (l->alike > 1) snprintf(buf, cap, "%.100s to %.100s", l->name, r->layer[(l - r->layer) + l->alike - 1].name);
  else snprintf(buf, cap, "%.200s", *l->name ? l->name : "(program)");
  return buf;
}

static void put_layer(TextBuf *b, const PlanReport *r, const PlanLayer *l, int width) {
  char name[256], x[32], y[32];
  bool first = true;
  text_printf(b, "  %-*s ", width, layer_title(r, l, name, sizeof name));
  for (int k = 0; k < STEP_KIND_COUNT; k++) {
    if (!l->count[k]) continue;
    text_printf(b, "%s%d %s (%s", first ? "" : ", ", l->count[k], step_kind_name((StepKind)k),
                bytes(l->moved[k], x));
    if (l->backward[k]) text_printf(b, ", %d backward", l->backward[k]);
    text_puts(b, ")");
    first = false;
  }
  if (first) text_puts(b, "no collectives");
  if (l->rank_weights) text_printf(b, "; weights %s of %s", bytes(l->rank_weights, x), bytes(l->weights, y));
  if (r->timed && l->compute + l->communicate > 0)
    text_printf(b, "; %s", human_seconds(l->compute + l->communicate, x, sizeof x));
  text_printf(b, "%s%s\n", l->alike > 1 ? " each" : "", l->unasked ? "   <- not all asked for" : "");
}

static bool is_told(const PlanLayer *l) { return l->alike && (moves_of(l) || l->rank_weights || l->flops > 0); }

enum { WIDEST = 64 };

static void put_layers(TextBuf *b, const PlanReport *r) {
  char name[256];
  int width = NAME;
  for (int i = 0; i < r->nlayers; i++) {
    int n = is_told(&r->layer[i]) ? (int)strlen(layer_title(r, &r->layer[i], name, sizeof name)) : 0;
    if (n > width) width = n < WIDEST ? n : WIDEST;
  }
  text_puts(b, "\nlayer by layer\n");
  for (int i = 0; i < r->nlayers; i++)
    if (is_told(&r->layer[i])) put_layer(b, r, &r->layer[i], width);
}

static void put_unasked(TextBuf *b, const PlanReport *r) {
  char axes[128], x[32];
  if (!r->nunasked) return;
  text_puts(b, "\nnot asked for by the plan\n");
  for (int i = 0; i < r->nunasked && i < MOST_UNASKED; i++) {
    const PlanUnasked *u = &r->unasked[i];
    const PlanMove *m = u->first;
    text_printf(b, "  %d x %s over %s, %s each: %s%s\n", u->count, step_kind_name(m->kind),
                axes_text(r, m->axes, axes, sizeof axes), bytes(m->bytes, x), *u->where ? "in " : "in the program",
                u->where);
    text_printf(b, "      %s %s -> %s for %s", m->type, m->from, m->to, m->why);
    if (m->node >= 0)
      text_printf(b, " '%s'%s%s", r->node[m->node].name, *r->node[m->node].source ? ", " : "",
                  r->node[m->node].source);
    text_puts(b, "\n");
    if (*m->rule) text_printf(b, "      because %s\n", m->rule);
    text_printf(b, "      %s\n", u->advice);
  }
  if (r->nunasked > MOST_UNASKED)
    text_printf(b, "  ... and %d more kinds (--json lists all)\n", r->nunasked - MOST_UNASKED);
}

static void put_notes(TextBuf *b, const PlanReport *r) {
  if (r->unknown) text_printf(b, "\nthe rest is not known before it runs: %s\n", r->unknown);
  for (int i = 0; i < r->nnotes; i++) text_printf(b, "%s%s\n", i ? "  " : "\nnote ", r->note[i]);
}

/* ---- tables --------------------------------------------------------------------------------------- */

static void put_weights(TextBuf *b, const PlanReport *r) {
  char x[32], y[32];
  text_printf(b, "\n%-*s %-20s %-28s %10s %10s  %s\n", NAME + 10, "weights", "type", "placement", "whole",
              "of a rank", "by");
  for (int i = 0; i < r->nweights; i++) {
    const PlanWeight *w = &r->weight[i];
    if (w->kind == IN_USER) continue;
    text_printf(b, "%-*s %-20s %-28s %10s %10s  ", NAME + 10, w->name, w->type, w->place, bytes(w->bytes, x),
                bytes(w->rank_bytes, y));
    if (w->tied) text_printf(b, "tied to %s\n", w->tied);
    else text_printf(b, "%s\n", w->why ? w->why : "");
  }
}

static void put_values(TextBuf *b, const PlanValue *v, int n) {
  for (int i = 0; i < n; i++) text_printf(b, "%s%s", i ? " " : "", v[i].place);
}

static void put_move(TextBuf *b, const PlanReport *r, const PlanMove *m) {
  char axes[128], x[32];
  text_printf(b, "  + %s %s %s %s -> %s, %s: %s%s\n", step_kind_name(m->kind),
              axes_text(r, m->axes, axes, sizeof axes), m->type, m->from, m->to, bytes(m->bytes, x), m->why,
              m->cause == CAUSE_RULE ? "   (not asked for)" : "");
}

/* Where a collective that is done for no node of the forward is told: parameters, backward, update, outputs; else
 * -1. */
static int part_of(const PlanMove *m) {
  if (m->stage) return m->stage == STAGE_BACKWARD ? 1 : 2;
  return m->node >= 0 ? -1 : m->cause == CAUSE_PARAMETER ? 0 : 3;
}

static void put_nodes(TextBuf *b, const PlanReport *r) {
  char x[32];
  const char *module = NULL;
  text_puts(b, "\nnodes: placements of arguments -> of results\n");
  for (int i = 0; i < r->nnodes; i++) {
    const PlanNode *n = &r->node[i];
    if (module != n->module) text_printf(b, "%s:\n", *n->module ? n->module : "(program)");
    module = n->module;
    for (int m = 0; m < n->nmoves; m++)
      if (!r->move[n->move + m].after) put_move(b, r, &r->move[n->move + m]);
    text_printf(b, "  %-30s %-40s ", n->name, n->op);
    put_values(b, n->in, n->nin);
    text_puts(b, " -> ");
    put_values(b, n->out, n->nout);
    if (n->nout == 1) text_printf(b, "  %s", n->out[0].type);
    if (n->flops > 0) text_printf(b, "  %s", human_flops(n->flops, x, sizeof x));
    text_puts(b, "\n");
    for (int m = 0; m < n->nmoves; m++)
      if (r->move[n->move + m].after) put_move(b, r, &r->move[n->move + m]);
  }
  static const char *const titles[] = {"parameters:", "backward, in its order:", "update:", "outputs:"};
  for (int part = 0; part < 4; part++)
    for (int i = 0, any = 0; i < r->nmoves; i++) {
      if (part_of(&r->move[i]) != part) continue;
      if (!any++) text_printf(b, "%s\n", titles[part]);
      put_move(b, r, &r->move[i]);
    }
}

void plan_report_text(TextBuf *b, const PlanReport *r, PlanTextOptions o) {
  put_head(b, r);
  put_memory(b, r);
  put_ranks(b, r);
  put_work(b, r);
  put_kinds(b, r);
  put_asked(b, r);
  put_layers(b, r);
  put_unasked(b, r);
  put_notes(b, r);
  if (o.weights) put_weights(b, r);
  if (o.nodes) put_nodes(b, r);
}
