/* philox.h -- Philox4x32-10: random bits as a function of a key and a counter.
 *
 * J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11.  The block for
 * counter n does not depend on any other, so every rank can make just the numbers of the
 * elements that it holds.
 */
#ifndef TESS_KERNELS_PHILOX_H
#define TESS_KERNELS_PHILOX_H

#include <stdint.h>

typedef struct {
  uint32_t word[4];
} PhiloxBlock;

static inline PhiloxBlock philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  uint32_t *c = counter.word;
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t x0 = (uint32_t)(p1 >> 32) ^ c[1] ^ key0, x2 = (uint32_t)(p0 >> 32) ^ c[3] ^ key1;
    c[0] = x0, c[1] = (uint32_t)p1, c[2] = x2, c[3] = (uint32_t)p0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/* Block n of the stream that a seed begins. */
static inline PhiloxBlock philox_block(uint64_t seed, uint64_t n) {
  return philox4x32((PhiloxBlock){{(uint32_t)n, (uint32_t)(n >> 32), 0, 0}}, (uint32_t)seed,
                    (uint32_t)(seed >> 32));
}

#endif
