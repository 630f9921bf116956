/* arena.c -- see arena.h. */
#include "base/arena.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena_reuse.h"

enum { ALIGN = 16, FIRST_BLOCK = 4096, LARGEST_BLOCK = 1 << 20, FIRST_ITEMS = 8 };

/* No machine has more: a size beyond it comes from a damaged file. */
#define LARGEST ((size_t)1 << 39)

typedef struct ArenaBlock {
  struct ArenaBlock *next;
  size_t size;
  _Alignas(16) unsigned char data[];
} ArenaBlock;

static bool add_block(Arena *a, size_t bytes) {
  size_t size = a->block ? a->block->size * 2 : FIRST_BLOCK;
  if (size > LARGEST_BLOCK) size = LARGEST_BLOCK;
  if (size < bytes) size = bytes;
  ArenaBlock *b = calloc(1, sizeof *b + size);
  if (!b) return false;
  b->size = size;
  b->next = a->block;
  a->block = b;
  a->used = 0;
  return true;
}

void *arena_alloc(Arena *a, size_t bytes) {
  if (bytes > LARGEST) return NULL;
  bytes = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
  if (bytes == 0) bytes = ALIGN;
  if (!a->block || a->block->size - a->used < bytes) {
    if (!add_block(a, bytes)) return NULL;
  }
  void *p = a->block->data + a->used;
  a->used += bytes;
  a->total += bytes;
  return p;
}

void *arena_array(Arena *a, size_t count, size_t item) {
  if (item && count > SIZE_MAX / item) return NULL;
  return arena_alloc(a, count * item);
}

void *arena_room(Arena *a, const void *items, int n, int *cap, size_t item) {
  if (n < *cap) return (void *)(uintptr_t)items;
  if (*cap > INT_MAX / 2) return NULL;
  int larger = *cap ? *cap * 2 : FIRST_ITEMS;
  void *more = arena_array(a, (size_t)larger, item);
  if (!more) return NULL;
  if (n) memcpy(more, items, (size_t)n * item);
  *cap = larger;
  return more;
}

char *arena_strndup(Arena *a, const char *s, size_t n) {
  char *p = arena_alloc(a, n + 1);
  if (p) memcpy(p, s, n);
  return p;
}

char *arena_strdup(Arena *a, const char *s) { return arena_strndup(a, s, strlen(s)); }

char *arena_printf(Arena *a, const char *fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  int n = vsnprintf(NULL, 0, fmt, args);
  char *p = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1);
  if (p) vsnprintf(p, (size_t)n + 1, fmt, again);
  va_end(again);
  va_end(args);
  return p;
}

void arena_free(Arena *a) {
  for (ArenaBlock *b = a->block, *next; b; b = next) {
    next = b->next;
    free(b);
  }
  *a = (Arena){0};
}

void arena_clear(Arena *a) {
  if (!a->block) return;
  Arena older = {.block = a->block->next};
  arena_free(&older);
  memset(a->block->data, 0, a->used); /* I1 */
  a->block->next = NULL;
  a->used = a->total = 0;
}
