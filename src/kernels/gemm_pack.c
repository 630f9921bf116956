/* gemm_pack.c -- packed copies of matrices that never change, for gemm_blocked().
 *
 * One Kern has one copy of a matrix: call sites of all programs share it, the last one frees it.
 * It is made when the matrix is used for the second time: fresh memory costs about as much as a
 * product gains in three calls, and many programs are run once.  The first use packs as it goes,
 * in the same order of sums, so that all runs give the same bits.
 * What a copy was made of is given back to the system if it is a file's (weights are mapped), so
 * that in memory there is one copy still; it comes back if somebody else reads it. */
#include <pthread.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/gemm_problem.h"

/* The copies that were made with one Kern.  They may outlive it. */
struct GemmCache {
  pthread_mutex_t lock;
  int refs; /* the Kern and every copy */
  GemmPack *first;
  size_t packed; /* bytes of all copies */
  size_t extra;  /* of these, copies of what stays in memory, too */
  size_t most;   /* for packed */
};

struct GemmPack {
  GemmPack *next;
  struct GemmCache *cache;
  int refs; /* call sites */
  Matrix b;
  int64_t n, k;
  Isa isa;
  int uses;            /* before there is data */
  size_t bytes, extra; /* its part of the cache's packed and extra */
  float *data;         /* NULL: used once so far, or no memory for it */
};

enum { LEAST_ROWS = 5, MOST_EXTRA_MIB = 256, OF_PHYSICAL = 4 };

static bool fits(const GemmPack *x, const Kern *k, const Problem *p) {
  return x->b.data == p->b.data && x->b.dtype == p->b.dtype && x->b.row == p->b.row && x->b.col == p->b.col &&
         x->n == p->n && x->k == p->k && x->isa == k->isa;
}

/* Drops one reference and the lock; whoever was last frees the cache. */
static void cache_leave(struct GemmCache *c) {
  bool last = --c->refs == 0;
  pthread_mutex_unlock(&c->lock);
  if (!last) return;
  pthread_mutex_destroy(&c->lock);
  free(c);
}

void gemm_cache_free(struct GemmCache *c) {
  if (!c) return;
  pthread_mutex_lock(&c->lock);
  cache_leave(c);
}

void gemm_pack_free(GemmPack *p) {
  if (!p) return;
  struct GemmCache *c = p->cache;
  pthread_mutex_lock(&c->lock);
  if (--p->refs > 0) {
    pthread_mutex_unlock(&c->lock);
    return;
  }
  GemmPack **at = &c->first;
  while (*at != p) at = &(*at)->next;
  *at = p->next;
  c->packed -= p->bytes;
  c->extra -= p->extra;
  cache_leave(c);
  free(p->data);
  free(p);
}

const float *gemm_pack_data(const GemmPack *p) { return p->data; }

bool gemm_pack_planned(const GemmPack *x, const Problem *p) { return x->data || (x->bytes && p->m >= LEAST_ROWS); }

static bool cache_make(Kern *k) {
  if (k->gemm) return true;
  struct GemmCache *c = calloc(1, sizeof *c);
  if (c && pthread_mutex_init(&c->lock, NULL)) {
    free(c);
    return false;
  }
  k->gemm = c;
  if (!c) return false;
  c->refs = 1;
  c->most = memory_physical() / OF_PHYSICAL /
            (size_t)most(1, k->sharers); /* copies cannot be dropped when memory is short, mapped files can */
  return true;
}

/* The entry of p's b, new if `make`; NULL if there is none. */
static GemmPack *find(const Kern *k, const Problem *p, bool make) {
  struct GemmCache *c = k->gemm;
  pthread_mutex_lock(&c->lock);
  GemmPack *x = c->first;
  while (x && !fits(x, k, p)) x = x->next;
  if (!x && make && (x = calloc(1, sizeof *x))) {
    *x = (GemmPack){.next = c->first, .cache = c, .b = p->b, .n = p->n, .k = p->k, .isa = k->isa};
    c->first = x;
    c->refs++;
  }
  if (x) x->refs++;
  pthread_mutex_unlock(&c->lock);
  return x;
}

/* b is one piece of memory. */
static bool is_dense(const GemmPack *x) {
  return (x->b.row == 1 && x->b.col == x->k) || (x->b.col == 1 && x->b.row == x->n);
}

/* Takes bytes from what copies may have, if that much is left.  A b that will be given back
 * costs nothing more: no two of them are in memory with their copies at a time. */
static void reserve(GemmPack *x, size_t bytes) {
  struct GemmCache *c = x->cache;
  size_t most_extra = (size_t)MOST_EXTRA_MIB << 20;
  size_t extra = is_dense(x) && memory_may_give_back(x->b.data, floats(x->n * x->k)) ? 0 : bytes;
  pthread_mutex_lock(&c->lock);
  if (bytes <= c->most && c->packed <= c->most - bytes && extra <= most_extra && c->extra <= most_extra - extra) {
    c->packed += x->bytes = bytes;
    c->extra += x->extra = extra;
  }
  pthread_mutex_unlock(&c->lock);
}

static size_t bytes_of(const Kern *k, const Problem *p) { return (gemm_packed_bytes(k, p) + 63) & ~(size_t)63; }

/* Makes the copy that memory was reserved for. */
static Status fill(Kern *k, const Problem *p, GemmPack *x) {
  float *room;
  TRY_NEW(room, kern_scratch(k, gemm_pack_room(k) * (size_t)k->threads));
  if (!(x->data = memory_alloc(bytes_of(k, p)))) return OK; /* next time, perhaps */
  gemm_pack_all(k, p, x->data, room);
  if (is_dense(x)) memory_give_back(x->b.data, floats(x->n * x->k));
  return OK;
}

Status gemm_pack_ensure(Kern *k, const Problem *p, GemmPack **pack) {
  if (*pack && !fits(*pack, k, p)) {
    gemm_pack_free(*pack);
    *pack = NULL;
  }
  if (p->a.dtype != DT_F32 || p->b.dtype != DT_F32 || p->batch != 1 || p->n == 0 || p->k == 0 || !cache_make(k))
    return OK;
  bool pays = p->m >= LEAST_ROWS;
  if (!*pack) *pack = find(k, p, pays);
  GemmPack *x = *pack;
  if (!x || !pays || x->data) return OK;
  if (x->uses++ == 0) {
    reserve(x, bytes_of(k, p));
    return OK;
  }
  return x->bytes ? fill(k, p, x) : OK;
}
