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
/* What every rank says, rank 0 first, on every rank; mine need not end in NUL. */
Status rank_results_texts(World *w, const char *mine, size_t size, TextBuf *all);

#endif
