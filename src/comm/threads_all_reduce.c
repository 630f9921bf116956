/* threads_all_reduce.c -- all_reduce and reduce on threads.
 *
 * Small: every member combines all payloads for itself; n reads of the payload each.
 * Large: member i combines the i-th slice of all buffers and writes it to every receiver,
 * piece by piece while it is in the cache: each buffer is read once and written once.
 * Elements are combined in the order of the members either way.
 */
#include <string.h>

#include "comm/hub.h"
#include "kernels/combine.h"

enum {
  LINE = 64,
  PIECE = 16384, /* bytes that are combined before they are copied on */
  MOST_ON_STACK = 64,
};

/* sources[i] = payload of member i from byte `at` on. */
static void point_at(const Round *r, const void **sources, size_t at) {
  for (int i = 0; i < r->n; i++) sources[i] = round_send(r, i) + at;
}

static Status combine_all(const Round *r, void *dst) {
  const void *few[MOST_ON_STACK], **sources = few;
  Arena arena = {0};
  if (r->n > MOST_ON_STACK) TRY_NEW(sources, arena_new_n(&arena, const void *, r->n));
  point_at(r, sources, 0);
  combine(round_isa(r), r->coll->op, r->coll->dtype, dst, sources, r->n, r->coll->count);
  arena_free(&arena);
  return OK;
}

Status share_all_reduce_small(const Round *r) { return combine_all(r, r->coll->recv); }
Status share_reduce_small(const Round *r) { return r->me == r->coll->root ? combine_all(r, r->coll->recv) : OK; }

/* Elements of the slice of a member: whole cache lines, spread evenly. */
static int64_t slice_begin(const Round *r, int member) {
  const int64_t line = LINE / (int64_t)round_width(r), lines = (r->coll->count + line - 1) / line;
  int64_t begin = lines * member / r->n * line;
  return begin < r->coll->count ? begin : r->coll->count;
}

/* My slice goes to the members in `to` (recv of each). */
static Status combine_slice(const Round *r, int first, int receivers) {
  const size_t width = round_width(r);
  const int64_t begin = slice_begin(r, r->me), end = slice_begin(r, r->me + 1), piece = PIECE / (int64_t)width;
  const void *few[MOST_ON_STACK], **sources = few;
  Arena arena = {0};
  if (r->n > MOST_ON_STACK) TRY_NEW(sources, arena_new_n(&arena, const void *, r->n));
  for (int64_t i = begin; i < end; i += piece) {
    int64_t m = end - i < piece ? end - i : piece;
    size_t at = (size_t)i * width;
    char *dst = round_recv(r, first) + at;
    point_at(r, sources, at);
    combine(round_isa(r), r->coll->op, r->coll->dtype, dst, sources, r->n, m);
    for (int k = 1; k < receivers; k++) memcpy(round_recv(r, (first + k) % r->n) + at, dst, (size_t)m * width);
  }
  arena_free(&arena);
  return OK;
}

Status share_all_reduce(const Round *r) { return combine_slice(r, r->me, r->n); }
Status share_reduce(const Round *r) { return combine_slice(r, r->coll->root, 1); }
