/* Any bytes as a .safetensors file: opened, every tensor's every byte read. */
#include "tensor/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_tensors(const SafeTensors *st) {
  Scope scope = {0};
  for (int i = 0; i < st->count; i++) {
    Tensor *t;
    Status s = safetensors_get(st, st->entries[i].name, &scope, &t);
    if (s) {
      status_free(s);
      continue;
    }
    size_t bytes = (size_t)tensor_numel(t) * dtype_size(t->dtype), sum = 0;
    const unsigned char *p = tensor_data(t);
    for (size_t k = 0; k < bytes; k++) sum += p[k];
    s = tensor_check_bounds(t, "fuzz");
    if (s || sum > bytes * 255) __builtin_trap();
  }
  scope_clear(&scope);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  FileMap *f;
  SafeTensors *st;
  Status s = file_map_bytes("fuzz", data, size, &f);
  if (!s) {
    s = safetensors_from_map(f, &st);
    file_map_unref(f);
    if (!s) {
      read_tensors(st);
      safetensors_close(st);
    }
  }
  status_free(s);
  return 0;
}
