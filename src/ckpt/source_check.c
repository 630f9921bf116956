/* source_check.c -- is a checkpoint whole, and are its bytes those that were saved; see source.h. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/blocks.h"
#include "base/parallel.h"
#include "ckpt/source.h"

/* ---- covering ------------------------------------------------------------------------------------------ */

static int64_t chunk_volume(const SourceTensor *t, const SourceChunk *c) {
  int64_t n = 1;
  for (int d = 0; d < t->ndim; d++) n *= c->size[d];
  return n;
}

/* In the order of their places, so that neighbours are compared. */
typedef struct {
  const SourceTensor *t;
  const SourceChunk **v;
  int n;
} Boxes;

static int by_place(const void *a, const void *b) {
  const SourceChunk *x = *(const SourceChunk *const *)a, *y = *(const SourceChunk *const *)b;
  for (int d = 0; d < MAX_DIMS; d++)
    if (x->offset[d] != y->offset[d]) return x->offset[d] < y->offset[d] ? -1 : 1;
  for (int d = 0; d < MAX_DIMS; d++)
    if (x->size[d] != y->size[d]) return x->size[d] < y->size[d] ? -1 : 1;
  return 0;
}

static bool overlap(const SourceTensor *t, const SourceChunk *a, const SourceChunk *b) {
  for (int d = 0; d < t->ndim; d++)
    if (a->offset[d] + a->size[d] <= b->offset[d] || b->offset[d] + b->size[d] <= a->offset[d]) return false;
  return true;
}

static Status collect(const SourceTensor *t, Boxes *out) {
  *out = (Boxes){.t = t};
  TRY_NEW(out->v, malloc(((size_t)t->chunks + 1) * sizeof *out->v));
  for (int i = 0; i < t->chunks; i++)
    if (chunk_volume(t, &t->chunk[i])) out->v[out->n++] = &t->chunk[i];
  if (out->n) qsort(out->v, (size_t)out->n, sizeof *out->v, by_place);
  int n = 0;
  for (int i = 0; i < out->n; i++)
    if (!n || by_place(&out->v[n - 1], &out->v[i])) out->v[n++] = out->v[i]; /* the same box twice is one */
  out->n = n;
  return OK;
}

static Status fail_overlap(const Source *s, const SourceTensor *t, const SourceChunk *a, const SourceChunk *b) {
  char x[200], y[200], p[200], q[200];
  return fail(ERR_CKPT, "'%s': the tensor '%s': the parts %s at %s (in '%s') and %s at %s (in '%s') overlap",
              s->path, t->name, shape_describe(t->ndim, a->size, x, sizeof x),
              shape_describe(t->ndim, a->offset, p, sizeof p), s->file[a->file].name,
              shape_describe(t->ndim, b->size, y, sizeof y), shape_describe(t->ndim, b->offset, q, sizeof q),
              s->file[b->file].name);
}

/* A box whose first dimension begins behind the end of another can have nothing in common with it. */
static Status check_boxes(const Source *s, const Boxes *b) {
  const SourceTensor *t = b->t;
  int64_t covered = 0, whole = 1;
  for (int d = 0; d < t->ndim; d++) whole *= t->size[d];
  for (int i = 0; i < b->n; i++) {
    const SourceChunk *c = b->v[i];
    covered += chunk_volume(t, c);
    for (int k = i + 1; k < b->n && t->ndim && b->v[k]->offset[0] < c->offset[0] + c->size[0]; k++)
      if (overlap(t, c, b->v[k])) return fail_overlap(s, t, c, b->v[k]);
  }
  if (covered == whole) return OK;
  char shape[200];
  return fail(ERR_CKPT,
              "'%s': %lld of %lld elements of the tensor '%s' %s%s are missing: the file of a rank is not there",
              s->path, (long long)(whole - covered), (long long)whole, t->name, dtype_name(t->dtype),
              shape_describe(t->ndim, t->size, shape, sizeof shape));
}

Status source_check(const Source *s, const SourceTensor *t) {
  Boxes b;
  TRY(collect(t, &b));
  Status r = check_boxes(s, &b);
  free(b.v);
  return r;
}

/* ---- hashes -------------------------------------------------------------------------------------------- */

typedef struct {
  const SourceTensor *t;
  const SourceChunk *c;
  bool damaged;
} Hashed;

typedef struct {
  const Source *s;
  Hashed *v;
  int n;
  atomic_int next;
  Progress *progress;
} Hashing;

enum { PIECE = 4 << 20 };

/* Through a buffer: most files are not in memory, and their pages would be mapped to be looked at once. */
static void hash_one(Hashing *h, Hashed *v, XXH3_state_t *state, void *buffer, int worker) {
  int64_t bytes = chunk_volume(v->t, v->c) * (int64_t)dtype_size(v->t->dtype);
  const FileMap *map = h->s->file[v->c->file].map;
  size_t at = (size_t)v->c->at;
  XXH3_64bits_reset(state);
  for (int64_t n; bytes; bytes -= n, at += (size_t)n) {
    n = bytes < PIECE ? bytes : PIECE;
    file_map_copy(map, at, buffer, (size_t)n);
    XXH3_64bits_update(state, buffer, (size_t)n);
    if (!worker) progress_add(h->progress, n);
  }
  v->damaged = XXH3_64bits_digest(state) != v->c->hash;
  source_forget(h->s, v->t, v->c->offset, v->c->size);
}

static void hash_some(void *arg, int64_t begin, int64_t end, int worker) {
  Hashing *h = arg;
  XXH3_state_t *state = XXH3_createState();
  void *buffer = block_alloc(PIECE);
  (void)begin, (void)end;
  for (int i; (i = atomic_fetch_add(&h->next, 1)) < h->n;) {
    if (state && buffer) hash_one(h, &h->v[i], state, buffer, worker);
    else h->v[i].damaged = true; /* out of memory: not known to be right */
  }
  if (buffer) block_free(buffer, PIECE);
  XXH3_freeState(state);
}

static int by_bytes(const void *a, const void *b) {
  const Hashed *x = a, *y = b;
  int64_t nx = chunk_volume(x->t, x->c), ny = chunk_volume(y->t, y->c);
  return nx != ny ? (nx > ny ? -1 : 1) : strcmp(x->t->name, y->t->name);
}

/* ---- all of it ------------------------------------------------------------------------------------------ */

typedef struct {
  const SourceVerify *how;
  Status first;
} Findings;

static void find(Findings *f, Status s) {
  if (!s) return;
  if (f->how->say) f->how->say(f->how->arg, status_message(s));
  if (f->first) status_free(s);
  else f->first = s;
}

static void report_damage(Findings *f, const Hashing *h) {
  for (int i = 0; i < h->n; i++) {
    const Hashed *v = &h->v[i];
    if (v->damaged)
      find(f,
           fail(ERR_CKPT,
                "'%s/%s': the bytes of the tensor '%s' do not match their checksum: the file was damaged or edited "
                "after it was saved",
                h->s->path, h->s->file[v->c->file].name, v->t->name));
  }
}

/* Chunks in turn: what one rank does not look at another does. */
static int64_t collect_hashed(const Source *s, const SourceVerify *how, Hashing *h) {
  int64_t bytes = 0;
  int turn = 0;
  for (int i = 0; i < s->tensors; i++)
    for (int k = 0; k < s->tensor[i].chunks; k++) {
      const SourceChunk *c = &s->tensor[i].chunk[k];
      if (!c->hashed || (how->parts > 1 && turn++ % how->parts != how->part)) continue;
      h->v[h->n++] = (Hashed){&s->tensor[i], c, false};
      bytes += chunk_volume(&s->tensor[i], c) * (int64_t)dtype_size(s->tensor[i].dtype);
    }
  return bytes;
}

Status source_verify(const Source *s, const SourceVerify *how) {
  Findings f = {how, OK};
  Hashing h = {.s = s, .progress = how->progress};
  size_t chunks = 0;
  int threads = how->threads > 1 ? how->threads : 1;
  for (int i = 0; i < s->tensors; i++) {
    find(&f, source_check(s, &s->tensor[i]));
    chunks += (size_t)s->tensor[i].chunks;
  }
  h.v = calloc(chunks + 1, sizeof *h.v);
  if (!h.v) {
    status_free(f.first);
    return fail_oom();
  }
  int64_t bytes = collect_hashed(s, how, &h);
  if (how->progress) how->progress->total = bytes / threads;
  qsort(h.v, (size_t)h.n, sizeof *h.v, by_bytes);
  parallel_for(threads, threads, 1, hash_some, &h);
  report_damage(&f, &h);
  free(h.v);
  return f.first;
}
