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

/* ---- reduce_scatter of boxes ----------------------------------------------------------------------------- */

/* Elements at the end of a box that lie one behind the other on all members, and the dimensions before them. */
static int64_t common_run(const Round *r, const Box *const *box, int *outer) {
  int64_t run = 1;
  int d = box[0]->ndim - 1;
  for (; d >= 0; d--) {
    bool dense = true;
    for (int i = 0; i < r->n; i++) dense &= box[0]->size[d] == 1 || box[i]->stride[d] == run;
    if (!dense) break;
    run *= box[0]->size[d];
  }
  *outer = d + 1;
  return run;
}

/* The same box of all members, combined, to dst. */
static void combine_box(const Round *r, const Box *const *box, const void **sources, char *dst) {
  const size_t width = round_width(r);
  int64_t index[MAX_DIMS] = {0};
  int outer;
  int64_t run = common_run(r, box, &outer);
  if (!box_count(box[0])) return;
  for (int d = outer; d >= 0; dst += (size_t)run * width) {
    for (int i = 0; i < r->n; i++) {
      int64_t at = box[i]->offset;
      for (int k = 0; k < outer; k++) at += index[k] * box[i]->stride[k];
      sources[i] = (const char *)round_coll(r, i)->send + at * (int64_t)width;
    }
    (r->coll->unread ? combine_past_caches : combine)(round_isa(r), r->coll->op, r->coll->dtype, dst, sources, r->n,
                                                      run);
    for (d = outer - 1; d >= 0 && ++index[d] == box[0]->size[d]; d--) index[d] = 0;
  }
}

static Status combine_boxes(const Round *r) {
  Arena arena = {0};
  const Box **box = arena_new_n(&arena, const Box *, r->n);
  const void **sources = arena_new_n(&arena, const void *, r->n);
  int *at = arena_new_n(&arena, int, r->n);
  char *dst = r->coll->recv;
  bool more = box && sources && at;
  Status s = more ? OK : fail_oom();
  while (more) {
    for (int i = 0; i < r->n; i++) {
      const Coll *c = round_coll(r, i);
      while (at[i] < c->nsend && c->send_box[at[i]].peer != r->me) at[i]++;
      more &= at[i] < c->nsend;
      if (more) box[i] = &c->send_box[at[i]++];
    }
    if (!more) break;
    combine_box(r, box, sources, dst);
    dst += (size_t)box_count(box[0]) * round_width(r);
  }
  arena_free(&arena);
  return s;
}

Status share_reduce_scatter(const Round *r) {
  if (r->coll->nsend) return combine_boxes(r);
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
