/* random.c -- see random.h. */
#include "kernels/random.h"

#include <math.h>

#include "kernels/philox.h"
#include "kernels/random_simd.h"
#include "kernels/sort.h"

enum {
  CHUNK = 256,  /* elements made at a time; a multiple of 4 */
  GRAIN = 4096, /* elements worth a thread */
};

static int random_words(RandomKind kind, Dtype d) { return d == DT_F64 || kind == RANDOM_INTEGER ? 2 : 1; }

int64_t random_blocks(RandomKind kind, Dtype d, int64_t n) { return (n * random_words(kind, d) + 3) / 4; }

/* ---- words to numbers ---------------------------------------------------------------------- */

static inline uint64_t two_words(const uint32_t *w) { return (uint64_t)w[0] << 32 | w[1]; }

/* (0, 1], all 32 (53) bits: for logarithms. */
static inline double positive(int words, const uint32_t *w) {
  return words == 2 ? (double)((two_words(w) >> 11) + 1) * 0x1p-53 : ((double)w[0] + 1) * 0x1p-32;
}

/* Box-Muller: elements 2j and 2j + 1 are the two coordinates of one point.  Two words
 * each; with one, simd/random.c does it. */
static inline double normal_f64(const uint32_t *pair, bool second) {
  double radius = sqrt(-2 * log(positive(2, pair))), turn = 6.283185307179586 * positive(2, pair + 2);
  return radius * (second ? sin(turn) : cos(turn));
}

static inline int64_t integer(const Random *r, const uint32_t *w) {
  uint64_t x = two_words(w);
  if (r->range) x = (uint64_t)(((unsigned __int128)x * r->range) >> 64);
  return (int64_t)((uint64_t)r->low + x);
}

/* a + (b - a) * [0, 1), on a grid that the dtype can hold, so that rounding never gives b. */
static void make_uniform(const Random *r, Dtype d, const uint32_t *w, int64_t n, double *x) {
  int drop = d == DT_F16 ? 21 : d == DT_BF16 ? 24 : 8;
  double step = d == DT_F16 ? 0x1p-11 : d == DT_BF16 ? 0x1p-8 : 0x1p-24, width = r->b - r->a;
  if (d == DT_F64) {
    for (int64_t i = 0; i < n; i++) x[i] = (double)(two_words(w + 2 * i) >> 11) * 0x1p-53 * width + r->a;
  } else {
    for (int64_t i = 0; i < n; i++) x[i] = (double)(int32_t)(w[i] >> drop) * step * width + r->a;
  }
}

/* ---- numbers to elements ---------------------------------------------------------------------- */

static void store_floats(Dtype d, void *out, const double *x, int64_t n) {
  switch (d) {
    case DT_F64:
      for (int64_t i = 0; i < n; i++) ((double *)out)[i] = x[i];
      break;
    case DT_F32:
      for (int64_t i = 0; i < n; i++) ((float *)out)[i] = (float)x[i];
      break;
    case DT_F16:
      for (int64_t i = 0; i < n; i++) ((uint16_t *)out)[i] = f32_to_f16((float)x[i]);
      break;
    case DT_BF16:
      for (int64_t i = 0; i < n; i++) ((uint16_t *)out)[i] = f32_to_bf16((float)x[i]);
      break;
    default: break;
  }
}

static void store_ints(Dtype d, void *out, const int64_t *x, int64_t n) {
  double f[CHUNK];
  switch (d) {
    case DT_BOOL:
      for (int64_t i = 0; i < n; i++) ((bool *)out)[i] = x[i] != 0;
      break;
    case DT_U8:
      for (int64_t i = 0; i < n; i++) ((uint8_t *)out)[i] = (uint8_t)x[i];
      break;
    case DT_I8:
      for (int64_t i = 0; i < n; i++) ((int8_t *)out)[i] = (int8_t)x[i];
      break;
    case DT_I16:
      for (int64_t i = 0; i < n; i++) ((int16_t *)out)[i] = (int16_t)x[i];
      break;
    case DT_I32:
      for (int64_t i = 0; i < n; i++) ((int32_t *)out)[i] = (int32_t)x[i];
      break;
    case DT_I64:
      for (int64_t i = 0; i < n; i++) ((int64_t *)out)[i] = x[i];
      break;
    default:
      for (int64_t i = 0; i < n; i++) f[i] = (double)x[i];
      store_floats(d, out, f, n);
  }
}

typedef struct {
  const Random *r;
  Dtype d;
  void *out;
  int64_t first;
  Isa isa;
} RandomJob;

/* Elements [begin, end) of the whole tensor, at most CHUNK; w are the words from element
 * `from` on, which is a multiple of 4. */
static void make_elements(const RandomJob *j, int64_t from, int64_t begin, int64_t end, int words,
                          const uint32_t *w) {
  const Random *r = j->r;
  int64_t n = end - begin, y[CHUNK];
  double x[CHUNK];
  float z[CHUNK + 4];
  const uint32_t *own = w + (begin - from) * words;
  const double *p = r->p ? r->p + (begin - j->first) : NULL;
  char *out = (char *)j->out + (size_t)(begin - j->first) * dtype_size(j->d);
  switch (r->kind) {
    case RANDOM_UNIFORM: make_uniform(r, j->d, own, n, x); break;
    case RANDOM_EXPONENTIAL:
      for (int64_t i = 0; i < n; i++) x[i] = -log(positive(words, own + i * words)) / r->a;
      break;
    case RANDOM_NORMAL:
      if (words == 1) SIMD_CALL(j->isa, random_normal)(w, (end - from + 1) / 2, z);
      for (int64_t i = begin; i < end; i++) {
        double v = words == 1 ? (double)z[i - from] : normal_f64(w + (i - from) / 2 * 4, i & 1);
        x[i - begin] = v * r->b + r->a;
      }
      break;
    case RANDOM_BERNOULLI:
      for (int64_t i = 0; i < n; i++) y[i] = (double)own[i * words] * 0x1p-32 < (p ? p[i] : r->a);
      break;
    case RANDOM_INTEGER:
      for (int64_t i = 0; i < n; i++) y[i] = integer(r, own + i * words);
  }
  if (r->kind == RANDOM_BERNOULLI || r->kind == RANDOM_INTEGER) store_ints(j->d, out, y, n);
  else store_floats(j->d, out, x, n);
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
    SIMD_CALL(j->isa, random_words)(j->r->seed, block, ((to - from) * words + 3) / 4, w);
    make_elements(j, from, begin, to, words, w);
    begin = to;
  }
}

void kernel_random(Kern *k, const Random *r, Dtype d, void *out, int64_t first, int64_t n) {
  RandomJob j = {r, d, out, first, k->isa};
  parallel_for(k->threads, n, GRAIN, random_part, &j);
}

/* ---- parts ---------------------------------------------------------------------------------------- */

typedef struct {
  const Random *r;
  const RandomPart *part;
  Dtype d;
  char *out;
  int64_t inner; /* elements of all stretches */
  Isa isa;
} PartJob;

/* Elements that an outer index begins with. */
static int64_t outer_at(const RandomPart *p, int64_t outer) {
  int64_t at = 0;
  for (int d = p->ndim - 1; d >= 0; outer /= p->size[d], d--) at += p->at[d][outer % p->size[d]];
  return at;
}

/* Row i: stretch i % nstretches of outer index i / nstretches. */
static RandomJob part_row(const PartJob *j, int64_t i, Random *r) {
  int64_t outer = i / j->part->nstretches, s = i % j->part->nstretches,
          before = outer * j->inner + j->part->stretch[s].before;
  *r = *j->r;
  if (r->p) r->p += before;
  return (RandomJob){r, j->d, j->out + (size_t)before * dtype_size(j->d),
                     outer_at(j->part, outer) + j->part->stretch[s].first, j->isa};
}

static void part_rows(void *arg, int64_t begin, int64_t end, int worker) {
  const PartJob *j = arg;
  for (int64_t i = begin; i < end; i++) {
    Random r;
    RandomJob row = part_row(j, i, &r);
    random_part(&row, 0, j->part->stretch[i % j->part->nstretches].n, worker);
  }
}

/* Threads share rows where they are short, else the elements of each. */
void kernel_random_part(Kern *k, const Random *r, Dtype d, void *out, const RandomPart *part) {
  int64_t rows = part->nstretches;
  for (int i = 0; i < part->ndim; i++) rows *= part->size[i];
  if (!rows) return;
  const RandomStretch *last = &part->stretch[part->nstretches - 1];
  int64_t inner = last->before + last->n;
  PartJob j = {r, part, d, out, inner, k->isa};
  int64_t mean = inner / part->nstretches + 1;
  if (mean < 4 * GRAIN) {
    parallel_for(k->threads, rows, GRAIN / mean + 1, part_rows, &j);
    return;
  }
  for (int64_t i = 0; i < rows; i++) {
    Random own;
    RandomJob row = part_row(&j, i, &own);
    parallel_for(k->threads, part->stretch[i % part->nstretches].n, GRAIN, random_part, &row);
  }
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

static void draw_with_replacement(const Random *r, const double *p, int64_t n, int64_t count, int64_t element,
                                  double *sums, int64_t *out) {
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
static void draw_without(const Random *r, const double *p, int64_t n, int64_t count, int64_t element, SortEntry *e,
                         int64_t *out) {
  for (int64_t i = 0; i < n; i++) {
    double time = p[i] > 0 ? -log(positive_at(r, element + i)) / p[i] : INFINITY;
    sort_keys(DT_F64, &time, 1, 1, false, &e[i].key);
    e[i].index = i;
  }
  sort_entries(e, e + n, n, 8);
  for (int64_t j = 0; j < count; j++) out[j] = e[j].index;
}

void kernel_multinomial(const Random *r, const double *p, int64_t rows, int64_t n, int64_t count, bool replacement,
                        const int64_t *number, void *spare, int64_t *out) {
  for (int64_t row = 0; row < rows; row++) {
    int64_t global = number ? number[row] : row;
    if (replacement) draw_with_replacement(r, p + row * n, n, count, global * count, spare, out + row * count);
    else draw_without(r, p + row * n, n, count, global * n, spare, out + row * count);
  }
}
