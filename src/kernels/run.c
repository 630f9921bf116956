/* run.c -- see run.h. */
#include "kernels/run.h"

#include <string.h>

#include "kernels/convert.h"

/* dst[i * to] = src[i * from], elements of `bytes` bytes. */
static void copy_strided(void *dst, int64_t to, const void *src, int64_t from, size_t bytes, int64_t n) {
#define LOOP(T)                                                                    \
  for (int64_t i = 0; i < n; i++) ((T *)dst)[i * to] = ((const T *)src)[i * from]; \
  break
  switch (bytes) {
    case 1: LOOP(uint8_t);
    case 2: LOOP(uint16_t);
    case 4: LOOP(uint32_t);
    default: LOOP(uint64_t);
  }
#undef LOOP
}

const void *run_load(Isa isa, RunBuffer *b, Dtype as, const void *src, Dtype from, int64_t stride, int64_t n) {
  if (run_is_direct(as, from, stride)) return src;
  if (stride != 1) {
    void *to = as == from ? b->dense : b->raw;
    copy_strided(to, 1, src, stride, dtype_size(from), n);
    if (as == from) return to;
    src = to;
  }
  SIMD_CALL(isa, convert_run)(b->dense, as, src, from, n);
  return b->dense;
}

void run_store(Isa isa, RunBuffer *b, void *dst, Dtype to, int64_t stride, const void *src, Dtype as, int64_t n) {
  if (stride == 1) {
    if (as != to) SIMD_CALL(isa, convert_run)(dst, to, src, as, n);
    else if (dst != src) memcpy(dst, src, (size_t)n * dtype_size(to));
    return;
  }
  if (as != to) {
    SIMD_CALL(isa, convert_run)(b->raw, to, src, as, n);
    src = b->raw;
  }
  copy_strided(dst, stride, src, 1, dtype_size(to), n);
}
