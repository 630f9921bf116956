/* random.c -- blocks of Philox and the normal distribution, LANES at a time. */
#include "kernels/philox.h"
#include "kernels/random_simd.h"
#include "kernels/simd/math.h"

enum { LANES = 16 };

/* words[4 i ..] = block first + i */
void SIMD(random_words)(uint64_t seed, uint64_t first, int64_t blocks, uint32_t *words) {
  int64_t done = 0;
  for (; done + LANES <= blocks; done += LANES) {
    uint32_t c0[LANES], c1[LANES], c2[LANES] = {0}, c3[LANES] = {0}, key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < LANES; i++) {
      uint64_t n = first + (uint64_t)(done + i);
      c0[i] = (uint32_t)n, c1[i] = (uint32_t)(n >> 32);
    }
    for (int round = 0; round < 10; round++, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) {
      for (int i = 0; i < LANES; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
        c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ key0;
        c1[i] = (uint32_t)p1;
        c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ key1;
        c3[i] = (uint32_t)p0;
      }
    }
    for (int i = 0; i < LANES; i++) {
      uint32_t *w = words + 4 * (done + i);
      w[0] = c0[i], w[1] = c1[i], w[2] = c2[i], w[3] = c3[i];
    }
  }
  for (; done < blocks; done++) {
    PhiloxBlock b = philox_block(seed, first + (uint64_t)done);
    for (int i = 0; i < 4; i++) words[4 * done + i] = b.word[i];
  }
}

/* Box-Muller: z[2 i], z[2 i + 1] are the coordinates of a point whose squared distance is
 * exponential and whose angle is uniform. */
void SIMD(random_normal)(const uint32_t *words, int64_t pairs, float *z) {
  for (int64_t i = 0; i < pairs; i++) {
    float u = (float)(int32_t)(words[2 * i] >> 1) * 0x1p-31f + 0x1p-32f; /* (0, 1] */
    float turn = (float)(int32_t)(words[2 * i + 1] >> 8) * 0x1.921fb6p-22f; /* 2 pi / 2^24 */
    float radius = __builtin_sqrtf(-2 * log_f32(u));
    z[2 * i] = radius * cos_f32(turn);
    z[2 * i + 1] = radius * sin_f32(turn);
  }
}
