/* lower_runs.h -- arithmetic on index runs for lower_redistribute.c: what two regions share, and whether regions
 * stand one behind the other as a collective's result has them. */
#ifndef TESS_PASSES_LOWER_RUNS_H
#define TESS_PASSES_LOWER_RUNS_H

#include "dist/boxes.h"

bool runs_equal(const Runs *a, const Runs *b);
/* Where global index i is among the runs, and how far its run goes on; false: nowhere. */
bool runs_find(const Runs *r, int64_t i, int64_t *local, int64_t *left);
/* Joins it to the last one if it goes on there.  There is room. */
void runs_add(Runs *r, Run run);
/* The indices of `want` that are in `have`, in want's order; as global indices, or (local)
 * as positions in have. */
Status runs_shared(const Runs *have, const Runs *want, bool local, Arena *arena, Runs *out);

/* Are these regions, one behind the other along dimension 0, all of `whole`?  padded: those that are smaller than
 * the first are filled up with rows that stand for nothing; these must come behind all others. */
bool regions_in_rows(const Region *r, int k, const Region *whole, bool padded);
/* The largest size in each dimension. */
void regions_largest(const Region *r, int k, int64_t *size);

#endif
