/* Any bytes as JSON: parsed or refused, never too deep for a reader that recurses. */
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int depth(yyjson_val *v) {
  size_t i, max;
  yyjson_val *key, *item;
  int deepest = 0;
  if (yyjson_is_arr(v)) {
    yyjson_arr_foreach(v, i, max, item) {
      int d = depth(item);
      if (d > deepest) deepest = d;
    }
    return deepest + 1;
  }
  if (yyjson_is_obj(v)) {
    status_free(json_check_keys(v, "fuzz"));
    yyjson_obj_foreach(v, i, max, key, item) {
      int d = depth(item);
      if (d > deepest) deepest = d;
    }
    return deepest + 1;
  }
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  yyjson_doc *doc;
  Status s = json_parse("fuzz", data, size, size % 2 ? JSON_NAN : 0, &doc);
  if (!s) {
    if (depth(yyjson_doc_get_root(doc)) > JSON_MAX_DEPTH) __builtin_trap();
    yyjson_doc_free(doc);
  }
  status_free(s);
  return 0;
}
