/* fit_memory.c -- see fit_memory.h. */
#include "runtime/fit_memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/textbuf.h"
#include "passes/comm_block.h"
#include "passes/pass.h"
#include "passes/started.h"
#include "runtime/memory_peak.h"
#include "runtime/saved.h"

enum {
  STEPS = 100,  /* a step lets go of so small a part of the free-running slab, or of one home */
  WORTH = 8,    /* a step that frees less than this part of what it lets go of is put off */
  PLANS = 1000, /* are made at most */
};

/* What is computed again, and the plan of it.  Arrays go by home. */
typedef struct {
  bool *again;                 /* it is let go of */
  bool *copied;                /* it is computed again, for its own sake or for another that is made of it */
  int *first_read, *last_held; /* its first reader in the backward, its last user before that */
  MemoryStep step;
  int peak; /* position where the plan is at its height */
} Choice;

typedef struct {
  Ctx *ctx;
  Exported *joint;
  const char *late; /* passes behind the choice; NULL: none */
  Saved saved;
  Arena arena;
  Choice now, before; /* before: as it was when the step at hand began */
  bool *put_off;      /* by home */
  int *seen, stamp;   /* by home: stamped by the walk at hand */
  int *stack;         /* homes that the walk has yet to go on from */
  double groups;      /* predicted seconds of their collectives, in the first plan */
  int plans;
} Fit;

/* ---- planning -------------------------------------------------------------------------------------------- */

typedef struct {
  Fit *f;
  bool behind; /* the forward */
  int at;
} Reading;

static void note_use(void *arg, Val **ref) {
  const Reading *r = arg;
  Fit *f = r->f;
  int home = (*ref)->id < f->saved.nvals ? f->saved.home_of[(*ref)->id] : -1;
  if (home < 0) return;
  if (!r->behind) f->now.last_held[home] = r->at;
  else if (f->now.first_read[home] < 0) f->now.first_read[home] = r->at;
}

/* Of a copy that has been rewritten; positions count from 1 as memory_peak() does. */
static void find_uses(Fit *f, const Exported *e) {
  const Node *end = saved_forward_end(e);
  for (int h = 0; h < f->saved.nhomes; h++) f->now.first_read[h] = f->now.last_held[h] = -1;
  Reading r = {.f = f};
  for (Node *n = e->graph->first; n; n = n->next) {
    r.at++;
    node_each_val(n, note_use, &r);
    for (int i = 0; i < n->nouts; i++) note_use(&r, &n->outs[i]);
    r.behind |= n == end;
  }
}

/* A collective of fully sharded parameters takes the time of moving its bytes, which the rank's own cores do where
 * ranks are on one machine; and the rank waits for what is not hidden by the work between its start and its wait.
 */
static Status price_groups(Fit *f, const Program *p) {
  double *takes, *begun, work = 0; /* by number of the node: its seconds, and those of the work before it */
  int n = 0;
  for (Node *node = p->graph->graph->first; node; node = node->next) node->mark = n++;
  TRY_NEW(takes, arena_new_n(&f->arena, double, n + 1));
  TRY_NEW(begun, arena_new_n(&f->arena, double, n + 1));
  f->groups = 0;
  for (int i = 0; i < p->ninstrs; i++) {
    const Node *node = p->instrs[i].node;
    const Node *start = node_is(node, WAIT_TENSOR) ? node->args[0].val->node : NULL;
    takes[node->mark] = call_work(&p->instrs[i].call).seconds;
    begun[node->mark] = work;
    if (!node_starts(node)) work += takes[node->mark];
    if (!start || !node_starts(start) || start->args[0].kind != ARG_LIST) continue;
    double hidden = begun[node->mark] - begun[start->mark], left = takes[start->mark] - hidden;
    f->groups += takes[start->mark] + (left > 0 ? left : 0);
  }
  return OK;
}

static Status compute_again(const Fit *f, Exported *e) {
  TRY(saved_compute_again(&f->saved, f->now.again, e->graph));
  return f->late ? pass_run_list(e, f->late, f->ctx, NULL) : OK;
}

/* What the program would be with the decisions so far. */
static Status plan(Fit *f) {
  Exported *copy;
  Program *p;
  f->plans++;
  TRY(exported_copy(f->joint, &copy));
  Status s = compute_again(f, copy);
  if (s) return exported_free(copy), s;
  find_uses(f, copy);
  TRY(program_plan(f->ctx, copy, &p));
  f->now.step.slab = p->slab_bytes;
  s = memory_peak(p, &f->now.peak);
  if (!s && f->plans == 1) s = price_groups(f, p);
  program_free(p);
  return s;
}

/* ---- what a home costs --------------------------------------------------------------------------------------- */

typedef struct {
  Fit *f;
  MemoryStep *sum;
  bool whole; /* with what is computed again anyway */
  bool take;  /* it is computed again from now on */
  int n;      /* of Fit.stack */
} Chain;

/* Meets a home once; results of the same node come with it. */
static void meet(Chain *c, int home) {
  Fit *f = c->f;
  if (f->seen[home] == f->stamp || (f->now.copied[home] && !c->whole)) return;
  const Node *n = f->saved.home[home].value->node;
  const NodeWork *w = &f->saved.work[n->mark];
  c->sum->extra_flops += w->flops;
  c->sum->extra_seconds += w->seconds;
  c->sum->recomputed++;
  f->stack[c->n++] = home;
  for (int i = 0; i < n->nouts; i++) {
    int with = f->saved.home_of[n->outs[i]->id];
    if (with < 0) continue;
    f->seen[with] = f->stamp;
    if (c->take) f->now.copied[with] = true;
  }
}

static void meet_operand(void *arg, Val **ref) {
  Chain *c = arg;
  int home = c->f->saved.home_of[(*ref)->id];
  if (home_is_gone(&c->f->saved, c->f->now.again, home)) meet(c, home);
}

static void walk_chain(Chain *c, int home) {
  c->f->stamp++;
  meet(c, home);
  while (c->n) node_each_val(c->f->saved.home[c->f->stack[--c->n]].value->node, meet_operand, c);
}

/* What computing a home again takes: on top of all that is computed again already, or as a whole. */
static MemoryStep chain_of(Fit *f, int home, bool whole) {
  MemoryStep sum = {0};
  walk_chain(&(Chain){.f = f, .sum = &sum, .whole = whole}, home);
  return sum;
}

static void take(Fit *f, int home) {
  walk_chain(&(Chain){.f = f, .sum = &f->now.step, .take = true}, home);
  f->now.again[home] = true;
}

/* ---- steps ----------------------------------------------------------------------------------------------- */

/* Is the home kept across the height of the plan, without any use there? */
static bool frees_peak(const Fit *f, int home) {
  const Home *h = &f->saved.home[home];
  return h->saved && !h->fixed && !f->now.again[home] && f->now.last_held[home] < f->now.peak &&
         f->now.peak < f->now.first_read[home];
}

typedef struct {
  int home;
  double rate; /* bytes per second */
  int chain;   /* nodes that must be computed again for it */
} Candidate;

/* Of equal ones, that with the shortest chain, whose other results take memory then; else the earliest, for it is
 * computed again when much else is gone. */
static bool is_better(const Candidate *a, const Candidate *b) {
  if (b->home < 0 || a->rate > b->rate * (1 + 1e-6)) return true;
  return a->rate > b->rate * (1 - 1e-6) && a->chain < b->chain;
}

/* -1: none is left. */
static int best_home(Fit *f, bool put_off) {
  Candidate best = {.home = -1};
  for (int h = 0; h < f->saved.nhomes; h++) {
    if (!frees_peak(f, h) || f->put_off[h] != put_off) continue;
    double seconds = chain_of(f, h, false).extra_seconds;
    Candidate c = {h, (double)f->saved.home[h].bytes / (seconds + 1e-12), chain_of(f, h, true).recomputed};
    if (is_better(&c, &best)) best = c;
  }
  return best.home;
}

static void copy_choice(const Fit *f, Choice *to, const Choice *from) {
  size_t n = (size_t)f->saved.nhomes;
  memcpy(to->again, from->again, n * sizeof *to->again);
  memcpy(to->copied, from->copied, n * sizeof *to->copied);
  memcpy(to->first_read, from->first_read, n * sizeof *to->first_read);
  memcpy(to->last_held, from->last_held, n * sizeof *to->last_held);
  to->step = from->step;
  to->peak = from->peak;
}

/* Lets go of homes until enough is freed, and plans. */
static Status try_step(Fit *f, size_t enough, bool put_off, size_t *freed) {
  int home;
  *freed = 0;
  copy_choice(f, &f->before, &f->now);
  while (*freed < enough && (home = best_home(f, put_off)) >= 0) {
    take(f, home);
    *freed += f->saved.home[home].bytes;
  }
  return *freed ? plan(f) : OK;
}

/* Those whose loss did not help, or not yet, wait until nothing else does.  *more: a step was made. */
static Status step(Fit *f, size_t enough, bool *more) {
  size_t freed;
  *more = true;
  while (f->plans < PLANS) {
    TRY(try_step(f, enough, false, &freed));
    if (!freed) break;
    if (f->now.step.slab + freed / WORTH <= f->before.step.slab) return OK;
    for (int h = 0; h < f->saved.nhomes; h++) f->put_off[h] |= f->now.again[h] && !f->before.again[h];
    copy_choice(f, &f->now, &f->before);
  }
  TRY(try_step(f, enough, true, &freed));
  if (f->now.step.slab < f->before.step.slab) memset(f->put_off, 0, (size_t)f->saved.nhomes);
  *more = freed && f->plans < PLANS;
  return OK;
}

static void fit_free(Fit *f) {
  saved_free(&f->saved);
  arena_free(&f->arena);
}

static Status new_choice(Fit *f, Choice *c) {
  int n = f->saved.nhomes + 1;
  TRY_NEW(c->again, arena_new_n(&f->arena, bool, n));
  TRY_NEW(c->copied, arena_new_n(&f->arena, bool, n));
  TRY_NEW(c->first_read, arena_new_n(&f->arena, int, n));
  TRY_NEW(c->last_held, arena_new_n(&f->arena, int, n));
  return OK;
}

static Status fit_begin(Ctx *ctx, Exported *joint, const char *late, Fit *f) {
  *f = (Fit){.ctx = ctx, .joint = joint, .late = late};
  TRY(saved_find(ctx, joint, &f->saved));
  if (f->saved.forward_end < 0)
    return status_hint(fail(ERR_USAGE,
                            "no output of the program is a loss, so that nothing can be computed again in "
                            "a backward"),
                       "a limit of memory is for programs with gradients: give --grad");
  TRY(new_choice(f, &f->now));
  TRY(new_choice(f, &f->before));
  TRY_NEW(f->put_off, arena_new_n(&f->arena, bool, f->saved.nhomes + 1));
  TRY_NEW(f->seen, arena_new_n(&f->arena, int, f->saved.nhomes + 1));
  TRY_NEW(f->stack, arena_new_n(&f->arena, int, f->saved.nhomes + 1));
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

Status memory_refused(size_t limit, size_t least, size_t free_slab) {
  return status_hint(fail(ERR_USAGE,
                          "the intermediate results do not fit %zu bytes: computing again all that can be computed "
                          "again, they take %zu, and %zu as they are",
                          limit, least, free_slab),
                     "the smallest limit is --memory %zu, %.3g%% of what they take", least,
                     100 * (double)least / (double)free_slab);
}

static Status search(Fit *f, MemoryLimit limit, MemoryFit *out) {
  size_t least = f->now.step.slab;
  bool more = true;
  out->group_seconds = f->groups;
  out->free_slab = f->now.step.slab;
  out->limit = limit_bytes(limit, f->now.step.slab);
  for (int i = 0; i < f->saved.nnodes; i++) out->flops += f->saved.work[i].flops;
  while (f->now.step.slab > out->limit && more) {
    TRY(step(f, out->free_slab / STEPS + 1, &more));
    if (f->now.step.slab < least) least = f->now.step.slab;
  }
  out->chosen = f->now.step;
  if (f->now.step.slab <= out->limit) return compute_again(f, f->joint);
  out->least = least;
  return memory_refused(out->limit, least, out->free_slab);
}

Status fit_memory(Ctx *ctx, Exported *joint, const char *late, MemoryLimit limit, MemoryFit *out) {
  Fit f;
  *out = (MemoryFit){0};
  Status s = fit_begin(ctx, joint, late, &f);
  if (!s) s = search(&f, limit, out);
  fit_free(&f);
  return s;
}

/* ---- the curve ---------------------------------------------------------------------------------------------- */

static Status collect(Fit *f, MemoryStep **steps, int *n) {
  int cap = 0;
  bool more = true;
  size_t enough = f->now.step.slab / STEPS + 1;
  TRY_ROOM(*steps, *n, cap);
  (*steps)[(*n)++] = f->now.step;
  while (more) {
    TRY(step(f, enough, &more));
    if (!more || f->now.step.slab >= (*steps)[*n - 1].slab) continue;
    TRY_ROOM(*steps, *n, cap);
    (*steps)[(*n)++] = f->now.step;
  }
  return OK;
}

Status memory_curve(Ctx *ctx, Exported *joint, MemoryStep **steps, int *n) {
  Fit f;
  *steps = NULL;
  *n = 0;
  Status s = fit_begin(ctx, joint, NULL, &f);
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
