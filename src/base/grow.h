/* grow.h -- lists on the heap that grow:
 *
 *     TRY_ROOM(l->items, l->n, l->cap);      // ends the function if there is no memory; the list is as it was
 *     l->items[l->n++] = item;
 *
 * Lists in arenas: arena_more() (arena.h). */
#ifndef TESS_BASE_GROW_H
#define TESS_BASE_GROW_H

#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"

enum { GROW_FIRST = 16 };

/* Room for one more element.  n, cap: any integers; cap 0: there is no list yet. */
#define TRY_ROOM(list, n, cap)                                                \
  do {                                                                        \
    if ((n) >= (cap)) {                                                       \
      int64_t grow_cap = (cap) ? (int64_t)(cap)*2 : GROW_FIRST;               \
      void *grow_list;                                                        \
      TRY_NEW(grow_list, realloc((list), (size_t)grow_cap * sizeof *(list))); \
      (list) = grow_list;                                                     \
      (cap) = (__typeof__(cap))grow_cap;                                      \
    }                                                                         \
  } while (0)

#endif
