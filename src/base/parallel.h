/* parallel.h -- the one place where a rank's own threads are started.
 *
 * fn gets [begin, end) and the number of the worker (0 .. threads-1).  Ranges are
 * contiguous, in order, a multiple of grain long (the last may be shorter); which
 * worker gets which range depends on n, grain and threads alone, so sums that
 * workers make are repeatable.
 */
#ifndef TESS_BASE_PARALLEL_H
#define TESS_BASE_PARALLEL_H

#include <stdint.h>

typedef void ParallelFn(void *arg, int64_t begin, int64_t end, int worker);

void parallel_for(int threads, int64_t n, int64_t grain, ParallelFn *fn, void *arg);

/* How many workers parallel_for would use. */
int parallel_workers(int threads, int64_t n, int64_t grain);

/* How many threads can be had, the calling one counted: at most `threads`, fewer where the system
 * starts no more (limits on processes, of a user or a container).  They are started now, by
 * trying: OpenMP ends the process when it cannot start one.  Ask before parallel_for. */
int parallel_reserve(int threads);

/* Cores that the calling thread may use. */
int parallel_cores(void);
/* From now on those of the i-th of n equal shares, if there are as many cores. */
void parallel_take_share(int i, int n);

/* Bind the calling thread's worker team (OpenMP keeps this per thread, and oneDNN
 * uses the same team). */
void parallel_set_threads(int threads);

#endif
