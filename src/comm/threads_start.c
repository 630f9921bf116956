/* threads_start.c -- started collectives of thread ranks.
 *
 * A started collective is posted at once if it is the first of its group, else when those
 * before it have finished.  From then on it moves in steps that never wait: everybody is
 * there -> my share of the work -> nobody works any more -> finished.  Steps are taken by
 * the communication thread of the rank, which sleeps until a round can move on, and by
 * comm_wait(), so that a rank that only waits does not wait for a thread to wake up.
 * Groups do not wait for each other.
 *
 * I1  Works are linked, posted and unlinked under `list`; steps are taken under `drive`.
 *     Only posted works are looked at; those of a group that go after one hang on it, so that
 *     thousands may be under way.
 * I2  `finished` is the last thing that anyone but the waiting rank writes.
 */
#include <sched.h>
#include <stdlib.h>

#include "comm/hub.h"

bool engine_init(Engine *e) {
  *e = (Engine){0};
  if (pthread_mutex_init(&e->list, NULL)) return false;
  if (!pthread_mutex_init(&e->drive, NULL)) return true;
  pthread_mutex_destroy(&e->list);
  return false;
}

void engine_destroy(Engine *e) {
  pthread_mutex_destroy(&e->drive);
  pthread_mutex_destroy(&e->list);
}

/* ---- steps: under `drive` ----------------------------------------------------------------- */

static void post(ThreadWork *w) { /* under `list` */
  w->state = WORK_POSTED;
  if (w->pair) {
    pair_post(w->base.comm, &w->posted, &w->base.what, w->base.ticket);
    return;
  }
  atomic_fetch_add(&w->round.lane->sleepers, 1); /* whoever completes it notifies us */
  round_post(&w->round);
}

/* Unfinished collectives of one group go one by one.  Under `list`. */
static ThreadWork *posted_of_group(const Engine *e, const Comm *c) {
  for (ThreadWork *w = e->first; w; w = w->next) {
    if (!w->pair && w->base.comm == c) return w;
  }
  return NULL;
}

static void activate(Engine *e, ThreadWork *w) { /* under `list` */
  w->next = NULL;
  w->back = e->last;
  if (e->last) e->last->next = w;
  else e->first = w;
  e->last = w;
  post(w);
}

static void enqueue(ThreadWork *ahead, ThreadWork *w) { /* under `list` */
  if (ahead->queue_end) ahead->queue_end->next = w;
  else ahead->queue = w;
  ahead->queue_end = w;
}

/* The next of its group takes its place.  Under `list`. */
static void retire(Engine *e, ThreadWork *w) {
  if (w->back) w->back->next = w->next;
  else e->first = w->next;
  if (w->next) w->next->back = w->back;
  else e->last = w->back;
  ThreadWork *heir = w->queue;
  if (!heir) return;
  heir->queue = heir->next;
  heir->queue_end = heir->queue ? w->queue_end : NULL;
  activate(e, heir);
}

static void finish(ThreadWorld *world, ThreadWork *w, Status s) {
  Engine *e = &world->engine;
  if (!w->pair) atomic_fetch_sub(&w->round.lane->sleepers, 1);
  w->status = s;
  if (!s) flight_end(&world->base.flight, w->base.ticket);
  pthread_mutex_lock(&e->list);
  retire(e, w);
  pthread_mutex_unlock(&e->list);
  atomic_store(&w->finished, true);
  event_notify(&world->event[LANE_BLOCKING]);
}

/* True if it moved; it may be gone then. */
static bool step_pair(ThreadWorld *world, ThreadWork *w) {
  Status s = OK;
  switch (pair_look(w->base.comm, &w->posted, &w->base.what, w->base.ticket, &s)) {
    case ROUND_WAIT: return false;
    case ROUND_FAILED: s = pair_give_up(w->base.comm, &w->posted, &w->base.what, s); break;
    case ROUND_GO: break;
  }
  finish(world, w, s);
  return true;
}

static bool step_round(ThreadWorld *world, ThreadWork *w) {
  const Round *r = &w->round;
  Status s = OK;
  if (w->state == WORK_WORKED) {
    if (!round_settled(r)) return false;
    finish(world, w, round_result(r));
    return true;
  }
  RoundState look = round_look(r, &s);
  if (look == ROUND_WAIT) return false;
  if (look == ROUND_GO) s = round_work(r);
  if (s) {
    finish(world, w, round_give_up(r, s));
  } else if (r->small) {
    finish(world, w, OK);
  } else {
    round_done(r);
    w->state = WORK_WORKED;
  }
  return true;
}

/* Every work takes a step if it can; true if one did. */
static bool drive(ThreadWorld *world) {
  Engine *e = &world->engine;
  bool moved = false;
  pthread_mutex_lock(&e->list);
  for (ThreadWork *w = e->first, *next; w; w = next) {
    next = w->next; /* only we unlink: it stays until its own step */
    pthread_mutex_unlock(&e->list);
    moved |= w->pair ? step_pair(world, w) : step_round(world, w);
    pthread_mutex_lock(&e->list);
  }
  pthread_mutex_unlock(&e->list);
  return moved;
}

static bool drive_all(ThreadWorld *world) {
  bool any = false;
  pthread_mutex_lock(&world->engine.drive);
  while (drive(world)) any = true;
  pthread_mutex_unlock(&world->engine.drive);
  return any;
}

/* ---- the communication thread --------------------------------------------------------------- */

static void *communicate(void *arg) {
  ThreadWorld *world = arg;
  EventCount *event = &world->event[LANE_STARTED];
  for (;;) {
    while (drive_all(world)) continue;
    uint32_t seen = event_prepare(event);
    if (atomic_load(&world->engine.stop)) return NULL;
    if (!drive_all(world)) event_wait(event, seen, 0);
    event_end_wait(event);
  }
}

static Status begin_thread(ThreadWorld *world) {
  Engine *e = &world->engine;
  if (e->running) return OK;
  if (pthread_create(&e->thread, NULL, communicate, world))
    return fail(ERR_FAIL, "rank %d: no thread for started collectives", world->base.rank);
  e->running = true;
  return OK;
}

/* ---- the rank's own thread ------------------------------------------------------------------- */

Status engine_start(CommWork *work) {
  ThreadWork *w = (ThreadWork *)work;
  ThreadWorld *world = thread_world(work->comm);
  Engine *e = &world->engine;
  if (atomic_load(&world->hub->failed)) return hub_error(world->hub);
  TRY(begin_thread(world));
  w->pair = coll_is_pair(work->what.kind);
  if (!w->pair) w->round = round_make(work->comm, &work->what, LANE_STARTED, work->sequence, work->ticket);
  w->kept = e->kept;
  if (w->kept) w->kept->kept_back = w;
  e->kept = w;
  pthread_mutex_lock(&e->list);
  ThreadWork *ahead = w->pair ? NULL : posted_of_group(e, work->comm);
  if (ahead) enqueue(ahead, w);
  else activate(e, w);
  pthread_mutex_unlock(&e->list);
  /* What is received may be there already: nobody would notify this rank again. */
  if (w->pair && work->what.kind == COLL_RECV) event_notify(&world->event[LANE_STARTED]);
  return OK;
}

typedef struct {
  ThreadWorld *world;
  ThreadWork *work;
} Waiting;

/* Steps are taken here unless the communication thread is at it. */
static RoundState look(void *arg) {
  Waiting *w = arg;
  Engine *e = &w->world->engine;
  if (atomic_load(&w->work->finished)) return ROUND_GO;
  if (pthread_mutex_trylock(&e->drive)) return ROUND_WAIT;
  while (drive(w->world)) continue;
  pthread_mutex_unlock(&e->drive);
  return atomic_load(&w->work->finished) ? ROUND_GO : ROUND_WAIT;
}

static Status overdue(ThreadWorld *world, ThreadWork *w) {
  const Comm *c = w->base.comm;
  pthread_mutex_lock(&world->engine.list);
  bool posted = w->state != WORK_QUEUED;
  pthread_mutex_unlock(&world->engine.list);
  if (!w->pair && posted) return round_overdue(&w->round, world->base.timeout);
  FlightEntry entry = {0};
  char text[256];
  flight_get(&world->base.flight, w->base.ticket, &entry);
  return fail(ERR_RANK, "rank %d of %d: %s: not done after %g s%s", c->world->rank, c->world->size,
              flight_describe(&entry, text, sizeof text), world->base.timeout,
              w->pair ? "" : ", nor are those before it");
}

Status engine_wait(CommWork *work) {
  ThreadWork *w = (ThreadWork *)work;
  ThreadWorld *world = thread_world(work->comm);
  Waiting waiting = {world, w};
  if (hub_wait(world->hub, &world->event[LANE_BLOCKING], NULL, world->base.timeout, look, &waiting) == ROUND_WAIT) {
    Status late = overdue(world, w);
    hub_fail(world->hub, ERR_RANK, status_message(late)); /* every step ends from here on */
    status_free(late);
    hub_wait(world->hub, &world->event[LANE_BLOCKING], NULL, 0, look, &waiting);
  }
  if (w->kept_back) w->kept_back->kept = w->kept;
  else world->engine.kept = w->kept;
  if (w->kept) w->kept->kept_back = w->kept_back;
  return w->status;
}

static void fail_unfinished(ThreadWorld *world, const ThreadWork *w) {
  FlightEntry entry = {0};
  char text[256];
  flight_get(&world->base.flight, w->base.ticket, &entry);
  Status s = fail(ERR_RANK, "rank %d of %d left without waiting for its %s", world->base.rank, world->base.size,
                  flight_describe(&entry, text, sizeof text));
  hub_fail(world->hub, ERR_RANK, status_message(s));
  status_free(s);
}

void engine_stop(ThreadWorld *world) {
  Engine *e = &world->engine;
  if (!e->running) return;
  atomic_store(&e->stop, true);
  event_notify(&world->event[LANE_STARTED]);
  pthread_join(e->thread, NULL);
  e->running = false;
  while (drive(world)) continue;
  if (e->first) fail_unfinished(world, e->first);
  while (e->first) { /* the hub has failed: every work ends soon */
    if (!drive(world)) sched_yield();
  }
  for (ThreadWork *w = e->kept, *next; w; w = next) {
    next = w->kept;
    status_free(w->status);
    free(w);
  }
  e->kept = NULL;
}
