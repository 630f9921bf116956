/* kernel.c -- see kernel.h. */
#include "kernels/kernel.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/gemm.h"

/* Pieces of scratch memory have borders that an address sanitizer sees; blocks are small there, because it maps
 * large ones anew each time. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#define BORDER 64
#define SMALLEST_BLOCK ((size_t)1 << 16)
#endif
#endif
#ifndef BORDER
#define BORDER 0
#define SMALLEST_BLOCK ((size_t)1 << 20)
#define ASAN_POISON_MEMORY_REGION(data, bytes) ((void)(data), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) ((void)(data), (void)(bytes))
#endif

enum { ALIGN = 64 };

typedef struct ScratchBlock {
  struct ScratchBlock *older;
  size_t start; /* bytes in use in all older blocks when this one was taken */
  size_t size, used;
  unsigned char *data;
} ScratchBlock;

Isa isa_detect(void) {
  Isa best = ISA_BASE;
#ifdef TESS_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best = ISA_AVX2;
  if (best == ISA_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    best = ISA_AVX512;
  }
#endif
  const char *cap = getenv("TESSERA_ISA");
  for (Isa i = ISA_BASE; cap && i < best; i++) {
    if (!strcmp(cap, isa_name(i))) best = i;
  }
  return best;
}

const char *isa_name(Isa isa) { return isa == ISA_AVX512 ? "avx512" : isa == ISA_AVX2 ? "avx2" : "base"; }

void kern_init(Kern *k, int threads) {
  *k = (Kern){.threads = parallel_reserve(threads), .sharers = 1, .isa = isa_detect()};
  parallel_set_threads(k->threads);
}

void kern_free(Kern *k) {
  gemm_cache_free(k->gemm);
  for (ScratchBlock *b = k->scratch, *older; b; b = older) {
    older = b->older;
    free(b->data);
    free(b);
  }
  *k = (Kern){0};
}

size_t kern_mark(const Kern *k) { return k->scratch ? k->scratch->start + k->scratch->used : 0; }

void *kern_scratch(Kern *k, size_t bytes) {
  if (bytes > SIZE_MAX / 4) return NULL;
  size_t wanted = bytes;
  bytes = ((bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1)) + BORDER;
  ScratchBlock *b = k->scratch;
  if (!b || b->size - b->used < bytes) {
    size_t size = b ? b->size * 2 : SMALLEST_BLOCK;
    if (!b && size < k->scratch_peak) size = k->scratch_peak;
    if (size < bytes) size = bytes;
    ScratchBlock *n = malloc(sizeof *n);
    unsigned char *data = n ? memory_alloc(size) : NULL;
    if (!data) {
      free(n);
      return NULL;
    }
    *n = (ScratchBlock){.older = b, .start = kern_mark(k), .size = size, .data = data};
    k->scratch = b = n;
    ASAN_POISON_MEMORY_REGION(data, size);
  }
  void *p = b->data + b->used;
  b->used += bytes;
  ASAN_UNPOISON_MEMORY_REGION(p, wanted);
  return p;
}

void kern_release(Kern *k, size_t mark) {
  ScratchBlock *b = k->scratch;
  if (!b) return;
  /* When one block was not enough, start over with a single one of the size that was:
   * after the first call a kernel in a loop finds all its memory in one piece. */
  bool start_over = mark == 0 && b->older;
  if (start_over && kern_mark(k) > k->scratch_peak) k->scratch_peak = kern_mark(k);
  while (b && (start_over || (b->older && b->start >= mark))) {
    ScratchBlock *older = b->older;
    free(b->data);
    free(b);
    b = older;
  }
  k->scratch = b;
  if (!b) return;
  size_t used = mark - b->start;
  ASAN_POISON_MEMORY_REGION(b->data + used, b->used - used);
  b->used = used;
}
