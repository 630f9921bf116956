/* combine.c -- see combine.h. */
#include "kernels/combine.h"

#include <string.h>

#include "kernels/convert.h"
#include "kernels/copy.h"

enum {
  TILE = 2048, /* elements; intermediate results stay in L1 */
  LINE = 64,   /* bytes */
};

typedef struct {
  _Alignas(64) unsigned char bytes[TILE * 8];
} Tile;

static bool supports(ReduceOp op, DtypeKind kind) {
  static const bool table[REDUCE_OP_COUNT][KIND_DATA] = {
      /* clang-format off */
      /*                    bool  int   float complex */
      [REDUCE_SUM] =     {true, true, true, true},
      [REDUCE_AVG] =     {false, true, true, true},
      [REDUCE_MIN] =     {true, true, true, false},
      [REDUCE_MAX] =     {true, true, true, false},
      [REDUCE_PRODUCT] = {true, true, true, true},
      [REDUCE_BAND] =    {true, true, false, false},
      [REDUCE_BOR] =     {true, true, false, false},
      [REDUCE_BXOR] =    {true, true, false, false},
      /* clang-format on */
  };
  return kind != KIND_DATA && table[op][kind];
}

Status combine_check(ReduceOp op, Dtype d) {
  if ((unsigned)op >= REDUCE_OP_COUNT) return fail(ERR_USAGE, "there is no reduction number %d", (int)op);
  if ((unsigned)d >= DT_COUNT) return fail(ERR_USAGE, "there is no dtype number %d", (int)d);
  if (!supports(op, dtype_kind(d)))
    return fail(ERR_USAGE, "%s is not defined for %s", reduce_op_name(op), dtype_name(d));
  return OK;
}

/* The type in which values of d are collected. */
static Dtype collected_as(ReduceOp op, Dtype d) {
  if (d == DT_F16 || d == DT_BF16) return DT_F32;
  return op == REDUCE_AVG && dtype_is_int(d) ? DT_I64 : d;
}

/* One tile, of the bytes of each source from `at` on, in the type of the buffers: only the last step writes to dst,
 * which may be any of them.  Of two sources n may be larger than a tile: nothing is kept in between. */
static void combine_plain(Isa isa, ReduceOp op, Dtype d, void *dst, const void *const *src, int nsrc, size_t at,
                          int64_t n, bool past_caches) {
  Tile sum;
  const void *so_far = (const char *)src[0] + at;
  for (int i = 1; i < nsrc - 1; i++) {
    SIMD_CALL(isa, combine_pair)(op, d, sum.bytes, so_far, (const char *)src[i] + at, n);
    so_far = sum.bytes;
  }
  const void *last = (const char *)src[nsrc - 1] + at;
  if (past_caches) SIMD_CALL(isa, combine_pair_past_caches)(op, d, dst, so_far, last, n);
  else SIMD_CALL(isa, combine_pair)(op, d, dst, so_far, last, n);
  if (op == REDUCE_AVG) SIMD_CALL(isa, combine_divide)(d, dst, nsrc, n);
}

/* The same by way of a wider type. */
static void combine_wide(Isa isa, ReduceOp op, Dtype d, Dtype as, void *dst, const void *const *src, int nsrc,
                         size_t at, int64_t n) {
  Tile sum, next;
  SIMD_CALL(isa, convert_run)(sum.bytes, as, (const char *)src[0] + at, d, n);
  for (int i = 1; i < nsrc; i++) {
    SIMD_CALL(isa, convert_run)(next.bytes, as, (const char *)src[i] + at, d, n);
    SIMD_CALL(isa, combine_pair)(op, as, sum.bytes, sum.bytes, next.bytes, n);
  }
  if (op == REDUCE_AVG) SIMD_CALL(isa, combine_divide)(as, sum.bytes, nsrc, n);
  SIMD_CALL(isa, convert_run)(dst, d, sum.bytes, as, n);
}

/* The next tile comes from memory while this one is combined. */
static void fetch(const void *const *src, int nsrc, size_t at, size_t bytes) {
  for (int i = 0; i < nsrc; i++)
    for (size_t k = 0; k < bytes; k += LINE) __builtin_prefetch((const char *)src[i] + at + k);
}

static void combine_tiles(Isa isa, ReduceOp op, Dtype d, void *dst, const void *const *src, int nsrc, int64_t n,
                          bool past_caches) {
  const size_t width = dtype_size(d);
  const Dtype as = collected_as(op, d);
  const bool direct = as == d && op != REDUCE_AVG, by_tile = past_caches && !direct;
  const int64_t most = direct && nsrc == 2 ? n : TILE;
  Tile result;
  for (int64_t i = 0, m; i < n; i += m) {
    m = n - i < most ? n - i : most;
    const size_t at = (size_t)i * width, bytes = (size_t)m * width;
    void *to = by_tile ? (void *)result.bytes : (char *)dst + at;
    if (past_caches) fetch(src, nsrc, at + bytes, (size_t)(n - i - m < most ? n - i - m : most) * width);
    if (as == d) combine_plain(isa, op, d, to, src, nsrc, at, m, past_caches && direct);
    else combine_wide(isa, op, d, as, to, src, nsrc, at, m);
    if (by_tile) SIMD_CALL(isa, copy_past_caches)((char *)dst + at, to, bytes);
  }
}

void combine(Isa isa, ReduceOp op, Dtype d, void *dst, const void *const *src, int nsrc, int64_t n) {
  if (nsrc > 1) combine_tiles(isa, op, d, dst, src, nsrc, n, false);
  else if (n > 0 && dst != src[0]) memcpy(dst, src[0], (size_t)n * dtype_size(d));
}

void combine_past_caches(Isa isa, ReduceOp op, Dtype d, void *dst, const void *const *src, int nsrc, int64_t n) {
  if (nsrc > 1)
    combine_tiles(isa, op, d, dst, src, nsrc, n, n >= TILE); /* a few stores that pass by wait for memory */
  else if (n > 0 && dst != src[0]) SIMD_CALL(isa, copy_past_caches)(dst, src[0], (size_t)n * dtype_size(d));
}
