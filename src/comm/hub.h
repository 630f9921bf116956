/* hub.h -- inside of the thread transport: ranks of one process that read and write each
 * other's buffers.
 *
 * A collective is a round.  Every member posts its record in its own slot and raises the
 * slot's flag (ready); when all flags are up each does its share of the work on the
 * buffers of all; then flags go up once more (done), and when no member works any longer
 * all may return.  Small payloads are posted in the slot itself, everyone helps himself,
 * and the second half is not needed: slots take turns, and the one of round s is written
 * again in round s+2, when everyone has been seen in s+1.
 *
 * I1  flag of round s: READY(s), then DONE(s), or READY(s)|GONE: this member has given up
 *     and touches nobody's memory any more.  A member in a large round that is READY will
 *     be DONE or GONE after a bounded time, whatever others do.
 * I2  Whoever gives up a large round waits until no member is READY in it (settle):
 *     until then others may be at its buffers.
 * I3  Nobody gives up before the hub has failed; a failed hub stays failed.
 * I4  Event counts, flight records and slots live until hub_free().
 */
#ifndef TESS_COMM_HUB_H
#define TESS_COMM_HUB_H

#include <pthread.h>

#include "comm/event_count.h"
#include "comm/transport.h"
#include "kernels/kernel.h"

enum {
  SLOT_BYTES = 4096,  /* of payload fit in a slot */
  SMALL_BYTES = 1024, /* up to here that is faster than a second rendezvous, if ranks need not sleep */
  SPIN_US = 2000,     /* how long a rank looks out before it sleeps; waking takes long where cores are virtual */
};

#define FLAG_READY(s) (2 * (s) + 1)
#define FLAG_DONE(s) (2 * (s) + 2)
#define FLAG_GONE ((uint64_t)1 << 63)

/* What a member posts.  The flag and the first bytes of a payload share a cache line. */
typedef struct {
  _Alignas(64) _Atomic uint64_t flag;
  uint64_t signature; /* coll_signature() */
  const Coll *coll;   /* large rounds only: valid until DONE or GONE */
  uint64_t ticket;    /* of the member's flight record */
  unsigned char data[SLOT_BYTES];
} Slot;

/* A send under way; its memory is the sender's, the inbox of the receiver links it. */
typedef struct PostedSend {
  struct PostedSend *next;
  int from; /* member of the group */
  const Coll *coll;
  uint64_t ticket;
  _Atomic int taken; /* the receiver has copied it: it may be freed */
} PostedSend;

typedef struct {
  _Alignas(64) pthread_mutex_t lock;
  PostedSend *first;
} Inbox;

typedef struct {
  _Alignas(64) _Atomic int sleepers; /* members that want to be notified when a round moves on */
  Slot *slot;                        /* member i, round s: slot[2 * i + s % 2] */
} Lane;

typedef struct Group {
  struct Group *next;
  struct Hub *hub;
  int n;
  int *ranks;
  Lane lane[2]; /* blocking, started */
  Inbox *inbox; /* n */
} Group;

typedef struct ThreadWork ThreadWork;

/* Started collectives of a rank; see threads_start.c. */
typedef struct {
  pthread_mutex_t list;     /* guards the links of works */
  pthread_mutex_t drive;    /* held by whoever makes progress */
  ThreadWork *first, *last; /* posted and not finished */
  ThreadWork *kept;         /* not waited for; the rank's own thread only */
  pthread_t thread;
  bool running;
  _Atomic bool stop;
} Engine;

typedef struct {
  World base;
  EventCount event[2]; /* of the rank's thread, and of its communication thread */
  Hub *hub;
  Engine engine;
  bool joined;       /* guarded by the hub's lock */
  _Atomic bool left; /* hub_leave() was called */
  bool owns_hub;     /* world_alone() */
} ThreadWorld;

struct Hub {
  int n;
  bool spin; /* there is a core for every rank */
  Isa isa;
  ThreadWorld *world; /* n */
  pthread_mutex_t lock;
  Group *groups;
  /* The first failure.  Written once, under the lock, before `failed`. */
  char *message;
  ErrCode code;
  _Alignas(64) atomic_bool failed;
  atomic_bool trouble; /* failed, or somebody has left: whoever waits should look closer */
};

static inline ThreadWorld *thread_world(const Comm *c) { return (ThreadWorld *)c->world; }

/* ---- failing (threads.c) ------------------------------------------------------------ */

/* What every call of a failed hub returns. */
Status hub_error(const Hub *hub);

/* ---- rounds (threads_round.c) -------------------------------------------------------- */

typedef struct {
  Comm *comm;
  Group *group;
  Lane *lane;
  const Coll *coll;
  int n, me;
  LaneKind kind;
  bool small;
  uint64_t sequence, ticket;
} Round;

static inline Slot *round_slot(const Round *r, int member) {
  return &r->lane->slot[2 * member + (int)(r->sequence & 1)];
}
/* The payload of a member, in either kind of round. */
static inline const char *round_send(const Round *r, int member) {
  const Slot *slot = round_slot(r, member);
  return r->small ? (const char *)slot->data : slot->coll->send;
}
static inline const Coll *round_coll(const Round *r, int member) { return round_slot(r, member)->coll; }
static inline char *round_recv(const Round *r, int member) { return round_coll(r, member)->recv; }
static inline size_t round_width(const Round *r) { return dtype_size(r->coll->dtype); }
static inline Isa round_isa(const Round *r) { return r->group->hub->isa; }

Round round_make(Comm *c, const Coll *what, LaneKind kind, uint64_t sequence, uint64_t ticket);

typedef enum { ROUND_WAIT, ROUND_GO, ROUND_FAILED } RoundState;

void round_post(const Round *r); /* READY */
/* Is everybody READY?  FAILED: *s says why, and the round must be given up. */
RoundState round_look(const Round *r, Status *s);
/* Compares records and does this rank's share. */
Status round_work(const Round *r);
void round_done(const Round *r);     /* DONE */
bool round_settled(const Round *r);  /* nobody works any more */
Status round_result(const Round *r); /* after that: OK, or the failure */
/* Fails the hub, leaves the round, waits until buffers are safe; returns s. */
Status round_give_up(const Round *r, Status s);
/* Who is there, who is not, and what the missing last did. */
Status round_overdue(const Round *r, double seconds);

Status round_run(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket);

/* ---- the shares (threads_<what>.c) ----------------------------------------------------- */

typedef Status ShareFn(const Round *r);
ShareFn share_all_reduce_small, share_all_reduce, share_reduce_small, share_reduce, share_reduce_scatter,
    share_all_gather, share_gather_small, share_gather, share_scatter, share_broadcast_small, share_broadcast,
    share_all_to_all, share_exchange;

/* An error that names this rank's collective, another rank, and what that one called. */
Status round_mismatch(const Round *r, int member, const char *what);

/* ---- send and recv (threads_pair.c) ------------------------------------------------------ */

void pair_post(Comm *c, PostedSend *p, const Coll *what, uint64_t ticket);
/* Send: has it been taken?  Recv: takes what is there. */
RoundState pair_look(Comm *c, PostedSend *p, const Coll *what, uint64_t ticket, Status *s);
/* No inbox links the send afterwards. */
Status pair_give_up(Comm *c, PostedSend *p, const Coll *what, Status s);
Status pair_run(Comm *c, const Coll *what, uint64_t ticket);

/* ---- started collectives (threads_start.c) ------------------------------------------------ */

typedef enum { WORK_QUEUED, WORK_POSTED, WORK_WORKED } WorkState;

struct ThreadWork {
  CommWork base;
  ThreadWork *next, *back;       /* posted and not finished; or next in the queue of its group */
  ThreadWork *queue, *queue_end; /* posted: those of its group that go after it */
  ThreadWork *kept, *kept_back;  /* not waited for */
  WorkState state;
  bool pair; /* send or recv */
  Round round;
  PostedSend posted;
  Status status;
  _Atomic bool finished;
};

bool engine_init(Engine *e);
void engine_destroy(Engine *e);
Status engine_start(CommWork *work);
Status engine_wait(CommWork *work);
/* Ends the thread; whatever has not finished fails, and so does the hub. */
void engine_stop(ThreadWorld *w);

/* ---- waiting ------------------------------------------------------------------------------ */

static inline void cpu_pause(void) {
#ifdef TESS_X86
  __builtin_ia32_pause();
#endif
}

/* Looks until `look` says something else than wait, or the time is up: briefly without a
 * pause, then asleep on the event count.  seconds <= 0: for ever. */
typedef RoundState LookFn(void *arg);
RoundState hub_wait(Hub *hub, EventCount *event, _Atomic int *sleepers, double seconds, LookFn *look, void *arg);

#endif
