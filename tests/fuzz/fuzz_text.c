/* Any bytes as the text of a program. */
#include "check_program.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Exported *e = NULL;
  Status s = graph_parse((const char *)data, size, "fuzz", &e);
  if (!s) check_program(e);
  status_free(s);
  exported_free(e);
  return 0;
}
