/* arena_reuse.h -- arenas that are filled again and again: they keep memory in between. */
#ifndef TESS_BASE_ARENA_REUSE_H
#define TESS_BASE_ARENA_REUSE_H

#include "base/arena.h"

/* As arena_free(), but the newest block, which is the largest, is for what comes next. */
void arena_clear(Arena *a);

#endif
