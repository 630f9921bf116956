/* clock.h -- the one clock that durations are measured with. */
#ifndef TESS_BASE_CLOCK_H
#define TESS_BASE_CLOCK_H

#include <time.h>

/* Seconds since some moment in the past; never jumps. */
static inline double clock_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
