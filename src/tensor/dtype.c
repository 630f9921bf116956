/* dtype.c -- see dtype.h. */
#include "tensor/dtype.h"

#include <string.h>

const DtypeInfo dtype_table[DT_COUNT + 1] = {{"none", "none", "", -1, 0, KIND_DATA},
#define X(id, name, torch, safe, pt2, size, kind) {name, torch, safe, pt2, size, KIND_##kind},
                                             DTYPES(X)
#undef X
};

Dtype dtype_parse(const char *name) {
  for (int d = 0; d < DT_COUNT; d++) {
    if (!strcmp(name, dtype_info[d].name) || !strcmp(name, dtype_info[d].torch)) return (Dtype)d;
  }
  return DT_NONE;
}

Dtype dtype_from_pt2(int code) {
  for (int d = 0; d < DT_COUNT; d++) {
    if (dtype_info[d].pt2 == code) return (Dtype)d;
  }
  return DT_NONE;
}

Dtype dtype_from_safetensors(const char *name) {
  for (int d = 0; d < DT_COUNT; d++) {
    if (*name && !strcmp(name, dtype_info[d].safetensors)) return (Dtype)d;
  }
  return DT_NONE;
}

Dtype dtype_promote(Dtype a, Dtype b) {
  if (a == b) return a;
  if (!dtype_is_compute(a) || !dtype_is_compute(b)) return DT_NONE;
  DtypeKind ka = dtype_kind(a), kb = dtype_kind(b);
  if (ka != kb) {
    Dtype high = ka > kb ? a : b, low = ka > kb ? b : a;
    return high == DT_C64 && low == DT_F64 ? DT_NONE : high; /* would be complex128 */
  }
  if (ka == KIND_FLOAT) {
    bool half = (a == DT_F16 && b == DT_BF16) || (a == DT_BF16 && b == DT_F16);
    return half ? DT_F32 : a > b ? a : b;
  }
  /* u8 meets a signed type: the next one that holds both. */
  if (a == DT_U8 || b == DT_U8) {
    Dtype other = a == DT_U8 ? b : a;
    return other == DT_I8 ? DT_I16 : other;
  }
  return a > b ? a : b;
}
