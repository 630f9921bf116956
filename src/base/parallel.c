/* parallel.c -- see parallel.h.  OpenMP, because oneDNN as packaged uses it: two
 * pools on the same cores would spin against each other.  Without it (the thread
 * sanitizer does not understand OpenMP) each call starts threads of its own. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

int parallel_cores(void) {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

void parallel_take_share(int i, int n) {
#ifdef __linux__
  cpu_set_t all, share;
  if (sched_getaffinity(0, sizeof all, &all)) return;
  int cores = CPU_COUNT(&all), seen = 0;
  if (n < 2 || n > cores) return;
  CPU_ZERO(&share);
  for (int c = 0; c < CPU_SETSIZE; c++) {
    if (!CPU_ISSET((size_t)c, &all)) continue;
    if (seen * n / cores == i) CPU_SET((size_t)c, &share);
    seen++;
  }
  sched_setaffinity(0, sizeof share, &share); /* where that is not allowed, all goes on as before */
#else
  (void)i, (void)n;
#endif
}

int parallel_workers(int threads, int64_t n, int64_t grain) {
  if (grain < 1) grain = 1;
  int64_t pieces = (n + grain - 1) / grain;
  return pieces < threads ? (pieces < 1 ? 1 : (int)pieces) : threads < 1 ? 1 : threads;
}

/* ---- threads that can be had --------------------------------------------------------------- */

enum { MOST_TRIED = 1024 };

static void *wait_at_gate(void *gate) {
  pthread_mutex_lock(gate);
  pthread_mutex_unlock(gate);
  return NULL;
}

/* All at the same time, until one cannot be started. */
static int try_threads(int n) {
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  pthread_t thread[MOST_TRIED];
  int started = 0;
  pthread_mutex_lock(&gate);
  while (started < n && started < MOST_TRIED && !pthread_create(&thread[started], NULL, wait_at_gate, &gate))
    started++;
  pthread_mutex_unlock(&gate);
  for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
  pthread_mutex_destroy(&gate);
  return started;
}

/* The team's threads stay when its work is done.  The sum is only there so that there is some. */
static int start_team(int threads) {
  int sum = 0;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  sum += 1;
#else
  sum = threads;
#endif
  return sum;
}

int parallel_reserve(int threads) {
  /* One rank after the other: what one was told it can have is its own before another asks. */
  static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
  sigset_t all, before;
  if (threads < 2) return 1;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are for the thread that asks, not for its workers */
  pthread_mutex_lock(&turn);
  int n = try_threads(threads - 1) + 1;
  if (n > 1) start_team(n);
  pthread_mutex_unlock(&turn);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return n;
}

void parallel_set_threads(int threads) {
#ifdef _OPENMP
  omp_set_num_threads(threads);
#else
  (void)threads;
#endif
}

/* The range of worker i: whole grains, spread evenly. */
static void run_range(ParallelFn *fn, void *arg, int64_t n, int64_t grain, int workers, int i) {
  int64_t pieces = (n + grain - 1) / grain;
  int64_t begin = pieces * i / workers * grain, end = pieces * (i + 1) / workers * grain;
  if (end > n) end = n;
  if (begin < end) fn(arg, begin, end, i);
}

#ifdef _OPENMP

static bool run_team(int workers, int64_t n, int64_t grain, ParallelFn *fn, void *arg) {
  if (omp_in_parallel()) return false;
#pragma omp parallel num_threads(workers)
  {
    int w = omp_get_thread_num(), team = omp_get_num_threads();
    /* The runtime may give fewer threads than asked: each then takes several ranges. */
    for (int i = w; i < workers; i += team) run_range(fn, arg, n, grain, workers, i);
  }
  return true;
}

#else

enum { MOST_THREADS = 64 };

typedef struct {
  ParallelFn *fn;
  void *arg;
  int64_t n, grain;
  int workers, team, first;
} Share;

static _Thread_local bool in_team;

static void *run_share(void *arg) {
  const Share *s = arg;
  in_team = true;
  for (int i = s->first; i < s->workers; i += s->team) run_range(s->fn, s->arg, s->n, s->grain, s->workers, i);
  in_team = false;
  return NULL;
}

static bool run_team(int workers, int64_t n, int64_t grain, ParallelFn *fn, void *arg) {
  if (in_team) return false;
  Share share[MOST_THREADS];
  pthread_t thread[MOST_THREADS];
  bool started[MOST_THREADS] = {false};
  int team = workers < MOST_THREADS ? workers : MOST_THREADS;
  for (int t = 0; t < team; t++) share[t] = (Share){fn, arg, n, grain, workers, team, t};
  for (int t = 1; t < team; t++) started[t] = pthread_create(&thread[t], NULL, run_share, &share[t]) == 0;
  for (int t = 0; t < team; t++) {
    if (started[t]) pthread_join(thread[t], NULL);
    else run_share(&share[t]); /* ours, and what could not be started */
  }
  return true;
}

#endif

void parallel_for(int threads, int64_t n, int64_t grain, ParallelFn *fn, void *arg) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  int workers = parallel_workers(threads, n, grain);
  if (workers < 2 || !run_team(workers, n, grain, fn, arg)) fn(arg, 0, n, 0);
}
