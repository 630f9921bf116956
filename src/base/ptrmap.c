/* ptrmap.c -- see ptrmap.h.  Open addressing, at most half full. */
#include "base/ptrmap.h"

#include <stdlib.h>

#include "base/hash.h"

static PtrSlot *slot_of(PtrSlot *slots, size_t cap, const void *key) {
  size_t i = (size_t)hash_mix(0, (uint64_t)(uintptr_t)key >> 4) & (cap - 1);
  while (slots[i].key && slots[i].key != key) i = (i + 1) & (cap - 1);
  return &slots[i];
}

static Status grow(PtrMap *m) {
  size_t cap = m->cap ? m->cap * 2 : 64;
  PtrSlot *slots;
  TRY_NEW(slots, calloc(cap, sizeof *slots));
  for (size_t i = 0; i < m->cap; i++)
    if (m->slots[i].key) *slot_of(slots, cap, m->slots[i].key) = m->slots[i];
  free(m->slots);
  m->slots = slots;
  m->cap = cap;
  return OK;
}

Status ptrmap_slot(PtrMap *m, const void *key, int64_t fresh, int64_t **out) {
  if (m->used * 2 >= m->cap) TRY(grow(m));
  PtrSlot *s = slot_of(m->slots, m->cap, key);
  if (!s->key) {
    *s = (PtrSlot){key, fresh};
    m->used++;
  }
  *out = &s->value;
  return OK;
}

int64_t *ptrmap_find(const PtrMap *m, const void *key) {
  if (!m->cap) return NULL;
  PtrSlot *s = slot_of(m->slots, m->cap, key);
  return s->key ? &s->value : NULL;
}

void ptrmap_free(PtrMap *m) {
  free(m->slots);
  *m = (PtrMap){0};
}
