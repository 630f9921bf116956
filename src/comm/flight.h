/* flight.h -- the last 2000 collectives of a rank, for those who come to see what happened.
 *
 * I1  Entries are made by the rank's own thread; other threads may end and read them at
 *     any time.  Nothing is locked: an entry is words that are written and read atomically,
 *     and its ticket tells whether it was whole.
 * I2  A ticket is the number of a collective of this rank, from 1.  The entry of a ticket
 *     is there until 2000 later ones have begun.
 * I3  Times are ticks of the processor; they become seconds when somebody looks.
 */
#ifndef TESS_COMM_FLIGHT_H
#define TESS_COMM_FLIGHT_H

#include <stdatomic.h>

#include "base/textbuf.h"
#include "comm/comm.h"

enum { FLIGHT_RING = 2000, FLIGHT_WHY = COMM_WHY };

typedef struct {
  uint64_t ticket;
  uint64_t sequence;    /* within the group */
  const int *members;   /* of the group; live as long as the world */
  int64_t count, total; /* elements of this rank; of all parts where there are parts */
  uint64_t begun, done; /* ticks; done 0: not yet */
  uint64_t where;       /* Coll.where */
  int group_size, root;
  uint8_t kind, dtype, op;
  bool started;
  char why[FLIGHT_WHY]; /* cut off if longer */
} FlightEntry;

enum { FLIGHT_WORDS = sizeof(FlightEntry) / sizeof(uint64_t) };
_Static_assert(sizeof(FlightEntry) % sizeof(uint64_t) == 0, "an entry is whole words");

typedef struct {
  _Atomic uint64_t word[FLIGHT_WORDS]; /* a FlightEntry */
} FlightSlot;

typedef struct {
  _Atomic uint64_t tickets; /* handed out */
  FlightSlot *ring;
  uint64_t epoch_ticks;
  double epoch; /* seconds, monotonic */
} Flight;

Status flight_init(Flight *f);
void flight_free(Flight *f);

/* Copies `e` (ticket, begun and why are set here) and returns the ticket. */
uint64_t flight_begin(Flight *f, FlightEntry e, const char *why);
/* The first time counts. */
void flight_end(Flight *f, uint64_t ticket);
/* False if it is no longer there; ticket 0: the last. */
bool flight_get(const Flight *f, uint64_t ticket, FlightEntry *out);

/* "all_reduce #12 (mlp.down_proj): f32[1024] sum"; buf is returned. */
const char *flight_describe(const FlightEntry *e, char *buf, size_t cap);
/* The same in the order "all_gather f32[256] (embed)". */
const char *flight_describe_call(const FlightEntry *e, char *buf, size_t cap);
/* What two calls that read alike differ in; NULL: nothing that is noted. */
const char *flight_difference(const FlightEntry *a, const FlightEntry *b);
/* See world_past(). */
Status flight_past(const Flight *f, double from, double to, CommPast **out, int *n);
void flight_json(const Flight *f, TextBuf *out); /* an array */

#endif
