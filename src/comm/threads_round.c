/* threads_round.c -- the rendezvous of a collective; see hub.h. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "comm/hub.h"

/* A barrier is its rendezvous. */
static Status share_nothing(const Round *r) {
  (void)r;
  return OK;
}

/*                                     payload in slots        buffers of each other */
static ShareFn *const shares[COLL_KIND_COUNT][2] = {
    /* clang-format off */
    [COLL_ALL_REDUCE] =     {share_all_reduce_small, share_all_reduce},
    [COLL_ALL_GATHER] =     {share_all_gather,       share_all_gather},
    [COLL_REDUCE_SCATTER] = {share_reduce_scatter,   share_reduce_scatter},
    [COLL_ALL_TO_ALL] =     {NULL,                   share_all_to_all},
    [COLL_EXCHANGE] =       {NULL,                   share_exchange},
    [COLL_BROADCAST] =      {share_broadcast_small,  share_broadcast},
    [COLL_SCATTER] =        {share_scatter,          share_scatter},
    [COLL_GATHER] =         {share_gather_small,     share_gather},
    [COLL_REDUCE] =         {share_reduce_small,     share_reduce},
    [COLL_BARRIER] =        {share_nothing,          NULL},
    /* clang-format on */
};

/* ---- flags ---------------------------------------------------------------------------- */

Round round_make(Comm *c, const Coll *what, LaneKind kind, uint64_t sequence, uint64_t ticket) {
  Group *g = c->link;
  int64_t most = coll_most_sent(what, c->size);
  const int64_t limit = g->hub->spin ? SMALL_BYTES : SLOT_BYTES;
  bool small = what->kind == COLL_BARRIER ||
               (most >= 0 && most <= limit && most * (int64_t)dtype_size(what->dtype) <= limit);
  return (Round){.comm = c,
                 .group = g,
                 .lane = &g->lane[kind],
                 .coll = what,
                 .n = c->size,
                 .me = c->rank,
                 .kind = kind,
                 .small = small,
                 .sequence = sequence,
                 .ticket = ticket};
}

/* GO: every flag is at `value` or beyond; FAILED: somebody is gone. */
static RoundState scan(const Round *r, uint64_t value) {
  RoundState state = ROUND_GO;
  for (int i = 0; i < r->n; i++) {
    uint64_t flag = atomic_load(&round_slot(r, i)->flag);
    if (flag & FLAG_GONE) return ROUND_FAILED;
    if (flag < value) state = ROUND_WAIT;
  }
  return state;
}

static void notify_members(const Round *r) {
  Hub *hub = r->group->hub;
  for (int i = 0; i < r->n; i++) {
    if (i != r->me || r->kind == LANE_STARTED) event_notify(&hub->world[r->group->ranks[i]].event[r->kind]);
  }
}

/* Raises the flag.  Of those who complete a round at the same time at least one sees all
 * flags up, and notifies those who sleep. */
static void raise_flag(const Round *r, uint64_t value) {
  atomic_store(&round_slot(r, r->me)->flag, value);
  if (atomic_load(&r->lane->sleepers) && scan(r, value & ~FLAG_GONE) != ROUND_WAIT) notify_members(r);
}

/* What this rank posts in its slot. */
static size_t small_bytes(const Round *r) {
  return r->coll->kind == COLL_BARRIER ? 0 : (size_t)coll_send_count(r->coll, r->n, r->me) * round_width(r);
}

void round_post(const Round *r) {
  Slot *slot = round_slot(r, r->me);
  slot->signature = coll_signature(r->coll, r->n);
  slot->coll = r->coll;
  slot->ticket = r->ticket;
  if (r->small) {
    size_t bytes = small_bytes(r);
    if (bytes) memcpy(slot->data, r->coll->send, bytes);
  }
  raise_flag(r, FLAG_READY(r->sequence));
}

void round_done(const Round *r) { raise_flag(r, FLAG_DONE(r->sequence)); }

/* A member that left before it came here; -1: none. */
static int find_left(const Round *r) {
  const Hub *hub = r->group->hub;
  for (int i = 0; i < r->n; i++) {
    /* `left` first: a flag that is still down then stays down. */
    bool left = atomic_load(&hub->world[r->group->ranks[i]].left);
    if (left && (atomic_load(&round_slot(r, i)->flag) & ~FLAG_GONE) < FLAG_READY(r->sequence)) return i;
  }
  return -1;
}

static Status left_error(const Round *r, int member) {
  const World *w = r->comm->world;
  FlightEntry mine = {0}, last;
  char text[256], other[256] = "it made no collective";
  flight_get(&r->comm->world->flight, r->ticket, &mine);
  const int rank = r->group->ranks[member];
  if (flight_get(&r->group->hub->world[rank].base.flight, 0, &last)) {
    char call[200];
    snprintf(other, sizeof other, "its last collective was %s", flight_describe(&last, call, sizeof call));
  }
  return fail(ERR_RANK, "rank %d of %d: %s: rank %d has left; %s", w->rank, w->size,
              flight_describe(&mine, text, sizeof text), rank, other);
}

/* The failure of the hub, as seen from this round. */
static Status failed_error(const Round *r) {
  FlightEntry mine = {0};
  char text[256];
  flight_get(&r->comm->world->flight, r->ticket, &mine);
  return status_at(hub_error(r->group->hub), "rank %d, in %s", r->comm->world->rank,
                   flight_describe(&mine, text, sizeof text));
}

RoundState round_look(const Round *r, Status *s) {
  RoundState state = scan(r, FLAG_READY(r->sequence));
  if (state == ROUND_GO) return ROUND_GO;
  const Hub *hub = r->group->hub;
  if (state == ROUND_WAIT && !atomic_load_explicit(&hub->trouble, memory_order_relaxed)) return ROUND_WAIT;
  int left = find_left(r); /* before `failed`, which a rank that fails sets before it leaves */
  if (atomic_load(&hub->failed)) return *s = failed_error(r), ROUND_FAILED;
  if (left < 0) return ROUND_WAIT;
  return *s = left_error(r, left), ROUND_FAILED;
}

bool round_settled(const Round *r) {
  const uint64_t ready = FLAG_READY(r->sequence);
  for (int i = 0; i < r->n; i++) {
    if (i != r->me && atomic_load(&round_slot(r, i)->flag) == ready) return false;
  }
  return true;
}

Status round_result(const Round *r) { return scan(r, FLAG_DONE(r->sequence)) == ROUND_GO ? OK : failed_error(r); }

/* ---- work -------------------------------------------------------------------------------- */

Status round_mismatch(const Round *r, int member, const char *what) {
  const World *w = r->comm->world;
  const int rank = r->group->ranks[member];
  FlightEntry mine = {0}, other = {0};
  char text[256], call[256] = "something else";
  flight_get(&r->comm->world->flight, r->ticket, &mine);
  if (flight_get(&r->group->hub->world[rank].base.flight, round_slot(r, member)->ticket, &other)) {
    flight_describe_call(&other, call, sizeof call);
    if (!what) what = flight_difference(&mine, &other);
  }
  return fail(ERR_RANK, "rank %d of %d: %s, but rank %d called %s%s%s", w->rank, w->size,
              flight_describe(&mine, text, sizeof text), rank, call, what ? ": " : "", what ? what : "");
}

Status round_work(const Round *r) {
  const uint64_t signature = round_slot(r, r->me)->signature;
  for (int i = 0; i < r->n; i++) {
    if (round_slot(r, i)->signature != signature) return round_mismatch(r, i, NULL);
  }
  return shares[r->coll->kind][r->small ? 0 : 1](r);
}

typedef struct {
  const Round *round;
  Status status;
} Waiting;

static RoundState look_for_settled(void *arg) {
  return round_settled(((Waiting *)arg)->round) ? ROUND_GO : ROUND_WAIT;
}
static RoundState look_for_ready(void *arg) {
  return round_look(((Waiting *)arg)->round, &((Waiting *)arg)->status);
}

static EventCount *event_of(const Round *r) { return &thread_world(r->comm)->event[r->kind]; }

/* Bounded: hub.h, I1.  The event count of started rounds may be another thread's. */
static void settle(const Round *r) {
  Waiting w = {.round = r};
  if (r->kind == LANE_STARTED) {
    while (!round_settled(r)) sched_yield();
    return;
  }
  hub_wait(r->group->hub, event_of(r), &r->lane->sleepers, 0, look_for_settled, &w);
}

Status round_give_up(const Round *r, Status s) {
  hub_fail(r->group->hub, status_code(s), status_message(s));
  atomic_store(&round_slot(r, r->me)->flag, FLAG_READY(r->sequence) | FLAG_GONE);
  notify_members(r);
  if (!r->small) settle(r); /* I2 */
  return s;
}

Status round_overdue(const Round *r, double seconds) {
  const World *w = r->comm->world;
  TextBuf text = {0};
  FlightEntry e = {0};
  char buf[256];
  flight_get(&r->comm->world->flight, r->ticket, &e);
  text_printf(&text, "rank %d of %d: %s: after %g s ranks ", w->rank, w->size, flight_describe(&e, buf, sizeof buf),
              seconds);
  bool first = true;
  for (int i = 0; i < r->n; i++) {
    if (atomic_load(&round_slot(r, i)->flag) < FLAG_READY(r->sequence)) continue;
    text_printf(&text, "%s%d", first ? "" : ",", r->group->ranks[i]);
    first = false;
  }
  text_puts(&text, " are here; missing:");
  int missing = 0;
  for (int i = 0; i < r->n; i++) {
    if (atomic_load(&round_slot(r, i)->flag) >= FLAG_READY(r->sequence) || ++missing > MOST_MISSING) continue;
    int rank = r->group->ranks[i];
    bool any = flight_get(&r->group->hub->world[rank].base.flight, 0, &e);
    text_printf(&text, " rank %d (%s%s)", rank,
                any ? (e.done ? "last seen after " : "it is in ") : "no collective so far",
                any ? flight_describe(&e, buf, sizeof buf) : "");
  }
  if (missing > MOST_MISSING) text_printf(&text, " and %d more", missing - MOST_MISSING);
  Status s = text.failed ? fail_oom() : fail(ERR_RANK, "%s", text.text);
  text_free(&text);
  return s;
}

/* Two ranks that wait for each other in different groups never meet.  A member that is missing
 * here, and is in a collective of another group that this rank belongs to and has not called,
 * stays there until this rank comes: which it cannot. */
static Status round_crossed(const Round *r) {
  const World *w = r->comm->world;
  for (int i = 0; i < r->n; i++) {
    const int rank = r->group->ranks[i];
    FlightEntry mine = {0}, other;
    if (atomic_load(&round_slot(r, i)->flag) >= FLAG_READY(r->sequence)) continue;
    if (!flight_get(&r->group->hub->world[rank].base.flight, 0, &other) ||
        !comm_is_awaited(w, &other, other.members, other.group_size))
      continue;
    if (atomic_load(&round_slot(r, i)->flag) >= FLAG_READY(r->sequence)) continue; /* it was on its way */
    flight_get(&w->flight, r->ticket, &mine);
    return comm_deadlock(w, &mine, rank, &other, other.members);
  }
  return OK;
}

/* Waits until everybody is there; asks now and then whether that can come to pass.  Most waits
 * are over before a clock is worth looking at. */
static RoundState wait_for_ready(const Round *r, Waiting *w) {
  const double timeout = r->comm->world->timeout;
  for (double waited = 0;;) {
    bool last = timeout > 0 && timeout - waited <= DEADLOCK_S;
    double slice = last ? timeout - waited : DEADLOCK_S;
    RoundState state = hub_wait(r->group->hub, event_of(r), &r->lane->sleepers, slice, look_for_ready, w);
    if (state != ROUND_WAIT) return state;
    if ((w->status = round_crossed(r))) return ROUND_FAILED;
    if (last) return ROUND_WAIT;
    waited += slice;
  }
}

Status round_run(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket) {
  const Round r = round_make(c, what, LANE_BLOCKING, sequence, ticket);
  if (atomic_load(&r.group->hub->failed)) return failed_error(&r);
  round_post(&r);
  Waiting w = {.round = &r};
  RoundState state = wait_for_ready(&r, &w);
  if (state == ROUND_WAIT) w.status = round_overdue(&r, c->world->timeout);
  if (state == ROUND_GO) w.status = round_work(&r);
  if (w.status) return round_give_up(&r, w.status);
  if (r.small) return OK;
  round_done(&r);
  settle(&r);
  return round_result(&r);
}
