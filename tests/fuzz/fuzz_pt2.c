/* Any bytes as a .pt2 file.  The sums in the seeds are 0 (not computed), so that a fuzzer
 * gets past them. */
#include "check_program.h"
#include "pt2/read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every byte that a weight's view reaches can be read. */
static void touch_weights(const Exported *e) {
  volatile unsigned char sum = 0;
  for (int i = 0; i < e->nstate; i++) {
    const Tensor *t = e->state[i].tensor;
    size_t bytes = (size_t)tensor_extent(t) * dtype_size(t->dtype);
    const unsigned char *data = tensor_data(t);
    if (bytes) sum = (unsigned char)(sum + data[0] + data[bytes - 1]);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Exported *e = NULL;
  Status s = pt2_read_memory(data, size, "fuzz.pt2", &e);
  if (!s) {
    touch_weights(e);
    check_program(e);
  }
  status_free(s);
  exported_free(e);
  return 0;
}
