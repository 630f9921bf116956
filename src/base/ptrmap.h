/* ptrmap.h -- from addresses to numbers: what a pass wants to note about things that others
 * may be reading at the same time, so that it cannot write into them.
 *
 * Nothing is ever removed.  Zeroed is empty; ptrmap_free gives the memory back.
 */
#ifndef TESS_BASE_PTRMAP_H
#define TESS_BASE_PTRMAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct {
  const void *key; /* NULL: free */
  int64_t value;
} PtrSlot;

typedef struct {
  PtrSlot *slots;
  size_t cap, used; /* cap is a power of two */
} PtrMap;

/* The number of a key, entered as `fresh` if it is new.  Valid until the next call. */
Status ptrmap_slot(PtrMap *m, const void *key, int64_t fresh, int64_t **out);
/* NULL if absent. */
int64_t *ptrmap_find(const PtrMap *m, const void *key);
void ptrmap_free(PtrMap *m);

#endif
