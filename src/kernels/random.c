/* random.c -- see random.h. */
#include "kernels/random.h"

#include <math.h>

#include "kernels/philox.h"
#include "kernels/sort.h"

enum {
  CHUNK = 256,  /* elements made at a time; a multiple of 4 */
  GRAIN = 4096, /* elements worth a thread */
};

int random_words(RandomKind kind, Dtype d) { return d == DT_F64 || kind == RANDOM_INTEGER ? 2 : 1; }

int64_t random_blocks(RandomKind kind, Dtype d, int64_t n) { return (n * random_words(kind, d) + 3) / 4; }

/* ---- words to numbers ---------------------------------------------------------------------- */

static inline uint64_t two_words(const uint32_t *w) { return (uint64_t)w[0] << 32 | w[1]; }

/* [0, 1) in steps that the dtype can hold, so that rounding never gives 1. */
static inline double uniform(Dtype d, const uint32_t *w) {
  switch (d) {
    case DT_F64: return (double)(two_words(w) >> 11) * 0x1p-53;
    case DT_F16: return (double)(w[0] >> 21) * 0x1p-11;
    case DT_BF16: return (double)(w[0] >> 24) * 0x1p-8;
    default: return (double)(w[0] >> 8) * 0x1p-24;
  }
}

/* (0, 1], all 32 (53) bits: for logarithms. */
static inline double positive(int words, const uint32_t *w) {
  return words == 2 ? (double)((two_words(w) >> 11) + 1) * 0x1p-53 : ((double)w[0] + 1) * 0x1p-32;
}

/* Box-Muller: elements 2j and 2j + 1 are the two coordinates of one point. */
static inline double normal(int words, const uint32_t *pair, bool second) {
  double radius = sqrt(-2 * log(positive(words, pair))), turn = 6.283185307179586 * positive(words, pair + words);
  return radius * (second ? sin(turn) : cos(turn));
}

static inline int64_t integer(const Random *r, const uint32_t *w) {
  uint64_t x = two_words(w);
  if (r->range) x = (uint64_t)(((unsigned __int128)x * r->range) >> 64);
  return (int64_t)((uint64_t)r->low + x);
}

/* ---- numbers to elements ---------------------------------------------------------------------- */

static inline void store_float(Dtype d, void *out, int64_t at, double x) {
  switch (d) {
    case DT_F64: ((double *)out)[at] = x; break;
    case DT_F32: ((float *)out)[at] = (float)x; break;
    case DT_F16: ((uint16_t *)out)[at] = f32_to_f16((float)x); break;
    case DT_BF16: ((uint16_t *)out)[at] = f32_to_bf16((float)x); break;
    default: break;
  }
}

static inline void store_int(Dtype d, void *out, int64_t at, int64_t x) {
  switch (d) {
    case DT_BOOL: ((bool *)out)[at] = x != 0; break;
    case DT_U8: ((uint8_t *)out)[at] = (uint8_t)x; break;
    case DT_I8: ((int8_t *)out)[at] = (int8_t)x; break;
    case DT_I16: ((int16_t *)out)[at] = (int16_t)x; break;
    case DT_I32: ((int32_t *)out)[at] = (int32_t)x; break;
    case DT_I64: ((int64_t *)out)[at] = x; break;
    default: store_float(d, out, at, (double)x);
  }
}

typedef struct {
  const Random *r;
  Dtype d;
  void *out;
  int64_t first;
} RandomJob;

/* Elements [begin, end) of the whole tensor, at most CHUNK; w are the words from element
 * `from` on, which is a multiple of 4. */
static void make_elements(const RandomJob *j, int64_t from, int64_t begin, int64_t end, int words, const uint32_t *w) {
  const Random *r = j->r;
  for (int64_t i = begin; i < end; i++) {
    const uint32_t *own = w + (i - from) * words, *pair = w + (i - from) / 2 * 2 * words;
    int64_t at = i - j->first;
    switch (r->kind) {
      case RANDOM_UNIFORM: store_float(j->d, j->out, at, uniform(j->d, own) * (r->b - r->a) + r->a); break;
      case RANDOM_NORMAL: store_float(j->d, j->out, at, normal(words, pair, i & 1) * r->b + r->a); break;
      case RANDOM_EXPONENTIAL: store_float(j->d, j->out, at, -log(positive(words, own)) / r->a); break;
      case RANDOM_BERNOULLI: store_int(j->d, j->out, at, (double)own[0] * 0x1p-32 < (r->p ? r->p[at] : r->a)); break;
      case RANDOM_INTEGER: store_int(j->d, j->out, at, integer(r, own)); break;
    }
  }
}

static void random_part(void *arg, int64_t begin, int64_t end, int worker) {
  const RandomJob *j = arg;
  int words = random_words(j->r->kind, j->d);
  uint32_t w[(CHUNK + 4) * 2];
  (void)worker;
  begin += j->first, end += j->first;
  while (begin < end) {
    int64_t from = begin / 4 * 4, to = from + CHUNK < end ? from + CHUNK : end;
    uint64_t block = j->r->offset + (uint64_t)(from * words / 4);
    for (int64_t at = 0; at < (to - from) * words; at += 4, block++) {
      PhiloxBlock b = philox_block(j->r->seed, block);
      for (int i = 0; i < 4; i++) w[at + i] = b.word[i];
    }
    make_elements(j, from, begin, to, words, w);
    begin = to;
  }
}

void kernel_random(Kern *k, const Random *r, Dtype d, void *out, int64_t first, int64_t n) {
  RandomJob j = {r, d, out, first};
  parallel_for(k->threads, n, GRAIN, random_part, &j);
}

/* ---- draws from weights ------------------------------------------------------------------------- */

/* (0, 1] from words 2i and 2i + 1 of the stream. */
static double positive_at(const Random *r, int64_t i) {
  PhiloxBlock b = philox_block(r->seed, r->offset + (uint64_t)(i / 2));
  return positive(2, b.word + 2 * (i % 2));
}

/* The first place at which the running sum exceeds x. */
static int64_t find_sum(const double *sums, int64_t n, double x) {
  int64_t low = 0, high = n - 1;
  while (low < high) {
    int64_t mid = low + (high - low) / 2;
    if (sums[mid] > x) high = mid;
    else low = mid + 1;
  }
  return low;
}

static void draw_with_replacement(const Random *r, const double *p, int64_t n, int64_t count, int64_t element, double *sums, int64_t *out) {
  double total = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < n; i++) {
    total += p[i];
    sums[i] = total;
    if (p[i] > 0) last = i;
  }
  for (int64_t j = 0; j < count; j++) {
    int64_t found = find_sum(sums, n, (1 - positive_at(r, element + j)) * total);
    out[j] = found < last ? found : last;
  }
}

/* The weights race: the time to the first event of each is exponential with its rate; the
 * order of arrival is a draw without replacement. */
static void draw_without(const Random *r, const double *p, int64_t n, int64_t count, int64_t element, SortEntry *e, int64_t *out) {
  for (int64_t i = 0; i < n; i++) {
    double time = p[i] > 0 ? -log(positive_at(r, element + i)) / p[i] : INFINITY;
    sort_keys(DT_F64, &time, 1, 1, false, &e[i].key);
    e[i].index = i;
  }
  sort_entries(e, e + n, n, 8);
  for (int64_t j = 0; j < count; j++) out[j] = e[j].index;
}

void kernel_multinomial(const Random *r, const double *p, int64_t rows, int64_t n, int64_t count, bool replacement, void *spare, int64_t *out) {
  for (int64_t row = 0; row < rows; row++) {
    if (replacement) draw_with_replacement(r, p + row * n, n, count, row * count, spare, out + row * count);
    else draw_without(r, p + row * n, n, count, row * n, spare, out + row * count);
  }
}
