/* event_count.c -- see event.h.  A futex where there is one, else a condition variable. */
#include "comm/event_count.h"

#include <errno.h>
#include <math.h>
#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

uint32_t event_prepare(EventCount *b) {
  atomic_store(&b->waiting, 1);
  return atomic_load(&b->count);
}

void event_end_wait(EventCount *b) { atomic_store_explicit(&b->waiting, 0, memory_order_relaxed); }

#ifdef __linux__

bool event_init(EventCount *b) {
  atomic_init(&b->count, 0);
  atomic_init(&b->waiting, 0);
  return true;
}

void event_destroy(EventCount *b) { (void)b; }

bool event_wait(EventCount *b, uint32_t seen, double seconds) {
  struct timespec limit, *until = NULL;
  if (seconds > 0 && seconds < 1e9) {
    limit.tv_sec = (time_t)seconds;
    limit.tv_nsec = (long)((seconds - floor(seconds)) * 1e9);
    until = &limit;
  }
  long r = syscall(SYS_futex, &b->count, FUTEX_WAIT_PRIVATE, seen, until, NULL, 0);
  return !(r == -1 && errno == ETIMEDOUT);
}

void event_notify(EventCount *b) {
  atomic_fetch_add(&b->count, 1);
  if (atomic_load(&b->waiting)) syscall(SYS_futex, &b->count, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#else

bool event_init(EventCount *b) {
  atomic_init(&b->count, 0);
  atomic_init(&b->waiting, 0);
  if (pthread_mutex_init(&b->lock, NULL)) return false;
  if (!pthread_cond_init(&b->notified, NULL)) return true;
  pthread_mutex_destroy(&b->lock);
  return false;
}

void event_destroy(EventCount *b) {
  pthread_cond_destroy(&b->notified);
  pthread_mutex_destroy(&b->lock);
}

bool event_wait(EventCount *b, uint32_t seen, double seconds) {
  struct timespec until;
  bool limited = seconds > 0 && seconds < 1e9, up = false;
  if (limited) {
    clock_gettime(CLOCK_REALTIME, &until);
    double whole = floor(seconds);
    until.tv_sec += (time_t)whole;
    until.tv_nsec += (long)((seconds - whole) * 1e9);
    if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
  }
  pthread_mutex_lock(&b->lock);
  while (!up && atomic_load(&b->count) == seen) {
    if (limited) up = pthread_cond_timedwait(&b->notified, &b->lock, &until) == ETIMEDOUT;
    else pthread_cond_wait(&b->notified, &b->lock);
  }
  pthread_mutex_unlock(&b->lock);
  return !up;
}

void event_notify(EventCount *b) {
  pthread_mutex_lock(&b->lock);
  atomic_fetch_add(&b->count, 1);
  pthread_cond_signal(&b->notified);
  pthread_mutex_unlock(&b->lock);
}

#endif
