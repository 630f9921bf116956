/* mail.h -- inside of the transport for processes (mpi): ranks that send each other letters.
 *
 * A collective is a round.  Every member writes a letter to every other: what it calls (to
 * be compared), and the data for that one if they are small.  When all letters are here,
 * larger data follow as messages of their own, in one or several steps.  All of it is point
 * to point: so reductions combine in the order of the members and give the same bits as on
 * threads, a member that is missing is known by name, and waiting can end at any time.
 *
 * I1  Letters have one tag, and everybody always listens (a few receipts are posted all the
 *     time).  What arrives early stays with its sender's peer entry until a round asks for
 *     it by group, lane and number.  Groups need no agreement: a group is the hash of its
 *     list of members.
 * I2  Data from a to b in a round have a tag that a chose and wrote in its letter.
 * I3  Nothing here waits for another process but mail_wait() and mail_leave(), which
 *     look for failures and the end of time meanwhile.
 * I4  The lock guards everything below and the port.  Functions are called with it held
 *     unless they say otherwise; it is held for bounded times.
 * I5  Whoever fails tells all others, once.  A rank that leaves says so, with the number of
 *     letters that it has written (once these are here, no more will come) and the failure
 *     that made it leave, if one did.
 */
#ifndef TESS_COMM_MAIL_H
#define TESS_COMM_MAIL_H

#include <pthread.h>

#include "comm/port.h"
#include "comm/transport.h"
#include "kernels/kernel.h"

typedef enum { LETTER_HELLO, LETTER_ROUND, LETTER_PAIR, LETTER_TAKEN, LETTER_FAIL, LETTER_LEFT } LetterType;

typedef struct {
  uint8_t type;
  uint8_t lane;    /* LaneKind */
  uint16_t listed; /* exchange: boxes whose sizes are listed before the data */
  uint32_t bytes;  /* that follow */
  int32_t tag;     /* of data that come separately; 0: none do */
  int32_t boxes;   /* exchange: all boxes for this receiver */
  uint64_t group, sequence;
  uint64_t sign;          /* coll_sign(); of a failure: its code */
  int64_t amount;         /* elements for this receiver; exchange: a hash of its boxes */
  uint64_t offers, wants; /* all_to_all and exchange: what this member sends to and expects from
                           * each, as sums of hashes; equal when added up over all members */
  FlightEntry call;
} LetterHead;

enum {
  LETTER_BYTES = 4000, /* libraries send this without asking the receiver first */
  LETTER_DATA = (LETTER_BYTES - (int)sizeof(LetterHead)) & ~63,
  LISTENING = 16, /* receipts that are posted */
  TAG_LETTER = 1, /* data have tags from 2 on */
};

/* head and data are sent as one. */
typedef struct Letter {
  struct Letter *next;
  int refs;
  _Alignas(64) unsigned char pad[(64 - sizeof(LetterHead) % 64) % 64 + 64];
  LetterHead head;
  unsigned char data[LETTER_DATA]; /* aligned */
} Letter;
_Static_assert(offsetof(Letter, data) % 64 == 0 &&
                   offsetof(Letter, data) == offsetof(Letter, head) + sizeof(LetterHead),
               "data follow the head");

/* What this rank knows of another. */
typedef struct {
  Letter *first, **end; /* arrived, and asked for by nobody yet */
  uint64_t sent, got;   /* letters */
  uint64_t last_word;   /* leaving: its letters so far */
  bool greeted, leaving, heard;
  FlightEntry last; /* heard: its latest call */
  int32_t pid;
  uint64_t home; /* host and process numbering */
  char host[64];
  int next_tag;
} Peer;

typedef struct {
  Letter *letter;
  PortRequest request;
} Outgoing;

typedef struct {
  Letter *letter;
  PortRequest request;
} Listener;

typedef struct MailWork MailWork;

typedef struct {
  World base;
  Port port;
  Isa isa;
  int neighbours; /* ranks of this host */
  bool spin;      /* there is a core for each of them */
  pthread_mutex_t lock;
  pthread_cond_t wake;          /* the communication thread: there is something to do */
  Peer *peer;                   /* size */
  Listener listener[LISTENING]; /* oldest first */
  Outgoing *out;
  int nout, out_cap, listening;
  unsigned polls;
  Letter *spare;
  /* The first failure that this rank knows of. */
  bool failed;
  ErrCode code;
  char *message;
  /* started collectives: not finished, in order of start; not waited for */
  MailWork *works, *kept;
  pthread_t thread;
  bool running, stop;
  bool holds_sigterm; /* blocked here */
  bool told_to_end;   /* SIGTERM has come */
} MailWorld;

static inline MailWorld *mail_world(const Comm *c) { return (MailWorld *)c->world; }

/* Comm.link */
typedef struct {
  uint64_t hash;
  uint64_t *sends, *recvs; /* pairs so far, by member */
} MailGroup;

/* ---- letters and data (mail.c) ----------------------------------------------------------- */

Status letter_new(MailWorld *w, Letter **out);       /* refs = 1; the head is zero */
void letter_drop(MailWorld *w, Letter *l);           /* one ref less; NULL is fine */
Status letter_send(MailWorld *w, Letter *l, int to); /* keeps a ref of its own */
/* The first letter from that rank with these marks, taken out; NULL: not here. */
Letter *letter_take(MailWorld *w, int from, LetterType type, uint64_t group, int lane, uint64_t sequence);

uint64_t mail_layout(void);       /* what ranks of another build would misread */
Status mail_listen(MailWorld *w); /* posts the receipts */
Status mail_deaf(MailWorld *w);   /* takes them back; nobody writes any more */
/* Receives what is there; *moved if there was something. */
Status mail_poll(MailWorld *w, bool *moved);
int mail_tag(MailWorld *w, int to); /* a fresh one for data */
bool peer_has_left(const Peer *p);

/* Messages under way in a step of a round. */
typedef struct {
  struct Transfer {
    PortRequest request;
    int peer; /* rank of the world */
    bool receipt, done;
  } * list;
  int n, cap, open;
} Transfers;

Status transfers_send(MailWorld *w, Transfers *t, int to, int tag, const void *data, size_t bytes);
Status transfers_recv(MailWorld *w, Transfers *t, int from, int tag, void *data, size_t bytes);
Status transfers_look(MailWorld *w, Transfers *t, bool *done); /* done: the list is empty again */
void transfers_give_up(MailWorld *w, Transfers *t);            /* nobody writes to the buffers afterwards */
void transfers_free(Transfers *t);

/* ---- failing, waiting, leaving (mail_world.c) ----------------------------------------------- */

/* This rank fails and tells the others, unless the world has failed already. */
void mail_fail(MailWorld *w, ErrCode code, const char *text);
void mail_set_failed(MailWorld *w, ErrCode code, const char *text); /* tells nobody */
Status mail_may_begin(MailWorld *w, uint64_t ticket);               /* has nothing failed? */
bool mail_told_to_end(MailWorld *w);                                /* by SIGTERM */
Status mail_error(const MailWorld *w);                              /* what every call of a failed world returns */

/* Looks until it is done or fails; the failure is everybody's then.  Not called with the lock
 * held, look and missing are.  missing: completes "... after 3 s " or "the job is ended: ". */
typedef Status MailLookFn(void *arg, bool *done);
typedef void MailMissingFn(void *arg, TextBuf *out);
Status mail_wait(MailWorld *w, uint64_t ticket, MailLookFn *look, MailMissingFn *missing, void *arg);

/* "last seen after all_reduce #1: f32[4] sum" */
void mail_describe_peer(const MailWorld *w, int rank, TextBuf *out);
const char *mail_describe(const MailWorld *w, uint64_t ticket, char *buf, size_t cap); /* a call of this rank */

/* A world on a port that `open` opens. */
Status mail_new(PortOpenFn *open, World **out);
const char *mail_library(const World *w); /* that it runs on */

/* ---- rounds (mail_round.c) --------------------------------------------------------------------- */

typedef struct {
  char *at;
  size_t bytes; /* up to what fits a letter: it rides there */
} Piece;
#define PIECE_IN_STEPS ((Piece){NULL, SIZE_MAX})

typedef struct MailRound MailRound;

/* How a kind is done.  prepare: fills out[] and in[] (what goes to and comes from each), or
 * sets steps and scratch.  post: messages of a step.  finish: what is computed when they are
 * over; step -1: all letters are here. */
typedef struct {
  Status (*prepare)(MailRound *r);
  Status (*post)(MailRound *r, int step);
  void (*finish)(MailRound *r, int step);
} MailKind;

struct MailRound {
  Comm *comm;
  const Coll *coll;
  const MailKind *kind;
  int n, me;
  LaneKind lane;
  uint64_t sequence, ticket, sign;
  Letter **letter;        /* n: from each; own: NULL */
  Piece *out, *in;        /* n */
  int *tag;               /* n: of my data to each, 0: none go but in the letter */
  int missing;            /* letters */
  double crossed;         /* when a missing member was first seen to wait for this rank elsewhere; 0: not */
  uint64_t offers, wants; /* of all so far; unequal in the end: two do not agree, and will say so */
  int step, steps;
  Transfers transfers;
  char *scratch;
  /* mail_reduce.c */
  int64_t *slice;      /* n + 1: where slices begin */
  const void **source; /* n */
  int64_t segment;     /* elements per slice and step */
};

static inline size_t mail_width(const MailRound *r) {
  return r->coll->kind == COLL_BARRIER ? 0 : dtype_size(r->coll->dtype);
}

Status mail_round_begin(MailRound *r, Comm *c, const Coll *what, LaneKind lane, uint64_t sequence, uint64_t ticket);
Status mail_round_look(MailRound *r, bool *done);
void mail_round_missing(const MailRound *r, TextBuf *out);
void mail_round_end(MailRound *r); /* frees; gives up what is under way */
Status mail_mismatch(const MailRound *r, const Letter *theirs, const char *what);
Status mail_round_run(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket);

extern const MailKind mail_move, mail_reduce; /* mail_move.c, mail_reduce.c */

/* What `from` has for `to`; added up in offers and wants. */
uint64_t mail_deal(const MailRound *r, int from, int to, uint64_t what);

/* mail_boxes.c: exchange */
Status boxes_prepare(MailRound *r);
void boxes_list(const MailRound *r, int member, Letter *l); /* sizes, before the data */
Status boxes_check(const MailRound *r, int member);
size_t boxes_skip(const Letter *l); /* bytes of the list */
void boxes_finish(MailRound *r);

/* ---- send and recv (mail_pair.c) ----------------------------------------------------------------- */

typedef struct {
  Comm *comm;
  const Coll *coll;
  uint64_t number, ticket;
  int peer; /* rank of the world */
  Letter *letter;
  Transfers transfers;
} MailPair;

Status mail_pair_begin(MailPair *p, Comm *c, const Coll *what, uint64_t ticket);
Status mail_pair_look(MailPair *p, bool *done);
void mail_pair_missing(const MailPair *p, TextBuf *out);
void mail_pair_end(MailPair *p);
Status mail_pair_run(Comm *c, const Coll *what, uint64_t ticket);

/* ---- started collectives (mail_start.c) ------------------------------------------------------------ */

struct MailWork {
  CommWork base;
  MailWork *next, *kept;
  bool pair, finished;
  MailRound round;
  MailPair couple;
  Status status;
};

Status mail_start(CommWork *work);
Status mail_wait_work(CommWork *work);
/* Receives letters and moves started collectives on. */
Status mail_drive(MailWorld *w, bool *moved);
void mail_stop(MailWorld *w); /* ends the thread; unfinished works fail.  Without the lock. */

#endif
