/* mail.c -- letters and data of processes; see mail.h. */
#include "comm/mail.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

static Status check_port(const MailWorld *w, int code, const char *what, int peer) {
  if (!code) return OK;
  char text[512];
  w->port.error_text(w->port.state, code, text, sizeof text);
  if (peer < 0) return fail(ERR_RANK, "rank %d of %d: %s: %s", w->base.rank, w->base.size, what, text);
  return fail(ERR_RANK, "rank %d of %d: %s rank %d: %s", w->base.rank, w->base.size, what, peer, text);
}

/* ---- letters ---------------------------------------------------------------------------- */

static const size_t head_bytes = sizeof(LetterHead);

Status letter_new(MailWorld *w, Letter **out) {
  Letter *l = w->spare;
  if (l) w->spare = l->next;
  else TRY_NEW(l, aligned_alloc(64, sizeof *l));
  l->next = NULL;
  l->refs = 1;
  l->head = (LetterHead){0};
  *out = l;
  return OK;
}

void letter_drop(MailWorld *w, Letter *l) {
  if (!l || --l->refs) return;
  l->next = w->spare;
  w->spare = l;
}

Status letter_send(MailWorld *w, Letter *l, int to) {
  if (w->nout == w->out_cap) {
    int cap = w->out_cap ? 2 * w->out_cap : 64;
    Outgoing *more;
    TRY_NEW(more, realloc(w->out, (size_t)cap * sizeof *more));
    w->out = more;
    w->out_cap = cap;
  }
  Outgoing o = {.letter = l};
  bool done = false;
  TRY(check_port(w, w->port.send(w->port.state, &l->head, head_bytes + l->head.bytes, to, TAG_LETTER, &o.request),
                 "cannot send to", to));
  w->peer[to].sent++;
  TRY(check_port(w, w->port.test(w->port.state, &o.request, &done, NULL, NULL), "cannot send to", to));
  if (done) return OK; /* the library has copied it */
  l->refs++;
  w->out[w->nout++] = o;
  return OK;
}

Letter *letter_take(MailWorld *w, int from, LetterType type, uint64_t group, int lane, uint64_t sequence) {
  Peer *p = &w->peer[from];
  for (Letter **at = &p->first; *at; at = &(*at)->next) {
    Letter *l = *at;
    if (l->head.type != type || l->head.sequence != sequence || l->head.lane != lane || l->head.group != group)
      continue;
    *at = l->next;
    if (!l->next) p->end = at;
    l->next = NULL;
    return l;
  }
  return NULL;
}

bool peer_has_left(const Peer *p) { return p->leaving && p->got >= p->last_word; }

int mail_tag(MailWorld *w, int to) {
  Peer *p = &w->peer[to];
  p->next_tag = (p->next_tag + 1) % (PORT_TAGS - TAG_LETTER - 1);
  return p->next_tag + TAG_LETTER + 1;
}

/* ---- receiving ------------------------------------------------------------------------------ */

static Status listen_again(MailWorld *w) {
  Listener one = {0};
  TRY(letter_new(w, &one.letter));
  Status s = check_port(w,
                        w->port.recv(w->port.state, &one.letter->head, head_bytes + LETTER_DATA, PORT_ANYONE,
                                     TAG_LETTER, &one.request),
                        "cannot receive", -1);
  if (s) letter_drop(w, one.letter);
  else w->listener[w->listening++] = one;
  return s;
}

Status mail_listen(MailWorld *w) {
  while (w->listening < LISTENING) TRY(listen_again(w));
  return OK;
}

Status mail_deaf(MailWorld *w) {
  while (w->listening) {
    Listener *l = &w->listener[--w->listening];
    bool done = false;
    TRY(check_port(w, w->port.cancel(w->port.state, &l->request), "cannot take back a receipt", -1));
    while (!done)
      TRY(check_port(w, w->port.test(w->port.state, &l->request, &done, NULL, NULL), "cannot take back a receipt",
                     -1));
    letter_drop(w, l->letter);
  }
  return OK;
}

uint64_t mail_layout(void) {
  return sizeof(LetterHead) | (uint64_t)LETTER_DATA << 16 | (uint64_t)COLL_KIND_COUNT << 32 |
         (uint64_t)DT_COUNT << 40;
}

static Status take_greeting(MailWorld *w, Peer *p, const Letter *l, int from) {
  if (l->head.sign != mail_layout())
    return fail(ERR_RANK, "rank %d of %d: rank %d runs another build of tessera", w->base.rank, w->base.size, from);
  p->greeted = true;
  p->pid = l->head.boxes;
  p->home = l->head.group;
  memcpy(p->host, l->data, sizeof p->host);
  p->host[sizeof p->host - 1] = 0;
  return OK;
}

static Status deliver(MailWorld *w, Letter *l, int from) {
  Peer *p = &w->peer[from];
  p->got++;
  switch ((LetterType)l->head.type) {
    case LETTER_HELLO: {
      Status s = take_greeting(w, p, l, from);
      letter_drop(w, l);
      return s;
    }
    case LETTER_LEFT:
      p->leaving = true;
      p->last_word = l->head.sequence;
      /* fall through */
    case LETTER_FAIL:
      l->data[LETTER_DATA - 1] = 0;
      if (l->head.bytes) mail_set_failed(w, (ErrCode)l->head.sign, (const char *)l->data);
      letter_drop(w, l);
      return OK;
    case LETTER_ROUND:
    case LETTER_PAIR:
      p->heard = true;
      p->last = l->head.call;
      break;
    case LETTER_TAKEN: break;
  }
  *p->end = l;
  p->end = &l->next;
  return OK;
}

/* Listener i, if it has heard something; others move up. */
static Status poll_listener(MailWorld *w, int i, bool *heard) {
  Listener *l = &w->listener[i];
  int from = 0;
  size_t bytes = 0;
  TRY(check_port(w, w->port.test(w->port.state, &l->request, heard, &from, &bytes), "cannot receive", -1));
  if (!*heard) return OK;
  Letter *letter = l->letter;
  memmove(l, l + 1, (size_t)(--w->listening - i) * sizeof *l);
  Status s = listen_again(w);
  if (!s && (bytes < head_bytes || bytes != head_bytes + letter->head.bytes))
    s = fail(ERR_RANK, "rank %d of %d: a letter of rank %d is cut off", w->base.rank, w->base.size, from);
  if (s) letter_drop(w, letter);
  return s ? s : deliver(w, letter, from);
}

static Status poll_out(MailWorld *w) {
  for (int i = 0; i < w->nout;) {
    bool done = false;
    TRY(check_port(w, w->port.test(w->port.state, &w->out[i].request, &done, NULL, NULL), "cannot send", -1));
    if (!done) {
      i++;
      continue;
    }
    letter_drop(w, w->out[i].letter);
    w->out[i] = w->out[--w->nout];
  }
  return OK;
}

/* The oldest receipt hears first, unless a library lets a large letter wait for its sender:
 * all are asked now and then. */
Status mail_poll(MailWorld *w, bool *moved) {
  enum { ALL_EVERY = 32 };
  bool heard = true;
  while (heard && w->listening) {
    TRY(poll_listener(w, 0, &heard));
    *moved |= heard;
  }
  if (w->nout) TRY(poll_out(w));
  if (++w->polls % ALL_EVERY) return OK;
  mail_told_to_end(w);
  for (int i = 1; i < w->listening; i += !heard) {
    TRY(poll_listener(w, i, &heard));
    *moved |= heard;
  }
  return OK;
}

/* ---- data --------------------------------------------------------------------------------------- */

static Status transfer(MailWorld *w, Transfers *t, bool receipt, int peer, int tag, char *data, size_t bytes) {
  for (size_t at = 0; at < bytes;) {
    size_t part = bytes - at < PORT_MOST_BYTES ? bytes - at : PORT_MOST_BYTES;
    if (t->n == t->cap) {
      int cap = t->cap ? 2 * t->cap : 16;
      struct Transfer *more;
      TRY_NEW(more, realloc(t->list, (size_t)cap * sizeof *more));
      t->list = more;
      t->cap = cap;
    }
    struct Transfer *one = &t->list[t->n];
    *one = (struct Transfer){.peer = peer, .receipt = receipt};
    int code = receipt ? w->port.recv(w->port.state, data + at, part, peer, tag, &one->request)
                       : w->port.send(w->port.state, data + at, part, peer, tag, &one->request);
    TRY(check_port(w, code, receipt ? "cannot receive from" : "cannot send to", peer));
    t->n++;
    t->open++;
    at += part;
  }
  return OK;
}

Status transfers_send(MailWorld *w, Transfers *t, int to, int tag, const void *data, size_t bytes) {
  return transfer(w, t, false, to, tag, (char *)(uintptr_t)data, bytes);
}
Status transfers_recv(MailWorld *w, Transfers *t, int from, int tag, void *data, size_t bytes) {
  return transfer(w, t, true, from, tag, data, bytes);
}

Status transfers_look(MailWorld *w, Transfers *t, bool *done) {
  for (int i = 0; i < t->n && t->open; i++) {
    struct Transfer *one = &t->list[i];
    if (one->done) continue;
    TRY(check_port(w, w->port.test(w->port.state, &one->request, &one->done, NULL, NULL),
                   one->receipt ? "cannot receive from" : "cannot send to", one->peer));
    t->open -= one->done;
  }
  *done = t->open == 0;
  if (*done) t->n = 0;
  return OK;
}

/* Receipts end, one way or the other.  A send that the other side has begun to receive ends
 * too; one that it has not will never be read: nobody receives in a world that failed. */
void transfers_give_up(MailWorld *w, Transfers *t) {
  const double now = clock_now(), until[2] = {now + 0.2, now + 5}; /* sends; receipts whose sender may have died */
  for (int i = 0; i < t->n; i++) {
    if (!t->list[i].done && t->list[i].receipt) w->port.cancel(w->port.state, &t->list[i].request);
  }
  bool wait = t->open > 0;
  while (wait) {
    bool receipts = false;
    for (int i = 0; i < t->n; i++) {
      struct Transfer *one = &t->list[i];
      if (one->done) continue;
      if (w->port.test(w->port.state, &one->request, &one->done, NULL, NULL)) one->done = true;
      t->open -= one->done;
      receipts |= !one->done && one->receipt;
    }
    wait = t->open && clock_now() < until[receipts];
  }
  t->n = t->open = 0;
}

void transfers_free(Transfers *t) {
  free(t->list);
  *t = (Transfers){0};
}
