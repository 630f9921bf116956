/* Any bytes as a ZIP archive: opened, every entry read, archives in archives too. */
#include "base/zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_archive(FileMap *f, int depth) {
  Zip *z;
  Status s = zip_from_map(f, &z);
  if (s) {
    status_free(s);
    return;
  }
  for (int i = 0; i < z->count; i++) {
    ZipData d = {0};
    FileMap *part;
    uint64_t sum = 0;
    s = zip_read(z, &z->entries[i], &d);
    for (size_t k = 0; !s && k < d.size; k++) sum += d.data[k];
    status_free(s);
    zip_data_free(&d);
    s = zip_map(z, &z->entries[i], &part);
    if (!s) {
      for (size_t k = 0; k < part->size; k++) sum -= part->data[k];
      if (depth) read_archive(part, depth - 1);
      file_map_unref(part);
    }
    status_free(s);
    if (zip_find(z, z->entries[i].name) != &z->entries[i]) __builtin_trap();
    if (sum && !z->entries[i].size) __builtin_trap();
  }
  zip_close(z);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  FileMap *f;
  Status s = file_map_bytes("fuzz", data, size, &f);
  if (!s) {
    read_archive(f, 1);
    file_map_unref(f);
  }
  status_free(s);
  return 0;
}
