/* snapshot.c -- see snapshot.h. */
#include "ckpt/snapshot.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/parallel.h"
#include "base/ptrmap.h"
#include "kernels/copy.h"

enum {
  PIECE = 8 << 20,  /* of a tensor that is one run of elements; others are one piece */
  SMALL = 64 << 10, /* tensors that are copied at once: who changes them need not be asked */
};

typedef enum { PIECE_LIVE, PIECE_BUSY, PIECE_COPIED, PIECE_DONE } PieceState;

typedef struct {
  PieceState state;
  int tensor;
  uint64_t at; /* bytes */
  size_t size;
  void *copy;
  int next; /* in the same storage; -1: none */
} Piece;

struct Snapshot {
  SnapshotHow how;
  const Tensor *const *tensor;
  int n;
  int *first; /* by tensor: its first piece */
  Piece *piece;
  int pieces;
  PtrMap by_storage; /* its last piece, which leads to the others */
  pthread_mutex_t lock;
  pthread_cond_t moved; /* a piece is done */
  int live;             /* pieces that are read where they lie, or will be */
  int64_t copies;       /* bytes, now */
  bool closed, given_up;
  SnapshotCost cost;
};

static size_t bytes_of(const Tensor *t) { return (size_t)tensor_numel(t) * dtype_size(t->dtype); }

/* ---- pieces --------------------------------------------------------------------------------------------- */

static size_t piece_bytes(const Tensor *t) { return tensor_is_contiguous(t) ? PIECE : bytes_of(t); }

/* Never changes: a weight that is mapped from a file. */
static bool is_fixed(const Tensor *t) { return !t->storage || t->storage->frozen; }

static Status make_pieces(Snapshot *s) {
  TRY_NEW(s->first, calloc((size_t)s->n + 1, sizeof *s->first));
  for (int pass = 0; pass < 2; pass++) {
    s->pieces = 0;
    for (int i = 0; i < s->n; i++) {
      const size_t all = bytes_of(s->tensor[i]), each = piece_bytes(s->tensor[i]);
      s->first[i] = s->pieces;
      for (size_t at = 0; at < all; at += each, s->pieces++)
        if (pass)
          s->piece[s->pieces] = (Piece){
              .tensor = i, .at = at, .size = all - at < each ? all - at : each, .next = -1};
    }
    if (!pass) TRY_NEW(s->piece, calloc((size_t)s->pieces + 1, sizeof *s->piece));
  }
  return OK;
}

static void read_piece(const Snapshot *s, const Piece *p, void *out) {
  const Tensor *t = s->tensor[p->tensor];
  if (tensor_is_contiguous(t)) {
    memcpy(out, (const char *)tensor_data(t) + p->at, p->size);
    return;
  }
  int64_t stride[MAX_DIMS];
  Kern kern;
  contiguous_strides(t->ndim, t->size, stride);
  kern_init(&kern, 1);
  kernel_copy(&kern, (View){out, t->size, stride, t->ndim, t->dtype}, tensor_view(t));
  kern_free(&kern);
}

/* Small tensors are copied now; the others are found by their storage. */
static Status enter_piece(Snapshot *s, int at) {
  Piece *p = &s->piece[at];
  const Tensor *t = s->tensor[p->tensor];
  int64_t *last;
  if (is_fixed(t)) return OK;
  if (bytes_of(t) <= SMALL) {
    TRY_NEW(p->copy, malloc(p->size));
    read_piece(s, p, p->copy);
    p->state = PIECE_COPIED;
    s->copies += (int64_t)p->size;
    return OK;
  }
  TRY(ptrmap_slot(&s->by_storage, t->storage, -1, &last));
  p->next = (int)*last;
  *last = at;
  s->live++;
  return OK;
}

Status snapshot_new(const Tensor *const *tensor, int n, const SnapshotHow *how, Snapshot **out) {
  Snapshot *s;
  TRY_NEW(s, calloc(1, sizeof *s));
  s->how = *how, s->tensor = tensor, s->n = n;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->moved, NULL);
  Status r = make_pieces(s);
  for (int i = 0; !r && i < s->pieces; i++) r = enter_piece(s, i);
  s->cost.copied = s->copies;
  if (r) snapshot_free(s);
  else *out = s;
  return r;
}

void snapshot_free(Snapshot *s) {
  if (!s) return;
  for (int i = 0; s->piece && i < s->pieces; i++) free(s->piece[i].copy);
  free(s->piece);
  free(s->first);
  ptrmap_free(&s->by_storage);
  pthread_cond_destroy(&s->moved);
  pthread_mutex_destroy(&s->lock);
  free(s);
}

/* ---- who writes files ------------------------------------------------------------------------------------- */

/* Under the lock. */
static void finish_piece(Snapshot *s, Piece *p, PieceState now) {
  bool live = p->state == PIECE_LIVE || p->state == PIECE_BUSY;
  if (live && !is_fixed(s->tensor[p->tensor])) s->live--;
  if (p->state == PIECE_COPIED && now == PIECE_DONE) s->copies -= (int64_t)p->size;
  p->state = now;
  pthread_cond_broadcast(&s->moved);
}

static Piece *piece_at(Snapshot *s, int i, uint64_t at) {
  return &s->piece[s->first[i] + (int)(at / piece_bytes(s->tensor[i]))];
}

Status snapshot_take(Snapshot *s, int i, uint64_t at, const void **data, size_t *size) {
  const Tensor *t = s->tensor[i];
  Piece *p = piece_at(s, i, at);
  pthread_mutex_lock(&s->lock);
  bool given_up = s->given_up;
  if (p->state == PIECE_LIVE) p->state = PIECE_BUSY;
  bool live = p->state == PIECE_BUSY;
  pthread_mutex_unlock(&s->lock);
  if (given_up) return fail(ERR_FAIL, "the save was given up");
  if (live && !tensor_is_contiguous(t)) {
    TRY_NEW(p->copy, malloc(p->size));
    read_piece(s, p, p->copy);
  }
  *data = p->copy ? p->copy : (const char *)tensor_data(t) + p->at;
  *size = p->size;
  return OK;
}

void snapshot_give_back(Snapshot *s, int i, uint64_t at) {
  Piece *p = piece_at(s, i, at);
  pthread_mutex_lock(&s->lock);
  free(p->copy);
  p->copy = NULL;
  finish_piece(s, p, PIECE_DONE);
  pthread_mutex_unlock(&s->lock);
}

void snapshot_close(Snapshot *s) {
  pthread_mutex_lock(&s->lock);
  s->closed = true;
  pthread_cond_broadcast(&s->moved);
  pthread_mutex_unlock(&s->lock);
}

void snapshot_give_up(Snapshot *s) {
  pthread_mutex_lock(&s->lock);
  s->given_up = true;
  pthread_cond_broadcast(&s->moved);
  pthread_mutex_unlock(&s->lock);
}

/* ---- who changes them ------------------------------------------------------------------------------------- */

typedef struct {
  void *to;
  const void *from;
  size_t size;
} Copying;

static void copy_part(void *arg, int64_t begin, int64_t end, int worker) {
  const Copying *c = arg;
  (void)worker;
  memcpy((char *)c->to + begin, (const char *)c->from + begin, (size_t)(end - begin));
}

/* Under the lock, which the one who writes files does not need for what he is at.  false: there is no room. */
static bool copy_piece(Snapshot *s, Piece *p) {
  const Tensor *t = s->tensor[p->tensor];
  if (s->how.most && s->copies + (int64_t)p->size > s->how.most) return false;
  void *copy = malloc(p->size);
  if (!copy) return false;
  Copying c = {copy, (const char *)tensor_data(t) + p->at, p->size};
  if (tensor_is_contiguous(t)) parallel_for(s->how.threads, (int64_t)p->size, 1 << 20, copy_part, &c);
  else read_piece(s, p, copy);
  p->copy = copy;
  s->copies += (int64_t)p->size;
  if (s->copies > s->cost.copied) s->cost.copied = s->copies;
  finish_piece(s, p, PIECE_COPIED);
  return true;
}

void snapshot_before_write(Snapshot *s, const Storage *storage) {
  const int64_t *last = ptrmap_find(&s->by_storage, storage);
  if (!last) return;
  pthread_mutex_lock(&s->lock);
  double begin = clock_now();
  for (int i = s->live ? (int)*last : -1; i >= 0 && !s->closed;) {
    Piece *p = &s->piece[i];
    if (p->state >= PIECE_COPIED || (p->state == PIECE_LIVE && copy_piece(s, p))) i = p->next;
    else pthread_cond_wait(&s->moved, &s->lock);
  }
  s->cost.waited += clock_now() - begin;
  pthread_mutex_unlock(&s->lock);
}

SnapshotCost snapshot_cost(Snapshot *s) {
  pthread_mutex_lock(&s->lock);
  SnapshotCost cost = s->cost;
  pthread_mutex_unlock(&s->lock);
  return cost;
}
