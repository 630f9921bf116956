/* zip_bytes.h -- archives made in memory, for fuzz targets: stored entries without sums (0: not
 * computed), so that nothing but the content is looked at. */
#ifndef TESS_TESTS_ZIP_BYTES_H
#define TESS_TESTS_ZIP_BYTES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  unsigned char *data;
  size_t size, cap;
} Bytes;

typedef struct {
  Bytes out, directory;
  uint32_t count;
} ZipBytes;

static inline void put_bytes(Bytes *b, const void *data, size_t size) {
  if (b->size + size + 1 > b->cap) {
    b->cap = (b->size + size + 1) * 2;
    b->data = realloc(b->data, b->cap);
    if (!b->data) abort();
  }
  if (size) memcpy(b->data + b->size, data, size);
  b->size += size;
}

/* Little-endian fields: width 2 or 4 bytes each, as the ZIP format has them. */
static inline void put_fields(Bytes *b, const uint32_t *values, const char *widths) {
  for (; *widths; widths++, values++) put_bytes(b, values, (size_t)(*widths - '0'));
}

static inline void zip_bytes_add(ZipBytes *z, const char *name, const void *data, size_t size) {
  uint32_t n = (uint32_t)strlen(name), bytes = (uint32_t)size, at = (uint32_t)z->out.size;
  put_fields(&z->out, (uint32_t[]){0x04034b50, 0, 0, 0, 0, 0, 0, bytes, bytes, n, 0}, "42222244422");
  put_bytes(&z->out, name, n);
  put_bytes(&z->out, data, size);
  put_fields(&z->directory, (uint32_t[]){0x02014b50, 0, 0, 0, 0, 0, 0, 0, bytes, bytes, n, 0, 0, 0, 0, 0, at},
             "42222224442222244");
  put_bytes(&z->directory, name, n);
  z->count++;
}

/* The whole is z->out then. */
static inline void zip_bytes_end(ZipBytes *z) {
  uint32_t at = (uint32_t)z->out.size;
  put_bytes(&z->out, z->directory.data, z->directory.size);
  put_fields(&z->out, (uint32_t[]){0x06054b50, 0, 0, z->count, z->count, (uint32_t)z->directory.size, at, 0},
             "42222442");
}

static inline void zip_bytes_free(ZipBytes *z) {
  free(z->out.data);
  free(z->directory.data);
}

#endif
