/* p2p_move.c -- collectives of processes that only move data: each member has a piece for
 * each other.  Small ones ride in the messages; the rest goes in one step, straight from buffer
 * to buffer: n-1 messages out, n-1 in, every byte once.
 */
#include <string.h>

#include "comm/p2p.h"

/* NULL (a tensor without elements) stays NULL. */
static char *at(const void *buffer, int64_t element, size_t width) {
  return buffer ? (char *)(uintptr_t)buffer + (size_t)element * width : NULL;
}

/* Which part of a buffer belongs to a member. */
static Piece part(const Coll *c, const void *buffer, int member) {
  const size_t width = dtype_size(c->dtype);
  return (Piece){at(buffer, coll_before(c, member), width), (size_t)coll_part(c, member) * width};
}

static void gather_pieces(P2pRound *r, bool all) {
  const Coll *c = r->coll;
  const Piece mine = {at(c->send, 0, 1), (size_t)coll_part(c, r->me) * p2p_width(r)};
  for (int i = 0; i < r->n; i++) {
    if (all || i == c->root) r->out[i] = mine;
    if (all || r->me == c->root) r->in[i] = part(c, c->recv, i);
  }
}

static void scatter_pieces(P2pRound *r) {
  const Coll *c = r->coll;
  for (int i = 0; i < r->n && r->me == c->root; i++) r->out[i] = part(c, c->send, i);
  r->in[c->root] = (Piece){c->recv, (size_t)coll_part(c, r->me) * p2p_width(r)};
}

static Status all_to_all_pieces(P2pRound *r) {
  const Coll *c = r->coll;
  const size_t width = p2p_width(r);
  if (coll_part(c, r->me) != coll_recv_part(c, r->me)) {
    char text[256];
    return fail(ERR_RANK, "rank %d of %d: %s: it sends %lld elements to itself, and expects %lld",
                r->comm->world->rank, r->comm->world->size,
                p2p_describe(p2p_world(r->comm), r->ticket, text, sizeof text), (long long)coll_part(c, r->me),
                (long long)coll_recv_part(c, r->me));
  }
  for (int i = 0; i < r->n; i++) {
    r->out[i] = part(c, c->send, i);
    r->in[i] = (Piece){at(c->recv, coll_recv_before(c, i), width), (size_t)coll_recv_part(c, i) * width};
    r->send_hash += p2p_pair_hash(r, r->me, i, (uint64_t)coll_part(c, i));
    r->recv_hash += p2p_pair_hash(r, i, r->me, (uint64_t)coll_recv_part(c, i));
  }
  return OK;
}

static Status prepare(P2pRound *r) {
  switch (r->coll->kind) {
    case COLL_ALL_GATHER: gather_pieces(r, true); break;
    case COLL_GATHER: gather_pieces(r, false); break;
    case COLL_SCATTER: scatter_pieces(r); break;
    case COLL_ALL_TO_ALL: TRY(all_to_all_pieces(r)); break;
    case COLL_EXCHANGE: TRY(boxes_prepare(r)); break;
    default: return OK; /* a barrier is its messages */
  }
  r->steps = 1;
  return OK;
}

/* What came with messages, and what stays here. */
static void take_messages(P2pRound *r) {
  for (int i = 0; i < r->n; i++) {
    const Piece *in = &r->in[i], *own = &r->out[i];
    if (i == r->me) {
      if (in->bytes && in->at != own->at) memcpy(in->at, own->at, in->bytes);
    } else if (in->bytes && !r->message[i]->head.tag) {
      memcpy(in->at, r->message[i]->data + boxes_skip(r->message[i]), in->bytes);
    }
  }
}

static Status post(P2pRound *r, int step) {
  (void)step;
  P2pWorld *w = p2p_world(r->comm);
  for (int k = 1; k < r->n; k++) {
    int from = (r->me - k + r->n) % r->n;
    if (r->message[from]->head.tag)
      TRY(transfers_recv(w, &r->transfers, r->comm->members[from], r->message[from]->head.tag, r->in[from].at,
                         r->in[from].bytes));
  }
  for (int k = 1; k < r->n; k++) {
    int to = (r->me + k) % r->n;
    if (r->tag[to])
      TRY(transfers_send(w, &r->transfers, r->comm->members[to], r->tag[to], r->out[to].at, r->out[to].bytes));
  }
  return OK;
}

static void finish(P2pRound *r, int step) {
  if (step < 0) take_messages(r);
  else if (r->coll->kind == COLL_EXCHANGE) boxes_finish(r);
}

const P2pKind p2p_move = {prepare, post, finish};
