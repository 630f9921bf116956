/* mail_pair.c -- send and recv between processes.
 *
 * The sender's letter tells what it sends and holds the data if they are small; the receiver
 * compares, takes the data, and says so.  Sends and receipts between two members of a group
 * are counted: the k-th send meets the k-th receipt, blocking or started.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/mail.h"

static MailGroup *group_of(const MailPair *p) { return p->comm->link; }
static size_t bytes_of(const MailPair *p) { return (size_t)p->coll->count * dtype_size(p->coll->dtype); }

static Status failed_error(const MailPair *p) {
  char text[256];
  const MailWorld *w = mail_world(p->comm);
  return status_at(mail_error(w), "rank %d, in %s", w->base.rank, mail_describe(w, p->ticket, text, sizeof text));
}

static Status begin_send(MailPair *p) {
  MailWorld *w = mail_world(p->comm);
  Letter *l;
  Status s = OK;
  TRY(letter_new(w, &l));
  l->head = (LetterHead){.type = LETTER_PAIR, .group = group_of(p)->hash, .sequence = p->number};
  flight_get(&w->base.flight, p->ticket, &l->head.call);
  l->head.call.members = NULL;
  if (bytes_of(p) <= LETTER_DATA) {
    if (bytes_of(p)) memcpy(l->data, p->coll->send, bytes_of(p));
    l->head.bytes = (uint32_t)bytes_of(p);
  } else {
    l->head.tag = mail_tag(w, p->peer);
  }
  s = letter_send(w, l, p->peer);
  if (!s && l->head.tag) s = transfers_send(w, &p->transfers, p->peer, l->head.tag, p->coll->send, bytes_of(p));
  letter_drop(w, l);
  return s;
}

Status mail_pair_begin(MailPair *p, Comm *c, const Coll *what, uint64_t ticket) {
  *p = (MailPair){.comm = c, .coll = what, .ticket = ticket, .peer = c->members[what->root]};
  TRY(mail_may_begin(mail_world(c), ticket));
  MailGroup *g = group_of(p);
  p->number = ++(what->kind == COLL_SEND ? g->sends : g->recvs)[what->root];
  return what->kind == COLL_SEND ? begin_send(p) : OK;
}

static Status mismatch(const MailPair *p) {
  const MailWorld *w = mail_world(p->comm);
  char text[256], call[256];
  return fail(ERR_RANK, "rank %d of %d: %s, but rank %d called %s", w->base.rank, w->base.size,
              mail_describe(w, p->ticket, text, sizeof text), p->peer,
              flight_describe_call(&p->letter->head.call, call, sizeof call));
}

static Status confirm(const MailPair *p) {
  MailWorld *w = mail_world(p->comm);
  Letter *l;
  TRY(letter_new(w, &l));
  l->head = (LetterHead){.type = LETTER_TAKEN, .group = group_of(p)->hash, .sequence = p->number};
  Status s = letter_send(w, l, p->peer);
  letter_drop(w, l);
  return s;
}

static Status look_to_receive(MailPair *p, bool *done) {
  MailWorld *w = mail_world(p->comm);
  if (!p->letter) {
    p->letter = letter_take(w, p->peer, LETTER_PAIR, group_of(p)->hash, 0, p->number);
    if (!p->letter) return OK;
    const LetterHead *head = &p->letter->head;
    if (head->call.dtype != (uint8_t)p->coll->dtype || head->call.count != p->coll->count) return mismatch(p);
    if (head->tag) TRY(transfers_recv(w, &p->transfers, p->peer, head->tag, p->coll->recv, bytes_of(p)));
    else if (head->bytes) memcpy(p->coll->recv, p->letter->data, head->bytes);
  }
  TRY(transfers_look(w, &p->transfers, done));
  return *done ? confirm(p) : OK;
}

/* Only the receiver's word counts, and then the data have gone. */
static Status look_to_send(MailPair *p, bool *done) {
  MailWorld *w = mail_world(p->comm);
  if (!p->letter) p->letter = letter_take(w, p->peer, LETTER_TAKEN, group_of(p)->hash, 0, p->number);
  return p->letter ? transfers_look(w, &p->transfers, done) : OK;
}

Status mail_pair_look(MailPair *p, bool *done) {
  const MailWorld *w = mail_world(p->comm);
  const bool left = peer_has_left(&w->peer[p->peer]);
  TRY(p->coll->kind == COLL_SEND ? look_to_send(p, done) : look_to_receive(p, done));
  if (*done) return OK;
  if (w->failed) return failed_error(p);
  if (!left || p->letter) return OK;
  char text[256];
  return fail(ERR_RANK, "rank %d of %d: %s: rank %d has left", w->base.rank, w->base.size,
              mail_describe(w, p->ticket, text, sizeof text), p->peer);
}

void mail_pair_missing(const MailPair *p, TextBuf *out) {
  text_printf(out, "rank %d is missing (", p->peer);
  mail_describe_peer(mail_world(p->comm), p->peer, out);
  text_puts(out, ")");
}

void mail_pair_end(MailPair *p) {
  MailWorld *w = mail_world(p->comm);
  if (p->transfers.open) transfers_give_up(w, &p->transfers);
  transfers_free(&p->transfers);
  letter_drop(w, p->letter);
  p->letter = NULL;
}

static Status look(void *arg, bool *done) { return mail_pair_look(arg, done); }
static void missing(void *arg, TextBuf *out) { mail_pair_missing(arg, out); }

Status mail_pair_run(Comm *c, const Coll *what, uint64_t ticket) {
  MailWorld *w = mail_world(c);
  MailPair p;
  pthread_mutex_lock(&w->lock);
  Status s = mail_pair_begin(&p, c, what, ticket);
  if (s) mail_fail(w, status_code(s), status_message(s));
  pthread_mutex_unlock(&w->lock);
  if (!s) s = mail_wait(w, ticket, look, missing, &p);
  pthread_mutex_lock(&w->lock);
  mail_pair_end(&p);
  pthread_mutex_unlock(&w->lock);
  return s;
}
