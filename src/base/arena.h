/* arena.h -- memory that is freed all at once.
 *
 * I1  Memory is zeroed and aligned to 16 bytes.
 * I2  NULL means out of memory; callers say TRY_NEW(p, arena_new(...)).
 */
#ifndef TESS_BASE_ARENA_H
#define TESS_BASE_ARENA_H

#include <stddef.h>

#include "base/status.h"

typedef struct Arena {
  struct ArenaBlock *block; /* newest first */
  size_t used;              /* bytes taken from the newest block */
  size_t total;             /* bytes handed out, for statistics */
} Arena;

void *arena_alloc(Arena *a, size_t bytes);
void *arena_array(Arena *a, size_t count, size_t item); /* overflow-checked */
char *arena_strdup(Arena *a, const char *s);
char *arena_strndup(Arena *a, const char *s, size_t n);
char *arena_printf(Arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Items of a list that grows, with room for one more after the first n; cap is kept up. */
void *arena_room(Arena *a, const void *items, int n, int *cap, size_t item);
void arena_free(Arena *a); /* a is empty and usable afterwards */

#define arena_new(a, T) ((T *)arena_alloc((a), sizeof(T)))
#define arena_more(a, items, n, cap) arena_room((a), (items), (n), (cap), sizeof *(items))
#define arena_new_n(a, T, n) ((T *)arena_array((a), (size_t)(n), sizeof(T)))

#endif
