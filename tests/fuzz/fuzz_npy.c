/* Any bytes as a .npy file: what is accepted fills the file to its last byte. */
#include "tensor/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  FileMap *f;
  Npy a;
  Status s = file_map_bytes("fuzz", data, size, &f);
  if (!s) {
    s = npy_read(f, &a);
    int64_t n;
    if (!s && (!checked_numel(a.ndim, a.size, &n) || a.begin + (size_t)n * dtype_size(a.dtype) != f->size))
      __builtin_trap();
    file_map_unref(f);
  }
  status_free(s);
  return 0;
}
