/* flight.c -- see flight.h. */
#include "comm/flight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll.h"

Status flight_init(Flight *f) {
  *f = (Flight){0};
  TRY_NEW(f->ring, calloc(FLIGHT_RING, sizeof *f->ring));
  if (pthread_mutex_init(&f->lock, NULL)) {
    free(f->ring);
    f->ring = NULL;
    return fail(ERR_FAIL, "no mutex for the record of collectives");
  }
  return OK;
}

void flight_free(Flight *f) {
  if (!f->ring) return;
  pthread_mutex_destroy(&f->lock);
  free(f->ring);
  f->ring = NULL;
}

static FlightEntry *entry_of(const Flight *f, uint64_t ticket) { return &f->ring[ticket % FLIGHT_RING]; }

uint64_t flight_begin(Flight *f, const FlightEntry *e, const char *why) {
  size_t length = why ? strnlen(why, FLIGHT_WHY - 1) : 0;
  pthread_mutex_lock(&f->lock);
  uint64_t ticket = ++f->tickets;
  FlightEntry *to = entry_of(f, ticket);
  *to = *e;
  to->ticket = ticket;
  if (length) memcpy(to->why, why, length);
  to->why[length] = 0;
  pthread_mutex_unlock(&f->lock);
  return ticket;
}

void flight_end(Flight *f, uint64_t ticket, double now) {
  pthread_mutex_lock(&f->lock);
  FlightEntry *e = entry_of(f, ticket);
  if (e->ticket == ticket && e->done == 0) e->done = now;
  pthread_mutex_unlock(&f->lock);
}

bool flight_get(Flight *f, uint64_t ticket, FlightEntry *out) {
  if (!f->ring) return false;
  pthread_mutex_lock(&f->lock);
  if (!ticket) ticket = f->tickets;
  *out = *entry_of(f, ticket);
  pthread_mutex_unlock(&f->lock);
  return ticket && out->ticket == ticket;
}

/* "f32[3 of 8] sum, root 2" */
static const char *describe_sizes(const FlightEntry *e, char *buf, size_t cap) {
  const CollTraits *t = &coll_traits[e->kind];
  char of[32] = "", root[32] = "";
  if (e->kind == COLL_BARRIER) return buf[0] = 0, buf;
  if (e->total != e->count * e->group_size && t->parts) snprintf(of, sizeof of, " of %lld", (long long)e->total);
  if (t->rooted) snprintf(root, sizeof root, ", %s %d", e->kind == COLL_SEND ? "to" : e->kind == COLL_RECV ? "from" : "root", e->root);
  snprintf(buf, cap, "%s[%lld%s]%s%s%s", dtype_name((Dtype)e->dtype), (long long)e->count, of, t->reduces ? " " : "",
           t->reduces ? reduce_op_name((ReduceOp)e->op) : "", root);
  return buf;
}

const char *flight_describe(const FlightEntry *e, char *buf, size_t cap) {
  char sizes[96];
  describe_sizes(e, sizes, sizeof sizes);
  snprintf(buf, cap, "%s%s #%llu%s%s%s%s%s", e->started ? "started " : "", coll_kind_name((CollKind)e->kind), (unsigned long long)e->sequence,
           *e->why ? " (" : "", e->why, *e->why ? ")" : "", *sizes ? ": " : "", sizes);
  return buf;
}

const char *flight_describe_call(const FlightEntry *e, char *buf, size_t cap) {
  char sizes[96];
  describe_sizes(e, sizes, sizeof sizes);
  snprintf(buf, cap, "%s%s%s%s%s%s%s", e->started ? "started " : "", coll_kind_name((CollKind)e->kind), *sizes ? " " : "", sizes, *e->why ? " (" : "",
           e->why, *e->why ? ")" : "");
  return buf;
}

static void entry_json(const FlightEntry *e, TextBuf *out) {
  const CollTraits *t = &coll_traits[e->kind];
  text_printf(out, "{\"sequence\": %llu, \"kind\": \"%s\", \"started\": %s, ", (unsigned long long)e->sequence, t->name, e->started ? "true" : "false");
  text_printf(out, "\"dtype\": \"%s\", \"count\": %lld, ", dtype_name((Dtype)e->dtype), (long long)e->count);
  if (t->reduces) text_printf(out, "\"op\": \"%s\", ", reduce_op_name((ReduceOp)e->op));
  if (t->rooted) text_printf(out, "\"%s\": %d, ", coll_is_pair((CollKind)e->kind) ? "peer" : "root", e->root);
  text_puts(out, "\"group\": [");
  for (int i = 0; i < e->group_size; i++) text_printf(out, "%s%d", i ? ", " : "", e->members[i]);
  text_puts(out, "], \"why\": ");
  if (*e->why) text_json(out, e->why);
  else text_puts(out, "null");
  text_printf(out, ", \"begun_us\": %lld, \"done_us\": ", (long long)(e->begun * 1e6));
  if (e->done > 0) text_printf(out, "%lld}", (long long)(e->done * 1e6));
  else text_puts(out, "null}");
}

void flight_json(Flight *f, TextBuf *out) {
  text_puts(out, "[");
  if (f->ring) {
    pthread_mutex_lock(&f->lock);
    uint64_t first = f->tickets > FLIGHT_RING ? f->tickets - FLIGHT_RING + 1 : 1;
    for (uint64_t t = first; t <= f->tickets; t++) {
      text_puts(out, t == first ? "\n  " : ",\n  ");
      entry_json(entry_of(f, t), out);
    }
    pthread_mutex_unlock(&f->lock);
  }
  text_puts(out, "]");
}
