/* mail_round.c -- a collective of processes: letters to all, letters from all, then steps of
 * data.  See mail.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/mail.h"

static const MailKind *const kinds[COLL_KIND_COUNT] = {
    /* clang-format off */
    [COLL_ALL_REDUCE] = &mail_reduce,     [COLL_REDUCE] = &mail_reduce,  [COLL_REDUCE_SCATTER] = &mail_reduce,
    [COLL_BROADCAST] = &mail_reduce,      [COLL_ALL_GATHER] = &mail_move, [COLL_GATHER] = &mail_move,
    [COLL_SCATTER] = &mail_move,          [COLL_ALL_TO_ALL] = &mail_move, [COLL_EXCHANGE] = &mail_move,
    /* clang-format on */
    [COLL_BARRIER] = &mail_move,
};

static const MailGroup *group_of(const MailRound *r) { return r->comm->link; }

/* ---- beginning ------------------------------------------------------------------------------ */

/* One block for all lists. */
static Status make_lists(MailRound *r) {
  const size_t n = (size_t)r->n;
  TRY_NEW(r->letter, calloc(n + 1, sizeof *r->letter + 2 * sizeof *r->out + sizeof *r->slice + sizeof *r->source +
                                       sizeof *r->tag));
  r->out = (Piece *)(void *)(r->letter + n);
  r->in = r->out + n;
  r->slice = (int64_t *)(void *)(r->in + n);
  r->source = (const void **)(void *)(r->slice + n + 1);
  r->tag = (int *)(void *)(r->source + n);
  return OK;
}

static Status letter_for(MailRound *r, const FlightEntry *call, int member, Letter **out) {
  MailWorld *w = mail_world(r->comm);
  Letter *l;
  TRY(letter_new(w, &l));
  l->head = (LetterHead){.type = LETTER_ROUND,
                         .lane = (uint8_t)r->lane,
                         .group = group_of(r)->hash,
                         .sequence = r->sequence,
                         .sign = r->sign,
                         .offers = r->offers,
                         .wants = r->wants,
                         .call = *call};
  const Piece *piece = &r->out[member];
  if (r->coll->kind == COLL_EXCHANGE) boxes_list(r, member, l);
  if (r->coll->kind == COLL_ALL_TO_ALL) l->head.amount = coll_part(r->coll, member);
  if (piece->bytes > LETTER_DATA - l->head.bytes) {
    l->head.tag = r->tag[member] = mail_tag(w, r->comm->members[member]);
  } else if (piece->bytes) {
    memcpy(l->data + l->head.bytes, piece->at, piece->bytes);
    l->head.bytes += (uint32_t)piece->bytes;
  }
  *out = l;
  return OK;
}

/* Starting with the next member: not everybody writes to the same one at first. */
static Status write_letters(MailRound *r) {
  FlightEntry call = {0};
  flight_get(&r->comm->world->flight, r->ticket, &call);
  call.members = NULL; /* means nothing elsewhere */
  for (int k = 1; k < r->n; k++) {
    int member = (r->me + k) % r->n;
    Letter *l;
    TRY(letter_for(r, &call, member, &l));
    Status s = letter_send(mail_world(r->comm), l, r->comm->members[member]);
    letter_drop(mail_world(r->comm), l);
    TRY(s);
  }
  return OK;
}

/* The failure of the world, as seen from this round. */
static Status failed_error(const MailRound *r) {
  char text[256];
  const MailWorld *w = mail_world(r->comm);
  return status_at(mail_error(w), "rank %d, in %s", w->base.rank, mail_describe(w, r->ticket, text, sizeof text));
}

Status mail_round_begin(MailRound *r, Comm *c, const Coll *what, LaneKind lane, uint64_t sequence,
                        uint64_t ticket) {
  *r = (MailRound){.comm = c,
                   .coll = what,
                   .kind = kinds[what->kind],
                   .n = c->size,
                   .me = c->rank,
                   .lane = lane,
                   .sequence = sequence,
                   .ticket = ticket,
                   .sign = coll_sign(what, c->size),
                   .missing = c->size - 1,
                   .step = -1};
  Status s = mail_may_begin(mail_world(c), ticket);
  if (!s) s = make_lists(r);
  if (!s) s = r->kind->prepare(r);
  if (!s) s = write_letters(r);
  return s;
}

/* ---- letters -------------------------------------------------------------------------------- */

Status mail_mismatch(const MailRound *r, const Letter *theirs, const char *what) {
  const MailWorld *w = mail_world(r->comm);
  char text[256], call[256];
  FlightEntry mine;
  int rank = -1;
  for (int i = 0; i < r->n; i++) {
    if (r->letter[i] == theirs) rank = r->comm->members[i];
  }
  if (!what && flight_get(&w->base.flight, r->ticket, &mine)) what = flight_difference(&mine, &theirs->head.call);
  return fail(ERR_RANK, "rank %d of %d: %s, but rank %d called %s%s%s", w->base.rank, w->base.size,
              mail_describe(w, r->ticket, text, sizeof text), rank,
              flight_describe_call(&theirs->head.call, call, sizeof call), what ? ": " : "", what ? what : "");
}

uint64_t mail_deal(const MailRound *r, int from, int to, uint64_t what) {
  uint64_t h = (uint64_t)from * (uint64_t)r->n + (uint64_t)to + 1;
  h = (h ^ what) * 0x9e3779b97f4a7c15u;
  h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
  return h ^ (h >> 32);
}

static Status compare(const MailRound *r, int member) {
  const Letter *l = r->letter[member];
  if (l->head.sign != r->sign) return mail_mismatch(r, l, NULL);
  if (r->coll->kind == COLL_EXCHANGE) return boxes_check(r, member);
  if (r->coll->kind != COLL_ALL_TO_ALL || l->head.amount == coll_recv_part(r->coll, member)) return OK;
  char what[128];
  snprintf(what, sizeof what, "it sends %lld elements to rank %d, which expects %lld", (long long)l->head.amount,
           r->comm->world->rank, (long long)coll_recv_part(r->coll, member));
  return mail_mismatch(r, l, what);
}

static Status left_error(const MailRound *r, int member) {
  const MailWorld *w = mail_world(r->comm);
  const int rank = r->comm->members[member];
  const Peer *p = &w->peer[rank];
  char text[256], other[256] = "it made no collective";
  if (p->heard) {
    char call[200];
    snprintf(other, sizeof other, "its last collective was %s", flight_describe(&p->last, call, sizeof call));
  }
  return fail(ERR_RANK, "rank %d of %d: %s: rank %d has left; %s", w->base.rank, w->base.size,
              mail_describe(w, r->ticket, text, sizeof text), rank, other);
}

static Status look_for_letters(MailRound *r) {
  MailWorld *w = mail_world(r->comm);
  for (int i = 0; i < r->n && r->missing; i++) {
    if (i == r->me || r->letter[i]) continue;
    const int rank = r->comm->members[i];
    r->letter[i] = letter_take(w, rank, LETTER_ROUND, group_of(r)->hash, (int)r->lane, r->sequence);
    if (r->letter[i]) {
      r->missing--;
      TRY(compare(r, i));
      r->offers += r->letter[i]->head.offers;
      r->wants += r->letter[i]->head.wants;
    } else if (peer_has_left(&w->peer[rank]) && !w->failed) {
      return left_error(r, i);
    }
  }
  return OK;
}

/* A call of another group that a missing member waits in until this rank comes: a letter that no
 * round of this rank will ask for while it is here. */
static const Letter *called_elsewhere(const MailRound *r, const Peer *p) {
  const Letter *l = p->first;
  while (l && (l->head.type != LETTER_ROUND || l->head.lane != LANE_BLOCKING || l->head.group == group_of(r)->hash))
    l = l->next;
  return l;
}

static const int *members_of(const MailRound *r, uint64_t group) {
  for (const Comm *c = r->comm->world->comms; c; c = c->next) {
    if (((const MailGroup *)c->link)->hash == group) return c->members;
  }
  return NULL;
}

/* Two that wait for each other in different groups: found when it lasts, since letters may come
 * in another order than they were written. */
static Status look_for_crossing(MailRound *r) {
  const MailWorld *w = mail_world(r->comm);
  const Letter *theirs = NULL;
  int rank = -1;
  for (int i = 0; i < r->n && !theirs; i++) {
    if (i == r->me || r->letter[i]) continue;
    rank = r->comm->members[i];
    theirs = called_elsewhere(r, &w->peer[rank]);
  }
  const double now = theirs ? clock_now() : 0;
  if (!theirs || r->crossed == 0) return r->crossed = now, OK;
  FlightEntry mine = {0};
  if (now - r->crossed < CROSSED_S || !flight_get(&w->base.flight, r->ticket, &mine)) return OK;
  return comm_crossed(&w->base, &mine, rank, &theirs->head.call, members_of(r, theirs->head.group));
}

/* ---- steps -------------------------------------------------------------------------------------- */

Status mail_round_look(MailRound *r, bool *done) {
  MailWorld *w = mail_world(r->comm);
  if (r->step < 0) {
    if (r->missing) TRY(look_for_letters(r));
    if (r->missing && r->lane == LANE_BLOCKING && !w->failed) TRY(look_for_crossing(r));
    if (r->missing || r->offers != r->wants) return w->failed ? failed_error(r) : OK;
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

static void describe_missing(const MailWorld *w, int rank, TextBuf *out) {
  text_printf(out, " rank %d (", rank);
  mail_describe_peer(w, rank, out);
  text_puts(out, ")");
}

static void list_ranks(const MailRound *r, bool here, TextBuf *out) {
  int n = 0;
  for (int i = 0; i < r->n; i++) {
    if ((i == r->me || r->letter[i]) != here) continue;
    if (here) text_printf(out, "%s%d", n ? "," : "", r->comm->members[i]);
    else if (n < MOST_MISSING) describe_missing(mail_world(r->comm), r->comm->members[i], out);
    n++;
  }
  if (!here && n > MOST_MISSING) text_printf(out, " and %d more", n - MOST_MISSING);
}

void mail_round_missing(const MailRound *r, TextBuf *out) {
  if (r->missing) {
    text_puts(out, "ranks ");
    list_ranks(r, true, out);
    text_puts(out, " are here; missing:");
    list_ranks(r, false, out);
    return;
  }
  if (r->offers != r->wants) {
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

void mail_round_end(MailRound *r) {
  MailWorld *w = mail_world(r->comm);
  if (r->transfers.open) transfers_give_up(w, &r->transfers);
  transfers_free(&r->transfers);
  for (int i = 0; r->letter && i < r->n; i++) letter_drop(w, r->letter[i]);
  free(r->letter);
  free(r->scratch);
  r->letter = NULL;
  r->scratch = NULL;
}

static Status look(void *arg, bool *done) { return mail_round_look(arg, done); }
static void missing(void *arg, TextBuf *out) { mail_round_missing(arg, out); }

Status mail_round_run(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket) {
  MailWorld *w = mail_world(c);
  MailRound r;
  pthread_mutex_lock(&w->lock);
  Status s = mail_round_begin(&r, c, what, LANE_BLOCKING, sequence, ticket);
  if (s) mail_fail(w, status_code(s), status_message(s));
  pthread_mutex_unlock(&w->lock);
  if (!s) s = mail_wait(w, ticket, look, missing, &r);
  pthread_mutex_lock(&w->lock);
  mail_round_end(&r);
  pthread_mutex_unlock(&w->lock);
  return s;
}
