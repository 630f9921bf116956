/* strmap.c -- open addressing, at most half full; see strmap.h. */
#include "base/strmap.h"

#include <string.h>

#include "base/hash.h"

static StrSlot *find(StrSlot *slots, size_t cap, const char *key, uint64_t hash) {
  for (uint64_t i = hash;; i++) {
    StrSlot *s = &slots[i & (cap - 1)];
    if (!s->key || (s->hash == hash && !strcmp(s->key, key))) return s;
  }
}

/* Room in a larger table, where every key is new. */
static StrSlot *free_slot(StrSlot *slots, size_t cap, uint64_t hash) {
  while (slots[hash & (cap - 1)].key) hash++;
  return &slots[hash & (cap - 1)];
}

Status strmap_reserve(StrMap *m, Arena *arena, size_t count) {
  size_t cap = 32;
  while (cap / 2 < count && cap <= SIZE_MAX / 4) cap *= 2;
  if (cap <= m->cap) return OK;
  StrSlot *slots;
  TRY_NEW(slots, arena_new_n(arena, StrSlot, cap));
  for (size_t i = 0; i < m->cap; i++) {
    if (m->slots[i].key) *free_slot(slots, cap, m->slots[i].hash) = m->slots[i];
  }
  m->slots = slots;
  m->cap = cap;
  return OK;
}

Status strmap_slot(StrMap *m, Arena *arena, const char *key, StrSlot **out) {
  TRY(strmap_reserve(m, arena, m->used + 1));
  uint64_t hash = hash_text(key);
  *out = find(m->slots, m->cap, key, hash);
  if ((*out)->key) return OK;
  (*out)->key = key;
  (*out)->hash = hash;
  m->used++;
  return OK;
}

void *strmap_get(const StrMap *m, const char *key) {
  return m->cap ? find(m->slots, m->cap, key, hash_text(key))->value : NULL;
}
