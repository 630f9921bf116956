/* p2p_reduce.c -- reductions and broadcast of processes.
 *
 * Small buffers ride in the messages, whole, and everyone combines what it needs.
 *
 * Large ones are cut into n slices, one for each member (those of reduce_scatter are given),
 * and slices into segments.  Step k:
 *
 *   collect   segment k of slice j goes from all members (broadcast: from the root) to j,
 *             who combines it in the order of the members
 *   hand out  segment k-1 of slice j, which is ready, goes from j to all others (reduce: to the
 *             root); not in reduce_scatter
 *
 * So every byte of the buffer leaves a member twice at most, whatever n, scratch memory is
 * bounded, and segments overlap.  2(n-1) messages per step and member.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/p2p.h"
#include "kernels/combine.h"

enum { STEP_BYTES = 4 << 20, LEAST_SEGMENT = 64 << 10, MOST_SEGMENT = 1 << 20 };

static const Coll *coll(const P2pRound *r) { return r->coll; }
static bool is_root(const P2pRound *r) { return r->me == r->coll->root; }
/* NULL (a tensor without elements) stays NULL. */
static char *at(const void *buffer, int64_t element, size_t width) {
  return buffer ? (char *)(uintptr_t)buffer + (size_t)element * width : NULL;
}

static int64_t slice_count(const P2pRound *r, int member) { return r->slice[member + 1] - r->slice[member]; }
static size_t slice_bytes(const P2pRound *r, int member) { return (size_t)slice_count(r, member) * p2p_width(r); }

/* ---- cutting --------------------------------------------------------------------------------- */

static void cut(P2pRound *r) {
  const Coll *c = coll(r);
  const int64_t line = 64 / (int64_t)p2p_width(r); /* elements */
  const int64_t even = ((c->count + r->n - 1) / r->n + line - 1) / line * line;
  for (int i = 0; i < r->n; i++) {
    if (c->kind == COLL_REDUCE_SCATTER) r->slice[i + 1] = r->slice[i] + coll_part(c, i);
    else r->slice[i + 1] = even * (i + 1) < c->count ? even * (i + 1) : c->count;
  }
}

/* Is the slice of a member, or the whole, too large for messages? */
static bool in_steps(const P2pRound *r, int member) {
  return (r->coll->kind == COLL_REDUCE_SCATTER ? slice_bytes(r, member) : (size_t)r->coll->count * p2p_width(r)) >
         MESSAGE_DATA;
}

/* What goes to a member in its message. */
static Piece message_piece(const P2pRound *r, int to) {
  const Coll *c = coll(r);
  const Piece none = {0}, whole = {at(c->send, 0, 1), (size_t)c->count * p2p_width(r)};
  switch (c->kind) {
    case COLL_REDUCE_SCATTER: return (Piece){at(c->send, r->slice[to], p2p_width(r)), slice_bytes(r, to)};
    case COLL_REDUCE: return to == c->root ? whole : none;
    case COLL_BROADCAST: return is_root(r) ? whole : none;
    default: return whole;
  }
}

static Status prepare(P2pRound *r) {
  int64_t longest = 0;
  bool any = false;
  cut(r);
  for (int i = 0; i < r->n; i++) {
    any |= in_steps(r, i);
    if (in_steps(r, i) && slice_count(r, i) > longest) longest = slice_count(r, i);
  }
  for (int i = 0; i < r->n; i++) {
    r->out[i] = in_steps(r, i) ? PIECE_IN_STEPS : message_piece(r, i);
    /* A member with a small slice gets no data later, but does its share for others. */
  }
  if (!any || r->n == 1) return OK;
  const size_t width = p2p_width(r);
  size_t segment = STEP_BYTES / (size_t)r->n;
  segment = (segment < LEAST_SEGMENT ? LEAST_SEGMENT : segment > MOST_SEGMENT ? MOST_SEGMENT : segment) / width;
  r->segment = longest < (int64_t)segment ? longest : (int64_t)segment;
  r->steps = (int)((longest + r->segment - 1) / r->segment) + (coll(r)->kind != COLL_REDUCE_SCATTER);
  if (coll(r)->kind == COLL_BROADCAST) return OK;
  TRY_NEW(r->scratch, aligned_alloc(64, (size_t)r->n * (((size_t)r->segment * width + 63) & ~(size_t)63)));
  return OK;
}

/* ---- steps -------------------------------------------------------------------------------------- */

/* Elements of a segment of a slice; 0: it has no such segment. */
static int64_t segment_count(const P2pRound *r, int member, int k) {
  if (k < 0 || !in_steps(r, member)) return 0;
  int64_t rest = slice_count(r, member) - k * r->segment;
  return rest < 0 ? 0 : rest < r->segment ? rest : r->segment;
}

static char *segment_of(const P2pRound *r, const void *buffer, int member, int k) {
  return at(buffer, r->slice[member] + k * r->segment, p2p_width(r));
}

static char *scratch_of(const P2pRound *r, int member) {
  return r->scratch + (size_t)member * (((size_t)r->segment * p2p_width(r) + 63) & ~(size_t)63);
}

static bool collects_from(const P2pRound *r, int member) {
  return coll(r)->kind != COLL_BROADCAST || member == coll(r)->root;
}
static bool hands_out_to(const P2pRound *r, int member) {
  switch (coll(r)->kind) {
    case COLL_ALL_REDUCE: return true;
    case COLL_REDUCE: return member == coll(r)->root;
    case COLL_BROADCAST: return member != coll(r)->root;
    default: return false;
  }
}

/* Where this member has the result of its own slice. */
static char *result_of(const P2pRound *r, int k) {
  const Coll *c = coll(r);
  switch (c->kind) {
    case COLL_REDUCE_SCATTER: return at(c->recv, k * r->segment, p2p_width(r));
    case COLL_REDUCE: return is_root(r) ? segment_of(r, c->recv, r->me, k) : scratch_of(r, r->me);
    case COLL_BROADCAST: return segment_of(r, is_root(r) ? c->send : c->recv, r->me, k);
    default: return segment_of(r, c->recv, r->me, k);
  }
}

static Status receive(P2pRound *r, int from, int step) {
  P2pWorld *w = p2p_world(r->comm);
  const Coll *c = coll(r);
  const int rank = r->comm->members[from], tag = r->message[from]->head.tag;
  const size_t width = p2p_width(r);
  int64_t n = segment_count(r, r->me, step);
  if (n && collects_from(r, from)) {
    char *to = c->kind == COLL_BROADCAST ? segment_of(r, c->recv, r->me, step) : scratch_of(r, from);
    TRY(transfers_recv(w, &r->transfers, rank, tag, to, (size_t)n * width));
  }
  n = segment_count(r, from, step - 1);
  if (n && hands_out_to(r, r->me))
    TRY(transfers_recv(w, &r->transfers, rank, tag, segment_of(r, c->recv, from, step - 1), (size_t)n * width));
  return OK;
}

static Status send(P2pRound *r, int to, int step) {
  P2pWorld *w = p2p_world(r->comm);
  const int rank = r->comm->members[to];
  const size_t width = p2p_width(r);
  int64_t n = segment_count(r, to, step);
  if (n && collects_from(r, r->me))
    TRY(transfers_send(w, &r->transfers, rank, r->tag[to], segment_of(r, coll(r)->send, to, step),
                       (size_t)n * width));
  n = segment_count(r, r->me, step - 1);
  if (n && hands_out_to(r, to))
    TRY(transfers_send(w, &r->transfers, rank, r->tag[to], result_of(r, step - 1), (size_t)n * width));
  return OK;
}

static Status post(P2pRound *r, int step) {
  for (int k = 1; k < r->n; k++) TRY(receive(r, (r->me - k + r->n) % r->n, step));
  for (int k = 1; k < r->n; k++) TRY(send(r, (r->me + k) % r->n, step));
  return OK;
}

/* ---- combining ------------------------------------------------------------------------------------ */

static void combine_all(P2pRound *r, const char *own, char *to, int64_t n) {
  const Coll *c = coll(r);
  for (int i = 0; i < r->n; i++)
    r->source[i] = i == r->me ? own : r->step < 0 ? (const char *)r->message[i]->data : scratch_of(r, i);
  combine(p2p_world(r->comm)->isa, c->op, c->dtype, to, r->source, r->n, n);
}

static void take_messages(P2pRound *r) {
  const Coll *c = coll(r);
  if (r->n > 1 && in_steps(r, r->me)) {
    if (c->kind == COLL_BROADCAST && is_root(r) && c->recv != c->send)
      memcpy(c->recv, c->send, (size_t)c->count * p2p_width(r));
    return;
  }
  const size_t bytes = (size_t)c->count * p2p_width(r);
  switch (c->kind) {
    case COLL_BROADCAST:
      if (!is_root(r) && bytes) memcpy(c->recv, r->message[c->root]->data, bytes);
      else if (bytes && c->recv != c->send) memcpy(c->recv, c->send, bytes);
      break;
    case COLL_REDUCE_SCATTER:
      if (slice_count(r, r->me))
        combine_all(r, at(c->send, r->slice[r->me], p2p_width(r)), c->recv, slice_count(r, r->me));
      break;
    default:
      if (c->count && (c->kind == COLL_ALL_REDUCE || is_root(r))) combine_all(r, c->send, c->recv, c->count);
  }
}

static void finish(P2pRound *r, int step) {
  if (step < 0) {
    take_messages(r);
    return;
  }
  int64_t n = segment_count(r, r->me, step);
  if (n && coll(r)->kind != COLL_BROADCAST)
    combine_all(r, segment_of(r, coll(r)->send, r->me, step), result_of(r, step), n);
}

const P2pKind p2p_reduce = {prepare, post, finish};
