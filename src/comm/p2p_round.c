/* p2p_round.c -- a collective of processes: messages to all, messages from all, then steps of
 * data.  See p2p.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/p2p.h"

static const P2pKind *const kinds[COLL_KIND_COUNT] = {
    /* clang-format off */
    [COLL_ALL_REDUCE] = &p2p_reduce,     [COLL_REDUCE] = &p2p_reduce,  [COLL_REDUCE_SCATTER] = &p2p_reduce,
    [COLL_BROADCAST] = &p2p_reduce,      [COLL_ALL_GATHER] = &p2p_move, [COLL_GATHER] = &p2p_move,
    [COLL_SCATTER] = &p2p_move,          [COLL_ALL_TO_ALL] = &p2p_move, [COLL_EXCHANGE] = &p2p_move,
    /* clang-format on */
    [COLL_BARRIER] = &p2p_move,
};

static const P2pGroup *group_of(const P2pRound *r) { return r->comm->link; }

/* ---- beginning ------------------------------------------------------------------------------ */

/* One block for all lists. */
static Status make_lists(P2pRound *r) {
  const size_t n = (size_t)r->n;
  TRY_NEW(r->message, calloc(n + 1, sizeof *r->message + 2 * sizeof *r->out + sizeof *r->slice + sizeof *r->source +
                                        sizeof *r->tag));
  r->out = (Piece *)(void *)(r->message + n);
  r->in = r->out + n;
  r->slice = (int64_t *)(void *)(r->in + n);
  r->source = (const void **)(void *)(r->slice + n + 1);
  r->tag = (int *)(void *)(r->source + n);
  return OK;
}

static Status message_for(P2pRound *r, const FlightEntry *call, int member, Message **out) {
  P2pWorld *w = p2p_world(r->comm);
  Message *l;
  TRY(message_new(w, &l));
  l->head = (MessageHeader){.type = MESSAGE_ROUND,
                            .lane = (uint8_t)r->lane,
                            .group = group_of(r)->hash,
                            .sequence = r->sequence,
                            .signature = r->signature,
                            .send_hash = r->send_hash,
                            .recv_hash = r->recv_hash,
                            .call = *call};
  const Piece *piece = &r->out[member];
  if (r->coll->kind == COLL_EXCHANGE) boxes_list(r, member, l);
  if (r->coll->kind == COLL_ALL_TO_ALL) l->head.amount = coll_part(r->coll, member);
  if (piece->bytes > MESSAGE_DATA - l->head.bytes) {
    l->head.tag = r->tag[member] = p2p_tag(w, r->comm->members[member]);
  } else if (piece->bytes) {
    memcpy(l->data + l->head.bytes, piece->at, piece->bytes);
    l->head.bytes += (uint32_t)piece->bytes;
  }
  *out = l;
  return OK;
}

/* Starting with the next member: not everybody sends to the same one at first. */
static Status send_messages(P2pRound *r) {
  FlightEntry call = {0};
  flight_get(&r->comm->world->flight, r->ticket, &call);
  call.members = NULL; /* means nothing elsewhere */
  for (int k = 1; k < r->n; k++) {
    int member = (r->me + k) % r->n;
    Message *l;
    TRY(message_for(r, &call, member, &l));
    Status s = message_send(p2p_world(r->comm), l, r->comm->members[member]);
    message_drop(p2p_world(r->comm), l);
    TRY(s);
  }
  return OK;
}

/* The failure of the world, as seen from this round. */
static Status failed_error(const P2pRound *r) {
  char text[256];
  const P2pWorld *w = p2p_world(r->comm);
  return status_at(p2p_error(w), "rank %d, in %s", w->base.rank, p2p_describe(w, r->ticket, text, sizeof text));
}

Status p2p_round_begin(P2pRound *r, Comm *c, const Coll *what, LaneKind lane, uint64_t sequence, uint64_t ticket) {
  *r = (P2pRound){.comm = c,
                  .coll = what,
                  .kind = kinds[what->kind],
                  .n = c->size,
                  .me = c->rank,
                  .lane = lane,
                  .sequence = sequence,
                  .ticket = ticket,
                  .signature = coll_signature(what, c->size),
                  .missing = c->size - 1,
                  .step = -1};
  Status s = p2p_may_begin(p2p_world(c), ticket);
  if (!s) s = make_lists(r);
  if (!s) s = r->kind->prepare(r);
  if (!s) s = send_messages(r);
  return s;
}

/* ---- messages -------------------------------------------------------------------------------- */

Status p2p_mismatch(const P2pRound *r, const Message *theirs, const char *what) {
  const P2pWorld *w = p2p_world(r->comm);
  char text[256], call[256];
  FlightEntry mine;
  int rank = -1;
  for (int i = 0; i < r->n; i++) {
    if (r->message[i] == theirs) rank = r->comm->members[i];
  }
  if (!what && flight_get(&w->base.flight, r->ticket, &mine)) what = flight_difference(&mine, &theirs->head.call);
  return fail(ERR_RANK, "rank %d of %d: %s, but rank %d called %s%s%s", w->base.rank, w->base.size,
              p2p_describe(w, r->ticket, text, sizeof text), rank,
              flight_describe_call(&theirs->head.call, call, sizeof call), what ? ": " : "", what ? what : "");
}

uint64_t p2p_pair_hash(const P2pRound *r, int from, int to, uint64_t what) {
  uint64_t h = (uint64_t)from * (uint64_t)r->n + (uint64_t)to + 1;
  h = (h ^ what) * 0x9e3779b97f4a7c15u;
  h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
  return h ^ (h >> 32);
}

static Status compare(const P2pRound *r, int member) {
  const Message *l = r->message[member];
  if (l->head.signature != r->signature) return p2p_mismatch(r, l, NULL);
  if (r->coll->kind == COLL_EXCHANGE) return boxes_check(r, member);
  if (r->coll->kind != COLL_ALL_TO_ALL || l->head.amount == coll_recv_part(r->coll, member)) return OK;
  char what[128];
  snprintf(what, sizeof what, "it sends %lld elements to rank %d, which expects %lld", (long long)l->head.amount,
           r->comm->world->rank, (long long)coll_recv_part(r->coll, member));
  return p2p_mismatch(r, l, what);
}

static Status left_error(const P2pRound *r, int member) {
  const P2pWorld *w = p2p_world(r->comm);
  const int rank = r->comm->members[member];
  const Peer *p = &w->peer[rank];
  char text[256], other[256] = "it made no collective";
  if (p->called) {
    char call[200];
    snprintf(other, sizeof other, "its last collective was %s", flight_describe(&p->last, call, sizeof call));
  }
  return fail(ERR_RANK, "rank %d of %d: %s: rank %d has left; %s", w->base.rank, w->base.size,
              p2p_describe(w, r->ticket, text, sizeof text), rank, other);
}

static Status look_for_messages(P2pRound *r) {
  P2pWorld *w = p2p_world(r->comm);
  for (int i = 0; i < r->n && r->missing; i++) {
    if (i == r->me || r->message[i]) continue;
    const int rank = r->comm->members[i];
    r->message[i] = message_take(w, rank, MESSAGE_ROUND, group_of(r)->hash, (int)r->lane, r->sequence);
    if (r->message[i]) {
      r->missing--;
      TRY(compare(r, i));
      r->send_hash += r->message[i]->head.send_hash;
      r->recv_hash += r->message[i]->head.recv_hash;
    } else if (peer_has_left(&w->peer[rank]) && !w->failed) {
      return left_error(r, i);
    }
  }
  return OK;
}

/* A call of another group that a missing member waits in until this rank comes: a message that no
 * round of this rank will ask for while it is here. */
static const Message *called_elsewhere(const P2pRound *r, const Peer *p) {
  const Message *l = p->first;
  while (l &&
         (l->head.type != MESSAGE_ROUND || l->head.lane != LANE_BLOCKING || l->head.group == group_of(r)->hash))
    l = l->next;
  return l;
}

static const int *members_of(const P2pRound *r, uint64_t group) {
  for (const Comm *c = r->comm->world->comms; c; c = c->next) {
    if (((const P2pGroup *)c->link)->hash == group) return c->members;
  }
  return NULL;
}

/* Two that wait for each other in different groups: found when it lasts, since messages may come
 * in another order than they were sent. */
static Status look_for_deadlock(P2pRound *r) {
  const P2pWorld *w = p2p_world(r->comm);
  const Message *theirs = NULL;
  int rank = -1;
  for (int i = 0; i < r->n && !theirs; i++) {
    if (i == r->me || r->message[i]) continue;
    rank = r->comm->members[i];
    theirs = called_elsewhere(r, &w->peer[rank]);
  }
  const double now = theirs ? clock_now() : 0;
  if (!theirs || r->deadlock_since == 0) return r->deadlock_since = now, OK;
  FlightEntry mine = {0};
  if (now - r->deadlock_since < DEADLOCK_S || !flight_get(&w->base.flight, r->ticket, &mine)) return OK;
  return comm_deadlock(&w->base, &mine, rank, &theirs->head.call, members_of(r, theirs->head.group));
}

/* ---- steps -------------------------------------------------------------------------------------- */

Status p2p_round_look(P2pRound *r, bool *done) {
  P2pWorld *w = p2p_world(r->comm);
  if (r->step < 0) {
    if (r->missing) TRY(look_for_messages(r));
    if (r->missing && r->lane == LANE_BLOCKING && !w->failed) TRY(look_for_deadlock(r));
    if (r->missing || r->send_hash != r->recv_hash) return w->failed ? failed_error(r) : OK;
    r->kind->finish(r, -1);
    r->step = 0;
    if (r->steps) TRY(r->kind->post(r, 0));
  }
  while (r->step < r->steps) {
    bool over;
    TRY(transfers_look(w, &r->transfers, &over));
    if (!over) return w->failed ? failed_error(r) : OK;
    r->kind->finish(r, r->step);
    if (++r->step < r->steps) TRY(r->kind->post(r, r->step));
  }
  *done = true;
  return OK;
}

static void describe_missing(const P2pWorld *w, int rank, TextBuf *out) {
  text_printf(out, " rank %d (", rank);
  p2p_describe_peer(w, rank, out);
  text_puts(out, ")");
}

static void list_ranks(const P2pRound *r, bool here, TextBuf *out) {
  int n = 0;
  for (int i = 0; i < r->n; i++) {
    if ((i == r->me || r->message[i]) != here) continue;
    if (here) text_printf(out, "%s%d", n ? "," : "", r->comm->members[i]);
    else if (n < MOST_MISSING) describe_missing(p2p_world(r->comm), r->comm->members[i], out);
    n++;
  }
  if (!here && n > MOST_MISSING) text_printf(out, " and %d more", n - MOST_MISSING);
}

void p2p_round_missing(const P2pRound *r, TextBuf *out) {
  if (r->missing) {
    text_puts(out, "ranks ");
    list_ranks(r, true, out);
    text_puts(out, " are here; missing:");
    list_ranks(r, false, out);
    return;
  }
  if (r->send_hash != r->recv_hash) {
    text_puts(out, "all are here, but two of them do not agree on what they send each other");
    return;
  }
  text_puts(out, "all are here, but data are under way to or from");
  for (int i = 0, last = -1; i < r->transfers.n; i++) {
    const struct Transfer *t = &r->transfers.list[i];
    if (t->done || t->peer == last) continue;
    text_printf(out, " rank %d", last = t->peer);
  }
}

void p2p_round_end(P2pRound *r) {
  P2pWorld *w = p2p_world(r->comm);
  if (r->transfers.open) transfers_give_up(w, &r->transfers);
  transfers_free(&r->transfers);
  for (int i = 0; r->message && i < r->n; i++) message_drop(w, r->message[i]);
  free(r->message);
  free(r->scratch);
  r->message = NULL;
  r->scratch = NULL;
}

static Status look(void *arg, bool *done) { return p2p_round_look(arg, done); }
static void missing(void *arg, TextBuf *out) { p2p_round_missing(arg, out); }

Status p2p_round_run(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket) {
  P2pWorld *w = p2p_world(c);
  P2pRound r;
  pthread_mutex_lock(&w->lock);
  Status s = p2p_round_begin(&r, c, what, LANE_BLOCKING, sequence, ticket);
  if (s) p2p_fail(w, status_code(s), status_message(s));
  pthread_mutex_unlock(&w->lock);
  if (!s) s = p2p_wait(w, ticket, look, missing, &r);
  pthread_mutex_lock(&w->lock);
  p2p_round_end(&r);
  pthread_mutex_unlock(&w->lock);
  return s;
}
