/* rank_results.h -- what several ranks have to say, said once or in order.  Functions that
 * take the world are collective. */
#ifndef TESS_HARNESS_RANK_RESULTS_H
#define TESS_HARNESS_RANK_RESULTS_H

#include "comm/comm.h"
#include "ops/value.h"

/* Of elements, sizes and dtypes, wherever the elements lie. */
uint64_t value_hash(const Value *v);

/* Are the values the same on every rank, bit for bit? */
Status rank_results_agree(World *w, const Value *v, int n, bool *agree);
/* On rank 0: the largest number of all ranks, each of n. */
Status rank_results_slowest(World *w, double *seconds, int64_t n);
/* fn on rank 0, then on rank 1 ...; the others wait.  An error of one does not keep the
 * others from their turn. */
typedef Status TurnFn(void *arg);
Status rank_results_in_turn(World *w, TurnFn *fn, void *arg);

#endif
