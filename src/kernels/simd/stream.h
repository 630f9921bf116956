/* stream.h -- stores that pass by the caches.
 *
 * They do not read a line before they write it, and do not drive out what is worked on: a third of a copy's traffic
 * is saved.  Reading far ahead keeps memory busy across pages, where the machine's own look-ahead stops.
 */
#ifndef TESS_KERNELS_SIMD_STREAM_H
#define TESS_KERNELS_SIMD_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

enum { LINE = 64, AHEAD = 2048 }; /* bytes */

/* Bytes from p to the next line. */
static inline size_t stream_to_line(const void *p) { return (size_t)(-(uintptr_t)p % LINE); }

/* Asks for what stands AHEAD of a line, if that is before `end`. */
static inline void stream_ask(const char *line, const char *end) {
  __builtin_prefetch((size_t)(end - line) > AHEAD ? line + AHEAD : line);
}

/* One line; `to` is the beginning of one. */
static inline void stream_line(char *to, const char *from) {
#if defined __AVX512F__
  _mm512_stream_si512((__m512i *)(void *)to, _mm512_loadu_si512(from));
#elif defined __AVX__
  for (size_t i = 0; i < LINE; i += 32)
    _mm256_stream_si256((__m256i *)(void *)(to + i), _mm256_loadu_si256((const __m256i *)(const void *)(from + i)));
#elif defined __SSE2__
  for (size_t i = 0; i < LINE; i += 16)
    _mm_stream_si128((__m128i *)(void *)(to + i), _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
#else
  memcpy(to, from, LINE);
#endif
}

/* Behind the last line: such stores are in no order with those that come after, which tell others that this is
 * done. */
static inline void stream_end(void) {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

#endif
