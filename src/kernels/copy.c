/* copy.c -- see copy.h.
 *
 * Same dtype: rows by memcpy; where the source runs along another dimension than the
 * destination, square blocks that fit in L1; else element by element.  Other dtypes:
 * runs of CHUNK elements through convert.h, gathered and scattered where strided.
 */
#include "kernels/copy.h"

#include <string.h>

#include "kernels/bits.h"
#include "kernels/convert.h"
#include "kernels/walk.h"

enum {
  CHUNK = 1024,    /* elements converted at a time */
  GRAIN = 1 << 15, /* elements worth a thread */
  BLOCK = 16,      /* side of a transposed block: a cache line of f32 */
  PASSES_BY = 4096 /* bytes in a row from which on passing by the caches pays */
};

typedef struct {
  const Walk *walk; /* operand 0: dst, 1: src */
  char *dst;
  const char *src;
  Dtype to, from;
  size_t bytes; /* of an element of src; equal for both in same-dtype copies */
  Isa isa;
  bool past_caches;
  int across; /* transposed: the loop in which src is contiguous */
} Copy;

void copy_strided(void *to, int64_t to_step, const void *from, int64_t from_step, size_t bytes, int64_t n) {
  char *dst = to;
  const char *src = from;
#define LOOP(T)                                                                          \
  for (int64_t i = 0; i < n; i++) {                                                      \
    *(T *)(void *)(dst + i * to_step) = *(const T *)(const void *)(src + i * from_step); \
  }                                                                                      \
  break
  switch (bytes) {
    case 1: LOOP(Bits8);
    case 2: LOOP(Bits16);
    case 4: LOOP(Bits32);
    case 8: LOOP(Bits64);
    default: LOOP(Bits128);
  }
#undef LOOP
}

void copy_splat(void *dst, const void *element, size_t bytes, int64_t n) {
#define LOOP(T)                               \
  {                                           \
    T *d = dst;                               \
    const T e = *(const T *)element;          \
    for (int64_t i = 0; i < n; i++) d[i] = e; \
    break;                                    \
  }
  switch (bytes) {
    case 1: LOOP(Bits8)
    case 2: LOOP(Bits16)
    case 4: LOOP(Bits32)
    case 8: LOOP(Bits64)
    default: LOOP(Bits128)
  }
#undef LOOP
}

static void fill_run(char *dst, int64_t step, const void *element, size_t bytes, int64_t n) {
  const unsigned char *e = element;
  bool same_bytes = true;
  for (size_t i = 1; i < bytes; i++) same_bytes &= e[i] == e[0];
  if (step != (int64_t)bytes) copy_strided(dst, step, element, 0, bytes, n);
  else if (same_bytes) memset(dst, e[0], bytes * (size_t)n);
  else copy_splat(dst, element, bytes, n);
}

static void copy_dense(const Copy *c, char *dst, const char *src, size_t bytes) {
  if (c->past_caches && bytes >= PASSES_BY) SIMD_CALL(c->isa, copy_past_caches)(dst, src, bytes);
  else memcpy(dst, src, bytes);
}

static void copy_rows(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Copy *c = arg;
  Cursor at;
  walk_seek(c->walk, begin, &at);
  int64_t to_step = walk_step(c->walk, 0), from_step = walk_step(c->walk, 1), bytes = (int64_t)c->bytes;
  while (begin < end) {
    int64_t n = walk_run(c->walk, &at);
    if (n > end - begin) n = end - begin;
    char *dst = c->dst + at.offset[0];
    const char *src = c->src + at.offset[1];
    if (to_step == bytes && from_step == bytes) copy_dense(c, dst, src, (size_t)n * c->bytes);
    else if (from_step == 0) fill_run(dst, to_step, src, c->bytes, n);
    else copy_strided(dst, to_step, src, from_step, c->bytes, n);
    walk_advance(c->walk, &at, n);
    begin += n;
  }
}

static void convert_rows(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Copy *c = arg;
  Cursor at;
  walk_seek(c->walk, begin, &at);
  int64_t to_step = walk_step(c->walk, 0), from_step = walk_step(c->walk, 1);
  int64_t to_bytes = (int64_t)dtype_size(c->to), from_bytes = (int64_t)c->bytes;
  _Alignas(64) char gathered[CHUNK * 8], converted[CHUNK * 8];
  while (begin < end) {
    int64_t n = walk_run(c->walk, &at);
    if (n > end - begin) n = end - begin;
    if (n > CHUNK) n = CHUNK;
    char *dst = c->dst + at.offset[0];
    const char *src = c->src + at.offset[1];
    if (from_step != from_bytes) {
      copy_strided(gathered, from_bytes, src, from_step, c->bytes, n);
      src = gathered;
    }
    char *target = to_step == to_bytes ? dst : converted;
    SIMD_CALL(c->isa, convert_run)(target, c->to, src, c->from, n);
    if (target != dst) copy_strided(dst, to_step, converted, to_bytes, (size_t)to_bytes, n);
    walk_advance(c->walk, &at, n);
    begin += n;
  }
}

/* A block of BLOCK x BLOCK or less: src rows (step `right`) become dst columns, src
 * columns dst rows (step `down`).  By way of a buffer, so that every cache line of src is
 * read once and every line of dst written in one go, also where rows are a power of two
 * apart and lie in the same sets. */
static void transpose_block(char *dst, int64_t down, const char *src, int64_t right, size_t bytes, int64_t rows,
                            int64_t columns) {
#define LOOP(T)                                                                                        \
  {                                                                                                    \
    T block[BLOCK][BLOCK];                                                                             \
    for (int64_t i = 0; i < columns; i++) memcpy(block[i], src + i * right, (size_t)rows * sizeof(T)); \
    if (rows == BLOCK && columns == BLOCK) {                                                           \
      for (int r = 0; r < BLOCK; r++) {                                                                \
        T *d = (T *)(void *)(dst + r * down);                                                          \
        for (int i = 0; i < BLOCK; i++) d[i] = block[i][r];                                            \
      }                                                                                                \
      break;                                                                                           \
    }                                                                                                  \
    for (int64_t r = 0; r < rows; r++) {                                                               \
      T *d = (T *)(void *)(dst + r * down);                                                            \
      for (int64_t i = 0; i < columns; i++) d[i] = block[i][r];                                        \
    }                                                                                                  \
    break;                                                                                             \
  }
  switch (bytes) {
    case 1: LOOP(Bits8)
    case 2: LOOP(Bits16)
    case 4: LOOP(Bits32)
    case 8: LOOP(Bits64)
    default: LOOP(Bits128)
  }
#undef LOOP
}

/* Items are strips of BLOCK columns of dst (rows of src) of each plane; the planes are
 * what the remaining loops enumerate. */
static void transpose_strips(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Copy *c = arg;
  const Walk *w = c->walk;
  int64_t width = w->size[0], height = w->size[c->across], strips = (width + BLOCK - 1) / BLOCK;
  int64_t right = w->stride[1][0], down = w->stride[0][c->across], bytes = (int64_t)c->bytes;
  for (int64_t item = begin; item < end; item++) {
    int64_t plane = item / strips, column = item % strips * BLOCK;
    char *dst = c->dst + column * bytes;
    const char *src = c->src + column * right;
    for (int d = 1; d < w->ndim; d++) {
      if (d == c->across) continue;
      dst += plane % w->size[d] * w->stride[0][d];
      src += plane % w->size[d] * w->stride[1][d];
      plane /= w->size[d];
    }
    int64_t columns = width - column < BLOCK ? width - column : BLOCK;
    for (int64_t r = 0; r < height; r += BLOCK) {
      int64_t rows = height - r < BLOCK ? height - r : BLOCK;
      transpose_block(dst + r * down, down, src + r * bytes, right, c->bytes, rows, columns);
    }
  }
}

/* The loop in which src is contiguous if that is another one than dst's, else 0. */
static int find_across(const Walk *w, int64_t bytes) {
  if (w->ndim < 2 || w->stride[0][0] != bytes || w->stride[1][0] <= bytes || w->size[0] < 4) return 0;
  for (int d = 1; d < w->ndim; d++) {
    if (w->stride[1][d] == bytes && w->size[d] >= 4) return d;
  }
  return 0;
}

static void copy_view(const Kern *k, View dst, View src, bool past_caches) {
  Walk w;
  walk_init(&w, dst.ndim, dst.size);
  walk_add(&w, dst);
  walk_add(&w, src);
  walk_plan(&w);
  if (w.numel == 0 || (dst.data == src.data && dst.dtype == src.dtype)) return;
  Copy c = {.walk = &w,
            .dst = dst.data,
            .src = src.data,
            .to = dst.dtype,
            .from = src.dtype,
            .bytes = dtype_size(src.dtype),
            .isa = k->isa,
            .past_caches = past_caches};
  if (dst.dtype != src.dtype) {
    parallel_for(k->threads, w.numel, GRAIN, convert_rows, &c);
    return;
  }
  c.across = find_across(&w, (int64_t)c.bytes);
  if (!c.across) {
    parallel_for(k->threads, w.numel, GRAIN, copy_rows, &c);
    return;
  }
  int64_t height = w.size[c.across], strips = (w.size[0] + BLOCK - 1) / BLOCK,
          planes = w.numel / (w.size[0] * height);
  parallel_for(k->threads, strips * planes, GRAIN / (height * BLOCK) + 1, transpose_strips, &c);
}

void kernel_copy(Kern *k, View dst, View src) { copy_view(k, dst, src, false); }
void kernel_copy_past_caches(Kern *k, View dst, View src) { copy_view(k, dst, src, true); }

typedef struct {
  const Walk *walk;
  char *dst;
  const void *element;
  size_t bytes;
} Fill;

static void fill_rows(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Fill *f = arg;
  Cursor at;
  walk_seek(f->walk, begin, &at);
  while (begin < end) {
    int64_t n = walk_run(f->walk, &at);
    if (n > end - begin) n = end - begin;
    fill_run(f->dst + at.offset[0], walk_step(f->walk, 0), f->element, f->bytes, n);
    walk_advance(f->walk, &at, n);
    begin += n;
  }
}

void kernel_fill(Kern *k, View dst, const void *element) {
  Walk w;
  walk_init(&w, dst.ndim, dst.size);
  walk_add(&w, dst);
  walk_plan(&w);
  if (w.numel == 0) return;
  Fill f = {&w, dst.data, element, dtype_size(dst.dtype)};
  parallel_for(k->threads, w.numel, GRAIN, fill_rows, &f);
}
