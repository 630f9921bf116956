/* fit_step.c -- see fit_step.h. */
#include "runtime/fit_step.h"

#include <math.h>
#include <stdlib.h>

#include "comm/comm.h"
#include "comm/groups.h"
#include "passes/bucket_size.h"
#include "passes/pass.h"

/* A way of gathering. */
typedef struct {
  bool keep, at_once;
  int prefetch;
  double seconds; /* predicted, of its collectives, on the slowest rank */
} Policy;

enum { MOST_AHEAD = 2, POLICIES = 2 * (MOST_AHEAD + 1) + 1 };

typedef struct {
  Ctx *ctx;
  const Exported *local;
  const ReduceGradients *how;
  const Marks *marks;
  MemoryLimit limit; /* in bytes */
  Policy policy[POLICIES];
  int n;
  double free_slab; /* without a limit; of the rank that takes the most */
  double least;     /* what the step takes at least, on the rank that takes the most */
} Choosing;

static ReduceGradients with_policy(const ReduceGradients *how, const Policy *p) {
  ReduceGradients r = *how;
  r.keep_gathered = p->keep;
  r.prefetch = p->prefetch;
  r.reduce_at_once = p->at_once;
  return r;
}

/* What the user has not said is open. */
static void list_policies(Choosing *c) {
  if (!marks_gathered_axes(c->marks)) {
    c->policy[c->n++] = (Policy){.keep = c->how->keep_gathered, .prefetch = c->how->prefetch};
    return;
  }
  bool open = c->how->prefetch < 0;
  for (int keep = 1; keep >= c->how->keep_gathered; keep--)
    for (int ahead = open ? MOST_AHEAD : c->how->prefetch; ahead >= (open ? 0 : c->how->prefetch); ahead--)
      c->policy[c->n++] = (Policy){.keep = keep, .prefetch = ahead};
  c->policy[c->n] = c->policy[c->n - 1]; /* the one that takes the least, and less */
  c->policy[c->n++].at_once = true;
}

/* Of each number, the largest of all ranks. */
static Status largest_of_ranks(const Marks *marks, double *v, int n) {
  Comm *all;
  if (!marks->mesh->world) return OK;
  TRY(mesh_group(marks->mesh, (1u << marks->mesh->naxes) - 1, &all));
  return comm_run(all, &(Coll){.kind = COLL_ALL_REDUCE,
                               .dtype = DT_F64,
                               .op = REDUCE_MAX,
                               .send = v,
                               .recv = v,
                               .count = n,
                               .why = "how gradients and parameters are exchanged"});
}

/* The program with a policy, fitted to a limit, which is then gone. */
static Status try_policy(const Choosing *c, const Policy *p, MemoryLimit limit, MemoryFit *fit) {
  ReduceGradients how = with_policy(c->how, p);
  char late[PASSES_CAP];
  Exported *copy;
  *fit = (MemoryFit){0};
  TRY(exported_copy(c->local, &copy));
  Status s = fit_memory(c->ctx, copy, passes_of_reductions(&how, c->marks, late, sizeof late), limit, fit);
  exported_free(copy);
  return s;
}

static int by_seconds(const void *a, const void *b) {
  const Policy *x = a, *y = b;
  if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
  return x->keep != y->keep ? x->keep - y->keep : x->prefetch - y->prefetch; /* the one that takes less memory */
}

/* The policies in the order of what their collectives take. */
static Status price_policies(Choosing *c) {
  double seconds[POLICIES];
  for (int i = 0; i < c->n; i++) {
    MemoryFit fit;
    TRY(try_policy(c, &c->policy[i], (MemoryLimit){.amount = 1, .share = true}, &fit));
    seconds[i] = fit.group_seconds;
  }
  TRY(largest_of_ranks(c->marks, seconds, c->n));
  for (int i = 0; i < c->n; i++) c->policy[i].seconds = seconds[i];
  qsort(c->policy, (size_t)c->n, sizeof *c->policy, by_seconds);
  return OK;
}

/* Seconds that are computed again with a policy so that it fits; infinite on all ranks if it does not on one. */
static Status seconds_again(Choosing *c, const Policy *p, double *out) {
  MemoryFit fit;
  Status s = try_policy(c, p, c->limit, &fit);
  if (s && !fit.least) return s;
  double found[] = {s ? INFINITY : fit.chosen.extra_seconds, s ? (double)fit.least : 0};
  status_free(s);
  TRY(largest_of_ranks(c->marks, found, 2));
  if (found[1] > 0 && found[1] < c->least) c->least = found[1];
  *out = found[0];
  return OK;
}

static Status choose_policy(Choosing *c, const Policy **out) {
  double best = INFINITY;
  *out = NULL;
  if (c->n > 1) TRY(price_policies(c));
  for (int i = 0; i < c->n && c->policy[i].seconds < best; i++) {
    double again;
    TRY(seconds_again(c, &c->policy[i], &again));
    if (c->policy[i].seconds + again >= best) continue;
    best = c->policy[i].seconds + again;
    *out = &c->policy[i];
  }
  return *out ? OK : memory_refused((size_t)c->limit.amount, (size_t)c->least, (size_t)c->free_slab);
}

/* A share is one of what the step takes as it would be without a limit, on the rank that takes the most. */
static Status limit_in_bytes(Choosing *c, MemoryLimit limit) {
  MemoryFit fit;
  Policy unlimited = {.keep = c->how->keep_gathered, .prefetch = c->how->prefetch};
  TRY(try_policy(c, &unlimited, (MemoryLimit){.amount = 1, .share = true}, &fit));
  c->free_slab = (double)fit.free_slab;
  c->least = INFINITY;
  TRY(largest_of_ranks(c->marks, &c->free_slab, 1));
  c->limit = (MemoryLimit){.amount = floor(limit.share ? limit.amount * c->free_slab : limit.amount)};
  return OK;
}

static Status choose_gathers(Ctx *ctx, const Exported *local, const Marks *marks, MemoryLimit *limit,
                             StepFit *out) {
  ReduceGradients asked = out->how;
  Choosing c = {.ctx = ctx, .local = local, .how = &asked, .marks = marks};
  const Policy *chosen;
  list_policies(&c);
  TRY(limit_in_bytes(&c, *limit));
  TRY(choose_policy(&c, &chosen));
  out->how = with_policy(&asked, chosen);
  *limit = c.limit;
  return OK;
}

/* A size that this rank's machine is done with first may not be another's, which has other rows. */
static Status choose_buckets(Exported *local, const Marks *marks, ReduceGradients *how) {
  if (how->bucket_mb >= 0) return OK;
  const BucketMachine *m = how->machine.ranks > 1 ? &how->machine : &bucket_machine_default;
  TRY(bucket_size_of_step(local, m, &how->bucket_mb));
  return largest_of_ranks(marks, &how->bucket_mb, 1);
}

/* Rows may be more than those that were agreed on, and a share is one of what they take. */
static Status keep_to(Ctx *ctx, const Exported *local, const Marks *marks, const StepFit *agreed,
                      MemoryLimit *limit) {
  Choosing c = {.ctx = ctx, .local = local, .how = &agreed->how, .marks = marks};
  const Policy same = {.keep = c.how->keep_gathered, .at_once = c.how->reduce_at_once, .prefetch = c.how->prefetch};
  MemoryFit fit;
  if (!limit->share) return OK;
  TRY(try_policy(&c, &same, (MemoryLimit){.amount = 1, .share = true}, &fit));
  double bytes = floor(limit->amount * (double)fit.free_slab);
  *limit = (MemoryLimit){.amount = fmax(bytes, (double)agreed->fit.limit)};
  return OK;
}

static Status choose(Ctx *ctx, Exported *local, const Marks *marks, MemoryLimit *limit, StepFit *out) {
  TRY(choose_buckets(local, marks, &out->how));
  return limit->amount > 0 ? choose_gathers(ctx, local, marks, limit, out) : OK;
}

Status fit_step(Ctx *ctx, Exported *local, const ReduceGradients *how, const Marks *marks, MemoryLimit limit,
                const StepFit *agreed, StepFit *out) {
  char late[PASSES_CAP];
  *out = (StepFit){.how = agreed ? agreed->how : *how};
  TRY(pass_run_list(local, passes_of_step, ctx, NULL));
  TRY(agreed ? keep_to(ctx, local, marks, agreed, &limit) : choose(ctx, local, marks, &limit, out));
  passes_of_reductions(&out->how, marks, late, sizeof late);
  return limit.amount > 0 ? fit_memory(ctx, local, late, limit, &out->fit) : pass_run_list(local, late, ctx, NULL);
}
