/* crc32c.h -- the CRC of Castagnoli's polynomial, as records of TensorFlow have it. */
#ifndef TESS_BASE_CRC32C_H
#define TESS_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

static inline uint32_t crc32c(const void *data, size_t n) {
  const unsigned char *p = data;
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < n; i++) {
    crc ^= p[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1u)));
  }
  return ~crc;
}

#endif
