/* p2p_pair.c -- send and recv between processes.
 *
 * The sender's message names what it sends and holds the data if they are small; the receiver
 * compares, takes the data, and confirms.  Sends and receives between two members of a group
 * are counted: the k-th send meets the k-th receive, blocking or started.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/p2p.h"

static P2pGroup *group_of(const P2pPair *p) { return p->comm->link; }
static size_t bytes_of(const P2pPair *p) { return (size_t)p->coll->count * dtype_size(p->coll->dtype); }

static Status failed_error(const P2pPair *p) {
  char text[256];
  const P2pWorld *w = p2p_world(p->comm);
  return status_at(p2p_error(w), "rank %d, in %s", w->base.rank, p2p_describe(w, p->ticket, text, sizeof text));
}

static Status begin_send(P2pPair *p) {
  P2pWorld *w = p2p_world(p->comm);
  Message *l;
  Status s = OK;
  TRY(message_new(w, &l));
  l->head = (MessageHeader){.type = MESSAGE_PAIR, .group = group_of(p)->hash, .sequence = p->number};
  flight_get(&w->base.flight, p->ticket, &l->head.call);
  l->head.call.members = NULL;
  if (bytes_of(p) <= MESSAGE_DATA) {
    if (bytes_of(p)) memcpy(l->data, p->coll->send, bytes_of(p));
    l->head.bytes = (uint32_t)bytes_of(p);
  } else {
    l->head.tag = p2p_tag(w, p->peer);
  }
  s = message_send(w, l, p->peer);
  if (!s && l->head.tag) s = transfers_send(w, &p->transfers, p->peer, l->head.tag, p->coll->send, bytes_of(p));
  message_drop(w, l);
  return s;
}

Status p2p_pair_begin(P2pPair *p, Comm *c, const Coll *what, uint64_t ticket) {
  *p = (P2pPair){.comm = c, .coll = what, .ticket = ticket, .peer = c->members[what->root]};
  TRY(p2p_may_begin(p2p_world(c), ticket));
  P2pGroup *g = group_of(p);
  p->number = ++(what->kind == COLL_SEND ? g->sends : g->recvs)[what->root];
  return what->kind == COLL_SEND ? begin_send(p) : OK;
}

static Status mismatch(const P2pPair *p) {
  const P2pWorld *w = p2p_world(p->comm);
  char text[256], call[256];
  return fail(ERR_RANK, "rank %d of %d: %s, but rank %d called %s", w->base.rank, w->base.size,
              p2p_describe(w, p->ticket, text, sizeof text), p->peer,
              flight_describe_call(&p->message->head.call, call, sizeof call));
}

static Status confirm(const P2pPair *p) {
  P2pWorld *w = p2p_world(p->comm);
  Message *l;
  TRY(message_new(w, &l));
  l->head = (MessageHeader){.type = MESSAGE_TAKEN, .group = group_of(p)->hash, .sequence = p->number};
  Status s = message_send(w, l, p->peer);
  message_drop(w, l);
  return s;
}

static Status look_to_receive(P2pPair *p, bool *done) {
  P2pWorld *w = p2p_world(p->comm);
  if (!p->message) {
    p->message = message_take(w, p->peer, MESSAGE_PAIR, group_of(p)->hash, 0, p->number);
    if (!p->message) return OK;
    const MessageHeader *head = &p->message->head;
    if (head->call.dtype != (uint8_t)p->coll->dtype || head->call.count != p->coll->count) return mismatch(p);
    if (head->tag) TRY(transfers_recv(w, &p->transfers, p->peer, head->tag, p->coll->recv, bytes_of(p)));
    else if (head->bytes) memcpy(p->coll->recv, p->message->data, head->bytes);
  }
  TRY(transfers_look(w, &p->transfers, done));
  return *done ? confirm(p) : OK;
}

/* The receiver's confirmation ends a send: then the data have gone. */
static Status look_to_send(P2pPair *p, bool *done) {
  P2pWorld *w = p2p_world(p->comm);
  if (!p->message) p->message = message_take(w, p->peer, MESSAGE_TAKEN, group_of(p)->hash, 0, p->number);
  return p->message ? transfers_look(w, &p->transfers, done) : OK;
}

Status p2p_pair_look(P2pPair *p, bool *done) {
  const P2pWorld *w = p2p_world(p->comm);
  const bool left = peer_has_left(&w->peer[p->peer]);
  TRY(p->coll->kind == COLL_SEND ? look_to_send(p, done) : look_to_receive(p, done));
  if (*done) return OK;
  if (w->failed) return failed_error(p);
  if (!left || p->message) return OK;
  char text[256];
  return fail(ERR_RANK, "rank %d of %d: %s: rank %d has left", w->base.rank, w->base.size,
              p2p_describe(w, p->ticket, text, sizeof text), p->peer);
}

void p2p_pair_missing(const P2pPair *p, TextBuf *out) {
  text_printf(out, "rank %d is missing (", p->peer);
  p2p_describe_peer(p2p_world(p->comm), p->peer, out);
  text_puts(out, ")");
}

void p2p_pair_end(P2pPair *p) {
  P2pWorld *w = p2p_world(p->comm);
  if (p->transfers.open) transfers_give_up(w, &p->transfers);
  transfers_free(&p->transfers);
  message_drop(w, p->message);
  p->message = NULL;
}

static Status look(void *arg, bool *done) { return p2p_pair_look(arg, done); }
static void missing(void *arg, TextBuf *out) { p2p_pair_missing(arg, out); }

Status p2p_pair_run(Comm *c, const Coll *what, uint64_t ticket) {
  P2pWorld *w = p2p_world(c);
  P2pPair p;
  pthread_mutex_lock(&w->lock);
  Status s = p2p_pair_begin(&p, c, what, ticket);
  if (s) p2p_fail(w, status_code(s), status_message(s));
  pthread_mutex_unlock(&w->lock);
  if (!s) s = p2p_wait(w, ticket, look, missing, &p);
  pthread_mutex_lock(&w->lock);
  p2p_pair_end(&p);
  pthread_mutex_unlock(&w->lock);
  return s;
}
