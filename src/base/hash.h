/* hash.h -- numbers that stand for things, and numbers made up: for tables and trials, not secrets. */
#ifndef TESS_BASE_HASH_H
#define TESS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t hash_mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}

static inline uint64_t hash_bytes(uint64_t h, const void *data, size_t n) {
  const char *p = data;
  for (uint64_t x; n >= sizeof x; n -= sizeof x, p += sizeof x) {
    memcpy(&x, p, sizeof x);
    h = hash_mix(h, x);
  }
  uint64_t rest = 0;
  if (n) memcpy(&rest, p, n);
  return hash_mix(h, rest ^ (uint64_t)n << 56);
}

/* FNV-1a: names are short. */
static inline uint64_t hash_text(const char *s) {
  uint64_t h = 0xcbf29ce484222325u;
  for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
  return h ^ (h >> 29);
}

/* The next of a row of numbers that look random (splitmix64); the state is any number. */
static inline uint64_t random_bits(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

#endif
