/* random.h -- random elements, each a function of seed, offset and its own number.
 *
 * Element i takes `words` 32-bit words (one; two where 32 bits are not enough), beginning
 * with word i * words of the stream that starts at block `offset`.  Which thread or rank
 * makes it does not matter.  A tensor of n elements uses random_blocks() blocks.
 */
#ifndef TESS_KERNELS_RANDOM_H
#define TESS_KERNELS_RANDOM_H

#include "kernels/kernel.h"

typedef enum {
  RANDOM_UNIFORM,     /* a <= x < b, on the dtype's grid in [0, 1) */
  RANDOM_NORMAL,      /* mean a, standard deviation b */
  RANDOM_EXPONENTIAL, /* rate a */
  RANDOM_BERNOULLI,   /* 1 with probability a, or p[i] */
  RANDOM_INTEGER,     /* low + [0, range); range 0: all 64 bits */
} RandomKind;

typedef struct {
  RandomKind kind;
  uint64_t seed, offset;
  double a, b;
  int64_t low;
  uint64_t range;
  const double *p; /* RANDOM_BERNOULLI: of elements first, first + 1 ...; may be NULL */
} Random;

int64_t random_blocks(RandomKind kind, Dtype d, int64_t n);

/* Elements first .. first + n - 1 to out (contiguous). */
void kernel_random(Kern *k, const Random *r, Dtype d, void *out, int64_t first, int64_t n);

/* Elements of a larger tensor, row-major: for every index of the outer dimensions all
 * stretches, in order. */
typedef struct {
  int64_t first, n; /* elements, counted from where the outer index begins */
  int64_t before;   /* elements of the stretches before this one */
} RandomStretch;

typedef struct {
  int ndim;            /* outer dimensions */
  const int64_t *size; /* how many indices of each are there ... */
  int64_t *const *at;  /* ... and the element that index i of dimension d begins with: at[d][i] */
  const RandomStretch *stretch;
  int64_t nstretches;
} RandomPart;

/* These elements to out (contiguous, in that order); r->p has one per element made. */
void kernel_random_part(Kern *k, const Random *r, Dtype d, void *out, const RandomPart *part);

/* rows x `count` draws from the weights p [rows, n]; draw j of row i is element
 * i * count + j of out.  Each takes two words with replacement; without, each weight
 * does.  number: rows of a larger tensor that these are; NULL: 0, 1, 2 ...
 * spare: 2 * n entries of 16 bytes. */
void kernel_multinomial(const Random *r, const double *p, int64_t rows, int64_t n, int64_t count, bool replacement,
                        const int64_t *number, void *spare, int64_t *out);

#endif
