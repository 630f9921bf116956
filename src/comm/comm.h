/* comm.h -- ranks that communicate: groups, collectives, and what happens when
 * one of them fails.
 *
 * A transport (threads, mpi, sim) makes a World of ranks.  Each rank has its own Comm
 * for each group that it belongs to; groups are made collectively by their members.
 * A collective is one record, a Coll: comm_run() does it now, comm_start()/comm_wait()
 * let the rank compute in between.
 *
 * I1  All members of a group make the same collectives in the same order; blocking and
 *     started ones are two independent sequences.  Records that do not agree (kind,
 *     dtype, op, root, counts, where) end in an error on every member that names both
 *     sides; so do two ranks that wait for each other in different groups.
 * I2  An error is final for the world: every later call of every rank returns it.  A
 *     rank that fails, or leaves while others still wait, releases them with its message.
 * I3  Sizes may differ from rank to rank wherever a Coll has counts; nothing is padded.
 * I4  Reductions combine in the order of the members, whatever the sizes and the timing:
 *     results are the same bits in every run, on every member, on threads and on MPI.
 * I5  Buffers belong to the caller; those of a started collective stay untouched until
 *     its wait.  send == recv means in place, where the table below allows it.
 */
#ifndef TESS_COMM_COMM_H
#define TESS_COMM_COMM_H

#include "base/arena.h"
#include "base/textbuf.h"
#include "kernels/reduce_op.h"
#include "tensor/tensor.h"

typedef struct World World; /* all ranks of a launch, as one of them sees it */
typedef struct Comm Comm;   /* one rank's end of a group */
typedef struct CommWork CommWork;

/* n members, me = this one.  send and recv in elements of dtype:
 *
 *   kind              send                 recv                    in place when
 *   all_reduce        count                count                   send == recv
 *   reduce            count                count on root           send == recv on root
 *   broadcast         count on root        count                   send == recv on root
 *   all_gather        counts[me]           sum of counts           send == recv + displacement of me
 *   gather            counts[me]           sum of counts on root   the same, on root
 *   reduce_scatter    sum of counts        counts[me]              never
 *   scatter           sum of counts (root) counts[me]              never
 *   all_to_all        sum of send_counts   sum of recv_counts      never
 *   exchange          boxes                boxes                   never
 *   send, recv        count                count                   -
 *   barrier           -                    -                       -
 *
 * A send is over when it has been received; sends of one rank to another are received in
 * their order, and blocking and started ones match.
 *
 * counts NULL: `count` for every member.  all_to_all: counts = what this rank sends to
 * each, recv_counts = what it gets from each (NULL: `count`). */
#define COLL_KINDS(X)                      \
  X(COLL_ALL_REDUCE, "all_reduce")         \
  X(COLL_ALL_GATHER, "all_gather")         \
  X(COLL_REDUCE_SCATTER, "reduce_scatter") \
  X(COLL_ALL_TO_ALL, "all_to_all")         \
  X(COLL_EXCHANGE, "exchange")             \
  X(COLL_BROADCAST, "broadcast")           \
  X(COLL_SCATTER, "scatter")               \
  X(COLL_GATHER, "gather")                 \
  X(COLL_REDUCE, "reduce")                 \
  X(COLL_BARRIER, "barrier")               \
  X(COLL_SEND, "send")                     \
  X(COLL_RECV, "recv")

/* clang-format off */
typedef enum {
#define X(id, name) id,
  COLL_KINDS(X)
#undef X
  COLL_KIND_COUNT
} CollKind;
/* clang-format on */

const char *coll_kind_name(CollKind kind);

/* A strided part of a buffer.  exchange: the k-th box that rank a sends to rank b and the
 * k-th box that b receives from a have the same sizes.  reduce_scatter: with send boxes, the part of a member is
 * not one piece of the buffer but the boxes for it, one behind the other; their sizes are the same on all members.
 */
typedef struct {
  int peer; /* member of the group */
  int ndim;
  int64_t offset; /* elements from the start of the buffer */
  int64_t size[MAX_DIMS], stride[MAX_DIMS];
} Box;

typedef struct {
  CollKind kind;
  Dtype dtype;
  ReduceOp op;
  int root; /* member of the group; the peer of send and recv */
  const void *send;
  void *recv;
  int64_t count;
  const int64_t *counts, *recv_counts;
  const Box *send_box, *recv_box;
  int nsend, nrecv;
  bool
      unread; /* what an exchange or a reduce_scatter of boxes receives is not read soon: it may leave the caches */
  uint64_t where;  /* what the group is part of, as a number (a mesh's hash): must agree; 0 = nothing */
  const char *why; /* the op or node that needs it, for messages; NULL = unknown.  Copied. */
} Coll;

/* ---- groups --------------------------------------------------------------------- */

Comm *world_comm(World *w); /* the group of all ranks; lives as long as the world */
int world_rank(const World *w);
int world_size(const World *w);

int comm_rank(const Comm *c); /* this rank's place in the group */
int comm_size(const Comm *c);
const int *comm_members(const Comm *c); /* ranks of the world, comm_size() of them */

/* A group of some ranks of the world, in the given order.  Called by its members only,
 * all with the same list; the same list again gives the same group (its own sequence is
 * kept).  Freed with the world. */
Status comm_group(World *w, const int *ranks, int n, Comm **out);

/* ---- collectives ------------------------------------------------------------------ */

Status comm_run(Comm *c, const Coll *what);
/* Returns at once; the transport makes progress meanwhile.  Every work is waited for,
 * once; comm_wait frees it. */
Status comm_start(Comm *c, const Coll *what, CommWork **out);
Status comm_wait(CommWork *work);

Status comm_barrier(Comm *c, const char *why);

/* ---- failing together --------------------------------------------------------------- */

/* This rank gives up: every rank of the world gets an error that names it and carries
 * the message.  s stays the caller's. */
void world_fail(World *w, Status s);
/* Seconds that this rank waits for others before the watchdog names the missing; 0 = for
 * ever.  1800 unless set. */
void world_set_timeout(World *w, double seconds);
/* Where flight records go if the world fails: of all ranks of a process to this file, written
 * when the last has left; of a rank of its own process with "." and the rank behind the name.
 * NULL: nowhere. */
Status world_set_flight(World *w, const char *path);
/* The last 2000 collectives of this rank as JSON: sequence, kind, dtype, count, group, why,
 * when started, when done. */
Status world_flight_json(World *w, TextBuf *out);

/* A collective that this rank has made: from its start to its end, whether it was waited for then or not. */
enum { COMM_WHY = 40 };
typedef struct {
  CollKind kind;
  Dtype dtype;
  int64_t count;      /* elements of this rank */
  const int *members; /* ranks of the group; live as long as the world */
  int group_size;
  uint64_t sequence; /* within the group: with the members and `started`, the same on all ranks */
  bool started;
  double begun, done; /* seconds, by clock_now() */
  char why[COMM_WHY]; /* cut off if longer */
} CommPast;
/* Those of the last 2000 that began between two moments and are over, in their order; malloc'ed. */
Status world_past(const World *w, double from, double to, CommPast **out, int *n);

/* ---- watching -------------------------------------------------------------------------- */

/* Called for every collective that this rank begins (also of one member).  bytes: what
 * this rank sends or contributes. */
typedef void CommWatchFn(void *arg, const Comm *c, const Coll *what, int64_t bytes);
void world_watch(World *w, CommWatchFn *fn, void *arg); /* NULL: nobody watches */

/* ---- launching (launch.h: by transport) --------------------------------------------------- */

typedef Status RankFn(World *w, void *arg);

/* n ranks as threads of this process, each calling fn; returns when all are done: OK, or
 * the error of the rank that failed first ("rank 2 of 4: ...").  flight_path (or NULL):
 * where the flight records of all ranks go if it fails, unless a rank has named another file
 * (world_set_flight).  Where there are as many cores, each
 * rank is bound to its share of them. */
Status world_threads(int n, RankFn *fn, void *arg, const char *flight_path);

/* The same in pieces, for callers that have threads of their own (Python): a hub for n
 * ranks; each rank joins from its thread and leaves with its status (OK or the reason of
 * its failure; s stays the caller's).  Works that were not waited for end here.  The hub
 * is freed after all have left; hub_result() is the failure of the rank that failed first,
 * or OK; hub_collect() the same after all have left, with the flight records saved. */
typedef struct Hub Hub;
Status hub_new(int n, Hub **out);
Status hub_join(Hub *hub, int rank, World **out);
void hub_leave(World *w, Status s);
/* By any thread: the hub fails with this text, unless it has failed already, and every rank that
 * waits, or talks from now on, gets it. */
void hub_fail(Hub *hub, ErrCode code, const char *text);
Status hub_result(const Hub *hub);
Status hub_collect(Hub *hub, const char *flight_path);
void hub_free(Hub *hub);

/* One rank alone; collectives of one member are copies. */
Status world_alone(World **out);
/* No data moves: rank `rank` of n as a plan sees it.  Bytes and predicted seconds are
 * added up; see sim.h. */
Status world_sim(int n, int rank, World **out);
void world_free(World *w); /* of world_alone(), world_sim() and world_join() (launch.h); NULL is fine */

#endif
