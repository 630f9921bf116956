/* strmap.h -- from strings to pointers.
 *
 * I1  Keys are borrowed: they outlive the map.  Memory comes from the arena.
 * I2  Nothing is ever removed.
 */
#ifndef TESS_BASE_STRMAP_H
#define TESS_BASE_STRMAP_H

#include "base/arena.h"

typedef struct {
  const char *key; /* NULL: free */
  void *value;
  uint64_t hash; /* of the key: others are told apart without reading them */
} StrSlot;

/* Zeroed is empty. */
typedef struct {
  StrSlot *slots;
  size_t cap, used; /* cap is a power of two */
} StrMap;

/* Room for that many keys without growing. */
Status strmap_reserve(StrMap *m, Arena *arena, size_t count);
/* The slot of a key, made (with value NULL) if it is new.  Valid until the next call. */
Status strmap_slot(StrMap *m, Arena *arena, const char *key, StrSlot **out);
void *strmap_get(const StrMap *m, const char *key); /* NULL if absent */

#endif
