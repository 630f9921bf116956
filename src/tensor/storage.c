/* storage.c -- refcounted bytes; see tensor.h. */
#include <stdlib.h>

#include "base/blocks.h"
#include "tensor/tensor.h"

/* No machine has more: a size beyond it comes from a damaged file. */
#define LARGEST ((size_t)1 << 39)

static void release_heap(Storage *s) { block_free(s->data, s->size); }

Status storage_borrow(void *data, size_t bytes, void (*release)(Storage *), void *owner, Storage **out) {
  Storage *s;
  TRY_NEW(s, calloc(1, sizeof *s));
  atomic_init(&s->refs, 1);
  s->data = data;
  s->size = bytes;
  s->release = release;
  s->owner = owner;
  s->slab_offset = -1;
  *out = s;
  return OK;
}

/* Also an empty one has an address: kernels may add offsets of nothing to it. */
Status storage_new(size_t bytes, Storage **out) {
  void *data = bytes > LARGEST ? NULL : block_alloc(bytes ? bytes : 1);
  if (!data) return fail(ERR_FAIL, "cannot allocate %zu bytes for a tensor", bytes);
  Status s = storage_borrow(data, bytes, release_heap, NULL, out);
  if (s) block_free(data, bytes);
  return s;
}

Storage *storage_ref(Storage *s) {
  if (s) atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
  return s;
}

void storage_unref(Storage *s) {
  if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
  if (s->release) s->release(s);
  free(s);
}

bool storage_is_internal(const Storage *s) {
  return s && !s->data && !s->owner && !s->release && !s->frozen && s->size;
}
