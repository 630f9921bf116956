/* api_handles.c -- public functions for callers who count references themselves, as
 * bindings to other languages do: handles outside of scopes, memory with an owner.
 *
 * I1  A held handle points into no scope: it and its shard are one allocation with
 *     references to their storage, so it may outlive the scope it came from, and be
 *     dropped by any thread, even after the context is gone.
 */
#include <stdlib.h>

#include "api/api.h"

TessTensor *tess_hold(TessCtx *ctx, const TessTensor *t) {
  Tensor *held = NULL;
  if (!API_BEGIN(ctx, GIVEN("the tensor", t)) || api_stick(ctx, api_share(ctx, t)) ||
      api_stick(ctx, tensor_hold(t, &held)))
    return NULL;
  return held;
}

void tess_release(TessTensor *held) { tensor_release(held); }

typedef struct {
  void (*release)(void *owner);
  void *owner;
} Adopted;

static void release_adopted(Storage *s) {
  Adopted *a = s->owner;
  a->release(a->owner);
  free(a);
}

static Status adopt(Tensor *t, void *data, void (*release)(void *), void *owner) {
  Adopted *a;
  TRY_NEW(a, malloc(sizeof *a));
  *a = (Adopted){release, owner};
  Status s = storage_borrow(data, (size_t)tensor_extent(t) * dtype_size(t->dtype), release_adopted, a, &t->storage);
  if (s) free(a);
  return s;
}

TessTensor *tess_tensor_adopt(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size, const int64_t *stride,
                              void *data, void (*release)(void *owner), void *owner) {
  TessTensor *t = tess_tensor_borrow(ctx, dtype, ndim, size, stride, data);
  if (!t || !release) return t;
  storage_unref(t->storage);
  t->storage = NULL;
  return api_stick(ctx, adopt(t, data, release, owner)) ? NULL : t;
}
