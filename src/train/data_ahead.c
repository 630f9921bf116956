/* data_ahead.c -- the thread that puts batches together before they are asked for.
 *
 * Batch n has slot n % 3.  The caller holds the slot of the batch that it asked for last, `asked`; the thread fills
 * `next` as long as that is at most two ahead, so never the slot that is held.  A call for another batch than those
 * sets `next` to it; what the thread is filling then is thrown away, which it sees by `turn`.
 *
 * Where no thread can be started batches are put together when they are asked for.
 */
#include <signal.h>

#include "train/data_inside.h"

static DataSlot *slot_of(Data *d, int64_t number) { return &d->slots[number % DATA_SLOTS]; }

/* Under the lock; gives it back while it works. */
static void fill_next(Data *d) {
  int64_t number = d->next, turn = d->turn;
  DataSlot *slot = slot_of(d, number);
  slot->number = -1;
  pthread_mutex_unlock(&d->lock);
  Status s = data_fill(d, slot, number);
  pthread_mutex_lock(&d->lock);
  if (turn != d->turn) {
    status_free(s);
    return;
  }
  status_free(slot->error);
  slot->error = s;
  slot->number = number;
  d->next = number + 1;
  pthread_cond_broadcast(&d->moved);
}

static void *read_ahead(void *arg) {
  Data *d = arg;
  pthread_mutex_lock(&d->lock);
  while (!d->stop) {
    if (d->next < d->asked + DATA_SLOTS) fill_next(d);
    else pthread_cond_wait(&d->moved, &d->lock);
  }
  pthread_mutex_unlock(&d->lock);
  return NULL;
}

/* Signals are for the threads that were there before. */
static void start(Data *d) {
  sigset_t all, old;
  sigfillset(&all);
  bool masked = !pthread_sigmask(SIG_SETMASK, &all, &old);
  d->running = !pthread_create(&d->thread, NULL, read_ahead, d);
  if (masked) pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void data_stop(Data *d) {
  if (!d->running) return;
  pthread_mutex_lock(&d->lock);
  d->stop = true;
  pthread_cond_broadcast(&d->moved);
  pthread_mutex_unlock(&d->lock);
  pthread_join(d->thread, NULL);
  d->running = false;
}

/* Under the lock. */
static void ask(Data *d, int64_t number) {
  bool coming = d->asked >= 0 && number >= d->asked && number <= d->next && number < d->asked + DATA_SLOTS;
  d->asked = number;
  if (!coming) {
    d->next = number;
    d->turn++;
    for (int i = 0; i < DATA_SLOTS; i++) d->slots[i].number = -1;
  }
  pthread_cond_broadcast(&d->moved);
}

Status data_batch(Data *d, int64_t number, const Value **inputs, int *n) {
  if (number < 0) return fail(ERR_USAGE, "batches are counted from 0: there is no batch %lld", (long long)number);
  DataSlot *slot = slot_of(d, number);
  pthread_mutex_lock(&d->lock);
  ask(d, number);
  if (!d->running) start(d);
  while (slot->number != number) {
    if (d->running) pthread_cond_wait(&d->moved, &d->lock);
    else fill_next(d);
  }
  Status s = slot->error;
  slot->error = OK;
  if (s) { /* nothing is in the slot: the next call may try again */
    d->asked = -1;
    slot->number = -1;
  }
  pthread_mutex_unlock(&d->lock);
  *inputs = slot->values;
  *n = d->ninputs;
  return s;
}
