/* threads_all_to_all.c -- all_to_all and exchange on threads: receivers fetch, one copy per
 * byte.  Whether sizes fit is a matter of each pair, and looked at here.
 */
#include <stdio.h>
#include <string.h>

#include "comm/hub.h"
#include "kernels/copy.h"

Status share_all_to_all(const Round *r) {
  const size_t width = round_width(r);
  for (int k = 0; k < r->n; k++) {
    int from = (r->me + k) % r->n;
    const Coll *theirs = round_coll(r, from);
    int64_t sent = coll_part(theirs, r->me), wanted = coll_recv_part(r->coll, from);
    if (sent != wanted) {
      char what[128];
      snprintf(what, sizeof what, "it sends %lld elements to rank %d, which expects %lld", (long long)sent,
               r->comm->world->rank, (long long)wanted);
      return round_mismatch(r, from, what);
    }
    if (sent == 0) continue;
    memcpy((char *)r->coll->recv + (size_t)coll_recv_before(r->coll, from) * width,
           (const char *)theirs->send + (size_t)coll_before(theirs, r->me) * width, (size_t)sent * width);
  }
  return OK;
}

/* The next box for `peer` at or after i; n if there is none. */
static int next_box(const Box *box, int n, int i, int peer) {
  while (i < n && box[i].peer != peer) i++;
  return i;
}

static Status box_mismatch(const Round *r, int from, int k, const Box *sent, const Box *wanted) {
  char a[96] = "none", b[96] = "none", what[320];
  if (sent) shape_describe(sent->ndim, sent->size, a, sizeof a);
  if (wanted) shape_describe(wanted->ndim, wanted->size, b, sizeof b);
  snprintf(what, sizeof what, "box %d from rank %d to rank %d is %s as sent, %s as expected", k,
           r->group->ranks[from], r->comm->world->rank, a, b);
  return round_mismatch(r, from, what);
}

static bool same_size(const Box *a, const Box *b) {
  return a->ndim == b->ndim && !memcmp(a->size, b->size, (size_t)a->ndim * sizeof *a->size);
}

Status share_exchange(const Round *r) {
  const size_t width = round_width(r);
  Kern kern = {.threads = 1, .isa = round_isa(r)};
  for (int k = 0; k < r->n; k++) {
    int from = (r->me + k) % r->n;
    const Coll *mine = r->coll, *theirs = round_coll(r, from);
    int i = next_box(theirs->send_box, theirs->nsend, 0, r->me), j = next_box(mine->recv_box, mine->nrecv, 0, from);
    for (int number = 0; i < theirs->nsend || j < mine->nrecv; number++) {
      const Box *a = i < theirs->nsend ? &theirs->send_box[i] : NULL,
                *b = j < mine->nrecv ? &mine->recv_box[j] : NULL;
      if (!a || !b || !same_size(a, b)) return box_mismatch(r, from, number, a, b);
      if (box_count(a) > 0) {
        View src = {(char *)(uintptr_t)theirs->send + (size_t)a->offset * width, a->size, a->stride, a->ndim,
                    mine->dtype};
        View dst = {(char *)mine->recv + (size_t)b->offset * width, b->size, b->stride, b->ndim, mine->dtype};
        (mine->unread ? kernel_copy_past_caches : kernel_copy)(&kern, dst, src);
      }
      i = next_box(theirs->send_box, theirs->nsend, i + 1, r->me);
      j = next_box(mine->recv_box, mine->nrecv, j + 1, from);
    }
  }
  return OK;
}
