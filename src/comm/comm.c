/* comm.c -- the front of all transports; see comm.h and transport.h. */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "comm/transport.h"
#include "kernels/copy.h"

static const double default_timeout = 1800; /* seconds, as PyTorch's */

/* ---- worlds and groups ------------------------------------------------------------- */

static void comm_free(Comm *c) {
  if (!c) return;
  free(c->members);
  free(c);
}

static Status comm_new(World *w, const int *ranks, int n, int me, Comm **out) {
  Comm *c;
  TRY_NEW(c, calloc(1, sizeof *c));
  *c = (Comm){.world = w, .rank = me, .size = n, .members = malloc((size_t)n * sizeof *c->members)};
  Status s = OK;
  if (!c->members) s = fail_oom();
  for (int i = 0; i < n && !s; i++) c->members[i] = ranks ? ranks[i] : i;
  if (!s) s = w->transport->group(c);
  if (s) {
    comm_free(c);
    return s;
  }
  c->next = w->comms;
  w->comms = c;
  *out = c;
  return OK;
}

Status world_init(World *w, const Transport *t, int rank, int size) {
  w->transport = t;
  w->rank = rank;
  w->size = size;
  w->timeout = default_timeout;
  Status s = w->flight.ring ? OK : flight_init(&w->flight);
  if (!s) s = comm_new(w, NULL, size, rank, &w->all);
  if (s) world_clear(w);
  return s;
}

void world_clear(World *w) {
  for (Comm *c = w->comms, *next; c; c = next) {
    next = c->next;
    comm_free(c);
  }
  w->comms = w->all = NULL;
  free(w->flight_path);
  w->flight_path = NULL;
  flight_free(&w->flight);
}

Comm *world_comm(World *w) { return w->all; }
int world_rank(const World *w) { return w->rank; }
int world_size(const World *w) { return w->size; }
int comm_rank(const Comm *c) { return c->rank; }
int comm_size(const Comm *c) { return c->size; }
const int *comm_members(const Comm *c) { return c->members; }

static Status check_members(const World *w, const int *ranks, int n, int *me) {
  if (n < 1 || n > w->size) return fail(ERR_USAGE, "rank %d of %d: a group of %d ranks", w->rank, w->size, n);
  *me = -1;
  for (int i = 0; i < n; i++) {
    if (ranks[i] < 0 || ranks[i] >= w->size)
      return fail(ERR_USAGE, "rank %d of %d: a group with rank %d", w->rank, w->size, ranks[i]);
    if (ranks[i] == w->rank) *me = i;
    for (int j = 0; j < i; j++) {
      if (ranks[j] == ranks[i])
        return fail(ERR_USAGE, "rank %d of %d: a group that has rank %d twice", w->rank, w->size, ranks[i]);
    }
  }
  if (*me < 0) return fail(ERR_USAGE, "rank %d of %d makes a group that it is not in", w->rank, w->size);
  return OK;
}

Status comm_group(World *w, const int *ranks, int n, Comm **out) {
  int me;
  TRY(check_members(w, ranks, n, &me));
  for (Comm *c = w->comms; c; c = c->next) {
    if (c->size == n && !memcmp(c->members, ranks, (size_t)n * sizeof *ranks)) return *out = c, OK;
  }
  return comm_new(w, ranks, n, me, out);
}

/* ---- ranks that wait for each other ---------------------------------------------------- */

bool comm_is_awaited(const World *w, const FlightEntry *call, const int *members, int n) {
  if (call->started || call->done || coll_is_pair((CollKind)call->kind)) return false;
  bool member = false;
  for (int i = 0; i < n; i++) member |= members[i] == w->rank;
  if (!member) return false;
  for (const Comm *c = w->comms; c; c = c->next) {
    if (c->size == n && !memcmp(c->members, members, (size_t)n * sizeof *members))
      return c->sequence[LANE_BLOCKING] < call->sequence;
  }
  return true; /* this rank has not even made the group */
}

static void print_members(TextBuf *out, const int *members, int n) {
  if (!members) text_printf(out, "%d others", n - 1);
  for (int i = 0; members && i < n; i++) text_printf(out, "%s%d", i ? "," : "ranks ", members[i]);
}

Status comm_deadlock(const World *w, const FlightEntry *mine, int rank, const FlightEntry *other,
                     const int *members) {
  TextBuf text = {0};
  char call[256];
  text_printf(&text, "rank %d of %d: %s, with ", w->rank, w->size, flight_describe(mine, call, sizeof call));
  print_members(&text, mine->members, mine->group_size);
  text_printf(&text, ", but rank %d called %s, with ", rank, flight_describe_call(other, call, sizeof call));
  print_members(&text, members, other->group_size);
  text_puts(&text, ": they wait for each other");
  Status s = text.failed ? fail_oom() : fail(ERR_RANK, "%s", text.text);
  text_free(&text);
  return s;
}

/* ---- collectives --------------------------------------------------------------------- */

/* Checks the record, numbers it, enters it in the flight record, calls the watcher. */
static Status begin(Comm *c, const Coll *what, LaneKind lane, uint64_t *sequence, uint64_t *ticket) {
  World *w = c->world;
  Status s = coll_check(what, c->size, c->rank, !w->transport->no_data);
  if (s) {
    Status named = fail(status_code(s), "rank %d of %d: %s%s%s%s: %s", w->rank, w->size, coll_kind_name(what->kind),
                        what->why ? " (" : "", what->why ? what->why : "", what->why ? ")" : "", status_message(s));
    status_free(s);
    return named;
  }
  const bool started = lane == LANE_STARTED;
  if (coll_is_pair(what->kind)) lane = LANE_PAIR;
  const CollTraits *t = &coll_traits[what->kind];
  int64_t sent = coll_send_count(what, c->size, c->rank);
  *sequence = ++c->sequence[lane];
  FlightEntry e = {.sequence = *sequence,
                   .members = c->members,
                   .count = t->parts ? coll_part(what, c->rank) : what->count,
                   .group_size = c->size,
                   .root = what->root,
                   .kind = (uint8_t)what->kind,
                   .dtype = (uint8_t)what->dtype,
                   .op = (uint8_t)what->op,
                   .started = started,
                   .where = what->where};
  if (what->kind == COLL_ALL_TO_ALL || what->kind == COLL_EXCHANGE) e.count = sent;
  e.total = t->parts ? coll_before(what, c->size) : e.count;
  *ticket = flight_begin(&w->flight, e, what->why);
  if (w->watch)
    w->watch(w->watch_arg, c, what, what->kind == COLL_BARRIER ? 0 : sent * (int64_t)dtype_size(what->dtype));
  return OK;
}

/* The parts of a reduce_scatter one behind the other, for transports that know no boxes; malloc'ed.  NULL in
 * *packed: the record can stay as it is. */
static Status pack_parts(const Comm *c, const Coll *what, Coll *plain, void **packed) {
  const Transport *t = c->world->transport;
  Kern kern = {.threads = 1, .isa = isa_detect()};
  size_t width = dtype_size(what->dtype), at = 0;
  *packed = NULL;
  *plain = *what;
  if (what->kind != COLL_REDUCE_SCATTER || !what->nsend || t->takes_boxes) return OK;
  TRY_NEW(*packed, malloc((size_t)coll_before(what, c->size) * width + 1));
  for (int m = 0; m < c->size; m++)
    for (int i = 0; i < what->nsend; i++) {
      const Box *b = &what->send_box[i];
      int64_t stride[MAX_DIMS];
      if (b->peer != m) continue;
      contiguous_strides(b->ndim, b->size, stride);
      kernel_copy(&kern, (View){(char *)*packed + at, b->size, stride, b->ndim, what->dtype},
                  (View){(char *)(uintptr_t)what->send + (size_t)b->offset * width, b->size, b->stride, b->ndim,
                         what->dtype});
      at += (size_t)box_count(b) * width;
    }
  plain->send = *packed;
  plain->send_box = NULL;
  plain->nsend = 0;
  return OK;
}

Status comm_run(Comm *c, const Coll *what) {
  uint64_t sequence, ticket;
  Coll plain;
  void *packed;
  TRY(begin(c, what, LANE_BLOCKING, &sequence, &ticket));
  TRY(pack_parts(c, what, &plain, &packed));
  Status s = c->world->transport->run(c, &plain, sequence, ticket);
  free(packed);
  if (!s) flight_end(&c->world->flight, ticket);
  return s;
}

Status comm_barrier(Comm *c, const char *why) { return comm_run(c, &(Coll){.kind = COLL_BARRIER, .why = why}); }

/* A work with room for the lists of its record behind it.  The text of `why` is in the
 * flight record already. */
static CommWork *work_new(const Comm *c, const Coll *what) {
  const bool exchange = what->kind == COLL_EXCHANGE, boxes = exchange || what->kind == COLL_REDUCE_SCATTER;
  const size_t n = (size_t)c->size, counts = what->counts && !exchange ? n : 0,
               recv_counts = what->recv_counts && !exchange ? n : 0;
  const size_t nsend = boxes ? (size_t)what->nsend : 0, nrecv = exchange ? (size_t)what->nrecv : 0;
  const size_t size = c->world->transport->work_size, head = ((size ? size : sizeof(CommWork)) + 63) & ~(size_t)63;
  CommWork *work = aligned_alloc(
      64, (head + (counts + recv_counts) * sizeof(int64_t) + (nsend + nrecv) * sizeof(Box) + 63) & ~(size_t)63);
  if (!work) return NULL;
  memset(work, 0, head);
  work->what = *what;
  work->what.why = NULL;
  work->what.counts = work->what.recv_counts = NULL;
  work->what.send_box = work->what.recv_box = NULL;
  int64_t *numbers = (int64_t *)(void *)((char *)work + head);
  if (counts) work->what.counts = memcpy(numbers, what->counts, counts * sizeof *numbers);
  numbers += counts;
  if (recv_counts) work->what.recv_counts = memcpy(numbers, what->recv_counts, recv_counts * sizeof *numbers);
  Box *box = (Box *)(void *)(numbers + recv_counts);
  if (nsend) work->what.send_box = memcpy(box, what->send_box, nsend * sizeof *box);
  if (nrecv) work->what.recv_box = memcpy(box + nsend, what->recv_box, nrecv * sizeof *box);
  return work;
}

Status comm_start(Comm *c, const Coll *what, CommWork **out) {
  const Transport *t = c->world->transport;
  uint64_t sequence, ticket;
  TRY(begin(c, what, LANE_STARTED, &sequence, &ticket));
  CommWork *work;
  Coll plain;
  void *packed;
  TRY(pack_parts(c, what, &plain, &packed));
  work = work_new(c, &plain);
  if (!work) return free(packed), fail_oom();
  work->comm = c;
  work->sequence = sequence;
  work->ticket = ticket;
  work->packed = packed;
  Status s = t->start ? t->start(work) : t->run(c, &plain, sequence, ticket);
  if (s) free(packed), free(work);
  else *out = work;
  return s;
}

Status comm_wait(CommWork *work) {
  World *w = work->comm->world;
  Status s = w->transport->start ? w->transport->wait(work) : OK;
  if (!s) flight_end(&w->flight, work->ticket);
  free(work->packed);
  free(work);
  return s;
}

/* ---- the rest ------------------------------------------------------------------------- */

void world_fail(World *w, Status s) { w->transport->fail(w, s); }
void world_set_timeout(World *w, double seconds) { w->timeout = seconds; }

Status world_set_flight(World *w, const char *path) {
  char *copy = NULL;
  if (path) TRY_NEW(copy, strdup(path));
  free(w->flight_path);
  w->flight_path = copy;
  return OK;
}

void world_watch(World *w, CommWatchFn *fn, void *arg) {
  w->watch = fn;
  w->watch_arg = arg;
}

Status world_past(const World *w, double from, double to, CommPast **out, int *n) {
  return flight_past(&w->flight, from, to, out, n);
}

Status world_flight_json(World *w, TextBuf *out) {
  flight_json(&w->flight, out);
  return out->failed ? fail_oom() : OK;
}

void world_free(World *w) {
  if (w) w->transport->free(w);
}
