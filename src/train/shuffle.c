/* shuffle.c -- see shuffle.h. */
#include "train/shuffle.h"

#include "base/hash.h"

void shuffle_init(Shuffle *s, uint64_t seed, int64_t epoch, int64_t n) {
  uint64_t state = seed;
  state = random_bits(&state) ^ (uint64_t)epoch * 0xd1342543de82ef95u;
  s->n = (uint64_t)n;
  s->rounds = 16;
  for (uint64_t x = s->n; x; x >>= 1) s->rounds += 4;
  for (int r = 0; r < s->rounds; r++) {
    s->centre[r] = random_bits(&state) % s->n;
    s->key[r] = random_bits(&state);
  }
}

int64_t shuffle_at(const Shuffle *s, int64_t position) {
  uint64_t x = (uint64_t)position;
  for (int r = 0; r < s->rounds; r++) {
    uint64_t mirror = s->centre[r] >= x ? s->centre[r] - x : s->centre[r] + s->n - x;
    uint64_t both = s->key[r] ^ (x > mirror ? x : mirror);
    if (random_bits(&both) & 1) x = mirror;
  }
  return (int64_t)x;
}
