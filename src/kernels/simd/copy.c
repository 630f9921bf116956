/* copy.c -- copies that leave the caches to others; see copy.h.
 *
 * Stores that pass by the caches do not read a line before they write it, and do not drive out what is worked on:
 * a third of the traffic is saved.  Reading far ahead keeps memory busy across pages, where the machine's own
 * look-ahead stops.
 */
#include "kernels/copy.h"

#include <string.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

enum { LINE = 64, AHEAD = 2048 }; /* bytes */

#if defined __AVX512F__
#define PUT(to, from) _mm512_stream_si512((__m512i *)(void *)(to), _mm512_loadu_si512(from))
enum { WIDTH = 64 };
#elif defined __AVX__
#define PUT(to, from) \
  _mm256_stream_si256((__m256i *)(void *)(to), _mm256_loadu_si256((const __m256i *)(const void *)(from)))
enum { WIDTH = 32 };
#elif defined __SSE2__
#define PUT(to, from) \
  _mm_stream_si128((__m128i *)(void *)(to), _mm_loadu_si128((const __m128i *)(const void *)(from)))
enum { WIDTH = 16 };
#endif

void SIMD(copy_past_caches)(void *dst, const void *src, size_t bytes) {
#ifdef PUT
  char *to = dst;
  const char *from = src;
  size_t first = (size_t)(-(uintptr_t)to % LINE);
  if (first > bytes) first = bytes;
  memcpy(to, from, first);
  size_t end = first + (bytes - first) / LINE * LINE;
  for (size_t at = first; at < end; at += LINE) {
    __builtin_prefetch(from + (end - at > AHEAD ? at + AHEAD : at));
    for (size_t i = 0; i < LINE; i += WIDTH) PUT(to + at + i, from + at + i);
  }
  memcpy(to + end, from + end, bytes - end);
  _mm_sfence(); /* such stores are in no order with those that come after, which tell others that this is done */
#else
  memcpy(dst, src, bytes);
#endif
}
