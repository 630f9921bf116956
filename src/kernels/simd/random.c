/* random.c -- blocks of Philox and the normal distribution, LANES at a time. */
#include "kernels/philox.h"
#include "kernels/random_simd.h"
#include "kernels/simd/math.h"

enum { LANES = 16 };

/* One round on all lanes; a macro, so that ten of them stand in one loop over the lanes,
 * which the compiler then makes vectors of. */
#define ROUND(r)                                                               \
  {                                                                            \
    uint64_t p0 = (uint64_t)0xD2511F53u * x0, p1 = (uint64_t)0xCD9E8D57u * x2; \
    x0 = (uint32_t)(p1 >> 32) ^ x1 ^ (key0 + r * 0x9E3779B9u);                 \
    x1 = (uint32_t)p1;                                                         \
    x2 = (uint32_t)(p0 >> 32) ^ x3 ^ (key1 + r * 0xBB67AE85u);                 \
    x3 = (uint32_t)p0;                                                         \
  }

/* words[4 i ..] = block first + i */
void SIMD(random_words)(uint64_t seed, uint64_t first, int64_t blocks, uint32_t *words) {
  uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
  int64_t done = 0;
  for (; done + LANES <= blocks; done += LANES) {
    uint32_t low[LANES], high[LANES], out[4][LANES];
    for (int i = 0; i < LANES; i++) {
      uint64_t n = first + (uint64_t)(done + i);
      low[i] = (uint32_t)n, high[i] = (uint32_t)(n >> 32);
    }
    for (int i = 0; i < LANES; i++) {
      uint32_t x0 = low[i], x1 = high[i], x2 = 0, x3 = 0;
      ROUND(0)
      ROUND(1)
      ROUND(2)
      ROUND(3)
      ROUND(4)
      ROUND(5)
      ROUND(6)
      ROUND(7)
      ROUND(8)
      ROUND(9)
      out[0][i] = x0, out[1][i] = x1, out[2][i] = x2, out[3][i] = x3;
    }
    for (int i = 0; i < LANES; i++) {
      for (int v = 0; v < 4; v++) words[4 * (done + i) + v] = out[v][i];
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
    float u = (float)(int32_t)(words[2 * i] >> 1) * 0x1p-31f + 0x1p-32f;    /* (0, 1] */
    float turn = (float)(int32_t)(words[2 * i + 1] >> 8) * 0x1.921fb6p-22f; /* 2 pi / 2^24 */
    float radius = __builtin_sqrtf(-2 * log_f32(u));
    z[2 * i] = radius * cos_f32(turn);
    z[2 * i + 1] = radius * sin_f32(turn);
  }
}
