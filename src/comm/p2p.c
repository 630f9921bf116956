/* p2p.c -- messages and data of processes; see p2p.h. */
#include "comm/p2p.h"
#include "base/clock.h"
#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

static Status check_port(const P2pWorld *w, int code, const char *what, int peer) {
  if (!code) return OK;
  char text[512];
  w->port.error_text(w->port.state, code, text, sizeof text);
  if (peer < 0) return fail(ERR_RANK, "rank %d of %d: %s: %s", w->base.rank, w->base.size, what, text);
  return fail(ERR_RANK, "rank %d of %d: %s rank %d: %s", w->base.rank, w->base.size, what, peer, text);
}

/* ---- messages ---------------------------------------------------------------------------- */

static const size_t head_bytes = sizeof(MessageHeader);

Status message_new(P2pWorld *w, Message **out) {
  Message *l = w->spare;
  if (l) w->spare = l->next;
  else TRY_NEW(l, aligned_alloc(64, sizeof *l));
  l->next = NULL;
  l->refs = 1;
  l->head = (MessageHeader){0};
  *out = l;
  return OK;
}

void message_drop(P2pWorld *w, Message *l) {
  if (!l || --l->refs) return;
  l->next = w->spare;
  w->spare = l;
}

Status message_send(P2pWorld *w, Message *l, int to) {
  TRY_ROOM(w->out, w->nout, w->out_cap);
  Outgoing o = {.message = l};
  bool done = false;
  TRY(check_port(w, w->port.send(w->port.state, &l->head, head_bytes + l->head.bytes, to, TAG_MESSAGE, &o.request),
                 "cannot send to", to));
  w->peer[to].sent++;
  TRY(check_port(w, w->port.test(w->port.state, &o.request, &done, NULL, NULL), "cannot send to", to));
  if (done) return OK; /* the library has copied it */
  l->refs++;
  w->out[w->nout++] = o;
  return OK;
}

Message *message_take(P2pWorld *w, int from, MessageType type, uint64_t group, int lane, uint64_t sequence) {
  Peer *p = &w->peer[from];
  for (Message **at = &p->first; *at; at = &(*at)->next) {
    Message *l = *at;
    if (l->head.type != type || l->head.sequence != sequence || l->head.lane != lane || l->head.group != group)
      continue;
    *at = l->next;
    if (!l->next) p->end = at;
    l->next = NULL;
    return l;
  }
  return NULL;
}

bool peer_has_left(const Peer *p) { return p->leaving && p->got >= p->sent_in_all; }

int p2p_tag(P2pWorld *w, int to) {
  Peer *p = &w->peer[to];
  p->next_tag = (p->next_tag + 1) % (PORT_TAGS - TAG_MESSAGE - 1);
  return p->next_tag + TAG_MESSAGE + 1;
}

/* ---- receiving ------------------------------------------------------------------------------ */

static Status post_again(P2pWorld *w) {
  PostedReceive one = {0};
  TRY(message_new(w, &one.message));
  Status s = check_port(w,
                        w->port.recv(w->port.state, &one.message->head, head_bytes + MESSAGE_DATA, PORT_ANYONE,
                                     TAG_MESSAGE, &one.request),
                        "cannot receive", -1);
  if (s) message_drop(w, one.message);
  else w->posted[w->nposted++] = one;
  return s;
}

Status p2p_post_receives(P2pWorld *w) {
  while (w->nposted < POSTED_RECEIVES) TRY(post_again(w));
  return OK;
}

Status p2p_cancel_receives(P2pWorld *w) {
  while (w->nposted) {
    PostedReceive *l = &w->posted[--w->nposted];
    bool done = false;
    TRY(check_port(w, w->port.cancel(w->port.state, &l->request), "cannot cancel a receive", -1));
    while (!done)
      TRY(check_port(w, w->port.test(w->port.state, &l->request, &done, NULL, NULL), "cannot cancel a receive",
                     -1));
    message_drop(w, l->message);
  }
  return OK;
}

uint64_t p2p_layout(void) {
  return sizeof(MessageHeader) | (uint64_t)MESSAGE_DATA << 16 | (uint64_t)COLL_KIND_COUNT << 32 |
         (uint64_t)DT_COUNT << 40;
}

static Status take_hello(P2pWorld *w, Peer *p, const Message *l, int from) {
  if (l->head.signature != p2p_layout())
    return fail(ERR_RANK, "rank %d of %d: rank %d runs another build of tessera", w->base.rank, w->base.size, from);
  p->joined = true;
  p->pid = l->head.boxes;
  p->host_id = l->head.group;
  memcpy(p->host, l->data, sizeof p->host);
  p->host[sizeof p->host - 1] = 0;
  return OK;
}

static Status deliver(P2pWorld *w, Message *l, int from) {
  Peer *p = &w->peer[from];
  p->got++;
  switch ((MessageType)l->head.type) {
    case MESSAGE_HELLO: {
      Status s = take_hello(w, p, l, from);
      message_drop(w, l);
      return s;
    }
    case MESSAGE_LEFT:
      p->leaving = true;
      p->sent_in_all = l->head.sequence;
      p->own = l->head.group;
      /* fall through */
    case MESSAGE_FAIL:
      l->data[MESSAGE_DATA - 1] = 0;
      if (l->head.bytes) w->heard |= !w->failed;
      if (l->head.bytes) p2p_set_failed(w, (ErrCode)l->head.signature, (const char *)l->data);
      message_drop(w, l);
      return OK;
    case MESSAGE_ROUND:
    case MESSAGE_PAIR:
      p->called = true;
      p->last = l->head.call;
      break;
    case MESSAGE_TAKEN: break;
  }
  *p->end = l;
  p->end = &l->next;
  return OK;
}

/* Receive i, if a message has arrived in it; the later ones move up. */
static Status poll_posted(P2pWorld *w, int i, bool *got) {
  PostedReceive *l = &w->posted[i];
  int from = 0;
  size_t bytes = 0;
  TRY(check_port(w, w->port.test(w->port.state, &l->request, got, &from, &bytes), "cannot receive", -1));
  if (!*got) return OK;
  Message *message = l->message;
  memmove(l, l + 1, (size_t)(--w->nposted - i) * sizeof *l);
  Status s = post_again(w);
  if (!s && (bytes < head_bytes || bytes != head_bytes + message->head.bytes))
    s = fail(ERR_RANK, "rank %d of %d: a message of rank %d is cut off", w->base.rank, w->base.size, from);
  if (s) message_drop(w, message);
  return s ? s : deliver(w, message, from);
}

static Status poll_out(P2pWorld *w) {
  for (int i = 0; i < w->nout;) {
    bool done = false;
    TRY(check_port(w, w->port.test(w->port.state, &w->out[i].request, &done, NULL, NULL), "cannot send", -1));
    if (!done) {
      i++;
      continue;
    }
    message_drop(w, w->out[i].message);
    w->out[i] = w->out[--w->nout];
  }
  return OK;
}

/* The oldest receive is filled first, unless a library lets a large message wait for its sender:
 * all are asked now and then. */
Status p2p_poll(P2pWorld *w, bool *moved) {
  enum { ALL_EVERY = 32 };
  bool got = true;
  while (got && w->nposted) {
    TRY(poll_posted(w, 0, &got));
    *moved |= got;
  }
  if (w->nout) TRY(poll_out(w));
  if (++w->polls % ALL_EVERY) return OK;
  p2p_terminating(w);
  for (int i = 1; i < w->nposted; i += !got) {
    TRY(poll_posted(w, i, &got));
    *moved |= got;
  }
  return OK;
}

/* ---- data --------------------------------------------------------------------------------------- */

static Status transfer(P2pWorld *w, Transfers *t, bool receive, int peer, int tag, char *data, size_t bytes) {
  for (size_t at = 0; at < bytes;) {
    size_t part = bytes - at < PORT_MOST_BYTES ? bytes - at : PORT_MOST_BYTES;
    TRY_ROOM(t->list, t->n, t->cap);
    struct Transfer *one = &t->list[t->n];
    *one = (struct Transfer){.peer = peer, .receive = receive};
    int code = receive ? w->port.recv(w->port.state, data + at, part, peer, tag, &one->request)
                       : w->port.send(w->port.state, data + at, part, peer, tag, &one->request);
    TRY(check_port(w, code, receive ? "cannot receive from" : "cannot send to", peer));
    t->n++;
    t->open++;
    at += part;
  }
  return OK;
}

Status transfers_send(P2pWorld *w, Transfers *t, int to, int tag, const void *data, size_t bytes) {
  return transfer(w, t, false, to, tag, (char *)(uintptr_t)data, bytes);
}
Status transfers_recv(P2pWorld *w, Transfers *t, int from, int tag, void *data, size_t bytes) {
  return transfer(w, t, true, from, tag, data, bytes);
}

Status transfers_look(P2pWorld *w, Transfers *t, bool *done) {
  for (int i = 0; i < t->n && t->open; i++) {
    struct Transfer *one = &t->list[i];
    if (one->done) continue;
    TRY(check_port(w, w->port.test(w->port.state, &one->request, &one->done, NULL, NULL),
                   one->receive ? "cannot receive from" : "cannot send to", one->peer));
    t->open -= one->done;
  }
  *done = t->open == 0;
  if (*done) t->n = 0;
  return OK;
}

/* Receives end, one way or the other.  A send that the other side has begun to receive ends
 * too; one that it has not will never be read: nobody receives in a world that failed. */
void transfers_give_up(P2pWorld *w, Transfers *t) {
  const double now = clock_now(), until[2] = {now + 0.2, now + 5}; /* sends; receives whose sender may have died */
  for (int i = 0; i < t->n; i++) {
    if (!t->list[i].done && t->list[i].receive) w->port.cancel(w->port.state, &t->list[i].request);
  }
  bool wait = t->open > 0;
  while (wait) {
    bool receives = false;
    for (int i = 0; i < t->n; i++) {
      struct Transfer *one = &t->list[i];
      if (one->done) continue;
      if (w->port.test(w->port.state, &one->request, &one->done, NULL, NULL)) one->done = true;
      t->open -= one->done;
      receives |= !one->done && one->receive;
    }
    wait = t->open && clock_now() < until[receives];
  }
  t->n = t->open = 0;
}

void transfers_free(Transfers *t) {
  free(t->list);
  *t = (Transfers){0};
}
