/* p2p_start.c -- started collectives of processes: the same rounds and pairs, moved on in
 * steps that never wait, by whoever looks: the rank in any call, and its communication thread
 * (where the library allows a second thread), which looks some thousand times a second as long
 * as something is under way.
 */
#include <stdlib.h>
#include <time.h>

#include "comm/p2p.h"

static void finish(P2pWorld *world, P2pWork *w, Status s) {
  if (s) p2p_fail(world, status_code(s), status_message(s));
  if (w->is_pair) p2p_pair_end(&w->pair);
  else p2p_round_end(&w->round);
  if (!s) flight_end(&world->base.flight, w->base.ticket);
  P2pWork **at = &world->works;
  while (*at != w) at = &(*at)->next;
  *at = w->next;
  w->status = s;
  w->finished = true;
}

Status p2p_drive(P2pWorld *world, bool *moved) {
  TRY(p2p_poll(world, moved));
  for (P2pWork *w = world->works, *next; w; w = next) {
    bool done = false;
    next = w->next;
    Status s = w->is_pair ? p2p_pair_look(&w->pair, &done) : p2p_round_look(&w->round, &done);
    if (!s && !done) continue;
    finish(world, w, s);
    *moved = true;
  }
  return OK;
}

/* ---- the communication thread ----------------------------------------------------------------- */

static void *communicate(void *arg) {
  P2pWorld *w = arg;
  const struct timespec pause = {0, 100000};
  pthread_mutex_lock(&w->lock);
  while (!w->stop) {
    if (!w->works) {
      pthread_cond_wait(&w->wake, &w->lock);
      continue;
    }
    bool moved = false;
    Status s = p2p_drive(w, &moved);
    if (s) p2p_fail(w, status_code(s), status_message(s));
    status_free(s);
    if (moved) continue;
    pthread_mutex_unlock(&w->lock);
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&w->lock);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

static Status begin_thread(P2pWorld *w) {
  if (!w->running && w->port.any_thread) {
    if (pthread_create(&w->thread, NULL, communicate, w))
      return fail(ERR_FAIL, "rank %d: no thread for started collectives", w->base.rank);
    w->running = true;
  }
  pthread_cond_signal(&w->wake);
  return OK;
}

/* ---- the rank's own thread ------------------------------------------------------------------------ */

Status p2p_start(CommWork *work) {
  P2pWork *w = (P2pWork *)work;
  P2pWorld *world = p2p_world(work->comm);
  w->is_pair = coll_is_pair(work->what.kind);
  pthread_mutex_lock(&world->lock);
  Status s = w->is_pair
                 ? p2p_pair_begin(&w->pair, work->comm, &work->what, work->ticket)
                 : p2p_round_begin(&w->round, work->comm, &work->what, LANE_STARTED, work->sequence, work->ticket);
  if (!s) s = begin_thread(world);
  if (s) {
    p2p_fail(world, status_code(s), status_message(s));
    if (w->is_pair) p2p_pair_end(&w->pair);
    else p2p_round_end(&w->round);
  } else {
    P2pWork **end = &world->works;
    while (*end) end = &(*end)->next;
    *end = w;
    w->kept = world->kept;
    world->kept = w;
  }
  pthread_mutex_unlock(&world->lock);
  return s;
}

static Status look(void *arg, bool *done) {
  *done = ((P2pWork *)arg)->finished;
  return OK;
}

static void missing(void *arg, TextBuf *out) {
  P2pWork *w = arg;
  if (w->is_pair) p2p_pair_missing(&w->pair, out);
  else p2p_round_missing(&w->round, out);
}

static void forget(P2pWorld *world, P2pWork *w) {
  P2pWork **at = &world->kept;
  while (*at != w) at = &(*at)->kept;
  *at = w->kept;
}

/* The world has failed: a work that has not finished does so. */
static void end_work(P2pWorld *world, P2pWork *w, Status s) {
  pthread_mutex_lock(&world->lock);
  if (!w->finished) finish(world, w, s);
  else status_free(s);
  pthread_mutex_unlock(&world->lock);
}

Status p2p_wait_work(CommWork *work) {
  P2pWork *w = (P2pWork *)work;
  P2pWorld *world = p2p_world(work->comm);
  Status s = p2p_wait(world, work->ticket, look, missing, w);
  if (s) end_work(world, w, s);
  pthread_mutex_lock(&world->lock);
  forget(world, w);
  pthread_mutex_unlock(&world->lock);
  return w->status;
}

void p2p_stop(P2pWorld *world) {
  bool moved = false;
  pthread_mutex_lock(&world->lock);
  world->stop = true;
  pthread_cond_signal(&world->wake);
  pthread_mutex_unlock(&world->lock);
  if (world->running) pthread_join(world->thread, NULL);
  world->running = false;
  pthread_mutex_lock(&world->lock);
  status_free(p2p_drive(world, &moved));
  while (world->works) {
    char text[256];
    P2pWork *w = world->works;
    finish(world, w,
           fail(ERR_RANK, "rank %d of %d left without waiting for its %s", world->base.rank, world->base.size,
                p2p_describe(world, w->base.ticket, text, sizeof text)));
  }
  pthread_mutex_unlock(&world->lock);
  for (P2pWork *w = world->kept, *next; w; w = next) {
    next = w->kept;
    status_free(w->status);
    free(w);
  }
  world->kept = NULL;
}
