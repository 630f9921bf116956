/* bell.c -- see bell.h.  A futex where there is one, else a condition variable. */
#include "comm/bell.h"

#include <errno.h>
#include <math.h>
#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

uint32_t bell_listen(Bell *b) {
  atomic_store(&b->listening, 1);
  return atomic_load(&b->rings);
}

void bell_rise(Bell *b) { atomic_store_explicit(&b->listening, 0, memory_order_relaxed); }

#ifdef __linux__

bool bell_init(Bell *b) {
  atomic_init(&b->rings, 0);
  atomic_init(&b->listening, 0);
  return true;
}

void bell_destroy(Bell *b) { (void)b; }

bool bell_sleep(Bell *b, uint32_t heard, double seconds) {
  struct timespec limit, *until = NULL;
  if (seconds > 0 && seconds < 1e9) {
    limit.tv_sec = (time_t)seconds;
    limit.tv_nsec = (long)((seconds - floor(seconds)) * 1e9);
    until = &limit;
  }
  long r = syscall(SYS_futex, &b->rings, FUTEX_WAIT_PRIVATE, heard, until, NULL, 0);
  return !(r == -1 && errno == ETIMEDOUT);
}

void bell_ring(Bell *b) {
  atomic_fetch_add(&b->rings, 1);
  if (atomic_load(&b->listening)) syscall(SYS_futex, &b->rings, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#else

bool bell_init(Bell *b) {
  atomic_init(&b->rings, 0);
  atomic_init(&b->listening, 0);
  if (pthread_mutex_init(&b->lock, NULL)) return false;
  if (!pthread_cond_init(&b->rung, NULL)) return true;
  pthread_mutex_destroy(&b->lock);
  return false;
}

void bell_destroy(Bell *b) {
  pthread_cond_destroy(&b->rung);
  pthread_mutex_destroy(&b->lock);
}

bool bell_sleep(Bell *b, uint32_t heard, double seconds) {
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
  while (!up && atomic_load(&b->rings) == heard) {
    if (limited) up = pthread_cond_timedwait(&b->rung, &b->lock, &until) == ETIMEDOUT;
    else pthread_cond_wait(&b->rung, &b->lock);
  }
  pthread_mutex_unlock(&b->lock);
  return !up;
}

void bell_ring(Bell *b) {
  pthread_mutex_lock(&b->lock);
  atomic_fetch_add(&b->rings, 1);
  pthread_cond_signal(&b->rung);
  pthread_mutex_unlock(&b->lock);
}

#endif
