/* threads_gather.c -- reduce_scatter, all_gather, gather, scatter and broadcast on threads.
 *
 * One copy per byte, from the sender's buffer to the receiver's.  Where there is one
 * receiver, senders do the copying; where there is one sender, receivers do.
 */
#include <string.h>

#include "comm/hub.h"
#include "kernels/combine.h"

enum { MOST_ON_STACK = 64 };

/* To `at` of a buffer, which may be NULL if there is nothing in it. */
static void copy_unless_same(void *buffer, size_t at, const char *src, size_t bytes) {
  if (bytes && (char *)buffer + at != src) memcpy((char *)buffer + at, src, bytes);
}

/* Every member collects all parts. */
Status share_all_gather(const Round *r) {
  const size_t width = round_width(r);
  for (int k = 0; k < r->n; k++) {
    int from = (r->me + k) % r->n; /* not all from the same one at a time */
    if (from == r->me)
      copy_unless_same(r->coll->recv, (size_t)coll_before(r->coll, from) * width, r->coll->send,
                       (size_t)coll_part(r->coll, from) * width);
    else
      copy_unless_same(r->coll->recv, (size_t)coll_before(r->coll, from) * width, round_send(r, from),
                       (size_t)coll_part(r->coll, from) * width);
  }
  return OK;
}

Status share_gather_small(const Round *r) { return r->me == r->coll->root ? share_all_gather(r) : OK; }

/* Every member brings its part. */
Status share_gather(const Round *r) {
  const size_t width = round_width(r);
  copy_unless_same(round_recv(r, r->coll->root), (size_t)coll_before(r->coll, r->me) * width, r->coll->send,
                   (size_t)coll_part(r->coll, r->me) * width);
  return OK;
}

Status share_scatter(const Round *r) {
  const size_t width = round_width(r);
  copy_unless_same(r->coll->recv, 0, round_send(r, r->coll->root) + (size_t)coll_before(r->coll, r->me) * width,
                   (size_t)coll_part(r->coll, r->me) * width);
  return OK;
}

Status share_reduce_scatter(const Round *r) {
  const void *few[MOST_ON_STACK], **sources = few;
  Arena arena = {0};
  if (r->n > MOST_ON_STACK) TRY_NEW(sources, arena_new_n(&arena, const void *, r->n));
  const size_t at = (size_t)coll_before(r->coll, r->me) * round_width(r);
  for (int i = 0; i < r->n; i++) sources[i] = round_send(r, i) + at;
  combine(round_isa(r), r->coll->op, r->coll->dtype, r->coll->recv, sources, r->n, coll_part(r->coll, r->me));
  arena_free(&arena);
  return OK;
}

Status share_broadcast_small(const Round *r) {
  const char *from = r->me == r->coll->root ? r->coll->send : round_send(r, r->coll->root);
  copy_unless_same(r->coll->recv, 0, from, (size_t)r->coll->count * round_width(r));
  return OK;
}

/* Receivers fetch; the root, who would be idle, brings every one the last n-th. */
Status share_broadcast(const Round *r) {
  const size_t bytes = (size_t)r->coll->count * round_width(r),
               fetched = bytes / (size_t)r->n * (size_t)(r->n - 1) & ~(size_t)63;
  const char *from = round_send(r, r->coll->root);
  if (r->me != r->coll->root) {
    copy_unless_same(r->coll->recv, 0, from, fetched);
    return OK;
  }
  for (int i = 0; i < r->n; i++) {
    if (i != r->me) memcpy(round_recv(r, i) + fetched, from + fetched, bytes - fetched);
  }
  copy_unless_same(r->coll->recv, 0, from, bytes);
  return OK;
}
