/* ranks.c -- see ranks.h. */
#include "runtime/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/parallel.h"

typedef struct {
  const Ranks *ranks;
  RankWorkFn *work;
  void *arg;
  Status *own; /* threads: per rank, the error of its work; NULL: nobody keeps them */
} Launch;

/* Thread ranks are bound to their share where there are cores enough; a launcher may have bound
 * its processes, too. */
int ranks_threads(const World *w) {
  int cores = parallel_cores(), n = world_local_ranks(w);
  bool bound = cores < sysconf(_SC_NPROCESSORS_ONLN);
  if (cores < n) return transport_has_processes(world_transport(w)) ? cores : 1;
  return bound ? cores : cores / n;
}

/* I2 */
static Status as_rank_failure(Status s) {
  if (!s || status_code(s) != ERR_FAIL) return s;
  Status named = fail(ERR_RANK, "%s", status_message(s));
  status_free(s);
  return named;
}

static Status with_context(World *w, void *arg) {
  const Launch *l = arg;
  const Ranks *r = l->ranks;
  if (r->timeout) world_set_timeout(w, *r->timeout);
  Ctx ctx;
  ctx_init(&ctx, r->threads > 0 ? r->threads : ranks_threads(w));
  ctx.kern.sharers = world_size(w);
  Status s = groups_new(w, &ctx.groups);
  if (!s && r->groups) s = group_list_define(r->groups, ctx.groups);
  if (!s) s = l->work(&ctx, w, l->arg);
  if (ctx.groups) s = groups_end(ctx.groups, s);
  groups_free(ctx.groups);
  ctx_free(&ctx);
  s = as_rank_failure(s);
  if (s && l->own) l->own[world_rank(w)] = fail(status_code(s), "%s", status_message(s));
  return s;
}

/* I3: what all ranks have found is not the error of the one that was first. */
static Status as_common(const Launch *l, Status s) {
  const int n = l->ranks->n;
  char prefix[64];
  bool common = s != NULL;
  for (int i = 0; i < n && common; i++)
    common = l->own[i] && !strcmp(status_message(l->own[i]), status_message(l->own[0]));
  for (int i = 0; i < n && common; i++) {
    int length = snprintf(prefix, sizeof prefix, "rank %d of %d: ", i, n);
    if (strncmp(status_message(s), prefix, (size_t)length)) continue;
    Status plain = fail(status_code(s), "%s", status_message(s) + length); /* notes behind it stay */
    status_free(s);
    s = plain;
    break;
  }
  for (int i = 0; i < n; i++) status_free(l->own[i]);
  return s;
}

Status ranks_run(const Ranks *r, RankWorkFn *work, void *arg) {
  Launch l = {.ranks = r, .work = work, .arg = arg};
  const Transport *t = r->transport ? r->transport : transport_find("threads");
  if (!transport_has_processes(t)) {
    if (r->n < 1) return fail(ERR_USAGE, "%d ranks; at least 1 is wanted", r->n);
    if (r->groups) TRY(group_list_check(r->groups, r->n));
  }
  if (transport_has_processes(t)) return world_launch(t, r->n, with_context, &l, r->flight);
  TRY_NEW(l.own, calloc((size_t)r->n, sizeof *l.own));
  Status s = as_common(&l, world_launch(t, r->n, with_context, &l, r->flight));
  free(l.own);
  return s;
}
