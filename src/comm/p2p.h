/* p2p.h -- inside of the transport for processes (mpi): collectives made of point-to-point
 * messages.
 *
 * A collective is a round.  Every member sends every other a message: a header with what it
 * calls (to be compared), and the data for that one if they are small (the eager protocol).
 * When the messages of all are here, larger data follow from buffer to buffer, in one or
 * several steps (the rendezvous protocol).  All of it is point to point: so reductions combine
 * in the order of the members and give the same bits as on threads, a member that is missing
 * is known by name, and waiting can end at any time.
 *
 * I1  Messages have one tag, and a few receives for them are posted all the time.  What
 *     arrives early stays with its sender's peer entry until a round asks for it by group,
 *     lane and number.  Groups need no agreement: a group is the hash of its list of members.
 * I2  Data from a to b in a round have a tag that a chose and put in its message.
 * I3  Nothing here waits for another process but p2p_wait() and leave() (p2p_world.c), which
 *     look for failures and the end of time meanwhile.
 * I4  The lock guards everything below and the port.  Functions are called with it held
 *     unless they say otherwise; it is held for bounded times.
 * I5  A rank that fails sends the failure to all others, once.  A rank that leaves sends that,
 *     with the number of messages that it has sent (once these are here, no more will come)
 *     and the failure that made it leave, if one did.
 */
#ifndef TESS_COMM_P2P_H
#define TESS_COMM_P2P_H

#include <pthread.h>

#include "comm/port.h"
#include "comm/transport.h"
#include "kernels/kernel.h"

typedef enum { MESSAGE_HELLO, MESSAGE_ROUND, MESSAGE_PAIR, MESSAGE_TAKEN, MESSAGE_FAIL, MESSAGE_LEFT } MessageType;

typedef struct {
  uint8_t type;
  uint8_t lane;    /* LaneKind */
  uint16_t listed; /* exchange: boxes whose sizes are listed before the data */
  uint32_t bytes;  /* that follow */
  int32_t tag;     /* of data that come separately; 0: none do */
  int32_t boxes;   /* exchange: all boxes for this receiver */
  uint64_t group, sequence;
  uint64_t signature;            /* coll_signature(); of a failure: its code */
  int64_t amount;                /* elements for this receiver; exchange: a hash of its boxes */
  uint64_t send_hash, recv_hash; /* all_to_all and exchange: what this member sends to and expects from
                                  * each, as sums of hashes; equal when added up over all members */
  FlightEntry call;
} MessageHeader;

enum {
  MESSAGE_BYTES = 4000, /* libraries send this without asking the receiver first */
  MESSAGE_DATA = (MESSAGE_BYTES - (int)sizeof(MessageHeader)) & ~63,
  POSTED_RECEIVES = 16, /* receives that are posted */
  TAG_MESSAGE = 1,      /* data have tags from 2 on */
};

/* head and data are sent as one. */
typedef struct Message {
  struct Message *next;
  int refs;
  _Alignas(64) unsigned char pad[(64 - sizeof(MessageHeader) % 64) % 64 + 64];
  MessageHeader head;
  unsigned char data[MESSAGE_DATA]; /* aligned */
} Message;
_Static_assert(offsetof(Message, data) % 64 == 0 &&
                   offsetof(Message, data) == offsetof(Message, head) + sizeof(MessageHeader),
               "data follow the head");

/* What this rank knows of another. */
typedef struct {
  Message *first, **end; /* arrived, and asked for by nobody yet */
  uint64_t sent, got;    /* messages */
  uint64_t sent_in_all;  /* leaving: messages that it has sent */
  uint64_t own;          /* leaving: a hash of the error that it has found by itself; 0: none */
  bool joined, leaving, called;
  FlightEntry last; /* called: its latest collective */
  int32_t pid;
  uint64_t host_id; /* host and process numbering */
  char host[64];
  int next_tag;
} Peer;

typedef struct {
  Message *message;
  PortRequest request;
} Outgoing;

typedef struct {
  Message *message;
  PortRequest request;
} PostedReceive;

typedef struct P2pWork P2pWork;

typedef struct {
  World base;
  Port port;
  Isa isa;
  int local_ranks; /* ranks of this host */
  bool spin;       /* there is a core for each of them */
  pthread_mutex_t lock;
  pthread_cond_t wake;                   /* the communication thread: there is something to do */
  Peer *peer;                            /* size */
  PostedReceive posted[POSTED_RECEIVES]; /* oldest first */
  Outgoing *out;
  int nout, out_cap, nposted;
  unsigned polls;
  Message *spare;
  /* The first failure that this rank knows of. */
  bool failed;
  bool heard; /* from another */
  ErrCode code;
  char *failure;
  uint64_t own; /* a hash of the error that this rank has found by itself; 0: none */
  bool left, all_left;
  /* started collectives: not finished, in order of start; not waited for */
  P2pWork *works, *kept;
  pthread_t thread;
  bool running, stop;
  bool holds_sigterm; /* blocked here */
  bool terminating;   /* SIGTERM has come */
} P2pWorld;

static inline P2pWorld *p2p_world(const Comm *c) { return (P2pWorld *)c->world; }

/* Comm.link */
typedef struct {
  uint64_t hash;
  uint64_t *sends, *recvs; /* pairs so far, by member */
} P2pGroup;

/* ---- messages and data (p2p.c) ----------------------------------------------------------- */

Status message_new(P2pWorld *w, Message **out);       /* refs = 1; the head is zero */
void message_drop(P2pWorld *w, Message *l);           /* one ref less; NULL is fine */
Status message_send(P2pWorld *w, Message *l, int to); /* keeps a ref of its own */
/* The first message from that rank with these marks, taken out; NULL: not here. */
Message *message_take(P2pWorld *w, int from, MessageType type, uint64_t group, int lane, uint64_t sequence);

uint64_t p2p_layout(void);               /* what ranks of another build would misread */
Status p2p_post_receives(P2pWorld *w);   /* for messages */
Status p2p_cancel_receives(P2pWorld *w); /* of messages; nobody sends any more */
/* Receives what is there; *moved if there was something. */
Status p2p_poll(P2pWorld *w, bool *moved);
int p2p_tag(P2pWorld *w, int to); /* a fresh one for data */
bool peer_has_left(const Peer *p);

/* Messages under way in a step of a round. */
typedef struct {
  struct Transfer {
    PortRequest request;
    int peer; /* rank of the world */
    bool receive, done;
  } * list;
  int n, cap, open;
} Transfers;

Status transfers_send(P2pWorld *w, Transfers *t, int to, int tag, const void *data, size_t bytes);
Status transfers_recv(P2pWorld *w, Transfers *t, int from, int tag, void *data, size_t bytes);
Status transfers_look(P2pWorld *w, Transfers *t, bool *done); /* done: the list is empty again */
void transfers_give_up(P2pWorld *w, Transfers *t);            /* nobody writes to the buffers afterwards */
void transfers_free(Transfers *t);

/* ---- failing, waiting, leaving (p2p_world.c) ----------------------------------------------- */

/* This rank fails, and sends the failure to the others, unless the world has failed already. */
void p2p_fail(P2pWorld *w, ErrCode code, const char *text);
void p2p_set_failed(P2pWorld *w, ErrCode code, const char *text); /* sends it to nobody */
Status p2p_may_begin(P2pWorld *w, uint64_t ticket);               /* has nothing failed? */
bool p2p_terminating(P2pWorld *w);                                /* by SIGTERM */
Status p2p_error(const P2pWorld *w);                              /* what every call of a failed world returns */

/* Looks until it is done or fails; the failure is everybody's then.  Not called with the lock
 * held, look and missing are.  missing: completes "... after 3 s " or "the job is ended: ". */
typedef Status P2pLookFn(void *arg, bool *done);
typedef void P2pMissingFn(void *arg, TextBuf *out);
Status p2p_wait(P2pWorld *w, uint64_t ticket, P2pLookFn *look, P2pMissingFn *missing, void *arg);

/* "last seen after all_reduce #1: f32[4] sum" */
void p2p_describe_peer(const P2pWorld *w, int rank, TextBuf *out);
const char *p2p_describe(const P2pWorld *w, uint64_t ticket, char *buf, size_t cap); /* a call of this rank */

/* A world on a port that `open` opens; t is the transport that it belongs to. */
Status p2p_new(const Transport *t, PortOpenFn *open, World **out);
Status p2p_tell_once(World *w, Status s); /* Transport.tell_once */
const char *p2p_library(const World *w);  /* that it runs on */

/* ---- rounds (p2p_round.c) --------------------------------------------------------------------- */

typedef struct {
  char *at;
  size_t bytes; /* up to what fits a message: it rides there */
} Piece;
#define PIECE_IN_STEPS ((Piece){NULL, SIZE_MAX})

typedef struct P2pRound P2pRound;

/* How a kind is done.  prepare: fills out[] and in[] (what goes to and comes from each), or
 * sets steps and scratch.  post: messages of a step.  finish: what is computed when they are
 * over; step -1: all messages are here. */
typedef struct {
  Status (*prepare)(P2pRound *r);
  Status (*post)(P2pRound *r, int step);
  void (*finish)(P2pRound *r, int step);
} P2pKind;

struct P2pRound {
  Comm *comm;
  const Coll *coll;
  const P2pKind *kind;
  int n, me;
  LaneKind lane;
  uint64_t sequence, ticket, signature;
  Message **message;             /* n: from each; own: NULL */
  Piece *out, *in;               /* n */
  int *tag;                      /* n: of my data to each, 0: none go but in the message */
  int missing;                   /* messages */
  double deadlock_since;         /* when a missing member was first seen to wait for this rank elsewhere; 0: not */
  uint64_t send_hash, recv_hash; /* of all so far; unequal in the end: two do not agree, and will say so */
  int step, steps;
  Transfers transfers;
  char *scratch;
  /* p2p_reduce.c */
  int64_t *slice;      /* n + 1: where slices begin */
  const void **source; /* n */
  int64_t segment;     /* elements per slice and step */
};

static inline size_t p2p_width(const P2pRound *r) {
  return r->coll->kind == COLL_BARRIER ? 0 : dtype_size(r->coll->dtype);
}

Status p2p_round_begin(P2pRound *r, Comm *c, const Coll *what, LaneKind lane, uint64_t sequence, uint64_t ticket);
Status p2p_round_look(P2pRound *r, bool *done);
void p2p_round_missing(const P2pRound *r, TextBuf *out);
void p2p_round_end(P2pRound *r); /* frees; gives up what is under way */
Status p2p_mismatch(const P2pRound *r, const Message *theirs, const char *what);
Status p2p_round_run(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket);

extern const P2pKind p2p_move, p2p_reduce; /* p2p_move.c, p2p_reduce.c */

/* What `from` has for `to`; added up in send_hash and recv_hash. */
uint64_t p2p_pair_hash(const P2pRound *r, int from, int to, uint64_t what);

/* p2p_boxes.c: exchange */
Status boxes_prepare(P2pRound *r);
void boxes_list(const P2pRound *r, int member, Message *l); /* sizes, before the data */
Status boxes_check(const P2pRound *r, int member);
size_t boxes_skip(const Message *l); /* bytes of the list */
void boxes_finish(P2pRound *r);

/* ---- send and recv (p2p_pair.c) ----------------------------------------------------------------- */

typedef struct {
  Comm *comm;
  const Coll *coll;
  uint64_t number, ticket;
  int peer; /* rank of the world */
  Message *message;
  Transfers transfers;
} P2pPair;

Status p2p_pair_begin(P2pPair *p, Comm *c, const Coll *what, uint64_t ticket);
Status p2p_pair_look(P2pPair *p, bool *done);
void p2p_pair_missing(const P2pPair *p, TextBuf *out);
void p2p_pair_end(P2pPair *p);
Status p2p_pair_run(Comm *c, const Coll *what, uint64_t ticket);

/* ---- started collectives (p2p_start.c) ------------------------------------------------------------ */

struct P2pWork {
  CommWork base;
  P2pWork *next, *kept;
  bool is_pair, finished;
  P2pRound round;
  P2pPair pair;
  Status status;
};

Status p2p_start(CommWork *work);
Status p2p_wait_work(CommWork *work);
/* Receives messages and moves started collectives on. */
Status p2p_drive(P2pWorld *w, bool *moved);
void p2p_stop(P2pWorld *w); /* ends the thread; unfinished works fail.  Without the lock. */

/* ---- the transport (p2p_world.c) -------------------------------------------------------------------- */

Status p2p_group(Comm *c);
Status p2p_run(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket);
void p2p_fail_world(World *w, Status s);
void p2p_free_world(World *w);
int p2p_local_ranks(const World *w);

/* How a Transport on a port moves data; how its processes are found is its own matter (mpi.c). */
#define P2P_FUNCTIONS                                                                               \
  .work_size = sizeof(P2pWork), .local_ranks = p2p_local_ranks, .group = p2p_group, .run = p2p_run, \
  .start = p2p_start, .wait = p2p_wait_work, .fail = p2p_fail_world, .tell_once = p2p_tell_once,    \
  .free = p2p_free_world

#endif
