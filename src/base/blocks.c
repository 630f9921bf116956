/* blocks.c -- see blocks.h. */
#include "base/blocks.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/memory.h"

/* An address sanitizer must see every piece freed. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KEEPS 0
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define KEEPS 0
#endif
#ifndef KEEPS
#define KEEPS 1
#endif

enum {
  ALIGN = 64,
  GRAIN = 64 << 10,
  LARGE = 1 << 20,
  BLOCKS_KEPT = KEEPS ? 32 : 0,
  KEPT_MIB = 512,
  OF_PHYSICAL = 16
};

typedef struct {
  void *data;
  size_t bytes;
} Block;

static struct {
  pthread_mutex_t lock;
  Block block[BLOCKS_KEPT + 1];
  int n;
  size_t bytes, most; /* most: 0 until somebody frees a piece */
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What is really allocated: sizes that are nearly alike can stand in for each other. */
static size_t rounded(size_t bytes) {
  size_t grain = bytes < LARGE ? ALIGN : GRAIN;
  return (bytes + grain - 1) / grain * grain;
}

/* One of just that size out of the list, the newest first: it may still be in a cache. */
static void *take(size_t bytes) {
  void *data = NULL;
  pthread_mutex_lock(&kept.lock);
  for (int i = kept.n - 1; i >= 0 && !data; i--) {
    if (kept.block[i].bytes != bytes) continue;
    data = kept.block[i].data;
    kept.bytes -= bytes;
    kept.block[i] = kept.block[--kept.n];
  }
  pthread_mutex_unlock(&kept.lock);
  return data;
}

static size_t most_kept(void) {
  size_t most = (size_t)KEPT_MIB << 20, share = memory_physical() / OF_PHYSICAL;
  return share && share < most ? share : most;
}

static int keep(void *data, size_t bytes) {
  pthread_mutex_lock(&kept.lock);
  if (!kept.most) kept.most = most_kept();
  int may = kept.n < BLOCKS_KEPT && bytes <= kept.most && kept.bytes <= kept.most - bytes;
  if (may) {
    kept.block[kept.n++] = (Block){data, bytes};
    kept.bytes += bytes;
  }
  pthread_mutex_unlock(&kept.lock);
  return may;
}

void *block_alloc(size_t bytes) {
  size_t size = rounded(bytes);
  void *data = size >= LARGE ? take(size) : NULL;
  return data ? data : memory_alloc(size);
}

void block_free(void *data, size_t bytes) {
  size_t size = rounded(bytes);
  if (!data || (size >= LARGE && keep(data, size))) return;
  free(data);
}
