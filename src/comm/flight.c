/* flight.c -- see flight.h. */
#include "comm/flight.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "comm/coll.h"

enum { TICKET, DONE = offsetof(FlightEntry, done) / sizeof(uint64_t) }; /* words */
_Static_assert(offsetof(FlightEntry, ticket) == 0, "the ticket is the first word");

static uint64_t ticks_now(void) {
#ifdef TESS_X86
  return __builtin_ia32_rdtsc();
#else
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#endif
}

/* One moment by both clocks. */
typedef struct {
  uint64_t ticks;
  double clock;
} Moment;

/* The best of some readings: a thread may lose its core between one clock and the other. */
static Moment moment_now(void) {
  enum { MOST_READINGS = 16 };
  Moment best = {0};
  double least = INFINITY;
  for (int i = 0; i < MOST_READINGS && least > 1e-6; i++) {
    double before = clock_now();
    uint64_t ticks = ticks_now();
    double apart = clock_now() - before;
    if (apart >= least) continue;
    least = apart;
    best = (Moment){ticks, before + apart / 2};
  }
  return best;
}

Status flight_init(Flight *f) {
  const Moment now = moment_now();
  *f = (Flight){.epoch_ticks = now.ticks, .epoch = now.clock};
  TRY_NEW(f->ring, calloc(FLIGHT_RING, sizeof *f->ring));
  return OK;
}

void flight_free(Flight *f) {
  free(f->ring);
  f->ring = NULL;
}

static FlightSlot *slot_of(const Flight *f, uint64_t ticket) { return &f->ring[ticket % FLIGHT_RING]; }

/* Readers that see a word of the new entry see the ticket gone before it (release), or the
 * new one. */
uint64_t flight_begin(Flight *f, FlightEntry e, const char *why) {
  const uint64_t ticket = atomic_load_explicit(&f->tickets, memory_order_relaxed) + 1;
  uint64_t word[FLIGHT_WORDS];
  size_t length = why ? strnlen(why, FLIGHT_WHY - 1) : 0;
  if (length) memcpy(e.why, why, length);
  e.why[length] = 0;
  e.begun = ticks_now();
  e.done = 0;
  memcpy(word, &e, sizeof e);
  FlightSlot *slot = slot_of(f, ticket);
  atomic_store_explicit(&slot->word[TICKET], 0, memory_order_relaxed);
  for (int i = 1; i < FLIGHT_WORDS; i++) atomic_store_explicit(&slot->word[i], word[i], memory_order_release);
  atomic_store_explicit(&slot->word[TICKET], ticket, memory_order_release);
  atomic_store_explicit(&f->tickets, ticket, memory_order_release);
  return ticket;
}

void flight_end(Flight *f, uint64_t ticket) {
  FlightSlot *slot = slot_of(f, ticket);
  if (atomic_load_explicit(&slot->word[TICKET], memory_order_relaxed) != ticket) return;
  if (atomic_load_explicit(&slot->word[DONE], memory_order_relaxed) == 0)
    atomic_store_explicit(&slot->word[DONE], ticks_now(), memory_order_relaxed);
}

bool flight_get(const Flight *f, uint64_t ticket, FlightEntry *out) {
  if (!f->ring) return false;
  if (!ticket) ticket = atomic_load_explicit(&f->tickets, memory_order_acquire);
  const FlightSlot *slot = slot_of(f, ticket);
  uint64_t word[FLIGHT_WORDS];
  for (int i = 0; i < FLIGHT_WORDS; i++) word[i] = atomic_load_explicit(&slot->word[i], memory_order_acquire);
  if (!ticket || word[TICKET] != ticket ||
      atomic_load_explicit(&slot->word[TICKET], memory_order_relaxed) != ticket)
    return false;
  memcpy(out, word, sizeof *out);
  return true;
}

/* "f32[3 of 8] sum, root 2" */
static const char *describe_sizes(const FlightEntry *e, char *buf, size_t cap) {
  const CollTraits *t = &coll_traits[e->kind];
  char of[32] = "", root[32] = "";
  if (e->kind == COLL_BARRIER) return buf[0] = 0, buf;
  if (e->total != e->count * e->group_size && t->parts) snprintf(of, sizeof of, " of %lld", (long long)e->total);
  if (t->rooted)
    snprintf(root, sizeof root, ", %s %d",
             e->kind == COLL_SEND   ? "to"
             : e->kind == COLL_RECV ? "from"
                                    : "root",
             e->root);
  snprintf(buf, cap, "%s[%lld%s]%s%s%s", dtype_name((Dtype)e->dtype), (long long)e->count, of,
           t->reduces ? " " : "", t->reduces ? reduce_op_name((ReduceOp)e->op) : "", root);
  return buf;
}

const char *flight_describe(const FlightEntry *e, char *buf, size_t cap) {
  char sizes[96];
  describe_sizes(e, sizes, sizeof sizes);
  snprintf(buf, cap, "%s%s #%llu%s%s%s%s%s", e->started ? "started " : "", coll_kind_name((CollKind)e->kind),
           (unsigned long long)e->sequence, *e->why ? " (" : "", e->why, *e->why ? ")" : "", *sizes ? ": " : "",
           sizes);
  return buf;
}

const char *flight_describe_call(const FlightEntry *e, char *buf, size_t cap) {
  char sizes[96];
  describe_sizes(e, sizes, sizeof sizes);
  snprintf(buf, cap, "%s%s%s%s%s%s%s", e->started ? "started " : "", coll_kind_name((CollKind)e->kind),
           *sizes ? " " : "", sizes, *e->why ? " (" : "", e->why, *e->why ? ")" : "");
  return buf;
}

const char *flight_difference(const FlightEntry *a, const FlightEntry *b) {
  bool alike = a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->root == b->root &&
               a->count == b->count && a->total == b->total;
  return alike && a->where != b->where ? "the tensors lie on different meshes" : NULL;
}

/* Microseconds since the flight began, with `rate` ticks each. */
static long long microseconds(const Flight *f, uint64_t ticks, double rate) {
  return ticks > f->epoch_ticks && rate > 0 ? (long long)((double)(ticks - f->epoch_ticks) / rate) : 0;
}

static void entry_json(const Flight *f, const FlightEntry *e, double rate, TextBuf *out) {
  const CollTraits *t = &coll_traits[e->kind];
  text_printf(out, "{\"sequence\": %llu, \"kind\": \"%s\", \"started\": %s, ", (unsigned long long)e->sequence,
              t->name, e->started ? "true" : "false");
  text_printf(out, "\"dtype\": \"%s\", \"count\": %lld, ", dtype_name((Dtype)e->dtype), (long long)e->count);
  if (t->reduces) text_printf(out, "\"op\": \"%s\", ", reduce_op_name((ReduceOp)e->op));
  if (t->rooted) text_printf(out, "\"%s\": %d, ", coll_is_pair((CollKind)e->kind) ? "peer" : "root", e->root);
  text_puts(out, "\"group\": [");
  for (int i = 0; i < e->group_size; i++) text_printf(out, "%s%d", i ? ", " : "", e->members[i]);
  text_puts(out, "], \"why\": ");
  if (*e->why) text_json(out, e->why);
  else text_puts(out, "null");
  text_printf(out, ", \"begun_us\": %lld, \"done_us\": ", microseconds(f, e->begun, rate));
  if (e->done) text_printf(out, "%lld}", microseconds(f, e->done, rate));
  else text_puts(out, "null}");
}

/* Ticks per second. */
static double tick_rate(const Flight *f, Moment now) {
  return (double)(now.ticks - f->epoch_ticks) / fmax(now.clock - f->epoch, 1e-9);
}

/* A moment in seconds, reckoned from now, so that what has just been is exact. */
static double seconds_of(uint64_t ticks, Moment now, double rate) {
  return now.clock + (double)(int64_t)(ticks - now.ticks) / rate;
}

static uint64_t last_ticket(const Flight *f) { return f->ring ? atomic_load(&f->tickets) : 0; }
static uint64_t first_ticket(uint64_t last) { return last > FLIGHT_RING ? last - FLIGHT_RING + 1 : 1; }

Status flight_past(const Flight *f, double from, double to, CommPast **out, int *n) {
  const Moment now = moment_now();
  const double rate = tick_rate(f, now);
  const uint64_t last = last_ticket(f);
  CommPast *past;
  TRY_NEW(past, calloc(FLIGHT_RING, sizeof *past));
  *n = 0;
  for (uint64_t t = first_ticket(last); t <= last; t++) {
    FlightEntry e;
    if (!flight_get(f, t, &e) || !e.done) continue;
    CommPast p = {.kind = (CollKind)e.kind,
                  .dtype = (Dtype)e.dtype,
                  .count = e.count,
                  .members = e.members,
                  .group_size = e.group_size,
                  .sequence = e.sequence,
                  .started = e.started,
                  .begun = seconds_of(e.begun, now, rate),
                  .done = seconds_of(e.done, now, rate)};
    memcpy(p.why, e.why, sizeof p.why);
    if (p.begun >= from && p.begun <= to) past[(*n)++] = p;
  }
  *out = past;
  return OK;
}

void flight_json(const Flight *f, TextBuf *out) {
  const double rate = tick_rate(f, moment_now()) * 1e-6; /* per us */
  const uint64_t last = last_ticket(f), first = first_ticket(last);
  bool any = false;
  text_puts(out, "[");
  for (uint64_t t = first; t <= last; t++) {
    FlightEntry e;
    if (!flight_get(f, t, &e)) continue;
    text_puts(out, any ? ",\n  " : "\n  ");
    entry_json(f, &e, rate, out);
    any = true;
  }
  text_puts(out, "]");
}
