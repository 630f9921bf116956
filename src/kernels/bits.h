/* bits.h -- elements as bits, whatever they are: what kernels move that do not compute. */
#ifndef TESS_KERNELS_BITS_H
#define TESS_KERNELS_BITS_H

#include <stdint.h>

typedef uint8_t __attribute__((may_alias)) Bits8;
typedef uint16_t __attribute__((may_alias)) Bits16;
typedef uint32_t __attribute__((may_alias)) Bits32;
typedef uint64_t __attribute__((may_alias)) Bits64;
typedef struct {
  uint64_t half[2];
} __attribute__((may_alias)) Bits128;

#endif
