/* data_convert.c -- see data_convert.h. */
#include "train/data_convert.h"

#include <string.h>

#include "kernels/convert.h"

enum { AT_ONCE = 256 }; /* elements: what is converted stays in the nearest cache */

/*    dtype   type      smallest   largest, of those that int64 has */
/* clang-format off */
#define INTEGERS(X)                            \
  X(BOOL,     uint8_t,  0,         1)          \
  X(U8,       uint8_t,  0,         UINT8_MAX)  \
  X(I8,       int8_t,   INT8_MIN,  INT8_MAX)   \
  X(I16,      int16_t,  INT16_MIN, INT16_MAX)  \
  X(U16,      uint16_t, 0,         UINT16_MAX) \
  X(I32,      int32_t,  INT32_MIN, INT32_MAX)  \
  X(U32,      uint32_t, 0,         UINT32_MAX) \
  X(I64,      int64_t,  INT64_MIN, INT64_MAX)  \
  X(U64,      uint64_t, 0,         INT64_MAX)
/* clang-format on */

static bool is_integer(Dtype d) { return dtype_is_integral(d) || d == DT_U16 || d == DT_U32 || d == DT_U64; }

bool data_converts(Dtype from, Dtype to, bool rounded) {
  if (from == to) return true;
  if (is_integer(from) && is_integer(to)) return true;
  if (!dtype_is_float(from) || !dtype_is_float(to)) return false;
  return rounded || dtype_size(to) > dtype_size(from);
}

/* Both: the number of the first element that does not fit, or n. */
static int64_t load_integers(int64_t *out, const void *src, Dtype from, int64_t n) {
  switch (from) {
#define X(dtype, type, least, most)                                   \
  case DT_##dtype:                                                    \
    for (int64_t i = 0; i < n; i++) {                                 \
      type x;                                                         \
      memcpy(&x, (const char *)src + (size_t)i * sizeof x, sizeof x); \
      if (DT_##dtype == DT_U64 && (uint64_t)x >> 63) return i;        \
      out[i] = (int64_t)x;                                            \
    }                                                                 \
    return n;
    INTEGERS(X)
#undef X
    default: return 0;
  }
}

static int64_t store_integers(void *dst, Dtype to, const int64_t *in, int64_t n) {
  switch (to) {
#define X(dtype, type, least, most)                                 \
  case DT_##dtype:                                                  \
    for (int64_t i = 0, low = (least), high = (most); i < n; i++) { \
      if (in[i] < low || in[i] > high) return i;                    \
      ((type *)dst)[i] = (type)in[i];                               \
    }                                                               \
    return n;
    INTEGERS(X)
#undef X
    default: return 0;
  }
}

int64_t data_convert(void *dst, Dtype to, const void *src, Dtype from, int64_t n) {
  _Alignas(64) int64_t block[AT_ONCE];
  size_t wide = dtype_size(to), narrow = dtype_size(from);
  if (from == to && from != DT_BOOL) {
    if (n) memcpy(dst, src, (size_t)n * wide);
    return -1;
  }
  for (int64_t done = 0; done < n; done += AT_ONCE) {
    int64_t run = n - done < AT_ONCE ? n - done : AT_ONCE;
    const char *in = (const char *)src + (size_t)done * narrow;
    char *out = (char *)dst + (size_t)done * wide;
    if (dtype_is_float(from)) {
      memcpy(block, in, (size_t)run * narrow);
      SIMD_CALL(ISA_BASE, convert_run)(out, to, block, from, run);
      continue;
    }
    int64_t loaded = load_integers(block, in, from, run), stored = store_integers(out, to, block, loaded);
    if (stored < run) return done + stored;
  }
  return -1;
}
