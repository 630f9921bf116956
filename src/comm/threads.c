/* threads.c -- ranks as threads of one process: the hub, joining and leaving, and how a
 * failure reaches everyone.  See hub.h.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/hub.h"

/* ---- waiting -------------------------------------------------------------------------------- */

/* At first without leaving the core, then leaving it to others between looks: a rank that
 * shares a core with the one it waits for must not keep it from coming. */
static RoundState spin(LookFn *look, void *arg) {
  enum { LOOKS = 128 }; /* between looks at the clock */
  double until = 0;
  for (;;) {
    for (int i = 0; i < LOOKS; i++) {
      RoundState state = look(arg);
      if (state != ROUND_WAIT) return state;
      if (until == 0) cpu_pause();
      else sched_yield();
    }
    double now = clock_now();
    if (until == 0) until = now + SPIN_US * 1e-6;
    if (now > until) return ROUND_WAIT;
  }
}

RoundState hub_wait(Hub *hub, EventCount *event, _Atomic int *sleepers, double seconds, LookFn *look, void *arg) {
  RoundState state = hub->spin ? spin(look, arg) : look(arg);
  if (state != ROUND_WAIT) return state;
  const double end = seconds > 0 ? clock_now() + seconds : 0;
  if (sleepers) atomic_fetch_add(sleepers, 1);
  for (;;) {
    uint32_t seen = event_prepare(event);
    state = look(arg);
    if (state != ROUND_WAIT) break;
    double rest = end > 0 ? end - clock_now() : 0;
    if (end > 0 && rest <= 0) break;
    event_wait(event, seen, rest);
  }
  event_end_wait(event);
  if (sleepers) atomic_fetch_sub(sleepers, 1);
  return state;
}

/* ---- failing -------------------------------------------------------------------------------- */

static void hub_notify(Hub *hub) {
  for (int i = 0; i < hub->n; i++) {
    event_notify(&hub->world[i].event[LANE_BLOCKING]);
    event_notify(&hub->world[i].event[LANE_STARTED]);
  }
}

void hub_fail(Hub *hub, ErrCode code, const char *text) {
  pthread_mutex_lock(&hub->lock);
  bool first = !atomic_load(&hub->failed);
  if (first) {
    hub->message = strdup(text);
    hub->code = code;
    atomic_store(&hub->failed, true);
    atomic_store(&hub->trouble, true);
  }
  pthread_mutex_unlock(&hub->lock);
  if (first) hub_notify(hub);
}

static const char *hub_message(const Hub *hub) {
  return hub->message ? hub->message : "a rank failed, and there was no memory to say why";
}

Status hub_error(const Hub *hub) { return fail(ERR_RANK, "%s", hub_message(hub)); }

Status hub_result(const Hub *hub) {
  return atomic_load(&hub->failed) ? fail(hub->code, "%s", hub_message(hub)) : OK;
}

static void fail_thread_world(World *w, Status s) {
  Status named = fail(status_code(s), "rank %d of %d: %s", w->rank, w->size, status_message(s));
  hub_fail(((ThreadWorld *)w)->hub, status_code(named), status_message(named));
  status_free(named);
}

/* ---- groups ----------------------------------------------------------------------------------- */

static void group_free(Group *g) {
  if (!g) return;
  for (int i = 0; g->inbox && i < g->n; i++) pthread_mutex_destroy(&g->inbox[i].lock);
  free(g->inbox);
  for (int l = 0; l < 2; l++) free(g->lane[l].slot);
  free(g->ranks);
  free(g);
}

static Status group_new(Hub *hub, const int *ranks, int n, Group **out) {
  const size_t slots = 2 * (size_t)n;
  Group *g;
  TRY_NEW(g, aligned_alloc(64, (sizeof *g + 63) & ~(size_t)63));
  *g = (Group){.hub = hub,
               .n = n,
               .ranks = malloc((size_t)n * sizeof *ranks),
               .inbox = aligned_alloc(64, (size_t)n * sizeof(Inbox))};
  for (int i = 0; g->inbox && i < n; i++) {
    g->inbox[i].first = NULL;
    pthread_mutex_init(&g->inbox[i].lock, NULL); /* plain mutexes: cannot fail here */
  }
  bool complete = g->ranks && g->inbox;
  for (int l = 0; l < 2; l++) {
    Slot *slot = g->lane[l].slot = aligned_alloc(64, slots * sizeof *slot);
    for (size_t i = 0; slot && i < slots; i++) atomic_init(&slot[i].flag, 0);
    complete = complete && slot;
  }
  if (!complete) {
    group_free(g);
    return fail_oom();
  }
  memcpy(g->ranks, ranks, (size_t)n * sizeof *ranks);
  *out = g;
  return OK;
}

/* The first member to come makes the group, the others find it. */
static Status find_group(Comm *c) {
  Hub *hub = thread_world(c)->hub;
  Status s = OK;
  pthread_mutex_lock(&hub->lock);
  Group *g = hub->groups;
  while (g && !(g->n == c->size && !memcmp(g->ranks, c->members, (size_t)g->n * sizeof *g->ranks))) g = g->next;
  if (!g) {
    s = group_new(hub, c->members, c->size, &g);
    if (!s) {
      g->next = hub->groups;
      hub->groups = g;
    }
  }
  pthread_mutex_unlock(&hub->lock);
  c->link = g;
  return s;
}

/* ---- the hub ------------------------------------------------------------------------------------ */

/* What others may touch before the rank has joined. */
static Status rank_init(ThreadWorld *w) {
  TRY(flight_init(&w->base.flight));
  bool first = event_init(&w->event[0]), second = first && event_init(&w->event[1]);
  if (second && engine_init(&w->engine)) return OK;
  if (second) event_destroy(&w->event[1]);
  if (first) event_destroy(&w->event[0]);
  flight_free(&w->base.flight);
  return fail(ERR_FAIL, "no mutexes for another rank");
}

Status hub_new(int n, Hub **out) {
  if (n < 1 || n > INT16_MAX) return fail(ERR_USAGE, "%d ranks", n);
  Hub *hub;
  TRY_NEW(hub, aligned_alloc(64, (sizeof *hub + 63) & ~(size_t)63));
  *hub = (Hub){.n = n, .spin = n <= parallel_cores(), .isa = isa_detect()};
  hub->world = aligned_alloc(64, (size_t)n * sizeof *hub->world);
  if (!hub->world || pthread_mutex_init(&hub->lock, NULL)) {
    free(hub->world);
    free(hub);
    return fail_oom();
  }
  memset(hub->world, 0, (size_t)n * sizeof *hub->world);
  for (int i = 0; i < n; i++) {
    ThreadWorld *w = &hub->world[i];
    w->hub = hub;
    Status s = rank_init(w);
    if (s) {
      hub->n = i;
      hub_free(hub);
      return s;
    }
  }
  *out = hub;
  return OK;
}

Status hub_join(Hub *hub, int rank, World **out) {
  if (rank < 0 || rank >= hub->n) return fail(ERR_USAGE, "there is no rank %d of %d", rank, hub->n);
  ThreadWorld *w = &hub->world[rank];
  pthread_mutex_lock(&hub->lock);
  bool twice = w->joined;
  w->joined = true;
  pthread_mutex_unlock(&hub->lock);
  if (twice) return fail(ERR_USAGE, "rank %d of %d has joined before", rank, hub->n);
  Status s = world_init(&w->base, &threads_transport, rank, hub->n);
  if (s) {
    hub_fail(hub, status_code(s), status_message(s));
    return s;
  }
  *out = &w->base;
  return OK;
}

void hub_leave(World *world, Status s) {
  ThreadWorld *w = (ThreadWorld *)world;
  if (s) fail_thread_world(world, s);
  engine_stop(w);
  atomic_store(&w->left, true);
  atomic_store(&w->hub->trouble, true);
  hub_notify(w->hub);
}

void hub_free(Hub *hub) {
  if (!hub) return;
  for (int i = 0; i < hub->n; i++) {
    ThreadWorld *w = &hub->world[i];
    world_clear(&w->base);
    engine_destroy(&w->engine);
    event_destroy(&w->event[0]);
    event_destroy(&w->event[1]);
  }
  for (Group *g = hub->groups, *next; g; g = next) {
    next = g->next;
    group_free(g);
  }
  pthread_mutex_destroy(&hub->lock);
  free(hub->message);
  free(hub->world);
  free(hub);
}

/* ---- the transport -------------------------------------------------------------------------------- */

static Status run(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket) {
  return coll_is_pair(what->kind) ? pair_run(c, what, ticket) : round_run(c, what, sequence, ticket);
}

/* A rank alone takes its hub with it; others are the hub's. */
static void free_thread_world(World *w) {
  ThreadWorld *t = (ThreadWorld *)w;
  if (!t->owns_hub) return;
  hub_leave(w, OK);
  hub_free(t->hub);
}

const Transport threads_transport = {
    .name = "threads",
    .launch = world_threads,
    .work_size = sizeof(ThreadWork),
    .takes_boxes = true,
    .group = find_group,
    .run = run,
    .start = engine_start,
    .wait = engine_wait,
    .fail = fail_thread_world,
    .free = free_thread_world,
};

Status world_alone(World **out) {
  Hub *hub;
  TRY(hub_new(1, &hub));
  Status s = hub_join(hub, 0, out);
  if (s) hub_free(hub);
  else ((ThreadWorld *)*out)->owns_hub = true;
  return s;
}
