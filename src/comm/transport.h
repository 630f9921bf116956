/* transport.h -- the record of a transport: how its ranks come to be, how they move data, and
 * what the front (comm.c, launch.c) does for it.  transports.def lists the records.
 *
 * Ranks are made here (threads, sim: launch), or each is a process that a launcher has started
 * (mpi: launched, join).  docs/transports.md is the recipe for another one.
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
#include "comm/launch.h"

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
  void *packed; /* what is sent, if it had to be put together; NULL: it stands in the caller's memory */
};

struct Transport {
  const char *name;    /* as --comm and transport_find() know it */
  const char *needs;   /* what must be installed, as a hint; NULL: nothing */
  const char *starter; /* of processes: the command that starts N of them, "mpirun -n" */

  /* Ranks that are made here: calls fn on each of n ranks, returns when all are done; OK, or the
   * failure that came first.  flight_path: see world_launch(). */
  Status (*launch)(int n, RankFn *fn, void *arg, const char *flight_path);
  /* Ranks that are processes, NULL otherwise: the rank of this process as its launcher counts,
   * from the environment alone (-1: none has started it); and this process's end of the world. */
  int (*launched)(void);
  Status (*join)(World **out);
  /* Can it be used here?  OK with the file that it is in, or why not.  NULL: always. */
  Status (*find)(char *path, size_t cap);
  int (*local_ranks)(const World *w); /* ranks on this host; NULL: all */

  size_t work_size; /* 0: a CommWork and no more */
  bool no_data;     /* buffers are not touched and may be NULL */
  bool takes_boxes; /* reduce_scatter of boxes; of others they are packed before */
  /* Makes c->link; c is filled otherwise. */
  Status (*group)(Comm *c);
  Status (*run)(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket);
  /* start NULL: collectives are run when they are started. */
  Status (*start)(CommWork *work);
  Status (*wait)(CommWork *work); /* the front frees the work */
  void (*fail)(World *w, Status s);
  /* Of processes that each print their error, NULL otherwise: leaves with the error of this rank, and
   * gives back what it has to say.  An error that all ranks have is said by rank 0; one that some have
   * by the first of them, with its rank; a rank that only heard of a failure says nothing (an empty
   * message) where the one that failed does, and has its code. */
  Status (*tell_once)(World *w, Status s);
  void (*free)(World *w); /* calls world_clear() and frees itself */
};

#define TRANSPORT(name) extern const Transport name##_transport;
#include "comm/transports.def"
#undef TRANSPORT

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
#define DEADLOCK_S 0.5     /* seconds that a rank waits before it asks whether two wait for each other */
/* Is a rank in this blocking collective of a group of these members until rank w comes, who has
 * not called it? */
bool comm_is_awaited(const World *w, const FlightEntry *call, const int *members, int n);
/* The error of it: this rank is in `mine`, waiting for `rank`, which is in `other` (members may be
 * NULL). */
Status comm_deadlock(const World *w, const FlightEntry *mine, int rank, const FlightEntry *other,
                     const int *members);

#endif
