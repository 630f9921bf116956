/* threads_pair.c -- send and recv on threads.
 *
 * The sender posts a send, which points to its buffer, in the receiver's inbox; the
 * receiver copies from there and marks it as taken.  Posted sends of a sender are taken in the
 * order in which they were sent.  A send is over when it has been received.  It makes no
 * difference which of the two is blocking and which was started.
 */
#include <sched.h>
#include <string.h>

#include "comm/hub.h"

static Inbox *inbox_of(const Comm *c, int member) { return &((Group *)c->link)->inbox[member]; }
static ThreadWorld *world_of(const Comm *c, int member) { return &thread_world(c)->hub->world[c->members[member]]; }

static void notify_both(ThreadWorld *w) {
  event_notify(&w->event[LANE_BLOCKING]);
  event_notify(&w->event[LANE_STARTED]);
}

void pair_post(Comm *c, PostedSend *p, const Coll *what, uint64_t ticket) {
  if (what->kind != COLL_SEND) return;
  *p = (PostedSend){.from = c->rank, .coll = what, .ticket = ticket};
  Inbox *inbox = inbox_of(c, what->root);
  pthread_mutex_lock(&inbox->lock);
  PostedSend **end = &inbox->first;
  while (*end) end = &(*end)->next;
  *end = p;
  pthread_mutex_unlock(&inbox->lock);
  notify_both(world_of(c, what->root));
}

/* Takes a send out: p itself, or with p NULL the first that `from` has sent. */
static PostedSend *take_out(Inbox *inbox, const PostedSend *p, int from) {
  pthread_mutex_lock(&inbox->lock);
  PostedSend **at = &inbox->first;
  while (*at && (p ? *at != p : (*at)->from != from)) at = &(*at)->next;
  PostedSend *found = *at;
  if (found) *at = found->next;
  pthread_mutex_unlock(&inbox->lock);
  return found;
}

static const char *describe(Comm *c, uint64_t ticket, char *buf, size_t cap) {
  FlightEntry e = {0};
  flight_get(&c->world->flight, ticket, &e);
  return flight_describe(&e, buf, cap);
}

static Status mismatch(Comm *c, const PostedSend *p, uint64_t ticket) {
  char text[256], call[256] = "something else";
  FlightEntry e;
  if (flight_get(&world_of(c, p->from)->base.flight, p->ticket, &e)) flight_describe_call(&e, call, sizeof call);
  return fail(ERR_RANK, "rank %d of %d: %s, but rank %d called %s", c->world->rank, c->world->size,
              describe(c, ticket, text, sizeof text), c->members[p->from], call);
}

static Status receive(Comm *c, PostedSend *p, const Coll *what, uint64_t ticket) {
  Status s = OK;
  ThreadWorld *sender = world_of(c, p->from);
  if (p->coll->dtype != what->dtype || p->coll->count != what->count) {
    s = mismatch(c, p, ticket);
    hub_fail(thread_world(c)->hub, ERR_RANK, status_message(s)); /* before the sender goes on */
  } else if (what->count) {
    memcpy(what->recv, p->coll->send, (size_t)what->count * dtype_size(what->dtype));
  }
  atomic_store(&p->taken, s ? -1 : 1); /* the send is the sender's again */
  notify_both(sender);
  return s;
}

RoundState pair_look(Comm *c, PostedSend *p, const Coll *what, uint64_t ticket, Status *s) {
  Hub *hub = thread_world(c)->hub;
  char text[256];
  bool left = atomic_load(&world_of(c, what->root)->left); /* before the last look */
  if (what->kind == COLL_SEND) {
    int taken = atomic_load(&p->taken);
    if (taken > 0) return ROUND_GO;
    if (taken < 0) return *s = hub_error(hub), ROUND_FAILED;
  } else {
    PostedSend *got = take_out(inbox_of(c, c->rank), NULL, what->root);
    if (got) return (*s = receive(c, got, what, ticket)) ? ROUND_FAILED : ROUND_GO;
  }
  if (atomic_load(&hub->failed)) {
    *s = status_at(hub_error(hub), "rank %d, in %s", c->world->rank, describe(c, ticket, text, sizeof text));
    return ROUND_FAILED;
  }
  if (!left) return ROUND_WAIT;
  *s = fail(ERR_RANK, "rank %d of %d: %s: rank %d has left", c->world->rank, c->world->size,
            describe(c, ticket, text, sizeof text), c->members[what->root]);
  return ROUND_FAILED;
}

typedef struct {
  Comm *comm;
  PostedSend *posted;
  const Coll *what;
  uint64_t ticket;
  Status status;
} Waiting;

static RoundState look(void *arg) {
  Waiting *w = arg;
  return pair_look(w->comm, w->posted, w->what, w->ticket, &w->status);
}

static RoundState look_for_taken(void *arg) {
  return atomic_load(&((PostedSend *)arg)->taken) ? ROUND_GO : ROUND_WAIT;
}

Status pair_give_up(Comm *c, PostedSend *p, const Coll *what, Status s) {
  hub_fail(thread_world(c)->hub, status_code(s), status_message(s));
  /* Not in the inbox: the receiver is copying. */
  if (what->kind == COLL_SEND && !atomic_load(&p->taken) && !take_out(inbox_of(c, what->root), p, 0)) {
    while (look_for_taken(p) == ROUND_WAIT) sched_yield();
  }
  return s;
}

Status pair_run(Comm *c, const Coll *what, uint64_t ticket) {
  ThreadWorld *me = thread_world(c);
  if (atomic_load(&me->hub->failed)) return hub_error(me->hub);
  PostedSend posted;
  pair_post(c, &posted, what, ticket);
  Waiting w = {.comm = c, .posted = &posted, .what = what, .ticket = ticket};
  RoundState state = hub_wait(me->hub, &me->event[LANE_BLOCKING], NULL, c->world->timeout, look, &w);
  if (state == ROUND_WAIT) {
    char text[256];
    w.status = fail(ERR_RANK, "rank %d of %d: %s: after %g s rank %d is missing", c->world->rank, c->world->size,
                    describe(c, ticket, text, sizeof text), c->world->timeout, c->members[what->root]);
  }
  return w.status ? pair_give_up(c, &posted, what, w.status) : OK;
}
