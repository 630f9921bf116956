/* ranks.c -- see ranks.h. */
#include "runtime/ranks.h"

#include <unistd.h>

#include "base/parallel.h"

typedef struct {
  const Ranks *ranks;
  RankWorkFn *work;
  void *arg;
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
  return as_rank_failure(s);
}

Status ranks_run(const Ranks *r, RankWorkFn *work, void *arg) {
  Launch l = {r, work, arg};
  const Transport *t = r->transport ? r->transport : transport_find("threads");
  if (!transport_has_processes(t)) {
    if (r->n < 1) return fail(ERR_USAGE, "%d ranks; at least 1 is wanted", r->n);
    if (r->groups) TRY(group_list_check(r->groups, r->n));
  }
  return world_launch(t, r->n, with_context, &l, r->flight);
}
