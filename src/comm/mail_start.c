/* mail_start.c -- started collectives of processes: the same rounds and pairs, moved on in
 * steps that never wait, by whoever looks: the rank in any call, and its communication thread
 * (where the library allows a second thread), which looks some thousand times a second as long
 * as something is under way.
 */
#include <stdlib.h>
#include <time.h>

#include "comm/mail.h"

static void finish(MailWorld *world, MailWork *w, Status s) {
  if (s) mail_fail(world, status_code(s), status_message(s));
  if (w->pair) mail_pair_end(&w->couple);
  else mail_round_end(&w->round);
  if (!s) flight_end(&world->base.flight, w->base.ticket);
  MailWork **at = &world->works;
  while (*at != w) at = &(*at)->next;
  *at = w->next;
  w->status = s;
  w->finished = true;
}

Status mail_drive(MailWorld *world, bool *moved) {
  TRY(mail_poll(world, moved));
  for (MailWork *w = world->works, *next; w; w = next) {
    bool done = false;
    next = w->next;
    Status s = w->pair ? mail_pair_look(&w->couple, &done) : mail_round_look(&w->round, &done);
    if (!s && !done) continue;
    finish(world, w, s);
    *moved = true;
  }
  return OK;
}

/* ---- the communication thread ----------------------------------------------------------------- */

static void *communicate(void *arg) {
  MailWorld *w = arg;
  const struct timespec pause = {0, 100000};
  pthread_mutex_lock(&w->lock);
  while (!w->stop) {
    if (!w->works) {
      pthread_cond_wait(&w->wake, &w->lock);
      continue;
    }
    bool moved = false;
    Status s = mail_drive(w, &moved);
    if (s) mail_fail(w, status_code(s), status_message(s));
    status_free(s);
    if (moved) continue;
    pthread_mutex_unlock(&w->lock);
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&w->lock);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

static Status begin_thread(MailWorld *w) {
  if (!w->running && w->port.any_thread) {
    if (pthread_create(&w->thread, NULL, communicate, w))
      return fail(ERR_FAIL, "rank %d: no thread for started collectives", w->base.rank);
    w->running = true;
  }
  pthread_cond_signal(&w->wake);
  return OK;
}

/* ---- the rank's own thread ------------------------------------------------------------------------ */

Status mail_start(CommWork *work) {
  MailWork *w = (MailWork *)work;
  MailWorld *world = mail_world(work->comm);
  w->pair = coll_is_pair(work->what.kind);
  pthread_mutex_lock(&world->lock);
  Status s = w->pair
                 ? mail_pair_begin(&w->couple, work->comm, &work->what, work->ticket)
                 : mail_round_begin(&w->round, work->comm, &work->what, LANE_STARTED, work->sequence, work->ticket);
  if (!s) s = begin_thread(world);
  if (s) {
    mail_fail(world, status_code(s), status_message(s));
    if (w->pair) mail_pair_end(&w->couple);
    else mail_round_end(&w->round);
  } else {
    MailWork **end = &world->works;
    while (*end) end = &(*end)->next;
    *end = w;
    w->kept = world->kept;
    world->kept = w;
  }
  pthread_mutex_unlock(&world->lock);
  return s;
}

static Status look(void *arg, bool *done) {
  *done = ((MailWork *)arg)->finished;
  return OK;
}

static void missing(void *arg, TextBuf *out) {
  MailWork *w = arg;
  if (w->pair) mail_pair_missing(&w->couple, out);
  else mail_round_missing(&w->round, out);
}

static void forget(MailWorld *world, MailWork *w) {
  MailWork **at = &world->kept;
  while (*at != w) at = &(*at)->kept;
  *at = w->kept;
}

/* The world has failed: a work that has not finished does so. */
static void end_work(MailWorld *world, MailWork *w, Status s) {
  pthread_mutex_lock(&world->lock);
  if (!w->finished) finish(world, w, s);
  else status_free(s);
  pthread_mutex_unlock(&world->lock);
}

Status mail_wait_work(CommWork *work) {
  MailWork *w = (MailWork *)work;
  MailWorld *world = mail_world(work->comm);
  Status s = mail_wait(world, work->ticket, look, missing, w);
  if (s) end_work(world, w, s);
  pthread_mutex_lock(&world->lock);
  forget(world, w);
  pthread_mutex_unlock(&world->lock);
  return w->status;
}

void mail_stop(MailWorld *world) {
  bool moved = false;
  pthread_mutex_lock(&world->lock);
  world->stop = true;
  pthread_cond_signal(&world->wake);
  pthread_mutex_unlock(&world->lock);
  if (world->running) pthread_join(world->thread, NULL);
  world->running = false;
  pthread_mutex_lock(&world->lock);
  status_free(mail_drive(world, &moved));
  while (world->works) {
    char text[256];
    MailWork *w = world->works;
    finish(world, w,
           fail(ERR_RANK, "rank %d of %d left without waiting for its %s", world->base.rank, world->base.size,
                mail_describe(world, w->base.ticket, text, sizeof text)));
  }
  pthread_mutex_unlock(&world->lock);
  for (MailWork *w = world->kept, *next; w; w = next) {
    next = w->kept;
    status_free(w->status);
    free(w);
  }
  world->kept = NULL;
}
