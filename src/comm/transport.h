/* transport.h -- what a transport provides, and what the front (comm.c) does for it.
 *
 * The front checks arguments, numbers collectives, keeps the flight record, tells the
 * watcher, and copies the record of a started collective.  A transport moves the data.
 *
 * I1  A transport's own structures begin with the front's (World, CommWork); its vtable
 *     says how large a work is.
 * I2  run() and start() get records that coll_check() has passed.  sequence counts from 1
 *     within the group: blocking, started and send/recv each by themselves.
 * I3  A World and its Comms are used by one thread.
 */
#ifndef TESS_COMM_TRANSPORT_H
#define TESS_COMM_TRANSPORT_H

#include "comm/coll.h"
#include "comm/flight.h"

typedef enum { LANE_BLOCKING, LANE_STARTED, LANE_PAIR, LANE_COUNT } LaneKind;

struct Comm {
  World *world;
  Comm *next; /* of this world */
  int rank, size;
  int *members;
  uint64_t sequence[LANE_COUNT]; /* of the last collective */
  void *link;                    /* the transport's */
};

struct CommWork {
  Comm *comm;
  Coll what; /* a copy, with counts and boxes */
  uint64_t sequence, ticket;
};

typedef struct {
  const char *name;
  size_t work_size; /* 0: a CommWork and no more */
  bool no_data;     /* buffers are not touched and may be NULL */
  /* Makes c->link; c is filled otherwise. */
  Status (*group)(Comm *c);
  Status (*run)(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket);
  /* start NULL: collectives are run when they are started. */
  Status (*start)(CommWork *work);
  Status (*wait)(CommWork *work); /* the front frees the work */
  void (*fail)(World *w, Status s);
  void (*free)(World *w); /* calls world_clear() and frees itself */
} Transport;

struct World {
  const Transport *transport;
  int rank, size;
  Comm *all;   /* the group of all ranks */
  Comm *comms; /* every group of this rank, newest first */
  double timeout;
  char *flight_path; /* NULL: none */
  CommWatchFn *watch;
  void *watch_arg;
  Flight flight;
};

/* Fills w, which is zero but for its flight record, and makes the group of all ranks. */
Status world_init(World *w, const Transport *t, int rank, int size);
void world_clear(World *w);

/* After a failure s: writes the flight records of these ranks of a launch to a file, and adds
 * where they are to the error. */
Status flight_save(Status s, World *const *ranks, int n, const char *path);
/* The same of one rank in a process of its own, if s is no OK and a path is set; once. */
Status flight_save_own(Status s, World *w);

enum { MOST_MISSING = 8 }; /* ranks that a message describes */
#define CROSSED_S 0.5      /* seconds that a rank waits before it asks whether two wait for each other */
/* Is a rank in this blocking collective of a group of these members until rank w comes, who has
 * not called it? */
bool comm_is_awaited(const World *w, const FlightEntry *call, const int *members, int n);
/* The error of it: this rank is in `mine`, waiting for `rank`, which is in `other` (members may be
 * NULL). */
Status comm_crossed(const World *w, const FlightEntry *mine, int rank, const FlightEntry *other,
                    const int *members);

#endif
