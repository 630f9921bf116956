/* Any bytes as a pickle: refused, or a tree that can be walked and printed. */
#include "ckpt/pickle.h"
#include "tensor/tensor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Arena arena = {0};
  PickleValue *root;
  TextBuf text = {0};
  int64_t sizes[MAX_DIMS];
  int n;
  Status s = pickle_read("fuzz", data, size, &arena, &root);
  if (!s) {
    pickle_print(&text, root);
    if (pickle_sizes(root, &n, sizes) && n > MAX_DIMS) __builtin_trap();
    pickle_member(root, "state_dict_metadata");
  }
  status_free(s);
  text_free(&text);
  arena_free(&arena);
  return 0;
}
