/* launch.c -- world_threads(): a thread per rank, and what is left of them. */
#include <stdlib.h>

#include "comm/hub.h"

typedef struct {
  Hub *hub;
  int rank;
  RankFn *fn;
  void *arg;
  pthread_t thread;
  bool running;
} Rank;

static void *run_rank(void *arg) {
  const Rank *r = arg;
  World *w;
  parallel_take_share(r->rank, r->hub->n);
  Status s = hub_join(r->hub, r->rank, &w);
  if (!s) {
    s = r->fn(w, r->arg);
    hub_leave(w, s);
  }
  status_free(s);
  return NULL;
}

Status hub_collect(Hub *hub, const char *flight_path) {
  Status s = hub_result(hub);
  for (int i = hub->n - 1; i >= 0; i--) {
    if (hub->world[i].base.flight_path) flight_path = hub->world[i].base.flight_path;
  }
  if (!s || !flight_path) return s;
  World **world;
  TRY_NEW(world, malloc((size_t)hub->n * sizeof *world));
  for (int i = 0; i < hub->n; i++) world[i] = &hub->world[i].base;
  s = flight_save(s, world, hub->n, flight_path);
  free(world);
  return s;
}

Status world_threads(int n, RankFn *fn, void *arg, const char *flight_path) {
  Hub *hub;
  TRY(hub_new(n, &hub));
  Rank *rank = calloc((size_t)n, sizeof *rank);
  Status s = rank ? OK : fail_oom();
  for (int i = 0; i < n && !s; i++) {
    rank[i] = (Rank){.hub = hub, .rank = i, .fn = fn, .arg = arg};
    rank[i].running = pthread_create(&rank[i].thread, NULL, run_rank, &rank[i]) == 0;
    if (!rank[i].running) {
      s = fail(ERR_FAIL, "rank %d of %d: no thread for it", i, n);
      hub_fail(hub, ERR_FAIL, status_message(s)); /* those before it do not wait */
    }
  }
  for (int i = 0; i < n && rank; i++) {
    if (rank[i].running) pthread_join(rank[i].thread, NULL);
  }
  if (!s) s = hub_collect(hub, flight_path);
  free(rank);
  hub_free(hub);
  return s;
}
