/* shuffle.h -- a permutation of [0, n) that is not stored: what stands at a position is computed from the seed, the
 * epoch and the position alone, so that any of them may be asked for at any time, in any order.
 *
 * A "swap or not" shuffle: in each round an element and its mirror image about a random centre change places or
 * not, as a bit of both decides.  Each round is a permutation of [0, n) by itself, for every n.
 */
#ifndef TESS_TRAIN_SHUFFLE_H
#define TESS_TRAIN_SHUFFLE_H

#include <stdint.h>

enum { SHUFFLE_MAX_ROUNDS = 16 + 4 * 64 };

typedef struct {
  uint64_t n;
  int rounds;
  uint64_t centre[SHUFFLE_MAX_ROUNDS], key[SHUFFLE_MAX_ROUNDS];
} Shuffle;

/* 0 < n < 2^62 */
void shuffle_init(Shuffle *s, uint64_t seed, int64_t epoch, int64_t n);
/* position in [0, n) */
int64_t shuffle_at(const Shuffle *s, int64_t position);

#endif
