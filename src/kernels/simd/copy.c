/* copy.c -- copies that leave the caches to others; see copy.h. */
#include "kernels/copy.h"
#include "kernels/simd/stream.h"

void SIMD(copy_past_caches)(void *dst, const void *src, size_t bytes) {
  char *to = dst;
  const char *from = src;
  size_t first = stream_to_line(to);
  if (first > bytes) first = bytes;
  memcpy(to, from, first);
  size_t end = first + (bytes - first) / LINE * LINE;
  for (size_t at = first; at < end; at += LINE) {
    stream_ask(from + at, from + end);
    stream_line(to + at, from + at);
  }
  memcpy(to + end, from + end, bytes - end);
  stream_end();
}
