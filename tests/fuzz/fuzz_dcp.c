/* Any bytes as the .metadata of a distributed checkpoint whose files are there: refused, or a source every tensor
 * of which can be read, or says what is missing. */
#include <stdlib.h>

#include "ckpt/source.h"
#include "ckpt/source_formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LARGEST = 1 << 20 };

static void read_all(const Source *s) {
  for (int i = 0; i < s->tensors; i++) {
    const SourceTensor *t = &s->tensor[i];
    const int64_t nowhere[MAX_DIMS] = {0};
    int64_t stride[MAX_DIMS], numel, bytes = 0;
    if (!checked_numel(t->ndim, t->size, &numel) || numel > LARGEST) continue;
    bytes = source_bytes(t);
    void *out = malloc((size_t)bytes + 1);
    contiguous_strides(t->ndim, t->size, stride);
    if (out) {
      status_free(source_read(s, t, nowhere, (View){out, t->size, stride, t->ndim, t->dtype}));
      status_free(source_check(s, t));
      source_span(s, t, nowhere, t->size);
      source_forget(s, t, nowhere, t->size);
    }
    free(out);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Source *s = calloc(1, sizeof *s);
  if (!s) return 0;
  s->path = GOLDEN_FOLDER "/ckpt/files/dcp";
  s->format = &source_formats[0];
  Status r = source_read_dcp_metadata(s, data, size);
  if (!r) read_all(s);
  status_free(r);
  source_close(s);
  return 0;
}
