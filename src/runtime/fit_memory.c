/* fit_memory.c -- see fit_memory.h. */
#include "runtime/fit_memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/textbuf.h"
#include "runtime/memory_peak.h"
#include "runtime/saved.h"

enum { STEPS = 100 }; /* a step lets go of so small a part of the free-running slab, or of one home */

typedef struct {
  Ctx *ctx;
  Exported *joint;
  Saved saved;
  bool *again;                 /* by home: computed again, as decided so far */
  bool *copied;                /* by home: among what is computed again at all, chains included */
  int *first_read, *last_held; /* by home, as planned last: first reader in the backward, last user before */
  int *seen, stamp;            /* by home */
  MemoryStep now;
  int peak; /* position where the plan is at its height */
} Fit;

/* ---- planning -------------------------------------------------------------------------------------------- */

typedef struct {
  Fit *f;
  const Node *node;
  int at;
} Reading;

static void note_use(void *arg, Val **ref) {
  const Reading *r = arg;
  Fit *f = r->f;
  int home = (*ref)->id < f->saved.nvals ? f->saved.home_of[(*ref)->id] : -1;
  if (home < 0) return;
  if (r->node->mark <= f->saved.loss) f->last_held[home] = r->at;
  else if (f->first_read[home] < 0) f->first_read[home] = r->at;
}

/* Of a copy that has been rewritten; positions count from 1 as memory_peak() does. */
static void find_uses(Fit *f, Graph *g) {
  for (int h = 0; h < f->saved.nhomes; h++) f->first_read[h] = f->last_held[h] = -1;
  Reading r = {f, NULL, 0};
  for (Node *n = g->first; n; n = n->next) {
    r.node = n;
    r.at++;
    node_each_val(n, note_use, &r);
    for (int i = 0; i < n->nouts; i++) note_use(&r, &n->outs[i]);
  }
}

/* What the program would be with the decisions so far. */
static Status plan(Fit *f) {
  Exported *copy;
  Program *p;
  TRY(exported_copy(f->joint, &copy));
  Status s = saved_compute_again(&f->saved, f->again, copy->graph);
  if (s) return exported_free(copy), s;
  find_uses(f, copy->graph);
  TRY(program_plan(f->ctx, copy, &p));
  f->now.slab = p->slab_bytes;
  s = memory_peak(p, &f->peak);
  program_free(p);
  return s;
}

/* ---- what a home costs --------------------------------------------------------------------------------------- */

typedef struct {
  Fit *f;
  int root;
  MemoryStep *sum;
  bool take; /* the chain is computed again from now on */
} Chain;

static void add_home(Chain *c, int home);

static void add_operand(void *arg, Val **ref) {
  Chain *c = arg;
  int home = c->f->saved.home_of[(*ref)->id];
  if (home_is_gone(&c->f->saved, c->f->again, home)) add_home(c, home);
}

static void add_home(Chain *c, int home) {
  Fit *f = c->f;
  if (f->seen[home] == f->stamp || f->copied[home]) return;
  f->seen[home] = f->stamp;
  if (c->take) f->copied[home] = true;
  Node *n = f->saved.home[home].value->node;
  const NodeWork *w = &f->saved.work[n->mark];
  c->sum->extra_flops += w->flops;
  c->sum->extra_seconds += w->seconds;
  c->sum->recomputed++;
  for (int i = 0; i < n->nouts; i++) { /* they come with it */
    int other = f->saved.home_of[n->outs[i]->id];
    if (other < 0) continue;
    f->seen[other] = f->stamp;
    if (c->take) f->copied[other] = true;
  }
  node_each_val(n, add_operand, c);
}

/* What computing a home again adds to all that is computed again already. */
static MemoryStep added_by(Fit *f, int home) {
  MemoryStep sum = {0};
  f->stamp++;
  add_home(&(Chain){f, home, &sum, false}, home);
  return sum;
}

static void take(Fit *f, int home) {
  f->stamp++;
  add_home(&(Chain){f, home, &f->now, true}, home);
  f->again[home] = true;
}

/* ---- steps ----------------------------------------------------------------------------------------------- */

/* Is the home kept across the height of the plan, without any use there? */
static bool frees_peak(const Fit *f, int home) {
  const Home *h = &f->saved.home[home];
  return h->saved && !h->fixed && !f->again[home] && f->last_held[home] < f->peak && f->peak < f->first_read[home];
}

/* The home that gives the most bytes per second; of equals the earliest, for it will be computed again when much
 * else is gone.  -1: none is left. */
static int best_home(Fit *f) {
  int best = -1;
  double best_rate = 0;
  for (int h = 0; h < f->saved.nhomes; h++) {
    if (!frees_peak(f, h)) continue;
    double rate = (double)f->saved.home[h].bytes / (added_by(f, h).extra_seconds + 1e-12);
    if (best >= 0 && rate <= best_rate * (1 + 1e-6)) continue;
    best = h;
    best_rate = rate;
  }
  return best;
}

/* *more: whether there was something to let go of. */
static Status step(Fit *f, size_t enough, bool *more) {
  size_t freed = 0;
  *more = false;
  while (freed < enough) {
    int home = best_home(f);
    if (home < 0) break;
    take(f, home);
    freed += f->saved.home[home].bytes;
    *more = true;
  }
  return *more ? plan(f) : OK;
}

static void fit_free(Fit *f) {
  saved_free(&f->saved);
  free(f->again);
  free(f->copied);
  free(f->first_read);
  free(f->last_held);
  free(f->seen);
}

static Status fit_begin(Ctx *ctx, Exported *joint, Fit *f) {
  *f = (Fit){.ctx = ctx, .joint = joint};
  TRY(saved_find(ctx, joint, &f->saved));
  size_t n = (size_t)f->saved.nhomes + 1;
  TRY_NEW(f->again, calloc(n, sizeof *f->again));
  TRY_NEW(f->copied, calloc(n, sizeof *f->copied));
  TRY_NEW(f->first_read, calloc(n, sizeof *f->first_read));
  TRY_NEW(f->last_held, calloc(n, sizeof *f->last_held));
  TRY_NEW(f->seen, calloc(n, sizeof *f->seen));
  return plan(f);
}

/* ---- limits ---------------------------------------------------------------------------------------------- */

Status memory_limit_parse(const char *text, MemoryLimit *out) {
  static const char units[] = "KMGT";
  const char *end;
  double amount = text_to_float(text, &end), unit = 1;
  *out = (MemoryLimit){.share = *end == '%'};
  const char *at = *end ? strchr(units, *end & ~0x20) : NULL;
  if (out->share) unit = 0.01, end++;
  else if (at) {
    unit = ldexp(1, 10 * (int)(at - units + 1));
    end++;
    if (*end == 'i') end++;
    if ((*end & ~0x20) == 'B') end++;
  }
  out->amount = amount * unit;
  bool number = end != text && !*end && isfinite(amount) && amount > 0 && out->amount < 9e18;
  if (number && (!out->share || amount <= 100)) return OK;
  return status_hint(
      fail(ERR_USAGE, "'%s' is no amount of memory", text),
      "bytes, with K, M, G or T behind them, or a percentage of what it takes without a limit: 600M, "
      "1.5G, 70%%");
}

static size_t limit_bytes(MemoryLimit l, size_t free_slab) {
  return l.share ? (size_t)(l.amount * (double)free_slab) : (size_t)l.amount;
}

static Status refuse(const MemoryFit *fit, size_t least) {
  return status_hint(fail(ERR_USAGE,
                          "the intermediate results do not fit %zu bytes: computing again all that can be computed "
                          "again, they take %zu, and %zu as they are",
                          fit->limit, least, fit->free_slab),
                     "the smallest limit is --memory %zu, %.3g%% of what they take", least,
                     100 * (double)least / (double)fit->free_slab);
}

static Status search(Fit *f, MemoryLimit limit, MemoryFit *out) {
  size_t least = f->now.slab;
  bool more = true;
  out->free_slab = f->now.slab;
  out->limit = limit_bytes(limit, f->now.slab);
  for (int i = 0; i < f->saved.nnodes; i++) out->flops += f->saved.work[i].flops;
  while (f->now.slab > out->limit && more) {
    TRY(step(f, out->free_slab / STEPS + 1, &more));
    if (f->now.slab < least) least = f->now.slab;
  }
  out->chosen = f->now;
  if (f->now.slab > out->limit) return refuse(out, least);
  return saved_compute_again(&f->saved, f->again, f->joint->graph);
}

Status fit_memory(Ctx *ctx, Exported *joint, MemoryLimit limit, MemoryFit *out) {
  Fit f;
  *out = (MemoryFit){0};
  Status s = fit_begin(ctx, joint, &f);
  if (!s) s = search(&f, limit, out);
  fit_free(&f);
  return s;
}

/* ---- the curve ---------------------------------------------------------------------------------------------- */

static Status collect(Fit *f, MemoryStep **steps, int *n) {
  int cap = 64;
  bool more = true;
  size_t enough = f->now.slab / STEPS + 1;
  TRY_NEW(*steps, malloc((size_t)cap * sizeof **steps));
  (*steps)[(*n)++] = f->now;
  while (more) {
    TRY(step(f, enough, &more));
    if (!more || f->now.slab >= (*steps)[*n - 1].slab) continue;
    if (*n == cap) {
      MemoryStep *larger;
      TRY_NEW(larger, realloc(*steps, (size_t)(cap *= 2) * sizeof **steps));
      *steps = larger;
    }
    (*steps)[(*n)++] = f->now;
  }
  return OK;
}

Status memory_curve(Ctx *ctx, Exported *joint, MemoryStep **steps, int *n) {
  Fit f;
  *steps = NULL;
  *n = 0;
  Status s = fit_begin(ctx, joint, &f);
  if (!s) s = collect(&f, steps, n);
  fit_free(&f);
  if (s) {
    free(*steps);
    *steps = NULL;
  }
  return s;
}

const MemoryStep *memory_step_within(const MemoryStep *steps, int n, size_t limit) {
  for (int i = 0; i < n; i++)
    if (steps[i].slab <= limit) return &steps[i];
  return NULL;
}
