/* The JSON of a .pt2 file, whose lengths may change: models/model.json, the config of the
 * weights and that of the constants, with NUL between them, packed into an archive here. */
#include "check_program.h"
#include "pt2/read.h"
#include "zip_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const names[] = {"m/models/model.json", "m/data/weights/model_weights_config.json",
                                      "m/data/constants/model_constants_config.json"};
  static const float weights[64] = {1};
  ZipBytes zip = {0};
  const uint8_t *end = data + size;
  for (int i = 0; i < 3; i++) {
    const uint8_t *nul = size ? memchr(data, 0, (size_t)(end - data)) : NULL, *stop = nul ? nul : end;
    zip_bytes_add(&zip, names[i], data, (size_t)(stop - data));
    data = nul ? nul + 1 : end;
  }
  zip_bytes_add(&zip, "m/archive_format", "pt2", 3);
  zip_bytes_add(&zip, "m/archive_version", "0", 1);
  zip_bytes_add(&zip, "m/data/weights/weight_0", weights, sizeof weights);
  zip_bytes_add(&zip, "m/data/constants/tensor_0", weights, 8);
  zip_bytes_end(&zip);
  Exported *e = NULL;
  Status s = pt2_read_memory(zip.out.data, zip.out.size, "fuzz.pt2", &e);
  if (!s) check_program(e);
  status_free(s);
  exported_free(e);
  zip_bytes_free(&zip);
  return 0;
}
