/* match_sorted.h -- permutations that sort rows by a number, as programs have them that bring the rows of each
 * expert together, and what is counted beside them.
 *
 * An `order` is the value of the permutation: the indices that a sort of a vector gives.  Values of integers are
 * seen through casts that keep them. */
#ifndef TESS_PASSES_MATCH_SORTED_H
#define TESS_PASSES_MATCH_SORTED_H

#include "passes/match.h"

/* Is it the indices of a sort of a vector? */
bool match_is_order(const Val *v);
/* What was sorted. */
Val *match_order_source(const Val *order);
/* Does the call give the place where each row went: the inverse of the permutation? */
bool match_is_inverse(Val *v, const Val *order);

/* Where the rows of each of `groups` numbers end in this order: the number of rows that are at most g.  True only
 * if what was sorted, rising, are integers from 0 to groups - 1, whatever the inputs of the program are. */
bool match_are_offsets(Val *offsets, const Val *order, int64_t groups);

#endif
