/* The JSON of a .pt2 file, whose lengths may change: models/model.json, the config of the
 * weights and that of the constants, with NUL between them, packed into an archive here. */
#include <stdlib.h>

#include "check_program.h"
#include "pt2/read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
  unsigned char *data;
  size_t size;
} Bytes;

static void put(Bytes *b, const void *data, size_t size) {
  b->data = realloc(b->data, b->size + size + 1);
  if (!b->data) abort();
  if (size) memcpy(b->data + b->size, data, size);
  b->size += size;
}

/* Little-endian fields: width 2 or 4 bytes each, as the ZIP format has them. */
static void put_fields(Bytes *b, const uint32_t *values, const char *widths) {
  for (; *widths; widths++, values++) put(b, values, (size_t)(*widths - '0'));
}

static void add_entry(Bytes *out, Bytes *directory, const char *name, const void *data, size_t size) {
  uint32_t n = (uint32_t)strlen(name), bytes = (uint32_t)size, at = (uint32_t)out->size;
  put_fields(out, (uint32_t[]){0x04034b50, 0, 0, 0, 0, 0, 0, bytes, bytes, n, 0}, "42222244422");
  put(out, name, n);
  put(out, data, size);
  put_fields(directory, (uint32_t[]){0x02014b50, 0, 0, 0, 0, 0, 0, 0, bytes, bytes, n, 0, 0, 0, 0, 0, at},
             "42222224442222244");
  put(directory, name, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const names[] = {"m/models/model.json", "m/data/weights/model_weights_config.json",
                                      "m/data/constants/model_constants_config.json"};
  static const float weights[64] = {1};
  Bytes out = {0}, directory = {0};
  const uint8_t *end = data + size;
  for (int i = 0; i < 3; i++) {
    const uint8_t *nul = size ? memchr(data, 0, (size_t)(end - data)) : NULL, *stop = nul ? nul : end;
    add_entry(&out, &directory, names[i], data, (size_t)(stop - data));
    data = nul ? nul + 1 : end;
  }
  add_entry(&out, &directory, "m/archive_format", "pt2", 3);
  add_entry(&out, &directory, "m/archive_version", "0", 1);
  add_entry(&out, &directory, "m/data/weights/weight_0", weights, sizeof weights);
  add_entry(&out, &directory, "m/data/constants/tensor_0", weights, 8);
  uint32_t at = (uint32_t)out.size;
  put(&out, directory.data, directory.size);
  put_fields(&out, (uint32_t[]){0x06054b50, 0, 0, 7, 7, (uint32_t)directory.size, at, 0}, "42222442");
  Exported *e = NULL;
  Status s = pt2_read_memory(out.data, out.size, "fuzz.pt2", &e);
  if (!s) check_program(e);
  status_free(s);
  exported_free(e);
  free(out.data);
  free(directory.data);
  return 0;
}
