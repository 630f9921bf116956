/* tensors.c -- see tensors.h. */
#include "ops/tensors.h"

Status replace_tensors(Arena *arena, const Value *value, int n, Tensor *const *with, Value *to) {
  int flat = 0;
  for (int i = 0; i < n; i++) {
    to[i] = value[i];
    if (value[i].kind == VAL_TENSOR) to[i] = val_tensor(with[flat++]);
    if (value[i].kind != VAL_TENSORS) continue;
    Tensor **list;
    TRY_NEW(list, arena_new_n(arena, Tensor *, value[i].n ? value[i].n : 1));
    for (int j = 0; j < value[i].n; j++) list[j] = value[i].tensors[j] ? with[flat++] : NULL;
    to[i] = val_tensors(list, value[i].n);
  }
  return OK;
}
